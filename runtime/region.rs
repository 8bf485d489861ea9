//! Regions: arrays in host memory or at memory nodes, whose pages kernels fetch.

use std::{
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicI32, AtomicU32},
    },
};

use gpuvm_layouts::{self as layout, RegionDesc};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    element::ElementType,
    error::{Error, Result, check_range},
    gpu::{PagedGpu, Victims},
    home::Home,
    launch::Naming,
    pages::Pages,
    timeline::Span,
};

mod advice;
mod builder;
mod end;
mod guard;
mod handle;
mod health;
mod nodes;
mod on_gpu;
mod placement;
mod priority;
mod replicas;
mod sharing;
mod stripes;

pub use advice::Advice;
use advice::Advised;
pub use builder::{Integrity, RegionBuilder, SharedRegion};
pub use handle::{DirtyPage, RawRegion, Region};
pub use health::{HomeHealth, RegionHealth};
pub(crate) use nodes::Moved;
pub(crate) use on_gpu::OnGpu;
pub use placement::Placement;
use placement::reaches;

/// What a region is; its handle and the launches that name it share it.
///
/// Locks are taken in this order: the launches, `advised`, `others`, the state of a GPU.
pub(crate) struct RegionInner {
    /// What it is on the GPU that it was made on. Dropped first, as the others: they reach the homes.
    pub own: Arc<OnGpu>,
    /// On the other GPUs that kernels with it were launched on: see [`sharing`].
    others: Mutex<Vec<Arc<OnGpu>>>,
    pub name: String,
    pub pages: Pages,
    pub read_only: bool,
    /// Its frames are its own, one a page.
    pub never_evicted: bool,
    /// As it was asked for when the region was made.
    placement: Placement,
    /// Held while a GPU is added as well, which begins with the advice that holds.
    advised: Mutex<Advised>,
    /// Whose pages leave first, as the program says, and how lanes are told. Relaxed: hints.
    priority: AtomicI32,
    rank: AtomicU32,
    regions: Arc<Regions>,
    pub element: ElementType,
    pub length: u64,
    /// Launches that name the region, and which GPU's copies count. Held while the host reads or writes the home, so that none begins
    /// meanwhile.
    launches: Mutex<Naming>,
    /// `close` has begun.
    closed: AtomicBool,
    /// The home may be reached still: its memory is never given back.
    leaked: AtomicBool,
    /// Why a borrowed region that was dropped did not end well: its scope returns it.
    failure: Mutex<Option<Error>>,
}

/// The regions of a virtual memory, on all of its GPUs.
#[derive(Default)]
pub(crate) struct Regions {
    all: Mutex<Vec<Weak<RegionInner>>>,
    /// Held by who tells lanes whose pages leave first. Taken before all other locks.
    ranking: Mutex<()>,
}

impl Regions {
    pub fn lock(&self) -> MutexGuard<'_, Vec<Weak<RegionInner>>> {
        self.all.lock()
    }

    /// Those that were made on one GPU. They are not held, so that what nobody wants any more can be told.
    pub fn of(&self, gpu: &PagedGpu) -> Vec<Weak<RegionInner>> {
        let regions = self.lock();
        let of_it = |region: &&Weak<RegionInner>| region.upgrade().is_some_and(|region| region.is_of(gpu));
        regions.iter().filter(of_it).cloned().collect()
    }
}

/// Where a region is made.
#[derive(Clone)]
pub(crate) struct RegionPlace {
    pub gpu: Arc<PagedGpu>,
    pub regions: Arc<Regions>,
}

/// What a region is to be, besides its home.
pub(crate) struct Plan {
    name: String,
    read_only: bool,
    never_evicted: bool,
    placement: Placement,
    priority: i32,
    length: u64,
    element: ElementType,
    /// The checksum of each page, 0 where it is not known; none for a region without.
    checksums: Option<Vec<u32>>,
}

impl RegionInner {
    /// Makes a region whose pages live at `homes`: one, or two of the same kind.
    fn create(place: &RegionPlace, plan: Plan, homes: Vec<Arc<dyn Home>>) -> Result<Arc<Self>> {
        let pages = Pages::new(plan.length * plan.element.bytes() as u64, place.gpu.page_shift());
        if pages.count() >= layout::REGION_PAGES_MAX {
            return Err(Error::Region {
                region: plan.name,
                reason: format!("{} pages are too many: at most 2^44 less one", pages.count()),
            });
        }
        let own = OnGpu::create(&place.gpu, &plan, pages, homes)?;
        let region = Arc::new(Self {
            own: Arc::new(own),
            others: Mutex::default(),
            name: plan.name,
            pages,
            read_only: plan.read_only,
            never_evicted: plan.never_evicted,
            placement: plan.placement,
            advised: Mutex::default(),
            priority: plan.priority.into(),
            rank: AtomicU32::default(),
            regions: Arc::clone(&place.regions),
            element: plan.element,
            length: plan.length,
            launches: Mutex::default(),
            closed: AtomicBool::new(false),
            leaked: AtomicBool::new(false),
            failure: Mutex::default(),
        });
        region.enter(&place.regions)?;
        place.regions.rank()?;
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
        self.own.gpu.enter(&self.own.view, || {
            self.join_local_homes();
            self.own.write_stripes()?;
            Ok(self.desc(&self.own, Advised::default()))
        })?;
        regions.push(Arc::downgrade(self));
        Ok(())
    }

    /// Whether it was made on that GPU.
    fn is_of(&self, gpu: &PagedGpu) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.own.gpu), gpu)
    }

    /// Whether both lie over the same host memory, or the same bytes of a file, and one may be written.
    fn clashes_with(&self, other: &Self) -> bool {
        if other.has_ended() || (self.read_only && other.read_only) {
            return false;
        }
        let (mine, theirs) = (self.home(), other.home());
        let one_memory = mine.host_memory().zip(theirs.host_memory());
        let one_file = mine.file_span().zip(theirs.file_span());
        one_memory.is_some_and(|(mine, theirs)| !mine.is_apart_from(theirs))
            || one_file.is_some_and(|(mine, theirs)| mine.meets(&theirs))
    }

    /// Its home; of two the first.
    fn home(&self) -> &dyn Home {
        self.own.home()
    }

    /// The homes with their replicas' numbers.
    fn rows(&self) -> impl Iterator<Item = (usize, &dyn Home)> {
        self.own.homes.iter().map(|reached| &*reached.home).enumerate()
    }

    /// Whether it has given its frames and its host memory back.
    pub fn has_ended(&self) -> bool {
        self.own.view.has_ended()
    }

    /// As the lanes of a GPU find it.
    fn desc(&self, on: &OnGpu, advised: Advised) -> RegionDesc {
        let stripes = on.stripes_of(&on.homes[0]);
        RegionDesc {
            words: on.view.words_addr(),
            bytes: self.pages.bytes(),
            pages: self.pages.count(),
            stripes: on.gpu.stripes_addr(&on.view),
            homes: stripes.len() as u32,
            nics: stripes[0].len() as u32,
            flags: self.flags(on, advised),
            frames: on.frames_addr,
            home: on.direct_addr(),
            backed_off_until: 0,
            replicas: self.replicas(),
            stale: on.guards.stale,
            stale_words: self.pages.count().div_ceil(32),
            joins: on.guards.joins,
            checksums: on.guards.checksums,
            pad: 0,
            homes_reciprocal: layout::reciprocal(stripes.len() as u32),
            victims: self.victims_on(on).map_or(0, Victims::desc_addr),
            reserved: 0,
        }
    }

    /// `REGION_*` on a GPU under such advice.
    fn flags(&self, on: &OnGpu, advised: Advised) -> u32 {
        let flag = |set, flag| if set { flag } else { 0 };
        let array_flags = self.array_flags(on, advised);
        layout::REGION_LIVE
            | advised.region_flags()
            | self.rank_flags()
            | flag(self.read_only, layout::REGION_READ_ONLY)
            | flag(self.never_evicted, layout::REGION_NEVER_EVICTED)
            | flag(self.is_replicated(), layout::REGION_REPLICATED)
            | flag(on.guards.checksums != 0, layout::REGION_CHECKED)
            | flag(array_flags & layout::ARRAY_DUELS != 0, layout::REGION_DUELS)
            | flag(
                array_flags & layout::ARRAY_FETCH_WHILE_FREE != 0,
                layout::REGION_FETCH_WHILE_FREE,
            )
    }

    /// Where its clean pages go that leave their frames on that GPU.
    fn victims_on<'a>(&self, on: &'a OnGpu) -> Option<&'a Victims> {
        on.gpu.victims().filter(|_| on.view.has_victims())
    }

    /// `ARRAY_*` of the kernel argument on a GPU under such advice.
    fn array_flags(&self, on: &OnGpu, advised: Advised) -> u32 {
        if on.view.has_victims() {
            return on.view.array_flags();
        }
        let kind = (self.never_evicted, self.read_only);
        let placement = advised.placement.unwrap_or(self.placement);
        let home = on.direct_addr();
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
            false => unsafe { self.home().read(&**self.own.gpu.device(), offset, out) },
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
        match self.own.guards.checksums {
            // SAFETY: passed on from the caller.
            0 => unsafe { self.copy_in_anywhere(offset, data) },
            // SAFETY: as above.
            _ => unsafe { self.copy_in_checked(offset, data) },
        }
    }

    /// The argument of a launch on a GPU whose `VmDesc` is at `vm`.
    pub fn array(&self, on: &OnGpu, vm: u64) -> layout::ArrayDesc {
        let page_shift = on.gpu.page_shift();
        layout::ArrayDesc {
            words: on.view.words_addr(),
            frames: on.frames_addr,
            length: self.length,
            vm,
            home: on.direct_addr(),
            bytes: self.pages.bytes(),
            page_shift,
            region: on.view.id() | self.array_flags(on, *self.advised.lock()),
            offset_mask: (1 << page_shift) - 1,
            frame_scale: 1 << (page_shift - layout::FRAME_SHIFT),
        }
    }

    /// Something that the host begins to do with the region, until it is dropped.
    #[must_use = "it ends when it is dropped"]
    pub fn span(&self, what: &str) -> Span {
        self.own.gpu.span(|| format!("{what} of region `{}`", self.name))
    }

    pub fn lock(&self) -> MutexGuard<'_, Naming> {
        self.launches.lock()
    }

    /// Waits for the launches that name the region, on all GPUs, and keeps others from beginning while the guard lives.
    pub fn quiesce(&self) -> MutexGuard<'_, Naming> {
        let mut launches = self.lock();
        launches.settle();
        launches
    }

    /// Has the system store what the homes hold.
    fn sync(&self) -> Result<()> {
        self.rows().try_for_each(|(_, home)| home.sync())
    }

    fn check_range(&self, range: &Range<u64>) -> Result<()> {
        check_range(&self.name, range, self.length)
    }
}
