//! What a simulated GPU is to be.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use gpuvm_gpu::{GpuError, back_end::Shelf};
use parking_lot::Mutex;

use super::core::{Core, Options};
use super::memory::Memory;
use super::observer::Observer;
use super::options::{Mode, SimOptions};
use super::{Preemption, SimGpu, preempt};

/// Device memory unless told otherwise: 1 GiB.
const MEMORY_BYTES: u64 = 1 << 30;
/// Lanes that a worker holds at once unless told otherwise.
const LANES_PER_WORKER: u32 = 2048;
/// Longest real time that a lane of the seeded mode may run without a load, store or call.
const SEEDED_LANE_MAX: Duration = Duration::from_secs(10);

/// Setters, each with what it stores where.
macro_rules! stored {
    ($($(#[$about:meta])+ $name:ident($value:ident: $of:ty) => $field:ident = $stored:expr;)+) => {
        $($(#[$about])+
        #[must_use]
        pub fn $name(mut self, $value: $of) -> Self {
            self.$field = $stored;
            self
        })+
    };
}

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

impl SimGpu {
    /// A GPU with all defaults, to be changed.
    pub fn builder() -> SimGpuBuilder {
        SimGpuBuilder {
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
}

impl SimGpuBuilder {
    stored! {
        /// Capacity of device memory in bytes, 1 GiB by default.
        memory_bytes(bytes: u64) => memory_bytes = bytes;

        /// Worker threads of the fast mode, by default one for each processor.
        workers(workers: u32) => workers = Some(workers.clamp(1, 1024));

        /// Lanes, in whole warps, that a worker holds at once, 2,048 by default. A block that is larger runs all the same, alone.
        lanes_per_worker(lanes: u32) => lanes_per_worker = lanes.clamp(32, 1 << 16);

        /// Whether one block of each launch finds room beside others, however many lanes those have, so that launches which wait for each other
        /// cannot shut each other out. It is so by default. Without, a launch waits for room as on hardware.
        room_for_all(always: bool) => has_room_for_all = always;

        /// So many neighbour GPUs, from number 1 on, in whose memory regions may live; none by default. It is part of this GPU's own, so the
        /// seeded mode's memory model is in charge of it. They run nothing.
        neighbours(count: u32) => neighbours = count;

        /// Bytes that the owners of the neighbours use of their memory themselves, which may change at any time.
        neighbour_use(bytes: Arc<AtomicU64>) => neighbour_use = bytes;

        /// What it is called among processes that share it; nothing by default, and nobody shares it. Other processes have no part of its memory:
        /// this is for programs that behave as if they had.
        shared_as(name: impl Into<String>) => shared_as = Some(name.into());

        /// Fast by default.
        mode(mode: Mode) => mode = mode;

        /// What the seeded mode does besides running kernels.
        options(options: SimOptions) => options = options;

        /// The C++ compiler's command; by default $GPUVM_CXX, else g++, else clang++.
        compiler(command: impl Into<String>) => compiler = Some(command.into());

        /// Where compiled kernels are kept; by default $GPUVM_CACHE_DIR, else $XDG_CACHE_HOME/gpuvm, else ~/.cache/gpuvm.
        cache_dir(dir: impl Into<PathBuf>) => cache_dir = Some(dir.into());

        /// How a lane that never yields is stopped; by signal where that is possible.
        preemption(preemption: Preemption) => preemption = preemption;

        /// How long one lane may hold a worker, 5 ms by default. Looked at every 2 ms.
        preempt_after(limit: Duration) => preempt_after = limit;

        /// Whether lanes that have returned are skipped when a mask names them, as hardware does; by default that ends the launch with an error,
        /// because such a mask is usually a mistake.
        skip_exited_lanes(skip: bool) => skip_exited = skip;

        /// Who watches the seeded mode; nobody by default.
        observer(observer: Arc<dyn Observer>) => observer = Some(observer);
    }

    /// A folder of modules that were [compiled before](Self::precompile_into): what is found there needs no compiler. The fast mode uses it
    /// where lanes are preempted as they are by default; none by default.
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
            signals: Vec::new(),
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
