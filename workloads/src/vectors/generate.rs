//! Random vectors that lie in clusters near a space of few dimensions, as learnt embeddings and image descriptors do: the
//! nearest neighbours of vectors without such a structure are hardly nearer than others (Beyer et al., "When is nearest
//! neighbor meaningful?", ICDT 1999).
//!
//! The vectors depend on their number, shape and seed alone: every block of vectors has its own stream of random numbers.

use rand_chacha::rand_core::Rng;
use rayon::prelude::*;

use super::{VectorError, Vectors};
use crate::graph::generate::stream;
use crate::input::require_memory;
use crate::random::{near_normal, uniform};

/// Dimensions of the space near which the vectors lie.
const INNER: usize = 16;

/// How far the centres of clusters are from each other, by the mean radius of a cluster.
const SPREAD: f64 = 1.5;

/// How far vectors are off that space in each component, by the mean radius of a cluster.
const NOISE: f64 = 0.2;

/// Vectors drawn from one stream.
const BLOCK_VECTORS: usize = 1 << 10;

/// Streams of centres and directions, and of queries; blocks of vectors use 0, 1, 2...
const SHAPE_STREAM: u64 = u64::MAX;
const QUERY_STREAMS: u64 = 1 << 40;

/// Generated vectors: how many, of which dimension, in how many clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clusters {
    /// Vectors, at least 1.
    pub count: u32,
    /// Components of each, at least 1.
    pub dim: u32,
    /// Clusters, at least 1.
    pub clusters: u32,
}

/// Where clusters are, and how the inner space lies in the outer one.
struct Shape {
    centres: Vec<[f64; INNER]>,
    radii: Vec<f64>,
    directions: Vec<[f64; INNER]>,
}

impl Clusters {
    /// The vectors, on all cores.
    ///
    /// # Errors
    /// [`VectorError::Memory`] where the machine cannot hold them, [`VectorError::Shape`] where a number is 0 or too large.
    pub fn vectors(&self, seed: u64) -> Result<Vectors, VectorError> {
        self.draw(self.count, seed, 0)
    }

    /// Queries: vectors of the same clusters that are not among [`Clusters::vectors`].
    ///
    /// # Errors
    /// As [`Clusters::vectors`].
    pub fn queries(&self, count: u32, seed: u64) -> Result<Vectors, VectorError> {
        self.draw(count, seed, QUERY_STREAMS)
    }

    fn draw(&self, count: u32, seed: u64, first_stream: u64) -> Result<Vectors, VectorError> {
        let (count, dim) = (count as usize, self.dim as usize);
        let value_bytes = (count as u64).saturating_mul(u64::from(self.dim)).saturating_mul(4);
        let shape_bytes = (u64::from(self.clusters) + u64::from(self.dim)) * 8 * (INNER as u64 + 1);
        require_memory(value_bytes.saturating_add(shape_bytes))?;
        let mut values = vec![0.0; count * dim];
        if dim > 0 && self.clusters > 0 {
            let shape = Shape::new(self, seed);
            let blocks = values.par_chunks_mut(BLOCK_VECTORS * dim).enumerate();
            blocks.for_each(|(block, values)| {
                let mut random = stream(seed, first_stream + block as u64);
                values
                    .chunks_exact_mut(dim)
                    .for_each(|vector| shape.draw(&mut random, vector));
            });
        }
        Vectors::new(dim, values)
    }
}

impl Shape {
    fn new(clusters: &Clusters, seed: u64) -> Shape {
        let mut random = stream(seed, SHAPE_STREAM);
        let mut point = |scale: f64| std::array::from_fn(|_| scale * near_normal(random.next_u64()));
        let directions = (0..clusters.dim).map(|_| point(1.0)).collect();
        let centres = (0..clusters.clusters).map(|_| point(SPREAD)).collect();
        let radii = (0..clusters.clusters)
            .map(|_| 0.5 + uniform(random.next_u64()))
            .collect();
        Shape {
            centres,
            radii,
            directions,
        }
    }

    fn draw(&self, random: &mut impl Rng, vector: &mut [f32]) {
        let cluster = (uniform(random.next_u64()) * self.centres.len() as f64) as usize;
        let (centre, radius) = (&self.centres[cluster], self.radii[cluster]);
        let inner: [f64; INNER] = centre.map(|at| at + radius * near_normal(random.next_u64()));
        for (value, direction) in vector.iter_mut().zip(&self.directions) {
            let along: f64 = direction.iter().zip(inner).map(|(part, at)| part * at).sum();
            *value = (along + NOISE * near_normal(random.next_u64())) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::distance;
    use super::*;

    const SOME: Clusters = Clusters {
        count: 3000,
        dim: 24,
        clusters: 10,
    };

    #[test]
    fn a_seed_names_one_set() {
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let first = alone.install(|| SOME.vectors(7).unwrap());
        let many = rayon::ThreadPoolBuilder::new().num_threads(5).build().unwrap();
        assert_eq!(first, many.install(|| SOME.vectors(7).unwrap()));
        assert_ne!(first, SOME.vectors(8).unwrap());
        assert_eq!((first.count(), first.width()), (3000, 24));
        let queries = SOME.queries(3000, 7).unwrap();
        assert!(queries.rows().zip(first.rows()).all(|(query, vector)| query != vector));
    }

    #[test]
    fn neighbours_are_nearer_than_others() {
        let vectors = SOME.vectors(1).unwrap();
        let from_first = |id| distance(vectors.row(0), vectors.row(id));
        let mut distances: Vec<f32> = (1..3000).map(from_first).collect();
        distances.sort_unstable_by(f32::total_cmp);
        assert!(
            distances[0] * 4.0 < distances[1500],
            "{} {}",
            distances[0],
            distances[1500]
        );
    }

    #[test]
    fn shapes_that_are_none_are_refused() {
        for none in [Clusters { count: 0, ..SOME }, Clusters { dim: 0, ..SOME }] {
            assert!(matches!(none.vectors(1), Err(VectorError::Shape { .. })));
        }
        let huge = Clusters {
            count: u32::MAX,
            dim: u32::MAX,
            clusters: 1,
        };
        assert!(matches!(huge.vectors(1), Err(VectorError::Memory { .. })));
    }
}
