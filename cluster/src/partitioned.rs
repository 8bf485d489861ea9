//! Arrays of which each rank holds and writes its part.

use std::ops::Range;

use bytemuck::Pod;
use gpuvm::{Region, Vm};

use crate::{ClusterError, Ranks};

/// An array of which each rank holds a part, in a region of its own: on its host, or at its memory nodes. A rank's kernels write its own
/// part and reach no other; [`gather`](Self::gather) gives all of it to every rank, in the host's memory.
pub struct Partitioned<T> {
    region: Region<T>,
    parts: Vec<Range<usize>>,
    rank: usize,
    name: String,
}

impl<T: Pod> Partitioned<T> {
    /// Zeroes. `parts`: one for each rank, in their order. Elements are of four bytes, or of a multiple.
    ///
    /// # Errors
    /// [`ClusterError::Parts`] for another number of parts, or elements of another size; the region's.
    pub fn zeroed(vm: &Vm, ranks: &dyn Ranks, name: &str, parts: Vec<Range<usize>>) -> Result<Self, ClusterError> {
        let place = ranks.place();
        let refuse = |reason| {
            Err(ClusterError::Parts {
                what: name.to_owned(),
                reason,
            })
        };
        if size_of::<T>() == 0 || !size_of::<T>().is_multiple_of(4) {
            return refuse(format!("elements of {} bytes are not words", size_of::<T>()));
        }
        let Some(own) = parts.get(place.rank).filter(|_| parts.len() == place.size) else {
            return refuse(format!("{} parts for {} ranks", parts.len(), place.size));
        };
        let region = vm.region().name(name).zeroed(own.len() as u64);
        Ok(Self {
            region: region.map_err(ClusterError::vm("making a rank's part"))?,
            parts,
            rank: place.rank,
            name: name.to_owned(),
        })
    }

    /// This rank's part, for its kernels: element 0 is the first of [`range`](Self::range).
    pub fn region(&self) -> &Region<T> {
        &self.region
    }

    /// Which elements this rank has.
    pub fn range(&self) -> Range<usize> {
        self.parts[self.rank].clone()
    }

    /// This rank's elements. It waits for the launches that write them.
    ///
    /// # Errors
    /// The region's.
    pub fn own(&self) -> Result<Vec<T>, ClusterError> {
        self.region.to_vec().map_err(ClusterError::vm("reading a rank's part"))
    }

    /// All ranks' elements, on every rank: all ranks call it.
    ///
    /// # Errors
    /// The region's; [`ClusterError::Parts`] and [`ClusterError::TooMany`].
    pub fn gather(&self, ranks: &dyn Ranks) -> Result<Vec<T>, ClusterError> {
        let own = self.own()?;
        let mut all = vec![T::zeroed(); self.parts.last().map_or(0, |part| part.end)];
        let words = size_of::<T>() / 4;
        let in_words = |part: &Range<usize>| part.start * words..part.end * words;
        let parts: Vec<_> = self.parts.iter().map(in_words).collect();
        let odd = |error| ClusterError::Parts {
            what: self.name.clone(),
            reason: format!("elements of {} bytes are not words: {error}", size_of::<T>()),
        };
        let own = bytemuck::try_cast_slice(&own).map_err(odd)?;
        ranks.gather(
            &self.name,
            own,
            &parts,
            bytemuck::try_cast_slice_mut(&mut all).map_err(odd)?,
        )?;
        Ok(all)
    }
}
