//! The traits every GPU implements, and the plain values they exchange.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::GpuError;

/// What a GPU can do. All sizes are in bytes.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// The name to show to a user.
    pub name: String,
    /// Streaming multiprocessors; worker threads on the simulated GPU.
    pub sm_count: u32,
    /// Lanes of a warp, 32.
    pub warp_size: u32,
    /// Most threads of one block.
    pub max_threads_per_block: u32,
    /// Lanes of one launch that can be resident at once over the whole GPU.
    pub max_resident_lanes: u32,
    /// Most shared memory of one block, static and dynamic together.
    pub shared_bytes_per_block: u32,
    /// Device memory.
    pub memory_bytes: u64,
    /// Whether one seed gives one interleaving.
    pub deterministic: bool,
    /// Compute capability, major and minor; none on the simulated GPU.
    pub compute_capability: Option<(u32, u32)>,
    /// How often the device library's `ticks()` counts in a microsecond: the multiprocessors' clock on an NVIDIA GPU.
    pub ticks_per_us: f64,
    /// What NICs of the machine may do with its memory; none on the simulated GPU, whose memory is this process's.
    pub for_nics: Option<ForNics>,
}

/// What NICs of the machine may do with a GPU's memory, as its driver says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForNics {
    /// Where the GPU sits: domain, bus, device, function, as sysfs writes them (`0000:17:00.0`).
    pub pci_address: String,
    /// Whether another device can reach its memory at all.
    pub rdma: bool,
    /// Whether its memory can be exported as dma-bufs.
    pub dma_buf: bool,
    /// For whom another device's writes are ordered without a flush: 0 for nobody, 100 for this GPU, 200 for all.
    pub writes_ordered_for: u32,
}

impl ForNics {
    /// Whether kernels see a NIC's writes in the order in which it made them. Where they do not, a completion says nothing
    /// of the data.
    pub fn writes_ordered(&self) -> bool {
        // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
        self.writes_ordered_for >= 100
    }
}

/// A part of a GPU's memory as a dma-buf.
#[derive(Debug)]
pub struct DmaBuf {
    /// The descriptor. May be closed once the memory is registered.
    pub fd: std::os::fd::OwnedFd,
    /// Where the part begins in it, in bytes.
    pub offset: u64,
}

/// Kernel source text.
#[derive(Clone, Debug)]
pub struct Source {
    /// File name shown in error messages.
    pub name: String,
    /// CUDA C++ text.
    pub text: String,
}

impl Source {
    /// Source `text` that error messages call `name`.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            text: text.into(),
        }
    }
}

/// How a source is compiled. The crate's own [`headers`](crate::headers()) are always there.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Directories searched for `#include`, in order.
    pub include_dirs: Vec<PathBuf>,
    /// Extra headers as (path for `#include`, text).
    pub headers: Vec<(String, String)>,
    /// Macros as (name, value); without a value the macro is 1.
    pub defines: Vec<(String, Option<String>)>,
    /// Compile for a debugger: symbols, no optimisation.
    pub debug: bool,
}

/// What a kernel parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParamKind {
    /// A signed integer.
    Signed,
    /// An unsigned integer, `bool` or a character.
    Unsigned,
    /// `float` or `double`.
    Float,
    /// Any other type that is passed by value: a struct, an enumeration.
    Other,
    /// A pointer.
    Pointer,
    /// A paged array that may be written.
    PagedArray,
    /// A read-only paged array.
    PagedArrayConst,
}

/// One parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamInfo {
    /// Size in bytes.
    pub bytes: u32,
    /// Alignment in bytes.
    pub align: u32,
    /// What it is.
    pub kind: ParamKind,
    /// Size of what a pointer or an array holds, in bytes; 0 for others and for `void*`.
    pub element_bytes: u32,
    /// Class of what a pointer or an array holds: signed, unsigned, float or other.
    pub element_kind: ParamKind,
    /// Alignment of what a pointer or an array holds, in bytes; 0 when unknown.
    pub element_align: u32,
    /// The C++ type as the compiler spells it.
    pub type_name: String,
}

/// What is known of a compiled kernel.
#[derive(Clone, Debug)]
pub struct KernelInfo {
    /// The name it was asked for by, a template-id included.
    pub name: String,
    /// Static shared memory of a block in bytes. On the simulated GPU that of the whole module.
    pub static_shared_bytes: u32,
    /// Parameters in order.
    pub params: Vec<ParamInfo>,
    /// What a thread and a block of it take of a multiprocessor; none on the simulated GPU.
    pub resources: Option<KernelResources>,
}

/// What a compiled kernel takes of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelResources {
    /// Registers of a thread.
    pub registers: u32,
    /// Local memory of a thread in bytes: its stack, spilled registers included.
    pub local_bytes: u32,
    /// Static shared memory of a block in bytes.
    pub static_shared_bytes: u32,
    /// Most threads of a block, by the registers that a thread takes and the kernel's launch bounds.
    pub max_threads_per_block: u32,
}

/// The shape of a launch.
#[derive(Clone, Debug)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub dynamic_shared_bytes: u32,
    /// Longest time the launch may run, counted from when it starts; none: no limit.
    pub deadline: Option<Duration>,
}

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads in x, no dynamic shared memory, no deadline.
    pub fn linear(blocks: u32, threads: u32) -> Self {
        Self {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            dynamic_shared_bytes: 0,
            deadline: None,
        }
    }

    /// Dynamic shared memory of a block in bytes.
    #[must_use]
    pub fn dynamic_shared(mut self, bytes: u32) -> Self {
        self.dynamic_shared_bytes = bytes;
        self
    }

    /// Longest time the launch may run.
    #[must_use]
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.deadline = Some(limit);
        self
    }
}

/// What a finished launch tells.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LaunchReport {
    /// Blocks that ran to their end.
    pub blocks: u64,
    /// From the start of the launch to its last block's end; virtual time in the seeded mode.
    pub elapsed: Duration,
    /// Hash of the interleaving, in the seeded mode only.
    pub trace_hash: Option<u64>,
}

/// How a launch ended.
pub type LaunchOutcome = Result<LaunchReport, GpuError>;

/// Called once when a launch has ended, before its waiters wake. It must not wait for that launch.
pub type OnDone = Box<dyn FnOnce(&LaunchOutcome) + Send>;

/// Called after a store into a watched page with the store's device address.
pub type OnStore = Arc<dyn Fn(u64) + Send + Sync>;

/// A GPU. All methods may be called from any thread.
pub trait Gpu: Send + Sync {
    /// What this GPU can do.
    fn capabilities(&self) -> Capabilities;

    /// Zeroed device memory. `align` is a power of two; addresses are at least 256-byte aligned.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] when no hole is large enough, [`GpuError::BadAllocation`] for zero bytes or a bad alignment.
    fn allocate(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError>;

    /// The same for memory that NICs of the machine are to reach.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn allocate_for_nics(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        self.allocate(bytes, align)
    }

    /// A part of one allocation of [`allocate_for_nics`](Self::allocate_for_nics), aligned to the system's pages, for a NIC to
    /// register.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] where this GPU has no dma-bufs, [`GpuError::BadAddress`], or the driver's error.
    fn export_dma_buf(&self, addr: u64, bytes: u64) -> Result<DmaBuf, GpuError> {
        let _ = (addr, bytes);
        Err(GpuError::Unsupported {
            what: "export its memory as dma-bufs".into(),
        })
    }

    /// Makes a device's registers, mapped into this process, reachable by kernels where they are. `host` and `bytes` are
    /// whole pages.
    ///
    /// # Errors
    /// The driver's error: mapping registers asks for rights, or for a driver that allows it.
    ///
    /// # Safety
    /// As for [`register_host`](Self::register_host).
    unsafe fn map_registers(&self, host: *mut u8, bytes: u64) -> Result<HostRegistration, GpuError> {
        // SAFETY: the caller's promise. Kernels that run on the processor reach what the process does.
        unsafe { self.register_host(host, bytes, false) }
    }

    /// Zeroed host memory that kernels can reach, page aligned. It does not count against device memory.
    ///
    /// # Errors
    /// [`GpuError::BadAllocation`] for zero bytes, [`GpuError::Io`] when the system refuses.
    fn allocate_host(&self, bytes: u64) -> Result<HostMemory, GpuError>;

    /// Copies `bytes` to device address `addr`. Not ordered with running kernels.
    ///
    /// # Errors
    /// [`GpuError::BadAddress`] unless one live allocation covers all of it.
    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), GpuError>;

    /// Copies from device address `addr` into `out`. Not ordered with running kernels.
    ///
    /// # Errors
    /// [`GpuError::BadAddress`] unless one live allocation covers all of it.
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), GpuError>;

    /// Makes memory of this process reachable by kernels where it is: pinned and mapped on an NVIDIA GPU. `host` needs no alignment.
    ///
    /// # Errors
    /// [`GpuError::Io`] or the driver's error when the memory cannot be pinned (a limit, or memory that a driver owns), or
    /// when it cannot be written and the GPU has no read-only registration.
    ///
    /// # Safety
    /// The memory stays valid until the registration is dropped. Until then kernels may read it and, unless `read_only`, write
    /// it at any time: no Rust reference may assume otherwise.
    unsafe fn register_host(&self, host: *mut u8, bytes: u64, read_only: bool) -> Result<HostRegistration, GpuError>;

    /// Zeroed memory of the neighbour GPU `ordinal` that kernels of this GPU reach by loads and stores. `read` and `write`
    /// reach it too.
    ///
    /// # Errors
    /// [`GpuError::NoPeer`] when there is no such GPU or no path to it, else as [`allocate`](Self::allocate).
    fn allocate_on(&self, ordinal: u32, bytes: u64) -> Result<DeviceMemory, GpuError>;

    /// A new line of copies that the host enqueues and does not wait for, for an engine that serves kernels. To be made
    /// before the first kernel that waits for such copies starts: it is made ready so that no later use of it waits for
    /// a kernel.
    ///
    /// # Errors
    /// The driver's error, [`GpuError::ShutDown`] when the GPU is gone.
    fn copier(&self) -> Result<Arc<dyn Copier>, GpuError>;

    /// Why nothing can run on this GPU any more, once that is so: a kernel trapped, the device was lost, or a kernel that
    /// cannot be stopped runs on.
    fn lost(&self) -> Option<GpuError> {
        None
    }

    /// Compiles `source` and finds the kernels named. A name may be qualified and may be a template-id, `spmv<float>`.
    ///
    /// # Errors
    /// [`GpuError::Compile`] with the compiler's log, [`GpuError::KernelNotFound`], [`GpuError::CompilerMissing`], [`GpuError::Io`].
    fn compile(&self, source: &Source, kernels: &[&str], options: &CompileOptions)
    -> Result<Arc<dyn Module>, GpuError>;

    /// A new stream: its launches run in order, those of different streams beside each other.
    ///
    /// # Errors
    /// [`GpuError::ShutDown`] when the GPU is gone.
    fn stream(&self) -> Result<Arc<dyn Stream>, GpuError>;

    /// After a device library's register store (`gpuvm_sim::mmio_store64`) into one of `pages`, given as (first address, bytes),
    /// calls `on_store` with the address, on the thread that runs the lane. It stays for the life of the GPU. On a GPU whose stores reach
    /// registers by themselves this does nothing.
    fn watch_stores(&self, pages: &[(u64, u64)], on_store: OnStore);

    /// Adds an engine that the scheduler of a deterministic GPU steps between lanes. Other GPUs never step it.
    fn attach(&self, actor: Arc<dyn Actor>);

    /// How a watchdog's report words what a lane waits for, from the note's code and two values. GPUs without such notes
    /// ignore it.
    fn set_note_formatter(&self, format: NoteFormatter) {
        drop(format);
    }

    /// The simulated GPU behind this, for what only that knows: virtual time, races, events. None on any other.
    fn as_simulated(&self) -> Option<&crate::sim::SimGpu> {
        None
    }
}

/// One copy: `bytes` bytes from address `from` to address `to`. Addresses are this GPU's or, for memory that it allocated or
/// registered, this process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySpan {
    /// First byte written.
    pub to: u64,
    /// First byte read.
    pub from: u64,
    /// Length in bytes. A copy of none is no copy.
    pub bytes: u64,
}

/// Copies in order, made beside whatever kernels run. Dropping it waits for those in flight.
pub trait Copier: Send + Sync {
    /// Enqueues copies and returns. Those of `data` have no order among themselves; those of `then` neither, and begin when
    /// all of `data` and of earlier submits have arrived. With more than [`COPIES_IN_FLIGHT_MAX`] submits in flight it waits
    /// for the oldest.
    ///
    /// # Errors
    /// The driver's error. No byte of this submit moves any more then, and it is not counted as completed.
    ///
    /// # Safety
    /// Every span is memory of this GPU, or host memory that it allocated or registered, writable where it is written, until
    /// [`completed`](Self::completed) has counted the submit or this value is dropped. Nobody holds a Rust reference to
    /// what is written, nor one to what is read that lets it change otherwise than by atomics.
    unsafe fn submit(&self, data: &[CopySpan], then: &[CopySpan]) -> Result<(), GpuError>;

    /// How many submits have arrived, of those that returned `Ok`; they arrive in order. Does not wait.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and such: nothing moves any more.
    fn completed(&self) -> Result<u64, GpuError>;
}

/// Submits of one [`Copier`] that can be in flight without waiting.
pub const COPIES_IN_FLIGHT_MAX: usize = 64;

/// Words for what a lane waits for, from the note's code and two values.
pub type NoteFormatter = Arc<dyn Fn(u32, u64, u64) -> String + Send + Sync>;

/// An engine, such as a NIC's, that a deterministic GPU steps.
pub trait Actor: Send + Sync {
    /// Does at most one small piece of work; false when there was nothing to do. It must not block.
    fn step(&self) -> bool;

    /// The same, told the GPU's time in nanoseconds, which never steps back.
    fn step_at(&self, now_ns: u64) -> bool {
        let _ = now_ns;
        self.step()
    }
}

/// What a deterministic GPU is about to do, or has just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A lane is about to make an access of its kernel to memory that others see, or has completed a collective.
    Lane {
        /// Number of the launch, from 0 on.
        launch: u32,
        /// Number of the block in its grid.
        block: u32,
        /// Number of the thread in its block.
        thread: u32,
    },
    /// An [`Actor`] has been stepped.
    Actor {
        /// Its number, in the order of [`Gpu::attach`].
        number: u32,
        /// What it answered.
        did: bool,
    },
    /// The scheduler goes on after host threads ran, which may have changed anything.
    Host,
}

/// Watches a deterministic GPU: called before every access of a lane, after every step of an actor, and when the
/// scheduler goes on after it had stood still. Between two calls one lane made one access at most, and stores that the
/// memory model had delayed became visible. A GPU without a seed never calls it.
pub trait Observer: Send + Sync {
    /// Something happens at virtual time `now_ns`. Called on the scheduler's thread, on a lane's stack of 128 KiB perhaps: it must
    /// neither block nor use a GPU. It may read device memory, which no one writes meanwhile.
    fn step(&self, now_ns: u64, step: Step);
}

/// A compiled source.
pub trait Module: Send + Sync {
    /// The kernel that was asked for at compile time as `name`.
    ///
    /// # Errors
    /// [`GpuError::KernelNotFound`] for any other name.
    fn kernel(&self, name: &str) -> Result<Arc<dyn Kernel>, GpuError>;
}

/// A kernel that can be launched on the GPU that compiled it.
pub trait Kernel: Send + Sync {
    /// Its name and parameters.
    fn info(&self) -> &KernelInfo;

    /// Blocks of `threads` threads and `dynamic_shared_bytes` that one multiprocessor holds at once; none where no
    /// hardware limits that.
    ///
    /// # Errors
    /// The driver's error.
    fn blocks_per_multiprocessor(&self, threads: u32, dynamic_shared_bytes: u32) -> Result<Option<u32>, GpuError> {
        let _ = (threads, dynamic_shared_bytes);
        Ok(None)
    }

    /// This kernel as the type of its own GPU.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Launches that run one after the other.
pub trait Stream: Send + Sync {
    /// Enqueues a launch. `args` holds each parameter's raw bytes; `launch_state` is what the device library's `launch_state()` returns
    /// in it, 0 or the device address of a structure whose first 32-bit word asks the kernel to stop when it is not 0; memory
    /// that the kernel reaches must live until `on_done` was called.
    ///
    /// # Errors
    /// [`GpuError::BadArguments`], [`GpuError::LaunchConfig`], [`GpuError::ShutDown`]; then `on_done` is never called.
    fn launch(
        &self,
        kernel: &Arc<dyn Kernel>,
        config: &LaunchConfig,
        args: &[&[u8]],
        launch_state: u64,
        on_done: OnDone,
    ) -> Result<Arc<dyn Launch>, GpuError>;

    /// Waits until every launch of this stream has ended.
    ///
    /// # Errors
    /// The first error of a launch that ended since the last call.
    fn synchronize(&self) -> Result<(), GpuError>;
}

/// A launch that was enqueued.
pub trait Launch: Send + Sync {
    /// Waits for the end, at most `timeout`; none when the time was up first.
    fn wait(&self, timeout: Option<Duration>) -> Option<LaunchOutcome>;

    /// Whether it has ended.
    fn is_done(&self) -> bool;

    /// Stops it: its lanes are dropped where they stand, without running destructors. Returns at once; the launch ends with
    /// [`GpuError::Abandoned`] soon after, unless it ended first.
    fn abandon(&self);
}

/// What gives memory back when its owner is dropped.
pub(crate) trait Release: Send + Sync {
    /// Gives the allocation at `addr` back.
    fn release(&self, addr: u64);
}

/// Device memory, given back when dropped. Kernels that use it must have ended by then.
pub struct DeviceMemory {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    pub(crate) owner: Arc<dyn Release>,
}

impl DeviceMemory {
    /// First device address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Size in bytes as asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.owner.release(self.addr);
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceMemory({:#x}, {} bytes)", self.addr, self.bytes)
    }
}

/// Memory of this process that kernels reach in place, until this is dropped. Kernels that use it must have ended by then.
pub struct HostRegistration {
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) bytes: u64,
    pub(crate) owner: Option<Arc<dyn Release>>,
}

impl HostRegistration {
    /// First byte for kernels.
    pub fn device_addr(&self) -> u64 {
        self.device
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        if let Some(owner) = &self.owner {
            owner.release(self.host);
        }
    }
}

impl std::fmt::Debug for HostRegistration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostRegistration({:#x}, {} bytes)", self.device, self.bytes)
    }
}

/// Host memory that kernels can reach, given back when dropped. Kernels that use it must have ended by then.
pub struct HostMemory {
    pub(crate) host: *mut u8,
    pub(crate) device: u64,
    pub(crate) bytes: u64,
    pub(crate) owner: Arc<dyn Release>,
}

// SAFETY: HostMemory is the only owner of the mapping; it hands out a raw pointer only, and who dereferences that keeps Rust's rules.
unsafe impl Send for HostMemory {}
// SAFETY: as for Send; no method of a shared HostMemory touches the bytes.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// First byte for the host. Valid until this value is dropped; kernels may change the bytes at any time.
    pub fn host_ptr(&self) -> *mut u8 {
        self.host
    }

    /// First byte for kernels.
    pub fn device_addr(&self) -> u64 {
        self.device
    }

    /// Size in bytes as asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl HostMemory {
    /// The 32-bit word at `index`, which host and kernels may share; none past the end.
    pub fn word(&self, index: usize) -> Option<&AtomicU32> {
        let end = (index as u64 + 1).checked_mul(4)?;
        // SAFETY: the mapping is page aligned, holds the word whole, and lives as long as `self`. Kernels change it by
        // word-sized accesses, as an atomic allows.
        (end <= self.bytes).then(|| unsafe { AtomicU32::from_ptr(self.host.cast::<u32>().add(index)) })
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.owner.release(self.device);
    }
}

impl std::fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostMemory({:#x}, {} bytes)", self.device, self.bytes)
    }
}
