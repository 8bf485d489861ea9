//! Settings of a virtual memory, checked before anything is allocated.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use gpuvm_gpu::sim::Mode;
use gpuvm_gpu::sim::SimGpu;
use gpuvm_layouts as layout;
use gpuvm_memory_node::{ClientOptions, NodeClient};
use gpuvm_nic::{Nic as _, NicError, RxeNic, SoftNic, rxe::RxeOptions};

use crate::{
    error::{Doing, Error, Result},
    vm::{TransportNic, Vm},
};

/// Which GPU runs the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GpuKind {
    /// The best one there is. In this version the simulated GPU.
    #[default]
    Auto,
    /// The simulated GPU, in this process.
    Simulated,
    /// An NVIDIA GPU by its ordinal. Not in this version.
    Cuda(u32),
}

impl FromStr for GpuKind {
    type Err = Error;

    /// `auto`, `sim` or `cuda:N`.
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => return Ok(Self::Auto),
            "sim" => return Ok(Self::Simulated),
            _ => {}
        }
        if let Some(Ok(ordinal)) = text.strip_prefix("cuda:").map(str::parse) {
            return Ok(Self::Cuda(ordinal));
        }
        Err(Error::Setting {
            setting: "gpu",
            value: format!("`{text}`"),
            reason: "expected auto, sim or cuda:N".into(),
        })
    }
}

/// How pages travel between frames and their home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// The best one for the GPU: `Soft` on the simulated GPU.
    #[default]
    Auto,
    /// The software NIC: mlx5 work requests executed in this process.
    Soft,
    /// Linux SoftRoCE: GPU threads write into the kernel driver's rings, a doorbell proxy makes the system call.
    Rxe,
    /// A ConnectX NIC. Not in this version.
    Mlx5,
    /// Copies by the faulting warp itself. Not in this version.
    Direct,
}

impl Transport {
    /// The transport's name, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Soft => "soft",
            Self::Rxe => "rxe",
            Self::Mlx5 => "mlx5",
            Self::Direct => "direct",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = Error;

    /// `auto`, `soft`, `rxe`, `mlx5` or `direct`.
    fn from_str(text: &str) -> Result<Self> {
        [Self::Auto, Self::Soft, Self::Rxe, Self::Mlx5, Self::Direct]
            .into_iter()
            .find(|t| t.name() == text)
            .ok_or_else(|| Error::Setting {
                setting: "transport",
                value: format!("`{text}`"),
                reason: "expected auto, soft, rxe, mlx5 or direct".into(),
            })
    }
}

/// Worker threads of the simulated GPU that leave a core to the doorbell proxy and the driver, which do their work on the
/// processor as well.
fn workers_beside_a_proxy() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    (cores - 1).max(1)
}

/// Settings of a [`Vm`]. Every one has a default; [`build`](Self::build) checks them all.
#[derive(Clone)]
#[must_use]
pub struct VmBuilder {
    pub(crate) gpu: GpuKind,
    pub(crate) transport: Transport,
    pub(crate) frame_memory: u64,
    pub(crate) page_size: u64,
    pub(crate) queue_pairs: u32,
    pub(crate) queue_depth: u32,
    pub(crate) seed: Option<u64>,
    pub(crate) wait_limit: Duration,
    pub(crate) launch_deadline: Duration,
    pub(crate) device_memory: Option<u64>,
    pub(crate) workers: Option<u32>,
    pub(crate) lanes_per_worker: u32,
    pub(crate) regions_max: u32,
    pub(crate) soft_nic: Option<Arc<SoftNic>>,
    pub(crate) rdma_device: Option<String>,
    pub(crate) rdma_retries: u8,
    pub(crate) rdma_ack_timeout: u8,
    pub(crate) memory_nodes: Vec<String>,
    pub(crate) node_secret: Option<String>,
    pub(crate) node_timeout: Duration,
    pub(crate) nic_engines: usize,
}

impl fmt::Debug for VmBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmBuilder")
            .field("gpu", &self.gpu)
            .field("transport", &self.transport)
            .field("frame_memory", &self.frame_memory)
            .field("page_size", &self.page_size)
            .field("queue_pairs", &self.queue_pairs)
            .field("queue_depth", &self.queue_depth)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl Default for VmBuilder {
    fn default() -> Self {
        Self {
            gpu: GpuKind::Auto,
            transport: Transport::Auto,
            frame_memory: 64 << 20,
            page_size: 4 << 10,
            queue_pairs: 4,
            queue_depth: 256,
            seed: None,
            wait_limit: Duration::from_secs(10),
            launch_deadline: Duration::from_secs(600),
            device_memory: None,
            workers: None,
            lanes_per_worker: 256,
            regions_max: 256,
            soft_nic: None,
            rdma_device: None,
            rdma_retries: RxeOptions::default().retry_count,
            rdma_ack_timeout: RxeOptions::default().ack_timeout,
            memory_nodes: Vec::new(),
            node_secret: None,
            node_timeout: Duration::from_secs(10),
            nic_engines: 1,
        }
    }
}

impl VmBuilder {
    /// The GPU. Default: [`GpuKind::Auto`].
    pub fn gpu(mut self, gpu: GpuKind) -> Self {
        self.gpu = gpu;
        self
    }

    /// The transport. Default: [`Transport::Auto`].
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// GPU memory for page frames, in bytes, rounded down to whole pages. Default: 64 MiB.
    pub fn frame_memory(mut self, bytes: u64) -> Self {
        self.frame_memory = bytes;
        self
    }

    /// Page size in bytes, a power of two from 4 KiB to 2 MiB. Default: 4 KiB.
    pub fn page_size(mut self, bytes: u64) -> Self {
        self.page_size = bytes;
        self
    }

    /// Number of queue pairs. Default: 4.
    pub fn queue_pairs(mut self, count: u32) -> Self {
        self.queue_pairs = count;
        self
    }

    /// Requests that a queue pair holds, a power of two. Default: 256.
    pub fn queue_depth(mut self, requests: u32) -> Self {
        self.queue_depth = requests;
        self
    }

    /// Runs the simulated GPU and the NIC in one thread, in the one interleaving that this seed decides.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Longest that a lane waits for one frame, completion or ring slot before it reports a fault. Default: 10 s.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = limit;
        self
    }

    /// Longest that a launch may run unless its configuration says otherwise. Default: 10 minutes.
    pub fn launch_deadline(mut self, limit: Duration) -> Self {
        self.launch_deadline = limit;
        self
    }

    /// Memory of the simulated GPU in bytes. Default: frames and bookkeeping plus 1 GiB.
    pub fn device_memory(mut self, bytes: u64) -> Self {
        self.device_memory = Some(bytes);
        self
    }

    /// Worker threads (multiprocessors) of the simulated GPU. Default: one a core, over SoftRoCE one less.
    pub fn workers(mut self, count: u32) -> Self {
        self.workers = Some(count);
        self
    }

    /// Lanes that a worker of the simulated GPU keeps resident: more of them wait for pages at once, fewer stay in the
    /// processor's caches. Default: 256.
    pub fn lanes_per_worker(mut self, lanes: u32) -> Self {
        self.lanes_per_worker = lanes;
        self
    }

    /// Regions that may live at one time. Default: 256.
    pub fn regions_max(mut self, count: u32) -> Self {
        self.regions_max = count;
        self
    }

    /// Engine threads of the software NIC. Default: 1.
    pub fn nic_engines(mut self, count: usize) -> Self {
        self.nic_engines = count;
        self
    }

    /// A software NIC of your own making: shaped, or with faults planted. Default: one as fast as it can be.
    pub fn soft_nic(mut self, nic: Arc<SoftNic>) -> Self {
        self.soft_nic = Some(nic);
        self
    }

    /// The RDMA device, such as `rxe0`. Default: the first that the transport can drive.
    pub fn rdma_device(mut self, name: impl Into<String>) -> Self {
        self.rdma_device = Some(name.into());
        self
    }

    /// How often the RDMA device sends a request again that was not answered, 0 to 6; 7 is for ever, and only the wait
    /// limit ends it. Default: 6.
    pub fn rdma_retries(mut self, count: u8) -> Self {
        self.rdma_retries = count;
        self
    }

    /// How long the RDMA device waits for an answer before it sends again: 4.096 us doubled this many times, 1 to 31.
    /// Default: 14 (67 ms).
    pub fn rdma_ack_timeout(mut self, code: u8) -> Self {
        self.rdma_ack_timeout = code;
        self
    }

    /// A memory node, `host:port`: the pages of regions live there, and not in this host's memory. Given several times,
    /// regions are striped over all of them. The transport is SoftRoCE then.
    pub fn memory_node(mut self, address: impl Into<String>) -> Self {
        self.memory_nodes.push(address.into());
        self
    }

    /// The secret that the memory nodes ask for. It is proved, not sent.
    pub fn node_secret(mut self, secret: impl Into<String>) -> Self {
        self.node_secret = Some(secret.into());
        self
    }

    /// Longest that one step with a memory node may take, such as joining it. Default: 10 s.
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = limit;
        self
    }

    /// Frames that the settings give.
    pub(crate) fn frames(&self) -> u64 {
        self.frame_memory / self.page_size.max(1)
    }

    fn check(&self) -> Result<()> {
        let refuse = |setting, value: String, reason: &str| {
            Err(Error::Setting {
                setting,
                value,
                reason: reason.into(),
            })
        };
        if !self.page_size.is_power_of_two()
            || !(layout::PAGE_BYTES_MIN..=layout::PAGE_BYTES_MAX).contains(&self.page_size)
        {
            return refuse(
                "page size",
                format!("{} bytes", self.page_size),
                "it must be a power of two from 4 KiB to 2 MiB",
            );
        }
        if self.frames() == 0 {
            return refuse(
                "frame memory",
                format!("{} bytes", self.frame_memory),
                "it must hold at least one page",
            );
        }
        if self.frames() > layout::FRAMES_MAX {
            return refuse(
                "frame memory",
                format!("{} frames", self.frames()),
                "page table words count at most 2^28 - 1 frames: use larger pages",
            );
        }
        // One group of them for this host's memory, and one a node.
        let groups = 1 + self.memory_nodes.len() as u64;
        if u64::from(self.queue_pairs) * groups > u64::from(layout::QUEUES_MAX) {
            return refuse(
                "queue pairs",
                format!("{} for each of {groups} homes", self.queue_pairs),
                "there may be 4096 in all",
            );
        }
        if !(1..=layout::QUEUES_MAX).contains(&self.queue_pairs) {
            return refuse("queue pairs", self.queue_pairs.to_string(), "there must be 1 to 4096");
        }
        if !self.queue_depth.is_power_of_two() || self.queue_depth > layout::RING_ENTRIES_MAX {
            return refuse(
                "queue depth",
                self.queue_depth.to_string(),
                "it must be a power of two up to 32768",
            );
        }
        if !(1..=layout::REGIONS_MAX).contains(&self.regions_max) {
            return refuse(
                "regions",
                self.regions_max.to_string(),
                "there must be room for 1 to 65536",
            );
        }
        if self.wait_limit.is_zero() || self.launch_deadline.is_zero() {
            return refuse("wait limit or launch deadline", "zero".into(), "a wait needs some time");
        }
        Ok(())
    }

    /// Brings the virtual memory up.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting that cannot be, [`Error::Unavailable`] for a GPU or transport that this build
    /// cannot drive, [`Error::Gpu`] when memory is short or no C++ compiler is there, [`Error::Nic`].
    pub fn build(self) -> Result<Vm> {
        self.check()?;
        if let GpuKind::Cuda(ordinal) = self.gpu {
            let found = gpuvm_gpu::cuda::presence();
            let libraries = match (found.driver, found.nvrtc) {
                (true, true) => "CUDA's libraries are here, but",
                (true, false) => "libnvrtc is missing, and",
                (false, _) => "libcuda is missing, and",
            };
            return Err(Error::Unavailable {
                what: format!("GPU cuda:{ordinal}"),
                reason: format!("{libraries} this version drives the simulated GPU only; use --gpu sim"),
            });
        }
        if matches!(self.transport, Transport::Mlx5 | Transport::Direct) {
            return Err(Error::Unavailable {
                what: format!("transport {}", self.transport),
                reason: "this version has the software NIC and SoftRoCE; use --transport soft or rxe".into(),
            });
        }
        // Before the GPU, whose start takes longer.
        let nodes = self.join_nodes()?;
        let rxe = match self.transport {
            Transport::Auto if !nodes.is_empty() => Some(Arc::new(self.open_rxe(&nodes)?)),
            Transport::Rxe => Some(Arc::new(self.open_rxe(&nodes)?)),
            _ => None,
        };
        let pairs = u64::from(self.queue_pairs) * (1 + self.memory_nodes.len() as u64);
        let bookkeeping = self.frames() * 16 + pairs * u64::from(self.queue_depth) * 256;
        let memory = self
            .device_memory
            .unwrap_or(self.frame_memory + bookkeeping + (1 << 30));
        let mut gpu = SimGpu::builder()
            .memory_bytes(memory)
            .lanes_per_worker(self.lanes_per_worker);
        if let Some(workers) = self.workers.or_else(|| rxe.as_ref().map(|_| workers_beside_a_proxy())) {
            gpu = gpu.workers(workers);
        }
        if let Some(seed) = self.seed {
            gpu = gpu.mode(Mode::Seeded(seed));
        }
        let gpu = Arc::new(gpu.build().doing(|| "starting the simulated GPU".into())?);
        let nic = match (rxe, &self.soft_nic) {
            (Some(nic), _) => TransportNic::Rxe(nic),
            (None, Some(nic)) => TransportNic::Soft(Arc::clone(nic)),
            (None, None) => {
                let engines = if self.seed.is_some() { 0 } else { self.nic_engines };
                let mut builder = SoftNic::builder().engines(engines);
                if self.seed.is_some() {
                    builder = builder.clock(Arc::new(gpuvm_nic::soft::VirtualClock::new(0)));
                }
                TransportNic::Soft(Arc::new(builder.build().doing(|| "starting the software NIC".into())?))
            }
        };
        Vm::bring_up(self, gpu, nic, nodes)
    }

    /// Joins the memory nodes. Their devices must be one.
    fn join_nodes(&self) -> Result<Vec<Arc<NodeClient>>> {
        if self.memory_nodes.is_empty() {
            return Ok(Vec::new());
        }
        if !matches!(self.transport, Transport::Auto | Transport::Rxe) {
            return Err(Error::Setting {
                setting: "memory nodes",
                value: self.memory_nodes.join(", "),
                reason: format!("transport {} does not reach other machines; use rxe", self.transport),
            });
        }
        let options = ClientOptions {
            secret: self.node_secret.clone(),
            timeout: self.node_timeout,
            retry_count: self.rdma_retries,
            ack_timeout: self.rdma_ack_timeout,
            ..ClientOptions::default()
        };
        let join = |address: &String| {
            let joined = NodeClient::connect(address, &options);
            joined.doing(|| format!("joining {address}"))
        };
        self.memory_nodes.iter().map(join).collect()
    }

    /// The device that the nodes are reached through, else the one that was asked for.
    fn open_rxe(&self, nodes: &[Arc<NodeClient>]) -> Result<RxeNic> {
        let refuse = |setting, value: String, reason: String| Err(Error::Setting { setting, value, reason });
        let mut device = self.rdma_device.clone();
        for node in nodes {
            match &device {
                Some(device) if device != node.device() => {
                    let reason = format!(
                        "{} is reached through {}, other homes through {device}",
                        node.address(),
                        node.device()
                    );
                    return refuse("memory node", node.address().to_owned(), reason);
                }
                _ => device = Some(node.device().to_owned()),
            }
        }
        if let Some(seed) = self.seed {
            let reason = "the kernel's driver does not follow a seed; use the software NIC".into();
            return refuse("seed", seed.to_string(), reason);
        }
        let nic = RxeNic::open(RxeOptions {
            device,
            ack_timeout: self.rdma_ack_timeout,
            retry_count: self.rdma_retries,
        });
        let nic = match nic {
            Err(NicError::NoDevice { reason }) => {
                return Err(Error::Unavailable {
                    what: "transport rxe".into(),
                    reason,
                });
            }
            other => other.doing(|| "opening the SoftRoCE device".into())?,
        };
        let limits = nic.capabilities();
        if self.queue_depth > limits.sq_entries_max {
            let reason = format!("{} takes at most {}", limits.name, limits.sq_entries_max);
            return refuse("queue depth", self.queue_depth.to_string(), reason);
        }
        Ok(nic)
    }
}
