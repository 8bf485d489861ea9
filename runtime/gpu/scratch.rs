//! What launches of a GPU need that look pages up, or of slot caches, once there are some.

use std::sync::{Arc, atomic::AtomicU64};

use gpuvm_gpu::Kernel;
use parking_lot::Mutex;

use super::beside_state::Beside;
use crate::device::DeviceArray;

/// None of it before it is needed.
#[derive(Default)]
pub(super) struct Scratch {
    /// What accesses past the end of arrays reach.
    pub dummy_page: Mutex<Option<DeviceArray<u8>>>,
    /// What kernels of the runtime count.
    pub counts: Mutex<Option<DeviceArray<u64>>>,
    /// Of who brings pages: frames that are out of the pool meanwhile, a bit each.
    pub own: Mutex<Option<DeviceArray<u64>>>,
    /// Of what brings pages beside launches.
    pub beside: Mutex<Beside>,
    /// Of slot caches.
    pub slot_kernels: Mutex<Option<Arc<SlotKernels>>>,
    /// How often the pool was rebuilt, with the GPU's state locked. Relaxed: that lock orders it.
    pub rebuilt: AtomicU64,
}

/// The kernels of slot caches, by the steps of `gpuvm/slot_cache.cuh`.
pub(crate) struct SlotKernels {
    pub plan: Arc<dyn Kernel>,
    pub claim: Arc<dyn Kernel>,
    pub survey: Arc<dyn Kernel>,
    pub pick: Arc<dyn Kernel>,
    pub fetch: Arc<dyn Kernel>,
    pub hold: Arc<dyn Kernel>,
    pub refresh: Arc<dyn Kernel>,
}
