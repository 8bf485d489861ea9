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
    /// The entries are a mover's to write: this process may not reach them.
    remote: bool,
    /// It goes on over a reset of its queue pair.
    goes_on: bool,
    /// Its entries were set to invalid once.
    begun: bool,
    /// Where it was at the last reset, modulo two laps.
    first: u32,
    /// Completions written so far.
    produced: u64,
}

/// The place of one completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Address of its entry.
    pub address: u64,
    /// The lap's owner bit.
    pub owner: bool,
    /// It overwrites an entry that the consumer, if it keeps an index in its record, has not read.
    pub overrun: bool,
}

/// An entry that holds no completion.
pub(super) const INVALID: [u8; CQE_BYTES] = {
    let mut entry = [0; CQE_BYTES];
    entry[CQE_BYTES - 1] = CQE_INVALID;
    entry
};

/// A completion as its entry holds it, with the lap's owner bit.
pub(super) fn bytes_of(completion: &Completion, owner: bool) -> [u8; CQE_BYTES] {
    let mut entry = [0; CQE_BYTES];
    // 64 bytes are what `emit` asks for, so it does not fail.
    let emitted = Completion { owner, ..*completion }.emit(&mut entry);
    debug_assert!(emitted.is_ok());
    entry
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
    pub fn new(memory: &QueueMemory, remote: bool, goes_on: bool) -> Self {
        CompletionQueue {
            base: memory.cq,
            entries: memory.cq_entries,
            record: memory.cq_dbrec,
            collapsed: memory.collapsed,
            remote,
            goes_on,
            begun: false,
            first: 0,
            produced: 0,
        }
    }

    /// Sets every entry to invalid and the index and record to 0, unless it goes on. Remote entries are left to who has
    /// the mover.
    pub fn reset(&mut self) {
        if self.goes_on && self.begun {
            self.first = self.produced as u32 & (2 * self.entries - 1);
            return;
        }
        self.begun = true;
        self.produced = 0;
        for slot in 0..self.entries {
            if !self.remote {
                self.store(self.base + u64::from(slot) * CQE_BYTES as u64, &INVALID);
            }
        }
        // SAFETY: the record is valid and aligned, see `new`. Relaxed: nobody polls a queue pair in reset.
        unsafe { word(self.record).store(0, Ordering::Relaxed) };
    }

    /// Position of the first completion since the last reset: its slot and, above it, the lap's owner bit.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// Takes the next entry.
    pub fn claim(&mut self) -> Entry {
        let overrun = !self.collapsed && self.overruns();
        let owner = self.produced & u64::from(self.entries) != 0;
        let slot = if self.collapsed {
            0
        } else {
            self.produced as u32 & (self.entries - 1)
        };
        self.produced += 1;
        Entry {
            address: self.base + u64::from(slot) * CQE_BYTES as u64,
            owner,
            overrun,
        }
    }

    /// Writes `completion`, with the lap's owner bit. Returns whether it overwrote an entry that the consumer,
    /// if it keeps an index in its record, has not read. Not for remote entries.
    pub fn push(&mut self, completion: Completion) -> bool {
        let Entry {
            address,
            owner,
            overrun,
        } = self.claim();
        if !self.remote {
            self.store(address, &bytes_of(&completion, owner));
        }
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

    fn store(&self, address: u64, entry: &[u8; CQE_BYTES]) {
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
