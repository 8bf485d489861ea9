//! Best-fit allocation in one range of addresses.

use std::collections::{BTreeMap, BTreeSet};

/// The holes of a range of addresses.
#[derive(Debug, Default)]
pub struct Ranges {
    /// First address -> bytes; holes never touch each other.
    holes: BTreeMap<u64, u64>,
    /// As (bytes, first address), so that no search looks at holes that are too short.
    by_room: BTreeSet<(u64, u64)>,
    free: u64,
}

impl Ranges {
    /// `bytes` bytes from `base`, all free.
    pub fn new(base: u64, bytes: u64) -> Self {
        Self {
            holes: BTreeMap::from([(base, bytes)]),
            by_room: BTreeSet::from([(bytes, base)]),
            free: bytes,
        }
    }

    /// Bytes free, perhaps not in one piece.
    pub fn free(&self) -> u64 {
        self.free
    }

    fn insert(&mut self, hole: u64, room: u64) {
        self.holes.insert(hole, room);
        self.by_room.insert((room, hole));
    }

    /// Removes the hole that begins there: its bytes.
    fn remove(&mut self, hole: u64) -> Option<u64> {
        let room = self.holes.remove(&hole)?;
        self.by_room.remove(&(room, hole));
        Some(room)
    }

    /// The shortest hole that has `bytes` bytes at a multiple of `align`, a power of two; none when there is none.
    pub fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        if bytes == 0 || bytes > self.free {
            return None;
        }
        let (hole, room, addr) = self.by_room.range((bytes, 0)..).find_map(|&(room, hole)| {
            let addr = hole.checked_next_multiple_of(align)?;
            (addr.checked_add(bytes)? <= hole + room).then_some((hole, room, addr))
        })?;
        self.remove(hole);
        if addr > hole {
            self.insert(hole, addr - hole);
        }
        if addr + bytes < hole + room {
            self.insert(addr + bytes, hole + room - addr - bytes);
        }
        self.free -= bytes;
        Some(addr)
    }

    /// Gives back what `take` gave.
    pub fn give(&mut self, addr: u64, bytes: u64) {
        self.free += bytes;
        let (mut start, mut room) = (addr, bytes);
        if let Some((&before, &size)) = self.holes.range(..addr).next_back()
            && before + size == addr
        {
            self.remove(before);
            (start, room) = (before, size + bytes);
        }
        if let Some(after) = self.remove(addr + bytes) {
            room += after;
        }
        self.insert(start, room);
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn what_is_given_back_in_any_order_is_one_hole_again() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut ranges = Ranges::new(4096, 3072);
            let taken: Vec<u64> = (0..3).filter_map(|_| ranges.take(1024, 256)).collect();
            assert_eq!(taken, [4096, 5120, 6144]);
            assert_eq!((ranges.take(1, 1), ranges.free()), (None, 0));
            for index in order {
                ranges.give(taken[index], 1024);
            }
            assert_eq!(ranges.take(3072, 256), Some(4096));
        }
    }

    #[test]
    fn alignment_leaves_a_hole_that_is_used() {
        let mut ranges = Ranges::new(256, 8192);
        assert_eq!(ranges.take(4096, 4096), Some(4096));
        assert_eq!(ranges.take(3840, 256), Some(256));
        assert_eq!(ranges.take(u64::MAX, 256), None);
        assert_eq!(ranges.take(256, 1 << 63), None);
    }
}
