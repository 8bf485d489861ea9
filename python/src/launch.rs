//! Launches in flight: who waits for them can be interrupted, and what nothing waited for is told at the end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{apart::Apart, errors, settings::seconds, slot::Slot};

/// How long a wait lasts before Python looks for signals.
const SLICE: Duration = Duration::from_millis(20);
/// How long a kernel that is asked to stop may take, before it is stopped where it stands.
const GRACE: Duration = Duration::from_secs(1);
/// How long an interrupted wait stays for a kernel that was stopped where it stands.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// A launch, and what it keeps.
pub struct Flight {
    launch: gpuvm::Launch,
    /// What it was given, by identity.
    named: Vec<usize>,
    /// Whether somebody has seen how it ended.
    told: AtomicBool,
    /// What it was given: as long as it runs, so that an array that Python has forgotten does not make Python wait.
    kept: Mutex<Vec<Kept>>,
}

/// Anything that is to stay.
pub type Kept = Box<dyn Send + Sync>;

/// How a launch ended; none while it runs.
type Ended = Option<gpuvm::Result<gpuvm::LaunchReport>>;

impl Flight {
    /// A launch that was enqueued just now.
    pub fn new(launch: gpuvm::Launch, named: Vec<usize>, kept: Vec<Kept>) -> Self {
        Self {
            launch,
            named,
            told: AtomicBool::new(false),
            kept: Mutex::new(kept),
        }
    }

    fn wait_within(&self, py: Python<'_>, limit: Duration) -> Ended {
        py.apart(|| self.launch.wait(Some(limit)))
    }

    /// Waits for the end, at most `limit`, and looks for signals meanwhile: an exception of a signal's handler stops the kernel.
    fn wait(&self, py: Python<'_>, limit: Option<Duration>) -> PyResult<Ended> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if let Some(ended) = self.wait_within(py, left.map_or(SLICE, |left| left.min(SLICE))) {
                return Ok(Some(ended));
            }
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if let Err(raised) = py.check_signals() {
                self.stop(py);
                return Err(raised);
            }
        }
    }

    /// Stops the kernel: it is asked first.
    fn stop(&self, py: Python<'_>) {
        self.told.store(true, Ordering::Relaxed);
        self.launch.abort();
        if self.wait_within(py, GRACE).is_none() {
            self.launch.kill();
            let _ = self.wait_within(py, STOP_WAIT);
        }
    }

    fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }
}

/// The launches of one virtual memory that may run still.
#[derive(Default)]
pub struct Flights {
    running: Mutex<Vec<Arc<Flight>>>,
    /// Errors of launches that ended and that nothing waited for.
    untold: Mutex<Vec<gpuvm::Error>>,
}

impl Flights {
    /// Takes a launch in, and lets go of those that have ended.
    pub fn add(&self, py: Python<'_>, flight: &Arc<Flight>) {
        self.prune(py);
        self.running.lock().push(Arc::clone(flight));
    }

    fn prune(&self, py: Python<'_>) {
        let ended: Vec<_> = self
            .running
            .lock()
            .extract_if(.., |flight| flight.launch.is_done())
            .collect();
        for flight in ended {
            let outcome = flight.wait_within(py, SLICE);
            let kept = std::mem::take(&mut *flight.kept.lock());
            drop(kept);
            if let (false, Some(Err(error))) = (flight.is_told(), outcome) {
                self.untold.lock().push(error);
            }
        }
    }

    /// Waits for the launches that were given something, or for all. Signals are looked for meanwhile: an exception of a signal's handler
    /// stops them all.
    pub fn wait_idle(&self, py: Python<'_>, of: Option<usize>) -> PyResult<()> {
        let names = |flight: &&Arc<Flight>| of.is_none_or(|of| flight.named.contains(&of));
        let waited: Vec<_> = self.running.lock().iter().filter(names).map(Arc::clone).collect();
        for flight in &waited {
            if let Err(raised) = flight.wait(py, None) {
                // All of them are in the way of who waits. Those behind one on its stream would only begin now.
                let running = || waited.iter().filter(|flight| !flight.launch.is_done());
                running().for_each(|flight| flight.launch.abort());
                running().for_each(|flight| flight.stop(py));
                return Err(raised);
            }
        }
        self.prune(py);
        Ok(())
    }

    /// What a slot holds, when the launches that were given it have ended.
    pub fn when_idle<T: Send + Sync>(&self, py: Python<'_>, slot: &Arc<Slot<T>>) -> PyResult<Arc<T>> {
        let value = slot.get()?;
        self.wait_idle(py, Some(slot.id()))?;
        Ok(value)
    }

    /// The first error of a launch that ended and that nothing waited for; the others are told with it.
    pub fn tell(&self) -> PyResult<()> {
        let mut untold = std::mem::take(&mut *self.untold.lock()).into_iter();
        match untold.next() {
            None => Ok(()),
            Some(first) => {
                let raised = errors::of(first);
                let others = untold.map(|error| error.to_string()).collect::<Vec<_>>();
                if !others.is_empty() {
                    Python::attach(|py| {
                        let note = format!("errors of launches after it: {}", others.join("; "));
                        // Python 3.9 and 3.10 have no notes.
                        let _ = raised.value(py).call_method1("add_note", (note,));
                    });
                }
                Err(raised)
            }
        }
    }
}

/// A launch in flight.
#[pyclass(frozen, module = "gpuvm._core")]
pub struct Launch {
    pub slot: Slot<Arc<Flight>>,
    pub flights: Arc<Flights>,
}

impl Launch {
    /// Tells how it ended, and lets go of what it was given: an array that Python has forgotten is written back now.
    fn ended(&self, py: Python<'_>, flight: &Flight, ended: gpuvm::Result<gpuvm::LaunchReport>) -> PyResult<()> {
        flight.told.store(true, Ordering::Relaxed);
        self.flights.prune(py);
        ended.map(|_| ()).map_err(errors::of)
    }
}

#[pymethods]
impl Launch {
    /// Waits for the end.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let flight = self.slot.get()?;
        match flight.wait(py, None)? {
            Some(ended) => self.ended(py, &flight, ended),
            None => Ok(()),
        }
    }

    /// Waits at most this many seconds: whether it has ended.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let limit = seconds(timeout, "timeout")?;
        let flight = self.slot.get()?;
        match flight.wait(py, Some(limit))? {
            Some(ended) => self.ended(py, &flight, ended).map(|()| true),
            None => Ok(false),
        }
    }

    /// Whether it has ended.
    #[getter]
    fn done(&self) -> PyResult<bool> {
        Ok(self.slot.get()?.launch.is_done())
    }

    /// Asks the kernel to stop.
    fn abort(&self) -> PyResult<()> {
        self.slot.get()?.launch.abort();
        Ok(())
    }
}

/// A stream of a virtual memory's GPU.
#[pyclass(frozen, module = "gpuvm._core")]
pub struct Stream {
    pub slot: Arc<Slot<gpuvm::StreamHandle>>,
}
