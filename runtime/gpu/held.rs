//! The memory whose pages stay where they are on a GPU, since launches look them up, and how many of its pages may move.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use crate::{
    error::Result,
    launch::{Memory, Standing},
};

/// After this many launches that look up other pages alone a memory's frames are for those.
const UNUSED_AFTER: u64 = 16;
/// So much time as passes pages may take to move, at the rate of a link: they displace others that are read at home otherwise.
const MOVING_SHARE: u32 = 50;
/// Bytes that a link moves in a nanosecond.
const LINK_BYTES_PER_NS: u64 = 50;
/// More time than that does not count.
const LONGEST: Duration = Duration::from_secs(1);
/// One in this many frames is given another page at a time.
const FRAMES_SHARE: u32 = 16;
/// Fewer pages are not worth a kernel.
const FEWEST: u64 = 64;

/// The memory whose pages stay where they are on a GPU.
pub(super) struct Holds {
    memories: Vec<Held>,
    /// Launches so far that looked pages up.
    launches: u64,
    /// When pages had to leave last.
    moved: Instant,
    /// How often they had.
    turns: u64,
}

struct Held {
    memory: Weak<dyn Memory>,
    /// The last of those launches that named it.
    used: u64,
}

impl Holds {
    pub fn new() -> Self {
        Self {
            memories: Vec::new(),
            launches: 0,
            moved: Instant::now(),
            turns: 0,
        }
    }

    /// Has `let_go` see to memory that is there, and forgets that for which it says so; `unused` alone to that which launches do not use any
    /// more. The first error is returned, behind the last memory.
    ///
    /// # Errors
    /// Those of `let_go`.
    pub fn let_those_go(&mut self, unused: bool, mut let_go: impl FnMut(&dyn Memory) -> Result<bool>) -> Result<()> {
        // Memory that launches use in turns is none of it.
        let after = UNUSED_AFTER.max(2 * self.memories.len() as u64);
        let launches = self.launches;
        let mut gone = Ok(());
        self.memories.retain(|held| {
            let Some(memory) = held.memory.upgrade() else {
                return false;
            };
            if unused && held.used + after >= launches {
                return true;
            }
            match let_go(&*memory) {
                Ok(is_gone) => !is_gone,
                Err(error) => {
                    gone = Err(error);
                    true
                }
            }
        });
        gone
    }

    /// How many pages may displace others now, of this many frames with pages of this many bytes.
    pub fn may_move(&mut self, frames: u32, page_bytes: u64, deterministic: bool) -> u64 {
        let most = u64::from((frames / FRAMES_SHARE).max(1));
        // The host's time says nothing to a GPU that follows a seed.
        let allowed = match deterministic {
            true => most,
            false => {
                let passed = self.moved.elapsed().min(LONGEST) / MOVING_SHARE;
                passed.as_nanos() as u64 * LINK_BYTES_PER_NS / page_bytes
            }
        };
        if allowed < most.min(FEWEST) {
            return 0;
        }
        self.moved = Instant::now();
        self.turns += 1;
        allowed.min(most)
    }

    /// A page to begin with, of this many: another one each time, all over them.
    pub fn begin_at(&self, pages: u64) -> u64 {
        let drawn = u128::from(self.turns.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        ((drawn * u128::from(pages)) >> 64) as u64
    }

    /// The memory of a lower standing, the lowest first.
    pub fn below(&self, standing: Standing) -> Vec<Arc<dyn Memory>> {
        let there = self.memories.iter().filter_map(|held| held.memory.upgrade());
        let mut below: Vec<_> = there.filter(|memory| memory.standing() < standing).collect();
        below.sort_by_cached_key(|memory| memory.standing());
        below
    }

    pub fn is_empty(&self) -> bool {
        self.memories.is_empty()
    }

    /// Notes a launch that looks up pages of this memory.
    pub fn note(&mut self, memories: &[(Arc<dyn Memory>, bool)]) {
        self.launches += 1;
        let used = self.launches;
        self.memories.retain(|held| held.memory.strong_count() > 0);
        for (memory, _) in memories {
            let memory = Arc::downgrade(memory);
            match self.memories.iter_mut().find(|known| known.memory.ptr_eq(&memory)) {
                Some(known) => known.used = used,
                None => self.memories.push(Held { memory, used }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_time_is_for_moving() {
        let mut holds = Holds::new();
        let mut after = |passed, frames, page| {
            holds.moved = Instant::now().checked_sub(passed).unwrap();
            holds.may_move(frames, page, false)
        };
        // 17 ms at a fiftieth of 50 bytes a nanosecond: 17 MB.
        let pages = after(Duration::from_millis(17), 1 << 20, 4096);
        assert!((4150..6000).contains(&pages), "{pages}");
        assert_eq!(after(Duration::from_millis(17), 1 << 10, 4096), 64);
        assert_eq!(after(Duration::ZERO, 1 << 20, 4096), 0);
        assert_eq!(after(Duration::from_secs(3), 3, 4096), 1);
        assert_eq!(holds.may_move(160, 4096, true), 10);
    }

    #[test]
    fn searches_begin_all_over_the_pages() {
        let mut holds = Holds::new();
        let mut begun: Vec<u64> = (0..1000)
            .map(|_| {
                holds.turns += 1;
                holds.begin_at(10)
            })
            .collect();
        begun.sort_unstable();
        begun.dedup();
        assert_eq!(begun, (0..10).collect::<Vec<_>>());
    }
}
