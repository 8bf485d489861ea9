//! Arrays of which each subscribed GPU holds a copy.

use bytemuck::{Pod, Zeroable};

use crate::facts::shared_layout;

/// Most GPUs, and so views, of a broadcast array.
pub const BROADCAST_VIEWS_MAX: u32 = 16;
/// Bits of a page's entry: the views to store to besides the GPU's own.
pub const BROADCAST_OTHERS_MASK: u32 = (1 << BROADCAST_VIEWS_MAX) - 1;
/// Where a page's entry holds the view by which this GPU reaches the owner's copy.
pub const BROADCAST_OWNER_SHIFT: u32 = BROADCAST_VIEWS_MAX;
/// For [`BroadcastDesc::others`]: pages differ, so that a store looks at its page's entry.
pub const BROADCAST_BY_PAGE: u32 = 0x8000_0000;
/// Parts of an array, of which the kernel's argument says whether stores there go to other views.
pub const BROADCAST_PARTS: u32 = 64;
/// Bytes of a line, base-two logarithm: what leaves a GPU at once, and what a mark stands for.
pub const BROADCAST_LINE_SHIFT: u32 = 7;

/// The kernel argument behind `gpuvm::broadcast<T>`, on one GPU. Each GPU has a view of the array: addresses at which a page is its own
/// copy if it subscribed to the page, else the owner's. The views of one array lie side by side.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct BroadcastDesc {
    /// Address of element 0 in this GPU's view.
    pub own: u64,
    /// Elements.
    pub length: u64,
    /// Address of element 0 in view 0.
    pub views: u64,
    /// Bytes from one view to the next.
    pub stride: u64,
    /// Address of 32 bits a page, its entry: `BROADCAST_OTHERS_MASK`, `BROADCAST_OWNER_SHIFT`. The host alone writes them, while no launch
    /// uses the array.
    pub pages: u64,
    /// Address of a byte a page, in this GPU's memory: 1 once this GPU has read there. 0 where reads are not tracked.
    pub reads: u64,
    /// Address of a byte a line, in this GPU's memory: 1 when this GPU has changed the owner's copy alone.
    pub marks: u64,
    /// Address of 32 bits in host memory: 1 once a mark is set.
    pub marked: u64,
    /// Address of this GPU's [`BroadcastCounters`].
    pub counters: u64,
    /// Base-two logarithm of the page size.
    pub page_shift: u32,
    /// Lines whose number has none of these bits are counted.
    pub sample_mask: u32,
    /// The other views that every page is stored to, if all pages have the same; else [`BROADCAST_BY_PAGE`].
    pub others: u32,
    /// This GPU's view.
    pub view: u32,
    /// Address of the launch's [`VmDesc`](crate::VmDesc).
    pub vm: u64,
    /// A bit for each part of the array, of `1 << part_shift` bytes: whether another view holds any of its pages, so that stores look
    /// further. It lies in the kernel's parameters: a store that no other GPU sees costs no load.
    pub held_parts: u64,
    /// Base-two logarithm of a part's bytes, one page or more.
    pub part_shift: u32,
    /// Unused.
    pub reserved: u32,
}

/// What one GPU has stored to a broadcast array, of the lines that are counted.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct BroadcastCounters {
    /// Stores of single lanes that went to other GPUs.
    pub stores: u64,
    /// Lines that left for other GPUs: stores of one warp to one line are one.
    pub lines: u64,
    /// Bytes that left for each view.
    pub bytes: [u64; BROADCAST_VIEWS_MAX as usize],
    /// Lines that were forwarded at the end of launches.
    pub forwarded: u64,
    /// Unused, to the end of the line.
    pub reserved: [u64; 13],
}

shared_layout! {
    BroadcastDesc: 112 { own: 0, length: 8, views: 16, stride: 24, pages: 32, reads: 40, marks: 48, marked: 56, counters: 64,
        page_shift: 72, sample_mask: 76, others: 80, view: 84, vm: 88,
        held_parts: 96, part_shift: 104, reserved: 108, }
    BroadcastCounters: 256 { stores: 0, lines: 8, bytes: 16, forwarded: 144, reserved: 152, }
}
