//! A tenant in a process of its own, which does as it is told by lines on its standard input.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use gpuvm_tenants::{DriverView, Folder, SharedGpu, Tenant, Terms};
use rustix::process::{Pid, Signal, kill_process};

use crate::pool::Pool;
use crate::{HANG, Registry};

const VARIABLE: &str = "GPUVM_TEST_TENANT";

/// How long a child asks for memory.
const WITHIN: Duration = Duration::from_secs(10);

/// A child process. It is killed when this is dropped.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    /// A tenant with frames and terms, once it has joined.
    pub fn start(registry: &Registry, frames: u64, terms: Terms) -> Self {
        let process = Self::start_unheard(registry, frames, terms);
        assert_eq!(process.hear(), "ready");
        process
    }

    /// A tenant with frames and terms, which says when it has joined.
    pub fn start_unheard(registry: &Registry, frames: u64, terms: Terms) -> Self {
        let setup = serde_json::json!([registry.folder.path(), registry.gpu.key.to_string(), frames, terms]);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::acts_as_it_is_told", "--nocapture"])
            .env(VARIABLE, setup.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (said, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            // The test program prints lines of its own.
            let own = stdout.lines().map_while(Result::ok);
            for line in own.filter_map(|line| Some(line.strip_prefix("tenant: ")?.to_owned())) {
                if said.send(line).is_err() {
                    break;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[track_caller]
    pub fn hear(&self) -> String {
        match self.lines.recv_timeout(HANG) {
            Ok(line) => line,
            Err(why) => panic!("pid {} says nothing: {why}", self.pid()),
        }
    }

    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("not left");
        writeln!(stdin, "{line}").unwrap();
    }

    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    /// Stops it, or lets it go on.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Lets it end by itself.
    pub fn leave(mut self) {
        self.stdin = None;
        assert!(self.child.wait().unwrap().success());
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(line: &str) {
    println!("\ntenant: {line}");
    std::io::stdout().flush().unwrap();
}

/// Asks, and holds what it gets.
pub fn ask(tenant: &Tenant, pool: &Pool, bytes: u64) -> String {
    match tenant.ask(bytes, WITHIN, DriverView::default) {
        Ok(granted) => {
            pool.grow(bytes);
            format!("granted by {}", granted.given.len())
        }
        Err(error) => format!("refused: {error}"),
    }
}

/// What other tests start; by itself it has nothing to do.
#[test]
fn acts_as_it_is_told() {
    let Ok(setup) = std::env::var(VARIABLE) else { return };
    // Also where the test is killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let (folder, key, frames, terms): (std::path::PathBuf, String, u64, Terms) = serde_json::from_str(&setup).unwrap();
    let pool = Arc::new(Pool::new(frames, 0));
    let gpu = SharedGpu {
        key: key.parse().unwrap(),
        total_bytes: 1 << 30,
    };
    let tenant = Tenant::join(&Folder::at(folder), &gpu, terms, Arc::clone(&pool) as _).unwrap();
    say("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.split_once(' ') {
            Some(("ask", bytes)) => say(&ask(&tenant, &pool, bytes.parse().unwrap())),
            Some(("ask-forever", bytes)) => loop {
                ask(&tenant, &pool, bytes.parse().unwrap());
            },
            _ => say(&format!("{} {}", pool.frames(), tenant.terms())),
        }
    }
}
