//! Pages that come to frames while a launch runs that looks their places up and only reads them.

use bytemuck::{Pod, Zeroable};

use crate::facts::shared_layout;

/// Most regions whose pages come beside one launch.
pub const BESIDE_MAX: u32 = 8;
/// Pages that are watched together.
pub const BESIDE_SEGMENT: u32 = 16;

/// A region whose pages come.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct BesideRegion {
    /// Address of the entries that the launch looks up, one a page.
    pub entries: u64,
    /// Of rewritten kernels' entries: the first page's address in the window. Of places: 0.
    pub window: u64,
    /// Address of the marks that the launch sets, a byte a page.
    pub marks: u64,
    /// Address of a word a segment, zeros at first: its pages that were seen marked in this generation, in those before, and those that were asked for.
    pub segments: u64,
    /// Pages.
    pub pages: u64,
    /// Its index in the region table.
    pub region: u32,
    /// The frame of its first page where its frames are to follow each other, all bits set where they need not.
    pub run: u32,
}

/// What the kernel works on that brings pages beside a launch.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct BesideDesc {
    /// The first ones count.
    pub regions: [BesideRegion; BESIDE_MAX as usize],
    /// This many.
    pub count: u32,
    /// Blocks that watch marks; the others bring pages.
    pub watchers: u32,
    /// Address of a word in host memory: it ends when that is no less than `number`.
    pub stop: u64,
    /// Frames that are the kernel's, a bit each, and words of those.
    pub own: u64,
    /// Words at `own`.
    pub own_words: u64,
    /// Address of the ring of segments that were asked for, zeros at first.
    pub ring: u64,
    /// Its places, a power of two.
    pub ring_places: u64,
    /// It ends after this many nanoseconds, or this many without a mark.
    pub limit_ns: u64,
    /// See there.
    pub idle_ns: u64,
    /// How long a generation of marks lasts at least, nanoseconds.
    pub generation_ns: u64,
    /// Places of the ring that were taken.
    pub head: u64,
    /// Places of the ring that were filled, or are about to be.
    pub tail: u64,
    /// Below this word of `own` no frame is left.
    pub own_from: u64,
    /// When a mark was found last, on the GPU's clock.
    pub marked_at: u64,
    /// See `stop`.
    pub number: u32,
    /// Blocks that have ended.
    pub ended: u32,
    /// Not 0 when all blocks are to end.
    pub over: u32,
    /// Unused.
    pub reserved: u32,
    /// Pages that were brought.
    pub brought: u64,
}

shared_layout! {
    BesideRegion: 48 { entries: 0, window: 8, marks: 16, segments: 24, pages: 32, region: 40, run: 44, }
    BesideDesc: 512 { regions: 0, count: 384, watchers: 388, stop: 392, own: 400, own_words: 408, ring: 416, ring_places: 424, limit_ns: 432,
        idle_ns: 440, generation_ns: 448, head: 456, tail: 464, own_from: 472, marked_at: 480, number: 488, ended: 492, over: 496, reserved: 500, brought: 504, }
}
