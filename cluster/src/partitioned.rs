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
            return refuse(format!("elements of {} bytes are no words", size_of::<T>()));
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
        gather_of(ranks, &self.name, &own, &self.parts, &mut all)?;
        Ok(all)
    }
}

/// [`Ranks::gather`] of elements of several words.
///
/// # Errors
/// [`ClusterError::Parts`] and [`ClusterError::TooMany`].
pub(crate) fn gather_of<T: Pod>(
    ranks: &dyn Ranks,
    what: &str,
    own: &[T],
    parts: &[Range<usize>],
    all: &mut [T],
) -> Result<(), ClusterError> {
    let words = size_of::<T>() / 4;
    let in_words = |part: &Range<usize>| part.start * words..part.end * words;
    let parts: Vec<_> = parts.iter().map(in_words).collect();
    let odd = |error| ClusterError::Parts {
        what: what.to_owned(),
        reason: format!("elements of {} bytes are no words: {error}", size_of::<T>()),
    };
    let own = bytemuck::try_cast_slice(own).map_err(odd)?;
    ranks.gather(what, own, &parts, bytemuck::try_cast_slice_mut(all).map_err(odd)?)
}

/// So many elements in so many parts, about alike.
pub(crate) fn even_parts(elements: usize, count: usize) -> Vec<Range<usize>> {
    let cut = |part: usize| (elements as u128 * part as u128 / count.max(1) as u128) as usize;
    (0..count).map(|part| cut(part)..cut(part + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_parts_have_each_element_once() {
        for (elements, count) in [(0, 3), (1, 4), (10, 1), (10, 3), (usize::MAX, 7)] {
            let parts = even_parts(elements, count);
            assert_eq!((parts[0].start, parts[count - 1].end), (0, elements));
            assert!(parts.windows(2).all(|two| two[0].end == two[1].start));
            let shortest = parts.iter().map(Range::len).min().unwrap();
            assert!(parts.iter().all(|part| part.len() <= shortest + 1));
        }
    }
}
