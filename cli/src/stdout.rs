//! Standard output: what a command prints has been written, or the command fails.
// Lints: the one thing here that safe Rust cannot do is to run before Rust's own start.
#![allow(unsafe_code)]

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the caller closed standard output, as `gpuvm ... >&-` does.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Runs before `main`: Rust's start opens /dev/null in the place of a standard output that is closed, and what is written
/// there seems to arrive.
#[used]
// SAFETY: the C library calls each function of this section once, with arguments that this one does not read.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: asks for the flags of a descriptor, which may be closed.
    let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1;
    // Relaxed: no other thread is there yet.
    CLOSED.store(closed, Ordering::Relaxed);
}

/// Fails where standard output was closed when the program started.
///
/// # Errors
/// What a write to a closed descriptor says.
pub fn check_open() -> io::Result<()> {
    match CLOSED.load(Ordering::Relaxed) {
        true => Err(io::Error::from_raw_os_error(libc::EBADF)),
        false => Ok(()),
    }
}

/// Prints a line. No one who closed a pipe, as `head` does, wants to hear of it: that is no error.
///
/// # Errors
/// A standard output that is closed or full.
pub fn print_line(line: impl Display) -> io::Result<()> {
    print(format_args!("{line}\n"))
}

/// Prints a report, or it as one JSON object.
///
/// # Errors
/// As for [`print_line`].
pub fn print_report(report: &(impl serde::Serialize + Display), json: bool) -> io::Result<()> {
    match json {
        true => print_line(serde_json::to_string(report)?),
        false => print_line(report),
    }
}

/// Prints text that has its line endings.
///
/// # Errors
/// As for [`print_line`].
pub fn print(text: impl Display) -> io::Result<()> {
    print_to_reader(text).map(drop)
}

/// Prints text, and says whether somebody still reads: who prints without end has to know.
///
/// # Errors
/// As for [`print_line`].
pub fn print_to_reader(text: impl Display) -> io::Result<bool> {
    check_open()?;
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}
