//! What the device library counts.

use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{Counters, LatencyHistogram};

use crate::{
    device::DeviceArray,
    error::{Doing, Result},
};

/// Shards of the device's counters, so that multiprocessors do not share lines.
pub(super) const COUNTER_SHARDS: u32 = 64;

/// Counters and latencies in GPU memory.
pub(crate) struct Meters {
    pub(super) counters: DeviceArray<Counters>,
    pub(super) latencies: DeviceArray<LatencyHistogram>,
}

impl Meters {
    pub(super) fn new(gpu: &dyn Gpu) -> Result<Self, GpuError> {
        Ok(Self {
            counters: DeviceArray::zeroed(gpu, u64::from(COUNTER_SHARDS))?,
            latencies: DeviceArray::zeroed(gpu, 1)?,
        })
    }

    /// The counters' shards: what is counted is their sum.
    pub fn shards(&self, gpu: &dyn Gpu) -> Result<Vec<Counters>> {
        let shards = self.counters.read(gpu, 0, COUNTER_SHARDS as usize);
        shards.doing(|| "reading counters".into())
    }

    /// Demand fetches by latency.
    pub fn latencies(&self, gpu: &dyn Gpu) -> Result<LatencyHistogram> {
        let histogram = self.latencies.read(gpu, 0, 1);
        Ok(histogram.doing(|| "reading counters".into())?[0])
    }

    fn sum(&self, gpu: &dyn Gpu, which: impl Fn(&Counters) -> u64) -> Result<u64> {
        Ok(self.shards(gpu)?.iter().map(which).sum())
    }

    /// Pages that fetches have put into the error state so far.
    pub fn pages_failed(&self, gpu: &dyn Gpu) -> Result<u64> {
        self.sum(gpu, |shard| shard.pages_failed)
    }

    /// Pages that have left their frames so far.
    pub fn evictions(&self, gpu: &dyn Gpu) -> Result<u64> {
        self.sum(gpu, |shard| shard.evictions)
    }

    /// Copies that lanes have found to be stale so far.
    pub fn replicas_missed(&self, gpu: &dyn Gpu) -> Result<u64> {
        self.sum(gpu, |shard| shard.replicas_missed)
    }
}
