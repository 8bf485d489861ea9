//! What NVIDIA's management library says of GPUs on which this process has no context, and makes none: one costs hundreds of
//! megabytes there.

use std::sync::OnceLock;

use nvml_wrapper::{Nvml, enums::device::UsedGpuMemory};

use crate::{GpuError, MemoryLeft};

/// The library, once it was found. It stays until the process ends.
fn library() -> Result<&'static Nvml, String> {
    static LIBRARY: OnceLock<Result<Nvml, String>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(|| Nvml::init().map_err(|error| error.to_string()));
    opened.as_ref().map_err(Clone::clone)
}

/// How much memory of a GPU is left.
///
/// # Errors
/// [`GpuError::NoPeer`].
pub(super) fn memory_left(ordinal: u32) -> Result<MemoryLeft, GpuError> {
    let refuse = |cause: String| GpuError::NoPeer { ordinal, cause };
    let count = super::device::count()?;
    if ordinal >= count {
        return Err(refuse(format!("this process sees {count} GPUs")));
    }
    let device = super::device::describe(ordinal)?;
    let library = library().map_err(|cause| {
        refuse(format!(
            "NVIDIA's management library (libnvidia-ml.so.1) does not say how much of its memory is free: {cause}; name the bytes to borrow"
        ))
    })?;
    // By UUID: ordinals of the two libraries differ under CUDA_VISIBLE_DEVICES.
    let memory = library
        .device_by_uuid(device.uuid.as_str())
        .and_then(|gpu| gpu.memory_info());
    let memory = memory.map_err(|error| {
        refuse(format!(
            "its management library does not say how much of its memory is free: {error}"
        ))
    })?;
    Ok(MemoryLeft {
        free: memory.free,
        total: memory.total,
    })
}

/// What processes hold of the GPU with this UUID, as far as the library says: in a container it may name none.
pub(super) fn memory_by_process(uuid: &str) -> Vec<(u32, u64)> {
    let Ok(library) = library() else { return Vec::new() };
    let found = library
        .device_by_uuid(uuid)
        .and_then(|gpu| gpu.running_compute_processes());
    let bytes = |memory| match memory {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let processes = found.unwrap_or_default().into_iter();
    processes
        .filter_map(|one| Some((one.pid, bytes(one.used_gpu_memory)?)))
        .collect()
}
