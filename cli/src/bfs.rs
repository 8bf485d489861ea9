//! `gpuvm run bfs` and `gpuvm profile bfs`.

use std::path::Path;
use std::time::Duration;

use gpuvm_workloads::apps::{Column, with_ids};
use gpuvm_workloads::bfs::{self, Outcome};
use gpuvm_workloads::graph::reference::Mismatch;
use gpuvm_workloads::graph::{Direction, Graph, GraphSpec, LoadOptions, reference};

use crate::args::{BfsArgs, MemorySize, ProfileBfsArgs, RunBfsArgs};
use crate::error::CliError;
use crate::machine::FRAMES_MIN;
use crate::output::{ResultFile, same_file};
use crate::profile::Files;
use crate::profile::report::ProfileReport;
use crate::progress::Bars;
use crate::report::{BfsReport, NeighbourReport};

/// More frames than a page table can name.
const FRAMES_BEYOND: u64 = 1 << 28;

/// Loads the graph, searches it, compares, writes and reports.
pub fn run(args: &RunBfsArgs) -> Result<(), CliError> {
    args.search.machine.probe(args.search.page_size, args.search.seed)?;
    let output = create_output(&args.search)?;
    let mut bars = Bars::new(!args.json);
    let task = Task::load(&args.search, &mut bars)?;
    let mut outcome = task.search(None, &mut bars)?;
    let compared = task.compare(&outcome, &mut bars)?;
    bars.clear();
    // The file comes before the report: a standard output that is full or closed must not cost the distances.
    let written = task.write(output, &mut outcome, &compared);
    let printed = task.report(&outcome, &compared).print(args.json);
    compared.unwrap_or(Ok(()))?;
    written?;
    Ok(printed?)
}

/// Runs the search with a profile, which is written and told, between two runs without it.
pub fn profile(args: &ProfileBfsArgs) -> Result<(), CliError> {
    let ProfileBfsArgs { search, profile } = args;
    if let Some(path) = &profile.json {
        refuse_graph(&search.graph, path)?;
    }
    search.machine.probe(search.page_size, search.seed)?;
    let output = create_output(search)?;
    let files = Files::create(profile)?;
    let mut bars = Bars::new(!files.prints_json());
    let task = Task::load(search, &mut bars)?;
    let before = task.search(None, &mut bars)?.elapsed;
    let mut outcome = task.search(Some(profile.interval), &mut bars)?;
    // The first run found caches cold.
    let after = task.search(None, &mut bars)?.elapsed;
    let compared = task.compare(&outcome, &mut bars)?;
    bars.clear();
    let written = task.write(output, &mut outcome, &compared);
    let told = outcome.profile.take().map_or(Ok(()), |taken| {
        let program = format!("gpuvm run bfs {}", search.graph);
        let report = ProfileReport::new(program, task.report(&outcome, &compared), [before, after], &taken);
        match &compared {
            // What goes wrong is no profile of the program.
            Some(Err(_)) => Ok(()),
            _ => files.finish(&report),
        }
    });
    compared.unwrap_or(Ok(()))?;
    written?;
    told
}

/// A graph that is loaded, and how it is searched.
struct Task<'a> {
    args: &'a BfsArgs,
    graph: Graph,
    source: u32,
    options: bfs::Options,
}

/// Whether the distances equal those of a search on the CPU; nothing where they were not compared.
type Compared = Option<Result<(), Mismatch>>;

impl<'a> Task<'a> {
    fn load(args: &'a BfsArgs, bars: &mut Bars) -> Result<Self, CliError> {
        let graph = load(args, bars)?;
        if args.file_cache.is_some() && graph.csr().neighbours_in_file().is_none() {
            let graph = &args.graph;
            return Err(CliError::Options(format!(
                "--file-cache is for graphs that lie in a .gcsr file: write one by `gpuvm convert {graph} FILE.gcsr`"
            )));
        }
        Ok(Self {
            source: source_vertex(args, &graph)?,
            options: bfs::Options {
                machine: args.machine.builder(args.page_size, args.seed)?,
                frame_bytes: frame_bytes(args, &graph)?,
                page_bytes: args.page_size,
                placement: args.placement,
                shape: None,
                profile: None,
                file_cache: args.file_cache,
            },
            args,
            graph,
        })
    }

    /// Searches, with a profile where an interval is given.
    fn search(&self, profile: Option<Duration>, bars: &mut Bars) -> Result<Outcome, CliError> {
        bars.working("starting");
        let csr = self.graph.csr();
        let vertices = u64::from(csr.vertices());
        let options = bfs::Options {
            profile,
            ..self.options.clone()
        };
        let mut show = |level: bfs::Level| bars.searching(level.level, level.reached, vertices);
        bfs::run(csr, self.source, &options, &mut show).map_err(|source| CliError::Search {
            graph: self.args.graph.to_string(),
            source,
        })
    }

    fn compare(&self, outcome: &Outcome, bars: &mut Bars) -> Result<Compared, CliError> {
        if !self.args.check {
            return Ok(None);
        }
        bars.working("comparing");
        let expected = reference::bfs(self.graph.csr(), self.source)?;
        Ok(Some(reference::compare(&expected, &outcome.distances)))
    }

    /// Writes the distances, unless they are wrong.
    fn write(&self, output: Option<ResultFile>, outcome: &mut Outcome, compared: &Compared) -> Result<(), CliError> {
        match output {
            Some(output) if !matches!(compared, Some(Err(_))) => {
                let distances = std::mem::take(&mut outcome.distances);
                output.write(&with_ids(&self.graph, vec![Column::new("distance", distances)]))
            }
            _ => Ok(()),
        }
    }

    fn report(&self, outcome: &Outcome, compared: &Compared) -> BfsReport {
        let verified = compared.as_ref().map(Result::is_ok);
        report(self.args, &self.graph, self.source, &self.options, outcome, verified)
    }
}

/// Whether a graph is directed, in a word.
pub fn direction_name(graph: &Graph) -> &'static str {
    match graph.direction() {
        Direction::Directed => "directed",
        Direction::Undirected => "undirected",
    }
}

/// Nothing is written over the graph.
pub fn refuse_graph(graph: &GraphSpec, path: &Path) -> Result<(), CliError> {
    match graph {
        GraphSpec::File(graph) if same_file(graph, path) => Err(CliError::OutputIsInput { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Begins the file of distances, which must not be the graph.
pub fn create_output(args: &BfsArgs) -> Result<Option<ResultFile>, CliError> {
    let graph = match &args.graph {
        GraphSpec::File(path) => Some(path.as_os_str()),
        _ => None,
    };
    ResultFile::create(args.output.as_deref(), graph)
}

fn load(args: &BfsArgs, bars: &mut Bars) -> Result<Graph, CliError> {
    let options = LoadOptions {
        direction: args.direction.direction(),
        seed: args.seed.unwrap_or(args.graph_seed),
        verify: args.verify,
        ..LoadOptions::default()
    };
    load_graph(&args.graph, &options, bars)
}

/// Loads a graph, and shows how far that is.
pub fn load_graph(graph: &GraphSpec, options: &LoadOptions, bars: &mut Bars) -> Result<Graph, CliError> {
    let loaded = graph.load(options, &mut |progress| bars.loading(progress));
    loaded.map_err(|source| CliError::Graph {
        graph: graph.to_string(),
        source,
    })
}

/// The vertex to start from.
fn source_vertex(args: &BfsArgs, graph: &Graph) -> Result<u32, CliError> {
    graph.source(args.source).map_err(|source| CliError::Source {
        graph: args.graph.to_string(),
        source,
    })
}

/// The frame memory in whole pages. A share of a small graph is rounded up to a number of frames that can work.
pub fn frame_bytes(args: &BfsArgs, graph: &Graph) -> Result<u64, CliError> {
    let page_bytes = args.page_size;
    let data_bytes = bfs::paged_bytes(graph.csr(), args.page_size);
    let bytes = args.memory.bytes_of(data_bytes);
    let frames = match args.memory {
        MemorySize::Percent(_) => bytes.div_ceil(page_bytes).max(FRAMES_MIN),
        MemorySize::Bytes(_) => bytes / page_bytes,
    };
    match frames {
        0 => Err(CliError::TooLittleMemory { bytes, page_bytes }),
        // Larger pages would help with larger data alone.
        FRAMES_BEYOND.. if data_bytes / page_bytes < FRAMES_BEYOND => {
            Err(CliError::TooMuchMemory { bytes, data_bytes })
        }
        _ => Ok(frames.saturating_mul(page_bytes)),
    }
}

fn report(
    args: &BfsArgs,
    graph: &Graph,
    source: u32,
    options: &bfs::Options,
    outcome: &Outcome,
    verified: Option<bool>,
) -> BfsReport {
    let stats = &outcome.stats;
    let data_bytes = bfs::paged_bytes(graph.csr(), args.page_size);
    // A run shorter than the clock's step must not divide by zero.
    let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
    BfsReport {
        graph: args.graph.to_string(),
        direction: direction_name(graph),
        gpu: outcome.gpu.clone(),
        transport: outcome.transport.clone(),
        vertices: u64::from(graph.csr().vertices()),
        edges: graph.csr().edges(),
        source: graph.id_of(source).unwrap_or(u64::from(source)),
        data_bytes,
        memory_bytes: options.frame_bytes,
        memory_raised: args.memory.bytes_of(data_bytes).div_ceil(options.page_bytes)
            < options.frame_bytes / options.page_bytes,
        page_bytes: options.page_bytes,
        seconds,
        vertices_reached: outcome.reached,
        levels: outcome.levels,
        edges_per_second: outcome.edges as f64 / seconds,
        faults: stats.faults,
        faults_per_second: stats.faults as f64 / seconds,
        coalesced: stats.coalesced,
        pages_fetched: stats.pages_fetched,
        pages_written_back: stats.pages_written_back,
        bytes_fetched: stats.bytes_fetched,
        bytes_in_place: stats.bytes_in_place,
        file_bytes_read: outcome.file.map(|file| file.bytes),
        file_bytes_perfect: outcome.file.map(|file| file.perfect_bytes),
        read_costs: outcome.read_costs.map(Into::into),
        admissions: stats.admissions,
        displacements: stats.displacements,
        neighbour: NeighbourReport::of(stats),
        hit_rate: 1.0 - stats.missed_lanes as f64 / outcome.accesses.max(1) as f64,
        fault_ns_p50: stats.fault_ns(0.5),
        fault_ns_p99: stats.fault_ns(0.99),
        doorbells: stats.doorbells,
        doorbell_calls: stats.doorbell_calls,
        queue_pairs_recovered: stats.queue_pairs_recovered,
        verified,
    }
}
