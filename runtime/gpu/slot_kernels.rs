//! The kernels of slot caches, which are compiled when there is one.

use std::sync::Arc;

use gpuvm_gpu::Source;

use super::{PagedGpu, scratch::SlotKernels, support};
use crate::error::{Doing, Result};

const SOURCE: &str = include_str!("../slot_cache.cu");

impl PagedGpu {
    /// The kernels of slot caches.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] where they do not compile.
    pub fn slot_kernels(&self) -> Result<Arc<SlotKernels>> {
        let mut kernels = self.scratch.slot_kernels.lock();
        if let Some(kernels) = &*kernels {
            return Ok(Arc::clone(kernels));
        }
        let names =
            ["plan", "claim", "survey", "pick", "fetch", "hold", "refresh"].map(|step| format!("gpuvm_slots_{step}"));
        let names = names.each_ref().map(String::as_str);
        let options = support::options(self.transport, &self.settings, &self.settings.support_options);
        let doing = || "compiling the kernels of slot caches".to_owned();
        let module = self
            .device
            .compile(&Source::new("gpuvm_slot_cache.cu", SOURCE), &names, &options);
        let module = self.or_lost(module.doing(doing))?;
        let kernel = |at: usize| module.kernel(names[at]).doing(doing);
        let made = Arc::new(SlotKernels {
            plan: kernel(0)?,
            claim: kernel(1)?,
            survey: kernel(2)?,
            pick: kernel(3)?,
            fetch: kernel(4)?,
            hold: kernel(5)?,
            refresh: kernel(6)?,
        });
        *kernels = Some(Arc::clone(&made));
        Ok(made)
    }
}
