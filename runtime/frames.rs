//! Memory for frames, registered with the NIC where there is one.

use std::{mem::ManuallyDrop, sync::Arc};

use gpuvm_gpu::{DeviceMemory, Gpu};
use gpuvm_nic::{Access, MemoryKey, Nic};

use crate::error::{Doing, Result};

/// Frames that follow each other: those of the virtual memory, or those of one region.
pub(crate) struct FrameMemory {
    memory: ManuallyDrop<DeviceMemory>,
    /// None where lanes copy the pages themselves.
    registered: Option<(Arc<dyn Nic>, MemoryKey)>,
}

impl FrameMemory {
    /// `count` frames, at least one, of `page_size` bytes.
    pub fn new(gpu: &dyn Gpu, nic: Option<Arc<dyn Nic>>, count: u64, page_size: u64) -> Result<Self> {
        let bytes = count.saturating_mul(page_size);
        let memory = gpu
            .allocate(bytes, page_size)
            .doing(|| format!("allocating {count} frames"))?;
        let registered = match nic {
            None => None,
            Some(nic) => {
                // SAFETY: the frames stay allocated until `drop` has deregistered them (else they are leaked), and kernels
                // and host reach them by raw addresses only.
                let key = unsafe { nic.register(memory.addr(), bytes, Access::LOCAL_WRITE) }
                    .doing(|| format!("registering {count} frames"))?;
                Some((nic, key))
            }
        };
        Ok(Self {
            memory: ManuallyDrop::new(memory),
            registered,
        })
    }

    /// Device address of frame 0.
    pub fn addr(&self) -> u64 {
        self.memory.addr()
    }

    /// The key by which the NIC writes fetched pages; 0 without a NIC.
    pub fn lkey(&self) -> u32 {
        self.registered.as_ref().map_or(0, |(_, key)| key.lkey)
    }
}

impl Drop for FrameMemory {
    fn drop(&mut self) {
        let gone = match &self.registered {
            None => Ok(()),
            Some((nic, key)) => nic.deregister(*key),
        };
        match gone {
            // SAFETY: dropped once, here.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            Err(error) => tracing::error!(%error, "frames could not be deregistered; their memory is leaked"),
        }
    }
}
