//! Launches of a slot cache's calls, which are ended together.

use std::sync::Arc;

use gpuvm_gpu::GpuError;

use crate::{error::Result, gpu::PagedGpu, launch::InFlight};

/// The calls of a cache.
#[derive(Default)]
pub(super) struct Calls {
    /// Those that are ended together, while there are some.
    pub series: Option<Series>,
    /// How often had been stored to each table before the records came that are in slots.
    pub stores: Vec<u64>,
}

/// Launches that are ended together.
pub(super) struct Series {
    pub gpu: Arc<PagedGpu>,
    pub series: Arc<dyn gpuvm_gpu::Series>,
    pub in_flight: Arc<InFlight>,
}

impl Series {
    /// Waits for its launches.
    pub fn end(self) -> Result<()> {
        let outcome = self.in_flight.wait(None).unwrap_or(Err(GpuError::ShutDown));
        let ended = self.gpu.or_lost(self.gpu.outcome_of(&self.in_flight, outcome));
        self.in_flight.let_go();
        self.gpu.try_prune();
        ended.map(drop)
    }
}
