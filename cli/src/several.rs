//! `gpuvm run bfs` and `gpuvm run pagerank` with `--gpus`: one graph on several GPUs, each with a part of the vertices.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use gpuvm::{Gpu, Vm};
use gpuvm_workloads::apps::{Way, catalogue, several};
use gpuvm_workloads::graph::{Direction, GraphSpec, LoadOptions, reference};
use gpuvm_workloads::input::named;
use serde::Serialize;

use crate::apps::RunAppArgs;
use crate::args::{MachineArgs, RunBfsArgs};
use crate::bfs::{frame_bytes, load_graph, source_vertex};
use crate::error::CliError;
use crate::progress::Bars;
use crate::report::NeighbourReport;
use crate::stdout;

/// Iterations of PageRank, as with one GPU.
const ITERATIONS: u32 = 20;
/// How far a rank may be off, of the rank: sums are of floats, in any order.
const TOLERANCE: f64 = 1e-4;

/// What a run tells its user; the field names are the keys of the JSON object.
#[derive(Debug, Serialize)]
struct SeveralReport {
    /// The application.
    app: &'static str,
    /// The graph as given.
    graph: String,
    vertices: u32,
    edges: u64,
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
        let (app, graph) = (self.app, &self.graph);
        writeln!(
            out,
            "app        {app} ({graph}, {} vertices, {} edges)",
            self.vertices, self.edges
        )?;
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
        let verified = if self.verified {
            "equal to the processor's"
        } else {
            "not compared"
        };
        write!(out, "result     {verified}")
    }
}

/// A virtual memory over the GPUs.
fn start(machine: &MachineArgs, gpus: &[Gpu], page_bytes: u64, frame_bytes: u64) -> Result<Vm, CliError> {
    let builder = machine.builder(page_bytes, None)?;
    let builder = builder.gpus(gpus.iter().cloned());
    builder.frame_memory(frame_bytes).build().map_err(CliError::BackEnd)
}

fn refuse(option: &str) -> CliError {
    CliError::Options(format!("--gpus runs without {option}: leave one of them out"))
}

/// Searches the graph.
pub fn run_bfs(args: &RunBfsArgs, gpus: &[Gpu]) -> Result<(), CliError> {
    let search = &args.search;
    for (given, option) in [
        (search.seed.is_some(), "--seed"),
        (search.output.is_some(), "--output"),
        (!search.machine.memory_node.is_empty(), "--memory-node"),
    ] {
        if given {
            return Err(refuse(option));
        }
    }
    let mut bars = Bars::new(!args.json);
    let options = LoadOptions {
        direction: search.direction.direction(),
        seed: search.graph_seed,
        verify: search.verify,
        ..LoadOptions::default()
    };
    let graph = load_graph(&search.graph, &options, &mut bars)?;
    let source = source_vertex(search, &graph)?;
    bars.working("starting");
    let memory_bytes = frame_bytes(search, &graph)?;
    let vm = start(&search.machine, gpus, search.page_size, memory_bytes)?;
    bars.working("searching");
    let found = several::bfs(&vm, graph.csr(), source, search.placement).map_err(CliError::Run)?;
    if search.check {
        bars.working("comparing");
        reference::compare(&reference::bfs(graph.csr(), source)?, &found.values)?;
    }
    bars.clear();
    let about = About {
        app: "bfs",
        graph: search.graph.to_string(),
        size: (graph.csr().vertices(), graph.csr().edges()),
        memory_bytes,
        times: (found.set_up, found.elapsed),
        verified: search.check,
    };
    print(report(about, &vm)?, args.json)
}

/// Ranks the vertices.
pub fn run_pagerank(args: &RunAppArgs, gpus: &[Gpu]) -> Result<(), CliError> {
    let placement = match args.placement {
        Way::Paged(placement) => placement,
        _ => return Err(refuse("a --placement that does not page")),
    };
    if !args.machine.memory_node.is_empty() {
        return Err(refuse("--memory-node"));
    }
    let small = catalogue::find("pagerank").map_or("kron:10", |entry| entry.small);
    let text = args.input.as_deref().unwrap_or(small.as_ref());
    let spec = named(text, GraphSpec::File).map_err(|error| CliError::Options(format!("{error}")))?;
    let mut bars = Bars::new(!args.json);
    let graph = load_graph(&spec, &LoadOptions::default(), &mut bars)?;
    let csr = graph.csr();
    if graph.direction() == Direction::Directed || csr.edges() == 0 {
        return Err(CliError::Options(format!(
            "pagerank takes an undirected graph with edges; {spec} is none"
        )));
    }
    bars.working("starting");
    let data_bytes = gpuvm_workloads::bfs::paged_bytes(csr, args.page_size);
    let memory_bytes = args.memory.bytes_of(data_bytes).next_multiple_of(args.page_size);
    let memory_bytes = memory_bytes.max(crate::machine::FRAMES_MIN * args.page_size);
    let vm = start(&args.machine, gpus, args.page_size, memory_bytes)?;
    bars.working("running");
    let found = several::pagerank(&vm, csr, ITERATIONS, placement).map_err(CliError::Run)?;
    bars.working("comparing");
    for (vertex, (rank, expected)) in found
        .values
        .iter()
        .zip(reference::pagerank(csr, ITERATIONS))
        .enumerate()
    {
        if (f64::from(*rank) - expected).abs() > TOLERANCE * expected {
            return Err(CliError::WrongRank {
                vertex,
                found: *rank,
                expected,
            });
        }
    }
    bars.clear();
    let about = About {
        app: "pagerank",
        graph: spec.to_string(),
        size: (csr.vertices(), csr.edges()),
        memory_bytes,
        times: (found.set_up, found.elapsed),
        verified: true,
    };
    print(report(about, &vm)?, args.json)
}

/// What is known of a run beside what its GPUs counted.
struct About {
    app: &'static str,
    graph: String,
    size: (u32, u64),
    memory_bytes: u64,
    /// Of set-up, and of the algorithm.
    times: (Duration, Duration),
    verified: bool,
}

fn report(about: About, vm: &Vm) -> Result<SeveralReport, CliError> {
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
    let gpus: Result<Vec<GpuReport>, gpuvm::Error> = vm.gpus().iter().map(of_gpu).collect();
    Ok(SeveralReport {
        app: about.app,
        graph: about.graph,
        vertices: about.size.0,
        edges: about.size.1,
        transport: vm.transport().to_string(),
        memory_bytes: about.memory_bytes,
        page_bytes: vm.page_size(),
        set_up_seconds: about.times.0.as_secs_f64(),
        seconds: about.times.1.as_secs_f64(),
        gpus: gpus.map_err(CliError::Run)?,
        verified: about.verified,
    })
}

fn print(report: SeveralReport, json: bool) -> Result<(), CliError> {
    Ok(match json {
        true => stdout::print_line(serde_json::to_string(&report).map_err(std::io::Error::from)?),
        false => stdout::print_line(report),
    }?)
}
