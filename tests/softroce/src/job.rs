//! Commands that run on a machine, seen from the test.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::protocol::{Event, Request, Stream};

/// Lines kept of one command; older ones are dropped and counted.
const LINES_MAX: usize = 100_000;

/// Lines that an error shows.
const LINES_SHOWN: usize = 30;

/// One line that a command wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Where it was written.
    pub stream: Stream,
    /// Without its end.
    pub text: String,
}

/// What a command left.
#[derive(Debug, Clone)]
pub struct Output {
    machine: String,
    command: String,
    /// Its exit status; 128 + n stands for signal n.
    pub code: i32,
    /// What it wrote, at most the last 100,000 lines. Lines of one stream are in order.
    pub lines: Vec<Line>,
}

impl Output {
    /// The output, if the exit status is 0.
    ///
    /// # Errors
    /// [`Error::CommandFailed`] with the end of the output.
    pub fn success(self) -> Result<Self, Error> {
        if self.code == 0 {
            return Ok(self);
        }
        let output = tail(self.lines.iter().map(|line| line.text.as_str()));
        Err(Error::CommandFailed {
            machine: self.machine,
            command: self.command,
            code: self.code,
            output,
        })
    }

    /// Everything it wrote, lines ended by a newline.
    pub fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [line.text.as_str(), "\n"]).collect()
    }
}

/// Asks a machine for something.
type Ask = Box<dyn Fn(&Request) -> std::io::Result<()> + Send + Sync>;

/// The commands of one machine, and the way to it.
pub(crate) struct Jobs {
    pub(crate) machine: String,
    environment: Vec<(String, String)>,
    ask: Ask,
    next: AtomicU64,
    states: Mutex<HashMap<u64, Arc<JobState>>>,
    /// Why no command can be started any more.
    gone: Mutex<Option<String>>,
}

#[derive(Default)]
struct JobState {
    now: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    lines: VecDeque<Line>,
    /// Lines that are no longer in `lines`.
    dropped: usize,
    code: Option<i32>,
    gone: Option<String>,
}

impl Jobs {
    pub(crate) fn new(machine: &str, environment: Vec<(String, String)>, ask: Ask) -> Arc<Self> {
        Arc::new(Self {
            machine: machine.to_owned(),
            environment,
            ask,
            next: AtomicU64::new(1),
            states: Mutex::default(),
            gone: Mutex::default(),
        })
    }

    /// Takes note of what the machine says.
    pub(crate) fn take(&self, event: Event) {
        match event {
            Event::Line { id, stream, text } => self.change(id, |progress| {
                if progress.lines.len() == LINES_MAX {
                    progress.lines.pop_front();
                    progress.dropped += 1;
                }
                progress.lines.push_back(Line { stream, text });
            }),
            Event::Exit { id, code } => {
                self.change(id, |progress| progress.code = Some(code));
                self.states.lock().remove(&id);
            }
            Event::Ready | Event::Broken { .. } => {}
        }
    }

    /// The machine is gone: the thread that waits learns why.
    pub(crate) fn all_gone(&self, why: &str) {
        self.gone.lock().get_or_insert_with(|| why.to_owned());
        let states: Vec<_> = self.states.lock().drain().collect();
        for (_, state) in states {
            state.now.lock().gone = Some(why.to_owned());
            state.changed.notify_all();
        }
    }

    /// Why no command can be started any more.
    pub(crate) fn why_gone(&self) -> Option<String> {
        self.gone.lock().clone()
    }

    /// Kills every command that runs.
    pub(crate) fn kill_all(&self) {
        let ids: Vec<u64> = self.states.lock().keys().copied().collect();
        for id in ids {
            let _ = self.ask(&Request::Signal {
                id,
                number: rustix::process::Signal::KILL.as_raw(),
            });
        }
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut Progress)) {
        let state = self.states.lock().get(&id).cloned();
        if let Some(state) = state {
            change(&mut state.now.lock());
            state.changed.notify_all();
        }
    }

    fn error_gone(&self, why: impl fmt::Display) -> Error {
        Error::Gone {
            machine: self.machine.clone(),
            why: why.to_string(),
        }
    }

    fn ask(&self, request: &Request) -> Result<(), Error> {
        (self.ask)(request).map_err(|error| {
            let gone = self.gone.lock().clone();
            self.error_gone(gone.unwrap_or_else(|| error.to_string()))
        })
    }

    /// Starts a command. With `input` its standard input stays open.
    pub(crate) fn start(self: &Arc<Self>, command: &str, input: bool) -> Result<Job, Error> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(JobState::default());
        self.states.lock().insert(id, state.clone());
        // After the entry is there: either this sees that the machine is gone, or `all_gone` sees the entry.
        if let Some(why) = self.gone.lock().clone() {
            return Err(self.error_gone(why));
        }
        let folder = std::env::current_dir()
            .map(|folder| folder.to_string_lossy().into_owned())
            .unwrap_or_default();
        let environment = self.environment.clone();
        self.ask(&Request::Start {
            id,
            command: command.to_owned(),
            folder,
            environment,
            input,
        })?;
        Ok(Job {
            jobs: self.clone(),
            state,
            id,
            command: command.to_owned(),
            seen: 0,
        })
    }
}

/// A command that runs on a machine. Dropping it kills the command and all that it started.
pub struct Job {
    jobs: Arc<Jobs>,
    state: Arc<JobState>,
    id: u64,
    command: String,
    /// Lines that `wait_for` has passed, counted from the first that the command wrote.
    seen: usize,
}

impl Job {
    /// Waits for a line that contains `text`, after the one that the call before found, and returns it.
    ///
    /// # Errors
    /// [`Error::LineTimeout`] when the time is over or the command has ended before, [`Error::Gone`].
    pub fn wait_for(&mut self, text: &str, limit: Duration) -> Result<String, Error> {
        self.wait_line(&format!("a line with {text:?}"), |line| line.contains(text), limit)
    }

    /// Waits for a line that fits, after the one that the call before found, and returns it. `wanted` names it in
    /// the error.
    ///
    /// # Errors
    /// As [`Job::wait_for`].
    pub fn wait_line(&mut self, wanted: &str, fits: impl Fn(&str) -> bool, limit: Duration) -> Result<String, Error> {
        let ends = Instant::now() + limit;
        let state = self.state.clone();
        let mut now = state.now.lock();
        loop {
            let from = self.seen.saturating_sub(now.dropped);
            let found = now.lines.iter().skip(from).position(|line| fits(&line.text));
            if let Some(at) = found {
                self.seen = now.dropped + from + at + 1;
                return Ok(now.lines[from + at].text.clone());
            }
            self.seen = now.dropped + now.lines.len();
            if let Some(why) = &now.gone {
                return Err(self.jobs.error_gone(why));
            }
            let left = ends.saturating_duration_since(Instant::now());
            if now.code.is_some() || left.is_zero() {
                return Err(Error::LineTimeout {
                    machine: self.jobs.machine.clone(),
                    command: self.command.clone(),
                    wanted: wanted.to_owned(),
                    limit,
                    ended: now
                        .code
                        .map_or_else(String::new, |code| format!(" and ended with status {code}")),
                    output: tail(now.lines.iter().map(|line| line.text.as_str())),
                });
            }
            state.changed.wait_for(&mut now, left);
        }
    }

    /// Passes each line to `show` as it comes, until the command ends. Returns its exit status.
    ///
    /// # Errors
    /// [`Error::CommandTimeout`] (the command is killed then), [`Error::Gone`].
    pub fn follow(&mut self, limit: Duration, mut show: impl FnMut(&Line)) -> Result<i32, Error> {
        let ends = Instant::now() + limit;
        let state = self.state.clone();
        let mut now = state.now.lock();
        loop {
            let from = self.seen.saturating_sub(now.dropped);
            let fresh: Vec<Line> = now.lines.iter().skip(from).cloned().collect();
            self.seen = now.dropped + now.lines.len();
            let (code, gone) = (now.code, now.gone.clone());
            if !fresh.is_empty() {
                drop(now);
                fresh.iter().for_each(&mut show);
                now = state.now.lock();
                continue;
            }
            if let Some(code) = code {
                return Ok(code);
            }
            if let Some(why) = gone {
                return Err(self.jobs.error_gone(why));
            }
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let output = tail(now.lines.iter().map(|line| line.text.as_str()));
                drop(now);
                let _ = self.signal(rustix::process::Signal::KILL);
                let (machine, command) = (self.jobs.machine.clone(), self.command.clone());
                return Err(Error::CommandTimeout {
                    machine,
                    command,
                    limit,
                    output,
                });
            }
            state.changed.wait_for(&mut now, left);
        }
    }

    /// Waits until the command has ended.
    ///
    /// # Errors
    /// As [`Job::follow`].
    pub fn wait(mut self, limit: Duration) -> Result<Output, Error> {
        let code = self.follow(limit, |_| {})?;
        let lines = self.state.now.lock().lines.iter().cloned().collect();
        Ok(Output {
            machine: self.jobs.machine.clone(),
            command: self.command.clone(),
            code,
            lines,
        })
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let now = self.state.now.lock();
        now.code.is_some() || now.gone.is_some()
    }

    /// Sends SIGKILL to the command and all that it started; [`Job::wait`] tells when they are gone.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn kill(&self) -> Result<(), Error> {
        self.signal(rustix::process::Signal::KILL)
    }

    /// Sends SIGTERM to the command and all that it started.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn terminate(&self) -> Result<(), Error> {
        self.signal(rustix::process::Signal::TERM)
    }

    /// Sends SIGINT to the command and all that it started, as Ctrl-C would.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn interrupt(&self) -> Result<(), Error> {
        self.signal(rustix::process::Signal::INT)
    }

    /// The command's standard input; for commands that were started with it.
    pub fn input(&self) -> Input {
        Input {
            jobs: self.jobs.clone(),
            id: self.id,
        }
    }

    fn signal(&self, signal: rustix::process::Signal) -> Result<(), Error> {
        self.jobs.ask(&Request::Signal {
            id: self.id,
            number: signal.as_raw(),
        })
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.kill();
        }
    }
}

/// The standard input of a command.
pub struct Input {
    jobs: Arc<Jobs>,
    id: u64,
}

impl Input {
    /// Writes to it; the command need not have read what came before.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn write(&self, text: &str) -> Result<(), Error> {
        self.jobs.ask(&Request::Input {
            id: self.id,
            text: text.to_owned(),
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn end(&self) -> Result<(), Error> {
        self.jobs.ask(&Request::EndInput { id: self.id })
    }
}

/// The last lines of an output, indented.
pub(crate) fn tail<'a>(lines: impl DoubleEndedIterator<Item = &'a str>) -> String {
    let mut last: Vec<_> = lines.rev().take(LINES_SHOWN).map(|line| format!("  {line}")).collect();
    last.reverse();
    last.join("\n")
}
