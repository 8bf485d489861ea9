//! A fake of libibverbs.so.1 and librdmacm.so.1 whose one device, `loop0`, connects queue pairs of one process.
//!
//! It exports, from one shared library, the functions of both that `gpuvm_memory_node` uses: the connection manager, reliable-connected queue
//! pairs with SEND, READ and WRITE, protection domains and keys, completion queues and their descriptors. A request is done when it is posted, by
//! the thread that posts it. Keys, bounds, rights and domains are checked as a device checks them; a receiver without a buffer
//! makes its sender wait; a peer that is gone is retries exceeded; a completion that finds no room is lost, and counted
//! (`loopback_rdma_overruns`).
//!
//! To put it in the libraries' place, give the shared library both names, by links to one file, in a folder, and name the folder in
//! `LD_LIBRARY_PATH` when a program starts. All peers are threads of that program. Addresses are IPv4, and any may be bound.

mod manager;
mod verbs;
mod world;

use std::ffi::c_int;

/// The result of a call: an errno on failure.
type Outcome<T> = Result<T, c_int>;

fn set_errno(errno: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns a pointer, or null with errno.
fn pointer<T>(found: Outcome<*mut T>) -> *mut T {
    found.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// Returns 0, or an errno as verbs do.
fn status(done: Outcome<()>) -> c_int {
    done.err().unwrap_or(0)
}

/// Returns 0, or -1 with errno as the connection manager does.
fn success(done: Outcome<()>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
