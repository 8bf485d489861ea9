//! The functions behind this library: the real driver's, and the C library's.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// What CUDA's functions return.
pub type Status = u32;

/// `CUDA_SUCCESS`.
pub const SUCCESS: Status = 0;
/// `CUDA_ERROR_NOT_FOUND`.
pub const NOT_FOUND: Status = 500;

/// `CU_STREAM_PER_THREAD`.
pub const PER_THREAD: u64 = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE`.
pub const PORTABLE: u32 = 1;

type DlSym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The C library's `dlsym`, once somebody has asked for it.
pub static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The version that `dlsym` had when it was new.
const VERSION: &CStr = if cfg!(target_arch = "x86_64") {
    c"GLIBC_2.2.5"
} else {
    c"GLIBC_2.17"
};

/// The C library's `dlsym`. This library has one of its own.
pub fn dlsym() -> DlSym {
    unsafe extern "C" {
        fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void;
    }
    let mut found = DLSYM.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: two strings that end.
        found = unsafe { dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), VERSION.as_ptr()) };
        if found.is_null() {
            // Nothing can be loaded without it.
            std::process::abort();
        }
        DLSYM.store(found, Ordering::Relaxed);
    }
    // SAFETY: it is that function.
    unsafe { std::mem::transmute::<*mut c_void, DlSym>(found) }
}

/// A function of the libraries that the loader has behind this one; null if none has it.
pub fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a string that ends. Whoever calls it, this function does: so what comes behind this library is found.
    unsafe { dlsym()(libc::RTLD_NEXT, name.as_ptr()) }
}

/// A function of the driver; null if there is no driver, or it has no such function.
pub fn find(name: &CStr) -> *mut c_void {
    let linked = next(name);
    if !linked.is_null() {
        return linked;
    }
    static DRIVER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let mut driver = DRIVER.load(Ordering::Relaxed);
    if driver.is_null() {
        const FLAGS: c_int = libc::RTLD_LAZY | libc::RTLD_LOCAL;
        // SAFETY: loading the driver runs its initialisers only. The program has mostly loaded it by now, and then that one is meant.
        driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), FLAGS) };
        DRIVER.store(driver, Ordering::Relaxed);
    }
    match driver.is_null() {
        true => driver,
        // SAFETY: a loaded library and a string that ends.
        false => unsafe { dlsym()(driver, name.as_ptr()) },
    }
}

/// Calls a function of the driver, which is [`NOT_FOUND`] where it has none.
macro_rules! call {
    ($name:ident($($value:expr => $ty:ty),* $(,)?)) => {{
        static FOUND: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let name = concat!(stringify!($name), "\0");
        let found = *FOUND.get_or_init(|| {
            let name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
            $crate::driver::find(name).expose_provenance()
        });
        match found {
            0 => $crate::driver::NOT_FOUND,
            found => {
                let found: *mut std::ffi::c_void = std::ptr::with_exposed_provenance_mut(found);
                type Function = unsafe extern "C" fn($($ty),*) -> $crate::driver::Status;
                // SAFETY: the driver's function of that name has these arguments; the block around says why they are right.
                (std::mem::transmute::<*mut std::ffi::c_void, Function>(found))($($value),*)
            }
        }
    }};
}
pub(crate) use call;

/// The context that is this thread's current one; 0 for none.
pub fn current_context() -> usize {
    let mut context: *mut c_void = std::ptr::null_mut();
    // SAFETY: an out-value.
    match unsafe { call!(cuCtxGetCurrent(&raw mut context => *mut *mut c_void)) } {
        SUCCESS => context.expose_provenance(),
        _ => 0,
    }
}

/// Makes a context that of this thread, which it was a moment ago, or is of the program's memory.
pub fn set_current_context(context: usize) {
    if context != current_context() {
        let context: *mut c_void = std::ptr::with_exposed_provenance_mut(context);
        // SAFETY: it lives, as above, or the driver refuses it.
        let _ = unsafe { call!(cuCtxSetCurrent(context => *mut c_void)) };
    }
}

/// Does something that may change the context of this thread, and puts that back.
pub fn from_context<T>(act: impl FnOnce() -> T) -> T {
    let before = current_context();
    let done = act();
    set_current_context(before);
    done
}

/// The GPU of the current context.
pub fn current_device() -> Option<i32> {
    let mut device: c_int = 0;
    // SAFETY: an out-value.
    let status = unsafe { call!(cuCtxGetDevice(&raw mut device => *mut c_int)) };
    (status == SUCCESS).then_some(device)
}

/// The GPU of the current context, and whether that is its primary one, which the CUDA runtime uses.
pub fn current_gpu() -> Option<(i32, bool)> {
    let (device, mut primary) = (current_device()?, std::ptr::null_mut());
    // SAFETY: an out-value. The primary context is in use by then, or the other one is: it is let go at once.
    unsafe {
        if call!(cuDevicePrimaryCtxRetain(&raw mut primary => *mut *mut c_void, device => c_int)) != SUCCESS {
            return None;
        }
        let _ = call!(cuDevicePrimaryCtxRelease_v2(device => c_int));
    }
    Some((device, primary.expose_provenance() == current_context()))
}

/// The architecture of a GPU, as in `compute_90`.
pub fn architecture(device: i32) -> Option<u32> {
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
    const NUMBERS: [c_int; 2] = [75, 76];
    let [major, minor] = NUMBERS.map(|number| {
        let mut value = 0;
        // SAFETY: an out-value.
        let status =
            unsafe { call!(cuDeviceGetAttribute(&raw mut value => *mut c_int, number => c_int, device => c_int)) };
        (status == SUCCESS).then_some(value)
    });
    u32::try_from(10 * major? + minor?).ok()
}

/// Bytes that the current GPU has free, or the driver's error.
pub fn free_bytes() -> Result<u64, Status> {
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: out-values.
    match unsafe { call!(cuMemGetInfo_v2(&raw mut free => *mut usize, &raw mut total => *mut usize)) } {
        SUCCESS => Ok(free as u64),
        status => Err(status),
    }
}

/// Captures that the program has begun and not ended.
static CAPTURES: AtomicU32 = AtomicU32::new(0);

/// The program has begun one, or ended one.
pub fn note_capture(begins: bool) {
    // Relaxed: who asks is not ordered with who captures. One that was broken off is counted for good, which costs time alone.
    let _ = CAPTURES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |captures| match begins {
        true => captures.checked_add(1),
        false => captures.checked_sub(1),
    });
}

/// Whether some stream may be captured. No whole context may be waited for then.
pub fn somebody_captures() -> bool {
    CAPTURES.load(Ordering::Relaxed) != 0
}

/// Whether a stream is being captured into a graph: what is put on it does not run now.
pub fn is_captured(stream: u64) -> bool {
    let mut state: c_int = 0;
    let stream: *mut c_void = std::ptr::with_exposed_provenance_mut(stream as usize);
    // SAFETY: an out-value, and a stream that the program has just named. The legacy stream refuses while others are captured: then it is not.
    let status = unsafe { call!(cuStreamIsCapturing(stream => *mut c_void, &raw mut state => *mut c_int)) };
    status == SUCCESS && state != 0
}

/// Does what waits or copies while the program may capture a stream, which forbids that where it does not concern it, too.
pub fn unhindered<T>(act: impl FnOnce() -> T) -> T {
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`.
    const RELAXED: c_int = 2;
    if !somebody_captures() {
        return act();
    }
    let mut mode = RELAXED;
    // SAFETY: a value that is read and written. Older drivers have it, too, or nothing comes of it.
    let mut exchange = || unsafe { call!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut c_int)) };
    let exchanged = exchange() == SUCCESS;
    let done = act();
    if exchanged {
        exchange();
    }
    done
}

/// Waits for all work of the current context.
pub fn synchronize() -> Status {
    // SAFETY: it has no arguments.
    unsafe { call!(cuCtxSynchronize()) }
}
