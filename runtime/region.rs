//! Regions: arrays in host memory or at memory nodes, whose pages kernels fetch.

use std::{
    marker::PhantomData,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytemuck::Pod;
use gpuvm_gpu::{DeviceMemory, GpuError};
use gpuvm_layouts::{self as layout, PageWord, RegionDesc, StripeDesc};
use gpuvm_nic::Access;

use crate::{
    error::{Doing, Error, Result},
    frames::FrameMemory,
    home::{Home, HomeKeys, HostMemory, NodeMemory, Owner, Reach},
    launch::InFlight,
    local_home::Span,
    vm::{Retired, Vm, VmInner},
};

mod builder;
mod guard;
mod nodes;
mod page_table;
mod stripes;

pub use builder::{Integrity, RegionBuilder};
pub use guard::{HomeHealth, RegionHealth};
pub(crate) use nodes::Moved;
use page_table::PageTable;

/// How long a scope waits for the NIC to let go of borrowed memory before the process ends.
const BORROWED_WAIT: Duration = Duration::from_secs(60);
/// How often a last flush that was stopped with another launch is begun again.
const STOPPED_MAX: u32 = 8;

/// What a region is to the machine; its handle and the launches that name it share it.
pub(crate) struct RegionInner {
    pub vm: Arc<VmInner>,
    pub id: u32,
    pub name: String,
    pub pages: u64,
    pub read_only: bool,
    /// Its frames are its own, one a page.
    pub never_evicted: bool,
    pub element_bytes: u32,
    pub length: u64,
    bytes: u64,
    home: Home,
    /// The other home of each page of a replicated region, of the same kind.
    mirror: Option<Home>,
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

// SAFETY: the host memory's address is the only field that is not Send. It is dereferenced only by `copy_out` and
// `copy_in`, under the `launches` lock and after a flush, and by the NIC, which synchronises through completions.
unsafe impl Send for RegionInner {}
// SAFETY: as for Send; every access through a shared RegionInner takes that lock.
unsafe impl Sync for RegionInner {}

impl VmInner {
    /// Lets the NIC or the lanes reach a region's home.
    fn reach(&self, memory: &HostMemory, read_only: bool, name: &str) -> Result<Reach> {
        if memory.bytes == 0 {
            return Ok(Reach::Nobody);
        }
        let doing = || format!("registering region `{name}`");
        match self.nics.is_empty() {
            false => {
                let access = match read_only {
                    true => Access::REMOTE_READ,
                    false => Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
                };
                // Before the keys: requests that name them move by way of the GPU.
                let pinned = match self.nics.iter().any(|nic| nic.capabilities().has_mover) {
                    // SAFETY: the memory outlives the registration, which is dropped when the keys are gone.
                    true => Some(unsafe { self.gpu.register_host(memory.base, memory.bytes, read_only) }.doing(doing)?),
                    false => None,
                };
                let mut keys = HomeKeys::default();
                for nic in &self.nics {
                    // SAFETY: the memory outlives the keys: `close`, or `drop` when the region's creation fails,
                    // deregisters first, and when that fails the memory is leaked (owned) or the process ends
                    // (borrowed). No Rust reference to it exists until then.
                    let key = unsafe { nic.register(memory.base as u64, memory.bytes, access) };
                    keys.push(nic, key.doing(doing)?);
                }
                Ok(Reach::Nics(Mutex::new(keys), Mutex::new(pinned)))
            }
            true => {
                // SAFETY: as above; lanes write it only where the region may be written.
                let registered = unsafe { self.gpu.register_host(memory.base, memory.bytes, read_only) };
                let registered = registered.doing(doing)?;
                Ok(Reach::Lanes(Mutex::new(Some(registered))))
            }
        }
    }

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
    /// Makes a region of memory that stays valid as `HostMemory` says, or of a neighbour's or nodes' memory.
    fn create(vm: &Vm, plan: Plan, source: Source) -> Result<Arc<Self>> {
        let inner = &vm.inner;
        let Plan {
            name,
            read_only,
            never_evicted,
            length,
            element_bytes,
            checksums,
        } = plan;
        let bytes = length * u64::from(element_bytes);
        let pages = bytes.div_ceil(1 << inner.page_shift);
        let refuse = |reason: String| {
            Err(Error::Region {
                region: name.clone(),
                reason,
            })
        };
        if pages >= layout::REGION_PAGES_MAX {
            return refuse(format!("{pages} pages are too many: at most 2^44 less one"));
        }
        let words = PageTable::absent(&*inner.gpu, pages, never_evicted)
            .doing(|| format!("allocating the page table of region `{name}`"))?;
        let own_frames = match never_evicted && pages > 0 {
            true => Some(inner.own_frames(&name, pages)?),
            false => None,
        };
        let frames_addr = match &own_frames {
            Some(frames) => frames.addr(),
            None if never_evicted => 0,
            None => inner.frames.addr(),
        };
        let at_nodes = |memory| Home::Nodes(Mutex::new(Some(memory)));
        let at_host = |memory| {
            let reach = inner.reach(&memory, read_only, &name)?;
            Ok(Home::Host(memory, reach))
        };
        let (home, mirror) = match source {
            Source::Nodes(memory, mirror) => (at_nodes(memory), mirror.map(at_nodes)),
            Source::Neighbour(memory) => (Home::Neighbour(Mutex::new(memory)), None),
            Source::Host(memory, mirror) => (at_host(memory)?, mirror.map(at_host).transpose()?),
        };
        let guards = guard::Guards::create(inner, pages, mirror.is_some(), checksums.as_deref())
            .doing(|| format!("allocating what guards region `{name}`"))?;
        // From here on dropping it gives the key back.
        let mut region = Self {
            vm: Arc::clone(inner),
            id: 0,
            name,
            pages,
            read_only,
            never_evicted,
            element_bytes,
            length,
            bytes,
            home,
            mirror,
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
        let mut state = inner.lock();
        for other in state.regions.iter().flatten().filter_map(Weak::upgrade) {
            if region.clashes_with(&other) {
                return Err(Error::Overlap {
                    region: region.name.clone(),
                    other: other.name.clone(),
                });
            }
        }
        region.check_sessions()?;
        let Some(id) = state.free_region() else {
            let limit = state.regions.len();
            return Err(Error::Region {
                region: region.name.clone(),
                reason: format!("all {limit} places for regions are taken: drop some, or raise VmBuilder::regions_max"),
            });
        };
        region.id = id as u32;
        region.join_local_homes();
        region.write_stripes()?;
        inner
            .regions
            .write(&*inner.gpu, id as u64, &[region.desc()])
            .doing(|| format!("describing region `{}`", region.name))?;
        let region = Arc::new(region);
        state.regions[id] = Some(Arc::downgrade(&region));
        inner.write_low_water(&state)?;
        Ok(region)
    }

    /// Whether both lie over the same host memory, or map the same file, and one may be written.
    fn clashes_with(&self, other: &Self) -> bool {
        let (Home::Host(mine, _), Home::Host(theirs, _)) = (&self.home, &other.home) else {
            return false;
        };
        let one_file = matches!((mine.file(), theirs.file()), (Some(a), Some(b)) if a.is_of_the_file_of(b));
        let (mine, theirs) = (mine.span(), theirs.span());
        let apart = (theirs.end <= mine.start || mine.end <= theirs.start) && !one_file;
        let empty = mine.is_empty() || theirs.is_empty();
        !(apart || empty || other.has_ended() || (self.read_only && other.read_only))
    }

    /// Whether it has given its frames and its host memory back.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn desc(&self) -> RegionDesc {
        let homes = self.homes(0, &self.home);
        RegionDesc {
            words: self.words_addr,
            bytes: self.bytes,
            pages: self.pages,
            stripes: self.vm.stripes.addr() + self.first_stripe() * size_of::<StripeDesc>() as u64,
            homes: homes.len() as u32,
            nics: homes[0].len() as u32,
            flags: layout::REGION_LIVE | self.flags(),
            frames: self.frames_addr,
            home: self.home.direct_addr(),
            rest_until: 0,
            replicas: self.replicas(),
            stale: self.guards.stale,
            stale_words: self.pages.div_ceil(32),
            joins: self.guards.joins,
            checksums: self.guards.checksums,
            reserved_tail: [0; 7],
        }
    }

    fn flags(&self) -> u32 {
        let flag = |set, flag| if set { flag } else { 0 };
        flag(self.read_only, layout::REGION_READ_ONLY)
            | flag(self.never_evicted, layout::REGION_NEVER_EVICTED)
            | flag(self.mirror.is_some(), layout::REGION_REPLICATED)
            | flag(self.guards.checksums != 0, layout::REGION_CHECKED)
    }

    /// Which machine holds a page, for messages; nothing for this host.
    pub fn holder_of(&self, page: u64) -> Option<String> {
        match &self.home {
            Home::Host(..) if self.mirror.is_some() => Some("two homes of this host".into()),
            Home::Host(..) => None,
            Home::Neighbour(_) => Some("a neighbour GPU".into()),
            Home::Nodes(memory) => {
                let memory = memory.try_lock().ok()?;
                let grants = &memory.as_ref()?.grants;
                let client = grants.get((page % (grants.len() as u64).max(1)) as usize)?.client();
                Some(match client.failure() {
                    Some(why) => format!("memory node {} ({why})", client.address()),
                    None => format!("memory node {}", client.address()),
                })
            }
        }
    }

    /// Copies bytes of the home out.
    ///
    /// # Safety
    /// The span lies in the region, and nobody writes it: no launch that names the region is in flight, and its last
    /// WRITE has completed.
    unsafe fn copy_out(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match &self.mirror {
            // SAFETY: passed on from the caller.
            None => unsafe { self.copy_out_of(&self.home, offset, out) },
            // SAFETY: as above.
            Some(_) => unsafe { self.copy_out_of_replicas(offset, out) },
        }
    }

    /// The same from one of the region's homes.
    ///
    /// # Safety
    /// As for [`copy_out`](Self::copy_out).
    unsafe fn copy_out_of(&self, home: &Home, offset: u64, out: &mut [u8]) -> Result<()> {
        match home {
            Home::Host(memory, _) => {
                // SAFETY: the home is valid while `self` lives; the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(memory.base.add(offset as usize), out.as_mut_ptr(), out.len()) };
                Ok(())
            }
            Home::Neighbour(memory) => match &*memory.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(memory) if !out.is_empty() => {
                    let read = self.vm.gpu.read(memory.addr() + offset, out);
                    read.doing(|| format!("reading region `{}` from a neighbour GPU", self.name))
                }
                _ => Ok(()),
            },
            Home::Nodes(memory) => match &*memory.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(memory) if !out.is_empty() => {
                    let read = memory.read(offset, out);
                    read.doing(|| format!("reading region `{}`", self.name))
                }
                _ => Ok(()),
            },
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

    /// The same to one of the region's homes.
    ///
    /// # Safety
    /// As for [`copy_in`](Self::copy_in).
    unsafe fn copy_in_to(&self, home: &Home, offset: u64, data: &[u8]) -> Result<()> {
        match home {
            Home::Host(memory, _) => {
                // SAFETY: as in `copy_out`.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), memory.base.add(offset as usize), data.len()) };
                Ok(())
            }
            Home::Neighbour(memory) => match &*memory.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(memory) if !data.is_empty() => {
                    let written = self.vm.gpu.write(memory.addr() + offset, data);
                    written.doing(|| format!("writing region `{}` at a neighbour GPU", self.name))
                }
                _ => Ok(()),
            },
            Home::Nodes(memory) => match &*memory.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(memory) if !data.is_empty() => {
                    let written = memory.write(offset, data);
                    written.doing(|| format!("writing region `{}`", self.name))
                }
                _ => Ok(()),
            },
        }
    }

    /// The kernel argument.
    pub fn array(&self) -> layout::ArrayDesc {
        layout::ArrayDesc {
            words: self.words_addr,
            frames: self.frames_addr,
            length: self.length,
            vm: self.vm.desc.addr(),
            home: self.home.direct_addr(),
            bytes: self.bytes,
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
        page_table::words(self.pages, self.never_evicted) * size_of::<u64>() as u64
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
        if self.read_only || self.pages == 0 || !self.may_have_writes() {
            return Ok(());
        }
        self.vm.support.flush(&self.vm, self.id, self.pages, &self.name)
    }

    /// The same while the launches are locked and none that names the region runs: then the home holds everything.
    fn flush_quiet(&self) -> Result<()> {
        self.flush_pages()?;
        self.unflushed.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Has the system write a mapped file.
    fn sync_file(&self) -> Result<()> {
        let Home::Host(memory, _) = &self.home else {
            return Ok(());
        };
        let Some(file) = memory.file() else { return Ok(()) };
        file.sync().map_err(|source| Error::Sync {
            region: self.name.clone(),
            path: file.path().to_owned(),
            source,
        })
    }

    fn release_pages(&self, discard: bool) -> Result<()> {
        if self.pages == 0 {
            return Ok(());
        }
        self.vm
            .support
            .release(&self.vm, self.id, self.pages, discard, &self.name)
    }

    /// Ends the region: its launches, its dirty pages, its frames, its key. The first error is returned; what could
    /// be done is done all the same. `borrowed` memory must not be returned to its owner while the NIC may reach it.
    pub fn close(&self, borrowed: bool) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let guard = self.quiesce();
        // Once more after an error: the second launch finds the queue pairs mended, and pages are dropped only then. A flush
        // that was stopped together with somebody's launch says nothing of the pages.
        let mut flushed = self.flush_quiet();
        for _ in 0..STOPPED_MAX {
            if !matches!(flushed, Err(Error::Stopped { .. })) {
                break;
            }
            flushed = self.flush_quiet();
        }
        let flushed = flushed.or_else(|_| self.flush_quiet());
        let synced = self.sync_file();
        let released = match self.vm.lost() {
            // What is in GPU memory is gone; `flushed` says whether that matters.
            Some(_) => Ok(()),
            None => self.release_pages(flushed.is_err()),
        };
        let gone = self.let_go(borrowed);
        // Where frames are left, launches in flight may post WRITEs still: the nodes' memory goes with the region then.
        if released.is_ok() {
            self.home.leave_nodes();
            if let Some(mirror) = &self.mirror {
                mirror.leave_nodes();
            }
        }
        self.retire(released.is_err());
        drop(guard);
        // A finished launch keeps its regions, and they this virtual memory: it must not wait for a later call to go.
        self.vm.prune();
        flushed.and(synced).and(released).and(gone)
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

    /// Hands the page table to whoever gives it back once no lane can look at it any more.
    fn retire(&self, frames_left: bool) {
        let mut state = self.vm.lock();
        // Frames of the region that are left, if any, are found by the host's pass.
        state.needs_recovery |= frames_left;
        self.ended.store(true, Ordering::Release);
        if let Err(error) = self.vm.write_low_water(&state) {
            tracing::warn!(%error, "pages are evicted ahead though frames would do for all");
        }
        if let Some(tables) = self.lock_tables().take() {
            state.retired.push(Retired {
                id: self.id,
                _tables: tables,
            });
        }
    }

    /// The error of a drop that could not return it.
    pub fn take_failure(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    fn deregister(&self) -> Result<()> {
        self.leave_local_homes();
        let mirror = self
            .mirror
            .as_ref()
            .map_or(Ok(()), |mirror| self.deregister_home(mirror));
        self.deregister_home(&self.home).and(mirror)
    }

    fn deregister_home(&self, home: &Home) -> Result<()> {
        match home {
            Home::Host(_, Reach::Nics(keys, pinned)) => {
                let mut keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
                keys.deregister()
                    .doing(|| format!("deregistering region `{}`", self.name))?;
                drop(pinned.lock().unwrap_or_else(PoisonError::into_inner).take());
                Ok(())
            }
            Home::Host(_, Reach::Lanes(registration)) => {
                let mut registration = registration.lock().unwrap_or_else(PoisonError::into_inner);
                // A dead context reaches nothing; a kernel that runs on may reach the memory for ever.
                if let Some(cause) = self.vm.gpu.lost()
                    && !matches!(cause, GpuError::Lost { .. })
                {
                    std::mem::forget(registration.take());
                    return Err(cause).doing(|| format!("taking region `{}` from its lanes", self.name));
                }
                drop(registration.take());
                Ok(())
            }
            Home::Neighbour(memory) => {
                drop(memory.lock().unwrap_or_else(PoisonError::into_inner).take());
                Ok(())
            }
            Home::Host(_, Reach::Nobody) | Home::Nodes(_) => Ok(()),
        }
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

impl Drop for RegionInner {
    fn drop(&mut self) {
        // Not closed: creation failed half-way, and no kernel ever saw the region.
        let closed = *self.closed.get_mut();
        if *self.leaked.get_mut() || (!closed && self.deregister().is_err()) {
            tracing::error!(
                "region `{}` may be reached by the NIC or the GPU still; its memory is leaked",
                self.name
            );
            for home in std::iter::once(&mut self.home).chain(&mut self.mirror) {
                if let Home::Host(memory, _) = home {
                    std::mem::forget(std::mem::replace(&mut memory.owner, Owner::Borrowed));
                }
            }
        }
    }
}

/// An array in host memory, or at memory nodes, that kernels reach page by page: the argument for a `gpuvm::array<T>` parameter.
///
/// Dropping it waits for the launches that name it, writes its dirty pages home and gives its frames back; use
/// [`close`](Self::close) to see whether that worked.
pub struct Region<T> {
    pub(crate) inner: Arc<RegionInner>,
    borrowed: bool,
    _elements: PhantomData<T>,
}

impl<T: Pod> Region<T> {
    /// Elements.
    pub fn len(&self) -> u64 {
        self.inner.length
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.inner.length == 0
    }

    /// The name that errors use.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Whether kernels may only read it.
    pub fn is_read_only(&self) -> bool {
        self.inner.read_only
    }

    /// Pages, the last one perhaps not whole.
    pub fn pages(&self) -> u64 {
        self.inner.pages
    }

    /// Writes home what the launches that were enqueued before this call, and that name the region, wrote.
    ///
    /// # Errors
    /// [`Error::Fault`] naming the first page that could not be written; it stays dirty in GPU memory and a later
    /// flush tries again.
    pub fn flush(&self) -> Result<()> {
        let _guard = self.inner.quiesce();
        self.inner.flush_quiet()?;
        self.inner.sync_file()
    }

    /// The same without waiting for launches: it covers the writes that happened before it, and ends although kernels
    /// write on. A never-evicted region is flushed as by [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_beside(&self) -> Result<()> {
        if self.inner.never_evicted {
            // Its lanes store without a pin, so a page that is being written cannot be told from one that is not.
            return self.flush();
        }
        self.inner.flush_pages()?;
        self.inner.sync_file()
    }

    /// Writes dirty pages home and gives the frames back, so that the next launch finds no page in GPU memory. Waits for
    /// the launches that name the region.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn evict(&self) -> Result<()> {
        let _guard = self.inner.quiesce();
        self.inner.release_pages(false)
    }

    /// Copies elements from `first` on into `out`, after a flush.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and as [`flush`](Self::flush).
    pub fn read(&self, first: u64, out: &mut [T]) -> Result<()> {
        self.inner
            .check_range(&(first..first.saturating_add(out.len() as u64)))?;
        let _guard = self.inner.quiesce();
        self.inner.flush_quiet()?;
        self.copy(first, out)
    }

    /// # Errors
    /// Of a home that is elsewhere. The range is checked, no launch names the region until this has returned, and its last
    /// WRITE has completed, or the GPU is lost.
    fn copy(&self, first: u64, out: &mut [T]) -> Result<()> {
        let offset = first * size_of::<T>() as u64;
        // SAFETY: nobody writes the home, as this function's callers see to.
        let copied = unsafe { self.inner.copy_out(offset, bytemuck::cast_slice_mut(out)) };
        self.inner.vm.or_lost(copied)
    }

    /// All elements as [`to_vec`](Self::to_vec) gives them; or, when the GPU is lost, as the home holds them: with what had
    /// been written back by then, and without what was only in GPU memory. [`Error::GpuLost`] says whether that is the same.
    ///
    /// # Errors
    /// As [`flush`](Self::flush) while the GPU is there; [`Error::GpuLost`] when the home itself was a GPU's memory.
    pub fn read_home(&self) -> Result<Vec<T>> {
        let mut out = vec![T::zeroed(); self.len() as usize];
        let _guard = self.inner.quiesce();
        if self.inner.vm.lost().is_none() {
            self.inner.flush_quiet()?;
        }
        self.copy(0, &mut out)?;
        Ok(out)
    }

    /// Stores `values` from element `first` on. Kernels launched later see them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Region`] when it is read-only, and as [`flush`](Self::flush).
    pub fn write(&self, first: u64, values: &[T]) -> Result<()> {
        self.inner
            .check_range(&(first..first.saturating_add(values.len() as u64)))?;
        if self.inner.read_only {
            return Err(Error::Region {
                region: self.inner.name.clone(),
                reason: "it is read-only".into(),
            });
        }
        let _guard = self.inner.quiesce();
        self.inner.release_pages(false)?;
        let offset = first * size_of::<T>() as u64;
        // SAFETY: as in `read`; after the release no frame holds a page of the region, so nobody reads or writes the home
        // until a launch that begins after the guard is gone.
        let copied = unsafe { self.inner.copy_in(offset, bytemuck::cast_slice(values)) };
        self.inner.vm.or_lost(copied)
    }

    /// All elements, after a flush.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut out = vec![T::zeroed(); self.len() as usize];
        self.read(0, &mut out)?;
        Ok(out)
    }

    /// The pages that are newer in GPU memory than at their home, with what they hold: what is left to save when the home
    /// cannot be reached any more. They stay dirty. Waits for all launches of the virtual memory.
    ///
    /// # Errors
    /// [`Error::Gpu`] when GPU memory cannot be read.
    pub fn salvage(&self) -> Result<Vec<DirtyPage<T>>> {
        let _guard = self.inner.quiesce();
        let pages = self.inner.vm.at_rest(|| self.read_dirty());
        self.inner.vm.or_lost(pages)
    }

    /// No launch may run.
    fn read_dirty(&self) -> Result<Vec<DirtyPage<T>>> {
        let inner = &self.inner;
        let in_page = self.inner.vm.page_elements::<T>();
        let mut found = Vec::new();
        for (page, bits) in (0..).zip(inner.read_words()?) {
            let word = PageWord::from_bits(bits);
            let resident = u64::from(word.state) == layout::STATE_RESIDENT;
            if !resident || !(word.dirty || word.write_back) {
                continue;
            }
            let first = page * in_page;
            let mut elements = vec![T::zeroed(); in_page.min(inner.length - first) as usize];
            let address = inner.frames_addr + (u64::from(word.frame) << inner.vm.page_shift);
            let read = inner.vm.gpu.read(address, bytemuck::cast_slice_mut(&mut elements));
            read.doing(|| format!("salvaging page {page} of region `{}`", inner.name))?;
            found.push(DirtyPage { first, elements });
        }
        Ok(found)
    }

    /// Ends the region and says whether every page reached its home.
    ///
    /// # Errors
    /// As [`flush`](Self::flush): then the pages that could not be written are lost with the region.
    pub fn close(self) -> Result<()> {
        self.inner.close(self.borrowed)
    }
}

/// A page that is newer in GPU memory than at its home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirtyPage<T> {
    /// Its first element's index in the region.
    pub first: u64,
    /// Its elements; the last page of a region may have fewer than the others.
    pub elements: Vec<T>,
}

impl<T> Drop for Region<T> {
    fn drop(&mut self) {
        if let Err(error) = self.inner.close(self.borrowed) {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "region `{}` did not end well",
                self.inner.name
            );
            if self.borrowed {
                *self.inner.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        }
    }
}

impl<T> std::fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Region({:?}, {} elements of {} bytes)",
            self.inner.name, self.inner.length, self.inner.element_bytes
        )
    }
}

/// What a region is made of.
enum Source {
    Host(HostMemory, Option<HostMemory>),
    Neighbour(Option<DeviceMemory>),
    Nodes(NodeMemory, Option<NodeMemory>),
}
