//! Connected components.

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

use super::Csr;

/// The least vertex of each vertex's component, on all cores; of a directed graph the weakly connected ones.
///
/// The larger of two roots goes below the smaller one (Anderson and Woll, "Wait-free parallel algorithms for the union-find problem",
/// STOC 1991).
pub fn components(csr: &Csr) -> Vec<u32> {
    let parents: Vec<AtomicU32> = (0..csr.vertices()).map(AtomicU32::new).collect();
    // Relaxed: parents only ever fall, along paths that stay in the component.
    let root = |mut vertex: u32| loop {
        let above = parents[vertex as usize].load(Ordering::Relaxed);
        if above == vertex {
            return vertex;
        }
        let higher = parents[above as usize].load(Ordering::Relaxed);
        parents[vertex as usize].fetch_min(higher, Ordering::Relaxed);
        vertex = above;
    };
    let join = |one: u32, other: u32| {
        loop {
            let (one, other) = (root(one), root(other));
            let (more, less) = (one.max(other), one.min(other));
            let swapped = || {
                let parent = &parents[more as usize];
                parent.compare_exchange(more, less, Ordering::Relaxed, Ordering::Relaxed)
            };
            if one == other || swapped().is_ok() {
                return;
            }
        }
    };
    let join_row = |vertex: u32| csr.row(vertex).iter().for_each(|other| join(vertex, *other));
    (0..csr.vertices()).into_par_iter().for_each(join_row);
    (0..csr.vertices()).into_par_iter().map(root).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::{Direction, GraphSpec, LoadOptions};
    use super::*;

    #[test]
    fn components_have_their_least_vertex() {
        let edges = [(5, 2), (2, 7), (1, 3), (3, 1), (6, 5)];
        let csr = Csr::from_edges(9, &edges, Direction::Directed).unwrap();
        assert_eq!(components(&csr), [0, 1, 2, 1, 4, 2, 2, 2, 8]);
    }

    #[test]
    fn components_are_what_a_search_reaches() {
        let graph = "urand:12:1".parse::<GraphSpec>().unwrap();
        let graph = graph.load(&LoadOptions::default(), &mut |_| {}).unwrap();
        let found = components(graph.csr());
        let mut expected = vec![u32::MAX; found.len()];
        for vertex in 0..graph.csr().vertices() {
            if expected[vertex as usize] == u32::MAX {
                let distances = super::super::bfs(graph.csr(), vertex).unwrap();
                let reached = distances
                    .iter()
                    .zip(&mut expected)
                    .filter(|(distance, _)| **distance >= 0);
                reached.for_each(|(_, component)| *component = vertex);
            }
        }
        assert_eq!(found, expected);
    }
}
