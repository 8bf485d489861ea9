//! Memory at a node, and copies by the host to and from it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::NodeClient;
use super::service::{PIECE, PIECE_BYTES, PIECES, Piece};
use crate::error::{NodeError, Refusal};
use crate::protocol::{Body, GrantAccess, NONCE_BYTES};
use crate::verbs::{CompletionStatus, Request};

/// A grant is zeroed and pinned before it is there: the node gets a second for each of these bytes on top.
const GRANT_BYTES_PER_SECOND: u64 = 128 << 20;

/// Host memory that a copy fills or takes.
enum Copy<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Copy<'_> {
    fn bytes(&self) -> usize {
        match self {
            Copy::Read(out) => out.len(),
            Copy::Write(data) => data.len(),
        }
    }
}

/// Memory at a node that belongs to this client until it is dropped.
#[derive(Debug)]
pub struct Grant {
    client: Arc<NodeClient>,
    number: u64,
    address: u64,
    bytes: u64,
    access: GrantAccess,
    rkey: AtomicU32,
    sealed: AtomicBool,
}

impl Grant {
    fn new(client: &Arc<NodeClient>, number: u64, address: u64, bytes: u64, rkey: u32, access: GrantAccess) -> Grant {
        Grant {
            client: Arc::clone(client),
            number,
            address,
            bytes,
            access,
            rkey: AtomicU32::new(rkey),
            sealed: AtomicBool::new(false),
        }
    }

    /// The first byte, as requests name it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The key that requests name. Sealing changes it: before [`Grant::seal`] the key of a read-only grant still allows
    /// WRITE, so ask for it afterwards.
    pub fn rkey(&self) -> u32 {
        // Relaxed: the thread that reads the key after `seal` returned is ordered after it by the same means as any value.
        self.rkey.load(Ordering::Relaxed)
    }

    /// Bytes: those that were asked for, in whole pages.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it was asked for.
    pub fn access(&self) -> GrantAccess {
        self.access
    }

    /// Whether it was sealed: nothing writes it any more.
    pub fn is_sealed(&self) -> bool {
        // Relaxed: see `rkey`.
        self.sealed.load(Ordering::Relaxed)
    }

    /// The session.
    pub fn client(&self) -> &Arc<NodeClient> {
        &self.client
    }

    /// Copies bytes out of the grant.
    ///
    /// # Errors
    /// A place outside the grant, or a session that is over or ends by this.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), NodeError> {
        self.client.copy(self, offset, Copy::Read(out))
    }

    /// Copies bytes into the grant.
    ///
    /// # Errors
    /// A place outside the grant, a sealed grant, or a session that is over or ends by this.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), NodeError> {
        if self.is_sealed() {
            return Err(NodeError::Sealed);
        }
        self.client.copy(self, offset, Copy::Write(data))
    }

    /// Ends the filling of a read-only grant: the node takes back the key that allows WRITE, and makes one that does not.
    /// From then on a WRITE or an atomic of any queue pair is refused.
    ///
    /// # Errors
    /// A grant for reading and writing, or one that is sealed; a node that cannot register the memory again, which ends
    /// the grant; a session that is over.
    pub fn seal(&self) -> Result<(), NodeError> {
        let limit = self.client.inner.options.timeout + Duration::from_secs(self.bytes / GRANT_BYTES_PER_SECOND);
        match self.client.ask(
            Body::Seal { grant: self.number },
            "sealing a grant at the memory node",
            limit,
        )? {
            Body::Granted { rkey, .. } => {
                // Relaxed: see `rkey`.
                self.rkey.store(rkey, Ordering::Relaxed);
                self.sealed.store(true, Ordering::Relaxed);
                Ok(())
            }
            other => Err(self.client.refused("seal the grant", other)),
        }
    }
}

/// Names sealed memory of a node for other clients of that node. It is a secret of those who may read it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShareKey(pub [u8; NONCE_BYTES]);

impl fmt::Debug for ShareKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A holder of the key reads the memory.
        out.write_str("ShareKey")
    }
}

impl Grant {
    /// Lets other clients read this grant, which was sealed: those that have the key, by [`NodeClient::attach`]. The memory stays until
    /// the last of them has left.
    ///
    /// # Errors
    /// A grant that was not sealed; a session that is over.
    pub fn share(&self) -> Result<ShareKey, NodeError> {
        let limit = self.client.inner.options.timeout;
        let asked = Body::Share { grant: self.number };
        match self.client.ask(asked, "the key of a grant at the memory node", limit)? {
            Body::Shared { key } => Ok(ShareKey(key)),
            other => Err(self.client.refused("share the grant", other)),
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let limit = self.client.inner.options.timeout + Duration::from_secs(self.bytes / GRANT_BYTES_PER_SECOND);
        // A session that is over has no grants.
        let _ = self.client.ask(
            Body::Release { grant: self.number },
            "giving memory back to the memory node",
            limit,
        );
    }
}

impl NodeClient {
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

    /// Gets to read what another client of this node has filled, sealed and shared. It is sealed here too.
    ///
    /// # Errors
    /// A key of nothing that is there; too little left for this client; a session that is over.
    pub fn attach(self: &Arc<Self>, key: &ShareKey) -> Result<Grant, NodeError> {
        let limit = self.inner.options.timeout + Duration::from_secs(self.inner.capacity / GRANT_BYTES_PER_SECOND);
        match self.ask(Body::Attach { key: key.0 }, "shared memory of the memory node", limit)? {
            Body::Granted {
                grant,
                address,
                bytes,
                rkey,
                ..
            } => {
                let grant = Grant::new(self, grant, address, bytes, rkey, GrantAccess::ReadOnly);
                // Relaxed: see `Grant::rkey`.
                grant.sealed.store(true, Ordering::Relaxed);
                Ok(grant)
            }
            other => Err(self.refused("let this client read shared memory", other)),
        }
    }

    /// Moves bytes between a grant and host memory, in pieces, several in flight.
    fn copy(&self, grant: &Grant, offset: u64, mut copy: Copy<'_>) -> Result<(), NodeError> {
        let total = copy.bytes();
        let inside = offset.checked_add(total as u64).is_some_and(|end| end <= grant.bytes);
        if !inside {
            return Err(NodeError::OutOfBounds {
                offset,
                bytes: total as u64,
                granted: grant.bytes,
            });
        }
        let _staging = self.copies.lock();
        if let Some(dead) = self.inner.dead() {
            return Err(dead);
        }
        // All pieces are idle: a copy ends with that, or with the session.
        let pieces = total.div_ceil(PIECE_BYTES);
        let range = |piece: usize| piece * PIECE_BYTES..((piece + 1) * PIECE_BYTES).min(total);
        let mut posted = 0;
        for finished in 0..pieces {
            while posted < pieces && posted < finished + PIECES {
                self.post_piece(grant, offset, &copy, posted, range(posted))?;
                posted += 1;
            }
            let slot = finished % PIECES;
            let waited = self.inner.wait_for(
                "a copy to or from the memory node",
                self.inner.options.timeout,
                None,
                |state| match state.pieces[slot] {
                    Piece::Done(status) => {
                        state.pieces[slot] = Piece::Idle;
                        Some(status)
                    }
                    Piece::Idle | Piece::Busy => None,
                },
            );
            let failed = |status: String| NodeError::Copy {
                address: self.inner.address.clone(),
                offset: offset + (finished * PIECE_BYTES) as u64,
                bytes: range(finished).len() as u64,
                status,
            };
            match waited {
                Ok(CompletionStatus::SUCCESS) => {}
                Ok(status) => {
                    self.inner.fail(&format!("a copy failed: {status}"));
                    return Err(failed(status.to_string()));
                }
                Err(error) => {
                    // The buffer is still the device's.
                    self.inner.fail(&error.to_string());
                    return Err(error);
                }
            }
            if let Copy::Read(out) = &mut copy
                && !self.inner.staging.copy(slot * PIECE_BYTES, &mut out[range(finished)])
            {
                return Err(failed("the staging buffer is too short".to_owned()));
            }
        }
        Ok(())
    }

    fn post_piece(
        &self,
        grant: &Grant,
        offset: u64,
        copy: &Copy<'_>,
        piece: usize,
        range: Range<usize>,
    ) -> Result<(), NodeError> {
        let (slot, bytes) = (piece % PIECES, range.len());
        let remote = grant.address + offset + range.start as u64;
        let rkey = grant.rkey();
        let request = match copy {
            Copy::Read(_) => Request::Read { remote, rkey },
            Copy::Write(data) => {
                self.inner.staging.fill(slot * PIECE_BYTES, &data[range]);
                Request::Write { remote, rkey }
            }
        };
        let place = self.inner.staging.place(slot * PIECE_BYTES, bytes);
        let place = place.ok_or(NodeError::OutOfBounds {
            offset,
            bytes: bytes as u64,
            granted: PIECE_BYTES as u64,
        })?;
        self.inner.state().pieces[slot] = Piece::Busy;
        let id = PIECE + slot as u64;
        // SAFETY: the slot is inside the staging buffer, which goes after the queue pair, and idle: the caller holds
        // `copies` and has seen the completion of its last use.
        let posted = unsafe {
            self.inner
                .mail
                .queue
                .post_request(id, request, place, self.inner.staging.lkey(), bytes as u32)
        };
        posted.map_err(|source| {
            // Pieces before this one may be in flight.
            self.inner.fail(&format!("the queue pair takes no request: {source}"));
            NodeError::Call {
                call: "ibv_post_send",
                what: "copying",
                object: self.inner.address.clone(),
                source,
            }
        })
    }
}
