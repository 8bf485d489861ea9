//! Graphs in compressed sparse row form: where they come from and what is known about them.
//!
//! A [`GraphSpec`] names a file or a generator and [`GraphSpec::load`] makes a [`Graph`] of it.
//! Every graph is built in the same way: self-loops are dropped, rows are sorted in ascending
//! order and hold each neighbour once, as the GAP benchmark's builder does.
//!
//! A graph is directed or not as its file says: a `general` Matrix Market file and an edge list
//! with SNAP's comment `# Directed graph` are directed; symmetric matrices, edge lists that say
//! `# Undirected graph` or say nothing, and generated graphs are undirected, so that each edge is
//! stored in both rows. GAP's serialized graphs and `.gcsr` files say it in their headers. [`LoadOptions::direction`] overrides it.
//!
//! A graph has weights where [`LoadOptions::weights`] asks for them. Of several edges between the same ends the least weight stays.
//!
//! [`Graph::write`] writes a `.gcsr` file, which [`GraphSpec::load`] maps: nothing is parsed, sorted or copied.

mod array;
mod csr;
mod csr_file;
mod dimacs;
mod edge_list;
mod error;
mod gap;
pub(crate) mod generate;
mod lower;
mod matrix_market;
mod metis;
pub mod reference;
mod rows;
mod spec;
mod text;
mod weights;

use std::io::{self, Write};

pub use csr::{Csr, MAX_VERTICES};
pub use error::GraphError;
pub use generate::DEFAULT_SEED;
pub use spec::{DEFAULT_DEGREE, GraphSpec, LoadOptions, MAX_DEGREE, MAX_SCALE};
pub use weights::{DRAWN_WEIGHT_MAX, Weights, draw_weights};

use array::Array;

pub use crate::input::{Progress, ProgressFn, SpecError, Stage};

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
enum VertexIds {
    /// Vertex `v` is called `v + first`.
    Counted { first: u64 },
    /// Vertex `v` is called `ids[v]`; ascending.
    Listed(Array<u64>),
}

/// A graph and what its source said of it.
#[derive(Clone, Debug)]
pub struct Graph {
    csr: Csr,
    /// One for each neighbour.
    weights: Option<Array<u32>>,
    /// Whether they were drawn, which no file keeps.
    drawn: bool,
    ids: VertexIds,
    direction: Direction,
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

    /// The weight of each edge, none of them 0, in the order of [`Csr::neighbours`]; `None` where [`LoadOptions::weights`] asked for
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

    /// Writes the graph as a `.gcsr` file, from the begin of `out` on: rows, weights where it has some, ids, and checksums of all.
    /// `docs/GRAPHS.md` has the layout.
    ///
    /// # Errors
    /// Those of `out`; a part of the file may be written then.
    pub fn write(&self, out: &mut dyn Write, progress: &mut ProgressFn<'_>) -> io::Result<()> {
        csr_file::write(self, out, progress)
    }

    /// A directed graph's edges in the rows of both their ends.
    fn mirrored(self, progress: &mut ProgressFn<'_>) -> Result<Graph, GraphError> {
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
