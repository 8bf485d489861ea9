//! Whether a thread is within a function of the program's that the driver runs on the host, in the order of a stream.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    /// Whether this thread is, and whether it has asked for managed memory then.
    static RUNNING: Cell<(bool, bool)> = const { Cell::new((false, false)) };
}

/// Graphs have some.
static ARE_IN_GRAPHS: AtomicBool = AtomicBool::new(false);

/// A graph gets one.
pub fn note_node() {
    // Relaxed: who launches the graph comes behind this by the program's own means.
    ARE_IN_GRAPHS.store(true, Ordering::Relaxed);
}

/// Whether graphs have some.
pub fn are_in_graphs() -> bool {
    ARE_IN_GRAPHS.load(Ordering::Relaxed)
}

/// Whether this thread runs one.
pub fn is_running() -> bool {
    RUNNING.get().0
}

/// It has touched managed memory that was closed.
pub fn note_fault() {
    RUNNING.set((RUNNING.get().0, true));
}

/// This thread runs it in `act`. Whether it has touched managed memory that was closed.
pub fn within(act: impl FnOnce()) -> bool {
    RUNNING.set((true, false));
    act();
    RUNNING.replace((false, false)).1
}
