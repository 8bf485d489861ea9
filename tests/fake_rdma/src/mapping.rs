//! Mappings of dma-bufs.

/// A mapping of a dma-buf, made for a region.
pub struct Mapping {
    pub address: usize,
    pub bytes: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this library for this region alone, which the NIC does not touch any more.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.address), self.bytes) };
    }
}
