//! PageRank.

use std::sync::{Arc, OnceLock};

use gpuvm::{Buffer, Kernel};

use super::error::{AppError, compare_by};
use super::rows::{self, PIECE_EDGES, Rows, ran};
use super::space::{Space, Use, finish};
use super::{App, Array, Loaded};
use crate::graph::Graph;
use crate::graph::reference::{self, DAMPING};

/// Blocks of 128 threads of a multiprocessor, by the kernels' bounds.
const BLOCKS: u32 = 4;
/// How far a rank may be off, of the rank: sums are of floats, in any order.
const TOLERANCE: f64 = 1e-4;

/// A number of iterations of PageRank (`pagerank.cu`).
///
/// Row offsets, neighbours and ranks are large arrays: each iteration reads the first two once, and writes the ranks once, in order.
/// What each vertex contributes, which edges read anywhere, is in plain device memory, and so are sums and reciprocal degrees.
pub struct PageRank {
    graph: Arc<Graph>,
    iterations: u32,
    expected: OnceLock<Vec<f64>>,
}

impl PageRank {
    /// Of an undirected graph.
    ///
    /// # Errors
    /// [`AppError::Input`] for a directed graph, one without edges, and no iterations.
    pub fn new(graph: &Arc<Graph>, iterations: u32) -> Result<Self, AppError> {
        if iterations == 0 {
            let what = "pagerank of no iterations; give 1 or more".to_owned();
            return Err(AppError::Input { what });
        }
        Ok(Self {
            graph: rows::undirected(graph, "pagerank")?,
            iterations,
            expected: OnceLock::new(),
        })
    }
}

impl App for PageRank {
    fn name(&self) -> &'static str {
        "pagerank"
    }

    fn input(&self) -> String {
        format!("{}, {} iterations", rows::in_words(self.graph.csr()), self.iterations)
    }

    fn array_bytes(&self) -> Vec<u64> {
        let mut bytes = rows::row_bytes(self.graph.csr());
        bytes.push(u64::from(self.graph.csr().vertices()) * 4);
        bytes
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        let csr = self.graph.csr();
        let vertices = u64::from(csr.vertices());
        let names = ["pagerank_start", "pagerank_pull", "pagerank_rank"];
        let (source, options) = (include_str!("pagerank.cu"), rows::compile_options());
        Ok(Box::new(Work {
            app: self,
            space,
            kernels: space.kernels_with("pagerank.cu", source, names, options)?,
            rows: Rows::new(space, csr)?,
            owners: rows::owners(space, csr)?,
            ranks: space.array("ranks", Use::ReadWrite, &vec![0.0; vertices as usize])?,
            share: space.buffer(vertices)?,
            contributions: space.buffer(vertices)?,
            sums: space.buffer(vertices)?,
        }))
    }
}

struct Work<'a> {
    app: &'a PageRank,
    space: &'a Space,
    kernels: [Kernel; 3],
    rows: Rows,
    owners: Buffer<u32>,
    ranks: Array<f32>,
    share: Buffer<f32>,
    contributions: Buffer<f32>,
    sums: Buffer<f32>,
}

impl Work<'_> {
    fn iterate(&self) -> Result<(), AppError> {
        let Self {
            kernels: [_, pull, rank],
            rows,
            owners,
            share,
            contributions,
            sums,
            ..
        } = self;
        let (vertices, edges) = (rows.vertices, rows.edges);
        let first_edge = |piece: u64| (piece * PIECE_EDGES).min(edges);
        let streams = [rows.neighbours.by_rows(&first_edge)];
        self.space.sweep(rows.pieces(), &streams, &mut |first, count| {
            let (offsets, neighbours) = (rows.offsets.arg()?, rows.neighbours.arg()?);
            let args = (
                offsets,
                neighbours,
                owners,
                contributions,
                sums,
                vertices,
                edges,
                first,
                count,
            );
            ran(pull.launch(self.space.whole_gpu(BLOCKS, 0), args))
        })?;
        let base = (1.0 - DAMPING as f32) / vertices as f32;
        let args = (
            self.ranks.arg()?,
            share,
            contributions,
            sums,
            base,
            DAMPING as f32,
            vertices,
        );
        finish(rank.launch(self.space.whole_gpu(BLOCKS, 1), args))
    }
}

impl Loaded for Work<'_> {
    fn run(&mut self) -> Result<(), AppError> {
        self.rows.prefetch()?;
        self.ranks.prefetch()?;
        let offsets = self.rows.offsets.arg()?;
        let args = (
            offsets,
            &self.share,
            &self.contributions,
            &self.sums,
            self.rows.vertices,
        );
        finish(self.kernels[0].launch(self.space.whole_gpu(BLOCKS, 0), args))?;
        (0..self.app.iterations).try_for_each(|_| self.iterate())
    }

    fn check(&self) -> Result<u64, AppError> {
        let found: Vec<f64> = self.ranks.to_vec()?.into_iter().map(f64::from).collect();
        let compute = || reference::pagerank(self.app.graph.csr(), self.app.iterations);
        let alike = |one: &f64, other: &f64| (one - other).abs() <= TOLERANCE * other;
        compare_by("rank of vertex", &found, self.app.expected.get_or_init(compute), alike)
    }
}
