//! The window: a range of this process's addresses, of which managed allocations get parts. Its protection says what the host may do without asking.
//!
//! Mostly the driver has the addresses, too, for memory of the GPU ([`reserve_on_gpu`]). Then what the host has there is shared memory, which this
//! library has a second time, its *twin*, for copies from and to the GPU. Else it is private memory, which is pinned for the GPU.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use gpuvm_ptx::GRANULE_BYTES;

use crate::driver::{SUCCESS, call};

/// Bytes of addresses, or less where a process gets no more.
const BYTES: [u64; 3] = [1 << 40, 256 << 30, 32 << 30];

static START: AtomicU64 = AtomicU64::new(0);
static END: AtomicU64 = AtomicU64::new(0);

/// The file of the host's memory, -1 where that is private; where its twin begins; and what the driver has reserved.
static FILE: AtomicI32 = AtomicI32::new(-1);
static TWIN: AtomicU64 = AtomicU64::new(0);
static ON_GPU: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The largest page that a table has, in bytes.
const LARGEST_PAGE: u64 = 2 << 20;

/// Threads that take memory for the host, and how much at a time.
const THREADS_MAX: u64 = 8;
const PIECE_BYTES: u64 = 64 << 20;
/// Such a part of what is left is not taken at once.
const SPARED: u64 = 10;

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
    begin(&window);
    Some(window)
}

fn begin(window: &Range<u64>) {
    // Release: who sees the start sees the end.
    END.store(window.end, Ordering::Relaxed);
    START.store(window.start, Ordering::Release);
}

/// Reserves it for memory of the GPU whose context is current, too. None where that cannot be.
pub fn reserve_on_gpu() -> Option<Range<u64>> {
    // SAFETY: a new file in memory, which this library keeps.
    let file = unsafe { libc::memfd_create(c"gpuvm managed memory".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let window = BYTES.into_iter().find_map(|bytes| reserve_both(file, bytes));
    match &window {
        Some(window) => begin(window),
        // SAFETY: nothing of it is mapped.
        None => drop(unsafe { libc::close(file) }),
    }
    window
}

fn reserve_both(file: i32, bytes: u64) -> Option<Range<u64>> {
    // A granule more on both sides, so that other memory is the largest page away.
    let whole = bytes + 2 * GRANULE_BYTES;
    let mut base = 0u64;
    // SAFETY: an out-value.
    let reserved = unsafe {
        call!(cuMemAddressReserve(
            &raw mut base => *mut u64, whole as usize => usize, GRANULE_BYTES as usize => usize, 0 => u64, 0 => u64))
    };
    if reserved != SUCCESS {
        return None;
    }
    let window = base + GRANULE_BYTES..base + GRANULE_BYTES + bytes;
    let free = || {
        // SAFETY: what was reserved above, where nothing is.
        let _ = unsafe { call!(cuMemAddressFree(base => u64, whole as usize => usize)) };
    };
    // A file that is too long for the process ends it.
    let mut most = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: an out-value, and a file of ours.
    let is_long = unsafe {
        libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut most) == 0
            && most.rlim_cur >= bytes
            && libc::ftruncate64(file, bytes as i64) == 0
    };
    if !is_long {
        free();
        return None;
    }
    let twin = map_twin(file, bytes);
    let own = twin.and_then(|_| map(file, window.start, bytes, libc::PROT_NONE, libc::MAP_FIXED));
    match (twin, own) {
        (Some(twin), Some(_)) => {
            FILE.store(file, Ordering::Relaxed);
            TWIN.store(twin, Ordering::Relaxed);
            ON_GPU[0].store(base, Ordering::Relaxed);
            ON_GPU[1].store(whole, Ordering::Relaxed);
            Some(window)
        }
        (twin, _) => {
            if let Some(twin) = twin {
                // SAFETY: it was mapped above, and nobody knows it.
                unsafe { libc::munmap(twin as *mut c_void, bytes as usize) };
            }
            free();
            None
        }
    }
}

/// Maps it where large pages can be.
fn map_twin(file: i32, bytes: u64) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let whole = (bytes + LARGEST_PAGE) as usize;
    // SAFETY: a new mapping, of which nothing can be accessed.
    let found = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
    if found == libc::MAP_FAILED {
        return None;
    }
    let at = (found as u64).next_multiple_of(LARGEST_PAGE);
    map(file, at, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED)
}

/// Maps the file at an address, and gives where it is.
fn map(file: i32, at: u64, bytes: u64, rights: i32, flags: i32) -> Option<u64> {
    let flags = flags | libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping; where it is fixed the addresses are reserved for it.
    let found = unsafe { libc::mmap(at as *mut c_void, bytes as usize, rights, flags, file, 0) };
    // Children have none of it.
    // SAFETY: advice on that mapping.
    (found != libc::MAP_FAILED && unsafe { libc::madvise(found, bytes as usize, libc::MADV_DONTFORK) } == 0)
        .then_some(found as u64)
}

/// Where this library has the host's memory of an address, whatever its protection is.
pub fn twin_of(addr: u64) -> u64 {
    addr - START.load(Ordering::Relaxed) + TWIN.load(Ordering::Relaxed)
}

/// The driver gives the addresses back, where no memory of the GPU is any more. The host's memory stays, and may be read and written nowhere.
/// False where others have taken the addresses meanwhile.
pub fn leave_gpu() -> bool {
    let [base, whole] = [&ON_GPU[0], &ON_GPU[1]].map(|number| number.swap(0, Ordering::Relaxed));
    if whole == 0 {
        return true;
    }
    let file = FILE.load(Ordering::Relaxed);
    let (start, end) = (START.load(Ordering::Relaxed), END.load(Ordering::Relaxed));
    // SAFETY: what was reserved; no memory of the GPU is there. The driver may unmap what the host has there.
    let freed = unsafe { call!(cuMemAddressFree(base => u64, whole as usize => usize)) };
    // SAFETY: the window's addresses, as they are mapped or were.
    unsafe { libc::munmap(start as *mut c_void, (end - start) as usize) };
    freed == SUCCESS && map(file, start, end - start, libc::PROT_NONE, libc::MAP_FIXED_NOREPLACE) == Some(start)
}

/// Gives it up with all that is there: another one may be reserved then. No memory of the GPU is there any more, and no allocation.
pub fn end() {
    let window = all();
    START.store(0, Ordering::Release);
    let [base, whole] = [&ON_GPU[0], &ON_GPU[1]].map(|number| number.swap(0, Ordering::Relaxed));
    let (file, twin) = (FILE.swap(-1, Ordering::Relaxed), TWIN.swap(0, Ordering::Relaxed));
    let bytes = (window.end - window.start) as usize;
    // SAFETY: what was reserved, and mapped for this library. Where the driver has unmapped its addresses others may have them by now: only those
    // that it does not know are unmapped here.
    unsafe {
        match whole {
            0 => drop(libc::munmap(window.start as *mut c_void, bytes)),
            whole => drop(call!(cuMemAddressFree(base => u64, whole as usize => usize))),
        }
        if file >= 0 {
            libc::munmap(twin as *mut c_void, bytes);
            libc::close(file);
        }
    }
}

/// All that managed memory may be.
pub fn all() -> Range<u64> {
    START.load(Ordering::Acquire)..END.load(Ordering::Relaxed)
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

/// Whether there is memory for so many bytes: the machine's, and what limits of control groups leave. The error says what is missing.
pub fn has_memory(bytes: u64) -> Result<(), String> {
    match gpuvm_files::available_memory() {
        Some((left, limit)) if left - left / SPARED < bytes => Err(match limit {
            Some(limit) => format!("{limit} leaves {left} of {bytes} bytes of the host's memory: raise it"),
            None => format!("the machine has {left} of {bytes} bytes of the host's memory left"),
        }),
        _ => Ok(()),
    }
}

/// Readies pages of a window that the GPU has, too: zeros, which the host asks for first. Whether there is memory for all of them, which may be
/// pinned then; else it comes as the host uses it.
pub fn fill_twin(pages: &Range<u64>) -> bool {
    let bytes = (pages.end - pages.start) as usize;
    for start in [pages.start, twin_of(pages.start)] {
        // SAFETY: advice on pages of the window.
        unsafe { libc::madvise(start as *mut c_void, bytes, libc::MADV_HUGEPAGE) };
    }
    if has_memory(pages.end - pages.start).is_err() {
        return false;
    }
    // Zeros take their time, and several threads have more of it. Pinning would do it with one.
    let twin = twin_of(pages.start)..twin_of(pages.end);
    let pieces = (twin.end - twin.start).div_ceil(PIECE_BYTES);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let (next, threads) = (AtomicU64::new(twin.start), threads.min(THREADS_MAX).min(pieces));
    let work = || {
        loop {
            // Relaxed: each piece is taken once, and the threads are waited for.
            let start = next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
            if start >= twin.end {
                return;
            }
            populate(start..(start + PIECE_BYTES).min(twin.end));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Where there is no thread this one does it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    true
}

/// Takes memory for the host, in large pages if it can be had so.
fn populate(part: Range<u64>) {
    /// `MADV_POPULATE_WRITE` and `MADV_COLLAPSE`.
    const ADVICE: [i32; 2] = [23, 25];
    let (start, bytes) = (part.start as *mut c_void, (part.end - part.start) as usize);
    // A page that has nothing of a file is not joined.
    for chunk in part.step_by(LARGEST_PAGE as usize) {
        // SAFETY: memory of the window's twin that nobody has yet: it is zero, and stays so.
        unsafe { (chunk as *mut u8).write_volatile(0) };
    }
    // SAFETY: advice on that memory. Where it is refused pages come when they are used.
    unsafe {
        if libc::madvise(start, bytes, ADVICE[1]) != 0 {
            libc::madvise(start, bytes, ADVICE[0]);
        }
    }
}

/// Gives the memory of pages back, and keeps their addresses.
pub fn empty(pages: Range<u64>) {
    let (start, bytes) = (pages.start as *mut _, (pages.end - pages.start) as usize);
    protect(pages.clone(), Access::None);
    let file = FILE.load(Ordering::Relaxed);
    // SAFETY: as in `protect`; the allocation was freed.
    unsafe {
        libc::madvise(start, bytes, libc::MADV_DONTNEED);
        if file >= 0 {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let at = pages.start - START.load(Ordering::Relaxed);
            libc::fallocate64(file, mode, at as i64, bytes as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_refused() {
        assert_eq!(has_memory(1), Ok(()));
        let missing = has_memory(1 << 62).unwrap_err();
        assert!(
            missing.contains("of 4611686018427387904 bytes of the host's memory"),
            "{missing}"
        );
    }

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
