//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;

use clap::{ArgAction, Args, Parser, Subcommand};
use gpuvm::{GpuKind, QueueMaking, RdmaPath, Transport, Vm, VmBuilder};
use gpuvm_memory_node::Network;
use gpuvm_workloads::graph::{DEFAULT_SEED, GraphSpec};

use crate::bench::args::Bench;
use crate::doctor::args::DoctorArgs;
use crate::error::CliError;
use crate::secret::read_secret;
use crate::simulate::args::SimulateArgs;
pub use crate::sizes::{MemorySize, parse_bytes, parse_page_bytes};
use crate::sizes::{parse_memory, parse_mtu, parse_node, parse_queue_depth, parse_vertex};

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

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a workload and says what paging cost.
    #[command(subcommand, arg_required_else_help = true)]
    Run(Workload),
    /// Measures what paging costs on this machine. Everything that is read is compared with what it has to be.
    #[command(subcommand, arg_required_else_help = true)]
    Bench(Bench),
    /// Serves memory of this machine to gpuvm programs on others, over RDMA, until Ctrl-C.
    ///
    /// Clients are told apart by protection domains and may be asked for a secret, but nothing is encrypted: serve on a
    /// network that you trust.
    Serve(ServeArgs),
    /// Says what this machine has, what is missing, and what mends it; with --selftest, tests it.
    ///
    /// Exit status: 0 when at least one mode runs kernels on hardware, 3 when only the simulated GPU runs them, 4 when
    /// nothing does, 2 for wrong options, 1 for an error of the command's own. With --selftest: 0 when every step
    /// passed, 1 when one failed, 3 when none failed but those that take a ConnectX were not run.
    Doctor(DoctorArgs),
    /// Runs small workloads under many seeds on the simulated GPU, and checks the paging protocol after every access.
    ///
    /// One seed decides each interleaving, of the simulated GPU and of the software NIC, in virtual time. After every access
    /// page words, frames, requests and ring indexes are compared with the protocol's rules, results with a model.
    ///
    /// Exit status: 0 when every seed passed, 1 when one failed or the command did, 2 for wrong options, 130 after Ctrl-C,
    /// with a line that says how far it came.
    Simulate(SimulateArgs),
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
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
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

/// A workload.
#[derive(Debug, Subcommand)]
pub enum Workload {
    /// Breadth-first search over a graph whose rows and distances are paged.
    Bfs(BfsArgs),
}

/// Breadth-first search over a graph whose rows and distances are paged.
#[derive(Debug, Args)]
pub struct BfsArgs {
    /// A Matrix Market file or a SNAP edge list (either may be gzip), or kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE].
    pub graph: GraphSpec,

    /// Frame memory: a share of the graph's row offsets, neighbours and distances (25%), or bytes (2GiB, 64M). A share gives
    /// at least 16 pages.
    #[arg(long, value_name = "SIZE", default_value = "25%", allow_hyphen_values = true)]
    pub memory: MemorySize,

    /// The vertex to start from, by its id in the file (Matrix Market counts from 1, generated graphs from 0).
    /// Without it: the lowest one that has neighbours.
    #[arg(long, value_name = "ID", value_parser = parse_vertex, allow_hyphen_values = true)]
    pub source: Option<u64>,

    /// Walk edges from their first to their second end only. Without it a graph is directed as its file says: general
    /// matrices and edge lists with SNAP's "# Directed graph" are, all others are not. A symmetric matrix stays
    /// undirected: it stands for both directions of each edge.
    #[arg(long, conflicts_with = "undirected")]
    pub directed: bool,

    /// Walk edges both ways, whatever the file says.
    #[arg(long)]
    pub undirected: bool,

    /// Bytes of a page: a power of two from 4KiB to 2MiB.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_page_bytes)]
    pub page_size: u64,

    /// GPU, transport and queues.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Make a run repeatable: the generated graph comes from this seed, and the simulated GPU and the software NIC run
    /// in the one interleaving that it names, on one thread (slow).
    #[arg(long, value_name = "N", conflicts_with = "workers")]
    pub seed: Option<u64>,

    /// The seed of a generated graph alone; the run stays fast.
    #[arg(long, value_name = "N", conflicts_with = "seed", default_value_t = DEFAULT_SEED)]
    pub graph_seed: u64,

    /// Write the distances to this file, one a line in ascending order of vertex ids, -1 where unreached.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Do not compare the distances with a search on the CPU.
    #[arg(long = "no-check", action = ArgAction::SetFalse)]
    pub check: bool,

    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// The GPU, what moves its pages, and the queues between them.
#[derive(Clone, Debug, Args)]
pub struct MachineArgs {
    /// The GPU: sim, cuda:N, cuda:GPU-UUID, or auto.
    #[arg(long, default_value = "auto")]
    pub gpu: GpuKind,

    /// What moves the pages: direct (the faulting warp), soft (the software NIC), rxe (Linux SoftRoCE), mlx5, or auto.
    #[arg(long, default_value = "auto")]
    pub transport: Transport,

    /// The RDMA device, such as rxe0 or mlx5_0. Without it: the first SoftRoCE device, or the ConnectX devices that are
    /// nearest to the GPU. Given several times, over all of them (mlx5).
    #[arg(long, value_name = "NAME")]
    pub rdma_device: Vec<String>,

    /// How the queues of a ConnectX device are made: `verbs`, or `devx`, which puts them into the GPU's own memory.
    #[arg(long, value_name = "HOW", default_value_t = QueueMaking::Verbs)]
    pub rdma_queues: QueueMaking,

    /// How packets leave a ConnectX device.
    #[command(flatten)]
    pub path: PathArgs,

    /// A memory node, HOST:PORT, started by `gpuvm serve`: the pages live there. Given several times, over all of them.
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_node)]
    pub memory_node: Vec<String>,

    /// A file or pipe with the secret that the memory nodes ask for, of at most 4096 bytes; its last line ending does not
    /// count.
    #[arg(long, value_name = "FILE", requires = "memory_node")]
    pub secret_file: Option<PathBuf>,

    /// What stood in that file, which may be a pipe: it is read once.
    #[arg(skip)]
    secret: OnceLock<String>,

    /// How often the RDMA device sends an unanswered request again; 7 is for ever.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u8).range(0..=7))]
    pub rdma_retries: u8,

    /// How long the RDMA device waits for an answer before it sends again: 4.096 us doubled this many times.
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(1..=31))]
    pub rdma_ack_timeout: u8,

    /// Queue pairs for each home and NIC. Without it: 8; over mlx5 as many as keep the link busy.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub queue_pairs: Option<u32>,

    /// Requests that one queue pair holds: a power of two.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = parse_queue_depth)]
    pub queue_depth: u32,

    /// Worker threads of the simulated GPU. Without it: one a core. A run with a seed has one thread.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: Option<u32>,
}

const PACKETS: &str = "Packets of a ConnectX device";

/// How packets leave a ConnectX device.
// Each option names its heading: one for all of them would also be that of the options that follow.
#[derive(Clone, Debug, Args)]
pub struct PathArgs {
    /// Its port.
    #[arg(long, help_heading = PACKETS, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    pub rdma_port: u8,

    /// The place of the GID in the port's table. Without it: a RoCE v2 one, of an IPv4 address if there is one.
    #[arg(long, help_heading = PACKETS, value_name = "N")]
    pub gid_index: Option<u8>,

    /// Most bytes of a packet's data: 256, 512, 1024, 2048 or 4096. Without it: what the port has.
    #[arg(long, help_heading = PACKETS, value_name = "BYTES", value_parser = parse_mtu)]
    pub rdma_mtu: Option<u32>,

    /// Service level.
    #[arg(long, help_heading = PACKETS, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    pub service_level: u8,

    /// Traffic class (RoCE: DSCP and ECN).
    #[arg(long, help_heading = PACKETS, value_name = "N", default_value_t = 0)]
    pub traffic_class: u8,
}

impl PathArgs {
    /// Those that say something, by their names.
    pub fn options(&self) -> [(&'static str, Option<String>); 5] {
        let plain = RdmaPath::default();
        let given = |value: u8, plain: u8| (value != plain).then(|| value.to_string());
        [
            ("rdma-port", given(self.rdma_port, plain.port)),
            ("gid-index", self.gid_index.map(|index| index.to_string())),
            ("rdma-mtu", self.rdma_mtu.map(|bytes| bytes.to_string())),
            ("service-level", given(self.service_level, plain.service_level)),
            ("traffic-class", given(self.traffic_class, plain.traffic_class)),
        ]
    }

    /// For a `Vm`.
    pub fn path(&self) -> RdmaPath {
        RdmaPath {
            port: self.rdma_port,
            gid_index: self.gid_index,
            mtu: self.rdma_mtu,
            service_level: self.service_level,
            traffic_class: self.traffic_class,
        }
    }
}

/// Queue pairs where none are asked for and nothing is measured.
const QUEUE_PAIRS: u32 = 8;

impl MachineArgs {
    /// The settings, without frame memory, for pages of `page_bytes`.
    ///
    /// # Errors
    /// A secret that cannot be read.
    pub fn builder(&self, page_bytes: u64) -> Result<VmBuilder, CliError> {
        let mut builder = Vm::builder()
            .gpu(self.gpu)
            .transport(self.transport)
            .rdma_queues(self.rdma_queues)
            .rdma_retries(self.rdma_retries)
            .rdma_ack_timeout(self.rdma_ack_timeout)
            .page_size(page_bytes)
            .queue_depth(self.queue_depth);
        builder = builder.rdma_devices(&self.rdma_device).rdma_path(self.path.path());
        match (self.queue_pairs, self.transport) {
            (Some(count), _) => builder = builder.queue_pairs(count),
            (None, Transport::Mlx5) => {}
            (None, _) => builder = builder.queue_pairs(QUEUE_PAIRS),
        }
        if let Some(workers) = self.workers {
            builder = builder.workers(workers);
        }
        for node in &self.memory_node {
            builder = builder.memory_node(node);
        }
        if let Some(path) = &self.secret_file {
            let secret = match self.secret.get() {
                Some(secret) => secret,
                None => {
                    let read = read_secret(path)?;
                    self.secret.get_or_init(|| read)
                }
            };
            builder = builder.node_secret(secret.as_str());
        }
        Ok(builder)
    }
}
