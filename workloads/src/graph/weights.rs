//! Weights of edges: whether a graph is loaded with them, and drawing them.

use rayon::prelude::*;

use super::csr::Csr;
use super::error::GraphError;
use super::rows::{self, mix, pair};
use crate::input::require_memory;

/// The largest weight that is drawn, as in the GAP benchmark: `src/builder.h` and `src/generator.h` of
/// <https://github.com/sbeamer/gapbs>.
pub const DRAWN_WEIGHT_MAX: u32 = 255;

/// Which weights the edges of a loaded graph have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// None: those of a file are not read, and take no memory.
    #[default]
    None,
    /// Those of the file where it has some, else drawn ones, as [`Graph::weights_name`](super::Graph::weights_name) says. Values of a file that
    /// are no whole numbers from 1 to `u32::MAX` are an error. What edge lists have behind their edges is taken for weights where the file is
    /// named `.wel` or the column `weight`: else it may be anything.
    FromFileOrDrawn,
    /// Drawn ones, by [`draw_weights`], whatever the file has.
    Drawn,
}

/// A weight from 1 to [`DRAWN_WEIGHT_MAX`] for each of [`Csr::neighbours`], on all cores.
///
/// It depends on the seed and the two ends of the edge alone, whatever their order: an edge weighs as much in the row of one end
/// as in that of the other.
///
/// # Errors
/// [`GraphError::Memory`] where the machine has too little memory.
pub fn draw_weights(csr: &Csr, seed: u64) -> Result<Vec<u32>, GraphError> {
    require_memory(csr.edges() * 4)?;
    let seed = mix(seed);
    let mut weights = vec![0; csr.neighbours().len()];
    let chunks = weights.par_chunks_mut(rows::CHUNK).enumerate();
    chunks.for_each(|(chunk, weights)| {
        let start = chunk * rows::CHUNK;
        for (row, part) in rows::parts(csr.offsets(), start..start + weights.len()) {
            for index in part {
                let hash = mix(pair(row, csr.neighbours()[index]) ^ seed);
                // Fixed point: the bias of 32 bits is below 2^-24.
                weights[index - start] = 1 + (((hash >> 32) * u64::from(DRAWN_WEIGHT_MAX)) >> 32) as u32;
            }
        }
    });
    Ok(weights)
}

#[cfg(test)]
mod tests {
    use super::super::{Direction, GraphSpec, LoadOptions};
    use super::*;

    #[test]
    fn the_hash_is_splitmix64() {
        // The first numbers of the reference implementation, <https://prng.di.unimi.it/splitmix64.c>, with the seed 0.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn drawn_weights_are_those_of_pairs_and_seeds() {
        let edges = [(0, 1), (1, 2), (2, 0), (4, 1)];
        let both = Csr::from_edges(5, &edges, Direction::Undirected).unwrap();
        let weights = draw_weights(&both, 7).unwrap();
        let weight = |csr: &Csr, weights: &[u32], u: u32, v: u32| {
            let begin = csr.offsets()[u as usize] as usize;
            weights[begin + csr.row(u).binary_search(&v).unwrap()]
        };
        let one_way = Csr::from_edges(5, &edges, Direction::Directed).unwrap();
        let one_way_weights = draw_weights(&one_way, 7).unwrap();
        for (u, v) in edges {
            assert_eq!(weight(&both, &weights, u, v), weight(&both, &weights, v, u));
            assert_eq!(weight(&both, &weights, u, v), weight(&one_way, &one_way_weights, u, v));
        }
        assert_ne!(weights, draw_weights(&both, 8).unwrap());
    }

    #[test]
    fn every_weight_is_drawn_about_as_often() {
        let graph = "urand:14".parse::<GraphSpec>().unwrap();
        let graph = graph.load(&LoadOptions::default(), &mut |_| {}).unwrap();
        let weights = draw_weights(graph.csr(), 1).unwrap();
        assert_eq!(weights.len() as u64, graph.csr().edges());
        let mut counts = [0_u32; DRAWN_WEIGHT_MAX as usize + 1];
        for weight in weights {
            counts[weight as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        // 524,000 weights that come in pairs, 2055 of each: six standard deviations are 385.
        assert!(
            counts[1..].iter().all(|count| (1670..2440).contains(count)),
            "{counts:?}"
        );
    }
}
