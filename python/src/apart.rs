//! Calls of the runtime from Python.

use gpuvm::OthersContext;
use pyo3::prelude::*;

/// Calls of the runtime: other Python threads go on meanwhile.
pub trait Apart {
    /// Calls `act`, after which the thread's CUDA context is what others made it.
    fn apart<T: Send>(self, act: impl FnOnce() -> T + Send) -> T;
}

impl Apart for Python<'_> {
    fn apart<T: Send>(self, act: impl FnOnce() -> T + Send) -> T {
        self.detach(|| {
            let _others = OthersContext::keep();
            act()
        })
    }
}
