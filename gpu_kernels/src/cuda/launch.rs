//! A launch: how it is watched, stopped and ended.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;

use super::calls::cu;
use super::copy::Copier;
use super::core::{Core, EventHandle, Raw};
use super::driver::{is, outcome};
use super::module::KernelInner;
use super::stream::StreamInner;
use crate::api::{Launch, LaunchOutcome, LaunchReport, OnDone};
use crate::error::GpuError;
use crate::lock::lock;

/// How long a kernel has to end after it was asked to, unless a tenth of its deadline is longer.
const GRACE: Duration = Duration::from_secs(1);
/// How long a waiter asks without sleeping.
const SPIN: Duration = Duration::from_micros(100);
/// How long a waiter sleeps before it looks itself: the watching thread may be busy with another launch's callback.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Where a kernel reads that it shall end.
#[derive(Clone, Copy)]
pub(crate) enum StopWord {
    /// Nowhere: it was launched without a state.
    None,
    /// In host memory.
    Host(Raw<u8>),
    /// In device memory.
    Device(u64),
}

#[derive(Clone)]
enum Why {
    Deadline,
    /// Who stopped it.
    Abandoned(String),
}

#[derive(Default)]
struct Progress {
    /// When its start was seen.
    started: Option<Instant>,
    /// Why and when it was asked to end.
    stop: Option<(Why, Instant)>,
    /// How it ends should the GPU be lost.
    last_word: Option<GpuError>,
    /// Its memory may be gone.
    over: bool,
}

/// A launch that was enqueued.
pub(crate) struct LaunchState {
    pub(crate) core: Arc<Core>,
    pub(crate) copier: Arc<Copier>,
    pub(crate) kernel: Arc<KernelInner>,
    pub(crate) stream: Arc<StreamInner>,
    pub(crate) start: EventHandle,
    pub(crate) end: EventHandle,
    pub(crate) blocks: u64,
    pub(crate) deadline: Option<Duration>,
    pub(crate) stop_word: StopWord,
    progress: Mutex<Progress>,
    outcome: Mutex<Option<LaunchOutcome>>,
    ended: Condvar,
    on_done: Mutex<Option<OnDone>>,
}

/// What a launch is made of.
pub(crate) struct NewLaunch {
    pub(crate) core: Arc<Core>,
    pub(crate) copier: Arc<Copier>,
    pub(crate) kernel: Arc<KernelInner>,
    pub(crate) stream: Arc<StreamInner>,
    pub(crate) events: (EventHandle, EventHandle),
    pub(crate) blocks: u64,
    pub(crate) deadline: Option<Duration>,
    pub(crate) stop_word: StopWord,
    pub(crate) on_done: OnDone,
}

impl LaunchState {
    /// A launch that has just been enqueued.
    pub(crate) fn new(new: NewLaunch) -> Arc<Self> {
        Arc::new(Self {
            core: new.core,
            copier: new.copier,
            kernel: new.kernel,
            stream: new.stream,
            start: new.events.0,
            end: new.events.1,
            blocks: new.blocks,
            deadline: new.deadline,
            stop_word: new.stop_word,
            progress: Mutex::default(),
            outcome: Mutex::new(None),
            ended: Condvar::new(),
            on_done: Mutex::new(Some(new.on_done)),
        })
    }

    fn name(&self) -> &str {
        &self.kernel.info.name
    }

    /// Whether `event` has been reached; an error means that the GPU is lost.
    fn reached(&self, event: EventHandle) -> Result<bool, GpuError> {
        self.core.enter()?;
        // SAFETY: the event is this launch's own until it is complete.
        match outcome(unsafe { cu::cuEventQuery(event.0) }) {
            Ok(()) => Ok(true),
            Err(failure) if is(failure.code, CUresult::CUDA_ERROR_NOT_READY) => Ok(false),
            Err(failure) => {
                let beside = if self.core.in_flight() > 1 {
                    ", or one beside it,"
                } else {
                    ""
                };
                let cause = format!(
                    "kernel `{}`{beside} ended it: {}: {}",
                    self.name(),
                    failure.name,
                    failure.text
                );
                Err(self.core.lose(cause))
            }
        }
    }

    /// How it has ended, if it has. For the head of its stream.
    pub(crate) fn poll(&self) -> Option<LaunchOutcome> {
        match self.reached(self.end) {
            Ok(false) => None,
            Ok(true) => Some(self.ended_well()),
            Err(lost) => Some(Err(lock(&self.progress).last_word.take().unwrap_or(lost))),
        }
    }

    fn ended_well(&self) -> LaunchOutcome {
        let stop = lock(&self.progress).stop.clone();
        match stop {
            Some((Why::Deadline, _)) => Err(self.late("it was asked to end, and did")),
            Some((Why::Abandoned(cause), _)) => Err(self.abandoned(&cause)),
            None => {
                let mut milliseconds = 0f32;
                // SAFETY: an out-value, and two events that were recorded with time and reached.
                let called = unsafe { cu::cuEventElapsedTime(&raw mut milliseconds, self.start.0, self.end.0) };
                self.core
                    .check(format_args!("take the time of kernel `{}`", self.name()), called)?;
                Ok(LaunchReport {
                    blocks: self.blocks,
                    elapsed: Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3),
                    trace_hash: None,
                })
            }
        }
    }

    fn late(&self, report: &str) -> GpuError {
        GpuError::Deadline {
            kernel: self.name().to_owned(),
            limit: self.deadline.unwrap_or_default(),
            report: format!("{report}; an NVIDIA GPU does not tell where its threads were"),
        }
    }

    fn abandoned(&self, cause: &str) -> GpuError {
        GpuError::Abandoned {
            kernel: self.name().to_owned(),
            cause: cause.to_owned(),
        }
    }

    /// Looks at the clock of the head of a stream.
    pub(crate) fn tick(&self, now: Instant) {
        let (started, stopping) = {
            let progress = lock(&self.progress);
            (progress.started, progress.stop.is_some())
        };
        if self.deadline.is_none() && !stopping {
            return;
        }
        let Some(started) = started else {
            // Its clock starts when it does. An error is seen by `poll` too.
            if matches!(self.reached(self.start), Ok(true)) {
                lock(&self.progress).started = Some(now);
            }
            return;
        };
        let ran = now.saturating_duration_since(started);
        if !stopping && self.deadline.is_some_and(|limit| ran > limit) {
            return self.stop(Why::Deadline);
        }
        self.give_up_after_grace(started, now);
    }

    fn give_up_after_grace(&self, started: Instant, now: Instant) {
        let mut progress = lock(&self.progress);
        let Some((why, asked)) = progress.stop.clone() else {
            return;
        };
        let grace = GRACE.max(self.deadline.unwrap_or_default() / 10);
        if now.saturating_duration_since(asked.max(started)) < grace {
            return;
        }
        let heard = match self.stop_word {
            StopWord::None => "it was launched without a state through which it could be asked",
            _ => "it was asked to end and did not",
        };
        let report = format!(
            "{heard} within {:.1} s; it cannot be stopped, and the GPU is lost",
            grace.as_secs_f64()
        );
        progress.last_word = Some(match why {
            Why::Deadline => self.late(&report),
            Why::Abandoned(cause) => self.abandoned(&format!("{cause}; {report}")),
        });
        drop(progress);
        self.core.lose(format!("kernel `{}` runs on: {heard}", self.name()));
    }

    fn stop(&self, why: Why) {
        let mut progress = lock(&self.progress);
        // Until it is over its memory is there, and it cannot be over while this lock is held.
        if progress.over || progress.stop.is_some() {
            return;
        }
        progress.stop = Some((why, Instant::now()));
        match self.stop_word {
            StopWord::None => {}
            StopWord::Host(word) => {
                // SAFETY: the caller of `launch` keeps the launch's state alive until its callback, which comes after `over`. It is at
                // least 4-byte aligned: checked at the launch.
                let word = unsafe { AtomicU32::from_ptr(word.0.cast()) };
                // Release: what the stopper did before is before it for a kernel that acquires; the kernel asks with a relaxed load.
                word.store(1, Ordering::Release);
            }
            StopWord::Device(addr) => {
                // An error means that the GPU is lost, which ends the launch anyway.
                let _ = self.copier.to_device(addr, &1u32.to_ne_bytes());
            }
        }
    }

    /// Asks it to end because of `cause`.
    pub(crate) fn abandon_because(&self, cause: &str) {
        self.stop(Why::Abandoned(cause.to_owned()));
    }

    /// Tells everybody. The callback runs before waiters wake, so that what it cleans up is clean then.
    pub(crate) fn complete(&self, outcome: LaunchOutcome) {
        lock(&self.progress).over = true;
        let callback = lock(&self.on_done).take();
        if let Some(callback) = callback {
            // A panic of the callback is its owner's mistake; it is printed by the panic hook and must not end this thread.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| callback(&outcome)));
        }
        self.core.give_event(self.start);
        self.core.give_event(self.end);
        self.core.end_launch();
        *lock(&self.outcome) = Some(outcome);
        self.ended.notify_all();
    }

    fn outcome(&self) -> Option<LaunchOutcome> {
        lock(&self.outcome).clone()
    }
}

/// A launch as its user holds it.
pub(crate) struct CudaLaunch(pub(crate) Arc<LaunchState>);

impl Launch for CudaLaunch {
    fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        let begun = Instant::now();
        let until = timeout.and_then(|limit| begun.checked_add(limit));
        // Short launches end here: waking a sleeper takes longer than they do.
        loop {
            if let Some(outcome) = self.0.outcome() {
                return Some(outcome);
            }
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return None;
            }
            if now.duration_since(begun) > SPIN {
                break;
            }
            self.0.stream.advance();
            std::hint::spin_loop();
        }
        loop {
            {
                let outcome = lock(&self.0.outcome);
                if outcome.is_some() {
                    return outcome.clone();
                }
                let left = match until {
                    Some(until) => until.checked_duration_since(Instant::now())?,
                    None => LOOK_AGAIN,
                };
                let woken = self.0.ended.wait_timeout(outcome, left.min(LOOK_AGAIN));
                let (outcome, _) = woken.unwrap_or_else(PoisonError::into_inner);
                if outcome.is_some() {
                    return outcome.clone();
                }
            }
            self.0.stream.advance();
        }
    }

    fn is_done(&self) -> bool {
        lock(&self.0.outcome).is_some()
    }

    fn abandon(&self) {
        self.0.abandon_because("its owner stopped it");
    }
}
