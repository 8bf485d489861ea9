//! What the program says of a region while it is used: advice, and whose pages leave first. Hints change what a launch costs, never what
//! it computes.

use std::sync::{Arc, atomic::Ordering};

use gpuvm_layouts as layout;

use super::{Advice, Region, RegionInner, book::Standing};
use crate::error::Result;

impl<E> Region<E> {
    /// Says how the launches to come will use the region. Results never depend on it. It may be said at any time: launches that run are
    /// not waited for, and may follow a part of it. Only [`WriteOnce`](Advice::WriteOnce), and what takes it back, wait for the launches
    /// that name the region, since they have to agree about where it is written.
    ///
    /// Returns whether this region follows it; else it is ignored: `InPlace` and `WriteOnce` where their text says so, and advice on which
    /// pages leave their frames by a [never-evicted](super::RegionBuilder::never_evicted) region.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu), [`Error::GpuLost`](crate::Error::GpuLost): then what was advised before holds.
    pub fn advise(&self, advice: Advice) -> Result<bool> {
        let _span = self.inner.span(&format!("{advice:?} advised"));
        let advised = self.inner.advise(advice);
        self.inner.own.gpu.or_lost(advised)
    }

    /// Whose pages stay: while frames are short, pages of a region leave when no page of a region of lower priority can. The clock passes
    /// over them until a lane that waits for a frame has looked at 64 windows of 32 frames, and no page leaves any more. Then pages of the
    /// next priority leave as well, until the clock has gone on as far again and once round at least. Default: 0, or what
    /// [`RegionBuilder::priority`](super::RegionBuilder::priority) said.
    ///
    /// It may be said at any time: launches that run follow it from some moment on. Lanes tell the eight lowest priorities of the regions
    /// that are there apart; those above are one. A [never-evicted](super::RegionBuilder::never_evicted) region has
    /// frames of its own, and no use for it. Read-only regions under [`Placement::Auto`](super::Placement::Auto) compete for frames by the
    /// reads that miss as well.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu), [`Error::GpuLost`](crate::Error::GpuLost).
    pub fn set_priority(&self, priority: i32) -> Result<()> {
        // Relaxed: what follows takes a lock.
        self.inner.priority.store(priority, Ordering::Relaxed);
        let told = self.inner.regions.rank(&self.inner);
        self.inner.own.gpu.or_lost(told)
    }

    /// What was said last.
    pub fn priority(&self) -> i32 {
        self.inner.priority()
    }
}

impl RegionInner {
    fn advise(self: &Arc<Self>, advice: Advice) -> Result<bool> {
        // A lane that fetches a page relies on what others do that store: launches which differ about it never meet.
        let mut quiet = None;
        let (mut advised, old, new) = loop {
            let advised = self.advised.lock();
            let flags = |advised| self.own.traits.array_flags(advised);
            let (old, new) = (flags(*advised), flags(advised.after(advice)));
            if quiet.is_some() || (old ^ new) & layout::ARRAY_STORES_IN_PLACE == 0 {
                break (advised, old, new);
            }
            // The launches are locked first, as where one of them is enqueued.
            drop(advised);
            quiet = Some(self.quiesce());
        };
        let after = advised.after(advice);
        for on in self.where_it_goes_on() {
            if (old ^ new) & !layout::ARRAY_STORES_IN_PLACE != 0 {
                // A launch that runs may store its own count over it; the next advice, or the rules of `Placement::Auto`, correct that.
                on.begin_draws(after)?;
            }
            on.gpu.write_region_flags(&on.view, self.flags(&on, after))?;
            on.view.follow(on.traits.array_flags(after));
        }
        let keeps = std::mem::replace(&mut *advised, after).keeps_resident();
        drop(advised);
        drop(quiet);
        if keeps != after.keeps_resident() {
            self.regions.rank(self)?;
        }
        Ok(match advice {
            Advice::Normal | Advice::Random | Advice::Fetch => true,
            Advice::Sequential | Advice::ReadOnce | Advice::KeepResident => !self.kind.never_evicted,
            Advice::InPlace => new & layout::ARRAY_IN_PLACE != 0,
            Advice::WriteOnce => new & layout::ARRAY_STORES_IN_PLACE != 0,
        })
    }

    pub(super) fn priority(&self) -> i32 {
        self.priority.load(Ordering::Relaxed)
    }

    pub(super) fn set_rank(&self, rank: u32) -> Result<()> {
        // Under this lock flags are written, here and by advice.
        let advised = self.advised.lock();
        if self.rank.swap(rank, Ordering::Relaxed) == rank {
            return Ok(());
        }
        for on in self.where_it_goes_on() {
            on.gpu.write_region_flags(&on.view, self.flags(&on, *advised))?;
        }
        Ok(())
    }

    /// Where it stands among other regions.
    pub(super) fn standing(&self) -> Standing {
        (self.advised.lock().keeps_resident(), self.priority())
    }
}
