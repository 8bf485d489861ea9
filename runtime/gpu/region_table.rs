//! The regions of a GPU as its lanes find them: descriptions, and where their pages live.

use std::sync::Arc;

use gpuvm_gpu::{AddressSpace, Gpu, GpuError};
use gpuvm_layouts::{RegionDesc, StripeDesc};
use parking_lot::Mutex;

use crate::{
    device::DeviceArray,
    error::{Doing, Result},
    handles::{Handle, Handles},
};

/// Regions whose stripes are allocated at once.
const BLOCK: u32 = 256;

/// The region table, with room for the stripes of each.
pub(crate) struct RegionTable {
    descs: Descs,
    /// Of [`BLOCK`] places each, `stripes_each` for a place.
    stripes: Mutex<Vec<DeviceArray<StripeDesc>>>,
    stripes_each: u64,
}

/// The descriptions. Lanes have one address for all of them.
enum Descs {
    Whole(DeviceArray<RegionDesc>),
    /// Handles are placed there as regions come, before one is described there.
    Growing {
        space: Arc<dyn AddressSpace>,
        held: Mutex<Vec<Handle>>,
    },
}

impl Descs {
    fn addr(&self) -> u64 {
        match self {
            Self::Whole(descs) => descs.addr(),
            Self::Growing { space, .. } => space.addr(),
        }
    }

    /// Makes the table longer by what `take` gives for this many handles.
    fn grow(&self, gpu: &dyn Gpu, id: u32, take: impl FnOnce(usize) -> Result<Vec<Handle>>) -> Result<()> {
        let Self::Growing { space, held } = self else {
            return Ok(());
        };
        let (mut held, size) = (held.lock(), gpu.piece_bytes());
        let wanted = ((u64::from(id) + 1) * size_of::<RegionDesc>() as u64).div_ceil(size) as usize;
        let first = held.len();
        if wanted > first {
            let doing = || "growing the table of regions".to_owned();
            let more = take(wanted - first)?;
            let placing: Vec<_> = (first as u64..).map(|n| n * size).zip(more.iter().cloned()).collect();
            space.place(&placing).doing(doing)?;
            let bytes = more.len() as u64 * size;
            gpu.zero(space.addr() + first as u64 * size, bytes).doing(doing)?;
            held.extend(more);
        }
        Ok(())
    }
}

impl RegionTable {
    /// For up to `count` regions of up to `stripes_each` stripes. Memory is taken as they come, where that saves some.
    ///
    /// # Errors
    /// Memory that is not available.
    pub fn new(gpu: &dyn Gpu, count: u32, stripes_each: u64) -> Result<Self> {
        let doing = || "allocating the table of regions".to_owned();
        let (bytes, size) = (u64::from(count) * size_of::<RegionDesc>() as u64, gpu.piece_bytes());
        let descs = match size > 0 && bytes > size {
            true => Descs::Growing {
                space: gpu.reserve(bytes.next_multiple_of(size), &[]).doing(doing)?,
                held: Mutex::default(),
            },
            false => Descs::Whole(DeviceArray::zeroed(gpu, count.into()).doing(doing)?),
        };
        let table = Self {
            descs,
            stripes: Mutex::default(),
            stripes_each,
        };
        table.grow_by(gpu, 0, |_| Ok(vec![gpu.piece().doing(doing)?]))?;
        Ok(table)
    }

    /// Whether there is memory for what is said of a region.
    pub fn has(&self, id: u32) -> bool {
        self.stripes.lock().len() > (id / BLOCK) as usize
    }

    /// Takes memory up to that of region `id`. Lanes may use the table meanwhile.
    ///
    /// # Errors
    /// As [`Handles::take`].
    pub fn grow(&self, handles: &Handles, id: u32) -> Result<()> {
        self.grow_by(&**handles.gpu(), id, |count| handles.take(count))
    }

    fn grow_by(&self, gpu: &dyn Gpu, id: u32, take: impl FnOnce(usize) -> Result<Vec<Handle>>) -> Result<()> {
        self.descs.grow(gpu, id, take)?;
        let mut stripes = self.stripes.lock();
        while stripes.len() <= (id / BLOCK) as usize {
            let block = DeviceArray::zeroed(gpu, u64::from(BLOCK) * self.stripes_each);
            stripes.push(block.doing(|| "allocating places of regions' pages".into())?);
        }
        Ok(())
    }

    pub fn addr(&self) -> u64 {
        self.descs.addr()
    }

    /// Address of the first stripe of a region.
    pub fn stripes_addr(&self, id: u32) -> u64 {
        self.stripes.lock()[(id / BLOCK) as usize].addr() + self.first_stripe(id) * size_of::<StripeDesc>() as u64
    }

    /// In its block.
    fn first_stripe(&self, id: u32) -> u64 {
        u64::from(id % BLOCK) * self.stripes_each
    }

    fn desc_addr(&self, id: u32) -> u64 {
        self.addr() + u64::from(id) * size_of::<RegionDesc>() as u64
    }

    pub fn write(&self, gpu: &dyn Gpu, id: u32, desc: RegionDesc) -> Result<(), GpuError> {
        gpu.write(self.desc_addr(id), bytemuck::bytes_of(&desc))
    }

    /// Writes the flags of a region, and nothing that lanes change.
    pub fn write_flags(&self, gpu: &dyn Gpu, id: u32, flags: u32) -> Result<(), GpuError> {
        let flags_at = core::mem::offset_of!(RegionDesc, flags) as u64;
        gpu.write(self.desc_addr(id) + flags_at, &flags.to_ne_bytes())
    }

    /// Writes stripes of a region from its `first` on.
    pub fn write_stripes(&self, gpu: &dyn Gpu, id: u32, first: u64, stripes: &[StripeDesc]) -> Result<(), GpuError> {
        self.stripes.lock()[(id / BLOCK) as usize].write(gpu, self.first_stripe(id) + first, stripes)
    }
}
