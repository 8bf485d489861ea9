//! What calls of the library return.

use std::io;

use crate::NicError;
use crate::mlx5::dv::{DevxLibrary, Mlx5Dv};

pub(super) fn last_error() -> io::Error {
    let error = io::Error::last_os_error();
    // Some failures leave errno as it was.
    match error.raw_os_error() {
        Some(0) => io::Error::from_raw_os_error(libc::EIO),
        _ => error,
    }
}

pub(super) fn from_status(status: libc::c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        // These functions return the error or -1 and set errno.
        -1 => Err(last_error()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

pub(super) fn library<'a>(dv: &'a Mlx5Dv, device: &str) -> Result<&'a DevxLibrary, NicError> {
    dv.devx().ok_or_else(|| NicError::NoDevice {
        reason: format!("queues of {device} cannot be made by DEVX: it was opened without"),
    })
}
