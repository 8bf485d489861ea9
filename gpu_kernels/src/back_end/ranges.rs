//! First-fit allocation in one range of addresses.

use std::collections::BTreeMap;

/// The holes of a range of addresses.
#[derive(Debug, Default)]
pub struct Ranges {
    /// First address -> bytes; holes never touch each other.
    holes: BTreeMap<u64, u64>,
    free: u64,
}

impl Ranges {
    /// `bytes` bytes from `base`, all free.
    pub fn new(base: u64, bytes: u64) -> Self {
        Self {
            holes: BTreeMap::from([(base, bytes)]),
            free: bytes,
        }
    }

    /// Bytes free, perhaps not in one piece.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The first hole that has `bytes` bytes at a multiple of `align`, a power of two; none when there is none.
    pub fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        if bytes == 0 || bytes > self.free {
            return None;
        }
        let (hole, room, addr) = self.holes.iter().find_map(|(&hole, &room)| {
            let addr = hole.checked_next_multiple_of(align)?;
            (addr.checked_add(bytes)? <= hole + room).then_some((hole, room, addr))
        })?;
        self.holes.remove(&hole);
        if addr > hole {
            self.holes.insert(hole, addr - hole);
        }
        if addr + bytes < hole + room {
            self.holes.insert(addr + bytes, hole + room - addr - bytes);
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
            self.holes.remove(&before);
            (start, room) = (before, size + bytes);
        }
        if let Some(after) = self.holes.remove(&(addr + bytes)) {
            room += after;
        }
        self.holes.insert(start, room);
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
