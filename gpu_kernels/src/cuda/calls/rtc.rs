//! NVRTC's functions.

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

use cudarc::nvrtc::sys::nvrtcProgram;

use super::{Missing, nvrtc_symbol, text};

functions! { nvrtc_symbol;
    nvrtcVersion(major: *mut c_int, minor: *mut c_int);
    nvrtcGetNumSupportedArchs(count: *mut c_int);
    nvrtcGetSupportedArchs(archs: *mut c_int);
    nvrtcCreateProgram(
        program: *mut nvrtcProgram, source: *const c_char, name: *const c_char, count: c_int,
        headers: *const *const c_char, names: *const *const c_char,
    );
    nvrtcDestroyProgram(program: *mut nvrtcProgram);
    nvrtcAddNameExpression(program: nvrtcProgram, name: *const c_char);
    nvrtcCompileProgram(program: nvrtcProgram, count: c_int, options: *const *const c_char);
    nvrtcGetProgramLogSize(program: nvrtcProgram, bytes: *mut usize);
    nvrtcGetProgramLog(program: nvrtcProgram, log: *mut c_char);
    nvrtcGetLoweredName(program: nvrtcProgram, name: *const c_char, lowered: *mut *const c_char);
    nvrtcGetCUBINSize(program: nvrtcProgram, bytes: *mut usize);
    nvrtcGetCUBIN(program: nvrtcProgram, image: *mut c_char);
    nvrtcGetPTXSize(program: nvrtcProgram, bytes: *mut usize);
    nvrtcGetPTX(program: nvrtcProgram, image: *mut c_char);
}

/// NVRTC's text for a result.
pub(crate) fn error_text(result: u32) -> String {
    type Function = unsafe extern "C" fn(u32) -> *const c_char;
    // SAFETY: the signature is the one of nvrtc.h; its enumeration is an unsigned word.
    let Some(function) = (unsafe { nvrtc_symbol::<Function>("nvrtcGetErrorString") }) else {
        return format!("NVRTC_ERROR {result}");
    };
    // SAFETY: it takes any number and returns a constant string or null.
    unsafe { text(function(result)) }.unwrap_or_else(|| format!("NVRTC_ERROR {result}"))
}
