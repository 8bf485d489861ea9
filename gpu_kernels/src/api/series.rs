//! Series: launches that are not told apart.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Kernel, Launch, LaunchConfig, LaunchOutcome, LaunchReport, OnDone, Stream};
use crate::GpuError;

/// What became of a launch of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is on its stream.
    Enqueued,
    /// Its stream is captured: it runs with each launch of the graph, of which nobody is told.
    Captured,
    /// The series has ended: nothing was enqueued.
    Over,
}

/// Launches that are not told apart: each is on the stream that its caller says, nobody watches it, and all end together, when somebody waits
/// for the series. It costs the host a call of the driver. For kernels that wait for nobody, and so need no one to stop them.
///
/// As a [`Launch`]: a wait without a limit ends the series; others do not.
pub trait Series: Launch {
    /// Enqueues a launch.
    ///
    /// # Errors
    /// [`GpuError::BadArguments`], [`GpuError::LaunchConfig`], the driver's.
    ///
    /// # Safety
    /// `stream` is live, and one of the GPU's primary context; GPUs that are none of a driver's take none. What the kernel reaches lives until the
    /// series has ended, and of a launch that is captured as long as its graph is launched.
    unsafe fn launch(
        &self,
        stream: u64,
        kernel: &Arc<dyn Kernel>,
        config: &LaunchConfig,
        args: &[&[u8]],
    ) -> Result<Put, GpuError>;

    /// It as a launch.
    fn as_launch(self: Arc<Self>) -> Arc<dyn Launch>;
}

/// A series of a GPU that has no streams of others: each launch has ended when the next begins, and when its caller goes on.
pub struct OneByOne {
    stream: Arc<dyn Stream>,
    state: Mutex<State>,
}

struct State {
    blocks: u64,
    error: Option<GpuError>,
    outcome: Option<LaunchOutcome>,
    on_done: Option<OnDone>,
}

impl OneByOne {
    /// On a stream.
    pub fn new(stream: Arc<dyn Stream>, on_done: OnDone) -> Self {
        Self {
            stream,
            state: Mutex::new(State {
                blocks: 0,
                error: None,
                outcome: None,
                on_done: Some(on_done),
            }),
        }
    }
}

impl Series for OneByOne {
    unsafe fn launch(
        &self,
        _stream: u64,
        kernel: &Arc<dyn Kernel>,
        config: &LaunchConfig,
        args: &[&[u8]],
    ) -> Result<Put, GpuError> {
        let mut state = self.state.lock();
        if state.outcome.is_some() {
            return Ok(Put::Over);
        }
        let launch = self.stream.launch(kernel, config, args, 0, Box::new(|_| {}))?;
        match launch.wait(None) {
            Some(Ok(report)) => {
                state.blocks += report.blocks;
                Ok(Put::Enqueued)
            }
            Some(Err(error)) => {
                state.error.get_or_insert_with(|| error.clone());
                Err(error)
            }
            None => Err(GpuError::ShutDown),
        }
    }

    fn as_launch(self: Arc<Self>) -> Arc<dyn Launch> {
        self
    }
}

impl Launch for OneByOne {
    fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        let mut state = self.state.lock();
        if state.outcome.is_some() || timeout.is_some() {
            return state.outcome.clone();
        }
        let report = || LaunchReport::new(state.blocks, Arc::new(Duration::ZERO), None);
        let outcome = state.error.clone().map_or_else(|| Ok(report()), Err);
        state.outcome = Some(outcome.clone());
        let on_done = state.on_done.take();
        drop(state);
        if let Some(on_done) = on_done {
            on_done(&outcome);
        }
        Some(outcome)
    }

    fn is_done(&self) -> bool {
        self.state.lock().outcome.is_some()
    }

    fn abandon(&self) {
        // None of its launches runs while nobody is in `launch`, and those wait for nobody.
    }
}
