//! Batches of copies, started for queue pairs and waited for.

use std::time::{Duration, Instant};

use super::moving::Moving;
use super::queue_pair::QueuePairEngine;
use super::shared::{Context, Shared};

impl Moving {
    /// Looks for batches that have arrived; whether there were any.
    pub fn poll(&mut self, queue_pairs: &mut [QueuePairEngine], shared: &Shared) -> bool {
        let mut any = false;
        self.looks += 1;
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            match lane.poll() {
                Ok(arrived) => any |= arrived,
                Err(error) => {
                    any = true;
                    shared.mover_failed(&error);
                    for queue_pair in queue_pairs.iter_mut() {
                        queue_pair.lose(number, lane.started());
                    }
                }
            }
        }
        any
    }

    /// Starts what was collected.
    pub fn start(&mut self, queue_pairs: &mut [QueuePairEngine], context: &Context<'_>) {
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if !lane.has_collected() {
                continue;
            }
            if let Err(error) = lane.start(context.counters) {
                context.shared.mover_failed(&error);
                lane.refuse(|item| {
                    let queue_pair = queue_pairs.get_mut(item.place)?;
                    Some(queue_pair.refused(context, item))
                });
                for queue_pair in queue_pairs.iter_mut() {
                    queue_pair.forget(number, lane.started());
                }
            }
            lane.clear();
        }
    }

    /// Waits until nothing is under way; false when `bound` is over first. The engine's lock is held.
    pub fn drain(&mut self, queue_pairs: &mut [QueuePairEngine], shared: &Shared, bound: Duration) -> bool {
        let begun = Instant::now();
        loop {
            self.poll(queue_pairs, shared);
            if !self.under_way() {
                return true;
            }
            if begun.elapsed() >= bound {
                return false;
            }
            std::thread::yield_now();
        }
    }
}
