//! Regions: arrays in host memory or at memory nodes, whose pages kernels fetch.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use gpuvm_layouts::{self as layout, RegionDesc, StripeDesc};

use crate::{
    error::{Doing, Error, Result},
    frames::FrameMemory,
    home::{Home, ReachedHome},
    launch::InFlight,
    pages::Pages,
    vm::VmInner,
};

mod builder;
mod end;
mod guard;
mod handle;
mod health;
mod nodes;
mod page_table;
mod replicas;
mod stripes;

pub use builder::{Integrity, RegionBuilder};
pub use handle::{DirtyPage, Region};
pub use health::{HomeHealth, RegionHealth};
pub(crate) use nodes::Moved;
use page_table::PageTable;

/// What a region is to the machine; its handle and the launches that name it share it.
pub(crate) struct RegionInner {
    pub vm: Arc<VmInner>,
    pub id: u32,
    pub name: String,
    pub pages: Pages,
    pub read_only: bool,
    /// Its frames are its own, one a page.
    pub never_evicted: bool,
    pub element_bytes: u32,
    pub length: u64,
    /// One, or of a replicated region two of the same kind, each with a copy of every page.
    homes: Vec<ReachedHome>,
    /// Addresses of what replicas and checksums need; each 0 without.
    guards: guard::Addresses,
    words_addr: u64,
    /// Address of the frame 0 that the words count from.
    frames_addr: u64,
    /// Until the region has ended.
    tables: Mutex<Option<Tables>>,
    /// A launch may have written it since its last flush that was completed.
    unflushed: AtomicBool,
    /// Launches that name the region. Held while the host reads or writes the home, so that none begins meanwhile.
    pub launches: Mutex<Vec<Weak<InFlight>>>,
    /// `close` has begun.
    closed: AtomicBool,
    /// `close` has done what it could: no frame holds a page of the region.
    ended: AtomicBool,
    /// The home may be reached still: its memory is never given back.
    leaked: AtomicBool,
    /// Why a borrowed region that was dropped did not end well: its scope returns it.
    failure: Mutex<Option<Error>>,
}

/// What of a region lies in GPU memory.
pub(crate) struct Tables {
    words: PageTable,
    guards: guard::Guards,
    /// Frames of the region's own; none when it uses those of all.
    frames: Option<FrameMemory>,
}

/// What a region is to be, besides its home.
struct Plan {
    name: String,
    read_only: bool,
    never_evicted: bool,
    length: u64,
    element_bytes: u32,
    /// The checksum of each page, 0 where it is not known; none for a region without.
    checksums: Option<Vec<u32>>,
}

impl VmInner {
    /// Frames for every page of one region.
    fn own_frames(&self, name: &str, pages: u64) -> Result<FrameMemory> {
        if pages > layout::FRAMES_MAX {
            return Err(Error::Region {
                region: name.to_owned(),
                reason: format!("{pages} pages are too many for frames of its own: at most 2^28 - 1; use larger pages"),
            });
        }
        FrameMemory::new(
            &*self.gpu,
            &self.nics,
            pages,
            1 << self.page_shift,
            self.frames.access(),
        )
    }
}

impl RegionInner {
    /// Makes a region whose pages live at `homes`: one, or two of the same kind.
    fn create(inner: &Arc<VmInner>, plan: Plan, homes: Vec<Arc<dyn Home>>) -> Result<Arc<Self>> {
        let pages = Pages::new(plan.length * u64::from(plan.element_bytes), inner.page_shift);
        if pages.count() >= layout::REGION_PAGES_MAX {
            return Err(Error::Region {
                region: plan.name,
                reason: format!("{} pages are too many: at most 2^44 less one", pages.count()),
            });
        }
        let words = PageTable::absent(&*inner.gpu, pages.count(), plan.never_evicted)
            .doing(|| format!("allocating the page table of region `{}`", plan.name))?;
        let own_frames = match plan.never_evicted && pages.count() > 0 {
            true => Some(inner.own_frames(&plan.name, pages.count())?),
            false => None,
        };
        let frames_addr = match &own_frames {
            Some(frames) => frames.addr(),
            None if plan.never_evicted => 0,
            None => inner.frames.addr(),
        };
        let reached = homes.into_iter().map(|home| {
            let reach = home.register(&inner.ways(), plan.read_only)?;
            Ok(ReachedHome { home, reach })
        });
        let homes: Vec<_> = reached.collect::<Result<_>>()?;
        let guards = guard::Guards::create(&*inner.gpu, pages.count(), homes.len() > 1, plan.checksums.as_deref())
            .doing(|| format!("allocating what guards region `{}`", plan.name))?;
        // From here on dropping it gives the key back.
        let region = Self {
            vm: Arc::clone(inner),
            id: 0,
            name: plan.name,
            pages,
            read_only: plan.read_only,
            never_evicted: plan.never_evicted,
            element_bytes: plan.element_bytes,
            length: plan.length,
            homes,
            guards: guards.addresses(),
            words_addr: words.addr(),
            frames_addr,
            tables: Mutex::new(Some(Tables {
                words,
                guards,
                frames: own_frames,
            })),
            unflushed: AtomicBool::new(false),
            launches: Mutex::default(),
            closed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            leaked: AtomicBool::new(false),
            failure: Mutex::default(),
        };
        region.enter(inner)
    }

    /// Takes a place in the region table, where kernels find it.
    fn enter(mut self, inner: &VmInner) -> Result<Arc<Self>> {
        let mut state = inner.lock();
        for other in state.regions.iter().flatten().filter_map(Weak::upgrade) {
            if self.clashes_with(&other) {
                return Err(Error::Overlap {
                    region: self.name.clone(),
                    other: other.name.clone(),
                });
            }
        }
        self.check_sessions()?;
        let Some(id) = state.free_region() else {
            let limit = state.regions.len();
            return Err(Error::Region {
                region: self.name.clone(),
                reason: format!("all {limit} places for regions are taken: drop some, or raise VmBuilder::regions_max"),
            });
        };
        self.id = id as u32;
        self.join_local_homes();
        self.write_stripes()?;
        inner
            .regions
            .write(&*inner.gpu, id as u64, &[self.desc()])
            .doing(|| format!("describing region `{}`", self.name))?;
        let region = Arc::new(self);
        state.regions[id] = Some(Arc::downgrade(&region));
        inner.write_low_water(&state)?;
        Ok(region)
    }

    /// Whether both lie over the same host memory, or map the same file, and one may be written.
    fn clashes_with(&self, other: &Self) -> bool {
        let (Some(mine), Some(theirs)) = (self.home().host_memory(), other.home().host_memory()) else {
            return false;
        };
        !(mine.is_apart_from(theirs) || other.has_ended() || (self.read_only && other.read_only))
    }

    /// Its home; of two the first.
    fn home(&self) -> &dyn Home {
        &*self.homes[0].home
    }

    /// The homes with their replicas' numbers.
    fn rows(&self) -> impl Iterator<Item = (usize, &dyn Home)> {
        self.homes.iter().map(|reached| &*reached.home).enumerate()
    }

    /// Whether it has given its frames and its host memory back.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn desc(&self) -> RegionDesc {
        let stripes = self.stripes_of(&self.homes[0]);
        RegionDesc {
            words: self.words_addr,
            bytes: self.pages.bytes(),
            pages: self.pages.count(),
            stripes: self.vm.stripes.addr() + self.first_stripe() * size_of::<StripeDesc>() as u64,
            homes: stripes.len() as u32,
            nics: stripes[0].len() as u32,
            flags: layout::REGION_LIVE | self.flags(),
            frames: self.frames_addr,
            home: self.homes[0].direct_addr(),
            rest_until: 0,
            replicas: self.replicas(),
            stale: self.guards.stale,
            stale_words: self.pages.count().div_ceil(32),
            joins: self.guards.joins,
            checksums: self.guards.checksums,
            reserved_tail: [0; 7],
        }
    }

    fn flags(&self) -> u32 {
        let flag = |set, flag| if set { flag } else { 0 };
        flag(self.read_only, layout::REGION_READ_ONLY)
            | flag(self.never_evicted, layout::REGION_NEVER_EVICTED)
            | flag(self.is_replicated(), layout::REGION_REPLICATED)
            | flag(self.guards.checksums != 0, layout::REGION_CHECKED)
    }

    /// What is said of a page's home beside a fault; nothing for this host.
    pub fn holder_of(&self, page: u64) -> Option<String> {
        self.home().holder(page)
    }

    /// Copies bytes of the home out.
    ///
    /// # Errors
    /// Of a home that is elsewhere.
    ///
    /// # Safety
    /// The span lies in the region, and nobody writes it: no launch that names the region is in flight, and its last
    /// WRITE has completed.
    unsafe fn copy_out(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self.is_replicated() {
            // SAFETY: passed on from the caller.
            false => unsafe { self.home().read(&*self.vm.gpu, offset, out) },
            // SAFETY: as above.
            true => unsafe { self.copy_out_of_replicas(offset, out) },
        }
    }

    /// Copies bytes into the home.
    ///
    /// # Safety
    /// The span lies in the region, which may be written, and nobody else reads or writes it: no launch that names the
    /// region is in flight, and no frame holds a page of it.
    unsafe fn copy_in(&self, offset: u64, data: &[u8]) -> Result<()> {
        match self.guards.checksums {
            // SAFETY: passed on from the caller.
            0 => unsafe { self.copy_in_anywhere(offset, data) },
            // SAFETY: as above.
            _ => unsafe { self.copy_in_checked(offset, data) },
        }
    }

    /// The kernel argument.
    pub fn array(&self) -> layout::ArrayDesc {
        layout::ArrayDesc {
            words: self.words_addr,
            frames: self.frames_addr,
            length: self.length,
            vm: self.vm.desc.addr(),
            home: self.homes[0].direct_addr(),
            bytes: self.pages.bytes(),
            page_shift: self.vm.page_shift,
            region: match self.never_evicted {
                true => self.id | layout::ARRAY_NEVER_EVICTED,
                false => self.id,
            },
            offset_mask: (1 << self.vm.page_shift) - 1,
            frame_scale: 1 << (self.vm.page_shift - layout::FRAME_SHIFT),
        }
    }

    fn lock_tables(&self) -> MutexGuard<'_, Option<Tables>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A launch is about to begin that may write it. Called with the launches locked, as `flush_quiet` is.
    pub fn expect_writes(&self) {
        if !self.read_only {
            // Relaxed: the lock on the launches orders it for all but the report of a lost GPU, which may come late.
            self.unflushed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether its home may lack what launches wrote.
    pub fn may_have_writes(&self) -> bool {
        self.unflushed.load(Ordering::Relaxed)
    }

    /// Bytes of the page table.
    pub fn table_bytes(&self) -> u64 {
        page_table::words(self.pages.count(), self.never_evicted) * size_of::<u64>() as u64
    }

    /// The page table; empty once the region has ended.
    pub fn read_words(&self) -> Result<Vec<u64>> {
        match &*self.lock_tables() {
            Some(Tables { words, .. }) => words
                .read(&*self.vm.gpu)
                .doing(|| format!("reading the page table of `{}`", self.name)),
            None => Ok(Vec::new()),
        }
    }

    /// Replaces the page table. No kernel may run.
    pub fn write_words(&self, new: &[u64]) -> Result<()> {
        match &*self.lock_tables() {
            Some(Tables { words, .. }) => words
                .write(&*self.vm.gpu, new)
                .doing(|| format!("writing the page table of `{}`", self.name)),
            None => Ok(()),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Vec<Weak<InFlight>>> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the launches that name the region and keeps others from beginning while the guard lives.
    pub fn quiesce(&self) -> MutexGuard<'_, Vec<Weak<InFlight>>> {
        let mut launches = self.lock();
        for launch in launches.drain(..).filter_map(|launch| launch.upgrade()) {
            launch.settle();
        }
        launches
    }

    /// Writes dirty pages home; nothing to do when no launch can have written one.
    fn flush_pages(&self) -> Result<()> {
        if self.read_only || self.pages.count() == 0 || !self.may_have_writes() {
            return Ok(());
        }
        self.vm.support.flush(&self.vm, self.id, self.pages.count(), &self.name)
    }

    /// Writes dirty pages home while the launches are locked and none that names the region runs: then the home holds everything.
    fn flush_quiet(&self) -> Result<()> {
        self.flush_pages()?;
        self.unflushed.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Has the system store what the homes hold.
    fn sync(&self) -> Result<()> {
        self.rows().try_for_each(|(_, home)| home.sync())
    }

    fn release_pages(&self, discard: bool) -> Result<()> {
        if self.pages.count() == 0 {
            return Ok(());
        }
        self.vm
            .support
            .release(&self.vm, self.id, self.pages.count(), discard, &self.name)
    }

    fn check_range(&self, range: &Range<u64>) -> Result<()> {
        if range.start > range.end || range.end > self.length {
            return Err(Error::OutOfRange {
                name: self.name.clone(),
                first: range.start,
                end: range.end,
                length: self.length,
            });
        }
        Ok(())
    }
}
