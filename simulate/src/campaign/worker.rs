//! Worker processes: the loop of one, and how a campaign asks it.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::plan::{Campaign, CampaignError, Ran};
use crate::room::Options;
use crate::run::{self, Failure, Passed};
use crate::watch::Watcher;
use crate::workload::Workload;

/// Lines of a worker's standard error that are kept for a crash.
const STDERR_LINES: usize = 12;

/// Between two looks at a run.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long a run that broke a rule may go on.
const BROKEN_MAX: Duration = Duration::from_secs(2);

/// Longest that a worker may compile.
const PREPARE_LIMIT: Duration = Duration::from_secs(900);

/// Begins a line that asks a worker to compile what a workload needs.
const PREPARE: &str = "prepare ";

/// Its answer.
const READY: &str = "ready";

/// Answers runs on standard input until it ends: the loop of a worker.
///
/// # Errors
/// Its standard input or output are gone.
pub fn serve(options: &Options) -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        if let Some(name) = line.strip_prefix(PREPARE) {
            let ready = match name.parse::<Workload>() {
                Ok(workload) => run::prepare(workload, options)
                    .err()
                    .unwrap_or_else(|| READY.to_owned()),
                Err(unknown) => unknown.to_string(),
            };
            // One line, whatever a compiler says.
            answer(&ready.replace('\n', " | "))?;
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        let asked = words
            .next()
            .and_then(|name| name.parse::<Workload>().ok())
            .zip(words.next().and_then(|seed| seed.parse::<u64>().ok()));
        let Some((workload, seed)) = asked else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a worker was asked for `{line}`"),
            ));
        };
        let (outcome, ended) = run_or_break_off(workload, seed, options)?;
        let ran = Ran {
            workload,
            seed,
            outcome,
        };
        answer(&serde_json::to_string(&ran)?)?;
        if !ended {
            // The run goes on in its thread, on a memory that is broken: the process ends with it.
            std::process::exit(0);
        }
    }
    Ok(())
}

/// Runs a seed; when a rule was broken and the run does not end, it is left behind. Whether it has ended.
fn run_or_break_off(workload: Workload, seed: u64, options: &Options) -> io::Result<(Result<Passed, Failure>, bool)> {
    let watcher = Arc::new(Watcher::new(options.all_events));
    let (tell, end) = channel();
    let (watched, options) = (Arc::clone(&watcher), options.clone());
    let running = std::thread::Builder::new().name("run".to_owned()).spawn(move || {
        // Nothing listens any more when the run was left behind.
        let _ = tell.send(run::run_watched(workload, seed, &options, watched).outcome);
    })?;
    let mut broken_since = None;
    loop {
        match end.recv_timeout(LOOK_EVERY) {
            Ok(outcome) => {
                // It has sent its last word: it cannot panic any more.
                let _ = running.join();
                return Ok((outcome, true));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the run panicked; its message is above"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let Some(failure) = run::broken_so_far(&watcher) else {
            continue;
        };
        if broken_since.get_or_insert_with(Instant::now).elapsed() > BROKEN_MAX {
            return Ok((Err(failure), false));
        }
    }
}

fn answer(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Why a worker gave no answer.
pub(super) enum Lost {
    /// It was given up.
    Stopped,
    /// The run's failure.
    Failed(String),
}

/// A worker process.
pub(super) struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<JoinHandle<()>>,
    /// Workloads whose kernels it has compiled.
    prepared: Vec<Workload>,
}

impl Worker {
    pub(super) fn start(campaign: &Campaign) -> Result<Self, CampaignError> {
        let refused = |source| CampaignError::Start {
            program: campaign.program.display().to_string(),
            source,
        };
        let mut child = Command::new(&campaign.program)
            .arg0(&campaign.name)
            .args(&campaign.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(refused)?;
        let (tell, lines) = channel();
        let errors = Arc::new(Mutex::new(VecDeque::new()));
        let mut readers = Vec::new();
        if let Some(out) = child.stdout.take() {
            readers.push(std::thread::spawn(move || {
                let mut lines = BufReader::new(out).lines();
                while let Some(Ok(line)) = lines.next() {
                    if tell.send(line).is_err() {
                        break;
                    }
                }
            }));
        }
        if let Some(out) = child.stderr.take() {
            let kept = Arc::clone(&errors);
            readers.push(std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    // A line of text is whole, whatever panicked.
                    let mut kept = kept.lock();
                    if kept.len() == STDERR_LINES {
                        kept.pop_front();
                    }
                    kept.push_back(line);
                }
            }));
        }
        Ok(Self {
            input: child.stdin.take(),
            child,
            lines,
            errors,
            readers,
            prepared: Vec::new(),
        })
    }

    /// Runs one seed. What it ends with when the worker is lost.
    pub(super) fn run(&mut self, workload: Workload, seed: u64, campaign: &Campaign) -> Result<Ran, Lost> {
        if !self.prepared.contains(&workload) {
            let ready = self.ask(&format!("{PREPARE}{workload}"), PREPARE_LIMIT, &campaign.stop)?;
            if ready != READY {
                return Err(Lost::Failed(ready));
            }
            self.prepared.push(workload);
        }
        let line = self.ask(&format!("{workload} {seed}"), campaign.limit, &campaign.stop)?;
        serde_json::from_str(&line).map_err(|error| Lost::Failed(format!("its worker said `{line}`: {error}")))
    }

    /// Sends a line and waits for the answer, unless `stop` is set meanwhile.
    fn ask(&mut self, line: &str, limit: Duration, stop: &AtomicBool) -> Result<String, Lost> {
        let asked = self
            .input
            .as_mut()
            .is_some_and(|input| writeln!(input, "{line}").and_then(|()| input.flush()).is_ok());
        if !asked {
            return Err(Lost::Failed(self.crashed()));
        }
        let begun = Instant::now();
        loop {
            match self.lines.recv_timeout(LOOK_EVERY.min(limit)) {
                Ok(line) => return Ok(line),
                // Relaxed: a flag, with which nothing else is told.
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => return Err(Lost::Stopped),
                Err(RecvTimeoutError::Timeout) if begun.elapsed() < limit => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Lost::Failed(format!("it did not end within {} s", limit.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Lost::Failed(self.crashed())),
            }
        }
    }

    fn crashed(&mut self) -> String {
        self.input = None;
        let status = self
            .child
            .wait()
            .map_or_else(|error| error.to_string(), |status: ExitStatus| status.to_string());
        for reader in self.readers.drain(..) {
            // A reader that panicked has nothing more to say.
            let _ = reader.join();
        }
        let said = self.errors.lock();
        let said: Vec<String> = said.iter().cloned().collect();
        format!("its process ended: {status}; it said: {}", said.join(" | "))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends by itself when its input does, unless it hangs in a run.
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its readers end with the last who holds the pipes, which may be a compiler of its that ends later.
    }
}
