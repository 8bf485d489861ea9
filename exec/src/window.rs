//! The window: a range of this process's addresses, of which managed allocations get parts. It is private memory, which is pinned for the GPU
//! and whose protection says what the host may do without asking.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use gpuvm_ptx::GRANULE_BYTES;

/// Bytes of addresses, or less where a process gets no more.
const BYTES: [u64; 3] = [1 << 40, 256 << 30, 32 << 30];

static START: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);

/// The largest page that a table has, in bytes.
const LARGEST_PAGE: u64 = 2 << 20;

/// What the host may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    None,
    Read,
    Write,
}

/// Reserves it, once; none where no addresses are to be had.
pub fn reserve() -> Option<Range<u64>> {
    let reserve = |bytes: u64| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // One granule more to begin at a multiple, and another one, so that other memory is the largest page away.
        let whole = (bytes + 2 * GRANULE_BYTES) as usize;
        // SAFETY: a new mapping, of which nothing can be accessed.
        let found = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
        let start = (found as u64)
            .saturating_add(LARGEST_PAGE)
            .next_multiple_of(GRANULE_BYTES);
        (found != libc::MAP_FAILED).then_some(start..start + bytes)
    };
    let window = BYTES.into_iter().find_map(reserve)?;
    // Release: who sees the start sees the end.
    END.store(window.end, Ordering::Relaxed);
    START.store(window.start, Ordering::Release);
    Some(window)
}

/// Whether there is any.
pub fn is_there() -> bool {
    START.load(Ordering::Relaxed) != 0
}

/// Whether some bytes are, or may be, managed memory.
pub fn touches(addr: u64, bytes: u64) -> bool {
    let start = START.load(Ordering::Acquire);
    start != 0 && bytes != 0 && addr < END.load(Ordering::Relaxed) && addr.saturating_add(bytes) > start
}

/// Says what the host may do with whole pages of the window. False where the system refuses, which has too few maps then.
pub fn protect(pages: Range<u64>, access: Access) -> bool {
    let rights = match access {
        Access::None => libc::PROT_NONE,
        Access::Read => libc::PROT_READ,
        Access::Write => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: pages of the window, which this library has mapped, and which no Rust reference is to.
    unsafe { libc::mprotect(pages.start as *mut _, (pages.end - pages.start) as usize, rights) == 0 }
}

/// Readies pages of the window for an allocation: zeros. False where the system refuses.
pub fn fill(pages: Range<u64>) -> bool {
    let (start, bytes) = (pages.start as *mut _, (pages.end - pages.start) as usize);
    // SAFETY: as in `protect`. Advice: a process that forks does not copy what is pinned, and large pages are faster to protect.
    unsafe {
        libc::madvise(start, bytes, libc::MADV_DONTFORK);
        libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
    }
    protect(pages, Access::Write)
}

/// Gives the memory of pages back, and keeps their addresses.
pub fn empty(pages: Range<u64>) {
    let (start, bytes) = (pages.start as *mut _, (pages.end - pages.start) as usize);
    protect(pages, Access::None);
    // SAFETY: as in `protect`; the allocation was freed.
    unsafe { libc::madvise(start, bytes, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_what_was_written_and_forgets_what_is_freed() {
        let window = reserve().expect("addresses");
        assert!(window.start.is_multiple_of(GRANULE_BYTES) && window.end.is_multiple_of(GRANULE_BYTES));
        let pages = window.start..window.start + (2 << 20);
        assert!(fill(pages.clone()));
        let byte = pages.start as *mut u8;
        // SAFETY: it was readied for this, and nobody else knows it.
        unsafe { byte.write(7) };
        assert!(protect(pages.clone(), Access::Read));
        // SAFETY: as above.
        assert_eq!(unsafe { byte.read() }, 7);
        empty(pages.clone());
        assert!(fill(pages.clone()));
        // SAFETY: as above.
        assert_eq!(unsafe { byte.read() }, 0);
        assert!(touches(pages.start, 1) && touches(window.start - 1, 2));
        assert!(!touches(window.start - 1, 1) && !touches(window.end, 8) && !touches(pages.start, 0));
    }
}
