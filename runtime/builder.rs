//! Settings of a virtual memory, checked before anything is allocated.

use std::{fmt, sync::Arc, time::Duration};

use gpuvm_gpu::{CompileOptions, Gpu, cuda::CudaGpu};
use gpuvm_layouts as layout;
use gpuvm_memory_node::{ClientOptions, NodeClient};
use gpuvm_nic::{
    Nic, NicError, RxeNic, SoftNic,
    devices::{DeviceKind, Machine},
    mlx5::{Mlx5Nic, Mlx5Options, QueueMaking, SharedMemory},
    rxe::RxeOptions,
};

use gpuvm_sim_gpu::{Mode, SimGpu, SimOptions};

use crate::{
    arena::RingArena,
    error::{Doing, Error, Result},
    mover::GpuMover,
    queues::check_collapsed,
    vm::{TransportNics, Vm},
};

pub use crate::kinds::{GpuKind, Transport};

/// Queue pairs for each home and NIC where nothing is measured.
pub(crate) const QUEUE_PAIRS: u32 = 4;

/// Opens the NVIDIA GPU `which`, an ordinal or a UUID.
fn open_cuda(kind: GpuKind, which: &str) -> Result<Arc<dyn Gpu>> {
    let gpu = CudaGpu::open(which).doing(|| format!("opening GPU {kind}"))?;
    Ok(Arc::new(gpu))
}

/// Worker threads of the simulated GPU that leave a core to the doorbell proxy and the driver, which do their work on the
/// processor as well.
fn workers_beside_a_proxy() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    (cores - 1).max(1)
}

/// How packets leave a ConnectX device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaPath {
    /// The port, from 1 on. Default: 1.
    pub port: u8,
    /// Which of the port's GIDs. Default: a RoCE v2 one, of an IPv4 address if there is one; on InfiniBand the first.
    pub gid_index: Option<u8>,
    /// Most bytes of a packet's data: 256 to 4096, a power of two. Default: what the port has.
    pub mtu: Option<u32>,
    /// Service level, 0 to 15. Default: 0.
    pub service_level: u8,
    /// Traffic class (RoCE: DSCP and ECN). Default: 0.
    pub traffic_class: u8,
}

impl Default for RdmaPath {
    fn default() -> Self {
        let options = Mlx5Options::default();
        Self {
            port: options.port,
            gid_index: options.gid_index,
            mtu: options.mtu,
            service_level: options.service_level,
            traffic_class: options.traffic_class,
        }
    }
}

/// Settings of a [`Vm`]. Every one has a default; [`build`](Self::build) checks them all.
#[derive(Clone)]
#[must_use]
pub struct VmBuilder {
    pub(crate) gpu: GpuKind,
    pub(crate) device: Option<Arc<dyn Gpu>>,
    pub(crate) transport: Transport,
    pub(crate) frame_memory: u64,
    pub(crate) page_size: u64,
    pub(crate) queue_pairs: Option<u32>,
    pub(crate) queue_depth: u32,
    pub(crate) seed: Option<u64>,
    pub(crate) sim_options: SimOptions,
    pub(crate) wait_limit: Duration,
    pub(crate) launch_deadline: Duration,
    pub(crate) device_memory: Option<u64>,
    pub(crate) workers: Option<u32>,
    pub(crate) lanes_per_worker: u32,
    pub(crate) regions_max: u32,
    pub(crate) soft_nics: Vec<Arc<SoftNic>>,
    pub(crate) support_options: CompileOptions,
    pub(crate) flush_reads: bool,
    pub(crate) collapsed_completions: bool,
    pub(crate) rdma_devices: Vec<String>,
    pub(crate) rdma_path: RdmaPath,
    pub(crate) rdma_queues: QueueMaking,
    pub(crate) rdma_retries: u8,
    pub(crate) rdma_ack_timeout: u8,
    pub(crate) memory_nodes: Vec<String>,
    pub(crate) node_secret: Option<String>,
    pub(crate) node_timeout: Duration,
    pub(crate) nic_engines: usize,
    pub(crate) host_homes: u32,
    pub(crate) guarded_regions: bool,
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
            device: None,
            transport: Transport::Auto,
            frame_memory: 64 << 20,
            page_size: 4 << 10,
            queue_pairs: None,
            queue_depth: 256,
            seed: None,
            sim_options: SimOptions::default(),
            wait_limit: Duration::from_secs(10),
            launch_deadline: Duration::from_secs(600),
            device_memory: None,
            workers: None,
            lanes_per_worker: 256,
            regions_max: 256,
            soft_nics: Vec::new(),
            support_options: CompileOptions::default(),
            flush_reads: false,
            collapsed_completions: false,
            rdma_devices: Vec::new(),
            rdma_path: RdmaPath::default(),
            rdma_queues: QueueMaking::default(),
            rdma_retries: RxeOptions::default().retry_count,
            rdma_ack_timeout: RxeOptions::default().ack_timeout,
            memory_nodes: Vec::new(),
            node_secret: None,
            node_timeout: Duration::from_secs(10),
            nic_engines: 1,
            host_homes: 1,
            guarded_regions: false,
        }
    }
}

impl VmBuilder {
    /// The GPU. Default: [`GpuKind::Auto`].
    pub fn gpu(mut self, gpu: GpuKind) -> Self {
        self.gpu = gpu;
        self
    }

    /// A GPU of your own making, or one that several virtual memories share; [`gpu`](Self::gpu) and the simulated GPU's
    /// settings count for nothing then.
    pub fn device(mut self, gpu: Arc<dyn Gpu>) -> Self {
        self.device = Some(gpu);
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

    /// Number of queue pairs for each home and NIC. Default: 4; over `mlx5` as many as keep the link busy, by the latency
    /// that is measured at the start and the READs that the device keeps in flight for each.
    pub fn queue_pairs(mut self, count: u32) -> Self {
        self.queue_pairs = Some(count);
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

    /// What a seeded run does besides: how weak memory is, how lanes are picked, whether races are looked for, how many
    /// events are kept.
    pub fn sim_options(mut self, options: SimOptions) -> Self {
        self.sim_options = options;
        self
    }

    /// How the runtime's own kernels are compiled, for tests that change the device library.
    #[doc(hidden)]
    pub fn support_options(mut self, options: CompileOptions) -> Self {
        self.support_options = options;
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

    /// Homes in this host's memory, 1 or 2, each with queue pairs of its own, for the copies of regions with two replicas
    /// where there are no memory nodes. Tests take one away ([`Vm::host_homes`]). Default: 1.
    pub fn host_homes(mut self, count: u32) -> Self {
        self.host_homes = count;
        self
    }

    /// Compiles kernels with what regions with checksums or replicas need, at the price of registers; so it is with several
    /// [`host_homes`](Self::host_homes) in any case. With it, memory nodes that were lost and serve again are taken back: see
    /// [`Vm::catch_up`]. Default: false.
    pub fn guarded_regions(mut self, guarded: bool) -> Self {
        self.guarded_regions = guarded;
        self
    }

    /// A software NIC of your own making: shaped, or with faults planted. Default: one as fast as it can be.
    pub fn soft_nic(mut self, nic: Arc<SoftNic>) -> Self {
        self.soft_nics = vec![nic];
        self
    }

    /// Software NICs that are used in place of one: each page belongs to one of them, as it would with several NICs of the
    /// machine.
    pub fn soft_nics(mut self, nics: impl IntoIterator<Item = Arc<SoftNic>>) -> Self {
        self.soft_nics = nics.into_iter().collect();
        self
    }

    /// Follows each READ by a read of the frame behind a fence, and takes that one's completion for the READ's. So it is
    /// done anyway where kernels do not see a NIC's writes in their order; this asks for it everywhere. Transports `soft` and
    /// `mlx5`. Default: false.
    pub fn flush_reads(mut self, always: bool) -> Self {
        self.flush_reads = always;
        self
    }

    /// Has the NIC write every completion of a queue pair over one entry, which all of its requests' lanes poll, instead of
    /// one entry a request. A request that fails may then be repeated over another queue pair, and the cause of a failure be
    /// lost behind it. Transport `soft` on the simulated GPU; over `mlx5` queue pairs that DEVX makes
    /// ([`rdma_queues`](Self::rdma_queues)) are so in any case, and others cannot be. Default: false.
    pub fn collapsed_completions(mut self, collapsed: bool) -> Self {
        self.collapsed_completions = collapsed;
        self
    }

    /// The RDMA device, such as `rxe0` or `mlx5_0`. Default: the first SoftRoCE device; the ConnectX devices that are nearest
    /// to the GPU on PCIe.
    pub fn rdma_device(mut self, name: impl Into<String>) -> Self {
        self.rdma_devices = vec![name.into()];
        self
    }

    /// Several ConnectX devices: each page belongs to one of them.
    pub fn rdma_devices(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.rdma_devices = names.into_iter().map(Into::into).collect();
        self
    }

    /// How packets of `mlx5` leave the device: its port, GID, MTU, service level and traffic class.
    pub fn rdma_path(mut self, path: RdmaPath) -> Self {
        self.rdma_path = path;
        self
    }

    /// How the queues of `mlx5` are made. By [`QueueMaking::Devx`] they lie in the GPU's own memory where its driver exports
    /// that, their completions are collapsed ([`collapsed_completions`](Self::collapsed_completions)), and there are 4 queue
    /// pairs unless they are counted. Default: [`QueueMaking::Verbs`]. Not tested on a ConnectX.
    pub fn rdma_queues(mut self, making: QueueMaking) -> Self {
        self.rdma_queues = making;
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
    /// regions are striped over all of them. The transport is `mlx5` then where ConnectX devices lead there, else SoftRoCE.
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
        // One group of them for this host's memory and each NIC, and one a node.
        if !(1..=layout::REPLICAS_MAX).contains(&self.host_homes) {
            return refuse("host homes", self.host_homes.to_string(), "there are 1 or 2");
        }
        let groups = self.soft_nics.len().max(1) as u64 * u64::from(self.host_homes) + self.memory_nodes.len() as u64;
        let queue_pairs = self.queue_pairs.unwrap_or(QUEUE_PAIRS);
        if u64::from(queue_pairs) * groups > u64::from(layout::QUEUES_MAX) {
            return refuse(
                "queue pairs",
                format!("{queue_pairs} for each of {groups} homes"),
                "there may be 4096 in all",
            );
        }
        if !(1..=layout::QUEUES_MAX).contains(&queue_pairs) {
            return refuse("queue pairs", queue_pairs.to_string(), "there must be 1 to 4096");
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
        self.check_node_path()?;
        let is_hardware = |device: &Option<Arc<dyn Gpu>>| {
            let gpu = device.as_ref();
            gpu.is_some_and(|gpu| gpu.capabilities().compute_capability.is_some())
        };
        // The simulated GPU's start takes longer than a refusal by a node, and follows below.
        let (device, nodes) = if self.gpu_follows_nodes() {
            let nodes = self.join_nodes()?;
            (self.choose_device(lead_over_mlx5(&nodes))?, nodes)
        } else {
            // Before a node or a NIC is asked for what the GPU cannot use.
            let device = self.choose_device(false)?;
            if is_hardware(&device) {
                self.check_hardware()?;
            }
            (device, self.join_nodes()?)
        };
        let hardware = is_hardware(&device);
        let transport = self
            .transport
            .resolve(hardware, !nodes.is_empty(), lead_over_mlx5(&nodes));
        check_collapsed(&self, transport, hardware)?;
        self.check_rdma_settings(transport)?;
        let gpu = match (device, transport) {
            (Some(gpu), _) => gpu,
            // Before a simulated GPU, whose start takes longer than a refusal.
            (None, Transport::Rxe) => {
                let nic = Arc::new(self.open_rxe(&nodes)?);
                let gpu = self.start_simulated(transport)?;
                return Vm::bring_up(self, gpu, TransportNics::Rxe(nic), nodes);
            }
            (None, _) => self.start_simulated(transport)?,
        };
        let nics = match transport {
            Transport::Rxe => TransportNics::Rxe(Arc::new(self.open_rxe(&nodes)?)),
            Transport::Direct => TransportNics::Direct,
            Transport::Mlx5 => self.open_mlx5(&gpu, &nodes)?,
            _ if hardware => TransportNics::Soft(self.soft_nics_of_hardware(&gpu)?),
            _ => TransportNics::Soft(self.open_soft_nics()?),
        };
        Vm::bring_up(self, gpu, nics, nodes)
    }

    /// What is said of an RDMA device is for one: nothing that was asked for is left out without a word.
    fn check_rdma_settings(&self, transport: Transport) -> Result<()> {
        let (path, plain) = (self.rdma_path, RdmaPath::default());
        let given = |number: u32, default: u32| (number != default).then(|| number.to_string());
        let of_mlx5 = [
            ("RDMA port", given(path.port.into(), plain.port.into())),
            ("GID index", path.gid_index.map(|index| index.to_string())),
            ("RDMA MTU", path.mtu.map(|bytes| bytes.to_string())),
            (
                "service level",
                given(path.service_level.into(), plain.service_level.into()),
            ),
            (
                "traffic class",
                given(path.traffic_class.into(), plain.traffic_class.into()),
            ),
            (
                "RDMA queues",
                (self.rdma_queues != QueueMaking::default()).then(|| self.rdma_queues.to_string()),
            ),
        ];
        let (devices, rxe) = (self.rdma_devices.join(", "), RxeOptions::default());
        let of_both = [
            ("RDMA device", (!devices.is_empty()).then_some(devices)),
            ("RDMA retries", given(self.rdma_retries.into(), rxe.retry_count.into())),
            (
                "RDMA acknowledgement timeout",
                given(self.rdma_ack_timeout.into(), rxe.ack_timeout.into()),
            ),
        ];
        let mlx5_alone = of_mlx5.into_iter().map(|(setting, value)| (setting, value, "mlx5"));
        let either = of_both
            .into_iter()
            .map(|(setting, value)| (setting, value, "rxe or mlx5"));
        let ignored = mlx5_alone
            .filter(|_| transport != Transport::Mlx5)
            .chain(either.filter(|_| !matches!(transport, Transport::Rxe | Transport::Mlx5)))
            .find_map(|(setting, value, whose)| Some((setting, value?, whose)));
        match ignored {
            None => Ok(()),
            Some((setting, value, whose)) => Err(Error::Setting {
                setting,
                value,
                reason: format!("transport {transport} has none; leave it out, or use transport {whose}"),
            }),
        }
    }

    /// What the connection manager decides for both ends of a memory node's connections cannot be asked for at this end.
    fn check_node_path(&self) -> Result<()> {
        let path = self.rdma_path;
        let decided = [
            (
                "GID index",
                path.gid_index.map(|index| index.to_string()),
                "it is the one of the address that leads there; leave it out",
            ),
            (
                "RDMA MTU",
                path.mtu.map(|bytes| bytes.to_string()),
                "both ends take the path's; leave it out, and set the MTU of their network interfaces",
            ),
            (
                "service level",
                (path.service_level != 0).then(|| path.service_level.to_string()),
                "it follows from the traffic class (RoCE) or the subnet manager (InfiniBand); leave it out",
            ),
        ];
        let mut asked = decided.into_iter().filter(|_| !self.memory_nodes.is_empty());
        match asked.find_map(|(setting, value, why)| Some((setting, value?, why))) {
            None => Ok(()),
            Some((setting, value, why)) => Err(Error::Setting {
                setting,
                value,
                reason: format!("of connections to memory nodes {why}"),
            }),
        }
    }

    /// Whether GPU and transport are left open, and what leads to the memory nodes decides on both.
    fn gpu_follows_nodes(&self) -> bool {
        let open = self.device.is_none() && self.gpu == GpuKind::Auto && self.transport == Transport::Auto;
        open && !self.memory_nodes.is_empty()
    }

    /// The GPU to drive; none for a simulated one that is to be started. `over_mlx5`: ConnectX devices, which an NVIDIA GPU
    /// drives, lead to the memory nodes.
    fn choose_device(&self, over_mlx5: bool) -> Result<Option<Arc<dyn Gpu>>> {
        if let Some(gpu) = &self.device {
            return Ok(Some(Arc::clone(gpu)));
        }
        match self.gpu {
            GpuKind::Simulated => Ok(None),
            GpuKind::Cuda(ordinal) => open_cuda(self.gpu, &ordinal.to_string()).map(Some),
            kind @ GpuKind::CudaUuid(_) => {
                let name = kind.to_string();
                open_cuda(kind, name.trim_start_matches("cuda:")).map(Some)
            }
            GpuKind::Auto => {
                let simulated = |why: &str| {
                    tracing::info!("the simulated GPU runs the kernels: {why}");
                    Ok(None)
                };
                let only_there = self.seed.is_some()
                    || !self.soft_nics.is_empty()
                    || matches!(self.transport, Transport::Rxe | Transport::Soft)
                    || (!self.memory_nodes.is_empty() && self.transport != Transport::Mlx5 && !over_mlx5);
                if only_there {
                    return simulated("a seed, its NIC or a memory node was asked for");
                }
                match open_cuda(GpuKind::Cuda(0), "0") {
                    Ok(gpu) => {
                        tracing::info!("{} runs the kernels", gpu.capabilities().name);
                        Ok(Some(gpu))
                    }
                    Err(Error::Gpu { source, .. }) => simulated(&source.to_string()),
                    Err(error) => simulated(&error.to_string()),
                }
            }
        }
    }

    /// What an NVIDIA GPU does not do in this version.
    fn check_hardware(&self) -> Result<()> {
        let refuse = |setting, value: String, reason: &str| {
            let reason = reason.into();
            Err(Error::Setting { setting, value, reason })
        };
        if let Some(seed) = self.seed {
            return refuse("seed", seed.to_string(), "an NVIDIA GPU follows none; use --gpu sim");
        }
        if self.transport == Transport::Rxe {
            let reason = "an NVIDIA GPU cannot reach the SoftRoCE driver's rings; use --transport direct, or --gpu sim";
            return refuse("transport", self.transport.to_string(), reason);
        }
        Ok(())
    }

    /// The software NICs beside an NVIDIA GPU, whose copy engines move their bytes.
    fn soft_nics_of_hardware(&self, gpu: &Arc<dyn Gpu>) -> Result<Vec<Arc<SoftNic>>> {
        if self.soft_nics.iter().any(|nic| !nic.has_mover()) {
            return Err(Error::Setting {
                setting: "software NIC",
                value: "one without a mover".into(),
                reason:
                    "the processor does not reach an NVIDIA GPU's memory; leave the NIC to the Vm, or use --gpu sim"
                        .into(),
            });
        }
        if !self.soft_nics.is_empty() {
            return Ok(self.soft_nics.clone());
        }
        let mover = Arc::new(GpuMover { gpu: Arc::clone(gpu) });
        let builder = SoftNic::builder().engines(self.nic_engines).mover(mover);
        let nic = builder.build().doing(|| "starting the software NIC".into())?;
        Ok(vec![Arc::new(nic)])
    }

    fn open_soft_nics(&self) -> Result<Vec<Arc<SoftNic>>> {
        if !self.soft_nics.is_empty() {
            return Ok(self.soft_nics.clone());
        }
        let engines = if self.seed.is_some() { 0 } else { self.nic_engines };
        let mut builder = SoftNic::builder().engines(engines);
        if self.seed.is_some() {
            builder = builder.clock(Arc::new(gpuvm_nic::soft::VirtualClock::new(0)));
        }
        let nic = builder.build().doing(|| "starting the software NIC".into())?;
        Ok(vec![Arc::new(nic)])
    }

    fn start_simulated(&self, transport: Transport) -> Result<Arc<dyn Gpu>> {
        let pairs = match transport {
            Transport::Direct => 0,
            _ => u64::from(self.queue_pairs.unwrap_or(QUEUE_PAIRS)) * (1 + self.memory_nodes.len() as u64),
        };
        let bookkeeping = self.frames() * 16 + pairs * u64::from(self.queue_depth) * 256;
        let memory = self
            .device_memory
            .unwrap_or(self.frame_memory + bookkeeping + (1 << 30));
        let mut gpu = SimGpu::builder()
            .memory_bytes(memory)
            .lanes_per_worker(self.lanes_per_worker);
        let beside = (transport == Transport::Rxe).then(workers_beside_a_proxy);
        if let Some(workers) = self.workers.or(beside) {
            gpu = gpu.workers(workers);
        }
        if let Some(seed) = self.seed {
            gpu = gpu.mode(Mode::Seeded(seed)).options(self.sim_options);
        }
        Ok(Arc::new(gpu.build().doing(|| "starting the simulated GPU".into())?))
    }

    /// Joins the memory nodes. Their devices must be one.
    fn join_nodes(&self) -> Result<Vec<Arc<NodeClient>>> {
        if self.memory_nodes.is_empty() {
            return Ok(Vec::new());
        }
        if !matches!(self.transport, Transport::Auto | Transport::Rxe | Transport::Mlx5) {
            return Err(Error::Setting {
                setting: "memory nodes",
                value: self.memory_nodes.join(", "),
                reason: format!(
                    "transport {} does not reach other machines; use rxe or mlx5",
                    self.transport
                ),
            });
        }
        let options = ClientOptions {
            secret: self.node_secret.clone(),
            timeout: self.node_timeout,
            retry_count: self.rdma_retries,
            ack_timeout: self.rdma_ack_timeout,
            traffic_class: self.rdma_path.traffic_class,
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
        if self.rdma_devices.len() > 1 {
            let reason = "transport rxe drives one device".into();
            return refuse("RDMA devices", self.rdma_devices.join(", "), reason);
        }
        let mut device = self.rdma_devices.first().cloned();
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

impl VmBuilder {
    /// The ConnectX devices, opened over memory of the GPU's.
    fn open_mlx5(&self, gpu: &Arc<dyn Gpu>, nodes: &[Arc<NodeClient>]) -> Result<TransportNics> {
        let refuse = |setting, value: String, reason: String| Err(Error::Setting { setting, value, reason });
        if let Some(seed) = self.seed {
            let reason = "a NIC of the machine follows none; use the software NIC".into();
            return refuse("seed", seed.to_string(), reason);
        }
        let arena = Arc::new(RingArena::new(Arc::clone(gpu)));
        let mut nics = Vec::new();
        for device in self.mlx5_devices(&**gpu, nodes) {
            let options = Mlx5Options {
                device,
                port: self.rdma_path.port,
                gid_index: self.rdma_path.gid_index,
                mtu: self.rdma_path.mtu,
                service_level: self.rdma_path.service_level,
                traffic_class: self.rdma_path.traffic_class,
                ack_timeout: self.rdma_ack_timeout,
                retry_count: self.rdma_retries,
                queues: self.rdma_queues,
            };
            let nic = match Mlx5Nic::open(options, Arc::clone(&arena) as Arc<dyn SharedMemory>) {
                Err(NicError::NoDevice { reason }) => {
                    return Err(Error::Unavailable {
                        what: "transport mlx5".into(),
                        reason,
                    });
                }
                other => other.doing(|| "opening a ConnectX device".into())?,
            };
            let nic: Arc<Mlx5Nic> = Arc::new(nic);
            self.check_queue_blocks(&[Arc::clone(&nic) as Arc<dyn Nic>], self.flush_reads)?;
            nics.push(nic);
        }
        Ok(TransportNics::Mlx5(nics, arena))
    }

    /// Whether the NICs that make rings themselves have room for a queue pair's, with a block more for each request where READs
    /// are flushed.
    pub(crate) fn check_queue_blocks(&self, nics: &[Arc<dyn Nic>], flush_reads: bool) -> Result<()> {
        let blocks = self.queue_depth << u32::from(flush_reads);
        let mut able = nics.iter().map(|nic| nic.capabilities());
        match able.find(|able| able.makes_rings && blocks > able.sq_entries_max) {
            None => Ok(()),
            Some(able) => {
                let why = if flush_reads {
                    ", and a request takes two where READs are flushed"
                } else {
                    ""
                };
                Err(Error::Setting {
                    setting: "queue depth",
                    value: self.queue_depth.to_string(),
                    reason: format!("{} takes at most {} blocks{why}", able.name, able.sq_entries_max),
                })
            }
        }
    }

    /// The devices to open: those that were asked for, then those that lead to the nodes; without any, those nearest to the
    /// GPU. None is the library's first.
    fn mlx5_devices(&self, gpu: &dyn Gpu, nodes: &[Arc<NodeClient>]) -> Vec<Option<String>> {
        let mut names = self.rdma_devices.clone();
        for node in nodes {
            if !names.iter().any(|name| name == node.device()) {
                names.push(node.device().to_owned());
            }
        }
        if names.is_empty()
            && let Some(place) = gpu
                .capabilities()
                .for_nics
                .and_then(|able| able.pci_address.parse().ok())
        {
            let near = Machine::default().nearest_connectx(place).into_iter();
            names = near.map(|nic| nic.name).collect();
        }
        match names.is_empty() {
            true => vec![None],
            false => names.into_iter().map(Some).collect(),
        }
    }
}

/// Whether a ConnectX device leads to a node.
fn lead_over_mlx5(nodes: &[Arc<NodeClient>]) -> bool {
    let machine = Machine::default();
    let kind = |node: &Arc<NodeClient>| machine.rdma_device(node.device()).map(|found| found.kind);
    nodes.iter().any(|node| kind(node) == Some(DeviceKind::Mlx5))
}
