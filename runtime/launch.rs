//! Launches: their checks, their way onto a stream, and how they end.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use gpuvm_gpu::{Gpu, GpuError, Kernel as GpuKernel, LaunchOutcome, LaunchReport, Stream};
use gpuvm_layouts::{self as layout, FaultRecord};

use crate::{
    args::{Given, Memory},
    error::{Doing, Error, Result},
    fault::Fault,
    launch_state::StateSlot,
    vm::{State, Vm, VmInner},
};

/// The shape of a launch, and what it declares of its spans.
#[derive(Debug, Clone)]
#[must_use]
pub struct LaunchConfig {
    pub(crate) shape: gpuvm_gpu::LaunchConfig,
    pub(crate) lane_spans: u64,
    pub(crate) warp_spans: u64,
}

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads.
    pub fn new(blocks: u32, threads: u32) -> Self {
        Self {
            shape: gpuvm_gpu::LaunchConfig::linear(blocks, threads),
            lane_spans: 0,
            warp_spans: 0,
        }
    }

    /// A grid and blocks of up to three dimensions: x, y, z.
    pub fn grid(grid: [u32; 3], block: [u32; 3]) -> Self {
        let mut config = Self::new(1, 1);
        config.shape.grid = grid;
        config.shape.block = block;
        config
    }

    /// Dynamic shared memory of a block in bytes.
    pub fn dynamic_shared(mut self, bytes: u32) -> Self {
        self.shape.dynamic_shared_bytes = bytes;
        self
    }

    /// Longest that the launch may run, instead of [`crate::VmBuilder::launch_deadline`]. Then it is stopped, and
    /// `sync` says what its lanes waited for.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.shape.deadline = Some(limit);
        self
    }

    /// Spans of `pin(i)` that one lane holds at once, at most, of pages of its own. Declared spans are checked against
    /// the frames at launch; undeclared ones can end in a "no frame" fault.
    pub fn lane_spans(mut self, spans: u64) -> Self {
        self.lane_spans = spans;
        self
    }

    /// Spans of `pin(i)` that one warp holds at once, at most, where all its lanes hold the same pages.
    pub fn warp_spans(mut self, spans: u64) -> Self {
        self.warp_spans = spans;
        self
    }
}

/// A further stream of a virtual memory.
#[derive(Clone)]
pub struct StreamHandle {
    pub(crate) stream: Arc<dyn Stream>,
}

/// The launches of one virtual memory, for the one that must stop the others.
#[derive(Default)]
pub(crate) struct Peers {
    launches: Vec<Weak<Flight>>,
    /// Why the virtual memory must be mended before anything else runs on it.
    pub broken: Option<String>,
}

/// What other launches may do to one: stop it. It keeps no memory alive, so that any thread may let go of it last.
struct Flight {
    launch: OnceLock<Arc<dyn gpuvm_gpu::Launch>>,
    stopped: Mutex<Option<String>>,
    /// It has ended, perhaps before its waiters know: what became of it is its own doing.
    ended: AtomicBool,
}

impl Flight {
    fn stop(&self, reason: &str) {
        let Some(launch) = self.launch.get() else { return };
        // Acquire: pairs with `stop_peers`. Who has read that the virtual memory is broken reads here whose doing it was.
        if !self.ended.load(Ordering::Acquire) && !launch.is_done() {
            let mut stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
            stopped.get_or_insert_with(|| reason.to_owned());
            drop(stopped);
            launch.abandon();
        }
    }
}

/// Called when a launch has ended: one that was stopped where it stood may have left a lock or a claim that others
/// would wait for, so they end with it. The host mends everything before the next launch.
fn stop_peers(peers: &Mutex<Peers>, own: &Weak<Flight>, kernel: &str, outcome: &LaunchOutcome) {
    if let Some(own) = own.upgrade() {
        own.ended.store(true, Ordering::Release);
    }
    if outcome.is_ok() {
        return;
    }
    let reason = format!("{kernel}, in flight over the same Vm, was stopped where it stood");
    let launches = {
        let mut peers = peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.broken.get_or_insert_with(|| reason.clone());
        std::mem::take(&mut peers.launches)
    };
    let others = launches.iter().filter(|flight| !flight.ptr_eq(own));
    for flight in others.filter_map(Weak::upgrade) {
        flight.stop(&reason);
    }
}

/// A launch that was enqueued, for whoever waits for it. It keeps alive what the kernel reaches.
pub(crate) struct InFlight {
    flight: Arc<Flight>,
    /// Names of the regions that it may touch, by index.
    regions: Vec<(u32, String)>,
    /// Frames that its declared spans can hold at once.
    span_frames: u64,
    state: StateSlot,
    kernel: Arc<dyn GpuKernel>,
    _memories: Vec<Arc<dyn Memory>>,
    label: String,
    examined: AtomicBool,
}

impl InFlight {
    /// A launch that names no memory and holds no spans.
    fn new(kernel: &Arc<dyn GpuKernel>, state: StateSlot, label: &str) -> Self {
        Self {
            flight: Arc::new(Flight {
                launch: OnceLock::new(),
                stopped: Mutex::default(),
                ended: AtomicBool::new(false),
            }),
            regions: Vec::new(),
            span_frames: 0,
            state,
            kernel: Arc::clone(kernel),
            _memories: Vec::new(),
            label: label.to_owned(),
            examined: AtomicBool::new(false),
        }
    }

    /// Whether it has ended. Until it is on its stream it has not.
    pub fn is_done(&self) -> bool {
        self.flight.launch.get().is_some_and(|launch| launch.is_done())
    }

    /// Waits for its end. Bounded by the launch's deadline.
    pub fn settle(&self) {
        if let Some(launch) = self.flight.launch.get() {
            launch.wait(None);
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        self.flight.launch.get().and_then(|launch| launch.wait(timeout))
    }

    /// Makes the launch's slow paths end.
    fn abort(&self, gpu: &dyn Gpu) {
        if self.is_done() {
            return;
        }
        if let Err(error) = self.state.abort(gpu) {
            tracing::error!(%error, "{} could not be told to stop", self.label);
        }
    }

    /// The first fault of the launch, once it has ended, and the number of later ones.
    fn fault(&self, vm: &VmInner) -> Result<Option<(FaultRecord, u32)>> {
        let fault = self.state.fault(&*vm.gpu);
        fault.doing(|| format!("reading how {} ended", self.label))
    }

    /// Whether the host must mend the virtual memory after this ended launch: it was stopped in the middle, or pins were all
    /// that there can be, perhaps of lanes that never gave them back. Lanes that meet another fault leave nothing behind that
    /// others could not go on with.
    fn needs_recovery(&self, vm: &VmInner) -> bool {
        let stopped = matches!(self.wait(Some(Duration::ZERO)), Some(Err(_)));
        // A state that cannot be read says nothing good.
        let pinned = self.fault(vm).map_or(true, |fault| {
            fault.is_some_and(|(record, _)| {
                matches!(record.code, layout::FAULT_FRAMES_PINNED | layout::FAULT_TOO_MANY_PINS)
            })
        });
        stopped || pinned
    }

    /// How the launch ended, its fault first: it is the cause of whatever else went wrong.
    fn outcome(&self, vm: &VmInner, outcome: LaunchOutcome) -> Result<LaunchReport> {
        if let Some((record, later)) = self.fault(vm)? {
            let name = self.regions.iter().find(|(id, _)| *id == record.region);
            let region = name.map_or_else(|| format!("#{}", record.region), |(_, name)| name.clone());
            let holder = vm.holder_of(record.region, record.page);
            let mut fault = Box::new(Fault::from_record(&record, region, vm.transport.name(), holder));
            if fault.is_of_transport() {
                fault.mover_failure = vm.soft_nics.iter().find_map(|nic| nic.mover_failure());
            }
            return Err(Error::Fault {
                kernel: self.label.clone(),
                fault,
                later,
            });
        }
        let kernel = self.label.clone();
        let stopped = self
            .flight
            .stopped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let (Some(reason), Err(_)) = (stopped, &outcome) {
            return Err(Error::Stopped { kernel, reason });
        }
        if outcome.is_ok() && self.state.is_aborted() {
            let reason = "Launch::abort asked it to".into();
            return Err(Error::Stopped { kernel, reason });
        }
        outcome.map_err(|source| Error::Gpu {
            doing: format!("running {kernel}"),
            source,
        })
    }
}

/// A launch in flight. Dropping it does not stop the kernel.
#[must_use = "a launch's errors come out of `sync`"]
pub struct Launch {
    vm: Vm,
    in_flight: Arc<InFlight>,
}

impl Launch {
    /// Waits for the end.
    ///
    /// # Errors
    /// [`Error::Fault`] when an access could not be served, [`Error::Gpu`] when the kernel itself failed, was stopped at
    /// its deadline, or can never end; [`Error::GpuLost`] when that cost the GPU; [`Error::Stopped`] after [`abort`](Self::abort), or when another launch of this
    /// virtual memory was stopped where it stood.
    pub fn sync(&self) -> Result<LaunchReport> {
        match self.wait(None) {
            Some(outcome) => outcome,
            None => Err(Error::Gpu {
                doing: "waiting for a launch".into(),
                source: GpuError::ShutDown,
            }),
        }
    }

    /// Waits at most `timeout`; nothing when it runs still.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<LaunchReport>> {
        let outcome = self.in_flight.wait(timeout)?;
        let vm = &self.vm.inner;
        let result = vm.or_lost(self.in_flight.outcome(vm, outcome));
        // Never waits: another thread may hold the state for as long as a launch runs.
        vm.try_prune();
        Some(result)
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.in_flight.is_done()
    }

    /// Asks the kernel to stop: `gpuvm::failed()` becomes true and accesses that miss return at once.
    pub fn abort(&self) {
        self.in_flight.abort(&*self.vm.inner.gpu);
    }

    /// Stops the kernel where it stands, and with it the other launches in flight over this virtual memory, which could
    /// wait for it. The virtual memory is mended before the next launch; no dirty page is lost.
    pub fn kill(&self) {
        if let Some(launch) = self.in_flight.flight.launch.get() {
            launch.abandon();
        }
    }
}

/// Puts launches on streams.
pub(crate) struct Launcher<'a> {
    pub vm: &'a VmInner,
}

/// The memory that a launch names: what must live until it has ended, and its regions' names for reports.
#[derive(Default)]
pub(crate) struct Named {
    memories: Vec<Arc<dyn Memory>>,
    regions: Vec<(u32, String)>,
    /// A fault ends nothing but what met it: of the runtime's own kernels.
    goes_on: bool,
}

/// Frames that a launch's declared spans can hold at once, and by whom.
struct Spans {
    lanes: u64,
    warps: u64,
    by_lane: bool,
    frames: u64,
}

impl Launcher<'_> {
    /// Enqueues a launch whose arguments were checked.
    pub fn enqueue(
        &self,
        stream: &Arc<dyn Stream>,
        kernel: &Arc<dyn GpuKernel>,
        config: &LaunchConfig,
        args: &[Vec<u8>],
        named: Named,
        label: &str,
    ) -> Result<Arc<InFlight>> {
        let vm = self.vm;
        let Named {
            memories,
            regions,
            goes_on,
        } = named;
        let mut shape = config.shape.clone();
        shape.deadline.get_or_insert(vm.settings.launch_deadline);
        let state = self.state_for(label, goes_on)?;
        // Host accesses to this memory wait until the launch is on its stream. In one order, so that two launches
        // that name the same memory do not wait for each other.
        let mut by_address: Vec<_> = memories.iter().collect();
        by_address.sort_by_key(|memory| Arc::as_ptr(memory).cast::<()>() as usize);
        by_address.dedup_by_key(|memory| Arc::as_ptr(memory).cast::<()>() as usize);
        let mut guards: Vec<MutexGuard<'_, Vec<Weak<InFlight>>>> = by_address
            .iter()
            .map(|memory| memory.launches().lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        let mut in_flight = InFlight::new(kernel, state, label);
        in_flight.regions = regions;
        in_flight.span_frames = self.spans(config).frames;
        in_flight._memories = memories.clone();
        let in_flight = Arc::new(in_flight);
        let mut vm_state = vm.lock();
        vm.make_ready(&mut vm_state)?;
        let in_use = vm_state.in_flight.iter().map(|launch| launch.span_frames);
        let others = in_use.fold(0, u64::saturating_add);
        self.check_spans(&kernel.info().name, config, others)?;
        vm.forget_errors(&mut vm_state, stream)?;
        // Before the first write can be.
        by_address.iter().for_each(|memory| memory.may_be_written());
        self.put(&mut vm_state, stream, &shape, args, &in_flight)?;
        for launches in &mut guards {
            launches.retain(|earlier| earlier.upgrade().is_some_and(|earlier| !earlier.is_done()));
            launches.push(Arc::downgrade(&in_flight));
        }
        Ok(in_flight)
    }

    /// The state of a launch to come.
    fn state_for(&self, label: &str, goes_on: bool) -> Result<StateSlot> {
        let state = self.vm.launch_states.take(&*self.vm.gpu, goes_on);
        state.doing(|| format!("launching {label}"))
    }

    /// Puts a launch on a stream, and among those in flight.
    fn put(
        &self,
        vm_state: &mut State,
        stream: &Arc<dyn Stream>,
        shape: &gpuvm_gpu::LaunchConfig,
        args: &[Vec<u8>],
        in_flight: &Arc<InFlight>,
    ) -> Result<()> {
        let InFlight { flight, label, .. } = &**in_flight;
        let raw: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let (peers, own, name) = (Arc::clone(&self.vm.peers), Arc::downgrade(flight), label.clone());
        let on_done = Box::new(move |outcome: &LaunchOutcome| stop_peers(&peers, &own, &name, outcome));
        let launch = stream
            .launch(&in_flight.kernel, shape, &raw, in_flight.state.addr(), on_done)
            .doing(|| format!("launching {label}"))?;
        // The cell is new: it takes the launch.
        let _ = flight.launch.set(launch);
        let broken = {
            let mut peers = self.vm.lock_peers();
            peers.launches.retain(|peer| peer.strong_count() > 0);
            peers.launches.push(Arc::downgrade(flight));
            peers.broken.clone()
        };
        if let Some(reason) = broken {
            // A launch was stopped while this one was on its way; or this one has ended so by now.
            flight.stop(&reason);
        }
        vm_state.in_flight.push(Arc::clone(in_flight));
        Ok(())
    }

    /// Runs a kernel of the runtime to its end.
    pub fn run(
        &self,
        stream: &Arc<dyn Stream>,
        kernel: &Arc<dyn GpuKernel>,
        config: LaunchConfig,
        args: &[Vec<u8>],
        region: Option<(u32, String)>,
        label: &str,
    ) -> Result<()> {
        let named = Named {
            regions: region.into_iter().collect(),
            goes_on: true,
            ..Named::default()
        };
        let in_flight = self.enqueue(stream, kernel, &config, args, named, label);
        let in_flight = self.vm.or_lost(in_flight)?;
        let outcome = in_flight.wait(None).unwrap_or(Err(GpuError::ShutDown));
        let result = in_flight.outcome(self.vm, outcome);
        self.vm.prune();
        self.vm.or_lost(result.map(|_| ()))
    }

    /// Checks arguments and spans against the kernel and the frames.
    pub fn check(&self, kernel: &dyn GpuKernel, given: &[Given]) -> Result<()> {
        let info = kernel.info();
        let refuse = |reason: String| {
            Err(Error::Arguments {
                kernel: info.name.clone(),
                reason,
            })
        };
        if given.len() != info.params.len() {
            return refuse(format!(
                "{} arguments were given, it takes {}",
                given.len(),
                info.params.len()
            ));
        }
        for (position, (given, param)) in given.iter().zip(&info.params).enumerate() {
            if let Err(reason) = given.kind.fits(param) {
                return refuse(format!("argument {}: {reason}", position + 1));
            }
            if given
                .vm
                .as_ref()
                .is_some_and(|vm| !std::ptr::eq(&raw const *vm.inner, self.vm))
            {
                return refuse(format!(
                    "argument {} belongs to another Vm than the kernel",
                    position + 1
                ));
            }
        }
        Ok(())
    }

    /// What the launch's declared spans can hold at once.
    fn spans(&self, config: &LaunchConfig) -> Spans {
        let capabilities = self.vm.gpu.capabilities();
        let volume = |sides: [u32; 3]| sides.into_iter().map(u64::from).fold(1, u64::saturating_mul);
        let (threads, blocks) = (volume(config.shape.block), volume(config.shape.grid));
        let warp_size = u64::from(capabilities.warp_size);
        let block_warps = threads.div_ceil(warp_size).max(1);
        // A multiprocessor takes whole blocks, and one at least, however large.
        let multiprocessors = u64::from(capabilities.sm_count).max(1);
        let lanes_each = u64::from(capabilities.max_resident_lanes) / multiprocessors;
        let blocks_each = (lanes_each / block_warps.saturating_mul(warp_size)).max(1);
        let resident_blocks = blocks.min(multiprocessors.saturating_mul(blocks_each));
        let lanes = resident_blocks.saturating_mul(threads);
        let warps = resident_blocks.saturating_mul(block_warps);
        let by_lanes = lanes.saturating_mul(config.lane_spans);
        let by_warps = warps.saturating_mul(config.warp_spans);
        Spans {
            lanes,
            warps,
            by_lane: by_lanes >= by_warps,
            frames: by_lanes.saturating_add(by_warps),
        }
    }

    /// With at most S spans in each of H holders, H x S + 1 frames always suffice: a lane that waits for a frame holds
    /// none of the others'. `others` are the frames of the launches in flight.
    fn check_spans(&self, kernel: &str, config: &LaunchConfig, others: u64) -> Result<()> {
        let Spans {
            lanes,
            warps,
            by_lane,
            frames,
        } = self.spans(config);
        let needed = frames.saturating_add(others).saturating_add(1);
        if frames == 0 || needed <= u64::from(self.vm.frame_count) {
            return Ok(());
        }
        Err(Error::Spans {
            kernel: kernel.to_owned(),
            spans: if by_lane { config.lane_spans } else { config.warp_spans },
            holders: if by_lane { lanes } else { warps },
            holder: if by_lane { "lane" } else { "warp" },
            needed,
            frames: u64::from(self.vm.frame_count),
            page_bytes: 1 << self.vm.page_shift,
        })
    }

    /// Checks and enqueues a user's launch.
    pub fn launch(
        &self,
        vm: &Vm,
        stream: &Arc<dyn Stream>,
        kernel: &Arc<dyn GpuKernel>,
        config: &LaunchConfig,
        given: Vec<Given>,
    ) -> Result<Launch> {
        self.check(&**kernel, &given)?;
        let label = format!("kernel `{}`", kernel.info().name);
        let mut args = Vec::with_capacity(given.len());
        let mut named = Named::default();
        for argument in given {
            args.push(argument.bytes);
            named.memories.extend(argument.memory);
            named.regions.extend(argument.region);
        }
        let in_flight = self.enqueue(stream, kernel, config, &args, named, &label);
        let in_flight = self.vm.or_lost(in_flight)?;
        Ok(Launch {
            vm: vm.clone(),
            in_flight,
        })
    }
}

impl VmInner {
    /// Lets go of launches that have ended, and remembers whether one of them calls for recovery.
    pub fn prune(&self) {
        let done = self.prune_locked(&mut self.lock());
        // Outside the lock: the last keeper of a region may go with its launch.
        drop(done);
    }

    fn lock_peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`Self::prune`] unless another thread is busy with the state.
    pub fn try_prune(&self) {
        let done = self.state.try_lock().map(|mut state| self.prune_locked(&mut state));
        drop(done);
    }

    fn prune_locked(&self, state: &mut State) -> Vec<Arc<InFlight>> {
        let (done, running): (Vec<_>, Vec<_>) = state.in_flight.drain(..).partition(|launch| launch.is_done());
        state.in_flight = running;
        for launch in &done {
            if !launch.examined.swap(true, Ordering::Relaxed) && launch.needs_recovery(self) {
                state.needs_recovery = true;
            }
        }
        if !done.is_empty() {
            self.look_for_failed_pages(state);
            // Lanes that copy pages themselves have no queue pairs.
            state.needs_recovery |= self.queues.as_ref().is_some_and(|queues| queues.any_given_up());
        }
        if state.in_flight.is_empty() && !state.needs_recovery {
            // No lane looks at the words of closed regions any more.
            state.retired.clear();
        }
        done
    }

    /// Whether launches have left pages in the error state, which the next one must not meet. A prefetch that failed is no fault
    /// of its launch, but its page is in that state all the same.
    fn look_for_failed_pages(&self, state: &mut State) {
        // Lanes that copy pages themselves cannot fail at it.
        if self.queues.is_none() {
            return;
        }
        // What cannot be read says nothing good.
        let failed = self.pages_failed().unwrap_or(u64::MAX);
        state.errors.found |= failed != state.errors.counted;
        state.errors.counted = failed;
    }

    /// Puts kernels on a stream that make pages absent again whose fetches have failed: before a launch, which finds none of
    /// what earlier ones met. Nobody is waited for. Launches in flight may see their own errors forgotten, and fetch such a
    /// page once more.
    fn forget_errors(&self, state: &mut State, stream: &Arc<dyn Stream>) -> Result<()> {
        // Of a launch on another stream: it may be far behind.
        let on_the_way = state.errors.forgetting.iter().any(|earlier| !earlier.is_done());
        if !state.errors.found && !on_the_way {
            return Ok(());
        }
        let regions: Vec<_> = state.regions.iter().flatten().filter_map(Weak::upgrade).collect();
        let mut forgetting = Vec::new();
        for region in regions
            .iter()
            .filter(|region| region.pages.count() > 0 && !region.has_ended())
        {
            let (kernel, args) = self.support.forget(self, region.id, region.pages.count());
            let label = format!("forgetting failed fetches of region `{}`", region.name);
            let slot = self.launcher().state_for(&label, true)?;
            let in_flight = Arc::new(InFlight::new(kernel, slot, &label));
            let config = self.service_config(region.pages.count());
            self.launcher().put(state, stream, &config.shape, &args, &in_flight)?;
            forgetting.push(in_flight);
        }
        state.errors.found = false;
        state.errors.forgetting = forgetting;
        Ok(())
    }

    /// Mends the virtual memory if a launch left it in need. Waits for launches in flight first.
    fn make_ready(&self, state: &mut State) -> Result<()> {
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
                launch.settle();
            }
            drop(self.prune_locked(state));
            self.lock_peers().broken = None;
            self.recover(state)?;
            state.errors.found = false;
            state.retired.clear();
        }
        drop(done);
        match &state.poisoned {
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }
}
