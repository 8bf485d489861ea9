//! Queue pairs to memory nodes are mended while kernels run.
//!
//! A network that loses packets can use up a request's retries by chance. The queue pair is in the error state then, and
//! the driver flushes what it holds; lanes see such requests as to be repeated and go to other queue pairs or wait. The
//! keeper, a host thread, waits until every request of the pair is finished, closes it to reservations, takes both ends
//! through reset, and opens it again. Indexes count on; only the rings' positions change.
//!
//! | lane | keeper |
//! |---|---|
//! | reserves by compare-and-swap on `reserved` | sees `reserved == written`, every record free |
//! | | sets `RESERVED_CLOSED` by compare-and-swap: no request began in between, and none will |
//! | | reset at both ends, new descriptor, `failed` = 0 |
//! | acquires `reserved`, reads the descriptor | releases `reserved` without the bit |
//!
//! A node that is lost is told by its session: then the pairs go to the error state at once, so that lanes which wait
//! for an answer get one, and stay there.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use gpuvm_gpu::{Gpu, HostMemory};
use gpuvm_layouts::{self as layout, QueueState, RequestRecord};

use super::{FAILED_BY_HOST, Group, Joining, PairMemory, Queues};
use crate::error::Result;

/// How often the keeper looks.
const PERIOD: Duration = Duration::from_millis(10);
/// Tries in a row that may fail before a node counts as lost.
const TRIES_MAX: u32 = 3;

/// A view of a pair's state and records for the host, while kernels run.
pub(super) struct SharedPair<'a>(pub &'a HostMemory);

impl SharedPair<'_> {
    fn u64_at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset as u64 + 8 <= self.0.bytes() && offset.is_multiple_of(8));
        // SAFETY: within the allocation, which lives as long as `self`, aligned; kernels use atomics as well.
        unsafe { &*self.0.host_ptr().add(offset).cast::<AtomicU64>() }
    }

    pub fn failed(&self) -> &AtomicU32 {
        let offset = core::mem::offset_of!(QueueState, failed);
        // SAFETY: as in `u64_at`.
        unsafe { &*self.0.host_ptr().add(offset).cast::<AtomicU32>() }
    }

    fn reserved(&self) -> &AtomicU64 {
        self.u64_at(core::mem::offset_of!(QueueState, reserved))
    }

    fn written(&self) -> &AtomicU64 {
        self.u64_at(core::mem::offset_of!(QueueState, written))
    }

    /// Whether every request below `next` is finished: its slot is free for the next lap.
    fn all_free(&self, depth: u32) -> bool {
        (0..depth as usize).all(|slot| {
            let offset = size_of::<QueueState>() + slot * size_of::<RequestRecord>();
            // Acquire: pairs with the release that freed the slot.
            let state = self.u64_at(offset).load(Ordering::Acquire);
            state & ((1 << layout::RECORD_INDEX_SHIFT) - 1) == layout::RECORD_FREE
        })
    }

    /// Closes the pair to reservations once nothing is in flight on it. The index of its next request.
    fn close(&self, depth: u32) -> Option<u64> {
        // Acquire: what the reservations' owners wrote.
        let reserved = self.reserved().load(Ordering::Acquire);
        if reserved & layout::RESERVED_CLOSED != 0 {
            // An earlier try got this far.
            return Some(reserved & !layout::RESERVED_CLOSED);
        }
        if self.written().load(Ordering::Acquire) != reserved || !self.all_free(depth) {
            return None;
        }
        // Had a lane reserved since, the index would differ. Acquire and release: the mending stays behind it.
        self.reserved()
            .compare_exchange(
                reserved,
                reserved | layout::RESERVED_CLOSED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .ok()
    }

    /// Opens it again for request `next`.
    fn open(&self, next: u64) {
        self.failed().store(0, Ordering::Relaxed);
        // Release: pairs with the acquire of a lane's reservation, which reads the descriptor after it.
        self.reserved().store(next, Ordering::Release);
    }
}

impl Group {
    pub(super) fn say_lost(&self, why: &dyn std::fmt::Display) {
        // Relaxed: a flag for the host alone; the queue pairs' state is what lanes see.
        if !self.lost.swap(true, Ordering::Relaxed)
            && let Some(node) = &self.node
        {
            tracing::error!("memory node {} is lost: {why}", node.address());
        }
    }
}

impl Queues {
    /// One look at every queue pair that reaches a node.
    fn keep(&self, gpu: &dyn Gpu) {
        for group in &self.groups {
            let Some(node) = &group.node else { continue };
            let _resetting = self.lock_resetting();
            // Relaxed: see `say_lost`.
            if group.lost.load(Ordering::Relaxed) {
                continue;
            }
            if let Some(why) = node.failure() {
                self.give_up(group, &why);
                continue;
            }
            for turn in 0..group.count {
                let index = group.first + turn;
                let PairMemory::Shared(memory) = &self.pairs[index as usize].memory else {
                    continue;
                };
                let shared = SharedPair(memory);
                if shared.failed().load(Ordering::Acquire) == 0 {
                    continue;
                }
                let Some(next) = shared.close(self.depth) else { continue };
                if self.mend(gpu, group, turn, next).is_ok() {
                    shared.open(next);
                    self.mended.fetch_add(1, Ordering::Relaxed);
                } else if group.lost.load(Ordering::Relaxed) {
                    self.give_up(group, &"its queue pairs cannot join again");
                    break;
                }
            }
        }
    }

    /// Mends a pair on which nothing is in flight. After several failures in a row its node counts as lost.
    pub(super) fn mend(&self, gpu: &dyn Gpu, group: &Group, turn: u32, next: u64) -> Result<()> {
        let mended = self.begin_anew(gpu, group, turn, next);
        match &mended {
            // Relaxed: a count of whoever holds `resetting`.
            Ok(()) => group.tries.store(0, Ordering::Relaxed),
            Err(error) => {
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "a queue pair could not be mended"
                );
                if group.tries.fetch_add(1, Ordering::Relaxed) + 1 >= TRIES_MAX {
                    group.say_lost(error);
                }
            }
        }
        mended
    }

    /// Takes a closed pair through reset, and lets it begin anew over its connection; or joins the node again where that
    /// does not work.
    fn begin_anew(&self, gpu: &dyn Gpu, group: &Group, turn: u32, next: u64) -> Result<()> {
        let index = group.first + turn;
        let pair = &self.pairs[index as usize];
        let mut links = group.links();
        if links.len() <= turn as usize {
            links.resize_with(group.count as usize, || None);
        }
        let place = &mut links[turn as usize];
        if let Some(link) = place.as_ref().filter(|link| !link.is_over()) {
            pair.reset()?;
            self.describe_one(gpu, group, index, next)?;
            match link.rejoin(&Joining::of(pair)) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::info!(
                        error = &error as &dyn std::error::Error,
                        "queue pair {:#x} joins again",
                        pair.number
                    );
                }
            }
        }
        // The old connection ends first: the node's end of it is of no use any more.
        drop(place.take());
        pair.reset()?;
        *place = self.connect_one(gpu, group, index, next)?;
        Ok(())
    }

    /// Ends all requests to a lost node, and keeps lanes from posting others.
    fn give_up(&self, group: &Group, why: &dyn std::fmt::Display) {
        group.say_lost(why);
        for pair in self.pairs_of(group) {
            if let PairMemory::Shared(memory) = &pair.memory {
                let shared = SharedPair(memory);
                let failed = shared.failed();
                // A request's own error stays the one that is told. Relaxed: nothing else is read by it.
                if failed
                    .compare_exchange(0, FAILED_BY_HOST, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
                {
                    failed.fetch_or(layout::QUEUE_LOST, Ordering::Relaxed);
                }
            }
            // Flushes what waits for an answer.
            if let Err(error) = pair.nic.fail(pair.number) {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "requests to a lost node end by the wait limit"
                );
            }
        }
    }
}

/// The thread that keeps a virtual memory's queue pairs.
pub(crate) struct Keeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts it.
    ///
    /// # Errors
    /// The system's.
    pub fn start(queues: Arc<Queues>, gpu: Arc<dyn Gpu>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("gpuvm-keeper".into()).spawn(move || {
            // Acquire: pairs with the release in `drop`.
            while !told.load(Ordering::Acquire) {
                std::thread::park_timeout(PERIOD);
                queues.keep(&*gpu);
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // Bounded by the longest step with a node.
        let _ = thread.join();
    }
}
