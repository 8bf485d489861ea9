//! Functions of the program's that the driver runs on the host, in the order of a stream. One that touches managed memory cannot wait for all
//! launches: those behind it wait for it. So it waits for what was there before it, and what it writes is copied to the GPU when it ends.

use std::ffi::{c_int, c_void};

use parking_lot::Mutex;

use crate::driver::{SUCCESS, Status};
use crate::resident::Marks;
use crate::within::{self, Call};
use crate::{driver, faults, state, window};

/// `CUhostFn`, and `CUstreamCallback`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);
pub type StreamCallback = unsafe extern "C" fn(u64, c_int, *mut c_void);

/// One that is on a stream.
struct Wrapped {
    what: What,
    data: *mut c_void,
    call: Call,
}

#[derive(Clone, Copy)]
enum What {
    Function(HostFunction),
    Callback(StreamCallback),
}

/// The events of those that have ended: a host function may not call the driver.
static ENDED: Mutex<Vec<Marks>> = Mutex::new(Vec::new());

/// A host function is put on a stream, by `call` in place of the program's own call.
fn put(
    what: What,
    data: *mut c_void,
    stream: u64,
    own: impl FnOnce() -> Status,
    call: impl FnOnce(*mut c_void) -> Status,
) -> Status {
    ENDED.lock().clear();
    if !window::is_there() || driver::is_captured(stream) {
        return own();
    }
    let Some(before) = state::lock().marks() else {
        return own();
    };
    let call_of = Call { before };
    let wrapped = Box::into_raw(Box::new(Wrapped {
        what,
        data,
        call: call_of,
    }));
    within::begin();
    let status = call(wrapped.cast());
    if status != SUCCESS {
        // SAFETY: the driver has not taken it.
        drop(unsafe { Box::from_raw(wrapped) });
        within::end();
    }
    status
}

/// The driver's `cuLaunchHostFunc`, which is `call`.
pub fn launch(
    function: HostFunction,
    data: *mut c_void,
    stream: u64,
    call: impl Fn(HostFunction, *mut c_void) -> Status,
) -> Status {
    let own = || call(function, data);
    put(What::Function(function), data, stream, own, |wrapped| {
        call(run, wrapped)
    })
}

/// The driver's `cuStreamAddCallback`, which is `call`.
pub fn add_callback(
    function: StreamCallback,
    data: *mut c_void,
    stream: u64,
    call: impl Fn(StreamCallback, *mut c_void) -> Status,
) -> Status {
    let own = || call(function, data);
    put(What::Callback(function), data, stream, own, |wrapped| {
        call(run_callback, wrapped)
    })
}

unsafe extern "C" fn run(wrapped: *mut c_void) {
    // SAFETY: it was boxed for this, and the driver calls once.
    unsafe { run_wrapped(wrapped, 0, 0) };
}

unsafe extern "C" fn run_callback(stream: u64, status: c_int, wrapped: *mut c_void) {
    // SAFETY: as above.
    unsafe { run_wrapped(wrapped, stream, status) };
}

/// # Safety
/// `wrapped` is one of `put`'s, which nobody else has.
unsafe fn run_wrapped(wrapped: *mut c_void, stream: u64, status: c_int) {
    // SAFETY: the caller's promise.
    let Wrapped { what, data, call } = *unsafe { Box::from_raw(wrapped.cast::<Wrapped>()) };
    // SAFETY: the program gave both.
    within::within(&call, || unsafe {
        match what {
            What::Function(function) => function(data),
            What::Callback(function) => function(stream, status, data),
        }
    });
    // Before what is behind it on its stream runs.
    faults::close();
    ENDED.lock().push(call.before);
    within::end();
}
