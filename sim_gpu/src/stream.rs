//! Streams: launches in order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::core::Core;
use super::launch::{LaunchState, Launches, NewLaunch};
use super::module::SimKernel;
use gpuvm_gpu::GpuError;
use gpuvm_gpu::back_end::Arguments;
use gpuvm_gpu::{Enqueue, Kernel, Launch, LaunchConfig, LaunchOutcome, OnDone, Stream, Watch};
use parking_lot::{Condvar, Mutex};

/// Most static and dynamic shared memory of a block, bytes; an H200's.
pub(crate) const SHARED_BYTES_MAX: u32 = 227 << 10;
/// Most threads of a block.
pub(crate) const BLOCK_THREADS_MAX: u32 = 1024;

thread_local! {
    /// The launch that this thread's caller is to enqueue, while it does.
    static BY_CALLER: RefCell<Option<ByCaller>> = const { RefCell::new(None) };
}

/// A launch that somebody else enqueues: the first one on this thread, whatever stream of the GPU it names.
struct ByCaller {
    core: Arc<Core>,
    queue: Arc<Queue>,
    watch: Watch,
    on_done: Option<OnDone>,
    launch: Option<Arc<SimLaunch>>,
}

/// A stream of a simulated GPU.
pub(crate) struct SimStream {
    pub(crate) core: Arc<Core>,
    queue: Arc<Queue>,
}

struct Queue {
    core: Arc<Core>,
    state: Mutex<StreamState>,
    empty: Condvar,
}

#[derive(Default)]
struct StreamState {
    running: bool,
    waiting: VecDeque<Arc<LaunchState>>,
    error: Option<GpuError>,
}

impl SimStream {
    /// An empty stream.
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            queue: Arc::new(Queue {
                core: Arc::clone(&core),
                state: Mutex::default(),
                empty: Condvar::new(),
            }),
            core,
        }
    }
}

impl Queue {
    /// Starts launches until one runs or none is left.
    fn advance(self: &Arc<Self>) {
        let launch = {
            let mut state = self.state.lock();
            if state.running {
                return;
            }
            let Some(launch) = state.waiting.pop_front() else {
                self.empty.notify_all();
                return;
            };
            state.running = true;
            launch
        };
        let queue = Arc::clone(self);
        launch.then(Box::new(move |outcome| queue.ended(outcome)));
        self.core.activate(launch);
    }

    fn is_empty(&self) -> bool {
        let state = self.state.lock();
        !state.running && state.waiting.is_empty()
    }

    fn ended(self: &Arc<Self>, outcome: &LaunchOutcome) {
        {
            let mut state = self.state.lock();
            state.running = false;
            if let Err(error) = outcome {
                state.error.get_or_insert_with(|| error.clone());
            }
        }
        self.advance();
    }
}

fn check_config(kernel: &SimKernel, config: &LaunchConfig) -> Result<(), GpuError> {
    let name = &kernel.0.info.name;
    let refuse = |cause: String| {
        Err(GpuError::LaunchConfig {
            kernel: name.clone(),
            cause,
        })
    };
    let product = |v: [u32; 3]| v.iter().try_fold(1u64, |p, &n| p.checked_mul(u64::from(n)));
    match product(config.grid) {
        None => return refuse(format!("grid {:?} has more than 2^64 blocks", config.grid)),
        Some(0) => return refuse(format!("grid {:?} has no block", config.grid)),
        Some(_) => {}
    }
    match product(config.block) {
        Some(0) => return refuse(format!("block {:?} has no thread", config.block)),
        Some(n) if n <= u64::from(BLOCK_THREADS_MAX) => {}
        _ => {
            return refuse(format!(
                "block {:?} has more than {BLOCK_THREADS_MAX} threads",
                config.block
            ));
        }
    }
    let (fixed, dynamic) = (
        u64::from(kernel.0.info.static_shared_bytes),
        u64::from(config.dynamic_shared_bytes),
    );
    if fixed + dynamic > u64::from(SHARED_BYTES_MAX) {
        return refuse(format!(
            "{fixed} bytes of static and {dynamic} of dynamic shared memory are more than {SHARED_BYTES_MAX}"
        ));
    }
    Ok(())
}

impl SimStream {
    /// The launch that a caller enqueues, if this is that one: with its deadline, its end and its stream.
    fn as_the_callers(&self, mut config: LaunchConfig, on_done: OnDone) -> (LaunchConfig, OnDone, Arc<Queue>) {
        BY_CALLER.with_borrow_mut(|by_caller| {
            let by_caller = by_caller.as_mut().filter(|it| Arc::ptr_eq(&it.core, &self.core));
            let taken = by_caller.and_then(|it| Some((it.watch, it.on_done.take()?, Arc::clone(&it.queue))));
            let Some((watch, told, queue)) = taken else {
                return (config, on_done, Arc::clone(&self.queue));
            };
            config.watch.deadline = config.watch.deadline.or(watch.deadline);
            config.watch.timed = watch.timed;
            let both = |outcome: &LaunchOutcome| {
                on_done(outcome);
                told(outcome);
            };
            (config, Box::new(both), queue)
        })
    }
}

/// What follows from a CUDA stream.
pub(crate) fn no_cuda_stream() -> GpuError {
    let what = "take a CUDA stream: it is simulated".to_owned();
    GpuError::Unsupported { what }
}

impl Stream for SimStream {
    fn launch(
        &self,
        kernel: &Arc<dyn Kernel>,
        config: &LaunchConfig,
        args: &[&[u8]],
        // Its watchdog drops lanes where they stand.
        _stop_word: u64,
        on_done: OnDone,
    ) -> Result<Arc<dyn Launch>, GpuError> {
        let Some(kernel) = kernel.as_any().downcast_ref::<SimKernel>() else {
            let cause = "it was compiled for another kind of GPU; compile it with this one".to_owned();
            return Err(GpuError::BadArguments {
                kernel: kernel.info().name.clone(),
                cause,
            });
        };
        if kernel.0.module.seeded != self.core.options.seed.is_some() {
            let cause = "it was compiled by a GPU of the other mode; compile it with this one".to_owned();
            return Err(GpuError::BadArguments {
                kernel: kernel.0.info.name.clone(),
                cause,
            });
        }
        check_config(kernel, config)?;
        if self.core.is_shut_down() {
            return Err(GpuError::ShutDown);
        }
        let (config, on_done, queue) = self.as_the_callers(config.clone(), on_done);
        let launch = LaunchState::new(NewLaunch {
            arguments: Arguments::new(&kernel.0.info, args)?,
            // Relaxed: only uniqueness matters.
            id: self.core.launches.fetch_add(1, Ordering::Relaxed),
            running: Arc::clone(&self.core) as Arc<dyn Launches>,
            skip_exited: self.core.options.skip_exited || kernel.0.module.skip_exited,
            kernel: Arc::clone(&kernel.0),
            config,
            on_done,
        });
        queue.state.lock().waiting.push_back(Arc::clone(&launch));
        queue.advance();
        let core = Arc::clone(&self.core);
        let launch = Arc::new(SimLaunch { core, launch });
        BY_CALLER.with_borrow_mut(|by_caller| {
            let by_caller = by_caller.as_mut().filter(|it| Arc::ptr_eq(&it.queue, &queue));
            if let Some(by_caller) = by_caller.filter(|it| it.on_done.is_none()) {
                by_caller.launch.get_or_insert_with(|| Arc::clone(&launch));
            }
        });
        Ok(launch)
    }

    fn launch_by(
        &self,
        name: &str,
        watch: Watch,
        _stop_word: u64,
        enqueue: Enqueue<'_>,
        on_done: OnDone,
    ) -> Result<Arc<dyn Launch>, GpuError> {
        BY_CALLER.set(Some(ByCaller {
            core: Arc::clone(&self.core),
            queue: Arc::clone(&self.queue),
            watch,
            on_done: Some(on_done),
            launch: None,
        }));
        let enqueued = enqueue();
        let launch = BY_CALLER.take().and_then(|by_caller| by_caller.launch);
        let cause = match (enqueued, launch) {
            (Ok(()), Some(launch)) => return Ok(launch),
            (Ok(()), None) => "it launched nothing on the simulated GPU's stream".to_owned(),
            (Err(cause), launch) => {
                launch.inspect(|launch| drop(launch.wait(None)));
                cause
            }
        };
        let kernel = name.to_owned();
        Err(GpuError::NotEnqueued { kernel, cause })
    }

    unsafe fn follow(&self, _stream: u64) -> Result<(), GpuError> {
        Err(no_cuda_stream())
    }

    fn raw(&self) -> Option<u64> {
        None
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        let queue = Arc::clone(&self.queue);
        let driving = self.core.drive(move || queue.is_empty());
        let mut state = self.queue.state.lock();
        while state.running || !state.waiting.is_empty() {
            self.queue.empty.wait(&mut state);
        }
        let error = state.error.take();
        // In this order: dropping `driving` takes the lock under which the scheduler asks for this state.
        drop(state);
        drop(driving);
        error.map_or(Ok(()), Err)
    }
}

/// A launch as its owner holds it.
struct SimLaunch {
    core: Arc<Core>,
    launch: Arc<LaunchState>,
}

impl Launch for SimLaunch {
    fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        let target = Arc::clone(&self.launch);
        let waiting = self.core.drive(move || target.has_outcome());
        let outcome = self.launch.wait_ended(timeout);
        drop(waiting);
        outcome
    }

    fn is_done(&self) -> bool {
        self.launch.has_outcome()
    }

    fn abandon(&self) {
        self.launch.fail(self.launch.abandoned("it was aborted by its owner"));
        // Only a launch that has started is finished here; one that waits in its stream ends when its turn comes.
        if self.launch.has_started() {
            self.launch.try_finish();
        }
    }
}
