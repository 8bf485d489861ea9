//! What several transports' settings have in common.

use gpuvm_gpu::Gpu;
use gpuvm_nic::NicError;

use crate::error::{Doing, Error, Result};

/// A device that was opened for `transport`, which is unavailable where the device is not there.
pub(super) fn opened<N>(device: Result<N, NicError>, transport: &str, doing: &str) -> Result<N> {
    match device {
        Err(NicError::NoDevice { reason }) => Err(Error::Unavailable {
            what: format!("transport {transport}"),
            reason,
        }),
        other => other.doing(|| doing.into()),
    }
}

/// Whether a GPU is one of hardware.
pub(super) fn is_hardware(gpu: &dyn Gpu) -> bool {
    gpu.capabilities().compute_capability.is_some()
}
