//! Running a test in a process of its own that finds the fake in the libraries' place.

#[path = "../../../common/child.rs"]
mod again;

use std::ffi::OsStr;

use again::{built_library, run_again};
use libloading::{Library, Symbol};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Set in a child: the test that it is to run.
const CHILD: &str = "GPUVM_LOOPBACK_RDMA_CHILD";

/// Runs `body` in a process of its own. To be the only thing that the test `name` does.
pub fn in_child(name: &str, body: impl FnOnce()) {
    if std::env::var(CHILD).is_ok_and(|found| found == name) {
        allow_files();
        return body();
    }
    let folder = tempfile::tempdir().unwrap();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::os::unix::fs::symlink(built_library("libloopback_rdma.so"), folder.path().join(library)).unwrap();
    }
    let variables = [
        ("LD_LIBRARY_PATH", folder.path().as_os_str()),
        (CHILD, OsStr::new(name)),
    ];
    run_again(name, &variables);
}

/// Each client has a few descriptors.
fn allow_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Memory of this process that is there, in bytes.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// The fake, which this process has loaded.
pub struct Fake(Library);

impl Fake {
    pub fn new() -> Self {
        // SAFETY: it is loaded already, and loading it runs no code of its own.
        Self(unsafe { Library::new("libibverbs.so.1") }.unwrap())
    }

    fn number(&self, name: &str) -> u64 {
        // SAFETY: both functions that are asked for take nothing and return 64 bits.
        unsafe {
            let ask: Symbol<'_, unsafe extern "C" fn() -> u64> = self.0.get(name).unwrap();
            ask()
        }
    }

    /// Domains, regions, queues and identifiers that there are.
    pub fn objects(&self) -> u64 {
        self.number("loopback_rdma_objects")
    }

    /// Completions that found no room.
    pub fn overruns(&self) -> u64 {
        self.number("loopback_rdma_overruns")
    }
}
