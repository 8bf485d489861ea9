//! What guards a region's pages, in a GPU's memory.

use gpuvm_gpu::{Gpu, GpuError};

use crate::device::DeviceArray;

/// Tables in GPU memory; those that the region does not need are missing.
pub(crate) struct Guards {
    /// A bitmap a replica: see `RegionDesc::stale`.
    pub stale: Option<DeviceArray<u32>>,
    pub joins: Option<DeviceArray<u32>>,
    pub checksums: Option<DeviceArray<u32>>,
}

/// Where they lie; 0 where they are missing.
#[derive(Clone, Copy)]
pub(crate) struct GuardAddresses {
    pub stale: u64,
    pub joins: u64,
    pub checksums: u64,
}

impl Guards {
    pub fn create(gpu: &dyn Gpu, pages: u64, replicated: bool, checksums: Option<&[u32]>) -> Result<Self, GpuError> {
        let zeroed = |length| match replicated {
            true => DeviceArray::zeroed(gpu, length).map(Some),
            false => Ok(None),
        };
        Ok(Self {
            stale: zeroed(2 * pages.div_ceil(32))?,
            joins: zeroed(pages)?,
            checksums: checksums.map(|sums| DeviceArray::from_slice(gpu, sums)).transpose()?,
        })
    }

    pub fn addresses(&self) -> GuardAddresses {
        let addr = |array: &Option<DeviceArray<u32>>| array.as_ref().map_or(0, DeviceArray::addr);
        GuardAddresses {
            stale: addr(&self.stale),
            joins: addr(&self.joins),
            checksums: addr(&self.checksums),
        }
    }
}
