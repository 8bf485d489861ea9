//! Errors of vectors: files, shapes, searches.

use std::io;

use super::{COUNT_MAX, DIM_MAX};
use crate::input::{FileError, MemoryError};

/// Vectors that could not be read, made, written or searched. Vectors of a file count from 0.
#[derive(Debug, thiserror::Error)]
pub enum VectorError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Values that are not rows of a width.
    #[error(
        "{values} values are not rows of {width}: there must be 1 to {COUNT_MAX} whole rows, of 1 to {DIM_MAX} values"
    )]
    Shape {
        /// Values given.
        values: usize,
        /// The width given.
        width: usize,
    },
    /// Queries of another dimension.
    #[error("the queries have the dimension {queries}, the vectors that are searched have {base}")]
    Dim {
        /// The dimension of the vectors.
        base: usize,
        /// That of the queries.
        queries: usize,
    },
    /// Answers that do not belong together.
    #[error(
        "cannot compare {k} neighbours of each query: one answer has {truth_rows} rows of {truth_width}, the other {found_rows} of {found_width}"
    )]
    Answers {
        /// Neighbours to compare.
        k: usize,
        /// Rows of the exact answer.
        truth_rows: usize,
        /// Neighbours in each.
        truth_width: usize,
        /// Rows of the answer that is judged.
        found_rows: usize,
        /// Neighbours in each.
        found_width: usize,
    },
    /// A number of neighbours that a search cannot return.
    #[error("{k} neighbours were asked for; ask for 1 to {count}, as many as there are vectors")]
    Neighbours {
        /// Neighbours asked for.
        k: usize,
        /// Vectors, or [`DIM_MAX`] where there are more.
        count: usize,
    },
    /// Options or links of which no index can be made.
    #[error("cannot build an index: {what}")]
    Index {
        /// What is wrong, and what is right.
        what: String,
    },
    /// A component that a byte cannot hold.
    #[error("vector {vector}: component {component} is {value}, not a whole number from 0 to 255; write .fvecs")]
    NotByte {
        /// The vector.
        vector: usize,
        /// The component, from 0.
        component: usize,
        /// Its value.
        value: f32,
    },
    /// The machine cannot hold the vectors.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The vectors could not be written.
    #[error("the vectors could not be written; what was written of them is not complete, remove it")]
    Write {
        /// Why not.
        source: io::Error,
    },
}
