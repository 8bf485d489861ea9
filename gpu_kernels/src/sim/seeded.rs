//! The seeded mode: one thread, one seed, one interleaving.

use super::abi::Lane;

/// Where the seeded mode's chance and time come from.
pub(crate) struct Chance {
    now_ns: u64,
}

impl Chance {
    /// Virtual time, ns.
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Virtual time as a lane reads it: every look takes time, so that loops on the clock end.
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now_ns += 10;
        self.now_ns
    }
}

/// A load, store or call of an instrumented kernel.
pub(crate) unsafe extern "C" fn step(_lane: *mut Lane, _event: u32) {}

/// Events until the next switch point.
pub(crate) unsafe extern "C" fn event(_lane: *mut Lane) -> u32 {
    u32::MAX
}
