//! How a region ends: what it has at home, in GPU memory, and with the NICs.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::RegionInner;
use crate::{
    error::{Error, Result},
    launch::Naming,
};

/// How long a scope waits for the NIC to let go of borrowed memory before the process ends.
const BORROWED_WAIT: Duration = Duration::from_secs(60);
/// How often a last flush that was stopped with another launch is begun again.
const STOPPED_MAX: u32 = 8;

impl RegionInner {
    /// Ends the region: its launches, its dirty pages, its frames, its key. The first error is returned; what could
    /// be done is done all the same. `borrowed` memory must not be returned to its owner while the NIC may reach it.
    pub fn close(&self, borrowed: bool) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let mut launches = self.quiesce();
        let flushed = self.flush_at_last(&mut launches);
        let synced = self.sync();
        let everywhere = self.everywhere();
        let mut released = Ok(());
        let mut frames_left = Vec::new();
        for on in &everywhere {
            let freed = match on.gpu.lost() {
                // What is in GPU memory is gone; `flushed` says whether that matters.
                Some(_) => Ok(()),
                None => self.release_on(&mut launches, on, flushed.is_err()),
            };
            frames_left.push(freed.is_err());
            released = released.and(freed);
        }
        let gone = self.let_go(borrowed);
        // Where frames are left, launches in flight may post WRITEs still: the nodes' memory goes with the region then.
        if released.is_ok() {
            self.rows().for_each(|(_, home)| home.give_back());
        }
        // Last on the GPU that it was made on, which says whether it has ended.
        for (on, frames_left) in everywhere.iter().zip(frames_left).rev() {
            on.gpu.retire(&on.view, frames_left);
        }
        drop(launches);
        // A finished launch keeps its regions, and they this virtual memory: it must not wait for a later call to go.
        everywhere.iter().for_each(|on| on.gpu.prune());
        if let Err(error) = self.regions.rank() {
            tracing::warn!(%error, "pages of other regions stay longer than they need to");
        }
        flushed.and(synced).and(released).and(gone)
    }

    /// The last flush. Once more after an error: the second launch finds the queue pairs mended, and pages are dropped only then. A flush
    /// that was stopped together with somebody's launch says nothing of the pages.
    fn flush_at_last(&self, launches: &mut Naming) -> Result<()> {
        let mut flushed = self.flush_quiet(launches);
        for _ in 0..STOPPED_MAX {
            if !matches!(flushed, Err(Error::Stopped { .. })) {
                break;
            }
            flushed = self.flush_quiet(launches);
        }
        match flushed {
            // Told once, and nothing can be done about it.
            Err(Error::WritesLost { .. }) => flushed,
            flushed => flushed.or_else(|_| self.flush_quiet(launches)),
        }
    }

    /// Takes the home away from the NIC, or the lanes. Owned memory that may be reached still is leaked.
    fn let_go(&self, borrowed: bool) -> Result<()> {
        let deadline = Instant::now() + BORROWED_WAIT;
        let mut gone = self.deregister();
        while gone.is_err() && borrowed {
            if Instant::now() > deadline {
                // The lender gets its memory back on return, and the NIC would still write to it.
                tracing::error!(
                    "borrowed region `{}` may be reached by the NIC or the GPU still",
                    self.name
                );
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(10));
            gone = self.deregister();
        }
        self.leaked.store(gone.is_err(), Ordering::Release);
        gone
    }

    /// Whether it has ended and its memory may be reached still.
    pub fn is_leaked(&self) -> bool {
        self.leaked.load(Ordering::Acquire)
    }

    /// The error of a drop that could not return it.
    pub fn take_failure(&self) -> Result<()> {
        let failure = self.failure.lock().take();
        failure.map_or(Ok(()), Err)
    }

    fn deregister(&self) -> Result<()> {
        self.leave_local_homes();
        self.everywhere()
            .iter()
            .map(|on| on.withdraw())
            .fold(Ok(()), Result::and)
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        // Not closed: creation failed half-way, and no kernel ever saw the region.
        let closed = *self.closed.get_mut();
        if *self.leaked.get_mut() || (!closed && self.deregister().is_err()) {
            tracing::error!(
                "region `{}` may be reached by the NIC or the GPU still; its memory is leaked",
                self.name
            );
            for reached in &self.own.homes {
                std::mem::forget(Arc::clone(&reached.home));
            }
        }
    }
}
