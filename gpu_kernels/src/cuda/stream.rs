//! Streams: launches in order.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;
use parking_lot::{Condvar, Mutex};

use super::calls::cu;
use super::core::{Core, Event, Retired, StreamHandle};
use super::driver::{is, outcome};
use super::engine::Engine;
use super::launch::{CudaLaunch, LaunchState, NewLaunch};
use super::module::{CudaKernel, Instance, KernelInner, Taken};
use super::places::Places;
use super::stops::{Brake, LATE, StopWord};
use crate::api::{Kernel, Launch, LaunchConfig, OnDone, Stream};
use crate::back_end::Arguments;
use crate::error::GpuError;

/// Most blocks in x, y and z.
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
/// Most threads of a block in x, y and z.
const BLOCK_MAX: [u32; 3] = [1024, 1024, 64];
/// How long `synchronize` asks without sleeping, and how long it sleeps between looks after that.
const SPIN: Duration = Duration::from_micros(100);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A stream and what runs on it.
pub(crate) struct StreamInner {
    core: Arc<Core>,
    pub(crate) number: u64,
    handle: StreamHandle,
    /// Held while a launch is enqueued, so that `queue` has the stream's order.
    enqueuing: Mutex<()>,
    queue: Mutex<Queue>,
    empty: Condvar,
    /// Held by the thread that ends launches, so that their callbacks run one after the other.
    ending: Mutex<()>,
    closed: AtomicBool,
}

#[derive(Default)]
struct Queue {
    /// Enqueued and not ended, in order.
    launches: VecDeque<Arc<LaunchState>>,
    error: Option<GpuError>,
}

impl StreamInner {
    /// Ends the launches that the GPU has finished, in order; false when there was nothing to do or another thread does it.
    pub(crate) fn advance(&self) -> bool {
        let Some(_ending) = self.ending.try_lock() else {
            return false;
        };
        let mut ended = false;
        while let Some(head) = self.head() {
            let Some(outcome) = head.poll() else { break };
            if let Err(error) = &outcome {
                self.queue.lock().error.get_or_insert_with(|| error.clone());
            }
            head.complete(outcome);
            let mut queue = self.queue.lock();
            queue.launches.pop_front();
            if queue.launches.is_empty() {
                self.empty.notify_all();
            }
            ended = true;
        }
        ended
    }

    /// The launch that runs or is next.
    pub(crate) fn head(&self) -> Option<Arc<LaunchState>> {
        self.queue.lock().launches.front().cloned()
    }

    /// Whether its user has dropped it and nothing runs.
    pub(crate) fn is_closed_and_empty(&self) -> bool {
        // Acquire, with the release in `drop`: no launch is enqueued after the store, so the queue's answer is final.
        self.closed.load(Ordering::Acquire) && self.queue.lock().launches.is_empty()
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        self.core.retire(Retired::Stream(self.handle));
    }
}

/// A stream as its user holds it.
pub(crate) struct CudaStream {
    engine: Arc<Engine>,
    places: Arc<Places>,
    inner: Arc<StreamInner>,
}

impl CudaStream {
    /// An empty stream.
    pub(crate) fn new(engine: &Arc<Engine>, places: &Arc<Places>) -> Result<Self, GpuError> {
        engine.core.enter()?;
        let inner = Arc::new(StreamInner {
            core: Arc::clone(&engine.core),
            number: engine.stream_number(),
            handle: engine.core.new_stream(false)?,
            enqueuing: Mutex::default(),
            queue: Mutex::default(),
            empty: Condvar::new(),
            ending: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        engine.streams.lock().push(Arc::clone(&inner));
        Ok(Self {
            engine: Arc::clone(engine),
            places: Arc::clone(places),
            inner,
        })
    }

    fn stop_word(&self, kernel: &KernelInner, launch_state: u64) -> Result<StopWord, GpuError> {
        if launch_state == 0 {
            return Ok(StopWord::None);
        }
        let refuse = |cause: &str| {
            Err(GpuError::BadArguments {
                kernel: kernel.info.name.clone(),
                cause: format!("its launch state at {launch_state:#x} {cause}"),
            })
        };
        if !launch_state.is_multiple_of(8) {
            return refuse("is not 8-byte aligned");
        }
        match self.places.find(launch_state, 4) {
            Some(place) if place.read_only => refuse("is registered for reading only"),
            Some(place) => Ok(place.host.map_or(StopWord::Device(launch_state), StopWord::Host)),
            None => refuse("is not in live memory of this GPU"),
        }
    }

    /// Enqueues a launch in an instance of its module, and gives that instance's number.
    fn enqueue(&self, call: &Call<'_>, brake: &Brake) -> Result<usize, GpuError> {
        let (module, number) = (&call.kernel.module, self.inner.number);
        let _enqueuing = module.enqueuing.lock();
        let taken = module.take(number)?;
        if let Some((_, launch)) = &taken.after {
            brake.is_behind(*launch);
        }
        let result = self.enqueue_in(call, &taken);
        if result.is_err() {
            // Whatever of it was enqueued ends before this mark: who uses the instance next waits for it.
            // SAFETY: the event and the stream are live.
            let marked = unsafe { cu::cuEventRecord(call.events.1.handle.0, self.inner.handle.0) };
            if outcome(marked).is_err() {
                module.give_up(taken.slot);
            }
        }
        module.enqueued(taken.slot, number, brake.number, &call.events.1);
        // Of a launch that failed it never counts as ended, so that others wait for the mark.
        result.map(|()| taken.slot)
    }

    /// Enqueues state, events and kernel. The caller holds the module's `enqueuing`.
    fn enqueue_in(&self, call: &Call<'_>, taken: &Taken) -> Result<(), GpuError> {
        let (core, stream) = (&self.inner.core, self.inner.handle);
        let name = &call.kernel.info.name;
        if let Some((event, _)) = &taken.after {
            // The host does not wait.
            // SAFETY: the event was recorded, and both are live.
            let called = unsafe { cu::cuStreamWaitEvent(stream.0, event.handle.0, 0) };
            core.check(format_args!("order kernel `{name}` after another stream's"), called)?;
        }
        set_launch_state(core, stream, &taken.instance, call.launch_state)?;
        let function = call.kernel.function(&taken.instance);
        let ([x, y, z], [a, b, c]) = (call.config.grid, call.config.block);
        // The driver reads the parameters and changes nothing of them.
        let params = call.arguments.pointers().cast::<*mut c_void>().cast_mut();
        // SAFETY: the events are this launch's own; the function belongs to an instance that the kernel's module keeps; the parameters
        // have the sizes and alignments that the kernel's table gives, and the driver copies them before it returns.
        unsafe {
            let started = cu::cuEventRecord(call.events.0.handle.0, stream.0);
            core.check(format_args!("mark the start of kernel `{name}`"), started)?;
            let dynamic = call.config.dynamic_shared_bytes;
            let launched = cu::cuLaunchKernel(
                function.0,
                x,
                y,
                z,
                a,
                b,
                c,
                dynamic,
                stream.0,
                params,
                std::ptr::null_mut(),
            );
            if let Err(failure) = outcome(launched) {
                if is(failure.code, CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) {
                    let registers = call.kernel.resources.registers;
                    let cause = format!(
                        "{}: {}; a thread takes {registers} registers",
                        failure.name, failure.text
                    );
                    return Err(GpuError::LaunchConfig {
                        kernel: name.clone(),
                        cause,
                    });
                }
                return Err(core.error(format_args!("launch kernel `{name}`"), failure));
            }
            // The kernel runs from here on: without this mark nobody would know when it ends.
            let ended = cu::cuEventRecord(call.events.1.handle.0, stream.0);
            core.check(format_args!("mark the end of kernel `{name}`"), ended)
                // Not as a dead context, unless it is one: the kernel may run on.
                .map_err(|error| {
                    core.lose_with(GpuError::Abandoned {
                        kernel: name.clone(),
                        cause: format!("its end cannot be seen, and the GPU is lost: {error}"),
                    })
                })
        }
    }
}

/// A kernel launch that was checked.
struct Call<'a> {
    kernel: &'a KernelInner,
    config: &'a LaunchConfig,
    arguments: &'a Arguments,
    launch_state: u64,
    events: (Arc<Event>, Arc<Event>),
}

/// Sets the instance's pointer to the launch's state, in the order of its stream.
fn set_launch_state(core: &Core, stream: StreamHandle, instance: &Instance, value: u64) -> Result<(), GpuError> {
    let mut set = instance.set.lock();
    if instance.state_addr == 0 || *set == Some(value) {
        return Ok(());
    }
    // Unknown until both halves are on their way.
    *set = None;
    for (offset, half) in [(0, value as u32), (4, (value >> 32) as u32)] {
        // SAFETY: the variable has 8 bytes and belongs to an instance whose earlier launches end before; the value travels with the command.
        core.check("set the launch's state", unsafe {
            cu::cuMemsetD32Async(instance.state_addr + offset, half, 1, stream.0)
        })?;
    }
    *set = Some(value);
    Ok(())
}

/// Refuses a shape that the kernel or the GPU cannot have.
fn check_config(kernel: &KernelInner, config: &LaunchConfig) -> Result<u64, GpuError> {
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
        launch_state: u64,
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
        let stop_word = self.stop_word(kernel, launch_state)?;
        core.enter()?;
        let _enqueuing = self.inner.enqueuing.lock();
        let events = (Event::new(core)?, Event::new(core)?);
        core.begin_launch()?;
        let stops = &self.engine.stops;
        let brake = stops.add(self.inner.number, &kernel.info.name, config.deadline, stop_word);
        let call = Call {
            kernel,
            config,
            arguments: &arguments,
            launch_state,
            events,
        };
        let slot = self.enqueue(&call, &brake).inspect_err(|_| {
            stops.remove(&brake);
            core.end_launch();
        })?;
        let launch = LaunchState::new(NewLaunch {
            core: Arc::clone(core),
            stops: Arc::clone(stops),
            kernel: Arc::clone(kernel),
            stream: Arc::clone(&self.inner),
            events: call.events,
            slot,
            blocks,
            brake,
            on_done,
        });
        self.inner.queue.lock().launches.push_back(Arc::clone(&launch));
        self.engine.wake();
        Ok(Arc::new(CudaLaunch(launch)))
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
