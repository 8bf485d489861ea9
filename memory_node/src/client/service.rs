//! What callers of a session share with the thread that serves it: events, completions, signs of life.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::options::ClientOptions;
use crate::dial;
use crate::error::NodeError;
use crate::mailbox::{Mailbox, PROBE, RECEIVES};
use crate::memory::Buffer;
use crate::protocol::{Body, Message, Nonce};
use crate::verbs::{
    Channel, CompletionQueue, CompletionStatus, Event, EventKind, Id, Waker, poll_completions, wait_readable,
};

/// Pieces of a copy in flight.
pub(super) const PIECES: usize = 8;
/// Bytes of a piece: at the usual MTUs several fit into rdma_rxe's window.
pub(super) const PIECE_BYTES: usize = 128 << 10;
/// Bytes of all pieces.
pub(crate) const STAGING_BYTES: usize = PIECES * PIECE_BYTES;
/// Messages, probes and pieces in flight.
pub(super) const SENDS: u32 = PIECES as u32 + 8;
/// Ids of requests besides those of the mailbox: pieces come from here on.
pub(super) const PIECE: u64 = 1 << 16;

/// What a piece of a copy is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Idle,
    Busy,
    Done(CompletionStatus),
}

/// What the service thread learns and callers wait for.
#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) failure: Option<String>,
    pub(super) reply: Option<Message>,
    pub(super) pieces: [Piece; PIECES],
    pub(super) probe_since: Option<Instant>,
    pub(super) probe_last: Instant,
}

/// What callers and the service thread share. The queue pair goes before the buffers, everything before the identifier.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(super) mail: Mailbox,
    pub(super) staging: Buffer,
    pub(super) completions: Arc<CompletionQueue>,
    pub(super) control: Id,
    /// Who waits for events of an identifier. Locked while events are read, so that none of an identifier that is gone is
    /// taken for one of its successor at the same place.
    pub(crate) waiters: Mutex<HashMap<usize, Sender<Event>>>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) peer: SocketAddr,
    pub(crate) address: String,
    pub(crate) device: String,
    pub(crate) options: ClientOptions,
    pub(crate) token: Nonce,
    pub(super) capacity: u64,
    pub(super) free: AtomicU64,
    pub(super) keep_alive: Duration,
    pub(super) state: Mutex<SessionState>,
    pub(super) changed: Condvar,
    pub(super) waker: Waker,
    pub(super) stop: AtomicBool,
}

impl Inner {
    pub(super) fn state(&self) -> MutexGuard<'_, SessionState> {
        // Each change of the state is whole.
        self.state.lock()
    }

    pub(crate) fn dead(&self) -> Option<NodeError> {
        self.state().failure.clone().map(|why| NodeError::Dead {
            address: self.address.clone(),
            why,
        })
    }

    /// The session is over: everybody who waits is told, and the queue pair stops.
    pub(super) fn fail(&self, why: &str) {
        let mut state = self.state();
        if state.failure.is_none() {
            state.failure = Some(why.to_owned());
            drop(state);
            self.mail.queue.fail();
        }
        self.changed.notify_all();
    }

    /// The service thread: events, completions, signs of life.
    pub(super) fn serve(&self) {
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
        let waiters = self.waiters.lock();
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
                // A thread that does not wait any more does not want it.
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
        match self.mail.read(slot, bytes) {
            Ok(Message {
                body: Body::Goodbye, ..
            }) => self.fail("the node was stopped"),
            Ok(message) => {
                self.state().reply = Some(message);
                self.changed.notify_all();
            }
            Err(error) => self.fail(&format!("the node sent {error}")),
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
            None if waited(state.probe_last) >= self.keep_alive => match self.mail.queue.probe(PROBE) {
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
    pub(super) fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        cancel: Option<&AtomicBool>,
        mut done: impl FnMut(&mut SessionState) -> Option<T>,
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
            if dial::is_set(cancel) {
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
                left = left.min(dial::SLICE);
            }
            self.changed.wait_for(&mut state, left);
        }
    }
}
