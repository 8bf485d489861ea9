//! Errors of tables: names, files and writers.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::{Column, MAX_ROWS};

/// A name of a table that names neither a file nor a generator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableSpecError {
    /// Nothing was given.
    #[error("the table is empty; name a CSV or Parquet file, or trips:ROWS")]
    Empty,
    /// A generator without a number of rows, or with one that is none.
    #[error(
        "'{spec}': the rows are not a whole number from 1 to {MAX_ROWS}; write trips:ROWS, for example trips:1000000 (or ./{spec} for a file of that name)"
    )]
    Rows {
        /// What was given.
        spec: String,
    },
}

/// Where a value is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of a CSV file, from 1.
    Line(u64),
    /// A row of a Parquet file, both counted from 0 as Parquet's tools do.
    Row {
        /// The row group.
        group: usize,
        /// The row within the group.
        row: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => line.fmt(out),
            Place::Row { group, row } => write!(out, "row group {group}, row {row}"),
        }
    }
}

/// A table that could not be read, made or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file could not be opened.
    #[error("cannot open the table {}; name a CSV or Parquet file, or trips:ROWS", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Reading failed half way.
    #[error("{}:{line}: cannot read on", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The line being read.
        line: u64,
        /// Why not.
        source: io::Error,
    },
    /// The gzip stream ends too early, or is damaged.
    #[error("{}:{line}: the gzip data is truncated or damaged; fetch the file again", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// The line at which the damage was met.
        line: u64,
        /// What the decoder says.
        source: io::Error,
    },
    /// A line that cannot be understood.
    #[error("{}:{line}: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line.
        line: u64,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// No trip in the file.
    #[error("{}: the file holds no trip; fetch or write it again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A column that is needed and not there.
    #[error(
        "{}: there is no column {}; the file has {found}. Files of yellow taxis since 2015 have all that are needed",
        path.display(),
        column.name()
    )]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: Column,
        /// The columns that are there.
        found: String,
    },
    /// A column of a type that holds no such values.
    #[error(
        "{}: the column {} has the type {found}; {wanted} is needed",
        path.display(),
        column.name()
    )]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: Column,
        /// Its type in the file.
        found: String,
        /// The types that are read.
        wanted: &'static str,
    },
    /// A value that its column cannot have.
    #[error("{}:{place}: {} {value} {why}; correct or remove that row", path.display(), column.name())]
    Value {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// The column.
        column: Column,
        /// The value in quotation marks, cut to 40 characters.
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A value given to [`Trips::from_trips`](super::Trips::from_trips) that its column cannot have.
    #[error("trip {row}: {} {why}", column.name())]
    Trip {
        /// The trip's place in the list, from 0.
        row: usize,
        /// The column.
        column: Column,
        /// What is wrong with the value.
        why: &'static str,
    },
    /// A file that is called `.parquet` and is none.
    #[error("{}: no Parquet file: it begins with {begins}, not with PAR1; fetch it again, or rename it", path.display())]
    NotParquet {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        begins: String,
    },
    /// A Parquet file, and a build that reads none.
    #[error(
        "{}: a Parquet file, which this build does not read; build gpuvm with `--features parquet` (`./run` does so where a file's name ends in .parquet), or write the table as CSV",
        path.display()
    )]
    #[cfg(not(feature = "parquet"))]
    ParquetLeftOut {
        /// The file.
        path: PathBuf,
    },
    /// A Parquet file that is cut off, damaged, or of a kind that is not supported.
    #[cfg(feature = "parquet")]
    #[error(
        "{}: the Parquet file cannot be read: it is truncated, damaged or packed in a way that is not supported (snappy, zstd, gzip and none are); fetch or write it again",
        path.display()
    )]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What Parquet's decoder says.
        source: parquet::errors::ParquetError,
    },
    /// More rows than a table can have.
    #[error("{}: {rows} rows, at most {MAX_ROWS} are supported; split the file", path.display())]
    TooManyRows {
        /// The file.
        path: PathBuf,
        /// Rows of the file, or those read until they were too many.
        rows: u64,
    },
    /// The machine cannot hold the table.
    #[error(
        "the table needs {needed_bytes} bytes of memory, this machine has {available_bytes} available; use a smaller table"
    )]
    Memory {
        /// Bytes of the columns.
        needed_bytes: u64,
        /// Bytes that the machine has left.
        available_bytes: u64,
    },
    /// The table could not be written.
    #[error("the table could not be written; what was written of it is not complete, remove it")]
    Write {
        /// Why not.
        source: io::Error,
    },
}
