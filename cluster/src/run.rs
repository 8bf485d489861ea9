//! One rank's run.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use gpuvm::{Gpu, MemoryNodes, Mlx5, Placement, Rdma, Rxe, SimulatedGpu, Transport, Vm};
use gpuvm_cluster::watch::Watch;
use gpuvm_cluster::{Alone, ClusterError, Mpi, Ranks, ResultFile, compare, pagerank, shared};
use gpuvm_workloads::apps::{PageRankParameters, Parameters};
use gpuvm_workloads::graph::{Direction, LoadOptions};
use serde::Serialize;

use crate::args::{App, Cli, Pagerank, RankGpu};

/// The exit status of a rank that failed, and of all others then.
const FAILED: u8 = 1;
/// That of a rank that panicked, as in other programs.
const PANICKED: u8 = 101;

/// What rank 0 tells; the field names are the keys of the JSON object.
#[derive(Debug, Serialize)]
struct Report {
    app: &'static str,
    /// The graph and the iterations, in words.
    input: String,
    ranks: usize,
    /// Rank 0's GPU.
    gpu: String,
    transport: String,
    memory_nodes: Vec<String>,
    /// Of the slowest rank.
    set_up_seconds: f64,
    /// Of the slowest rank.
    seconds: f64,
    /// Pages that GPU threads asked for, of all ranks.
    faults: u64,
    /// CRC-32C of the result.
    result: String,
    /// Values that were compared with one rank's.
    checked: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "app        {} ({})", self.app, self.input)?;
        writeln!(
            out,
            "ranks      {}, each with {}, transport {}",
            self.ranks, self.gpu, self.transport
        )?;
        if !self.memory_nodes.is_empty() {
            writeln!(out, "homes      {}", self.memory_nodes.join(", "))?;
        }
        writeln!(out, "faults     {} of all ranks", self.faults)?;
        writeln!(
            out,
            "time       {:.3} ms, after {:.3} ms of set-up, of the slowest rank",
            self.seconds * 1e3,
            self.set_up_seconds * 1e3
        )?;
        match self.checked {
            0 => write!(out, "result     {}, not compared", self.result),
            values => write!(out, "result     {}, {values} values equal to one rank's", self.result),
        }
    }
}

/// Starts MPI, and runs this rank's part.
pub fn start(cli: &Cli) -> ExitCode {
    let App::Pagerank(options) = &cli.app;
    let mpi = match Mpi::start() {
        Ok(mpi) => mpi,
        Err(error) => {
            tell(&chain(&error));
            return ExitCode::from(FAILED);
        }
    };
    let place = mpi.place();
    let (rank, size) = (place.rank, place.size);
    // MPI's own end waits for the other ranks, which wait for this one: a panic must not come there.
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(options, &mpi)));
    match ran {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            tell(&format!("rank {rank} of {size}: {}", chain(&error)));
            mpi.abort(FAILED)
        }
        Err(_) => {
            tell(&format!("rank {rank} of {size} panicked, as said above; the job ends"));
            mpi.abort(PANICKED)
        }
    }
}

/// An error with its causes, in a line each.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!("\n  caused by: {error}"));
        cause = error.source();
    }
    text
}

/// In one piece, since ranks share a terminal. Whether anyone reads it changes nothing.
fn tell(text: &str) {
    let _ = std::io::stderr()
        .lock()
        .write_all(format!("error: {text}\n").as_bytes());
}

/// Ends this process at once: the main thread may wait in MPI for a rank that is gone.
fn end() -> ! {
    // SAFETY: it ends the process without any of its code; what other threads do ends in the middle, as by a signal. Files of this program
    // are complete, have no name, or have one that says that they are not.
    unsafe { libc::_exit(FAILED.into()) }
}

fn run(options: &Pagerank, ranks: &Mpi) -> Result<(), ClusterError> {
    let watch = Watch::start(
        ranks,
        options.watch_host.as_deref(),
        Duration::from_secs(options.silence),
        |loss| {
            if loss.is_first_to_know {
                tell(&loss.to_string());
            }
        },
        || end(),
    )?;
    let vm = options.vm(ranks)?;
    if let Some(report) = report(options, &vm, ranks)? {
        let text = match options.json {
            true => serde_json::to_string(&report).unwrap_or_default(),
            false => report.to_string(),
        };
        // A reader that has gone wants nothing more.
        let _ = std::io::stdout().lock().write_all(format!("{text}\n").as_bytes());
    }
    ranks.barrier();
    watch.finish();
    Ok(())
}

/// Runs on all ranks, and compares where that is asked for. Rank 0 has the report.
fn report(options: &Pagerank, vm: &Vm, ranks: &Mpi) -> Result<Option<Report>, ClusterError> {
    let load = LoadOptions {
        seed: options.seed,
        ..LoadOptions::default()
    };
    let output = options.output.as_deref();
    let output = output
        .map(|path| ResultFile::new(path, &options.graph, ranks))
        .transpose()?;
    let graph = shared::graph(ranks, &options.graph, &load)?;
    let (spec, csr) = (&options.graph, graph.csr());
    let parameters = options.parameters()?;
    if graph.direction() == Direction::Directed {
        let what = format!("{spec} is directed, and pagerank takes undirected graphs: gpuvm convert --undirected");
        return Err(ClusterError::Options(what));
    }
    let run = |ranks: &dyn Ranks| pagerank(vm, ranks, csr, &parameters, options.placement);
    let counted = || match vm.stats() {
        Ok(stats) => Ok(stats.faults),
        Err(source) => Err(ClusterError::Vm {
            step: "reading the counters",
            source,
        }),
    };
    let before = counted()?;
    let ran = run(ranks)?;
    let faults = ranks.sum(counted()? - before);
    let set_up_seconds = ranks.most(ran.set_up.as_secs_f64());
    let seconds = ranks.most(ran.elapsed.as_secs_f64());
    let values = ran.values.gather(ranks)?;
    if ranks.place().rank != 0 {
        return Ok(None);
    }
    let mut checked = 0;
    if options.check {
        compare(&values, &run(&Alone)?.values.gather(&Alone)?)?;
        checked = values.len() as u64;
    }
    let result = format!("{:08x}", crc32c::crc32c(bytemuck::cast_slice(&values)));
    if let Some(output) = output {
        output.write(&graph, values)?;
    }
    let (vertices, edges) = (csr.vertices(), csr.edges());
    Ok(Some(Report {
        app: "pagerank",
        input: format!(
            "{spec}, {vertices} vertices, {edges} edges, {} iterations",
            ran.iterations
        ),
        ranks: ranks.place().size,
        gpu: vm.gpu_name(),
        transport: vm.transport().to_string(),
        memory_nodes: vm.memory_nodes().into_iter().map(str::to_owned).collect(),
        set_up_seconds,
        seconds,
        faults,
        result,
        checked,
    }))
}

impl Pagerank {
    /// What `gpuvm run pagerank` takes, too.
    fn parameters(&self) -> Result<PageRankParameters, ClusterError> {
        let given = [
            ("iterations", &self.iterations),
            ("damping", &self.damping),
            ("tolerance", &self.tolerance),
        ];
        let given = given.into_iter().filter_map(|(name, text)| Some((name, text.clone()?)));
        let parameters = PageRankParameters::of(&given.collect::<Vec<_>>());
        parameters.map_err(|error| ClusterError::Options(error.to_string()))
    }

    /// This rank's virtual memory.
    fn vm(&self, ranks: &dyn Ranks) -> Result<Vm, ClusterError> {
        let place = ranks.place();
        let gpu: Gpu = match &self.gpu {
            RankGpu::Simulated => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                let share = (cores / place.of_host).clamp(1, 1024) as u32;
                SimulatedGpu::new().workers(self.workers.unwrap_or(share)).into()
            }
            _ if self.workers.is_some() => {
                return Err(ClusterError::Options(
                    "--workers is of the simulated GPU; leave it out, or give --gpu sim".to_owned(),
                ));
            }
            RankGpu::Given(gpu) => gpu.clone(),
            RankGpu::OfRank => format!("cuda:{}", place.on_host)
                .parse()
                .map_err(|error| ClusterError::Options(format!("--gpu cuda: {error}")))?,
        };
        let built = Vm::builder()
            .gpu(gpu)
            .transport(self.transport()?)
            .page_size(self.page)
            .frame_memory(self.memory)
            .placement(Placement::Fetch)
            .build();
        built.map_err(|source| ClusterError::Vm {
            step: "starting the GPU of this rank",
            source,
        })
    }

    fn transport(&self) -> Result<Transport, ClusterError> {
        if self.memory_node.is_empty() {
            return Ok(self.transport.clone());
        }
        let mut nodes = MemoryNodes::at(&self.memory_node);
        if let Some(path) = &self.secret_file {
            nodes = nodes.secret(secret(path)?);
        }
        match &self.transport {
            Transport::Auto(_) => Ok(Rdma::to(nodes).into()),
            Transport::Rxe(_) => Ok(Rxe::new().memory_nodes(nodes).into()),
            Transport::Mlx5(_) => Ok(Mlx5::new().memory_nodes(nodes).into()),
            _ => Err(ClusterError::Options(
                "memory nodes are reached by --transport rxe, mlx5 or auto; leave --transport or --memory-node out"
                    .to_owned(),
            )),
        }
    }
}

/// The secret in a file, without its last line ending.
fn secret(path: &Path) -> Result<String, ClusterError> {
    let failed = |source| ClusterError::Secret {
        path: path.to_owned(),
        source,
    };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(failed(std::io::ErrorKind::UnexpectedEof.into())),
        secret => Ok(secret.to_owned()),
    }
}
