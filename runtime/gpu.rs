//! One GPU of a virtual memory: its frames, its queue pairs, its page tables, and the launches on it. GPUs of one virtual memory
//! know nothing of each other: regions that several of them use keep them in step (`region/sharing.rs`).

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicI32, AtomicU64},
    },
    time::{Duration, Instant},
};

use gpuvm_files::Tier;
use gpuvm_gpu::{Capabilities, Gpu, GpuError, Source, Stream};
use gpuvm_layouts::{TimelineDesc, VmDesc};
use gpuvm_nic::{Nic, SoftNic};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    background::Background,
    device::DeviceArray,
    error::{Doing, Error, Result},
    frames::FrameMemory,
    handles::Handles,
    home::Ways,
    launch::{InFlight, LaunchConfig, Peers},
    launch_state::StatePool,
    node::Node,
    plan::{Settings, TransportKind},
    queues::Queues,
    timeline::{GpuTimeline, Span},
};

mod bring_up;
mod guards;
mod headroom;
mod launcher;
mod lender;
mod loans;
mod machines;
mod meters;
mod page_table;
mod pool;
mod read_costs;
mod ready;
mod recovery;
mod region_table;
mod resizing;
mod service;
mod slots;
mod support;
mod victims;
mod view;

pub(crate) use guards::{GuardAddresses, Guards};
pub(crate) use launcher::{Job, Named};
pub(crate) use machines::{Machines, TransportNics};
use meters::Meters;
pub(crate) use page_table::PageTable;
use pool::FramePool;
pub use read_costs::ReadCosts;
use region_table::RegionTable;
pub use resizing::Resized;
use resizing::Returning;
use support::Support;
pub(crate) use victims::Victims;
pub(crate) use view::{RegionTables, RegionView};

/// What changes while the GPU is used.
pub(crate) struct GpuState {
    /// By their place in the region table.
    views: Vec<Option<Weak<RegionView>>>,
    /// In the order in which they were put on streams.
    in_flight: Vec<Arc<InFlight>>,
    /// Of [`PagedGpu::ended`] those that are not in flight any more.
    pruned: u64,
    /// The host mends all before the next launch: see [`recovery`].
    needs_recovery: bool,
    poisoned: Option<String>,
    errors: FailedPages,
    /// Page tables of closed regions, which lanes of launches in flight may look at still: they walk the table of frames,
    /// not only their own regions. Given back when no launch is in flight.
    retired: Vec<Retired>,
}

/// Pages whose fetches have failed.
#[derive(Default)]
struct FailedPages {
    /// So far, as the host has seen it.
    counted: u64,
    /// Some may be in the error state still, for launches to come.
    found: bool,
    /// The kernels that were last put before a launch to forget them.
    forgetting: Vec<Arc<InFlight>>,
}

/// What the host knows of a lost GPU since it first saw the loss.
struct Lost {
    cause: GpuError,
    /// Regions that may have lost writes.
    regions: Vec<String>,
}

/// A closed region's place in the region table, and its page table.
struct Retired {
    id: u32,
    _tables: RegionTables,
}

/// Who catches up with homes that have returned, and why.
#[derive(Default)]
pub(crate) struct CatchingUp {
    /// Held by whoever catches up.
    pub turn: Mutex<()>,
    /// Catching up failed, or the host has found copies to be stale: there may be some at homes that are there.
    pub behind: AtomicBool,
}

/// One GPU of a virtual memory.
pub(crate) struct PagedGpu {
    /// Its place among the GPUs of its virtual memory.
    place: usize,
    /// The thread that keeps queue pairs, and the one that catches up with homes.
    threads: Mutex<Vec<Background>>,
    catching_up: CatchingUp,
    /// Memory nodes, in the order of the groups of queue pairs.
    nodes: Vec<Arc<Node>>,
    // Dropped in this order: queue pairs before the memory that they reach.
    /// None where lanes copy the pages themselves.
    queues: Option<Arc<Queues>>,
    /// None where lanes copy the pages themselves.
    nics: Vec<Arc<dyn Nic>>,
    soft_nics: Vec<Arc<SoftNic>>,
    pool: FramePool,
    /// None where nothing is borrowed of neighbours.
    victims: Option<Victims>,
    /// Host memory before files; none where they are mapped.
    tier: Option<Tier>,
    regions: RegionTable,
    meters: Meters,
    launch_states: Arc<StatePool>,
    desc: DeviceArray<VmDesc>,
    /// Where lanes find the timeline's ring.
    _timeline_desc: Option<DeviceArray<TimelineDesc>>,
    support: Support,
    stream: Arc<dyn Stream>,
    state: Mutex<GpuState>,
    lost: OnceLock<Lost>,
    /// None where nobody asked for one.
    timeline: Option<Arc<GpuTimeline>>,
    peers: Arc<Mutex<Peers>>,
    /// Launches that have ended so far.
    ended: Arc<AtomicU64>,
    transport: TransportKind,
    settings: Arc<Settings>,
    /// Held by who changes the number of frames: the kernel that an earlier one left behind.
    changing: Mutex<Option<Returning>>,
    /// Whether others give up memory before the frames do. Relaxed: it orders nothing.
    frame_priority: AtomicI32,
    /// When another tenant was last given memory of the frames.
    gave: Mutex<Option<Instant>>,
    handles: Arc<Handles>,
    device: Arc<dyn Gpu>,
}

impl PagedGpu {
    /// The GPU itself.
    pub fn device(&self) -> &Arc<dyn Gpu> {
        &self.device
    }

    /// Its memory by handles, for whatever is mapped by its own page table.
    pub fn handles(&self) -> &Arc<Handles> {
        &self.handles
    }

    pub fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    /// Its place among the GPUs of its virtual memory.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Whether both are GPUs of one virtual memory.
    pub fn is_beside(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.settings, &other.settings)
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Bytes of a page, as a power of two.
    pub fn page_shift(&self) -> u32 {
        self.settings.page_size.trailing_zeros()
    }

    pub fn transport(&self) -> TransportKind {
        self.transport
    }

    /// Host memory before files; none where they are mapped.
    pub fn tier(&self) -> Option<&Tier> {
        self.tier.as_ref()
    }

    /// None where lanes copy the pages themselves.
    pub fn queues(&self) -> Option<&Arc<Queues>> {
        self.queues.as_ref()
    }

    pub fn nics(&self) -> &[Arc<dyn Nic>] {
        &self.nics
    }

    pub fn soft_nics(&self) -> &[Arc<SoftNic>] {
        &self.soft_nics
    }

    /// Memory nodes, in the order of the groups of queue pairs.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
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

    /// The stream of launches that name none.
    pub fn stream(&self) -> &Arc<dyn Stream> {
        &self.stream
    }

    pub fn catching_up(&self) -> &CatchingUp {
        &self.catching_up
    }

    /// Address of its [`VmDesc`].
    pub fn desc_addr(&self) -> u64 {
        self.desc.addr()
    }

    /// Keeps a thread until the GPU is no virtual memory's any more.
    pub fn keep(&self, thread: Background) {
        self.threads.lock().push(thread);
    }

    /// What leads from the GPU to homes.
    pub fn ways(&self) -> Ways<'_> {
        Ways {
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
        self.or_lost(module.doing(|| format!("compiling {}", source.name)))
    }

    /// Loads kernels that their user compiled.
    pub fn load(&self, name: &str, image: &[u8], kernels: &[&str]) -> Result<Arc<dyn gpuvm_gpu::Module>> {
        let module = self.device.load(name, image, kernels);
        self.or_lost(module.doing(|| format!("loading {name}")))
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
    pub fn or_lost<T>(&self, result: Result<T>) -> Result<T> {
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
    #[must_use = "it ends when it is dropped"]
    pub fn span(&self, label: impl FnOnce() -> String) -> Span {
        Span::new(self.timeline.as_ref(), label)
    }

    /// None where nobody asked for one.
    pub fn timeline(&self) -> Option<&Arc<GpuTimeline>> {
        self.timeline.as_ref()
    }

    /// What the device library counted.
    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Calls `look` while no launch runs and none can begin.
    pub fn at_rest<R>(&self, look: impl FnOnce() -> R) -> R {
        let state = self.lock();
        for launch in &state.in_flight {
            launch.settle();
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
        let view = state.views.get(region as usize)?.as_ref()?.upgrade()?;
        view.home().holder(page)
    }

    /// The shape of a kernel of the runtime over so many pages.
    fn service_config(&self, pages: u64) -> LaunchConfig {
        let threads = 64;
        let blocks = pages.div_ceil(u64::from(threads)).clamp(1, 8) as u32;
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
        let evictable = state.live().filter(|region| !region.is_never_evicted());
        let low = self
            .pool
            .low_water(evictable.map(|region| region.pages().count()).sum());
        self.pool
            .free
            .set_low_water(&*self.device, low)
            .doing(|| "setting the pool's low-water mark".into())
    }
}

impl GpuState {
    /// With places for so many regions.
    fn new(regions_max: u32) -> Self {
        Self {
            views: vec![None; regions_max as usize],
            in_flight: Vec::new(),
            pruned: 0,
            needs_recovery: false,
            poisoned: None,
            errors: FailedPages::default(),
            retired: Vec::new(),
        }
    }

    /// The regions that have not ended.
    fn live(&self) -> impl Iterator<Item = Arc<RegionView>> {
        let views = self.views.iter().flatten().filter_map(Weak::upgrade);
        views.filter(|region| !region.has_ended())
    }

    /// A place in the region table that no lane can look at.
    fn free_place(&self) -> Option<usize> {
        self.views.iter().enumerate().position(|(id, slot)| {
            let live = slot
                .as_ref()
                .and_then(Weak::upgrade)
                .is_some_and(|region| !region.has_ended());
            !live && !self.retired.iter().any(|retired| retired.id as usize == id)
        })
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
            launch.settle();
        }
        if let Some(timeline) = &self.timeline {
            timeline.end();
        }
    }
}
