//! Breadth-first search and PageRank over one graph on all GPUs of a virtual memory, each with a part of the vertices.
//!
//! Row offsets and neighbours are read-only regions that all GPUs read side by side, each through frames of its own. What every GPU reads
//! of the others' results, the frontier or the contributions, is one region more: the host writes it between two launches, four bytes a
//! vertex at most, and it is the same for all of them. What a GPU makes itself is a region on that GPU. So no GPU waits for another one
//! but at the end of a level or an iteration.

use std::ops::Range;
use std::time::{Duration, Instant};

use gpuvm::{CompileOptions, Error, Kernel, LaunchConfig, Placement, Region, ScopedRegion, Vm, VmGpu};

use super::parameters::parameters;
use crate::graph::Csr;
use crate::graph::reference::DAMPING;

parameters! {
    /// How ranks are made.
    #[derive(Copy)]
    PageRankParameters {
        /// The most iterations
        "iterations" iterations: u32 = 20, 1..=100_000;
        /// What of a vertex's rank comes from its neighbours
        "damping" damping: f64 = DAMPING, 0.0..=1.0;
        /// Iterations end when the ranks change by no more, all changes together; 0: after the most of them. Floats tell no less than about 0.000001
        "tolerance" tolerance: f64 = 0.0, 0.0..=2.0;
    }
}

/// What a run on several GPUs gave, and what it took.
#[derive(Clone, Debug)]
pub struct Ran<T> {
    /// What it came to.
    pub found: T,
    /// Before the first launch: kernels are compiled and regions made, which locks the graph in memory.
    pub set_up: Duration,
    /// The algorithm: all launches, and what the host did between them.
    pub elapsed: Duration,
}

impl<T> Ran<T> {
    /// In another form.
    pub fn map<U>(self, into: impl FnOnce(T) -> U) -> Ran<U> {
        let Self { found, set_up, elapsed } = self;
        let found = into(found);
        Ran { found, set_up, elapsed }
    }
}

/// A search on the GPUs of `vm`: the distance of each vertex from `source`, -1 where it is not reached.
///
/// # Errors
/// The virtual memory's.
pub fn bfs(vm: &Vm, csr: &Csr, source: u32, placement: Placement) -> Result<Ran<Vec<i32>>, Error> {
    let begun = Instant::now();
    let mut distances = vec![-1; csr.vertices() as usize];
    let words = u64::from(csr.vertices()).div_ceil(32);
    let parts = parts(csr, vm.gpus().len());
    let (set_up, elapsed) = vm.scope(|scope| {
        let rows = Rows {
            offsets: scope.read_only_placed("row offsets", csr.offsets(), placement)?,
            neighbours: scope.read_only_placed("neighbours", csr.neighbours(), placement)?,
        };
        let frontier = vm.region::<u32>().name("frontier").zeroed(words)?;
        let workers = workers(vm, "expand", &parts, |gpu, _| gpu.region().name("found").zeroed(words))?;
        let mut next = vec![0u32; words as usize];
        next[source as usize / 32] = 1 << (source % 32);
        let (set_up, started) = (begun.elapsed(), Instant::now());
        for level in 0.. {
            if !visit(&mut distances, &mut next, level) {
                break;
            }
            frontier.write(0, &next)?;
            let launch = |worker: &Worker<u32>| {
                worker.own.write(0, &vec![0; words as usize])?;
                let Range { start, end } = worker.part;
                let args = (&rows.offsets, &rows.neighbours, &frontier, &worker.own, start, end);
                worker.kernel.launch(worker.config.clone(), args)
            };
            let launches = workers.iter().map(launch).collect::<Result<Vec<_>, _>>()?;
            launches.iter().try_for_each(|launch| launch.sync().map(drop))?;
            next.fill(0);
            for worker in &workers {
                let found = worker.own.to_vec()?;
                next.iter_mut().zip(found).for_each(|(next, found)| *next |= found);
            }
        }
        Ok((set_up, started.elapsed()))
    })?;
    Ok(Ran {
        found: distances,
        set_up,
        elapsed,
    })
}

/// Gives the vertices of `next` that had no distance the distance `level`, and leaves none but those in it. Whether there are any.
fn visit(distances: &mut [i32], next: &mut [u32], level: i32) -> bool {
    let mut any = false;
    for (word, distances) in next.iter_mut().zip(distances.chunks_mut(32)) {
        let asked = *word;
        for (bit, distance) in distances.iter_mut().enumerate() {
            match *distance {
                _ if asked >> bit & 1 == 0 => {}
                -1 => (*distance, any) = (level, true),
                _ => *word &= !(1 << bit),
            }
        }
    }
    any
}

/// Iterates ranks until they change by no more than the tolerance, or as often as may be; how often. `own`: these vertices' ranks, of which
/// `step` makes new ones of what each vertex gives to each of its neighbours. `total`: a change with those of other vertices.
///
/// # Errors
/// Those of `step`.
pub fn iterate<E>(
    parameters: &PageRankParameters,
    own: &mut [f32],
    degrees: &[f32],
    mut step: impl FnMut(&[f32], &mut [f32]) -> Result<(), E>,
    total: impl Fn(f64) -> f64,
) -> Result<u32, E> {
    for done in 1..=parameters.iterations {
        let before = own.to_vec();
        let given: Vec<f32> = own.iter().zip(degrees).map(|(rank, degree)| rank / degree).collect();
        step(&given, own)?;
        if parameters.tolerance > 0.0 {
            let changes = own.iter().zip(&before).map(|(new, old)| f64::from(new - old).abs());
            if total(changes.sum()) <= parameters.tolerance {
                return Ok(done);
            }
        }
    }
    Ok(parameters.iterations)
}

/// What the ranks of these vertices are divided by: one that has no neighbours gives its rank to none.
pub fn degrees(csr: &Csr, vertices: Range<usize>) -> Vec<f32> {
    let ends = csr.offsets()[vertices.start..=vertices.end].windows(2);
    ends.map(|ends| (ends[1] - ends[0]).max(1) as f32).collect()
}

/// PageRank over an undirected graph on the GPUs of `vm`: the rank of each vertex, and iterations.
///
/// # Errors
/// The virtual memory's.
pub fn pagerank(
    vm: &Vm,
    csr: &Csr,
    parameters: &PageRankParameters,
    placement: Placement,
) -> Result<Ran<(Vec<f32>, u32)>, Error> {
    let begun = Instant::now();
    let vertices = csr.vertices() as usize;
    let mut ranks = vec![1.0 / vertices as f32; vertices];
    let damping = parameters.damping as f32;
    let (base, degrees) = ((1.0 - damping) / vertices as f32, degrees(csr, 0..vertices));
    let parts = parts(csr, vm.gpus().len());
    let (set_up, elapsed, iterations) = vm.scope(|scope| {
        let rows = Rows {
            offsets: scope.read_only_placed("row offsets", csr.offsets(), placement)?,
            neighbours: scope.read_only_placed("neighbours", csr.neighbours(), placement)?,
        };
        let contributions = vm.region::<f32>().name("contributions").zeroed(vertices as u64)?;
        let workers = workers(vm, "pull", &parts, |gpu, part| {
            gpu.region().name("ranks").zeroed(u64::from(part.end - part.start))
        })?;
        let (set_up, started) = (begun.elapsed(), Instant::now());
        let step = |given: &[f32], ranks: &mut [f32]| {
            contributions.write(0, given)?;
            let launch = |worker: &Worker<f32>| {
                let Range { start, end } = worker.part;
                let (rows, own) = (&rows, &worker.own);
                let args = (
                    &rows.offsets,
                    &rows.neighbours,
                    &contributions,
                    own,
                    start,
                    end,
                    base,
                    damping,
                );
                worker.kernel.launch(worker.config.clone(), args)
            };
            let launches = workers.iter().map(launch).collect::<Result<Vec<_>, _>>()?;
            launches.iter().try_for_each(|launch| launch.sync().map(drop))?;
            for worker in &workers {
                let Range { start, end } = worker.part;
                worker.own.read(0, &mut ranks[start as usize..end as usize])?;
            }
            Ok(())
        };
        let iterations = iterate(parameters, &mut ranks, &degrees, step, |change| change)?;
        Ok((set_up, started.elapsed(), iterations))
    })?;
    Ok(Ran {
        found: (ranks, iterations),
        set_up,
        elapsed,
    })
}

/// A graph's rows.
struct Rows<'scope> {
    offsets: ScopedRegion<'scope, u64>,
    neighbours: ScopedRegion<'scope, u32>,
}

/// What one GPU has of the work.
struct Worker<T> {
    kernel: Kernel,
    config: LaunchConfig,
    /// Its vertices.
    part: Range<u32>,
    /// What it makes.
    own: Region<T>,
}

fn workers<T>(
    vm: &Vm,
    kernel: &str,
    parts: &[Range<u32>],
    own: impl Fn(&VmGpu, &Range<u32>) -> Result<Region<T>, Error>,
) -> Result<Vec<Worker<T>>, Error> {
    let worker = |(gpu, part): (&VmGpu, &Range<u32>)| {
        let (kernel, config) = kernel_of(gpu, kernel)?;
        Ok(Worker {
            kernel,
            config,
            part: part.clone(),
            own: own(gpu, part)?,
        })
    };
    vm.gpus().iter().zip(parts).map(worker).collect()
}

/// A kernel of `several.cu` for one part of the vertices, and the launch that fills the GPU: `expand` marks the neighbours of a frontier,
/// `pull` makes ranks of contributions.
///
/// # Errors
/// The compiler's.
pub fn kernel_of(gpu: &VmGpu, name: &str) -> Result<(Kernel, LaunchConfig), Error> {
    let source = include_str!("several.cu");
    let [kernel] = gpu.kernels("several.cu", source, [name], &CompileOptions::default())?;
    let able = gpu.device().capabilities();
    let config = LaunchConfig::new((able.max_resident_lanes / 2 / 128).clamp(1, 1 << 16), 128);
    Ok((kernel, config))
}

/// The vertices in this many parts, each with about as many edges. Parts may be empty.
pub fn parts(csr: &Csr, count: usize) -> Vec<Range<u32>> {
    let cut = |part: usize| match part {
        0 => 0,
        _ if part == count => csr.vertices(),
        _ => {
            let edges = u128::from(csr.edges()) * part as u128 / count as u128;
            let before = csr.offsets().partition_point(|&offset| u128::from(offset) < edges);
            (before as u32).min(csr.vertices())
        }
    };
    (0..count).map(|part| cut(part)..cut(part + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphSpec, LoadOptions};

    #[test]
    fn parts_have_each_vertex_once_and_about_as_many_edges() {
        let spec: GraphSpec = "kron:9".parse().unwrap();
        let graph = spec.load(&LoadOptions::default(), &mut |_| {}).unwrap();
        let csr = graph.csr();
        for count in 1..9 {
            let parts = parts(csr, count);
            assert_eq!((parts[0].start, parts[count - 1].end), (0, csr.vertices()));
            assert!(parts.windows(2).all(|two| two[0].end == two[1].start));
            let largest = (0..csr.vertices()).map(|v| csr.row(v).len() as u64).max().unwrap();
            let edges = |part: &Range<u32>| csr.offsets()[part.end as usize] - csr.offsets()[part.start as usize];
            let fair = csr.edges() / count as u64 + largest + 1;
            assert!(parts.iter().all(|part| edges(part) <= fair), "{parts:?}");
        }
    }

    #[test]
    fn a_vertex_is_visited_once() {
        let mut distances = vec![-1; 40];
        let mut next = vec![0b101, 1 << 7];
        assert!(visit(&mut distances, &mut next, 0));
        let mut again = vec![0b111, 1 << 7];
        assert!(visit(&mut distances, &mut again, 1));
        assert_eq!(again, [0b010, 0]);
        assert_eq!((distances[0], distances[1], distances[2], distances[39]), (0, 1, 0, 0));
        assert!(!visit(&mut distances, &mut [0b111, 0], 2));
    }
}
