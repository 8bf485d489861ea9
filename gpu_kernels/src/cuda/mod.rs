//! NVIDIA GPUs, through the driver's API and the run-time compiler NVRTC. Both libraries are loaded when they are first needed: a program
//! builds and starts without them, and [`CudaGpu::open`] says what is missing.
//!
//! Kernels run on non-blocking streams, the host's copies on streams of their own through pinned buffers, so that neither waits for the
//! other; nothing uses the default stream. Memory is freed when no kernel runs. A trap in a kernel, or a kernel that cannot be
//! stopped, loses the GPU to this process: calls then answer [`GpuError::Lost`], the program goes on.
//!
//! A module is loaded four times when it is compiled: this many of its launches run at one time, on as many streams; a further one waits on
//! the GPU, not on the host, until one of them has ended. Each instance has `__device__` variables of its own, and a launch may get
//! any: such variables carry nothing from one launch to the next.
//!
//! Calls that may wait for running kernels, by the driver's own choice: [`Gpu::compile`], [`Gpu::allocate`], [`Gpu::allocate_on`],
//! [`Gpu::allocate_host`], [`Gpu::register_host`], the first long copies of [`Gpu::read`] and [`Gpu::write`], and [`Gpu::stream`];
//! `launch` when a thousand launches of its stream wait. Make what a kernel needs before it starts. A launch's deadline is kept
//! meanwhile, as long as its launch state is in host memory.

mod calls;
mod compile;
mod copier;
mod copy;
mod core;
pub mod cufile;
mod device;
mod driver;
mod elf;
mod engine;
mod folders;
mod host;
mod image;
mod includes;
mod launch;
mod log;
mod managed;
mod management;
mod measure;
mod memory;
mod module;
mod nics;
mod nvrtc;
mod others;
mod peers;
mod pin_book;
mod pins;
mod places;
mod queue;
mod series;
mod spaces;
mod stops;
mod stream;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use self::calls::{LookUp, find_driver_by};
pub use self::compile::{Architecture, Cubin, CubinKernel, compile_library, compile_to_cubin, precompile, precompiled};
pub use self::device::{CAPABILITY_MIN, DeviceId, DeviceInfo, devices, driver_refuses_nvrtc, driver_version};
pub use self::folders::look_for_nvrtc_in;
pub use self::log::Usage;
pub use self::managed::{Advice, Side};
pub use self::measure::{Copying, Managed};
pub use self::nvrtc::version as nvrtc_version;
pub use self::others::OthersContext;
pub use self::peers::{PeerInfo, peers};

use self::copier::StreamCopier;
use self::core::Core;
use self::engine::Engine;
use self::module::ModuleInner;
use self::places::Places;
use self::spaces::{CudaPiece, CudaSpace};
use self::stops::{Courier, LATE};
use self::stream::CudaStream;
use crate::api::{
    AddressSpace, Capabilities, CompileOptions, Copier, DmaBuf, FileAccess, Gpu, MemoryLeft, Module, OnDone, Piece,
    PtxKernel, Series, Source, Stream,
};
use crate::back_end::Shelf;
use crate::error::GpuError;
use crate::memory::{DeviceMemory, HostMemory, HostRegistration};
use crate::simulation::Simulation;

/// What of CUDA this machine has. Looking loads the libraries, by `cudarc`, and needs none of them at build time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    /// The driver's library, `libcuda`.
    pub driver: bool,
    /// The run-time compiler's library, `libnvrtc`.
    pub nvrtc: bool,
}

/// Looks for CUDA's libraries.
pub fn presence() -> Presence {
    Presence {
        driver: calls::has_driver(),
        nvrtc: calls::has_nvrtc(),
    }
}

/// An NVIDIA GPU; see the [module](self).
pub struct CudaGpu {
    core: Arc<Core>,
    places: Arc<Places>,
    engine: Arc<Engine>,
    cache_dir: Option<PathBuf>,
    shelf: Option<Shelf>,
    watcher: Mutex<Option<JoinHandle<()>>>,
}

/// Options of a [`CudaGpu`].
#[derive(Clone, Debug)]
pub struct CudaGpuBuilder {
    device: DeviceId,
    cache_dir: Option<PathBuf>,
    shelf: Option<Shelf>,
}

impl CudaGpuBuilder {
    /// Where compiled kernels are kept; by default $GPUVM_CACHE_DIR, else $XDG_CACHE_HOME/gpuvm, else ~/.cache/gpuvm.
    #[must_use]
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(dir.into());
        self
    }

    /// A folder of modules that [`precompile`] has put there: what is found in it needs no NVRTC. None by default.
    #[must_use]
    pub fn precompiled(mut self, dir: impl Into<PathBuf>) -> Self {
        let (dir, fill) = (dir.into(), false);
        self.shelf = Some(Shelf { dir, fill });
        self
    }

    /// The GPU.
    ///
    /// # Errors
    /// [`GpuError::Driver`] when there is no driver, no such GPU, or one that is too old; [`GpuError::Io`] when no thread can be started.
    pub fn build(self) -> Result<CudaGpu, GpuError> {
        let core = Arc::new(Core::open(device::find(&self.device)?)?);
        let places = Places::new(&core)?;
        let engine = Engine::new(Arc::clone(&core));
        let courier = Courier::new(&core)?;
        let (stops, letters, own) = (Arc::clone(&engine.stops), Arc::clone(&engine.stops), Arc::clone(&core));
        spawn(&core, "limit", move || stops.guard())?;
        spawn(&core, "stop", move || {
            letters.carry(&courier);
            courier.retire(&own);
        })
        .inspect_err(|_| engine.stops.close())?;
        let watched = Arc::clone(&engine);
        let watcher = std::thread::Builder::new()
            .name(format!("gpuvm-gpu{}", core.info.ordinal))
            .spawn(move || watched.watch())
            .map_err(|e| GpuError::io("start the thread that watches launches", None, e));
        let watcher = match watcher {
            Ok(watcher) => watcher,
            Err(error) => {
                engine.stops.close();
                engine.stops.end_courier();
                return Err(error);
            }
        };
        Ok(CudaGpu {
            core,
            places,
            engine,
            cache_dir: self.cache_dir,
            shelf: self.shelf,
            watcher: Mutex::new(Some(watcher)),
        })
    }
}

fn spawn(core: &Core, what: &str, work: impl FnOnce() + Send + 'static) -> Result<(), GpuError> {
    let thread = std::thread::Builder::new().name(format!("gpuvm-gpu{}-{what}", core.info.ordinal));
    let started = thread.spawn(work);
    started.map_err(|e| GpuError::io("start a thread that stops launches", None, e))?;
    Ok(())
}

impl CudaGpu {
    /// The GPU `device` with all defaults, to be changed.
    pub fn builder(device: impl Into<DeviceId>) -> CudaGpuBuilder {
        CudaGpuBuilder {
            device: device.into(),
            cache_dir: None,
            shelf: None,
        }
    }

    /// The GPU with this ordinal or UUID.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), gpuvm_gpu::GpuError> {
    /// use gpuvm_gpu::cuda::CudaGpu;
    /// let first = CudaGpu::open(0)?;
    /// let same = CudaGpu::open(first.device_info().uuid.as_str())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`CudaGpuBuilder::build`].
    pub fn open(device: impl Into<DeviceId>) -> Result<Self, GpuError> {
        Self::builder(device).build()
    }

    /// What the driver tells about it.
    pub fn device_info(&self) -> &DeviceInfo {
        &self.core.info
    }

    /// The driver's newest CUDA version, major and minor.
    ///
    /// # Errors
    /// The driver's error.
    pub fn driver_version(&self) -> Result<(u32, u32), GpuError> {
        device::driver_version()
    }

    /// Device memory that no process uses, bytes.
    ///
    /// # Errors
    /// The driver's error.
    pub fn free_memory(&self) -> Result<u64, GpuError> {
        Ok(self.core.memory_left()?.free)
    }
}

impl Gpu for CudaGpu {
    fn capabilities(&self) -> Capabilities {
        let info = &self.core.info;
        Capabilities {
            name: info.name.clone(),
            sm_count: info.multiprocessors,
            warp_size: 32,
            max_threads_per_block: info.threads_per_block,
            max_resident_lanes: info.multiprocessors * info.threads_per_multiprocessor,
            shared_bytes_per_block: info.shared_bytes_per_block,
            memory_bytes: info.memory_bytes,
            deterministic: false,
            compute_capability: Some(info.compute_capability),
            ticks_per_us: f64::from(info.clock_khz) / 1e3,
            for_nics: Some(info.for_nics.clone()),
        }
    }

    fn allocate(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        self.places.device.allocate(bytes, align)
    }

    fn allocate_for_nics(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        self.places.device.allocate_for_nics(bytes, align)
    }

    fn export_dma_buf(&self, addr: u64, bytes: u64) -> Result<DmaBuf, GpuError> {
        if !self.places.device.covers(addr, bytes) {
            return Err(GpuError::BadAddress { addr, bytes });
        }
        nics::export(&self.core, addr, bytes)
    }

    unsafe fn map_registers(&self, host: *mut u8, bytes: u64) -> Result<HostRegistration, GpuError> {
        nics::map_registers(&self.core, host, bytes)
    }

    fn allocate_host(&self, bytes: u64) -> Result<HostMemory, GpuError> {
        self.places.host.allocate(bytes)
    }

    fn allocate_home(&self, bytes: u64) -> Result<Option<HostMemory>, GpuError> {
        match self.core.info.concurrent_managed_access {
            true => self.places.host.allocate_managed(bytes),
            false => Ok(None),
        }
    }

    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.places.write(addr, bytes)
    }

    fn zero(&self, addr: u64, bytes: u64) -> Result<(), GpuError> {
        self.places.zero(addr, bytes)
    }

    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.places.read(addr, out)
    }

    fn is_device_memory(&self, addr: u64, bytes: u64) -> bool {
        self.places.device.covers(addr, bytes)
    }

    unsafe fn register_host(&self, host: *mut u8, bytes: u64, read_only: bool) -> Result<HostRegistration, GpuError> {
        self.places.pins.register(host, bytes, read_only)
    }

    fn allocate_on(&self, ordinal: u32, bytes: u64) -> Result<DeviceMemory, GpuError> {
        self.places.device.allocate_on(ordinal, bytes)
    }

    fn allocate_for(&self, ordinals: &[u32], bytes: u64) -> Result<DeviceMemory, GpuError> {
        self.places.device.allocate_for(ordinals, bytes)
    }

    fn memory_left(&self, ordinal: u32) -> Result<MemoryLeft, GpuError> {
        management::memory_left(ordinal)
    }

    fn shared_name(&self) -> Option<String> {
        Some(self.core.info.uuid.clone())
    }

    fn own_memory(&self) -> Result<MemoryLeft, GpuError> {
        self.core.memory_left()
    }

    fn memory_by_process(&self) -> Vec<(u32, u64)> {
        management::memory_by_process(&self.core.info.uuid)
    }

    fn lingering_bytes(&self) -> u64 {
        self.core.retired_pieces() * self.piece_bytes()
    }

    fn ordinal(&self) -> Option<u32> {
        Some(self.core.info.ordinal)
    }

    fn copier(&self) -> Result<Arc<dyn Copier>, GpuError> {
        Ok(Arc::new(StreamCopier::new(&self.core, &self.places)?))
    }

    fn file_access(&self, memory: &DeviceMemory) -> Result<Arc<dyn FileAccess>, GpuError> {
        let scratch = self.places.device.allocate(cufile::SCRATCH_BYTES, 4096)?;
        Ok(Arc::new(cufile::CuFile::new(&self.core, memory, scratch)?))
    }

    fn piece_bytes(&self) -> u64 {
        self.places.device.piece_bytes().unwrap_or_default()
    }

    fn piece(&self) -> Result<Arc<dyn Piece>, GpuError> {
        Ok(Arc::new(CudaPiece::new(&self.places.device)?))
    }

    fn host_piece(&self) -> Result<Arc<dyn Piece>, GpuError> {
        Ok(Arc::new(CudaPiece::of_host(&self.places.device)?))
    }

    fn reserve(&self, bytes: u64, beside: &[u32]) -> Result<Arc<dyn AddressSpace>, GpuError> {
        Ok(Arc::new(CudaSpace::reserve(&self.places.device, bytes, beside)?))
    }

    fn lost(&self) -> Option<GpuError> {
        self.core.lost()
    }

    fn compile(
        &self,
        source: &Source,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<Arc<dyn Module>, GpuError> {
        self.core.enter()?;
        let (major, minor) = self.core.info.compute_capability;
        let architecture = Architecture(major * 10 + minor);
        let shelf = self.shelf.as_ref();
        let found = shelf.map(|shelf| precompiled(shelf, source, kernels, options, architecture));
        let cubin = match found.transpose()?.flatten() {
            Some(found) => found,
            None => compile::compile_cached(source, kernels, options, architecture, self.cache_dir.clone())?,
        };
        let module = ModuleInner::load(&self.core, self.places.copier(), cubin, &source.name)?;
        Ok(Arc::new(module))
    }

    fn load(&self, name: &str, image: &[u8], kernels: &[&str]) -> Result<Arc<dyn Module>, GpuError> {
        self.core.enter()?;
        let module = ModuleInner::load_image(&self.core, self.places.copier(), image, kernels, name)?;
        Ok(Arc::new(module))
    }

    fn load_ptx(
        &self,
        name: &str,
        text: &str,
        kernels: &[PtxKernel],
        variables: &[(&str, &[u8])],
        library: Option<(&Source, &CompileOptions)>,
    ) -> Result<Arc<dyn Module>, GpuError> {
        self.core.enter()?;
        let whole = match library {
            None => None,
            Some((source, options)) => {
                let (major, minor) = self.core.info.compute_capability;
                let architecture = Architecture(major * 10 + minor);
                let library = compile::library_cached(source, options, architecture, self.cache_dir.clone())?;
                let whole = gpuvm_ptx::with_library(text, &library);
                Some(whole.map_err(|error| GpuError::ModuleLoad {
                    module: name.to_owned(),
                    cause: error.to_string(),
                })?)
            }
        };
        let text = whole.as_deref().unwrap_or(text);
        let module = ModuleInner::load_ptx(&self.core, self.places.copier(), text, kernels, variables, name)?;
        Ok(Arc::new(module))
    }

    unsafe fn borrow_stream(&self, stream: u64) -> Result<Arc<dyn Stream>, GpuError> {
        // SAFETY: passed on from the caller.
        Ok(Arc::new(unsafe {
            CudaStream::borrowed(&self.engine, &self.places, stream)?
        }))
    }

    fn stream(&self) -> Result<Arc<dyn Stream>, GpuError> {
        Ok(Arc::new(CudaStream::new(&self.engine, &self.places, false)?))
    }

    fn urgent_stream(&self) -> Result<Arc<dyn Stream>, GpuError> {
        Ok(Arc::new(CudaStream::new(&self.engine, &self.places, true)?))
    }

    fn series(&self, on_done: OnDone) -> Result<Arc<dyn Series>, GpuError> {
        Ok(Arc::new(series::CudaSeries::new(&self.engine.core, on_done)?))
    }

    unsafe fn is_captured(&self, stream: u64) -> bool {
        let stream = core::Raw(std::ptr::with_exposed_provenance_mut(stream as usize));
        self.engine.core.enter().is_ok() && core::is_captured(stream)
    }

    fn drain(&self) -> Result<(), GpuError> {
        self.engine.core.enter()?;
        series::drain(&self.engine.core)
    }

    fn simulation(&self) -> Option<&dyn Simulation> {
        None
    }
}

impl Drop for CudaGpu {
    fn drop(&mut self) {
        self.core.shut_down();
        self.engine.stops.close();
        self.engine.wake();
        let watcher = self.watcher.lock().take();
        // A callback on the watching thread may drop the last handle; the thread ends by itself then. Elsewhere this ends within the
        // grace that kernels have, and at once when the GPU is lost.
        if let Some(watcher) = watcher.filter(|w| w.thread().id() != std::thread::current().id()) {
            let mut lost_since = None;
            while !watcher.is_finished() {
                // Stuck in the driver, behind a kernel that runs on: it is left to the process's end.
                if self.core.lost().is_some() && lost_since.get_or_insert_with(Instant::now).elapsed() > LATE {
                    return;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            let _ = watcher.join();
        }
    }
}
