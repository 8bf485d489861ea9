//! `gpuvm run bfs` and `gpuvm run pagerank` with several GPUs: one graph on several GPUs, each with a part of the vertices.

use std::fmt;
use std::sync::Arc;

use bytesize::ByteSize;
use gpuvm::Placement;
use gpuvm_workloads::apps::catalogue::Entry;
use gpuvm_workloads::apps::{App, Bfs, BfsParameters, Way, paged_bytes};
use gpuvm_workloads::graph::LoadOptions;
use serde::Serialize;

use crate::apps::{RunAppArgs, answer, failed};
use crate::args::{MachineArgs, RunBfsArgs};
use crate::bfs::{create_output, frame_bytes, load_graph};
use crate::error::CliError;
use crate::machine::FRAMES_MIN;
use crate::output::ResultFile;
use crate::progress::Bars;
use crate::report::NeighbourReport;

/// What a run tells its user; the field names are the keys of the JSON object.
#[derive(Debug, Serialize)]
struct SeveralReport {
    /// The application.
    app: &'static str,
    /// Its input as given, and what that is.
    input: String,
    /// What moved the pages.
    transport: String,
    /// Bytes of frames of each GPU.
    memory_bytes: u64,
    /// Bytes of a page.
    page_bytes: u64,
    /// Before the first launch: kernels are compiled and regions made, which locks the graph in memory.
    set_up_seconds: f64,
    /// All launches, and what the host did between them.
    seconds: f64,
    /// Iterations, where it counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    iterations: Option<u32>,
    /// The GPUs, in their order.
    gpus: Vec<GpuReport>,
    /// Whether the result equals the processor's.
    verified: bool,
}

/// What one GPU did.
#[derive(Debug, Serialize)]
struct GpuReport {
    gpu: String,
    /// Demand fetches.
    faults: u64,
    bytes_fetched: u64,
    /// Estimated from a sample.
    bytes_in_place: u64,
    /// What memory of neighbour GPUs did, where some is borrowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    neighbour: Option<NeighbourReport>,
}

impl fmt::Display for SeveralReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u64| ByteSize::b(bytes).display().iec();
        writeln!(out, "app        {} ({})", self.app, self.input)?;
        let (memory, page) = (size(self.memory_bytes), size(self.page_bytes));
        writeln!(
            out,
            "memory     {memory} of frames a GPU, pages of {page}, transport {}",
            self.transport
        )?;
        for (place, gpu) in self.gpus.iter().enumerate() {
            let (fetched, in_place) = (size(gpu.bytes_fetched), size(gpu.bytes_in_place));
            let name = &gpu.gpu;
            writeln!(
                out,
                "GPU {place}      {name}: {fetched} fetched by {} faults, {in_place} read in place",
                gpu.faults
            )?;
            if let Some(neighbour) = &gpu.neighbour {
                writeln!(out, "neighbour  of GPU {place}: {neighbour}")?;
            }
        }
        let (time, set_up) = (self.seconds * 1e3, self.set_up_seconds * 1e3);
        writeln!(
            out,
            "time       {time:.3} ms, after {set_up:.3} ms of set-up (kernels compiled, regions made)"
        )?;
        if let Some(iterations) = self.iterations {
            writeln!(out, "iterations {iterations}")?;
        }
        let verified = if self.verified {
            "equal to the processor's"
        } else {
            "not compared"
        };
        write!(out, "result     {verified}")
    }
}

fn refuse(option: &str) -> CliError {
    CliError::Options(format!(
        "several GPUs run without {option}: leave it out, or give one --gpu"
    ))
}

fn refuse_options(machine: &MachineArgs) -> Result<(), CliError> {
    let given = [
        ("--memory-node", !machine.memory_node.is_empty()),
        ("--workers", machine.workers.is_some()),
        ("--beside", !machine.beside.is_empty()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => Err(refuse(option)),
    }
}

/// Searches the graph.
pub fn run_bfs(args: &RunBfsArgs) -> Result<(), CliError> {
    let search = &args.search;
    if search.seed.is_some() {
        return Err(refuse("--seed"));
    }
    refuse_options(&search.machine)?;
    let output = create_output(search)?;
    let mut bars = Bars::new(!args.json);
    let options = LoadOptions {
        direction: search.direction.direction(),
        seed: search.graph_seed,
        verify: search.verify,
        ..LoadOptions::default()
    };
    let graph = Arc::new(load_graph(&search.graph, &options, &mut bars)?);
    let parameters = BfsParameters { source: search.source };
    let app = Bfs::new(&graph, &parameters).map_err(failed("bfs"))?;
    let job = Job {
        app: &app,
        input: search.graph.to_string(),
        memory_bytes: frame_bytes(search, &graph)?,
        page_bytes: search.page_size,
        placement: search.placement,
        check: search.check,
        output,
    };
    job.run(&search.machine, args.json, bars)
}

/// Runs another application.
pub fn run_app(entry: &Entry, args: &RunAppArgs) -> Result<(), CliError> {
    if !entry.several {
        let name = entry.name;
        let what = format!("{name} runs on one GPU: name one by --gpu; bfs and pagerank run on several");
        return Err(CliError::Options(what));
    }
    let Way::Paged(placement) = args.placement else {
        return Err(refuse("a --placement that does not page"));
    };
    refuse_options(&args.machine)?;
    let output = ResultFile::create(args.output.as_deref(), args.input.as_deref())?;
    let mut bars = Bars::new(!args.json);
    bars.working("input");
    let input = args.input.as_deref().unwrap_or(entry.small.as_ref());
    let app = entry.make_with(input, &args.given).map_err(failed(entry.name))?;
    let memory_bytes = args.memory.bytes_of(paged_bytes(&*app, args.page_size));
    let memory_bytes = memory_bytes.next_multiple_of(args.page_size);
    let job = Job {
        app: &*app,
        input: input.to_string_lossy().into_owned(),
        memory_bytes: memory_bytes.max(FRAMES_MIN * args.page_size),
        page_bytes: args.page_size,
        placement,
        check: true,
        output,
    };
    job.run(&args.machine, args.json, bars)
}

/// An application with its input, and how it is run.
struct Job<'a> {
    app: &'a dyn App,
    input: String,
    memory_bytes: u64,
    page_bytes: u64,
    placement: Placement,
    check: bool,
    output: Option<ResultFile>,
}

impl Job<'_> {
    /// Runs, compares, writes and reports.
    fn run(self, machine: &MachineArgs, json: bool, mut bars: Bars) -> Result<(), CliError> {
        let (app, failed) = (self.app, failed(self.app.name()));
        bars.working("starting");
        let builder = machine.builder_of_all(self.page_bytes, None)?;
        let vm = builder
            .frame_memory(self.memory_bytes)
            .build()
            .map_err(CliError::BackEnd)?;
        bars.working("running");
        let ran = app.run_on_all(&vm, self.placement).map_err(&failed)?;
        if self.check {
            bars.working("comparing");
            app.check(&ran.found).map_err(&failed)?;
        }
        bars.clear();
        let of_gpu = |gpu: &gpuvm::VmGpu| {
            let stats = gpu.stats()?;
            Ok(GpuReport {
                gpu: gpu.gpu_name(),
                faults: stats.faults,
                bytes_fetched: stats.bytes_fetched,
                bytes_in_place: stats.bytes_in_place,
                neighbour: NeighbourReport::of(&stats),
            })
        };
        let of_gpus: Result<_, gpuvm::Error> = vm.gpus().iter().map(of_gpu).collect();
        let report = SeveralReport {
            app: app.name(),
            input: format!("{}, {}", self.input, app.input()),
            transport: vm.transport_name(),
            memory_bytes: self.memory_bytes,
            page_bytes: vm.page_size(),
            set_up_seconds: ran.set_up.as_secs_f64(),
            seconds: ran.elapsed.as_secs_f64(),
            iterations: ran.found.iterations,
            gpus: of_gpus?,
            verified: self.check,
        };
        answer(app, self.output, ran.found.columns, &report, json)
    }
}
