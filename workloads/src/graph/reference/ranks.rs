//! PageRank.

use rayon::prelude::*;

use super::Csr;

/// What of a vertex's rank comes from its neighbours, as in the GAP benchmark: `src/pr.cc` of <https://github.com/sbeamer/gapbs>.
pub const DAMPING: f64 = 0.85;

/// The ranks of an undirected graph's vertices after that many iterations, from equal ones on, on all cores. What a vertex without
/// neighbours has goes nowhere, as in the GAP benchmark.
pub fn pagerank(csr: &Csr, iterations: u32) -> Vec<f64> {
    let vertices = csr.vertices();
    let mut ranks = vec![1.0 / f64::from(vertices); vertices as usize];
    for _ in 0..iterations {
        let gives = |vertex: u32| ranks[vertex as usize] / csr.row(vertex).len() as f64;
        let contributions: Vec<f64> = (0..vertices).into_par_iter().map(gives).collect();
        let rank = |vertex: u32| {
            let sum: f64 = csr.row(vertex).iter().map(|from| contributions[*from as usize]).sum();
            (1.0 - DAMPING) / f64::from(vertices) + DAMPING * sum
        };
        ranks = (0..vertices).into_par_iter().map(rank).collect();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::super::super::Direction;
    use super::*;

    #[test]
    fn ranks_of_a_path_of_three() {
        let csr = Csr::from_edges(3, &[(0, 1), (1, 2)], Direction::Undirected).unwrap();
        let once = pagerank(&csr, 1);
        let expected = [0.05 + 0.85 / 6.0, 0.05 + 0.85 * 2.0 / 3.0, 0.05 + 0.85 / 6.0];
        assert!(
            once.iter()
                .zip(expected)
                .all(|(one, other)| (one - other).abs() < 1e-15),
            "{once:?}"
        );
        // The fixed point: x = 0.05 + 0.85 y / 2 and y = 0.05 + 1.7 x.
        let x = (0.05 + 0.85 * 0.05 / 2.0) / (1.0 - 0.85 * 0.85);
        assert!((pagerank(&csr, 200)[2] - x).abs() < 1e-12);
    }
}
