//! Who wants memory for a while: another process, which does as it is told by lines, or this one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use gpuvm::{Buffer, Kernel, Tenancy};
use gpuvm_tenants::Terms;

use super::{PAGE, SOURCE, TenantsArgs};
use crate::args::MachineArgs;
use crate::bench::machine::{Machine, Tally, direct};
use crate::error::CliError;
use crate::stdout;

/// How long the other process may take for an answer. A launch has no more either.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The priority of who wants memory for a while: above the other's, who has the default one.
const PRIORITY: i8 = 1;

/// What the other process is told, and answers when it has done it.
const TAKE: &str = "take";
const RELEASE: &str = "release";
/// What it says when it is ready.
const READY: &str = "ready";

/// Memory for a while.
pub struct Burst<'a> {
    machine: &'a Machine,
    store: Kernel,
    compare: Kernel,
    tally: Tally,
    words: u64,
    held: Option<Buffer<u64>>,
}

impl<'a> Burst<'a> {
    /// Bursts of so many bytes.
    ///
    /// # Errors
    /// The runtime's.
    pub fn new(machine: &'a Machine, bytes: u64) -> Result<Self, CliError> {
        let module = machine.compile("bench/tenants.cu", SOURCE, &["store_words", "compare_words"])?;
        let kernel = |name| module.kernel(name).map_err(CliError::Vm);
        Ok(Self {
            store: kernel("store_words")?,
            compare: kernel("compare_words")?,
            tally: Tally::new(machine)?,
            words: bytes / 8,
            machine,
            held: None,
        })
    }

    fn take(&mut self) -> Result<Duration, CliError> {
        let began = Instant::now();
        let memory = self.machine.vm.buffer::<u64>(self.words)?;
        let (config, _) = self.machine.many_warps();
        let args = || (&memory, self.words, self.tally.arg());
        self.tally.run(&self.store, config.clone(), args(), self.words)?;
        let took = began.elapsed();
        self.tally.run(&self.compare, config, args(), self.words)?;
        self.held = Some(memory);
        Ok(took)
    }

    fn release(&mut self) {
        self.held = None;
    }

    /// Does what is asked for on the standard input, until that ends.
    ///
    /// # Errors
    /// The runtime's, [`CliError::Print`].
    pub fn serve(args: &TenantsArgs, bytes: u64) -> Result<(), CliError> {
        let terms =
            Terms::new(0, None, PRIORITY).map_err(|source| CliError::BackEnd(gpuvm::Error::Terms { source }))?;
        let tenancy = Tenancy::of_environment().terms(terms);
        let machine = Machine::of(direct(&args.machine).builder(PAGE, None)?.tenancy(tenancy), PAGE)?;
        let mut burst = Burst::new(&machine, bytes)?;
        stdout::print_line(READY)?;
        for line in std::io::stdin().lines() {
            match line?.as_str() {
                TAKE => stdout::print_line(burst.take()?.as_nanos())?,
                _ => {
                    burst.release();
                    stdout::print_line(RELEASE)?;
                }
            }
        }
        Ok(())
    }
}

/// Who wants memory for a while.
pub enum Other<'a> {
    /// A process of its own.
    Process(Box<Process>),
    /// This process: nobody else has its simulated GPU.
    Here(Box<Burst<'a>>),
}

impl Other<'_> {
    /// Has memory and stores in all of it: how long both took. What is stored is compared after that.
    ///
    /// # Errors
    /// The runtime's; [`CliError::OtherProcess`].
    pub fn take(&mut self) -> Result<Duration, CliError> {
        match self {
            Self::Here(burst) => burst.take(),
            Self::Process(process) => {
                process.tell(TAKE)?;
                let said = process.answer()?;
                let nanoseconds = said.parse().map_err(|_| CliError::OtherProcess {
                    what: format!("said `{said}` where it had to say a time"),
                })?;
                Ok(Duration::from_nanos(nanoseconds))
            }
        }
    }

    /// Gives the memory back.
    ///
    /// # Errors
    /// [`CliError::OtherProcess`].
    pub fn release(&mut self) -> Result<(), CliError> {
        match self {
            Self::Here(burst) => burst.release(),
            Self::Process(process) => {
                process.tell(RELEASE)?;
                process.answer()?;
            }
        }
        Ok(())
    }

    /// How many processes share the GPU.
    pub fn processes(&self) -> u32 {
        match self {
            Self::Process(_) => 2,
            Self::Here(_) => 1,
        }
    }
}

/// Another process of this program. It is ended when this is dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Process {
    /// Starts it, and waits until it is ready. Its errors go where this one's go.
    ///
    /// # Errors
    /// [`CliError::OtherProcess`].
    pub fn start(machine: &MachineArgs, bytes: u64, registry: &std::path::Path) -> Result<Self, CliError> {
        let refused = |what: &str, error: std::io::Error| CliError::OtherProcess {
            what: format!("{what}: {error}"),
        };
        let program = std::env::current_exe().map_err(|error| refused("has no program", error))?;
        let mut child = Command::new(program)
            .args(["bench", "tenants", "--gpu", &machine.gpu.to_string()])
            .args(["--burst", &bytes.to_string(), "--as-other"])
            .env("GPUVM_TENANTS_DIR", registry)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| refused("could not be started", error))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(CliError::OtherProcess {
                what: "has no pipes".to_owned(),
            });
        };
        let (said, answers) = channel();
        // Ends with the process, whose end closes the pipe.
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines();
            lines.map_while(Result::ok).try_for_each(|line| said.send(line))
        });
        let process = Self { child, input, answers };
        match process.answer()?.as_str() {
            READY => Ok(process),
            said => Err(CliError::OtherProcess {
                what: format!("said `{said}` before it was ready"),
            }),
        }
    }

    fn tell(&mut self, what: &str) -> Result<(), CliError> {
        let told = writeln!(self.input, "{what}").and_then(|()| self.input.flush());
        told.map_err(|error| CliError::OtherProcess {
            what: format!("does not listen: {error}"),
        })
    }

    fn answer(&self) -> Result<String, CliError> {
        self.answers.recv_timeout(ANSWER_LIMIT).map_err(|error| {
            let what = match error {
                RecvTimeoutError::Timeout => format!("did not answer in {} s", ANSWER_LIMIT.as_secs()),
                RecvTimeoutError::Disconnected => "ended before its time; it has said why".to_owned(),
            };
            CliError::OtherProcess { what }
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
