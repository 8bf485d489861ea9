//! Functions of the program's that the driver runs on the host, in the order of a stream. What one may touch is there when it begins: it waits for
//! nothing, or what is behind it would wait for it, and it for that. What it writes is copied to the GPU when it ends.

use std::ffi::{c_int, c_void};

use crate::driver::{SUCCESS, Status};
use crate::{driver, faults, state, within};

/// `CUhostFn`, and `CUstreamCallback`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);
pub type StreamCallback = unsafe extern "C" fn(u64, c_int, *mut c_void);

/// `CUDA_HOST_NODE_PARAMS`, and what begins as it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HostNode {
    function: Option<HostFunction>,
    data: *mut c_void,
}

/// One that is on a stream, or in a graph.
struct Wrapped {
    what: What,
    data: *mut c_void,
    /// A graph's: it runs as often as that, and stays.
    stays: bool,
}

#[derive(Clone, Copy)]
enum What {
    Function(HostFunction),
    Callback(StreamCallback),
}

/// A host function is put on a stream, by `call` in place of the program's own call.
fn put(what: What, data: *mut c_void, stream: u64, call: impl FnOnce(*mut c_void) -> Status) -> Status {
    let stays = driver::is_captured(stream);
    let wrapped = Box::into_raw(Box::new(Wrapped { what, data, stays }));
    let status = match stays {
        true => {
            within::note_node();
            call(wrapped.cast())
        }
        false => state::put_function(stream, || call(wrapped.cast())),
    };
    if status != SUCCESS {
        // SAFETY: the driver has not taken it.
        drop(unsafe { Box::from_raw(wrapped) });
    }
    status
}

/// The driver's `cuLaunchHostFunc`, which is `call`.
pub fn launch(
    function: HostFunction,
    data: *mut c_void,
    stream: u64,
    call: impl FnOnce(HostFunction, *mut c_void) -> Status,
) -> Status {
    put(What::Function(function), data, stream, |wrapped| call(run, wrapped))
}

/// The driver's `cuStreamAddCallback`, which is `call`.
pub fn add_callback(
    function: StreamCallback,
    data: *mut c_void,
    stream: u64,
    call: impl FnOnce(StreamCallback, *mut c_void) -> Status,
) -> Status {
    put(What::Callback(function), data, stream, |wrapped| {
        call(run_callback, wrapped)
    })
}

/// A graph gets a host function, by `call`.
///
/// # Safety
/// `params` is null or the program's description.
pub unsafe fn add_node(params: *const HostNode, call: impl FnOnce(*const HostNode) -> Status) -> Status {
    // SAFETY: the caller's promise. No lock is held: reading may fault.
    let Some(HostNode {
        function: Some(function),
        data,
    }) = (unsafe { params.as_ref() }).copied()
    else {
        return call(params);
    };
    let (what, stays) = (What::Function(function), true);
    within::note_node();
    // Nobody says when the last graph with it has gone.
    let wrapped = Box::into_raw(Box::new(Wrapped { what, data, stays }));
    let (function, data) = (Some(run as HostFunction), wrapped.cast());
    call(&HostNode { function, data })
}

unsafe extern "C" fn run(wrapped: *mut c_void) {
    // SAFETY: it was boxed for this, and the driver calls once, or it stays.
    unsafe { run_wrapped(wrapped.cast(), 0, 0) };
}

unsafe extern "C" fn run_callback(stream: u64, status: c_int, wrapped: *mut c_void) {
    // SAFETY: as above.
    unsafe { run_wrapped(wrapped.cast(), stream, status) };
}

/// # Safety
/// `wrapped` is one of `put`'s or `add_node`'s, which nobody else has, or nobody frees.
unsafe fn run_wrapped(wrapped: *mut Wrapped, stream: u64, status: c_int) {
    // SAFETY: the caller's promise.
    let (what, data) = unsafe {
        let Wrapped { what, data, stays } = *wrapped;
        if !stays {
            drop(Box::from_raw(wrapped));
        }
        (what, data)
    };
    // SAFETY: the program gave both.
    let touched = within::within(|| unsafe {
        match what {
            What::Function(function) => function(data),
            What::Callback(function) => function(stream, status, data),
        }
    });
    if touched {
        // Before what is behind it on its stream runs.
        faults::close();
    }
}
