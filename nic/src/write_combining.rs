//! Order of stores to registers that are mapped write-combining.

use std::sync::atomic::{Ordering, fence};

/// Orders requests and the doorbell record before the store of a doorbell register that follows. The register may be mapped
/// write-combining, which a release alone does not order.
#[inline]
pub(crate) fn order_before_register() {
    fence(Ordering::Release);
    flush_write_combining();
}

/// Sends what this processor stored to write-combining memory on its way, and lets no later store pass it.
#[inline]
pub(crate) fn flush_write_combining() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier, which touches no memory.
    unsafe {
        std::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    // SeqCst: the strongest fence there is.
    fence(Ordering::SeqCst);
}
