//! What calls of a slot cache meet on the GPU, and tell the host.

/// Why a call of a [`SlotCache`](crate::SlotCache) could not do all that was asked of it. Its other records are in their slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotFault {
    /// An id that is neither -1 nor a record's.
    #[error("id {id} is out of range: there are {records} records; its slot is -1")]
    NoSuchRecord {
        /// The id, one of them if there were several.
        id: i64,
        /// Records of the cache's tables.
        records: u32,
    },
    /// More different records than slots that may be given up, beside those that are held.
    #[error(
        "{missing} records got no slot (theirs is -1): the cache has {slots} slots, fewer than the distinct records of a call and the slots that are held; use more slots"
    )]
    TooManyRecords {
        /// Records without a slot, of one call.
        missing: u64,
        /// Slots of the cache.
        slots: u32,
    },
    /// Two calls ran at a time.
    #[error(
        "two of its calls ran concurrently on different streams: make one stream wait for the other; the cache was emptied"
    )]
    CallsBeside,
    /// A slot was let go that nothing held.
    #[error("slot {slot} was released more often than it was held")]
    NotHeld {
        /// The slot.
        slot: u64,
    },
}
