//! What functions of several kinds of handles have in common.

use std::ffi::c_void;

use gpuvm::Error;

use crate::{
    code::{Result, gpuvm_code},
    guard::guard,
    handles::{self, Handle},
    raw::{self, Out},
};

/// Makes something and stores its handle; the null handle after an error.
pub fn make<H: Handle>(handle: *mut H, make: impl FnOnce() -> Result<H::Thing>) -> gpuvm_code {
    guard(|| {
        let place = Out::new(H::PARAMETER, handle)?;
        place.set(H::new(0));
        place.set(handles::enter(make()?));
        Ok(())
    })
}

/// Calls `act` with what a handle names.
pub fn on<H: Handle>(handle: H, act: impl FnOnce(&H::Thing) -> Result<()>) -> gpuvm_code {
    guard(|| handles::with(handle, act))
}

/// Frees a handle, and drops what it named.
pub fn free<H: Handle>(handle: H) -> gpuvm_code {
    guard(|| {
        drop(handles::take(handle)?);
        Ok(())
    })
}

/// Stores what is known of what a handle names in `place`, which messages call `what`.
pub fn get<H: Handle, T>(
    handle: H,
    what: &'static str,
    place: *mut T,
    get: impl FnOnce(&H::Thing) -> Result<T, Error>,
) -> gpuvm_code {
    on(handle, |thing| {
        let place = Out::new(what, place)?;
        place.set(get(thing)?);
        Ok(())
    })
}

/// Copies elements from `first` on to the program's memory.
pub fn read<H: Handle>(
    handle: H,
    first: u64,
    data: *mut c_void,
    bytes: u64,
    read: impl FnOnce(&H::Thing, u64, &mut [u8]) -> Result<(), Error>,
) -> gpuvm_code {
    on(handle, |thing| {
        Ok(read(thing, first, raw::bytes_mut("data", data, bytes)?)?)
    })
}

/// Stores elements from `first` on from the program's memory.
pub fn write<H: Handle>(
    handle: H,
    first: u64,
    data: *const c_void,
    bytes: u64,
    write: impl FnOnce(&H::Thing, u64, &[u8]) -> Result<(), Error>,
) -> gpuvm_code {
    on(handle, |thing| {
        Ok(write(thing, first, raw::bytes("data", data, bytes)?)?)
    })
}
