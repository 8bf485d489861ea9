//! What can go wrong between a test and the machine that it runs on.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a machine or a command in it did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that the harness calls is not installed.
    #[error("{program} is missing; on Debian and Ubuntu: apt-get install {package}")]
    MissingProgram {
        /// The program.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program that the harness calls has failed.
    #[error("`{command}` failed ({status}): {output}")]
    ProgramFailed {
        /// The command line.
        command: String,
        /// How it ended.
        status: String,
        /// The last thing it said.
        output: String,
    },
    /// There is no kernel to boot.
    #[error("there is no kernel in the package {package}: {why}")]
    NoKernel {
        /// The package that was asked for.
        package: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A file or folder of the harness cannot be used.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A setting is not what it may be.
    #[error("{name}={value} is not understood: {expected}")]
    Setting {
        /// The environment variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The machine did not come up.
    #[error("the machine {machine} did not start within {limit:?}: {why}\n{log}")]
    Boot {
        /// Its name.
        machine: String,
        /// The time it was given.
        limit: Duration,
        /// What is known.
        why: String,
        /// The end of its console.
        log: String,
    },
    /// The machine has gone away.
    #[error("the machine {machine} is gone: {why}")]
    Gone {
        /// Its name.
        machine: String,
        /// Why.
        why: String,
    },
    /// A command did not end in time; it was killed.
    #[error("`{command}` on {machine} did not end within {limit:?} and was killed; it said:\n{output}")]
    CommandTimeout {
        /// The machine.
        machine: String,
        /// The command.
        command: String,
        /// The time it was given.
        limit: Duration,
        /// The end of its output.
        output: String,
    },
    /// A line that was waited for did not come.
    #[error("`{command}` on {machine} did not write {wanted} within {limit:?}{ended}; it said:\n{output}")]
    LineTimeout {
        /// The machine.
        machine: String,
        /// The command.
        command: String,
        /// What was waited for.
        wanted: String,
        /// The time it was given.
        limit: Duration,
        /// Says that the command has ended, if it has.
        ended: String,
        /// The end of its output.
        output: String,
    },
    /// A command ended with a status other than 0.
    #[error("`{command}` on {machine} ended with status {code}; it said:\n{output}")]
    CommandFailed {
        /// The machine.
        machine: String,
        /// The command.
        command: String,
        /// Its exit status.
        code: i32,
        /// The end of its output.
        output: String,
    },
    /// The kernel of a machine reported a fault of its own.
    #[error("the kernel of {machine} reported a fault: {line}\n{log}")]
    KernelFault {
        /// The machine.
        machine: String,
        /// The line of its log that says so.
        line: String,
        /// The lines after it.
        log: String,
    },
    /// What is asked for cannot be done in native mode.
    #[error("{what} needs a virtual machine, but the commands run on this machine itself ({device})")]
    Native {
        /// What was asked for.
        what: &'static str,
        /// The RDMA device of this machine.
        device: String,
    },
    /// The RDMA device of this machine cannot be used.
    #[error("the RDMA device {device} of this machine cannot be used: {why}")]
    Device {
        /// The device that was asked for.
        device: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A result is not what it must be.
    #[error("{0}")]
    Check(String),
}

impl Error {
    /// For `map_err`: names the file and what was tried with it.
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }
}

/// An error and its causes, on one line each.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!("\n  because: {error}"));
        cause = error.source();
    }
    text
}
