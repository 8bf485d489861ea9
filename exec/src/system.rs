//! The C library's functions that this library has, too: an address of managed memory that a system call gets makes no fault, but an error. So the
//! memory is made right before. And what the program says of the signal of faults is kept, not done.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::resident::FIRST_BYTES;
use crate::{driver, faults, state, window, within};

/// Makes memory right that the system, or the C library, reads or writes.
fn touch(at: *const c_void, bytes: usize, writes: bool) {
    let addr = at as u64;
    if !window::touches(addr, bytes as u64) {
        return;
    }
    let part = addr..addr.saturating_add(bytes as u64);
    match within::is_running() {
        // Which may not call the driver, nor wait for what is behind it.
        true => fault(part, writes),
        false => state::settled(&part).open(&part, writes),
    }
}

/// Makes memory right by accesses that fault.
fn fault(part: Range<u64>, writes: bool) {
    let last = part.end - 1;
    let places = part.step_by(FIRST_BYTES as usize).chain([last]);
    for place in places.filter(|place| window::touches(*place, 1)) {
        let byte: *mut u8 = std::ptr::with_exposed_provenance_mut(place as usize);
        // SAFETY: the program's own memory, which it has just named.
        unsafe {
            let value = byte.read_volatile();
            if writes {
                byte.write_volatile(value);
            }
        }
    }
}

/// So often a call is made that a launch keeps from its memory.
const AGAIN: u32 = 1000;

/// Whether a call failed since a launch has closed the memory while it waited.
fn is_closed(answer: isize, at: *const c_void, bytes: usize) -> bool {
    // SAFETY: the thread's own.
    let error = || unsafe { *libc::__errno_location() };
    answer == -1 && window::touches(at as u64, bytes as u64) && error() == libc::EFAULT
}

/// Functions that get memory: what of their arguments it is, how long, and whether it is written.
macro_rules! with_memory {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $answer:ty, $at:expr, $bytes:expr, $writes:literal;)*) => {$(
        #[doc = concat!("The C library's `", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As of the C library's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $answer {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let mut next = NEXT.load(Ordering::Relaxed);
            if next.is_null() {
                let name = concat!(stringify!($name), "\0");
                next = driver::next(std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default());
                NEXT.store(next, Ordering::Relaxed);
            }
            // SAFETY: the C library's function of that name has these arguments.
            let next = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $answer>(next) };
            for again in (0..AGAIN).rev() {
                touch($at.cast(), $bytes, $writes);
                // SAFETY: handed on.
                let answer = unsafe { next($($arg),*) };
                if again == 0 || !is_closed(answer as isize, $at.cast(), $bytes) {
                    return answer;
                }
            }
            unreachable!("the last time returns")
        }
    )*};
}

with_memory! {
    read(file: c_int, to: *mut c_void, bytes: usize) -> isize, to, bytes, true;
    pread(file: c_int, to: *mut c_void, bytes: usize, at: i64) -> isize, to, bytes, true;
    pread64(file: c_int, to: *mut c_void, bytes: usize, at: i64) -> isize, to, bytes, true;
    fread(to: *mut c_void, size: usize, count: usize, file: *mut c_void) -> usize, to, size.saturating_mul(count), true;
    recv(socket: c_int, to: *mut c_void, bytes: usize, flags: c_int) -> isize, to, bytes, true;
    write(file: c_int, from: *const c_void, bytes: usize) -> isize, from, bytes, false;
    pwrite(file: c_int, from: *const c_void, bytes: usize, at: i64) -> isize, from, bytes, false;
    pwrite64(file: c_int, from: *const c_void, bytes: usize, at: i64) -> isize, from, bytes, false;
    fwrite(from: *const c_void, size: usize, count: usize, file: *mut c_void) -> usize, from, size.saturating_mul(count), false;
    send(socket: c_int, from: *const c_void, bytes: usize, flags: c_int) -> isize, from, bytes, false;
}

/// The C library's `writev`, which C++ streams use.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn writev(file: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    for place in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: so many parts are there.
        let part = unsafe { *parts.add(place) };
        touch(part.iov_base, part.iov_len, false);
    }
    // SAFETY: the C library's function of that name has these arguments.
    unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, *const libc::iovec, c_int) -> isize>(
            driver::next(c"writev"),
        )(file, parts, count)
    }
}

/// The C library's `sigaction`.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: handed on.
    unsafe { faults::sigaction(signal, new, old) }
}

/// The C library's `signal`.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: zeros are a valid value of it.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: handed on.
    match unsafe { faults::sigaction(signal, &raw const new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}
