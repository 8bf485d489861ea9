//! Files larger than memory on NVMe disks that fail and lose their power: `file-disks` writes versions of a file's pages, flushes them, and
//! looks at the file afterwards.
//!
//! Losses of power come in three ways. dm-flakey forgets every write from a moment on, as a machine that stops does. dm-log-writes knows
//! what the disk was told to flush, so a disk is made that has lost any part of the rest, as a volatile cache does. And QEMU is killed.

use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::SHORT;
use super::programs::{binary, run_test, test, warm, warm_all};
use super::start::check;
use crate::error::Error;
use crate::job::Job;
use crate::machine::Machine;

/// The machine's disks: one with a file system, one for the log of its writes, one for what such a log makes.
pub(super) const MIB: [u32; 3] = [64, 512, 64];

/// Bytes of the file: twelve times the memory before it, and its end lies within a block.
const BYTES: u64 = 768 * 4096 + 1000;

/// The file's last page.
const LAST: u64 = 768;

const FILE: &str = "/mnt/disk/file";

/// Losses of power at moments of chance, by each of two ways.
const CUTS: u64 = 3;

/// Reads and writes go through.
const WHOLE: &str = "linear DISK FROM";
/// Writes fail, reads go through.
const NO_WRITES: &str = "flakey DISK FROM 0 1 1 error_writes";
/// Writes are forgotten.
const FORGETS: &str = "flakey DISK FROM 0 1 1 drop_writes";
/// Reads and writes fail.
const BAD: &str = "error";

pub(super) fn files(machine: &Machine) -> Result<(), Error> {
    let tests = ["gpuvm_files::", "promises::file_memory::", "promises::mapped_files::"];
    warm_all(&tests[1..])?;
    let disks = Disks {
        machine,
        program: binary("file-disks")?,
    };
    // No step: the kernels are compiled.
    let (own, program) = (disks.program.display(), Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    let copy = std::env::temp_dir().join(format!("file-disks-{}", std::process::id()));
    std::fs::copy(&program, &copy).map_err(Error::file("copy", &program))?;
    let warmed = warm(disks.program, &format!("run {} --bytes 4 --seed 1", copy.display()));
    let _ = std::fs::remove_file(&copy);
    warmed?;
    let _ = own;
    Ok(())
}
