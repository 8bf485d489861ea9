//! PageRank over all ranks, by the kernel that `gpuvm run` has for several GPUs.

use std::time::{Duration, Instant};

use bytemuck::Pod;
use gpuvm::{Arg, Placement, Region, Scope, ScopedRegion, Vm};
use gpuvm_workloads::apps::{PageRankParameters, several};
use gpuvm_workloads::graph::Csr;

use crate::shared::at_nodes;
use crate::{ClusterError, Partitioned, Ranks};

/// What changes of ranks are counted in between the ranks of MPI.
const CHANGE_UNITS: f64 = (1_u64 << 60) as f64;

/// What a rank has of a result, and what it took.
pub struct Ran {
    /// The rank of each vertex. [`Partitioned::gather`] has all of them.
    pub values: Partitioned<f32>,
    /// Iterations.
    pub iterations: u32,
    /// Before the first launch: kernels compiled and regions made.
    pub set_up: Duration,
    /// The algorithm, from a barrier on: launches, exchanges, what the host does between them.
    pub elapsed: Duration,
}

/// The rank of each vertex of an undirected graph.
///
/// A rank of MPI makes the ranks of its own vertices, in its part of a partitioned array, from what all vertices contribute, which MPI
/// gathers: four bytes for each vertex and iteration. A vertex's sum is of one warp and does not know how many ranks there are: results are
/// the same to the bit.
///
/// # Errors
/// The virtual memory's; [`ClusterError::Options`] for a graph without vertices.
pub fn pagerank(
    vm: &Vm,
    ranks: &dyn Ranks,
    csr: &Csr,
    parameters: &PageRankParameters,
    placement: Placement,
) -> Result<Ran, ClusterError> {
    let vertices = csr.vertices() as usize;
    if vertices == 0 {
        let what = "a graph without vertices has no ranks; give another".to_owned();
        return Err(ClusterError::Options(what));
    }
    let (begun, place) = (Instant::now(), ranks.place());
    // The vertices of each rank, with about as many edges.
    let parts = several::parts(csr, place.size).into_iter();
    let parts: Vec<_> = parts.map(|part| part.start as usize..part.end as usize).collect();
    let mine = parts[place.rank].clone();
    let values = Partitioned::<f32>::zeroed(vm, ranks, "ranks", parts.clone())?;
    let degrees = several::degrees(csr, mine.clone());
    let (damping, rest) = (parameters.damping as f32, 1.0 - parameters.damping as f32);
    let mut own = vec![1.0 / vertices as f32; mine.len()];
    let mut all = vec![0.0f32; vertices];
    let failed = ClusterError::vm("PageRank");
    let ran = vm.scope(|scope| {
        let (kernel, config) = several::kernel_of(vm.gpu(0)?, "pull")?;
        let on = On {
            vm,
            ranks,
            scope,
            placement,
        };
        let offsets = Read::new(on, "row offsets", csr.offsets())?;
        let neighbours = Read::new(on, "neighbours", csr.neighbours())?;
        let contributions = vm.region::<f32>().name("contributions").zeroed(vertices as u64)?;
        let set_up = begun.elapsed();
        ranks.barrier();
        let started = Instant::now();
        let step = |given: &[f32], own: &mut [f32]| {
            let words = (bytemuck::cast_slice(given), bytemuck::cast_slice_mut(&mut all));
            ranks.gather("contributions", words.0, &parts, words.1)?;
            contributions.write(0, &all).map_err(&failed)?;
            let (first, end) = (mine.start as u32, mine.end as u32);
            let args = (
                offsets.arg(),
                neighbours.arg(),
                &contributions,
                values.region(),
                first,
                end,
                rest / vertices as f32,
                damping,
            );
            let ran = kernel
                .launch(config.clone(), args)
                .and_then(|launch| launch.sync().map(drop));
            ran.and_then(|()| values.region().read(0, own)).map_err(&failed)
        };
        // Whole numbers, whose sum is the same on every rank.
        let total = |change: f64| ranks.sum((change * CHANGE_UNITS) as u64) as f64 / CHANGE_UNITS;
        let iterations = several::iterate(parameters, &mut own, &degrees, step, total);
        Ok(iterations.map(|iterations| (iterations, set_up, started.elapsed())))
    });
    let (iterations, set_up, elapsed) = ran.map_err(&failed)??;
    Ok(Ran {
        values,
        iterations,
        set_up,
        elapsed,
    })
}

/// Where what all ranks read comes to.
#[derive(Clone, Copy)]
struct On<'a, 'scope, 'env> {
    vm: &'a Vm,
    ranks: &'a dyn Ranks,
    scope: &'scope Scope<'scope, 'env>,
    placement: Placement,
}

/// An array that all ranks read.
enum Read<'scope, T> {
    /// In this host's memory, where all ranks of the host have it.
    Here(ScopedRegion<'scope, T>),
    /// At memory nodes.
    AtNodes(Region<T>),
}

impl<'scope, T: Pod> Read<'scope, T> {
    fn new<'env>(on: On<'_, 'scope, 'env>, name: &str, values: &'env [T]) -> Result<Self, gpuvm::Error> {
        if on.vm.memory_nodes().is_empty() {
            return Ok(Self::Here(on.scope.read_only_placed(name, values, on.placement)?));
        }
        let region = || on.vm.region::<T>().name(name).read_only().placement(on.placement);
        Ok(Self::AtNodes(at_nodes(
            on.ranks,
            || region().from_slice(values),
            |shared| region().attach(shared),
        )?))
    }

    fn arg(&self) -> Arg<'_> {
        match self {
            Self::Here(region) => Arg::from(&**region),
            Self::AtNodes(region) => Arg::from(region),
        }
    }
}

/// Whether all ranks are the same, to the bit.
///
/// # Errors
/// [`ClusterError::Differs`], which names the first vertex whose rank is not.
pub fn compare(found: &[f32], expected: &[f32]) -> Result<(), ClusterError> {
    let differs = |place: usize, found: String, expected: String| Err(ClusterError::Differs { place, found, expected });
    let same = |(one, other): (&f32, &f32)| one.to_bits() == other.to_bits();
    if let Some(place) = found.iter().zip(expected).position(|pair| !same(pair)) {
        return differs(place, format!("{:?}", found[place]), format!("{:?}", expected[place]));
    }
    if found.len() != expected.len() {
        let of = |values: &[f32]| format!("one of {}", values.len());
        return differs(found.len().min(expected.len()), of(found), of(expected));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named() {
        compare(&[1.5, 2.0], &[1.5, 2.0]).unwrap();
        let text = |found: &[f32]| compare(found, &[1.5, 0.0]).unwrap_err().to_string();
        assert!(text(&[1.5, -0.0]).starts_with("the rank of vertex 1 is -0.0, and one rank of MPI has 0.0"));
        assert!(text(&[1.5]).starts_with("the rank of vertex 1 is one of 1, and one rank of MPI has one of 2"));
        assert!(text(&[1.5, 0.0, 1.0]).starts_with("the rank of vertex 2 is one of 3"));
    }
}
