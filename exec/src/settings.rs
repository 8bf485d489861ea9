//! What `gpuvm exec` hands over, in variables of the environment.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use gpuvm_ptx::exec;

/// Page size where none is said.
const PAGE_BYTES: u64 = 64 << 10;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The page size.
pub fn page_bytes() -> u64 {
    variable(exec::PAGE_SIZE)
        .and_then(|text| text.parse().ok())
        .unwrap_or(PAGE_BYTES)
}

/// Bytes of frames, if they were said.
pub fn frame_bytes() -> Option<u64> {
    variable(exec::FRAMES)?.parse().ok()
}

/// Of the GPU's free memory such a part is left for what the program asks for later.
const LEFT_FREE: u64 = 10;

/// What of the GPU's free memory managed memory may take.
pub fn usable(free: u64) -> u64 {
    free - free / LEFT_FREE
}

/// Whether times are printed at the end.
pub fn is_verbose() -> bool {
    static SAID: OnceLock<bool> = OnceLock::new();
    *SAID.get_or_init(|| variable(exec::VERBOSE).is_some())
}

/// Whether nothing is printed at the end.
pub fn is_quiet() -> bool {
    variable(exec::QUIET).is_some()
}

/// The option that says how many registers threads have at most, and its value: null where that is not said.
pub fn registers_option() -> (c_int, *mut c_void) {
    /// `CU_JIT_MAX_REGISTERS`.
    const MAX_REGISTERS: c_int = 0;
    let most = variable(exec::REGISTERS)
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    (MAX_REGISTERS, std::ptr::without_provenance_mut(most))
}
