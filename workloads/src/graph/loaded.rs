//! A graph, wherever it is from.

use super::array::Array;
use super::csr::Csr;
use super::error::{GraphError, SourceError};
use super::ids::{Direction, VertexIds};
use super::{ProgressFn, rows};

/// A graph and what its source said of it.
#[derive(Clone, Debug)]
pub struct Graph {
    pub(super) csr: Csr,
    /// One for each neighbour.
    pub(super) weights: Option<Array<u32>>,
    /// Whether they were drawn, which no file keeps.
    pub(super) drawn: bool,
    pub(super) ids: VertexIds,
    pub(super) direction: Direction,
}

impl PartialEq for Graph {
    /// Wherever the weights come from.
    fn eq(&self, other: &Graph) -> bool {
        let same = self.csr == other.csr && self.weights == other.weights;
        same && self.ids == other.ids && self.direction == other.direction
    }
}

impl Eq for Graph {}

impl Graph {
    /// The rows.
    pub fn csr(&self) -> &Csr {
        &self.csr
    }

    /// The weight of each edge, none of them 0, in the order of [`Csr::neighbours`]; `None` where [`LoadOptions::weights`](super::LoadOptions::weights) asked for
    /// none. In an undirected graph an edge weighs as much in both rows.
    pub fn weights(&self) -> Option<&[u32]> {
        self.weights.as_deref()
    }

    /// Where the weights are from, in words.
    pub fn weights_name(&self) -> &'static str {
        match (&self.weights, self.drawn) {
            (None, _) => "without weights",
            (Some(_), false) => "with the file's weights",
            (Some(_), true) => "with drawn weights",
        }
    }

    /// Whether each edge is stored once or in both rows.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The vertex that the source calls `id`, or `None` where it has no such vertex.
    ///
    /// Matrix Market files count from 1, generated graphs from 0; edge lists name their vertices
    /// freely and those are numbered in ascending order of their ids.
    pub fn vertex_of(&self, id: u64) -> Option<u32> {
        let vertex = match &self.ids {
            VertexIds::Counted { first } => id.checked_sub(*first)?,
            VertexIds::Listed(ids) => ids.binary_search(&id).ok()? as u64,
        };
        u32::try_from(vertex).ok().filter(|v| *v < self.csr.vertices())
    }

    /// The vertex that a search starts from: that of the id, or the lowest one with neighbours.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn source(&self, id: Option<u64>) -> Result<u32, SourceError> {
        let Some(id) = id else {
            return self.csr.first_connected().ok_or(SourceError::NoEdges);
        };
        self.vertex_of(id).ok_or_else(|| {
            let vertices = self.csr.vertices();
            let first = self.id_of(0).unwrap_or(0);
            let last = self.id_of(vertices.saturating_sub(1)).unwrap_or(0);
            let gaps = if last - first >= u64::from(vertices) {
                ", not all of them used"
            } else {
                ""
            };
            SourceError::NoSuchVertex { id, first, last, gaps }
        })
    }

    /// The source's id of `vertex`, or `None` where there is no such vertex.
    pub fn id_of(&self, vertex: u32) -> Option<u64> {
        if vertex >= self.csr.vertices() {
            return None;
        }
        match &self.ids {
            VertexIds::Counted { first } => Some(u64::from(vertex) + first),
            VertexIds::Listed(ids) => ids.get(vertex as usize).copied(),
        }
    }

    /// A directed graph's edges in the rows of both their ends.
    pub(super) fn mirrored(self, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
        let direction = Direction::Undirected;
        let (csr, weights) = rows::rebuilt(self.csr, self.weights.as_deref(), direction, progress)?;
        Ok(Graph {
            csr,
            weights: weights.map(Into::into),
            drawn: self.drawn,
            ids: self.ids,
            direction,
        })
    }
}
