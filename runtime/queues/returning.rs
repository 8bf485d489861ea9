//! Homes that were lost and are there again. Their queue pairs are opened only after everything that they held counts as
//! stale.
//!
//! Lanes reserve no more on a lost pair, but one may be between its look and its reservation, and a handler between a
//! completion and what it means. So a kernel closes the pairs first, by an atomic that lanes see, and they are opened once
//! they are at rest.

use std::sync::atomic::Ordering;

use gpuvm_gpu::Gpu;

use super::Queues;
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
        // Relaxed: see `say_lost`.
        let lost = |home: usize| self.local_groups(home).any(|group| group.lost.load(Ordering::Relaxed));
        let mut homes = self.local_homes.iter().enumerate();
        let home = homes.find(|(home, local)| local.failure().is_none() && lost(*home));
        home.map(|(home, _)| Returned::Local(home))
    }

    /// Whether the queue pairs of a home in this host's memory are lost.
    pub fn is_local_lost(&self, home: usize) -> bool {
        let gone = self
            .local_homes
            .get(home)
            .is_some_and(|local| local.failure().is_some());
        // Relaxed: see `say_lost`.
        gone || self.local_groups(home).any(|group| group.lost.load(Ordering::Relaxed))
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

    /// Whether no request is in flight on a home's closed queue pairs.
    pub fn are_at_rest(&self, gpu: &dyn Gpu, home: Returned) -> Result<bool> {
        let (first, count) = self.pairs_of(home);
        for index in first..first + count {
            if self.at_rest(gpu, index)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Opens the queue pairs of a home that are at rest.
    pub fn reopen(&self, gpu: &dyn Gpu, home: Returned) -> Result<()> {
        let Returned::Local(place) = home;
        let _resetting = self.lock_resetting();
        let Some(local) = self.local_homes.get(place) else {
            return Ok(());
        };
        // It is not taken away again meanwhile.
        let _held = local.hold();
        if local.failure().is_some() {
            return Ok(());
        }
        for group in self.local_groups(place) {
            // Relaxed: see `say_lost`; a count of whoever holds `resetting`.
            group.tries.store(0, Ordering::Relaxed);
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
