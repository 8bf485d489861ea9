//! What a virtual memory is to be.

use std::{ffi::c_char, path::PathBuf};

use bytemuck::{Pod, Zeroable};
use gpuvm::{
    Gpu, Loan, MemoryNodes, Mlx5, QueueMaking, Queues, Rdma, RdmaPath, Retransmission, Rxe, SimulatedGpu, Soft,
    Tenancy, Timeline, Transport, Vm, VmBuilder, tenants::Terms,
};

use crate::{
    code::{Failure, Result},
    raw::{self, Growing},
};

/// Memory of a neighbour GPU as a place between frames and homes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_loan {
    /// Bytes; 0: what is free there.
    pub bytes: u64,
    /// The neighbour GPU.
    pub ordinal: u32,
    /// 0.
    pub reserved: u32,
}

/// What RDMA devices do: of the transports `rxe`, `mlx5` and of memory nodes. A field that is 0 has its default.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable, Pod)]
pub struct gpuvm_rdma_options {
    /// How often a request that was not answered is sent again, 1 to 6; 7 is for ever. 0: 6.
    pub retries: u32,
    /// How long an answer may take: 4.096 us doubled this many times, 1 to 31. 0: 14.
    pub ack_timeout: u32,
    /// `mlx5`: the port. 0: 1.
    pub port: u32,
    /// `mlx5`: one more than the index of the port's GID. 0: a RoCE v2 one.
    pub gid_index_plus_1: u32,
    /// `mlx5`: most bytes of a packet's data. 0: what the port has.
    pub mtu: u32,
    /// `mlx5`: service level, 0 to 15.
    pub service_level: u32,
    /// `mlx5`: traffic class, 0 to 255.
    pub traffic_class: u32,
    /// `mlx5`: not 0 for queues that are made by DevX.
    pub devx: u32,
}

/// How a process shares a GPU's memory with others.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum gpuvm_tenancy {
    /// As `GPUVM_MEMORY_LIMIT`, `GPUVM_MEMORY_MIN` and `GPUVM_PRIORITY` say.
    Environment = 0,
    /// It asks nobody, and nobody asks it.
    None = 1,
    /// As the options say.
    Terms = 2,
}

/// What a virtual memory is to be. Set `size`; every field that is 0 or NULL has its default, so begin with
/// `gpuvm_vm_options options = {.size = sizeof options};`. Texts and lists need to stay until `gpuvm_vm_new` returns.
#[repr(C)]
#[derive(Debug, Clone, Copy, Zeroable)]
pub struct gpuvm_vm_options {
    /// `sizeof(gpuvm_vm_options)`.
    pub size: u64,
    /// `gpu_count` names: `auto`, `sim`, `cuda:N` or `cuda:GPU-UUID`.
    pub gpus: *const *const c_char,
    /// 0: one, `auto`, which is the first NVIDIA GPU, or the simulated one where there is none.
    pub gpu_count: u64,
    /// `auto`, `direct`, `soft`, `rxe` or `mlx5`. NULL: `auto`, which is `direct` on an NVIDIA GPU and `soft` on the simulated one; with memory
    /// nodes whichever leads there.
    pub transport: *const c_char,
    /// `nic_count` devices: one of `rxe`, any of `mlx5`. NULL: the first, or the nearest.
    pub nics: *const *const c_char,
    /// Names in `nics`.
    pub nic_count: u64,
    /// `memory_node_count` addresses of memory nodes, `host:port` each.
    pub memory_nodes: *const *const c_char,
    /// 0: pages live in this host's memory.
    pub memory_node_count: u64,
    /// The secret of the memory nodes, or NULL.
    pub memory_node_secret: *const c_char,
    /// Longest step with a memory node in nanoseconds. 0: 10 s.
    pub memory_node_timeout_ns: u64,
    /// `loan_count` loans of neighbour GPUs.
    pub loans: *const gpuvm_loan,
    /// 0: nothing is borrowed.
    pub loan_count: u64,
    /// Bytes of frames. 0: 64 MiB.
    pub frame_memory: u64,
    /// Most bytes of frames, where their number is to change. 0: it stays as it is.
    pub frame_capacity: u64,
    /// Bytes of frames that stay when buffers find no memory. 0: an eighth of `frame_memory`.
    pub frame_minimum: u64,
    /// Bytes of the GPU's memory that are to be free, whoever uses it: where fewer are, frames give memory to the driver, down to
    /// `frame_minimum`; where more are and pages leave their frames, they grow. With `frame_capacity`. 0: nobody looks.
    pub frames_leave_free: u64,
    /// Bytes of host memory by way of which files are read and written as kernels need them: for files larger than memory. 0: files are
    /// mapped.
    pub file_memory: u64,
    /// Bytes of a page, a power of two from 4 KiB to 2 MiB. 0: 4 KiB.
    pub page_size: u64,
    /// Longest wait of a lane in nanoseconds. 0: 10 s.
    pub wait_limit_ns: u64,
    /// Longest launch in nanoseconds. 0: 10 minutes.
    pub launch_deadline_ns: u64,
    /// With `frame_capacity`: when memory is short frames and elastic buffers of low priority give it first.
    pub frame_priority: i32,
    /// Regions that may live at one time. 0: 256.
    pub regions_max: u32,
    /// Not 0: regions may have replicas and checksums.
    pub guarded_regions: u32,
    /// Queue pairs of each home and NIC. 0: as many as the transport takes.
    pub queue_pairs: u32,
    /// Requests of a queue pair, a power of two. 0: 256.
    pub queue_depth: u32,
    /// Homes in this host's memory, 1 or 2. 0: 1.
    pub host_homes: u32,
    /// Engine threads of the software NIC. 0: 1.
    pub soft_engines: u32,
    /// Not 0: each READ is followed by a read of its frame. `soft` and `mlx5`.
    pub flush_reads: u32,
    /// Not 0: all completions of a queue pair come to one entry. `soft`.
    pub collapsed_completions: u32,
    /// `gpuvm_tenancy`.
    pub tenancy: u32,
    /// With `GPUVM_TENANCY_TERMS`: bytes that the process keeps whoever asks.
    pub tenancy_minimum: u64,
    /// With `GPUVM_TENANCY_TERMS`: bytes that it holds at most. 0: no limit.
    pub tenancy_limit: u64,
    /// With `GPUVM_TENANCY_TERMS`: -100 to 100.
    pub tenancy_priority: i32,
    /// Simulated GPU: worker threads. 0: one a core.
    pub sim_workers: u32,
    /// The registry's folder, or NULL for the user's.
    pub tenancy_folder: *const c_char,
    /// Simulated GPU: bytes of its memory. 0: frames and bookkeeping plus 1 GiB.
    pub sim_memory: u64,
    /// Simulated GPU: the seed that it follows, if `sim_seeded`.
    pub sim_seed: u64,
    /// Simulated GPU: the name under which it is shared with other processes, or NULL.
    pub sim_shared_as: *const c_char,
    /// Simulated GPU: not 0 to follow `sim_seed`.
    pub sim_seeded: u32,
    /// Simulated GPU: lanes of a worker. 0: 256.
    pub sim_lanes: u32,
    /// Simulated GPU: neighbours. 0: as many as lend.
    pub sim_neighbours: u32,
    /// Simulated GPU: not 0 for launches that wait for room as on hardware, so that one which waits for a launch behind it waits for ever.
    /// 0: each finds room for a block on each worker.
    pub sim_waits_for_room: u32,
    /// Simulated GPU: a folder of modules that were compiled before by the same version of the library, or NULL. What is found there needs no
    /// compiler on this machine; with `sim_seeded` all is compiled anew.
    pub sim_precompiled: *const c_char,
    /// Simulated GPU: a folder that gets each module which is compiled, for `sim_precompiled`, or NULL. What a module is compiled with depends
    /// on the transport and on `guarded_regions`.
    pub sim_precompile_into: *const c_char,
    /// What RDMA devices do.
    pub rdma: gpuvm_rdma_options,
    /// The file of a timeline, which Perfetto opens, or NULL: that of `GPUVM_TRACE`, if it is set. `%p` in it becomes the number of the process.
    pub timeline: *const c_char,
    /// With `timeline`: most bytes of the file. 0: 256 MiB.
    pub timeline_file_bytes: u64,
    /// With `timeline`: events that have room in GPU memory before the host has read them. 0: 65,536.
    pub timeline_ring_events: u64,
    /// With `timeline`: one of so many faults, evictions and so on is noted. 0: 64. 1: all.
    pub timeline_one_in: u32,
    /// 1: `file_memory` is the GPU's own, which blocks of files reach past the host's memory by GPUDirect Storage. 0: it is the host's.
    pub file_memory_on_gpu: u32,
}

impl Growing for gpuvm_vm_options {
    const NAME: &'static str = "gpuvm_vm_options";
}

/// A number that is not 0 changes a setting.
fn unless_zero<T, N: PartialEq + Default>(settings: T, number: N, change: impl FnOnce(T, N) -> T) -> T {
    match number == N::default() {
        true => settings,
        false => change(settings, number),
    }
}

/// A number of C's that has to fit into fewer bits.
fn narrow<N: TryFrom<u32>>(what: &'static str, number: u32) -> Result<N> {
    N::try_from(number).map_err(|_| Failure::value(what, number, "it is too large"))
}

impl gpuvm_rdma_options {
    fn retransmission(&self) -> Result<Retransmission> {
        let again = unless_zero(
            Retransmission::new(),
            narrow("rdma.retries", self.retries)?,
            Retransmission::retries,
        );
        let code = narrow("rdma.ack_timeout", self.ack_timeout)?;
        Ok(unless_zero(again, code, Retransmission::ack_timeout))
    }

    fn path(&self) -> Result<RdmaPath> {
        let set = |number: u32| (number != 0).then_some(number);
        let path = RdmaPath::default();
        let gid = set(self.gid_index_plus_1).map(|number| narrow("rdma.gid_index_plus_1", number - 1));
        Ok(RdmaPath {
            port: set(self.port).map_or(Ok(path.port), |port| narrow("rdma.port", port))?,
            gid_index: gid.transpose()?,
            mtu: set(self.mtu),
            service_level: narrow("rdma.service_level", self.service_level)?,
            traffic_class: narrow("rdma.traffic_class", self.traffic_class)?,
        })
    }
}

impl gpuvm_vm_options {
    /// The builder that they describe.
    ///
    /// # Errors
    /// [`Failure`] for what is no text, or a name or a number that cannot be. What does not fit together is found when it builds.
    pub(crate) fn builder(&self) -> Result<VmBuilder> {
        let builder = Vm::builder();
        let builder = unless_zero(builder, self.frame_memory, VmBuilder::frame_memory);
        let builder = unless_zero(builder, self.frame_capacity, VmBuilder::frame_capacity);
        let builder = unless_zero(builder, self.frame_minimum, VmBuilder::frame_minimum);
        let builder = unless_zero(builder, self.frames_leave_free, VmBuilder::frames_leave_free);
        let before_files = match self.file_memory_on_gpu {
            0 => VmBuilder::file_memory,
            1 if self.file_memory > 0 => VmBuilder::file_memory_on_gpu,
            other => {
                let reason = "it may be 0, or 1 beside file_memory, which says how many bytes";
                return Err(Failure::value("file_memory_on_gpu", other, reason));
            }
        };
        let builder = unless_zero(builder, self.file_memory, before_files);
        let builder = unless_zero(builder, self.page_size, VmBuilder::page_size);
        let builder = unless_zero(builder, self.regions_max, VmBuilder::regions_max);
        let builder = builder
            .frame_priority(self.frame_priority)
            .guarded_regions(self.guarded_regions != 0)
            .tenancy(self.tenancy()?)
            .transport(self.transport()?);
        let from = raw::optional_text("sim_precompiled", self.sim_precompiled)?;
        let into = raw::optional_text("sim_precompile_into", self.sim_precompile_into)?;
        let builder = match (from, into) {
            (None, None) => builder,
            (Some(from), None) => builder.precompiled(from),
            (None, Some(into)) => builder.precompile_into(into),
            (Some(_), Some(into)) => {
                let reason = "modules come from sim_precompiled, and none is compiled: leave one of the two NULL";
                return Err(Failure::value("sim_precompile_into", into, reason));
            }
        };
        let builder = match raw::time(self.wait_limit_ns) {
            Some(limit) => builder.wait_limit(limit),
            None => builder,
        };
        let builder = match raw::time(self.launch_deadline_ns) {
            Some(limit) => builder.launch_deadline(limit),
            None => builder,
        };
        let builder = match self.timeline()? {
            Some(timeline) => builder.timeline(timeline),
            None => builder,
        };
        let loans = raw::list("loans", self.loans, self.loan_count)?;
        loans
            .iter()
            .try_for_each(|loan| raw::unused("reserved of a loan", loan.reserved))?;
        let builder = loans.iter().fold(builder, |builder, loan| match loan.bytes {
            0 => builder.borrow_from(loan.ordinal, Loan::Auto),
            bytes => builder.borrow_from(loan.ordinal, bytes),
        });
        match self.gpu_count {
            0 => Ok(builder.gpu(self.gpu()?)),
            _ => Ok(builder.gpus(self.gpus()?)),
        }
    }

    fn gpus(&self) -> Result<Vec<Gpu>> {
        let names = raw::texts("gpus", self.gpus, self.gpu_count)?;
        let gpu = |name: &str| match name.parse()? {
            Gpu::Simulated(_) => Ok(Gpu::Simulated(self.simulated()?)),
            gpu => Ok(gpu),
        };
        let gpus: Vec<Gpu> = names.iter().copied().map(gpu).collect::<Result<_>>()?;
        if self.says_of_simulated() && !gpus.iter().any(|gpu| matches!(gpu, Gpu::Simulated(_))) {
            let reason = "settings that begin with `sim_` are those of simulated GPUs; name `sim`, or leave them 0";
            return Err(Failure::value("gpus", names.join(", "), reason));
        }
        Ok(gpus)
    }

    /// Where no GPU was named: the simulated one has a seed or a name, and others do not.
    fn gpu(&self) -> Result<Gpu> {
        match self.says_of_simulated() {
            true => Ok(Gpu::Simulated(self.simulated()?)),
            false => Ok(Gpu::Auto),
        }
    }

    /// Whether a setting of simulated GPUs is set.
    fn says_of_simulated(&self) -> bool {
        let numbers = [
            self.sim_workers,
            self.sim_lanes,
            self.sim_neighbours,
            self.sim_seeded,
            self.sim_waits_for_room,
        ];
        let texts = [self.sim_shared_as, self.sim_precompiled, self.sim_precompile_into];
        numbers.iter().any(|number| *number != 0) || self.sim_memory != 0 || texts.iter().any(|text| !text.is_null())
    }

    fn simulated(&self) -> Result<SimulatedGpu> {
        let gpu = unless_zero(SimulatedGpu::new(), self.sim_workers, SimulatedGpu::workers);
        let gpu = unless_zero(gpu, self.sim_lanes, SimulatedGpu::lanes_per_worker);
        let gpu = unless_zero(gpu, self.sim_memory, SimulatedGpu::memory);
        let gpu = unless_zero(gpu, self.sim_neighbours, SimulatedGpu::neighbours);
        let gpu = gpu.room_for_all(self.sim_waits_for_room == 0);
        let gpu = match raw::optional_text("sim_shared_as", self.sim_shared_as)? {
            Some(name) => gpu.shared_as(name),
            None => gpu,
        };
        Ok(match self.sim_seeded {
            0 => gpu,
            _ => gpu.seed(self.sim_seed),
        })
    }

    fn timeline(&self) -> Result<Option<Timeline>> {
        let numbers = [
            ("timeline_file_bytes", self.timeline_file_bytes),
            ("timeline_ring_events", self.timeline_ring_events),
            ("timeline_one_in", self.timeline_one_in.into()),
        ];
        let Some(path) = raw::optional_text("timeline", self.timeline)? else {
            let Some((what, number)) = numbers.into_iter().find(|(_, number)| *number != 0) else {
                return Ok(None);
            };
            return Err(Failure::value(
                what,
                number,
                "it is of a timeline: name its file in `timeline`",
            ));
        };
        let timeline = Timeline::to(path);
        let timeline = unless_zero(timeline, self.timeline_file_bytes, Timeline::file_bytes);
        let timeline = unless_zero(timeline, self.timeline_ring_events, Timeline::ring_events);
        Ok(Some(unless_zero(timeline, self.timeline_one_in, Timeline::one_in)))
    }

    fn queues(&self) -> Queues {
        let queues = unless_zero(Queues::new(), self.queue_pairs, Queues::pairs);
        let queues = unless_zero(queues, self.queue_depth, Queues::depth);
        unless_zero(queues, self.host_homes, Queues::host_homes)
    }

    fn nodes(&self) -> Result<Option<MemoryNodes>> {
        if self.memory_node_count == 0 {
            return Ok(None);
        }
        let nodes = MemoryNodes::at(raw::texts("memory_nodes", self.memory_nodes, self.memory_node_count)?);
        let nodes = match raw::optional_text("memory_node_secret", self.memory_node_secret)? {
            Some(secret) => nodes.secret(secret),
            None => nodes,
        };
        Ok(Some(match raw::time(self.memory_node_timeout_ns) {
            Some(limit) => nodes.timeout(limit),
            None => nodes,
        }))
    }

    fn transport(&self) -> Result<Transport> {
        let asked: Transport = raw::optional_text("transport", self.transport)?
            .unwrap_or("auto")
            .parse()?;
        let (queues, nodes, again) = (self.queues(), self.nodes()?, self.rdma.retransmission()?);
        let nics = raw::texts("nics", self.nics, self.nic_count)?;
        self.check_beside(&asked, nodes.is_some())?;
        Ok(match (asked, nodes) {
            (Transport::Auto(_), Some(nodes)) => Rdma::to(nodes).queues(queues).retransmission(again).into(),
            (Transport::Rxe(_), nodes) => {
                let [name] = nics[..] else {
                    return match nics.len() {
                        0 => Ok(Self::with_nodes(Rxe::new().queues(queues).retransmission(again), nodes)),
                        count => Err(Failure::value("nic_count", count, "the transport rxe has one device")),
                    };
                };
                Self::with_nodes(Rxe::new().device(name).queues(queues).retransmission(again), nodes)
            }
            (Transport::Mlx5(_), nodes) => self.mlx5(nics, nodes)?.into(),
            (asked, Some(_)) => {
                let reason = "memory nodes are reached over rxe, mlx5 or auto";
                return Err(Failure::value("transport", asked.name(), reason));
            }
            (Transport::Soft(_), None) => {
                let soft = unless_zero(Soft::new(), self.soft_engines as usize, Soft::engines).queues(queues);
                let soft = soft.flush_reads(self.flush_reads != 0);
                soft.collapsed_completions(self.collapsed_completions != 0).into()
            }
            (asked, None) => asked.with_queues(queues),
        })
    }

    /// Refuses settings that the transport does not have.
    fn check_beside(&self, asked: &Transport, has_nodes: bool) -> Result<()> {
        let (soft, mlx5) = (matches!(asked, Transport::Soft(_)), matches!(asked, Transport::Mlx5(_)));
        let rxe = matches!(asked, Transport::Rxe(_));
        let path = bytemuck::bytes_of(&self.rdma).iter().any(|byte| *byte != 0);
        let foreign = [
            (self.nic_count != 0 && !(rxe || mlx5), "nics", "rxe and mlx5 have"),
            (self.soft_engines != 0 && !soft, "soft_engines", "soft has"),
            (
                self.collapsed_completions != 0 && !soft,
                "collapsed_completions",
                "soft has",
            ),
            (
                self.flush_reads != 0 && !(soft || mlx5),
                "flush_reads",
                "soft and mlx5 have",
            ),
            (
                path && !(rxe || mlx5 || has_nodes),
                "rdma",
                "rxe, mlx5 and memory nodes have",
            ),
        ];
        match foreign.into_iter().find(|(set, ..)| *set) {
            Some((_, what, whose)) => {
                let reason = format!("{whose} it, the transport {} has not", asked.name());
                Err(Failure::value(what, "set", reason))
            }
            None => Ok(()),
        }
    }

    fn with_nodes(rxe: Rxe, nodes: Option<MemoryNodes>) -> Transport {
        match nodes {
            Some(nodes) => rxe.memory_nodes(nodes).into(),
            None => rxe.into(),
        }
    }

    fn mlx5(&self, nics: Vec<&str>, nodes: Option<MemoryNodes>) -> Result<Mlx5> {
        let mlx5 = match self.rdma.devx {
            0 => Mlx5::new(),
            _ => Mlx5::new().queue_making(QueueMaking::Devx),
        };
        let mlx5 = mlx5
            .devices(nics)
            .path(self.rdma.path()?)
            .queues(self.queues())
            .retransmission(self.rdma.retransmission()?)
            .flush_reads(self.flush_reads != 0);
        Ok(match nodes {
            Some(nodes) => mlx5.memory_nodes(nodes),
            None => mlx5,
        })
    }

    fn tenancy(&self) -> Result<Tenancy> {
        const ENVIRONMENT: u32 = gpuvm_tenancy::Environment as u32;
        const NONE: u32 = gpuvm_tenancy::None as u32;
        const TERMS: u32 = gpuvm_tenancy::Terms as u32;
        let tenancy = match self.tenancy {
            ENVIRONMENT => Tenancy::of_environment(),
            NONE => Tenancy::none(),
            TERMS => {
                let limit = (self.tenancy_limit != 0).then_some(self.tenancy_limit);
                let priority = i8::try_from(self.tenancy_priority);
                let refused = |reason: String| Failure::value("tenancy_priority", self.tenancy_priority, reason);
                let priority = priority.map_err(|_| refused("it is from -100 to 100".into()))?;
                let terms = Terms::new(self.tenancy_minimum, limit, priority);
                Tenancy::of_environment()
                    .terms(terms.map_err(|error| Failure::Runtime(gpuvm::Error::Terms { source: error }))?)
            }
            other => return Err(Failure::value("tenancy", other, "there are values from 0 to 2")),
        };
        Ok(match raw::optional_text("tenancy_folder", self.tenancy_folder)? {
            Some(folder) => tenancy.folder(PathBuf::from(folder)),
            None => tenancy,
        })
    }
}
