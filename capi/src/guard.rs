//! What every function does around its body: it looks whether it may run, catches panics, and keeps what an error says.

use std::{
    cell::{Cell, RefCell},
    ffi::{CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use gpuvm_nic::with_causes;

use crate::code::{Failure, Result, gpuvm_code};

thread_local! {
    /// What the last call that failed in this thread has to say.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    /// Whether this thread is in the callback of a launch.
    static ENQUEUING: Cell<bool> = const { Cell::new(false) };
}

/// The process that used the library first.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// Runs a function's body: errors become its number and this thread's text, and a panic one of them.
pub fn guard(body: impl FnOnce() -> Result<()>) -> gpuvm_code {
    let outcome = check_process().and_then(|()| check_not_enqueuing()).and_then(|()| {
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
            let message = message_of(&*panic);
            // Whatever it holds might panic again when it goes.
            std::mem::forget(panic);
            Err(Failure::Panicked { message })
        })
    });
    match outcome {
        Ok(()) => gpuvm_code::Ok,
        Err(failure) => {
            remember(&with_causes(&failure));
            failure.code()
        }
    }
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked").to_owned()
}

/// # Errors
/// [`Failure::Forked`]: in a child nothing runs the threads of the GPU, and locks may be held for ever.
fn check_process() -> Result<()> {
    let this = std::process::id();
    let first = *PROCESS.get_or_init(|| this);
    match this == first {
        true => Ok(()),
        false => Err(Failure::Forked { this, first }),
    }
}

/// # Errors
/// [`Failure::Enqueuing`] in a launch's callback: what it asks for would wait for the launch, which waits for the callback.
fn check_not_enqueuing() -> Result<()> {
    match ENQUEUING.get() {
        true => Err(Failure::Enqueuing),
        false => Ok(()),
    }
}

/// Calls a launch's callback, in which this thread calls nothing of the library.
pub fn enqueuing<R>(callback: impl FnOnce() -> R) -> R {
    ENQUEUING.set(true);
    let value = callback();
    ENQUEUING.set(false);
    value
}

fn remember(text: &str) {
    // A zero would end it early.
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    // A thread that is ending has no place for it any more.
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = text);
}

/// What the last function that failed in this thread has to say: what failed and why, the chain of causes, and what to do. Empty where none
/// has failed. It is the library's, and stays until another function fails in this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn gpuvm_last_error() -> *const c_char {
    let last = LAST_ERROR.try_with(|last| last.borrow().as_ptr());
    last.unwrap_or(c"".as_ptr())
}
