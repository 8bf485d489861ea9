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
    /// The stream of the last launch that no graph has, in the series that there is.
    pub last: Option<u64>,
    /// Calls in the series that there is.
    pub count: u32,
    /// A call was enqueued in part: what it left has to go before the next.
    pub broken: bool,
}

/// After this many calls a series ends, as memory that was given back meanwhile is free only then. The host waits for the calls then.
const CALLS_MOST: u32 = 4096;

impl Calls {
    /// Whether there is a series that calls may come in.
    pub fn go_on(&self) -> bool {
        !self.broken && self.series.as_ref().is_some_and(|series| !series.in_flight.is_done())
    }

    /// Whether it is time for another one.
    pub fn are_many(&self) -> bool {
        self.count >= CALLS_MOST
    }

    /// Waits for the calls of the series, if there is one, and ends it.
    pub fn end(&mut self) -> Result<()> {
        (self.last, self.count) = (None, 0);
        self.series.take().map_or(Ok(()), Series::end)
    }
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
        let ended = self.gpu.map_device_lost(self.gpu.outcome_of(&self.in_flight, outcome));
        self.in_flight.let_go();
        self.gpu.try_prune();
        ended.map(drop)
    }
}
