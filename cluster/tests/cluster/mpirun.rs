//! Jobs of ranks on this machine, by OpenMPI's `mpirun`.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest time for what should take seconds.
pub const LONG: Duration = Duration::from_secs(120);

/// A job that has ended.
pub struct Ended {
    pub status: Option<i32>,
    /// What all ranks and mpirun printed, standard output first.
    pub output: String,
    pub errors: String,
    pub took: Duration,
}

/// A job that runs. What it prints is read all the while.
pub struct Job {
    mpirun: Child,
    /// Where OpenMPI keeps the job's files. By default all jobs of a user have one folder, which one job removes while another makes it: the
    /// other fails then (OpenMPI 4.1.4, `orte_session_dir`: "mkdir: File exists").
    _files: tempfile::TempDir,
    readers: Option<[std::thread::JoinHandle<String>; 2]>,
}

/// This many ranks, on any number of cores. `options`: mpirun's; `arguments`: those of `gpuvm-mpi`.
pub fn start(ranks: usize, options: &[&str], arguments: &[&str]) -> Job {
    let mut command = Command::new("mpirun");
    let files = tempfile::tempdir().expect("a folder for the job's files");
    command
        .env("OMPI_MCA_orte_tmpdir_base", files.path())
        .args(["--oversubscribe", "-n", &ranks.to_string()])
        .args(options);
    command.arg(env!("CARGO_BIN_EXE_gpuvm-mpi")).args(arguments);
    // Tests run as root in containers.
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    // Idle ranks of a test leave the cores to others.
    command.env("OMPI_MCA_mpi_yield_when_idle", "1");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut mpirun = command.spawn().expect("mpirun of OpenMPI (Debian: openmpi-bin)");
    let readers = [reader(mpirun.stdout.take()), reader(mpirun.stderr.take())];
    Job {
        mpirun,
        _files: files,
        readers: Some(readers),
    }
}

fn reader(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Job {
    /// Waits for its end, at most so long; `since`: from when its time counts.
    pub fn end(mut self, since: Instant, limit: Duration) -> Ended {
        let status = self.launcher(since, limit);
        let status = status.unwrap_or_else(|| panic!("the job runs after {limit:?}"));
        self.ended(status, since)
    }

    /// Waits for the end of its ranks, at most so long, and then for mpirun. One that has no rank any more and goes on is ended: OpenMPI
    /// 4.1.4 sometimes waits for a lock of its own for ever (`PMIx_server_finalize`) when a rank was killed within MPI's start.
    pub fn end_of_ranks(mut self, ranks: &[(usize, u32)], since: Instant, limit: Duration) -> Ended {
        while ranks.iter().any(|(_, process)| is_there(*process)) {
            assert!(since.elapsed() < limit, "a rank is left after {limit:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = self
            .launcher(Instant::now(), Duration::from_secs(5))
            .unwrap_or_else(|| {
                println!("# mpirun has no rank any more and does not end: it is killed");
                self.mpirun.kill().unwrap();
                self.mpirun.wait().unwrap()
            });
        self.ended(status, since)
    }

    /// How mpirun ends; `None`: it runs after the limit.
    fn launcher(&mut self, since: Instant, limit: Duration) -> Option<ExitStatus> {
        loop {
            match self.mpirun.try_wait().unwrap() {
                Some(status) => return Some(status),
                None if since.elapsed() > limit => return None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn ended(&mut self, status: ExitStatus, since: Instant) -> Ended {
        let took = since.elapsed();
        let [output, errors] = self.readers.take().unwrap().map(|reader| reader.join().unwrap());
        Ended {
            status: status.code(),
            output,
            errors,
            took,
        }
    }

    /// The processes of the ranks that there are, by rank.
    pub fn ranks(&self) -> Vec<(usize, u32)> {
        let mut found: Vec<_> = children(self.mpirun.id())
            .into_iter()
            .filter_map(|child| Some((rank_of(child)?, child)))
            .collect();
        found.sort_unstable();
        found
    }

    /// Waits until this many ranks are there, and their watches where that is asked for.
    pub fn wait_for(&self, ranks: usize, watched: bool) -> Vec<(usize, u32)> {
        let begun = Instant::now();
        loop {
            let found = self.ranks();
            if found.len() == ranks && (!watched || found.iter().all(|(_, process)| watches(*process))) {
                return found;
            }
            assert!(begun.elapsed() < LONG, "only these ranks came: {found:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Of a test that failed: the ranks, which may be stopped, then mpirun.
        if self.readers.is_some() {
            for (_, process) in self.ranks() {
                signal(process, "KILL");
            }
            let _ = self.mpirun.kill();
            let _ = self.mpirun.wait();
        }
    }
}

fn children(parent: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    list.split_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// The rank of a process that mpirun started. One that has not become `gpuvm-mpi` yet has none.
fn rank_of(process: u32) -> Option<usize> {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let rank = variables.find_map(|variable| variable.strip_prefix(b"OMPI_COMM_WORLD_RANK="))?;
    let rank = std::str::from_utf8(rank).ok()?.parse().ok()?;
    (name.trim_end() == "gpuvm-mpi").then_some(rank)
}

/// Whether a process has the thread of a watch.
fn watches(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return false;
    };
    let names = threads
        .flatten()
        .map(|thread| std::fs::read_to_string(thread.path().join("comm")));
    names.flatten().any(|name| name.trim_end() == "watch")
}

/// Sends a signal to a process of a job.
pub fn signal(process: u32, name: &str) {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &process.to_string()])
        .stderr(Stdio::null())
        .status();
    assert!(sent.is_ok(), "the command kill");
}

/// Whether a process is there, and is no zombie.
pub fn is_there(process: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state
        .rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
