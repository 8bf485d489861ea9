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

/// A search that has no start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The source is not in the graph.
    #[error("the graph has no vertex {id}; its ids go from {first} to {last}{gaps}")]
    NoSuchVertex {
        /// The id asked for.
        id: u64,
        /// The lowest id.
        first: u64,
        /// The highest id.
        last: u64,
        /// Says that not every id between is used, or nothing.
        gaps: &'static str,
    },
    /// There is no default source.
    #[error("no vertex of the graph has a neighbour; choose a start with --source")]
    NoEdges,
}
