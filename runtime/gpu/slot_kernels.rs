//! The kernels of slot caches, which are compiled when there is one.

use std::sync::Arc;

use gpuvm_gpu::Source;

use super::{PagedGpu, scratch::SlotKernels, support};
use crate::error::{Doing, Result};

/// The name of their source, and its text.
pub(crate) const SOURCE: (&str, &str) = ("gpuvm_slot_cache.cu", include_str!("../slot_cache.cu"));
pub(crate) const KERNELS: [&str; 7] = [
    "gpuvm_slots_plan",
    "gpuvm_slots_claim",
    "gpuvm_slots_survey",
    "gpuvm_slots_pick",
    "gpuvm_slots_fetch",
    "gpuvm_slots_hold",
    "gpuvm_slots_refresh",
];

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
        let options = support::options(self.transport, &self.settings, &self.settings.support_options);
        let doing = || "compiling the kernels of slot caches".to_owned();
        let source = Source::new(SOURCE.0, SOURCE.1);
        let module = self.device.compile(&source, &KERNELS, &options);
        let module = self.map_device_lost(module.doing(doing))?;
        let kernel = |at: usize| module.kernel(KERNELS[at]).doing(doing);
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
