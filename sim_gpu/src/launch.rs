//! A launch: its arguments, how its blocks are handed out, how it ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::module::KernelInner;
use super::report::Report;
use gpuvm_gpu::GpuError;
use gpuvm_gpu::back_end::Arguments;
use gpuvm_gpu::{LaunchConfig, LaunchOutcome, LaunchReport, NoteFormatter, OnDone};
use parking_lot::{Condvar, Mutex};

/// A GPU's launches that run.
pub(crate) trait Launches: Send + Sync {
    /// Forgets a launch that ends.
    fn remove(&self, id: u64);

    /// How wait notes are put into words.
    fn note_formatter(&self) -> NoteFormatter;
}

/// A launch that was enqueued and, once its stream lets it, runs.
pub(crate) struct LaunchState {
    pub(crate) id: u64,
    running: Arc<dyn Launches>,
    pub(crate) kernel: Arc<KernelInner>,
    pub(crate) config: LaunchConfig,
    pub(crate) arguments: Arguments,
    pub(crate) skip_exited: bool,
    pub(crate) blocks: u64,
    pub(crate) lanes_per_block: u32,
    /// Next block to hand out; may run past `blocks`.
    next: AtomicU64,
    /// Blocks on workers, and workers about to take one.
    resident: AtomicU64,
    completed: AtomicU64,
    stop: AtomicBool,
    timed_out: AtomicBool,
    failure: Mutex<Option<GpuError>>,
    pub(crate) report: Mutex<Report>,
    started: OnceLock<Instant>,
    finishing: AtomicBool,
    /// Virtual start and end, and the trace, in the seeded mode.
    pub(crate) seeded: Mutex<Option<(u64, u64, u64)>>,
    outcome: Mutex<Option<LaunchOutcome>>,
    /// Whether the launch's stream has gone on since, so that waiters may.
    told: AtomicBool,
    ended: Condvar,
    on_done: Mutex<Option<OnDone>>,
    /// Told when the launch has ended, so that the stream goes on.
    next_in_stream: Mutex<Option<OnDone>>,
}

/// What a launch is made of.
pub(crate) struct NewLaunch {
    pub(crate) id: u64,
    pub(crate) running: Arc<dyn Launches>,
    pub(crate) skip_exited: bool,
    pub(crate) kernel: Arc<KernelInner>,
    pub(crate) config: LaunchConfig,
    pub(crate) arguments: Arguments,
    pub(crate) on_done: OnDone,
}

impl LaunchState {
    /// A launch that is not yet running.
    pub(crate) fn new(new: NewLaunch) -> Arc<Self> {
        let config = new.config;
        Arc::new(Self {
            id: new.id,
            skip_exited: new.skip_exited,
            running: new.running,
            kernel: new.kernel,
            blocks: config.grid.iter().map(|&n| u64::from(n)).product(),
            lanes_per_block: config.block.iter().product(),
            config,
            arguments: new.arguments,
            next: AtomicU64::new(0),
            resident: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            timed_out: AtomicBool::new(false),
            failure: Mutex::new(None),
            report: Mutex::default(),
            started: OnceLock::new(),
            finishing: AtomicBool::new(false),
            seeded: Mutex::new(None),
            outcome: Mutex::new(None),
            told: AtomicBool::new(false),
            ended: Condvar::new(),
            on_done: Mutex::new(Some(new.on_done)),
            next_in_stream: Mutex::new(None),
        })
    }

    /// What the stream does when this launch has ended.
    pub(crate) fn then(&self, next: OnDone) {
        *self.next_in_stream.lock() = Some(next);
    }

    /// The launch is at the head of its stream: its clock starts.
    pub(crate) fn start(&self) {
        let _ = self.started.set(Instant::now());
    }

    /// Whether it was at the head of its stream.
    pub(crate) fn has_started(&self) -> bool {
        self.started.get().is_some()
    }

    /// Warps of a block.
    pub(crate) fn warps_per_block(&self) -> usize {
        self.lanes_per_block.div_ceil(32) as usize
    }

    /// A block for the caller to run, which must then call `retired` once.
    pub(crate) fn take_block(self: &Arc<Self>) -> Option<u64> {
        // Relaxed: a hint; the exact answer is the fetch_add below.
        if self.next.load(Ordering::Relaxed) >= self.blocks {
            return None;
        }
        // SeqCst with the loads of `stop` here and of `resident` in `try_finish`: either this sees the stop, or `try_finish` sees this taker.
        self.resident.fetch_add(1, Ordering::SeqCst);
        if !self.stop.load(Ordering::SeqCst) {
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            if number < self.blocks {
                return Some(number);
            }
        }
        self.retired(false);
        None
    }

    /// A taken block has left its worker.
    pub(crate) fn retired(self: &Arc<Self>, completed: bool) {
        if completed {
            // Relaxed: read only after the SeqCst decrement below made it visible.
            self.completed.fetch_add(1, Ordering::Relaxed);
        }
        if self.resident.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.try_finish();
        }
    }

    /// Whether blocks are left to hand out.
    pub(crate) fn has_blocks(&self) -> bool {
        // Relaxed: a hint for schedulers; `take_block` decides.
        self.next.load(Ordering::Relaxed) < self.blocks && !self.stop.load(Ordering::Relaxed)
    }

    /// Whether its lanes are to be dropped.
    pub(crate) fn stopped(&self) -> bool {
        // Acquire: pairs with the stores of `stop`: who drops lanes for it sees why, `timed_out`.
        self.stop.load(Ordering::Acquire)
    }

    /// Stops the launch with an error; the first one stays.
    pub(crate) fn fail(&self, error: GpuError) {
        self.failure.lock().get_or_insert(error);
        // SeqCst: see `take_block`.
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Stops the launch because its deadline has passed; workers add to the report first.
    pub(crate) fn time_out(&self) {
        // Relaxed: ordered by the SeqCst store of `stop`, which every reader of this flag has seen, by `stopped` or behind somebody who did.
        self.timed_out.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Whether it was stopped by its deadline, and so wants a report.
    pub(crate) fn timed_out(&self) -> bool {
        // Relaxed: see `time_out`.
        self.timed_out.load(Ordering::Relaxed)
    }

    /// Whether the deadline has passed at `now`.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        match (self.started.get(), self.config.watch.deadline) {
            (Some(start), Some(limit)) => now.saturating_duration_since(*start) > limit,
            _ => false,
        }
    }

    /// Ends the launch if nothing of it is left to run.
    pub(crate) fn try_finish(self: &Arc<Self>) {
        // SeqCst: see `take_block`.
        if self.resident.load(Ordering::SeqCst) != 0 {
            return;
        }
        let all_out = self.next.load(Ordering::SeqCst) >= self.blocks;
        if !(all_out || self.stop.load(Ordering::SeqCst)) {
            return;
        }
        // AcqRel: exactly one caller goes on, and it sees what the others did before.
        if self.finishing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.running.remove(self.id);
        let outcome = self.decide();
        self.end(outcome);
    }

    fn decide(&self) -> LaunchOutcome {
        if let Some(error) = self.failure.lock().take() {
            return Err(error);
        }
        let completed = self.completed.load(Ordering::Relaxed);
        if completed < self.blocks && self.timed_out() {
            let limit = self.config.watch.deadline.unwrap_or_default();
            let report = self
                .report
                .lock()
                .text(self.blocks, completed, &self.running.note_formatter());
            return Err(GpuError::Deadline {
                kernel: self.kernel.info.name.clone(),
                limit,
                report,
            });
        }
        let seeded = *self.seeded.lock();
        let elapsed = match seeded {
            _ if !self.config.watch.timed => Duration::ZERO,
            Some((start, end, _)) => Duration::from_nanos(end.saturating_sub(start)),
            None => self.started.get().map(Instant::elapsed).unwrap_or_default(),
        };
        let trace_hash = seeded.map(|(_, _, hash)| hash);
        Ok(LaunchReport::new(completed, Arc::new(elapsed), trace_hash))
    }

    /// Tells everybody. Callbacks run before waiters wake, so that what they clean up is clean then. So does the stream: what a waiter
    /// launches next finds it free, and the order of launches on several streams does not depend on which thread is faster.
    pub(crate) fn end(&self, outcome: LaunchOutcome) {
        let callback = self.on_done.lock().take();
        if let Some(callback) = callback {
            // A panic of the callback is its owner's mistake; it is printed by the panic hook and must not end a worker.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| callback(&outcome)));
        }
        *self.outcome.lock() = Some(outcome.clone());
        let next = self.next_in_stream.lock().take();
        if let Some(next) = next {
            next(&outcome);
        }
        // Under the lock, which waiters hold between their look and their sleep; that orders it as well.
        let outcome = self.outcome.lock();
        self.told.store(true, Ordering::Relaxed);
        drop(outcome);
        self.ended.notify_all();
    }

    /// Marks the launch as one that ends without ever having run; false when it already ends.
    pub(crate) fn claim_end(&self) -> bool {
        // AcqRel: see `try_finish`.
        !self.finishing.swap(true, Ordering::AcqRel)
    }

    /// The error for a launch that its owner or the GPU stops.
    pub(crate) fn abandoned(&self, cause: &str) -> GpuError {
        GpuError::Abandoned {
            kernel: self.kernel.info.name.clone(),
            cause: cause.to_owned(),
        }
    }

    /// Whether it has ended.
    pub(crate) fn has_outcome(&self) -> bool {
        self.outcome.lock().is_some()
    }

    /// Waits until it has ended and its stream has gone on.
    pub(crate) fn wait_ended(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        let until = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut outcome = self.outcome.lock();
        while !self.told.load(Ordering::Relaxed) {
            match until {
                None => self.ended.wait(&mut outcome),
                Some(until) => {
                    let left = until.checked_duration_since(Instant::now())?;
                    self.ended.wait_for(&mut outcome, left);
                }
            }
        }
        outcome.clone()
    }
}
