//! Memory of rings and doorbell records that a NIC's driver hands out, within lanes' reach.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use gpuvm_gpu::{DeviceMemory, Gpu, HostMemory};
use gpuvm_nic::{
    host_page_bytes,
    mlx5::{QueueSlab, SharedMemory},
};
use parking_lot::{Mutex, MutexGuard};

/// Pinned host memory of one GPU; for queues that DEVX makes the GPU's own, where NICs can be given it and have the frames
/// there as well.
pub(crate) struct RingArena {
    gpu: Arc<dyn Gpu>,
    slabs: Mutex<Vec<Slab>>,
    /// The frames lie in host memory, so the queues do.
    on_host: AtomicBool,
}

enum Slab {
    Host(HostMemory),
    Device(DeviceMemory),
}

impl RingArena {
    /// No memory yet.
    pub fn new(gpu: Arc<dyn Gpu>) -> Self {
        Self {
            gpu,
            slabs: Mutex::default(),
            on_host: AtomicBool::new(false),
        }
    }

    /// Puts the queues that follow into host memory, beside frames that lie there: a NIC's data and its completion are in order
    /// on their way to one memory, and in none on their ways to two.
    pub fn stay_on_host(&self) {
        // Relaxed: the flag alone is read, by calls that this one's caller makes later.
        self.on_host.store(true, Ordering::Relaxed);
    }

    fn slabs(&self) -> MutexGuard<'_, Vec<Slab>> {
        self.slabs.lock()
    }

    /// What lanes call an address of this memory, as the NIC's back end knows it. The GPU's own has one address for both.
    pub fn for_lanes(&self, address: u64) -> Option<u64> {
        self.slabs().iter().find_map(|slab| match slab {
            Slab::Host(memory) => {
                let offset = address.checked_sub(memory.host_ptr() as u64)?;
                (offset < memory.bytes()).then_some(memory.device_addr() + offset)
            }
            Slab::Device(memory) => {
                let offset = address.checked_sub(memory.addr())?;
                (offset < memory.bytes()).then_some(address)
            }
        })
    }

    /// Memory of the GPU that NICs can be given, as a dma-buf.
    fn allocate_on_gpu(&self, bytes: u64) -> Result<QueueSlab, Box<dyn Error + Send + Sync>> {
        // A driver exports whole pages of the host.
        let bytes = bytes.next_multiple_of(host_page_bytes());
        let memory = self.gpu.allocate_for_nics(bytes, host_page_bytes())?;
        let address = memory.addr();
        let exported = self.gpu.export_dma_buf(address, bytes)?;
        self.slabs().push(Slab::Device(memory));
        Ok(QueueSlab {
            address,
            dma_buf: Some((exported.fd, exported.offset)),
        })
    }
}

// SAFETY: memory of a GPU, the host's and its own, is zeroed and page-aligned; each slab is handed out once and lives as
// long as the arena.
unsafe impl SharedMemory for RingArena {
    fn allocate(&self, bytes: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
        let slab = self.gpu.allocate_host(bytes)?;
        let address = slab.host_ptr().expose_provenance() as u64;
        self.slabs().push(Slab::Host(slab));
        Ok(address)
    }

    fn allocate_queues(&self, bytes: u64) -> Result<QueueSlab, Box<dyn Error + Send + Sync>> {
        let able = self.gpu.capabilities().for_nics;
        // Relaxed: see `stay_on_host`.
        let on_gpu = !self.on_host.load(Ordering::Relaxed) && able.is_some_and(|able| able.rdma && able.dma_buf);
        if on_gpu {
            match self.allocate_on_gpu(bytes) {
                Ok(slab) => return Ok(slab),
                Err(error) => tracing::warn!(
                    error = &*error as &dyn Error,
                    "queues lie in pinned host memory: the GPU's own cannot be exported"
                ),
            }
        }
        let address = self.allocate(bytes)?;
        Ok(QueueSlab { address, dma_buf: None })
    }

    unsafe fn write_queues(&self, address: u64, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let in_host = self.slabs().iter().any(|slab| match slab {
            Slab::Host(memory) => address.wrapping_sub(memory.host_ptr() as u64) < memory.bytes(),
            Slab::Device(_) => false,
        });
        if !in_host {
            return Ok(self.gpu.write(address, bytes)?);
        }
        let to = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
        // SAFETY: the bytes fit, by the caller's promise; lanes and NIC use the queue only after the command that follows.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }
}
