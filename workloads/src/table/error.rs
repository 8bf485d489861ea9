//! Errors of tables.

use std::io;

use super::Column;
use crate::input::{FileError, MemoryError};

/// A table that could not be read, made or written.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A value of [`Trips::from_trips`](super::Trips::from_trips) that its column cannot have.
    #[error("trip {row}: {} {why}", column.name())]
    Trip {
        /// The trip's place in the list, from 0.
        row: usize,
        /// The column.
        column: Column,
        /// What is wrong with the value.
        why: &'static str,
    },
    /// The machine cannot hold the table.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The table could not be written.
    #[error("the table could not be written; what was written of it is not complete, remove it")]
    Write {
        /// Why not.
        source: io::Error,
    },
}
