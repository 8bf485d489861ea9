//! Running a test in a process of its own that finds the fake in the libraries' place.

use std::io::{Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libloading::{Library, Symbol};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Set in a child: the test that it is to run.
const CHILD: &str = "GPUVM_LOOPBACK_RDMA_CHILD";
/// Longest life of a child.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs `body` in a process of its own. To be the only thing that the test `name` does.
pub fn in_child(name: &str, body: impl FnOnce()) {
    if std::env::var(CHILD).is_ok_and(|found| found == name) {
        allow_files();
        return body();
    }
    let folder = tempfile::tempdir().unwrap();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::os::unix::fs::symlink(fake_library(), folder.path().join(library)).unwrap();
    }
    let mut output = tempfile::tempfile().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env(CHILD, name)
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output.try_clone().unwrap())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if begun.elapsed() > LIMIT => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut said = String::new();
    output.rewind().unwrap();
    output.read_to_string(&mut said).unwrap();
    // The child's harness says how many tests it ran: a wrong name would run none.
    let passed = status.is_some_and(|status| status.success()) && said.contains("running 1 test");
    assert!(
        passed,
        "the child ended with {status:?} after {:?}:\n{said}",
        begun.elapsed()
    );
    for line in said.lines().filter_map(|line| line.find("# ").map(|at| &line[at..])) {
        let _ = writeln!(std::io::stderr(), "{name}: {line}");
    }
}

/// Each client has a few descriptors.
fn allow_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// The shared library, which Cargo builds for the tests of this package.
fn fake_library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let places = program.ancestors().skip(1).take(3);
    let names = ["libloopback_rdma.so", "deps/libloopback_rdma.so"];
    let mut found = places.flat_map(|place| names.map(|name| place.join(name)));
    let found = found.find(|path| path.exists());
    found.expect("libloopback_rdma.so near the test program: `cargo build -p gpuvm-loopback-rdma` makes it")
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
