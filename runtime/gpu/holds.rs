//! Pages of launches that look them up: what keeps them where they are, and what moves them between launches. The protocol is in
//! docs/PROTOCOL.md, "Pages that are looked up".

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use super::{
    PagedGpu, RegionView,
    launcher::{arg, over_all},
};
use crate::{
    device::DeviceArray,
    error::{Doing, Result},
    launch::Memory,
};

/// So many times as long as it took, a region's marks are not looked at again: its launches wait meanwhile.
const LOOKING_SHARE: u32 = 20;
/// After so many launches that look up other pages alone a memory's frames are for those.
const UNUSED_AFTER: u64 = 16;
/// So much time as passes pages may take to move, at the rate of a link: they displace others that are read at home otherwise.
const MOVING_SHARE: u32 = 50;
/// Bytes that a link moves in a nanosecond.
const LINK_BYTES_PER_NS: u64 = 50;
/// More time than that does not count.
const LONGEST: Duration = Duration::from_secs(1);
/// One of so many frames is given another page at a time.
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

    /// Has `let_go` see to memory that is there, and forgets that for which it says so. The first error is returned, behind the last memory.
    fn let_those_go(&mut self, mut let_go: impl FnMut(&dyn Memory, u64) -> Result<bool>) -> Result<()> {
        let mut gone = Ok(());
        self.memories.retain(|held| {
            let Some(memory) = held.memory.upgrade() else {
                return false;
            };
            match let_go(&*memory, held.used) {
                Ok(is_gone) => !is_gone,
                Err(error) => {
                    gone = Err(error);
                    true
                }
            }
        });
        gone
    }

    /// How many pages may displace others now, of so many frames with pages of so many bytes.
    fn may_move(&mut self, frames: u32, page_bytes: u64, deterministic: bool) -> u64 {
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

    /// A page to begin with, of so many: another one each time, all over them.
    fn begin_at(&self, pages: u64) -> u64 {
        let drawn = u128::from(self.turns.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        ((drawn * u128::from(pages)) >> 64) as u64
    }
}

impl PagedGpu {
    /// Keeps a region's pages where they are, for launches that look them up. None that fetches its pages runs.
    pub fn hold(&self, region: &RegionView) -> Result<()> {
        if region.is_held() {
            return Ok(());
        }
        self.change_hold(region, true, false)?;
        region.set_held(true);
        Ok(())
    }

    /// Lets them leave again. No launch that looks them up runs.
    pub fn let_go(&self, region: &RegionView) -> Result<()> {
        if !region.is_held() {
            return Ok(());
        }
        self.change_hold(region, false, false)?;
        region.set_held(false);
        Ok(())
    }

    /// Has what ended launches wrote that look pages up count as dirty, beside others that may run.
    pub fn fold_marks(&self, region: &RegionView) -> Result<()> {
        match region.is_held() {
            true => self.change_hold(region, false, true),
            false => Ok(()),
        }
    }

    fn change_hold(&self, region: &RegionView, hold: bool, beside: bool) -> Result<()> {
        if !hold {
            self.take_marks(region, beside)?;
        }
        let (support, config) = (&self.support, self.service_config(region.pages().count()));
        let args = |vm| [over_all(vm, region), vec![arg(u32::from(hold)), arg(u32::from(beside))]].concat();
        let label = format!("hold of region `{}`", region.name());
        self.run(&support.stream, &support.hold, config, args, Some(region), &label)
    }

    /// Brings pages of a held region that were used at home into frames that are free, or that others leave. No launch with the region runs.
    pub fn bring(&self, region: &RegionView) -> Result<()> {
        let begun = Instant::now();
        if region.is_complete() || !(region.is_worth_a_look(begun) || self.capabilities().deterministic) {
            return Ok(());
        }
        self.take_marks(region, false)?;
        if region.is_crowded() && !self.make_way(region)? {
            return Ok(());
        }
        region.set_has_entries(false);
        let (support, pages) = (&self.support, region.pages().count());
        let doing = || format!("bringing pages of region `{}`", region.name());
        let stay = DeviceArray::<u64>::zeroed(&*self.device, 2).doing(doing)?;
        let start = self.held.lock().begin_at(pages);
        let args = |vm: u64| vec![arg(vm), arg(region.id()), arg(start), arg(pages), arg(stay.addr())];
        let config = self.service_config(pages * 32);
        self.run(&support.stream, &support.bring, config, args, Some(region), &doing())?;
        let stay = stay.read(&*self.device, 0, 2).doing(doing)?;
        region.set_complete(stay[0] == 0);
        region.set_crowded(stay[1] != 0);
        region.set_next_look(Instant::now() + begun.elapsed() * LOOKING_SHARE);
        Ok(())
    }

    /// Has marks that rewritten kernels set in the window count as those of the page table; `beside`: others run that may set some, which stay.
    fn take_marks(&self, region: &RegionView, beside: bool) -> Result<()> {
        let Some(places) = region.places_there() else {
            return Ok(());
        };
        let (support, config) = (&self.support, self.service_config(region.pages().count()));
        let args = |vm| {
            let rest = vec![arg(places.marks), arg(u32::from(beside))];
            [over_all(vm, region), rest].concat()
        };
        let label = format!("taking marks of region `{}`", region.name());
        self.run(&support.stream, &support.take_marks, config, args, Some(region), &label)
    }

    /// Has entries in the window say where a held region's pages are, for a rewritten kernel that is to run.
    pub fn write_entries(&self, region: &RegionView) -> Result<()> {
        if region.has_entries() {
            return Ok(());
        }
        let places = region.places(self)?;
        let (support, config) = (&self.support, self.service_config(region.pages().count()));
        let args = |vm| {
            let rest = vec![arg(places.entries), arg(places.addr)];
            [over_all(vm, region), rest].concat()
        };
        let label = format!("writing entries of region `{}`", region.name());
        self.run(
            &support.stream,
            &support.write_entries,
            config,
            args,
            Some(region),
            &label,
        )?;
        region.set_has_entries(true);
        Ok(())
    }

    /// Has pages leave their frames for those of a held region that are used at home: all of memory that launches look up no more, and some
    /// of the region's own, drawn, of which those come back that are used more than others. Whether any may have left.
    fn make_way(&self, region: &RegionView) -> Result<bool> {
        let mut held = self.held.lock();
        let (launches, mut left) = (held.launches, false);
        // Memory that launches use in turns is none of it.
        let unused_after = UNUSED_AFTER.max(2 * held.memories.len() as u64);
        held.let_those_go(|memory, used| {
            let gives = used + unused_after < launches && memory.give_frames(self.place)?;
            left |= gives;
            Ok(gives)
        })?;
        let most = held.may_move(
            self.frame_count(),
            1 << self.page_shift(),
            self.capabilities().deterministic,
        );
        if most == 0 {
            return Ok(left);
        }
        let pages = region.pages().count();
        let start = held.begin_at(pages);
        drop(held);
        let label = format!("making way for pages of region `{}`", region.name());
        let taken = DeviceArray::<u64>::zeroed(&*self.device, 1).doing(|| label.clone())?;
        let args = |vm: u64| {
            let (id, taken) = (arg(region.id()), arg(taken.addr()));
            vec![arg(vm), id, arg(start), arg(pages), arg(most), taken]
        };
        let (support, config) = (&self.support, self.service_config(most));
        self.run(&support.stream, &support.give_way, config, args, Some(region), &label)?;
        Ok(true)
    }

    /// Pages of memory that launches looked up may leave their frames again, when those have ended, for others that need some.
    pub(super) fn let_idle_go(&self) -> Result<()> {
        // Locked all the time: another launch that needs frames waits until they can be had.
        let mut held = self.held.lock();
        if held.memories.is_empty() {
            return Ok(());
        }
        self.settle_form(true);
        held.let_those_go(|memory, _| memory.let_go(self.place))
    }

    /// The same of memory that nobody uses, for who needs frames now. It waits for nobody.
    pub(super) fn let_unused_go(&self) {
        let Some(mut held) = self.held.try_lock() else { return };
        if let Err(error) = held.let_those_go(|memory, _| memory.let_go_unless_used(self.place)) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "pages that were looked up keep their frames"
            );
        }
    }

    /// Remembers memory whose pages a launch looks up.
    pub(super) fn keep_held(&self, memories: &[(Arc<dyn Memory>, bool)]) {
        let mut held = self.held.lock();
        held.launches += 1;
        let used = held.launches;
        held.memories.retain(|held| held.memory.strong_count() > 0);
        for (memory, _) in memories {
            let memory = Arc::downgrade(memory);
            match held.memories.iter_mut().find(|known| known.memory.ptr_eq(&memory)) {
                Some(known) => known.used = used,
                None => held.memories.push(Held { memory, used }),
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
