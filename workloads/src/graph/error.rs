//! Errors of graphs.

use super::MAX_VERTICES;
use crate::input::{FileError, MemoryError};

/// A graph that could not be loaded or built.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// An edge given to [`super::Csr::from_edges`] names no vertex of the graph.
    #[error("edge {edge} ({from}, {to}) is outside the {vertices} vertices of the graph")]
    EdgeOutOfRange {
        /// The edge's place in the list, from 0.
        edge: usize,
        /// Its first end.
        from: u32,
        /// Its second end.
        to: u32,
        /// Vertices of the graph.
        vertices: u32,
    },
    /// [`super::Csr::from_edges`] was asked for more vertices than vertex numbers.
    #[error("a graph of {vertices} vertices was asked for, at most {MAX_VERTICES} are supported")]
    VerticesOutOfRange {
        /// Vertices asked for.
        vertices: u32,
    },
    /// The machine cannot hold the graph.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
