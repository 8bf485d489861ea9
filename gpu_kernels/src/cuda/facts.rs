//! What decides how a NIC and a GPU of this machine can work together.

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute};

use super::{calls, device, nvrtc};
use crate::api::ForNics;
use crate::error::GpuError;

/// Asks about a GPU. A question that an old driver does not know is answered by no.
pub(crate) fn of(gpu: CUdevice) -> Result<ForNics, GpuError> {
    let ask = |which| device::attribute(gpu, which);
    let (domain, bus, slot) = (
        ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
    );
    let able = |which| ask(which).unwrap_or(0);
    Ok(ForNics {
        pci_address: format!("{domain:04x}:{bus:02x}:{slot:02x}.0"),
        rdma: able(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0,
        dma_buf: able(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0,
        writes_ordered_for: able(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
    })
}

/// The newest CUDA version of the driver's library, major and minor.
///
/// # Errors
/// [`GpuError::Driver`] when there is no driver.
pub fn driver_version() -> Result<(u32, u32), GpuError> {
    device::driver_version()
}

/// The version of the run-time compiler, major and minor.
///
/// # Errors
/// [`GpuError::Driver`] when NVRTC cannot be loaded.
pub fn nvrtc_version() -> Result<(u32, u32), GpuError> {
    // Loads it from where the loader does not look.
    calls::has_nvrtc();
    nvrtc::version()
}
