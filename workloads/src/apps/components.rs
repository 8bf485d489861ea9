//! Connected components.

use std::sync::{Arc, OnceLock};

use gpuvm::{Buffer, Kernel};

use super::error::{AppError, Step};
use super::rows::{self, Rows, ran};
use super::space::{Space, finish};
use super::{App, Column, Found, Loaded, Values, with_ids};
use crate::graph::{Direction, Graph, reference};
use crate::rows::{PIECE_EDGES, compile_options};

/// Blocks of 128 threads of a multiprocessor, by the kernels' bounds.
const BLOCKS: u32 = 4;

/// Connected components of a graph; of a directed one the weakly connected ones (`components.cu`).
///
/// Row offsets and neighbours are large arrays, and are read once. The trees' parents, which each edge looks at somewhere, are in plain
/// device memory, and become the result: the least vertex of each vertex's component.
pub struct Components {
    graph: Arc<Graph>,
    expected: OnceLock<[Column; 1]>,
}

impl Components {
    /// Of that graph.
    ///
    /// # Errors
    /// [`AppError::Input`] for a graph without edges.
    pub fn new(graph: &Arc<Graph>) -> Result<Self, AppError> {
        Ok(Self {
            graph: rows::with_edges(graph, "cc")?,
            expected: OnceLock::new(),
        })
    }
}

impl App for Components {
    fn name(&self) -> &'static str {
        "cc"
    }

    fn input(&self) -> String {
        rows::in_words(self.graph.csr())
    }

    fn array_bytes(&self) -> Vec<u64> {
        rows::row_bytes(self.graph.csr())
    }

    fn load<'a>(&'a self, space: &'a Space) -> Result<Box<dyn Loaded + 'a>, AppError> {
        let csr = self.graph.csr();
        let names = ["components_start", "components_join", "components_flatten"];
        let (source, options) = (include_str!("components.cu"), compile_options());
        Ok(Box::new(Work {
            app: self,
            space,
            kernels: space.kernels_with("components.cu", source, names, options)?,
            rows: Rows::new(space, csr)?,
            owners: rows::owners(space, csr)?,
            parents: space.buffer(csr.vertices().into())?,
        }))
    }

    fn expected(&self) -> &[Column] {
        let compute = || [Column::new("component", reference::components(self.graph.csr()))];
        self.expected.get_or_init(compute)
    }

    /// Components by the ids of their least vertices.
    fn written(&self, mut found: Vec<Column>) -> Vec<Column> {
        for column in &mut found {
            if let Values::U32(least) = &column.values {
                let ids: Vec<u64> = least.iter().filter_map(|vertex| self.graph.id_of(*vertex)).collect();
                column.values = ids.into();
            }
        }
        with_ids(&self.graph, found)
    }
}

struct Work<'a> {
    app: &'a Components,
    space: &'a Space,
    kernels: [Kernel; 3],
    rows: Rows,
    owners: Buffer<u32>,
    parents: Buffer<u32>,
}

impl Loaded for Work<'_> {
    fn run(&mut self) -> Result<(), AppError> {
        self.rows.prefetch()?;
        let Self {
            kernels: [start, join, flatten],
            rows,
            owners,
            parents,
            ..
        } = &*self;
        let (config, vertices, edges) = (self.space.whole_gpu(BLOCKS, 0), rows.vertices, rows.edges);
        let both = u32::from(self.app.graph.direction() == Direction::Undirected);
        finish(start.launch(config.clone(), (parents, vertices)))?;
        let first_edge = |piece: u64| (piece * PIECE_EDGES).min(edges);
        let streams = [rows.neighbours.by_rows(&first_edge)];
        self.space.sweep(rows.pieces(), &streams, &mut |first, count| {
            let (offsets, neighbours) = (rows.offsets.arg()?, rows.neighbours.arg()?);
            let args = (
                offsets, neighbours, owners, parents, vertices, edges, both, first, count,
            );
            ran(join.launch(config.clone(), args))
        })?;
        finish(flatten.launch(config.clone(), (parents, vertices)))
    }

    fn found(&self) -> Result<Found, AppError> {
        let parents = self.parents.to_vec().map_err(AppError::vm(Step::ReadBack))?;
        Ok(vec![Column::new("component", parents)].into())
    }
}
