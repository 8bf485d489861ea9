//! A file cache in GPU memory: blocks come there past the host's memory.

use std::{io, os::fd::RawFd, sync::Arc};

use gpuvm_files::{DeviceFile, DeviceSlots};
use gpuvm_gpu::{DeviceMemory, FileAccess, Gpu, GpuFile};

use crate::{
    error::{Doing, Result},
    plan::refuse,
};

/// Slots in memory of the GPU.
pub(super) struct GpuSlots {
    gpu: Arc<dyn Gpu>,
    // Before the memory, which it may have told the library of.
    access: Arc<dyn FileAccess>,
    _memory: DeviceMemory,
}

impl GpuSlots {
    /// Slots of `block` bytes in `bytes` bytes of memory, and where that begins.
    pub fn new(gpu: &Arc<dyn Gpu>, bytes: u64, block: u64) -> Result<(u64, Arc<Self>)> {
        let doing = || format!("allocating its file cache of {bytes} bytes");
        let memory = gpu.allocate(bytes, block).doing(doing)?;
        let access = gpu
            .file_access(&memory)
            .doing(|| "reading files into its memory".into())?;
        let least = access.bytes_least();
        if block < least {
            let reason = format!(
                "a file cache in GPU memory needs pages of at least {least} bytes; a file cache in host memory takes smaller ones"
            );
            return refuse("page size", format!("{block} bytes"), reason);
        }
        let base = memory.addr();
        let gpu = Arc::clone(gpu);
        let slots = Self {
            gpu,
            access,
            _memory: memory,
        };
        Ok((base, Arc::new(slots)))
    }
}

impl DeviceSlots for GpuSlots {
    fn name(&self) -> &'static str {
        self.access.name()
    }

    fn open(&self, file: RawFd) -> io::Result<Box<dyn DeviceFile>> {
        let file = self.access.open(file).map_err(io::Error::other)?;
        Ok(Box::new(OnGpu(file)))
    }

    fn read(&self, address: u64, out: &mut [u8]) -> io::Result<()> {
        self.gpu.read(address, out).map_err(io::Error::other)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.gpu.write(address, data).map_err(io::Error::other)
    }
}

struct OnGpu(Box<dyn GpuFile>);

impl DeviceFile for OnGpu {
    unsafe fn read_at(&self, offset: u64, address: u64, bytes: u64) -> io::Result<u64> {
        // SAFETY: passed on from the caller.
        unsafe { self.0.read_at(offset, address, bytes) }
    }

    unsafe fn write_at(&self, offset: u64, address: u64, bytes: u64) -> io::Result<u64> {
        // SAFETY: passed on from the caller.
        unsafe { self.0.write_at(offset, address, bytes) }
    }
}
