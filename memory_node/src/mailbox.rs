//! One end of a control connection: a queue pair, and the slots that messages arrive in. A node and its clients have it alike.

use std::io;
use std::sync::Arc;

use crate::error::NodeError;
use crate::memory::Buffer;
use crate::protocol::{Body, MESSAGE_BYTES, Message, ProtocolError};
use crate::verbs::{CompletionQueue, Domain, VerbsQueue};

/// Messages of the other end that are on their way or not read yet, at most. Ids below it are the slots of receives.
pub const RECEIVES: u32 = 8;
/// The id of a WRITE of no bytes, which asks for a sign of life.
pub const PROBE: u64 = 1 << 32;
/// The id of a message.
pub const SEND: u64 = 1 << 33;

/// The queue pair goes before the slots.
#[derive(Debug)]
pub struct Mailbox {
    pub queue: VerbsQueue,
    slots: Buffer,
}

impl Mailbox {
    /// A queue pair that has not joined yet, with room for this many requests in flight.
    pub fn new(domain: &Arc<Domain>, completions: &Arc<CompletionQueue>, sends: u32) -> Result<Self, NodeError> {
        Ok(Self {
            queue: VerbsQueue::new(domain, completions, sends, RECEIVES)?,
            slots: Buffer::new(domain, RECEIVES as usize * MESSAGE_BYTES)?,
        })
    }

    /// Lets a message come into each slot.
    pub fn post_receives(&self) -> io::Result<()> {
        (0..u64::from(RECEIVES)).try_for_each(|slot| self.post_receive(slot))
    }

    fn post_receive(&self, slot: u64) -> io::Result<()> {
        let place = self.slots.place(slot as usize * MESSAGE_BYTES, MESSAGE_BYTES);
        let place = place.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the slot is inside the buffer, which goes after the queue pair; it is read by copies, and only
        // between its completion and the next post.
        unsafe {
            self.queue
                .post_receive(slot, place, self.slots.lkey(), MESSAGE_BYTES as u32)
        }
    }

    /// The message in a slot; the slot takes the next one afterwards.
    pub fn read(&self, slot: u64, bytes: u32) -> Result<Message, String> {
        let mut message = [0; MESSAGE_BYTES];
        let length = (bytes as usize).min(MESSAGE_BYTES);
        let inside = self.slots.copy(slot as usize * MESSAGE_BYTES, &mut message[..length]);
        let parsed = match inside {
            true => Message::parse(&message[..length]),
            false => Err(ProtocolError::Field {
                field: "slot",
                value: slot,
            }),
        };
        let parsed = parsed.map_err(|error| format!("a message that cannot be read: {error}"))?;
        self.post_receive(slot)
            .map_err(|error| format!("a message, and the queue pair takes no receive buffer: {error}"))?;
        Ok(parsed)
    }

    /// Sends a message.
    pub fn send(&self, request: u64, body: Body) -> io::Result<()> {
        self.queue.send(SEND, &Message { request, body }.emit())
    }
}
