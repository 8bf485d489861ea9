//! Zeroed, page-aligned memory at a fixed address.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of [`Pages`] in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Bytes of a page of this machine's memory: 4 KiB, and 16 or 64 KiB on some Arm and POWER systems. Drivers map and export
/// whole ones.
#[cfg(target_os = "linux")]
pub fn host_page_bytes() -> u64 {
    // SAFETY: the call takes a number and reads nothing else.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).map_or(PAGE_BYTES as u64, |bytes| bytes.max(PAGE_BYTES as u64))
}

/// Zeroed memory, page-aligned, freed on drop. It hands out its address only: all access goes through raw pointers,
/// since others (a NIC, GPU threads) share it.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: `Pages` owns its memory and offers no access to it but its address.
unsafe impl Send for Pages {}
// SAFETY: as above; `&Pages` gives the address only.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates at least `bytes` bytes, rounded up to whole pages (at least one).
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.max(1).div_ceil(PAGE_BYTES) * PAGE_BYTES;
        let layout = Layout::from_size_align(bytes, PAGE_BYTES).expect("page count within the address space");
        // SAFETY: the layout's size is at least one page, hence not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout));
        Pages { base, layout }
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// Length in bytes, a multiple of [`PAGE_BYTES`].
    pub fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    /// Pointer to the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this layout and is freed once, here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}
