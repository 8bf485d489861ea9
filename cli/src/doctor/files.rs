//! What files that are larger than memory are read by.

use crate::doctor::finding::{Check, Finding, FindingState};
use crate::doctor::view::View;

/// The library by which GPUDirect Storage is reached.
pub const CUFILE: &str = gpuvm_gpu::cuda::cufile::LIBRARY;

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
        why: "cuFile brings blocks of files into GPU memory past the host's (file_memory_on_gpu); else they come by way of host memory (file_memory)",
    };
    let Some(file) = &view.probed.cufile else {
        let found = format!("{CUFILE} is not there; it comes with the CUDA toolkit (package libcufile)");
        return check.is(FindingState::Unneeded, found);
    };
    let found = format!("{} is there", file.display());
    match view.probed.nvidia_fs {
        true => check.is(FindingState::Ok, format!("{found}, and so is nvidia-fs")),
        false => check
            .is(
                FindingState::Limited,
                format!("{found}, and the kernel's module nvidia-fs is not: cuFile goes by way of host memory, where file_memory is faster"),
            )
            .mend("load the module nvidia-fs (package nvidia-fs, NVIDIA's open kernel modules), for files on NVMe disks with ext4 or XFS"),
    }
}
