//! What every benchmark does: its options are read, the machine is asked, rows are measured, the report is printed.
//!
//! A benchmark is its options, and says by [`Benchmark`] how they are measured; the table in `bench/mod.rs` names all of them.

use std::fmt::Debug;
use std::ops::Deref;
use std::time::{Duration, Instant};

use clap::Args;

use crate::bench::door::{Door, kernel_driver};
use crate::bench::machine::{Machine, direct};
use crate::bench::report::{Facts, Report, Row, Times};
use crate::error::CliError;
use crate::machine::MachineArgs;

/// The options of a benchmark, and those that all have.
#[derive(Debug, Args)]
pub struct Of<B: Benchmark> {
    /// GPU, transport and queues.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Its own options.
    #[command(flatten)]
    pub own: B,

    /// Runs of each row: the median and the best are shown.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,

    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A benchmark, by its own options.
pub trait Benchmark: Args + Debug {
    /// What it is called on the command line and in reports.
    const NAME: &'static str;

    /// Whether the transport is the direct one, where another one was not asked for.
    const DIRECT: bool = false;

    /// The machine that is asked and measured, where it is another one than what the options say.
    fn machine(&self, said: &MachineArgs) -> MachineArgs {
        match Self::DIRECT {
            true => direct(said),
            false => said.clone(),
        }
    }

    /// Adds its rows to the report. The probe is a small virtual memory of that machine.
    ///
    /// # Errors
    /// Options that do not go together, a kernel that did not run, wrong data.
    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError>;
}

/// One run of a benchmark: its options by their names, and what the machine has.
pub struct Run<'a, B> {
    own: &'a B,
    /// The machine as the options say it.
    pub said: &'a MachineArgs,
    /// The machine that is measured.
    pub machine: MachineArgs,
    /// Runs of each row.
    pub repeat: u32,
    /// Whether it is an NVIDIA GPU.
    pub is_cuda: bool,
    began: Instant,
}

impl<B> Deref for Run<'_, B> {
    type Target = B;

    fn deref(&self) -> &B {
        self.own
    }
}

impl<B> Run<'_, B> {
    /// What an option is that was not given, on an NVIDIA GPU and on the simulated one.
    pub fn usual<T>(&self, cuda: T, simulated: T) -> T {
        if self.is_cuda { cuda } else { simulated }
    }

    /// Measures a figure as often as was asked for.
    ///
    /// # Errors
    /// Those of `once`.
    pub fn times(&self, mut once: impl FnMut() -> Result<f64, CliError>) -> Result<Vec<f64>, CliError> {
        (0..self.repeat).map(|_| once()).collect()
    }

    /// Times of single things, as often as was asked for.
    ///
    /// # Errors
    /// Those of `once`.
    pub fn spread(&self, mut once: impl FnMut() -> Result<Vec<f64>, CliError>) -> Result<Times, CliError> {
        let mut times = Times::default();
        for _ in 0..self.repeat {
            times.add(once()?);
        }
        Ok(times)
    }

    /// Whether a row may begin: not after `--limit` seconds, which the report says.
    pub fn has_time(&self, limit: u64, what: &str, report: &mut Report) -> bool {
        let has = self.began.elapsed() < Duration::from_secs(limit);
        if !has {
            report.skip(what, format!("--limit {limit} s is over"));
        }
        has
    }

    /// The row with how many further GPUs the virtual memory has.
    pub fn beside(&self, row: Row) -> Row {
        match self.machine.beside.len() {
            0 => row,
            count => row.with("GPUs beside", count),
        }
    }
}

/// Measures, and prints nothing.
///
/// # Errors
/// A machine that cannot be used, and what the benchmark says; each names it.
pub fn measure<B: Benchmark>(args: &Of<B>) -> Result<Report, CliError> {
    let measured = || {
        let began = Instant::now();
        let machine = args.own.machine(&args.machine);
        let probe = Machine::probe(&machine)?;
        let mut report = Report::new(B::NAME, facts(&probe, &machine));
        let run = Run {
            own: &args.own,
            said: &args.machine,
            is_cuda: probe.is_cuda(),
            repeat: args.repeat,
            machine,
            began,
        };
        B::measure(&run, probe, &mut report)?;
        Ok(report)
    };
    measured().map_err(|source| CliError::Bench {
        bench: B::NAME,
        source: Box::new(source),
    })
}

/// What reports say of a machine.
pub fn facts(machine: &Machine, args: &MachineArgs) -> Facts {
    let (able, door) = (&machine.able, Door::open(machine, args, "its version").ok());
    Facts {
        gpu: machine.vm.gpu_name(),
        transport: machine.vm.transport_name(),
        compute_capability: able.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
        cuda_version: door.and_then(|door| door.cuda_version()),
        driver: kernel_driver().filter(|_| machine.is_cuda()),
        multiprocessors: able.sm_count,
        memory_bytes: able.memory_bytes,
        gpuvm: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Each of these with each of those, in order.
pub fn each<A: Copy, B: Copy>(these: &[A], those: &[B]) -> impl Iterator<Item = (A, B)> {
    these
        .iter()
        .flat_map(|&one| those.iter().map(move |&other| (one, other)))
}

/// An application's name, and its input if it is given one: NAME or NAME:INPUT.
pub fn name_and_input(asked: &str) -> (&str, Option<&str>) {
    asked
        .split_once(':')
        .map_or((asked, None), |(name, input)| (name, Some(input)))
}

/// The refusal of an application's name; there are these.
pub fn unknown_app<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> CliError {
    let names = names.collect::<Vec<_>>().join(", ");
    CliError::Options(format!("there is no application `{name}`; there are {names}"))
}
