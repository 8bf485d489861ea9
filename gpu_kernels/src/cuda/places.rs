//! All memory that kernels of one GPU reach, and the host's way to it.

use std::sync::Arc;

use super::copy::HostCopies;
use super::core::{Core, Raw};
use super::host::HostPool;
use super::memory::DevicePool;
use super::pins::Pins;
use crate::error::GpuError;

/// Copies hold off frees for this many bytes at a time.
const WINDOW_BYTES: usize = 256 << 20;

/// The books of memory.
pub(crate) struct Places {
    core: Arc<Core>,
    copier: Arc<HostCopies>,
    pub(crate) device: Arc<DevicePool>,
    pub(crate) host: Arc<HostPool>,
    pub(crate) pins: Arc<Pins>,
}

/// Where a range lies.
pub(crate) struct Place {
    /// The host's address of it; none for device memory.
    pub(crate) host: Option<Raw<u8>>,
    /// Whether it must not be written.
    pub(crate) read_only: bool,
}

impl Places {
    /// Nothing allocated.
    pub(crate) fn new(core: &Arc<Core>) -> Result<Arc<Self>, GpuError> {
        let copier = HostCopies::new(Arc::clone(core))?;
        let host = HostPool::new(Arc::clone(core));
        Ok(Arc::new(Self {
            core: Arc::clone(core),
            device: DevicePool::new(Arc::clone(core), Arc::clone(&copier)),
            pins: Pins::new(Arc::clone(core), Arc::clone(&host)),
            host,
            copier,
        }))
    }

    /// What copies.
    pub(crate) fn copier(&self) -> &Arc<HostCopies> {
        &self.copier
    }

    /// Where the range lies, if one live allocation covers it.
    pub(crate) fn find(&self, addr: u64, bytes: u64) -> Option<Place> {
        let place = |host, read_only| Some(Place { host, read_only });
        if self.device.covers(addr, bytes) {
            return place(None, false);
        }
        if let Some(host) = self.host.host_address(addr, bytes) {
            return place(Some(host), false);
        }
        let (host, read_only) = self.pins.host_address(addr, bytes)?;
        place(Some(host), read_only)
    }

    fn must_find(&self, addr: u64, bytes: usize) -> Result<Place, GpuError> {
        let bytes = bytes as u64;
        self.find(addr, bytes).ok_or(GpuError::BadAddress { addr, bytes })
    }

    /// See [`Gpu::zero`](crate::Gpu::zero).
    pub(crate) fn zero(&self, addr: u64, bytes: u64) -> Result<(), GpuError> {
        self.core.enter()?;
        match self.must_find(addr, bytes as usize)? {
            Place { host: None, .. } => self.copier.zero(addr, bytes),
            Place { host: Some(_), .. } => Err(GpuError::BadAddress { addr, bytes }),
        }
    }

    /// See [`Gpu::write`](crate::Gpu::write).
    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.core.enter()?;
        // Before the first byte moves; each window is looked up again under the guard that keeps it.
        self.must_find(addr, bytes.len())?;
        for (n, window) in bytes.chunks(WINDOW_BYTES).enumerate() {
            let addr = addr + (n * WINDOW_BYTES) as u64;
            let _copying = self.core.copying();
            match self.must_find(addr, window.len())? {
                Place { host: None, .. } => self.copier.to_device(addr, window)?,
                Place { read_only: true, .. } => {
                    return Err(GpuError::Driver {
                        what: format!("write {} bytes at {addr:#x}", bytes.len()),
                        name: "read-only".into(),
                        text: "the memory was registered for reading only".into(),
                        advice: "; register it for writing".into(),
                    });
                }
                // SAFETY: a live allocation covers the range and the guard keeps it; kernels that race with this see torn
                // bytes, and no Rust reference to memory that kernels may write exists.
                Place { host: Some(to), .. } => unsafe { std::ptr::copy(window.as_ptr(), to.0, window.len()) },
            }
        }
        Ok(())
    }

    /// See [`Gpu::read`](crate::Gpu::read).
    pub(crate) fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.core.enter()?;
        self.must_find(addr, out.len())?;
        for (n, window) in out.chunks_mut(WINDOW_BYTES).enumerate() {
            let addr = addr + (n * WINDOW_BYTES) as u64;
            let _copying = self.core.copying();
            match self.must_find(addr, window.len())?.host {
                None => self.copier.to_host(addr, window)?,
                // SAFETY: as in `write`.
                Some(from) => unsafe { std::ptr::copy(from.0.cast_const(), window.as_mut_ptr(), window.len()) },
            }
        }
        Ok(())
    }
}
