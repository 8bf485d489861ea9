//! Broadcast arrays.

use std::ffi::{c_char, c_void};

use bytemuck::Zeroable;
use gpuvm::{BroadcastBuilder, RawBroadcast, Subscribers, Untyped};

use crate::{
    calls,
    code::{Result, gpuvm_code},
    element::gpuvm_element,
    handles::{self, gpuvm_broadcast, gpuvm_vm},
    raw::{self, Growing},
};

/// Which GPUs hold which pages of a new broadcast array.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_subscribers {
    /// All GPUs hold all pages.
    All = 0,
    /// Each page is held by one GPU, and by those that have read it.
    Readers = 1,
    /// Each page is held by one GPU, until `gpuvm_broadcast_subscribe` or `gpuvm_vm_track`.
    Owners = 2,
}

const SUBSCRIBERS: [Subscribers; 3] = [Subscribers::All, Subscribers::Readers, Subscribers::Owners];

/// What a broadcast array is to be. Every field but `size` may be 0 or NULL.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_broadcast_options {
    /// `sizeof(gpuvm_broadcast_options)`.
    pub size: u64,
    /// The name that errors use. NULL: the element's type.
    pub name: *const c_char,
    /// `gpuvm_subscribers`.
    pub subscribers: u32,
    /// Not 0: every store is counted, not those to one line in 256 alone.
    pub count_all: u32,
}

impl Growing for gpuvm_broadcast_options {
    const NAME: &'static str = "gpuvm_broadcast_options";
}

fn make(
    vm: gpuvm_vm,
    options: *const gpuvm_broadcast_options,
    element: gpuvm_element,
    broadcast: *mut gpuvm_broadcast,
    last: impl FnOnce(BroadcastBuilder<Untyped>) -> Result<RawBroadcast>,
) -> gpuvm_code {
    calls::make(broadcast, || {
        let options = raw::options("options", options)?;
        let vm = handles::copy(vm)?;
        let mut builder = vm.raw_broadcast(element.read()?);
        builder = builder.subscribers(raw::one_of("subscribers", options.subscribers, &SUBSCRIBERS)?);
        if let Some(name) = raw::optional_text("name", options.name)? {
            builder = builder.name(name);
        }
        if options.count_all != 0 {
            builder = builder.count_all();
        }
        last(builder)
    })
}

/// Makes a broadcast array of `length` elements whose bytes are zero. `options`: NULL for the defaults. Free it by `gpuvm_broadcast_free`. After
/// an error `*broadcast` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_zeroed(
    vm: gpuvm_vm,
    options: *const gpuvm_broadcast_options,
    element: gpuvm_element,
    length: u64,
    broadcast: *mut gpuvm_broadcast,
) -> gpuvm_code {
    make(vm, options, element, broadcast, |builder| Ok(builder.zeroed(length)?))
}

/// Makes a broadcast array of a copy of `bytes` bytes, a whole number of elements. Else as `gpuvm_broadcast_zeroed`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_copied(
    vm: gpuvm_vm,
    options: *const gpuvm_broadcast_options,
    element: gpuvm_element,
    data: *const c_void,
    bytes: u64,
    broadcast: *mut gpuvm_broadcast,
) -> gpuvm_code {
    make(vm, options, element, broadcast, |builder| {
        Ok(builder.from_bytes(raw::bytes("data", data, bytes)?)?)
    })
}

/// Frees the handle, after the launches that name the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_free(broadcast: gpuvm_broadcast) -> gpuvm_code {
    calls::free(broadcast)
}

/// Stores its length in elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_length(broadcast: gpuvm_broadcast, length: *mut u64) -> gpuvm_code {
    calls::get(broadcast, "length", length, |array| Ok(array.len()))
}

/// Copies elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_read(
    broadcast: gpuvm_broadcast,
    first: u64,
    data: *mut c_void,
    bytes: u64,
) -> gpuvm_code {
    calls::read(broadcast, first, data, bytes, RawBroadcast::read_bytes)
}

/// As `gpuvm_broadcast_read`, as the home has the elements: what the array was made of, or what the last flush wrote. It asks no GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_read_home(
    broadcast: gpuvm_broadcast,
    first: u64,
    data: *mut c_void,
    bytes: u64,
) -> gpuvm_code {
    calls::read(broadcast, first, data, bytes, RawBroadcast::read_home_bytes)
}

/// Stores elements from `first` on, `bytes` bytes, which are whole elements, in all copies, after the launches that name the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_write(
    broadcast: gpuvm_broadcast,
    first: u64,
    data: *const c_void,
    bytes: u64,
) -> gpuvm_code {
    calls::write(broadcast, first, data, bytes, RawBroadcast::write_bytes)
}

/// Writes what the GPUs hold to the array's home in host memory, after the launches that name it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_flush(broadcast: gpuvm_broadcast) -> gpuvm_code {
    calls::on(broadcast, |array| Ok(array.flush()?))
}

/// Has a GPU of the virtual memory hold copies of all pages that have one of `count` elements from `first` on. Waits for the launches that name
/// the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_subscribe(
    broadcast: gpuvm_broadcast,
    gpu: u32,
    first: u64,
    count: u64,
) -> gpuvm_code {
    calls::on(broadcast, |array| {
        Ok(array.subscribe(gpu as usize, first..first.saturating_add(count))?)
    })
}

/// Has a GPU of the virtual memory give back its copies of the pages that have no other elements than `count` from `first` on. Waits for the
/// launches that name the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_unsubscribe(
    broadcast: gpuvm_broadcast,
    gpu: u32,
    first: u64,
    count: u64,
) -> gpuvm_code {
    calls::on(broadcast, |array| {
        Ok(array.unsubscribe(gpu as usize, first..first.saturating_add(count))?)
    })
}

/// Stores the GPUs that hold a copy of the element's page: bit `n` is that of the GPU at place `n`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_subscribers(
    broadcast: gpuvm_broadcast,
    element: u64,
    gpus: *mut u32,
) -> gpuvm_code {
    calls::get(broadcast, "gpus", gpus, |array| {
        let held = array.subscribers_of(element)?;
        Ok(held.into_iter().fold(0, |gpus, gpu| gpus | 1 << gpu))
    })
}

/// Stores the place of the GPU that owns the element's page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_broadcast_owner(broadcast: gpuvm_broadcast, element: u64, gpu: *mut u32) -> gpuvm_code {
    calls::get(broadcast, "gpu", gpu, |array| Ok(array.owner_of(element)? as u32))
}
