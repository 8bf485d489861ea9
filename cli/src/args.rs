//! The command line.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use gpuvm::Placement;
use gpuvm_memory_node::Network;
use gpuvm_ptx::TableLayout;
use gpuvm_workloads::apps::catalogue::{self, Entry};
use gpuvm_workloads::graph::{DEFAULT_SEED, Direction, GraphSpec, Weights};
use gpuvm_workloads::input::named;

use crate::apps::RunAppArgs;
use crate::bench::Bench;
use crate::doctor::args::DoctorArgs;
pub use crate::machine::MachineArgs;
use crate::ptx::RunArgs;
use crate::simulate::args::SimulateArgs;
pub use crate::sizes::{MemorySize, parse_bytes, parse_page_bytes};
use crate::sizes::{parse_interval, parse_memory, parse_vertex};
use crate::tenants::args::TenantsArgs;

/// GPU kernels over data larger than GPU memory.
///
/// GPU threads find the missing page, write the request into a NIC's queue pair, ring its doorbell and wait for the
/// completion. The simulated GPU and the software NIC need no hardware.
#[derive(Debug, Parser)]
#[command(version, name = "gpuvm", arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command with a GPU takes, and which `gpuvm options` alone shows: those of RDMA, of queues, of the simulated GPU, and of
/// what few ask for.
const SHOWN_BY_OPTIONS: [&str; 19] = [
    "nic_engine",
    "nic_limits",
    "rdma_device",
    "rdma_queues",
    "rdma_port",
    "gid_index",
    "rdma_mtu",
    "service_level",
    "traffic_class",
    "memory_node",
    "secret_file",
    "rdma_retries",
    "rdma_ack_timeout",
    "queue_pairs",
    "queue_depth",
    "workers",
    "beside",
    "bring_beside",
    "timeline_one_in",
];

impl Cli {
    /// The command line, whose commands show the options that are theirs.
    pub fn command_line() -> clap::Command {
        Self::command().mut_subcommands(|command| match command.get_name() {
            // Its options of RDMA are what it is about.
            "serve" => command,
            _ => with_its_own_options(command),
        })
    }

    /// Reads the arguments of this process.
    ///
    /// # Errors
    /// The parser's refusal, or its answer to `--help` and `--version`.
    pub fn read() -> Result<Self, clap::Error> {
        let mut line = Self::command_line();
        let matches = line.try_get_matches_from_mut(std::env::args_os())?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut line))
    }
}

fn with_its_own_options(command: clap::Command) -> clap::Command {
    let hides = command
        .get_arguments()
        .any(|argument| SHOWN_BY_OPTIONS.contains(&argument.get_id().as_str()));
    let command = command.mut_args(
        |argument| match SHOWN_BY_OPTIONS.contains(&argument.get_id().as_str()) {
            true => argument.hide(true),
            false => argument,
        },
    );
    let command = match hides {
        true => command.after_help("`gpuvm options` shows more: memory nodes, RDMA, queues, the simulated GPU."),
        false => command,
    };
    command.mut_subcommands(with_its_own_options)
}

/// The help of `gpuvm options`.
pub fn options_help() -> clap::builder::StyledStr {
    let all = clap::Command::new("gpuvm options")
        .about("Options of `gpuvm run`, `profile`, `bench` and `doctor --selftest`: which GPU, what moves the pages, memory nodes, RDMA, queues")
        .disable_help_flag(true)
        .override_usage("gpuvm run|profile|bench COMMAND [OPTIONS]");
    MachineArgs::augment_args(all).render_help()
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a workload and says what paging cost.
    #[command(subcommand, arg_required_else_help = true)]
    Run(Workload),
    /// Runs a workload with a profile: per-page statistics and recommended hints.
    ///
    /// It runs three times: before and after the profile it runs without, so that what the profile costs can be seen.
    ///
    /// Fetches of a page are exact. Whether a page was there, used and written is sampled: a host thread reads the page tables while
    /// kernels run, which count nothing for it. How many samples there were and what they cost is in every output.
    #[command(subcommand, arg_required_else_help = true)]
    Profile(Profiled),
    /// Measures what paging costs on this machine. Everything that is read is compared with what it has to be.
    #[command(subcommand, arg_required_else_help = true)]
    Bench(Bench),
    /// Writes a graph as a .gcsr file, which every command that takes a graph maps into memory: it is neither parsed nor sorted nor copied.
    ///
    /// An input that is a .gcsr file is compared with its checksums. The output appears when it is whole.
    Convert(ConvertArgs),
    /// Rewrites the PTX of kernels that were not written for gpuvm, so that each access to global memory looks its page up, and says what
    /// was changed and what was left.
    ///
    /// The input is what `nvcc -ptx`, NVRTC, clang or Triton write, or a program, a library, an object or a fat binary that has such text in it.
    /// docs/PTX.md says what holds for rewritten kernels.
    Ptx(PtxArgs),
    /// Runs a program that was not built for gpuvm and uses CUDA's managed memory: copied at the link's speed, or paged where the GPU does not hold it.
    ///
    /// The program is not rebuilt, and may have the CUDA runtime in it. As long as the GPU's memory holds all of its managed memory kernels run as they
    /// were written. Else kernels of which it has PTX, and whose instructions all look pages up, find what is used in GPU memory; the others run over
    /// memory of the host, and are named on standard error when the program ends. docs/PTX.md has figures, and says what holds for such programs.
    /// Options for gpuvm stand before the program.
    Exec(ExecArgs),
    /// Serves memory of this machine to gpuvm programs on others, over RDMA, until Ctrl-C.
    ///
    /// Clients are told apart by protection domains and may be asked for a secret, but nothing is encrypted: serve on a
    /// network that you trust.
    Serve(ServeArgs),
    /// Says what this machine has, what is missing and how to fix it; with --selftest, tests it.
    ///
    /// Exit status: 0 when at least one mode runs kernels on hardware, 3 when only the simulated GPU runs them, 4 when
    /// nothing does, 2 for wrong options, 1 for an error of the command's own. With --selftest: 0 when every step
    /// passed, 1 when one failed, 3 when none failed but those that take a ConnectX were not run.
    Doctor(DoctorArgs),
    /// Runs small workloads under many seeds on the simulated GPU, and checks the paging protocol after every access.
    ///
    /// One seed decides each interleaving, of the simulated GPU and of the software NIC, in virtual time. After every access
    /// page table entries, frames, requests and ring indexes are compared with the protocol's rules, results with a model.
    ///
    /// Exit status: 0 when every seed passed, 1 when one failed or the command did, 2 for wrong options, 130 after Ctrl-C,
    /// with a line that says how far it came.
    Simulate(SimulateArgs),
    /// Lists the processes of this user that share a GPU's memory, and what they hold; `set` changes how much one may hold.
    ///
    /// A process joins the tenants of an NVIDIA GPU with its first virtual memory there, configured by GPUVM_MEMORY_LIMIT (the most it
    /// may hold), GPUVM_MEMORY_MIN (what it always keeps) and GPUVM_PRIORITY (-100 to 100). Simulated GPUs are each process's own, but
    /// for those that a program gives a name to share (docs/TENANTS.md).
    Tenants(TenantsArgs),
    /// Shows the options that all commands with a GPU take: memory nodes, RDMA, queues, the simulated GPU.
    Options,
}

/// A program whose managed memory is paged.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// GPU memory for all managed memory, or for page frames where managed memory is larger. Default: as much as the program has managed memory, up to
    /// the free memory when it first allocates some, less a tenth.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub frames: Option<u64>,

    /// Page size of what is paged: a power of two from 4KiB to 2MiB.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = parse_page_bytes)]
    pub page_size: u64,

    /// Most registers of a thread, for programs whose blocks are too large for the rewritten kernels otherwise, which run over the host's memory. Of code that is loaded as a library,
    /// as the runtimes from CUDA 12 on do.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(16..=255))]
    pub registers: Option<u32>,

    /// Print nothing when the program ends.
    #[arg(long)]
    pub quiet: bool,

    /// Print also the time that gpuvm took when the program ends.
    #[arg(long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// PTX that is rewritten.
#[derive(Debug, Args)]
pub struct PtxArgs {
    /// A PTX file, or a program, a library, an object or a fat binary of nvcc's.
    pub input: PathBuf,

    /// The rewritten file. Without it nothing is written but the report.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// The page size of the table: a power of two from 512 bytes to 2MiB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_table)]
    pub page_size: TableLayout,

    /// Have loads mark pages at home too, so that what is used there can be seen.
    #[arg(long)]
    pub touches: bool,

    /// Of a program's PTX for several architectures, that which a GPU of this one would get, such as 90. Without it: the newest.
    #[arg(long, value_name = "NUMBER")]
    pub architecture: Option<u32>,

    /// CUDA's assembler, which counts registers before and after. Without it: the one in $CUDA_HOME/bin or in $PATH, if there is one.
    #[arg(long, value_name = "PATH")]
    pub ptxas: Option<PathBuf>,

    /// Replace an output that is there already.
    #[arg(long)]
    pub force: bool,

    /// A first try of a kernel.
    #[command(flatten)]
    pub kernel: RunArgs,
}

/// A table's layout by its page size.
fn parse_table(text: &str) -> Result<TableLayout, String> {
    TableLayout::new(parse_bytes(text)?).map_err(|error| error.to_string())
}

/// A graph that is converted.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// A file or a generator: Matrix Market, METIS (.graph), DIMACS or an edge list (all may be gzip), GAP's .sg or .wsg, .gcsr,
    /// or kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE].
    #[arg(value_parser = graph_names())]
    pub input: GraphSpec,

    /// The .gcsr file.
    pub output: PathBuf,

    /// Store weights: those of the file where it has some, else ones from 1 to 255 that are drawn by --graph-seed. With --weights=drawn:
    /// drawn ones, whatever the file has. Without it a file's weights are left out.
    #[arg(long, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "file")]
    pub weights: Option<WeightsArg>,

    /// The direction.
    #[command(flatten)]
    pub direction: DirectionArgs,

    /// The seed of a generated graph and of drawn weights.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SEED)]
    pub graph_seed: u64,

    /// Replace an output that is there already.
    #[arg(long)]
    pub force: bool,
}

/// Names of graphs; those of files may be any bytes.
fn graph_names() -> impl TypedValueParser<Value = GraphSpec> {
    OsStringValueParser::new().try_map(|name| named(&name, GraphSpec::File))
}

/// Weights that are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WeightsArg {
    /// Those of the file where it has some, else drawn ones.
    File,
    /// Drawn ones.
    Drawn,
}

impl From<WeightsArg> for Weights {
    fn from(which: WeightsArg) -> Weights {
        match which {
            WeightsArg::File => Weights::FromFileOrDrawn,
            WeightsArg::Drawn => Weights::Drawn,
        }
    }
}

/// Whether edges can be walked one way or both ways.
#[derive(Debug, Args)]
pub struct DirectionArgs {
    /// Edges lead from their first to their second end only. Without it a graph is directed as its file says: general
    /// matrices and edge lists with SNAP's "# Directed graph" are, binary files by their header, all others are not. A symmetric matrix
    /// and an undirected binary file stay undirected: they stand for both directions of each edge.
    #[arg(long, conflicts_with = "undirected")]
    directed: bool,

    /// Edges lead both ways, whatever the file says.
    #[arg(long)]
    undirected: bool,
}

impl DirectionArgs {
    /// What was asked for, if anything was.
    pub fn direction(&self) -> Option<Direction> {
        match (self.directed, self.undirected) {
            (true, _) => Some(Direction::Directed),
            (_, true) => Some(Direction::Undirected),
            _ => None,
        }
    }
}

/// A memory node.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// How much memory to serve.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: u64,

    /// The RDMA device, for example rxe0. Without it: all of them.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Where to listen; 0.0.0.0 is the device's own address, port 0 any free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7471")]
    pub listen: SocketAddr,

    /// A file or pipe with the secret that clients must know, of at most 4096 bytes; its last line ending does not count.
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,

    /// Networks or addresses that clients may come from (10.9.0.0/24). Without it: from everywhere.
    #[arg(long, value_name = "NETWORK", num_args = 1..)]
    pub allow: Vec<Network>,

    /// Most memory of one client. Without it: all of it.
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub client_capacity: Option<u64>,

    /// Most clients at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(gpuvm_memory_node::limits::CLIENTS_MAX)))]
    pub clients: u32,

    /// Serve a file, mapped shared: on tmpfs, hugetlbfs or a DAX device.
    #[arg(long, value_name = "PATH", conflicts_with = "huge_pages")]
    pub file: Option<PathBuf>,

    /// Serve huge pages of the system's pool (vm.nr_hugepages).
    #[arg(long)]
    pub huge_pages: bool,

    /// Where to answer HTTP requests with metrics in Prometheus' text format.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,

    /// Print every line as a JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A workload: one of the applications of `gpuvm_workloads::apps`. Breadth-first search has options and a report of its own.
#[derive(Debug)]
pub enum Workload {
    /// Breadth-first search.
    Bfs(Box<RunBfsArgs>),
    /// Another one.
    App(&'static Entry, Box<RunAppArgs>),
}

impl FromArgMatches for Workload {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let asked = matches.subcommand();
        match asked.and_then(|(name, own)| Some((catalogue::find(name)?, own))) {
            Some((entry, own)) if entry.name == BFS => Ok(Self::Bfs(Box::new(RunBfsArgs::from_arg_matches(own)?))),
            Some((entry, own)) => Ok(Self::App(entry, Box::new(RunAppArgs::read(entry, own)?))),
            None => Err(clap::Error::new(clap::error::ErrorKind::MissingSubcommand)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Workload {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        command.subcommands(catalogue::ALL.iter().map(|entry| match entry.name {
            BFS => RunBfsArgs::augment_args(clap::Command::new(BFS)).about(entry.about),
            _ => RunAppArgs::command(entry),
        }))
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        catalogue::find(name).is_some()
    }
}

/// The application that has options and a report of its own.
const BFS: &str = "bfs";

/// A workload with a profile.
#[derive(Debug, Subcommand)]
pub enum Profiled {
    /// Breadth-first search over a graph whose rows and distances are paged.
    Bfs(ProfileBfsArgs),
}

/// A search that is run.
#[derive(Debug, Args)]
pub struct RunBfsArgs {
    /// The search.
    #[command(flatten)]
    pub search: BfsArgs,

    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// A search that is run with a profile.
#[derive(Debug, Args)]
pub struct ProfileBfsArgs {
    /// The search.
    #[command(flatten)]
    pub search: BfsArgs,

    /// The profile.
    #[command(flatten)]
    pub profile: ProfileArgs,
}

/// How a profile is taken, and where it goes.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// How long the sampler rests between two samples: 500us, 10ms, 1s.
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = parse_interval)]
    pub interval: Duration,

    /// Write the profile to this file as one JSON object; `-` prints it in the place of the text.
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

/// Breadth-first search over a graph whose rows and distances are paged.
#[derive(Debug, Args)]
pub struct BfsArgs {
    /// A file or a generator: Matrix Market, METIS (.graph), DIMACS or an edge list (all may be gzip), GAP's .sg or .wsg, .gcsr (see
    /// `gpuvm convert`), or kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE].
    #[arg(value_parser = graph_names())]
    pub graph: GraphSpec,

    /// Compare a .gcsr file with its checksums before it is searched.
    #[arg(long)]
    pub verify: bool,

    /// Frame memory: a share of the graph's row offsets, neighbours and distances (25%), or bytes (2GiB, 64M). A share gives
    /// at least 16 pages.
    #[arg(long, value_name = "SIZE", default_value = "25%", allow_hyphen_values = true)]
    pub memory: MemorySize,

    /// The vertex to start from, by its id in the file (Matrix Market counts from 1, generated graphs from 0).
    /// Without it: the lowest one that has neighbours.
    #[arg(long, value_name = "ID", value_parser = parse_vertex, allow_hyphen_values = true)]
    pub source: Option<u64>,

    /// The direction.
    #[command(flatten)]
    pub direction: DirectionArgs,

    /// Bytes of a page: a power of two from 4KiB to 2MiB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_page_bytes)]
    pub page_size: u64,

    /// What reads of the graph do with a page that has no frame: fetch (another page leaves), in-place (it is read where it is),
    /// while-free (fetched while frames are free, then read in place), or auto (the GPU decides for each page; over queue pairs it is
    /// fetched).
    #[arg(long, value_name = "HOW", default_value_t = Placement::Auto)]
    pub placement: Placement,

    /// Read a .gcsr file through a page cache of that many bytes of host memory, instead of mapping it: for graphs larger than host memory.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub file_cache: Option<u64>,

    /// GPU, transport and queues.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Make a run repeatable: the generated graph comes from this seed, and the simulated GPU and the software NIC run
    /// in the one interleaving that it names, on one thread (slow).
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// The seed of a generated graph alone; the run stays fast.
    #[arg(long, value_name = "N", conflicts_with = "seed", default_value_t = DEFAULT_SEED)]
    pub graph_seed: u64,

    /// Write the distances to this file, -1 where unreached, in ascending order of vertex ids: text (.txt, .tsv, no end, a pipe), an array of
    /// NumPy (.npy), or Parquet (.parquet).
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Do not compare the distances with a search on the CPU.
    #[arg(long = "no-check", action = ArgAction::SetFalse)]
    pub check: bool,
}
