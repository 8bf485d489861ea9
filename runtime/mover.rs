//! The software NIC beside a GPU whose memory the processor cannot reach: the GPU's copy engines move its bytes.

use std::sync::Arc;

use gpuvm_gpu::{Copier, CopySpan, Gpu, HostMemory};
use gpuvm_nic::{Move, Mover, MoverError, MoverLane};

/// A GPU's copies as what moves a NIC's data.
pub(crate) struct GpuMover {
    pub gpu: Arc<dyn Gpu>,
}

impl Mover for GpuMover {
    fn lane(&self, staging_bytes: u64) -> Result<Box<dyn MoverLane>, MoverError> {
        Ok(Box::new(Lane {
            copier: self.gpu.copier()?,
            staging: self.gpu.allocate_host(staging_bytes)?,
            data: Vec::new(),
            then: Vec::new(),
        }))
    }
}

struct Lane {
    // Dropped in this order: it waits for copies out of the staging memory.
    copier: Arc<dyn Copier>,
    staging: HostMemory,
    data: Vec<CopySpan>,
    then: Vec<CopySpan>,
}

fn convert(spans: &mut Vec<CopySpan>, moves: &[Move]) {
    spans.clear();
    spans.extend(
        moves
            .iter()
            .map(|&Move { to, from, bytes }| CopySpan { to, from, bytes }),
    );
}

impl MoverLane for Lane {
    fn staging(&self) -> u64 {
        self.staging.host_ptr().expose_provenance() as u64
    }

    unsafe fn submit(&mut self, data: &[Move], then: &[Move]) -> Result<(), MoverError> {
        convert(&mut self.data, data);
        convert(&mut self.then, then);
        // SAFETY: the NIC names registered memory, its queue pairs' rings and the staging memory. Frames and rings are
        // this GPU's, homes are registered with it, and all of them outlive the copies by the caller's promise.
        unsafe { self.copier.submit(&self.data, &self.then)? };
        Ok(())
    }

    fn completed(&mut self) -> Result<u64, MoverError> {
        Ok(self.copier.completed()?)
    }
}
