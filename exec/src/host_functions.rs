//! Functions of the program's that the driver runs on the host, in the order of a stream. One that touches managed memory cannot wait for all
//! launches: those behind it wait for it. So it waits for what was there before it, and what it writes is copied to the GPU when it ends.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::driver::{SUCCESS, Status};
use crate::resident::Marks;
use crate::{driver, faults, state, window};

/// `CUhostFn`, and `CUstreamCallback`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);
pub type StreamCallback = unsafe extern "C" fn(u64, c_int, *mut c_void);

/// One that is on a stream.
pub struct Call {
    what: What,
    data: *mut c_void,
    /// What was put on streams before it.
    pub before: Marks,
}

#[derive(Clone, Copy)]
enum What {
    Function(HostFunction),
    Callback(StreamCallback),
}

thread_local! {
    /// The one that this thread runs.
    static RUNNING: Cell<*const Call> = const { Cell::new(std::ptr::null()) };
}

/// Those that have not ended.
static PENDING: AtomicU32 = AtomicU32::new(0);
/// The events of those that have: a host function may not call the driver.
static ENDED: Mutex<Vec<Marks>> = Mutex::new(Vec::new());

/// Whether one has not ended. Who waits for the GPU then must not hold the state's lock.
pub fn are_pending() -> bool {
    // Acquire: pairs with the release in `end`.
    PENDING.load(Ordering::Acquire) != 0
}

/// The one that this thread runs; null for none.
pub fn running() -> *const Call {
    RUNNING.get()
}

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
    let wrapped = Box::into_raw(Box::new(Call { what, data, before }));
    PENDING.fetch_add(1, Ordering::Relaxed);
    let status = call(wrapped.cast());
    if status != SUCCESS {
        // SAFETY: the driver has not taken it.
        drop(unsafe { Box::from_raw(wrapped) });
        PENDING.fetch_sub(1, Ordering::Release);
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
    let call = unsafe { Box::from_raw(wrapped.cast::<Call>()) };
    RUNNING.set(&raw const *call);
    // SAFETY: the program gave both.
    unsafe {
        match call.what {
            What::Function(function) => function(call.data),
            What::Callback(function) => function(stream, status, call.data),
        }
    }
    RUNNING.set(std::ptr::null());
    // Before what is behind it on its stream runs.
    faults::close();
    ENDED.lock().push(call.before);
    PENDING.fetch_sub(1, Ordering::Release);
}
