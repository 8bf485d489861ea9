//! Memory that a GPU gave out, as values that give it back.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Bytes of a page of this machine's memory: 4 KiB, 64 KiB with some kernels for AArch64. It may be called in a handler of signals.
pub fn host_page_bytes() -> u64 {
    // SAFETY: the call takes a number and reads nothing else.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).map_or(4096, |bytes| bytes.max(4096))
}

/// What gives memory back when its owner is dropped.
pub trait Release: Send + Sync {
    /// Gives the allocation at `addr` back.
    fn release(&self, addr: u64);
}

/// Device memory, given back when dropped. Kernels that use it must have ended by then.
pub struct DeviceMemory {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) owner: Arc<dyn Release>,
}

impl DeviceMemory {
    /// `bytes` bytes of device memory at `addr`, which `owner` takes back when the value is dropped: for back ends.
    pub fn new(addr: u64, bytes: u64, owner: Arc<dyn Release>) -> Self {
        Self { addr, bytes, owner }
    }

    /// First device address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Size in bytes as asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.owner.release(self.addr);
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceMemory({:#x}, {} bytes)", self.addr, self.bytes)
    }
}

/// Memory of this process that kernels reach in place, until this is dropped. Kernels that use it must have ended by then.
pub struct HostRegistration {
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) bytes: u64,
    pub(crate) owner: Option<Arc<dyn Release>>,
}

impl HostRegistration {
    /// `bytes` bytes of this process that kernels reach at their own address without being registered: for back ends.
    pub fn unowned(host: *mut u8, bytes: u64) -> Self {
        Self {
            host: host as u64,
            device: host as u64,
            bytes,
            owner: None,
        }
    }

    /// First byte for kernels.
    pub fn device_addr(&self) -> u64 {
        self.device
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        if let Some(owner) = &self.owner {
            owner.release(self.host);
        }
    }
}

impl std::fmt::Debug for HostRegistration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostRegistration({:#x}, {} bytes)", self.device, self.bytes)
    }
}

/// Host memory that kernels can reach, given back when dropped. Kernels that use it must have ended by then.
pub struct HostMemory {
    pub(crate) host: *mut u8,
    pub(crate) device: u64,
    pub(crate) bytes: u64,
    pub(crate) owner: Arc<dyn Release>,
}

// SAFETY: HostMemory is the only owner of the mapping; it hands out a raw pointer only, and who dereferences that keeps Rust's rules.
unsafe impl Send for HostMemory {}
// SAFETY: as for Send; no method of a shared HostMemory touches the bytes.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// `bytes` bytes at `host` for the host and at `device` for kernels, which `owner` takes back by their device address when
    /// the value is dropped: for back ends.
    ///
    /// # Safety
    /// The memory is page aligned, zeroed, nothing else's, and stays mapped and writable until `owner` is told to release it.
    pub unsafe fn new(host: *mut u8, device: u64, bytes: u64, owner: Arc<dyn Release>) -> Self {
        Self {
            host,
            device,
            bytes,
            owner,
        }
    }

    /// First byte for the host. Valid until this value is dropped; kernels may change the bytes at any time.
    pub fn host_ptr(&self) -> *mut u8 {
        self.host
    }

    /// First byte for kernels.
    pub fn device_addr(&self) -> u64 {
        self.device
    }

    /// Size in bytes as asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl HostMemory {
    /// The 32-bit word at `index`, which host and kernels may share; none past the end.
    pub fn word(&self, index: usize) -> Option<&AtomicU32> {
        let end = (index as u64 + 1).checked_mul(4)?;
        // SAFETY: the mapping is page aligned, holds the word whole, and lives as long as `self`. Kernels change it by
        // word-sized accesses, as an atomic allows.
        (end <= self.bytes).then(|| unsafe { AtomicU32::from_ptr(self.host.cast::<u32>().add(index)) })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.owner.release(self.device);
    }
}

impl std::fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostMemory({:#x}, {} bytes)", self.device, self.bytes)
    }
}
