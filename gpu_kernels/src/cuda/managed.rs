//! Managed memory, and advice on where it lies.

use cudarc::driver::sys::{CUmem_advise_enum as Advise, CUmemLocation, CUmemLocationType_enum as Place};

use super::calls::cu;
use super::core::Core;
use super::driver::Called;
use crate::error::GpuError;

/// `CU_MEM_ATTACH_GLOBAL`.
const ATTACH_GLOBAL: u32 = 1;
/// The host, in calls that take an ordinal.
const HOST: i32 = -1;

/// A side of managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The GPU's memory.
    Gpu,
    /// The host's.
    Host,
}

/// Advice on managed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Mostly read: copies on both sides.
    ReadMostly,
    /// Where it should lie.
    PreferredLocation(Side),
    /// Who should have it mapped wherever it lies.
    AccessedBy(Side),
}

/// Where a side is, where [`Side::Gpu`] is the GPU `ordinal`.
pub(crate) fn location(ordinal: u32, side: Side) -> CUmemLocation {
    let (type_, id) = match side {
        Side::Gpu => (Place::CU_MEM_LOCATION_TYPE_DEVICE, ordinal as i32),
        Side::Host => (Place::CU_MEM_LOCATION_TYPE_HOST, 0),
    };
    CUmemLocation { type_, id }
}

/// A side for calls that take an ordinal.
pub(crate) fn number(ordinal: u32, side: Side) -> i32 {
    match side {
        Side::Gpu => ordinal as i32,
        Side::Host => HOST,
    }
}

/// Allocates `bytes` bytes: their address, for the host and for kernels. The context is current.
///
/// # Errors
/// The driver's error.
pub(crate) fn allocate(core: &Core, bytes: u64) -> Result<u64, GpuError> {
    let mut addr = 0;
    // SAFETY: an out-value; the context is current.
    let called = unsafe { cu::cuMemAllocManaged(&raw mut addr, bytes as usize, ATTACH_GLOBAL) };
    core.check(format_args!("allocate {bytes} bytes of managed memory"), called)?;
    Ok(addr)
}

/// Advises CUDA on `bytes` bytes of managed memory from `addr` on, where [`Side::Gpu`] is the GPU `ordinal`. The context of `core` is current.
///
/// # Errors
/// The driver's error, also for memory that is none.
pub(crate) fn advise(core: &Core, addr: u64, bytes: u64, advice: Advice, ordinal: u32) -> Result<(), GpuError> {
    let (code, side) = match advice {
        Advice::ReadMostly => (Advise::CU_MEM_ADVISE_SET_READ_MOSTLY, Side::Gpu),
        Advice::PreferredLocation(side) => (Advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, side),
        Advice::AccessedBy(side) => (Advise::CU_MEM_ADVISE_SET_ACCESSED_BY, side),
    };
    let code = code as u32;
    // SAFETY: the driver looks at its own books only, and answers that the memory is none of it.
    let called: Called = unsafe {
        cu::cuMemAdvise_v2(addr, bytes as usize, code, location(ordinal, side))
            .or_else(|_| cu::cuMemAdvise(addr, bytes as usize, code, number(ordinal, side)))
    };
    core.check(
        format_args!("advise {advice:?} of GPU {ordinal} on {bytes} bytes of managed memory at {addr:#x}"),
        called,
    )
}
