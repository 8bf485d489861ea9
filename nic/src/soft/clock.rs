//! Where the software NIC takes its time from.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A clock that never steps back.
pub trait Clock: Send + Sync {
    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;

    /// Tells a clock that a simulation drives what time it is. Other clocks go by themselves: they ignore it.
    fn advance_to(&self, ns: u64) {
        let _ = ns;
    }
}

/// The machine's monotonic clock, from the moment it is made.
#[derive(Debug, Clone, Copy)]
pub struct RealClock(Instant);

impl RealClock {
    /// A clock that reads 0 now.
    pub fn new() -> Self {
        RealClock(Instant::now())
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now_ns(&self) -> u64 {
        // 2^64 ns are 584 years.
        self.0.elapsed().as_nanos() as u64
    }
}

/// A clock that moves only when it is told to: for runs that one seed determines.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// A clock at `now_ns`.
    pub fn new(now_ns: u64) -> Self {
        VirtualClock(AtomicU64::new(now_ns))
    }

    /// Moves the clock forward by `ns`.
    pub fn advance(&self, ns: u64) {
        // Relaxed: the clock orders nothing, it is only read for a number.
        self.0.fetch_add(ns, Ordering::Relaxed);
    }

    /// Moves the clock forward to `ns`; does nothing when it is there already.
    pub fn advance_to(&self, ns: u64) {
        // Relaxed: as in `advance`.
        self.0.fetch_max(ns, Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now_ns(&self) -> u64 {
        // Relaxed: as in `advance`.
        self.0.load(Ordering::Relaxed)
    }

    fn advance_to(&self, ns: u64) {
        VirtualClock::advance_to(self, ns);
    }
}
