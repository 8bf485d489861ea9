//! Homes that were lost and are there again. Their queue pairs are opened only after everything that they held counts as
//! stale.
//!
//! Lanes reserve no more on a lost pair, but one may be between its look and its reservation, and a handler between a
//! completion and what it means. So a kernel that sees them failed closes the pairs first, by an atomic that lanes see, and
//! they are opened once they are at rest.

use std::sync::atomic::Ordering;

use gpuvm_gpu::Gpu;

use super::{Queues, mending::Rest};
use crate::error::{Error, Result};

/// A home that is there again, whose queue pairs are lost still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returned {
    /// In this host's memory, by its place.
    Local(usize),
}

impl Queues {
    /// A home that has returned.
    pub fn returned(&self) -> Option<Returned> {
        let mut homes = self.local_homes.iter().enumerate();
        let home = homes.find(|(home, local)| local.failure().is_none() && self.is_local_lost(*home));
        home.map(|(home, _)| Returned::Local(home))
    }

    /// Whether the queue pairs of a home in this host's memory are lost, or should be.
    pub fn is_local_lost(&self, home: usize) -> bool {
        // Relaxed: see `say_lost`.
        let lost = |group: &super::Group| group.failure().is_some() || group.lost.load(Ordering::Relaxed);
        self.local_homes.get(home).is_some() && self.local_groups(home).any(lost)
    }

    /// Whether they were lost at some time.
    pub fn was_local_lost(&self, home: usize) -> bool {
        // Relaxed: see `say_lost`.
        self.is_local_lost(home)
            || self
                .local_groups(home)
                .any(|group| group.was_lost.load(Ordering::Relaxed))
    }

    fn local_groups(&self, home: usize) -> impl Iterator<Item = &super::Group> {
        let first = home * self.nics.len();
        self.groups[first..first + self.nics.len()].iter()
    }

    /// The queue pairs of a home: the first, and how many.
    pub fn pairs_of(&self, home: Returned) -> (u32, u32) {
        let Returned::Local(home) = home;
        let first = self.local_groups(home).map(|group| group.first).min().unwrap_or(0);
        (first, self.local_groups(home).map(|group| group.count).sum())
    }

    /// Which of its stays a home is in.
    pub fn epoch_of(&self, home: Returned) -> u64 {
        let Returned::Local(place) = home;
        self.local_homes.get(place).map_or(0, |local| local.epoch())
    }

    /// Has lanes go to other homes, where nobody has seen yet that this one was lost.
    pub fn give_up_home(&self, gpu: &dyn Gpu, home: Returned) -> Result<()> {
        let Returned::Local(place) = home;
        let _resetting = self.lock_resetting();
        let Some(local) = self.local_homes.get(place) else {
            return Ok(());
        };
        let _held = local.hold();
        for group in self.local_groups(place) {
            // Relaxed: see `say_lost`.
            if let (Some(why), false) = (group.failure(), group.lost.load(Ordering::Relaxed)) {
                self.give_up(gpu, group, &why)?;
            }
        }
        Ok(())
    }

    /// Whether no request is in flight on a home's closed queue pairs. Requests whose completions do not come are ended.
    pub fn are_at_rest(&self, gpu: &dyn Gpu, home: Returned) -> Result<bool> {
        let _resetting = self.lock_resetting();
        let (first, count) = self.pairs_of(home);
        let mut all = true;
        for index in first..first + count {
            match self.rest_of(gpu, index)?.0 {
                Rest::Complete => {}
                Rest::Closed(waiting) => {
                    all = false;
                    self.end_waiting(gpu, index, &waiting)?;
                }
                Rest::Awake | Rest::Stray => all = false,
            }
        }
        Ok(all)
    }

    /// Opens the queue pairs of a home that are at rest, unless it was lost again since `epoch`.
    pub fn reopen(&self, gpu: &dyn Gpu, home: Returned, epoch: u64) -> Result<()> {
        let Returned::Local(place) = home;
        let _resetting = self.lock_resetting();
        let Some(local) = self.local_homes.get(place) else {
            return Ok(());
        };
        // It is not taken away again meanwhile.
        let _held = local.hold();
        if local.failure().is_some() || local.epoch() != epoch {
            return Ok(());
        }
        for group in self.local_groups(place) {
            // Relaxed: see `say_lost`; the others are of whoever holds `resetting`.
            group.tries.store(0, Ordering::Relaxed);
            group.epoch.store(epoch, Ordering::Relaxed);
            for index in group.indexes() {
                let next = self.at_rest(gpu, index)?;
                let next = next.ok_or_else(|| Error::Unavailable {
                    what: group.home_name(),
                    reason: format!("queue pair {index} was not at rest"),
                })?;
                self.mend(gpu, group, index - group.first, next)?;
                self.open(gpu, index, next)?;
            }
            group.lost.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}
