//! Puts launches on streams, and says how they ended: of programs, and of the runtime's own kernels.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use gpuvm_gpu::{GpuError, Kernel as GpuKernel, Launch as GpuLaunch, LaunchOutcome, LaunchReport, OnDone, Stream};
use gpuvm_layouts as layout;
use gpuvm_nic::{SoftNic, soft};
use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

use super::{GpuState, PagedGpu, RegionView, beside_state::Prepared};
use crate::{
    device::DeviceArray,
    error::{Doing, Error, Result},
    fault::Fault,
    launch::{Ask, InFlight, LaunchConfig, LaunchKind, LaunchTracker, Memory, Table, stop_peers},
    launch_state::StateSlot,
    timeline::LaunchSpan,
};

/// The memory that a launch names: what must live until it has ended.
#[derive(Default)]
pub(crate) struct Named {
    /// Each with whether the launch may write it.
    pub memories: Vec<(Arc<dyn Memory>, bool)>,
    /// A region that it reaches and does not name, with its index.
    pub region: Option<(u32, String)>,
    /// A fault ends nothing but what met it: of the runtime's own kernels.
    pub continues: bool,
    /// It looks up where pages are, and none comes or goes beside it.
    pub looks_up: bool,
    /// By what it does so.
    pub by: Table,
    /// It uses no page, and so waits for neither form.
    pub pageless: bool,
    /// It brings pages beside others, and ends when this was called.
    pub gives_way: Option<Ask>,
}

/// What a launch runs.
pub(crate) enum Job<'a> {
    /// A kernel of this library's, and its arguments, given the address of the launch's `VmDesc`.
    Kernel(&'a Arc<dyn GpuKernel>, Box<dyn FnOnce(u64) -> Vec<Vec<u8>> + 'a>),
    /// A kernel that looks pages up, for messages, and what tells its form and its arguments when pages are where they stay, given the
    /// launch's state.
    LookingUp(&'a Arc<dyn GpuKernel>, Box<dyn FnOnce(&StateSlot) -> Chosen<'a> + 'a>),
    /// A series, for messages, and what begins it when pages are where they stay.
    Series(&'a str, Begin<'a>),
    /// What its caller calls so and enqueues, given that address.
    External(&'a str, Box<dyn FnOnce(u64) -> std::result::Result<(), String> + 'a>),
}

/// Begins a series: given the state of its launches, and what to call when it has ended.
pub(crate) type Begin<'a> =
    Box<dyn FnOnce(&StateSlot, OnDone) -> std::result::Result<Arc<dyn GpuLaunch>, GpuError> + 'a>;

/// What keeps launches of the other form away: of those that look pages up, and of those that fetch them.
type Forms<'a> = (Option<RwLockWriteGuard<'a, ()>>, Option<RwLockReadGuard<'a, ()>>);

/// A kernel and its arguments.
pub(crate) type Chosen<'a> = (&'a Arc<dyn GpuKernel>, Vec<Vec<u8>>);

impl Job<'_> {
    /// For messages.
    fn name(&self) -> &str {
        match self {
            Self::Kernel(kernel, _) | Self::LookingUp(kernel, _) => &kernel.info().name,
            Self::Series(name, _) | Self::External(name, _) => name,
        }
    }
}

/// Frames that a launch's declared spans can hold at once, and by whom.
#[derive(Default)]
struct Spans {
    lanes: u64,
    warps: u64,
    by_thread: bool,
    frames: u64,
}

fn address(memory: &Arc<dyn Memory>) -> usize {
    Arc::as_ptr(memory).cast::<()>() as usize
}

/// Each memory once, in the order in which they are mentioned; written, if any of the mentions says so.
fn each_once(mentioned: Vec<(Arc<dyn Memory>, bool)>) -> Vec<(Arc<dyn Memory>, bool)> {
    let mut numbered: Vec<_> = mentioned.into_iter().enumerate().collect();
    // Stable: of the mentions of one memory the first comes first.
    numbered.sort_by_key(|(_, (memory, _))| address(memory));
    numbered.dedup_by(|(_, (later, later_writes)), (_, (memory, writes))| {
        let same = address(later) == address(memory);
        *writes |= same && *later_writes;
        same
    });
    numbered.sort_by_key(|(n, _)| *n);
    numbered.into_iter().map(|(_, memory)| memory).collect()
}

/// Locks the launches of each memory, in the order of their addresses, so that two launches that name the same memory do not wait for each other.
fn lock_each(memories: &[(Arc<dyn Memory>, bool)]) -> Vec<MutexGuard<'_, LaunchTracker>> {
    let mut order: Vec<usize> = (0..memories.len()).collect();
    order.sort_by_key(|&n| address(&memories[n].0));
    let mut guards: Vec<_> = order
        .into_iter()
        .map(|n| (n, memories[n].0.launches().lock()))
        .collect();
    guards.sort_by_key(|(n, _)| *n);
    guards.into_iter().map(|(_, guard)| guard).collect()
}

/// Readies memory for a launch, and says whether it can begin: one that looks pages up, where all memory can be looked up now. What is read alone gets free frames first: a read at the home waits for the link, a store does not.
fn make_coherent(
    memories: &[(Arc<dyn Memory>, bool)],
    locked: &mut [MutexGuard<'_, LaunchTracker>],
    kind: impl Fn(bool) -> LaunchKind,
) -> Result<bool> {
    for written in [false, true] {
        for ((memory, writes), launches) in memories.iter().zip(&mut *locked) {
            if *writes == written {
                memory.make_coherent(launches, kind(written))?;
            }
        }
    }
    let LaunchKind { gpu, looks_up, .. } = kind(false);
    Ok(!looks_up || memories.iter().all(|(memory, _)| memory.can_be_looked_up(gpu)))
}

/// The GPU's clock is compared so often with the host's, and the closest look counts.
const CLOCK_LOOKS: u32 = 8;

/// A number as a kernel's argument.
pub(super) fn arg<T: bytemuck::Pod>(value: T) -> Vec<u8> {
    bytemuck::bytes_of(&value).to_vec()
}

/// The arguments of a kernel over pages of a region.
fn over(vm: u64, region: &RegionView, pages: Range<u64>) -> Vec<Vec<u8>> {
    vec![arg(vm), arg(region.id()), arg(pages.start), arg(pages.end)]
}

/// The arguments of a kernel over all pages of a region.
pub(super) fn over_all(vm: u64, region: &RegionView) -> Vec<Vec<u8>> {
    over(vm, region, 0..region.pages().count())
}

impl PagedGpu {
    /// Enqueues a launch whose arguments were checked. They are made, with the address of the launch's `VmDesc`, while the launches that name
    /// the same memory are locked, so that advice which waited for those holds for this one.
    pub fn enqueue(
        &self,
        stream: &Arc<dyn Stream>,
        job: Job<'_>,
        config: &LaunchConfig,
        named: Named,
        label: &Arc<str>,
    ) -> Result<Arc<InFlight>> {
        let begun = self.try_enqueue(stream, job, config, named, label)?;
        // All its memory can be looked up if it is to be.
        begun.ok_or_else(|| Self::have_left(label))
    }

    /// Of a launch that could not be begun in any form.
    pub fn have_left(label: &str) -> Error {
        Error::Unavailable {
            what: format!("launching {label}"),
            reason: "pages that it looks up have left their frames".into(),
        }
    }

    /// As [`enqueue`](Self::enqueue); none where it looks pages up, and some of its memory cannot be looked up now.
    pub fn try_enqueue(
        &self,
        stream: &Arc<dyn Stream>,
        job: Job<'_>,
        config: &LaunchConfig,
        named: Named,
        label: &Arc<str>,
    ) -> Result<Option<Arc<InFlight>>> {
        let (looks_up, by) = (named.looks_up, named.by);
        // Held until the launch is on its stream. Before the locks of memories.
        let fetches = !looks_up && !named.continues && !named.pageless;
        let _form = self.enter_form(looks_up, fetches)?;
        let mut shape = config.shape.clone();
        shape.watch.deadline.get_or_insert(self.settings.launch_deadline);
        let slot = self.state_for(label, named.continues)?;
        let memories = each_once(named.memories);
        if looks_up {
            self.relieve(&memories)?;
            self.return_awaited_loans()?;
        }
        // Host accesses to this memory, and other launches with it, wait until the launch is on its stream.
        let mut guards = lock_each(&memories);
        let kind = |writes| LaunchKind {
            gpu: self.place,
            writes,
            looks_up,
            by,
        };
        if looks_up {
            // Before the first is held, so that none is forgotten that is.
            self.keep_held(&memories);
        }
        if !make_coherent(&memories, &mut guards, kind)? {
            return Ok(None);
        }
        let may_bring = matches!(job, Job::LookingUp(..));
        let beside = may_bring.then(|| self.prepare_beside(&memories, &guards, by)).flatten();
        let spans = self.spans(config, looks_up);
        let mut in_flight = InFlight::new(slot, label);
        (in_flight.region, in_flight.gives_way) = (named.region, named.gives_way);
        in_flight.then = beside.as_ref().map(Prepared::ask);
        in_flight.span_frames = spans.frames;
        in_flight.looks_up = (looks_up || fetches).then_some(looks_up);
        in_flight.keep(memories.iter().map(|(memory, _)| Arc::clone(memory)).collect());
        let in_flight = Arc::new(in_flight);
        let put = || {
            let mut state = self.lock();
            self.make_ready(&mut state)?;
            self.check_spans(job.name(), config, &spans, &state)?;
            self.clear_errors(&mut state, stream)?;
            // Before the first write can be.
            for ((memory, writes), launches) in memories.iter().zip(&mut guards) {
                memory.expect(launches, kind(*writes));
            }
            self.put(&mut state, stream, &shape, job, &in_flight)?;
            for ((_, writes), launches) in memories.iter().zip(&mut guards) {
                launches.push(kind(*writes), &in_flight);
            }
            Ok(())
        };
        let put = put();
        // Behind the launch, so that it leaves it all multiprocessors that it fills.
        let mover = beside
            .as_ref()
            .and_then(|beside| self.begin_beside(beside, put.is_ok()));
        if let (Some(beside), Some(mover)) = (&beside, mover) {
            self.tell_of(&mover, beside, kind(false), memories.iter().zip(&mut guards));
        }
        put.map(|()| Some(in_flight))
    }

    /// The pages here of memory that is a region.
    fn view_of(&self, memory: &Arc<dyn Memory>) -> Option<Arc<RegionView>> {
        memory.view(self.place)?.downcast().ok()
    }

    /// Keeps launches of the other form away, and has those end that were there.
    fn enter_form(&self, looks_up: bool, fetches: bool) -> Result<Forms<'_>> {
        let (alone, beside) = (looks_up.then(|| self.form.write()), fetches.then(|| self.form.read()));
        if looks_up {
            self.wait_form(false);
        }
        if fetches {
            self.let_idle_go()?;
        }
        Ok((alone, beside))
    }

    /// Has memory know of the launch that brings its pages.
    fn tell_of<'a, 'g: 'a>(
        &self,
        mover: &Arc<InFlight>,
        brings: &Prepared<'_>,
        kind: LaunchKind,
        memories: impl Iterator<Item = (&'a (Arc<dyn Memory>, bool), &'a mut MutexGuard<'g, LaunchTracker>)>,
    ) {
        for ((memory, _), launches) in memories {
            if self.view_of(memory).is_some_and(|view| brings.brings(&view)) {
                launches.push(kind, mover);
            }
        }
    }

    /// Takes what is needed to bring pages of memory that a launch is about to look up and only reads.
    fn prepare_beside(
        &self,
        memories: &[(Arc<dyn Memory>, bool)],
        locked: &[MutexGuard<'_, LaunchTracker>],
        by: Table,
    ) -> Option<Prepared<'_>> {
        let is_allowed = self.settings.bring_beside.unwrap_or(self.is_hardware());
        if !is_allowed || !matches!(by, Table::Places | Table::Entries) {
            return None;
        }
        let read = memories
            .iter()
            .zip(locked)
            .filter(|((_, writes), launches)| !writes && !launches.any_on(self.place));
        let views: Vec<_> = read.filter_map(|((memory, _), _)| self.view_of(memory)).collect();
        self.take_for_beside(&views, by)
    }

    /// Waits for the launches that look pages up, or for those that fetch them: the two never run beside each other, so that frames which
    /// are held for the one are never what the other waits for.
    pub(super) fn wait_form(&self, looks_up: bool) {
        let of_it =
            |launch: &&Arc<InFlight>| launch.looks_up == Some(looks_up) || (looks_up && launch.gives_way.is_some());
        let those: Vec<_> = self.lock().in_flight.iter().filter(of_it).map(Arc::clone).collect();
        those.iter().for_each(|launch| launch.wait_done());
    }

    /// The state of a launch to come.
    pub(super) fn state_for(&self, label: &str, continues: bool) -> Result<StateSlot> {
        let state = self.launch_states.take(&*self.device, continues);
        state.doing(|| format!("launching {label}"))
    }

    /// Puts a launch on a stream, and among those in flight.
    pub(super) fn put(
        &self,
        state: &mut GpuState,
        stream: &Arc<dyn Stream>,
        shape: &gpuvm_gpu::LaunchConfig,
        job: Job<'_>,
        in_flight: &Arc<InFlight>,
    ) -> Result<()> {
        let InFlight { flight, label, .. } = &**in_flight;
        let (peers, own, name) = (Arc::clone(&self.peers), Arc::downgrade(flight), Arc::clone(label));
        // A series waits for nothing, so nothing has to serve it.
        let engine = self.engine.as_ref().filter(|_| !matches!(job, Job::Series(..)));
        let serving = engine.map(|engine| engine.serve()).transpose();
        let serving = serving.doing(|| format!("starting the NIC's engine for {label}"))?;
        // The stream's address stands for it: it is not followed.
        let span = LaunchSpan::new(self.timeline.as_ref(), Arc::as_ptr(stream).cast::<()>() as usize, label);
        let (ended, then) = (Arc::clone(&self.ended), in_flight.then.clone());
        let on_done = Box::new(move |outcome: &LaunchOutcome| {
            drop(serving);
            then.inspect(|then| then());
            // Release: who counts it, and finds that it is done, is behind its end.
            ended.fetch_add(1, Ordering::Release);
            span.end(&name, outcome);
            stop_peers(&peers, &own, &name, outcome);
        });
        let (vm, stop) = (in_flight.state.vm_addr(), in_flight.state.stop_addr());
        let launch_it = |(kernel, args): Chosen<'_>, on_done| {
            let raw: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            stream.launch(kernel, shape, &raw, stop, on_done)
        };
        let launch = match job {
            Job::Kernel(kernel, args) => launch_it((kernel, args(vm)), on_done),
            Job::LookingUp(_, choose) => launch_it(choose(&in_flight.state), on_done),
            Job::Series(_, begin) => begin(&in_flight.state, on_done),
            Job::External(name, enqueue) => {
                let enqueue = Box::new(move || enqueue(vm));
                stream.launch_by(name, shape.watch, stop, enqueue, on_done)
            }
        };
        // One that has ended all the same was never in flight.
        let launch = launch.inspect_err(|_| state.pruned += u64::from(flight.has_ended()));
        let launch = launch.doing(|| format!("launching {label}"))?;
        // The cell is new: it takes the launch.
        let _ = flight.launch.set(launch);
        let broken = {
            let mut peers = self.lock_peers();
            peers.add(flight);
            peers.broken.clone()
        };
        if let Some(reason) = broken {
            // A launch was stopped while this one was on its way; or this one has ended so by now.
            flight.stop(&reason);
        }
        in_flight.set_number(state.put);
        state.put += 1;
        state.in_flight.push(Arc::clone(in_flight));
        Ok(())
    }

    /// Runs a kernel of the runtime to its end.
    pub(super) fn run(
        &self,
        stream: &Arc<dyn Stream>,
        kernel: &Arc<dyn GpuKernel>,
        config: LaunchConfig,
        args: impl FnOnce(u64) -> Vec<Vec<u8>>,
        region: Option<&RegionView>,
        label: &str,
    ) -> Result<()> {
        self.run_reporting(stream, kernel, config, args, region, label)
            .map(drop)
    }

    /// Runs a kernel of the runtime to its end, and says how it went.
    pub(super) fn run_reporting(
        &self,
        stream: &Arc<dyn Stream>,
        kernel: &Arc<dyn GpuKernel>,
        config: LaunchConfig,
        args: impl FnOnce(u64) -> Vec<Vec<u8>>,
        region: Option<&RegionView>,
        label: &str,
    ) -> Result<LaunchReport> {
        let named = Named {
            region: region.map(|region| (region.id(), region.name().to_owned())),
            continues: true,
            ..Named::default()
        };
        let _span = self.span(|| label.to_owned());
        let in_flight = self.enqueue(
            stream,
            Job::Kernel(kernel, Box::new(args)),
            &config,
            named,
            &label.into(),
        );
        let in_flight = self.map_device_lost(in_flight)?;
        let outcome = in_flight.wait(None).unwrap_or(Err(GpuError::ShutDown));
        let result = self.outcome_of(&in_flight, outcome);
        self.prune();
        self.map_device_lost(result)
    }

    /// How the launch ended, its fault first: it is the cause of whatever else went wrong.
    pub fn outcome_of(&self, launch: &InFlight, outcome: LaunchOutcome) -> Result<LaunchReport> {
        if let Some((record, later)) = launch.fault(&*self.device)? {
            let region = launch.fault_region(self.place, record.region);
            let holder = self.holder_of(record.region, record.page);
            let mut fault = Box::new(Fault::from_record(&record, region, self.transport.name(), holder));
            if fault.is_of_transport() {
                // The queue pair may have been recovered by now.
                let named = fault.vendor_syndrome == soft::vendor::MOVER;
                let failure = |nic: &Arc<SoftNic>| {
                    if named {
                        nic.last_mover_failure()
                    } else {
                        nic.mover_failure()
                    }
                };
                fault.mover_failure = self.soft_nics.iter().find_map(failure);
            }
            return Err(Error::Fault {
                kernel: launch.label.to_string(),
                fault,
                later,
            });
        }
        let kernel = launch.label.to_string();
        let stopped = launch.flight.stopped.lock().clone();
        if let (Some(reason), Err(_)) = (stopped, &outcome) {
            return Err(Error::Stopped { kernel, reason });
        }
        if outcome.is_ok() && launch.state.is_aborted() {
            let reason = "Launch::abort was called".into();
            return Err(Error::Stopped { kernel, reason });
        }
        outcome.map_err(|source| Error::Gpu {
            doing: format!("running {kernel}"),
            source,
        })
    }

    /// What the launch's declared spans can hold at once: nothing where it looks pages up.
    fn spans(&self, config: &LaunchConfig, looks_up: bool) -> Spans {
        if looks_up || (config.thread_spans == 0 && config.warp_spans == 0) {
            // Asking the GPU copies names, which most launches need not pay.
            return Spans::default();
        }
        let capabilities = self.capabilities();
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
        let by_threads = lanes.saturating_mul(config.thread_spans);
        let by_warps = warps.saturating_mul(config.warp_spans);
        Spans {
            lanes,
            warps,
            by_thread: by_threads >= by_warps,
            frames: by_threads.saturating_add(by_warps),
        }
    }

    /// With at most S spans in each of H holders, H x S + 1 frames always suffice: a lane that waits for a frame holds
    /// none of the others'.
    fn check_spans(&self, kernel: &str, config: &LaunchConfig, spans: &Spans, state: &GpuState) -> Result<()> {
        let &Spans {
            lanes,
            warps,
            by_thread,
            frames,
        } = spans;
        if frames == 0 {
            return Ok(());
        }
        let in_use = state.in_flight.iter().map(|launch| launch.span_frames);
        let needed = in_use.fold(frames, u64::saturating_add).saturating_add(1);
        if needed <= u64::from(self.frame_count()) {
            return Ok(());
        }
        Err(Error::Spans {
            kernel: kernel.to_owned(),
            spans: if by_thread {
                config.thread_spans
            } else {
                config.warp_spans
            },
            holders: if by_thread { lanes } else { warps },
            holder: if by_thread { "thread" } else { "warp" },
            needed,
            frames: u64::from(self.frame_count()),
            page_bytes: 1 << self.page_shift(),
        })
    }

    /// Runs a kernel on this GPU and compares the layouts it was compiled with to the runtime's.
    pub(super) fn check_version(&self) -> Result<()> {
        let doing = || "checking the device library".to_owned();
        let out = DeviceArray::<u32>::zeroed(&*self.device, 1).doing(doing)?;
        let (support, config) = (&self.support, self.service_config(1));
        let args = |_| vec![arg(out.addr())];
        self.run(&support.stream, &support.version, config, args, None, &doing())?;
        let found = out.read(&*self.device, 0, 1).doing(doing)?[0];
        if found != layout::LAYOUT_VERSION {
            return Err(Error::Unavailable {
                what: "the device library".into(),
                reason: format!(
                    "its layout version is {found}, and the runtime's is {}; rebuild gpuvm",
                    layout::LAYOUT_VERSION
                ),
            });
        }
        Ok(())
    }

    /// Compares the clocks of GPU and host for the timeline, and begins it.
    pub(super) fn begin_timeline(&self) -> Result<()> {
        let (Some(timeline), Some(clock)) = (&self.timeline, &self.support.clock) else {
            return Ok(());
        };
        let doing = || "comparing the GPU's clock with the host's".to_owned();
        let out = DeviceArray::<u64>::zeroed(&*self.device, 1).doing(doing)?;
        for _ in 0..CLOCK_LOOKS {
            let before = Instant::now();
            let (support, args) = (&self.support, |_| vec![arg(out.addr())]);
            self.run(&support.stream, clock, self.service_config(1), args, None, &doing())?;
            let after = Instant::now();
            timeline.align(before, after, out.read(&*self.device, 0, 1).doing(doing)?[0]);
        }
        timeline.begin(!self.capabilities().deterministic)
    }

    /// Writes the dirty pages of a region home.
    pub fn flush(&self, region: &RegionView) -> Result<()> {
        let (support, config) = (&self.support, self.over_pages(region.pages().count()));
        let args = |vm| over_all(vm, region);
        let label = format!("flush of region `{}`", region.name());
        self.run(&support.stream, &support.flush, config, args, Some(region), &label)
    }

    /// Gives the frames of pages of a region back, dropping what is dirty still if `discard`.
    pub fn release(&self, region: &RegionView, pages: Range<u64>, discard: bool) -> Result<()> {
        let (support, config) = (&self.support, self.over_pages(pages.end - pages.start));
        let args = |vm| [over(vm, region, pages), vec![arg(u32::from(discard))]].concat();
        let label = format!("release of region `{}`", region.name());
        self.run(&support.stream, &support.release, config, args, Some(region), &label)
    }

    /// Finishes what has completed on queue pairs, and closes them to reservations.
    pub fn reap(&self, first: u32, count: u32) -> Result<()> {
        let (support, config) = (&self.support, self.service_config(1));
        let args = |vm: u64| vec![arg(vm), arg(first), arg(count)];
        let label = "closing the queue pairs of a home that has returned";
        self.run(&support.background, &support.reap, config, args, None, label)
    }

    /// Marks what a home holds of pages of a region as stale.
    pub fn mark_stale(&self, region: &RegionView, home: u32, pages: Range<u64>) -> Result<()> {
        let (support, config) = (&self.support, self.service_config(pages.end - pages.start));
        let args = |vm: u64| {
            let (first, last) = (arg(pages.start), arg(pages.end));
            vec![arg(vm), arg(region.id()), arg(home), first, last]
        };
        let label = format!("marking copies of region `{}` as stale", region.name());
        self.run(
            &support.background,
            &support.mark_stale,
            config,
            args,
            Some(region),
            &label,
        )
    }

    /// Repairs stale copies of pages of a region, whose kernel argument is `array`, given the launch's `VmDesc`.
    pub fn repair_copies(
        &self,
        region: &RegionView,
        array: impl FnOnce(u64) -> layout::ArrayDesc,
        pages: Range<u64>,
    ) -> Result<()> {
        let (support, config) = (&self.support, self.service_config(pages.end - pages.start));
        let args = |vm| vec![arg(array(vm)), arg(pages.start), arg(pages.end)];
        let label = format!("catching up copies of region `{}`", region.name());
        self.run(
            &support.background,
            &support.catch_up,
            config,
            args,
            Some(region),
            &label,
        )
    }

    /// Passes on the lines of a broadcast array that this GPU has marked, of this many. `array`: the argument, given the launch's `VmDesc`.
    pub fn forward_atomics(
        &self,
        array: impl FnOnce(u64) -> layout::BroadcastDesc,
        lines: u64,
        name: &str,
    ) -> Result<()> {
        let support = &self.support;
        let config = self.over_memory(lines.div_ceil(8));
        let label = format!("forwarding atomics of `{name}`");
        self.run(
            &support.stream,
            &support.forward_atomics,
            config,
            |vm| vec![arg(array(vm)), arg(lines)],
            None,
            &label,
        )
    }

    /// Copies bytes of a broadcast array from their owners' copies to this GPU's. `array`: the argument, given the launch's `VmDesc`.
    pub fn bring_copy(
        &self,
        array: impl FnOnce(u64) -> layout::BroadcastDesc,
        first: u64,
        bytes: u64,
        name: &str,
    ) -> Result<()> {
        let support = &self.support;
        let args = |vm| vec![arg(array(vm)), arg(first), arg(bytes)];
        let label = format!("subscribing to pages of `{name}`");
        let config = self.over_memory(bytes / 8);
        self.run(&support.stream, &support.bring_copy, config, args, None, &label)
    }

    /// The shape of a kernel that goes over this many words at memory's speed.
    fn over_memory(&self, words: u64) -> LaunchConfig {
        let multiprocessors = u64::from(self.capabilities().sm_count).max(1);
        let blocks = words.div_ceil(256).clamp(1, 4 * multiprocessors) as u32;
        LaunchConfig::new(blocks, 256).deadline(self.service_deadline())
    }

    /// Finishes what has completed on all queue pairs.
    pub(super) fn reaping_of(&self, queue_pairs: u32) -> Job<'_> {
        let args = move |vm: u64| vec![arg(vm), arg(0_u32), arg(queue_pairs)];
        Job::Kernel(&self.support.reap, Box::new(args))
    }

    /// Forgets failed fetches of a region's pages.
    pub(super) fn clearing_of<'a>(&'a self, region: &'a RegionView) -> Job<'a> {
        Job::Kernel(&self.support.clear_errors, Box::new(|vm| over_all(vm, region)))
    }
}
