//! The first fault of a launch, as the device library recorded it.

use std::{fmt, time::Duration};

use gpuvm_layouts as layout;
use gpuvm_nic::wire::mlx5::Syndrome;

/// Why an access could not be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// An index at or past the array's length.
    OutOfRange {
        /// The index.
        index: u64,
        /// The array's length in elements.
        length: u64,
    },
    /// A pin or a prefetch that reaches past the array's end.
    SpanOutOfRange {
        /// The first index past the end that was asked for.
        index: u64,
        /// The array's length in elements.
        length: u64,
    },
    /// The fetch of the page completed with an error.
    Fetch,
    /// The page is in the error state: an earlier fetch failed.
    PageError,
    /// The write-back of the page completed with an error; the page is dirty in its frame still.
    WriteBack,
    /// Every frame stayed in use until the wait limit.
    FramesPinned {
        /// Frames of the virtual memory.
        frames: u64,
        /// Frames that lanes had pinned.
        pinned: u32,
        /// Frames whose page was being written back.
        written_back: u32,
        /// Frames whose page was being fetched.
        fetching: u32,
        /// Frames in the pool.
        free: u32,
    },
    /// A completion did not come within the wait limit.
    CompletionTimeout,
    /// Another warp's fetch of the page did not end within the wait limit.
    PageTimeout,
    /// No ring slot came free within the wait limit, neither for the page nor for others that its queues reach.
    QueueTimeout,
    /// Every queue pair that reaches the region's home is in the error state.
    QueuesFailed,
    /// More lanes hold the page than its word can count.
    TooManyPins,
    /// The page was fetched and does not have its checksum, and no other home has a good copy.
    Checksum,
    /// Both homes of the page are stale: a home was lost, and returned, and the other was lost before it was caught up.
    NoReplica,
    /// A code that this version does not know.
    Unknown {
        /// The code.
        code: u32,
    },
}

/// Instead of a multiprocessor: nothing knows which thread it was.
pub(crate) const NO_MULTIPROCESSOR: u32 = u32::MAX;

/// The first fault of a launch. Of an index past the end of an array that is looked up ([`Placement::LookUp`](crate::Placement)) the thread
/// is not known: `multiprocessor` is `u32::MAX` then, `block` and `thread` are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Why.
    pub kind: FaultKind,
    /// The region's name.
    pub region: String,
    /// The page of the region.
    pub page: u64,
    /// The transport that serves it.
    pub transport: &'static str,
    /// The machine that holds the page, and what is known to be wrong with it; nothing for this host.
    pub holder: Option<String>,
    /// What moves the transport's bytes had failed, and why.
    pub mover_failure: Option<String>,
    /// Queue pair, by its index in the virtual memory.
    pub queue: u32,
    /// The 64-bit index of the request, where one was posted.
    pub request: u64,
    /// Syndrome of the completion, or 0.
    pub syndrome: u8,
    /// The vendor's syndrome, or 0.
    pub vendor_syndrome: u8,
    /// How long the lane waited.
    pub waited: Duration,
    /// The lane's block, linear in the grid.
    pub block: u64,
    /// The lane's thread, linear in the block.
    pub thread: u32,
    /// The multiprocessor it ran on.
    pub multiprocessor: u32,
}

impl Fault {
    pub(crate) fn from_record(
        record: &layout::FaultRecord,
        region: String,
        transport: &'static str,
        holder: Option<String>,
    ) -> Self {
        let kind = match record.code {
            layout::FAULT_OUT_OF_RANGE => FaultKind::OutOfRange {
                index: record.index,
                length: record.size,
            },
            layout::FAULT_OUT_OF_RANGE_SPAN => FaultKind::SpanOutOfRange {
                index: record.index,
                length: record.size,
            },
            layout::FAULT_FETCH => FaultKind::Fetch,
            layout::FAULT_PAGE_ERROR => FaultKind::PageError,
            layout::FAULT_WRITE_BACK => FaultKind::WriteBack,
            layout::FAULT_FRAMES_PINNED => FaultKind::FramesPinned {
                frames: record.size,
                pinned: record.frames_pinned,
                written_back: record.frames_written_back,
                fetching: record.frames_fetching,
                free: record.frames_free,
            },
            layout::FAULT_COMPLETION_TIMEOUT => FaultKind::CompletionTimeout,
            layout::FAULT_PAGE_TIMEOUT => FaultKind::PageTimeout,
            layout::FAULT_QUEUE_TIMEOUT => FaultKind::QueueTimeout,
            layout::FAULT_QUEUES_FAILED => FaultKind::QueuesFailed,
            layout::FAULT_TOO_MANY_PINS => FaultKind::TooManyPins,
            layout::FAULT_CHECKSUM => FaultKind::Checksum,
            layout::FAULT_NO_REPLICA => FaultKind::NoReplica,
            code => FaultKind::Unknown { code },
        };
        Self {
            kind,
            region,
            page: record.page,
            transport,
            holder,
            mover_failure: None,
            queue: record.queue,
            request: record.index,
            syndrome: record.syndrome as u8,
            vendor_syndrome: record.vendor_syndrome as u8,
            waited: Duration::from_nanos(record.waited_ns),
            block: record.block,
            thread: record.thread,
            multiprocessor: record.multiprocessor,
        }
    }

    /// Whether what moves the pages can have to do with it.
    pub(crate) fn is_of_transport(&self) -> bool {
        !matches!(
            self.kind,
            FaultKind::OutOfRange { .. } | FaultKind::SpanOutOfRange { .. }
        )
    }

    fn cause(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            region,
            page,
            transport,
            queue,
            request,
            ..
        } = self;
        match self.kind {
            FaultKind::OutOfRange { index, length } => write!(
                f,
                "index {index} of region `{region}` is out of range: it has {length} elements"
            ),
            FaultKind::SpanOutOfRange { index, length } => write!(
                f,
                "a pin or prefetch of region `{region}` reaches index {index}: it has {length} elements"
            ),
            FaultKind::FramesPinned {
                frames,
                pinned,
                written_back,
                fetching,
                free,
            } => write!(
                f,
                "no frame for page {page} of region `{region}` within {:?}: of {frames} frames {pinned} are pinned, {written_back} being written back, \
                 {fetching} being filled, {free} free; {}",
                self.waited,
                // Nothing holds a page, yet none leaves: they are dirty and cannot be written back.
                if pinned == 0 && written_back == 0 {
                    "the remaining frames hold dirty pages that cannot be written back: salvage and drop the regions whose memory node is lost"
                } else {
                    "hold fewer spans at once or give the Vm more frame memory"
                }
            ),
            FaultKind::CompletionTimeout => write!(
                f,
                "request {request} for page {page} of region `{region}` on queue pair {queue} did not complete over {transport} within {:?}",
                self.waited
            ),
            FaultKind::PageTimeout => write!(
                f,
                "the fetch of page {page} of region `{region}` by another warp did not end within {:?}",
                self.waited
            ),
            FaultKind::QueueTimeout => write!(
                f,
                "timed out after {:?} waiting for a send queue slot for page {page} of region `{region}`; use more or deeper queue pairs",
                self.waited
            ),
            FaultKind::TooManyPins => write!(
                f,
                "page {page} of region `{region}` is pinned by more than {} threads; unpin it earlier, or launch fewer threads",
                layout::PINS_MAX
            ),
            FaultKind::Fetch
            | FaultKind::PageError
            | FaultKind::WriteBack
            | FaultKind::QueuesFailed
            | FaultKind::Checksum
            | FaultKind::NoReplica => self.cause_at_home(f),
            FaultKind::Unknown { code } => write!(f, "fault {code} at page {page} of region `{region}`"),
        }
    }

    /// The cause where a home, or the way there, did not do what was asked.
    fn cause_at_home(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            region,
            page,
            transport,
            queue,
            ..
        } = self;
        let syndrome = Syndrome::from(self.syndrome);
        match self.kind {
            FaultKind::Fetch => write!(
                f,
                "page {page} of region `{region}` could not be fetched over {transport}: {syndrome} on queue pair {queue}"
            ),
            FaultKind::PageError => write!(
                f,
                "page {page} of region `{region}` is in the error state, since an earlier fetch over {transport} failed: {syndrome} on queue pair {queue}"
            ),
            FaultKind::WriteBack => write!(
                f,
                "page {page} of region `{region}` could not be written back over {transport}: {syndrome} on queue pair {queue}; it stays in GPU memory"
            ),
            FaultKind::QueuesFailed => write!(
                f,
                "page {page} of region `{region}` cannot be reached: all its queue pairs over {transport} are in the error state"
            ),
            FaultKind::Checksum => write!(
                f,
                "page {page} of region `{region}` failed its checksum after a fetch over {transport}: bits have flipped at its home{} or in transfer",
                match self.vendor_syndrome {
                    0 => "",
                    _ => " (that of the second replica)",
                }
            ),
            FaultKind::NoReplica => write!(
                f,
                "no valid replica of page {page} of region `{region}` can be reached over {transport}"
            ),
            // Told by `cause`, which asks for the kinds above alone.
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause(f)?;
        if let Some(holder) = &self.holder {
            write!(f, ", at {holder}")?;
        }
        if let Some(failure) = &self.mover_failure {
            write!(f, ", because the GPU's copies failed: {failure}")?;
        }
        match self.multiprocessor {
            NO_MULTIPROCESSOR => Ok(()),
            _ => write!(f, " (block {}, thread {})", self.block, self.thread),
        }
    }
}
