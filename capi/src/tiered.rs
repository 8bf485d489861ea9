//! Buffers whose chunks lie on the GPU or in host memory.

use std::ffi::c_char;

use bytemuck::Zeroable;
use gpuvm::{Moved, RawBuffer, RawTieredBuffer, TierPlace};

use crate::{
    calls,
    code::{Failure, Result, gpuvm_code},
    element::gpuvm_element,
    handles::{self, gpuvm_buffer, gpuvm_vm},
    raw::{self, Growing, Out, OutStruct},
};

/// What a tiered buffer is to be. Every field but `size` may be 0 or NULL.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_tiered_options {
    /// `sizeof(gpuvm_tiered_options)`.
    pub size: u64,
    /// The name that errors use. NULL: the element's type.
    pub name: *const c_char,
    /// Bytes of it that may lie on the GPU. 0: all.
    pub budget: u64,
    /// The GPU of the Vm, by its place.
    pub gpu: u32,
    /// Whose chunks go to host memory first when GPU memory is short: those of low priority.
    pub priority: i32,
}

impl Growing for gpuvm_tiered_options {
    const NAME: &'static str = "gpuvm_tiered_options";
}

/// What a move of chunks was.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_moved {
    /// `sizeof(gpuvm_moved)`.
    pub size: u64,
    /// Chunks that came to the GPU.
    pub came: u64,
    /// Chunks that went to host memory.
    pub left: u64,
    /// Nanoseconds that the caller was held, without the time that launches took to end.
    pub took_ns: u64,
}

impl Growing for gpuvm_moved {
    const NAME: &'static str = "gpuvm_moved";
}

/// Where a chunk of a tiered buffer lies.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_tier_place {
    /// On the buffer's GPU.
    Gpu = 0,
    /// In host memory, which kernels reach over the wire.
    Host = 1,
}

const PLACES: [TierPlace; 2] = [TierPlace::Gpu, TierPlace::Host];

/// Makes a buffer of `length` elements whose bytes are zero, at one address. Chunks of it lie on the GPU as far as there is room, and in host
/// memory beyond. `options`: NULL for the defaults. Free it by `gpuvm_buffer_free`. After an error `*buffer` is the null handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_tiered(
    vm: gpuvm_vm,
    options: *const gpuvm_tiered_options,
    element: gpuvm_element,
    length: u64,
    buffer: *mut gpuvm_buffer,
) -> gpuvm_code {
    calls::make(buffer, || {
        let options = raw::options("options", options)?;
        let vm = handles::copy(vm)?;
        let mut builder = vm.gpu(options.gpu as usize)?.raw_tiered(element.read()?, length);
        builder = builder.priority(options.priority);
        if options.budget > 0 {
            builder = builder.budget(options.budget);
        }
        if let Some(name) = raw::optional_text("name", options.name)? {
            builder = builder.name(name);
        }
        Ok(builder.build()?.into_buffer())
    })
}

fn tiered(buffer: &RawBuffer) -> Result<RawTieredBuffer> {
    let reason = "it was not made by gpuvm_buffer_tiered";
    buffer
        .tiered()
        .ok_or_else(|| Failure::value("buffer", "not tiered", reason))
}

fn moving(
    buffer: gpuvm_buffer,
    moved: *mut gpuvm_moved,
    act: impl FnOnce(&RawTieredBuffer) -> Result<Moved>,
) -> gpuvm_code {
    calls::on(buffer, |buffer| {
        let place = OutStruct::optional("moved", moved)?;
        let Moved { came, left, took } = act(&tiered(buffer)?)?;
        if let Some(place) = place {
            let (size, took_ns) = (0, raw::ns(took));
            place.set(gpuvm_moved {
                size,
                came,
                left,
                took_ns,
            });
        }
        Ok(())
    })
}

/// Moves the chunks of a tiered buffer that hold some of `count` elements from `first` on to a place, a `gpuvm_tier_place`. It waits for the
/// launches that name the buffer, and once `gpuvm_buffer_pointer` was called for all work of the GPU. `moved` may be NULL. Where that place
/// has no memory nothing has moved.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_move_to(
    buffer: gpuvm_buffer,
    first: u64,
    count: u64,
    place: u32,
    moved: *mut gpuvm_moved,
) -> gpuvm_code {
    moving(buffer, moved, |buffer| {
        let place = raw::one_of("place", place, &PLACES)?;
        Ok(buffer.move_to(first..first.saturating_add(count), place)?)
    })
}

/// Says how many bytes of a tiered buffer may lie on the GPU. Chunks beyond leave; where there is room chunks come, as far as GPU memory is
/// free. It waits as `gpuvm_buffer_move_to` does. `moved` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_set_budget(
    buffer: gpuvm_buffer,
    bytes: u64,
    moved: *mut gpuvm_moved,
) -> gpuvm_code {
    moving(buffer, moved, |buffer| Ok(buffer.set_budget(bytes)?))
}

/// Says whose chunks go to host memory first when GPU memory is short: those of tiered buffers of low priority.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_set_priority(buffer: gpuvm_buffer, priority: i32) -> gpuvm_code {
    calls::on(buffer, |buffer| {
        tiered(buffer)?.set_priority(priority);
        Ok(())
    })
}

/// Stores how many bytes of a tiered buffer lie on the GPU now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_resident_bytes(buffer: gpuvm_buffer, bytes: *mut u64) -> gpuvm_code {
    calls::on(buffer, |buffer| {
        let place = Out::new("bytes", bytes)?;
        place.set(tiered(buffer)?.resident_bytes());
        Ok(())
    })
}

/// Stores where an element of a tiered buffer lies, a `gpuvm_tier_place`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_place(buffer: gpuvm_buffer, element: u64, place: *mut u32) -> gpuvm_code {
    calls::on(buffer, |buffer| {
        let out = Out::new("place", place)?;
        let found = tiered(buffer)?.place_of(element)?;
        out.set(PLACES.iter().position(|place| *place == found).unwrap_or_default() as u32);
        Ok(())
    })
}

/// Stores the device address of its first element, for other libraries that use the same GPU. It stays as long as the buffer lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gpuvm_buffer_pointer(buffer: gpuvm_buffer, pointer: *mut u64) -> gpuvm_code {
    calls::get(buffer, "pointer", pointer, |buffer| Ok(buffer.addr()))
}
