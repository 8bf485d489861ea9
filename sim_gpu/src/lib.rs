//! A GPU simulated in this process, which runs CUDA C++ kernels through the host's C++ compiler.
//!
//! ```no_run
//! use gpuvm_gpu::{CompileOptions, Gpu, LaunchConfig, Source};
//! use gpuvm_sim_gpu::SimGpu;
//! # fn main() -> Result<(), gpuvm_gpu::GpuError> {
//! let gpu = SimGpu::builder().memory_bytes(64 << 20).build()?;
//! let source = Source::new("twice.cu", "__global__ void twice(int* a) { a[threadIdx.x] *= 2; }");
//! let kernel = gpu.compile(&source, &["twice"], &CompileOptions::default())?.kernel("twice")?;
//! let data = gpu.allocate(32 * 4, 256)?;
//! gpu.write(data.addr(), &[1u8; 128])?;
//! let stream = gpu.stream()?;
//! let config = LaunchConfig::linear(1, 32);
//! let launch = stream.launch(&kernel, &config, &[&data.addr().to_ne_bytes()], 0, Box::new(|_| ()))?;
//! launch.wait(None).expect("no timeout was given")?;
//! # Ok(()) }
//! ```
//!
//! Kernels are compiled by the host's C++ compiler and loaded; every lane is a coroutine on a stack of its own, so lanes of a warp
//! diverge and wait for each other as on hardware with independent thread scheduling. Warp collectives are rendezvous of the lanes that
//! their mask names; `__shared__` variables are the module's thread-local image; device memory is a mapping of a fixed capacity.

#[cfg(not(target_os = "linux"))]
compile_error!("gpuvm-sim-gpu needs Linux: its kernels are loaded ELF modules and its lanes use Linux signals");

mod abi;
mod block;
mod builder;
mod collective;
mod compile;
mod copier;
mod core;
mod device_words;
mod events;
mod files;
mod headers;
mod hooks;
mod launch;
mod memory;
mod module;
mod observer;
mod options;
mod preempt;
mod priorities;
mod ptx;
mod races;
mod report;
mod resident;
mod rewrite;
mod seeded;
mod spaces;
mod stacks;
mod stream;
mod switch;
mod ticker;
mod trap;
mod waits;
mod warp;
mod weak_memory;
mod worker;

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

pub use self::builder::SimGpuBuilder;
pub use self::compile::Preemption;

use self::abi::{COLOUR_BYTES, LANE_OFFSET, STACK_BYTES};
use self::compile::{Build, Compiler};
use self::copier::SimCopier;
use self::core::Core;
use self::module::{ModuleInner, SimModule};
use self::seeded::{Scheduler, engine_copies};
use self::stream::{BLOCK_THREADS_MAX, SHARED_BYTES_MAX, SimStream};
use self::worker::Worker;
use gpuvm_gpu::back_end::{Cache, OneByOne, Shelf, Shelved};
use gpuvm_gpu::{
    Actor, AddressSpace, Capabilities, CompileOptions, Copier, DeviceMemory, DmaBuf, FileAccess, Gpu, GpuError,
    HostMemory, HostRegistration, IsOver, MemoryLeft, Module, NoteFormatter, OnCopy, OnDone, OnStore, Piece, PtxKernel,
    Series, Simulation, Source, Stream,
};
use parking_lot::Mutex;

/// Alignment of memory at a neighbour: a page at least, as CUDA maps it.
const NEIGHBOUR_ALIGN: u64 = 4096;

pub use self::events::{Event, EventKind};
pub use self::observer::{Observer, Step};
pub use self::options::{MemoryModel, Mode, Schedule, SimOptions};
pub use self::races::{Race, RaceAccess, RacingLane};

/// The C++ compiler that kernels are compiled by unless a builder names another: the first line of its `--version`.
///
/// # Errors
/// [`GpuError::CompilerMissing`], [`GpuError::CompilerUnusable`].
pub fn compiler_version() -> Result<String, GpuError> {
    Compiler::find(None).map(|compiler| compiler.version)
}

/// A GPU simulated in this process; see the [module](self).
pub struct SimGpu {
    core: Arc<Core>,
    build: Mutex<Option<Build>>,
    compiler: Option<String>,
    preemption: Preemption,
    cache_dir: Option<PathBuf>,
    shelf: Option<Shelf>,
    /// Those of the workers.
    signals: Vec<Arc<trap::WorkerSignals>>,
    threads: Vec<JoinHandle<()>>,
}

impl SimGpu {
    /// The simulated GPU that runs `gpu`'s kernels, if one does.
    pub fn behind(gpu: &dyn Gpu) -> Option<&Self> {
        gpu.simulation()
            .and_then(|simulation| (simulation as &dyn Any).downcast_ref())
    }

    /// Hash of the seeded mode's interleaving so far: the sequence of (lane, event). 0 in the fast mode.
    pub fn trace_hash(&self) -> u64 {
        self.core.trace.load(Ordering::Acquire)
    }

    /// Virtual time of the seeded mode, ns, as engines that are stepped by its scheduler see it; 0 in the fast mode.
    pub fn virtual_ns(&self) -> u64 {
        self.core.virtual_ns.load(Ordering::Acquire)
    }

    /// The data races found so far, the first 64 of them, and how many there were; up to the last switch between lanes.
    pub fn races(&self) -> (Vec<Race>, u64) {
        self.core.races.lock().clone()
    }

    /// The last events of the seeded mode, oldest first: as many as [`SimOptions::events_kept`] says.
    pub fn events(&self) -> Vec<Event> {
        self.core.events.lock().iter().copied().collect()
    }

    /// Lanes preempted so far because they did not yield.
    pub fn preemptions(&self) -> u64 {
        self.signals.iter().map(|worker| worker.preempted()).sum()
    }

    /// What a run depends on besides its seed: the compiler's version and its flags.
    ///
    /// # Errors
    /// [`GpuError::CompilerMissing`], [`GpuError::CompilerUnusable`].
    pub fn compiler_description(&self) -> Result<String, GpuError> {
        let build = self.build()?;
        Ok(format!(
            "{} {}",
            build.compiler.version,
            build.flags(&CompileOptions::default()).join(" ")
        ))
    }

    fn start_threads(&mut self, workers: u32) -> Result<(), GpuError> {
        let signals: Vec<Arc<trap::WorkerSignals>> = (0..workers).map(|_| Arc::default()).collect();
        self.signals.clone_from(&signals);
        let spawn = |name: String, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name)
                .spawn(work)
                .map_err(|e| GpuError::io("start a worker thread", None, e))
        };
        for (number, signals) in signals.into_iter().enumerate() {
            let core = Arc::clone(&self.core);
            let seeded = core.options.seed.is_some();
            let work = move || match seeded {
                true => Scheduler::new(core, signals).run(),
                false => Worker::new(core, number as u32, signals).run(),
            };
            self.threads.push(spawn(format!("gpuvm-sm{number}"), Box::new(work))?);
        }
        let (core, signals) = (Arc::clone(&self.core), self.signals.clone());
        self.threads.push(spawn(
            "gpuvm-ticker".to_owned(),
            Box::new(move || ticker::tick_until_shut_down(&core, &signals)),
        )?);
        Ok(())
    }

    fn build(&self) -> Result<Build, GpuError> {
        let mut build = self.build.lock();
        if let Some(build) = build.as_ref() {
            return Ok(build.clone());
        }
        let compiler = Compiler::find(self.compiler.as_deref())?;
        let seeded = self.core.options.seed.is_some();
        Ok(build
            .insert(Build {
                compiler,
                seeded,
                preemption: self.preemption,
            })
            .clone())
    }
}

impl SimGpu {
    fn check_neighbour(&self, ordinal: u32) -> Result<(), GpuError> {
        let cause = match self.core.options.neighbours {
            count if (1..=count).contains(&ordinal) => return Ok(()),
            0 => "the simulated GPU has no neighbours".to_owned(),
            count => format!("the simulated GPU's neighbours are 1 to {count}"),
        };
        Err(GpuError::NoPeer { ordinal, cause })
    }
}

impl Gpu for SimGpu {
    fn capabilities(&self) -> Capabilities {
        let options = &self.core.options;
        Capabilities {
            name: match options.seed {
                None => format!("simulated GPU, {} workers", options.workers),
                Some(seed) => format!("simulated GPU, seed {seed}"),
            },
            sm_count: options.workers,
            warp_size: 32,
            max_threads_per_block: BLOCK_THREADS_MAX,
            max_resident_lanes: options.workers * options.lanes_per_worker,
            shared_bytes_per_block: SHARED_BYTES_MAX,
            memory_bytes: self.core.memory.capacity(),
            deterministic: options.seed.is_some(),
            compute_capability: None,
            // `ticks()` is the time in nanoseconds.
            ticks_per_us: 1000.0,
            for_nics: None,
        }
    }

    fn allocate(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        self.core.memory.allocate(bytes, align)
    }

    fn allocate_host(&self, bytes: u64) -> Result<HostMemory, GpuError> {
        self.core.memory.allocate_host(bytes)
    }

    fn allocate_home(&self, bytes: u64) -> Result<Option<HostMemory>, GpuError> {
        self.core.memory.allocate_host(bytes).map(Some)
    }

    fn is_device_memory(&self, addr: u64, bytes: u64) -> bool {
        self.core.memory.is_device_memory(addr, bytes)
    }

    unsafe fn register_host(&self, host: *mut u8, bytes: u64, _read_only: bool) -> Result<HostRegistration, GpuError> {
        // Lanes are threads of this process: they reach all its memory.
        Ok(HostRegistration::unowned(host, bytes))
    }

    unsafe fn map_registers(&self, host: *mut u8, bytes: u64) -> Result<HostRegistration, GpuError> {
        // A NIC's registers that are mapped into this process are reached as its memory is.
        Ok(HostRegistration::unowned(host, bytes))
    }

    fn allocate_for_nics(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        // A NIC registers it as any memory of this process.
        self.allocate(bytes, align)
    }

    fn export_dma_buf(&self, _addr: u64, _bytes: u64) -> Result<DmaBuf, GpuError> {
        Err(GpuError::Unsupported {
            what: "export its memory as dma-bufs".into(),
        })
    }

    fn lost(&self) -> Option<GpuError> {
        // It is memory and threads of this process.
        None
    }

    fn allocate_on(&self, ordinal: u32, bytes: u64) -> Result<DeviceMemory, GpuError> {
        self.check_neighbour(ordinal)?;
        self.allocate(bytes, NEIGHBOUR_ALIGN)
    }

    fn memory_left(&self, ordinal: u32) -> Result<MemoryLeft, GpuError> {
        self.check_neighbour(ordinal)?;
        // Relaxed: a figure that nothing is ordered by.
        let used = self.core.options.neighbour_use.load(Ordering::Relaxed);
        Ok(MemoryLeft {
            free: self.core.memory.free().saturating_sub(used),
            total: self.core.memory.capacity(),
        })
    }

    fn shared_name(&self) -> Option<String> {
        self.core.options.shared_as.clone()
    }

    fn own_memory(&self) -> Result<MemoryLeft, GpuError> {
        Ok(MemoryLeft {
            free: self.core.memory.free(),
            total: self.core.memory.capacity(),
        })
    }

    fn copier(&self) -> Result<Arc<dyn Copier>, GpuError> {
        if self.core.is_shut_down() {
            return Err(GpuError::ShutDown);
        }
        Ok(Arc::new(SimCopier::new(Arc::clone(&self.core))))
    }

    fn file_access(&self, _memory: &DeviceMemory) -> Result<Arc<dyn FileAccess>, GpuError> {
        Ok(Arc::new(files::SimFileAccess))
    }

    fn piece_bytes(&self) -> u64 {
        spaces::PIECE_BYTES
    }

    fn piece(&self) -> Result<Arc<dyn Piece>, GpuError> {
        memory::PieceFile::piece(&self.core.memory)
    }

    fn host_piece(&self) -> Result<Arc<dyn Piece>, GpuError> {
        memory::PieceFile::host_piece(&self.core.memory)
    }

    fn reserve(&self, bytes: u64, _beside: &[u32]) -> Result<Arc<dyn AddressSpace>, GpuError> {
        // Lanes of all simulated GPUs are threads of this process.
        Ok(Arc::new(spaces::SimSpace::reserve(&self.core.memory, bytes)?))
    }

    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.core.memory.write(addr, bytes)
    }

    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.core.memory.read(addr, out)
    }

    fn load(&self, name: &str, _image: &[u8], _kernels: &[&str]) -> Result<Arc<dyn Module>, GpuError> {
        Err(GpuError::Unsupported {
            what: format!("load the compiled kernels of {name}, but compiles their source"),
        })
    }

    fn compile(
        &self,
        source: &Source,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<Arc<dyn Module>, GpuError> {
        let cache = Cache::open(self.cache_dir.clone())?;
        let is_usual = (self.preemption == Preemption::Signal) == preempt::BY_SIGNAL;
        let shelf = self.shelf.as_ref().filter(|_| is_usual);
        // Those are files where the library was built to read them: nothing is opened for a shelf that is not there.
        let headers: Vec<_> = shelf.map(|_| compile::headers().copied().collect()).unwrap_or_default();
        let module = Shelved {
            source,
            kernels,
            options,
            headers: &headers,
        };
        let target = format!(
            "simulated {} {STACK_BYTES} {COLOUR_BYTES} {LANE_OFFSET}",
            std::env::consts::ARCH
        );
        let found = shelf.map(|shelf| shelf.find(&module, [target.clone()]));
        let found = found.transpose()?.flatten();
        let object = match found {
            Some(object) => cache.copy(&object)?,
            None => {
                let object = self.build()?.object(&cache, source, kernels, options)?;
                if let Some(shelf) = shelf {
                    let bytes = std::fs::read(&object);
                    let bytes = bytes.map_err(|e| GpuError::io("read a compiled kernel at", Some(&object), e))?;
                    shelf.store(&module, &target, &bytes)?;
                }
                object
            }
        };
        let seeded = self.core.options.seed.is_some();
        let module = ModuleInner::load(&object, &source.name, seeded, &hooks::HOOKS)?;
        Ok(Arc::new(SimModule::new(module, kernels)?))
    }

    fn load_ptx(
        &self,
        name: &str,
        text: &str,
        kernels: &[PtxKernel],
        variables: &[(&str, &[u8])],
        library: Option<(&Source, &CompileOptions)>,
    ) -> Result<Arc<dyn Module>, GpuError> {
        let translated = ptx::translated(text, kernels, variables).map_err(|error| GpuError::ModuleLoad {
            module: name.to_owned(),
            cause: error.to_string(),
        })?;
        let cache = Cache::open(self.cache_dir.clone())?;
        let (before, options) = match library {
            Some((source, options)) => (format!("{}\n", source.text), options.clone()),
            None => Default::default(),
        };
        let source = Source::new(format!("{name}.cpp"), before + &translated);
        let object = self.build()?.object(&cache, &source, &[], &options)?;
        let seeded = self.core.options.seed.is_some();
        let mut module = ModuleInner::load(&object, name, seeded, &hooks::HOOKS)?;
        // PTX's collectives wait for lanes that have not exited, and those of calls exit at a fault.
        module.skip_exited = library.is_some();
        Ok(Arc::new(SimModule::of_ptx(module, kernels, variables)?))
    }

    unsafe fn borrow_stream(&self, _stream: u64) -> Result<Arc<dyn Stream>, GpuError> {
        Err(stream::no_cuda_stream())
    }

    fn stream(&self) -> Result<Arc<dyn Stream>, GpuError> {
        if self.core.is_shut_down() {
            return Err(GpuError::ShutDown);
        }
        Ok(Arc::new(SimStream::new(Arc::clone(&self.core))))
    }

    fn series(&self, on_done: OnDone) -> Result<Arc<dyn Series>, GpuError> {
        Ok(Arc::new(OneByOne::new(self.stream()?, on_done)))
    }

    unsafe fn is_captured(&self, _stream: u64) -> bool {
        false
    }

    fn drain(&self) -> Result<(), GpuError> {
        // Launches of a series have ended when their callers go on.
        Ok(())
    }

    fn simulation(&self) -> Option<&dyn Simulation> {
        Some(self)
    }
}

impl Simulation for SimGpu {
    fn watch_stores(&self, pages: &[(u64, u64)], on_store: OnStore) {
        self.core.watch(pages, &on_store);
    }

    fn attach(&self, actor: Arc<dyn Actor>) {
        self.core.actors.lock().push(actor);
    }

    fn now_ns(&self) -> u64 {
        self.virtual_ns()
    }

    fn run_until(&self, at_ns: u64, is_over: IsOver) {
        self.core.run_until(at_ns, is_over);
    }

    fn on_copy(&self) -> OnCopy {
        engine_copies
    }

    fn set_note_formatter(&self, format: NoteFormatter) {
        self.core.set_note_formatter(format);
    }
}

impl Drop for SimGpu {
    fn drop(&mut self) {
        self.core.shut_down();
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // A callback on a worker may drop the last handle; that worker ends by itself.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
    }
}
