//! What only the simulated GPU has.

use std::sync::{Arc, atomic::AtomicU64};

use gpuvm_gpu::Gpu as Device;
use gpuvm_sim_gpu::{Mode, SimGpu, SimOptions};

use crate::{
    error::{Doing, Result},
    plan::Precompiled,
    settings::{QueuePlan, Settings, TransportKind, refuse},
    stored::stored,
};

/// The simulated GPU: worker threads of this process, or one thread that follows a seed.
#[derive(Debug, Clone)]
#[must_use]
pub struct SimulatedGpu {
    workers: Option<u32>,
    lanes_per_worker: u32,
    room_for_all: bool,
    memory: Option<u64>,
    neighbours: u32,
    neighbour_use: Arc<AtomicU64>,
    shared_as: Option<String>,
    seed: Option<u64>,
    options: SimOptions,
}

impl Default for SimulatedGpu {
    fn default() -> Self {
        Self {
            workers: None,
            lanes_per_worker: 256,
            room_for_all: true,
            memory: None,
            neighbours: 0,
            neighbour_use: Arc::default(),
            shared_as: None,
            seed: None,
            options: SimOptions::default(),
        }
    }
}

impl SimulatedGpu {
    /// One with a worker a core.
    pub fn new() -> Self {
        Self::default()
    }

    stored! {
        /// Worker threads, which are its multiprocessors. Default: one a core, over SoftRoCE one less. Not beside a
        /// [`seed`](Self::seed), which one thread follows.
        workers(count: u32) => workers = Some(count);

        /// Lanes that a worker keeps resident: more of them wait for pages at once, fewer stay in the processor's caches.
        /// Default: 256.
        lanes_per_worker(lanes: u32) => lanes_per_worker = lanes;

        /// Whether each launch finds room for a block on each worker, however many lanes others have there. Without, a launch waits for room as
        /// on hardware, and one that waits for a launch behind it waits for ever. Default: it does.
        room_for_all(always: bool) => room_for_all = always;

        /// Its memory in bytes. Default: frames and bookkeeping plus 1 GiB.
        memory(bytes: u64) => memory = Some(bytes);

        /// Neighbour GPUs, with ordinals from 1 on: [`home_on_gpu`](crate::RegionBuilder::home_on_gpu) and
        /// [`borrow_from`](crate::VmBuilder::borrow_from) name them. What is there is a part of this GPU's own memory. Default: 0.
        neighbours(count: u32) => neighbours = count;
    }

    /// This many neighbours, where nothing said how many it has: those that are to lend.
    pub(super) fn unless_said(&mut self, neighbours: u32) {
        if self.neighbours == 0 {
            self.neighbours = neighbours;
        }
    }

    stored! {
        /// Bytes that the owners of the neighbours use of their memory themselves: for tests, which change it at any time.
        #[doc(hidden)]
        neighbour_use(bytes: Arc<AtomicU64>) => neighbour_use = bytes;

        /// Shares it, under this name, with other processes, as if they had a part of its memory: they are [tenants](crate::Tenancy) of it.
        /// Letters, digits, `.`, `_` and `-`, 64 at most. Default: nothing shares it.
        shared_as(name: impl Into<String>) => shared_as = Some(name.into());
    }

    /// Runs it and the software NIC in one thread, in the one interleaving that this seed decides. Default: none, and
    /// threads run as the system lets them.
    pub fn seed(self, seed: u64) -> Self {
        self.seeded(seed, SimOptions::default())
    }

    /// [`Self::seed`] with what a seeded run does besides: how weak memory is, how lanes are picked, whether races are looked for,
    /// how many events are kept.
    pub fn seeded(mut self, seed: u64, options: SimOptions) -> Self {
        (self.seed, self.options) = (Some(seed), options);
        self
    }

    /// The seed that it follows.
    pub fn seed_asked(&self) -> Option<u64> {
        self.seed
    }

    pub(super) fn check(&self) -> Result<()> {
        match (self.workers, self.seed) {
            (Some(workers), Some(_)) => {
                let reason = "a seed needs a single worker; leave out the workers or the seed";
                refuse("workers", workers.to_string(), reason)
            }
            _ => Ok(()),
        }
    }

    /// Starts it, with memory for what the settings ask.
    pub(super) fn start(
        &self,
        settings: &Settings,
        plan: &QueuePlan,
        nodes: usize,
        transport: TransportKind,
    ) -> Result<Arc<dyn Device>> {
        let queues = match transport {
            TransportKind::Direct => 0,
            _ => plan.bytes(1 + nodes as u64),
        };
        let memory = self.memory.unwrap_or_else(|| {
            let frames = settings.frame_capacity.unwrap_or(settings.frame_memory);
            frames + frames / settings.page_size * 16 + queues + (1 << 30)
        });
        let mut gpu = SimGpu::builder()
            .memory_bytes(memory)
            .neighbours(self.neighbours)
            .neighbour_use(Arc::clone(&self.neighbour_use))
            .lanes_per_worker(self.lanes_per_worker)
            .room_for_all(self.room_for_all);
        let beside = (transport == TransportKind::Rxe).then(workers_beside_a_proxy);
        if let Some(name) = &self.shared_as {
            gpu = gpu.shared_as(name);
        }
        gpu = match &settings.precompiled {
            Some(Precompiled::In(dir)) => gpu.precompiled(dir),
            Some(Precompiled::Into(dir)) => gpu.precompile_into(dir),
            None => gpu,
        };
        if let Some(workers) = self.workers.or(beside) {
            gpu = gpu.workers(workers);
        }
        if let Some(seed) = self.seed {
            gpu = gpu.mode(Mode::Seeded(seed)).options(self.options);
        }
        Ok(Arc::new(gpu.build().doing(|| "starting the simulated GPU".into())?))
    }
}

/// Worker threads that leave a core to the doorbell proxy and the driver, which do their work on the processor as well.
fn workers_beside_a_proxy() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    (cores - 1).max(1)
}
