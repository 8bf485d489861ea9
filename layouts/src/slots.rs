//! Caches of records: slots in GPU memory for records of tables in home memory.

use bytemuck::{Pod, Zeroable};

use crate::facts::shared_layout;

/// Most tables of a cache.
pub const SLOT_TABLES_MAX: u32 = 8;
/// Classes by which slots are compared when some must be given up.
pub const SLOT_BUCKETS: u32 = 256;
/// An index entry of a record that has no slot. Of one that has, the entry is the slot's number plus one.
pub const SLOT_NONE: u32 = 0;
/// Bit of the index entry of a record that a call is to fetch; the others are its place in the list of misses.
pub const SLOT_CLAIMED_BIT: u32 = 0x8000_0000;
/// An index entry of such a record that has no place in the list, or none yet.
pub const SLOT_CLAIMING: u32 = 0xffff_ffff;
/// Chunks of 16 bytes that a lane copies at a time.
pub const SLOT_CHUNKS_A_LANE: u32 = 8;

/// Slots leave whose record was not used for longest.
pub const SLOTS_LEAST_RECENT: u32 = 0;
/// Slots leave whose record was used least often of late.
pub const SLOTS_FREQUENCY: u32 = 1;
/// Slots leave whose record came last: those that came first stay.
pub const SLOTS_FIRST_COME: u32 = 2;
/// Rules that slots may leave by.
pub const SLOT_RULES: u32 = 3;

/// A table of a cache, and its slots.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct SlotTable {
    /// Address of record 0 at its home.
    pub home: u64,
    /// Address of slot 0.
    pub frames: u64,
    /// Bytes of a record, a multiple of 16.
    pub record_bytes: u64,
    /// Parts in which lanes copy a record.
    pub pieces: u32,
    /// Base-two logarithm of the lanes that copy a part.
    pub lanes_shift: u32,
}

/// A record that a call is to fetch.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct SlotMiss {
    /// Its number.
    pub record: u32,
    /// The slot that it gets.
    pub slot: u32,
    /// Parts of it that are on their way, of all tables.
    pub pieces_left: u32,
    /// Unused.
    pub reserved: u32,
}

/// What a call counts.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct SlotCounts {
    /// Records that have no slot.
    pub misses: u32,
    /// Of them those that get one.
    pub served: u32,
    /// The class of which some slots leave; all of those above do.
    pub threshold: u32,
    /// Slots of classes above it.
    pub above: u32,
    /// Of those, the ones that were given to a record so far.
    pub taken_above: u32,
    /// Slots of the class itself that were given to a record, or could have been.
    pub taken_at: u32,
    /// Slots that have no record.
    pub free: u32,
    /// Unused.
    pub reserved: u32,
}

/// What a cache keeps from call to call.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct SlotCacheState {
    /// The number of the call that runs or comes next. It begins at 2; 64 bits, so that it never wraps.
    pub epoch: u64,
    /// Ids whose record had a slot.
    pub hits: u64,
    /// Records that were fetched for calls that needed them.
    pub misses: u64,
    /// Records that were fetched ahead.
    pub prefetched: u64,
    /// Records that lost their slot.
    pub evictions: u64,
    /// Bytes that were fetched.
    pub bytes: u64,
    /// What runs: 2^24 for a call, 1 for a block that holds slots or releases them.
    pub busy: u32,
    /// Blocks of the call's last kernel that have ended.
    pub blocks_done: u32,
    /// Blocks of its survey that have ended.
    pub surveyed: u32,
    /// The rule by which slots leave: `SLOTS_*`.
    pub rule: u32,
    /// Of a call of several blocks.
    pub counts: SlotCounts,
    /// Unused.
    pub reserved: [u64; 4],
    /// Slots by class, of a call of several blocks.
    pub histogram: [u32; SLOT_BUCKETS as usize],
}

/// What kernels of the host's see of a cache. None of it changes while the cache lives, so that a captured launch may keep it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct SlotCacheDesc {
    /// Address of a 32-bit entry a record: `SLOT_NONE` and the like.
    pub index: u64,
    /// Address of 32 bits a slot: the number of its record plus one, or 0.
    pub records: u64,
    /// Address of 64 bits a slot: the call that used it last.
    pub used: u64,
    /// Address of 64 bits a slot: the call that filled it.
    pub came: u64,
    /// Address of 32 bits a slot: how often it is held.
    pub held: u64,
    /// Address of a [`SlotMiss`] a slot.
    pub misses: u64,
    /// Address of 32-bit counts of uses, records sharing them by a hash; 0 where nothing counts.
    pub uses: u64,
    /// Address of the [`SlotCacheState`].
    pub state: u64,
    /// Address of four 64-bit words in host memory: an id that no record has; how many records found no slot; 1 once two calls ran
    /// at a time; the slot, plus one, that was let go and not held.
    pub told: u64,
    /// Records of each table.
    pub record_count: u32,
    /// Slots.
    pub slot_count: u32,
    /// Counts of uses less one: a power of two less one.
    pub uses_mask: u32,
    /// Tables.
    pub table_count: u32,
    /// Parts of a record, of all tables.
    pub pieces: u32,
    /// Uses after which all counts of uses are halved, base-two logarithm.
    pub era_shift: u32,
    /// Bytes of a record, of all tables.
    pub bytes: u64,
    /// The tables.
    pub tables: [SlotTable; SLOT_TABLES_MAX as usize],
}

shared_layout! {
    SlotTable: 32 { home: 0, frames: 8, record_bytes: 16, pieces: 24, lanes_shift: 28, }
    SlotMiss: 16 { record: 0, slot: 4, pieces_left: 8, reserved: 12, }
    SlotCounts: 32 { misses: 0, served: 4, threshold: 8, above: 12, taken_above: 16, taken_at: 20, free: 24, reserved: 28, }
    SlotCacheState: 1152 { epoch: 0, hits: 8, misses: 16, prefetched: 24, evictions: 32, bytes: 40, busy: 48, blocks_done: 52, surveyed: 56,
        rule: 60, counts: 64, reserved: 96, histogram: 128, }
    SlotCacheDesc: 360 { index: 0, records: 8, used: 16, came: 24, held: 32, misses: 40, uses: 48, state: 56, told: 64,
        record_count: 72, slot_count: 76, uses_mask: 80, table_count: 84, pieces: 88, era_shift: 92, bytes: 96, tables: 104, }
}
