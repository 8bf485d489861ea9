//! What a graph's source says of its vertices and edges.

use super::array::Array;

/// The most vertices of a graph: distances are `i32`, so the longest path still fits.
pub const MAX_VERTICES: u32 = i32::MAX as u32;

/// Whether an edge can be walked one way or both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// An edge `u v` is stored in the row of `u` only.
    Directed,
    /// An edge `u v` is stored in the rows of `u` and of `v`.
    Undirected,
}

/// The names that a graph's source gives to the vertices 0, 1, 2...
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VertexIds {
    /// Vertex `v` is called `v + first`.
    Counted { first: u64 },
    /// Vertex `v` is called `ids[v]`; ascending.
    Listed(Array<u64>),
}
