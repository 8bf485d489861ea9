//! A series on an NVIDIA GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::calls::cu;
use super::core::{Core, Event, Raw, StreamHandle, is_captured};
use super::module::{CudaKernel, KernelInner};
use super::stream::{check_config, launch_kernel};
use crate::api::{Kernel, Launch, LaunchConfig, LaunchOutcome, LaunchReport, OnDone, Put, Series};
use crate::back_end::Arguments;
use crate::error::GpuError;

/// Launches on streams of others, of which nothing is kept: the end of all work of the context is theirs.
pub(crate) struct CudaSeries {
    core: Arc<Core>,
    state: Mutex<State>,
}

struct State {
    blocks: u64,
    outcome: Option<LaunchOutcome>,
    on_done: Option<OnDone>,
    /// They keep their modules.
    kernels: Vec<Arc<KernelInner>>,
    /// Of each stream what comes behind the last launch on it.
    ends: Vec<(StreamHandle, Event)>,
}

/// How long to wait for an end of which the driver says nothing but an error, while a stream is captured perhaps.
const TIMEOUT: Duration = Duration::from_secs(10);

impl State {
    /// What is to mark the end of the last launch on a stream. The context is current.
    fn end_of(&mut self, core: &Arc<Core>, stream: StreamHandle) -> Result<&Event, GpuError> {
        let known = self.ends.iter().position(|(known, _)| known.0 == stream.0);
        let n = match known {
            Some(n) => n,
            None => {
                self.ends.push((stream, Event::new(core, false)?));
                self.ends.len() - 1
            }
        };
        Ok(&self.ends[n].1)
    }

    /// Waits for all launches that no graph has. Not for the context: that is an error while somebody captures a stream, and ends the capture.
    fn wait(&self, core: &Core) -> Result<(), GpuError> {
        for (_, end) in &self.ends {
            let begun = Instant::now();
            loop {
                // SAFETY: the event is the state's.
                let ended = unsafe { cu::cuEventSynchronize(end.handle.0) };
                match core.check("wait for launches", ended) {
                    Ok(()) => break,
                    Err(error) if core.lost().is_some() || begun.elapsed() > TIMEOUT => return Err(error),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        }
        Ok(())
    }
}

impl CudaSeries {
    /// One without launches.
    pub(crate) fn new(core: &Arc<Core>, on_done: OnDone) -> Result<Self, GpuError> {
        core.enter()?;
        // Counted as one: what kernels may use is not freed until it ends.
        core.begin_launch()?;
        Ok(Self {
            core: Arc::clone(core),
            state: Mutex::new(State {
                blocks: 0,
                outcome: None,
                on_done: Some(on_done),
                kernels: Vec::new(),
                ends: Vec::new(),
            }),
        })
    }
}

/// Waits until the context's work has ended. The context is current.
pub(crate) fn drain(core: &Core) -> Result<(), GpuError> {
    // SAFETY: it takes nothing.
    core.check("wait for all work", unsafe { cu::cuCtxSynchronize() })
}

impl Series for CudaSeries {
    unsafe fn launch(
        &self,
        stream: u64,
        kernel: &Arc<dyn Kernel>,
        config: &LaunchConfig,
        args: &[&[u8]],
    ) -> Result<Put, GpuError> {
        let own = kernel.as_any().downcast_ref::<CudaKernel>();
        let Some(CudaKernel(kernel)) = own.filter(|kernel| Arc::ptr_eq(kernel.0.core(), &self.core)) else {
            return Err(GpuError::BadArguments {
                kernel: kernel.info().name.clone(),
                cause: "it was compiled by another GPU; compile it with this one".to_owned(),
            });
        };
        let blocks = check_config(kernel, config)?;
        let arguments = Arguments::new(&kernel.info, args)?;
        let handle: StreamHandle = Raw(std::ptr::with_exposed_provenance_mut(stream as usize));
        // Held while it is enqueued: who ends the series meanwhile waits for it as well.
        let mut state = self.state.lock();
        if state.outcome.is_some() {
            return Ok(Put::Over);
        }
        self.core.enter()?;
        let captured = is_captured(handle);
        // Before the launch, which nothing would wait for without it.
        let end = match captured {
            true => None,
            false => Some(state.end_of(&self.core, handle)?.handle.0),
        };
        launch_kernel(&self.core, handle, kernel, config, &arguments)?;
        state.blocks += blocks;
        if !state.kernels.iter().any(|known| Arc::ptr_eq(known, kernel)) {
            state.kernels.push(Arc::clone(kernel));
        }
        let Some(end) = end else {
            return Ok(Put::Captured);
        };
        // SAFETY: the event is the state's, and the caller says that the stream is live.
        let marked = unsafe { cu::cuEventRecord(end, handle.0) };
        self.core.check("mark the end of a launch", marked)?;
        Ok(Put::Enqueued)
    }

    unsafe fn follow(&self, stream: u64, earlier: u64) -> Result<(), GpuError> {
        let handle: StreamHandle = Raw(std::ptr::with_exposed_provenance_mut(stream as usize));
        let state = self.state.lock();
        let end = state
            .ends
            .iter()
            .find(|(known, _)| known.0.expose_provenance() as u64 == earlier);
        let Some((_, end)) = end.filter(|_| state.outcome.is_none()) else {
            return Ok(());
        };
        self.core.enter()?;
        if is_captured(handle) {
            return Ok(());
        }
        // SAFETY: the event is the state's, and the caller says that the stream is live.
        let waits = unsafe { cu::cuStreamWaitEvent(handle.0, end.handle.0, 0) };
        self.core.check("order a stream behind another", waits)
    }

    fn as_launch(self: Arc<Self>) -> Arc<dyn Launch> {
        self
    }
}

impl Drop for CudaSeries {
    fn drop(&mut self) {
        // A launch that nothing waited for may run still.
        drop(self.wait(None));
    }
}

impl Launch for CudaSeries {
    fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome> {
        let mut state = self.state.lock();
        if state.outcome.is_some() || timeout.is_some() {
            return state.outcome.clone();
        }
        let drained = self.core.enter().and_then(|()| state.wait(&self.core));
        let report = || LaunchReport::new(state.blocks, Arc::new(Duration::ZERO), None);
        let outcome = drained.map(|()| report());
        state.outcome = Some(outcome.clone());
        let on_done = state.on_done.take();
        // Those of captured launches are kept with their graphs' series.
        drop(state);
        if let Some(on_done) = on_done {
            on_done(&outcome);
        }
        self.core.end_launch();
        Some(outcome)
    }

    fn is_done(&self) -> bool {
        self.state.lock().outcome.is_some()
    }

    fn abandon(&self) {
        // Its kernels wait for nothing: they end by themselves.
    }
}
