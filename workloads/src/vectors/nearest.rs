//! Exact nearest neighbours on the CPU, which every other answer is compared with.

use std::collections::BTreeSet;

use rayon::prelude::*;

use super::{DIM_MAX, Neighbours, VectorError, Vectors, same_dim};

/// Partial sums of a distance: the lanes of a warp.
const LANES: usize = 32;

/// Bytes of vectors that a task compares with all its queries before it goes on: they stay in the fastest cache.
const BLOCK_BYTES: usize = 16 << 10;

/// The most queries of a task.
const TASK_QUERIES: usize = 32;

/// The squared Euclidean distance of two vectors of the same length.
///
/// The order of its additions is part of what it promises: sum `l` of 32 is over the components `l`, `l + 32`..., and sums
/// are added in pairs at the distances 16, 8, 4, 2 and 1, each rounded to 32 bits. A warp that shuffles does the same, where
/// its multiplications and additions are not fused (`__fmul_rn`, `__fadd_rn`), so its distances are equal, bit for bit.
pub fn distance(one: &[f32], other: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (one, one_rest) = one.as_chunks::<LANES>();
    let (other, other_rest) = other.as_chunks::<LANES>();
    for (one, other) in one.iter().zip(other) {
        for ((sum, one), other) in sums.iter_mut().zip(one).zip(other) {
            let difference = one - other;
            *sum += difference * difference;
        }
    }
    for ((sum, one), other) in sums.iter_mut().zip(one_rest).zip(other_rest) {
        let difference = one - other;
        *sum += difference * difference;
    }
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = sums.split_at_mut(half);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
        half /= 2;
    }
    sums[0]
}

/// The nearest vectors of those that were offered, up to a number of them. A distance and an id are one number, which orders
/// by distance and then by id, because distances are not negative: the same set in whatever order they are offered.
#[derive(Clone, Debug, Default)]
pub(super) struct Best {
    limit: usize,
    entries: Vec<u64>,
}

/// The number of a distance and an id.
pub(super) fn entry(distance: f32, id: u32) -> u64 {
    u64::from(distance.to_bits()) << 32 | u64::from(id)
}

/// The id of such a number.
pub(super) fn id_of(entry: u64) -> u32 {
    entry as u32
}

impl Best {
    /// Forgets all and keeps `limit` from now on, at least one.
    pub(super) fn reset(&mut self, limit: usize) {
        self.limit = limit.max(1);
        self.entries.clear();
    }

    /// Keeps `entry` where it is among the nearest and not there yet: its place then.
    pub(super) fn offer(&mut self, entry: u64) -> Option<usize> {
        if self.entries.len() == self.limit {
            if self.entries.last().is_some_and(|last| entry >= *last) {
                return None;
            }
            let place = self.entries.binary_search(&entry).err()?;
            self.entries.pop();
            self.entries.insert(place, entry);
            return Some(place);
        }
        let place = self.entries.binary_search(&entry).err()?;
        self.entries.insert(place, entry);
        Some(place)
    }

    /// The nearest, ascending.
    pub(super) fn entries(&self) -> &[u64] {
        &self.entries
    }
}

/// Fails where a search cannot return `k` neighbours of each query.
pub(super) fn check_k(base: &Vectors, k: usize) -> Result<(), VectorError> {
    let count = base.count().min(DIM_MAX);
    match (1..=count).contains(&k) {
        true => Ok(()),
        false => Err(VectorError::Neighbours { k, count }),
    }
}

/// The `k` nearest vectors of each query, by [`distance`](distance()) and then by id, on all cores.
///
/// # Errors
/// [`VectorError::Dim`] where queries and vectors differ in their dimension, [`VectorError::Neighbours`] where there are no
/// `k` vectors.
pub fn nearest(base: &Vectors, queries: &Vectors, k: usize) -> Result<Neighbours, VectorError> {
    same_dim(base, queries.width())?;
    check_k(base, k)?;
    let dim = base.width();
    let mut ids = vec![0; queries.count() * k];
    let task_queries = queries
        .count()
        .div_ceil(rayon::current_num_threads())
        .clamp(1, TASK_QUERIES);
    let block_vectors = (BLOCK_BYTES / (dim * size_of::<f32>())).max(1);
    let tasks = ids.par_chunks_mut(task_queries * k);
    let tasks = tasks.zip(queries.values().par_chunks(task_queries * dim));
    tasks.for_each(|(ids, queries)| {
        let mut best = vec![Best::default(); queries.len() / dim];
        best.iter_mut().for_each(|best| best.reset(k));
        for (block, vectors) in base.values().chunks(block_vectors * dim).enumerate() {
            let first = (block * block_vectors) as u32;
            for (best, query) in best.iter_mut().zip(queries.chunks_exact(dim)) {
                for (vector, id) in vectors.chunks_exact(dim).zip(first..) {
                    best.offer(entry(distance(query, vector), id));
                }
            }
        }
        for (ids, best) in ids.chunks_exact_mut(k).zip(&best) {
            ids.iter_mut()
                .zip(best.entries())
                .for_each(|(id, entry)| *id = id_of(*entry));
        }
    });
    Neighbours::new(k, ids)
}

/// The share of the first `k` neighbours of each query in `found` that are no farther than the `k`-th of `truth`: recall@k, from 0 to 1. Of
/// vectors that are equally far any counts, each once.
///
/// # Errors
/// [`VectorError::Answers`] where the two are of different queries, or have fewer than `k` neighbours each.
pub fn recall(
    base: &Vectors,
    queries: &Vectors,
    truth: &Neighbours,
    found: &Neighbours,
    k: usize,
) -> Result<f64, VectorError> {
    let fits = k > 0 && k <= truth.width().min(found.width());
    if !fits || truth.count() != found.count() || truth.count() > queries.count() {
        return Err(VectorError::Answers {
            k,
            truth_rows: truth.count(),
            truth_width: truth.width(),
            found_rows: found.count(),
            found_width: found.width(),
        });
    }
    let hits = (0..)
        .zip(truth.rows().zip(found.rows()))
        .map(|(query, (truth, found))| {
            let is_there = |id: u32| (id as usize) < base.count();
            let far = |id: &u32| is_there(*id).then(|| distance(queries.row(query), base.row(*id)));
            let limit = truth[..k].iter().filter_map(far).fold(f32::NEG_INFINITY, f32::max);
            let near: BTreeSet<_> = found[..k]
                .iter()
                .filter(|id| far(id).is_some_and(|far| far <= limit))
                .collect();
            near.len()
        });
    Ok(hits.sum::<usize>() as f64 / (truth.count() * k) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::Clusters;
    use super::*;

    #[test]
    fn distances_are_those_of_a_warp() {
        for dim in [1, 2, 31, 32, 33, 96, 100, 200] {
            let clusters = Clusters {
                count: 2,
                dim,
                clusters: 2,
            };
            let vectors = clusters.vectors(dim.into()).unwrap();
            let (one, other) = (vectors.row(0), vectors.row(1));
            // Each lane alone, and what `__shfl_xor_sync` brings it.
            let mut lanes: Vec<f32> = (0..LANES)
                .map(|lane| {
                    let own = (lane..dim as usize).step_by(LANES);
                    own.fold(0.0, |sum, at| sum + (one[at] - other[at]) * (one[at] - other[at]))
                })
                .collect();
            for step in [16, 8, 4, 2, 1] {
                lanes = (0..LANES).map(|lane| lanes[lane] + lanes[lane ^ step]).collect();
            }
            let exact: f64 = one
                .iter()
                .zip(other)
                .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
                .sum();
            let found = distance(one, other);
            assert!(
                lanes.iter().all(|sum| sum.to_bits() == found.to_bits()),
                "{dim}: {lanes:?} {found}"
            );
            assert!((f64::from(found) / exact - 1.0).abs() < 1e-5, "{dim}: {found} {exact}");
        }
    }

    #[test]
    fn neighbours_are_those_of_a_full_sort() {
        let clusters = Clusters {
            count: 700,
            dim: 9,
            clusters: 5,
        };
        let (base, queries) = (clusters.vectors(1).unwrap(), clusters.queries(40, 1).unwrap());
        let found = nearest(&base, &queries, 13).unwrap();
        for (query, found) in queries.rows().zip(found.rows()) {
            let mut all: Vec<(f32, u32)> = (0..700).map(|id| (distance(query, base.row(id)), id)).collect();
            all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            assert_eq!(found, all[..13].iter().map(|(_, id)| *id).collect::<Vec<_>>());
        }
        let all = nearest(&base, &queries, 700).unwrap();
        assert_eq!((all.count(), all.width()), (40, 700));
    }

    #[test]
    fn equal_vectors_are_ordered_by_id() {
        let base = Vectors::new(2, vec![1.0; 20]).unwrap();
        let query = Vectors::new(2, vec![0.5, 2.0]).unwrap();
        assert_eq!(nearest(&base, &query, 3).unwrap().row(0), [0, 1, 2]);
    }

    #[test]
    fn recall_counts_what_is_near_enough_once() {
        // Vector 7 is where vector 2 is.
        let base = Vectors::new(1, vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 2.0, 8.0, 9.0]).unwrap();
        let queries = Vectors::new(1, vec![1.0, 5.0]).unwrap();
        let rows = |ids: [u32; 6]| Neighbours::new(3, ids.to_vec()).unwrap();
        let recall = |found: &Neighbours, k| super::recall(&base, &queries, &rows([1, 0, 2, 5, 4, 6]), found, k);
        for (found, k, expected) in [
            ([1, 0, 2, 5, 4, 6], 3, 1.0),
            ([7, 0, 1, 9, 8, 6], 3, 4.0 / 6.0),
            // The same vector three times, and what is no vector.
            ([1, 1, 1, u32::MAX, 10, 5], 3, 2.0 / 6.0),
            ([1, 3, 2, 5, 4, 6], 2, 0.75),
        ] {
            assert_eq!(recall(&rows(found), k).unwrap(), expected, "{found:?}");
        }
        assert!(recall(&rows([0; 6]), 4).is_err() && recall(&rows([0; 6]), 0).is_err());
        assert!(recall(&Neighbours::new(3, vec![1, 2, 3]).unwrap(), 3).is_err());
    }

    #[test]
    fn searches_without_an_answer_are_refused() {
        let (base, query) = (
            Vectors::new(2, vec![0.0; 8]).unwrap(),
            Vectors::new(3, vec![0.0; 3]).unwrap(),
        );
        let error = nearest(&base, &query, 1).unwrap_err().to_string();
        assert_eq!(
            error,
            "the queries have the dimension 3, the vectors that are searched have 2"
        );
        for k in [0, 5] {
            let error = nearest(&base, &base, k).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("{k} neighbours were asked for; ask for 1 to 4, as many as there are vectors")
            );
        }
    }
}
