//! Vectors, and the search for the nearest of them.
//!
//! A [`VectorSpec`] names a file (`.fvecs`, `.bvecs`) or a generator of clustered vectors, and [`VectorSpec::load`] makes
//! [`Vectors`] of it. [`nearest`](nearest()) finds the exact neighbours; an [`Index`] is a graph over which a few of the
//! vectors are looked at, which is what a GPU does over paged arrays. [`recall`] compares the two.
//!
//! ```
//! use gpuvm_workloads::vectors::{Clusters, Index, IndexOptions, nearest, recall};
//!
//! let clusters = Clusters { count: 1000, dim: 24, clusters: 10 };
//! let (base, queries) = (clusters.vectors(1)?, clusters.queries(20, 1)?);
//! let index = Index::build(&base, &IndexOptions::default())?;
//! let found = index.search(&base, &queries, 10, 64)?.neighbours;
//! assert!(recall(&base, &queries, &nearest(&base, &queries, 10)?, &found, 10)? > 0.95);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod files;
mod generate;
mod index;
mod limits;
mod nearest;
mod spec;

pub use error::VectorError;
pub use files::{read_bvecs, read_fvecs, read_ivecs, write_bvecs, write_fvecs, write_ivecs};
pub use generate::Clusters;
pub use index::{Found, Index, IndexOptions, Work};
pub use limits::{COUNT_MAX, DIM_MAX, NONE};
pub use nearest::{distance, nearest, recall};
pub use spec::VectorSpec;

/// Rows of one length, one after the other in an array that a region can take. There is at least one, and it is not empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows<T> {
    width: usize,
    values: Vec<T>,
}

/// Vectors by id: a row each. Readers and generators give finite numbers only; a vector with a NaN is farther than all others.
pub type Vectors = Rows<f32>;

/// Ids of neighbours, the nearest first: a row for each query, or for each vector of an index.
pub type Neighbours = Rows<u32>;

impl<T> Rows<T> {
    /// Rows of `width` values each.
    ///
    /// # Errors
    /// [`VectorError::Shape`] where the values are not rows of that width, or are none.
    pub fn new(width: usize, values: Vec<T>) -> Result<Rows<T>, VectorError> {
        let count = values.len().checked_div(width).unwrap_or(0);
        let fits = (1..=DIM_MAX).contains(&width) && (1..=COUNT_MAX).contains(&count);
        if !fits || values.len() != count * width {
            let values = values.len();
            return Err(VectorError::Shape { values, width });
        }
        Ok(Rows { width, values })
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.values.len() / self.width
    }

    /// How many values a row has: the dimension of vectors.
    pub fn width(&self) -> usize {
        self.width
    }

    /// A row.
    ///
    /// # Panics
    /// Where there is no such row.
    pub fn row(&self, row: u32) -> &[T] {
        let begin = row as usize * self.width;
        &self.values[begin..begin + self.width]
    }

    /// All rows.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[T]> {
        self.values.chunks_exact(self.width)
    }

    /// The values of all rows, one after the other.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Takes the values out, to move them into a paged region without a copy.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }
}

/// Fails where queries are not of the base's dimension.
fn same_dim(base: &Vectors, queries: usize) -> Result<(), VectorError> {
    match base.width() == queries {
        true => Ok(()),
        false => Err(VectorError::Dim {
            base: base.width(),
            queries,
        }),
    }
}
