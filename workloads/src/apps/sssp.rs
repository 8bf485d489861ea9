//! Shortest paths from one vertex, over weights of 32 bits.

use std::sync::{Arc, OnceLock};

use gpuvm::{Buffer, Kernel};

use super::array::Use;
use super::error::{AppError, Step};
use super::parameters::parameters;
use super::rows::{self, Rows, ran};
use super::space::{Space, finish};
use super::{App, Array, Column, Found, Loaded, with_ids};
use crate::graph::{Graph, reference};
use crate::rows::{compile_options, list_words};

/// Blocks of 128 threads of a multiprocessor, by the kernels' bounds.
const BLOCKS: u32 = 4;

parameters! {
    /// Where paths begin, and how they are found.
    SsspParameters {
        /// The vertex to start from, by its id in the file. Without it: the lowest one that has neighbours
        "source" source: Option<u64> = None, 0..=u64::MAX;
        /// How far the limit rises at once. Larger steps have fewer rounds, and walk more rows anew. Without it: by the weights and the rows' lengths
        "step" step: Option<u32> = None, 1..=u32::MAX;
    }
}

/// Shortest paths from a vertex to all others: a limit that rises by a step, and the rows of what is nearer (`sssp.cu`).
///
/// Row offsets, neighbours and weights are large arrays. The distances, which each edge looks at somewhere, are in plain device memory,
/// and so are the set of pending vertices, and the list of long rows' pieces (at most 3 bytes for 64 edges).
///
/// A distance of `u32::MAX` says that there is no path, or none shorter than that.
pub struct Sssp {
    graph: Arc<Graph>,
    source: u32,
    step: u32,
    expected: OnceLock<[Column; 1]>,
}

impl Sssp {
    /// Paths over that graph's weights.
    ///
    /// # Errors
    /// [`AppError::Source`] for a graph without edges, and a source that it does not have; [`AppError::Input`] for one without weights.
    pub fn new(graph: &Arc<Graph>, parameters: &SsspParameters) -> Result<Self, AppError> {
        let source = graph.source(parameters.source)?;
        let Some(weights) = graph.weights() else {
            let what = "sssp needs weights; load the graph with weights".to_owned();
            return Err(AppError::Input { what });
        };
        let step = parameters.step;
        Ok(Self {
            source,
            step: step.unwrap_or_else(|| expected_step(weights, graph.csr().vertices())),
            graph: Arc::clone(graph),
            expected: OnceLock::new(),
        })
    }
}

/// About one of a vertex's edges is this short. On generated graphs few rows are walked twice then: 1.1 times the edges of kron:18 in 85
/// rounds, where a step 4 times as long walks 2.7 times the edges in 35.
fn expected_step(weights: &[u32], vertices: u32) -> u32 {
    let samples = weights.iter().step_by((weights.len() / 1024).max(1));
    let count = samples.clone().count() as u64;
    let mean = samples.map(|weight| u64::from(*weight)).sum::<u64>() / count.max(1);
    let degree = weights.len() as u64 / u64::from(vertices);
    (2 * mean / degree.max(1)).clamp(1, u32::MAX.into()) as u32
}

impl App for Sssp {
    fn name(&self) -> &'static str {
        "sssp"
    }

    fn input(&self) -> String {
        let csr = rows::in_words(self.graph.csr());
        format!(
            "{csr}, {}, from {}, steps of {}",
            self.graph.weights_name(),
            self.source,
            self.step
        )
    }

    fn array_bytes(&self) -> Vec<u64> {
        let mut bytes = rows::row_bytes(self.graph.csr());
        bytes.push(self.graph.csr().edges() * 4);
        bytes
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        space.refuse_chunks("a round walks a few rows anywhere, and chunks would bring all of them in each round")?;
        let csr = self.graph.csr();
        let names = ["sssp_start", "sssp_round", "sssp_pieces"];
        let listed = list_words(csr.edges());
        Ok(Box::new(Work {
            app: self,
            space,
            kernels: space.kernels_with("sssp.cu", include_str!("sssp.cu"), names, compile_options())?,
            rows: Rows::new(space, csr)?,
            weights: space.array("weights", Use::Read, self.graph.weights().unwrap_or_default())?,
            distances: space.buffer(csr.vertices().into())?,
            pending: space.buffer(u64::from(csr.vertices()).div_ceil(32))?,
            list: space.buffer(listed)?,
            listed_rows: space.buffer(listed)?,
            least: space.buffer(2)?,
        }))
    }

    fn expected(&self) -> &[Column] {
        self.expected.get_or_init(|| {
            let weights = self.graph.weights().unwrap_or_default();
            let paths = reference::sssp(self.graph.csr(), weights, self.source);
            [Column::new("distance", paths.unwrap_or_default())]
        })
    }

    fn written(&self, found: Vec<Column>) -> Vec<Column> {
        with_ids(&self.graph, found)
    }
}

struct Work<'a> {
    app: &'a Sssp,
    space: &'a Space,
    kernels: [Kernel; 3],
    rows: Rows,
    weights: Array<u32>,
    distances: Buffer<u32>,
    pending: Buffer<u32>,
    list: Buffer<u64>,
    listed_rows: Buffer<u32>,
    least: Buffer<u32>,
}

impl Work<'_> {
    /// Walks what is nearer than the limit; the least distance of what is pending then, and may be so no more.
    fn round(&self, limit: u32, round: i32) -> Result<u32, AppError> {
        let Self {
            rows,
            distances,
            pending,
            list,
            listed_rows,
            least,
            ..
        } = self;
        let config = self.space.whole_gpu(BLOCKS, 0);
        let (offsets, neighbours, weights) = (rows.offsets.arg()?, rows.neighbours.arg()?, self.weights.arg()?);
        let walked = self.kernels[1].launch(
            config.clone(),
            (
                offsets,
                neighbours,
                weights,
                distances,
                pending,
                list,
                listed_rows,
                least,
                rows.vertices,
                limit,
                round,
            ),
        );
        let walked = ran(walked)?;
        let (neighbours, weights) = (rows.neighbours.arg()?, self.weights.arg()?);
        let args = (neighbours, weights, distances, pending, list, listed_rows, least, round);
        let pieces = ran(self.kernels[2].launch(config, args))?;
        // First: its error is the cause of the other's.
        ran(walked.sync())?;
        ran(pieces.sync())?;
        let mut left = [0; 2];
        least.read(&mut left).map_err(AppError::vm(Step::ReadBack))?;
        Ok(left[round as usize % 2])
    }
}

impl Loaded for Work<'_> {
    fn run(&mut self) -> Result<(), AppError> {
        self.rows.prefetch()?;
        self.weights.prefetch()?;
        let (config, vertices) = (self.space.whole_gpu(BLOCKS, 0), self.rows.vertices);
        let args = (
            &self.distances,
            &self.pending,
            &self.list,
            &self.least,
            vertices,
            self.app.source,
        );
        finish(self.kernels[0].launch(config, args))?;
        let (mut limit, mut turn) = (self.app.step, 0);
        loop {
            let left = self.round(limit, turn)?;
            if left == u32::MAX {
                return Ok(());
            }
            if left >= limit {
                limit = left.saturating_add(self.app.step);
            }
            turn = (turn + 1) % 2;
        }
    }

    fn found(&self) -> Result<Found, AppError> {
        let distances = self.distances.to_vec().map_err(AppError::vm(Step::ReadBack))?;
        Ok(vec![Column::new("distance", distances)].into())
    }
}
