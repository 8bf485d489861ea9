//! Building the links: batches of vectors are searched for in the graph so far, in parallel, and then linked into it.

use rand_chacha::rand_core::Rng;
use rayon::prelude::*;

use super::super::nearest::{distance, entry, id_of};
use super::super::{DIM_MAX, NONE, Neighbours, VectorError, Vectors};
use super::walk::Walk;
use crate::graph::generate::{permutation, stream};
use crate::input::require_memory;
use crate::random::uniform;

/// Links of a vector while the graph is built, by those it has in the end: choosing among many is done more seldom.
const SLACK: usize = 2;

/// The share of all vectors that is added at a time, at most: vectors of a batch do not find each other.
const BATCH_SHARE: usize = 50;

/// Vectors added at a time that are always allowed.
const BATCH_MIN: usize = 64;

/// Vectors among which an entry is chosen.
const SAMPLE: usize = 64;

/// The stream of the entries.
const ENTRY_STREAM: u64 = 0;

/// How an index is built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexOptions {
    /// Links of each vector, at least 2. More find more and cost more to follow.
    pub degree: usize,
    /// Vectors among which links are chosen: the width of the searches while the graph is built, at least 1.
    pub width: usize,
    /// How much longer than a detour a link must be to be left out, at least 1. More keeps more long links.
    pub alpha: f32,
    /// Vectors from which every search starts, at least 1. They are spread over all clusters, for few links lead from one
    /// cluster to another.
    pub entries: usize,
    /// The seed of the order in which vectors are added.
    pub seed: u64,
}

impl Default for IndexOptions {
    fn default() -> IndexOptions {
        IndexOptions {
            degree: 32,
            width: 64,
            alpha: 1.2,
            entries: 64,
            seed: crate::graph::DEFAULT_SEED,
        }
    }
}

/// The graph so far.
struct Graph<'a> {
    base: &'a Vectors,
    options: &'a IndexOptions,
    rows: Vec<Vec<u32>>,
    entries: Vec<u32>,
}

/// Links and entries of the index of some vectors.
pub(super) fn build(base: &Vectors, options: &IndexOptions) -> Result<(Neighbours, Vec<u32>), VectorError> {
    check(options)?;
    let count = base.count();
    let row_bytes = (SLACK * options.degree + options.degree) * size_of::<u32>() + size_of::<Vec<u32>>();
    require_memory((count * row_bytes) as u64)?;
    let order = permutation(count as u32, options.seed);
    let mut graph = Graph {
        base,
        options,
        rows: vec![Vec::new(); count],
        entries: entries(base, &order, options),
    };
    let mut is_entry = vec![false; count];
    graph.entries.iter().for_each(|id| is_entry[*id as usize] = true);
    // Entries are found without links, so they come first.
    let others = order.into_iter().filter(|id| !is_entry[*id as usize]);
    let order: Vec<u32> = graph.entries.iter().copied().chain(others).collect();
    let mut done = 0;
    while done < count {
        let wanted = match done {
            0 => graph.entries.len(),
            done => done.min((count / BATCH_SHARE).max(BATCH_MIN)),
        };
        let end = count.min(done + wanted);
        graph.add(&order[done..end]);
        done = end;
    }
    graph.finish()
}

fn check(options: &IndexOptions) -> Result<(), VectorError> {
    let fits = |number: usize, least: usize| (least..=DIM_MAX).contains(&number);
    let what = if !fits(options.degree, 2) {
        format!("the degree {} is not from 2 to {DIM_MAX}", options.degree)
    } else if !fits(options.width, 1) {
        format!("the width {} is not from 1 to {DIM_MAX}", options.width)
    } else if !fits(options.entries, 1) {
        format!("{} entries are not from 1 to {DIM_MAX}", options.entries)
    } else if !(1.0..=100.0).contains(&options.alpha) {
        format!("alpha {} is not from 1 to 100", options.alpha)
    } else {
        return Ok(());
    };
    Err(VectorError::Index { what })
}

/// Vectors far from each other: each is drawn by its squared distance to those before it, as k-means++ does (Arthur and
/// Vassilvitskii, SODA 2007), from a sample. Fewer than asked for where the sample has no more different vectors.
fn entries(base: &Vectors, order: &[u32], options: &IndexOptions) -> Vec<u32> {
    let mut random = stream(options.seed, ENTRY_STREAM);
    let sample = &order[..order.len().min(options.entries.saturating_mul(SAMPLE))];
    let mut far = vec![f32::MAX; sample.len()];
    let mut entries = vec![sample[0]];
    while entries.len() < options.entries.min(sample.len()) {
        let last = base.row(entries[entries.len() - 1]);
        let nearer = |(far, id): (&mut f32, &u32)| *far = far.min(distance(last, base.row(*id)));
        far.par_iter_mut().zip(sample).for_each(nearer);
        // One after the other: sums of parts would depend on the number of cores.
        let mut left = uniform(random.next_u64()) * far.iter().map(|far| f64::from(*far)).sum::<f64>();
        let drawn = far.iter().position(|far| {
            left -= f64::from(*far);
            left < 0.0
        });
        match drawn {
            Some(place) => entries.push(sample[place]),
            None => break,
        }
    }
    entries
}

impl Graph<'_> {
    /// Adds vectors that are not in the graph.
    fn add(&mut self, batch: &[u32]) {
        let limit = self.options.degree;
        let chosen: Vec<Vec<u32>> = batch
            .par_iter()
            .map_init(
                || (Walk::new(self.base), Vec::new()),
                |(walk, near), id| {
                    let query = self.base.row(*id);
                    let links = |id: u32| self.rows[id as usize].as_slice();
                    walk.run(query, &self.entries, self.options.width, links);
                    near.clear();
                    near.extend_from_slice(walk.nearest());
                    near.extend_from_slice(walk.path());
                    self.choose(*id, near, limit)
                },
            )
            .collect();
        let mut back: Vec<(u32, u32)> = Vec::new();
        for (id, row) in batch.iter().zip(chosen) {
            back.extend(row.iter().map(|to| (*to, *id)));
            self.rows[*id as usize] = row;
        }
        back.par_sort_unstable();
        let groups: Vec<&[(u32, u32)]> = back.chunk_by(|one, other| one.0 == other.0).collect();
        let grown: Vec<Vec<u32>> = groups.par_iter().map(|group| self.grown(group)).collect();
        for (group, row) in groups.iter().zip(grown) {
            self.rows[group[0].0 as usize] = row;
        }
    }

    /// The row of a vector with links back to those that link to it.
    fn grown(&self, group: &[(u32, u32)]) -> Vec<u32> {
        let id = group[0].0;
        let old = &self.rows[id as usize];
        let new = group.iter().map(|link| link.1).filter(|from| !old.contains(from));
        let row: Vec<u32> = old.iter().copied().chain(new).collect();
        match row.len() > SLACK * self.options.degree {
            true => self.choose_again(id, &row),
            false => row,
        }
    }

    fn choose_again(&self, id: u32, row: &[u32]) -> Vec<u32> {
        let vector = self.base.row(id);
        let near = row.iter().map(|to| entry(distance(vector, self.base.row(*to)), *to));
        self.choose(id, &mut near.collect(), self.options.degree)
    }

    /// The links of a vector to some of those that are near it, the nearest first: one is left out where a chosen one is so
    /// much nearer to it than the vector is that the detour is short.
    fn choose(&self, id: u32, near: &mut Vec<u64>, limit: usize) -> Vec<u32> {
        near.sort_unstable();
        near.dedup();
        let squared = self.options.alpha * self.options.alpha;
        let mut chosen: Vec<u32> = Vec::with_capacity(limit);
        for candidate in near.iter().filter(|candidate| id_of(**candidate) != id) {
            let (to, length) = (id_of(*candidate), f32::from_bits((*candidate >> 32) as u32));
            let vector = self.base.row(to);
            let is_short = |by: &u32| squared * distance(self.base.row(*by), vector) <= length;
            if !chosen.iter().any(is_short) {
                chosen.push(to);
            }
            if chosen.len() == limit {
                break;
            }
        }
        chosen
    }

    fn finish(self) -> Result<(Neighbours, Vec<u32>), VectorError> {
        let degree = self.options.degree;
        let mut links = vec![NONE; self.rows.len() * degree];
        let rows = links.par_chunks_mut(degree).zip(&self.rows).enumerate();
        rows.for_each(|(id, (links, row))| match row.len() > degree {
            true => {
                let row = self.choose_again(id as u32, row);
                links[..row.len()].copy_from_slice(&row);
            }
            false => links[..row.len()].copy_from_slice(row),
        });
        Ok((Neighbours::new(degree, links)?, self.entries))
    }
}
