//! The memory that is watched: which words, how they are read, and where a region's copies lie in it.

use std::sync::atomic::{AtomicU64, Ordering};

use gpuvm_layouts as layout;
use layout::{RegionDesc, StripeDesc, VmDesc};

/// What a watched word is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Word {
        page_id: u64,
    },
    PoolSlot,
    /// The slots that the pages in a frame and the next one keep.
    SlotsKept {
        frame: u32,
    },
    /// A place of the list of free slots at neighbours.
    SlotPlace,
    /// How far a lender is with a chunk.
    Turn {
        chunk: u32,
    },
    Reserved {
        queue: u32,
    },
    Written {
        queue: u32,
    },
    /// `ringer` and `failed`.
    Failed {
        queue: u32,
    },
    Posted {
        queue: u32,
    },
    Record {
        queue: u32,
        slot: u32,
    },
    RecordPageId {
        queue: u32,
        slot: u32,
    },
}

/// A watched word.
#[derive(Clone, Copy)]
pub(super) struct Cell {
    pub address: u64,
    /// What was there at the last look.
    pub seen: u64,
}

/// The value at an address that the virtual memory keeps valid.
pub(super) fn load(address: u64) -> u64 {
    // SAFETY: only addresses out of descriptions of an attached virtual memory are given, which lie in its device memory and are
    // aligned; Relaxed: one thread runs lanes and this.
    unsafe { (*(address as *const AtomicU64)).load(Ordering::Relaxed) }
}

/// What lies at an address that the virtual memory keeps valid.
pub(super) fn read<T: bytemuck::Pod>(address: u64) -> T {
    // SAFETY: as in `load`; the types are plain data.
    unsafe { (address as *const T).read_unaligned() }
}

/// Whether two stretches of memory hold the same; the first difference.
pub(super) fn differ(a: u64, b: u64, bytes: usize) -> Option<usize> {
    // SAFETY: as in `load`: a frame and a home, which live while the region does; nothing else runs.
    let [a, b] = [a, b].map(|at| unsafe { std::slice::from_raw_parts(at as *const u8, bytes) });
    // Comparing whole slices is fast, and they are alike most often.
    let differing = || a.iter().zip(b).position(|(a, b)| a != b);
    if a == b { None } else { differing() }
}

/// The index of the request that a record is about.
pub(super) fn index_of(record_state: u64) -> u64 {
    record_state >> layout::RECORD_INDEX_SHIFT
}

/// How far that request is.
pub(super) fn phase_of(record_state: u64) -> u64 {
    record_state & 3
}

/// Address of page 0 of a region in a replica, where each has one home.
pub(super) fn home_of(region: &RegionDesc, replica: u32) -> Option<u64> {
    let stripe = region.stripes + u64::from(replica * region.nics) * size_of::<StripeDesc>() as u64;
    match (region.home, region.homes) {
        (0, 1) => Some(read::<StripeDesc>(stripe).home),
        (home, 1) => Some(home),
        _ => None,
    }
}

/// Where a page begins in its region, and its exact length.
pub(super) fn page_span(desc: &VmDesc, region: &RegionDesc, page: u64) -> (u64, usize) {
    let start = page << desc.page_shift;
    (start, (region.bytes - start).min(1 << desc.page_shift) as usize)
}

/// Whether a replica's copy of a page is marked as stale. The region has replicas.
pub(super) fn is_stale(region: &RegionDesc, page: u64, replica: u32) -> bool {
    let word = u64::from(replica) * region.stale_words + page / 32;
    read::<u32>(region.stale + word * 4) >> (page % 32) & 1 != 0
}
