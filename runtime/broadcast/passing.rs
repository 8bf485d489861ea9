//! Passing on what atomics and system-scope stores have changed at a page's owner.

use std::sync::atomic::Ordering;

use gpuvm_layouts::BROADCAST_LINE_SHIFT;

use super::BroadcastInner;
use crate::error::Result;

impl BroadcastInner {
    /// Lines of a view.
    pub(super) fn lines(&self) -> u64 {
        self.views.stride >> BROADCAST_LINE_SHIFT
    }

    /// Has all copies equal again, if lanes have changed an owner's copy alone. No launch uses the array.
    pub(super) fn pass_on(&self) -> Result<()> {
        if self.on.len() == 1 {
            // The owner's copy is the only one.
            return Ok(());
        }
        let mut first = Ok(());
        for (view, on) in self.on.iter().enumerate() {
            let Some(marked) = on.marked.word(0) else { continue };
            // Relaxed: the launches that set it have ended, and whoever learnt of that is ordered behind them.
            if marked.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let passed = on.gpu.pass_on(|vm| self.desc(view, vm), self.lines(), &self.name);
            if passed.is_ok() {
                // Lines that are marked still after an error are passed on by the next.
                marked.store(0, Ordering::Relaxed);
            }
            first = first.and(passed);
        }
        first
    }
}
