//! The regions of a GPU as its lanes find them: descriptions, and where their pages live.

use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{RegionDesc, StripeDesc};

use crate::device::DeviceArray;

/// The region table, with room for the stripes of each.
pub(crate) struct RegionTable {
    descs: DeviceArray<RegionDesc>,
    /// `stripes_each` for each place.
    stripes: DeviceArray<StripeDesc>,
    stripes_each: u64,
}

impl RegionTable {
    /// Room for `count` regions of up to `stripes_each` stripes.
    pub fn new(gpu: &dyn Gpu, count: u32, stripes_each: u64) -> Result<Self, GpuError> {
        Ok(Self {
            descs: DeviceArray::zeroed(gpu, u64::from(count))?,
            stripes: DeviceArray::zeroed(gpu, u64::from(count) * stripes_each)?,
            stripes_each,
        })
    }

    pub fn addr(&self) -> u64 {
        self.descs.addr()
    }

    /// Address of the first stripe of a region.
    pub fn stripes_addr(&self, id: u32) -> u64 {
        self.stripes.addr() + self.first_stripe(id) * size_of::<StripeDesc>() as u64
    }

    fn first_stripe(&self, id: u32) -> u64 {
        u64::from(id) * self.stripes_each
    }

    pub fn write(&self, gpu: &dyn Gpu, id: u32, desc: RegionDesc) -> Result<(), GpuError> {
        self.descs.write(gpu, id.into(), &[desc])
    }

    /// Writes the flags of a region, and nothing that lanes change.
    pub fn write_flags(&self, gpu: &dyn Gpu, id: u32, flags: u32) -> Result<(), GpuError> {
        let desc = self.addr() + u64::from(id) * size_of::<RegionDesc>() as u64;
        gpu.write(
            desc + core::mem::offset_of!(RegionDesc, flags) as u64,
            &flags.to_ne_bytes(),
        )
    }

    /// Writes stripes of a region from its `first` on.
    pub fn write_stripes(&self, gpu: &dyn Gpu, id: u32, first: u64, stripes: &[StripeDesc]) -> Result<(), GpuError> {
        self.stripes.write(gpu, self.first_stripe(id) + first, stripes)
    }
}
