//! Launches: their checks, their way onto a stream, and how they end.

use std::{
    sync::{
        Arc, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use gpuvm_gpu::{GpuError, HostMemory, Kernel as GpuKernel, LaunchOutcome, LaunchReport, Stream};
use gpuvm_layouts::{self as layout, LaunchState};

use crate::{
    args::{Given, Memory},
    error::{Doing, Error, Result},
    fault::Fault,
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

    /// Spans of `pin(i)` that one lane holds at once, at most. Declared spans are checked against the frames at
    /// launch; undeclared ones can end in a "no frame" fault.
    pub fn lane_spans(mut self, spans: u64) -> Self {
        self.lane_spans = spans;
        self
    }

    /// Spans of `pin_warp(i)` that one warp holds at once, at most, all its lanes on the same pages.
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

/// A launch that was enqueued, for whoever waits for it. It keeps alive what the kernel reaches.
pub(crate) struct InFlight {
    launch: OnceLock<Arc<dyn gpuvm_gpu::Launch>>,
    state: HostMemory,
    kernel: Arc<dyn GpuKernel>,
    _memories: Vec<Arc<dyn Memory>>,
    label: String,
    examined: AtomicBool,
}

impl InFlight {
    /// Whether it has ended. Until it is on its stream it has not.
    pub fn is_done(&self) -> bool {
        self.launch.get().is_some_and(|launch| launch.is_done())
    }

    /// Waits for its end. Bounded by the launch's deadline.
    pub fn settle(&self) {
        if let Some(launch) = self.launch.get() {
            launch.wait(None);
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        self.launch.get().and_then(|launch| launch.wait(timeout))
    }

    /// The launch's shared word at `offset` of its state.
    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= size_of::<LaunchState>());
        // SAFETY: the state is a LaunchState-sized, page-aligned allocation that lives as long as `self`; kernels and
        // host touch its words by atomics while the launch runs.
        unsafe { &*self.state.host_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// Makes the launch's slow paths end.
    fn abort(&self) {
        // Relaxed: the flag orders nothing; lanes look at it again and again.
        self.word(core::mem::offset_of!(LaunchState, abort))
            .store(1, Ordering::Relaxed);
    }

    /// The first fault and the number of later ones.
    fn fault(&self) -> Option<(layout::FaultRecord, u32)> {
        let claim = core::mem::offset_of!(LaunchState, fault) + core::mem::offset_of!(layout::FaultRecord, claim);
        // Acquire: pairs with the reporting lane's release, so the record is whole.
        if self.word(claim).load(Ordering::Acquire) != 2 {
            return None;
        }
        let later = self
            .word(core::mem::offset_of!(LaunchState, later_faults))
            .load(Ordering::Relaxed);
        // SAFETY: the record lies inside the state, is plain data, and nobody writes it once `claim` is 2.
        let record = unsafe {
            self.state
                .host_ptr()
                .add(core::mem::offset_of!(LaunchState, fault))
                .cast::<layout::FaultRecord>()
                .read()
        };
        Some((record, later))
    }

    /// Whether the host must mend the virtual memory after this ended launch: it was stopped in the middle, or it
    /// left pages or queue pairs in the error state.
    fn needs_recovery(&self, vm: &VmInner) -> bool {
        let stopped = matches!(self.wait(Some(Duration::ZERO)), Some(Err(_)));
        let fault = self.fault().is_some_and(|(record, _)| {
            Fault::from_record(&record, String::new(), vm.transport.name()).needs_recovery()
        });
        stopped || fault
    }

    /// How the launch ended, its fault first: it is the cause of whatever else went wrong.
    fn outcome(&self, vm: &VmInner, outcome: LaunchOutcome) -> Result<LaunchReport> {
        if let Some((record, later)) = self.fault() {
            let region = vm.region_name(record.region);
            let fault = Box::new(Fault::from_record(&record, region, vm.transport.name()));
            return Err(Error::Fault {
                kernel: self.label.clone(),
                fault,
                later,
            });
        }
        outcome.map_err(|source| Error::Gpu {
            doing: format!("running {}", self.label),
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
    /// its deadline, or can never end.
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
        // Before the fault's region can be dropped, and with it its name.
        let result = self.in_flight.outcome(vm, outcome);
        vm.prune();
        Some(result)
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.in_flight.is_done()
    }

    /// Asks the kernel to stop: `gpuvm::failed()` becomes true and accesses that miss return at once.
    pub fn abort(&self) {
        self.in_flight.abort();
    }

    /// Stops the kernel where it stands. The virtual memory is mended before the next launch; no dirty page is lost.
    pub fn kill(&self) {
        if let Some(launch) = self.in_flight.launch.get() {
            launch.abandon();
        }
    }
}

/// Puts launches on streams.
pub(crate) struct Launcher<'a> {
    pub vm: &'a VmInner,
}

impl Launcher<'_> {
    /// Enqueues a launch whose arguments were checked.
    pub fn enqueue(
        &self,
        stream: &Arc<dyn Stream>,
        kernel: &Arc<dyn GpuKernel>,
        config: &LaunchConfig,
        args: &[Vec<u8>],
        memories: Vec<Arc<dyn Memory>>,
        label: &str,
    ) -> Result<Arc<InFlight>> {
        let vm = self.vm;
        let doing = || format!("launching {label}");
        let mut shape = config.shape.clone();
        shape.deadline.get_or_insert(vm.settings.launch_deadline);
        let state = vm.gpu.allocate_host(size_of::<LaunchState>() as u64).doing(doing)?;
        let state_addr = state.device_addr();
        // Host accesses to this memory wait until the launch is on its stream. In one order, so that two launches
        // that name the same memory do not wait for each other.
        let mut by_address: Vec<_> = memories.iter().collect();
        by_address.sort_by_key(|memory| Arc::as_ptr(memory).cast::<()>() as usize);
        by_address.dedup_by_key(|memory| Arc::as_ptr(memory).cast::<()>() as usize);
        let mut guards: Vec<MutexGuard<'_, Vec<Weak<InFlight>>>> = by_address
            .iter()
            .map(|memory| memory.launches().lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        let in_flight = Arc::new(InFlight {
            launch: OnceLock::new(),
            state,
            kernel: Arc::clone(kernel),
            _memories: memories.clone(),
            label: label.to_owned(),
            examined: AtomicBool::new(false),
        });
        let mut vm_state = vm.lock();
        vm.make_ready(&mut vm_state)?;
        let raw: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let launch = stream
            .launch(&in_flight.kernel, &shape, &raw, state_addr, Box::new(|_| ()))
            .doing(doing)?;
        // The cell is new: it takes the launch.
        let _ = in_flight.launch.set(launch);
        vm_state.in_flight.push(Arc::clone(&in_flight));
        for launches in &mut guards {
            launches.retain(|earlier| earlier.upgrade().is_some_and(|earlier| !earlier.is_done()));
            launches.push(Arc::downgrade(&in_flight));
        }
        Ok(in_flight)
    }

    /// Runs a kernel of the runtime to its end.
    pub fn run(
        &self,
        stream: &Arc<dyn Stream>,
        kernel: &Arc<dyn GpuKernel>,
        config: LaunchConfig,
        args: &[Vec<u8>],
        label: &str,
    ) -> Result<()> {
        let in_flight = self.enqueue(stream, kernel, &config, args, Vec::new(), label)?;
        let outcome = in_flight.wait(None).unwrap_or(Err(GpuError::ShutDown));
        let result = in_flight.outcome(self.vm, outcome);
        self.vm.prune();
        result.map(|_| ())
    }

    /// Checks arguments and spans against the kernel and the frames.
    pub fn check(&self, kernel: &dyn GpuKernel, config: &LaunchConfig, given: &[Given]) -> Result<()> {
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
        self.check_spans(&info.name, config)
    }

    /// With at most S spans in each of H holders, H x S + 1 frames always suffice: a lane that waits for a frame holds
    /// none of the others'.
    fn check_spans(&self, kernel: &str, config: &LaunchConfig) -> Result<()> {
        let capabilities = self.vm.gpu.capabilities();
        let volume = |sides: [u32; 3]| sides.into_iter().map(u64::from).fold(1, u64::saturating_mul);
        let (threads, blocks) = (volume(config.shape.block), volume(config.shape.grid));
        // A worker or multiprocessor takes whole blocks.
        let resident_blocks = blocks.min((u64::from(capabilities.max_resident_lanes) / threads.max(1)).max(1));
        let lanes = resident_blocks.saturating_mul(threads);
        let warps = resident_blocks.saturating_mul(threads.div_ceil(u64::from(capabilities.warp_size)));
        let by_lanes = lanes.saturating_mul(config.lane_spans);
        let by_warps = warps.saturating_mul(config.warp_spans);
        let needed = by_lanes.saturating_add(by_warps).saturating_add(1);
        if needed == 1 || needed <= u64::from(self.vm.frame_count) {
            return Ok(());
        }
        let by_lane = by_lanes >= by_warps;
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
        self.check(&**kernel, config, &given)?;
        let label = format!("kernel `{}`", kernel.info().name);
        let mut args = Vec::with_capacity(given.len());
        let mut memories = Vec::new();
        for argument in given {
            args.push(argument.bytes);
            memories.extend(argument.memory);
        }
        let in_flight = self.enqueue(stream, kernel, config, &args, memories, &label)?;
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

    fn prune_locked(&self, state: &mut State) -> Vec<Arc<InFlight>> {
        let (done, running): (Vec<_>, Vec<_>) = state.in_flight.drain(..).partition(|launch| launch.is_done());
        state.in_flight = running;
        for launch in &done {
            if !launch.examined.swap(true, Ordering::Relaxed) && launch.needs_recovery(self) {
                state.needs_recovery = true;
            }
        }
        // A prefetch or an eviction that failed is no fault of its launch, but its queue pair works no more.
        if !done.is_empty() && !state.needs_recovery {
            state.needs_recovery = self.queues.any_failed(&*self.gpu).unwrap_or(true);
        }
        done
    }

    /// Mends the virtual memory if a launch left it in need. Waits for launches in flight first.
    fn make_ready(&self, state: &mut State) -> Result<()> {
        let done = self.prune_locked(state);
        if state.needs_recovery {
            for launch in &state.in_flight {
                launch.settle();
            }
            drop(self.prune_locked(state));
            self.recover(state)?;
        }
        drop(done);
        match &state.poisoned {
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }
}
