//! The applications of the papers on GPU paging, each over arrays of any kind: one text of kernels for paged arrays and for what a user
//! would run instead.
//!
//! An [`App`] has its input and what comes out of it by the processor. [`App::load`] brings the input into a [`Space`], in whichever
//! [`Way`]; [`Loaded::run`] runs it there, and [`Loaded::check`] compares.

mod array;
mod bfs;
pub mod catalogue;
mod components;
mod dense;
mod embedding;
mod error;
mod knn;
mod measure;
mod pagerank;
mod queries;
pub(crate) mod rows;
pub mod several;
mod sort;
mod space;
mod sssp;
mod triangles;

pub use array::{Array, Streamed};
pub use bfs::Bfs;
pub use components::Components;
pub use dense::{Dense, DenseKind};
pub use embedding::{Embedding, EmbeddingShape};
pub(crate) use error::compare_by;
pub use error::{AppError, Step};
pub use knn::Knn;
pub use measure::{Measured, measure};
pub use pagerank::PageRank;
pub use queries::TableQuery;
pub use sort::{PART_KEYS, Sort};
pub(crate) use space::{ACCESS, Line};
pub use space::{CHUNK_BYTES, Space, Stream, Use, Way};
pub use sssp::Sssp;
pub use triangles::Triangles;

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
}

/// An application whose arrays are made.
pub trait Loaded {
    /// Runs it once, from its input on, whatever ran before: launches, and waits for them.
    ///
    /// # Errors
    /// The launches'.
    fn run(&mut self) -> Result<(), AppError>;

    /// Compares what the last run left with the processor's result; how many values.
    ///
    /// # Errors
    /// [`AppError::Wrong`].
    fn check(&self) -> Result<u64, AppError>;
}

/// Bytes of the pages of an application's arrays: frame memory for all of them.
pub fn paged_bytes(app: &dyn App, page_bytes: u64) -> u64 {
    let pages = app.array_bytes().into_iter();
    pages.map(|bytes| bytes.max(1).next_multiple_of(page_bytes)).sum()
}
