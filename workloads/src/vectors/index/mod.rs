//! A graph over vectors by which near ones are found: a row of links of fixed length for each vector, and the best-first
//! search along them. Vectors and links are two arrays of which a search reads a few rows, so both can be paged.
//!
//! The links are those of a Vamana graph (Subramanya et al., "DiskANN", NeurIPS 2019), built in batches as ParlayANN does
//! (Manohar et al., PPoPP 2024): the same graph on every number of cores.

mod build;
mod walk;

use rayon::prelude::*;

use super::nearest::{check_k, id_of};
use super::{NONE, Neighbours, VectorError, Vectors, same_dim};
use walk::Walk;

pub use build::IndexOptions;
pub use walk::Work;

/// An index of vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    links: Neighbours,
    entries: Vec<u32>,
}

/// What searches found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The neighbours of each query, the nearest first; [`NONE`] where too few were reached.
    pub neighbours: Neighbours,
    /// What all searches together looked at.
    pub work: Work,
}

impl Index {
    /// Builds the index of some vectors, on all cores. Vectors and options name one index.
    ///
    /// # Errors
    /// [`VectorError::Index`] for options outside of their ranges, [`VectorError::Memory`] where the machine has too little.
    pub fn build(base: &Vectors, options: &IndexOptions) -> Result<Index, VectorError> {
        let (links, entries) = build::build(base, options)?;
        Index::from_parts(links, entries)
    }

    /// An index of links that were built before, for example read from a `.ivecs` file, and of its entries.
    ///
    /// # Errors
    /// [`VectorError::Index`] where a link or an entry is no vector's id, or there is no entry.
    pub fn from_parts(links: Neighbours, entries: Vec<u32>) -> Result<Index, VectorError> {
        let count = links.count();
        let what = |what: String| VectorError::Index { what };
        let is_vector = |id: u32| (id as usize) < count;
        let bad = |id: &u32| *id != NONE && !is_vector(*id);
        if let Some(at) = links.values().par_iter().position_first(bad) {
            let (vector, id) = (at / links.width(), links.values()[at]);
            return Err(what(format!("vector {vector} of {count} has a link to vector {id}")));
        }
        if entries.is_empty() {
            return Err(what("there is no entry; give at least one".to_owned()));
        }
        match entries.iter().find(|id| !is_vector(**id)) {
            Some(id) => Err(what(format!("entry {id} is none of the {count} vectors"))),
            None => Ok(Index { links, entries }),
        }
    }

    /// The links of each vector: a row of ids, filled up with [`NONE`] at its end.
    pub fn links(&self) -> &Neighbours {
        &self.links
    }

    /// The vectors from which every search starts.
    pub fn entries(&self) -> &[u32] {
        &self.entries
    }

    /// Finds `k` near vectors of each query with a beam of `width` (called `ef` in HNSW), on all cores; a beam is never
    /// narrower than `k`.
    ///
    /// A search keeps the `width` nearest vectors it met, ordered by distance and then by id, beginning with the entries. It
    /// takes the nearest whose links it did not follow yet, and meets all vectors that these lead to, until there is none.
    /// A vector that was met before need not be looked at again, but may be: one that left the beam does not come back. So a
    /// set of visited vectors that forgets some, as a GPU has it, changes the work and not what is found; and distances that
    /// are computed in the order of [`distance`](super::distance) give the same neighbours.
    ///
    /// # Errors
    /// [`VectorError::Dim`], [`VectorError::Neighbours`]; [`VectorError::Index`] where the index is of other vectors.
    pub fn search(&self, base: &Vectors, queries: &Vectors, k: usize, width: usize) -> Result<Found, VectorError> {
        same_dim(base, queries.width())?;
        check_k(base, k)?;
        if base.count() != self.links.count() {
            let (indexed, given) = (self.links.count(), base.count());
            let what = format!("it is of {indexed} vectors, {given} were given to search");
            return Err(VectorError::Index { what });
        }
        let mut ids = vec![NONE; queries.count() * k];
        let tasks = ids.par_chunks_mut(k).zip(queries.values().par_chunks(queries.width()));
        let work = tasks.map_init(
            || Walk::new(base),
            |walk, (ids, query)| {
                let links = |id| self.links.row(id);
                let work = walk.run(query, &self.entries, width.max(k), links);
                let found = walk.nearest().iter().map(|entry| id_of(*entry));
                ids.iter_mut().zip(found).for_each(|(id, found)| *id = found);
                work
            },
        );
        let work = work.reduce(Work::default, |one, other| Work {
            distances: one.distances + other.distances,
            expansions: one.expansions + other.expansions,
        });
        let neighbours = Neighbours::new(k, ids)?;
        Ok(Found { neighbours, work })
    }
}
