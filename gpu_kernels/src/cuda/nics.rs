//! What NICs of the machine need of a GPU: its memory as dma-bufs, and their registers within its reach.
//!
//! Written from the driver's documentation; no machine with a NIC was at hand to run it on.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE, CUmemRangeHandleType_enum,
    CUresult,
};

use super::calls::cu;
use super::core::Core;
use super::driver::{is, outcome};
use crate::api::DmaBuf;
use crate::error::GpuError;
use crate::memory::{HostRegistration, Release};

/// `bytes` bytes of one allocation at `addr` as a dma-buf.
pub(crate) fn export(core: &Arc<Core>, addr: u64, bytes: u64) -> Result<DmaBuf, GpuError> {
    core.enter()?;
    let mut fd: i32 = -1;
    let kind = CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD as u32;
    // SAFETY: the out-value of a dma-buf is a descriptor; the caller checked that an allocation covers the range.
    let called =
        unsafe { cu::cuMemGetHandleForAddressRange((&raw mut fd).cast::<c_void>(), addr, bytes as usize, kind, 0) };
    outcome(called).map_err(|failure| {
        failure.advised(
            format_args!("export {bytes} bytes of GPU memory as a dma-buf"),
            "dma-bufs need the open kernel modules of NVIDIA's driver (nvidia-open) and a kernel of 5.12 or newer",
        )
    })?;
    // SAFETY: the driver made the descriptor for us alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(DmaBuf { fd, offset: 0 })
}

/// Registers of a device within kernels' reach.
struct Registers {
    core: Arc<Core>,
}

impl Release for Registers {
    fn release(&self, host: u64) {
        if self.core.enter().is_ok() {
            // SAFETY: registered by `map_registers`, and this is its only release.
            let called = unsafe { cu::cuMemHostUnregister(host as *mut c_void) };
            // No one to tell; what kills the context is noted.
            let _ = self.core.check("take a device's registers from kernels", called);
        }
    }
}

/// See [`Gpu::map_registers`](crate::Gpu::map_registers).
pub(crate) fn map_registers(core: &Arc<Core>, host: *mut u8, bytes: u64) -> Result<HostRegistration, GpuError> {
    core.enter()?;
    let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY;
    // SAFETY: the caller keeps the registers mapped until the registration is dropped.
    let called = unsafe { cu::cuMemHostRegister_v2(host.cast(), bytes as usize, flags) };
    outcome(called).map_err(|failure| {
        let advice = if is(failure.code, CUresult::CUDA_ERROR_NOT_PERMITTED) {
            "run as root (CAP_SYS_ADMIN), or load nvidia.ko with NVreg_RegistryDwords=\"PeerMappingOverride=1;\""
        } else {
            "drivers before the fix for kernels of 6.10 and newer cannot map registers: update the NVIDIA driver"
        };
        failure.advised("map a NIC's doorbell registers for the GPU", advice)
    })?;
    let mut registration = HostRegistration {
        host: host as u64,
        device: 0,
        bytes,
        owner: Some(Arc::new(Registers { core: Arc::clone(core) })),
    };
    // SAFETY: an out-value of the right type; the range was just registered.
    let mapped = unsafe { cu::cuMemHostGetDevicePointer_v2(&raw mut registration.device, host.cast(), 0) };
    core.check("ask for the GPU's address of registers", mapped)?;
    Ok(registration)
}
