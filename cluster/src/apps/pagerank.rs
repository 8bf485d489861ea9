//! PageRank.

use std::ops::Range;
use std::time::Instant;

use gpuvm::{Placement, Vm};
use gpuvm_workloads::apps::several;
use gpuvm_workloads::graph::Csr;
use gpuvm_workloads::graph::reference::DAMPING;

use super::Ran;
use super::rows::{On, Rows, parts};
use crate::{ClusterError, Partitioned, Ranks};

/// The rank of each vertex of an undirected graph after so many iterations.
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
    iterations: u32,
    placement: Placement,
) -> Result<Ran<f32>, ClusterError> {
    let vertices = csr.vertices() as usize;
    if vertices == 0 {
        return Err(ClusterError::Options(
            "a graph without vertices has no ranks; give another".to_owned(),
        ));
    }
    let (begun, place) = (Instant::now(), ranks.place());
    let parts = parts(csr, place.size);
    let mine = parts[place.rank].clone();
    let values = Partitioned::<f32>::zeroed(vm, ranks, "ranks", parts.clone())?;
    let degrees = degrees(csr, &mine);
    let (base, damping) = ((1.0 - DAMPING as f32) / vertices as f32, DAMPING as f32);
    let mut own = vec![1.0 / vertices as f32; mine.len()];
    let mut all = vec![0.0f32; vertices];
    let mut failure = Ok(());
    let ran = vm.scope(|scope| {
        let (kernel, config) = several::kernel_of(vm.gpu(0)?, "pull")?;
        let on = On {
            vm,
            ranks,
            scope,
            placement,
        };
        let rows = Rows::new(on, csr)?;
        let contributions = vm.region::<f32>().name("contributions").zeroed(vertices as u64)?;
        let set_up = begun.elapsed();
        ranks.barrier();
        let started = Instant::now();
        for _ in 0..iterations {
            let given: Vec<f32> = own.iter().zip(&degrees).map(|(rank, degree)| rank / degree).collect();
            let words = (bytemuck::cast_slice(&given), bytemuck::cast_slice_mut(&mut all));
            failure = ranks.gather("contributions", words.0, &parts, words.1);
            if failure.is_err() {
                break;
            }
            contributions.write(0, &all)?;
            let [offsets, neighbours] = rows.args();
            let (first, end) = (mine.start as u32, mine.end as u32);
            let args = (
                offsets,
                neighbours,
                &contributions,
                values.region(),
                first,
                end,
                base,
                damping,
            );
            kernel.launch(config.clone(), args)?.sync()?;
            values.region().read(0, &mut own)?;
        }
        Ok((set_up, started.elapsed()))
    });
    failure?;
    let (set_up, elapsed) = ran.map_err(ClusterError::vm("PageRank"))?;
    Ok(Ran {
        own,
        parts,
        set_up,
        elapsed,
    })
}

/// What a vertex's rank is divided by, for these vertices: one that has no neighbours gives its rank to none.
fn degrees(csr: &Csr, vertices: &Range<usize>) -> Vec<f32> {
    let ends = csr.offsets()[vertices.start..=vertices.end].windows(2);
    ends.map(|ends| (ends[1] - ends[0]).max(1) as f32).collect()
}
