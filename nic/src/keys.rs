//! Registered memory: what may be done with it, and its keys.

use core::fmt;

/// What may be done with registered memory. Reading it locally is always allowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Access(u32);

impl Access {
    /// Local reads only.
    pub const NONE: Access = Access(0);
    /// Results of READs and atomics may be placed here.
    pub const LOCAL_WRITE: Access = Access(1);
    /// The other side may WRITE here. Asks for `LOCAL_WRITE`, as verbs do.
    pub const REMOTE_WRITE: Access = Access(2);
    /// The other side may READ from here.
    pub const REMOTE_READ: Access = Access(4);
    /// The other side may do atomics here. Asks for `LOCAL_WRITE`, as verbs do.
    pub const REMOTE_ATOMIC: Access = Access(8);
    /// Everything.
    pub const ALL: Access = Access(15);

    /// Both sets of rights.
    #[must_use]
    pub const fn union(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Whether all rights of `other` are in this set.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set as bits (those of `enum ibv_access_flags`).
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set of the known rights in `bits`; others are dropped.
    pub const fn from_bits_truncate(bits: u32) -> Access {
        Access(bits & Access::ALL.0)
    }
}

impl core::ops::BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        self.union(other)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Access::LOCAL_WRITE, "LOCAL_WRITE"),
            (Access::REMOTE_WRITE, "REMOTE_WRITE"),
            (Access::REMOTE_READ, "REMOTE_READ"),
            (Access::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
        ];
        f.debug_set()
            .entries(
                names
                    .iter()
                    .filter(|(bit, _)| self.contains(*bit))
                    .map(|(_, name)| name),
            )
            .finish()
    }
}

/// The keys of registered memory, in host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryKey {
    /// For data segments of this side's requests.
    pub lkey: u32,
    /// For remote address segments. It need not equal `lkey`.
    pub rkey: u32,
}
