//! BaM's graph programs, whose originals have arrays of BaM. That library needs its own driver: what a port is compared with is the
//! program's kernel of the same kind over plain memory, which stands beside the one that is ported.

use gpuvm_workloads::apps::Use;
use gpuvm_workloads::graph::{GraphSpec, LoadOptions};

use super::bench::{Bench, Failure, results};
use super::port::{Port, Source};

/// What all ports have in common. Only edges and weights are paged, as they alone are BaM's arrays.
const ALL: Port = Port {
    source: &Source {
        folder: "bam",
        url: "https://github.com/ZaidQureshi/bam",
        revision: "315fadfc5c5c018a64596157bfac94ecbb7d87a2",
    },
    n: [9, 20],
    ..Port::NONE
};

pub const PORTS: [Port; 4] = [
    Port {
        name: "bam/bfs",
        files: &["benchmarks/bfs/main.cu"],
        kernels: &["kernel_coalesce"],
        ported: Some(&["kernel_coalesce_ptr_pc"]),
        changes: 4,
        run: bfs,
        ..ALL
    },
    Port {
        name: "bam/cc",
        files: &["benchmarks/cc/main.cu"],
        kernels: &["kernel_coalesce"],
        ported: Some(&["kernel_coalesce_ptr_pc"]),
        changes: 4,
        run: components,
        ..ALL
    },
    // A lane a vertex: with a warp a vertex, its first lane may clear the vertex's mark before the others have seen it, which lanes of
    // today's GPUs may do as well as the simulated one's.
    Port {
        name: "bam/sssp",
        files: &["benchmarks/sssp/main.cu"],
        kernels: &["kernel_baseline", "update"],
        ported: Some(&["kernel_baseline_pc", "update"]),
        changes: 7,
        run: shortest_paths,
        ..ALL
    },
    Port {
        name: "bam/pagerank",
        files: &["benchmarks/pagerank/main.cu"],
        kernels: &["initialize", "kernel_baseline", "update"],
        ported: Some(&["initialize", "kernel_baseline_pc", "update"]),
        changes: 5,
        // Ranks are summed up by atomics, in any order, until what is left is below a thousandth.
        tolerance: 0.5,
        run: ranks,
        ..ALL
    },
];

/// A Kronecker graph.
pub struct Graph {
    /// The first edge of each vertex, and the end of the last one's.
    pub offsets: Vec<u64>,
    /// The vertex at the other end of each edge.
    pub edges: Vec<u64>,
    /// Where searches begin.
    pub source: usize,
}

impl Graph {
    pub fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }
}

/// The graph with `1 << scale` vertices.
pub fn graph(scale: u32) -> Result<Graph, Failure> {
    let spec: GraphSpec = format!("kron:{scale}").parse()?;
    let graph = spec.load(&LoadOptions::default(), &mut |_| {})?;
    let source = graph.csr().first_connected().ok_or("a graph has edges")?;
    Ok(Graph {
        offsets: graph.csr().offsets().to_vec(),
        edges: graph.csr().neighbours().iter().map(|to| u64::from(*to)).collect(),
        source: source as usize,
    })
}

const BLOCK: [u32; 2] = [128, 1];

/// This many threads, as the programs count them: 1024 blocks a row.
fn grid(threads: usize) -> [u32; 2] {
    let blocks = (threads as u32).div_ceil(BLOCK[0]);
    [1024.min(blocks), blocks.div_ceil(1024)]
}

// BaM's arrays stand in front of all other arguments; the plain pointers to the same data stay where they are, and are not used.

fn bfs(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let graph = graph(bench.n)?;
    let (vertices, count) = (graph.vertices(), graph.vertices() as u64);
    let edges = bench.large("edges", Use::Read, &graph.edges)?;
    let offsets = bench.small(&graph.offsets)?;
    let mut labels = vec![u32::MAX; vertices];
    labels[graph.source] = 0;
    let label = bench.small(&labels)?;
    let [changed, unused] = [bench.small(&[1u64])?, bench.small(&[0u64])?];
    for level in 0u32.. {
        if changed.to_vec()? == [0] {
            break;
        }
        changed.write(&[0])?;
        let shape = grid(vertices * 32);
        match bench.paged() {
            true => {
                let args = (edges.arg()?, &label, level, count, &offsets, &unused, &changed);
                bench.launch("kernel_coalesce_ptr_pc", shape, BLOCK, args)?;
            }
            false => {
                let args = (&label, level, count, &offsets, edges.arg()?, &changed);
                bench.launch("kernel_coalesce", shape, BLOCK, args)?;
            }
        }
    }
    Ok(results(&label.to_vec()?))
}

fn components(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let graph = graph(bench.n)?;
    let (vertices, count) = (graph.vertices(), graph.vertices() as u64);
    let edges = bench.large("edges", Use::Read, &graph.edges)?;
    let offsets = bench.small(&graph.offsets)?;
    let component = bench.small(&(0..count).collect::<Vec<u64>>())?;
    let mut now = bench.small(&vec![1u8; vertices])?;
    let mut next = bench.small(&vec![0u8; vertices])?;
    let (changed, unused) = (bench.small(&[1u8])?, bench.small(&[0u64])?);
    while changed.to_vec()? != [0] {
        changed.write(&[0])?;
        let shape = grid(vertices * 32);
        match bench.paged() {
            true => {
                let args = (
                    edges.arg()?,
                    &now,
                    &next,
                    count,
                    &offsets,
                    &unused,
                    &component,
                    &changed,
                );
                bench.launch("kernel_coalesce_ptr_pc", shape, BLOCK, args)?;
            }
            false => {
                let args = (&now, &next, count, &offsets, edges.arg()?, &component, &changed);
                bench.launch("kernel_coalesce", shape, BLOCK, args)?;
            }
        }
        now.write(&vec![0; vertices])?;
        std::mem::swap(&mut now, &mut next);
    }
    Ok(component.to_vec()?.iter().map(|value| *value as f64).collect())
}

fn shortest_paths(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let graph = graph(bench.n)?;
    let (vertices, count) = (graph.vertices(), graph.vertices() as u64);
    let weights: Vec<u32> = (1..=graph.edges.len() as u32)
        .map(|i| i.wrapping_mul(2_654_435_761) >> 26)
        .collect();
    let edges = bench.large("edges", Use::Read, &graph.edges)?;
    let weights = bench.large("weights", Use::Read, &weights)?;
    let offsets = bench.small(&graph.offsets)?;
    let mut far = vec![u32::MAX; vertices];
    far[graph.source] = 0;
    let [cost, better] = [bench.small(&far)?, bench.small(&far)?];
    let mark = bench.small(&far.iter().map(|cost| u8::from(*cost == 0)).collect::<Vec<u8>>())?;
    let (changed, no_edges, no_weights) = (bench.small(&[1u8])?, bench.small(&[0u64])?, bench.small(&[0u32])?);
    while changed.to_vec()? != [0] {
        changed.write(&[0])?;
        let (e, w) = (edges.arg()?, weights.arg()?);
        match bench.paged() {
            true => {
                let args = (e, w, &mark, &cost, &better, count, &offsets, &no_edges, &no_weights);
                bench.launch("kernel_baseline_pc", grid(vertices), BLOCK, args)?;
            }
            false => {
                let args = (&mark, &cost, &better, count, &offsets, e, w);
                bench.launch("kernel_baseline", grid(vertices), BLOCK, args)?;
            }
        }
        let args = (&mark, &cost, &better, vertices as u32, &changed);
        bench.launch("update", grid(vertices), BLOCK, args)?;
    }
    Ok(results(&cost.to_vec()?))
}

fn ranks(bench: &Bench) -> Result<Vec<f64>, Failure> {
    /// The program's own.
    const ALPHA: f32 = 0.85;
    const TOLERANCE: f32 = 0.001;
    let graph = graph(bench.n)?;
    let (vertices, count) = (graph.vertices(), graph.vertices() as u64);
    let edges = bench.large("edges", Use::Read, &graph.edges)?;
    let offsets = bench.small(&graph.offsets)?;
    let floats = || bench.small(&vec![0f32; vertices]);
    let [delta, residual, value] = [floats()?, floats()?, floats()?];
    let mark = bench.small(&vec![0u8; vertices])?;
    let (changed, unused) = (bench.small(&[1u8])?, bench.small(&[0u64])?);
    let args = (&mark, &delta, &residual, &value, count, &offsets, ALPHA);
    bench.launch("initialize", grid(vertices), BLOCK, args)?;
    while changed.to_vec()? != [0] {
        changed.write(&[0])?;
        match bench.paged() {
            true => {
                let args = (edges.arg()?, &mark, &delta, &residual, count, &offsets, &unused);
                bench.launch("kernel_baseline_pc", grid(vertices), BLOCK, args)?;
            }
            false => {
                let args = (&mark, &delta, &residual, count, &offsets, edges.arg()?);
                bench.launch("kernel_baseline", grid(vertices), BLOCK, args)?;
            }
        }
        let args = (
            &mark, &delta, &residual, &value, count, &offsets, TOLERANCE, ALPHA, &changed,
        );
        bench.launch("update", grid(vertices), BLOCK, args)?;
    }
    Ok(results(&value.to_vec()?))
}
