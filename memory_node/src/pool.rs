//! The node's memory, handed out in slices of whole pages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::memory::Mapping;

/// Slices begin at multiples of this, and are multiples of it long.
pub const PAGE_BYTES: u64 = 4096;

/// Which parts of a range are free: pieces by their first byte, never two that touch.
#[derive(Debug)]
struct FreeList {
    pieces: BTreeMap<u64, u64>,
    /// As (bytes, first byte): the shortest piece that is long enough is found without a look at all.
    by_length: BTreeSet<(u64, u64)>,
    free: u64,
}

impl FreeList {
    fn new(bytes: u64) -> FreeList {
        let bytes = bytes / PAGE_BYTES * PAGE_BYTES;
        let mut list = FreeList {
            pieces: BTreeMap::new(),
            by_length: BTreeSet::new(),
            free: bytes,
        };
        if bytes > 0 {
            list.insert(0, bytes);
        }
        list
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.pieces.insert(start, length);
        self.by_length.insert((length, start));
    }

    /// Removes the piece that begins there: its bytes.
    fn remove(&mut self, start: u64) -> Option<u64> {
        let length = self.pieces.remove(&start)?;
        self.by_length.remove(&(length, start));
        Some(length)
    }

    /// The first byte of a piece of `bytes`, a multiple of the page: out of the shortest piece that is long enough.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(length, start) = self.by_length.range((bytes, 0)..).next()?;
        self.remove(start);
        if length > bytes {
            self.insert(start + bytes, length - bytes);
        }
        self.free -= bytes;
        Some(start)
    }

    /// Takes back what `take` gave.
    fn give(&mut self, start: u64, bytes: u64) {
        let (mut first, mut length) = (start, bytes);
        if let Some((&before, &before_length)) = self.pieces.range(..start).next_back()
            && before + before_length == start
        {
            self.remove(before);
            first = before;
            length += before_length;
        }
        if let Some(after) = self.remove(start + bytes) {
            length += after;
        }
        self.insert(first, length);
        self.free += bytes;
    }

    fn longest(&self) -> u64 {
        self.by_length.last().map_or(0, |&(length, _)| length)
    }
}

/// A node's memory.
#[derive(Debug)]
pub struct Pool {
    mapping: Mapping,
    list: Mutex<FreeList>,
}

impl Pool {
    pub fn new(mapping: Mapping) -> Arc<Pool> {
        let list = Mutex::new(FreeList::new(mapping.bytes() as u64));
        Arc::new(Pool { mapping, list })
    }

    fn list(&self) -> MutexGuard<'_, FreeList> {
        // No method leaves it half changed: they do not panic between their changes.
        self.list.lock()
    }

    pub fn bytes(&self) -> u64 {
        self.mapping.bytes() as u64
    }

    pub fn free(&self) -> u64 {
        self.list().free
    }

    /// The longest free slice.
    pub fn longest(&self) -> u64 {
        self.list().longest()
    }

    /// A slice of at least this many bytes, in whole pages.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Slice> {
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).filter(|&bytes| bytes > 0)?;
        let start = self.list().take(bytes)?;
        Some(Slice {
            pool: Arc::clone(self),
            start,
            bytes,
        })
    }
}

/// A part of the pool; it goes back when this is dropped.
#[derive(Debug)]
pub struct Slice {
    pool: Arc<Pool>,
    start: u64,
    bytes: u64,
}

impl Slice {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn pointer(&self) -> *mut u8 {
        let place = self.pool.mapping.place(self.start as usize, self.bytes as usize);
        place.expect("the free list covers whole pages of the mapping only")
    }

    /// Writes zeroes, unless it is told to stop. No device has a key to the slice, and no other thread uses it. True
    /// where all of it is zero.
    pub fn zero_unless(&mut self, stop: impl Fn() -> bool) -> bool {
        const STEP: u64 = 64 << 20;
        let start = self.pointer();
        let mut at = 0;
        while at < self.bytes {
            if stop() {
                return false;
            }
            let step = STEP.min(self.bytes - at);
            // SAFETY: inside the slice, which belongs to this object alone.
            unsafe { std::ptr::write_bytes(start.add(at as usize), 0, step as usize) };
            at += step;
        }
        true
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        self.pool.list().give(self.start, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against an array that says who owns each page.
        #[test]
        fn slices_never_overlap_and_everything_comes_back(steps in proptest::collection::vec((any::<bool>(), 1u64..40), 1..200)) {
            const PAGES: usize = 64;
            let mut list = FreeList::new(PAGES as u64 * PAGE_BYTES + 17);
            let mut owner = [0usize; PAGES];
            let mut held: Vec<(usize, u64, u64)> = Vec::new();
            for (name, (take, size)) in (1..).zip(steps) {
                if take || held.is_empty() {
                    let bytes = size * PAGE_BYTES;
                    let longest = owner.split(|&owner| owner != 0).map(<[usize]>::len).max().unwrap_or(0) as u64;
                    prop_assert_eq!(list.longest(), longest * PAGE_BYTES);
                    match list.take(bytes) {
                        Some(start) => {
                            prop_assert_eq!(start % PAGE_BYTES, 0);
                            let first = (start / PAGE_BYTES) as usize;
                            for page in &mut owner[first..first + size as usize] {
                                prop_assert_eq!(*page, 0);
                                *page = name;
                            }
                            held.push((name, start, bytes));
                        }
                        None => prop_assert!(longest < size),
                    }
                } else {
                    let (name, start, bytes) = held.swap_remove(size as usize % held.len());
                    owner.iter_mut().filter(|owner| **owner == name).for_each(|owner| *owner = 0);
                    list.give(start, bytes);
                }
                prop_assert_eq!(list.free, owner.iter().filter(|&&owner| owner == 0).count() as u64 * PAGE_BYTES);
            }
            for (_, start, bytes) in held {
                list.give(start, bytes);
            }
            // One piece again: free neighbours were joined.
            prop_assert_eq!(list.pieces, BTreeMap::from([(0, PAGES as u64 * PAGE_BYTES)]));
        }
    }

    #[test]
    fn a_slice_is_pages_and_goes_back() {
        let pool = Pool::new(Mapping::plain(16 * 4096).unwrap());
        let mut slice = pool.take(4097).unwrap();
        assert_eq!((slice.bytes(), pool.free()), (8192, 14 * 4096));
        // SAFETY: inside the slice, which is this test's.
        unsafe { slice.pointer().add(8191).write(9) };
        assert!(!slice.zero_unless(|| true));
        // SAFETY: as above.
        assert_eq!(unsafe { slice.pointer().add(8191).read() }, 9);
        assert!(slice.zero_unless(|| false));
        // SAFETY: as above.
        assert_eq!(unsafe { slice.pointer().add(8191).read() }, 0);
        assert!(pool.take(0).is_none() && pool.take(15 * 4096).is_none() && pool.take(u64::MAX).is_none());
        drop(slice);
        assert_eq!(pool.longest(), pool.bytes());
    }
}
