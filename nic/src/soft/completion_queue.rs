//! The producer's side of a completion queue in its owner's memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::QueueMemory;
use crate::wire::mlx5::{CQE_BYTES, CQE_INVALID, Completion};

/// Producer of one completion queue. Overrun is ignored, as with `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
pub(super) struct CompletionQueue {
    base: u64,
    entries: u32,
    record: u64,
    collapsed: bool,
    /// Completions written so far.
    produced: u64,
}

/// The atomic word at `address`.
///
/// # Safety
/// `address` is 8-aligned, and valid for atomic access during `'a`.
pub(super) unsafe fn word<'a>(address: u64) -> &'a AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { &*std::ptr::with_exposed_provenance(address as usize) }
}

/// The atomic half word at `address`.
///
/// # Safety
/// `address` is 4-aligned, and valid for atomic access during `'a`.
pub(super) unsafe fn half<'a>(address: u64) -> &'a AtomicU32 {
    // SAFETY: the caller's promise.
    unsafe { &*std::ptr::with_exposed_provenance(address as usize) }
}

impl CompletionQueue {
    /// A producer over memory that stays valid until the owner drops this value (the promise of
    /// `Nic::create_queue_pair`). Does not touch it yet.
    pub fn new(memory: &QueueMemory) -> Self {
        CompletionQueue {
            base: memory.cq,
            entries: memory.cq_entries,
            record: memory.cq_dbrec,
            collapsed: memory.collapsed,
            produced: 0,
        }
    }

    /// Sets every entry to invalid and the index and record to 0.
    pub fn reset(&mut self) {
        self.produced = 0;
        let mut entry = [0; CQE_BYTES];
        entry[CQE_BYTES - 1] = CQE_INVALID;
        for slot in 0..self.entries {
            self.store(slot, &entry);
        }
        // SAFETY: the record is valid and aligned, see `new`. Relaxed: nobody polls a queue pair in reset.
        unsafe { word(self.record).store(0, Ordering::Relaxed) };
    }

    /// Writes `completion`, with the lap's owner bit. Returns whether it overwrote an entry that the consumer,
    /// if it keeps an index in its record, has not read.
    pub fn push(&mut self, completion: Completion) -> bool {
        let overrun = !self.collapsed && self.overruns();
        let owner = self.produced & u64::from(self.entries) != 0;
        let slot = if self.collapsed {
            0
        } else {
            self.produced as u32 & (self.entries - 1)
        };
        let mut entry = [0; CQE_BYTES];
        // 64 bytes are what `emit` asks for, so it does not fail.
        if (Completion { owner, ..completion }).emit(&mut entry).is_ok() {
            self.store(slot, &entry);
        }
        self.produced += 1;
        overrun
    }

    /// Counts a completion without writing it: its entry keeps what it held.
    pub fn skip(&mut self) {
        self.produced += 1;
    }

    /// A consumer index of 0 is taken for one that is not kept, since it need not be.
    fn overruns(&self) -> bool {
        if self.produced < u64::from(self.entries) {
            return false;
        }
        // SAFETY: the record is valid and aligned, see `new`. Relaxed: a late value only counts a violation more.
        let consumer = u32::from_be(unsafe { half(self.record) }.load(Ordering::Relaxed));
        let distance = (self.produced as u32).wrapping_sub(consumer) & 0xff_ffff;
        consumer & 0xff_ffff != 0 && distance >= self.entries
    }

    fn store(&self, slot: u32, entry: &[u8; CQE_BYTES]) {
        let address = self.base + u64::from(slot) * CQE_BYTES as u64;
        for (i, bytes) in entry.as_chunks::<8>().0.iter().enumerate() {
            // Relaxed for the body; release for the last word, which ends in `op_own`: it orders the body, and the
            // data that was copied before, against the poller's acquire load of `op_own`. The word also holds
            // `wqe_counter`, so that a 4-byte load of a collapsed queue takes both together.
            let order = if i == CQE_BYTES / 8 - 1 {
                Ordering::Release
            } else {
                Ordering::Relaxed
            };
            // SAFETY: within the ring, which is valid and 64-aligned, see `new`.
            unsafe { word(address + i as u64 * 8).store(u64::from_ne_bytes(*bytes), order) };
        }
    }
}
