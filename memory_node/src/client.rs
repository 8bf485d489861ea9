//! One session with a memory node.

mod grant;
mod options;
mod service;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::access::{Handshake, Side, random};
use crate::dial::{self, Dialled, Dialling, Resends};
use crate::error::{NodeError, Refusal};
use crate::mailbox::{Mailbox, RECEIVES};
use crate::memory::Buffer;
use crate::protocol::{Accept, Body, ConnectRequest, Name, Proof, Reason};
use crate::verbs::{Channel, CompletionQueue, Context, Domain, Event, Id, VerbsQueue, Waker};

pub use grant::{Grant, ShareKey};
pub use options::ClientOptions;
use parking_lot::{Condvar, Mutex};
pub(crate) use service::{Inner, STAGING_BYTES};
use service::{PIECES, Piece, SENDS, SessionState};

/// How often the client looks whether the node is there, at least.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(1);
/// How long a client that leaves waits for the node's answer.
const GOODBYE_MAX: Duration = Duration::from_millis(500);
/// One session with one node. Everything made from it holds it; when the last of that is dropped, the client says
/// goodbye and the node takes back what is left.
#[derive(Debug)]
pub struct NodeClient {
    pub(crate) inner: Arc<Inner>,
    /// The number of the next request; held from a request to its answer.
    requests: Mutex<u64>,
    /// Held by the copy that uses the staging buffer.
    copies: Mutex<()>,
    thread: Option<JoinHandle<()>>,
}

impl NodeClient {
    /// Joins the node at `address`, `host:port`.
    ///
    /// # Errors
    /// No library or device, an address that means nothing, a node that cannot be reached, refuses, or does not prove
    /// that it knows the secret.
    pub fn connect(address: &str, options: &ClientOptions) -> Result<Arc<Self>, NodeError> {
        options.check()?;
        // Before the address: the usual cause is that nothing of RDMA is there.
        let channel = Channel::new()?;
        let resolved = address.to_socket_addrs().map_err(|source| NodeError::Address {
            address: address.to_owned(),
            source,
        })?;
        let mut peers: Vec<SocketAddr> = resolved.collect();
        peers.sort_by_key(SocketAddr::is_ipv6);
        let mut failure = NodeError::Address {
            address: address.to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        for peer in peers {
            match NodeClient::join(address, peer, &channel, options, None) {
                Ok(client) => return Ok(client),
                // A node that refuses is there.
                Err(error @ (NodeError::Refused { .. } | NodeError::NodeNotProved { .. })) => return Err(error),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Begins another session with the same node, at the network address that this one has, by the same options: for a node
    /// that was started again. This session and what was made from it stay as they are; the new one has no grants. Its
    /// device is the same. Who sets `cancel` ends the attempt within a tenth of a second.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), [`NodeError::OtherDevice`] where the way leads over another device now, and
    /// [`NodeError::Cancelled`].
    pub fn connect_again(&self, cancel: &AtomicBool) -> Result<Arc<Self>, NodeError> {
        let inner = &self.inner;
        let channel = Channel::new()?;
        let joined = NodeClient::join(&inner.address, inner.peer, &channel, &inner.options, Some(cancel));
        match joined {
            Ok(client) if client.device() != self.device() => Err(NodeError::OtherDevice {
                address: inner.address.clone(),
                found: client.device().to_owned(),
                device: self.device().to_owned(),
            }),
            // What was waited for did not come because of it.
            Err(_) if dial::is_set(Some(cancel)) => Err(NodeError::Cancelled {
                address: inner.address.clone(),
            }),
            other => other,
        }
    }

    fn join(
        address: &str,
        peer: SocketAddr,
        channel: &Arc<Channel>,
        options: &ClientOptions,
        cancel: Option<&AtomicBool>,
    ) -> Result<Arc<Self>, NodeError> {
        let dialling = Dialling {
            address,
            peer,
            options,
            channel,
            resends: Resends::of_control(options),
        };
        let events = |id: &Id, left| dial::next_event(channel, id, left, cancel);
        let id = dialling.resolve(&events)?;
        let device = id.device().ok_or_else(|| NodeError::Unreachable {
            address: address.to_owned(),
            why: "the way to it goes through no RDMA device of this machine".to_owned(),
        })?;
        let context = Context::open(&device)?;
        let domain = Domain::new(&context)?;
        let completions = CompletionQueue::new(&context, RECEIVES + SENDS)?;
        let mail = Mailbox::new(&domain, &completions, SENDS)?;
        let staging = Buffer::new(&domain, STAGING_BYTES)?;

        let (control, accept) = NodeClient::shake_hands(&dialling, id, &mail.queue, &events)?;
        let keep_alive = Duration::from_millis(accept.keep_alive_ms.max(10).into()).min(KEEP_ALIVE_MAX);
        let inner = Arc::new(Inner {
            mail,
            staging,
            completions,
            control,
            waiters: Mutex::default(),
            channel: Arc::clone(channel),
            peer,
            address: address.to_owned(),
            device,
            options: options.clone(),
            token: accept.token,
            capacity: accept.capacity,
            free: AtomicU64::new(accept.capacity),
            keep_alive,
            state: Mutex::new(SessionState {
                failure: None,
                reply: None,
                pieces: [Piece::Idle; PIECES],
                probe_since: None,
                probe_last: Instant::now(),
            }),
            changed: Condvar::new(),
            waker: Waker::new()?,
            stop: AtomicBool::new(false),
        });
        NodeClient::begin(inner, cancel)
    }

    /// Asks for the connection, once more where the node wants the secret proved.
    fn shake_hands(
        dialling: &Dialling<'_>,
        id: Id,
        queue: &VerbsQueue,
        events: dial::Events<'_>,
    ) -> Result<(Id, Accept), NodeError> {
        let address = || dialling.address.to_owned();
        let client_nonce = random()?;
        let request = |proof| ConnectRequest::Control { client_nonce, proof };
        let mut dialled = dialling.dial(id, queue, &request(None), events)?;
        let mut handshake = None;
        if let Dialled::Refused(reject) = &dialled
            && let (Reason::SecretNeeded, Some(secret)) = (reject.reason, &dialling.options.secret)
        {
            let answered = Handshake {
                challenge: reject.challenge,
                client_nonce,
                node: dialling.peer,
            };
            handshake = Some(answered);
            let proof = Proof {
                challenge: reject.challenge,
                digest: answered.prove(secret, Side::Client),
            };
            dialled = dialling.dial(dialling.resolve(events)?, queue, &request(Some(proof)), events)?;
        }
        let (id, accept) = match dialled {
            Dialled::Joined(id, accept) => (id, accept),
            Dialled::Refused(reject) => {
                return Err(NodeError::Refused {
                    address: address(),
                    refusal: Refusal {
                        reason: reject.reason,
                        detail: reject.detail,
                    },
                });
            }
        };
        if let Some(secret) = &dialling.options.secret {
            let answer = handshake.zip(accept.proof);
            if !answer.is_some_and(|(handshake, proof)| handshake.check(secret, Side::Node, &proof)) {
                return Err(NodeError::NodeNotProved { address: address() });
            }
        }
        Ok((id, accept))
    }

    /// Starts the service thread of a queue pair that is ready to send, and says hello.
    fn begin(inner: Arc<Inner>, cancel: Option<&AtomicBool>) -> Result<Arc<Self>, NodeError> {
        inner.mail.post_receives().map_err(|source| NodeError::Call {
            call: "ibv_post_recv",
            what: "waiting for messages",
            object: inner.address.clone(),
            source,
        })?;
        let served = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("memory-node-client".to_owned());
        let thread = thread
            .spawn(move || served.serve())
            .map_err(|source| NodeError::System {
                what: "start the client's thread",
                source,
            })?;
        let client = Arc::new(NodeClient {
            inner,
            requests: Mutex::new(1),
            copies: Mutex::new(()),
            thread: Some(thread),
        });
        let name = Name::new(&client.inner.options.name);
        match client.ask_unless(
            Body::Hello(name),
            "saying hello to the memory node",
            client.inner.options.timeout,
            cancel,
        )? {
            Body::Done { .. } => Ok(client),
            other => Err(client.unexpected(&other)),
        }
    }

    fn unexpected(&self, answer: &Body) -> NodeError {
        self.inner
            .fail(&format!("an answer that does not belong there: {answer:?}"));
        self.inner.dead().unwrap_or_else(|| NodeError::Dead {
            address: self.inner.address.clone(),
            why: "an answer that does not belong there".to_owned(),
        })
    }

    /// The error of an answer that is not the one that was asked for.
    fn refused(&self, what: &'static str, answer: Body) -> NodeError {
        match answer {
            Body::Refused { reason, detail } => NodeError::GrantRefused {
                address: self.inner.address.clone(),
                what,
                refusal: Refusal { reason, detail },
            },
            other => self.unexpected(&other),
        }
    }

    /// Sends a request and waits for its answer. A node that does not answer in time is given up: a late answer could be
    /// an unknown grant.
    fn ask(&self, body: Body, what: &str, limit: Duration) -> Result<Body, NodeError> {
        self.ask_unless(body, what, limit, None)
    }

    /// [`ask`](Self::ask), given up once `cancel` is set.
    fn ask_unless(
        &self,
        body: Body,
        what: &str,
        limit: Duration,
        cancel: Option<&AtomicBool>,
    ) -> Result<Body, NodeError> {
        let mut next = self.requests.lock();
        let request = *next;
        *next += 1;
        if let Some(dead) = self.inner.dead() {
            return Err(dead);
        }
        self.inner.state().reply = None;
        let sent = self.inner.mail.send(request, body);
        if let Err(error) = sent {
            self.inner.fail(&format!("the queue pair takes no message: {error}"));
        }
        let what = format!("{what} {}", self.inner.address);
        let answer = self.inner.wait_for(&what, limit, cancel, |state| {
            let reply = state.reply.take()?;
            (reply.request == request).then_some(reply.body)
        });
        match &answer {
            Err(NodeError::Cancelled { .. }) => self.inner.fail("it is not wanted any more"),
            Err(NodeError::Timeout { .. }) => self.inner.fail(&format!("{what} took longer than {limit:?}")),
            Ok(Body::Done { free } | Body::Granted { free, .. }) => {
                // Relaxed: a figure for people.
                self.inner.free.store(*free, Ordering::Relaxed);
            }
            _ => {}
        }
        answer
    }

    /// The local RDMA device that the way to the node goes through: queue pairs that join must be on it.
    pub fn device(&self) -> &str {
        &self.inner.device
    }

    /// The node as it was given.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// Most bytes that this client may have at the node.
    pub fn capacity_bytes(&self) -> u64 {
        self.inner.capacity
    }

    /// What the node said at the last answer: bytes that this client may still get, as far as others leave them.
    pub fn free_bytes(&self) -> u64 {
        // Relaxed: a figure for people.
        self.inner.free.load(Ordering::Relaxed)
    }

    /// Asks the node: whether its program answers, and how many bytes this client may still get.
    ///
    /// # Errors
    /// A session that is over, or no answer in time.
    pub fn ping(&self) -> Result<u64, NodeError> {
        match self.ask(Body::Ping, "the answer of the memory node", self.inner.options.timeout)? {
            Body::Done { free } => Ok(free),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Tells the node that a queue pair has left: its disconnect may be lost, this is not.
    pub(crate) fn leave(&self, queue: u32) {
        // A session that is over has no queue pairs.
        let _ = self.ask(
            Body::Leave { queue },
            "a queue pair's leave at the memory node",
            self.inner.options.timeout,
        );
    }

    /// Asks the node to let its end of a queue pair begin anew.
    pub(crate) fn rejoin(&self, queue: u32, packet: u32) -> Result<(), NodeError> {
        let what = "a queue pair's rejoin at the memory node";
        match self.ask(Body::Rejoin { queue, packet }, what, self.inner.options.timeout)? {
            Body::Done { .. } => Ok(()),
            other => Err(self.refused("let a queue pair begin anew", other)),
        }
    }

    /// Registers a receiver of an identifier's events.
    pub(crate) fn events_of(&self, id: &Id) -> Receiver<Event> {
        let (sender, receiver) = channel();
        let mut waiters = self.inner.waiters.lock();
        waiters.insert(id.key(), sender);
        receiver
    }

    /// To be called before the identifier is dropped.
    pub(crate) fn forget_events_of(&self, id: &Id) {
        let mut waiters = self.inner.waiters.lock();
        waiters.remove(&id.key());
    }

    /// Why the session is over, if it is. Known a little later than it happens: at once where the node is stopped or
    /// killed, after the retries where its machine is gone.
    pub fn failure(&self) -> Option<String> {
        self.inner.state().failure.clone()
    }
}

impl Drop for NodeClient {
    fn drop(&mut self) {
        if self.failure().is_none() {
            // A node that does not answer finds out by itself.
            let _ = self.ask(Body::Goodbye, "the goodbye of the memory node", GOODBYE_MAX);
        }
        self.inner.control.disconnect();
        // Relaxed: see `Inner::serve`.
        self.inner.stop.store(true, Ordering::Relaxed);
        self.inner.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a memory node's client has panicked");
        }
    }
}

#[cfg(test)]
mod tests;
