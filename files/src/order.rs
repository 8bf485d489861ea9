//! Which block leaves when a slot is needed: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! A new block goes through a short queue. What is asked for again there moves to the long queue; what is not leaves soon, so a
//! scan passes through a tenth of the memory and displaces nothing. A block that comes back shortly after it left goes to the
//! long queue at once. There a block that was asked for since its last turn stays.

use std::{collections::VecDeque, hash::Hash};

use rustc_hash::FxHashMap as HashMap;

/// Most that a block's count says.
const COUNT_MAX: u8 = 3;
/// One in this many slots is the short queue's.
const SHORT_SHARE: usize = 10;

/// The order in which slots are looked at. `K` names a block.
pub(crate) struct Order<K> {
    short: VecDeque<u32>,
    long: VecDeque<u32>,
    /// By slot: how often it was asked for since its last turn.
    counts: Vec<u8>,
    /// Blocks that left the short queue, oldest first, and which entry of each is its last.
    left: VecDeque<(K, u64)>,
    last: HashMap<K, u64>,
    leavings: u64,
    short_most: usize,
    remembered: usize,
}

impl<K: Copy + Eq + Hash> Order<K> {
    pub fn new(slots: usize) -> Self {
        let short_most = (slots / SHORT_SHARE).max(1);
        Self {
            short: VecDeque::new(),
            long: VecDeque::new(),
            counts: vec![0; slots],
            left: VecDeque::new(),
            last: HashMap::default(),
            leavings: 0,
            short_most,
            remembered: slots - short_most.min(slots),
        }
    }

    /// A slot has got a block.
    pub fn enter(&mut self, slot: u32, key: K) {
        self.counts[slot as usize] = 0;
        match self.last.remove(&key) {
            Some(_) => self.long.push_back(slot),
            None => self.short.push_back(slot),
        }
    }

    /// Its block was asked for again.
    pub fn touch(&mut self, slot: u32) {
        let count = &mut self.counts[slot as usize];
        *count = (*count + 1).min(COUNT_MAX);
    }

    /// Takes a slot out whose block is gone.
    pub fn forget(&mut self, slot: u32) {
        self.short.retain(|other| *other != slot);
        self.long.retain(|other| *other != slot);
    }

    /// Takes the slot out whose block is to leave, of those that `may` leave.
    pub fn victim(&mut self, may: impl Fn(u32) -> bool, key_of: impl Fn(u32) -> K) -> Option<u32> {
        let from_short = self.short.len() >= self.short_most || self.long.is_empty();
        let found = match from_short {
            true => self.of_short(&may, &key_of).or_else(|| self.of_long(&may)),
            false => self.of_long(&may).or_else(|| self.of_short(&may, &key_of)),
        };
        self.trim();
        found
    }

    fn of_short(&mut self, may: &impl Fn(u32) -> bool, key_of: &impl Fn(u32) -> K) -> Option<u32> {
        for _ in 0..self.short.len() {
            let slot = self.short.pop_front()?;
            let count = &mut self.counts[slot as usize];
            if *count > 0 {
                *count = 0;
                self.long.push_back(slot);
            } else if may(slot) {
                self.leavings += 1;
                let key = key_of(slot);
                self.left.push_back((key, self.leavings));
                self.last.insert(key, self.leavings);
                return Some(slot);
            } else {
                self.short.push_back(slot);
            }
        }
        None
    }

    fn of_long(&mut self, may: &impl Fn(u32) -> bool) -> Option<u32> {
        // Each turn lowers a count or looks at a slot that may not leave.
        for _ in 0..self.long.len() * (usize::from(COUNT_MAX) + 1) {
            let slot = self.long.pop_front()?;
            let count = &mut self.counts[slot as usize];
            if *count == 0 && may(slot) {
                return Some(slot);
            }
            *count = count.saturating_sub(1);
            self.long.push_back(slot);
        }
        None
    }

    /// Forgets who left long ago.
    fn trim(&mut self) {
        while self.left.len() > self.remembered {
            let Some((key, leaving)) = self.left.pop_front() else {
                return;
            };
            if self.last.get(&key) == Some(&leaving) {
                self.last.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Order;

    /// A cache of this many slots over `Order`: returns how many of the keys were found.
    fn hits(slots: usize, keys: impl Iterator<Item = u64>) -> usize {
        let mut order = Order::new(slots);
        let mut holds: Vec<Option<u64>> = vec![None; slots];
        let mut found = 0;
        for key in keys {
            if let Some(slot) = holds.iter().position(|held| *held == Some(key)) {
                order.touch(slot as u32);
                found += 1;
                continue;
            }
            let free = holds.iter().position(Option::is_none);
            let slot =
                free.unwrap_or_else(|| order.victim(|_| true, |slot| holds[slot as usize].unwrap()).unwrap() as usize);
            holds[slot] = Some(key);
            order.enter(slot as u32, key);
        }
        found
    }

    #[test]
    fn a_scan_displaces_no_block_that_is_used() {
        let used = || (0..50u64).chain(0..50);
        let warm = hits(100, used().chain(used()));
        let beside = hits(100, used().chain(1000..3000).chain(used()));
        assert_eq!(warm, 150);
        assert_eq!(beside, 150, "the scan of 2000 blocks displaced some of the 50");
    }

    #[test]
    fn a_block_that_comes_back_soon_stays() {
        // 20 blocks in turn, then others: those that left the short queue come back to the long one.
        let keys = (0..30u64).chain(0..20).chain(100..200).chain(0..20);
        assert!(hits(20, keys) >= 10);
    }

    #[test]
    fn blocks_that_may_not_leave_stay() {
        let mut order = Order::new(4);
        (0..4).for_each(|slot| order.enter(slot, u64::from(slot)));
        assert_eq!(order.victim(|slot| slot == 2, u64::from), Some(2));
        assert_eq!(order.victim(|_| false, u64::from), None);
        order.forget(0);
        let rest: Vec<_> = std::iter::from_fn(|| order.victim(|_| true, u64::from)).collect();
        assert_eq!(rest.len(), 2);
        assert!(!rest.contains(&0) && !rest.contains(&2));
    }
}
