//! Which GPUs of this machine reach which others' memory.

use std::ffi::c_int;

use cudarc::driver::sys::{CUdevice, CUdevice_P2PAttribute as Attribute};

use super::calls::cu;
use super::device;
use super::driver::check;
use crate::error::GpuError;

/// What the driver tells of one GPU's way to another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// CUDA's number of the GPU that loads and stores.
    pub from: u32,
    /// CUDA's number of the GPU whose memory it is.
    pub to: u32,
    /// Whether kernels of the first may load and store there.
    pub access: bool,
    /// Whether atomic operations work there: over NVLink they do, over PCIe they do not. `None` where there is no access, or the driver
    /// does not tell.
    pub native_atomics: Option<bool>,
    /// The driver's rank of the link among those of this machine, 0 for the fastest. `None` as above.
    pub performance_rank: Option<u32>,
}

/// Each pair of two GPUs that this process sees, in both directions; none where there are fewer than two.
///
/// # Errors
/// [`GpuError::Driver`] when there is no driver or it does not answer.
pub fn peers() -> Result<Vec<PeerInfo>, GpuError> {
    let handles = (0..device::count()?).map(device::handle);
    let handles: Vec<CUdevice> = handles.collect::<Result<_, _>>()?;
    let numbered = || (0u32..).zip(&handles);
    let pairs = numbered().flat_map(|from| numbered().map(move |to| (from, to)));
    pairs
        .filter(|(from, to)| from.0 != to.0)
        .map(|((from, source), (to, target))| ask(from, *source, to, *target))
        .collect()
}

fn ask(from: u32, source: CUdevice, to: u32, target: CUdevice) -> Result<PeerInfo, GpuError> {
    let mut can: c_int = 0;
    // SAFETY: it fills one integer; both handles are the driver's own.
    check(format_args!("ask for a path from GPU {from} to GPU {to}"), unsafe {
        cu::cuDeviceCanAccessPeer(&raw mut can, source, target)
    })?;
    let tell = |attribute: Attribute| {
        let mut value: c_int = 0;
        // SAFETY: as above.
        let asked = check(format_args!("ask for {attribute:?}"), unsafe {
            cu::cuDeviceGetP2PAttribute(&raw mut value, attribute as u32, source, target)
        });
        // Without access the driver's values mean nothing.
        asked.ok().filter(|()| can != 0).map(|()| value.max(0) as u32)
    };
    Ok(PeerInfo {
        from,
        to,
        access: can != 0,
        native_atomics: tell(Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED).map(|value| value != 0),
        performance_rank: tell(Attribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK),
    })
}
