//! PageRank.

use rayon::prelude::*;

use super::Csr;

/// What of a vertex's rank comes from its neighbours, as in the GAP benchmark: `src/pr.cc` of <https://github.com/sbeamer/gapbs>.
pub const DAMPING: f64 = 0.85;

/// The ranks of an undirected graph's vertices, from equal ones on. What a vertex without neighbours has goes nowhere, as in the GAP
/// benchmark.
pub struct Ranking<'a> {
    csr: &'a Csr,
    damping: f64,
    /// After the iterations so far.
    pub ranks: Vec<f64>,
}

impl<'a> Ranking<'a> {
    /// Before the first iteration.
    pub fn new(csr: &'a Csr, damping: f64) -> Self {
        let vertices = csr.vertices();
        let ranks = vec![1.0 / f64::from(vertices); vertices as usize];
        Self { csr, damping, ranks }
    }

    /// Iterates once, on all cores; by how much all ranks together have changed.
    pub fn iterate(&mut self) -> f64 {
        let Self { csr, damping, ranks } = self;
        let vertices = csr.vertices();
        let gives = |vertex: u32| ranks[vertex as usize] / csr.row(vertex).len() as f64;
        let contributions: Vec<f64> = (0..vertices).into_par_iter().map(gives).collect();
        let rank = |vertex: u32| {
            let sum: f64 = csr.row(vertex).iter().map(|from| contributions[*from as usize]).sum();
            (1.0 - *damping) / f64::from(vertices) + *damping * sum
        };
        let new: Vec<f64> = (0..vertices).into_par_iter().map(rank).collect();
        let change = new.iter().zip(&*ranks).map(|(new, old)| (new - old).abs()).sum();
        *ranks = new;
        change
    }
}

/// The ranks after that many iterations with the usual [`DAMPING`].
pub fn pagerank(csr: &Csr, iterations: u32) -> Vec<f64> {
    let mut ranking = Ranking::new(csr, DAMPING);
    for _ in 0..iterations {
        ranking.iterate();
    }
    ranking.ranks
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
