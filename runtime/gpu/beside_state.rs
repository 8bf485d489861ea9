//! What is kept of launches that bring pages beside others, and of one that is about to begin.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gpuvm_gpu::{Gpu, GpuError, HostMemory};
use gpuvm_layouts::BesideDesc;
use parking_lot::MutexGuard;

use super::{pool::Returning, view::RegionView};
use crate::{device::DeviceArray, launch::Ask};

/// What is kept from one such launch to the next.
#[derive(Default)]
pub(super) struct Beside {
    pub memory: Option<BesideMemory>,
    /// How many there were.
    pub number: u32,
    /// Not before, and how long the pause is.
    pub next: Option<(Instant, Duration)>,
}

pub(super) struct BesideMemory {
    /// The number of the last one that is to end.
    pub stop: Arc<HostMemory>,
    pub desc: DeviceArray<BesideDesc>,
    pub ring: DeviceArray<u64>,
    /// Frames that are its own, a bit each.
    pub own: Option<DeviceArray<u64>>,
    pub segments: Option<DeviceArray<u64>>,
}

impl BesideMemory {
    /// With this many places of the ring.
    pub fn new(gpu: &dyn Gpu, places: u64) -> std::result::Result<Self, GpuError> {
        Ok(Self {
            stop: Arc::new(gpu.allocate_host(4)?),
            desc: DeviceArray::zeroed(gpu, 1)?,
            ring: DeviceArray::zeroed(gpu, places)?,
            own: None,
            segments: None,
        })
    }
}

/// What such a launch needs is there.
pub(super) struct Prepared<'a> {
    /// The regions, by their places in the region table.
    pub regions: Vec<u32>,
    /// Address of what the kernel is told.
    pub desc: u64,
    /// Frames that were taken out of the pool, and how often that was rebuilt until then.
    pub own: u64,
    pub own_words: u64,
    pub rebuilt: u64,
    pub watchers: u32,
    pub ask: Ask,
    /// A thread that changes the number of frames finds a launch to ask for those that are taken.
    pub _changing: MutexGuard<'a, Option<Returning>>,
}

impl Prepared<'_> {
    /// What has it end soon.
    pub fn ask(&self) -> Ask {
        Arc::clone(&self.ask)
    }

    /// Whether pages of a region are to come.
    pub fn brings(&self, region: &RegionView) -> bool {
        self.regions.contains(&region.id())
    }
}
