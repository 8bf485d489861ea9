//! What files that are larger than memory are read by.

use crate::doctor::finding::{Check, Finding, FindingState};
use crate::doctor::view::View;

/// The library by which GPUDirect Storage is reached.
pub const CUFILE: &str = "libcufile.so.0";

/// All of them.
pub fn checks(view: &View) -> Vec<Finding> {
    vec![io_uring(view), storage(view)]
}

fn io_uring(view: &View) -> Finding {
    let check = Check {
        id: "io_uring",
        title: "io_uring",
        why: "files larger than memory (file_memory) are read and written by it, many blocks at a time; else by threads",
    };
    match &view.probed.io_uring {
        Ok(()) => check.is(FindingState::Ok, "this process may use it"),
        Err(why) => check.is(FindingState::Limited, format!("{why}; threads read and write")).mend(
            "sysctl kernel.io_uring_disabled=0 (Linux 6.6 or newer); in a container, a seccomp profile that allows io_uring_setup",
        ),
    }
}

fn storage(view: &View) -> Finding {
    let check = Check {
        id: "gpudirect_storage",
        title: "GPUDirect Storage",
        why: "cuFile brings blocks of files into GPU memory past the host's; gpuvm does not use it: file pages come by way of host memory",
    };
    let found = match &view.probed.cufile {
        None => format!("{CUFILE} is not there"),
        Some(file) => format!("{} is there", file.display()),
    };
    check.is(FindingState::Unneeded, format!("{found}; nothing here uses it"))
}
