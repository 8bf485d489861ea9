//! What only the software NIC has.

use std::sync::Arc;

use gpuvm_gpu::Gpu as Device;
use gpuvm_nic::{SoftNic, soft::VirtualClock};

use crate::{
    error::{Doing, Result},
    mover::GpuMover,
    settings::{QueuePlan, Queues, common::is_hardware, refuse},
    stored::stored,
};

/// The software NIC: mlx5 work requests executed in this process. On an NVIDIA GPU its bytes are moved by the GPU's copy engines, and the
/// multiprocessors stay free.
#[derive(Clone)]
#[must_use]
pub struct Soft {
    pub(super) queues: Queues,
    pub(super) nics: Nics,
    pub(super) flush_reads: bool,
    pub(super) collapsed_completions: bool,
}

/// Which software NICs.
#[derive(Clone)]
pub(super) enum Nics {
    /// One that is started, as fast as it can be, with so many engine threads.
    Started { engines: usize },
    /// Those that are there.
    Given(Vec<Arc<SoftNic>>),
}

impl Default for Soft {
    fn default() -> Self {
        Self {
            queues: Queues::default(),
            nics: Nics::Started { engines: 1 },
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
            return refuse("software NICs", "an empty list".into(), "give one at least");
        }
        self.queues.check(self.count(), 0)
    }

    pub(super) fn plan(&self) -> QueuePlan {
        QueuePlan {
            flush_reads: self.flush_reads,
            collapsed: self.collapsed_completions,
            ..self.queues.plan()
        }
    }

    /// The NICs. Beside an NVIDIA GPU, its copy engines move their bytes.
    pub(super) fn open(&self, gpu: &Arc<dyn Device>) -> Result<Vec<Arc<SoftNic>>> {
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
        let builder = SoftNic::builder();
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
