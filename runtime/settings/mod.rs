//! Settings of a virtual memory, checked before anything is allocated.
//!
//! What any virtual memory has is a setting of [`VmBuilder`] itself: frames, pages, limits, places for regions. What only
//! one kind of GPU or transport has is a setting of that kind, so that one which does not fit cannot be written:
//!
//! | setting | of |
//! |---|---|
//! | workers, lanes, memory, seed | [`Gpu::Simulated`]: [`SimulatedGpu`] |
//! | ordinal or UUID | [`Gpu::Cuda`]: [`CudaGpu`] |
//! | queue pairs, their depth, homes in this host's memory | [`Queues`], of every transport that has queues |
//! | the NICs or their engines, flushed READs, collapsed completions | [`Transport::Soft`]: [`Soft`] |
//! | the device | [`Transport::Rxe`]: [`Rxe`] |
//! | devices, path, how queues are made, flushed READs | [`Transport::Mlx5`]: [`Mlx5`] |
//! | retries and acknowledgement timeout | [`Retransmission`], of `rxe`, `mlx5` and [`Rdma`] |
//! | memory nodes, their secret and timeout | [`MemoryNodes`], of `rxe`, `mlx5` and [`Rdma`] |
//!
//! [`VmBuilder::build`] goes three steps. Values out of range are refused. [`Transport::Auto`] and [`Transport::Rdma`]
//! become one of the four transports that there are, by the GPU and by what leads to the memory nodes. GPU and NICs are
//! opened. Refused at run time is what only the machine can tell (a device that is not there, a limit of a device), and a
//! GPU and a transport that do not go together.

mod common;
mod gpu;
mod mlx5;
mod named;
mod nodes;
mod queues;
mod rdma;
mod rxe;
mod simulated;
mod soft;
mod transport;

use std::{ops::Range, path::PathBuf, sync::Arc, time::Duration};

use gpuvm_gpu::{CompileOptions, Gpu as Device};
use gpuvm_memory_node::NodeClient;

use crate::{
    ahead_of_time::Precompiler,
    error::Result,
    gpu::{Machines, TransportNics},
    placement::Placement,
    plan::{FileCache, Loan, PAIRS_WITH_FILE_CACHE, Precompiled, QueuePlan, Settings, refuse},
    stored::stored,
    tenancy::Tenancy,
    timeline::Timeline,
    vm::Vm,
};

pub use crate::plan::TransportKind;
use common::is_hardware;
pub use gpu::{CudaGpu, Gpu};
pub use mlx5::{Mlx5, RdmaPath};
pub use named::NamedSetting;
pub use nodes::{MemoryNodes, Retransmission};
pub use queues::Queues;
pub use rdma::Rdma;
pub use rxe::Rxe;
pub use simulated::SimulatedGpu;
pub use soft::{NicEngine, Soft};
pub use transport::Transport;

/// Settings of a [`Vm`]. Every one has a default; [`build`](Self::build) checks them all.
#[derive(Debug, Clone)]
#[must_use]
pub struct VmBuilder {
    gpus: Vec<Gpu>,
    transport: Transport,
    settings: Settings,
}

impl Vm {
    /// Settings of a new virtual memory.
    pub fn builder() -> VmBuilder {
        VmBuilder::default()
    }
}

impl Default for VmBuilder {
    fn default() -> Self {
        Self {
            gpus: vec![Gpu::Auto],
            transport: Transport::default(),
            settings: Settings {
                frame_memory: 64 << 20,
                frame_capacity: None,
                frame_minimum: None,
                frame_priority: 0,
                frames_leave_free: None,
                page_size: 4 << 10,
                wait_limit: Duration::from_secs(10),
                launch_deadline: Duration::from_secs(600),
                placement: None,
                bring_beside: None,
                regions_max: gpuvm_layouts::REGIONS_MAX,
                reliable: false,
                gpu_count: 1,
                borrowed: Vec::new(),
                borrowed_chunk: Loan::CHUNK,
                support_options: CompileOptions::default(),
                precompiled: None,
                tenancy: Tenancy::default(),
                file_cache: None,
                window: None,
                timeline: None,
            },
        }
    }
}

impl VmBuilder {
    /// The GPU: [`Gpu::Auto`], a [`SimulatedGpu`], a [`CudaGpu`], or one that is there (an `Arc` of it, which several virtual
    /// memories may share). Default: [`Gpu::Auto`].
    pub fn gpu(self, gpu: impl Into<Gpu>) -> Self {
        self.gpus([gpu])
    }

    /// The GPUs of one virtual memory, instead of one: see [`Vm::gpu`]. Each has frames, queue pairs and page tables of its own.
    /// Kernels of all of them take the regions of the virtual memory, as [`VmGpu`](crate::VmGpu) says.
    pub fn gpus(mut self, gpus: impl IntoIterator<Item = impl Into<Gpu>>) -> Self {
        self.gpus = gpus.into_iter().map(Into::into).collect();
        self.settings.gpu_count = self.gpus.len();
        self
    }

    stored! {
        /// The transport: [`Transport::Direct`], [`Soft`], [`Rxe`], [`Mlx5`], [`Rdma`] to memory nodes, or
        /// [`Auto`](Transport::Auto). Default: [`Transport::Auto`].
        transport(transport: impl Into<Transport>) => transport = transport.into();

        /// GPU memory for page frames, in bytes, rounded down to whole pages. Default: 64 MiB.
        frame_memory(bytes: u64) => settings.frame_memory = bytes;

        /// Lets the frames come and go, up to this many bytes of them on each GPU: see [`VmGpu::resize_frames`](crate::VmGpu::resize_frames).
        /// Addresses and 16 bytes a frame are taken for all of it, memory for [`frame_memory`](Self::frame_memory) alone, in handles of 2 MiB
        /// (64 KiB on a simulated GPU) or one page if that is larger. When a buffer finds no memory the frames give some, down to
        /// [`frame_minimum`](Self::frame_minimum). It is for frames that no RDMA NIC reaches. Default: the number of frames stays as it is.
        frame_capacity(bytes: u64) => settings.frame_capacity = Some(bytes);

        /// With [`frame_capacity`](Self::frame_capacity): bytes of frames that stay when buffers find no memory. Default: an eighth of
        /// [`frame_memory`](Self::frame_memory).
        frame_minimum(bytes: u64) => settings.frame_minimum = Some(bytes);

        /// With [`frame_capacity`](Self::frame_capacity): when memory is short those of low priority give it first, frames as elastic buffers
        /// ([`ElasticBuilder::priority`](crate::ElasticBuilder::priority)). It can be changed
        /// ([`VmGpu::set_frame_priority`](crate::VmGpu::set_frame_priority)). Default: 0.
        frame_priority(priority: i32) => settings.frame_priority = priority;

        /// With [`frame_capacity`](Self::frame_capacity): has the frames follow the free memory of the GPU. Where less
        /// than `bytes` bytes are free they give memory to the driver, down to [`frame_minimum`](Self::frame_minimum), after what gives way
        /// before them. Where more are free and pages leave their frames, they grow by an eighth each time. A thread of the host looks 50 times
        /// a second. Default: nothing looks.
        frames_leave_free(bytes: u64) => settings.frames_leave_free = Some(bytes);
    }

    /// Borrows memory of the neighbour GPU `ordinal`, this many bytes or what is free there ([`Loan`]), in whole chunks of 16 MiB, as a place
    /// between frames and homes. Pages that launches look up ([`Placement::LookUp`](crate::Placement)) and that find no free frame are copied there
    /// between launches, and read there in place by launches that only read their region. Of a region whose placement is `Fetch` a clean page that leaves
    /// its frame is copied there, and fetched from there when it is used again. Nothing is lost with that memory, which
    /// [`VmGpu::give_back_borrowed`](crate::VmGpu::give_back_borrowed) returns at any time. For several neighbours it may be called several times; with
    /// several GPUs each of them borrows that of each of the others. It is for the transport [`Direct`](Transport::Direct), which
    /// [`Auto`](Transport::Auto) is beside it, and for regions that keep no frames of their own.
    pub fn borrow_from(mut self, ordinal: u32, loan: impl Into<Loan>) -> Self {
        self.settings.borrowed.push((ordinal, loan.into()));
        self
    }

    stored! {
        /// Bytes of a chunk of borrowed memory, a power of two: for tests, which want chunks that are soon full.
        #[doc(hidden)]
        borrowed_chunk(bytes: u64) => settings.borrowed_chunk = bytes;

        /// How this process shares its GPUs' memory with other processes. Default: [`Tenancy::of_environment`].
        tenancy(tenancy: Tenancy) => settings.tenancy = tenancy;

        /// Has this virtual memory write a [`Timeline`], of which a path alone is one, too: each launch, single faults with their steps, evictions,
        /// write-backs, doorbells and what the host does, for Perfetto. Its kernels are compiled to note what they do. Default:
        /// [`Timeline::of_environment`].
        ///
        /// ```
        /// use gpuvm::{Timeline, Vm};
        /// # fn main() -> Result<(), gpuvm::Error> {
        /// # let folder = std::env::temp_dir().join("%p.timeline.json");
        /// let vm = Vm::builder().timeline(Timeline::to(folder).one_in(16)).build()?;
        /// # Ok(()) }
        /// ```
        timeline(timeline: impl Into<Timeline>) => settings.timeline = Some(timeline.into());

        /// Keeps files out of memory but for this many bytes of each GPU's: regions over files ([`RegionBuilder::map_file`](crate::RegionBuilder::map_file),
        /// [`map_file_mut`](crate::RegionBuilder::map_file_mut)) are then read and written as kernels need them, by io_uring and O_DIRECT where those
        /// are available, and may be larger than host memory. What is asked for often stays in this memory. It is for the software NIC, which
        /// [`Auto`](Transport::Auto) is then, and takes 64 pages at least. Default: files are mapped, and the system keeps them in memory.
        file_cache(bytes: u64) => settings.file_cache = Some(FileCache { bytes, on_gpu: false });

        /// As [`file_cache`](Self::file_cache), in the GPU's own memory: blocks of files come there past the host's, by GPUDirect Storage (the
        /// library cuFile, which is loaded then), a page at a time. Where the kernel has no module nvidia-fs for that, cuFile brings them by way of
        /// the host, and host memory is the better choice. Storage of the caller's own making and a file's last bytes go by way of the host.
        file_cache_on_gpu(bytes: u64) => settings.file_cache = Some(FileCache { bytes, on_gpu: true });

        /// What accesses to regions that say nothing of it ([`RegionBuilder::placement`](crate::RegionBuilder::placement)) do with a page that
        /// has no frame. Kernels are compiled first in the form that such regions need. Default: [`Placement::LookUp`] where GPU threads reach the
        /// region's home by loads, [`Placement::Fetch`] elsewhere.
        placement(placement: Placement) => settings.placement = Some(placement);

        /// Whether pages of arrays that a launch looks up and only reads come to free frames while it runs. Default: on NVIDIA GPUs.
        bring_beside(bring: bool) => settings.bring_beside = Some(bring);

        /// Page size in bytes, a power of two from 4 KiB to 2 MiB. Default: 4 KiB.
        page_size(bytes: u64) => settings.page_size = bytes;

        /// Has rewritten kernels find regions at their homes' own addresses: a home lies in this range, and begins at a page of it. The range begins
        /// and ends at multiples of 4 GiB.
        #[doc(hidden)]
        window_over(addresses: Range<u64>) => settings.window = Some(addresses);

        /// How the runtime's own kernels are compiled, for tests that change the device library.
        #[doc(hidden)]
        support_options(options: CompileOptions) => settings.support_options = options;

        /// A folder of modules that were compiled before, by the same version of this crate: for the simulated GPU by
        /// [`precompile_into`](Self::precompile_into), for NVIDIA GPUs by a [`precompiler`](Self::precompiler). What is found there needs no
        /// compiler on this machine; a folder that is not there is an error. Seeded runs compile anew. Default: none.
        precompiled(dir: impl Into<PathBuf>) => settings.precompiled = Some(Precompiled::In(dir.into()));

        /// Where a simulated GPU runs the kernels: puts each module that is compiled, the runtime's own among them, into this folder, for
        /// [`precompiled`](Self::precompiled). What a module is compiled with depends on the transport, on
        /// [`reliable_regions`](Self::reliable_regions), and on whether there is a [`frame_capacity`](Self::frame_capacity), a
        /// [`borrow_from`](Self::borrow_from) and a [`timeline`](Self::timeline).
        precompile_into(dir: impl Into<PathBuf>) => settings.precompiled = Some(Precompiled::Into(dir.into()));

        /// Longest that a lane waits for one frame, completion or ring slot before it reports a fault. Default: 10 s.
        wait_limit(limit: Duration) => settings.wait_limit = limit;

        /// Longest that a launch may run unless its configuration says otherwise. Default: 10 minutes.
        launch_deadline(limit: Duration) => settings.launch_deadline = limit;

        /// Regions that may live at one time, 1 to 65536. GPU memory for what is said of them is taken as they come. Default: 65536.
        regions_max(count: u32) => settings.regions_max = count;

        /// Compiles kernels with what regions with checksums or replicas need, at the price of registers; so it is with several
        /// [`host_homes`](Queues::host_homes) in any case. With it, memory nodes that were lost and serve again are taken back:
        /// see [`Vm::catch_up`]. Default: false.
        reliable_regions(reliable: bool) => settings.reliable = reliable;
    }

    /// What was asked for of any GPU and transport.
    #[cfg(test)]
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The GPUs that were asked for.
    pub fn gpus_asked(&self) -> &[Gpu] {
        &self.gpus
    }

    /// What compiles kernels for NVIDIA GPUs of a compute capability, 90 for 9.0, and of higher minor ones, into a folder for
    /// [`precompiled`](Self::precompiled), on a machine that has NVRTC and needs no GPU. The kernels are those of the transport `direct`; besides, what they are
    /// depends on [`reliable_regions`](Self::reliable_regions), and on whether there is a [`frame_capacity`](Self::frame_capacity), a
    /// [`borrow_from`](Self::borrow_from) and a [`timeline`](Self::timeline).
    pub fn precompiler(self, dir: impl Into<PathBuf>, architecture: u32) -> Precompiler {
        Precompiler::new(self.settings, dir.into(), architecture)
    }

    /// The transport that was asked for.
    pub fn transport_asked(&self) -> &Transport {
        &self.transport
    }

    /// Brings the virtual memory up.
    ///
    /// # Errors
    /// [`Error::Setting`](crate::Error::Setting) for a setting that cannot be, [`Error::Unavailable`](crate::Error::Unavailable)
    /// for a GPU or transport that this machine or this build cannot drive, [`Error::Gpu`](crate::Error::Gpu) when memory is
    /// short or no C++ compiler is there, [`Error::Nic`](crate::Error::Nic), [`Error::Node`](crate::Error::Node).
    /// Where other processes share the GPU, [`Error::Terms`](crate::Error::Terms) for a variable that means nothing, and
    /// [`Error::Tenants`](crate::Error::Tenants) when they keep the memory that frames need.
    /// [`Error::Timeline`](crate::Error::Timeline) for a timeline's file that cannot be written.
    pub fn build(mut self) -> Result<Vm> {
        self.settings.check()?;
        self.transport.check()?;
        if self.settings.timeline.is_none() {
            self.settings.timeline = Timeline::of_environment()?;
        }
        // Before anything takes long.
        let sheet = self.settings.timeline.as_ref().map(Timeline::open).transpose()?;
        if self.gpus.is_empty() {
            return refuse("GPUs", "an empty list".into(), "at least one GPU is required");
        }
        let opened = self.gpus.iter().map(|gpu| self.open(gpu)).collect::<Result<Vec<_>>>()?;
        let mut settings = self.settings;
        settings.reliable |= opened.iter().any(|(plan, _)| plan.host_homes > 1);
        Vm::bring_up(settings, opened, sheet.as_ref())
    }

    /// Opens one of the GPUs, and what moves its pages.
    fn open(&self, gpu: &Gpu) -> Result<(QueuePlan, Machines)> {
        gpu.check()?;
        let (device, nodes) = self.meet(gpu)?;
        let hardware = device.as_deref().is_some_and(is_hardware);
        let chosen = match &self.transport {
            // It is the one that has borrowed memory.
            Transport::Auto(_) if !self.settings.borrowed.is_empty() => Transport::Direct.choose(hardware, false),
            Transport::Auto(queues) if self.settings.file_cache.is_some() => {
                Transport::from(Soft::new().queues(*queues)).choose(hardware, false)
            }
            asked => asked.choose(hardware, rdma::lead_over_mlx5(&nodes)),
        };
        chosen.check_beside(gpu, hardware)?;
        if let (Some(FileCache { bytes, .. }), false) = (self.settings.file_cache, chosen.kind() == TransportKind::Soft)
        {
            let reason = match &self.transport {
                Transport::Auto(_) => {
                    "borrowed memory needs the transport direct, and a file cache needs the software NIC (transport soft); leave one of the two out"
                        .to_owned()
                }
                asked => format!("a file cache needs the software NIC (transport soft): leave the transport {} out", asked.name()),
            };
            return refuse("file_cache", format!("{bytes} bytes"), reason);
        }
        let mut plan = chosen.queue_plan();
        if let transport::Chosen::Soft(soft) = &chosen {
            soft.check_for(&self.settings, self.gpus.len())?;
            plan.usual = soft.usual_pairs(hardware).unwrap_or(plan.usual);
        }
        if self.settings.file_cache.is_some() {
            plan.usual = PAIRS_WITH_FILE_CACHE;
        }
        // Before a simulated GPU, whose start takes longer than a refusal.
        let rxe = chosen.open_rxe(&nodes)?;
        let device = match device {
            Some(device) => device,
            None => {
                let mut simulated = gpu.simulated();
                let lenders = self.settings.borrowed.iter().map(|(ordinal, _)| *ordinal);
                simulated.unless_said(lenders.max().unwrap_or(0));
                simulated.start(&self.settings, &plan, nodes.len(), chosen.kind())?
            }
        };
        let nics = match rxe {
            Some(nic) => TransportNics::Rxe(nic),
            None => chosen.open(&device, &nodes, &plan)?,
        };
        let gpu = device;
        Ok((plan, Machines { gpu, nics, nodes }))
    }

    /// Opens the GPU and joins the memory nodes. Each is asked as early as what it refuses can be known.
    fn meet(&self, gpu: &Gpu) -> Result<Met> {
        let precompiled = match &self.settings.precompiled {
            Some(Precompiled::In(dir)) => Some(dir.as_path()),
            _ => None,
        };
        if let (Gpu::Auto, Transport::Rdma(_)) = (gpu, &self.transport) {
            // An NVIDIA GPU pages over a ConnectX alone.
            let nodes = self.transport.join_nodes()?;
            let device = gpu.open(!rdma::lead_over_mlx5(&nodes), precompiled)?;
            return Ok((device, nodes));
        }
        // Before a node or a NIC is asked for what the GPU cannot use.
        let device = gpu.open(self.transport.is_of_the_simulated_gpu(), precompiled)?;
        if device.as_deref().is_some_and(is_hardware) && matches!(self.transport, Transport::Rxe(_)) {
            let reason = "an NVIDIA GPU cannot reach the SoftRoCE driver's rings; use --transport direct, or --gpu sim";
            return refuse("transport", TransportKind::Rxe.to_string(), reason);
        }
        Ok((device, self.transport.join_nodes()?))
    }
}

/// The GPU to drive, none for a simulated one that is to be started, and the memory nodes.
type Met = (Option<Arc<dyn Device>>, Vec<Arc<NodeClient>>);
