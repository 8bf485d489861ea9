//! What calls of a slot cache meet on the GPU, and tell the host.

/// Why a call of a [`SlotCache`](crate::SlotCache) could not do all that was asked of it. Its other records are in their slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotFault {
    /// An id that is neither -1 nor a record's.
    #[error("ids have {id}, and there are {records} records: its slot is -1")]
    NoSuchRecord {
        /// The id, one of them if there were several.
        id: i64,
        /// Records of the cache's tables.
        records: u32,
    },
    /// More different records than slots that may be given up, beside those that are held.
    #[error(
        "{missing} records found no slot, and theirs is -1: {slots} slots are fewer than a call's different records and those that are held"
    )]
    TooManyRecords {
        /// Records without a slot, of one call.
        missing: u64,
        /// Slots of the cache.
        slots: u32,
    },
    /// Two calls ran at a time.
    #[error(
        "two of its calls ran at a time on different streams: have one stream wait for the other; the cache was emptied"
    )]
    CallsBeside,
    /// A slot was let go that nobody held.
    #[error("slot {slot} was released more often than it was held")]
    NotHeld {
        /// The slot.
        slot: u64,
    },
}
