//! Device memory out of handles, which is there at once where memory of the driver's own is not.

use std::sync::Arc;

use gpuvm_gpu::{AddressSpace, DeviceMemory, back_end::Release};
use parking_lot::Mutex;

use crate::{
    error::{Doing, Result},
    handles::{Handle, Handles},
};

/// Addresses, and the handles that lie there.
type Held = (Arc<dyn AddressSpace>, Vec<Handle>);

/// Handles at addresses, until they are given back.
struct Mapped {
    handles: Arc<Handles>,
    held: Mutex<Option<Held>>,
}

impl Release for Mapped {
    fn release(&self, _addr: u64) {
        if let Some((space, held)) = self.held.lock().take() {
            drop(space);
            self.handles.give(held);
        }
    }
}

/// Zeroed memory, rounded up to handles: those that were given back, the driver's, and what others of this process give up. Launches in
/// flight may keep the driver from having what was given up, and read there still; here it is used all the same.
///
/// # Errors
/// As [`Handles::take`], or [`Error::Gpu`](crate::Error::Gpu) where the GPU has no handles.
pub(crate) fn zeroed(handles: &Arc<Handles>, bytes: u64, doing: &str) -> Result<DeviceMemory> {
    let (gpu, size) = (handles.gpu(), handles.handle_bytes().max(1));
    let count = bytes.div_ceil(size);
    let space = gpu.reserve(count * size, &[]).doing(|| doing.into())?;
    let addr = space.addr();
    let held = handles.take_of_process(count as usize)?;
    let placing: Vec<_> = (0..).map(|n| n * size).zip(held.iter().cloned()).collect();
    let placed = space.place(&placing);
    drop(placing);
    let owner = Mapped {
        handles: Arc::clone(handles),
        held: Mutex::new(Some((space, held))),
    };
    // What fails is given back.
    let memory = DeviceMemory::new(addr, bytes, Arc::new(owner));
    placed.doing(|| doing.into())?;
    gpu.zero(addr, bytes).doing(|| doing.into())?;
    Ok(memory)
}
