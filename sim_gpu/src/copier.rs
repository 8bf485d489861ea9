//! Copies by this process, with the order that a copy engine keeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use super::core::Core;
use gpuvm_gpu::GpuError;
use gpuvm_gpu::{Copier, CopySpan};

/// Copies where it is called: a submit has arrived when it returns.
pub(super) struct SimCopier {
    core: Arc<Core>,
    completed: AtomicU64,
}

impl SimCopier {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            completed: AtomicU64::new(0),
        }
    }
}

impl Copier for SimCopier {
    unsafe fn submit(&self, data: &[CopySpan], then: &[CopySpan]) -> Result<(), GpuError> {
        if self.core.is_shut_down() {
            return Err(GpuError::ShutDown);
        }
        // SAFETY: the caller's promise; device memory is memory of this process.
        data.iter().for_each(|span| unsafe { copy(span) });
        // Release: who reads what `then` brings, with acquire, reads the data.
        fence(Ordering::Release);
        // SAFETY: as above.
        then.iter().for_each(|span| unsafe { copy(span) });
        // Release: pairs with the acquire in `completed`.
        self.completed.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn completed(&self) -> Result<u64, GpuError> {
        // Acquire: who is told of a submit sees what it brought.
        Ok(self.completed.load(Ordering::Acquire))
    }
}

/// Copies front to back, in words where both sides are aligned alike: lanes look at the bytes meanwhile.
///
/// # Safety
/// As for [`Copier::submit`].
unsafe fn copy(span: &CopySpan) {
    let CopySpan { to, from, bytes } = *span;
    let mut done = 0;
    while done < bytes {
        let (target, source) = (to + done, from + done);
        let wide = (target | source).is_multiple_of(8) && bytes - done >= 8;
        // SAFETY: inside the span; aligned, for the wide ones. Release: words of a completion arrive in ascending order.
        unsafe {
            if wide {
                let word = AtomicU64::from_ptr(source as *mut u64).load(Ordering::Relaxed);
                AtomicU64::from_ptr(target as *mut u64).store(word, Ordering::Release);
            } else {
                let byte = AtomicU8::from_ptr(source as *mut u8).load(Ordering::Relaxed);
                AtomicU8::from_ptr(target as *mut u8).store(byte, Ordering::Release);
            }
        }
        done += if wide { 8 } else { 1 };
    }
}
