//! The virtual memory: frames, their pool, queue pairs, and what is in flight over them.

use std::{
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, atomic::AtomicBool},
    time::Duration,
};

use bytemuck::Pod;
use gpuvm_gpu::{CompileOptions, Gpu, GpuError, Source, Stream};
use gpuvm_layouts::{self as layout, Counters, FillState, LatencyHistogram, PoolState, RegionDesc, StripeDesc, VmDesc};
use gpuvm_memory_node::NodeClient;
use gpuvm_nic::{Nic, NicCapabilities, RxeNic, SoftNic, mlx5::Mlx5Nic};

use crate::{
    arena::RingArena,
    buffer::Buffer,
    catch_up::CatchUp,
    device::{DeviceArray, zero},
    error::{Doing, Error, Result},
    frames::{FrameAccess, FrameMemory},
    home::Ways,
    kernel::{Kernel, Module},
    launch::{InFlight, LaunchConfig, Launcher, Peers},
    launch_state::StatePool,
    local_home::LocalHome,
    node::Node,
    queues::{Keeper, QueueShape, Queues, StepKeeper},
    region::{RegionBuilder, RegionInner, Tables},
    scope::Scope,
    settings::{QueuePlan, Settings, TransportKind, VmBuilder},
    stats::Stats,
    support::Support,
};

/// Shards of the device's counters, so that multiprocessors do not share lines.
pub(crate) const COUNTER_SHARDS: u32 = 64;
/// The pool is refilled while it holds fewer frames than this for each warp that can be resident, so that a fault
/// finds one; more would only keep pages out of memory.
const LOW_WATER_PER_WARP: u32 = 2;
/// The pool never keeps more than this share of the frames from the pages.
const LOW_WATER_SHARE: u32 = 8;
/// A request without a completion for this share of the wait limit is given up and made again, so that its waiters live to see
/// it, even when it is lost again.
const PATIENCE_SHARE: u32 = 8;
/// Large pages that lanes may fill together at one time, where lanes copy pages themselves.
pub(crate) const FILLS: u32 = 512;
const _: () = assert!(FILLS <= layout::FILLS_MAX);

/// Data larger than GPU memory, for kernels. A handle: clones share one virtual memory, which ends with the last of
/// its handles, regions, buffers, modules and launches.
#[derive(Clone)]
pub struct Vm {
    pub(crate) inner: Arc<VmInner>,
}

/// What changes while the virtual memory lives.
pub(crate) struct State {
    pub regions: Vec<Option<Weak<RegionInner>>>,
    pub in_flight: Vec<Arc<InFlight>>,
    /// The host mends all before the next launch: see [`recovery`](crate::recovery).
    pub needs_recovery: bool,
    pub poisoned: Option<String>,
    pub errors: FailedPages,
    /// Page tables of closed regions, which lanes of launches in flight may look at still: they walk the frames' owners,
    /// not only their own regions. Given back when no launch is in flight.
    pub retired: Vec<Retired>,
}

/// Pages whose fetches have failed.
#[derive(Default)]
pub(crate) struct FailedPages {
    /// So far, as the host has seen it.
    pub counted: u64,
    /// Some may be in the error state still, for launches to come.
    pub found: bool,
    /// The kernels that were last put before a launch to forget them.
    pub forgetting: Vec<Arc<InFlight>>,
}

/// What the host knows of a lost GPU since it first saw the loss.
pub(crate) struct Lost {
    cause: GpuError,
    /// Regions that may have lost writes.
    regions: Vec<String>,
}

/// A closed region's place in the region table, and its page table.
pub(crate) struct Retired {
    pub id: u32,
    pub _tables: Tables,
}

pub(crate) struct VmInner {
    /// Where homes may return.
    pub catch_up: OnceLock<CatchUp>,
    /// Held by whoever catches up.
    pub catching_up: Mutex<()>,
    /// Catching up failed, or the host has found copies to be stale: there may be some at homes that are there.
    pub behind: AtomicBool,
    /// Where there are queue pairs, and the GPU does not step it.
    pub keeper: OnceLock<Keeper>,
    /// Memory nodes, in the order of the groups of queue pairs.
    pub nodes: Vec<Arc<Node>>,
    // Dropped in this order: queue pairs before the memory that they reach.
    /// None where lanes copy the pages themselves.
    pub queues: Option<Arc<Queues>>,
    /// None where lanes copy the pages themselves.
    pub nics: Vec<Arc<dyn Nic>>,
    pub soft_nics: Vec<Arc<SoftNic>>,
    pub frames: FrameMemory,
    pub frame_count: u32,
    /// Frames that the pool is kept above while there are more pages than frames.
    low_water: u32,
    pub owners: DeviceArray<u64>,
    pub pool_ring: DeviceArray<u64>,
    pub pool: DeviceArray<PoolState>,
    pub regions: DeviceArray<RegionDesc>,
    /// `stripes_a_region` for each place in the region table.
    pub stripes: DeviceArray<StripeDesc>,
    pub stripes_a_region: u64,
    pub counters: DeviceArray<Counters>,
    pub latencies: DeviceArray<LatencyHistogram>,
    /// Where warps fill a large page together.
    pub fills: Option<DeviceArray<FillState>>,
    pub launch_states: Arc<StatePool>,
    pub desc: DeviceArray<VmDesc>,
    pub support: Support,
    pub stream: Arc<dyn Stream>,
    pub state: Mutex<State>,
    pub lost: OnceLock<Lost>,
    pub peers: Arc<Mutex<Peers>>,
    pub page_shift: u32,
    pub transport: TransportKind,
    pub settings: Settings,
    pub gpu: Arc<dyn Gpu>,
}

impl Vm {
    /// Settings of a new virtual memory.
    pub fn builder() -> VmBuilder {
        VmBuilder::default()
    }

    pub(crate) fn bring_up(
        settings: Settings,
        plan: QueuePlan,
        gpu: Arc<dyn Gpu>,
        nics: TransportNics,
        nodes: Vec<Arc<NodeClient>>,
    ) -> Result<Self> {
        let transport = nics.transport();
        let nodes: Vec<_> = nodes.into_iter().map(|session| Arc::new(Node::new(session))).collect();
        let (soft_nics, arena) = (nics.soft(), nics.arena());
        let nics = nics.all();
        connect_machines(&*gpu, &nics);
        let frame_count = settings.frames() as u32;
        let page_shift = settings.page_size.trailing_zeros();
        let frames = FrameMemory::choose(&*gpu, &nics, u64::from(frame_count), settings.page_size)?;
        if let (FrameAccess::HostMemory, Some(arena)) = (frames.access(), &arena) {
            arena.stay_on_host();
        }
        let capabilities = gpu.capabilities();
        let flush_reads = plan.flush_reads || frames.needs_flush(&capabilities);
        // Known only now: a flush takes a block of its own.
        plan.check_blocks(&nics, flush_reads)?;
        let resident_warps = capabilities.max_resident_lanes / capabilities.warp_size;
        let doing = || "allocating the frames' bookkeeping".to_owned();
        let shape = QueueShape {
            count: plan.count(&nics, settings.page_size)?,
            depth: plan.depth,
            flush_reads,
            collapsed: plan.collapsed,
            patience: settings.wait_limit / PATIENCE_SHARE,
            guarded: settings.guarded,
        };
        let queues = match nics.is_empty() {
            true => None,
            false => Some(Arc::new(Queues::create(
                &*gpu,
                &nics,
                arena,
                (&LocalHome::several(plan.host_homes), &nodes),
                shape,
                &frames,
            )?)),
        };
        let fill_count = match queues.is_none() && settings.page_size > u64::from(layout::FILL_CHUNK_BYTES) {
            true => FILLS,
            false => 0,
        };
        let fills = match fill_count {
            0 => None,
            count => Some(DeviceArray::<FillState>::zeroed(&*gpu, u64::from(count)).doing(doing)?),
        };
        let owners = DeviceArray::zeroed(&*gpu, u64::from(frame_count)).doing(doing)?;
        let pool_ring = DeviceArray::zeroed(&*gpu, u64::from(frame_count)).doing(doing)?;
        let pool = DeviceArray::zeroed(&*gpu, 1).doing(doing)?;
        let regions = DeviceArray::zeroed(&*gpu, u64::from(settings.regions_max)).doing(doing)?;
        // A row for each replica, of a stripe a node or a NIC.
        let rows = if nodes.len() > 1 || plan.host_homes > 1 { 2 } else { 1 };
        let stripes_a_region = (nodes.len().max(nics.len()).max(1) * rows) as u64;
        let stripes = DeviceArray::zeroed(&*gpu, u64::from(settings.regions_max) * stripes_a_region).doing(doing)?;
        let counters = DeviceArray::zeroed(&*gpu, u64::from(COUNTER_SHARDS)).doing(doing)?;
        let latencies = DeviceArray::zeroed(&*gpu, 1).doing(doing)?;
        let desc = VmDesc {
            layout_version: layout::LAYOUT_VERSION,
            page_shift,
            frames: frames.addr(),
            frame_count,
            frames_low: 0,
            owners: owners.addr(),
            pool_ring: pool_ring.addr(),
            pool: pool.addr(),
            regions: regions.addr(),
            region_count: settings.regions_max,
            queue_count: queues.as_ref().map_or(0, |queues| queues.count()),
            queues: queues.as_ref().map_or(0, |queues| queues.table_addr()),
            counters: counters.addr(),
            counter_shards: COUNTER_SHARDS,
            queue_groups: queues.as_ref().map_or(0, |queues| queues.group_count()),
            latencies: latencies.addr(),
            wait_limit_ns: u64::try_from(settings.wait_limit.as_nanos()).unwrap_or(u64::MAX),
            ticks_per_us: capabilities.ticks_per_us.ceil() as u32,
            fills: fills.as_ref().map_or(0, DeviceArray::addr),
            fill_count,
            frame_reciprocal: u64::MAX / u64::from(frame_count),
        };
        let desc = DeviceArray::from_slice(&*gpu, &[desc]).doing(doing)?;
        let inner = VmInner {
            catch_up: OnceLock::new(),
            catching_up: Mutex::default(),
            behind: AtomicBool::new(false),
            keeper: OnceLock::new(),
            nodes,
            support: Support::compile(
                &*gpu,
                &compile_options(transport, settings.guarded, &settings.support_options),
            )?,
            low_water: (frame_count / LOW_WATER_SHARE).min(LOW_WATER_PER_WARP * resident_warps),
            stream: gpu.stream().doing(|| "creating the default stream".into())?,
            state: Mutex::new(State {
                regions: vec![None; settings.regions_max as usize],
                in_flight: Vec::new(),
                needs_recovery: false,
                poisoned: None,
                errors: FailedPages::default(),
                retired: Vec::new(),
            }),
            lost: OnceLock::new(),
            peers: Arc::default(),
            queues,
            nics,
            soft_nics,
            frames,
            frame_count,
            owners,
            pool_ring,
            pool,
            regions,
            stripes,
            stripes_a_region,
            counters,
            latencies,
            fills,
            launch_states: StatePool::new(),
            desc,
            page_shift,
            transport,
            settings,
            gpu,
        };
        inner.write_pool(&(0..frame_count).collect::<Vec<_>>())?;
        let vm = Self { inner: Arc::new(inner) };
        if let Some(queues) = &vm.inner.queues {
            match vm.inner.gpu.simulation().filter(|_| capabilities.deterministic) {
                Some(simulation) => simulation.attach(Arc::new(StepKeeper::new(queues, &vm.inner.gpu))),
                None => {
                    let keeper = Keeper::start(Arc::clone(queues), Arc::clone(&vm.inner.gpu));
                    let keeper = keeper.map_err(|source| Error::Thread { source })?;
                    // Set once, here.
                    let _ = vm.inner.keeper.set(keeper);
                    if !queues.local_homes().is_empty() || vm.inner.takes_nodes_back() {
                        let catch_up = CatchUp::start(&vm.inner).map_err(|source| Error::Thread { source })?;
                        let _ = vm.inner.catch_up.set(catch_up);
                    }
                }
            }
        }
        vm.inner.support.check_version(&vm.inner)?;
        Ok(vm)
    }

    /// Address of the [`VmDesc`] in device memory, for tools that look at what lanes change while they run.
    #[doc(hidden)]
    pub fn description_address(&self) -> u64 {
        self.inner.desc.addr()
    }

    /// A region of `length` elements, to be given its data by one of the builder's last calls.
    pub fn region<T: Pod>(&self, length: u64) -> RegionBuilder<T> {
        RegionBuilder::new(self.clone(), length)
    }

    /// Plain device memory of `length` zeroed elements, which a kernel takes as a pointer. It is not paged.
    ///
    /// # Errors
    /// [`Error::Gpu`] when device memory is short.
    pub fn buffer<T: Pod>(&self, length: u64) -> Result<Buffer<T>> {
        Buffer::zeroed(self.clone(), length)
    }

    /// Compiles CUDA C++ source text, which error messages call `name`, for its kernel `kernel`.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn kernel(&self, name: &str, source: &str, kernel: &str) -> Result<Kernel> {
        let [kernel] = self.kernels(name, source, [kernel], &CompileOptions::default())?;
        Ok(kernel)
    }

    /// Several kernels of one source, in the order of their names, with include directories, headers and macros.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn kernels<const N: usize>(
        &self,
        name: &str,
        source: &str,
        kernels: [&str; N],
        options: &CompileOptions,
    ) -> Result<[Kernel; N]> {
        let module = self.compile_with(name, source, &kernels, options)?;
        let found: Vec<Kernel> = kernels
            .iter()
            .map(|kernel| module.kernel(kernel))
            .collect::<Result<_>>()?;
        Ok(found
            .try_into()
            .unwrap_or_else(|_: Vec<Kernel>| unreachable!("one kernel for each name")))
    }

    /// Compiles CUDA C++ source text, which error messages call `name`, and finds `kernels` in it, to be looked up by name.
    ///
    /// # Errors
    /// [`Error::Gpu`] with the compiler's log, an unknown kernel, or no compiler.
    pub fn compile(&self, name: &str, source: &str, kernels: &[&str]) -> Result<Module> {
        self.compile_with(name, source, kernels, &CompileOptions::default())
    }

    /// [`Vm::compile`] with include directories, headers and macros.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_with(&self, name: &str, source: &str, kernels: &[&str], options: &CompileOptions) -> Result<Module> {
        let module = self
            .inner
            .gpu
            .compile(
                &Source::new(name, source),
                kernels,
                &compile_options(self.inner.transport, self.inner.settings.guarded, options),
            )
            .doing(|| format!("compiling {name}"));
        let module = self.inner.or_lost(module)?;
        Ok(Module::new(self.clone(), module))
    }

    /// Compiles the CUDA C++ file at `path`.
    ///
    /// # Errors
    /// [`Error::File`], and as [`compile`](Self::compile).
    pub fn compile_file(&self, path: impl AsRef<Path>, kernels: &[&str]) -> Result<Module> {
        let path = path.as_ref();
        let source = std::fs::read_to_string(path).map_err(|source| Error::File {
            path: path.to_owned(),
            source,
        })?;
        self.compile(&path.display().to_string(), &source, kernels)
    }

    /// A further stream: launches of one stream run in order, those of different streams beside each other.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn stream(&self) -> Result<crate::launch::StreamHandle> {
        let stream = self.inner.gpu.stream().doing(|| "creating a stream".into());
        let stream = self.inner.or_lost(stream)?;
        Ok(crate::launch::StreamHandle { stream })
    }

    /// Runs `body` with a scope in which regions may borrow host memory. Before this returns every region of the scope
    /// has waited for its launches, has written its dirty pages home and has left the NIC, whatever `body` did with
    /// the handles.
    ///
    /// # Errors
    /// What `body` returns, else the first error of a region that could not write its pages home.
    pub fn scope<'env, R>(&self, body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> Result<R>) -> Result<R> {
        Scope::run(self, body)
    }

    /// What the device library counted since the virtual memory began. Exact when no launch runs.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn stats(&self) -> Result<Stats> {
        self.inner.or_lost(Stats::read(&self.inner))
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> u64 {
        1 << self.inner.page_shift
    }

    /// Number of frames.
    pub fn frames(&self) -> u64 {
        u64::from(self.inner.frame_count)
    }

    /// The transport that fills the frames.
    pub fn transport(&self) -> TransportKind {
        self.inner.transport
    }

    /// The memory nodes, as they were given.
    pub fn memory_nodes(&self) -> Vec<&str> {
        self.inner.nodes.iter().map(|node| node.address()).collect()
    }

    /// The GPU's name.
    pub fn gpu_name(&self) -> String {
        self.inner.gpu.capabilities().name
    }

    /// The GPU itself, for what kernels are compared with: memory that is not paged.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.inner.gpu
    }

    /// The first software NIC, for its statistics and its fault injection; none when other NICs fill the frames.
    pub fn soft_nic(&self) -> Option<&Arc<SoftNic>> {
        self.inner.soft_nics.first()
    }

    /// All software NICs, in their order.
    pub fn soft_nics(&self) -> &[Arc<SoftNic>] {
        &self.inner.soft_nics
    }

    /// Where the frames lie, and how the NICs reach them.
    pub fn frame_access(&self) -> FrameAccess {
        self.inner.frames.access()
    }

    /// Queue pairs, of all homes and NICs together.
    pub fn queue_pairs(&self) -> u32 {
        self.inner.queues.as_ref().map_or(0, |queues| queues.count())
    }

    /// Queue pairs whose doorbells a thread of the processor rings, since the GPU cannot: each request of theirs waits for it.
    pub fn proxied_queue_pairs(&self) -> u32 {
        self.inner.queues.as_ref().map_or(0, |queues| queues.proxied())
    }

    /// Whether each READ is followed by a read of its frame: see [`Soft::flush_reads`](crate::Soft::flush_reads).
    pub fn flushes_reads(&self) -> bool {
        self.inner.queues.as_ref().is_some_and(|queues| queues.flushes_reads())
    }

    /// What each NIC says of itself; none where lanes copy the pages themselves.
    pub fn nics(&self) -> Vec<NicCapabilities> {
        self.inner.nics.iter().map(|nic| nic.capabilities()).collect()
    }

    /// Bytes of page table and frame bookkeeping: 8 a page of every live region, 16 a frame, 128 a never-evicted region, whose own
    /// frames have none.
    pub fn bookkeeping_bytes(&self) -> u64 {
        let state = self.inner.lock();
        let tables: u64 = state
            .regions
            .iter()
            .flatten()
            .filter_map(Weak::upgrade)
            .filter(|region| !region.has_ended())
            .map(|region| region.table_bytes())
            .sum();
        tables + self.frames() * 16
    }
}

/// The NICs that a transport drives.
pub(crate) enum TransportNics {
    /// None: lanes copy the pages.
    Direct,
    Soft(Vec<Arc<SoftNic>>),
    Rxe(Arc<RxeNic>),
    /// With the memory of their rings.
    Mlx5(Vec<Arc<Mlx5Nic>>, Arc<RingArena>),
}

impl TransportNics {
    fn transport(&self) -> TransportKind {
        match self {
            Self::Direct => TransportKind::Direct,
            Self::Soft(_) => TransportKind::Soft,
            Self::Rxe(_) => TransportKind::Rxe,
            Self::Mlx5(..) => TransportKind::Mlx5,
        }
    }

    /// As every NIC.
    fn all(&self) -> Vec<Arc<dyn Nic>> {
        fn each<N: Nic + 'static>(nics: &[Arc<N>]) -> Vec<Arc<dyn Nic>> {
            nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Nic>).collect()
        }
        match self {
            Self::Direct => Vec::new(),
            Self::Soft(nics) => each(nics),
            Self::Rxe(nic) => each(std::slice::from_ref(nic)),
            Self::Mlx5(nics, _) => each(nics),
        }
    }

    /// What only software NICs can do.
    fn soft(&self) -> Vec<Arc<SoftNic>> {
        match self {
            Self::Soft(nics) => nics.clone(),
            _ => Vec::new(),
        }
    }

    fn arena(&self) -> Option<Arc<RingArena>> {
        match self {
            Self::Mlx5(_, arena) => Some(Arc::clone(arena)),
            _ => None,
        }
    }
}

/// The options of a user's source, with the device library for this transport alone: the other's code would cost every
/// kernel registers.
fn compile_options(transport: TransportKind, guarded: bool, options: &CompileOptions) -> CompileOptions {
    let only = match transport {
        TransportKind::Direct => "GPUVM_DIRECT_ONLY",
        _ => "GPUVM_QUEUED_ONLY",
    };
    let mut options = options.clone();
    options.defines.push((only.to_owned(), None));
    if guarded {
        options.defines.push(("GPUVM_GUARDED".to_owned(), None));
    }
    options
}

/// Doorbell stores of the simulated GPU wake the NICs; in seeded mode the GPU's scheduler steps them.
fn connect_machines(gpu: &dyn Gpu, nics: &[Arc<dyn Nic>]) {
    struct Engine(Weak<dyn Nic>);
    impl gpuvm_gpu::Actor for Engine {
        fn step(&self, now_ns: u64) -> bool {
            // Its data may come late; the memory model says when.
            gpuvm_nic::soft::witness_copies(Some(gpuvm_sim_gpu::engine_copies));
            self.0.upgrade().is_some_and(|nic| {
                // One time for both machines.
                nic.advance_to(now_ns);
                nic.step()
            })
        }
    }
    let Some(simulation) = gpu.simulation() else { return };
    for nic in nics {
        // A NIC with a mover looks for stores itself, since a GPU's come without a word.
        if !nic.capabilities().has_mover {
            let woken = Arc::downgrade(nic);
            simulation.watch_stores(
                &nic.doorbell_pages(),
                Arc::new(move |address| {
                    if let Some(nic) = woken.upgrade() {
                        nic.doorbell_written(address);
                    }
                }),
            );
        }
        simulation.attach(Arc::new(Engine(Arc::downgrade(nic))));
    }
    simulation.set_note_formatter(Arc::new(|code, a, b| match code {
        layout::WAIT_COMPLETION => format!("completion of request {b} on queue pair {a}"),
        layout::WAIT_PAGE => format!("page {} of region {}", page_of(a), region_of(a)),
        layout::WAIT_FRAME => format!("a frame for page {} of region {}", page_of(a), region_of(a)),
        layout::WAIT_QUEUE => format!("a slot of queue pair {a} or its neighbours"),
        layout::WAIT_WRITE_BACK => format!("the write-back of page {} of region {}", page_of(a), region_of(a)),
        _ => format!("wait {code} ({a:#x}, {b:#x})"),
    }));
}

fn page_of(owner: u64) -> u64 {
    owner & (layout::REGION_PAGES_MAX - 1)
}

fn region_of(owner: u64) -> u64 {
    owner >> layout::OWNER_REGION_SHIFT & u64::from(layout::REGIONS_MAX - 1)
}

impl State {
    /// A place in the region table that no lane can look at.
    pub fn free_region(&self) -> Option<usize> {
        self.regions.iter().enumerate().position(|(id, slot)| {
            let live = slot
                .as_ref()
                .and_then(Weak::upgrade)
                .is_some_and(|region| !region.has_ended());
            !live && !self.retired.iter().any(|retired| retired.id as usize == id)
        })
    }
}

impl VmInner {
    /// The state, also after a panic elsewhere: every change of it is complete before anything that can panic.
    /// Tells the device how many frames to keep free: none while all pages of all regions find one.
    pub fn write_low_water(&self, state: &State) -> Result<()> {
        let live = state.regions.iter().flatten().filter_map(Weak::upgrade);
        let pages: u64 = live
            .filter(|region| !region.has_ended() && !region.never_evicted)
            .map(|region| region.pages.count())
            .sum();
        let low = if pages <= u64::from(self.frame_count) {
            0
        } else {
            self.low_water
        };
        let at = self.desc.addr() + core::mem::offset_of!(VmDesc, frames_low) as u64;
        self.gpu
            .write(at, &low.to_ne_bytes())
            .doing(|| "setting the pool's low-water mark".into())
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why nothing can be done any more, when the GPU is lost. Takes the state then.
    pub fn lost(&self) -> Option<Error> {
        self.gpu.lost()?;
        self.lost_with(&self.lock())
    }

    /// [`Self::lost`] for a caller who holds the state.
    pub fn lost_with(&self, state: &State) -> Option<Error> {
        let cause = self.gpu.lost()?;
        let lost = self.lost.get_or_init(|| {
            let regions = state.regions.iter().flatten().filter_map(Weak::upgrade);
            let unwritten = regions.filter(|region| region.may_have_writes() && !region.has_ended());
            Lost {
                cause,
                regions: unwritten.map(|region| region.name.clone()).collect(),
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

    /// Pages that fetches have put into the error state so far.
    pub fn pages_failed(&self) -> Result<u64> {
        self.counted(|shard| shard.pages_failed)
    }

    /// Copies that lanes have found to be stale so far.
    pub fn replicas_missed(&self) -> Result<u64> {
        self.counted(|shard| shard.replicas_missed)
    }

    fn counted(&self, which: impl Fn(&layout::Counters) -> u64) -> Result<u64> {
        let shards = self.counters.read(&*self.gpu, 0, COUNTER_SHARDS as usize);
        let shards = shards.doing(|| "reading counters".into())?;
        Ok(shards.iter().map(which).sum())
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

    /// Which machine holds a page of a region, as far as it is not this host.
    pub fn holder_of(&self, region: u32, page: u64) -> Option<String> {
        // For a message only: who asks does not wait for those who hold these locks.
        let region = self
            .state
            .try_lock()
            .ok()?
            .regions
            .get(region as usize)?
            .as_ref()?
            .upgrade()?;
        region.holder_of(page)
    }

    /// What leads from the GPU to homes.
    pub fn ways(&self) -> Ways<'_> {
        Ways {
            gpu: &*self.gpu,
            nics: &self.nics,
            queues: self.queues.as_deref(),
            nodes: &self.nodes,
        }
    }

    pub fn launcher(&self) -> Launcher<'_> {
        Launcher { vm: self }
    }

    pub fn service_config(&self, pages: u64) -> LaunchConfig {
        let threads = 64;
        let blocks = pages.div_ceil(u64::from(threads)).clamp(1, 8) as u32;
        LaunchConfig::new(blocks, threads).deadline(self.settings.launch_deadline.max(Duration::from_secs(60)))
    }

    /// Fills the pool with `free`, in lap 0.
    pub fn write_pool(&self, free: &[u32]) -> Result<()> {
        let doing = || "filling the frame pool".to_owned();
        let slots: Vec<u64> = (0..self.frame_count as usize)
            .map(|slot| free.get(slot).map_or(0, |&frame| 1 << 32 | u64::from(frame)))
            .collect();
        self.pool_ring.write(&*self.gpu, 0, &slots).doing(doing)?;
        let pool = PoolState {
            available: free.len() as u64,
            tail: free.len() as u64,
            ..zero()
        };
        self.pool.write(&*self.gpu, 0, &[pool]).doing(doing)
    }
}

impl Drop for VmInner {
    fn drop(&mut self) {
        // First: it takes queue pairs through reset.
        drop(self.catch_up.take());
        drop(self.keeper.take());
        let in_flight = std::mem::take(&mut self.lock().in_flight);
        for launch in in_flight {
            launch.settle();
        }
    }
}
