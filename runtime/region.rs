//! Regions: arrays in host memory or at memory nodes, whose pages kernels fetch. How one begins and ends.

use std::{
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use gpuvm_layouts::{self as layout, RegionDesc};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    element::ElementType,
    error::{Error, Result, check_range},
    gpu::{PagedGpu, PlainMemory},
    home::Home,
    launch::{LaunchTracker, Standing},
    launch_state::StateSlot,
    pages::Pages,
    placement::Effective,
    timeline::Span,
};

mod advice;
mod book;
mod builder;
mod draws;
mod flags;
mod handle;
mod health;
mod hints;
mod nodes;
mod on_gpu;
mod replicas;
mod series;
mod sharing;

pub use advice::Advice;
use advice::Advised;
use book::Listed;
pub use builder::{Integrity, RegionBuilder, SharedRegion};
pub(crate) use flags::{Kind, placement_of};
pub use handle::{DirtyPage, RawRegion, Region};
pub use health::{HomeHealth, RegionHealth};
pub(crate) use nodes::Moved;
pub(crate) use on_gpu::OnGpu;
pub use series::{HomeMemory, Series, TellWords};

/// The regions of a virtual memory, on all of its GPUs.
pub(crate) type Regions = book::Regions<RegionInner>;

/// How long a scope waits for the NIC to let go of borrowed memory before the process ends.
const BORROWED_WAIT: Duration = Duration::from_secs(60);
/// How often a last flush that was stopped with another launch is begun again.
const STOPPED_MAX: u32 = 8;

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
    pub kind: Kind,
    /// Held while a GPU is added as well, which begins with the advice that holds.
    advised: Mutex<Advised>,
    /// Whose pages leave first, as the program says, and how lanes are told. Relaxed: hints.
    priority: AtomicI32,
    rank: AtomicU32,
    regions: Arc<Regions>,
    /// Tells it apart from all others of its virtual memory.
    number: u64,
    pub element: ElementType,
    pub length: u64,
    /// Launches that name the region, and which GPU's copies count. Held while the host reads or writes the home, so that none begins
    /// meanwhile.
    launches: Mutex<LaunchTracker>,
    /// The homes may hold what the system has not stored. Relaxed: the lock on the launches orders it.
    unsynced: AtomicBool,
    /// How often somebody began to store to it. Relaxed: who stores is ordered by streams, or by the lock on the launches.
    stores: AtomicU64,
    /// `close` has begun.
    closed: AtomicBool,
    /// The home may be reached still: its memory is never given back.
    leaked: AtomicBool,
    /// Why a borrowed region that was dropped did not end well: its scope returns it.
    failure: Mutex<Option<Error>>,
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
    kind: Kind,
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
        let own = OnGpu::create(
            &place.gpu,
            &plan.name,
            plan.kind,
            pages,
            homes,
            plan.checksums.as_deref(),
        )?;
        let region = Arc::new(Self {
            own: Arc::new(own),
            others: Mutex::default(),
            name: plan.name,
            pages,
            kind: plan.kind,
            advised: Mutex::default(),
            priority: plan.priority.into(),
            rank: AtomicU32::default(),
            regions: Arc::clone(&place.regions),
            number: place.regions.next_number(),
            element: plan.element,
            length: plan.length,
            launches: Mutex::default(),
            unsynced: AtomicBool::new(false),
            stores: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            leaked: AtomicBool::new(false),
            failure: Mutex::default(),
        });
        place.regions.enter(&region)?;
        if let Err(error) = place.regions.rank(&region) {
            // Nothing has its handle.
            place.regions.leave(&region);
            region.own.gpu.retire(&region.own.view, false);
            return Err(error);
        }
        Ok(region)
    }

    /// Whether it was made on that GPU.
    fn is_of(&self, gpu: &PagedGpu) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.own.gpu), gpu)
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
            replicas: on.homes.len() as u32,
            stale: on.guards.stale,
            stale_words: self.pages.count().div_ceil(32),
            joins: on.guards.joins,
            checksums: on.guards.checksums,
            pad: 0,
            homes_reciprocal: layout::reciprocal(stripes.len() as u32),
            victims: on.victims_addr(),
            reserved: 0,
        }
    }

    /// `REGION_*` on a GPU under such advice.
    fn flags(&self, on: &OnGpu, advised: Advised) -> u32 {
        // Relaxed: a number by itself.
        on.traits.region_flags(advised, self.rank.load(Ordering::Relaxed))
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
            // Not under the advice's lock: the GPU's state is locked.
            region: on.view.id() | on.view.array_flags(),
            offset_mask: (1 << page_shift) - 1,
            frame_scale: 1 << (page_shift - layout::FRAME_SHIFT),
        }
    }

    /// The argument of a launch in that state which looks pages up.
    /// `plain`: where it lies as plain memory, for a launch that uses it so.
    pub fn looked_up(&self, on: &OnGpu, state: &StateSlot, plain: Option<PlainMemory>) -> layout::LookedUpDesc {
        let sampled = match on.view.is_crowded() {
            true => layout::ARRAY_SAMPLED,
            false => 0,
        };
        layout::LookedUpDesc {
            // It was written before the launch.
            places: plain.map_or_else(|| on.view.places_addr().unwrap_or_default(), |plain| plain.first),
            marks: on.view.marks_addr(),
            length: self.length,
            vm: state.vm_addr(),
            past: state.watch_past(on.view.id(), self.length),
            page_shift: on.gpu.page_shift(),
            region: on.view.id() | on.view.array_flags() | sampled,
            // `Traits::effective` sees to it.
            pages: self.pages.count() as u32,
            reserved: 0,
            dummy: plain.map_or(0, |plain| plain.dummy),
        }
    }

    /// Where launches on a GPU use its pages.
    pub fn effective_on(&self, on: &OnGpu) -> Effective {
        on.traits.effective(*self.advised.lock())
    }

    /// Whether a launch on a GPU may look up where its pages are.
    pub fn looks_up(&self, on: &OnGpu) -> bool {
        on.view.array_flags() & layout::ARRAY_LOOKED_UP != 0
    }

    /// Whether it may while all of its pages have frames, and only then.
    pub fn looks_up_resident(&self, on: &OnGpu) -> bool {
        on.traits.is_looked_up_resident(*self.advised.lock())
    }

    /// Where GPU threads of a GPU reach its home, 0 if they do not.
    pub fn home_addr(&self, on: &OnGpu) -> u64 {
        on.direct_addr()
    }

    /// Where loads of a GPU's threads reach its home; 0 where they do not.
    pub fn loads_from(&self, on: &OnGpu) -> u64 {
        match on.home().host_memory() {
            // The simulated GPU's memory is the host's.
            Some(memory) if on.gpu.device.simulation().is_some() => memory.span().start,
            Some(_) => on.direct_addr(),
            None => 0,
        }
    }

    /// Why launches on a GPU cannot look its pages up, if so, wherever it is placed.
    pub fn why_not_looked_up(&self, on: &OnGpu) -> Option<&'static str> {
        on.traits.why_not_looked_up()
    }

    /// Something that the host begins to do with the region, until it is dropped.
    #[must_use = "the span ends when it is dropped"]
    pub fn span(&self, what: &str) -> Span {
        self.own.gpu.span(|| format!("{what} of region `{}`", self.name))
    }

    pub fn lock(&self) -> MutexGuard<'_, LaunchTracker> {
        self.launches.lock()
    }

    /// Waits for the launches that name the region, on all GPUs, and keeps others from beginning while the guard lives.
    pub fn quiesce(&self) -> MutexGuard<'_, LaunchTracker> {
        let mut launches = self.lock();
        launches.wait_idle();
        launches
    }

    /// A caller that asks for a write-back may have fixed what earlier ones failed for: nothing fails for those.
    fn retry_writes(&self) {
        self.own.rows().for_each(|(_, home)| home.retry_writes());
    }

    /// Has the system store what the homes hold, if launches or the host may have written any of it. `quiet`: none of them writes now.
    fn sync(&self, quiet: bool) -> Result<()> {
        if !self.unsynced.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.own.rows().try_for_each(|(_, home)| home.sync())?;
        if quiet {
            self.unsynced.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The homes are about to be written.
    pub fn expect_stores(&self) {
        self.unsynced.store(true, Ordering::Relaxed);
        self.stores.fetch_add(1, Ordering::Relaxed);
    }

    /// How often somebody began to store to it.
    pub fn stores(&self) -> u64 {
        self.stores.load(Ordering::Relaxed)
    }

    /// Whether it has ended, or is about to.
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with `close`.
        self.closed.load(Ordering::Acquire)
    }

    fn check_range(&self, range: &Range<u64>) -> Result<()> {
        check_range(&self.name, range, self.length)
    }

    /// Ends the region: its launches, its dirty pages, its frames, its key. The first error is returned; what could
    /// be done is done all the same. `borrowed` memory must not be returned to its owner while the NIC may reach it.
    pub fn close(&self, borrowed: bool) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let mut launches = self.quiesce();
        let graphs = self.end_graphs();
        // Whatever became of graphs: what is dirty is written back.
        let flushed = self.flush_at_last(&mut launches);
        let synced = self.sync(true);
        let everywhere = self.everywhere();
        let mut released = Ok(());
        let mut frames_left = Vec::new();
        for on in &everywhere {
            let freed = match on.gpu.lost() {
                // What is in GPU memory is gone; `flushed` says whether that matters.
                Some(_) => Ok(()),
                None => self.release_on(&mut launches, on, flushed.is_err()),
            };
            frames_left.push(freed.is_err());
            released = released.and(freed);
        }
        let gone = self.let_go(borrowed);
        // Before its place in the region table is another's, whose flags are not told it.
        self.regions.leave_ranks(self);
        // Where frames are left, launches in flight may post WRITEs still: the nodes' memory goes with the region then.
        if released.is_ok() {
            self.own.rows().for_each(|(_, home)| home.give_back());
        }
        // Last on the GPU that it was made on, which says whether it has ended.
        for (on, frames_left) in everywhere.iter().zip(frames_left).rev() {
            on.gpu.retire(&on.view, frames_left);
        }
        self.regions.leave(self);
        drop(launches);
        // A finished launch keeps its regions, and they this virtual memory: it must not wait for a later call to go.
        everywhere.iter().for_each(|on| on.gpu.prune());
        flushed.and(graphs).and(synced).and(released).and(gone)
    }

    /// The last flush. Once more after an error: the second launch finds the queue pairs recovered, and pages are dropped only then. A flush
    /// that was stopped together with somebody's launch says nothing of the pages.
    fn flush_at_last(&self, launches: &mut LaunchTracker) -> Result<()> {
        let mut flushed = self.flush_quiet(launches);
        for _ in 0..STOPPED_MAX {
            if !matches!(flushed, Err(Error::Stopped { .. })) {
                break;
            }
            flushed = self.flush_quiet(launches);
        }
        match flushed {
            // Told once, and nothing can be done about it.
            Err(Error::WritesLost { .. }) => flushed,
            flushed => flushed.or_else(|_| self.flush_quiet(launches)),
        }
    }

    /// Takes the home away from the NIC, or the lanes. Owned memory that may be reached still is leaked.
    fn let_go(&self, borrowed: bool) -> Result<()> {
        let deadline = Instant::now() + BORROWED_WAIT;
        let mut gone = self.deregister();
        while gone.is_err() && borrowed {
            if Instant::now() > deadline {
                // The lender gets its memory back on return, and the NIC would still write to it.
                tracing::error!(
                    "borrowed region `{}` may be reached by the NIC or the GPU still",
                    self.name
                );
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(10));
            gone = self.deregister();
        }
        self.leaked.store(gone.is_err(), Ordering::Release);
        gone
    }

    /// Whether it has ended and its memory may be reached still.
    pub fn is_leaked(&self) -> bool {
        self.leaked.load(Ordering::Acquire)
    }

    /// The error of a drop that could not return it.
    pub fn take_failure(&self) -> Result<()> {
        let failure = self.failure.lock().take();
        failure.map_or(Ok(()), Err)
    }

    fn deregister(&self) -> Result<()> {
        self.own.leave_local_homes();
        self.everywhere()
            .iter()
            .map(|on| on.withdraw())
            .fold(Ok(()), Result::and)
    }
}

impl Listed for RegionInner {
    fn number(&self) -> u64 {
        self.number
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_read_only(&self) -> bool {
        self.kind.read_only
    }

    fn home(&self) -> &dyn Home {
        self.own.home()
    }

    fn standing(&self) -> Standing {
        (self.advised.lock().keeps_resident(), self.priority())
    }

    fn set_rank(&self, rank: u32) -> Result<()> {
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

    fn enter_table(&self) -> Result<()> {
        self.own.check_sessions()?;
        self.own.gpu.enter(&self.own.view, || {
            self.own.join_local_homes();
            self.own.write_stripes()?;
            Ok(self.desc(&self.own, Advised::default()))
        })
    }
}

impl Regions {
    /// Those that were made on one GPU.
    pub fn of(&self, gpu: &PagedGpu) -> Vec<Weak<RegionInner>> {
        let of_it = |region: &&Weak<RegionInner>| region.upgrade().is_some_and(|region| region.is_of(gpu));
        self.with_all(|regions| regions.filter(of_it).cloned().collect())
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        // Not closed: creation failed half-way, and no kernel ever saw the region.
        let closed = *self.closed.get_mut();
        if *self.leaked.get_mut() || (!closed && self.deregister().is_err()) {
            tracing::error!(
                "region `{}` may be reached by the NIC or the GPU still; its memory is leaked",
                self.name
            );
            for reached in &self.own.homes {
                std::mem::forget(Arc::clone(&reached.home));
            }
        }
    }
}
