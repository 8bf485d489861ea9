//! How calls fail.

use std::ffi::c_int;

/// The result of a call: an errno on failure.
pub type Outcome<T> = Result<T, c_int>;

/// For functions that tell why they failed by `errno`.
pub fn set_errno(errno: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}
