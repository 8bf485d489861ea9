//! The queue pairs of a NIC.

use std::collections::HashMap;
use std::sync::Arc;

use super::limits::QUEUE_PAIRS_MAX;
use super::queue_pair::QueuePairShared;

/// The number of the queue pair that is created as this one of all; none where it would be one that means something else. An odd multiplier makes
/// successive numbers far apart and visits all 2^24.
pub fn queue_pair_number(created: u32) -> Option<u32> {
    let number = created.wrapping_mul(0x9e_3779).wrapping_add(0x12_0b5d) & 0xff_ffff;
    // 0 and 1 are special queue pairs, 0xffffff is the multicast one.
    (number > 1 && number != 0xff_ffff).then_some(number)
}

/// Queue pairs by number, and what is free.
pub(super) struct Registry {
    pub queue_pairs: HashMap<u32, Arc<QueuePairShared>>,
    pub free_registers: Vec<usize>,
    created: u32,
}

impl Registry {
    pub fn new() -> Self {
        Registry {
            queue_pairs: HashMap::new(),
            free_registers: (0..QUEUE_PAIRS_MAX).rev().collect(),
            created: 0,
        }
    }

    /// A number that no queue pair has.
    pub fn next_number(&mut self) -> u32 {
        loop {
            self.created = self.created.wrapping_add(1);
            if let Some(number) = queue_pair_number(self.created)
                && !self.queue_pairs.contains_key(&number)
            {
                return number;
            }
        }
    }

    /// The engine with the fewest queue pairs, of `engines`.
    pub fn idlest_engine(&self, engines: usize) -> usize {
        let mut load = vec![0u32; engines];
        self.queue_pairs
            .values()
            .for_each(|queue_pair| load[queue_pair.engine] += 1);
        (0..engines).min_by_key(|engine| load[*engine]).unwrap_or(0)
    }
}
