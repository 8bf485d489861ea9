//! What the memory model is told of an access, and the bytes behind it.

/// How an access is ordered; PTX's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Weak,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    Sc,
}

impl Order {
    /// Whether what comes after it in the program stays after it.
    pub(crate) fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::AcqRel | Self::Sc)
    }

    /// Whether what comes before it in the program stays before it.
    pub(crate) fn releases(self) -> bool {
        matches!(self, Self::Release | Self::AcqRel | Self::Sc)
    }
}

/// Among whom an access orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Cta,
    Gpu,
    Sys,
}

/// What an access does to its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Load,
    Store,
    Exchange,
    Add,
    Sub,
    And,
    Or,
    Xor,
    Nand,
    Compare,
}

impl Operation {
    /// The word after a read-modify-write, none when a comparison failed.
    pub(crate) fn apply(self, old: u64, value: u64, expected: u64) -> Option<u64> {
        Some(match self {
            Self::Load => return None,
            Self::Store | Self::Exchange => value,
            Self::Add => old.wrapping_add(value),
            Self::Sub => old.wrapping_sub(value),
            Self::And => old & value,
            Self::Or => old | value,
            Self::Xor => old ^ value,
            Self::Nand => !(old & value),
            Self::Compare if old == expected => value,
            Self::Compare => return None,
        })
    }
}

/// One access of a lane, at most 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) operation: Operation,
    pub(crate) order: Order,
    pub(crate) scope: Scope,
    pub(crate) at: u64,
    pub(crate) bytes: usize,
}

/// A lane and where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    /// A number below the number of lanes there have been at once.
    pub(crate) lane: u32,
    pub(crate) sm: u32,
}

/// The bytes behind the model.
pub(crate) trait Bytes {
    /// Whether the model is in charge of these bytes.
    fn covers(&self, at: u64, bytes: u64) -> bool;
    /// Up to 8 bytes, little-endian.
    fn get(&self, at: u64, bytes: usize) -> u64;
    /// Stores up to 8 bytes, little-endian.
    fn set(&mut self, at: u64, bytes: usize, value: u64);
}
