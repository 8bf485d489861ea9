//! How many of each thing a software NIC has.

/// Most engines of one NIC.
pub const ENGINES_MAX: usize = 64;
/// Most queue pairs of one NIC at one time.
pub const QUEUE_PAIRS_MAX: usize = 4096;
/// Most entries of a completion queue.
pub const CQ_ENTRIES_MAX: u32 = 1 << 22;
