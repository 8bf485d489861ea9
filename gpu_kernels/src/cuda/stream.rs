//! Streams: launches in order.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;

use super::calls::cu;
use super::core::{Core, Event, Raw, StreamHandle, is_captured};
use super::driver::{is, outcome};
use super::engine::Engine;
use super::launch::{Events, InOrder, LaunchState, NewLaunch};
use super::module::{CudaKernel, KernelInner};
use super::places::Places;
use super::queue::LaunchQueue;
use super::stops::{LATE, StopWord};
use crate::api::{Enqueue, Kernel, Launch, LaunchConfig, OnDone, Stream, Watch};
use crate::back_end::Arguments;
use crate::error::GpuError;

/// Most blocks in x, y and z.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// Most threads of a block in x, y and z.
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
/// Handles up to this are CUDA's default streams: none, the legacy one, and that of the calling thread.
const DEFAULT_STREAMS: u64 = 2;
/// How long `synchronize` asks without sleeping, and how long it sleeps between looks after that.
const SPIN: Duration = Duration::from_micros(100);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A stream as its user holds it.
pub(crate) struct CudaStream {
    engine: Arc<Engine>,
    places: Arc<Places>,
    inner: Arc<LaunchQueue>,
}

impl CudaStream {
    /// An empty stream, of high priority if it is `urgent`.
    pub(crate) fn new(engine: &Arc<Engine>, places: &Arc<Places>, urgent: bool) -> Result<Self, GpuError> {
        engine.core.enter()?;
        let handle = engine.core.new_stream(urgent)?;
        Ok(Self::over(engine, places, handle, false))
    }

    /// Another's stream.
    ///
    /// # Safety
    /// As [`crate::Gpu::borrow_stream`] asks.
    pub(crate) unsafe fn borrowed(engine: &Arc<Engine>, places: &Arc<Places>, stream: u64) -> Result<Self, GpuError> {
        let core = &engine.core;
        core.enter()?;
        let handle: StreamHandle = Raw(std::ptr::with_exposed_provenance_mut(stream as usize));
        // The default streams are those of whatever context is current, which is this GPU's at every launch.
        if stream > DEFAULT_STREAMS {
            let mut context = std::ptr::null_mut();
            // SAFETY: an out-value, and a stream that the caller says is live.
            let called = unsafe { cu::cuStreamGetCtx(handle.0, &raw mut context) };
            let refuse = |cause: String| Err(GpuError::BadStream { stream, cause });
            match outcome(called) {
                Err(failure) => return refuse(format!("{}: {}", failure.name, failure.text)),
                Ok(()) if context != core.context.0 => {
                    return refuse("it is not of the primary context of this GPU: make it there".to_owned());
                }
                Ok(()) => {}
            }
        }
        Ok(Self::over(engine, places, handle, true))
    }

    fn over(engine: &Arc<Engine>, places: &Arc<Places>, handle: StreamHandle, borrowed: bool) -> Self {
        let inner = Arc::new(LaunchQueue::new(&engine.core, engine.stream_number(), handle, borrowed));
        engine.streams.lock().push(Arc::clone(&inner));
        Self {
            engine: Arc::clone(engine),
            places: Arc::clone(places),
            inner,
        }
    }

    fn stop_word(&self, kernel: &str, word: u64) -> Result<StopWord, GpuError> {
        if word == 0 {
            return Ok(StopWord::None);
        }
        let refuse = |cause: &str| {
            Err(GpuError::BadArguments {
                kernel: kernel.to_owned(),
                cause: format!("its stop word at {word:#x} {cause}"),
            })
        };
        if !word.is_multiple_of(4) {
            return refuse("is not 4-byte aligned");
        }
        match self.places.find(word, 4) {
            Some(place) if place.read_only => refuse("is registered for reading only"),
            Some(place) => Ok(place.host.map_or(StopWord::Device(word), StopWord::Host)),
            None => refuse("is not in live memory of this GPU"),
        }
    }

    /// Enqueues a launch between two marks, and has it watched.
    fn put(&self, new: New<'_>, on_done: OnDone) -> Result<Arc<dyn Launch>, GpuError> {
        let (core, stream, stops) = (&self.inner.core, self.inner.handle, &self.engine.stops);
        let stop_word = self.stop_word(&new.name, new.stop_word)?;
        core.enter()?;
        let enqueuing = self.inner.enqueuing.lock();
        let events = Events {
            start: Event::new(core, new.watch.timed)?,
            end: Event::new(core, new.watch.timed)?,
        };
        core.begin_launch()?;
        let place = (self.inner.number, self.inner.borrowed);
        let brake = stops.add(place, &new.name, new.watch, stop_word);
        let nothing_runs = |_: &GpuError| {
            stops.remove(&brake);
            core.end_launch();
        };
        // SAFETY: the event is this launch's own, and the stream is live.
        let started = unsafe { cu::cuEventRecord(events.start.handle.0, stream.0) };
        let started = core.check(format_args!("mark the start of kernel `{}`", new.name), started);
        started.inspect_err(nothing_runs)?;
        // A caller that failed may have enqueued something before.
        let failed = match new.enqueue {
            How::Kernel(enqueue) => {
                enqueue().inspect_err(nothing_runs)?;
                None
            }
            How::Caller(enqueue) => enqueue().err(),
        };
        self.mark_end(&new.name, &events.end)?;
        let launch = LaunchState::new(NewLaunch {
            core: Arc::clone(core),
            stops: Arc::clone(stops),
            name: new.name,
            kernel: new.kernel,
            stream: Arc::clone(&self.inner) as Arc<dyn InOrder>,
            events,
            blocks: new.blocks,
            brake: Arc::clone(&brake),
            on_done,
        });
        self.inner.queue.lock().launches.push_back(Arc::clone(&launch));
        drop(enqueuing);
        self.engine.wake();
        match failed {
            None => Ok(launch),
            Some(cause) => {
                launch.wait(None);
                let kernel = launch.name().to_owned();
                Err(GpuError::NotEnqueued { kernel, cause })
            }
        }
    }

    /// Marks where a launch ends that runs from now on: without this nothing would know when it does.
    fn mark_end(&self, name: &str, end: &Event) -> Result<(), GpuError> {
        let core = &self.inner.core;
        // Who enqueued it may have made another context current.
        core.enter()?;
        // SAFETY: the event is the launch's own, and the stream is live.
        let ended = unsafe { cu::cuEventRecord(end.handle.0, self.inner.handle.0) };
        let ended = core.check(format_args!("mark the end of kernel `{name}`"), ended);
        // Not as a dead context, unless it is one: the kernel may run on.
        ended.map_err(|error| {
            core.lose_with(GpuError::Abandoned {
                kernel: name.to_owned(),
                cause: format!("its end cannot be seen, and the GPU is lost: {error}"),
            })
        })
    }
}

/// A launch to come.
struct New<'a> {
    name: Arc<str>,
    /// Of this library's, kept until it has ended.
    kernel: Option<Arc<KernelInner>>,
    blocks: u64,
    watch: Watch,
    stop_word: u64,
    enqueue: How<'a>,
}

/// Who puts it on the stream.
enum How<'a> {
    /// This library: nothing of it runs after an error.
    Kernel(Box<dyn FnOnce() -> Result<(), GpuError> + 'a>),
    Caller(Enqueue<'a>),
}

/// Has the driver enqueue a kernel whose shape and arguments were checked.
pub(crate) fn launch_kernel(
    core: &Core,
    stream: StreamHandle,
    kernel: &KernelInner,
    config: &LaunchConfig,
    arguments: &Arguments,
) -> Result<(), GpuError> {
    let ([x, y, z], [a, b, c]) = (config.grid, config.block);
    // The driver reads the parameters and changes nothing of them.
    let params = arguments.pointers().cast::<*mut c_void>().cast_mut();
    let (function, name) = (kernel.function(), &kernel.info.name);
    let dynamic = config.dynamic_shared_bytes;
    // SAFETY: the function belongs to a module that the kernel keeps; the parameters have the sizes and alignments that the kernel's table
    // gives, and the driver copies them before it returns.
    let launched = unsafe {
        let extra = std::ptr::null_mut();
        cu::cuLaunchKernel(function.0, x, y, z, a, b, c, dynamic, stream.0, params, extra)
    };
    outcome(launched).map_err(|failure| {
        if is(failure.code, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) {
            let (registers, why) = (kernel.resources.registers, &failure.text);
            let cause = format!("{}: {why}; a thread takes {registers} registers", failure.name);
            return GpuError::LaunchConfig {
                kernel: name.clone(),
                cause,
            };
        }
        core.error(format_args!("launch kernel `{name}`"), failure)
    })
}

/// Refuses a shape that the kernel or the GPU cannot have.
pub(crate) fn check_config(kernel: &KernelInner, config: &LaunchConfig) -> Result<u64, GpuError> {
    let (info, resources) = (&kernel.core().info, &kernel.resources);
    let refuse = |cause: String| {
        Err(GpuError::LaunchConfig {
            kernel: kernel.info.name.clone(),
            cause,
        })
    };
    for (what, shape, most) in [("grid", config.grid, GRID_MAX), ("block", config.block, BLOCK_MAX)] {
        if shape.contains(&0) {
            return refuse(format!("{what} {shape:?} is empty"));
        }
        if shape.iter().zip(most).any(|(n, most)| *n > most) {
            return refuse(format!("{what} {shape:?} is larger than {most:?}"));
        }
    }
    let threads: u64 = config.block.iter().map(|&n| u64::from(n)).product();
    if threads > u64::from(info.threads_per_block) {
        let most = info.threads_per_block;
        return refuse(format!("block {:?} has more than {most} threads", config.block));
    }
    if threads > u64::from(resources.max_threads_per_block) {
        return refuse(format!(
            "block {:?} has {threads} threads, and this kernel's blocks at most {}: a thread takes {} registers",
            config.block, resources.max_threads_per_block, resources.registers
        ));
    }
    let (fixed, dynamic) = (resources.static_shared_bytes, config.dynamic_shared_bytes);
    if u64::from(fixed) + u64::from(dynamic) > u64::from(info.shared_bytes_per_block) {
        return refuse(format!(
            "{fixed} bytes of static and {dynamic} of dynamic shared memory are more than {}",
            info.shared_bytes_per_block
        ));
    }
    // At most 2^31 * 2^16 * 2^16.
    Ok(config.grid.iter().map(|&n| u64::from(n)).product())
}

impl Stream for CudaStream {
    fn launch(
        &self,
        kernel: &Arc<dyn Kernel>,
        config: &LaunchConfig,
        args: &[&[u8]],
        stop_word: u64,
        on_done: OnDone,
    ) -> Result<Arc<dyn Launch>, GpuError> {
        let core = &self.inner.core;
        let own = kernel.as_any().downcast_ref::<CudaKernel>();
        let Some(CudaKernel(kernel)) = own.filter(|kernel| Arc::ptr_eq(kernel.0.core(), core)) else {
            return Err(GpuError::BadArguments {
                kernel: kernel.info().name.clone(),
                cause: "it was compiled by another GPU; compile it with this one".to_owned(),
            });
        };
        let blocks = check_config(kernel, config)?;
        let arguments = Arguments::new(&kernel.info, args)?;
        let enqueue = || launch_kernel(core, self.inner.handle, kernel, config, &arguments);
        let new = New {
            name: Arc::clone(&kernel.name),
            kernel: Some(Arc::clone(kernel)),
            blocks,
            watch: config.watch,
            stop_word,
            enqueue: How::Kernel(Box::new(enqueue)),
        };
        self.put(new, on_done)
    }

    fn launch_by(
        &self,
        name: &str,
        watch: Watch,
        stop_word: u64,
        enqueue: Enqueue<'_>,
        on_done: OnDone,
    ) -> Result<Arc<dyn Launch>, GpuError> {
        let new = New {
            name: name.into(),
            kernel: None,
            blocks: 0,
            watch,
            stop_word,
            enqueue: How::Caller(enqueue),
        };
        self.put(new, on_done)
    }

    unsafe fn follow(&self, stream: u64) -> Result<(), GpuError> {
        let core = &self.inner.core;
        core.enter()?;
        let others: StreamHandle = Raw(std::ptr::with_exposed_provenance_mut(stream as usize));
        if is_captured(others) {
            let cause = "it is being captured into a graph, and so has no work yet: end the capture first".to_owned();
            return Err(GpuError::BadStream { stream, cause });
        }
        let reached = Event::new(core, false)?;
        // SAFETY: the event is this call's own, which the driver needs no longer; the caller says that the other stream is live.
        unsafe {
            let marked = cu::cuEventRecord(reached.handle.0, others.0);
            core.check("mark the work of another library's stream", marked)?;
            let waits = cu::cuStreamWaitEvent(self.inner.handle.0, reached.handle.0, 0);
            core.check("wait for another library's stream", waits)
        }
    }

    fn raw(&self) -> Option<u64> {
        Some(self.inner.handle.0 as u64)
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        let begun = Instant::now();
        let mut lost_since = None;
        loop {
            if let Some(cause) = self.inner.core.lost()
                && lost_since.get_or_insert_with(Instant::now).elapsed() > LATE
            {
                // As a launch's waiter: who ends launches may be stuck in the driver.
                return Err(cause);
            }
            let mut queue = self.inner.queue.lock();
            if queue.launches.is_empty() {
                return queue.error.take().map_or(Ok(()), Err);
            }
            if begun.elapsed() > SPIN {
                self.inner.empty.wait_for(&mut queue, LOOK_AGAIN);
            }
            drop(queue);
            self.inner.advance();
        }
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // Release: see `is_closed_and_empty`.
        self.inner.closed.store(true, Ordering::Release);
        self.engine.wake();
    }
}
