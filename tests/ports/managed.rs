//! Programs whose originals have managed memory: the kernels of NVIDIA's article on oversubscription, and UVM_benchmark's.

use gpuvm_workloads::apps::{Array, Use};

use super::bench::{Bench, Failure, PAGE, results};
use super::graphs::{Graph, graph};
use super::port::{Port, Source};

const NVIDIA: Source = Source {
    folder: "code-samples",
    url: "https://github.com/NVIDIA-developer-blog/code-samples",
    revision: "72d62ec464442786a36754508bcb1094d197d6a5",
};

const UVM: Source = Source {
    folder: "UVM_benchmark",
    url: "https://github.com/OSU-STARLAB/UVM_benchmark",
    revision: "05588a9b98290332b862a9b65a6a8cbb6ca81bcc",
};

pub const PORTS: [Port; 4] = [
    Port {
        name: "code-samples/oversubscription",
        source: &NVIDIA,
        files: &["posts/unified-memory-oversubscription/uvm_oversubs.cu"],
        kernels: &PATTERNS,
        n: [1 << 16, 1 << 22],
        changes: 6,
        run: oversubscription,
        ..Port::NONE
    },
    Port {
        name: "uvm_benchmark/bfs",
        source: &UVM,
        files: &["UVM_benchmarks/bfs/bfsCUDA.cu"],
        kernels: &[
            "simpleBfs",
            "queueBfs",
            "nextLayer",
            "countDegrees",
            "scanDegrees",
            "assignVerticesNextQueue",
        ],
        n: [9, 20],
        changes: 13,
        run: searches,
        ..Port::NONE
    },
    Port {
        name: "uvm_benchmark/kmeans",
        source: &UVM,
        files: &["UVM_benchmarks/kmeans/kmeans_cuda.cu"],
        kernels: &["get_dst", "regroup", "clear", "recenter_step1", "recenter_step2"],
        n: [3000, 1 << 16],
        changes: 5,
        run: kmeans,
        ..Port::NONE
    },
    Port {
        name: "uvm_benchmark/nw",
        source: &UVM,
        files: &[
            "UVM_benchmarks/rodinia/nw/needle.h",
            "UVM_benchmarks/rodinia/nw/needle_kernel.cu",
        ],
        kernels: &["needle_cuda_shared_1", "needle_cuda_shared_2"],
        n: [128, 8192],
        changes: 5,
        run: needleman_wunsch,
        ..Port::NONE
    },
];

/// The patterns that the program has options for.
const PATTERNS: [&str; 3] = [
    "read_thread_blocksync<float>",
    "read_thread_blockCont_blocksync<float>",
    "cta_random_warp_streaming_read<float>",
];

/// One block: element 0 is where the first thread of every block stores its sum, and which of several is last is open.
fn oversubscription(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let n = bench.n;
    let values: Vec<f32> = (0..n).map(|i| (i % 13) as f32).collect();
    let memory = bench.large("memory", Use::ReadWrite, &values)?;
    let bytes = u64::from(n) * 4;
    let (grid, block) = ([1, 1], [128, 1]);
    let mut found = Vec::new();
    for pattern in &PATTERNS[..2] {
        bench.launch(pattern, grid, block, (memory.arg()?, bytes))?;
        found.push(memory.to_vec()?[0].into());
    }
    bench.launch(PATTERNS[2], grid, block, (memory.arg()?, bytes, bytes / PAGE, PAGE))?;
    Ok([found, results(&memory.to_vec()?)].concat())
}

/// Threads of a block of the searches, whose prefix sums need as many.
const SEARCHERS: u32 = 1024;

/// The arrays of the searches, as the program has them.
struct Search<'a> {
    bench: &'a Bench,
    graph: Graph,
}

fn searches(bench: &Bench) -> Result<Vec<f64>, Failure> {
    let graph = graph(bench.n)?;
    let search = Search { bench, graph };
    Ok([search.simple()?, search.queued()?, search.scanned()?].concat())
}

/// What each search makes anew: the graph, distances and parents.
struct Arrays {
    edges: Array<i32>,
    offsets: Array<i32>,
    sizes: Array<i32>,
    distance: Array<i32>,
    parent: Array<i32>,
}

impl Search<'_> {
    fn arrays(&self) -> Result<Arrays, Failure> {
        let ints = |values: &[u64]| -> Vec<i32> { values.iter().map(|value| *value as i32).collect() };
        let (rows, vertices) = (&self.graph.offsets, self.graph.vertices());
        let lengths: Vec<u64> = rows.windows(2).map(|row| row[1] - row[0]).collect();
        let mut start = vec![i32::MAX; vertices];
        start[self.graph.source] = 0;
        Ok(Arrays {
            edges: self.bench.large("edges", Use::Read, &ints(&self.graph.edges))?,
            offsets: self.bench.large("offsets", Use::Read, &ints(&rows[..vertices]))?,
            sizes: self.bench.large("sizes", Use::Read, &ints(&lengths))?,
            distance: self.bench.large("distance", Use::ReadWrite, &start)?,
            parent: self.bench.large("parent", Use::ReadWrite, &start)?,
        })
    }

    fn grid(&self, threads: i32) -> [u32; 2] {
        [threads as u32 / SEARCHERS + 1, 1]
    }

    /// A queue that begins with the source.
    fn queue(&self) -> Vec<i32> {
        let mut queue = vec![0; self.graph.vertices()];
        queue[0] = self.graph.source as i32;
        queue
    }

    fn simple(&self) -> Result<Vec<f64>, Failure> {
        let a = self.arrays()?;
        let vertices = self.graph.vertices() as i32;
        let changed = self.bench.small(&[1i32])?;
        for level in 0i32.. {
            if changed.to_vec()? == [0] {
                break;
            }
            changed.write(&[0])?;
            let (e, o, s) = (a.edges.arg()?, a.offsets.arg()?, a.sizes.arg()?);
            let args = (vertices, level, e, o, s, a.distance.arg()?, a.parent.arg()?, &changed);
            self.bench
                .launch("simpleBfs", self.grid(vertices), [SEARCHERS, 1], args)?;
        }
        Ok(results(&a.distance.to_vec()?))
    }

    fn queued(&self) -> Result<Vec<f64>, Failure> {
        let a = self.arrays()?;
        let mut now = self.bench.large("now", Use::ReadWrite, &self.queue())?;
        let mut next = self.bench.large("next", Use::ReadWrite, &self.queue())?;
        let queued = self.bench.small(&[0i32])?;
        let (mut length, mut level) = (1i32, 0i32);
        while length > 0 {
            let (e, o, s) = (a.edges.arg()?, a.offsets.arg()?, a.sizes.arg()?);
            let (d, p, q) = (a.distance.arg()?, a.parent.arg()?, next.arg()?);
            let args = (level, e, o, s, d, p, length, &queued, now.arg()?, q);
            self.bench.launch("queueBfs", self.grid(length), [SEARCHERS, 1], args)?;
            length = queued.to_vec()?[0];
            queued.write(&[0])?;
            level += 1;
            std::mem::swap(&mut now, &mut next);
        }
        Ok(results(&a.distance.to_vec()?))
    }

    fn scanned(&self) -> Result<Vec<f64>, Failure> {
        let a = self.arrays()?;
        let mut now = self.bench.large("now", Use::ReadWrite, &self.queue())?;
        let mut next = self.bench.large("next", Use::ReadWrite, &self.queue())?;
        let degrees = self.bench.large("degrees", Use::ReadWrite, &self.queue())?;
        let sums = self.bench.small(&vec![0i32; self.graph.vertices()])?;
        let (mut length, mut level, block) = (1i32, 0i32, [SEARCHERS, 1]);
        while length > 0 {
            let grid = self.grid(length);
            let row = || -> Result<_, Failure> { Ok((a.edges.arg()?, a.offsets.arg()?, a.sizes.arg()?)) };
            let (e, o, s) = row()?;
            let args = (level, e, o, s, a.distance.arg()?, a.parent.arg()?, length, now.arg()?);
            self.bench.launch("nextLayer", grid, block, args)?;
            let (e, o, s) = row()?;
            let args = (e, o, s, a.parent.arg()?, length, now.arg()?, degrees.arg()?);
            self.bench.launch("countDegrees", grid, block, args)?;
            self.bench
                .launch("scanDegrees", grid, block, (length, degrees.arg()?, &sums))?;
            // A block's sum becomes the sum of all blocks before it.
            let mut before = sums.to_vec()?;
            before[0] = 0;
            let blocks = (length - 1) as usize / SEARCHERS as usize + 1;
            for at in 1..=blocks {
                before[at] += before[at - 1];
            }
            sums.write(&before)?;
            let (e, o, s) = row()?;
            let (n, q, d, length_next) = (now.arg()?, next.arg()?, degrees.arg()?, before[blocks]);
            let args = (e, o, s, a.parent.arg()?, length, n, q, d, &sums, length_next);
            self.bench.launch("assignVerticesNextQueue", grid, block, args)?;
            length = length_next;
            level += 1;
            std::mem::swap(&mut now, &mut next);
        }
        Ok(results(&a.distance.to_vec()?))
    }
}

fn kmeans(bench: &Bench) -> Result<Vec<f64>, Failure> {
    const CLUSTERS: u32 = 4;
    const REPETITIONS: usize = 2;
    let points = bench.n;
    let place = |i: u32, by: u32| (i.wrapping_mul(by) % 1009) as f32 / 100.0;
    let values = |by: u32| (0..points).map(|i| place(i, by)).collect::<Vec<f32>>();
    let x = bench.large("x", Use::Read, &values(37))?;
    let y = bench.large("y", Use::Read, &values(101))?;
    let far = bench.large("dst", Use::ReadWrite, &vec![0f32; (points * CLUSTERS) as usize])?;
    let group = bench.large("group", Use::ReadWrite, &vec![0i32; points as usize])?;
    let centres = |by: u32| (0..CLUSTERS).map(|i| place(i + 1, by)).collect::<Vec<f32>>();
    let [mu_x, mu_y] = [bench.small(&centres(211))?, bench.small(&centres(307))?];
    let none = [0f32; CLUSTERS as usize];
    let [sum_x, sum_y] = [bench.small(&none)?, bench.small(&none)?];
    let [nx, ny] = [0; 2].map(|none| [none; CLUSTERS as usize]);
    let [nx, ny] = [bench.small::<i32>(&nx)?, bench.small::<i32>(&ny)?];
    let (all, one, each) = ([points, 1], [1, 1], [CLUSTERS, 1]);
    for _ in 0..REPETITIONS {
        let args = (far.arg()?, x.arg()?, y.arg()?, &mu_x, &mu_y);
        bench.launch("get_dst", all, each, args)?;
        bench.launch("regroup", all, one, (group.arg()?, far.arg()?, CLUSTERS as i32))?;
        bench.launch("clear", one, each, (&sum_x, &sum_y, &nx, &ny))?;
        let (px, py, of) = (x.arg()?, y.arg()?, group.arg()?);
        let args = (&sum_x, &sum_y, &nx, &ny, px, py, of, points as i32);
        bench.launch("recenter_step1", one, each, args)?;
        let args = (&mu_x, &mu_y, &sum_x, &sum_y, &nx, &ny);
        bench.launch("recenter_step2", one, each, args)?;
    }
    let centres = [results(&mu_x.to_vec()?), results(&mu_y.to_vec()?)].concat();
    Ok([centres, results(&group.to_vec()?)].concat())
}

fn needleman_wunsch(bench: &Bench) -> Result<Vec<f64>, Failure> {
    /// The program's `BLOCK_SIZE`.
    const TILE: u32 = 16;
    const PENALTY: i32 = 10;
    let columns = bench.n + 1;
    let score = |at: u32| (at.wrapping_mul(2_654_435_761) >> 16) as i32 % 10 - 4;
    let border = |at: u32| match (at / columns, at % columns) {
        (0, place) | (place, 0) => -(place as i32) * PENALTY,
        _ => 0,
    };
    let scores: Vec<i32> = (0..columns * columns).map(score).collect();
    let matrix: Vec<i32> = (0..columns * columns).map(border).collect();
    let scores = bench.large("referrence", Use::Read, &scores)?;
    let matrix = bench.large("matrix", Use::ReadWrite, &matrix)?;
    let tiles = bench.n / TILE;
    let upper = (1..=tiles).map(|i| ("needle_cuda_shared_1", i));
    let lower = (1..tiles).rev().map(|i| ("needle_cuda_shared_2", i));
    for (kernel, i) in upper.chain(lower) {
        let (s, m) = (scores.arg()?, matrix.arg()?);
        let args = (s, m, columns as i32, PENALTY, i as i32, tiles as i32);
        bench.launch(kernel, [i, 1], [TILE, 1], args)?;
    }
    Ok(results(&matrix.to_vec()?))
}
