//! What the engines of a NIC and its callers share, and what an engine's work sees of it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;

use super::clock::Clock;
use super::faults::Faults;
use super::memory::MemoryTable;
use super::report::{Counters, InFlight, Violations};
use super::timing::LinkTiming;
use crate::{MoverError, NicLimits};

/// What engines and callers share.
pub(super) struct Shared {
    pub memory: MemoryTable,
    pub faults: Faults,
    pub violations: Violations,
    pub clock: Arc<dyn Clock>,
    pub shape: Option<LinkTiming>,
    pub limits: NicLimits,
    pub in_flight: Arc<InFlight>,
    pub spin: Duration,
    pub yields_max: u32,
    pub stop: AtomicBool,
    /// A mover moves the data.
    pub moved: bool,
    /// Doorbells are stored without a call.
    pub watches: bool,
    /// Completion queues go on where they are when their queue pair is reset.
    pub completions_go_on: bool,
    pub mover_failure: Mutex<MoverFailure>,
}

/// How the mover failed.
#[derive(Default)]
pub(super) struct MoverFailure {
    /// The first failure since a queue pair was last reset; else the one before.
    pub what: Option<String>,
    /// A queue pair was reset since.
    pub over: bool,
}

impl Shared {
    /// Keeps the first failure of the mover.
    #[cold]
    pub fn mover_failed(&self, error: &MoverError) {
        tracing::error!(%error, "the software NIC's mover failed");
        let mut failure = self.mover_failure.lock();
        if failure.what.is_none() || failure.over {
            *failure = MoverFailure {
                what: Some(crate::with_causes(&**error)),
                over: false,
            };
        }
    }
}

/// What an engine's work needs of the rest of the NIC.
pub(super) struct Context<'a> {
    pub memory: &'a MemoryTable,
    pub faults: &'a Faults,
    pub violations: &'a Violations,
    pub counters: &'a Counters,
    pub shared: &'a Shared,
    /// The time at its first use in this round; 0 before.
    now_ns: Cell<u64>,
}

impl<'a> Context<'a> {
    pub fn new(shared: &'a Shared, counters: &'a Counters) -> Self {
        Context {
            memory: &shared.memory,
            faults: &shared.faults,
            violations: &shared.violations,
            counters,
            shared,
            now_ns: Cell::new(0),
        }
    }

    /// The time, read once a round and only if asked for: a clock costs as much as a look at a doorbell.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        if self.now_ns.get() == 0 {
            self.now_ns.set(self.shared.clock.now_ns());
        }
        self.now_ns.get()
    }

    /// Whether requests take (modelled) time.
    #[inline]
    pub fn shaped(&self) -> bool {
        self.shared.shape.is_some()
    }
}
