//! What a simulated GPU is to be.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use gpuvm_gpu::GpuError;
use parking_lot::Mutex;

use super::core::{Core, Options};
use super::memory::Memory;
use super::shelf::Shelf;
use super::{Mode, Observer, Preemption, SimGpu, SimOptions, preempt};

/// Device memory unless told otherwise: 1 GiB.
const MEMORY_BYTES: u64 = 1 << 30;
/// Lanes that a worker holds at once unless told otherwise.
const LANES_PER_WORKER: u32 = 2048;
/// Longest real time that a lane of the seeded mode may run without a load, store or call.
const SEEDED_LANE_MAX: Duration = Duration::from_secs(10);

/// Options of a [`SimGpu`].
#[derive(Clone)]
pub struct SimGpuBuilder {
    memory_bytes: u64,
    workers: Option<u32>,
    lanes_per_worker: u32,
    has_room_for_all: bool,
    mode: Mode,
    compiler: Option<String>,
    cache_dir: Option<PathBuf>,
    shelf: Option<Shelf>,
    preemption: Preemption,
    preempt_after: Duration,
    skip_exited: bool,
    options: SimOptions,
    neighbours: u32,
    neighbour_use: Arc<AtomicU64>,
    shared_as: Option<String>,
    observer: Option<Arc<dyn Observer>>,
}

impl SimGpuBuilder {
    /// All defaults.
    pub(crate) fn new() -> Self {
        Self {
            memory_bytes: MEMORY_BYTES,
            workers: None,
            lanes_per_worker: LANES_PER_WORKER,
            has_room_for_all: true,
            mode: Mode::Fast,
            compiler: None,
            cache_dir: None,
            shelf: None,
            preemption: Preemption::Signal,
            preempt_after: Duration::from_millis(5),
            skip_exited: false,
            options: SimOptions::default(),
            neighbours: 0,
            neighbour_use: Arc::default(),
            shared_as: None,
            observer: None,
        }
    }

    /// Capacity of device memory in bytes, 1 GiB by default.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Worker threads of the fast mode, by default one for each processor.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = Some(workers.clamp(1, 1024));
        self
    }

    /// Lanes, in whole warps, that a worker holds at once, 2,048 by default. A block that is larger runs all the same, alone.
    #[must_use]
    pub fn lanes_per_worker(mut self, lanes: u32) -> Self {
        self.lanes_per_worker = lanes.clamp(32, 1 << 16);
        self
    }

    /// Whether one block of each launch finds room beside others, however many lanes those have, so that launches which wait for each other
    /// cannot shut each other out. It is so by default. Without, a launch waits for room as on hardware.
    #[must_use]
    pub fn room_for_all(mut self, always: bool) -> Self {
        self.has_room_for_all = always;
        self
    }

    /// So many neighbour GPUs, from number 1 on, in whose memory regions may live; none by default. It is part of this GPU's own, so the
    /// seeded mode's memory model is in charge of it. They run nothing.
    #[must_use]
    pub fn neighbours(mut self, count: u32) -> Self {
        self.neighbours = count;
        self
    }

    /// Bytes that the owners of the neighbours use of their memory themselves, which may change at any time.
    #[must_use]
    pub fn neighbour_use(mut self, bytes: Arc<AtomicU64>) -> Self {
        self.neighbour_use = bytes;
        self
    }

    /// What it is called among processes that share it; nothing by default, and nobody shares it. Other processes have no part of its memory:
    /// this is for programs that behave as if they had.
    #[must_use]
    pub fn shared_as(mut self, name: impl Into<String>) -> Self {
        self.shared_as = Some(name.into());
        self
    }

    /// Fast by default.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// What the seeded mode does besides running kernels.
    #[must_use]
    pub fn options(mut self, options: SimOptions) -> Self {
        self.options = options;
        self
    }

    /// The C++ compiler's command; by default $GPUVM_CXX, else g++, else clang++.
    #[must_use]
    pub fn compiler(mut self, command: impl Into<String>) -> Self {
        self.compiler = Some(command.into());
        self
    }

    /// Where compiled kernels are kept; by default $GPUVM_CACHE_DIR, else $XDG_CACHE_HOME/gpuvm, else ~/.cache/gpuvm.
    #[must_use]
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(dir.into());
        self
    }

    /// A folder of modules that were [compiled before](Self::precompile_into): what is found there needs no compiler. The fast mode uses it
    /// where lanes are preempted by signal; none by default.
    #[must_use]
    pub fn precompiled(mut self, dir: impl Into<PathBuf>) -> Self {
        let (dir, fill) = (dir.into(), false);
        self.shelf = Some(Shelf { dir, fill });
        self
    }

    /// Puts every module that is compiled into this folder as well, for [`precompiled`](Self::precompiled) of the same version of this
    /// crate on a machine with no compiler.
    #[must_use]
    pub fn precompile_into(mut self, dir: impl Into<PathBuf>) -> Self {
        let (dir, fill) = (dir.into(), true);
        self.shelf = Some(Shelf { dir, fill });
        self
    }

    /// How a lane that never yields is stopped; by signal where that is possible.
    #[must_use]
    pub fn preemption(mut self, preemption: Preemption) -> Self {
        self.preemption = preemption;
        self
    }

    /// How long one lane may hold a worker, 5 ms by default. Looked at every 2 ms.
    #[must_use]
    pub fn preempt_after(mut self, limit: Duration) -> Self {
        self.preempt_after = limit;
        self
    }

    /// Whether lanes that have returned are skipped when a mask names them, as hardware does; by default that ends the launch with an error,
    /// because such a mask is usually a mistake.
    #[must_use]
    pub fn skip_exited_lanes(mut self, skip: bool) -> Self {
        self.skip_exited = skip;
        self
    }

    /// Who watches the seeded mode; nobody by default.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// The GPU.
    ///
    /// # Errors
    /// [`GpuError::Io`] when memory or threads cannot be had.
    pub fn build(self) -> Result<SimGpu, GpuError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let seed = match self.mode {
            Mode::Fast => None,
            Mode::Seeded(seed) => Some(seed),
        };
        let workers = if seed.is_some() {
            1
        } else {
            self.workers.unwrap_or(processors as u32)
        };
        let options = Options {
            workers,
            lanes_per_worker: self.lanes_per_worker.min(lanes_that_fit(workers)),
            has_room_for_all: self.has_room_for_all,
            seed,
            simulation: self.options,
            neighbours: self.neighbours,
            neighbour_use: self.neighbour_use,
            shared_as: self.shared_as,
            skip_exited: self.skip_exited,
            // In the seeded mode this is the bound on a lane that does nothing the scheduler sees; it must not shape the interleaving.
            preempt_after: if seed.is_some() {
                SEEDED_LANE_MAX
            } else {
                self.preempt_after
            },
        };
        let core = Arc::new(Core::new(options, Memory::new(self.memory_bytes)?, self.observer));
        let mut gpu = SimGpu {
            core,
            build: Mutex::new(None),
            compiler: self.compiler,
            preemption: if preempt::BY_SIGNAL {
                self.preemption
            } else {
                Preemption::Counter
            },
            cache_dir: self.cache_dir,
            shelf: self.shelf.filter(|_| seed.is_none()),
            threads: Vec::new(),
        };
        gpu.start_threads(workers)?;
        Ok(gpu)
    }
}

/// Lanes a worker may hold so that the stacks of all workers stay below the system's limit of mappings: each stack and its guard page are
/// one, and a quarter is left to everybody else.
fn lanes_that_fit(workers: u32) -> u32 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    let mappings: u64 = text.trim().parse().unwrap_or(65_530);
    let lanes = (mappings / 4 * 3 / 2 / u64::from(workers)).clamp(32, 1 << 16) as u32;
    lanes / 32 * 32
}
