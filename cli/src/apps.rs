//! `gpuvm run NAME` for the applications of `gpuvm_workloads::apps`.

use std::fmt;
use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use gpuvm::Vm;
use gpuvm_workloads::apps::catalogue::Entry;
use gpuvm_workloads::apps::{App, AppError, Column, Measured, Parameter, Way, measure, paged_bytes};
use serde::Serialize;

use crate::error::CliError;
use crate::machine::{FRAMES_MIN, MachineArgs};
use crate::output::ResultFile;
use crate::progress::Bars;
use crate::report::NeighbourReport;
use crate::sizes::{MemorySize, parse_page_bytes};
use crate::stdout;

/// An application that is run twice: cold and warm.
#[derive(Debug, Args)]
pub struct RunAppArgs {
    /// Its input. Without it: a small one.
    pub input: Option<std::ffi::OsString>,

    /// Frame memory: a share of its arrays (25%), or bytes (2GiB, 64M). A share gives at least 16 pages.
    #[arg(long, value_name = "SIZE", default_value = "25%", allow_hyphen_values = true)]
    pub memory: MemorySize,

    /// Bytes of a page: a power of two from 4KiB to 2MiB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_page_bytes)]
    pub page_size: u64,

    /// What reads do with a page that has no frame (auto, fetch, in-place, while-free, look-up); resident: memory holds all arrays, each of which
    /// has frames of its own, which auto then gives them, too; or what a user would run instead of paging, over
    /// plain pointers: raw (all in device memory), host (in pinned host memory, in place), managed, advised and prefetched (CUDA's
    /// managed memory without and with advice, and prefetched in one piece), chunked (explicit copies, double buffered). With --memory-node:
    /// auto or fetch.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub placement: Way,

    /// GPU, transport and queues.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Write the result to this file, once it is compared with the processor's: text, with a tab between columns and a line that names them
    /// (.txt, .tsv, no end, a pipe); an array of NumPy (.npy); or Parquet (.parquet).
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,

    /// The application's own parameters that are given.
    #[arg(skip)]
    pub given: Vec<(&'static str, String)>,
}

impl RunAppArgs {
    /// The command of an application: its input and its own parameters, beside what all take.
    pub fn command(entry: &Entry) -> Command {
        let command = Self::augment_args(Command::new(entry.name)).about(entry.about);
        let input = format!("Its input: {}. Without it: {}", entry.input, entry.small);
        let command = command.mut_arg("input", |argument| argument.help(input));
        let command = command.mut_arg("gpu", |argument| match entry.several {
            true => argument,
            false => argument
                .value_name("GPU")
                .help("The GPU: sim, cuda:N, cuda:GPU-UUID, or auto"),
        });
        let options = (entry.parameters)().into_iter().map(|parameter| {
            let Parameter {
                name,
                help,
                allowed,
                default,
                check,
            } = parameter;
            let default = default.map_or(String::new(), |default| format!(" [default: {default}]"));
            let checked = move |text: &str| check(text).map(|()| text.to_owned());
            let option = Arg::new(name)
                .long(name)
                .value_name("N")
                .allow_hyphen_values(true)
                .value_parser(checked);
            option
                .help(format!("{help}: {allowed}{default}"))
                .help_heading("Parameters")
        });
        command.args(options)
    }

    /// Reads what was given to that command.
    ///
    /// # Errors
    /// The parser's.
    pub fn read(entry: &Entry, matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = Self::from_arg_matches(matches)?;
        let names = (entry.parameters)().into_iter().map(|parameter| parameter.name);
        args.given = names
            .filter_map(|name| Some((name, matches.get_one::<String>(name)?.clone())))
            .collect();
        Ok(args)
    }
}

/// What a run tells its user; the field names are the keys of the JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct AppReport {
    /// The application.
    pub app: String,
    /// Its input.
    pub input: String,
    /// The GPU that ran it.
    pub gpu: String,
    /// What moved the pages.
    pub transport: String,
    /// Where the arrays were, and who brought them.
    pub way: String,
    /// Bytes of the arrays, in whole pages.
    pub data_bytes: u64,
    /// Bytes of frames.
    pub memory_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// The first run, with no page there.
    pub cold_seconds: f64,
    /// The second run.
    pub warm_seconds: f64,
    /// Demand fetches of the first run.
    pub faults: u64,
    /// Bytes that were fetched in the first run.
    pub bytes_fetched: u64,
    /// Bytes that were read in place in the first run, estimated from a sample.
    pub bytes_in_place: u64,
    /// Pages that the first run overwrote whole, so that they were not fetched.
    pub pages_overwritten: u64,
    /// Pages that the first run, and reading its result, wrote back.
    pub pages_written_back: u64,
    /// Bytes that were copied in chunks in the first run.
    pub bytes_copied: u64,
    /// Pages of regions with placement `auto` that a fault fetched while no frame was free.
    pub admissions: u64,
    /// Pages of such regions that left their frame for another page of their region.
    pub displacements: u64,
    /// Iterations of the second run, where it counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u32>,
    /// What memory of neighbour GPUs did in the first run, where some is borrowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<NeighbourReport>,
    /// Values that were compared with the processor's, of each run.
    pub verified: u64,
}

impl fmt::Display for AppReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u64| ByteSize::b(bytes).display().iec();
        let share = self.memory_bytes as f64 / self.data_bytes.max(1) as f64 * 100.0;
        writeln!(
            out,
            "app        {} ({}), {} of arrays",
            self.app,
            self.input,
            size(self.data_bytes)
        )?;
        writeln!(
            out,
            "memory     {} of frames ({share:.1} %), pages of {}, {}, transport {}, way {}",
            size(self.memory_bytes),
            size(self.page_bytes),
            self.gpu,
            self.transport,
            self.way
        )?;
        writeln!(
            out,
            "time       {:.3} ms cold, {:.3} ms warm",
            self.cold_seconds * 1e3,
            self.warm_seconds * 1e3
        )?;
        writeln!(
            out,
            "bytes      {} fetched by {} faults, {} read in place, {} pages overwritten unfetched, {} written back, {} copied in \
             chunks",
            size(self.bytes_fetched),
            self.faults,
            size(self.bytes_in_place),
            self.pages_overwritten,
            self.pages_written_back,
            size(self.bytes_copied)
        )?;
        writeln!(
            out,
            "placement  {} pages admitted while no frame was free, {} displaced by pages of their region",
            self.admissions, self.displacements
        )?;
        if let Some(neighbour) = &self.neighbour {
            writeln!(out, "neighbour  {neighbour}")?;
        }
        if let Some(iterations) = self.iterations {
            writeln!(out, "iterations {iterations}")?;
        }
        write!(
            out,
            "verified   {} values equal those of the processor, twice",
            self.verified
        )
    }
}

/// Makes the application's input, runs it twice, compares and reports.
pub fn run(entry: &Entry, args: &RunAppArgs) -> Result<(), CliError> {
    let failed = failed(entry.name);
    // What cannot be is refused before an input is made for nothing.
    let way = args.placement;
    way.beside_nodes(&args.machine.memory_node).map_err(&failed)?;
    way.fits(&args.machine.probe(args.page_size, None)?).map_err(&failed)?;
    let output = ResultFile::create(args.output.as_deref(), args.input.as_deref())?;
    let mut bars = Bars::new(!args.json);
    bars.working("input");
    let app = entry
        .make_with(args.input.as_deref().unwrap_or(entry.small.as_ref()), &args.given)
        .map_err(&failed)?;
    bars.working("starting");
    let started = machine(&args.machine, &*app, args.page_size, args.memory, way)?;
    bars.working("running");
    let measured = measure(&*app, &started.vm, started.way, &ordinal(&args.machine)).map_err(&failed)?;
    bars.clear();
    let report = report(&*app, &started, &measured);
    answer(&*app, output, measured.found.columns, &report, args.json)
}

/// Writes a result and prints its report, the file first: a standard output that is full must not cost it.
pub fn answer(
    app: &dyn App,
    output: Option<ResultFile>,
    found: Vec<Column>,
    report: &(impl Serialize + fmt::Display),
    json: bool,
) -> Result<(), CliError> {
    let written = output.map_or(Ok(()), |file| file.write(&app.written(found)));
    let printed = stdout::print_report(report, json);
    written?;
    Ok(printed?)
}

/// An error of that application.
pub fn failed(app: &str) -> impl Fn(AppError) -> CliError {
    move |source| CliError::App {
        app: app.to_owned(),
        source,
    }
}

/// A virtual memory for an application.
pub struct Started {
    /// It.
    pub vm: Vm,
    /// Bytes of frames, those of the arrays' own among them.
    pub memory_bytes: u64,
    /// How the arrays are reached with that much memory.
    pub way: Way,
}

/// A virtual memory with that much memory for an application, whose arrays are to be reached in the way `asked`.
pub fn machine(
    machine: &MachineArgs,
    app: &dyn App,
    page_bytes: u64,
    memory: MemorySize,
    asked: Way,
) -> Result<Started, CliError> {
    let data_bytes = paged_bytes(app, page_bytes);
    let bytes = memory.bytes_of(data_bytes);
    let frames = match memory {
        MemorySize::Percent(_) => bytes.div_ceil(page_bytes).max(FRAMES_MIN),
        MemorySize::Bytes(_) => bytes / page_bytes,
    };
    if frames == 0 {
        return Err(CliError::TooLittleMemory { bytes, page_bytes });
    }
    let way = asked.where_memory(bytes >= data_bytes);
    let (pool, own) = match way {
        Way::Resident if bytes < data_bytes => {
            let reason = format!(
                "its arrays have {data_bytes} bytes in whole pages, and {bytes} bytes of frames cannot hold them; give more --memory, or choose \
                 --placement auto"
            );
            let source = AppError::Way { way, reason };
            let app = app.name().to_owned();
            return Err(CliError::App { app, source });
        }
        // Arrays bring frames of their own.
        Way::Resident => (FRAMES_MIN * page_bytes, data_bytes),
        _ => (frames.saturating_mul(page_bytes), 0),
    };
    let built = machine.builder(page_bytes, None)?.frame_memory(pool).build();
    Ok(Started {
        vm: built.map_err(CliError::BackEnd)?,
        memory_bytes: pool + own,
        way,
    })
}

/// The CUDA device by its number or UUID.
pub fn ordinal(machine: &MachineArgs) -> String {
    match machine.first() {
        gpuvm::Gpu::Cuda(which) => which.to_string(),
        _ => "0".to_owned(),
    }
}

fn report(app: &dyn App, started: &Started, measured: &Measured) -> AppReport {
    let (stats, vm) = (&measured.stats, &started.vm);
    AppReport {
        app: app.name().to_owned(),
        input: app.input(),
        gpu: vm.gpu_name(),
        transport: vm.transport_name(),
        way: started.way.to_string(),
        data_bytes: paged_bytes(app, vm.page_size()),
        memory_bytes: started.memory_bytes,
        page_bytes: vm.page_size(),
        cold_seconds: measured.cold.as_secs_f64(),
        warm_seconds: measured.warm.as_secs_f64(),
        faults: stats.faults,
        bytes_fetched: stats.bytes_fetched,
        bytes_in_place: stats.bytes_in_place,
        pages_overwritten: stats.pages_overwritten,
        pages_written_back: stats.pages_written_back,
        bytes_copied: measured.copied,
        admissions: stats.admissions,
        displacements: stats.displacements,
        iterations: measured.found.iterations,
        neighbour: NeighbourReport::of(stats),
        verified: measured.verified,
    }
}
