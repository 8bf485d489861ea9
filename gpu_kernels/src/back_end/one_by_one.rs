//! A series for GPUs that have no streams of others.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::GpuError;
use crate::api::{Kernel, Launch, LaunchConfig, LaunchOutcome, LaunchReport, OnDone, Put, Series, Stream};

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

    unsafe fn follow(&self, _stream: u64, _earlier: u64) -> Result<(), GpuError> {
        // Each launch has ended when the next is enqueued.
        Ok(())
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
        // None of its launches runs while nothing is in `launch`, and those wait for nothing.
    }
}
