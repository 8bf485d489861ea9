//! How a lane lets others run.
//!
//! It holds nothing that needs dropping while it is suspended: it may be dropped there.

use super::abi::Lane;

/// Leaves the lane until the scheduler resumes it.
///
/// # Safety
/// `lane` is the running lane; the caller holds no reference into its warp or block and nothing to drop.
pub(crate) unsafe fn suspend(lane: *mut Lane) {
    // SAFETY: the yielder was stored by the coroutine that is running, and lives on its stack.
    unsafe { (*(*lane).yielder).suspend(()) };
}

/// Moves the running lane from ready to polling and suspends it.
///
/// # Safety
/// As for [`suspend`].
pub(crate) unsafe fn yield_now(lane: *mut Lane) {
    // SAFETY: the lane is running, so its warp is alive and used by no other thread; the reference ends before the switch.
    unsafe {
        let bit = 1 << (*lane).lane;
        let warp = &mut *(*lane).warp;
        warp.ready &= !bit;
        warp.polling |= bit;
        suspend(lane);
    }
}
