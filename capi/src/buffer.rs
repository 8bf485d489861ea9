//! Buffers: plain device memory.

use std::ffi::c_void;

use gpuvm::RawBuffer;

use crate::{
    code::{Result, gpuvm_code},
    element::gpuvm_element,
    guard,
    handles::{self, with},
    raw::{self, Out},
    vm::{gpuvm_vm, on_gpu},
};

/// Device memory of a fixed number of elements: the argument for a pointer parameter. It is not paged.
#[allow(non_camel_case_types, reason = "C's name")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_buffer {
    /// 0: the null handle.
    pub id: u64,
}

/// Makes a buffer of `length` elements whose bytes are zero, on a GPU of the virtual memory. Free it by `gpuvm_buffer_free`. After an error
/// `*buffer` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_new(
    vm: gpuvm_vm,
    gpu: u32,
    element: gpuvm_element,
    length: u64,
    buffer: *mut gpuvm_buffer,
) -> gpuvm_code {
    guard(|| {
        let place = Out::new("buffer", buffer)?;
        place.set(gpuvm_buffer { id: 0 });
        let element = element.read()?;
        let buffer = on_gpu(vm, gpu, |gpu| gpu.raw_buffer(element, length))?;
        place.set(gpuvm_buffer {
            id: handles::enter(buffer),
        });
        Ok(())
    })
}

/// Frees the handle. The memory goes when the launches that name it have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_free(buffer: gpuvm_buffer) -> gpuvm_code {
    guard(|| handles::free::<RawBuffer>("buffer", buffer.id))
}

fn on_buffer(buffer: gpuvm_buffer, act: impl FnOnce(&RawBuffer) -> Result<()>) -> gpuvm_code {
    guard(|| with("buffer", buffer.id, act))
}

/// Stores its length in elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_length(buffer: gpuvm_buffer, length: *mut u64) -> gpuvm_code {
    on_buffer(buffer, |buffer| raw::put("length", length, buffer.len()))
}

/// Copies elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_read(
    buffer: gpuvm_buffer,
    first: u64,
    data: *mut c_void,
    bytes: u64,
) -> gpuvm_code {
    on_buffer(buffer, |buffer| {
        Ok(buffer.read_bytes_from(first, raw::bytes_mut("data", data, bytes)?)?)
    })
}

/// Stores elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_write(
    buffer: gpuvm_buffer,
    first: u64,
    data: *const c_void,
    bytes: u64,
) -> gpuvm_code {
    on_buffer(buffer, |buffer| {
        Ok(buffer.write_bytes_from(first, raw::bytes("data", data, bytes)?)?)
    })
}
