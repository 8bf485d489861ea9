//! Random graphs in the manner of the GAP benchmark suite (Beamer et al., arXiv 1508.03619):
//! Kronecker graphs with the Graph500 parameters and uniform (Erdos-Renyi) graphs.
//!
//! The edges depend on generator, scale, degree and seed alone: every block of edges has its own
//! stream of random numbers, so the number of cores does not matter.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;

use super::csr;
use super::error::GraphError;
use super::ids::VertexIds;
use super::{Direction, Graph, Progress, ProgressFn, Stage};
use crate::input::require_memory;

/// The seed of a generated graph where none is given.
pub const DEFAULT_SEED: u64 = 1;

/// Edges drawn from one stream.
const BLOCK_EDGES: u64 = 1 << 16;

/// Blocks between two progress reports.
const BLOCKS_PER_STEP: u64 = 64;

/// The stream of the vertex permutation; blocks of edges use 0, 1, 2...
const PERMUTATION_STREAM: u64 = u64::MAX;

/// How the ends of an edge are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Recursive quadrants with the weights A 0.57, B 0.19, C 0.19, D 0.05, ids permuted.
    Kronecker,
    /// Both ends uniform.
    Uniform,
}

/// Draws `degree << scale` edges over `1 << scale` vertices and builds the graph.
pub(super) fn generate(
    kind: Kind,
    scale: u32,
    degree: u32,
    seed: u64,
    direction: Direction,
    progress: &mut ProgressFn<'_>,
) -> Result<Graph, GraphError> {
    let vertices = 1_u32 << scale;
    let total = u64::from(degree) << scale;
    require_memory(total * 16 + u64::from(vertices) * 20)?;
    let names = match kind {
        Kind::Kronecker => permutation(vertices, seed),
        Kind::Uniform => Vec::new(),
    };
    let mut edges: Vec<(u32, u32, ())> = Vec::with_capacity(total as usize);
    let blocks = total.div_ceil(BLOCK_EDGES);
    let mut first = 0;
    while first < blocks {
        let last = (first + BLOCKS_PER_STEP).min(blocks);
        edges.par_extend((first..last).into_par_iter().flat_map_iter(|block| {
            let count = BLOCK_EDGES.min(total - block * BLOCK_EDGES);
            let mut random = stream(seed, block);
            let names = &names;
            (0..count).map(move |_| match kind {
                Kind::Kronecker => {
                    let (u, v) = kronecker_edge(&mut random, scale);
                    (names[u as usize], names[v as usize], ())
                }
                Kind::Uniform => {
                    let (u, v) = uniform_edge(&mut random, scale);
                    (u, v, ())
                }
            })
        }));
        first = last;
        progress(Progress {
            stage: Stage::Generate,
            done: edges.len() as u64,
            total,
        });
    }
    drop(names);
    let (csr, _) = csr::build(vertices, edges, direction, progress)?;
    Ok(Graph {
        csr,
        weights: None,
        drawn: false,
        ids: VertexIds::Counted { first: 0 },
        direction,
    })
}

/// The random numbers of one of the streams of a seed.
pub(crate) fn stream(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    random
}

/// A share of 1 as a threshold for 16 random bits.
const fn share(percent: u32) -> u32 {
    percent * 65_536 / 100
}

fn kronecker_edge(random: &mut ChaCha8Rng, scale: u32) -> (u32, u32) {
    const A: u32 = share(57);
    const AB: u32 = share(57 + 19);
    const ABC: u32 = share(57 + 19 + 19);
    let (mut u, mut v, mut bits) = (0, 0, 0_u64);
    for level in 0..scale {
        // One 64-bit draw serves four levels.
        bits = if level % 4 == 0 { random.next_u64() } else { bits >> 16 };
        let draw = (bits & 0xffff) as u32;
        u = u << 1 | u32::from(draw >= AB);
        v = v << 1 | u32::from((A..AB).contains(&draw) || draw >= ABC);
    }
    (u, v)
}

fn uniform_edge(random: &mut ChaCha8Rng, scale: u32) -> (u32, u32) {
    let bits = random.next_u64();
    let mask = (1_u32 << scale) - 1;
    (bits as u32 & mask, (bits >> 32) as u32 & mask)
}

/// Fisher-Yates, so that a vertex's number says nothing about its degree.
pub(crate) fn permutation(vertices: u32, seed: u64) -> Vec<u32> {
    let mut random = stream(seed, PERMUTATION_STREAM);
    let mut names: Vec<u32> = (0..vertices).collect();
    for index in (1..vertices).rev() {
        // Fixed point: below 2^30 elements the bias of a 64-bit draw is under 2^-34.
        let other = (u128::from(random.next_u64()) * u128::from(index + 1)) >> 64;
        names.swap(index as usize, other as usize);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(kind: Kind, scale: u32, seed: u64) -> Graph {
        generate(kind, scale, 16, seed, Direction::Undirected, &mut |_| {}).unwrap()
    }

    #[test]
    fn a_seed_names_one_graph() {
        for kind in [Kind::Kronecker, Kind::Uniform] {
            let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
            let first = alone.install(|| graph(kind, 13, 7));
            let many = rayon::ThreadPoolBuilder::new().num_threads(5).build().unwrap();
            assert_eq!(first, many.install(|| graph(kind, 13, 7)));
            assert_ne!(first, graph(kind, 13, 8));
        }
    }

    #[test]
    fn rows_mirror_each_other() {
        let graph = graph(Kind::Kronecker, 9, 3);
        let csr = graph.csr();
        for u in 0..csr.vertices() {
            for &v in csr.row(u) {
                assert_ne!(u, v);
                assert!(csr.row(v).binary_search(&u).is_ok(), "{u} {v}");
            }
        }
    }

    #[test]
    fn kronecker_is_skewed_and_uniform_is_not() {
        let largest = |kind| {
            let graph = graph(kind, 12, 1);
            let csr = graph.csr();
            (0..csr.vertices()).map(|v| csr.row(v).len()).max().unwrap()
        };
        // The mean degree is under 32: Poisson tails end far below 100, hubs begin far above.
        assert!(largest(Kind::Uniform) < 100);
        assert!(largest(Kind::Kronecker) > 300);
    }

    #[test]
    fn quadrants_have_their_weights() {
        let mut random = stream(1, 0);
        let draws = 100_000;
        let mut counts = [0_u32; 4];
        for _ in 0..draws {
            let (u, v) = kronecker_edge(&mut random, 1);
            counts[(u * 2 + v) as usize] += 1;
        }
        for (count, share) in counts.into_iter().zip([0.57, 0.19, 0.19, 0.05]) {
            // Five standard deviations of 100,000 draws are below 0.008.
            assert!(
                (f64::from(count) / f64::from(draws) - share).abs() < 0.008,
                "{counts:?}"
            );
        }
    }

    #[test]
    fn a_permutation_holds_every_vertex_once() {
        let mut names = permutation(1 << 10, 1);
        assert_ne!(names, (0..1 << 10).collect::<Vec<u32>>());
        names.sort_unstable();
        assert_eq!(names, (0..1 << 10).collect::<Vec<u32>>());
    }
}
