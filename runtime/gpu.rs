//! One GPU of a virtual memory: its frames, its queue pairs, its page tables, and the launches on it. GPUs of one virtual memory
//! know nothing of each other: regions that several of them use keep them in step (`region/sharing.rs`).

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use gpuvm_files::Tier;
use gpuvm_gpu::{Capabilities, Gpu, GpuError, Source, Stream};
use gpuvm_layouts::{REGIONS_MAX, RegionDesc, StripeDesc, TimelineDesc, VmDesc};
use gpuvm_nic::{Nic, SoftNic};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::{
    background::Background,
    device::DeviceArray,
    error::{Doing, Error, Result},
    frames::FrameMemory,
    handles::Handles,
    home::DataPaths,
    kernel_nic::KernelNic,
    launch::{InFlight, LaunchConfig, Peers},
    launch_state::StatePool,
    node::Node,
    placement::Placement,
    plan::{Settings, TransportKind},
    queues::Queues,
    timeline::{GpuTimeline, Span},
    turns::{Turn, Turns},
};

mod beside;
mod beside_state;
mod bring_up;
mod guards;
mod held;
mod holds;
mod keepers;
mod launcher;
mod lender;
mod machines;
mod meters;
mod pool;
mod read_costs;
mod recovery;
mod region_places;
mod region_table;
mod resident;
mod resizing;
mod runs;
mod scratch;
mod slot_kernels;
mod slots;
mod support;
mod victims;
mod view;
mod window;

pub(crate) use bring_up::bring_up;
pub(crate) use guards::{GuardAddresses, Guards};
use held::Holds;
pub(crate) use launcher::{Job, Named};
pub(crate) use machines::{Machines, TransportNics};
use meters::Meters;
use pool::FramePool;
pub use read_costs::ReadCosts;
pub(crate) use read_costs::measure_reads;
use region_places::RegionPlaces;
use region_table::RegionTable;
pub use resizing::Resized;
use scratch::Scratch;
pub(crate) use scratch::SlotKernels;
pub(crate) use slot_kernels::{KERNELS as SLOT_KERNELS, SOURCE as SLOT_SOURCE};
use support::Support;
pub(crate) use support::{SOURCE as SUPPORT_SOURCE, kernels as support_kernels, options as compile_options};
pub(crate) use victims::Victims;
pub(crate) use view::{PageTable, PlainMemory, RegionTables, RegionView};
pub(crate) use window::{Places, Slot, Window};

/// What changes while the GPU is used.
pub(crate) struct GpuState {
    places: RegionPlaces,
    /// In the order in which they were put on streams.
    in_flight: Vec<Arc<InFlight>>,
    /// Launches that were put on streams so far.
    put: u64,
    /// Of [`PagedGpu::ended`] those that are not in flight any more.
    pruned: u64,
    /// The host recovers all before the next launch: see [`recovery`].
    needs_recovery: bool,
    poisoned: Option<String>,
    errors: FailedPages,
}

/// Pages whose fetches have failed.
#[derive(Default)]
struct FailedPages {
    /// So far, as the host has seen it.
    counted: u64,
    /// Some may be in the error state still, for launches to come.
    found: bool,
    /// The kernels that were last put before a launch to forget them.
    clearing: Vec<Arc<InFlight>>,
}

/// What the host knows of a lost GPU since it first saw the loss.
struct Lost {
    cause: GpuError,
    /// Regions that may have lost writes.
    regions: Vec<String>,
}

/// Who catches up with homes that have returned, and why.
#[derive(Default)]
pub(crate) struct CatchingUp {
    /// Held by the thread that catches up.
    pub turn: Mutex<()>,
    /// Catching up failed, or the host has found copies to be stale: there may be some at homes that are there.
    pub behind: AtomicBool,
}

/// One GPU of a virtual memory.
pub(crate) struct PagedGpu {
    /// Its place among the GPUs of its virtual memory.
    pub place: usize,
    /// Those that keep queue pairs, catch up with homes, and so on.
    threads: Mutex<Vec<Background>>,
    /// What goes on beside kernels.
    pub turns: Arc<Turns>,
    pub catching_up: CatchingUp,
    /// Memory nodes, in the order of the groups of queue pairs.
    pub nodes: Vec<Arc<Node>>,
    // Dropped in this order: queue pairs before the memory that they reach.
    /// None where lanes copy the pages themselves.
    queues: Option<Arc<Queues>>,
    /// None where lanes copy the pages themselves.
    pub nics: Vec<Arc<dyn Nic>>,
    pub soft_nics: Vec<Arc<SoftNic>>,
    /// The NIC whose engine is a kernel, which runs while launches do.
    pub engine: Option<Arc<KernelNic>>,
    pool: FramePool,
    /// None where nothing is borrowed of neighbours.
    victims: Option<Victims>,
    /// The file cache; none where files are mapped.
    tier: Option<Tier>,
    regions: RegionTable,
    /// What the device library counted.
    pub meters: Meters,
    launch_states: Arc<StatePool>,
    desc: DeviceArray<VmDesc>,
    /// Where lanes find the timeline's ring.
    _timeline_desc: Option<DeviceArray<TimelineDesc>>,
    support: Support,
    /// Of launches that name none.
    pub stream: Arc<dyn Stream>,
    state: Mutex<GpuState>,
    lost: OnceLock<Lost>,
    /// None where nothing asked for one.
    timeline: Option<Arc<GpuTimeline>>,
    /// Held while a launch is put on a stream, alone by one that looks pages up: all that run do, or none.
    form: RwLock<()>,
    /// Memory whose pages stay where they are, since launches look them up.
    held: Mutex<Holds>,
    /// Where regions lie for kernels whose PTX was rewritten, once there are some.
    window: Mutex<Option<Arc<Window>>>,
    /// What launches that look pages up need once.
    scratch: Scratch,
    peers: Arc<Mutex<Peers>>,
    /// Launches that have ended so far.
    ended: Arc<AtomicU64>,
    pub transport: TransportKind,
    pub settings: Arc<Settings>,
    /// Whether others give up memory before the frames do. Relaxed: it orders nothing.
    frame_priority: AtomicI32,
    /// When another tenant was last given memory of the frames.
    gave: Mutex<Option<Instant>>,
    /// Its memory by handles, for whatever is mapped by its own page table.
    pub handles: Arc<Handles>,
    pub device: Arc<dyn Gpu>,
}

impl PagedGpu {
    pub fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    /// Whether both are GPUs of one virtual memory.
    pub fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.settings, &other.settings)
    }

    /// Bytes of a page, as a power of two.
    pub fn page_shift(&self) -> u32 {
        self.settings.page_size.trailing_zeros()
    }

    /// The file cache; none where files are mapped.
    pub fn tier(&self) -> Option<&Tier> {
        self.tier.as_ref()
    }

    /// None where lanes copy the pages themselves.
    pub fn queues(&self) -> Option<&Arc<Queues>> {
        self.queues.as_ref()
    }

    /// The frames of all regions that have none of their own.
    pub fn frames(&self) -> &FrameMemory {
        self.pool.memory()
    }

    /// Frames that there are, apart from regions' own.
    pub fn frame_count(&self) -> u32 {
        self.pool.count()
    }

    /// Most frames that there may be.
    pub fn frame_capacity(&self) -> u32 {
        self.pool.capacity()
    }

    /// Where clean pages go that leave their frames; none where they are dropped.
    pub fn victims(&self) -> Option<&Victims> {
        self.victims.as_ref()
    }

    /// What kernels use of the device library: `FEATURE_*`.
    pub fn features(&self) -> u32 {
        support::features(self.transport, &self.settings)
    }

    /// Address of its [`VmDesc`].
    pub fn desc_addr(&self) -> u64 {
        self.desc.addr()
    }

    /// Keeps a thread until the GPU is no virtual memory's any more.
    pub fn keep(&self, thread: Background) {
        self.threads.lock().push(thread);
    }

    /// Has turns taken every `period`, as long as they say so.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub fn take_turns(&self, name: &str, period: Duration, turn: Turn) -> Result<()> {
        self.turns
            .start(name, period, turn)?
            .into_iter()
            .for_each(|thread| self.keep(thread));
        Ok(())
    }

    /// What leads from the GPU to homes.
    pub fn data_paths(&self) -> DataPaths<'_> {
        DataPaths {
            gpu: &*self.device,
            nics: &self.nics,
            queues: self.queues.as_deref(),
            nodes: &self.nodes,
        }
    }

    /// Compiles a user's source with the device library for this transport.
    pub fn compile(
        &self,
        source: &Source,
        kernels: &[&str],
        options: &gpuvm_gpu::CompileOptions,
    ) -> Result<Arc<dyn gpuvm_gpu::Module>> {
        let options = support::options(self.transport, &self.settings, options);
        let module = self.device.compile(source, kernels, &options);
        self.map_device_lost(module.doing(|| format!("compiling {}", source.name)))
    }

    /// How the functions of the device library are compiled that PTX calls.
    pub fn library_options(&self) -> gpuvm_gpu::CompileOptions {
        support::options(self.transport, &self.settings, &Default::default())
    }

    /// Whether regions of which nothing more is said are looked up.
    pub fn looks_up_by_default(&self) -> bool {
        let asked = self.settings.placement.unwrap_or(Placement::LookUp);
        asked == Placement::LookUp && self.transport == TransportKind::Direct
    }

    /// Loads kernels that their user compiled.
    pub fn load(&self, name: &str, image: &[u8], kernels: &[&str]) -> Result<Arc<dyn gpuvm_gpu::Module>> {
        let module = self.device.load(name, image, kernels);
        self.map_device_lost(module.doing(|| format!("loading {name}")))
    }

    /// The state, also after a panic elsewhere: every change of it is complete before anything that can panic.
    fn lock(&self) -> MutexGuard<'_, GpuState> {
        self.state.lock()
    }

    /// Why nothing can be done any more, when the GPU is lost. Takes the state then.
    pub fn lost(&self) -> Option<Error> {
        self.device.lost()?;
        self.lost_with(&self.lock())
    }

    /// As [`lost`](Self::lost), for a caller who holds the state.
    fn lost_with(&self, state: &GpuState) -> Option<Error> {
        let cause = self.device.lost()?;
        let lost = self.lost.get_or_init(|| {
            let unwritten = state.live().filter(|region| region.may_have_writes());
            Lost {
                cause,
                regions: unwritten.map(|region| region.name().to_owned()).collect(),
            }
        });
        Some(Error::GpuLost {
            regions: lost.regions.clone(),
            source: lost.cause.clone(),
        })
    }

    /// What the GPU refused, as the loss of the GPU if it is that. The state must not be held.
    pub fn map_device_lost<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Err(Error::Gpu { doing, source }) => Err(match self.lost() {
                // The kernel's own error says more than what it did to the GPU.
                Some(Error::GpuLost { regions, .. }) => Error::GpuLost { regions, source },
                _ => Error::Gpu { doing, source },
            }),
            other => other,
        }
    }

    /// Something that the host begins to do here, until it is dropped: for the timeline, and for tools that watch the process.
    #[must_use = "the span ends when it is dropped"]
    pub fn span(&self, label: impl FnOnce() -> String) -> Span {
        Span::new(self.timeline.as_ref(), label)
    }

    /// None where nothing asked for one.
    pub fn timeline(&self) -> Option<&Arc<GpuTimeline>> {
        self.timeline.as_ref()
    }

    /// As [`map_device_lost`](Self::map_device_lost), for a caller who holds the state.
    pub(super) fn map_device_lost_locked<T>(&self, result: Result<T>, state: &GpuState) -> Result<T> {
        match result {
            Err(error @ Error::Gpu { .. }) => Err(self.lost_with(state).unwrap_or(error)),
            other => other,
        }
    }

    /// Calls `look` while no launch runs and none can begin.
    pub fn when_idle<R>(&self, look: impl FnOnce() -> R) -> R {
        let state = self.lock();
        for launch in &state.in_flight {
            launch.wait_done();
        }
        if let Err(error) = self.drain_graphs_of(&state) {
            tracing::warn!(error = &error as &dyn std::error::Error, "graphs may run still");
        }
        let result = look();
        drop(state);
        result
    }

    /// The regions that have not ended.
    pub fn views(&self) -> Vec<Arc<RegionView>> {
        self.lock().live().collect()
    }

    /// What is said of the home of a region's page beside a fault.
    fn holder_of(&self, region: u32, page: u64) -> Option<String> {
        // For a message only: who asks does not wait for those who hold these locks.
        let state = self.state.try_lock()?;
        let view = state.places.at(region)?;
        view.home().holder(page)
    }

    /// The shape of a kernel of the runtime over this many pages.
    fn service_config(&self, pages: u64) -> LaunchConfig {
        let threads = 64;
        let blocks = pages.div_ceil(u64::from(threads)).clamp(1, 8) as u32;
        LaunchConfig::new(blocks, threads).deadline(self.service_deadline())
    }

    /// Whether it is one, and not simulated.
    pub(crate) fn is_hardware(&self) -> bool {
        self.capabilities().compute_capability.is_some()
    }

    /// As [`service_config`](Self::service_config), by the whole GPU where lanes themselves move pages: few could not fill the link. Queues
    /// take few requests at a time, and each lane of the simulated GPU has its price.
    fn over_pages(&self, lanes: u64) -> LaunchConfig {
        let capabilities = self.capabilities();
        let config = self.service_config(lanes);
        if self.transport != TransportKind::Direct || capabilities.compute_capability.is_none() {
            return config;
        }
        // Small blocks: each has the buffers for two pages on their way.
        let [threads, ..] = config.shape.block;
        let most = u64::from(capabilities.sm_count) * 16;
        let blocks = lanes.div_ceil(u64::from(threads)).clamp(1, most) as u32;
        LaunchConfig::new(blocks, threads).deadline(self.service_deadline())
    }

    fn service_deadline(&self) -> Duration {
        self.settings.launch_deadline.max(Duration::from_secs(60))
    }

    /// Bytes of page table and frame bookkeeping.
    pub fn bookkeeping_bytes(&self) -> u64 {
        let tables: u64 = self.lock().live().map(|region| region.table_bytes()).sum();
        tables + u64::from(self.pool.capacity()) * pool::BYTES_A_FRAME
    }

    /// Tells the device how many frames to keep free: none while all pages of all regions find one.
    fn write_low_water(&self, state: &GpuState) -> Result<()> {
        let low = self.pool.low_water(state.places.evictable_pages());
        self.pool
            .free
            .set_low_water(&*self.device, low)
            .doing(|| "setting the pool's low-water mark".into())
    }

    /// Gives a region that is new a place, where kernels find it once `describe` has said what it is.
    pub fn enter(&self, view: &Arc<RegionView>, describe: impl FnOnce() -> Result<RegionDesc>) -> Result<()> {
        let (mut state, id) = loop {
            let state = self.lock();
            let Some(id) = state.places.free_place() else {
                return Err(self.no_place(view));
            };
            if self.regions.has(id) {
                break (state, id);
            }
            drop(state);
            // Without the lock: others may be asked for memory.
            self.regions.grow(&self.handles, id)?;
        };
        view.set_id(id);
        let desc = describe()?;
        if let Some(timeline) = &self.timeline {
            timeline.name_region(id, view.name());
        }
        self.regions
            .write(&*self.device, id, desc)
            .doing(|| format!("describing region `{}`", view.name()))?;
        state.places.take(id, view);
        self.write_low_water(&state).inspect_err(|_| {
            let put = state.put;
            state.places.retire(view, put);
        })
    }

    fn no_place(&self, view: &RegionView) -> Error {
        let limit = self.settings.regions_max;
        let raise = match limit < REGIONS_MAX {
            true => ", or raise the setting regions_max",
            false => "",
        };
        Error::Region {
            region: view.name().to_owned(),
            reason: format!("all {limit} region slots are in use: drop a region{raise}"),
        }
    }

    /// Tells the device the `REGION_*` of a region anew. Launches that run may follow at once.
    pub fn write_region_flags(&self, view: &RegionView, flags: u32) -> Result<()> {
        let written = self.regions.write_flags(&*self.device, view.id(), flags);
        written.doing(|| format!("advising region `{}`", view.name()))
    }

    /// The `REGION_*` of a region that the device knows.
    #[cfg(test)]
    pub fn region_flags(&self, view: &RegionView) -> u32 {
        let mut desc = [crate::device::zero::<RegionDesc>()];
        let at = self.regions.addr() + u64::from(view.id()) * size_of_val(&desc) as u64;
        let read = self.device.read(at, bytemuck::cast_slice_mut(&mut desc));
        read.map_or(0, |()| desc[0].flags)
    }

    /// Address of the first stripe of a region.
    pub fn stripes_addr(&self, view: &RegionView) -> u64 {
        self.regions.stripes_addr(view.id())
    }

    /// Tells the device where pages of a region live, from its stripe `first` on.
    pub fn write_stripes(&self, view: &RegionView, first: u64, stripes: &[StripeDesc]) -> Result<()> {
        let written = self.regions.write_stripes(&*self.device, view.id(), first, stripes);
        written.doing(|| format!("describing region `{}`", view.name()))
    }

    /// Ends a region here: hands its page table to the code that gives it back once no lane can look at it any more.
    pub fn retire(&self, view: &RegionView, frames_left: bool) {
        let mut state = self.lock();
        // Frames of the region that are left, if any, are found by the host's pass.
        state.needs_recovery |= frames_left;
        let put = state.put;
        state.places.retire(view, put);
        if let Err(error) = self.write_low_water(&state) {
            tracing::warn!(%error, "pages are evicted ahead though frames would do for all");
        }
    }

    /// Lets go of launches that have ended, and remembers whether one of them calls for recovery.
    pub fn prune(&self) {
        let done = self.prune_locked(&mut self.lock());
        // Outside the lock: the last keeper of a region may go with its launch.
        drop(done);
        self.finish_frame_changes();
    }

    fn lock_peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock()
    }

    /// Lets go of launches that have ended, unless another thread is busy with the state.
    pub fn try_prune(&self) {
        let done = self.state.try_lock().map(|mut state| self.prune_locked(&mut state));
        drop(done);
        self.finish_frame_changes();
    }

    fn prune_locked(&self, state: &mut GpuState) -> Vec<Arc<InFlight>> {
        // Acquire: pairs with the callback of a launch. Most calls find none that has ended, or few, and those among the first.
        let mut left = self.ended.load(Ordering::Acquire).wrapping_sub(state.pruned);
        let mut done = Vec::new();
        if left > 0 {
            done.extend(state.in_flight.extract_if(.., |launch| {
                let is_done = left > 0 && launch.is_done();
                left -= u64::from(is_done);
                is_done
            }));
        }
        state.pruned = state.pruned.wrapping_add(done.len() as u64);
        for launch in &done {
            if !launch.examined.swap(true, Ordering::Relaxed) && launch.needs_recovery(&*self.device) {
                state.needs_recovery = true;
            }
        }
        if !done.is_empty() {
            self.look_for_failed_pages(state);
            // Lanes that copy pages themselves have no queue pairs.
            state.needs_recovery |= self.queues.as_ref().is_some_and(|queues| queues.any_given_up());
        }
        if !state.needs_recovery {
            // Lanes of launches that came later find no frame with a page of a region that had ended.
            let first = state.in_flight.first().map_or(u64::MAX, |launch| launch.number());
            state.places.free_retired(first);
        }
        done
    }

    /// Whether launches have left pages in the error state, which the next one must not meet. A prefetch that failed is no fault
    /// of its launch, but its page is in that state all the same.
    fn look_for_failed_pages(&self, state: &mut GpuState) {
        // Lanes that copy pages themselves cannot fail at it.
        if self.queues.is_none() {
            return;
        }
        // What cannot be read says nothing good.
        let failed = self.meters.pages_failed(&*self.device).unwrap_or(u64::MAX);
        state.errors.found |= failed != state.errors.counted;
        state.errors.counted = failed;
    }

    /// Puts kernels on a stream that finish requests of earlier launches, and make pages absent again whose fetches have failed: before a
    /// launch, which finds none of what earlier ones met. Nothing is waited for. Launches in flight may see their own errors forgotten, and fetch such a
    /// page once more.
    fn clear_errors(&self, state: &mut GpuState, stream: &Arc<dyn Stream>) -> Result<()> {
        // Of a launch on another stream: it may be far behind.
        let on_the_way = state.errors.clearing.iter().any(|earlier| !earlier.is_done());
        if !state.errors.found && !on_the_way {
            return Ok(());
        }
        let regions: Vec<_> = state.live().filter(|region| region.pages().count() > 0).collect();
        let mut clearing = Vec::new();
        // Requests that nothing waits for any more may have failed, too: else the next launch's lanes find that out.
        let queue_pairs = self.queues.as_ref().map_or(0, |queues| queues.count());
        let reaping = (
            "finishing requests of earlier launches".into(),
            1,
            self.reaping_of(queue_pairs),
        );
        let of_regions = regions.iter().map(|region| {
            let label = format!("clearing failed fetches of region `{}`", region.name());
            (label, region.pages().count(), self.clearing_of(region))
        });
        for (label, pages, job) in std::iter::once(reaping).chain(of_regions) {
            let slot = self.state_for(&label, true)?;
            let in_flight = Arc::new(InFlight::new(slot, &label.into()));
            let config = self.service_config(pages);
            self.put(state, stream, &config.shape, job, &in_flight)?;
            clearing.push(in_flight);
        }
        state.errors.found = false;
        state.errors.clearing = clearing;
        Ok(())
    }

    /// Recovers the virtual memory if a launch left it in need. Waits for launches in flight first.
    fn make_ready(&self, state: &mut GpuState) -> Result<()> {
        if let Some(lost) = self.lost_with(state) {
            return Err(lost);
        }
        let done = self.prune_locked(state);
        // A launch that was stopped says so before it counts as ended.
        state.needs_recovery |= self.lock_peers().broken.is_some();
        // Unless that has looked: launches that run may have failed at a prefetch.
        if done.is_empty() && !state.in_flight.is_empty() {
            self.look_for_failed_pages(state);
        }
        if state.needs_recovery {
            for launch in &state.in_flight {
                launch.wait_done();
            }
            self.drain_graphs_of(state)?;
            drop(self.prune_locked(state));
            self.lock_peers().broken = None;
            self.recover(state)?;
            state.errors.found = false;
            state.places.free_retired(u64::MAX);
        }
        drop(done);
        if let Some(reason) = &state.poisoned {
            return Err(Error::Poisoned { reason: reason.clone() });
        }
        self.update_loans_locked(state, 0).map(drop)
    }

    /// Waits for graphs that use regions here, of which the library is not told.
    fn drain_graphs_of(&self, state: &GpuState) -> Result<()> {
        match state.live().any(|region| region.is_captured()) {
            true => self.device.drain().doing(|| "waiting for graphs".into()),
            false => Ok(()),
        }
    }

    /// How often the pool of frames was rebuilt: what was taken out of it before is in it again. For who holds the state's lock.
    fn rebuilt(&self) -> u64 {
        self.scratch.rebuilt.load(Ordering::Relaxed)
    }

    /// Takes the queue pairs through reset, and makes the page table, the table of frames and the pool agree again. Nothing is lost.
    fn recover(&self, state: &mut GpuState) -> Result<()> {
        tracing::info!("recovering the virtual memory after a launch that failed");
        // First, so that no request in flight writes a frame or reads one afterwards.
        let reset = self
            .queues
            .as_ref()
            .map_or(Ok(()), |queues| queues.reset(&*self.device));
        let victims = self.victims.as_ref();
        let outcome = reset.and_then(|()| recovery::rebuild(&*self.device, state.live(), &self.pool, victims));
        if let Err(error) = &outcome {
            state.poisoned = Some(format!("it could not be recovered after a failed launch: {error}"));
        }
        self.scratch.rebuilt.fetch_add(1, Ordering::Relaxed);
        state.needs_recovery = false;
        outcome
    }

    /// Frees borrowed memory that was given back, and borrows more where it has become little, if no launch runs: how many bytes those
    /// are.
    fn update_loans_locked(&self, state: &GpuState, more: u64) -> Result<u64> {
        let idle = state.in_flight.is_empty() && !state.needs_recovery && state.poisoned.is_none();
        match self.victims().filter(|_| idle) {
            Some(victims) => victims.update_loans(&*self.device, &state.live().collect::<Vec<_>>(), more),
            None => Ok(0),
        }
    }

    /// Frees and borrows likewise, where no launch runs now.
    ///
    /// # Errors
    /// The driver's.
    pub fn update_loans(&self) -> Result<()> {
        if self.victims().is_some_and(Victims::is_awaited) {
            // Launches to come may read there by their tables.
            self.leave_unlent();
        }
        let mut state = self.lock();
        let done = self.prune_locked(&mut state);
        let settled = self.update_loans_locked(&state, 0);
        drop(state);
        drop(done);
        self.map_device_lost(settled).map(drop)
    }

    /// Frees memory that owners wait for, before a launch that looks pages up: where none runs now, or an owner has waited for longer than the wait
    /// limit, which launches that overlap would have go on. Those have ended then.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn return_awaited_loans(&self) -> Result<()> {
        let Some(victims) = self.victims().filter(|victims| victims.is_awaited()) else {
            return Ok(());
        };
        // The host's time says nothing to a GPU that follows a seed.
        if !self.capabilities().deterministic && victims.is_overdue(self.settings.wait_limit) {
            let those = self.lock().in_flight.clone();
            those.iter().for_each(|launch| launch.wait_done());
        }
        self.update_loans()
    }

    /// See [`crate::VmGpu::scribble_given_back`].
    pub fn scribble_given_back(&self, byte: u8) -> Result<u64> {
        let regions: Vec<_> = self.lock().live().collect();
        let victims = self.victims();
        victims.map_or(Ok(0), |victims| victims.scribble(&*self.device, &regions, byte))
    }

    /// Borrows `more` bytes again, after all launches: how many there were.
    ///
    /// # Errors
    /// [`Error::GpuLost`], [`Error::Poisoned`], the driver's.
    pub fn borrow_again(&self, more: u64) -> Result<u64> {
        let mut state = self.lock();
        self.make_ready(&mut state)?;
        for launch in &state.in_flight {
            launch.wait_done();
        }
        let done = self.prune_locked(&mut state);
        let borrowed = self.update_loans_locked(&state, more);
        drop(state);
        drop(done);
        self.map_device_lost(borrowed)
    }
}

impl GpuState {
    /// With places for this many regions.
    fn new(regions_max: u32) -> Self {
        Self {
            places: RegionPlaces::new(regions_max),
            in_flight: Vec::new(),
            put: 0,
            pruned: 0,
            needs_recovery: false,
            poisoned: None,
            errors: FailedPages::default(),
        }
    }

    /// The regions that have not ended.
    fn live(&self) -> impl Iterator<Item = Arc<RegionView>> {
        self.places.live()
    }
}

impl Drop for PagedGpu {
    fn drop(&mut self) {
        // First: they take queue pairs through reset. The one that catches up, which has those kept that it waits for, before the
        // one that keeps them.
        let threads = self.threads.get_mut();
        threads.drain(..).rev().for_each(drop);
        let in_flight = std::mem::take(&mut self.lock().in_flight);
        for launch in in_flight {
            launch.wait_done();
        }
        if let Some(timeline) = &self.timeline {
            timeline.end();
        }
    }
}
