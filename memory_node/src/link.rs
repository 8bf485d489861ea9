//! How a client's queue pair joins a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpuvm_nic::QueueAttributes;
use parking_lot::Mutex;

use crate::access::random;
use crate::client::NodeClient;
use crate::dial::{Dialling, Resends, SLICE};
use crate::error::{NodeError, Refusal};
use crate::protocol::{ConnectRequest, Reject};
use crate::verbs::{Event, EventKind, Id, JoinQueue, join};

/// A queue pair that has joined a session. Dropping it ends the connection; the queue pair itself belongs to who made it
/// and must be taken to RESET before it joins again. Drop it when the queue pair is idle: requests that are in flight
/// end with an error after their retries.
#[derive(Debug)]
pub struct QueueLink {
    // An option, so that it can go between the two steps of leaving.
    id: Option<Id>,
    events: Mutex<Receiver<Event>>,
    over: AtomicBool,
    number: u32,
    attributes: QueueAttributes,
    client: Arc<NodeClient>,
}

impl QueueLink {
    /// The number of the queue pair.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// READs and atomics that may be in flight.
    pub fn outstanding_reads_max(&self) -> u8 {
        self.attributes.max_rd_atomic
    }

    /// Lets the queue pair, which the caller has taken to RESET, begin anew at both ends, over the same connection: after
    /// an error that was its own. It is ready to send then. This goes over the control connection and takes one exchange
    /// of messages, where a new connection could take seconds when packets are lost.
    ///
    /// # Errors
    /// A queue pair that does not take a state, a connection that the node has ended, a session that is over.
    pub fn rejoin(&self, queue: &dyn JoinQueue) -> Result<(), NodeError> {
        let Some(id) = &self.id else { return Ok(()) };
        // A packet number far from those of before: late packets are not taken for new ones.
        let packet = u32::from_le_bytes(random()?) & 0xff_ffff;
        self.client.rejoin(self.number, packet)?;
        join(queue, |state| {
            Ok(QueueAttributes {
                rq_psn: packet,
                sq_psn: packet,
                ..id.attributes(state)?
            })
        })
    }

    /// The session.
    pub fn client(&self) -> &Arc<NodeClient> {
        &self.client
    }

    /// Whether the node has ended this connection, or the session is over: requests end with errors from now on.
    pub fn is_over(&self) -> bool {
        let events = self.events.lock();
        let ended = events.try_iter().any(|event| {
            matches!(
                event.kind,
                EventKind::Disconnected | EventKind::DeviceRemoved | EventKind::Failed(_)
            )
        });
        // Relaxed, both: the flag alone is read, under the lock or after it.
        if ended {
            self.over.store(true, Ordering::Relaxed);
        }
        self.over.load(Ordering::Relaxed) || self.client.failure().is_some()
    }
}

impl Drop for QueueLink {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.client.leave(self.number);
            id.disconnect();
            self.client.forget_events_of(&id);
        }
    }
}

impl NodeClient {
    /// Lets a queue pair in the state RESET join: afterwards it is ready to send, and its requests reach this client's
    /// grants and nothing else. It stays joined until the link is dropped.
    ///
    /// # Errors
    /// A queue pair that does not take a state, a node that refuses, a session that is over.
    pub fn connect_queue(self: &Arc<Self>, queue: &dyn JoinQueue) -> Result<QueueLink, NodeError> {
        connect(self, queue)
    }
}

/// Lets a queue pair join a session.
fn connect(client: &Arc<NodeClient>, queue: &dyn JoinQueue) -> Result<QueueLink, NodeError> {
    let inner = &client.inner;
    let end = Instant::now() + inner.options.timeout;
    loop {
        if let Some(dead) = inner.dead() {
            return Err(dead);
        }
        match try_to_connect(client, queue) {
            // The peer's kernel keeps the number of a queue pair that has just left for a moment.
            Err(NodeError::Call {
                call: "rdma_connect",
                source,
                ..
            }) if source.kind() == std::io::ErrorKind::AddrInUse && Instant::now() < end => {
                sleep(Duration::from_millis(50));
            }
            result => return result,
        }
    }
}

fn try_to_connect(client: &Arc<NodeClient>, queue: &dyn JoinQueue) -> Result<QueueLink, NodeError> {
    let inner = &client.inner;
    let dialling = Dialling {
        address: &inner.address,
        peer: inner.peer,
        options: &inner.options,
        channel: &inner.channel,
        resends: Resends::of_data(&inner.options),
    };
    let id = Id::new(&inner.channel)?;
    let receiver = client.events_of(&id);
    let joined = join_session(client, &dialling, &id, queue, &receiver);
    match joined {
        Ok(attributes) => Ok(QueueLink {
            id: Some(id),
            events: Mutex::new(receiver),
            over: AtomicBool::new(false),
            number: queue.number(),
            attributes,
            client: Arc::clone(client),
        }),
        Err(error) => {
            client.forget_events_of(&id);
            Err(error)
        }
    }
}

fn join_session(
    client: &NodeClient,
    dialling: &Dialling<'_>,
    id: &Id,
    queue: &dyn JoinQueue,
    receiver: &Receiver<Event>,
) -> Result<QueueAttributes, NodeError> {
    let inner = &client.inner;
    let events = |_: &Id, limit: Duration| {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            // In slices: a session that ends meanwhile is noticed.
            match receiver.recv_timeout(left.min(SLICE)) {
                Ok(event) => return Ok(Some(event)),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(_) => return Ok(None),
            }
            if let Some(dead) = inner.dead() {
                return Err(dead);
            }
        }
    };
    dialling.resolve_with(id, &events)?;
    if id.device().as_deref() != Some(inner.device.as_str()) {
        return Err(NodeError::OtherDevice {
            address: inner.address.clone(),
            found: id.device().unwrap_or_default(),
            device: inner.device.clone(),
        });
    }
    let request = ConnectRequest::Data { token: inner.token };
    match dialling.dial_with(id, queue, &request, &events)? {
        Ok(_) => id.attributes(QueueAttributes::READY_TO_SEND).map(|rts| {
            // The peer's number is among those of the state before.
            let peer = id
                .attributes(QueueAttributes::READY_TO_RECEIVE)
                .map_or(0, |rtr| rtr.dest_qp_num);
            QueueAttributes {
                dest_qp_num: peer,
                ..rts
            }
        }),
        Err(Reject { reason, detail, .. }) => Err(NodeError::Refused {
            address: inner.address.clone(),
            refusal: Refusal { reason, detail },
        }),
    }
}
