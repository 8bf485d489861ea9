//! The launches of a stream, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

use super::core::{Core, Retired, StreamHandle};
use super::launch::{InOrder, LaunchState};
use crate::error::GpuError;

/// A stream and what runs on it.
pub(crate) struct LaunchQueue {
    pub(crate) core: Arc<Core>,
    pub(crate) number: u64,
    pub(crate) handle: StreamHandle,
    /// Its maker's, who has other work on it.
    pub(crate) borrowed: bool,
    /// Held while a launch is enqueued, so that `queue` has the stream's order.
    pub(crate) enqueuing: Mutex<()>,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) empty: Condvar,
    /// Held by the thread that ends launches, so that their callbacks run one after the other.
    ending: Mutex<()>,
    pub(crate) closed: AtomicBool,
}

/// What runs on a stream.
#[derive(Default)]
pub(crate) struct Queue {
    /// Enqueued and not ended, in order.
    pub(crate) launches: VecDeque<Arc<LaunchState>>,
    pub(crate) error: Option<GpuError>,
}

impl LaunchQueue {
    /// An empty one.
    pub(crate) fn new(core: &Arc<Core>, number: u64, handle: StreamHandle, borrowed: bool) -> Self {
        Self {
            core: Arc::clone(core),
            number,
            handle,
            borrowed,
            enqueuing: Mutex::default(),
            queue: Mutex::default(),
            empty: Condvar::new(),
            ending: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// How many of the first launches have ended. A stream ends them in order, and the driver takes microseconds to say that one has: it is
    /// asked of the first, then of those further behind by steps that grow, then shrink.
    fn ended(&self) -> usize {
        let (mut ended, mut step, mut grows) = (0, 1, true);
        while step > 0 {
            let launch = self.queue.lock().launches.get(ended + step - 1).cloned();
            match launch.is_some_and(|launch| launch.has_ended()) {
                true => ended += step,
                false => grows = false,
            }
            step = if grows { step * 2 } else { step / 2 };
        }
        ended
    }

    /// The launch that runs or is next.
    pub(crate) fn head(&self) -> Option<Arc<LaunchState>> {
        self.queue.lock().launches.front().cloned()
    }

    /// Whether its user has dropped it and nothing runs.
    pub(crate) fn is_closed_and_empty(&self) -> bool {
        // Acquire, with the release in `drop`: no launch is enqueued after the store, so the queue's answer is final.
        self.closed.load(Ordering::Acquire) && self.queue.lock().launches.is_empty()
    }
}

impl InOrder for LaunchQueue {
    fn advance(&self) -> bool {
        let Some(_ending) = self.ending.try_lock() else {
            return false;
        };
        let ended = self.ended();
        for _ in 0..ended {
            let Some(head) = self.head() else { break };
            let outcome = head.outcome_of_ended();
            if let Err(error) = &outcome {
                self.queue.lock().error.get_or_insert_with(|| error.clone());
            }
            head.complete(outcome);
            let mut queue = self.queue.lock();
            queue.launches.pop_front();
            if queue.launches.is_empty() {
                self.empty.notify_all();
            }
        }
        ended > 0
    }
}

impl Drop for LaunchQueue {
    fn drop(&mut self) {
        if !self.borrowed {
            self.core.retire(Retired::Stream(self.handle));
        }
    }
}
