//! Homes in memory of a neighbour GPU, which lanes reach by loads and stores.

use gpuvm_gpu::{DeviceMemory, Gpu};
use gpuvm_layouts::StripeDesc;
use parking_lot::Mutex;

use super::{DataPaths, FileSpan, Home, HostPages, Reach, Striped, unmoved};
use crate::{
    error::{Doing, Result},
    frames::FrameMemory,
};

/// A home at a neighbour GPU.
pub(crate) struct AtNeighbour {
    region: String,
    /// None when it is empty, or when the region has ended.
    memory: Mutex<Option<DeviceMemory>>,
}

impl AtNeighbour {
    pub fn new(region: String, memory: Option<DeviceMemory>) -> Self {
        let memory = Mutex::new(memory);
        Self { region, memory }
    }
}

impl Home for AtNeighbour {
    fn name(&self, _page: u64) -> String {
        "a neighbour GPU".into()
    }

    fn holder(&self, page: u64) -> Option<String> {
        Some(self.name(page))
    }

    unsafe fn read(&self, gpu: &dyn Gpu, offset: u64, out: &mut [u8]) -> Result<()> {
        match &*self.memory.lock() {
            Some(memory) if !out.is_empty() => {
                let read = gpu.read(memory.addr() + offset, out);
                read.doing(|| format!("reading region `{}` from a neighbour GPU", self.region))
            }
            _ => Ok(()),
        }
    }

    unsafe fn write(&self, gpu: &dyn Gpu, offset: u64, data: &[u8]) -> Result<()> {
        match &*self.memory.lock() {
            Some(memory) if !data.is_empty() => {
                let written = gpu.write(memory.addr() + offset, data);
                written.doing(|| format!("writing region `{}` at a neighbour GPU", self.region))
            }
            _ => Ok(()),
        }
    }

    fn register(&self, _paths: &DataPaths<'_>, _read_only: bool) -> Result<Reach> {
        // Lanes reach the neighbour's memory since it was allocated for them.
        Ok(Reach::None)
    }

    fn stripes(
        &self,
        _paths: &DataPaths<'_>,
        reach: &Reach,
        _own_frames: Option<&FrameMemory>,
    ) -> Vec<Vec<StripeDesc>> {
        unmoved(self.direct_addr(reach))
    }

    fn direct_addr(&self, _reach: &Reach) -> u64 {
        self.memory.lock().as_ref().map_or(0, DeviceMemory::addr)
    }

    fn is_lost(&self, _paths: &DataPaths<'_>, _page: u64) -> bool {
        // It goes with the GPU that reads it, and that loss is told by itself.
        false
    }

    fn is_away(&self, paths: &DataPaths<'_>, page: u64) -> bool {
        self.is_lost(paths, page)
    }

    fn was_away(&self, _paths: &DataPaths<'_>, _page: u64) -> bool {
        false
    }

    fn host_memory(&self) -> Option<&HostPages> {
        None
    }

    fn file_span(&self) -> Option<FileSpan> {
        None
    }

    fn at_nodes(&self) -> Option<&Striped> {
        None
    }

    fn retry_writes(&self) {}

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn give_back(&self) {
        drop(self.memory.lock().take());
    }
}
