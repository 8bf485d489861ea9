//! gpuvm for C, and for languages that call C: `libgpuvm` and `gpuvm.h`. docs/C.md is the page for its users.
//!
//! A thin face over the untyped core of the crate `gpuvm`. Each function looks its handles up (`handles`), follows the pointers that it
//! was given (`raw`), and turns what comes back into a number and a text (`code`). No panic leaves a function.

#![allow(
    clippy::missing_safety_doc,
    reason = "gpuvm.h begins with what every pointer has to be, once for all functions"
)]
#![allow(non_camel_case_types, reason = "types have their names in C")]

pub mod broadcast;
pub mod buffer;
mod calls;
mod code;
pub mod elastic;
pub mod element;
mod handles;
pub mod launch;
pub mod module;
pub mod precompiled;
mod raw;
pub mod region;
pub mod vm;

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use gpuvm_nic::with_causes;

pub use code::gpuvm_code;
use code::{Failure, Result};

thread_local! {
    /// What the last call that failed in this thread has to say.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// The process that used the library first.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// Runs a function's body: errors become its number and this thread's text, and a panic one of them.
fn guard(body: impl FnOnce() -> Result<()>) -> gpuvm_code {
    let outcome = check_process()
        .and_then(|()| precompiled::check_not_enqueuing())
        .and_then(|()| {
            catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
                let message = message_of(&*panic);
                // Whatever it holds might panic again when it goes.
                std::mem::forget(panic);
                Err(Failure::Panicked { message })
            })
        });
    match outcome {
        Ok(()) => gpuvm_code::Ok,
        Err(failure) => {
            remember(&with_causes(&failure));
            failure.code()
        }
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

/// # Errors
/// [`Failure::Forked`]: in a child nobody runs the threads of the GPU, and locks may be held for ever.
fn check_process() -> Result<()> {
    let this = std::process::id();
    let first = *PROCESS.get_or_init(|| this);
    match this == first {
        true => Ok(()),
        false => Err(Failure::Forked { this, first }),
    }
}

fn remember(text: &str) {
    // A zero would end it early.
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    // A thread that is ending has no place for it any more.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

/// What the last function that failed in this thread has to say: what failed and why, the chain of causes, and what to do. Empty where none
/// has failed. It is the library's, and stays until another function fails in this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn gpuvm_last_error() -> *const c_char {
    let last = LAST_ERROR.try_with(|last| last.borrow().as_ptr());
    last.unwrap_or(c"".as_ptr())
}

/// The number's name, such as `GPUVM_CODE_OUT_OF_RANGE`. It stays for good.
#[unsafe(no_mangle)]
pub extern "C" fn gpuvm_code_name(code: i32) -> *const c_char {
    NAMES
        .get(code as usize)
        .copied()
        .unwrap_or(c"GPUVM_CODE_UNKNOWN")
        .as_ptr()
}

/// By number.
const NAMES: [&CStr; 33] = [
    c"GPUVM_CODE_OK",
    c"GPUVM_CODE_INVALID_HANDLE",
    c"GPUVM_CODE_WRONG_KIND",
    c"GPUVM_CODE_INVALID_POINTER",
    c"GPUVM_CODE_INVALID_TEXT",
    c"GPUVM_CODE_INVALID_VALUE",
    c"GPUVM_CODE_UNAVAILABLE",
    c"GPUVM_CODE_OUT_OF_MEMORY",
    c"GPUVM_CODE_GPU",
    c"GPUVM_CODE_NIC",
    c"GPUVM_CODE_NODE",
    c"GPUVM_CODE_REGION",
    c"GPUVM_CODE_FILE",
    c"GPUVM_CODE_OVERLAP",
    c"GPUVM_CODE_OUT_OF_RANGE",
    c"GPUVM_CODE_PART_OF_AN_ELEMENT",
    c"GPUVM_CODE_ARGUMENTS",
    c"GPUVM_CODE_OTHER_GPU",
    c"GPUVM_CODE_SPANS",
    c"GPUVM_CODE_FAULT",
    c"GPUVM_CODE_STOPPED",
    c"GPUVM_CODE_LOST",
    c"GPUVM_CODE_WRITES_LOST",
    c"GPUVM_CODE_COMPILE",
    c"GPUVM_CODE_NO_KERNEL",
    c"GPUVM_CODE_STILL_RUNS",
    c"GPUVM_CODE_PAUSED",
    c"GPUVM_CODE_BEYOND_MAX",
    c"GPUVM_CODE_DAMAGED",
    c"GPUVM_CODE_STILL_USED",
    c"GPUVM_CODE_FORKED",
    c"GPUVM_CODE_CALLBACK",
    c"GPUVM_CODE_INTERNAL",
];

/// The library's version: major, minor and patch version in its bytes 2, 1 and 0. Compare it with `GPUVM_VERSION` of the header that a
/// program was compiled with: while the major version is 0, the minor versions have to be equal.
#[unsafe(no_mangle)]
pub extern "C" fn gpuvm_version() -> u32 {
    VERSION
}

/// That of this crate.
const VERSION: u32 = number(env!("CARGO_PKG_VERSION_MAJOR")) << 16
    | number(env!("CARGO_PKG_VERSION_MINOR")) << 8
    | number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(digits: &str) -> u32 {
    let (digits, mut value, mut at) = (digits.as_bytes(), 0, 0);
    while at < digits.len() {
        value = value * 10 + (digits[at] - b'0') as u32;
        at += 1;
    }
    value
}

/// The library's version as text, such as `0.1.0`. It stays for good.
#[unsafe(no_mangle)]
pub extern "C" fn gpuvm_version_text() -> *const c_char {
    const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    TEXT.as_ptr().cast()
}
