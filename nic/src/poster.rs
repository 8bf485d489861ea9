//! The GPU's side of the queues in plain Rust, for tests, benches, and to measure a NIC before a GPU uses it.
//!
//! A [`Poster`] owns the memory of one queue pair. It writes requests, rings, and reads completions by the rules of
//! mlx5, in the slow and plain way: one thread, one request at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::wire::WireError;
use crate::wire::mlx5::{
    BLOCK_BYTES, BLOCKS_MAX, CQE_BYTES, Completion, Cqe, Doorbell, Operation, Segment, Segments, WorkRequest,
};
use crate::write_combining::order_before_register;
use crate::{Nic, NicError, Pages, QueueMemory, QueuePair, QueueRings};

/// Sizes and kind of a poster's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PosterConfig {
    /// Blocks of the send queue: a power of two.
    pub sq_entries: u32,
    /// Entries of the completion queue: a power of two.
    pub cq_entries: u32,
    /// Whether all completions go to the first entry.
    pub collapsed: bool,
}

impl Default for PosterConfig {
    fn default() -> Self {
        PosterConfig {
            sq_entries: 64,
            cq_entries: 64,
            collapsed: false,
        }
    }
}

/// Flags of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags {
    /// Wait for earlier READs and atomics.
    pub fence: bool,
    /// Write a completion on success.
    pub signalled: bool,
}

impl Flags {
    /// Signalled, no fence.
    pub const SIGNALLED: Flags = Flags {
        fence: false,
        signalled: true,
    };
    /// Neither.
    pub const SILENT: Flags = Flags {
        fence: false,
        signalled: false,
    };
    /// Both.
    pub const FENCED: Flags = Flags {
        fence: true,
        signalled: true,
    };
}

/// Why a poster could not post or wait.
#[derive(Debug, thiserror::Error)]
pub enum PosterError {
    /// The send queue has no room until completions are polled.
    #[error("send queue full: {free} of {entries} blocks free, {needed} needed; poll first")]
    Full {
        /// Blocks free.
        free: u64,
        /// Blocks in all.
        entries: u32,
        /// Blocks needed.
        needed: u64,
    },
    /// The request has no wire form.
    #[error("the request cannot be written")]
    Wire(#[from] WireError),
    /// No completion came in time.
    #[error("no completion on queue pair {queue_pair:#x} within {waited_ms} ms; {in_flight} requests in flight")]
    TimedOut {
        /// The queue pair.
        queue_pair: u32,
        /// How long was waited, in milliseconds.
        waited_ms: u64,
        /// Requests posted and not completed.
        in_flight: usize,
    },
}

/// One queue pair and its memory.
pub struct Poster {
    nic: Arc<dyn Nic>,
    queue_pair: QueuePair,
    memory: QueueMemory,
    /// Kept while the queue pair lives, where the NIC does not make the rings.
    pages: Option<Pages>,
    /// Destroys the queue pair when it is dropped.
    owns: bool,
    written: u64,
    retired: u64,
    consumed: u64,
    /// First block and end of each request that is not known to be complete.
    in_flight: VecDeque<(u64, u64)>,
    /// Last index seen in a collapsed queue.
    collapsed_seen: Option<u16>,
}

impl Poster {
    /// Creates a queue pair in state reset. A NIC that makes the rings takes the depth alone from `config`.
    ///
    /// # Errors
    /// What the NIC refuses.
    pub fn new(nic: Arc<dyn Nic>, config: PosterConfig) -> Result<Self, NicError> {
        if nic.capabilities().makes_rings {
            let depth = config.sq_entries;
            // SAFETY: this type accesses the rings by atomics only, and not after it has destroyed the queue pair.
            let queue_pair = unsafe { nic.create_queue_pair(QueueRings::Own { depth })? };
            let memory = QueueMemory {
                sq: queue_pair.send.address,
                sq_entries: queue_pair.send.slots,
                cq: queue_pair.completion.address,
                cq_entries: queue_pair.completion.slots,
                dbrec: queue_pair.doorbell_record - 4,
                cq_dbrec: 0,
                collapsed: queue_pair.collapsed,
            };
            return Ok(Self::over(nic, queue_pair, memory, None));
        }
        let sq_bytes = (config.sq_entries as usize * BLOCK_BYTES).next_multiple_of(4096);
        let cq_bytes = (config.cq_entries as usize * CQE_BYTES).next_multiple_of(4096);
        let pages = Pages::new(sq_bytes + cq_bytes + 4096);
        let sq = pages.address();
        let cq = sq + sq_bytes as u64;
        let memory = QueueMemory {
            sq,
            sq_entries: config.sq_entries,
            cq,
            cq_entries: config.cq_entries,
            dbrec: cq + cq_bytes as u64,
            cq_dbrec: cq + cq_bytes as u64 + 64,
            collapsed: config.collapsed,
        };
        // SAFETY: `pages` holds all of it and is freed in `drop` after the queue pair is destroyed, or never; this
        // type accesses it by atomics only.
        let queue_pair = unsafe { nic.create_queue_pair(QueueRings::Given(memory))? };
        Ok(Self::over(nic, queue_pair, memory, Some(pages)))
    }

    fn over(nic: Arc<dyn Nic>, queue_pair: QueuePair, memory: QueueMemory, pages: Option<Pages>) -> Self {
        Poster {
            nic,
            queue_pair,
            memory,
            pages,
            owns: true,
            written: 0,
            retired: 0,
            consumed: u64::from(queue_pair.completion.start),
            in_flight: VecDeque::new(),
            collapsed_seen: None,
        }
    }

    /// Has the NIC's doorbell proxy ring from now on.
    ///
    /// # Errors
    /// What the NIC refuses.
    pub fn use_doorbell_proxy(&mut self) -> Result<(), NicError> {
        self.queue_pair = self.nic.use_doorbell_proxy(self.number())?;
        Ok(())
    }

    /// Creates a queue pair that is its own responder, ready to send.
    ///
    /// # Errors
    /// What the NIC refuses.
    pub fn loopback(nic: Arc<dyn Nic>, config: PosterConfig) -> Result<Self, NicError> {
        let poster = Self::new(nic, config)?;
        poster.nic.connect(poster.number(), poster.number())?;
        Ok(poster)
    }

    /// Gives the queue pair up without destroying it and returns its memory, which must outlive the NIC. Not for rings that
    /// the NIC made.
    pub fn abandon(mut self) -> Pages {
        self.owns = false;
        let pages = self.pages.take();
        pages.expect("rings that the poster made")
    }

    /// The queue pair's number.
    pub fn number(&self) -> u32 {
        self.queue_pair.number
    }

    /// Address of its doorbell register.
    pub fn doorbell(&self) -> u64 {
        self.queue_pair.doorbell
    }

    /// Its memory.
    pub fn memory(&self) -> QueueMemory {
        self.memory
    }

    /// Requests posted and not known to be complete.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Unwrapped index of the next block to be written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Takes the queue pair to reset and starts over; the caller connects it again.
    ///
    /// # Errors
    /// What the NIC refuses.
    pub fn reset(&mut self) -> Result<(), NicError> {
        self.nic.reset(self.number())?;
        self.queue_pair = self.nic.queue_pair(self.number())?;
        (self.written, self.retired) = (0, 0);
        self.consumed = u64::from(self.queue_pair.completion.start);
        self.in_flight.clear();
        self.collapsed_seen = None;
        Ok(())
    }

    /// Writes a request without ringing; returns the unwrapped index of its first block.
    ///
    /// # Errors
    /// A full send queue; a request without wire form.
    pub fn post(&mut self, operation: Operation, segments: &[Segment<'_>], flags: Flags) -> Result<u64, PosterError> {
        let request = WorkRequest {
            index: self.written as u16,
            queue_pair: self.queue_pair.number,
            fence: flags.fence,
            signalled: flags.signalled,
            solicited: false,
            operation,
            segments: Segments::List(segments),
        };
        let needed = request.blocks() as u64;
        let free = u64::from(self.memory.sq_entries) - (self.written - self.retired);
        if needed > free {
            return Err(PosterError::Full {
                free,
                entries: self.memory.sq_entries,
                needed,
            });
        }
        let mut buffer = [0xa5; BLOCKS_MAX * BLOCK_BYTES];
        let bytes = request.emit(&mut buffer)?;
        self.write_raw(&buffer[..bytes]);
        Ok(self.written - needed)
    }

    /// Writes whole blocks of anything at the end of the send queue, as one request.
    pub fn write_raw(&mut self, blocks: &[u8]) {
        let first = self.written;
        for block in blocks.chunks(BLOCK_BYTES) {
            let slot = self.written & u64::from(self.memory.sq_entries - 1);
            for (i, bytes) in block.as_chunks::<8>().0.iter().enumerate() {
                let address = self.memory.sq + slot * BLOCK_BYTES as u64 + i as u64 * 8;
                // Relaxed: the fence in `publish` orders it before the doorbell.
                self.word(address).store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            self.written += 1;
        }
        self.in_flight.push_back((first, self.written));
    }

    /// Announces all written requests: record, fence, doorbell, call.
    pub fn ring(&self) {
        self.store_record(self.written as u16);
        self.store_doorbell(Doorbell {
            index: self.written as u16,
            queue_pair: self.number(),
        });
        self.nic.doorbell_written(self.queue_pair.doorbell);
    }

    /// Stores the send queue's doorbell record.
    pub fn store_record(&self, index: u16) {
        // SAFETY: the queue pair's memory holds the record, 4-aligned.
        let record = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU32>(self.memory.dbrec as usize + 4) };
        // Release: the requests before the record.
        record.store(u32::from(index).to_be(), Ordering::Release);
    }

    /// Stores the completion queue's consumer index, of rings that the poster made. With overrun ignored nothing needs it.
    pub fn store_consumer(&self, index: u32) {
        // SAFETY: the queue pair's memory holds the record, 4-aligned.
        let record = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU32>(self.memory.cq_dbrec as usize) };
        // Release: the entries were read before they are given back.
        record.store((index & 0xff_ffff).to_be(), Ordering::Release);
    }

    /// Stores the doorbell register, without telling the NIC.
    pub fn store_doorbell(&self, doorbell: Doorbell) {
        // Pairs with the engine's acquire load of the register.
        order_before_register();
        let raw = u64::from_ne_bytes(doorbell.emit());
        self.word(self.queue_pair.doorbell).store(raw, Ordering::Relaxed);
    }

    /// Posts, rings and returns the index.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub fn submit(&mut self, operation: Operation, segments: &[Segment<'_>], flags: Flags) -> Result<u64, PosterError> {
        let index = self.post(operation, segments, flags)?;
        self.ring();
        Ok(index)
    }

    /// The next completion, if there is one.
    pub fn poll(&mut self) -> Option<Completion> {
        let entries = self.memory.cq_entries;
        let slot = if self.memory.collapsed {
            0
        } else {
            self.consumed & u64::from(entries - 1)
        };
        let entry = self.entry(slot);
        let cqe = Cqe::new_checked(&entry[..]).ok()?;
        let fresh = if self.memory.collapsed {
            cqe.op_own() >> 4 != 15 && self.collapsed_seen != Some(cqe.wqe_counter())
        } else {
            cqe.is_valid(self.consumed, entries)
        };
        if !fresh {
            return None;
        }
        let completion = Completion::parse(&entry).ok()?;
        self.consumed += 1;
        self.collapsed_seen = Some(completion.index);
        // A completion stands for all requests up to its own: they complete in order.
        let last = self
            .in_flight
            .iter()
            .rposition(|(first, _)| *first as u16 == completion.index);
        if let Some(last) = last {
            self.in_flight.drain(..=last).for_each(|(_, end)| self.retired = end);
        }
        Some(completion)
    }

    /// Waits for the next completion, yielding the core; in manual mode it is the NIC's motor as well.
    ///
    /// # Errors
    /// No completion within `bound`.
    pub fn wait(&mut self, bound: Duration) -> Result<Completion, PosterError> {
        let start = Instant::now();
        let manual = !self.nic.capabilities().needs_doorbell_call;
        loop {
            if let Some(completion) = self.poll() {
                return Ok(completion);
            }
            if start.elapsed() >= bound {
                return Err(PosterError::TimedOut {
                    queue_pair: self.number(),
                    waited_ms: bound.as_millis() as u64,
                    in_flight: self.in_flight.len(),
                });
            }
            if !(manual && self.nic.step()) {
                std::thread::yield_now();
            }
        }
    }

    /// The bytes of a block of the send queue.
    pub fn block(&self, slot: u64) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        for (i, bytes) in block.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let address = self.memory.sq + slot * BLOCK_BYTES as u64 + i as u64 * 8;
            // Relaxed: this side wrote it.
            *bytes = self.word(address).load(Ordering::Relaxed).to_ne_bytes();
        }
        block
    }

    /// The bytes of a completion queue entry.
    pub fn entry(&self, slot: u64) -> [u8; CQE_BYTES] {
        let address = self.memory.cq + slot * CQE_BYTES as u64;
        let mut entry = [0; CQE_BYTES];
        // Acquire, last word first: it holds `op_own`; pairs with the NIC's release store of it.
        let last = self.word(address + 56).load(Ordering::Acquire);
        for (i, bytes) in entry.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // Relaxed: ordered by the load above.
            *bytes = if i == 7 {
                last
            } else {
                self.word(address + i as u64 * 8).load(Ordering::Relaxed)
            }
            .to_ne_bytes();
        }
        entry
    }

    fn word(&self, address: u64) -> &AtomicU64 {
        // SAFETY: only addresses in the queue pair's memory and of its doorbell are passed, 8-aligned; both outlive
        // `self`, and are accessed by atomics only.
        unsafe { &*std::ptr::with_exposed_provenance(address as usize) }
    }
}

impl Drop for Poster {
    fn drop(&mut self) {
        if !self.owns {
            return;
        }
        let pages = self.pages.take();
        match self.nic.destroy_queue_pair(self.queue_pair.number) {
            Ok(()) | Err(NicError::UnknownQueuePair { .. }) => drop(pages),
            // The NIC may still use the memory: better lost than freed under it.
            Err(_) => std::mem::forget(pages),
        }
    }
}
