//! Which addresses of the window are taken, and by what.
//!
//! The window is cut into *slabs*, each of which becomes a region: one for each large allocation, and one for many small ones.

use std::collections::BTreeMap;
use std::ops::Range;

/// Slabs begin at multiples of this: the host's accesses are watched in such chunks.
pub const CHUNK_BYTES: u64 = 2 << 20;
/// Allocations up to this size share slabs.
const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a slab that small allocations share.
const SHARED_BYTES: u64 = 16 << 20;
/// Small allocations begin at multiples of this, as CUDA's do at 256.
const SMALL_UNIT: u64 = 512;

/// Free ranges, by where they begin, with their lengths.
#[derive(Debug, Default)]
struct Holes(BTreeMap<u64, u64>);

impl Holes {
    fn of(range: Range<u64>) -> Self {
        Self(BTreeMap::from([(range.start, range.end - range.start)]))
    }

    /// The first that is large enough gives its beginning.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (&start, &length) = self.0.iter().find(|(_, length)| **length >= bytes)?;
        self.0.remove(&start);
        if length > bytes {
            self.0.insert(start + bytes, length - bytes);
        }
        Some(start)
    }

    /// Takes a range back, and joins it with its neighbours.
    fn give(&mut self, mut start: u64, mut bytes: u64) {
        if let Some(next) = self.0.remove(&(start + bytes)) {
            bytes += next;
        }
        if let Some((&before, &length)) = self.0.range(..start).next_back()
            && before + length == start
        {
            (start, bytes) = (before, bytes + length);
        }
        self.0.insert(start, bytes);
    }
}

/// What is in a slab.
#[derive(Debug)]
enum Content {
    /// One allocation of so many bytes.
    Whole,
    /// Small ones, by where they begin, with their lengths.
    Shared { free: Holes, taken: BTreeMap<u64, u64> },
}

#[derive(Debug)]
struct Slab {
    bytes: u64,
    content: Content,
}

/// Allocations of a window.
#[derive(Debug)]
pub struct Book {
    page_bytes: u64,
    free: Holes,
    slabs: BTreeMap<u64, Slab>,
}

/// Where an allocation is.
#[derive(Debug, PartialEq, Eq)]
pub struct Allocated {
    pub addr: u64,
    /// The slab that was made for it.
    pub new_slab: Option<Range<u64>>,
}

/// What an allocation leaves that is freed.
#[derive(Debug, PartialEq, Eq)]
pub enum Freed {
    /// There is no such allocation.
    Unknown,
    /// Other allocations have its slab, or will.
    Piece,
    /// Its slab: [`Book::forget`] frees the addresses.
    Slab(Range<u64>),
}

impl Book {
    /// Of a window with nothing in it. `window` begins and ends at multiples of [`CHUNK_BYTES`].
    pub fn new(window: Range<u64>, page_bytes: u64) -> Self {
        Self {
            page_bytes,
            free: Holes::of(window),
            slabs: BTreeMap::new(),
        }
    }

    /// None when the window is full.
    pub fn allocate(&mut self, bytes: u64) -> Option<Allocated> {
        if bytes > SMALL_BYTES_MAX {
            let slab = self.slab(bytes.checked_next_multiple_of(self.page_bytes)?, Content::Whole)?;
            let addr = slab.start;
            let new_slab = Some(slab);
            return Some(Allocated { addr, new_slab });
        }
        let bytes = bytes.max(1).next_multiple_of(SMALL_UNIT);
        let there = self.slabs.values_mut().find_map(|slab| slab.piece(bytes));
        if let Some(addr) = there {
            return Some(Allocated { addr, new_slab: None });
        }
        let slab = self.slab(SHARED_BYTES, Content::Whole)?;
        let content = Content::Shared {
            free: Holes::of(slab.clone()),
            taken: BTreeMap::new(),
        };
        let shared = self.slabs.get_mut(&slab.start)?;
        shared.content = content;
        let addr = shared.piece(bytes)?;
        let new_slab = Some(slab);
        Some(Allocated { addr, new_slab })
    }

    fn slab(&mut self, bytes: u64, content: Content) -> Option<Range<u64>> {
        let start = self.free.take(bytes.checked_next_multiple_of(CHUNK_BYTES)?)?;
        self.slabs.insert(start, Slab { bytes, content });
        Some(start..start + bytes)
    }

    /// Frees the allocation that begins at an address.
    pub fn free(&mut self, addr: u64) -> Freed {
        let Some((&start, slab)) = self.slabs.range_mut(..=addr).next_back() else {
            return Freed::Unknown;
        };
        match &mut slab.content {
            Content::Whole if addr == start => Freed::Slab(start..start + slab.bytes),
            Content::Whole => Freed::Unknown,
            Content::Shared { free, taken } => match taken.remove(&addr) {
                Some(bytes) => {
                    free.give(addr, bytes);
                    Freed::Piece
                }
                None => Freed::Unknown,
            },
        }
    }

    /// A slab that nobody uses any more: others may have its addresses.
    pub fn forget(&mut self, start: u64) {
        if let Some(slab) = self.slabs.remove(&start) {
            self.free.give(start, slab.bytes.next_multiple_of(CHUNK_BYTES));
        }
    }
}

impl Slab {
    /// A place for a small allocation, in a slab that has such.
    fn piece(&mut self, bytes: u64) -> Option<u64> {
        match &mut self.content {
            Content::Whole => None,
            Content::Shared { free, taken } => {
                let addr = free.take(bytes)?;
                taken.insert(addr, bytes);
                Some(addr)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 4 << 30;

    fn book() -> Book {
        Book::new(BASE..BASE + (64 << 20), 64 << 10)
    }

    #[test]
    fn large_allocations_have_slabs_of_whole_pages() {
        let mut book = book();
        let first = book.allocate((3 << 20) + 1).unwrap();
        let slab = BASE..BASE + (3 << 20) + (64 << 10);
        assert_eq!((first.addr, first.new_slab), (BASE, Some(slab.clone())));
        let second = book.allocate(2 << 20).unwrap();
        assert_eq!(second.addr, BASE + (4 << 20), "at the next chunk");
        assert_eq!(book.free(BASE + 512), Freed::Unknown, "within an allocation");
        assert_eq!(book.free(BASE), Freed::Slab(slab));
        book.forget(BASE);
        assert_eq!(book.allocate(4 << 20).unwrap().addr, BASE, "its addresses serve again");
    }

    #[test]
    fn small_allocations_share_a_slab() {
        let mut book = book();
        let first = book.allocate(1).unwrap();
        assert_eq!((first.addr, first.new_slab), (BASE, Some(BASE..BASE + (16 << 20))));
        assert_eq!(
            book.allocate(513).unwrap(),
            Allocated {
                addr: BASE + 512,
                new_slab: None
            }
        );
        assert_eq!(book.allocate(0).unwrap().addr, BASE + 1536);
        assert_eq!(book.free(BASE + 512), Freed::Piece);
        assert_eq!(book.free(BASE + 512), Freed::Unknown, "twice");
        assert_eq!(book.allocate(1024).unwrap().addr, BASE + 512);
        let many: Vec<u64> = (0..16).map(|_| book.allocate(1 << 20).unwrap().addr).collect();
        assert_eq!(many[15], BASE + (16 << 20), "the first slab is full");
    }

    #[test]
    fn a_full_window_has_no_more() {
        let mut book = book();
        assert_eq!(book.allocate(u64::MAX), None);
        assert_eq!(book.allocate((64 << 20) + 1), None);
        assert!(book.allocate(64 << 20).is_some());
        assert_eq!(book.allocate(1), None);
    }

    #[test]
    fn holes_join_with_their_neighbours() {
        let mut holes = Holes::of(0..100);
        let taken: Vec<u64> = (0..4).map(|_| holes.take(25).unwrap()).collect();
        assert_eq!((taken, holes.take(1)), (vec![0, 25, 50, 75], None));
        for start in [0, 50, 25, 75] {
            holes.give(start, 25);
        }
        assert_eq!(holes.0, BTreeMap::from([(0, 100)]));
    }
}
