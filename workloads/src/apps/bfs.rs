//! Breadth-first search, as an application: the kernels of [`crate::bfs`].

use std::sync::{Arc, OnceLock};

use gpuvm::{Kernel, LaunchConfig, Placement, Vm};

use super::array::Use;
use super::error::{AppError, Step};
use super::parameters::parameters;
use super::rows::{self, Rows, ran};
use super::space::{Space, finish};
use super::{App, Array, Column, Found, Loaded, several, with_ids};
use crate::bfs::{SOURCE, SearchShape, Sets, levels};
use crate::graph::Graph;
use crate::graph::reference;

/// Blocks of 128 threads of a multiprocessor, by the bounds of the kernel that clears the distances.
const BLOCKS: u32 = 4;

parameters! {
    /// Where a search starts.
    BfsParameters {
        /// The vertex to start from, by its id in the file. Without it: the lowest one that has neighbours
        "source" source: Option<u64> = None, 0..=u64::MAX;
    }
}

/// Edges from a vertex to all others on shortest paths.
///
/// Row offsets, neighbours and distances are large arrays; each distance is written once. The sets of vertices are in plain device memory,
/// and so is the list of long rows' pieces.
pub struct Bfs {
    graph: Arc<Graph>,
    source: u32,
    expected: OnceLock<[Column; 1]>,
}

impl Bfs {
    /// From the source on.
    ///
    /// # Errors
    /// [`AppError::Source`] for a graph without edges, and a source that it does not have.
    pub fn new(graph: &Arc<Graph>, parameters: &BfsParameters) -> Result<Self, AppError> {
        Ok(Self {
            source: graph.source(parameters.source)?,
            graph: Arc::clone(graph),
            expected: OnceLock::new(),
        })
    }
}

impl App for Bfs {
    fn name(&self) -> &'static str {
        "bfs"
    }

    fn input(&self) -> String {
        format!("{}, from {}", rows::in_words(self.graph.csr()), self.source)
    }

    fn array_bytes(&self) -> Vec<u64> {
        let mut bytes = rows::row_bytes(self.graph.csr());
        bytes.push(u64::from(self.graph.csr().vertices()) * 4);
        bytes
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        space.refuse_chunks("a level walks a few rows anywhere, and chunks would bring all of them in each level")?;
        let (csr, shape) = (self.graph.csr(), SearchShape::of(&space.gpu()));
        let names = ["bfs_start", "bfs_level", "bfs_pieces"];
        let distances = vec![-1; csr.vertices() as usize];
        Ok(Box::new(Work {
            app: self,
            space,
            kernels: space.kernels_with("bfs.cu", SOURCE, names, shape.compile_options())?,
            rows: Rows::new(space, csr)?,
            distances: space.array("distances", Use::ReadWrite, &distances)?,
            sets: Sets::new(space.vm(), csr, self.source).map_err(AppError::vm(Step::Memory))?,
            config: shape.launch_config(&space.gpu(), csr.vertices().into()),
        }))
    }

    fn expected(&self) -> &[Column] {
        self.expected.get_or_init(|| {
            let search = reference::bfs(self.graph.csr(), self.source);
            [Column::new("distance", search.unwrap_or_default())]
        })
    }

    fn written(&self, found: Vec<Column>) -> Vec<Column> {
        with_ids(&self.graph, found)
    }

    fn run_on_all(&self, vm: &Vm, placement: Placement) -> Result<several::Ran<Found>, AppError> {
        let ran = ran(several::bfs(vm, self.graph.csr(), self.source, placement))?;
        Ok(ran.map(|distances| vec![Column::new("distance", distances)].into()))
    }
}

struct Work<'a> {
    app: &'a Bfs,
    space: &'a Space,
    kernels: [Kernel; 3],
    rows: Rows,
    distances: Array<i32>,
    sets: Sets,
    config: LaunchConfig,
}

impl Work<'_> {
    fn start(&self) -> Result<(), AppError> {
        let [frontier, next, previous] = self.sets.frontiers(1);
        let Sets {
            visited, list, totals, ..
        } = &self.sets;
        let (distances, vertices, source) = (self.distances.arg()?, self.rows.vertices, self.app.source);
        let args = (
            distances, visited, frontier, next, previous, list, totals, vertices, source,
        );
        finish(self.kernels[0].launch(self.space.whole_gpu(BLOCKS, 1), args))
    }

    /// Searches one level; the totals so far.
    fn level(&self, level: u32) -> Result<[u64; 3], AppError> {
        let (rows, [_, walk, pieces]) = (&self.rows, &self.kernels);
        let args = [rows.offsets.arg()?, rows.neighbours.arg()?, self.distances.arg()?];
        ran(self
            .sets
            .level([walk, pieces], &self.config, args, rows.vertices, level))
    }
}

impl Loaded for Work<'_> {
    fn run(&mut self) -> Result<(), AppError> {
        self.rows.prefetch()?;
        self.distances.prefetch()?;
        self.start()?;
        levels(self.rows.vertices, &mut |_| {}, |level| self.level(level)).map(|_| ())
    }

    fn found(&self) -> Result<Found, AppError> {
        Ok(vec![Column::new("distance", self.distances.to_vec()?)].into())
    }
}
