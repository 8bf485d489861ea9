//! Completion queues of the node's devices. A queue has room for this many clients; a device has as many queues as its clients need.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::error::NodeError;
use crate::limits::{CLIENTS_PER_COMPLETION_QUEUE, COMPLETION_ENTRIES_MAX, COMPLETIONS_PER_CLIENT, EVENTS_MAX};
use crate::verbs::{CompletionQueue, Context};

/// A client's place in a completion queue, free again when it is dropped.
#[derive(Debug)]
pub struct Seat(#[allow(dead_code, reason = "it is counted")] Arc<()>);

/// A queue, and how many clients it has.
#[derive(Debug)]
struct Seated {
    queue: Arc<CompletionQueue>,
    /// One is held here, and one by each client.
    seats: Arc<()>,
}

/// Those of all devices.
#[derive(Debug, Default)]
pub struct Completions(HashMap<String, Vec<Seated>>);

impl Completions {
    /// A queue of the device that has room for a client, and the client's place.
    ///
    /// # Errors
    /// What the device says of another queue.
    pub fn seat(&mut self, device: &str, clients_max: u32) -> Result<(Arc<CompletionQueue>, Seat), NodeError> {
        let queues = self.0.entry(device.to_owned()).or_default();
        let has_room = |seated: &&Seated| Arc::strong_count(&seated.seats) <= CLIENTS_PER_COMPLETION_QUEUE as usize;
        if let Some(seated) = queues.iter().find(has_room) {
            return Ok((Arc::clone(&seated.queue), Seat(Arc::clone(&seated.seats))));
        }
        let context = match queues.first() {
            Some(first) => Arc::clone(first.queue.context()),
            None => Context::open(device)?,
        };
        let entries = clients_max
            .saturating_add(2 * EVENTS_MAX)
            .saturating_mul(COMPLETIONS_PER_CLIENT);
        let queue = CompletionQueue::new(&context, entries.min(COMPLETION_ENTRIES_MAX))?;
        let seats = Arc::new(());
        let seat = Seat(Arc::clone(&seats));
        queues.push(Seated {
            queue: Arc::clone(&queue),
            seats,
        });
        Ok((queue, seat))
    }

    /// All queues, with their devices.
    pub fn all(&self) -> Vec<(String, Arc<CompletionQueue>)> {
        let of_device = |(device, queues): (&String, &Vec<Seated>)| {
            let queues = queues.iter().map(|seated| (device.clone(), Arc::clone(&seated.queue)));
            queues.collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_device).collect()
    }

    /// What to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.0.values().flatten().map(|seated| seated.queue.fd())
    }
}
