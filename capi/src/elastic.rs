//! Elastic buffers.

use std::ffi::{c_char, c_void};

use bytemuck::Zeroable;
use gpuvm::{Error, Grown, RawElasticBuffer};

use crate::{
    calls,
    code::{Result, gpuvm_code},
    element::gpuvm_element,
    handles::{self, gpuvm_elastic, gpuvm_vm},
    raw::{self, Growing, OutStruct},
};

/// What an elastic buffer is to be. Every field but `size` may be 0 or NULL.
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
    /// 1 where the memory was pre-mapped, else 0.
    pub premapped: u64,
}

impl Growing for gpuvm_grown {
    const NAME: &'static str = "gpuvm_grown";
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
    calls::make(elastic, || {
        let options = raw::options("options", options)?;
        let vm = handles::copy(vm)?;
        let mut builder = vm.gpu(options.gpu as usize)?.raw_elastic(element.read()?, max);
        builder = builder.length(options.length).priority(options.priority);
        if let Some(name) = raw::optional_text("name", options.name)? {
            builder = builder.name(name);
        }
        if let Some(tag) = raw::optional_text("tag", options.tag)? {
            builder = builder.tag(tag);
        }
        Ok(builder.build()?)
    })
}

/// Frees the handle. The memory goes to others when the launches that name it have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_free(elastic: gpuvm_elastic) -> gpuvm_code {
    calls::free(elastic)
}

fn grow(
    elastic: gpuvm_elastic,
    grown: *mut gpuvm_grown,
    act: impl FnOnce(&RawElasticBuffer) -> Result<Grown, Error>,
) -> gpuvm_code {
    calls::on(elastic, |elastic| {
        let place = OutStruct::optional("grown", grown)?;
        let Grown {
            first,
            premapped,
            moved_bytes,
            took,
        } = act(elastic)?;
        if let Some(place) = place {
            place.set(gpuvm_grown {
                size: 0,
                first,
                moved_bytes,
                took_ns: raw::ns(took),
                premapped: premapped.into(),
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
    calls::on(elastic, |elastic| Ok(elastic.shrink(elements)?))
}

/// Stores its length in elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_length(elastic: gpuvm_elastic, length: *mut u64) -> gpuvm_code {
    calls::get(elastic, "length", length, |elastic| Ok(elastic.len()))
}

/// Stores how many elements it can have without waiting for memory; 0 while it is paused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_capacity(elastic: gpuvm_elastic, capacity: *mut u64) -> gpuvm_code {
    calls::get(elastic, "capacity", capacity, |elastic| Ok(elastic.capacity()))
}

/// Stores the device address of its first element, which stays as long as the buffer lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_pointer(elastic: gpuvm_elastic, address: *mut u64) -> gpuvm_code {
    calls::get(elastic, "address", address, |elastic| Ok(elastic.pointer()))
}

/// Says who gives up memory that is mapped and not in use when GPU memory is short: those of low priority first, among elastic buffers and
/// frames (`gpuvm_vm_set_frame_priority`). It holds for the next who is short.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_set_priority(elastic: gpuvm_elastic, priority: i32) -> gpuvm_code {
    calls::on(elastic, |elastic| {
        elastic.set_priority(priority);
        Ok(())
    })
}

/// Copies elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_read(
    elastic: gpuvm_elastic,
    first: u64,
    data: *mut c_void,
    bytes: u64,
) -> gpuvm_code {
    calls::read(elastic, first, data, bytes, RawElasticBuffer::read_bytes)
}

/// Stores elements from `first` on, `bytes` bytes, which are whole elements, after the launches that name the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_elastic_write(
    elastic: gpuvm_elastic,
    first: u64,
    data: *const c_void,
    bytes: u64,
) -> gpuvm_code {
    calls::write(elastic, first, data, bytes, RawElasticBuffer::write_bytes)
}
