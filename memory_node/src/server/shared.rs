//! What the threads of a node and its owner share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::protocol::Reason;
use crate::verbs::Waker;

/// What the node's threads and its owner share.
#[derive(Debug)]
pub struct Shared {
    pub pool: Arc<Pool>,
    pub counted: Mutex<Metrics>,
    pub waker: Waker,
    pub stop: AtomicBool,
}

impl Shared {
    pub fn counted(&self) -> MutexGuard<'_, Metrics> {
        // Counters are right after each single change.
        self.counted.lock()
    }

    pub fn count_grant(&self, bytes: u64) {
        let mut counted = self.counted();
        counted.grants += 1;
        counted.grants_total += 1;
        counted.granted_bytes += bytes;
    }

    pub fn uncount_grant(&self, bytes: u64) {
        let mut counted = self.counted();
        counted.grants -= 1;
        counted.granted_bytes -= bytes;
    }

    pub fn count_refusal(&self, reason: Reason) {
        *self.counted().refusals_total.entry(reason.to_string()).or_default() += 1;
    }

    pub fn is_stopping(&self) -> bool {
        // Relaxed: the flag alone is read; the waker's system call wakes who waits.
        self.stop.load(Ordering::Relaxed)
    }
}
