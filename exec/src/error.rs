//! What goes wrong, by what becomes of it.

use crate::driver::Status;

/// `CUDA_ERROR_OPERATING_SYSTEM`.
const OPERATING_SYSTEM: Status = 304;

/// Why the GPU cannot have managed memory, or the host.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The driver refuses a call, or the program's own work has failed.
    #[error("{what}: CUDA error {status}")]
    Driver { what: &'static str, status: Status },
    #[error(
        "out of memory mappings for managed memory: raise vm.max_map_count, as by `sysctl vm.max_map_count=1048576`"
    )]
    Protect(#[source] std::io::Error),
    #[error(
        "the program uses GPU {other}, and managed memory lies in that of GPU {own}: it stays on the host, pinned, and both use it there; \
         CUDA_VISIBLE_DEVICES={own} keeps the program to one GPU"
    )]
    OtherGpu { own: i32, other: i32 },
    #[error("the program launches in several contexts of one GPU: managed memory stays on the host, pinned")]
    Contexts,
    #[error("the GPU's memory does not hold all managed memory")]
    Full,
}

impl ExecError {
    /// What the program is told; none where it goes on over the host's memory.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Driver { status, .. } => Some(*status),
            Self::Protect(_) => Some(OPERATING_SYSTEM),
            Self::OtherGpu { .. } | Self::Contexts | Self::Full => None,
        }
    }
}

/// An error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// The program cannot go on: an access of its own can be neither made nor refused.
pub fn end_program(why: &str) -> ! {
    eprintln!("gpuvm exec: {why}");
    std::process::abort();
}
