//! Buffers: plain device memory.

use std::ffi::c_void;

use gpuvm::RawBuffer;

use crate::{
    calls,
    code::gpuvm_code,
    element::gpuvm_element,
    handles::{gpuvm_buffer, gpuvm_vm},
    vm::on_gpu,
};

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
    calls::make(buffer, || {
        let element = element.read()?;
        on_gpu(vm, gpu, |gpu| gpu.raw_buffer(element, length))
    })
}

/// Frees the handle. The memory goes when the launches that name it have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_free(buffer: gpuvm_buffer) -> gpuvm_code {
    calls::free(buffer)
}

/// Stores its length in elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_length(buffer: gpuvm_buffer, length: *mut u64) -> gpuvm_code {
    calls::get(buffer, "length", length, |buffer| Ok(buffer.len()))
}

/// Copies elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_read(
    buffer: gpuvm_buffer,
    first: u64,
    data: *mut c_void,
    bytes: u64,
) -> gpuvm_code {
    calls::read(buffer, first, data, bytes, RawBuffer::read_bytes_from)
}

/// Stores elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_write(
    buffer: gpuvm_buffer,
    first: u64,
    data: *const c_void,
    bytes: u64,
) -> gpuvm_code {
    calls::write(buffer, first, data, bytes, RawBuffer::write_bytes_from)
}
