//! What a set of vectors can be.

/// The most components of a vector.
pub const DIM_MAX: usize = 1 << 16;

/// The most vectors of a set: their ids have 32 bits, and one id is [`NONE`].
pub const COUNT_MAX: usize = u32::MAX as usize;

/// No vector, where an id is expected: rows of a fixed length are filled with it.
pub const NONE: u32 = u32::MAX;
