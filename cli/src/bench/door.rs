//! The way to what only CUDA has: copy engines and managed memory.

use std::time::Instant;

use gpuvm::Gpu as Asked;
use gpuvm_gpu::cuda::{Copying, CudaGpu, Managed, Side};
use gpuvm_gpu::{DeviceMemory, Gpu, GpuError, HostMemory};

use crate::bench::machine::Machine;
use crate::error::CliError;
use crate::machine::MachineArgs;

/// The GPU once more, beside the virtual memory's: both are in the process's one context, so that kernels of one reach
/// the memory of the other.
pub struct Door {
    gpu: CudaGpu,
}

impl Door {
    /// For the GPU of `machine`.
    ///
    /// # Errors
    /// [`CliError::NeedsNvidia`], or the driver's.
    pub fn open(machine: &Machine, args: &MachineArgs, what: &str) -> Result<Self, CliError> {
        if !machine.is_cuda() {
            return Err(CliError::NeedsNvidia {
                what: what.to_owned(),
                gpu: machine.vm.gpu_name(),
            });
        }
        let which = match args.first() {
            Asked::Cuda(which) => which.to_string(),
            _ => "0".to_owned(),
        };
        let gpu = CudaGpu::open(which)?;
        Ok(Self { gpu })
    }

    /// CUDA's version that the driver has.
    pub fn cuda_version(&self) -> Option<String> {
        let (major, minor) = self.gpu.driver_version().ok()?;
        Some(format!("{major}.{minor}"))
    }

    /// Pinned memory for copies.
    pub fn host_memory(&self, bytes: u64) -> Result<HostMemory, CliError> {
        let refused = |source: GpuError| CliError::Memory { bytes, source };
        self.gpu.allocate_host(bytes).map_err(refused)
    }

    /// Device memory for copies, of this GPU or a neighbour.
    pub fn device_memory(&self, neighbour: Option<u32>, bytes: u64) -> Result<DeviceMemory, CliError> {
        let memory = match neighbour {
            Some(ordinal) => self.gpu.allocate_on(ordinal, bytes),
            None => self.gpu.allocate(bytes, 256),
        };
        memory.map_err(|source| CliError::Memory { bytes, source })
    }

    /// Seconds of copies of this door's memory, as (to, from, bytes).
    pub fn copy(&self, copies: &[(u64, u64, u64)], how: Copying) -> Result<f64, CliError> {
        let time = self.gpu.time_copies(copies, how)?;
        Ok(time.as_secs_f64().max(1e-9))
    }

    /// Managed memory, at most 80 % of what the card has free.
    pub fn managed(&self, bytes: u64) -> Result<Managed, CliError> {
        let refused = |source: GpuError| CliError::Memory { bytes, source };
        self.gpu.managed(bytes).map_err(refused)
    }
}

/// Moves all of it; the seconds until it is there.
pub fn move_to(memory: &Managed, side: Side) -> Result<f64, CliError> {
    let started = Instant::now();
    memory.prefetch(side)?;
    Ok(started.elapsed().as_secs_f64())
}

/// Version of the kernel's NVIDIA driver.
pub fn kernel_driver() -> Option<String> {
    let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_owned())
}
