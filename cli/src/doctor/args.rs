//! The options of `gpuvm doctor`.

use clap::Args;
use gpuvm::{Gpu, NicEngine, QueueMaking, Transport};

use crate::machine::PathArgs;

/// Most pages of a self-test: entries of its order have 31 bits.
const PAGES_MAX: u64 = (1 << 31) - 1;

/// A look at the machine, or a test of it.
#[derive(Debug, Args)]
#[command(mut_group("PathArgs", |group| group.requires("selftest")))]
pub struct DoctorArgs {
    /// Print the report as one JSON object; docs/DOCTOR.md has its schema.
    #[arg(long)]
    pub json: bool,

    /// Bring the machine up and test it: pages read and written and verified, doorbells, latency and bandwidth. The
    /// report names no address and no serial number, and can be pasted into an issue.
    #[arg(long)]
    pub selftest: bool,

    /// The GPU of the self-test: sim, cuda:N, cuda:GPU-UUID, or auto.
    #[arg(long, requires = "selftest", value_name = "GPU")]
    pub gpu: Option<Gpu>,

    /// What moves the pages in the self-test: direct, soft, rxe, mlx5, or auto, which is what a `Vm` takes by itself. A
    /// ConnectX is tested with mlx5 alone.
    #[arg(long, requires = "selftest", value_name = "TRANSPORT")]
    pub transport: Option<Transport>,

    /// What executes the software NIC's requests in the self-test: `cpu`, or `gpu:N`, a kernel on N multiprocessors. Without it: cpu.
    #[arg(long, requires = "selftest", value_name = "ENGINE")]
    pub nic_engine: Option<NicEngine>,

    /// The RDMA device of the self-test, such as mlx5_0; several with a ConnectX. Without it: what the transport takes.
    #[arg(long, requires = "selftest", value_name = "NAME")]
    pub rdma_device: Vec<String>,

    /// How its queues are made: `verbs`, or `devx`.
    #[arg(long, requires = "selftest", value_name = "HOW")]
    pub rdma_queues: Option<QueueMaking>,

    /// How packets leave it.
    #[command(flatten)]
    pub path: PathArgs,

    /// Random pages that the self-test reads and verifies. Without it: 1000000, and 8192 on the simulated GPU.
    #[arg(long, requires = "selftest", value_name = "N", value_parser = clap::value_parser!(u64).range(64..=PAGES_MAX))]
    pub pages: Option<u64>,

    /// Queue pairs between GPU and NIC in the self-test.
    #[arg(long, requires = "selftest", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub queue_pairs: Option<u32>,
}
