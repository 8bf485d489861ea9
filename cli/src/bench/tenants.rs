//! Two processes on one GPU: one pages with all memory that there is, the other has some of it for a while, again and again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use gpuvm::{Buffer, Kernel, LaunchConfig, Region, SimulatedGpu, Tenancy};
use gpuvm_tenants::Terms;
use parking_lot::Mutex;

use crate::bench::changing::{Changing, ChangingArgs};
use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{Machine, Tally, direct, host_words, pinned, size};
use crate::bench::raw;
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::machine::MachineArgs;
use crate::sizes::parse_bytes;
use crate::stdout;

/// Two processes on one GPU.
#[derive(Debug, Args)]
pub struct TenantsArgs {
    /// Data and frames. What the GPU has besides is taken by a buffer.
    #[command(flatten)]
    pub sizes: ChangingArgs,

    /// Bytes that the other process has for a while. Without it: 8 GiB, and 2 MiB on a simulated GPU.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub burst: Option<u64>,

    /// How often it has them, one second after the other; a fifth of a second on a simulated GPU.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub bursts: u32,
}

/// The other process, which does as the standard input says.
#[derive(Debug, Args)]
pub struct OtherArgs {
    /// GPU and transport.
    #[command(flatten)]
    machine: MachineArgs,

    /// Bytes of its memory.
    #[arg(long, value_parser = parse_bytes)]
    burst: u64,
}

const PAGE: u64 = 4096;
const SOURCE: &str = include_str!("tenants.cu");
/// About how long a launch of the reader is: what the other process is given is its own when none runs.
const LAUNCH: Duration = Duration::from_millis(10);
/// The part of a period for which the other process has its memory.
const HELD_PART: u32 = 3;
/// Of the bytes that the other process wants, the part that is kept free for other processes.
const HEADROOM_PART: u64 = 16;
/// How long frames may take to come back before the first burst.
const BACK_LIMIT: Duration = Duration::from_secs(20);
/// Memory of the simulated GPU beside frames and bursts: tables, queues, results.
const SIMULATED_MORE: u64 = 16 << 20;

impl Benchmark for TenantsArgs {
    const NAME: &'static str = "tenants";
    const DIRECT: bool = true;

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        drop(probe);
        let burst = run.burst.unwrap_or(run.usual(8 << 30, 2 << 20));
        let sizes = run.sizes.sizes(run.is_cuda, "--burst", PAGE, burst)?;
        let Changing {
            pages,
            frames,
            going: burst,
        } = sizes;
        // Of its own, so that no one is asked who has nothing to do with this.
        let registry = tempfile::tempdir().map_err(CliError::Registry)?;
        let tenancy = tenancy(0)?.folder(registry.path());
        // Before memory is filled: it has a context of its own.
        let process = match run.is_cuda {
            true => Some(Process::start(&run.machine, burst, registry.path())?),
            false => None,
        };
        let mut builder = run.machine.builder(PAGE, None)?;
        if !run.is_cuda {
            let gpu = SimulatedGpu::new().memory(frames + burst + SIMULATED_MORE);
            builder = builder.gpu(match run.machine.workers {
                Some(workers) => gpu.workers(workers),
                None => gpu,
            });
        }
        let builder = builder
            .tenancy(tenancy)
            .frame_memory(frames)
            .frame_capacity(frames)
            .frames_leave_free(burst / HEADROOM_PART);
        let machine = Machine::of(builder, PAGE)?;
        let mut other = match process {
            Some(process) => Other::Process(Box::new(process)),
            None => Other::Here(Box::new(Burst::new(&machine, burst)?)),
        };
        let bench = Bench {
            machine: &machine,
            pages,
            burst,
            period: Duration::from_millis(run.usual(1000, 200)),
            bursts: run.bursts,
            repeat: run.repeat,
        };
        let memory = host_words(pages * PAGE / 8)?;
        let words: &[u64] = bytemuck::cast_slice(&memory);
        report.rows = pinned(&machine, words, |scope| {
            bench.rows(&*scope.read_only("data", words)?, &mut other)
        })?;
        Ok(())
    }
}

/// Terms of a process that has no minimum and no limit.
fn tenancy(priority: i8) -> Result<Tenancy, CliError> {
    let terms = Terms::new(0, None, priority).map_err(|source| CliError::BackEnd(gpuvm::Error::Terms { source }))?;
    Ok(Tenancy::of_environment().terms(terms))
}

struct Bench<'a> {
    machine: &'a Machine,
    pages: u64,
    burst: u64,
    /// From one burst to the next.
    period: Duration,
    bursts: u32,
    repeat: u32,
}

/// A launch that has ended.
struct Read {
    began: Instant,
    ended: Instant,
    pages: u64,
}

/// What the reader has done so far, and whether it may go on.
#[derive(Default)]
struct Reads {
    done: Mutex<Vec<Read>>,
    stop: AtomicBool,
}

impl Reads {
    /// Waits until a launch has ended at that time or later: whether one has.
    fn reach(&self, time: Instant) -> bool {
        let reached = || self.done.lock().last().is_some_and(|read| read.ended >= time);
        let begun = Instant::now();
        while !reached() && !self.stop.load(Ordering::Relaxed) && begun.elapsed() < BACK_LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        reached()
    }

    /// GB a second between two moments. Of a launch that is partly between them, the part counts.
    fn rate(&self, from: Instant, to: Instant) -> f64 {
        self.reach(to);
        let between = |read: &Read| {
            let inside = read.ended.min(to).saturating_duration_since(read.began.max(from));
            let part = inside.as_secs_f64() / (read.ended - read.began).as_secs_f64().max(1e-9);
            read.pages as f64 * part
        };
        let pages: f64 = self.done.lock().iter().map(between).sum();
        pages * PAGE as f64 / (to - from).as_secs_f64().max(1e-9) / 1e9
    }

    /// Pages read in all.
    fn pages(&self) -> u64 {
        self.done.lock().iter().map(|read| read.pages).sum()
    }
}

/// Tells that nothing more is read, or to be read, however this ends.
struct Stops<'a>(&'a Reads);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        // Relaxed: the reader's thread is joined after it.
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

impl Bench<'_> {
    fn rows(&self, region: &Region<u64>, other: &mut Other<'_>) -> Result<Vec<Row>, CliError> {
        let free = self.served(other)?;
        // Everything that is free, but for what is kept so, and as much again, which memory given and taken in whole handles needs.
        let left = self.machine.gpu().own_memory()?.free;
        let _taken = self.held(left.saturating_sub(2 * self.burst / HEADROOM_PART))?;
        let reads = Reads::default();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // Nothing waits for a reader that has failed.
                let _stops = Stops(&reads);
                self.read(region, &reads)
            });
            let measured = {
                let _stops = Stops(&reads);
                self.beside(&reads, other, &free)
            };
            // Its error is the cause of the other one, if there are two.
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            measured
        })
    }

    /// Bursts while nothing else needs the memory.
    fn served(&self, other: &mut Other<'_>) -> Result<Runs, CliError> {
        let mut times = Vec::new();
        // The first one loads the kernels.
        for _ in 0..=self.repeat {
            times.push(other.take()?.as_secs_f64() * 1e3);
            other.release()?;
        }
        Ok(Runs(times.split_off(1)))
    }

    fn held(&self, bytes: u64) -> Result<Option<Buffer<u64>>, CliError> {
        match bytes / 8 {
            0 => Ok(None),
            words => self.machine.vm.buffer(words).map(Some).map_err(CliError::Vm),
        }
    }

    /// Reads random pages, in launches one behind the other.
    fn read(&self, region: &Region<u64>, reads: &Reads) -> Result<(), CliError> {
        let machine = self.machine;
        let module = machine.compile("bench/tenants.cu", SOURCE, "read_by_chance")?;
        let kernel = module.kernel("read_by_chance")?;
        let tally = Tally::new(machine)?;
        let config = match machine.is_cuda() {
            true => LaunchConfig::new(machine.able.sm_count, 256).warp_spans(1),
            false => LaunchConfig::new(1, 32).warp_spans(1),
        };
        let (mut first, mut visits) = (0, 64);
        while !reads.stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let args = (region, self.pages, first, visits, machine.page_words, tally.arg());
            tally.run(&kernel, config.clone(), args, visits)?;
            let ended = Instant::now();
            reads.done.lock().push(Read {
                began,
                ended,
                pages: visits,
            });
            first += visits;
            let longer = LAUNCH.as_secs_f64() / (ended - began).as_secs_f64().max(1e-9);
            visits = (visits as f64 * longer.clamp(0.5, 2.0)).max(64.0) as u64;
        }
        Ok(())
    }

    /// The reader alone, with all frames and with fewer, and beside bursts.
    fn beside(&self, reads: &Reads, other: &mut Other<'_>, free: &Runs) -> Result<Vec<Row>, CliError> {
        let all = self.machine.vm.frames();
        self.wait_frames(reads, |frames| frames >= all)?;
        let alone = self.rates(reads);
        let fewer = {
            let _taken = self.held(self.burst)?;
            self.wait_frames(reads, |frames| frames < all)?;
            self.rates(reads)
        };
        self.wait_frames(reads, |frames| frames >= all)?;
        let (mut served, mut held, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.bursts {
            let began = Instant::now();
            served.push(other.take()?.as_secs_f64() * 1e3);
            let taken = Instant::now();
            std::thread::sleep(self.period / HELD_PART);
            held.push(reads.rate(taken, Instant::now()));
            other.release()?;
            std::thread::sleep(self.period.saturating_sub(began.elapsed()));
            whole.push(reads.rate(began, Instant::now()));
        }
        let words = u64::from(self.bursts + self.repeat + 1) * self.burst / 8;
        let worst = served.iter().copied().fold(0.0, f64::max);
        let row = |row: Row| row.with("burst", size(self.burst)).with("processes", other.processes());
        Ok(vec![
            row(Row::new("a burst is served", Unit::Milliseconds, served))
                .ceiling("the same where memory is free", free)
                .and("worst", worst)
                .verified(words, "words"),
            row(Row::new("random reads, bursts beside them", Unit::GigaBytes, whole))
                .with("frames", size(all * PAGE))
                .with("data", size(self.pages * PAGE))
                .ceiling("the same alone, without the memory that is given", &fewer)
                .and("alone with all frames", alone.median())
                .and("while a burst has its memory", Runs(held).median())
                .verified(reads.pages(), "whole pages"),
        ])
    }

    /// Waits until there are such frames, and pages in them.
    fn wait_frames(&self, reads: &Reads, are: impl Fn(u64) -> bool) -> Result<(), CliError> {
        let began = Instant::now();
        while !are(self.machine.vm.frames()) {
            if reads.stop.load(Ordering::Relaxed) || began.elapsed() > BACK_LIMIT {
                return Err(CliError::WrongFrameCount {
                    frames: self.machine.vm.frames(),
                    seconds: began.elapsed().as_secs(),
                });
            }
            std::thread::sleep(self.period / 100);
        }
        std::thread::sleep(2 * self.period);
        // The reader compiles first, which may take long.
        match reads.reach(Instant::now()) {
            true => Ok(()),
            false => Err(CliError::WrongFrameCount {
                frames: self.machine.vm.frames(),
                seconds: began.elapsed().as_secs(),
            }),
        }
    }

    fn rates(&self, reads: &Reads) -> Runs {
        let rate = |_| {
            let began = Instant::now();
            std::thread::sleep(self.period);
            reads.rate(began, Instant::now())
        };
        Runs((0..self.repeat).map(rate).collect())
    }
}

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
struct Burst<'a> {
    machine: &'a Machine,
    store: Kernel,
    compare: Kernel,
    tally: Tally,
    words: u64,
    held: Option<Buffer<u64>>,
}

impl<'a> Burst<'a> {
    /// Bursts of this many bytes.
    ///
    /// # Errors
    /// The runtime's.
    fn new(machine: &'a Machine, bytes: u64) -> Result<Self, CliError> {
        let module = raw::compile(machine, "fill_pattern check_words")?;
        Ok(Self {
            store: module.kernel("fill_pattern")?,
            compare: module.kernel("check_words")?,
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
        let args = || (memory.addr(), self.words, self.tally.arg());
        self.tally.run(&self.store, config.clone(), args(), self.words)?;
        let took = began.elapsed();
        self.tally.run(&self.compare, config, args(), self.words)?;
        self.held = Some(memory);
        Ok(took)
    }

    fn release(&mut self) {
        self.held = None;
    }
}

/// Does what is asked for on the standard input, until that ends.
///
/// # Errors
/// The runtime's, which the process that started this one cannot see otherwise than by its end; [`CliError::Print`].
pub fn be_other(args: &OtherArgs) -> Result<(), CliError> {
    let builder = direct(&args.machine).builder(PAGE, None)?;
    let machine = Machine::of(builder.tenancy(tenancy(PRIORITY)?), PAGE)?;
    let mut burst = Burst::new(&machine, args.burst)?;
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

/// Who wants memory for a while.
enum Other<'a> {
    /// A process of its own.
    Process(Box<Process>),
    /// This process: nothing else has its simulated GPU.
    Here(Box<Burst<'a>>),
}

impl Other<'_> {
    /// Has memory and stores in all of it: how long both took. What is stored is compared after that.
    ///
    /// # Errors
    /// The runtime's; [`CliError::OtherProcess`].
    fn take(&mut self) -> Result<Duration, CliError> {
        match self {
            Self::Here(burst) => burst.take(),
            Self::Process(process) => {
                process.tell(TAKE)?;
                let said = process.answer()?;
                let nanoseconds = said.parse().map_err(|_| CliError::OtherProcess {
                    what: format!("printed `{said}` instead of a time"),
                })?;
                Ok(Duration::from_nanos(nanoseconds))
            }
        }
    }

    /// Gives the memory back.
    ///
    /// # Errors
    /// [`CliError::OtherProcess`].
    fn release(&mut self) -> Result<(), CliError> {
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
    fn processes(&self) -> u32 {
        match self {
            Self::Process(_) => 2,
            Self::Here(_) => 1,
        }
    }
}

/// Another process of this program. It is ended when this is dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Process {
    /// Starts it, and waits until it is ready. Its errors go where this one's go.
    ///
    /// # Errors
    /// [`CliError::OtherProcess`].
    fn start(machine: &MachineArgs, bytes: u64, registry: &std::path::Path) -> Result<Self, CliError> {
        let refused = |what: &str, error: std::io::Error| CliError::OtherProcess {
            what: format!("{what}: {error}"),
        };
        let program = std::env::current_exe().map_err(|error| refused("has no program", error))?;
        let mut child = Command::new(program)
            .args(["bench", "tenants-other", "--gpu", &machine.first().to_string()])
            .args(["--burst", &bytes.to_string()])
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
                what: format!("printed `{said}` before it was ready"),
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
                RecvTimeoutError::Disconnected => "ended early; its own message says why".to_owned(),
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
