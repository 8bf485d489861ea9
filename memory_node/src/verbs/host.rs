//! An ordinary queue pair with registered memory: for host threads that want to read and write a grant themselves.

use std::io;
use std::sync::Arc;

use super::device::{CompletionQueue, Context, Domain};
use gpuvm_nic::QueueAttributes;

use super::queue::{Completion, JoinQueue, Request, VerbsQueue};
use crate::error::NodeError;
use crate::memory::Buffer;

/// A reliable-connected queue pair of libibverbs with a buffer that its requests read and write. Used by one thread.
#[derive(Debug)]
pub struct HostQueue {
    // Before the buffer: when the queue pair is gone, no request touches the buffer.
    queue: VerbsQueue,
    buffer: Buffer,
}

impl HostQueue {
    /// Makes one in the state RESET.
    ///
    /// # Errors
    /// No library, no such device, or what it says.
    pub fn open(device: &str, depth: u32, buffer_bytes: usize) -> Result<HostQueue, NodeError> {
        let context = Context::open(device)?;
        let domain = Domain::new(&context)?;
        let completions = CompletionQueue::new(&context, depth.saturating_add(1))?;
        Ok(HostQueue {
            queue: VerbsQueue::new(&domain, &completions, depth, 1)?,
            buffer: Buffer::new(&domain, buffer_bytes)?,
        })
    }

    /// Posts a request over `bytes` bytes of the buffer at `offset`. Its completion has this `id`.
    ///
    /// # Errors
    /// A place outside the buffer, a full queue, or what the device says.
    pub fn post(&self, id: u64, request: Request, offset: usize, bytes: u32) -> io::Result<()> {
        let local = self
            .buffer
            .place(offset, bytes as usize)
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the place is inside the buffer, which outlives the queue pair. Its bytes are copied in and out by
        // `fill` and `copy`, never lent, so a request that runs on meanwhile gives wrong bytes at worst.
        unsafe { self.queue.post_request(id, request, local, self.buffer.lkey(), bytes) }
    }

    /// Takes up to 32 completions; none where there are none.
    pub fn poll(&self) -> Vec<Completion> {
        self.queue.poll()
    }

    /// Copies into the buffer. False, and nothing done, where the place is outside.
    #[must_use]
    pub fn fill(&mut self, offset: usize, data: &[u8]) -> bool {
        self.buffer.fill(offset, data)
    }

    /// Copies out of the buffer. False, and nothing done, where the place is outside.
    #[must_use]
    pub fn copy(&self, offset: usize, out: &mut [u8]) -> bool {
        self.buffer.copy(offset, out)
    }

    /// Takes the queue pair back to RESET, so that it can join again.
    ///
    /// # Errors
    /// What the device says.
    pub fn reset(&self) -> io::Result<()> {
        self.queue.modify(&QueueAttributes::to_state(QueueAttributes::RESET))
    }
}

impl JoinQueue for HostQueue {
    fn number(&self) -> u32 {
        self.queue.number()
    }

    fn modify(&self, attributes: &QueueAttributes) -> io::Result<()> {
        self.queue.modify(attributes)
    }

    fn max_outstanding_reads(&self) -> u8 {
        self.queue.max_outstanding_reads()
    }
}

// A raw queue pair and the open device are all that these hold.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<HostQueue>();
    is_send::<Arc<Domain>>();
};
