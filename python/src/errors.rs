//! The runtime's errors as Python exceptions, whose classes are defined in `gpuvm.errors`.

use std::error::Error as _;

use gpuvm::Error;
use pyo3::{
    exceptions::{PyRuntimeError, PyTypeError},
    prelude::*,
    types::PyType,
};

/// An exception of the class `name` of `gpuvm.errors`.
fn raise(name: &str, message: String) -> PyErr {
    Python::attach(|py| {
        let class = py.import("gpuvm.errors").and_then(|errors| errors.getattr(name));
        match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
            Ok(class) => PyErr::from_type(class, message),
            // The extension alone, without its package, as when kernels are compiled for a wheel.
            Err(_) => PyRuntimeError::new_err(message),
        }
    })
}

/// `ForkError`.
pub fn fork(message: String) -> PyErr {
    raise("ForkError", message)
}

/// `ClosedError`.
pub fn closed(message: String) -> PyErr {
    raise("ClosedError", message)
}

/// `ArgumentError`.
pub fn argument(message: String) -> PyErr {
    raise("ArgumentError", message)
}

/// `ArgumentRangeError`.
pub fn argument_range(message: String) -> PyErr {
    raise("ArgumentRangeError", message)
}

/// `LayoutError`.
pub fn layout(message: String) -> PyErr {
    raise("LayoutError", message)
}

/// `FileError`.
pub fn file(message: String) -> PyErr {
    raise("FileError", message)
}

/// `SettingError`.
pub fn setting(message: String) -> PyErr {
    raise("SettingError", message)
}

/// `OutOfRangeError`.
pub fn out_of_range(message: String) -> PyErr {
    raise("OutOfRangeError", message)
}

/// `StreamError`.
pub fn stream(message: String) -> PyErr {
    raise("StreamError", message)
}

/// An error with its causes, in one line each.
pub fn in_full(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(below) = cause {
        let below_text = below.to_string();
        if !text.contains(&below_text) {
            text.push_str(": ");
            text.push_str(&below_text);
        }
        cause = below.source();
    }
    text
}

/// The exception for an error of the runtime.
pub fn of(error: Error) -> PyErr {
    match error {
        // As Python says of a keyword that there is not.
        Error::NoSetting { .. } => PyTypeError::new_err(error.to_string()),
        error => raise(error.kind().python_class(), in_full(&error)),
    }
}

/// Results of the runtime as Python's.
pub trait Raised<T> {
    /// The value.
    ///
    /// # Errors
    /// The exception for the error.
    fn raised(self) -> PyResult<T>;
}

impl<T> Raised<T> for gpuvm::Result<T> {
    fn raised(self) -> PyResult<T> {
        self.map_err(of)
    }
}
