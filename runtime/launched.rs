//! The handles of launches in flight, and of streams.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use gpuvm_gpu::{GpuError, LaunchReport, Stream};

use crate::{
    error::{Error, Result},
    gpu::PagedGpu,
    launch::InFlight,
};

/// A launch in flight. Dropping it does not stop the kernel.
#[must_use = "a launch's errors come out of `sync`"]
pub struct Launch {
    gpu: Arc<PagedGpu>,
    in_flight: Arc<InFlight>,
}

impl Launch {
    pub(crate) fn new(gpu: Arc<PagedGpu>, in_flight: Arc<InFlight>) -> Self {
        Self { gpu, in_flight }
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`Error::Fault`] when an access could not be served, [`Error::Gpu`] when the kernel itself failed, was stopped at
    /// its deadline, or can never end; [`Error::GpuLost`] when that cost the GPU; [`Error::Stopped`] after [`abort`](Self::abort), or when another launch on
    /// this GPU of the virtual memory was stopped where it stood.
    pub fn sync(&self) -> Result<LaunchReport> {
        match self.wait(None) {
            Some(outcome) => outcome,
            None => Err(Error::Gpu {
                doing: "waiting for a launch".into(),
                source: GpuError::ShutDown,
            }),
        }
    }

    /// Waits at most `timeout`; nothing when it runs still.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<LaunchReport>> {
        let outcome = {
            // A look takes no time.
            let waits = timeout != Some(Duration::ZERO);
            let _span = waits.then(|| self.gpu.span(|| format!("wait for {}", self.in_flight.label)));
            self.in_flight.wait(timeout)?
        };
        if let Some(timeline) = self.gpu.timeline() {
            timeline.look();
        }
        let result = self.gpu.or_lost(self.gpu.outcome_of(&self.in_flight, outcome));
        // Never waits: another thread may hold the state for as long as a launch runs.
        self.gpu.try_prune();
        Some(result)
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.in_flight.is_done()
    }

    /// Asks the kernel to stop: `gpuvm::failed()` becomes true and accesses that miss return at once.
    pub fn abort(&self) {
        self.in_flight.abort(&**self.gpu.device());
    }

    /// Stops the kernel where it stands, and with it the other launches in flight on this GPU over the virtual memory, which could
    /// wait for it. It is mended before the next launch; no dirty page is lost.
    pub fn kill(&self) {
        if let Some(launch) = self.in_flight.flight.launch.get() {
            launch.abandon();
        }
    }
}

/// A further stream of one GPU of a virtual memory.
#[derive(Clone)]
pub struct StreamHandle {
    gpu: Weak<PagedGpu>,
    stream: Arc<dyn Stream>,
}

impl StreamHandle {
    pub(crate) fn new(gpu: &Arc<PagedGpu>, stream: Arc<dyn Stream>) -> Self {
        Self {
            gpu: Arc::downgrade(gpu),
            stream,
        }
    }

    /// The stream, if it is one of `gpu`.
    pub(crate) fn on(&self, gpu: &Arc<PagedGpu>) -> Option<&Arc<dyn Stream>> {
        std::ptr::eq(self.gpu.as_ptr(), Arc::as_ptr(gpu)).then_some(&self.stream)
    }
}
