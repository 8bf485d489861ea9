//! PageRank.

use std::sync::{Arc, OnceLock};

use gpuvm::{Buffer, Kernel, Placement, Vm};

use super::array::Use;
use super::error::{AppError, Step};
use super::rows::{self, Rows, ran};
use super::several::{self, PageRankParameters};
use super::space::{Space, finish};
use super::{App, Array, Column, Found, Loaded, column, with_ids};
use crate::graph::Graph;
use crate::graph::reference::Ranking;
use crate::rows::{PIECE_EDGES, compile_options};

/// Blocks of 128 threads of a multiprocessor, by the kernels' bounds.
const BLOCKS: u32 = 4;
/// How far a rank may be off, of the rank: sums are of floats, in any order.
const SLACK: f64 = 1e-4;
/// How far a sum of changes may be off: of itself, and that of ranks that change no more.
const CHANGE_SLACK: [f64; 2] = [1e-2, 1e-6];
/// What the kernel counts changes in.
const CHANGE_UNIT: f64 = 1.0 / (1_u64 << 60) as f64;

/// Iterations of PageRank (`pagerank.cu`).
///
/// Row offsets, neighbours and ranks are large arrays: each iteration reads the first two once, and writes the ranks once, in order.
/// What each vertex contributes, which edges read anywhere, is in plain device memory, and so are sums and reciprocal degrees.
pub struct PageRank {
    graph: Arc<Graph>,
    parameters: PageRankParameters,
    expected: OnceLock<Ranked>,
}

/// What the processor comes to.
struct Ranked {
    ranks: [Column; 1],
    /// How far each iteration changed the ranks.
    changes: Vec<f64>,
}

impl PageRank {
    /// Of an undirected graph.
    ///
    /// # Errors
    /// [`AppError::Input`] for a directed graph, and one without edges.
    pub fn new(graph: &Arc<Graph>, parameters: &PageRankParameters) -> Result<Self, AppError> {
        Ok(Self {
            graph: rows::undirected(graph, "pagerank")?,
            parameters: *parameters,
            expected: OnceLock::new(),
        })
    }

    /// The processor's ranks after this many iterations, or fewer where `ends` says so of a change, and the change of each.
    fn ranked(&self, iterations: u32, ends: impl Fn(f64) -> bool) -> Ranked {
        let mut ranking = Ranking::new(self.graph.csr(), self.parameters.damping);
        let mut changes = Vec::new();
        while changes.len() < iterations as usize && !changes.last().is_some_and(|change| ends(*change)) {
            changes.push(ranking.iterate());
        }
        let ranks: Vec<f32> = ranking.ranks.iter().map(|rank| *rank as f32).collect();
        Ranked {
            ranks: [Column::new("rank", ranks)],
            changes,
        }
    }

    fn own(&self) -> &Ranked {
        let PageRankParameters {
            iterations, tolerance, ..
        } = self.parameters;
        self.expected
            .get_or_init(|| self.ranked(iterations, |change| tolerance > 0.0 && change <= tolerance))
    }
}

impl App for PageRank {
    fn name(&self) -> &'static str {
        "pagerank"
    }

    fn input(&self) -> String {
        format!(
            "{}, at most {} iterations",
            rows::in_words(self.graph.csr()),
            self.parameters.iterations
        )
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
        let (source, options) = (include_str!("pagerank.cu"), compile_options());
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
            change: space.buffer(1)?,
            iterations: 0,
        }))
    }

    fn expected(&self) -> &[Column] {
        &self.own().ranks
    }

    fn slack(&self, expected: f64) -> f64 {
        SLACK * expected
    }

    /// After as many iterations as were run: one more or less is right where a change is as large as the tolerance, to some digits.
    fn check(&self, found: &Found) -> Result<u64, AppError> {
        let PageRankParameters {
            iterations, tolerance, ..
        } = self.parameters;
        let (own, done) = (self.own(), found.iterations.unwrap_or_default());
        if own.changes.len() == done as usize {
            return column::compare(&found.columns, &own.ranks, &|rank| self.slack(rank));
        }
        let as_long = self.ranked(done.min(iterations), |_| false);
        let [of_itself, least] = CHANGE_SLACK;
        let within = |place: u32, side: f64| {
            let change = as_long.changes.get(place.checked_sub(1)? as usize)?;
            Some(*change <= tolerance * (1.0 + side * of_itself) + side * least)
        };
        let ended = done == iterations || within(done, 1.0) == Some(true);
        if !ended || within(done.wrapping_sub(1), -1.0) == Some(true) {
            return Err(AppError::Wrong {
                what: "iterations, of run",
                place: 0,
                found: done.to_string(),
                expected: own.changes.len().to_string(),
            });
        }
        column::compare(&found.columns, &as_long.ranks, &|rank| self.slack(rank))
    }

    fn written(&self, found: Vec<Column>) -> Vec<Column> {
        with_ids(&self.graph, found)
    }

    fn run_on_all(&self, vm: &Vm, placement: Placement) -> Result<several::Ran<Found>, AppError> {
        let ran = ran(several::pagerank(vm, self.graph.csr(), &self.parameters, placement))?;
        Ok(ran.map(|(ranks, iterations)| Found {
            columns: vec![Column::new("rank", ranks)],
            iterations: Some(iterations),
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
    /// By how many units ranks have changed.
    change: Buffer<u64>,
    /// Of the last run.
    iterations: u32,
}

impl Work<'_> {
    /// Iterates once; by how much ranks have changed, where that is asked for.
    fn iterate(&self, done: u32) -> Result<f64, AppError> {
        let PageRankParameters { damping, tolerance, .. } = self.app.parameters;
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
        let (damping, base) = (damping as f32, (1.0 - damping) as f32 / vertices as f32);
        // What vertices without edges had.
        let alone = if done == 0 { 1.0 / vertices as f32 } else { base };
        let asked = tolerance > 0.0;
        if asked {
            self.change.write(&[0]).map_err(AppError::vm(Step::Memory))?;
        }
        let args = (
            self.ranks.arg()?,
            share,
            contributions,
            sums,
            base,
            damping,
            vertices,
            alone,
            u32::from(asked),
            &self.change,
        );
        finish(rank.launch(self.space.whole_gpu(BLOCKS, 1), args))?;
        let mut change = [u64::MAX];
        if asked {
            self.change.read(&mut change).map_err(AppError::vm(Step::ReadBack))?;
        }
        Ok(change[0] as f64 * CHANGE_UNIT)
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
        let PageRankParameters {
            iterations, tolerance, ..
        } = self.app.parameters;
        self.iterations = 0;
        while self.iterations < iterations {
            let change = self.iterate(self.iterations)?;
            self.iterations += 1;
            if change <= tolerance {
                break;
            }
        }
        Ok(())
    }

    fn found(&self) -> Result<Found, AppError> {
        Ok(Found {
            columns: vec![Column::new("rank", self.ranks.to_vec()?)],
            iterations: Some(self.iterations),
        })
    }
}
