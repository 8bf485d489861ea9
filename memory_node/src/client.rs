//! One session with a memory node.

mod grant;

use std::collections::HashMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::access::{Handshake, Side, random};
use crate::error::{NodeError, Refusal};
use crate::link::{self, Dialled, Dialling, QueueLink, Resends};
use crate::memory::Buffer;
use crate::protocol::{Accept, Body, ConnectRequest, GrantAccess, MESSAGE_BYTES, Message, Name, Nonce, Proof, Reason};
use crate::verbs::{
    Channel, CompletionQueue, CompletionStatus, Context, Domain, Event, EventKind, Id, JoinQueue, VerbsQueue, Waker,
    poll_completions, wait_readable,
};

pub use grant::Grant;

/// Messages of the node that are on their way or not read yet, at most.
const RECEIVES: u32 = 8;
/// Pieces of a copy in flight.
const PIECES: usize = 8;
/// Bytes of a piece: at the usual MTUs several fit into rdma_rxe's window.
const PIECE_BYTES: usize = 128 << 10;
/// Messages, probes and pieces in flight.
const SENDS: u32 = PIECES as u32 + 8;
/// Ids of requests: receives are their slots, pieces come from `PIECE` on.
const PIECE: u64 = 1 << 16;
const PROBE: u64 = 1 << 32;
const SEND: u64 = 1 << 33;
/// How often the client looks whether the node is there, at least.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(1);
/// How long a client that leaves waits for the node's answer.
const GOODBYE_MAX: Duration = Duration::from_millis(500);
/// A grant is zeroed and pinned before it is there: the node gets a second for each of these bytes on top.
const GRANT_BYTES_PER_SECOND: u64 = 128 << 20;

/// How a client joins.
#[derive(Clone)]
pub struct ClientOptions {
    /// What the node asks for, if it does. A node that does not know it is refused.
    pub secret: Option<String>,
    /// Shown in the node's log; at most 64 bytes.
    pub name: String,
    /// For each step. The connection manager repeats a request that was lost after 4.3 seconds: on a network that loses
    /// packets give it five seconds at least.
    pub timeout: Duration,
    /// How often a packet of a queue pair that joins is sent again, 0 to 7; 7 is for ever on rdma_rxe. The control
    /// connection always takes 7: it is ended by clocks of its own.
    pub retry_count: u8,
    /// After 4.096 us << this, 1 to 31. The control connection takes the usual 14 at least.
    pub ack_timeout: u8,
    /// Traffic class of the packets of all connections, from both ends (RoCE: DSCP and ECN). 0: the system's default.
    pub traffic_class: u8,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            secret: None,
            name: std::env::args().next().unwrap_or_default(),
            timeout: Duration::from_secs(5),
            retry_count: 6,
            ack_timeout: 14,
            traffic_class: 0,
        }
    }
}

impl fmt::Debug for ClientOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ClientOptions")
            .field("secret", &self.secret.as_ref().map(|_| "..."))
            .field("name", &self.name)
            .field("timeout", &self.timeout)
            .field("retry_count", &self.retry_count)
            .field("ack_timeout", &self.ack_timeout)
            .field("traffic_class", &self.traffic_class)
            .finish()
    }
}

impl ClientOptions {
    fn check(&self) -> Result<(), NodeError> {
        let wrong = |option, why: &str| {
            Err(NodeError::Option {
                option,
                why: why.to_owned(),
            })
        };
        if self.retry_count > 7 {
            return wrong("retry_count", "from 0 to 7");
        }
        if !(1..=31).contains(&self.ack_timeout) {
            return wrong("ack_timeout", "from 1 to 31");
        }
        if self.timeout.is_zero() || self.timeout > Duration::from_secs(600) {
            return wrong("timeout", "above zero, and ten minutes at most");
        }
        if self.secret.as_ref().is_some_and(String::is_empty) {
            return wrong("secret", "it is empty");
        }
        Ok(())
    }
}

/// What a piece of a copy is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Idle,
    Busy,
    Done(CompletionStatus),
}

/// What the service thread learns and callers wait for.
#[derive(Debug)]
struct State {
    failure: Option<String>,
    reply: Option<Message>,
    pieces: [Piece; PIECES],
    probe_since: Option<Instant>,
    probe_last: Instant,
}

/// What callers and the service thread share. The queue pair goes before the buffers, everything before the identifier.
#[derive(Debug)]
pub(crate) struct Inner {
    queue: VerbsQueue,
    receives: Buffer,
    staging: Buffer,
    completions: Arc<CompletionQueue>,
    control: Id,
    /// Who waits for events of an identifier. Locked while events are read, so that none of an identifier that is gone is
    /// taken for one of its successor at the same place.
    pub(crate) waiters: Mutex<HashMap<usize, Sender<Event>>>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) peer: SocketAddr,
    pub(crate) address: String,
    pub(crate) device: String,
    pub(crate) options: ClientOptions,
    pub(crate) token: Nonce,
    capacity: u64,
    free: AtomicU64,
    keep_alive: Duration,
    state: Mutex<State>,
    changed: Condvar,
    waker: Waker,
    stop: AtomicBool,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of the state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn dead(&self) -> Option<NodeError> {
        self.state().failure.clone().map(|why| NodeError::Dead {
            address: self.address.clone(),
            why,
        })
    }

    /// The session is over: everybody who waits is told, and the queue pair stops.
    fn fail(&self, why: &str) {
        let mut state = self.state();
        if state.failure.is_none() {
            state.failure = Some(why.to_owned());
            drop(state);
            self.queue.fail();
        }
        self.changed.notify_all();
    }

    fn post_receive(&self, slot: u64) -> std::io::Result<()> {
        let place = self.receives.place(slot as usize * MESSAGE_BYTES, MESSAGE_BYTES);
        let place = place.ok_or(std::io::ErrorKind::InvalidInput)?;
        // SAFETY: the slot is inside the buffer, which goes after the queue pair; it is read by copies, and only between
        // its completion and the next post.
        unsafe {
            self.queue
                .post_receive(slot, place, self.receives.lkey(), MESSAGE_BYTES as u32)
        }
    }

    /// The service thread: events, completions, signs of life.
    fn serve(&self) {
        // Relaxed: the flag alone is read; the waker's system call wakes who waits.
        while !self.stop.load(Ordering::Relaxed) {
            let limit = self.keep_alive / 4;
            let ready = wait_readable([self.waker.fd(), self.channel.fd(), self.completions.fd()], limit);
            if let Err(error) = ready {
                return self.fail(&format!("waiting for the node failed: {error}"));
            }
            self.waker.clear();
            if let Err(error) = self.read_events().and_then(|()| self.read_completions()) {
                return self.fail(&error.to_string());
            }
            self.look_after_node();
        }
    }

    fn read_events(&self) -> Result<(), NodeError> {
        let waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = self.channel.next()? {
            if event.id == self.control.key() {
                match event.kind {
                    EventKind::Disconnected => {
                        // A goodbye was there before.
                        self.read_completions()?;
                        self.fail("the node ended the connection");
                    }
                    EventKind::DeviceRemoved => self.fail("the RDMA device was removed"),
                    EventKind::Failed(why) => self.fail(why),
                    _ => {}
                }
            } else if let Some(waiter) = waiters.get(&event.id) {
                // Whoever does not wait any more does not want it.
                let _ = waiter.send(event);
            }
        }
        Ok(())
    }

    fn read_completions(&self) -> Result<(), NodeError> {
        // Armed before it is emptied: what comes after the last look rings.
        self.completions.arm()?;
        loop {
            let found = poll_completions(&self.completions);
            if found.is_empty() {
                return Ok(());
            }
            for completion in found {
                let status = completion.status;
                let is_piece = (PIECE..PIECE + PIECES as u64).contains(&completion.id);
                if is_piece {
                    self.state().pieces[(completion.id - PIECE) as usize] = Piece::Done(status);
                    self.changed.notify_all();
                }
                match completion.id {
                    // What is flushed is not the cause.
                    _ if status == CompletionStatus::FLUSHED => {}
                    _ if status != CompletionStatus::SUCCESS => {
                        let what = if is_piece {
                            "a copy failed"
                        } else {
                            "the node does not answer"
                        };
                        self.fail(&format!("{what}: {status}"));
                    }
                    PROBE => self.state().probe_since = None,
                    slot if slot < u64::from(RECEIVES) => self.read_message(slot, completion.bytes),
                    _ => {}
                }
            }
        }
    }

    fn read_message(&self, slot: u64, bytes: u32) {
        let mut message = [0; MESSAGE_BYTES];
        let length = (bytes as usize).min(MESSAGE_BYTES);
        // Always inside: slots are those that were posted.
        if !self
            .receives
            .copy(slot as usize * MESSAGE_BYTES, &mut message[..length])
        {
            return;
        }
        match Message::parse(&message[..length]) {
            Ok(Message {
                body: Body::Goodbye, ..
            }) => self.fail("the node was stopped"),
            Ok(message) => {
                self.state().reply = Some(message);
                self.changed.notify_all();
            }
            Err(error) => self.fail(&format!("the node sent a message that cannot be read: {error}")),
        }
        if let Err(error) = self.post_receive(slot) {
            self.fail(&format!("the queue pair takes no receive buffer: {error}"));
        }
    }

    /// The node's device must answer a WRITE of no bytes now and then.
    fn look_after_node(&self) {
        let now = Instant::now();
        let dead_after = (self.keep_alive * 4).max(Duration::from_secs(4));
        let mut state = self.state();
        if state.failure.is_some() {
            return;
        }
        let waited = |since: Instant| now.saturating_duration_since(since);
        match state.probe_since {
            Some(since) if waited(since) > dead_after => {
                drop(state);
                self.fail(&format!("the node did not answer for {dead_after:?}"));
            }
            None if waited(state.probe_last) >= self.keep_alive => match self.queue.probe(PROBE) {
                Ok(()) => {
                    state.probe_since = Some(now);
                    state.probe_last = now;
                }
                Err(error) => {
                    drop(state);
                    self.fail(&format!("the queue pair takes no request: {error}"));
                }
            },
            _ => {}
        }
    }

    /// Waits until `done` gives something, the session fails, the time is over, or `cancel` is set.
    fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        cancel: Option<&AtomicBool>,
        mut done: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, NodeError> {
        let end = Instant::now() + limit;
        let mut state = self.state();
        loop {
            if let Some(value) = done(&mut state) {
                return Ok(value);
            }
            if let Some(why) = &state.failure {
                return Err(NodeError::Dead {
                    address: self.address.clone(),
                    why: why.clone(),
                });
            }
            if link::is_set(cancel) {
                return Err(NodeError::Cancelled {
                    address: self.address.clone(),
                });
            }
            let mut left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NodeError::Timeout {
                    what: what.to_owned(),
                    waited: limit,
                });
            }
            if cancel.is_some() {
                left = left.min(link::SLICE);
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

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
                // Whoever refuses is there.
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
            Err(_) if link::is_set(Some(cancel)) => Err(NodeError::Cancelled {
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
        let events = |id: &Id, left| link::next_event(channel, id, left, cancel);
        let id = dialling.resolve(&events)?;
        let device = id.device().ok_or_else(|| NodeError::Unreachable {
            address: address.to_owned(),
            why: "the way to it goes through no RDMA device of this machine".to_owned(),
        })?;
        let context = Context::open(&device)?;
        let domain = Domain::new(&context)?;
        let completions = CompletionQueue::new(&context, RECEIVES + SENDS)?;
        let queue = VerbsQueue::new(&domain, &completions, SENDS, RECEIVES)?;
        let receives = Buffer::new(&domain, RECEIVES as usize * MESSAGE_BYTES)?;
        let staging = Buffer::new(&domain, PIECES * PIECE_BYTES)?;

        let (control, accept) = NodeClient::shake_hands(&dialling, id, &queue, &events)?;
        let keep_alive = Duration::from_millis(accept.keep_alive_ms.max(10).into()).min(KEEP_ALIVE_MAX);
        let inner = Arc::new(Inner {
            queue,
            receives,
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
            state: Mutex::new(State {
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
        events: link::Events<'_>,
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
        for slot in 0..u64::from(RECEIVES) {
            inner.post_receive(slot).map_err(|source| NodeError::Call {
                call: "ibv_post_recv",
                what: "waiting for messages",
                object: inner.address.clone(),
                source,
            })?;
        }
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

    /// Sends a request and waits for its answer. A node that does not answer in time is given up: a late answer could be
    /// a grant that nobody knows of.
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
        let mut next = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let request = *next;
        *next += 1;
        if let Some(dead) = self.inner.dead() {
            return Err(dead);
        }
        self.inner.state().reply = None;
        let sent = self.inner.queue.send(SEND, &Message { request, body }.emit());
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

    /// Gets zeroed memory at the node, in whole pages of 4096 bytes.
    ///
    /// A read-only grant is filled by [`Grant::write`] first and then sealed by [`Grant::seal`].
    ///
    /// # Errors
    /// Too little left for this client or at the node, or a session that is over.
    pub fn grant(self: &Arc<Self>, bytes: u64, access: GrantAccess) -> Result<Grant, NodeError> {
        let limit = self.inner.options.timeout + Duration::from_secs(bytes / GRANT_BYTES_PER_SECOND);
        match self.ask(Body::Grant { bytes, access }, "a grant of the memory node", limit)? {
            Body::Granted {
                grant,
                address,
                bytes,
                rkey,
                ..
            } => Ok(Grant::new(self, grant, address, bytes, rkey, access)),
            Body::Refused { reason, detail } => Err(NodeError::NotGranted {
                address: self.inner.address.clone(),
                bytes,
                refusal: Refusal { reason, detail },
            }),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Lets a queue pair in the state RESET join: afterwards it is ready to send, and its requests reach this client's
    /// grants and nothing else. It stays joined until the link is dropped.
    ///
    /// # Errors
    /// A queue pair that does not take a state, a node that refuses, a session that is over.
    pub fn connect_queue(self: &Arc<Self>, queue: &dyn JoinQueue) -> Result<QueueLink, NodeError> {
        link::connect(self, queue)
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
            Body::Refused { reason, detail } => Err(NodeError::GrantRefused {
                address: self.inner.address.clone(),
                what: "let a queue pair begin anew",
                refusal: Refusal { reason, detail },
            }),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Registers a receiver of an identifier's events.
    pub(crate) fn events_of(&self, id: &Id) -> Receiver<Event> {
        let (sender, receiver) = channel();
        let mut waiters = self.inner.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        waiters.insert(id.key(), sender);
        receiver
    }

    /// To be called before the identifier is dropped.
    pub(crate) fn forget_events_of(&self, id: &Id) {
        let mut waiters = self.inner.waiters.lock().unwrap_or_else(PoisonError::into_inner);
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
