//! PageRank and shortest paths: each vertex pulls what its neighbours have, whichever GPU made it.

use std::ops::Range;
use std::sync::Arc;

use gpuvm::{Arg, Buffer, Kernel, Launch, LaunchConfig};
use rayon::prelude::*;

use super::{About, App, Elements, On, Part, Worker, number, refuse};
use crate::apps::{AppError, several};
use crate::graph::reference::DAMPING;
use crate::graph::{Csr, Direction, Graph, reference};

const SOURCE: &str = include_str!("graphs.cu");
/// All of its kernels: what both applications compile is compiled once.
const KERNELS: [&str; 2] = ["pagerank", "shortest"];
/// Rows and threads of a block, as in the kernels.
const ROWS: u64 = 256;
/// How far a contribution may be off, of itself: sums are of floats, in another order than the processor's.
const TOLERANCE: f64 = 1e-4;

/// The rows of a part, with about as many edges as the others'.
fn part_of(csr: &Csr, part: Part) -> Range<u64> {
    let rows = &several::parts(csr, part.of)[part.place];
    u64::from(rows.start)..u64::from(rows.end)
}

fn about(name: &'static str, input: &str, csr: &Csr) -> About {
    let vertices = u64::from(csr.vertices());
    About {
        is_small: csr.edges() <= 1 << 24,
        ..About::in_turn(name, input.to_owned(), vertices, vertices)
    }
}

fn written(csr: &Csr, iteration: u32, part: Part) -> Vec<Elements> {
    vec![Elements {
        array: 1 - iteration as usize % 2,
        range: part_of(csr, part),
    }]
}

/// A part's rows on its GPU.
struct Rows {
    offsets: Buffer<u64>,
    neighbours: Buffer<u32>,
    rows: Range<u64>,
    edges: Range<usize>,
}

impl Rows {
    fn new(csr: &Csr, on: &On<'_>) -> Result<Self, AppError> {
        let rows = part_of(csr, on.part);
        let offsets = &csr.offsets()[rows.start as usize..=rows.end as usize];
        let edges = offsets[0] as usize..offsets[offsets.len() - 1] as usize;
        let own: Vec<u64> = offsets.iter().map(|offset| offset - offsets[0]).collect();
        Ok(Self {
            offsets: on.upload(&own)?,
            neighbours: on.upload(&csr.neighbours()[edges.clone()])?,
            rows,
            edges,
        })
    }

    /// Launches an iteration over these rows. `of_rows`: what the kernel has of each row or edge besides. `more`: its last arguments.
    fn launch(
        &self,
        kernel: &Kernel,
        (iteration, shared): (u32, &[Arg<'_>]),
        of_rows: Arg<'_>,
        more: &[Arg<'_>],
    ) -> Result<Launch, gpuvm::Error> {
        let from = iteration as usize % 2;
        let (first, count) = (self.rows.start, self.rows.end - self.rows.start);
        let args = [
            shared[from].clone(),
            shared[1 - from].clone(),
            Arg::from(&self.offsets),
            Arg::from(&self.neighbours),
            of_rows,
            number(&first),
            number(&count),
        ];
        let config = LaunchConfig::new(count.div_ceil(ROWS).max(1) as u32, ROWS as u32);
        kernel.launch_raw(config, &[&args[..], more].concat())
    }
}

/// PageRank over an undirected graph. What is shared is what each vertex contributes: its rank over its degree.
pub struct PageRank {
    graph: Arc<Graph>,
    name: String,
}

impl PageRank {
    /// Over a graph that is called so.
    ///
    /// # Errors
    /// [`AppError::Input`] for a graph that is directed or has no edges.
    pub fn new(graph: &Arc<Graph>, name: &str) -> Result<Self, AppError> {
        if graph.direction() == Direction::Directed || graph.csr().edges() == 0 {
            return refuse(format!("pagerank takes an undirected graph with edges; {name} is none"));
        }
        Ok(Self {
            graph: Arc::clone(graph),
            name: name.to_owned(),
        })
    }

    fn csr(&self) -> &Csr {
        self.graph.csr()
    }

    /// What of its rank each vertex gives to each neighbour.
    fn shares(&self, rows: &Range<u64>) -> Vec<f32> {
        let ends = self.csr().offsets()[rows.start as usize..=rows.end as usize].windows(2);
        let degrees = ends.map(|ends| (ends[1] - ends[0]) as f32);
        let share = |degree: f32| if degree > 0.0 { 1.0 / degree } else { 0.0 };
        degrees.map(share).collect()
    }
}

impl App for PageRank {
    type Word = f32;

    fn about(&self) -> About {
        about("pagerank", &self.name, self.csr())
    }

    fn initial(&self, _array: usize) -> Vec<f32> {
        let vertices = u64::from(self.csr().vertices());
        let shares = self.shares(&(0..vertices)).into_iter();
        shares.map(|share| share / vertices as f32).collect()
    }

    fn written(&self, _step: usize, iteration: u32, part: Part) -> Vec<Elements> {
        written(self.csr(), iteration, part)
    }

    fn worker<'a>(&'a self, on: &On<'_>) -> Result<Worker<'a>, AppError> {
        let [kernel, _] = on.kernels("gps/graphs.cu", SOURCE, KERNELS)?;
        let rows = Rows::new(self.csr(), on)?;
        let base = (1.0 - DAMPING as f32) / self.csr().vertices() as f32;
        let (shares, damping) = (on.upload(&self.shares(&rows.rows))?, DAMPING as f32);
        Ok(Box::new(move |_, iteration, shared| {
            let more = [number(&base), number(&damping)];
            rows.launch(&kernel, (iteration, shared), Arg::from(&shares), &more)
        }))
    }

    fn reference(&self, iterations: u32) -> Vec<f32> {
        let vertices = u64::from(self.csr().vertices());
        let ranks = reference::pagerank(self.csr(), iterations).into_iter();
        let shares = self.shares(&(0..vertices)).into_iter();
        ranks.zip(shares).map(|(rank, share)| rank as f32 * share).collect()
    }

    fn alike(&self, found: &f32, expected: &f32) -> bool {
        f64::from((found - expected).abs()) <= TOLERANCE * f64::from(*expected)
    }
}

/// Shortest paths from one vertex by rounds of Bellman and Ford, over a weighted undirected graph. An iteration is a round, also when
/// nothing changes any more.
pub struct Shortest {
    graph: Arc<Graph>,
    name: String,
    source: u32,
}

impl Shortest {
    /// Over a graph that is called so, from the first vertex that has an edge.
    ///
    /// # Errors
    /// [`AppError::Input`] for a graph that is directed, or has no weights or edges.
    pub fn new(graph: &Arc<Graph>, name: &str) -> Result<Self, AppError> {
        let source = graph.csr().first_connected();
        let undirected = graph.direction() == Direction::Undirected && graph.weights().is_some();
        match source.filter(|_| undirected) {
            Some(source) => Ok(Self {
                graph: Arc::clone(graph),
                name: name.to_owned(),
                source,
            }),
            None => refuse(format!("sssp takes an undirected graph with weights; {name} is none")),
        }
    }

    fn csr(&self) -> &Csr {
        self.graph.csr()
    }

    fn weights(&self) -> &[u32] {
        self.graph.weights().unwrap_or_default()
    }
}

impl App for Shortest {
    type Word = u32;

    fn about(&self) -> About {
        about("sssp", &self.name, self.csr())
    }

    fn initial(&self, _array: usize) -> Vec<u32> {
        let mut paths = vec![u32::MAX; self.csr().vertices() as usize];
        paths[self.source as usize] = 0;
        paths
    }

    fn written(&self, _step: usize, iteration: u32, part: Part) -> Vec<Elements> {
        written(self.csr(), iteration, part)
    }

    fn worker<'a>(&'a self, on: &On<'_>) -> Result<Worker<'a>, AppError> {
        let [_, kernel] = on.kernels("gps/graphs.cu", SOURCE, KERNELS)?;
        let rows = Rows::new(self.csr(), on)?;
        let weights = on.upload(&self.weights()[rows.edges.clone()])?;
        Ok(Box::new(move |_, iteration, shared| {
            rows.launch(&kernel, (iteration, shared), Arg::from(&weights), &[])
        }))
    }

    fn reference(&self, iterations: u32) -> Vec<u32> {
        let csr = self.csr();
        let mut paths = self.initial(0);
        for _ in 0..iterations {
            let shortest = |vertex: u32| {
                let row = csr.offsets()[vertex as usize] as usize..csr.offsets()[vertex as usize + 1] as usize;
                let by = row.map(|edge| match paths[csr.neighbours()[edge] as usize] {
                    u32::MAX => u32::MAX,
                    before => before.wrapping_add(self.weights()[edge]),
                });
                by.min().unwrap_or(u32::MAX).min(paths[vertex as usize])
            };
            paths = (0..csr.vertices()).into_par_iter().map(shortest).collect();
        }
        paths
    }
}
