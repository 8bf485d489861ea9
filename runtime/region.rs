//! Regions: arrays in host memory or at memory nodes, whose pages kernels fetch.

use std::{
    ops::Range,
    sync::{Arc, Weak, atomic::AtomicBool},
};

use gpuvm_layouts::{self as layout, RegionDesc};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    element::ElementType,
    error::{Doing, Error, Result},
    frames::FrameMemory,
    gpu::{GuardAddresses, Guards, PageTable, PagedGpu, ReadCosts, RegionTables, RegionView},
    home::{Home, ReachedHome},
    launch::{InFlight, Memory},
    pages::Pages,
};

mod advice;
mod builder;
mod end;
mod guard;
mod handle;
mod health;
mod nodes;
mod placement;
mod replicas;
mod stripes;

pub use advice::Advice;
use advice::Advised;
pub use builder::{Integrity, RegionBuilder};
pub use handle::{DirtyPage, RawRegion, Region};
pub use health::{HomeHealth, RegionHealth};
pub(crate) use nodes::Moved;
pub use placement::Placement;
use placement::reaches;

/// What a region is; its handle and the launches that name it share it.
pub(crate) struct RegionInner {
    /// Dropped first: queue pairs go before the memory that they reach.
    pub gpu: Arc<PagedGpu>,
    /// What it is on that GPU.
    pub view: Arc<RegionView>,
    pub name: String,
    pub pages: Pages,
    pub read_only: bool,
    /// Its frames are its own, one a page.
    pub never_evicted: bool,
    /// Where placement weighs them.
    read_costs: Option<ReadCosts>,
    /// As it was asked for when the region was made.
    placement: Placement,
    advised: Mutex<Advised>,
    pub element: ElementType,
    pub length: u64,
    /// One, or of a replicated region two of the same kind, each with a copy of every page.
    homes: Vec<ReachedHome>,
    /// Addresses of what replicas and checksums need; each 0 without.
    guards: GuardAddresses,
    /// Address of the frame 0 that the words count from.
    frames_addr: u64,
    /// Launches that name the region. Held while the host reads or writes the home, so that none begins meanwhile.
    launches: Mutex<Vec<Weak<InFlight>>>,
    /// `close` has begun.
    closed: AtomicBool,
    /// The home may be reached still: its memory is never given back.
    leaked: AtomicBool,
    /// Why a borrowed region that was dropped did not end well: its scope returns it.
    failure: Mutex<Option<Error>>,
}

/// The regions of a virtual memory, on all of its GPUs.
#[derive(Default)]
pub(crate) struct Regions(Mutex<Vec<Weak<RegionInner>>>);

impl Regions {
    pub fn lock(&self) -> MutexGuard<'_, Vec<Weak<RegionInner>>> {
        self.0.lock()
    }

    /// Those of one GPU. They are not held, so that what nobody wants any more can be told.
    pub fn of(&self, gpu: &PagedGpu) -> Vec<Weak<RegionInner>> {
        let regions = self.lock();
        let on_it = |region: &&Weak<RegionInner>| region.upgrade().is_some_and(|region| region.is_on(gpu));
        regions.iter().filter(on_it).cloned().collect()
    }
}

/// Where a region is made.
#[derive(Clone)]
pub(crate) struct RegionPlace {
    pub gpu: Arc<PagedGpu>,
    pub regions: Arc<Regions>,
}

/// What a region is to be, besides its home.
struct Plan {
    name: String,
    read_only: bool,
    never_evicted: bool,
    placement: Placement,
    length: u64,
    element: ElementType,
    /// The checksum of each page, 0 where it is not known; none for a region without.
    checksums: Option<Vec<u32>>,
}

/// Frames for every page of one region.
fn own_frames(gpu: &PagedGpu, name: &str, pages: u64) -> Result<FrameMemory> {
    if pages > layout::FRAMES_MAX {
        return Err(Error::Region {
            region: name.to_owned(),
            reason: format!("{pages} pages are too many for frames of its own: at most 2^28 - 1; use larger pages"),
        });
    }
    let access = gpu.frames().access();
    FrameMemory::new(&**gpu.device(), gpu.nics(), pages, 1 << gpu.page_shift(), access)
}

impl Memory for RegionInner {
    fn launches(&self) -> &Mutex<Vec<Weak<InFlight>>> {
        &self.launches
    }

    fn may_be_written(&self) {
        self.expect_writes();
    }
}

impl RegionInner {
    /// Makes a region whose pages live at `homes`: one, or two of the same kind.
    fn create(place: &RegionPlace, plan: Plan, homes: Vec<Arc<dyn Home>>) -> Result<Arc<Self>> {
        let gpu = &place.gpu;
        let device = &**gpu.device();
        let pages = Pages::new(plan.length * plan.element.bytes() as u64, gpu.page_shift());
        if pages.count() >= layout::REGION_PAGES_MAX {
            return Err(Error::Region {
                region: plan.name,
                reason: format!("{} pages are too many: at most 2^44 less one", pages.count()),
            });
        }
        let frames = match plan.never_evicted && pages.count() > 0 {
            true => Some(own_frames(gpu, &plan.name, pages.count())?),
            false => None,
        };
        let frames_addr = match &frames {
            Some(frames) => frames.addr(),
            None if plan.never_evicted => 0,
            None => gpu.frames().addr(),
        };
        let reached = homes.into_iter().map(|home| {
            let reach = home.register(&gpu.ways(), plan.read_only)?;
            Ok(ReachedHome { reach, home })
        });
        let homes: Vec<_> = reached.collect::<Result<_>>()?;
        let kind = (plan.never_evicted, plan.read_only);
        let array_flags = plan.placement.flags_for(kind, homes[0].direct_addr(), pages.count());
        let (read_costs, head) = placement::begin(gpu, array_flags, &pages, homes[0].direct_addr())?;
        let words = PageTable::absent(device, pages.count(), head)
            .doing(|| format!("allocating the page table of region `{}`", plan.name))?;
        let guards = Guards::create(device, pages.count(), homes.len() > 1, plan.checksums.as_deref())
            .doing(|| format!("allocating what guards region `{}`", plan.name))?;
        let addresses = guards.addresses();
        let tables = RegionTables {
            words,
            guards,
            frames,
            page_chunks: None,
        };
        let home = Arc::clone(&homes[0].home);
        let view = RegionView::new(&plan.name, pages, (plan.read_only, array_flags), home, tables);
        // From here on dropping it gives the key back.
        let region = Arc::new(Self {
            view: Arc::new(view),
            gpu: Arc::clone(gpu),
            name: plan.name,
            pages,
            read_only: plan.read_only,
            never_evicted: plan.never_evicted,
            read_costs,
            placement: plan.placement,
            advised: Mutex::default(),
            element: plan.element,
            length: plan.length,
            homes,
            guards: addresses,
            frames_addr,
            launches: Mutex::default(),
            closed: AtomicBool::new(false),
            leaked: AtomicBool::new(false),
            failure: Mutex::default(),
        });
        region.enter(&place.regions)?;
        Ok(region)
    }

    /// Takes its place among the regions of the virtual memory, and in the region table of its GPU, where kernels find it.
    fn enter(self: &Arc<Self>, regions: &Regions) -> Result<()> {
        let mut regions = regions.lock();
        regions.retain(|other| other.strong_count() > 0);
        if let Some(other) = regions
            .iter()
            .filter_map(Weak::upgrade)
            .find(|other| self.clashes_with(other))
        {
            return Err(Error::Overlap {
                region: self.name.clone(),
                other: other.name.clone(),
            });
        }
        self.check_sessions()?;
        self.gpu.enter(&self.view, || {
            self.join_local_homes();
            self.write_stripes()?;
            Ok(self.desc())
        })?;
        regions.push(Arc::downgrade(self));
        Ok(())
    }

    /// Whether it is a region of that GPU.
    fn is_on(&self, gpu: &PagedGpu) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.gpu), gpu)
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
        self.view.has_ended()
    }

    fn desc(&self) -> RegionDesc {
        let stripes = self.stripes_of(&self.homes[0]);
        RegionDesc {
            words: self.view.words_addr(),
            bytes: self.pages.bytes(),
            pages: self.pages.count(),
            stripes: self.gpu.stripes_addr(&self.view),
            homes: stripes.len() as u32,
            nics: stripes[0].len() as u32,
            flags: self.flags(*self.advised.lock()),
            frames: self.frames_addr,
            home: self.homes[0].direct_addr(),
            backed_off_until: 0,
            replicas: self.replicas(),
            stale: self.guards.stale,
            stale_words: self.pages.count().div_ceil(32),
            joins: self.guards.joins,
            checksums: self.guards.checksums,
            pad: 0,
            homes_reciprocal: layout::reciprocal(stripes.len() as u32),
            reserved_tail: [0; 4],
        }
    }

    /// `REGION_*` under such advice.
    fn flags(&self, advised: Advised) -> u32 {
        let flag = |set, flag| if set { flag } else { 0 };
        layout::REGION_LIVE
            | advised.region_flags()
            | flag(self.read_only, layout::REGION_READ_ONLY)
            | flag(self.never_evicted, layout::REGION_NEVER_EVICTED)
            | flag(self.is_replicated(), layout::REGION_REPLICATED)
            | flag(self.guards.checksums != 0, layout::REGION_CHECKED)
            | flag(
                self.array_flags(advised) & layout::ARRAY_DUELS != 0,
                layout::REGION_DUELS,
            )
            | flag(
                self.array_flags(advised) & layout::ARRAY_FETCH_WHILE_FREE != 0,
                layout::REGION_FETCH_WHILE_FREE,
            )
    }

    /// `ARRAY_*` of the kernel argument under such advice.
    fn array_flags(&self, advised: Advised) -> u32 {
        let kind = (self.never_evicted, self.read_only);
        let placement = advised.placement.unwrap_or(self.placement);
        let home = self.homes[0].direct_addr();
        let stores = match advised.stores_in_place() && !self.read_only && !self.never_evicted && reaches(home) {
            true => layout::ARRAY_STORES_IN_PLACE,
            false => 0,
        };
        placement.flags_for(kind, home, self.pages.count()) | stores
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
            false => unsafe { self.home().read(&**self.gpu.device(), offset, out) },
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
        let home = self.homes[0].direct_addr();
        layout::ArrayDesc {
            words: self.view.words_addr(),
            frames: self.frames_addr,
            length: self.length,
            vm: self.gpu.desc_addr(),
            home,
            bytes: self.pages.bytes(),
            page_shift: self.gpu.page_shift(),
            region: self.view.id() | self.array_flags(*self.advised.lock()),
            offset_mask: (1 << self.gpu.page_shift()) - 1,
            frame_scale: 1 << (self.gpu.page_shift() - layout::FRAME_SHIFT),
        }
    }

    /// A launch is about to begin that may write it. Called with the launches locked, as `flush_quiet` is.
    pub fn expect_writes(&self) {
        if !self.read_only {
            self.view.expect_writes();
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Vec<Weak<InFlight>>> {
        self.launches.lock()
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
        if self.read_only || self.pages.count() == 0 || !self.view.may_have_writes() {
            return Ok(());
        }
        self.gpu.flush(&self.view)
    }

    /// Writes dirty pages home while the launches are locked and none that names the region runs: then the home holds everything.
    fn flush_quiet(&self) -> Result<()> {
        self.flush_pages()?;
        self.view.note_flushed();
        Ok(())
    }

    /// Has the system store what the homes hold.
    fn sync(&self) -> Result<()> {
        self.rows().try_for_each(|(_, home)| home.sync())
    }

    fn release_pages(&self, discard: bool) -> Result<()> {
        self.release_some(0..self.pages.count(), discard)
    }

    fn release_some(&self, pages: Range<u64>, discard: bool) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        self.gpu.release(&self.view, pages, discard)
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
