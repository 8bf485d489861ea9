//! What a GPU needs before a launch: nothing left of launches that have ended, and recovery where one calls for it.

use std::sync::{Arc, atomic::Ordering};

use gpuvm_gpu::Stream;
use parking_lot::MutexGuard;

use super::{GpuState, PagedGpu};
use crate::{
    error::{Error, Result},
    launch::{InFlight, Peers},
};

impl PagedGpu {
    /// Lets go of launches that have ended, and remembers whether one of them calls for recovery.
    pub fn prune(&self) {
        let done = self.prune_locked(&mut self.lock());
        // Outside the lock: the last keeper of a region may go with its launch.
        drop(done);
        self.settle_frames();
    }

    pub(super) fn lock_peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock()
    }

    /// Lets go of launches that have ended, unless another thread is busy with the state.
    pub fn try_prune(&self) {
        let done = self.state.try_lock().map(|mut state| self.prune_locked(&mut state));
        drop(done);
        self.settle_frames();
    }

    pub(super) fn prune_locked(&self, state: &mut GpuState) -> Vec<Arc<InFlight>> {
        // Acquire: pairs with the callback of a launch. Most calls find none that has ended, or few, and those among the first.
        let mut left = self.ended.load(Ordering::Acquire).wrapping_sub(state.pruned);
        let mut done = Vec::new();
        if left > 0 {
            done.extend(state.in_flight.extract_if(.., |launch| {
                let is_done = left > 0 && launch.is_done();
                left -= u64::from(is_done);
                is_done
            }));
        }
        state.pruned = state.pruned.wrapping_add(done.len() as u64);
        for launch in &done {
            if !launch.examined.swap(true, Ordering::Relaxed) && launch.needs_recovery(&*self.device) {
                state.needs_recovery = true;
            }
        }
        if !done.is_empty() {
            self.look_for_failed_pages(state);
            // Lanes that copy pages themselves have no queue pairs.
            state.needs_recovery |= self.queues.as_ref().is_some_and(|queues| queues.any_given_up());
        }
        if state.in_flight.is_empty() && !state.needs_recovery {
            // No lane looks at the words of closed regions any more.
            state.retired.clear();
        }
        done
    }

    /// Whether launches have left pages in the error state, which the next one must not meet. A prefetch that failed is no fault
    /// of its launch, but its page is in that state all the same.
    fn look_for_failed_pages(&self, state: &mut GpuState) {
        // Lanes that copy pages themselves cannot fail at it.
        if self.queues.is_none() {
            return;
        }
        // What cannot be read says nothing good.
        let failed = self.meters.pages_failed(&*self.device).unwrap_or(u64::MAX);
        state.errors.found |= failed != state.errors.counted;
        state.errors.counted = failed;
    }

    /// Puts kernels on a stream that finish requests of earlier launches, and make pages absent again whose fetches have failed: before a
    /// launch, which finds none of what earlier ones met. Nobody is waited for. Launches in flight may see their own errors forgotten, and fetch such a
    /// page once more.
    pub(super) fn forget_errors(&self, state: &mut GpuState, stream: &Arc<dyn Stream>) -> Result<()> {
        // Of a launch on another stream: it may be far behind.
        let on_the_way = state.errors.forgetting.iter().any(|earlier| !earlier.is_done());
        if !state.errors.found && !on_the_way {
            return Ok(());
        }
        let regions: Vec<_> = state.live().filter(|region| region.pages().count() > 0).collect();
        let mut forgetting = Vec::new();
        // Requests that nobody waits for any more may have failed, too: else the next launch's lanes find that out.
        let queue_pairs = self.queues.as_ref().map_or(0, |queues| queues.count());
        let reaping = (
            "finishing requests of earlier launches".into(),
            1,
            self.reaping_of(queue_pairs),
        );
        let of_regions = regions.iter().map(|region| {
            let label = format!("forgetting failed fetches of region `{}`", region.name());
            (label, region.pages().count(), self.forgetting_of(region))
        });
        for (label, pages, job) in std::iter::once(reaping).chain(of_regions) {
            let slot = self.state_for(&label, true)?;
            let in_flight = Arc::new(InFlight::new(slot, &label.into()));
            let config = self.service_config(pages);
            self.put(state, stream, &config.shape, job, &in_flight)?;
            forgetting.push(in_flight);
        }
        state.errors.found = false;
        state.errors.forgetting = forgetting;
        Ok(())
    }

    /// Mends the virtual memory if a launch left it in need. Waits for launches in flight first.
    pub(super) fn make_ready(&self, state: &mut GpuState) -> Result<()> {
        if let Some(lost) = self.lost_with(state) {
            return Err(lost);
        }
        let done = self.prune_locked(state);
        // A launch that was stopped says so before it counts as ended.
        state.needs_recovery |= self.lock_peers().broken.is_some();
        // Unless that has looked: launches that run may have failed at a prefetch.
        if done.is_empty() && !state.in_flight.is_empty() {
            self.look_for_failed_pages(state);
        }
        if state.needs_recovery {
            for launch in &state.in_flight {
                launch.settle();
            }
            drop(self.prune_locked(state));
            self.lock_peers().broken = None;
            self.recover(state)?;
            state.errors.found = false;
            state.retired.clear();
        }
        drop(done);
        if let Some(reason) = &state.poisoned {
            return Err(Error::Poisoned { reason: reason.clone() });
        }
        self.settle_loans_locked(state, 0).map(drop)
    }
}
