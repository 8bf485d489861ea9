//! What only the software NIC has.

use std::sync::Arc;

use gpuvm_gpu::Gpu as Device;
use gpuvm_layouts as layout;
use gpuvm_nic::{NicLimits, SoftNic, soft::VirtualClock};

use crate::{
    error::{Doing, Error, Result},
    gpu::TransportNics,
    kernel_nic::KernelNic,
    mover::GpuMover,
    settings::{Gpu, QueuePlan, Queues, Settings, common::is_hardware, refuse},
    stored::stored,
};

/// Most multiprocessors of an engine that is a kernel, and warps that it has on each.
const BLOCKS_MAX: u32 = 4;
const WARPS: u32 = layout::NIC_ENGINE_THREADS / 32;
/// Fewest hardware queues beside which it runs: those of CUDA's default.
const CONNECTIONS_MIN: u32 = 8;

/// The software NIC: mlx5 work requests executed in this process. On an NVIDIA GPU its bytes are moved by the GPU's copy engines, and the
/// multiprocessors stay free.
#[derive(Clone)]
#[must_use]
pub struct Soft {
    pub(super) queues: Queues,
    pub(super) nics: Nics,
    pub(super) engine: NicEngine,
    pub(super) limits: Option<NicLimits>,
    pub(super) flush_reads: bool,
    pub(super) collapsed_completions: bool,
}

/// What executes the software NIC's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NicEngine {
    /// Threads of the processor; beside an NVIDIA GPU its copy engines move the bytes.
    #[default]
    Cpu,
    /// A kernel on this many multiprocessors of the GPU, 1 to 4.
    Gpu(u32),
}

impl std::fmt::Display for NicEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu(blocks) => write!(f, "gpu:{blocks}"),
        }
    }
}

impl std::str::FromStr for NicEngine {
    type Err = Error;

    /// `cpu`, or `gpu:N` with N multiprocessors.
    fn from_str(text: &str) -> Result<Self> {
        let blocks = text.strip_prefix("gpu:").and_then(|blocks| blocks.parse().ok());
        match (text, blocks) {
            ("cpu", _) => Ok(Self::Cpu),
            (_, Some(blocks)) => Ok(Self::Gpu(blocks)),
            _ => refuse(
                "NIC engine",
                format!("`{text}`"),
                format!("expected cpu, or gpu:N with 1 to {BLOCKS_MAX} multiprocessors"),
            ),
        }
    }
}

/// What of the environment an engine that is a kernel cannot run beside on hardware: variable, value, reason.
fn obstacle(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String, &'static str)> {
    let blocking = "CUDA_LAUNCH_BLOCKING";
    let connections = "CUDA_DEVICE_MAX_CONNECTIONS";
    if let Some(value) = variable(blocking).filter(|value| !matches!(value.trim(), "" | "0")) {
        let reason = "the NIC engine on the GPU runs beside other kernels, and so no launch would return; unset it, or use the engine cpu";
        return Some((blocking, value, reason));
    }
    let few = |value: &String| value.trim().parse().is_ok_and(|count: u32| count < CONNECTIONS_MIN);
    let value = variable(connections).filter(few)?;
    let reason = "kernels that share a hardware queue with the NIC engine on the GPU would wait behind it for ever; set it to 8 at least, best 32";
    Some((connections, value, reason))
}

/// Which software NICs.
#[derive(Clone)]
pub(super) enum Nics {
    /// One that is started, as fast as it can be, with this many engine threads.
    Started { engines: usize },
    /// Those that are there.
    Given(Vec<Arc<SoftNic>>),
}

impl Default for Soft {
    fn default() -> Self {
        Self {
            queues: Queues::default(),
            nics: Nics::Started { engines: 1 },
            engine: NicEngine::Cpu,
            limits: None,
            flush_reads: false,
            collapsed_completions: false,
        }
    }
}

impl std::fmt::Debug for Soft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Soft")
            .field("queues", &self.queues)
            .field("nics", &self.count())
            .field("engine", &self.engine)
            .field("limits", &self.limits)
            .field("flush_reads", &self.flush_reads)
            .field("collapsed_completions", &self.collapsed_completions)
            .finish_non_exhaustive()
    }
}

impl Soft {
    /// One NIC with one engine thread.
    pub fn new() -> Self {
        Self::default()
    }

    stored! {
        /// The queue pairs. Default: [`Queues::new`], as many as the transport takes or its measured latency asks for.
        queues(queues: Queues) => queues = queues;

        /// Engine threads of the NIC that is started. Default: 1. Beside a GPU that follows a seed it has none: the seed steps it.
        engines(count: usize) => nics = Nics::Started { engines: count };
    }

    stored! {
        /// What executes the requests of the NIC that is started. Default: [`NicEngine::Cpu`]. A kernel serves one GPU, no files, and nothing that
        /// follows a seed.
        engine(engine: NicEngine) => engine = engine;
    }

    stored! {
        /// Limits that the NIC which is started keeps to, such as [`NicLimits::connectx7`]: a program waits for its pages as it would for those of such a
        /// NIC, never less long. Not with the engine [`NicEngine::Cpu`] beside an NVIDIA GPU, whose copy engines move the bytes in their own time; an
        /// engine on the GPU asks a thread of the host about each request then. Default: as fast as it can be.
        limits(limits: NicLimits) => limits = Some(limits);
    }

    /// A NIC of your own making, instead of one that is started: shaped, or with faults planted.
    pub fn nic(self, nic: Arc<SoftNic>) -> Self {
        self.nics([nic])
    }

    stored! {
        /// Several of them: each page belongs to one, as it would with several NICs of the machine.
        nics(nics: impl IntoIterator<Item = Arc<SoftNic>>) => nics = Nics::Given(nics.into_iter().collect());

        /// Follows each READ by a read of the frame behind a fence, and takes that one's completion for the READ's. So it is
        /// done anyway where kernels do not see a NIC's writes in their order; this asks for it everywhere. Default: false.
        flush_reads(always: bool) => flush_reads = always;

        /// Has the NIC write every completion of a queue pair over one entry, which all of its requests' lanes poll, instead of
        /// one entry a request. A request that fails may then be repeated over another queue pair, and the cause of a failure be
        /// lost behind it. On the simulated GPU alone. Default: false.
        collapsed_completions(collapsed: bool) => collapsed_completions = collapsed;
    }

    /// NICs.
    fn count(&self) -> usize {
        match &self.nics {
            Nics::Started { .. } => 1,
            Nics::Given(nics) => nics.len(),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.count() == 0 {
            return refuse("software NICs", "an empty list".into(), "at least one is required");
        }
        if let NicEngine::Gpu(blocks) = self.engine {
            let refused = |reason: &str| refuse("NIC engine", self.engine.to_string(), reason);
            match &self.nics {
                Nics::Given(_) => {
                    return refused("a NIC that you pass in has its own engine; leave one of the two out");
                }
                Nics::Started { engines } if *engines != 1 => {
                    return refused("an engine on the GPU uses no CPU threads; leave their number out");
                }
                Nics::Started { .. } if !(1..=BLOCKS_MAX).contains(&blocks) => {
                    return refused(&format!("it takes 1 to {BLOCKS_MAX} multiprocessors"));
                }
                Nics::Started { .. } => {}
            }
        }
        if let Some(limits) = &self.limits {
            if let Nics::Given(_) = &self.nics {
                let reason = "a NIC of your own has its limits; leave one of the two out";
                return refuse("NIC limits", limits.to_string(), reason);
            }
            self.queues
                .check_depth(&format!("a NIC of limits {limits}"), limits.send_queue_entries)?;
        }
        self.queues.check(self.count(), 0)
    }

    /// Whether its engine runs beside this.
    pub(super) fn check_beside(&self, gpu: &Gpu, hardware: bool) -> Result<()> {
        if hardware && self.collapsed_completions && self.engine == NicEngine::Cpu {
            let reason = "the software NIC's copies to a GPU of hardware follow no such order; leave it out";
            return refuse("collapsed completions", "true".into(), reason);
        }
        if let Some(limits) = &self.limits {
            let value = limits.to_string();
            if hardware && self.engine == NicEngine::Cpu {
                let reason = "beside an NVIDIA GPU its copy engines move the bytes, in their own time; leave them out, or use an engine on the GPU";
                return refuse("NIC limits", value, reason);
            }
            if self.engine != NicEngine::Cpu && limits.reads_per_queue_pair > layout::NIC_IN_FLIGHT {
                let reason = "an engine on the GPU has at most 64 requests of a queue pair in flight; ask for fewer READs, or use the engine cpu";
                return refuse("NIC limits", value, reason);
            }
        }
        if hardware
            && self.engine != NicEngine::Cpu
            && let Some((name, value, reason)) = obstacle(|name| std::env::var(name).ok())
        {
            return refuse(name, value, reason);
        }
        match (self.engine, gpu.seed()) {
            (NicEngine::Gpu(_), Some(seed)) => {
                let reason = "a NIC engine on the GPU does not support a seed; use the engine cpu";
                refuse("seed", seed, reason)
            }
            _ => Ok(()),
        }
    }

    /// Whether its engine serves a `Vm` of these settings.
    pub(super) fn check_for(&self, settings: &Settings, gpus: usize) -> Result<()> {
        if self.engine == NicEngine::Cpu {
            return Ok(());
        }
        let refused = |reason| refuse("NIC engine", self.engine.to_string(), reason);
        if gpus > 1 {
            return refused("an engine on the GPU supports a single GPU only; use one GPU, or the engine cpu");
        }
        if settings.file_cache.is_some() {
            return refused("a kernel cannot read files; leave the file cache out, or use the engine cpu");
        }
        if settings.frame_capacity.is_some() {
            return refused(
                "an engine on the GPU does not support a resizable frame pool; leave frame_capacity out, or use the engine cpu",
            );
        }
        Ok(())
    }

    /// Queue pairs of each home where nothing says: a warp for each, of a kernel that fills its multiprocessors.
    pub(super) fn usual_pairs(&self, hardware: bool) -> Option<u32> {
        match self.engine {
            NicEngine::Gpu(blocks) if hardware => Some(blocks * WARPS),
            _ => None,
        }
    }

    pub(super) fn plan(&self) -> QueuePlan {
        QueuePlan {
            flush_reads: self.flush_reads,
            collapsed: self.collapsed_completions,
            ..self.queues.plan()
        }
    }

    /// The NICs. Beside an NVIDIA GPU, its copy engines move their bytes.
    pub(super) fn open(&self, gpu: &Arc<dyn Device>, plan: &QueuePlan) -> Result<TransportNics> {
        match self.engine {
            NicEngine::Cpu => self.open_nics(gpu).map(TransportNics::Soft),
            NicEngine::Gpu(blocks) => {
                let pairs = plan.pairs.unwrap_or(plan.usual) * plan.host_homes;
                let nic = KernelNic::new(Arc::clone(gpu), blocks, pairs);
                let nic = nic.and_then(|nic| match self.limits {
                    Some(limits) => nic.limited(limits),
                    None => Ok(nic),
                });
                let nic = nic.doing(|| "starting the software NIC, its engine on the GPU".into())?;
                Ok(TransportNics::Kernel(Arc::new(nic)))
            }
        }
    }

    fn open_nics(&self, gpu: &Arc<dyn Device>) -> Result<Vec<Arc<SoftNic>>> {
        let hardware = is_hardware(&**gpu);
        let engines = match &self.nics {
            Nics::Given(nics) if hardware && nics.iter().any(|nic| !nic.has_mover()) => {
                let reason =
                    "the processor does not reach an NVIDIA GPU's memory; leave the NIC to the Vm, or use --gpu sim";
                return refuse("software NIC", "one without a mover".into(), reason);
            }
            Nics::Given(nics) => return Ok(nics.clone()),
            Nics::Started { engines } => *engines,
        };
        let builder = match self.limits {
            Some(limits) => SoftNic::builder().limits(limits),
            None => SoftNic::builder(),
        };
        let builder = match (hardware, gpu.capabilities().deterministic) {
            (true, _) => builder
                .engines(engines)
                .mover(Arc::new(GpuMover { gpu: Arc::clone(gpu) })),
            (false, true) => builder.engines(0).clock(Arc::new(VirtualClock::new(0))),
            (false, false) => builder.engines(engines),
        };
        let nic = builder.build().doing(|| "starting the software NIC".into())?;
        Ok(vec![Arc::new(nic)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_that_serialises_kernels_is_refused() {
        let found = |name: &'static str, value: &'static str| {
            let found = obstacle(|asked| (asked == name).then(|| value.to_owned()));
            found.map(|(name, value, _)| (name, value))
        };
        for (name, refused, taken) in [
            ("CUDA_LAUNCH_BLOCKING", ["1", "2"], ["0", ""]),
            ("CUDA_DEVICE_MAX_CONNECTIONS", ["1", "7"], ["8", "32"]),
        ] {
            for value in refused {
                assert_eq!(found(name, value), Some((name, value.to_owned())));
            }
            for value in taken {
                assert_eq!(found(name, value), None);
            }
        }
        assert_eq!(obstacle(|_| None), None);
    }
}
