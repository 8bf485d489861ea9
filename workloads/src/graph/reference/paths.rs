//! Shortest paths over weighted edges.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

use super::{Csr, VertexOutOfRange};

/// How far the limit rises at once, in means of the weights.
const STEP: u64 = 1;

/// The weights' least sum on a path from `source` to every vertex, on all cores; `u32::MAX` where there is no path, or none shorter
/// than that. `weights` are those of [`Csr::neighbours`].
///
/// Rows are walked in the order of near and far vertices (delta-stepping: Meyer and Sanders, Journal of Algorithms 49, 2003).
///
/// # Errors
/// [`VertexOutOfRange`] where `source` is no vertex of the graph.
pub fn sssp(csr: &Csr, weights: &[u32], source: u32) -> Result<Vec<u32>, VertexOutOfRange> {
    let vertices = csr.vertices();
    if source >= vertices {
        let vertex = source;
        return Err(VertexOutOfRange { vertex, vertices });
    }
    let sum: u64 = weights.par_iter().map(|weight| u64::from(*weight)).sum();
    let step = (sum / (weights.len() as u64).max(1) * STEP).clamp(1, u32::MAX.into()) as u32;
    let distances: Vec<AtomicU32> = (0..vertices).map(|_| AtomicU32::new(u32::MAX)).collect();
    // Relaxed throughout: a distance is all that is shared, and a round's end orders the next one.
    distances[source as usize].store(0, Ordering::Relaxed);
    let distance = |vertex: &u32| distances[*vertex as usize].load(Ordering::Relaxed);
    // Vertices that the edges of `vertex` bring nearer.
    let walk = |vertex: &u32| {
        let (from, vertex) = (distance(vertex), *vertex as usize);
        let edges = csr.offsets()[vertex] as usize..csr.offsets()[vertex + 1] as usize;
        let nearer = csr.neighbours()[edges.clone()].iter().zip(&weights[edges]);
        nearer
            .filter_map(|(to, weight)| {
                let there = from.saturating_add(*weight);
                let before = distances[*to as usize].fetch_min(there, Ordering::Relaxed);
                (there < before).then_some(*to)
            })
            .collect::<Vec<u32>>()
    };
    let (mut near, mut far, mut limit) = (vec![source], Vec::new(), step);
    loop {
        while !near.is_empty() {
            let reached: Vec<u32> = near.par_iter().flat_map_iter(walk).collect();
            let (nearer, farther): (Vec<_>, Vec<_>) = reached.into_par_iter().partition(|v| distance(v) < limit);
            near = nearer;
            far.extend(farther);
        }
        // Those that have come nearer since were walked already.
        far.retain(|vertex| distance(vertex) >= limit);
        let Some(least) = far.par_iter().map(distance).min() else {
            return Ok(distances.into_iter().map(AtomicU32::into_inner).collect());
        };
        limit = least.saturating_add(step);
        (near, far) = far.into_par_iter().partition(|vertex| distance(vertex) < limit);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Direction, GraphSpec, LoadOptions, Weights};
    use super::*;

    /// Dijkstra's search, without a heap.
    fn by_dijkstra(csr: &Csr, weights: &[u32], source: u32) -> Vec<u32> {
        let mut distances = vec![u64::MAX; csr.vertices() as usize];
        let mut open: Vec<u32> = (0..csr.vertices()).collect();
        distances[source as usize] = 0;
        while let Some(place) = (0..open.len()).min_by_key(|at| distances[open[*at] as usize]) {
            let vertex = open.swap_remove(place) as usize;
            for edge in csr.offsets()[vertex] as usize..csr.offsets()[vertex + 1] as usize {
                let there = distances[vertex].saturating_add(weights[edge].into());
                let to = &mut distances[csr.neighbours()[edge] as usize];
                *to = there.min(*to);
            }
        }
        distances
            .into_iter()
            .map(|distance| distance.min(u32::MAX.into()) as u32)
            .collect()
    }

    #[test]
    fn paths_are_dijkstras() {
        for spec in ["kron:10", "urand:10:3"] {
            let options = LoadOptions {
                weights: Weights::Drawn,
                ..LoadOptions::default()
            };
            let graph = spec.parse::<GraphSpec>().unwrap().load(&options, &mut |_| {}).unwrap();
            let (csr, weights) = (graph.csr(), graph.weights().unwrap());
            for source in [0, 1, 1023] {
                assert_eq!(sssp(csr, weights, source).unwrap(), by_dijkstra(csr, weights, source));
            }
        }
    }

    #[test]
    fn paths_that_are_too_long_for_a_number_are_none() {
        let csr = Csr::from_edges(4, &[(0, 1), (1, 2), (2, 3)], Direction::Directed).unwrap();
        let weights = [5, u32::MAX - 6, 1];
        assert_eq!(sssp(&csr, &weights, 0).unwrap(), [0, 5, u32::MAX - 1, u32::MAX]);
        assert_eq!(
            sssp(&csr, &weights, 4),
            Err(VertexOutOfRange { vertex: 4, vertices: 4 })
        );
    }
}
