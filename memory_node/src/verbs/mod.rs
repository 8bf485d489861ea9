//! Ordinary verbs: what a node and the host side of a client need of libibverbs and librdmacm, with owners that free in
//! the right order.

mod cm;
mod device;
mod host;
mod queue;

pub use cm::{Channel, ConnectParameters, Event, EventKind, Id};
pub use device::{
    CompletionQueue, Context, Domain, Region, RegionAccess, device_addresses, devices, locked_memory_max, no_device,
};
pub use host::HostQueue;
pub use queue::{Completion, CompletionStatus, JoinQueue, Request, VerbsQueue, join, poll as poll_completions};

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use gpuvm_nic::rdma_sys as sys;

use crate::error::NodeError;

/// Loads both libraries.
///
/// # Errors
/// The one that cannot be loaded.
pub fn need_libraries() -> Result<(), NodeError> {
    let loaded = sys::load_verbs().and_then(|()| sys::load_connection_manager());
    loaded.map_err(|missing| NodeError::LibraryMissing { library: missing.name })
}

/// The error of a function that returns -1 and sets errno.
pub(crate) fn check(
    call: &'static str,
    what: &'static str,
    object: impl FnOnce() -> String,
    result: libc::c_int,
) -> Result<(), NodeError> {
    if result == 0 {
        return Ok(());
    }
    // Before anything else sets errno.
    let source = io::Error::last_os_error();
    Err(NodeError::Call {
        call,
        what,
        object: object(),
        source,
    })
}

/// Waits until one of the descriptors can be read, at most this long. True for each that can.
///
/// # Errors
/// What poll says; an interruption counts as the time being over.
pub fn wait_readable<const N: usize>(fds: [RawFd; N], limit: Duration) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    poll(&mut polled, limit)?;
    Ok(polled.map(|entry| entry.revents != 0))
}

/// `poll` with a limit; an interruption counts as the time being over.
pub fn poll(polled: &mut [libc::pollfd], limit: Duration) -> io::Result<()> {
    // Rounded up: a wait that ends early would turn into a spin.
    let limit_ms = limit.as_micros().div_ceil(1000).min(60_000) as libc::c_int;
    // SAFETY: the slice is valid for its length for the whole call.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, limit_ms) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        for entry in polled {
            entry.revents = 0;
        }
        return match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            _ => Err(error),
        };
    }
    Ok(())
}

/// Makes reads of a descriptor return instead of waiting.
pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: fcntl with these commands touches no memory; a wrong descriptor is an error.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Wakes a thread that waits in `poll`.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A waker that nothing has rung.
    pub fn new() -> Result<Waker, NodeError> {
        // SAFETY: the call takes no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(NodeError::System {
                what: "make an event descriptor",
                source: io::Error::last_os_error(),
            });
        }
        // SAFETY: the descriptor is new, and nothing else closes it.
        Ok(Waker(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Wakes the thread, now or at its next wait.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are read from a local. A full counter means that the thread is woken already.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Forgets wakes so far.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight bytes are written to a local. Nothing to read is no error here.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
