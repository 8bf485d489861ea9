//! Memory that the host lends to a region, between guards.

use super::Element;

/// Bytes before and behind what is lent: more than a part of a page that lanes copy, so that what is copied past the end stays within.
const GUARD_BYTES: usize = 16 << 10;
/// Where memory begins that is not off a system page.
const SYSTEM_PAGE: usize = 4096;

/// Elements in the middle of memory whose other bytes belong to somebody else.
pub(super) struct Lent<T> {
    memory: Vec<T>,
    first: usize,
    count: usize,
}

impl<T: Element> Lent<T> {
    /// `elements`, the first of them `apart` elements behind the begin of a system page.
    pub fn new(elements: Vec<T>, apart: u64) -> Self {
        let (count, guard) = (elements.len(), GUARD_BYTES.div_ceil(size_of::<T>()));
        let most = 2 * guard + SYSTEM_PAGE.div_ceil(size_of::<T>()) + apart as usize + count;
        let mut memory: Vec<T> = (0..most).map(Self::guard).collect();
        // Bytes; elements of every size that there is fill a system page.
        let at = memory[guard..].as_ptr().addr();
        let first = guard + (at.next_multiple_of(SYSTEM_PAGE) - at) / size_of::<T>() + apart as usize;
        memory[first..first + count].copy_from_slice(&elements);
        Self { memory, first, count }
    }

    /// What is lent.
    pub fn elements_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.first..self.first + self.count]
    }

    /// What the other bytes are: no two pages' ends look like it.
    fn guard(place: usize) -> T {
        T::make((place as u64 ^ 0x5a5a).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The home holds `expected`, and the guards are as they were.
    ///
    /// # Errors
    /// The first element of which that is not so.
    pub fn holds(&self, expected: impl Fn(u64) -> T) -> Result<(), String> {
        for (place, found) in self.memory.iter().enumerate() {
            let index = place.wrapping_sub(self.first);
            if index < self.count {
                let element = expected(index as u64);
                if *found != element {
                    return Err(format!(
                        "at its home element {index} is {found:?} instead of {element:?}"
                    ));
                }
            } else if *found != Self::guard(place) {
                let off = place as i64 - self.first as i64;
                return Err(format!(
                    "memory beside the region was written: what would be its element {off} of {} is {found:?}",
                    self.count
                ));
            }
        }
        Ok(())
    }
}
