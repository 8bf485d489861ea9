//! One launch as the device library sees it: its abort flag and the record of its first fault.

use bytemuck::{Pod, Zeroable};

use crate::{facts::shared_layout, vm::VmDesc};

/// No fault.
pub const FAULT_NONE: u32 = 0;
/// An index at or past the array's length.
pub const FAULT_OUT_OF_RANGE: u32 = 1;
/// The fetch of a page completed with an error.
pub const FAULT_FETCH: u32 = 2;
/// The page is in the error state since an earlier fetch failed.
pub const FAULT_PAGE_ERROR: u32 = 3;
/// Every frame stayed pinned until the wait limit.
pub const FAULT_FRAMES_PINNED: u32 = 4;
/// A completion did not come within the wait limit.
pub const FAULT_COMPLETION_TIMEOUT: u32 = 5;
/// Another warp's fetch of the page did not end within the wait limit.
pub const FAULT_PAGE_TIMEOUT: u32 = 6;
/// No ring slot came free within the wait limit.
pub const FAULT_QUEUE_TIMEOUT: u32 = 7;
/// Every queue pair that reaches the home is in the error state.
pub const FAULT_QUEUES_FAILED: u32 = 8;
/// More lanes than the page table entry counts hold one page.
pub const FAULT_TOO_MANY_PINS: u32 = 9;
/// The write-back of a page completed with an error; the page stays dirty in its frame.
pub const FAULT_WRITE_BACK: u32 = 10;
/// A prefetch, a pin or a slice that reaches past the array's end.
pub const FAULT_OUT_OF_RANGE_SPAN: u32 = 11;

/// A page was fetched and does not have its checksum, and no other home has a good copy.
pub const FAULT_CHECKSUM: u32 = 12;
/// Both homes of a page are stale: no good copy of it is left.
pub const FAULT_NO_REPLICA: u32 = 13;
/// Syndrome of a page in the error state whose data did not have its checksum. No NIC has it.
pub const SYNDROME_CHECKSUM: u32 = 0xfe;

/// What a lane waits for, as it tells the simulated GPU's watchdog: nothing.
pub const WAIT_NOTHING: u32 = 0;
/// The completion of a request: queue pair, index.
pub const WAIT_COMPLETION: u32 = 1;
/// Another warp's fetch of a page: page id.
pub const WAIT_PAGE: u32 = 2;
/// A frame for a page: page id.
pub const WAIT_FRAME: u32 = 3;
/// A ring slot: first queue pair of the region.
pub const WAIT_QUEUE: u32 = 4;
/// The write-back of a page: page id.
pub const WAIT_WRITE_BACK: u32 = 5;

/// The first fault of a launch: written once, by the lane that won `claim`, read by the host.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable, Default)]
pub struct FaultRecord {
    /// 0 free, 1 being written, 2 complete.
    pub claim: u32,
    /// `FAULT_*`.
    pub code: u32,
    /// Region index.
    pub region: u32,
    /// Queue pair index.
    pub queue: u32,
    /// Page of the region.
    pub page: u64,
    /// Element index (out of range), else the work queue entry's 64-bit index.
    pub index: u64,
    /// Array length in elements (out of range), else frames.
    pub size: u64,
    /// Nanoseconds waited.
    pub waited_ns: u64,
    /// Syndrome of the completion.
    pub syndrome: u32,
    /// Vendor syndrome of the completion.
    pub vendor_syndrome: u32,
    /// Block, linear in the grid.
    pub block: u64,
    /// Thread, linear in the block.
    pub thread: u32,
    /// Multiprocessor.
    pub multiprocessor: u32,
    /// Frames pinned, when all frames were pinned.
    pub frames_pinned: u32,
    /// Frames whose page was being written back then.
    pub frames_written_back: u32,
    /// Frames whose page was being fetched then.
    pub frames_fetching: u32,
    /// Frames in the pool then.
    pub frames_free: u32,
    /// Unused, to 128 bytes.
    pub reserved: [u64; 5],
}

/// State of one launch, in GPU memory. Descriptions in its arguments name `vm`: that is how lanes find it.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct LaunchState {
    /// The virtual memory, as this launch has it.
    pub vm: VmDesc,
    /// Not 0: slow paths end at once, `failed()` of arrays is true.
    pub abort: u32,
    /// Faults after the first.
    pub later_faults: u32,
    /// Not 0: a fault is told and ends nothing but what met it. The runtime's own kernels do each page for itself.
    pub continues: u32,
    /// Unused.
    pub pad: u32,
    /// Address of 32 bits in host memory: 1 once the first fault is told. The host need not read the rest where it is 0.
    pub told: u64,
    /// Address of the [`TimelineDesc`](crate::TimelineDesc); 0 without a timeline.
    pub timeline: u64,
    /// Unused, to the end of the line.
    pub reserved: [u32; 24],
    /// The first fault.
    pub fault: FaultRecord,
}

shared_layout! {
    FaultRecord: 128 {
        claim: 0, code: 4, region: 8, queue: 12, page: 16, index: 24, size: 32, waited_ns: 40, syndrome: 48,
        vendor_syndrome: 52, block: 56, thread: 64, multiprocessor: 68, frames_pinned: 72, frames_written_back: 76,
        frames_fetching: 80, frames_free: 84, reserved: 88,
    }
    LaunchState: 384 { vm: 0, abort: 128, later_faults: 132, continues: 136, pad: 140, told: 144, timeline: 152, reserved: 160, fault: 256, }
}
