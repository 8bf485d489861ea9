//! A launch: how it is watched, stopped and ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUresult;
use parking_lot::{Condvar, Mutex};

use super::calls::cu;
use super::core::{Core, Event, EventHandle};
use super::driver::{is, outcome};
use super::module::KernelInner;
use super::stops::{Brake, LATE, Stops, Why};
use crate::api::{Launch, LaunchOutcome, LaunchReport, LaunchTime, OnDone};
use crate::error::GpuError;

/// How long a waiter asks without sleeping: waking it takes 0.1 ms, which a program that launches in rounds would pay in each.
const SPIN: Duration = Duration::from_millis(20);
/// How long it asks without letting other threads have its processor.
const EAGER: Duration = Duration::from_micros(100);
/// How long a waiter sleeps before it looks itself: the watching thread may be busy with another launch's callback.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Where a launch begins and ends on its stream.
pub(crate) struct Events {
    pub(crate) start: Event,
    pub(crate) end: Event,
}

impl LaunchTime for Events {
    /// The driver takes about 5 us for it, and others of its calls wait meanwhile: it is not asked for each launch.
    fn elapsed(&self) -> Duration {
        let (core, mut milliseconds) = (&self.start.core, 0f32);
        if !self.start.timed || core.enter().is_err() {
            return Duration::ZERO;
        }
        // SAFETY: an out-value, and two events that were recorded with time and reached.
        let called = unsafe { cu::cuEventElapsedTime(&raw mut milliseconds, self.start.handle.0, self.end.handle.0) };
        match core.check("take the time of a kernel", called) {
            Ok(()) => Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3),
            Err(_) => Duration::ZERO,
        }
    }
}

/// The launches of one stream.
pub(crate) trait InOrder: Send + Sync {
    /// Ends the launches that the GPU has finished, in order; false when there was nothing to do or another thread does it.
    fn advance(&self) -> bool;
}

/// A launch that was enqueued.
pub(crate) struct LaunchState {
    pub(crate) core: Arc<Core>,
    pub(crate) stops: Arc<Stops>,
    name: Arc<str>,
    /// Keeps its module.
    _kernel: Option<Arc<KernelInner>>,
    stream: Arc<dyn InOrder>,
    /// Where it begins and ends.
    events: Arc<Events>,
    pub(crate) blocks: u64,
    pub(crate) brake: Arc<Brake>,
    outcome: Mutex<Option<LaunchOutcome>>,
    ended: Condvar,
    on_done: Mutex<Option<OnDone>>,
}

/// What a launch is made of.
pub(crate) struct NewLaunch {
    pub(crate) core: Arc<Core>,
    pub(crate) stops: Arc<Stops>,
    pub(crate) name: Arc<str>,
    pub(crate) kernel: Option<Arc<KernelInner>>,
    pub(crate) stream: Arc<dyn InOrder>,
    pub(crate) events: Events,
    pub(crate) blocks: u64,
    pub(crate) brake: Arc<Brake>,
    pub(crate) on_done: OnDone,
}

impl LaunchState {
    /// A launch that has just been enqueued.
    pub(crate) fn new(new: NewLaunch) -> Arc<Self> {
        Arc::new(Self {
            core: new.core,
            stops: new.stops,
            name: new.name,
            _kernel: new.kernel,
            stream: new.stream,
            events: Arc::new(new.events),
            blocks: new.blocks,
            brake: new.brake,
            outcome: Mutex::new(None),
            ended: Condvar::new(),
            on_done: Mutex::new(Some(new.on_done)),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
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
                    "kernel `{}`{beside} killed it: {}: {}",
                    self.name(),
                    failure.name,
                    failure.text
                );
                Err(self.core.lose(cause))
            }
        }
    }

    /// Whether the GPU has come past it, or is lost.
    pub(crate) fn has_ended(&self) -> bool {
        self.reached(self.events.end.handle).unwrap_or(true)
    }

    /// How it has ended, of one that has.
    pub(crate) fn outcome_of_ended(&self) -> LaunchOutcome {
        match self.core.lost() {
            None => self.ended_well(),
            Some(lost) => Err(self.brake.lost(&lost)),
        }
    }

    fn ended_well(&self) -> LaunchOutcome {
        match self.brake.stopped() {
            Some(error) => Err(error),
            None => Ok(LaunchReport::new(self.blocks, Arc::clone(&self.events) as _, None)),
        }
    }

    /// Looks at the clock of the head of a stream.
    pub(crate) fn tick(&self, now: Instant) {
        // Its clock starts when it does. An error is seen by `has_ended` too.
        if self.brake.wants_start() && matches!(self.reached(self.events.start.handle), Ok(true)) {
            self.brake.saw_start(now);
        }
        self.stops.look(&self.brake, now, Duration::ZERO);
    }

    /// Tells everybody. The callback runs before waiters wake, so that what it cleans up is clean then.
    pub(crate) fn complete(&self, outcome: LaunchOutcome) {
        self.stops.remove(&self.brake);
        let callback = self.on_done.lock().take();
        if let Some(callback) = callback {
            // A panic of the callback is its owner's mistake; it is printed by the panic hook and must not end this thread.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| callback(&outcome)));
        }
        self.core.end_launch();
        *self.outcome.lock() = Some(outcome);
        self.ended.notify_all();
    }

    fn outcome(&self) -> Option<LaunchOutcome> {
        self.outcome.lock().clone()
    }
}

impl Launch for LaunchState {
    fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        let begun = Instant::now();
        let until = timeout.and_then(|limit| begun.checked_add(limit));
        // Short launches end here: waking a sleeper takes longer than they do.
        loop {
            if let Some(outcome) = self.outcome() {
                return Some(outcome);
            }
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return None;
            }
            let waited = now.duration_since(begun);
            if waited > SPIN {
                break;
            }
            self.stream.advance();
            match waited > EAGER {
                true => std::thread::yield_now(),
                false => std::hint::spin_loop(),
            }
        }
        let mut lost_since = None;
        loop {
            let now = Instant::now();
            // The watching thread and the guard do this; should neither, the waiter does.
            self.stops.look(&self.brake, now, LATE);
            if let Some(cause) = self.core.lost() {
                // Who ends launches may be stuck in the driver, behind a kernel that runs on. The callback is left out then: the launch's
                // memory stays.
                if now.duration_since(*lost_since.get_or_insert(now)) > LATE {
                    return Some(Err(self.brake.lost(&cause)));
                }
            }
            {
                let mut outcome = self.outcome.lock();
                if outcome.is_some() {
                    return outcome.clone();
                }
                let left = match until {
                    Some(until) => until.checked_duration_since(Instant::now())?,
                    None => LOOK_AGAIN,
                };
                self.ended.wait_for(&mut outcome, left.min(LOOK_AGAIN));
                if outcome.is_some() {
                    return outcome.clone();
                }
            }
            self.stream.advance();
        }
    }

    fn is_done(&self) -> bool {
        self.outcome.lock().is_some()
    }

    fn abandon(&self) {
        self.stops
            .stop(&self.brake, Why::Abandoned("it was aborted by its owner".to_owned()));
    }
}
