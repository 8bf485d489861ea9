//! How a connection to a node is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client::ClientOptions;
use crate::error::{NodeError, Refusal};
use crate::protocol::{Accept, ConnectRequest, ProtocolError, REQUEST_BYTES, Reason, Reject};
use crate::rejects::{self, BY_THE_NODE, STALE_CONNECTION};
use crate::verbs::{Channel, ConnectParameters, Event, EventKind, Id, JoinQueue, join, wait_readable};

/// How long a wait for an event goes without a look at the session.
pub const SLICE: Duration = Duration::from_millis(50);

/// What a connection is made with.
pub struct Dialling<'a> {
    pub address: &'a str,
    pub peer: std::net::SocketAddr,
    pub options: &'a ClientOptions,
    pub channel: &'a Arc<Channel>,
    pub resends: Resends,
}

/// Whether somebody does not want any more what is waited for.
pub fn is_set(cancel: Option<&AtomicBool>) -> bool {
    // Relaxed: the flag alone is read.
    cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed))
}

/// What a queue pair's attribute has room for; for ever on rdma_rxe.
const RETRIES_MAX: u8 = 7;

/// What a queue pair does about packets that are not answered.
#[derive(Clone, Copy)]
pub struct Resends {
    pub retry_count: u8,
    pub ack_timeout: u8,
}

impl Resends {
    /// The client's own, for queue pairs that carry its data.
    pub fn of_data(options: &ClientOptions) -> Self {
        Self {
            retry_count: options.retry_count,
            ack_timeout: options.ack_timeout,
        }
    }

    /// The most patient ones, for the control connection: both its ends look whether the other answers
    /// (`look_after_node`, and the node's own probes) and end the session by their own clocks, so it must not end
    /// sooner, by packets that were lost or overtaken.
    pub fn of_control(options: &ClientOptions) -> Self {
        Self {
            retry_count: RETRIES_MAX,
            ack_timeout: options.ack_timeout.max(ClientOptions::default().ack_timeout),
        }
    }
}

/// How a connection request ended.
pub enum Dialled {
    Joined(Id, Accept),
    Refused(Reject),
}

/// The next event of an identifier, within the time; none when it is over.
pub type Events<'a> = &'a dyn Fn(&Id, Duration) -> Result<Option<Event>, NodeError>;

/// The next event of the only identifier of a channel, within the time; none as well once `cancel` is set.
pub fn next_event(
    channel: &Arc<Channel>,
    id: &Id,
    limit: Duration,
    cancel: Option<&AtomicBool>,
) -> Result<Option<Event>, NodeError> {
    let end = Instant::now() + limit;
    loop {
        match channel.next()? {
            Some(event) if event.id == id.key() => return Ok(Some(event)),
            // Of an attempt before this one.
            Some(_) => continue,
            None => {}
        }
        let mut left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || is_set(cancel) {
            return Ok(None);
        }
        if cancel.is_some() {
            left = left.min(SLICE);
        }
        wait_readable([channel.fd()], left).map_err(|source| NodeError::System {
            what: "wait for the connection manager",
            source,
        })?;
    }
}

impl Dialling<'_> {
    fn unreachable(&self, why: String) -> NodeError {
        NodeError::Unreachable {
            address: self.address.to_owned(),
            why,
        }
    }

    fn wait(&self, id: &Id, step: &'static str, events: Events<'_>) -> Result<Event, NodeError> {
        match events(id, self.options.timeout)? {
            None => Err(self.unreachable(format!("{step} took longer than {:?}", self.options.timeout))),
            Some(event) => match event.kind {
                EventKind::Failed(why) => {
                    let code = event.status.unsigned_abs() as i32;
                    let cause = match code {
                        0 => String::new(),
                        _ => format!(" ({})", std::io::Error::from_raw_os_error(code)),
                    };
                    Err(self.unreachable(format!("{why}{cause}")))
                }
                EventKind::DeviceRemoved => Err(self.unreachable("the RDMA device was removed".to_owned())),
                _ => Ok(event),
            },
        }
    }

    fn expect(&self, id: &Id, step: &'static str, wanted: EventKind, events: Events<'_>) -> Result<(), NodeError> {
        match self.wait(id, step, events)? {
            event if event.kind == wanted => Ok(()),
            event => Err(self.unreachable(format!("{step} ended with {:?}", event.kind))),
        }
    }

    /// Finds the device and the way to the node.
    pub fn resolve(&self, events: Events<'_>) -> Result<Id, NodeError> {
        let id = Id::new(self.channel)?;
        self.resolve_with(&id, events)?;
        Ok(id)
    }

    /// As [`resolve`](Self::resolve), with an identifier that is there.
    pub fn resolve_with(&self, id: &Id, events: Events<'_>) -> Result<(), NodeError> {
        id.resolve_address(self.peer, self.options.timeout)
            .map_err(|error| match error {
                NodeError::Call { source, .. } => {
                    self.unreachable(format!("no RDMA device of this machine leads there ({source})"))
                }
                other => other,
            })?;
        self.expect(id, "finding its address", EventKind::AddressResolved, events)?;
        id.set_ack_timeout(self.resends.ack_timeout);
        if self.options.traffic_class != 0 {
            id.set_traffic_class(self.options.traffic_class)?;
        }
        id.resolve_route(self.options.timeout)?;
        self.expect(id, "finding the way", EventKind::RouteResolved, events)
    }

    /// Asks for the connection and lets the queue pair join it.
    pub fn dial(
        &self,
        id: Id,
        queue: &dyn JoinQueue,
        request: &ConnectRequest,
        events: Events<'_>,
    ) -> Result<Dialled, NodeError> {
        match self.dial_with(&id, queue, request, events)? {
            Ok(accept) => Ok(Dialled::Joined(id, accept)),
            Err(reject) => Ok(Dialled::Refused(reject)),
        }
    }

    /// As [`dial`](Self::dial), with an identifier that stays the caller's.
    pub fn dial_with(
        &self,
        id: &Id,
        queue: &dyn JoinQueue,
        request: &ConnectRequest,
        events: Events<'_>,
    ) -> Result<Result<Accept, Reject>, NodeError> {
        let private_data: [u8; REQUEST_BYTES] = request.emit();
        id.connect(ConnectParameters {
            private_data: &private_data,
            // The node begins nothing but its WRITEs of no bytes.
            responder_resources: 1,
            initiator_depth: queue.max_outstanding_reads(),
            retry_count: self.resends.retry_count,
            rnr_retry_count: self.resends.retry_count.min(6),
            queue: queue.number(),
        })?;
        let event = self.wait(id, "the answer to the connection request", events)?;
        match event.kind {
            EventKind::ConnectResponse => {}
            EventKind::Rejected => return self.rejected(&event).map(Err),
            other => return Err(self.unreachable(format!("the connection request ended with {other:?}"))),
        }
        let accept = match Accept::parse(&event.private_data) {
            Ok(accept) => accept,
            Err(ProtocolError::Version(version)) => {
                return Err(NodeError::Refused {
                    address: self.address.to_owned(),
                    refusal: Refusal {
                        reason: Reason::WrongVersion,
                        detail: version.into(),
                    },
                });
            }
            Err(error) => return Err(self.unreachable(format!("the server there is not a memory node: {error}"))),
        };
        join(queue, |state| id.attributes(state))?;
        id.establish()?;
        Ok(Ok(accept))
    }

    fn rejected(&self, event: &Event) -> Result<Reject, NodeError> {
        match (event.status, Reject::parse(&event.private_data)) {
            (BY_THE_NODE, Ok(reject)) => Ok(reject),
            (BY_THE_NODE, Err(ProtocolError::Version(version))) => Ok(Reject {
                reason: Reason::WrongVersion,
                detail: version.into(),
                challenge: Default::default(),
            }),
            (BY_THE_NODE, Err(error)) => {
                Err(self.unreachable(format!("the server there is not a memory node: {error}")))
            }
            (STALE_CONNECTION, _) => Err(NodeError::Call {
                call: "rdma_connect",
                what: "the node's machine still has an older connection of this queue pair",
                object: self.address.to_owned(),
                source: std::io::ErrorKind::AddrInUse.into(),
            }),
            (reason, _) => Err(self.unreachable(rejects::describe(reason))),
        }
    }
}
