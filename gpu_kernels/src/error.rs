//! What can go wrong on a GPU, typed.

use std::path::PathBuf;
use std::time::Duration;

/// Coordinates of a block in its grid or of a thread in its block: x, y, z.
pub type Coordinates = [u32; 3];

/// An error of a GPU, its compiler or a launch. Cloned freely: one failed launch is reported to every waiter.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No host C++ compiler was found, so no kernel can be built.
    #[error(
        "no C++ compiler for kernels: tried {}; install g++ (Debian/Ubuntu: apt install g++) or set GPUVM_CXX to a compiler",
        tried.join(", ")
    )]
    CompilerMissing {
        /// The commands that were tried, in order.
        tried: Vec<String>,
    },
    /// A host C++ compiler is there, and does not run.
    #[error("cannot run the C++ compiler {command}: {cause}; {advice}")]
    CompilerUnusable {
        /// The command.
        command: String,
        /// What the system or the compiler said.
        cause: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// The kernel source does not compile.
    #[error("kernel source {file} does not compile:\n{log}")]
    Compile {
        /// The name of the source as the caller gave it.
        file: String,
        /// What the compiler said, with the caller's file names and lines.
        log: String,
    },
    /// The module has no kernel of this name.
    #[error("no kernel named `{name}` in {module}; it has: {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })]
    KernelNotFound {
        /// The name asked for.
        name: String,
        /// The source file the module was built from.
        module: String,
        /// Kernels that are there.
        known: Vec<String>,
    },
    /// A compiled kernel module could not be loaded.
    #[error("cannot load the kernel module of {module}: {cause}")]
    ModuleLoad {
        /// The source file the module was built from.
        module: String,
        /// What the loader said.
        cause: String,
    },
    /// Kernel arguments do not fit the kernel's parameters.
    #[error("invalid arguments for kernel `{kernel}`: {cause}")]
    BadArguments {
        /// The kernel.
        kernel: String,
        /// Which argument, what was given and what is wanted.
        cause: String,
    },
    /// A launch that its caller was to enqueue, and could not.
    #[error("the caller's function did not enqueue kernel `{kernel}`: {cause}")]
    NotEnqueued {
        /// What the caller calls it.
        kernel: String,
        /// What the caller says.
        cause: String,
    },
    /// A stream that launches cannot go on.
    #[error("the stream {stream:#x} cannot be used: {cause}")]
    BadStream {
        /// The `CUstream`.
        stream: u64,
        /// What is wrong with it.
        cause: String,
    },
    /// Device memory is used up.
    #[error(
        "out of GPU memory: asked for {asked} bytes, {free} of {capacity} are free; use less, or give the GPU more memory"
    )]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Bytes free, perhaps not in one piece.
        free: u64,
        /// Bytes of the whole GPU.
        capacity: u64,
    },
    /// Pinned host memory is used up.
    #[error(
        "out of host memory: asked for {asked} bytes of pinned memory; use less, or raise what this process may have"
    )]
    OutOfHostMemory {
        /// Bytes asked for.
        asked: u64,
    },
    /// An allocation that cannot be made at any time.
    #[error("invalid allocation of {bytes} bytes aligned to {align}: {cause}")]
    BadAllocation {
        /// Bytes asked for.
        bytes: u64,
        /// Alignment asked for, in bytes.
        align: u64,
        /// What is wrong with them.
        cause: String,
    },
    /// This GPU cannot do that at all.
    #[error("this GPU cannot {what}")]
    Unsupported {
        /// What was asked for.
        what: String,
    },
    /// Files cannot be read into the GPU's memory by the library for that.
    #[error(
        "cannot {what}: {why}; `gpuvm doctor` says what GPUDirect Storage is missing here; without it files go through host memory"
    )]
    FileAccess {
        /// What was tried, after "cannot".
        what: String,
        /// The library's reason, or the loader's.
        why: String,
    },
    /// A host access to GPU memory that no live allocation covers.
    #[error("{bytes} bytes at {addr:#x} are not inside one live allocation of this GPU")]
    BadAddress {
        /// First device address.
        addr: u64,
        /// Length of the access in bytes.
        bytes: u64,
    },
    /// A grid, block or shared memory size this GPU cannot launch.
    #[error("cannot launch kernel `{kernel}`: {cause}")]
    LaunchConfig {
        /// The kernel.
        kernel: String,
        /// Which value and its limit.
        cause: String,
    },
    /// A thread did what the processor refuses: wild pointer, stack overflow, integer division by zero.
    #[error("kernel `{kernel}` faulted in block {block:?}, thread {thread:?}: {what} at {address:#x}")]
    KernelFault {
        /// The kernel.
        kernel: String,
        /// Block index.
        block: Coordinates,
        /// Thread index in the block.
        thread: Coordinates,
        /// The data address for memory faults, the instruction's address else.
        address: u64,
        /// The kind of fault in words.
        what: String,
    },
    /// An `assert` in a kernel failed.
    #[error(
        "kernel `{kernel}`: assertion `{expression}` failed at {file}:{line} in block {block:?}, thread {thread:?}"
    )]
    Assert {
        /// The kernel.
        kernel: String,
        /// Block index.
        block: Coordinates,
        /// Thread index in the block.
        thread: Coordinates,
        /// The asserted expression.
        expression: String,
        /// Source file.
        file: String,
        /// Source line.
        line: u32,
    },
    /// A kernel called `__trap()`.
    #[error("kernel `{kernel}` called __trap() in block {block:?}, thread {thread:?}")]
    Trap {
        /// The kernel.
        kernel: String,
        /// Block index.
        block: Coordinates,
        /// Thread index in the block.
        thread: Coordinates,
    },
    /// A warp collective or block barrier was used against its rules.
    #[error("kernel `{kernel}`, block {block:?}, thread {thread:?}: {cause}")]
    Collective {
        /// The kernel.
        kernel: String,
        /// Block index.
        block: Coordinates,
        /// Thread index in the block.
        thread: Coordinates,
        /// The rule that was broken, with lanes and masks.
        cause: String,
    },
    /// Every live thread of a block waits for another one of them.
    #[error("deadlock in kernel `{kernel}`: all threads of a block wait for each other\n{report}")]
    Deadlock {
        /// The kernel.
        kernel: String,
        /// What the threads wait for, grouped.
        report: String,
    },
    /// The launch ran longer than its deadline.
    #[error("kernel `{kernel}` did not end within {}; its threads:\n{report}", seconds(*limit))]
    Deadline {
        /// The kernel.
        kernel: String,
        /// The deadline of the launch.
        limit: Duration,
        /// What the threads wait for, grouped.
        report: String,
    },
    /// The launch was stopped by its owner or because its GPU went away.
    #[error("kernel `{kernel}` was abandoned: {cause}")]
    Abandoned {
        /// The kernel.
        kernel: String,
        /// Who stopped it.
        cause: String,
    },
    /// The GPU handle was dropped; nothing can run on it any more.
    #[error("the GPU was shut down; keep it alive for as long as it is used")]
    ShutDown,
    /// A call of the GPU's driver or run-time compiler failed.
    #[error("cannot {what}: {name}: {text}{advice}")]
    Driver {
        /// What was tried.
        what: String,
        /// The driver's name of the error, such as `CUDA_ERROR_INVALID_VALUE`.
        name: String,
        /// The driver's text.
        text: String,
        /// What to do, starting with a separator, or nothing.
        advice: String,
    },
    /// A neighbour GPU that cannot be reached.
    #[error("GPU {ordinal} cannot hold memory for this GPU: {cause}")]
    NoPeer {
        /// The neighbour's ordinal.
        ordinal: u32,
        /// Why.
        cause: String,
    },
    /// The GPU's context died, and with it everything in its memory.
    #[error(
        "{gpu} is lost to this process: {cause}; what lay in its memory is gone, and a new process is needed to use it again"
    )]
    Lost {
        /// The GPU's name.
        gpu: String,
        /// What killed the context, with the driver's name and text.
        cause: String,
    },
    /// A call of the operating system failed.
    #[error("cannot {what}{}: {cause}", path.as_ref().map(|p| format!(" {}", p.display())).unwrap_or_default())]
    Io {
        /// What was tried.
        what: String,
        /// The file, when there is one.
        path: Option<PathBuf>,
        /// What the system said and what to do.
        cause: String,
    },
}

impl GpuError {
    /// An [`GpuError::Io`] for `what`, from the system's error.
    pub fn io(what: &str, path: Option<&std::path::Path>, cause: impl ToString) -> Self {
        Self::Io {
            what: what.to_owned(),
            path: path.map(Into::into),
            cause: cause.to_string(),
        }
    }
}

fn seconds(limit: Duration) -> String {
    format!("{:.3} s", limit.as_secs_f64())
}
