//! Counting triangles.

use std::sync::{Arc, OnceLock};

use gpuvm::{Buffer, Kernel};

use super::error::{AppError, Step};
use super::rows::{self, Rows};
use super::space::{Space, finish};
use super::{App, Column, Found, Loaded};
use crate::graph::{Csr, Graph, reference};
use crate::rows::compile_options;

/// Blocks of 128 threads of a multiprocessor, by the kernels' bounds.
const BLOCKS: u32 = 4;

/// How many triangles a graph has (`triangles.cu`).
///
/// Row offsets and neighbours, of the rows with lower vertices alone ([`Csr::lower`]), are large arrays; rows are read anywhere, many times.
pub struct Triangles {
    lower: Csr,
    expected: OnceLock<[Column; 1]>,
}

impl Triangles {
    /// Of an undirected graph, which is ordered here.
    ///
    /// # Errors
    /// [`AppError::Input`] for a directed graph, and one without edges; [`AppError::Graph`] for too little memory.
    pub fn new(graph: &Arc<Graph>) -> Result<Self, AppError> {
        Ok(Self {
            lower: rows::undirected(graph, "tc")?.csr().lower()?,
            expected: OnceLock::new(),
        })
    }
}

impl App for Triangles {
    fn name(&self) -> &'static str {
        "tc"
    }

    fn input(&self) -> String {
        rows::in_words(&self.lower)
    }

    fn array_bytes(&self) -> Vec<u64> {
        rows::row_bytes(&self.lower)
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        space.refuse_chunks("each row is compared with rows anywhere, and chunks would bring all of them for each")?;
        let (source, names) = (include_str!("triangles.cu"), ["triangles_start", "triangles_count"]);
        Ok(Box::new(Work {
            space,
            kernels: space.kernels_with("triangles.cu", source, names, compile_options())?,
            rows: Rows::new(space, &self.lower)?,
            ends: rows::end_owners(space, &self.lower)?,
            total: space.buffer(1)?,
        }))
    }

    fn expected(&self) -> &[Column] {
        let compute = || [Column::new("triangles", vec![reference::triangles(&self.lower)])];
        self.expected.get_or_init(compute)
    }
}

struct Work<'a> {
    space: &'a Space,
    kernels: [Kernel; 2],
    rows: Rows,
    ends: Buffer<u32>,
    total: Buffer<u64>,
}

impl Loaded for Work<'_> {
    fn run(&mut self) -> Result<(), AppError> {
        self.rows.prefetch()?;
        let ([start, count], rows, config) = (&self.kernels, &self.rows, self.space.whole_gpu(BLOCKS, 0));
        finish(start.launch(config.clone(), (&self.total,)))?;
        let (offsets, neighbours) = (rows.offsets.arg()?, rows.neighbours.arg()?);
        let args = (offsets, neighbours, &self.ends, &self.total, rows.vertices, rows.edges);
        finish(count.launch(config, args))
    }

    fn found(&self) -> Result<Found, AppError> {
        let total = self.total.to_vec().map_err(AppError::vm(Step::ReadBack))?;
        Ok(vec![Column::new("triangles", total)].into())
    }
}
