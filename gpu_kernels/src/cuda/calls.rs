//! The driver's and NVRTC's functions, found by name when they are first called.
//!
//! `cudarc` gives the types, the constants and the loaded libraries. Its own functions are not called: they panic where a library lacks
//! one, and they return enumerations, which a newer driver's codes would not fit. Here a missing function is an answer, and a
//! result is a number.

use std::ffi::c_char;
use std::sync::OnceLock;

use super::folders;

/// A function that the loaded library lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing(pub(crate) &'static str);

macro_rules! functions {
    ($symbol:path; $($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {$(
        $(#[$doc])*
        /// # Safety
        /// As the function's own documentation asks.
        #[allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
        pub(crate) unsafe fn $name($($arg: $ty),*) -> Result<u32, Missing> {
            type Function = unsafe extern "C" fn($($ty),*) -> u32;
            static FOUND: OnceLock<Option<Function>> = OnceLock::new();
            // SAFETY: the signature is the one of the library's header.
            match FOUND.get_or_init(|| unsafe { $symbol(stringify!($name)) }) {
                // SAFETY: handed on to the caller.
                Some(function) => Ok(unsafe { function($($arg),*) }),
                None => Err(Missing(stringify!($name))),
            }
        }
    )*};
}

#[allow(non_snake_case, reason = "the driver's own names")]
pub(crate) mod cu;
#[allow(non_snake_case, reason = "the driver's own names")]
pub(crate) mod rtc;

/// The driver's library, once, if it is there.
fn driver() -> Option<&'static libloading::Library> {
    static THERE: OnceLock<bool> = OnceLock::new();
    // SAFETY: loading libcuda runs its initialisers only.
    let there = *THERE.get_or_init(|| unsafe { cudarc::driver::sys::is_culib_present() });
    // SAFETY: as above; it was loaded a moment ago, so this finds it and does not panic.
    there.then(|| unsafe { cudarc::driver::sys::culib() })
}

/// The run-time compiler's library, once, if it is there.
fn nvrtc() -> Option<&'static libloading::Library> {
    static THERE: OnceLock<bool> = OnceLock::new();
    let there = *THERE.get_or_init(|| {
        folders::preload_nvrtc();
        // SAFETY: as for the driver's library.
        unsafe { cudarc::nvrtc::sys::is_culib_present() }
    });
    // SAFETY: as for the driver's library.
    there.then(|| unsafe { cudarc::nvrtc::sys::culib() })
}

/// Whether the driver's library can be loaded.
pub(crate) fn has_driver() -> bool {
    LOOK_UP.get().is_some() || driver().is_some()
}

/// Finds a function of the driver by its name; null for one that it lacks.
pub type LookUp = fn(&std::ffi::CStr) -> *mut std::ffi::c_void;

static LOOK_UP: OnceLock<LookUp> = OnceLock::new();

/// Has the driver's functions found so, and not in the library that the loader finds: for who stands before it. Called before the first GPU is
/// opened; a later call changes nothing.
#[doc(hidden)]
pub fn find_driver_by(look_up: LookUp) {
    let _ = LOOK_UP.set(look_up);
}

/// Whether the run-time compiler's library can be loaded.
pub(crate) fn has_nvrtc() -> bool {
    nvrtc().is_some()
}

/// # Safety
/// `F` is the function pointer type of `name`.
unsafe fn driver_symbol<F: Copy>(name: &str) -> Option<F> {
    if let Some(look_up) = LOOK_UP.get() {
        let name = std::ffi::CString::new(name).ok()?;
        let found = Some(look_up(&name)).filter(|found| !found.is_null())?;
        // SAFETY: the caller's promise: a function pointer, of an address's size.
        return Some(unsafe { std::mem::transmute_copy(&found) });
    }
    // SAFETY: the caller's promise. The library is never unloaded, so the pointer stays good.
    unsafe { driver()?.get::<F>(name.as_bytes()).ok().map(|symbol| *symbol) }
}

/// # Safety
/// `F` is the function pointer type of `name`.
unsafe fn nvrtc_symbol<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: as in `driver_symbol`.
    unsafe { nvrtc()?.get::<F>(name.as_bytes()).ok().map(|symbol| *symbol) }
}

/// A library's string.
///
/// # Safety
/// `text` is null or points to a string that ends with a zero byte.
pub(crate) unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}
