//! Memory of rings and doorbell records that a NIC's driver hands out, within lanes' reach.

use std::{
    error::Error,
    sync::{Arc, Mutex, PoisonError},
};

use gpuvm_gpu::{Gpu, HostMemory};
use gpuvm_nic::mlx5::SharedMemory;

/// Pinned host memory of one GPU.
pub(crate) struct RingArena {
    gpu: Arc<dyn Gpu>,
    slabs: Mutex<Vec<HostMemory>>,
}

impl RingArena {
    /// No memory yet.
    pub fn new(gpu: Arc<dyn Gpu>) -> Self {
        Self {
            gpu,
            slabs: Mutex::default(),
        }
    }

    /// What lanes call address `host` of this process, where it is in this memory.
    pub fn for_lanes(&self, host: u64) -> Option<u64> {
        let slabs = self.slabs.lock().unwrap_or_else(PoisonError::into_inner);
        slabs.iter().find_map(|slab| {
            let offset = host.checked_sub(slab.host_ptr() as u64)?;
            (offset < slab.bytes()).then_some(slab.device_addr() + offset)
        })
    }
}

// SAFETY: host memory of a GPU is zeroed and page-aligned; each slab is handed out once and lives as long as the arena.
unsafe impl SharedMemory for RingArena {
    fn allocate(&self, bytes: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
        let slab = self.gpu.allocate_host(bytes)?;
        let address = slab.host_ptr().expose_provenance() as u64;
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner).push(slab);
        Ok(address)
    }
}
