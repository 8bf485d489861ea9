//! Errors of vectors: names, files, shapes.

use std::io;
use std::path::PathBuf;

use super::{COUNT_MAX, DIM_MAX};

/// A name of vectors that names neither a file nor a generator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VectorSpecError {
    /// Nothing was given.
    #[error("the vectors are empty; name a file (.fvecs, .bvecs), or clusters:COUNT:DIM[:CLUSTERS]")]
    Empty,
    /// A generator with missing, bad or too many numbers.
    #[error(
        "'{spec}': {what}; write clusters:COUNT:DIM[:CLUSTERS], for example clusters:100000:96 (or ./{spec} for a file of that name)"
    )]
    Numbers {
        /// What was given.
        spec: String,
        /// What is wrong with it.
        what: String,
    },
}

/// Vectors that could not be read, made, written or searched. Vectors of a file count from 0.
#[derive(Debug, thiserror::Error)]
pub enum VectorError {
    /// The file could not be opened.
    #[error("cannot open the vectors {}; name a file (.fvecs, .bvecs), or clusters:COUNT:DIM[:CLUSTERS]", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A name whose ending is of no format.
    #[error("{}: the name ends in neither .fvecs nor .bvecs, so its format is not known; rename the file", path.display())]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// Reading failed half way.
    #[error("{}: cannot read on at byte {offset}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where reading began.
        offset: u64,
        /// Why not.
        source: io::Error,
    },
    /// No vector in the file.
    #[error("{}: the file is empty; fetch or write it again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The first dimension is none.
    #[error(
        "{}: vector 0 (byte 0) has the dimension {dim}, which is not from 1 to {DIM_MAX}; is it a file of another format?",
        path.display()
    )]
    BadDim {
        /// The file.
        path: PathBuf,
        /// The dimension as it is in the file.
        dim: i32,
    },
    /// Vectors of different dimensions.
    #[error(
        "{}: vector {vector} (byte {offset}) has the dimension {dim}, those before it have {expected}; is the file damaged, or of another format?",
        path.display()
    )]
    OtherDim {
        /// The file.
        path: PathBuf,
        /// The first vector of another dimension.
        vector: u64,
        /// Where it begins in the file.
        offset: u64,
        /// Its dimension.
        dim: i32,
        /// The dimension of the others.
        expected: usize,
    },
    /// The last vector is cut off.
    #[error(
        "{}: the file is truncated: vector {vector} (byte {offset}) has {found} of its {expected} bytes; fetch it again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The vector.
        vector: u64,
        /// Where it begins in the file.
        offset: u64,
        /// Its bytes in the file.
        found: u64,
        /// The bytes of a vector.
        expected: u64,
    },
    /// A component that has no distance to others.
    #[error(
        "{}: vector {vector} (byte {offset}): component {component} is {value}; distances need finite numbers",
        path.display()
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The vector.
        vector: u64,
        /// Where it begins in the file.
        offset: u64,
        /// The component, from 0.
        component: usize,
        /// Its value.
        value: f32,
    },
    /// More vectors than ids.
    #[error("{}: {count} vectors, at most {COUNT_MAX} are supported; split the file", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// Its vectors.
        count: u64,
    },
    /// Values that are no rows of a width.
    #[error(
        "{values} values are no rows of {width}: there must be 1 to {COUNT_MAX} whole rows, of 1 to {DIM_MAX} values"
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
    #[error("no index can be made: {what}")]
    Index {
        /// What is wrong, and what is right.
        what: String,
    },
    /// A component that a byte cannot hold.
    #[error("vector {vector}: component {component} is {value}, and no whole number from 0 to 255; write .fvecs")]
    NotByte {
        /// The vector.
        vector: usize,
        /// The component, from 0.
        component: usize,
        /// Its value.
        value: f32,
    },
    /// The machine cannot hold the vectors.
    #[error(
        "the vectors need {needed_bytes} bytes of memory, this machine has {available_bytes} available; use fewer of them"
    )]
    Memory {
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes that the machine has left.
        available_bytes: u64,
    },
    /// The vectors could not be written.
    #[error("the vectors could not be written; what was written of them is not complete, remove it")]
    Write {
        /// Why not.
        source: io::Error,
    },
}
