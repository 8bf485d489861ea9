//! The traits every GPU implements, and the plain values they exchange.

mod files;
mod launch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use files::{FileAccess, GpuFile};
pub use launch::{Enqueue, LaunchConfig, LaunchOutcome, LaunchReport, LaunchTime, OnDone, Watch};

use crate::memory::{DeviceMemory, HostMemory, HostRegistration};
use crate::{GpuError, Simulation};

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
    /// For whom another device's writes are ordered without a flush: 0 for nothing, 100 for this GPU, 200 for all.
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
    /// An array of which several GPUs hold copies.
    Broadcast,
    /// A read-only array of which several GPUs hold copies.
    BroadcastConst,
    /// This many bytes of a kernel that came as PTX: a pointer is a number there, and so may be a structure.
    Bytes,
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
    /// The C++ type as the compiler spells it; of [`ParamKind::Bytes`] that of PTX, such as `.f32`.
    pub type_name: String,
}

impl ParamInfo {
    /// A parameter of a kernel that came as PTX, whose type is `type_name` there.
    pub fn of_ptx(bytes: u32, align: u32, type_name: &str) -> Self {
        Self {
            bytes,
            align,
            kind: ParamKind::Bytes,
            element_bytes: 0,
            element_kind: ParamKind::Other,
            element_align: 0,
            type_name: type_name.to_owned(),
        }
    }
}

/// A kernel of PTX, which describes no parameters by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxKernel {
    /// What it is asked for by.
    pub name: String,
    /// Its name in the text.
    pub symbol: String,
    /// Its parameters in order.
    pub params: Vec<ParamInfo>,
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
    /// With what its user compiled it: the layout version and the features of the device library. None for a kernel that the GPU compiled.
    pub compiled_with: Option<(u32, u32)>,
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

/// Memory of a GPU that its owner might lend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLeft {
    /// Bytes that nothing uses.
    pub free: u64,
    /// Bytes of all its memory.
    pub total: u64,
}

/// A GPU. All methods may be called from any thread.
pub trait Gpu: Send + Sync {
    /// What this GPU can do.
    fn capabilities(&self) -> Capabilities;

    /// Zeroed device memory. `align` is a power of two; addresses are at least 256-byte aligned.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] when no hole is large enough, [`GpuError::BadAllocation`] for zero bytes or a bad alignment.
    fn allocate(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError>;

    /// Zeroed device memory as [`allocate`](Self::allocate) gives it, which NICs of the machine can reach where this GPU's
    /// memory can be reached at all.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn allocate_for_nics(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError>;

    /// A part of one allocation of [`allocate_for_nics`](Self::allocate_for_nics), aligned to the system's pages, for a NIC to
    /// register.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] where this GPU has no dma-bufs, [`GpuError::BadAddress`], or the driver's error.
    fn export_dma_buf(&self, addr: u64, bytes: u64) -> Result<DmaBuf, GpuError>;

    /// Makes a device's registers, mapped into this process, reachable by kernels where they are. `host` and `bytes` are
    /// whole pages.
    ///
    /// # Errors
    /// The driver's error: mapping registers asks for rights, or for a driver that allows it.
    ///
    /// # Safety
    /// As for [`register_host`](Self::register_host).
    unsafe fn map_registers(&self, host: *mut u8, bytes: u64) -> Result<HostRegistration, GpuError>;

    /// Zeroed host memory that kernels can reach, page aligned. It does not count against device memory.
    ///
    /// # Errors
    /// [`GpuError::BadAllocation`] for zero bytes, [`GpuError::Io`] when the system refuses.
    fn allocate_host(&self, bytes: u64) -> Result<HostMemory, GpuError>;

    /// Such memory of the kind that lanes reach fastest at random places, for pages' homes; none where no kind is faster than memory of the
    /// system that is [registered](Self::register_host). Other GPUs reach it once it is registered with them. NICs do not, and copy
    /// engines are slow there.
    ///
    /// # Errors
    /// As [`allocate_host`](Self::allocate_host), and when a GPU is lost.
    fn allocate_home(&self, bytes: u64) -> Result<Option<HostMemory>, GpuError>;

    /// Copies `bytes` to device address `addr`. Not ordered with running kernels.
    ///
    /// # Errors
    /// [`GpuError::BadAddress`] unless one live allocation covers all of it.
    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), GpuError>;

    /// Zeroes device memory, and waits for no kernel.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    fn zero(&self, addr: u64, bytes: u64) -> Result<(), GpuError> {
        const ZEROS: &[u8] = &[0; 1 << 16];
        for start in (0..bytes).step_by(ZEROS.len()) {
            let length = (bytes - start).min(ZEROS.len() as u64) as usize;
            self.write(addr + start, &ZEROS[..length])?;
        }
        Ok(())
    }

    /// Copies from device address `addr` into `out`. Not ordered with running kernels.
    ///
    /// # Errors
    /// [`GpuError::BadAddress`] unless one live allocation covers all of it.
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), GpuError>;

    /// Whether all of this is memory that [`allocate`](Self::allocate) and its like have given: of GPUs, not of the host, pinned or not.
    fn is_device_memory(&self, addr: u64, bytes: u64) -> bool;

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

    /// Zeroed memory of this GPU that these neighbours reach, too. Unless a GPU says otherwise, they reach all of its memory.
    ///
    /// # Errors
    /// [`GpuError::NoPeer`], else as [`allocate`](Self::allocate).
    fn allocate_for(&self, ordinals: &[u32], bytes: u64) -> Result<DeviceMemory, GpuError> {
        let _ = ordinals;
        self.allocate(bytes, 256)
    }

    /// How much memory of the neighbour GPU `ordinal` is left, by all processes. It asks the driver and starts nothing on that GPU.
    ///
    /// # Errors
    /// [`GpuError::NoPeer`] when there is no such GPU, or no one who could say.
    fn memory_left(&self, ordinal: u32) -> Result<MemoryLeft, GpuError>;

    /// What names this GPU to other processes that use it, its UUID; none where this process has it for itself.
    fn shared_name(&self) -> Option<String> {
        None
    }

    /// How much of this GPU's memory is left, by all processes.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`], or the driver's error.
    fn own_memory(&self) -> Result<MemoryLeft, GpuError> {
        Err(GpuError::Unsupported {
            what: "say how much of its memory is free".into(),
        })
    }

    /// What processes hold of this GPU's memory, by their numbers, in bytes, as far as the driver says: it may name none, and numbers may be
    /// those of another namespace.
    fn memory_by_process(&self) -> Vec<(u32, u64)> {
        Vec::new()
    }

    /// Bytes of [`piece`](Self::piece)s that nothing has any more, and the driver neither, since kernels run.
    fn lingering_bytes(&self) -> u64 {
        0
    }

    /// Its own ordinal, as [`allocate_on`](Self::allocate_on) counts GPUs; none where its neighbours are counted apart.
    fn ordinal(&self) -> Option<u32> {
        None
    }

    /// A new line of copies that the host enqueues and does not wait for, for an engine that serves kernels. To be made
    /// before the first kernel that waits for such copies starts: it is made ready so that no later use of it waits for
    /// a kernel.
    ///
    /// # Errors
    /// The driver's error, [`GpuError::ShutDown`] when the GPU is gone.
    fn copier(&self) -> Result<Arc<dyn Copier>, GpuError>;

    /// The way by which blocks of files come into `memory`, which outlives it, past the host's memory where the system can do that.
    ///
    /// # Errors
    /// [`GpuError::FileAccess`] where the library for that is not there.
    fn file_access(&self, _memory: &DeviceMemory) -> Result<Arc<dyn FileAccess>, GpuError> {
        Err(GpuError::Unsupported {
            what: "read files into its memory".into(),
        })
    }

    /// Bytes of a [`Piece`] of this GPU's memory: what its page table maps at once.
    fn piece_bytes(&self) -> u64 {
        0
    }

    /// Memory of this GPU without an address, [`piece_bytes`](Self::piece_bytes) long. What it holds is unspecified.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::Unsupported`], or the driver's error.
    fn piece(&self) -> Result<Arc<dyn Piece>, GpuError> {
        Err(GpuError::Unsupported {
            what: "give memory in pieces".into(),
        })
    }

    /// Pinned memory of the host without an address, [`piece_bytes`](Self::piece_bytes) long, which lies in an [`AddressSpace`] beside pieces of
    /// this GPU's memory: kernels reach it there over the wire. What it holds is unspecified.
    ///
    /// # Errors
    /// [`GpuError::OutOfHostMemory`], [`GpuError::Unsupported`], or the driver's error.
    fn host_piece(&self) -> Result<Arc<dyn Piece>, GpuError> {
        Err(GpuError::Unsupported {
            what: "place host memory at addresses".into(),
        })
    }

    /// Addresses for `bytes` bytes, at which kernels of this GPU, and of those with these ordinals, reach the pieces that are placed there:
    /// pieces of any of them. This GPU's [`read`](Self::read) and [`write`](Self::write) reach them too.
    ///
    /// # Errors
    /// [`GpuError::NoPeer`] when one of them does not reach another's memory, [`GpuError::Unsupported`], or the driver's error.
    fn reserve(&self, bytes: u64, beside: &[u32]) -> Result<Arc<dyn AddressSpace>, GpuError> {
        let _ = (bytes, beside);
        Err(GpuError::Unsupported {
            what: "place memory at addresses".into(),
        })
    }

    /// Why nothing can run on this GPU any more, once that is so: a kernel trapped, the device was lost, or a kernel that
    /// cannot be stopped runs on.
    fn lost(&self) -> Option<GpuError>;

    /// Compiles `source` and finds the kernels named. A name may be qualified and may be a template-id, `spmv<float>`.
    ///
    /// # Errors
    /// [`GpuError::Compile`] with the compiler's log, [`GpuError::KernelNotFound`], [`GpuError::CompilerMissing`],
    /// [`GpuError::CompilerUnusable`], [`GpuError::Io`].
    fn compile(&self, source: &Source, kernels: &[&str], options: &CompileOptions)
    -> Result<Arc<dyn Module>, GpuError>;

    /// Loads a cubin, a fat binary or PTX that its user compiled, which messages call `name`, and finds the kernels named, each of which
    /// `GPUVM_EXPORT(kernel)` follows in its source.
    ///
    /// # Errors
    /// [`GpuError::ModuleLoad`] for a file that is none of these, is cut off or has such a kernel twice, [`GpuError::KernelNotFound`],
    /// [`GpuError::Unsupported`] where kernels come from source text alone, or the driver's error.
    fn load(&self, name: &str, image: &[u8], kernels: &[&str]) -> Result<Arc<dyn Module>, GpuError>;

    /// Loads PTX that knows nothing of gpuvm, which messages call `name`, and finds `kernels`. `variables` get their values before it returns.
    /// Functions that it calls and declares are those of `library`: CUDA C++, and how it is compiled.
    ///
    /// # Errors
    /// As of [`compile`](Self::compile) for the library;
    /// [`GpuError::ModuleLoad`] for a variable that is not there or has another size, [`GpuError::Unsupported`] where kernels come from source
    /// text alone, or the driver's error: what its assembler says.
    fn load_ptx(
        &self,
        name: &str,
        text: &str,
        kernels: &[PtxKernel],
        variables: &[(&str, &[u8])],
        library: Option<(&Source, &CompileOptions)>,
    ) -> Result<Arc<dyn Module>, GpuError> {
        let _ = (name, text, kernels, variables, library);
        Err(GpuError::Unsupported {
            what: "run PTX; it compiles CUDA C++".into(),
        })
    }

    /// A stream that others made and use: launches on it run in its order. `stream` is a `CUstream` or `cudaStream_t` of this GPU's
    /// primary context; 0, 1 and 2 are CUDA's default streams.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for a GPU without such streams, [`GpuError::BadStream`] for one of another context, [`GpuError::ShutDown`].
    ///
    /// # Safety
    /// It is live, and stays so until launches on it have ended and what this returns was dropped.
    unsafe fn borrow_stream(&self, stream: u64) -> Result<Arc<dyn Stream>, GpuError>;

    /// A new stream: its launches run in order, those of different streams beside each other.
    ///
    /// # Errors
    /// [`GpuError::ShutDown`] when the GPU is gone.
    fn stream(&self) -> Result<Arc<dyn Stream>, GpuError>;

    /// A new stream whose launches go before those of others that wait for multiprocessors, where the GPU has priorities.
    ///
    /// # Errors
    /// As [`stream`](Self::stream).
    fn urgent_stream(&self) -> Result<Arc<dyn Stream>, GpuError> {
        self.stream()
    }

    /// A series, which may have launches on any stream. `on_done` is called once when it has ended.
    ///
    /// # Errors
    /// [`GpuError::ShutDown`] when the GPU is gone.
    fn series(&self, on_done: OnDone) -> Result<Arc<dyn Series>, GpuError>;

    /// Whether a stream that others made is being captured into a graph.
    ///
    /// # Safety
    /// It is live.
    unsafe fn is_captured(&self, stream: u64) -> bool;

    /// Waits until all work of the GPU's context has ended, whatever enqueued it.
    ///
    /// # Errors
    /// [`GpuError::Lost`].
    fn drain(&self) -> Result<(), GpuError>;

    /// What this GPU does for machines that are simulated beside it; none for hardware.
    fn simulation(&self) -> Option<&dyn Simulation>;
}

/// Memory of one GPU, or of the host, that has no address before it is placed in an [`AddressSpace`]. It is given back when nothing holds it and it lies
/// nowhere any more.
pub trait Piece: Send + Sync {
    /// It as the type of its own GPU.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Addresses of one process, at which kernels of several GPUs reach pieces of their memory. Dropping it takes all pieces out; kernels that
/// use it must have ended by then.
pub trait AddressSpace: Send + Sync {
    /// First address, a multiple of the size of a piece.
    fn addr(&self) -> u64;

    /// Places pieces, each at its offset, a multiple of its size, instead of what lies there. One piece may lie at several offsets: a
    /// kernel that uses two of them needs fences between (PTX ISA, `fence.proxy.alias`). No kernel may use these addresses meanwhile.
    ///
    /// # Errors
    /// [`GpuError::BadAddress`] for an offset that is none, or the driver's error: then some may have been placed.
    fn place(&self, pieces: &[(u64, Arc<dyn Piece>)]) -> Result<(), GpuError>;

    /// Takes out the pieces that lie at these offsets; where nothing lies there is nothing to do. No kernel may use these addresses
    /// meanwhile, nor afterwards before something is placed there again.
    ///
    /// # Errors
    /// The driver's error: then some may lie there still.
    fn take(&self, offsets: &[u64]) -> Result<(), GpuError>;
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
    /// [`completed`](Self::completed) has counted the submit or this value is dropped. Nothing holds a Rust reference to
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
    fn blocks_per_multiprocessor(&self, threads: u32, dynamic_shared_bytes: u32) -> Result<Option<u32>, GpuError>;

    /// This kernel as the type of its own GPU.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// Launches that run one after the other.
pub trait Stream: Send + Sync {
    /// Enqueues a launch. `args` holds each parameter's raw bytes; `stop_word` is 0 or the device address of a 32-bit word
    /// that asks the kernel to stop when it is not 0; memory that the kernel reaches must live until `on_done` was called.
    ///
    /// # Errors
    /// [`GpuError::BadArguments`], [`GpuError::LaunchConfig`], [`GpuError::ShutDown`]; then `on_done` is never called.
    fn launch(
        &self,
        kernel: &Arc<dyn Kernel>,
        config: &LaunchConfig,
        args: &[&[u8]],
        stop_word: u64,
        on_done: OnDone,
    ) -> Result<Arc<dyn Launch>, GpuError>;

    /// A launch of what `enqueue` puts on this stream: kernels that this library did not compile. It is called once, on this thread, and
    /// uses nothing of this library meanwhile. `name` is for messages. `stop_word` and `on_done` as for [`launch`](Self::launch).
    /// On the simulated GPU it is the launch that `enqueue` makes, on whatever stream: it goes on this one.
    ///
    /// # Errors
    /// [`GpuError::NotEnqueued`] with what `enqueue` says, after whatever it had enqueued has ended, and perhaps after `on_done`;
    /// [`GpuError::BadArguments`], [`GpuError::ShutDown`].
    fn launch_by(
        &self,
        name: &str,
        watch: Watch,
        stop_word: u64,
        enqueue: Enqueue<'_>,
        on_done: OnDone,
    ) -> Result<Arc<dyn Launch>, GpuError>;

    /// Has launches from now on run behind the work that a stream of others has now.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] for a GPU without such streams, [`GpuError::BadStream`] for one that is being captured, the driver's.
    ///
    /// # Safety
    /// It is live, and of this GPU's primary context.
    unsafe fn follow(&self, stream: u64) -> Result<(), GpuError>;

    /// The stream as its driver knows it, a `CUstream`; none of a GPU without a driver.
    fn raw(&self) -> Option<u64>;

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

/// What became of a launch of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It is on its stream.
    Enqueued,
    /// Its stream is captured: it runs with each launch of the graph, of which the library is not told.
    Captured,
    /// The series has ended: nothing was enqueued.
    Over,
}

/// Launches that are not told apart: each is on the stream that its caller says, nothing watches it, and all end together, when somebody waits
/// for the series. It costs the host a call of the driver. For kernels that wait for nothing, and so need no one to stop them.
///
/// As a [`Launch`]: a wait without a limit ends the series; others do not.
pub trait Series: Launch {
    /// Enqueues a launch.
    ///
    /// # Errors
    /// [`GpuError::BadArguments`], [`GpuError::LaunchConfig`], the driver's.
    ///
    /// # Safety
    /// `stream` is live, and one of the GPU's primary context; GPUs that are none of a driver's take none. What the kernel reaches lives until the
    /// series has ended, and of a launch that is captured as long as its graph is launched.
    unsafe fn launch(
        &self,
        stream: u64,
        kernel: &Arc<dyn Kernel>,
        config: &LaunchConfig,
        args: &[&[u8]],
    ) -> Result<Put, GpuError>;

    /// Has what is enqueued on `stream` from now on run behind the last launch of this on `earlier`. Not if that was captured, nor while `stream`
    /// is: a graph is ordered by who launches it.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `stream` is as for [`launch`](Self::launch).
    unsafe fn follow(&self, stream: u64, earlier: u64) -> Result<(), GpuError>;

    /// It as a launch.
    fn as_launch(self: Arc<Self>) -> Arc<dyn Launch>;
}
