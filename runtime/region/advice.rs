//! How kernels will use a region, as the program says: hints that change what a launch costs, never what it computes.

use std::ops::Range;

use gpuvm_layouts as layout;

use super::{Placement, Region, RegionInner};
use crate::error::Result;

/// How kernels will use a region: [`Region::advise`].
///
/// Where queue pairs bring the pages, a warp whose faults come a stride apart, three times in a row and up to 512 pages each, *reads
/// ahead*: it begins to fetch the pages to which the stride leads, as many as it walks in the time of two fetches, up to 16 and up to
/// 1 MiB, a page at least. They take free frames and those of pages that were not used since the clock saw them last, and no other.
/// Over [`Transport::Direct`](crate::Transport::Direct) nothing is read ahead: the warp would copy those pages itself, and wait for
/// them.
///
/// [`Sequential`](Self::Sequential), [`Random`](Self::Random), [`ReadOnce`](Self::ReadOnce), [`KeepResident`](Self::KeepResident) and
/// [`WriteOnce`](Self::WriteOnce) replace each other, and so do [`InPlace`](Self::InPlace) and [`Fetch`](Self::Fetch);
/// [`Normal`](Self::Normal) takes both kinds back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Advice {
    /// Nothing is known: whatever was advised before is taken back, and pages are placed as the region was made
    /// ([`RegionBuilder::placement`](super::RegionBuilder::placement)).
    #[default]
    Normal,
    /// Pages are used in ascending order, each for a short time: as [`ReadOnce`](Self::ReadOnce), and the first fault of a warp reads
    /// ahead.
    Sequential,
    /// Pages are used in no order: nothing is read ahead.
    Random,
    /// Each page is used for a short time, and not again: its use does not protect it from leaving its frame. The clock takes such pages
    /// as soon as it meets them, and for a page of such a region it takes another of that kind if one is near, so that a stream passes
    /// through few frames and leaves other regions theirs. Wrong for pages that are used again: they are fetched again.
    ReadOnce,
    /// Pages leave when no others can: as those of a region whose priority is above all, see
    /// [`Region::set_priority`].
    KeepResident,
    /// Elements are stored once, and not used again soon: a store (`a[i] = v`) to a page without a frame goes to the page's home, past
    /// the frames, which fetches and writes back nothing. All other accesses of the region, and stores to a page that has a frame, are
    /// what they were. Right for results that are scattered over more pages than there are frames, or stored in full and in order.
    /// Wrong for elements that are stored again and again. Ignored where reads in place are
    /// ([`Placement::InPlace`]), and by a region that is [read-only](super::RegionBuilder::read_only).
    WriteOnce,
    /// Later launches read the elements of pages without a frame where the pages live, as [`Placement::InPlace`] says. Ignored where that
    /// is ignored.
    InPlace,
    /// Later launches fetch the pages that they use, as [`Placement::Fetch`] says.
    Fetch,
}

/// What was advised last of each kind.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Advised {
    usage: Advice,
    /// In place of what the region was made with.
    pub placement: Option<Placement>,
}

impl Advised {
    fn after(self, advice: Advice) -> Self {
        match advice {
            Advice::Normal => Self::default(),
            Advice::InPlace => Self {
                placement: Some(Placement::InPlace),
                ..self
            },
            Advice::Fetch => Self {
                placement: Some(Placement::Fetch),
                ..self
            },
            usage => Self { usage, ..self },
        }
    }

    /// What of it stands in [`layout::RegionDesc::flags`].
    pub fn region_flags(self) -> u32 {
        match self.usage {
            Advice::Sequential => layout::REGION_READ_ONCE | layout::REGION_ASCENDING,
            Advice::Random => layout::REGION_RANDOM,
            Advice::ReadOnce => layout::REGION_READ_ONCE,
            _ => 0,
        }
    }

    /// Whether pages stay as long as pages of other regions can leave, whatever those regions' priorities.
    pub fn keeps_resident(self) -> bool {
        self.usage == Advice::KeepResident
    }

    /// Whether elements are stored where pages without a frame live, if lanes can.
    pub fn stores_in_place(self) -> bool {
        self.usage == Advice::WriteOnce
    }
}

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

    /// Drops the pages that lie wholly in a range of elements, without writing them home: their frames are free again, and each page
    /// holds what its home holds. That is what kernels wrote up to the page's last write-back, by a flush or for its frame, so pages of one
    /// range may be of different age. Pages that lie in the range in part stay as they are. A
    /// [never-evicted](super::RegionBuilder::never_evicted) region drops pages as well, and keeps the frames, into which they are fetched
    /// again.
    ///
    /// Waits for the launches that name the region. Right for scratch data that is written anew: what is dropped costs no bytes over the
    /// link.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for a range that ends before it begins, or past the region's end;
    /// [`Error::Fault`](crate::Error::Fault) naming a page that could not be dropped.
    pub fn discard(&self, range: Range<u64>) -> Result<()> {
        let inner = &self.inner;
        let _span = inner.span("discard");
        inner.check_range(&range)?;
        let bytes = inner.element.bytes() as u64;
        let pages = inner.pages.within(&(range.start * bytes..range.end * bytes));
        inner.discard_pages(&mut inner.quiesce(), &pages)
    }
}

impl RegionInner {
    fn advise(&self, advice: Advice) -> Result<bool> {
        // A lane that fetches a page relies on what others do that store: launches which differ about it never meet.
        let mut quiet = None;
        let (mut advised, old, new) = loop {
            let advised = self.advised.lock();
            let flags = |advised| self.array_flags(&self.own, advised);
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
                self.begin_draws(&on, after)?;
            }
            on.gpu.write_region_flags(&on.view, self.flags(&on, after))?;
            on.view.follow(self.array_flags(&on, after));
        }
        let keeps = std::mem::replace(&mut *advised, after).keeps_resident();
        drop(advised);
        drop(quiet);
        if keeps != after.keeps_resident() {
            self.regions.rank()?;
        }
        Ok(match advice {
            Advice::Normal | Advice::Random | Advice::Fetch => true,
            Advice::Sequential | Advice::ReadOnce | Advice::KeepResident => !self.never_evicted,
            Advice::InPlace => new & layout::ARRAY_IN_PLACE != 0,
            Advice::WriteOnce => new & layout::ARRAY_STORES_IN_PLACE != 0,
        })
    }
}
