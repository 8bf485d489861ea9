//! Memory of a GPU that launches which look pages up need, once one does.

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::device::DeviceArray;

/// None of it before it is needed.
#[derive(Default)]
pub(super) struct Scratch {
    /// What accesses past the end of arrays reach.
    pub nobodys_page: Mutex<Option<DeviceArray<u8>>>,
    /// What kernels of the runtime count.
    pub counts: Mutex<Option<DeviceArray<u64>>>,
    /// Of who brings pages: frames that are out of the pool meanwhile, a bit each.
    pub own: Mutex<Option<DeviceArray<u64>>>,
    /// How often the pool was rebuilt, with the GPU's state locked. Relaxed: that lock orders it.
    pub rebuilt: AtomicU64,
}
