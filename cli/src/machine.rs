//! The options for GPU, transport and queues, whose names are those of settings.

use std::path::PathBuf;
use std::sync::OnceLock;

use clap::Args;
use gpuvm::{Gpu, NicEngine, Placement, QueueMaking, SimulatedGpu, Timeline, Transport, Vm, VmBuilder};

use crate::error::CliError;
use crate::secret::read_secret;
use crate::sizes::{Borrow, parse_loan, parse_mtu, parse_node, parse_queue_depth};

/// The fewest frames that a share of small data is rounded up to.
pub const FRAMES_MIN: u64 = 16;

/// The GPU, what moves its pages, and the queues between them.
#[derive(Clone, Debug, Args)]
pub struct MachineArgs {
    /// The GPU: sim, cuda:N, cuda:GPU-UUID, or auto. Several for an application that runs on several, each with a part of the work: sim,sim or
    /// cuda:0,cuda:1.
    #[arg(
        long,
        value_name = "GPU,..",
        default_value = "auto",
        value_delimiter = ',',
        num_args = 1
    )]
    pub gpu: Vec<Gpu>,

    /// What moves the pages: direct (the faulting warp), soft (the software NIC), rxe (Linux SoftRoCE), mlx5, or auto.
    #[arg(long, default_value = "auto")]
    pub transport: Transport,

    /// What executes the software NIC's requests: `cpu`, or `gpu:N`, a kernel on N multiprocessors of the GPU, 1 to 4, for which auto takes the transport
    /// soft. Without it: cpu.
    #[arg(long, value_name = "ENGINE")]
    pub nic_engine: Option<NicEngine>,

    /// Limits that the software NIC keeps to: `connectx-7`, READs in flight, link, message rate and latency as of a ConnectX-7 of 400 Gb/s, for which
    /// auto takes the transport soft; or `none`. Without it: none.
    #[arg(long, value_name = "NIC")]
    pub nic_limits: Option<String>,

    /// The RDMA device, such as rxe0 or mlx5_0. Without it: the first SoftRoCE device, or the ConnectX devices that are
    /// nearest to the GPU. Given several times, over all of them (mlx5).
    #[arg(long, value_name = "NAME")]
    pub rdma_device: Vec<String>,

    /// How the queues of a ConnectX device are made: `verbs`, or `devx`, which puts them into the GPU's own memory. Without
    /// it: verbs.
    #[arg(long, value_name = "HOW")]
    pub rdma_queues: Option<QueueMaking>,

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

    /// How often the RDMA device sends an unanswered request again; 7 is for ever. Without it: 6.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=7))]
    pub rdma_retries: Option<u8>,

    /// How long the RDMA device waits for an answer before it sends again: 4.096 us doubled this many times. Without it: 14.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=31))]
    pub rdma_ack_timeout: Option<u8>,

    /// Queue pairs for each home and NIC. Without it: 8, with a file cache 64; over mlx5 as many as keep the link busy.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub queue_pairs: Option<u32>,

    /// Requests that one queue pair holds: a power of two. Without it: 256.
    #[arg(long, value_name = "N", value_parser = parse_queue_depth)]
    pub queue_depth: Option<u32>,

    /// Worker threads of the simulated GPU, which auto takes then. Without it: one a core. A run with a seed has one thread.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub workers: Option<u32>,

    /// Memory of a neighbour GPU for clean pages that leave their frames: its number and a size, such as 1:8GiB, or 1:auto for
    /// what is free there. Given several times, of several. For transport direct. Arrays that are looked up have pages there, which launches that only
    /// read them read in place.
    #[arg(long, value_name = "GPU:SIZE", value_parser = parse_loan)]
    pub borrow: Vec<Borrow>,

    /// Further GPUs of the virtual memory, which run no kernels: sim,sim or cuda:1,cuda:2. They show what it costs to have them.
    #[arg(long, value_name = "GPU,..", value_delimiter = ',', num_args = 1)]
    pub beside: Vec<Gpu>,

    /// Whether pages of arrays that a launch looks up and only reads come to free frames while it runs. Without it: on NVIDIA GPUs.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    pub bring_beside: Option<bool>,

    /// Write a timeline to this file, for ui.perfetto.dev: each launch, what the host does, and single faults with their steps, evictions,
    /// write-backs and doorbells. An earlier timeline there is replaced, and nothing else; %p becomes the process's number.
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,

    /// With --timeline: sample one in N faults, evictions, write-backs and doorbells. Without it: 64.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "timeline")]
    pub timeline_one_in: Option<u32>,
}

const PACKETS: &str = "Packets of a ConnectX device";

/// How packets leave a ConnectX device.
// Each option names its heading: one for all of them would also be that of the options that follow.
#[derive(Clone, Debug, Args)]
pub struct PathArgs {
    /// Its port. Without it: 1.
    #[arg(long, help_heading = PACKETS, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub rdma_port: Option<u8>,

    /// The place of the GID in the port's table. Without it: a RoCE v2 one, of an IPv4 address if there is one.
    #[arg(long, help_heading = PACKETS, value_name = "N")]
    pub gid_index: Option<u8>,

    /// Most bytes of a packet's data: 256, 512, 1024, 2048 or 4096. Without it: what the port has.
    #[arg(long, help_heading = PACKETS, value_name = "BYTES", value_parser = parse_mtu)]
    pub rdma_mtu: Option<u32>,

    /// Service level. Without it: 0.
    #[arg(long, help_heading = PACKETS, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15))]
    pub service_level: Option<u8>,

    /// Traffic class (RoCE: DSCP and ECN). Without it: 0.
    #[arg(long, help_heading = PACKETS, value_name = "N")]
    pub traffic_class: Option<u8>,
}

/// What was said by an option, as text.
fn said<T: ToString>(value: &Option<T>) -> Option<String> {
    value.as_ref().map(T::to_string)
}

impl PathArgs {
    /// Those that say something, by their names.
    pub fn options(&self) -> [(&'static str, Option<String>); 5] {
        [
            ("rdma-port", said(&self.rdma_port)),
            ("gid-index", said(&self.gid_index)),
            ("rdma-mtu", said(&self.rdma_mtu)),
            ("service-level", said(&self.service_level)),
            ("traffic-class", said(&self.traffic_class)),
        ]
    }
}

/// What was said by an option that may be given several times.
fn listed<T: ToString>(values: &[T]) -> Option<String> {
    let values: Vec<String> = values.iter().map(T::to_string).collect();
    (!values.is_empty()).then(|| values.join(","))
}

impl MachineArgs {
    /// The GPUs, where several are named.
    pub fn several(&self) -> Option<&[Gpu]> {
        (self.gpu.len() > 1).then_some(&self.gpu)
    }

    /// The GPU that is named first.
    pub fn first(&self) -> &Gpu {
        self.gpu.first().unwrap_or(&Gpu::Auto)
    }

    /// The settings, without frame memory, for pages of `page_bytes`; with a seed, on the simulated GPU that follows it.
    ///
    /// # Errors
    /// An option that does not fit the GPU or the transport, a secret that cannot be read.
    pub fn builder(&self, page_bytes: u64, seed: Option<u64>) -> Result<VmBuilder, CliError> {
        match self.several() {
            Some(gpus) => Err(CliError::Options(format!(
                "--gpu names {} GPUs, and this runs on one: give one, and others that run no kernels by --beside",
                gpus.len()
            ))),
            None => self.builder_of_all(page_bytes, seed),
        }
    }

    /// [`builder`](Self::builder) for what runs on several GPUs.
    ///
    /// # Errors
    /// As there.
    pub fn builder_of_all(&self, page_bytes: u64, seed: Option<u64>) -> Result<VmBuilder, CliError> {
        let mut builder = Vm::builder().page_size(page_bytes).placement(Placement::Fetch);
        for loan in &self.borrow {
            builder = builder.borrow_from(loan.gpu, loan.loan);
        }
        if let Some(path) = &self.timeline {
            let mut timeline = Timeline::to(path);
            if let Some(events) = self.timeline_one_in {
                timeline = timeline.one_in(events);
            }
            builder = builder.timeline(timeline);
        }
        builder.named(self.named(seed)?).map_err(CliError::BackEnd)
    }

    /// The settings that options say, by the names of these.
    fn named(&self, seed: Option<u64>) -> Result<Vec<(&'static str, String)>, CliError> {
        let mut gpus = match self.gpu[..] {
            [Gpu::Auto] if seed.is_some() || self.workers.is_some() => vec![SimulatedGpu::new().into()],
            ref gpus => gpus.to_vec(),
        };
        gpus.extend(self.beside.iter().cloned());
        let said = [
            ("gpu", listed(&gpus)),
            ("workers", said(&self.workers)),
            ("seed", said(&seed)),
            ("transport", Some(self.transport.name().to_owned())),
            ("nic-engine", said(&self.nic_engine)),
            ("nic-limits", said(&self.nic_limits)),
            ("memory-node", listed(&self.memory_node)),
            ("memory-node-secret", self.secret()?),
            ("rdma-device", listed(&self.rdma_device)),
            ("mlx5-queues", said(&self.rdma_queues)),
            ("rdma-retries", said(&self.rdma_retries)),
            ("rdma-ack-timeout", said(&self.rdma_ack_timeout)),
            ("queue-pairs", said(&self.queue_pairs)),
            ("queue-depth", said(&self.queue_depth)),
            ("bring-beside", said(&self.bring_beside)),
        ];
        let said = said.into_iter().chain(self.path.options());
        Ok(said.filter_map(|(name, value)| Some((name, value?))).collect())
    }

    /// Starts the machine once, small, so that settings that cannot be are known before data are loaded for nothing.
    ///
    /// # Errors
    /// As [`builder`](Self::builder); a GPU, a transport or a memory node that is not available.
    pub fn probe(&self, page_bytes: u64, seed: Option<u64>) -> Result<Vm, CliError> {
        let builder = self.builder(page_bytes, seed)?;
        let built = builder.frame_memory(FRAMES_MIN * page_bytes).build();
        built.map_err(CliError::BackEnd)
    }

    /// What the file of the secret has in it.
    fn secret(&self) -> Result<Option<String>, CliError> {
        let Some(path) = &self.secret_file else {
            return Ok(None);
        };
        if self.secret.get().is_none() {
            let _ = self.secret.set(read_secret(path)?);
        }
        Ok(self.secret.get().cloned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        machine: MachineArgs,
    }

    fn machine(words: &str) -> MachineArgs {
        let words = ["gpuvm"].into_iter().chain(words.split_ascii_whitespace());
        Line::try_parse_from(words)
            .unwrap_or_else(|error| panic!("{error}"))
            .machine
    }

    fn transport(words: &str) -> Transport {
        let builder = machine(words).builder(4096, None);
        let builder = builder.unwrap_or_else(|error| panic!("{words}: {error}"));
        builder.transport_asked().clone()
    }

    #[test]
    fn no_transport_counts_queue_pairs_by_itself() {
        // The runtime knows best: over mlx5 it measures, also where `auto` has become mlx5.
        for words in [
            "",
            "--transport soft",
            "--transport rxe",
            "--transport mlx5",
            "--memory-node 192.0.2.9:7471",
        ] {
            assert_eq!(transport(words).queues(), Some(gpuvm::Queues::new()), "{words}");
        }
        let asked = transport("--memory-node 192.0.2.9:7471 --queue-pairs 3 --queue-depth 16");
        assert!(matches!(asked, Transport::Rdma(_)));
        assert_eq!(asked.queues(), Some(gpuvm::Queues::new().pairs(3).depth(16)));
    }

    #[test]
    fn what_the_simulated_gpu_alone_has_takes_it() {
        for (words, seed) in [("", Some(5)), ("--workers 2", None), ("--gpu sim --workers 2", None)] {
            let builder = machine(words).builder(4096, seed).unwrap();
            assert!(matches!(builder.gpus_asked(), [Gpu::Simulated(_)]), "{words}");
        }
        let plain = machine("").builder(4096, None).unwrap();
        assert!(matches!(plain.gpus_asked(), [Gpu::Auto]));
        for (words, seed, setting) in [
            ("--gpu cuda:0", Some(5), "seed is `5`"),
            ("--gpu cuda:0 --workers 2", None, "workers is `2`"),
        ] {
            let Err(CliError::BackEnd(error)) = machine(words).builder(4096, seed) else {
                panic!("{words}")
            };
            assert!(error.to_string().starts_with(setting), "{error}");
        }
    }
}
