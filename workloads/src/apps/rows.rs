//! A graph's rows as large arrays.
//!
//! Row offsets and neighbours (and weights) are large arrays. What is small against the edges and is read anywhere, four bytes a vertex,
//! lies in plain device memory, as the authors of such kernels keep it: it would take the frames of pages that pay less.

use std::sync::Arc;

use gpuvm::Buffer;
use rayon::prelude::*;

use super::error::AppError;
use super::space::Space;
use super::{Array, Step, Use};
use crate::graph::{Csr, Direction, Graph};
use crate::rows::PIECE_EDGES;

/// A graph's rows, where a space has them.
pub(super) struct Rows {
    pub offsets: Array<u64>,
    pub neighbours: Array<u32>,
    pub vertices: u32,
    pub edges: u64,
}

impl Rows {
    pub fn new(space: &Space, csr: &Csr) -> Result<Self, AppError> {
        Ok(Self {
            offsets: space.array("row offsets", Use::Read, csr.offsets())?,
            neighbours: space.array("neighbours", Use::Read, csr.neighbours())?,
            vertices: csr.vertices(),
            edges: csr.edges(),
        })
    }

    /// Pieces of all edges.
    pub fn pieces(&self) -> u64 {
        self.edges.div_ceil(PIECE_EDGES)
    }

    pub fn prefetch(&self) -> Result<(), AppError> {
        self.offsets.prefetch()?;
        self.neighbours.prefetch()
    }
}

/// Bytes of a graph's row offsets and neighbours.
pub(super) fn row_bytes(csr: &Csr) -> Vec<u64> {
    vec![(u64::from(csr.vertices()) + 1) * 8, csr.edges() * 4]
}

/// The row of each piece's first edge, in plain device memory: 4 bytes for 2 KiB of edges.
pub(super) fn owners(space: &Space, csr: &Csr) -> Result<Buffer<u32>, AppError> {
    let owner = |piece: u64| owner(csr, piece * PIECE_EDGES);
    space.upload(&pieces_of(csr).into_par_iter().map(owner).collect::<Vec<_>>())
}

/// The rows of each piece's first edge and of its last one, in turn.
pub(super) fn end_owners(space: &Space, csr: &Csr) -> Result<Buffer<u32>, AppError> {
    let last = |piece: u64| ((piece + 1) * PIECE_EDGES).min(csr.edges()) - 1;
    let ends = |piece: u64| [owner(csr, piece * PIECE_EDGES), owner(csr, last(piece))];
    space.upload(&pieces_of(csr).into_par_iter().flat_map_iter(ends).collect::<Vec<_>>())
}

fn pieces_of(csr: &Csr) -> std::ops::Range<u64> {
    0..csr.edges().div_ceil(PIECE_EDGES)
}

fn owner(csr: &Csr, edge: u64) -> u32 {
    (csr.offsets().partition_point(|begin| *begin <= edge) - 1) as u32
}

/// A graph that an application needs in the rows of both ends of each edge.
///
/// # Errors
/// [`AppError::Input`] for a directed graph, and for one without edges.
pub(super) fn undirected(graph: &Arc<Graph>, app: &str) -> Result<Arc<Graph>, AppError> {
    if graph.direction() == Direction::Directed {
        let what = format!("{app} needs an undirected graph, and this one is directed; load it as an undirected one");
        return Err(AppError::Input { what });
    }
    with_edges(graph, app)
}

/// A graph with at least one edge.
///
/// # Errors
/// [`AppError::Input`] for one without.
pub(super) fn with_edges(graph: &Arc<Graph>, app: &str) -> Result<Arc<Graph>, AppError> {
    match graph.csr().edges() {
        0 => Err(AppError::Input {
            what: format!("{app} over a graph without edges"),
        }),
        _ => Ok(Arc::clone(graph)),
    }
}

/// "11 vertices, 34 edges".
pub(super) fn in_words(csr: &Csr) -> String {
    format!("{} vertices, {} stored edges", csr.vertices(), csr.edges())
}

/// An error of a launch or of its end.
pub(super) fn ran<T>(result: gpuvm::Result<T>) -> Result<T, AppError> {
    result.map_err(AppError::vm(Step::Run))
}
