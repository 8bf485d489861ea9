//! Breadth-first search.

use std::ops::Range;
use std::time::Instant;

use gpuvm::{Placement, Vm};
use gpuvm_workloads::apps::several;
use gpuvm_workloads::graph::Csr;

use super::Ran;
use super::rows::{On, Rows, parts};
use crate::{ClusterError, Ranks};

/// The distance of each vertex from `source`, -1 where it is not reached.
///
/// Each level, a rank marks the neighbours of its own vertices that are in the frontier; the next frontier is what any rank has marked and
/// no level had, which MPI's reduction gives to all of them: a bit for each vertex.
///
/// # Errors
/// The virtual memory's; [`ClusterError::Options`] for a source that is no vertex.
pub fn bfs(vm: &Vm, ranks: &dyn Ranks, csr: &Csr, source: u32, placement: Placement) -> Result<Ran<i32>, ClusterError> {
    if source >= csr.vertices() {
        let what = format!(
            "vertex {source} of {}; give --source a vertex of the graph",
            csr.vertices()
        );
        return Err(ClusterError::Options(what));
    }
    let (begun, place) = (Instant::now(), ranks.place());
    let parts = parts(csr, place.size);
    let own = parts[place.rank].clone();
    let words = (csr.vertices() as usize).div_ceil(32);
    let mut failure = Ok(());
    let ran = vm.scope(|scope| {
        let (kernel, config) = several::kernel_of(vm.gpu(0)?, "expand")?;
        let on = On {
            vm,
            ranks,
            scope,
            placement,
        };
        let rows = Rows::new(on, csr)?;
        let frontier = vm.region::<u32>().name("frontier").zeroed(words as u64)?;
        let found = vm.region::<u32>().name("found").zeroed(words as u64)?;
        let mut next = vec![0u32; words];
        next[source as usize / 32] = 1 << (source % 32);
        let mut seen = Seen::new(words, own.clone());
        let set_up = begun.elapsed();
        ranks.barrier();
        let started = Instant::now();
        for level in 0.. {
            if !seen.visit(&mut next, level) {
                break;
            }
            frontier.write(0, &next)?;
            next.fill(0);
            found.write(0, &next)?;
            let [offsets, neighbours] = rows.args();
            let (first, end) = (own.start as u32, own.end as u32);
            let args = (offsets, neighbours, &frontier, &found, first, end);
            kernel.launch(config.clone(), args)?.sync()?;
            found.read(0, &mut next)?;
            failure = ranks.union("the frontier", &mut next);
            if failure.is_err() {
                break;
            }
        }
        Ok((seen.distances, set_up, started.elapsed()))
    });
    failure?;
    let (own, set_up, elapsed) = ran.map_err(ClusterError::vm("the search"))?;
    Ok(Ran {
        own,
        parts,
        set_up,
        elapsed,
    })
}

/// What has been reached: of all vertices whether, of this rank's at which level.
struct Seen {
    reached: Vec<u32>,
    distances: Vec<i32>,
    own: Range<usize>,
}

impl Seen {
    fn new(words: usize, own: Range<usize>) -> Self {
        Self {
            reached: vec![0; words],
            distances: vec![-1; own.len()],
            own,
        }
    }

    /// Leaves those in `next` that were not reached before, which are now, at `level`. Whether there are any.
    fn visit(&mut self, next: &mut [u32], level: i32) -> bool {
        let mut any = false;
        for (word, (next, reached)) in next.iter_mut().zip(&mut self.reached).enumerate() {
            *next &= !*reached;
            *reached |= *next;
            any |= *next != 0;
            let mut left = *next;
            while left != 0 {
                let vertex = word * 32 + left.trailing_zeros() as usize;
                if self.own.contains(&vertex) {
                    self.distances[vertex - self.own.start] = level;
                }
                left &= left - 1;
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vertex_is_visited_once_and_by_its_rank() {
        let mut seen = Seen::new(2, 2..40);
        let mut next = [0b101, 1 << 7 | 1 << 8];
        assert!(seen.visit(&mut next, 0));
        assert_eq!(next, [0b101, 1 << 7 | 1 << 8]);
        let mut again = [0b111, 1 << 7];
        assert!(seen.visit(&mut again, 1));
        assert_eq!(again, [0b010, 0]);
        assert!(!seen.visit(&mut [0b111, 0], 2));
        assert_eq!((seen.distances[0], seen.distances[1], seen.distances[37]), (0, -1, 0));
        assert_eq!(seen.distances.len(), 38);
    }
}
