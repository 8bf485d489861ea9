//! What a Python object holds of the runtime: it may be closed, and a forked process must not touch it.

use std::{mem::ManuallyDrop, process, sync::Arc};

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::{apart::Apart, errors};

/// A value of the runtime behind a Python object.
pub struct Slot<T: Send + Sync> {
    /// What messages call it.
    what: String,
    /// The process that made it.
    pid: u32,
    value: ManuallyDrop<Mutex<Option<Arc<T>>>>,
}

/// Fails in a process that was forked off the one that `pid` is.
///
/// # Errors
/// `ForkError`.
pub fn check_process(what: &str, pid: u32) -> PyResult<()> {
    match process::id() {
        now if now == pid => Ok(()),
        now => Err(errors::fork(format!(
            "{what} was made by process {pid}, and this is its fork {now}: threads of the GPU and the NIC do not survive a fork; make a \
             Vm in the child, or start the child by `spawn`"
        ))),
    }
}

impl<T: Send + Sync> Slot<T> {
    /// What messages call that which all others belong to.
    pub const VM: &'static str = "the Vm";

    /// With a value, which messages call `what`.
    pub fn new(what: impl Into<String>, value: T) -> Self {
        Self {
            what: what.into(),
            pid: process::id(),
            value: ManuallyDrop::new(Mutex::new(Some(Arc::new(value)))),
        }
    }

    /// Its identity among what launches are given.
    pub fn id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// What messages call it.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The value.
    ///
    /// # Errors
    /// `ClosedError`, `ForkError`.
    pub fn get(&self) -> PyResult<Arc<T>> {
        // First: in a fork the lock may be held by a thread that is not there.
        check_process(&self.what, self.pid)?;
        let or_its = if self.what == Self::VM { "" } else { ", or its Vm was" };
        let closed = || errors::closed(format!("{} was closed{or_its}", self.what));
        self.value.lock().as_ref().map(Arc::clone).ok_or_else(closed)
    }

    /// Takes the value out; none if it was closed before.
    ///
    /// # Errors
    /// `ForkError`.
    pub fn take(&self) -> PyResult<Option<Arc<T>>> {
        check_process(&self.what, self.pid)?;
        Ok(self.value.lock().take())
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        process::id() == self.pid && self.value.lock().is_none()
    }
}

impl<T: Send + Sync> Drop for Slot<T> {
    fn drop(&mut self) {
        if process::id() != self.pid {
            // Its end would wait for threads that this process does not have.
            return;
        }
        let Some(value) = self.value.get_mut().take() else {
            return;
        };
        // A region waits for its launches: other Python threads go on meanwhile. Without an interpreter nothing waits for it.
        let mut value = Some(value);
        Python::try_attach(|py| {
            let value = value.take();
            py.apart(|| drop(value));
        });
    }
}
