//! Stacks for lanes: mappings of 32 stacks of a warp in one piece, each with a guard page.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use corosensei::stack::{Stack, StackPointer};

use super::abi::{COLOUR_BYTES, LANE_OFFSET, Lane, STACK_BYTES};
use gpuvm_gpu::GpuError;
use gpuvm_gpu::back_end::host_page_bytes;

const LANES: usize = 32;
/// Linux 6.13's guard regions, which cost no mapping of their own.
const MADV_GUARD_INSTALL: i32 = 102;

/// Whether the system says no to advice that it does not know. QEMU's user emulation takes any, and does nothing.
fn refuses_unknown_advice(page: usize) -> bool {
    const NO_ADVICE: i32 = 9_999;
    // SAFETY: nothing is done to the page, which is our own.
    unsafe { libc::madvise(page as *mut libc::c_void, 1, NO_ADVICE) != 0 }
}

/// The stacks of one warp.
pub(crate) struct WarpStacks {
    base: usize,
    slot: u32,
}

impl WarpStacks {
    /// New stacks, with the next number of `slots`.
    pub(crate) fn map(slots: &AtomicU32) -> Result<Self, GpuError> {
        let fail = |what: &str| {
            let cause = format!(
                "{}; raise vm.max_map_count or use fewer workers",
                std::io::Error::last_os_error()
            );
            GpuError::io(what, None, cause)
        };
        let (bytes, all) = (LANES * STACK_BYTES, (LANES + 1) * STACK_BYTES);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice touches no memory in use.
        let p = unsafe { libc::mmap(ptr::null_mut(), all, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            return Err(fail("map stacks for lanes"));
        }
        let start = p as usize;
        let base = start.next_multiple_of(STACK_BYTES);
        for (from, to) in [(start, base), (base + bytes, start + all)] {
            if to > from {
                // SAFETY: the unaligned ends of the mapping just made; nothing uses them.
                unsafe { libc::munmap(from as *mut libc::c_void, to - from) };
            }
        }
        // Relaxed: only the number's uniqueness matters.
        let stacks = Self {
            base,
            slot: slots.fetch_add(1, Ordering::Relaxed),
        };
        // SAFETY: advice on our own mapping. Huge pages would turn two touched pages of a stack into 2 MiB.
        unsafe { libc::madvise(base as *mut libc::c_void, bytes, libc::MADV_NOHUGEPAGE) };
        let (page, advised) = (host_page_bytes() as usize, refuses_unknown_advice(base));
        for lane in 0..LANES {
            let guard = (base + lane * STACK_BYTES) as *mut libc::c_void;
            // SAFETY: the lowest page of a stack of our own mapping, which nothing uses yet.
            let guarded = unsafe {
                (advised && libc::madvise(guard, page, MADV_GUARD_INSTALL) == 0)
                    || libc::mprotect(guard, page, libc::PROT_NONE) == 0
            };
            if !guarded {
                return Err(fail("protect the guard page of a lane's stack"));
            }
        }
        Ok(stacks)
    }

    /// The number of these stacks, unique among those of one GPU.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Where the lane's constants lie.
    pub(crate) fn lane(&self, lane: usize) -> *mut Lane {
        let stack = self.base + lane * STACK_BYTES;
        let colour = (stack / STACK_BYTES) % 32 * COLOUR_BYTES;
        (stack + LANE_OFFSET - colour) as *mut Lane
    }

    /// The lane's stack, below its constants.
    pub(crate) fn stack(&self, lane: usize) -> LaneStack {
        LaneStack {
            base: self.lane(lane) as usize,
            limit: self.base + lane * STACK_BYTES,
        }
    }
}

impl Drop for WarpStacks {
    fn drop(&mut self) {
        // SAFETY: our own mapping; blocks give their stacks back only after their coroutines were reset.
        unsafe { libc::munmap(self.base as *mut libc::c_void, LANES * STACK_BYTES) };
    }
}

/// One lane's stack; borrowed from its [`WarpStacks`], which outlives the coroutine.
#[derive(Clone, Copy)]
pub(crate) struct LaneStack {
    base: usize,
    limit: usize,
}

// SAFETY: [limit, base) is mapped, its lowest page is a guard, it is larger than MIN_STACK_SIZE, and WarpStacks keeps it until the block
// that runs on it is gone.
unsafe impl Stack for LaneStack {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.base).unwrap_or(StackPointer::MIN)
    }

    fn limit(&self) -> StackPointer {
        StackPointer::new(self.limit).unwrap_or(StackPointer::MIN)
    }
}
