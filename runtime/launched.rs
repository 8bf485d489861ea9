//! The handles of launches in flight, and of streams.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use gpuvm_gpu::{GpuError, LaunchReport, Stream};

use crate::{
    error::{Doing, Error, Result},
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
            if let (None, Some(launch)) = (timeout, self.in_flight.flight.launch.get()) {
                self.gpu.turns.take_beside(launch);
            }
            self.in_flight.wait(timeout)?
        };
        if let Some(timeline) = self.gpu.timeline() {
            timeline.look();
        }
        let result = self.gpu.map_device_lost(self.gpu.outcome_of(&self.in_flight, outcome));
        self.in_flight.let_go();
        // Never waits: another thread may hold the state for as long as a launch runs.
        self.gpu.try_prune();
        Some(result)
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.in_flight.is_done()
    }

    /// Asks the kernel to stop: `failed()` of its arrays becomes true and accesses that miss return at once.
    pub fn abort(&self) {
        self.in_flight.abort(&*self.gpu.device);
    }

    /// Stops the kernel where it stands, and with it the other launches in flight on this GPU over the virtual memory, which could
    /// wait for it. It is recovered before the next launch; no dirty page is lost.
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

    /// Another's stream.
    ///
    /// # Safety
    /// As [`crate::VmGpu::borrow_stream`] asks.
    pub(crate) unsafe fn borrowed(gpu: &Arc<PagedGpu>, stream: u64) -> Result<Self> {
        // SAFETY: passed on from the caller.
        let borrowed = unsafe { gpu.device.borrow_stream(stream) };
        let borrowed = gpu.map_device_lost(borrowed.doing(|| "borrowing a stream".into()))?;
        Ok(Self::new(gpu, borrowed))
    }

    /// The stream, if it is one of the GPU of `kernel`.
    pub(crate) fn on_or(&self, gpu: &Arc<PagedGpu>, kernel: &str) -> Result<&Arc<dyn Stream>> {
        match std::ptr::eq(self.gpu.as_ptr(), Arc::as_ptr(gpu)) {
            true => Ok(&self.stream),
            false => Err(Error::Arguments {
                kernel: kernel.to_owned(),
                reason: "the stream belongs to another GPU or Vm than the kernel".into(),
            }),
        }
    }

    /// The stream as CUDA knows it, a `CUstream` or `cudaStream_t`, for other work in its order; none on the simulated GPU.
    pub fn as_raw(&self) -> Option<u64> {
        self.stream.raw()
    }
}
