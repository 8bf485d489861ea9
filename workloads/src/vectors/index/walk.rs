//! One search along the links.

use super::super::nearest::{Best, distance, entry, id_of};
use super::super::{NONE, Vectors};

/// What searches looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Vectors whose distance was computed: rows of the array of vectors that were read.
    pub distances: u64,
    /// Vectors whose links were followed: rows of the array of links that were read.
    pub expansions: u64,
}

/// A search, and what it keeps between searches: its memory.
pub(super) struct Walk<'a> {
    base: &'a Vectors,
    /// A bit for each vector.
    visited: Vec<u64>,
    /// The vectors whose bits are set.
    met: Vec<u32>,
    best: Best,
    /// Whether the links of each of the best were followed.
    followed: Vec<bool>,
    /// All whose links were followed.
    path: Vec<u64>,
}

impl<'a> Walk<'a> {
    /// A search over these vectors.
    pub(super) fn new(base: &'a Vectors) -> Walk<'a> {
        Walk {
            base,
            visited: vec![0; base.count().div_ceil(64)],
            met: Vec::new(),
            best: Best::default(),
            followed: Vec::new(),
            path: Vec::new(),
        }
    }

    /// Searches with a beam of `width`.
    pub(super) fn run<'b>(
        &mut self,
        query: &[f32],
        entries: &[u32],
        width: usize,
        links: impl Fn(u32) -> &'b [u32],
    ) -> Work {
        for id in self.met.drain(..) {
            self.visited[id as usize / 64] = 0;
        }
        self.best.reset(width);
        self.followed.clear();
        self.path.clear();
        for id in entries {
            self.meet(query, *id);
        }
        // The nearest whose links were not followed.
        let mut next = 0;
        while next < self.followed.len() {
            if std::mem::replace(&mut self.followed[next], true) {
                next += 1;
                continue;
            }
            let nearest = self.best.entries()[next];
            self.path.push(nearest);
            for id in links(id_of(nearest)).iter().take_while(|id| **id != NONE) {
                if let Some(place) = self.meet(query, *id) {
                    next = next.min(place);
                }
            }
        }
        Work {
            distances: self.met.len() as u64,
            expansions: self.path.len() as u64,
        }
    }

    /// Meets a vector: its place in the beam, where it is new there.
    fn meet(&mut self, query: &[f32], id: u32) -> Option<usize> {
        let (word, bit) = (&mut self.visited[id as usize / 64], 1 << (id % 64));
        if *word & bit != 0 {
            return None;
        }
        *word |= bit;
        self.met.push(id);
        let place = self.best.offer(entry(distance(query, self.base.row(id)), id))?;
        self.followed.insert(place, false);
        self.followed.truncate(self.best.entries().len());
        Some(place)
    }

    /// The nearest that were found, ascending.
    pub(super) fn nearest(&self) -> &[u64] {
        self.best.entries()
    }

    /// Those whose links were followed, in that order.
    pub(super) fn path(&self) -> &[u64] {
        &self.path
    }
}
