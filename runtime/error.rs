//! What can go wrong, typed.

use std::{ops::Range, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use gpuvm_gpu::GpuError;
use gpuvm_memory_node::NodeError;
use gpuvm_nic::NicError;
use gpuvm_tenants::{AskError, TermsError};

use crate::{fault::Fault, slot_fault::SlotFault, tier_place::TierPlace};

/// Everything the runtime reports. Each error names the thing and the cause, and keeps what lies below as its source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of [`crate::VmBuilder`] that cannot be.
    #[error("{setting} is {value}: {reason}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What it has to be.
        reason: String,
    },
    /// A name that no setting has, of those by which [`crate::VmBuilder::named`] knows them.
    #[error("no setting is named `{name}`: {known}")]
    NoSetting {
        /// As given.
        name: String,
        /// The one that was meant, or all.
        known: String,
    },
    /// A GPU or a transport that this build cannot drive.
    #[error("{what} is not available: {reason}")]
    Unavailable {
        /// The GPU or transport.
        what: String,
        /// Why, and what to use instead.
        reason: String,
    },
    /// The GPU refused.
    #[error("the GPU failed while {doing}")]
    Gpu {
        /// What the runtime was doing.
        doing: String,
        /// The GPU's reason.
        #[source]
        source: GpuError,
    },
    /// The NIC refused.
    #[error("the NIC failed while {doing}")]
    Nic {
        /// What the runtime was doing.
        doing: String,
        /// The NIC's reason.
        #[source]
        source: NicError,
    },
    /// A memory node refused, or cannot be reached.
    #[error("a memory node failed while {doing}")]
    Node {
        /// What the runtime was doing.
        doing: String,
        /// The reason.
        #[source]
        source: NodeError,
    },
    /// A region's description that cannot be.
    #[error("region `{region}`: {reason}")]
    Region {
        /// The region's name.
        region: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Data for a region could not be read.
    #[error("region `{region}`: cannot read {from}")]
    Data {
        /// The region's name.
        region: String,
        /// The file or stream.
        from: String,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Two regions over the same memory or file, not both read-only: one would not see what the other writes back.
    #[error("region `{region}` overlaps region `{other}` in host memory; make both read-only, or use one region")]
    Overlap {
        /// The new region.
        region: String,
        /// The one that is there.
        other: String,
    },
    /// An access of the host past a region's or a buffer's end.
    #[error("elements {first}..{end} of `{name}` are out of range: it has {length}")]
    OutOfRange {
        /// The region or buffer.
        name: String,
        /// First element.
        first: u64,
        /// One past the last.
        end: u64,
        /// Its length in elements.
        length: u64,
    },
    /// Bytes of the host that are not whole elements of a region or a buffer.
    #[error("{bytes} bytes are not a multiple of the element size of `{name}`, {element_bytes} bytes ({element})")]
    PartOfAnElement {
        /// The region or buffer.
        name: String,
        /// The bytes that were given.
        bytes: usize,
        /// The element type's name.
        element: String,
        /// Bytes of an element.
        element_bytes: usize,
    },
    /// Arguments that do not fit the kernel.
    #[error("kernel `{kernel}`: {reason}")]
    Arguments {
        /// The kernel.
        kernel: String,
        /// Which argument, what was given, what is wanted.
        reason: String,
    },
    /// A kernel that was compiled with the program does not fit this library, or this virtual memory.
    #[error("kernel `{kernel}` cannot run here: {reason}")]
    DeviceCode {
        /// The kernel.
        kernel: String,
        /// What it was compiled with, what is needed, and what to do.
        reason: String,
    },
    /// A kernel on one GPU of a virtual memory was given memory that belongs to another: a buffer, or a region that cannot be shared.
    #[error(
        "kernel `{kernel}` runs on GPU {gpu} of the Vm, and {argument} belongs to GPU {of}: {reason}; make it by Vm::gpu({gpu}), or \
         launch a kernel of Vm::gpu({of})"
    )]
    OtherGpu {
        /// The kernel.
        kernel: String,
        /// The place of its GPU in the virtual memory.
        gpu: usize,
        /// What was given.
        argument: String,
        /// The place of the argument's GPU.
        of: usize,
        /// Why one GPU alone has it.
        reason: &'static str,
    },
    /// A GPU of the virtual memory is lost, and with it what its kernels had written to a region that other GPUs use as well. Told once,
    /// by the first launch or host access that would have needed those writes; from then on the region is what its home holds.
    #[error(
        "GPU {gpu} of the Vm is lost, and writes of its kernels to region `{region}` since the region's last flush may be lost with it; \
         the other GPUs go on with what the home holds: write the region anew, or compute it again"
    )]
    WritesLost {
        /// The region's name.
        region: String,
        /// The place of the GPU in the virtual memory.
        gpu: usize,
        /// What happened to the GPU.
        #[source]
        source: GpuError,
    },
    /// The launch declares more spans than the frames can carry: it could end with every frame pinned.
    #[error(
        "kernel `{kernel}` may hold {spans} spans at once in each of {holders} {holder}s, which needs {needed} frames; \
         there are {frames} of {} each: give the Vm more frame memory, launch fewer {holder}s, or hold fewer spans",
        ByteSize(*page_bytes).display().iec()
    )]
    Spans {
        /// The kernel.
        kernel: String,
        /// Spans a holder.
        spans: u64,
        /// Holders that can be resident at once.
        holders: u64,
        /// `thread` or `warp`.
        holder: &'static str,
        /// Frames needed.
        needed: u64,
        /// Frames there are.
        frames: u64,
        /// Bytes a frame.
        page_bytes: u64,
    },
    /// Accesses of a kernel, or a flush, could not be served.
    #[error("{kernel}: {fault}{}", if *later > 0 { format!(" ({later} more faults followed)") } else { String::new() })]
    Fault {
        /// The kernel, or the runtime's operation.
        kernel: String,
        /// The first fault.
        fault: Box<Fault>,
        /// Faults after it.
        later: u32,
    },
    /// The launch was stopped before its end, by `Launch::abort` or with another launch of the same virtual memory.
    #[error("{kernel} was stopped: {reason}; what it wrote is incomplete")]
    Stopped {
        /// The kernel.
        kernel: String,
        /// By what.
        reason: String,
    },
    /// Nothing more can be done with this virtual memory.
    #[error("this Vm can no longer be used: {reason}; build a new one")]
    Poisoned {
        /// What happened to it.
        reason: String,
    },
    /// The GPU's context died, or a kernel runs on it that cannot be stopped: nothing more can be done with this virtual
    /// memory, and what was only in GPU memory is gone.
    #[error("the GPU of this Vm is lost; {}", lost_writes(regions))]
    GpuLost {
        /// Writable regions that launches named since their last flush that was completed: their homes hold what had been
        /// written back, as [`crate::Region::read_home`] gives it.
        regions: Vec<String>,
        /// What happened to the GPU.
        #[source]
        source: GpuError,
    },
    /// What a mapped file's pages hold could not be written to the file.
    #[error("region `{region}`: cannot write {} from its map", path.display())]
    Sync {
        /// The region's name.
        region: String,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The file behind a region cannot be read or written, or the memory before it is short. What was written stays in memory.
    #[error("I/O error in the file that backs region `{region}`")]
    FileHome {
        /// The region's name.
        region: String,
        /// What happened.
        #[source]
        source: gpuvm_files::FileError,
    },
    /// The file cache cannot be allocated.
    #[error("cannot allocate the file cache of {bytes} bytes")]
    FileCache {
        /// Bytes that were asked for.
        bytes: u64,
        /// Why not.
        #[source]
        source: gpuvm_files::FileError,
    },
    /// A region has ended, and its memory may still be written or read: what lent memory may not take back.
    #[error(
        "region `{region}` has ended, but the NIC or the GPU may still reach its memory; leave memory that was lent to it as it is until the \
         process ends"
    )]
    StillReached {
        /// The region's name.
        region: String,
        /// Why it could not be taken from them.
        #[source]
        source: Box<Error>,
    },
    /// A thread could not be started.
    #[error("cannot start the thread that recovers queue pairs; raise the limit of threads (`ulimit -u`)")]
    Thread {
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// No copy of a page can be read: each is at a home that is lost, or that has not been caught up.
    #[error(
        "no valid replica of page {page} of region `{region}` can be reached; restart a memory node that holds one, and call Vm::catch_up"
    )]
    NoReplica {
        /// The region's name.
        region: String,
        /// The page.
        page: u64,
    },
    /// A page that the host was to change in part does not have its checksum at any home that can be reached.
    #[error(
        "page {page} of region `{region}` failed its checksum at {home}: bits have flipped there or in transfer; write the whole page, or \
         restart a memory node with a valid replica"
    )]
    Damaged {
        /// The region's name.
        region: String,
        /// The page.
        page: u64,
        /// The first home whose copy is damaged.
        home: String,
    },
    /// Borrowed memory cannot be given back yet: lanes that copied pages there have not ended.
    #[error(
        "{writers} threads still copy pages to the neighbour's memory after {} s; wait for the launches of this GPU or abort them, and give it back again",
        waited.as_secs_f64()
    )]
    StillWritten {
        /// Lanes.
        writers: u32,
        /// How long they were waited for.
        waited: Duration,
    },
    /// A GPU cannot give back its copy of a page of a broadcast array: it has the last one.
    #[error(
        "GPU {gpu} has the last copy of page {page} of broadcast array `{array}`: subscribe another GPU to it first"
    )]
    LastSubscriber {
        /// The array's name.
        array: String,
        /// The page.
        page: u64,
        /// The place of the GPU in the virtual memory.
        gpu: usize,
    },
    /// An elastic buffer cannot become longer than was said when it was made.
    #[error("elastic buffer `{buffer}` cannot grow to {wanted} elements: it was made for at most {max}")]
    BeyondMax {
        /// The buffer's name.
        buffer: String,
        /// Elements that it would have.
        wanted: u64,
        /// The most that it can have.
        max: u64,
    },
    /// An elastic buffer whose contents are in host memory.
    #[error("elastic buffer `{buffer}` is paused; resume tag `{tag}` first")]
    Paused {
        /// The buffer's name.
        buffer: String,
        /// Its tag.
        tag: String,
    },
    /// GPU memory is short of handles, and nothing gives one up.
    #[error(
        "out of GPU memory: {missing} of {wanted} allocations of {} failed{}{}; shrink, pause or drop buffers",
        ByteSize(*handle_bytes).display().iec(), held_by(holders), said_by(asked.as_deref())
    )]
    OutOfHandles {
        /// Handles that were asked for.
        wanted: u64,
        /// Those of them that could not be allocated.
        missing: u64,
        /// Bytes of a handle.
        handle_bytes: u64,
        /// Who holds how many bytes, of those who were asked.
        holders: Vec<(String, u64)>,
        /// Why other tenants of the GPU give none, where they were asked.
        asked: Option<Box<AskError>>,
        /// The GPU's reason.
        #[source]
        source: GpuError,
    },
    /// Chunks of a tiered buffer cannot go where they were to go, which is short of memory.
    #[error(
        "cannot move {chunks} chunks of tiered buffer `{buffer}`, {} each, to {place}, and none was moved: {resident} are on the GPU, \
         {away} in host memory; move fewer, or free memory there",
        ByteSize(*chunk_bytes).display().iec()
    )]
    NotMoved {
        /// The buffer's name.
        buffer: String,
        /// Chunks for which memory was wanted.
        chunks: u64,
        /// Bytes of a chunk.
        chunk_bytes: u64,
        /// Where they were to go.
        place: TierPlace,
        /// Its chunks on the GPU.
        resident: u64,
        /// Its chunks in host memory.
        away: u64,
        /// What was not had, and who holds it.
        #[source]
        source: Box<Error>,
    },
    /// GPU memory is short, and other tenants of the GPU keep what they hold.
    #[error("out of GPU memory for {doing}; use less, or lower the limits of other processes (`gpuvm tenants set`)")]
    Tenants {
        /// What it is for.
        doing: String,
        /// Who keeps how much, and why.
        #[source]
        source: Box<AskError>,
    },
    /// The environment's terms, on which this process shares GPUs with others, cannot be.
    #[error("an environment variable that configures GPU sharing is invalid; correct or unset it")]
    Terms {
        /// Which variable, and what is wrong with it.
        #[source]
        source: TermsError,
    },
    /// The host has no memory for what leaves a GPU.
    #[error("out of host memory: cannot allocate {} for elastic buffer `{buffer}`; pause fewer buffers at a time", ByteSize(*bytes).display().iec())]
    HostMemory {
        /// The buffer's name.
        buffer: String,
        /// Bytes that were asked for.
        bytes: u64,
        /// The allocator's reason.
        #[source]
        source: std::collections::TryReserveError,
    },
    /// The file of a timeline ([`crate::Timeline`]), before anything runs.
    #[error("cannot write the timeline {}: name a file in an existing, writable folder", path.display())]
    Timeline {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A file of the caller's.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Calls of a slot cache could not do all that was asked of them.
    #[error("slot cache `{cache}`: {fault}")]
    Slots {
        /// The cache's name.
        cache: String,
        /// What they met.
        fault: SlotFault,
    },
}

impl Error {
    /// Whether GPU memory is short, and who holds it was not asked or gives none: nothing was changed, and the same may work later.
    pub fn is_out_of_memory(&self) -> bool {
        let short = |source: &GpuError| matches!(source, GpuError::OutOfMemory { .. });
        match self {
            Self::Gpu { source, .. } | Self::OutOfHandles { source, .. } => short(source),
            Self::NotMoved { source, .. } => source.is_out_of_memory(),
            _ => false,
        }
    }
}

fn held_by(holders: &[(String, u64)]) -> String {
    let holders = holders
        .iter()
        .map(|(name, bytes)| format!("; {name} hold {}", ByteSize(*bytes).display().iec()));
    holders.collect()
}

fn said_by(tenants: Option<&AskError>) -> String {
    tenants.map_or_else(String::new, |asked| format!("; {asked}"))
}

fn lost_writes(regions: &[String]) -> String {
    if regions.is_empty() {
        return "every region's home holds all that was written".into();
    }
    let names: Vec<_> = regions.iter().map(|name| format!("`{name}`")).collect();
    format!(
        "writes since the last flush may be missing at the home of {}; Region::read_home reads what is there",
        names.join(", ")
    )
}

/// The runtime's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Whether a range of the host lies in what has this many elements.
///
/// # Errors
/// [`Error::OutOfRange`].
pub(crate) fn check_range(name: &str, range: &Range<u64>, length: u64) -> Result<()> {
    if range.start <= range.end && range.end <= length {
        return Ok(());
    }
    Err(Error::OutOfRange {
        name: name.to_owned(),
        first: range.start,
        end: range.end,
        length,
    })
}

/// Says what was being done when the GPU or the NIC refused.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for std::result::Result<T, GpuError> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Gpu { doing: what(), source })
    }
}

impl<T> Doing<T> for std::result::Result<T, NicError> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Nic { doing: what(), source })
    }
}

impl<T> Doing<T> for std::result::Result<T, NodeError> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Node { doing: what(), source })
    }
}
