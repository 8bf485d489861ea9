//! The node's thread: connection requests, messages, signs of life.

mod accepting;
mod requests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use accepting::{accept_queue, out_of_resources};

use super::challenges::Challenges;
use super::completions::Completions;
use super::options::ServeOptions;
use super::session::{Arrived, DataQueue, Session};
use super::shared::Shared;
use super::shares::Shares;
use super::worker::{self, Done, Job, Lease};
use crate::access::{Handshake, Side, random};
use crate::error::NodeError;
use crate::limits::EVENTS_MAX;
use crate::metrics::NodeEvent;
use crate::protocol::{Accept, Body, ConnectRequest, Nonce, ProtocolError, Reason, Reject, VERSION};
use crate::verbs::{Channel, Event, EventKind, Id, VerbsQueue, poll, poll_completions};

/// A session whose client has not said its name by then is given up.
const HELLO_MAX: Duration = Duration::from_secs(20);
/// Clients get this long to take the goodbye of a node that stops.
const GOODBYE_MAX: Duration = Duration::from_millis(500);
/// While there are as many clients as there may be, one that has not said its name for this long gives its place to the next that comes.
const HELLO_WHEN_FULL: Duration = Duration::from_secs(2);

/// A refusal: the reason and its number.
type Refused = (Reason, u64);

pub struct Node {
    options: ServeOptions,
    shared: Arc<Shared>,
    sessions: HashMap<u64, Session>,
    next_session: u64,
    /// Whose identifier it is.
    ids: HashMap<usize, u64>,
    /// Whose control queue pair it is, by device and number.
    control: HashMap<(String, u32), u64>,
    /// Whose token it is. Tokens are random, and the table's hash is keyed: how long a look takes tells nothing that helps to guess one.
    tokens: HashMap<Nonce, u64>,
    completions: Completions,
    /// When clients are looked after next.
    next_look: Instant,
    challenges: Challenges,
    shares: Shares,
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    worker: Option<JoinHandle<()>>,
    listener: Option<Id>,
    /// Completions were left for the next turn, which does not wait.
    more: bool,
    channel: Arc<Channel>,
}

impl Node {
    pub fn new(
        options: ServeOptions,
        channel: Arc<Channel>,
        listener: Id,
        shared: Arc<Shared>,
    ) -> Result<Node, NodeError> {
        let (jobs, jobs_in) = self::channel();
        let (done_out, done) = self::channel();
        let worker_shared = Arc::clone(&shared);
        let worker = std::thread::Builder::new().name("memory-node-grants".to_owned());
        let worker = worker.spawn(move || worker::run(&jobs_in, &done_out, &worker_shared));
        let worker = worker.map_err(|source| NodeError::System {
            what: "start the node's second thread",
            source,
        })?;
        Ok(Node {
            options,
            shared,
            sessions: HashMap::new(),
            next_session: 1,
            ids: HashMap::new(),
            control: HashMap::new(),
            tokens: HashMap::new(),
            completions: Completions::default(),
            next_look: Instant::now(),
            challenges: Challenges::default(),
            shares: Shares::default(),
            jobs: Some(jobs),
            done,
            worker: Some(worker),
            listener: Some(listener),
            more: false,
            channel,
        })
    }

    /// Serves until it is told to stop.
    pub fn run(mut self) {
        let tick = (self.options.keep_alive / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
        while !self.shared.is_stopping() {
            if let Err(error) = self.turn(tick) {
                // Nothing of the node works without these.
                tracing::error!(error = &error as &dyn std::error::Error, "the memory node ends");
                break;
            }
            let now = Instant::now();
            // Not with every message: all clients are looked at.
            if now >= self.next_look {
                self.next_look = now + tick;
                self.look_after_clients(now);
            }
        }
        self.finish();
    }

    /// Waits for something to happen, and handles all that has.
    fn turn(&mut self, limit: Duration) -> Result<(), NodeError> {
        let readable = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = vec![readable(self.shared.waker.fd()), readable(self.channel.fd())];
        fds.extend(self.completions.descriptors().map(readable));
        let limit = if self.more { Duration::ZERO } else { limit };
        self.more = false;
        poll(&mut fds, limit).map_err(|source| NodeError::System {
            what: "wait for clients",
            source,
        })?;
        if fds[0].revents != 0 {
            self.shared.waker.clear();
        }
        // A bounded number, so that a flood of requests does not keep the messages waiting.
        for _ in 0..EVENTS_MAX {
            let Some(event) = self.channel.next()? else { break };
            self.handle_event(event);
        }
        self.read_completions()?;
        while let Ok(done) = self.done.try_recv() {
            self.handle_done(done);
        }
        Ok(())
    }

    fn tell(&self, event: &NodeEvent) {
        if let Some(sink) = &self.options.on_event {
            sink(event);
        }
    }

    fn handle_event(&mut self, event: Event) {
        let session = self.ids.get(&event.id).copied();
        match (event.kind, session) {
            (EventKind::ConnectRequest, _) => self.handle_request(event),
            (EventKind::Disconnected, Some(number)) => self.drop_id(number, event.id, "its connection ended"),
            (EventKind::Failed(why), Some(number)) => self.drop_id(number, event.id, why),
            (EventKind::Rejected, Some(number)) => self.drop_id(number, event.id, "it took the connection back"),
            (EventKind::DeviceRemoved, Some(number)) => self.drop_id(number, event.id, "the RDMA device was removed"),
            _ => {}
        }
    }

    /// A connection is over: that of a data queue pair, or a client's control connection and with it all it has.
    fn drop_id(&mut self, number: u64, id: usize, why: &str) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        if session.id.key() == id {
            self.end_session(number, why);
        } else if let Some(queue) = session.queues.remove(&id) {
            queue.queue.fail();
            queue.id.disconnect();
            self.ids.remove(&id);
            self.shared.counted().queue_pairs -= 1;
        }
    }

    fn handle_request(&mut self, mut event: Event) {
        let Some(id) = event.request.take() else { return };
        let Some(peer) = id.peer_address() else { return };
        let parsed = ConnectRequest::parse(&event.private_data);
        let mut challenge = Nonce::default();
        let accepted = match parsed {
            _ if !self.may_join(peer) => Err(((Reason::NotAllowed, 0), id)),
            Err(ProtocolError::Version(_)) => Err(((Reason::WrongVersion, VERSION.into()), id)),
            Err(_) => Err(((Reason::Malformed, 0), id)),
            Ok(ConnectRequest::Control { client_nonce, proof }) => {
                match self.check_secret(&id, peer, client_nonce, proof) {
                    Ok(handshake) => self.begin_session(id, peer, &event, handshake),
                    Err((refused, nonce)) => {
                        challenge = nonce;
                        Err((refused, id))
                    }
                }
            }
            Ok(ConnectRequest::Data { token }) => self.add_queue(id, peer, &event, &token),
        };
        if let Err(((reason, detail), id)) = accepted {
            let reject = Reject {
                reason,
                detail,
                challenge,
            };
            if let Err(error) = id.reject(&reject.emit()) {
                tracing::debug!(%error, %peer, "a reject was not sent");
            }
            // The first half of every handshake with a secret is no refusal.
            if reason != Reason::SecretNeeded {
                self.shared.count_refusal(reason);
                self.tell(&NodeEvent::Refused { address: peer, reason });
            }
        }
    }

    fn may_join(&self, peer: SocketAddr) -> bool {
        self.options.allow.is_empty() || self.options.allow.iter().any(|network| network.contains(peer.ip()))
    }

    /// The handshake of a client that knows the secret; none where there is no secret.
    #[allow(clippy::type_complexity)]
    fn check_secret(
        &mut self,
        id: &Id,
        peer: SocketAddr,
        client_nonce: [u8; 8],
        proof: Option<crate::protocol::Proof>,
    ) -> Result<Option<Handshake>, (Refused, Nonce)> {
        let Some(secret) = &self.options.secret else {
            return Ok(None);
        };
        let Some(node) = id.local_address() else {
            return Err(((Reason::OutOfResources, libc::EADDRNOTAVAIL as u64), Nonce::default()));
        };
        let Some(proof) = proof else {
            let failed = |_| ((Reason::OutOfResources, libc::EIO as u64), Nonce::default());
            let nonce = random().map_err(failed)?;
            self.challenges.add(nonce, peer.ip(), Instant::now());
            return Err(((Reason::SecretNeeded, 0), nonce));
        };
        let handshake = Handshake {
            challenge: proof.challenge,
            client_nonce,
            node,
        };
        // The challenge is used up whether or not the proof is right.
        let open = self.challenges.take(&proof.challenge, peer.ip(), Instant::now());
        match open && handshake.check(secret, Side::Client, &proof.digest) {
            true => Ok(Some(handshake)),
            false => Err(((Reason::WrongSecret, 0), Nonce::default())),
        }
    }

    /// Whether there is room for another client. Where there is none, the one that has been silent longest since it came goes.
    fn make_room(&mut self) -> bool {
        if self.sessions.len() < self.options.clients_max as usize {
            return true;
        }
        let nameless = self.sessions.iter().filter(|(_, session)| session.name.is_none());
        let oldest = nameless.min_by_key(|(_, session)| session.since);
        let Some((&number, session)) = oldest else { return false };
        if session.since.elapsed() < HELLO_WHEN_FULL {
            return false;
        }
        self.end_session(number, "it did not say its name, and others wait");
        true
    }

    fn begin_session(
        &mut self,
        id: Id,
        peer: SocketAddr,
        event: &Event,
        handshake: Option<Handshake>,
    ) -> Result<(), (Refused, Id)> {
        if !self.make_room() {
            return Err(((Reason::ClientsMax, self.options.clients_max.into()), id));
        }
        let device = id.device().unwrap_or_default();
        let made = self.completions.seat(&device, self.options.clients_max);
        let made = made.and_then(|(completions, seat)| Ok((completions, seat, random()?)));
        let (completions, seat, token) = match made {
            Ok(made) => made,
            Err(error) => return Err((out_of_resources(&error), id)),
        };
        // The identifier goes with a session that fails, and the client sees a reject without words.
        let session = match Session::new(id, peer, token, (&completions, seat), Instant::now()) {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, %peer, "a session could not be set up");
                return Ok(());
            }
        };
        let proof = handshake.zip(self.options.secret.as_ref());
        let accept = Accept {
            token,
            proof: proof.map(|(handshake, secret)| handshake.prove(secret, Side::Node)),
            capacity: self.capacity(),
            keep_alive_ms: self.options.keep_alive.as_millis() as u32,
        };
        let joined = accept_queue(
            &session.id,
            &session.mail.queue,
            completions.context(),
            event,
            &accept,
            || {
                session.mail.post_receives().map_err(|source| NodeError::Call {
                    call: "ibv_post_recv",
                    what: "waiting for messages",
                    object: peer.to_string(),
                    source,
                })
            },
        );
        if let Err(error) = joined {
            tracing::warn!(error = &error as &dyn std::error::Error, %peer, "a client could not join");
            return Err((out_of_resources(&error), session.id));
        }
        let number = self.next_session;
        self.next_session += 1;
        self.ids.insert(session.id.key(), number);
        self.control.insert((device, session.number()), number);
        self.tokens.insert(token, number);
        self.sessions.insert(number, session);
        self.shared.counted().clients += 1;
        Ok(())
    }

    fn add_queue(&mut self, id: Id, peer: SocketAddr, event: &Event, token: &Nonce) -> Result<(), (Refused, Id)> {
        let device = id.device().unwrap_or_default();
        // A token that was overheard is worth nothing at another address.
        let number = self.tokens.get(token).copied();
        let found = number.and_then(|number| Some((number, self.sessions.get_mut(&number)?)));
        let found = found.filter(|(_, session)| session.peer.ip() == peer.ip());
        let Some((number, session)) = found else {
            return Err(((Reason::UnknownSession, 0), id));
        };
        let queues_max = self.options.queues_per_client_max;
        if session.queues.len() >= queues_max as usize {
            return Err(((Reason::QueuesMax, queues_max.into()), id));
        }
        if session.id.device().as_ref() != Some(&device) {
            return Err(((Reason::UnknownSession, 0), id));
        }
        let completions = Arc::clone(&session.completions);
        // The queue pair only answers: nothing is posted to it, and it never completes anything.
        let queue = VerbsQueue::new(&session.domain, &completions, 1, 1);
        let joined = queue.and_then(|queue| {
            accept_queue(&id, &queue, completions.context(), event, &Accept::default(), || Ok(()))?;
            Ok(queue)
        });
        match joined {
            Ok(queue) => {
                let key = id.key();
                self.ids.insert(key, number);
                let queue = DataQueue {
                    queue,
                    id,
                    peer: event.queue,
                    context: Arc::clone(completions.context()),
                };
                session.queues.insert(key, queue);
                self.shared.counted().queue_pairs += 1;
                Ok(())
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, %peer, "a queue pair could not join");
                Err((out_of_resources(&error), id))
            }
        }
    }

    /// Bytes that one client may have.
    fn capacity(&self) -> u64 {
        let all = self.shared.pool.bytes();
        self.options
            .capacity_per_client
            .map_or(all, |capacity| capacity.min(all))
    }

    fn read_completions(&mut self) -> Result<(), NodeError> {
        for (device, completions) in self.completions.all() {
            // Armed before it is emptied: what comes after the last look rings.
            completions.arm()?;
            // A bounded number, as for events.
            for round in 0.. {
                if round == EVENTS_MAX {
                    self.more = true;
                    break;
                }
                let found = poll_completions(&completions);
                if found.is_empty() {
                    break;
                }
                for completion in found {
                    // Those of a queue pair that is gone come late.
                    let Some(&number) = self.control.get(&(device.clone(), completion.queue)) else {
                        continue;
                    };
                    let Some(session) = self.sessions.get_mut(&number) else {
                        continue;
                    };
                    if completion.status != crate::verbs::CompletionStatus::SUCCESS {
                        let why = format!("it does not answer: {}", completion.status);
                        self.end_session(number, &why);
                        continue;
                    }
                    let handled = match Arrived::of(completion.id) {
                        Arrived::Probe => {
                            session.probe.since = None;
                            Ok(())
                        }
                        Arrived::Sent => {
                            session.sends = session.sends.saturating_sub(1);
                            Ok(())
                        }
                        Arrived::Message(slot) => {
                            let message = session.mail.read(slot, completion.bytes);
                            message.and_then(|message| self.handle_message(number, message))
                        }
                    };
                    if let Err(why) = handled {
                        self.end_session(number, &why);
                    }
                }
            }
        }
        Ok(())
    }

    /// Probes clients, and gives up those that are gone.
    fn look_after_clients(&mut self, now: Instant) {
        let dead_after = (self.options.keep_alive * 8).max(Duration::from_secs(4));
        let mut gone = Vec::new();
        for (&number, session) in &mut self.sessions {
            let waited = |since: Instant| now.saturating_duration_since(since);
            if session.name.is_none() {
                if waited(session.since) > HELLO_MAX {
                    gone.push((number, "it did not say its name".to_owned()));
                }
                // Its end may not be ready to answer before that.
                continue;
            }
            match (session.probe.since, session.probe.last) {
                (Some(since), _) if waited(since) > dead_after => {
                    gone.push((number, format!("it did not answer for {dead_after:?}")));
                }
                (None, last) if last.is_none_or(|last| waited(last) >= self.options.keep_alive) => {
                    if let Err(why) = session.post_probe(now) {
                        gone.push((number, why));
                    }
                }
                _ => {}
            }
        }
        for (number, why) in gone {
            self.end_session(number, &why);
        }
    }

    /// Takes everything back that a client has.
    fn end_session(&mut self, number: u64, why: &str) {
        let Some(mut session) = self.sessions.remove(&number) else {
            return;
        };
        session.disconnect();
        for key in session.queues.keys().chain([&session.id.key()]) {
            self.ids.remove(key);
        }
        let device = session.id.device().unwrap_or_default();
        self.control.remove(&(device, session.number()));
        self.tokens.remove(&session.token);
        let bytes = session.grants.values().map(|granted| granted.bytes).sum();
        let grants = session.grants.len() as u64;
        // One that the worker has comes back with its answer.
        let leases: Vec<Lease> = session
            .grants
            .drain()
            .filter_map(|(_, granted)| granted.lease)
            .collect();
        let event = NodeEvent::Left {
            name: session.name().to_owned(),
            address: session.peer,
            why: if session.is_leaving { "goodbye" } else { why }.to_owned(),
            grants,
            bytes,
        };
        let (queues, is_leaving) = (session.queues.len() as u64, session.is_leaving);
        // Queue pairs first: afterwards no request of the client is on its way into the memory.
        drop(session);
        {
            // Only now: a client that is counted no more has nothing of the device but grants that are being taken back.
            let mut counted = self.shared.counted();
            counted.clients -= 1;
            counted.queue_pairs -= queues;
            counted.grants_revoked_total += grants;
            match is_leaving {
                true => counted.goodbyes_total += 1,
                false => counted.losses_total += 1,
            }
        }
        match &self.jobs {
            Some(jobs) if !leases.is_empty() => {
                // Where the worker is gone, the leases come back in the error and are dropped here.
                let _ = jobs.send(Job::Revoke { leases });
            }
            _ => drop(leases),
        }
        self.tell(&event);
    }

    /// Says goodbye and takes everything back.
    fn finish(&mut self) {
        self.listener = None;
        let mut waiting: Vec<u64> = self.sessions.keys().copied().collect();
        for number in &waiting {
            if let Some(session) = self.sessions.get_mut(number)
                && session.send(0, Body::Goodbye).is_err()
            {
                session.sends = 0;
            }
        }
        let end = Instant::now() + GOODBYE_MAX;
        while Instant::now() < end {
            waiting.retain(|number| self.sessions.get(number).is_some_and(|session| session.sends > 0));
            if waiting.is_empty() || self.turn(Duration::from_millis(20)).is_err() {
                break;
            }
        }
        let numbers: Vec<u64> = self.sessions.keys().copied().collect();
        for number in numbers {
            self.end_session(number, "the node stops");
        }
        self.jobs = None;
        if let Some(worker) = self.worker.take()
            && worker.join().is_err()
        {
            tracing::error!("the memory node's second thread has panicked");
        }
    }
}
