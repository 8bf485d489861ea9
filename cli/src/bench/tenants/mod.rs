//! Two processes on one GPU: one pages with all memory that there is, the other has some of it for a while, again and again.

mod burst;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use gpuvm::{LaunchConfig, Region, SimulatedGpu, Tenancy};
use gpuvm_tenants::Terms;
use parking_lot::Mutex;

use self::burst::{Burst, Other, Process};
use crate::args::{MachineArgs, parse_bytes};
use crate::bench::args::OutputArgs;
use crate::bench::changing::{Changing, ChangingArgs};
use crate::bench::machine::{Machine, Tally, direct, host_words, pinned, size};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;

/// Two processes on one GPU.
#[derive(Debug, Args)]
pub struct TenantsArgs {
    /// GPU and transport.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Data and frames. What the GPU has besides is taken by a buffer.
    #[command(flatten)]
    pub sizes: ChangingArgs,

    /// Bytes that the other process has for a while. Without it: 8 GiB, and 2 MiB on a simulated GPU.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub burst: Option<u64>,

    /// How often it has them, one second after the other; a fifth of a second on a simulated GPU.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub bursts: u32,

    /// Be the other process, which does as the standard input says.
    #[arg(long, hide = true, requires = "burst")]
    pub as_other: bool,

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

const PAGE: u64 = 4096;
const SOURCE: &str = include_str!("../tenants.cu");
/// About how long a launch of the reader is: what the other process is given is its own when none runs.
const LAUNCH: Duration = Duration::from_millis(10);
/// The part of a period for which the other process has its memory.
const HELD_PART: u32 = 3;
/// Of the bytes that the other process wants, the part that is kept free for whoever comes.
const HEADROOM_PART: u64 = 16;
/// How long frames may take to come back before the first burst.
const BACK_LIMIT: Duration = Duration::from_secs(20);
/// Memory of the simulated GPU beside frames and bursts: tables, queues, results.
const SIMULATED_MORE: u64 = 16 << 20;

/// Measures.
///
/// # Errors
/// As for every benchmark; [`CliError::OtherProcess`].
pub fn measure(args: &TenantsArgs) -> Result<Report, CliError> {
    let machine_args = direct(&args.machine);
    let is_cuda = Machine::probe(&machine_args)?.is_cuda();
    let usual = |cuda: u64, simulated: u64| if is_cuda { cuda } else { simulated };
    let burst = args.burst.unwrap_or(usual(8 << 30, 2 << 20));
    let sizes = args.sizes.sizes(is_cuda, "--burst", PAGE, burst)?;
    let Changing {
        pages,
        frames,
        going: burst,
    } = sizes;
    // Of its own, so that nobody is asked who has nothing to do with this.
    let registry = tempfile::tempdir().map_err(CliError::Registry)?;
    let tenancy = Tenancy::of_environment().folder(registry.path());
    let tenancy = match Terms::new(0, None, 0) {
        Ok(terms) => tenancy.terms(terms),
        Err(source) => return Err(CliError::BackEnd(gpuvm::Error::Terms { source })),
    };
    // Before memory is filled: it has a context of its own.
    let process = match is_cuda {
        true => Some(Process::start(&machine_args, burst, registry.path())?),
        false => None,
    };
    let mut builder = machine_args.builder(PAGE, None)?;
    if !is_cuda {
        let gpu = SimulatedGpu::new().memory(frames + burst + SIMULATED_MORE);
        builder = builder.gpu(match machine_args.workers {
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
    let mut report = Report::new("tenants", machine.facts(&machine_args));
    let mut other = match process {
        Some(process) => Other::Process(Box::new(process)),
        None => Other::Here(Box::new(Burst::new(&machine, burst)?)),
    };
    let bench = Bench {
        machine: &machine,
        pages,
        burst,
        period: Duration::from_millis(usual(1000, 200)),
        bursts: args.bursts,
        repeat: args.output.repeat,
    };
    let memory = host_words(pages * PAGE / 8)?;
    let words: &[u64] = bytemuck::cast_slice(&memory);
    report.rows = pinned(&machine, words, |scope| {
        let region = scope.read_only("data", words)?;
        bench.rows(&region, &mut other)
    })?;
    Ok(report)
}

/// The other process of the benchmark.
///
/// # Errors
/// The runtime's, which the process that started this one cannot see otherwise than by its end.
pub fn be_other(args: &TenantsArgs) -> Result<(), CliError> {
    Burst::serve(args, args.burst.unwrap_or_default())
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
                // Nobody waits for a reader that has failed.
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

    /// Bursts while nobody else needs the memory.
    fn served(&self, other: &mut Other<'_>) -> Result<Runs, CliError> {
        let mut times = Vec::new();
        // The first one loads the kernels.
        for _ in 0..=self.repeat {
            times.push(other.take()?.as_secs_f64() * 1e3);
            other.release()?;
        }
        Ok(Runs(times.split_off(1)))
    }

    fn held(&self, bytes: u64) -> Result<Option<gpuvm::Buffer<u64>>, CliError> {
        match bytes / 8 {
            0 => Ok(None),
            words => self.machine.vm.buffer(words).map(Some).map_err(CliError::Vm),
        }
    }

    /// Reads pages by chance, in launches one behind the other.
    fn read(&self, region: &Region<u64>, reads: &Reads) -> Result<(), CliError> {
        let machine = self.machine;
        let module = machine.compile("bench/tenants.cu", SOURCE, &["read_by_chance"])?;
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
        self.settled(reads, |frames| frames >= all)?;
        let alone = self.rates(reads);
        let fewer = {
            let _taken = self.held(self.burst)?;
            self.settled(reads, |frames| frames < all)?;
            self.rates(reads)
        };
        self.settled(reads, |frames| frames >= all)?;
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
            row(Row::new("reads by chance, bursts beside them", Unit::GigaBytes, whole))
                .with("frames", size(all * PAGE))
                .with("data", size(self.pages * PAGE))
                .ceiling("the same alone, without the memory that is given", &fewer)
                .and("alone with all frames", alone.median())
                .and("while a burst has its memory", Runs(held).median())
                .verified(reads.pages(), "whole pages"),
        ])
    }

    /// Waits until there are such frames, and pages in them.
    fn settled(&self, reads: &Reads, are: impl Fn(u64) -> bool) -> Result<(), CliError> {
        let began = Instant::now();
        while !are(self.machine.vm.frames()) {
            if reads.stop.load(Ordering::Relaxed) || began.elapsed() > BACK_LIMIT {
                return Err(CliError::NotSettled {
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
            false => Err(CliError::NotSettled {
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
