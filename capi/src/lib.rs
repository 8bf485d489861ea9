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
pub mod guard;
pub mod handles;
pub mod launch;
pub mod module;
pub mod precompiled;
mod raw;
pub mod region;
pub mod slots;
pub mod tiered;
pub mod vm;

use std::ffi::c_char;

pub use code::gpuvm_code;

/// The number's name, such as `GPUVM_CODE_OUT_OF_RANGE`. It stays for good.
#[unsafe(no_mangle)]
pub extern "C" fn gpuvm_code_name(code: i32) -> *const c_char {
    code::name(code).unwrap_or(c"GPUVM_CODE_UNKNOWN").as_ptr()
}

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
