//! Elastic buffers.

use std::ffi::{c_char, c_void};

use bytemuck::Zeroable;
use gpuvm::{Error, Grown, RawElasticBuffer, Vm};

use crate::{
    code::{Result, gpuvm_code},
    element::gpuvm_element,
    guard,
    handles::{self, with},
    raw::{self, Growing, Out, OutStruct},
    vm::{gpuvm_vm, on_gpu},
};

/// Device memory that grows and shrinks at one address: the argument for a pointer parameter. It is not paged.
#[allow(non_camel_case_types, reason = "C's name")]
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct gpuvm_elastic {
    /// 0: the null handle.
    pub id: u64,
}

/// What an elastic buffer is to be. Every field but `size` may be 0 or NULL.
#[allow(non_camel_case_types, reason = "C's name")]
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_elastic_options {
    /// `sizeof(gpuvm_elastic_options)`.
    pub size: u64,
    /// The name that errors use. NULL: the element's type.
    pub name: *const c_char,
    /// The group that `gpuvm_vm_pause` takes, or NULL.
    pub tag: *const c_char,
    /// Elements that it has at first. What they hold is unspecified.
    pub length: u64,
    /// The GPU of the Vm, by its place.
    pub gpu: u32,
    /// Who gives up unused memory first when it is short: those of low priority.
    pub priority: i32,
}

impl Growing for gpuvm_elastic_options {
    const NAME: &'static str = "gpuvm_elastic_options";
}

/// What a growth was.
#[allow(non_camel_case_types, reason = "C's name")]
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_grown {
    /// `sizeof(gpuvm_grown)`.
    pub size: u64,
    /// The first new element.
    pub first: u64,
    /// Bytes that were copied, since another buffer began where this one grew.
    pub moved_bytes: u64,
    /// Nanoseconds that the caller was held.
    pub took_ns: u64,
    /// 1 where the memory was mapped before, else 0.
    pub foreseen: u64,
}

impl Growing for gpuvm_grown {
    const NAME: &'static str = "gpuvm_grown";
}

/// What the elastic buffers of a GPU have, and what their growth cost.
#[allow(non_camel_case_types, reason = "C's name")]
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_elastic_stats {
    /// `sizeof(gpuvm_elastic_stats)`.
    pub size: u64,
    /// Buffers, paused ones included.
    pub buffers: u64,
    /// Buffers that are paused.
    pub paused: u64,
    /// Bytes of the elements that there are, without those of paused buffers.
    pub used_bytes: u64,
    /// Bytes of paused buffers, in host memory.
    pub paused_bytes: u64,
    /// Bytes that buffers have beyond their lengths.
    pub ahead_bytes: u64,
    /// Bytes of handles in use that no buffer has.
    pub rest_bytes: u64,
    /// Growths that only moved a length.
    pub foreseen: u64,
    /// Growths that had to wait for memory.
    pub unforeseen: u64,
    /// Nanoseconds of all foreseen growths together.
    pub foreseen_ns: u64,
    /// Nanoseconds of all unforeseen growths together.
    pub unforeseen_ns: u64,
    /// Bytes that were copied, since a buffer grew where another's began.
    pub moved_bytes: u64,
    /// Times that nothing could be mapped ahead.
    pub refused: u64,
    /// Bytes of a handle of memory.
    pub handle_bytes: u64,
    /// Handles in use.
    pub handles_held: u64,
    /// Handles that wait to be used again.
    pub handles_free: u64,
}

impl Growing for gpuvm_elastic_stats {
    const NAME: &'static str = "gpuvm_elastic_stats";
}

/// Makes an elastic buffer of up to `max` elements. It takes no memory until it grows. `options`: NULL for the defaults. Free it by
/// `gpuvm_elastic_free`. After an error `*elastic` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_new(
    vm: gpuvm_vm,
    options: *const gpuvm_elastic_options,
    element: gpuvm_element,
    max: u64,
    elastic: *mut gpuvm_elastic,
) -> gpuvm_code {
    guard(|| {
        let place = Out::new("elastic", elastic)?;
        place.set(gpuvm_elastic { id: 0 });
        let options = raw::options("options", options)?;
        let vm: Vm = handles::copy("vm", vm.id)?;
        let mut builder = vm.gpu(options.gpu as usize)?.raw_elastic(element.read()?, max);
        builder = builder.length(options.length).priority(options.priority);
        if let Some(name) = raw::optional_text("name", options.name)? {
            builder = builder.name(name);
        }
        if let Some(tag) = raw::optional_text("tag", options.tag)? {
            builder = builder.tag(tag);
        }
        let elastic = builder.build()?;
        place.set(gpuvm_elastic {
            id: handles::enter(elastic),
        });
        Ok(())
    })
}

/// Frees the handle. The memory goes to others when the launches that name it have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_free(elastic: gpuvm_elastic) -> gpuvm_code {
    guard(|| handles::free::<RawElasticBuffer>("elastic", elastic.id))
}

fn on_elastic(elastic: gpuvm_elastic, act: impl FnOnce(&RawElasticBuffer) -> Result<()>) -> gpuvm_code {
    guard(|| with("elastic", elastic.id, act))
}

fn grow(
    elastic: gpuvm_elastic,
    grown: *mut gpuvm_grown,
    act: impl FnOnce(&RawElasticBuffer) -> Result<Grown, Error>,
) -> gpuvm_code {
    on_elastic(elastic, |elastic| {
        let place = OutStruct::optional("grown", grown)?;
        let grown = act(elastic)?;
        if let Some(place) = place {
            place.set(gpuvm_grown {
                size: 0,
                first: grown.first,
                moved_bytes: grown.moved_bytes,
                took_ns: raw::ns(grown.took),
                foreseen: grown.foreseen.into(),
            });
        }
        Ok(())
    })
}

/// Makes it longer by `elements`, whose contents are unspecified. `grown` may be NULL. After an error it is as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_grow(
    elastic: gpuvm_elastic,
    elements: u64,
    grown: *mut gpuvm_grown,
) -> gpuvm_code {
    grow(elastic, grown, |elastic| elastic.grow(elements))
}

/// Makes it `elements` long, if it is shorter. `grown` may be NULL. After an error it is as before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_ensure(
    elastic: gpuvm_elastic,
    elements: u64,
    grown: *mut gpuvm_grown,
) -> gpuvm_code {
    grow(elastic, grown, |elastic| elastic.ensure(elements))
}

/// Makes it shorter by `elements`. What is behind the new length must not be used any more, also by launches that run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_shrink(elastic: gpuvm_elastic, elements: u64) -> gpuvm_code {
    on_elastic(elastic, |elastic| Ok(elastic.shrink(elements)?))
}

/// Stores its length in elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_length(elastic: gpuvm_elastic, length: *mut u64) -> gpuvm_code {
    on_elastic(elastic, |elastic| raw::put("length", length, elastic.len()))
}

/// Stores how many elements it can have without waiting for memory; 0 while it is paused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_capacity(elastic: gpuvm_elastic, capacity: *mut u64) -> gpuvm_code {
    on_elastic(elastic, |elastic| raw::put("capacity", capacity, elastic.capacity()))
}

/// Stores the device address of its first element, which stays as long as the buffer lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_pointer(elastic: gpuvm_elastic, address: *mut u64) -> gpuvm_code {
    on_elastic(elastic, |elastic| raw::put("address", address, elastic.pointer()))
}

/// Copies elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_read(
    elastic: gpuvm_elastic,
    first: u64,
    data: *mut c_void,
    bytes: u64,
) -> gpuvm_code {
    on_elastic(elastic, |elastic| {
        Ok(elastic.read_bytes(first, raw::bytes_mut("data", data, bytes)?)?)
    })
}

/// Stores elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_write(
    elastic: gpuvm_elastic,
    first: u64,
    data: *const c_void,
    bytes: u64,
) -> gpuvm_code {
    on_elastic(elastic, |elastic| {
        Ok(elastic.write_bytes(first, raw::bytes("data", data, bytes)?)?)
    })
}

/// Stores what the elastic buffers of a GPU have, and what their growth cost.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_vm_elastic_stats(vm: gpuvm_vm, gpu: u32, stats: *mut gpuvm_elastic_stats) -> gpuvm_code {
    guard(|| {
        let place = OutStruct::new("stats", stats)?;
        let stats = on_gpu(vm, gpu, |gpu| Ok(gpu.elastic_stats()))?;
        place.set(gpuvm_elastic_stats {
            size: 0,
            buffers: stats.buffers,
            paused: stats.paused,
            used_bytes: stats.used_bytes,
            paused_bytes: stats.paused_bytes,
            ahead_bytes: stats.ahead_bytes,
            rest_bytes: stats.rest_bytes,
            foreseen: stats.foreseen,
            unforeseen: stats.unforeseen,
            foreseen_ns: raw::ns(stats.foreseen_time),
            unforeseen_ns: raw::ns(stats.unforeseen_time),
            moved_bytes: stats.moved_bytes,
            refused: stats.refused,
            handle_bytes: stats.handles.handle_bytes,
            handles_held: stats.handles.held,
            handles_free: stats.handles.free,
        });
        Ok(())
    })
}
