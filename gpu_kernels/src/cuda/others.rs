//! The CUDA context that others made a thread's current one.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUcontext;

use super::calls::cu;
use super::driver::outcome;

/// Before a GPU was opened nothing asks the driver, which may not be there.
static OPENED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What was current when this thread opened a GPU.
    static BEFORE: Cell<Option<CUcontext>> = const { Cell::new(None) };
}

/// Says that this thread opens a GPU.
pub(crate) fn opens() {
    // Relaxed: who has a GPU to call has it from who opened it.
    OPENED.store(true, Ordering::Relaxed);
    BEFORE.set(BEFORE.get().or_else(current));
}

/// What was the calling thread's current context: it is so again when this is dropped, on the same thread. Calls of this crate leave the GPU's
/// primary context current, and other users of CUDA, such as PyTorch, take the GPU of the current context for the one that was chosen.
#[must_use]
pub struct OthersContext(Option<CUcontext>);

impl OthersContext {
    /// Notes it.
    pub fn keep() -> Self {
        Self(OPENED.load(Ordering::Relaxed).then(current).flatten())
    }
}

impl Drop for OthersContext {
    fn drop(&mut self) {
        let before = BEFORE.take();
        if let Some(was) = self.0.or(before)
            && current() != Some(was)
        {
            // SAFETY: it was current. One that was destroyed meanwhile is an error that nothing needs: then none is available.
            let _ = outcome(unsafe { cu::cuCtxSetCurrent(was) });
        }
    }
}

/// The calling thread's current context, which may be null.
fn current() -> Option<CUcontext> {
    let mut context = std::ptr::null_mut();
    // SAFETY: an out-value of the right type.
    let asked = outcome(unsafe { cu::cuCtxGetCurrent(&raw mut context) });
    asked.is_ok().then_some(context)
}
