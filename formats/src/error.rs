//! What can be wrong with a file.

use std::path::PathBuf;

use crate::Dtype;

/// A result with a [`FormatError`].
pub type Result<T, E = FormatError> = std::result::Result<T, E>;

/// Why elements of a file are no region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file could not be opened or read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The file is none of the kind, or contradicts itself.
    #[error("{} is not a complete {kind} file: {reason}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What it should be.
        kind: &'static str,
        /// What is wrong with it.
        reason: String,
        /// What its format's library says.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// What is often fetched in the place of a file.
    #[error("{} is {found}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        found: &'static str,
    },
    /// A file of a kind that this crate does not read.
    #[error("{} is {found}: {fix}", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: &'static str,
        /// What to do.
        fix: &'static str,
    },
    /// No tensor or column of that name, or record batch of that number.
    #[error("{} has no {what} `{name}`; it has {has}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// `tensor`, `column` or `record batch`.
        what: &'static str,
        /// Its name or number.
        name: String,
        /// What there is.
        has: String,
    },
    /// Several columns of one name: of the schema, or a field of structures and a column whose name has a dot.
    #[error(
        "columns {first} and {second} of {} are named `{name}`: ask for one by its number, in Python by .at({first}), in Rust by \
         column_at({first})",
        path.display()
    )]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// The number of the first one of that name, from 0.
        first: usize,
        /// The number of the next one.
        second: usize,
    },
    /// A column whose values are not elements one after another.
    #[error("column `{column}` of {} is {found}, which cannot be used in place: {fix}", path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What it is.
        found: &'static str,
        /// What to do.
        fix: &'static str,
    },
    /// A record batch or a part of a dictionary whose buffers are compressed.
    #[error(
        "{part} of {} is compressed ({codec}), so its columns are not in the file as they are: write the file again without \
         compression, in Python by pyarrow.feather.write_feather(table, path, compression=\"uncompressed\")",
        path.display()
    )]
    Compressed {
        /// The file.
        path: PathBuf,
        /// `record batch` or `dictionary batch`, and its number from 0.
        part: String,
        /// The codec's name.
        codec: String,
    },
    /// A region of another type than the elements'.
    #[error("`{name}` of {} has elements {dtype}, not {asked}: ask for {}", path.display(), dtype.takes())]
    Type {
        /// The file.
        path: PathBuf,
        /// The tensor or column.
        name: String,
        /// What its elements are.
        dtype: Dtype,
        /// The type that was asked for.
        asked: &'static str,
    },
    /// The region could not be made.
    #[error(transparent)]
    Region(#[from] gpuvm::Error),
}
