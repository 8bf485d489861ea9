//! What lanes note of single events, for a timeline. Only programs of a virtual memory that asks for one know of it.

use bytemuck::{Pod, Zeroable};

use crate::facts::shared_layout;

/// A demand fetch: from the miss, which ended at `at_ns` and took `took` ticks.
pub const TIMELINE_FAULT: u32 = 1;
/// A page left its frame.
pub const TIMELINE_EVICTION: u32 = 2;
/// The write-back of a page was posted to a queue pair.
pub const TIMELINE_WRITE_POSTED: u32 = 3;
/// A page is written back. `took` is not 0 where a lane wrote it there itself.
pub const TIMELINE_WRITTEN: u32 = 4;
/// A fetch that nothing waits for was posted to a queue pair.
pub const TIMELINE_PREFETCH_POSTED: u32 = 5;
/// It has come.
pub const TIMELINE_PREFETCHED: u32 = 6;
/// A doorbell was rung, for all requests up to `page`.
pub const TIMELINE_DOORBELL: u32 = 7;

/// One event, in a ring of them.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Pod, Zeroable, Default)]
pub struct TimelineEvent {
    /// One plus the event's number, once the rest is written.
    pub number: u64,
    /// The page, as in the table of frames.
    pub page: u64,
    /// When it ended, by the GPU's global timer, in nanoseconds.
    pub at_ns: u64,
    /// How long it took, in the device's ticks.
    pub took: u32,
    /// Of a fault, in ticks from its beginning: when the page was claimed.
    pub claimed: u32,
    /// When a frame was there, and the request posted and the doorbell rung, or the copy under way.
    pub posted: u32,
    /// When the page's bytes were there.
    pub arrived: u32,
    /// `TIMELINE_*`.
    pub kind: u32,
    /// Of a fault: 1 when the page came, else 0.
    pub well: u32,
    /// The page's frame.
    pub frame: u32,
    /// The queue pair; all ones where lanes copy.
    pub queue: u32,
    /// The multiprocessor, and the warp's place there in the low 8 bits.
    pub place: u32,
    /// Of a fault: lanes that missed the page together.
    pub lanes: u32,
}

/// What changes of a ring of events.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Pod, Zeroable, Default)]
pub struct TimelineState {
    /// Events that were begun.
    pub head: u64,
    /// Those that the host has read. The host alone writes it.
    pub tail: u64,
    /// Events for which the ring had no room.
    pub dropped: u64,
    /// Unused, to the end of the line.
    pub reserved: [u64; 5],
}

/// The timeline of a GPU. It follows the [`crate::VmDesc`] in memory, where there is one.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Pod, Zeroable, Default)]
pub struct TimelineDesc {
    /// Address of the [`TimelineState`].
    pub state: u64,
    /// Address of the [`TimelineEvent`]s.
    pub events: u64,
    /// How many there are, less one: a power of two of them.
    pub mask: u32,
    /// Of 2^32 draws, those up to this one are noted.
    pub threshold: u32,
    /// Unused, to the end of the line.
    pub reserved: [u64; 5],
}

shared_layout! {
    TimelineEvent: 64 { number: 0, page: 8, at_ns: 16, took: 24, claimed: 28, posted: 32, arrived: 36, kind: 40, well: 44, frame: 48,
        queue: 52, place: 56, lanes: 60, }
    TimelineState: 64 { head: 0, tail: 8, dropped: 16, reserved: 24, }
    TimelineDesc: 64 { state: 0, events: 8, mask: 16, threshold: 20, reserved: 24, }
}
