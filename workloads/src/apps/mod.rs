//! The applications of the papers on GPU paging, each over arrays of any kind: one text of kernels for paged arrays and for what a user
//! would run instead.
//!
//! An [`App`] has its input and what comes out of it by the processor. [`App::load`] brings the input into a [`Space`], in whichever
//! [`Way`]; [`Loaded::run`] runs it there, and [`Loaded::found`] compares.

mod array;
mod bfs;
pub mod catalogue;
mod column;
mod components;
mod dense;
mod embedding;
mod error;
mod knn;
mod measure;
mod pagerank;
mod parameters;
mod queries;
mod rows;
pub mod several;
mod sort;
mod space;
mod sssp;
mod triangles;
mod way;

pub use array::{Array, Stream, Streamed, Use};
pub use bfs::{Bfs, BfsParameters};
pub use column::{Column, Format, FormatError, Values, with_ids};
pub use components::Components;
pub use dense::{Dense, DenseKind, GesummvParameters};
pub use embedding::{Embedding, EmbeddingParameters, EmbeddingShape};
pub(crate) use error::compare_by;
pub use error::{AppError, Step};
pub use knn::{Knn, KnnParameters};
pub use measure::{Measured, measure};
pub use pagerank::PageRank;
pub use parameters::{Given, Parameter, ParameterError, Parameters, Value};
pub use queries::{OfQuery, QueryParameters, TableQuery};
pub use several::PageRankParameters;
pub use sort::{Sort, SortParameters};
pub(crate) use space::Line;
pub use space::{CHUNK_BYTES, Space};
pub use sssp::{Sssp, SsspParameters};
pub use triangles::Triangles;
pub(crate) use way::ACCESS;
pub use way::Way;

use gpuvm::{Placement, Vm};

/// An application with its input.
pub trait App: Send + Sync {
    /// What it is called on the command line.
    fn name(&self) -> &'static str;

    /// Its input, in words.
    fn input(&self) -> String;

    /// Bytes of each of its large arrays.
    fn array_bytes(&self) -> Vec<u64>;

    /// Makes its arrays, with the input in them, where it lives at home.
    ///
    /// # Errors
    /// [`AppError::Way`] when it does not run in that way; memory that is short; the compiler's.
    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError>;

    /// What the processor comes to.
    fn expected(&self) -> &[Column];

    /// How far a float may be off where the processor has this.
    fn slack(&self, _: f64) -> f64 {
        0.0
    }

    /// Compares a result with the processor's; how many values.
    ///
    /// # Errors
    /// [`AppError::Wrong`].
    fn check(&self, found: &Found) -> Result<u64, AppError> {
        column::compare(&found.columns, self.expected(), &|value| self.slack(value))
    }

    /// A result as it is written: a vertex by its id, and what else says which row it is.
    fn written(&self, found: Vec<Column>) -> Vec<Column> {
        found
    }

    /// Runs it on all GPUs of a virtual memory, each with a part of the work.
    ///
    /// # Errors
    /// The virtual memory's; [`AppError::Input`] for an application of one GPU.
    fn run_on_all(&self, _: &Vm, _: Placement) -> Result<several::Ran<Found>, AppError> {
        let what = format!(
            "{} runs on one GPU: use --gpu; bfs and pagerank run on several",
            self.name()
        );
        Err(AppError::Input { what })
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Found {
    /// Columns of one length.
    pub columns: Vec<Column>,
    /// Iterations that it took, where it counts them.
    pub iterations: Option<u32>,
}

impl From<Vec<Column>> for Found {
    fn from(columns: Vec<Column>) -> Self {
        let iterations = None;
        Self { columns, iterations }
    }
}

/// An application whose arrays are made.
pub trait Loaded {
    /// Runs it once, from its input on, whatever ran before: launches, and waits for them.
    ///
    /// # Errors
    /// The launches'.
    fn run(&mut self) -> Result<(), AppError>;

    /// What the last run left.
    ///
    /// # Errors
    /// The copies'.
    fn found(&self) -> Result<Found, AppError>;
}

/// Bytes of the pages of an application's arrays: frame memory for all of them.
pub fn paged_bytes(app: &dyn App, page_bytes: u64) -> u64 {
    let pages = app.array_bytes().into_iter();
    pages.map(|bytes| bytes.max(1).next_multiple_of(page_bytes)).sum()
}
