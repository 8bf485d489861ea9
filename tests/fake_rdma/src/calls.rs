//! How calls of C are run.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::control::breach;
use crate::errno::{Outcome, set_errno};

/// Runs a call that returns a pointer, and sets errno where it fails.
pub fn pointer<T>(call: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    match run(call) {
        Ok(pointer) => pointer,
        Err(errno) => {
            set_errno(errno);
            std::ptr::null_mut()
        }
    }
}

/// Runs a call that returns 0 or an errno.
pub fn status(call: impl FnOnce() -> Outcome<()>) -> c_int {
    match run(call) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno
        }
    }
}

/// A panic must not cross C.
fn run<T>(call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(outcome) => outcome,
        Err(_) => {
            breach("a call panicked".to_owned());
            Err(libc::EIO)
        }
    }
}
