//! Runs shell commands and reports what they say: in a machine's agent, and on this machine in native mode.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::protocol::{Event, LINE_BYTES_MAX, Request, Stream};

/// How long output is waited for once a command has ended: a process that left its group may hold the pipe for ever.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// A command that runs.
struct Running {
    /// Leader of the process group, not yet waited for while this entry exists.
    leader: Pid,
    /// To the thread that writes its standard input, since a command need not read; gone at the end of input.
    input: Option<Sender<String>>,
}

/// Runs commands, several at once. Dropping it kills them all.
pub(crate) struct Executor {
    running: Arc<Mutex<HashMap<u64, Running>>>,
    events: Sender<Event>,
}

impl Executor {
    /// Events go to `events`; a receiver that is gone is no error.
    pub(crate) fn new(events: Sender<Event>) -> Self {
        Self {
            running: Arc::default(),
            events,
        }
    }

    /// Does what is asked; failures become events.
    pub(crate) fn handle(&self, request: Request) {
        match request {
            Request::Start {
                id,
                command,
                folder,
                environment,
                input,
            } => {
                let mut shell = Command::new("bash");
                shell.arg("-c").arg(command).envs(environment);
                if Path::new(&folder).is_dir() {
                    shell.current_dir(folder);
                }
                self.start(id, shell.stdin(if input { Stdio::piped() } else { Stdio::null() }));
            }
            Request::Input { id, text } => {
                if let Some(Running { input: Some(input), .. }) = self.running.lock().get(&id) {
                    let _ = input.send(text);
                }
            }
            Request::EndInput { id } => {
                if let Some(running) = self.running.lock().get_mut(&id) {
                    running.input = None;
                }
            }
            Request::Signal { id, number } => {
                let signal = Signal::from_named_raw(number);
                if let (Some(running), Some(signal)) = (self.running.lock().get(&id), signal) {
                    // The entry exists, so the leader was not waited for and its number is still its own.
                    let _ = kill_process_group(running.leader, signal);
                }
            }
        }
    }

    fn start(&self, id: u64, shell: &mut Command) {
        let spawned = shell
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                let text = format!("cannot start bash: {error}");
                let _ = self.events.send(Event::Line {
                    id,
                    stream: Stream::Stderr,
                    text,
                });
                let _ = self.events.send(Event::Exit { id, code: 127 });
                return;
            }
        };
        let leader = Pid::from_child(&child);
        let (done, readers) = channel();
        if let Some(stdout) = child.stdout.take() {
            self.read_lines(id, Stream::Stdout, stdout, done.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            self.read_lines(id, Stream::Stderr, stderr, done);
        }
        let input = child.stdin.take().map(write_input);
        self.running.lock().insert(id, Running { leader, input });
        let (running, events) = (self.running.clone(), self.events.clone());
        thread::spawn(move || {
            use rustix::process::{WaitId, WaitIdOptions, waitid};
            // Not reaped yet: the group's number cannot become another's before its rest is killed.
            let _ = waitid(WaitId::Pid(leader), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            let _ = kill_process_group(leader, Signal::KILL);
            running.lock().remove(&id);
            let code = child.wait().map_or(127, |status| {
                status
                    .code()
                    .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
            });
            while readers.recv_timeout(LAST_OUTPUT).is_ok() {}
            let _ = events.send(Event::Exit { id, code });
        });
    }

    /// Sends what a command writes, line by line. Drops `done` at the end.
    fn read_lines(&self, id: u64, stream: Stream, source: impl Read + Send + 'static, done: Sender<()>) {
        let events = self.events.clone();
        thread::spawn(move || {
            let mut source = BufReader::new(source);
            let mut line = Vec::new();
            while let Ok(1..) = source.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line) {
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                let text = String::from_utf8_lossy(&line).into_owned();
                if events.send(Event::Line { id, stream, text }).is_err() {
                    break;
                }
                line.clear();
            }
            drop(done);
        });
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        for running in self.running.lock().values() {
            let _ = kill_process_group(running.leader, Signal::KILL);
        }
    }
}

/// Writes to a command what is sent, until the sender or the command is gone.
fn write_input(mut stdin: ChildStdin) -> Sender<String> {
    let (sender, texts) = channel::<String>();
    thread::spawn(move || {
        for text in texts {
            if stdin.write_all(text.as_bytes()).is_err() {
                break;
            }
        }
    });
    sender
}
