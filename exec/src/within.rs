//! Whether a thread is within a function of the program's that the driver runs on the host, in the order of a stream.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::resident::Marks;

/// One that is on a stream.
pub struct Call {
    /// What was put on streams before it.
    pub before: Marks,
}

thread_local! {
    /// The one that this thread runs.
    static RUNNING: Cell<*const Call> = const { Cell::new(std::ptr::null()) };
}

/// Those that have not ended.
static PENDING: AtomicU32 = AtomicU32::new(0);

/// One more is put on a stream.
pub fn begin() {
    // Relaxed: who puts it there has the state's lock before, and behind.
    PENDING.fetch_add(1, Ordering::Relaxed);
}

/// One has ended, or was not put there.
pub fn end() {
    PENDING.fetch_sub(1, Ordering::Release);
}

/// Whether one has not ended. Who waits for the GPU then must not hold the state's lock.
pub fn are_pending() -> bool {
    // Acquire: pairs with the release in `end`.
    PENDING.load(Ordering::Acquire) != 0
}

/// The one that this thread runs; null for none.
pub fn running() -> *const Call {
    RUNNING.get()
}

/// This thread runs it in `act`.
pub fn within(call: &Call, act: impl FnOnce()) {
    RUNNING.set(call);
    act();
    RUNNING.set(std::ptr::null());
}
