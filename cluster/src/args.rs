//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use gpuvm::{Gpu, Placement, Transport};
use gpuvm_tenants::parse_bytes;
use gpuvm_workloads::apps::{PageRankParameters, Parameters};
use gpuvm_workloads::graph::GraphSpec;

/// Applications over the ranks of MPI, a GPU a rank.
///
/// Started by mpirun or srun: `mpirun -n 4 gpuvm-mpi pagerank kron:20`. All ranks get the same options. Rank 0 prints the report. A rank that is
/// lost ends the job with an error that names it.
#[derive(Debug, Parser)]
#[command(name = "gpuvm-mpi", version)]
pub struct Cli {
    /// What to run.
    #[command(subcommand)]
    pub app: App,
}

/// An application.
#[derive(Debug, Subcommand)]
pub enum App {
    /// PageRank of an undirected graph.
    Pagerank(Pagerank),
}

/// `gpuvm-mpi pagerank`.
#[derive(Debug, Args)]
pub struct Pagerank {
    /// The graph, undirected: kron:SCALE, urand:SCALE, or a file. The ranks of a host map a .gcsr file together.
    pub graph: GraphSpec,

    /// The most iterations [default: 20].
    #[arg(long, value_name = "N", value_parser = |text: &str| checked("iterations", text))]
    pub iterations: Option<String>,

    /// What of a vertex's rank comes from its neighbours, from 0 to 1 [default: 0.85].
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = |text: &str| checked("damping", text))]
    pub damping: Option<String>,

    /// Iterations end when the ranks change by no more, all changes together; 0: after the most of them [default: 0].
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = |text: &str| checked("tolerance", text))]
    pub tolerance: Option<String>,

    /// The GPU of each rank: sim; cuda, which is cuda:N for the N-th rank of a host; cuda:0 for all where the launcher shows each rank one GPU.
    #[arg(long, default_value = "sim", value_parser = parse_gpu)]
    pub gpu: RankGpu,

    /// Worker threads of each rank's simulated GPU. Without it: the host's cores, shared out among its ranks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: Option<u32>,

    /// What moves the pages: direct, soft, rxe, mlx5, or auto.
    #[arg(long, default_value = "auto")]
    pub transport: Transport,

    /// A memory node, HOST:PORT, started by `gpuvm serve`: all ranks' pages live there. Given several times, over all of them.
    #[arg(long, value_name = "HOST:PORT")]
    pub memory_node: Vec<String>,

    /// A file with the secret that the memory nodes ask for.
    #[arg(long, value_name = "FILE", requires = "memory_node")]
    pub secret_file: Option<PathBuf>,

    /// Frame memory of each rank.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_bytes)]
    pub memory: u64,

    /// Bytes of a page: a power of two from 4KiB to 2MiB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_bytes)]
    pub page: u64,

    /// What a read does with a page that has no frame: fetch, auto, in-place or while-free.
    #[arg(long, default_value = "fetch")]
    pub placement: Placement,

    /// The seed of generated graphs.
    #[arg(long, value_name = "N", default_value_t = 27_491_095)]
    pub seed: u64,

    /// Rank 0 runs all of it once more, alone, and compares.
    #[arg(long)]
    pub check: bool,

    /// Write the result to a file, which rank 0 does: .txt, .tsv or no ending for text, .npy, .parquet; a row is a vertex by its id in the graph's file.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,

    /// A name or address of rank 0's host that the ranks of other hosts reach, for the watch. Without it: that host's own name.
    #[arg(long, value_name = "HOST")]
    pub watch_host: Option<String>,

    /// How many seconds a rank may be silent before the job ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub silence: u64,
}

/// Which GPU a rank has.
#[derive(Clone, Debug)]
pub enum RankGpu {
    /// The simulated one.
    Simulated,
    /// An NVIDIA GPU whose ordinal is the rank's number on its host.
    OfRank,
    /// One GPU for all ranks, as each of them sees it.
    Given(Gpu),
}

fn parse_gpu(text: &str) -> Result<RankGpu, String> {
    match text {
        "sim" => Ok(RankGpu::Simulated),
        "cuda" => Ok(RankGpu::OfRank),
        _ if text.starts_with("cuda:") => text.parse().map(RankGpu::Given).map_err(|error| format!("{error}")),
        _ => Err(format!("'{text}' is none of sim, cuda, cuda:N, cuda:GPU-UUID")),
    }
}

/// A parameter as it was given, if the application takes it.
fn checked(name: &'static str, text: &str) -> Result<String, String> {
    let given = PageRankParameters::of(&[(name, text.to_owned())]);
    given.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn options_are_whole() {
        Cli::command().debug_assert();
    }

    #[test]
    fn gpus_are_of_ranks_or_of_all() {
        assert!(matches!(parse_gpu("sim"), Ok(RankGpu::Simulated)));
        assert!(matches!(parse_gpu("cuda"), Ok(RankGpu::OfRank)));
        assert!(matches!(parse_gpu("cuda:3"), Ok(RankGpu::Given(_))));
        for text in ["", "auto", "cudax", "sim:2"] {
            assert!(parse_gpu(text).is_err(), "{text}");
        }
    }
}
