//! One client of the node.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::completions::Seat;
use super::worker::Lease;
use crate::error::NodeError;
use crate::limits::SESSION_SENDS;
use crate::mailbox::{Mailbox, PROBE, SEND};
use crate::protocol::{Body, Nonce};
use crate::verbs::{CompletionQueue, Context, Domain, Id, JoinQueue, VerbsQueue};

/// What a completion of the control queue pair was.
pub enum Arrived {
    Message(u64),
    Probe,
    Sent,
}

impl Arrived {
    pub fn of(id: u64) -> Arrived {
        match id {
            PROBE => Arrived::Probe,
            SEND => Arrived::Sent,
            slot => Arrived::Message(slot),
        }
    }
}

/// A queue pair of the client. It goes before its identifier.
#[derive(Debug)]
pub struct DataQueue {
    pub queue: VerbsQueue,
    pub id: Id,
    /// The device.
    pub context: Arc<Context>,
    /// The number of the client's end.
    pub peer: u32,
}

/// A grant.
#[derive(Debug)]
pub struct Granted {
    /// None while the worker has it.
    pub lease: Option<Lease>,
    pub bytes: u64,
    pub sealable: bool,
    /// Whether it was filled by this client and sealed.
    pub is_sealed: bool,
}

/// What a client is told of a grant.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub grant: u64,
    pub address: u64,
    pub bytes: u64,
    pub rkey: u32,
}

/// The sign of life that the client is asked for.
#[derive(Debug, Default)]
pub struct Probe {
    /// When the one on its way was posted.
    pub since: Option<Instant>,
    /// When the last one was posted.
    pub last: Option<Instant>,
}

/// One client. Queue pairs go before identifiers and buffer, keys before the domain.
#[derive(Debug)]
pub struct Session {
    pub queues: HashMap<usize, DataQueue>,
    pub mail: Mailbox,
    pub id: Id,
    pub grants: HashMap<u64, Granted>,
    pub domain: Arc<Domain>,
    pub token: Nonce,
    pub peer: SocketAddr,
    /// Known after its first message.
    pub name: Option<String>,
    pub next_grant: u64,
    pub granted_bytes: u64,
    /// The request that the worker is busy with.
    pub busy: Option<u64>,
    /// For what it asked.
    pub sealable: bool,
    pub probe: Probe,
    pub sends: u32,
    pub is_leaving: bool,
    pub since: Instant,
    /// Where its completions go.
    pub completions: Arc<CompletionQueue>,
    /// Its place there, until its queue pairs are gone.
    _seat: Seat,
}

impl Session {
    /// Makes what a session needs; its queue pair has not joined yet.
    pub fn new(
        id: Id,
        peer: SocketAddr,
        token: Nonce,
        (completions, seat): (&Arc<CompletionQueue>, Seat),
        now: Instant,
    ) -> Result<Session, NodeError> {
        let domain = Domain::new(completions.context())?;
        let mail = Mailbox::new(&domain, completions, SESSION_SENDS)?;
        Ok(Session {
            queues: HashMap::new(),
            mail,
            id,
            grants: HashMap::new(),
            domain,
            token,
            peer,
            name: None,
            next_grant: 1,
            granted_bytes: 0,
            busy: None,
            sealable: false,
            probe: Probe::default(),
            sends: 0,
            is_leaving: false,
            since: now,
            completions: Arc::clone(completions),
            _seat: seat,
        })
    }

    /// Sends a message.
    pub fn send(&mut self, request: u64, body: Body) -> Result<(), String> {
        // One place is the probe's.
        if self.sends + 1 >= SESSION_SENDS {
            return Err("it does not take its answers".to_owned());
        }
        let sent = self.mail.send(request, body);
        sent.map_err(|error| format!("its queue pair takes no message: {error}"))?;
        self.sends += 1;
        Ok(())
    }

    /// Asks the client's device for a sign of life.
    pub fn post_probe(&mut self, now: Instant) -> Result<(), String> {
        let posted = self.mail.queue.probe(PROBE);
        posted.map_err(|error| format!("its queue pair takes no request: {error}"))?;
        self.probe = Probe {
            since: Some(now),
            last: Some(now),
        };
        Ok(())
    }

    /// What the client may still get of `capacity`.
    pub fn left_of(&self, capacity: u64) -> u64 {
        capacity.saturating_sub(self.granted_bytes)
    }

    /// Makes a lease a grant, or gives a grant its lease back.
    pub fn keep(&mut self, grant: u64, lease: Lease, sealable: bool) -> Place {
        let place = Place {
            grant,
            address: lease.address(),
            bytes: lease.bytes(),
            rkey: lease.rkey(),
        };
        let granted = Granted {
            bytes: lease.bytes(),
            lease: Some(lease),
            sealable,
            is_sealed: false,
        };
        self.grants.insert(grant, granted);
        place
    }

    /// For logs.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("unnamed")
    }

    /// The identifier of the queue pair whose other end has this number.
    pub fn queue_of(&self, peer: u32) -> Option<usize> {
        self.queues
            .iter()
            .find(|(_, queue)| queue.peer == peer)
            .map(|(&key, _)| key)
    }

    /// Stops all traffic and says so to the client's end, as far as it is there.
    pub fn disconnect(&self) {
        for queue in self.queues.values() {
            queue.queue.fail();
            queue.id.disconnect();
        }
        self.mail.queue.fail();
        self.id.disconnect();
    }

    pub fn number(&self) -> u32 {
        self.mail.queue.number()
    }
}
