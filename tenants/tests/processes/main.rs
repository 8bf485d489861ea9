//! Tenants that are processes of their own, and what becomes of them when others are killed, silent, broken or hostile.

mod asks;
mod child;
mod folders;
mod kills;
mod peers;
mod pool;

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use gpuvm_tenants::{Folder, SharedGpu, Terms};

/// Nothing here takes as long. Who waits longer hangs.
const HANG: Duration = Duration::from_secs(60);

const MIB: u64 = 1 << 20;

/// A registry in a folder of its own, which goes with it.
struct Registry {
    above: tempfile::TempDir,
    folder: Folder,
    gpu: SharedGpu,
}

impl Registry {
    fn new() -> Self {
        let above = tempfile::tempdir().unwrap();
        let folder = Folder::at(above.path().join("registry"));
        let key = "sim".parse().unwrap();
        let gpu = SharedGpu {
            key,
            total_bytes: 1 << 30,
        };
        Self { above, folder, gpu }
    }

    /// The files of the GPU's folder.
    fn files(&self) -> Vec<String> {
        let path = self.folder.path().join(self.gpu.key.to_string());
        let entries = std::fs::read_dir(path).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// The processes that answer.
    fn pids(&self) -> Vec<u32> {
        let peers = gpuvm_tenants::tenants(&self.folder, &self.gpu.key).unwrap();
        peers
            .iter()
            .filter(|peer| peer.answer.is_ok())
            .map(|peer| peer.pid())
            .collect()
    }
}

/// A tenant that somebody else wrote: an entry with a socket, and what it does there is the test's matter.
struct Stranger {
    /// Locked for as long as this lives.
    _lock: std::fs::File,
    listener: UnixListener,
    pid: u32,
}

impl Stranger {
    fn enter(registry: &Registry, pid: u32) -> Self {
        let folder = registry.folder.path().join(registry.gpu.key.to_string());
        let lock = std::fs::File::create(folder.join(format!("{pid}-00000000000000aa.lock"))).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        let listener = UnixListener::bind(folder.join(format!("{pid}-00000000000000aa.sock"))).unwrap();
        Self {
            _lock: lock,
            listener,
            pid,
        }
    }
}

fn terms(minimum: u64, limit: Option<u64>, priority: i8) -> Terms {
    Terms::new(minimum, limit, priority).unwrap()
}

#[track_caller]
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + HANG;
    while !holds() {
        assert!(Instant::now() < until, "not within {HANG:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs it on another thread, and fails where it does not end.
#[track_caller]
fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = done.send(work());
    });
    match ended.recv_timeout(HANG) {
        Ok(result) => result,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it hangs: {what}"),
        Err(_) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("{what}"),
        },
    }
}
