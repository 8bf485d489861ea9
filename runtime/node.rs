//! A memory node as a virtual memory sees it: one session after the other. A session that is over is not begun anew; a
//! node that serves again gets another one, whose grants are empty.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

use gpuvm_memory_node::{NodeClient, NodeError};
use parking_lot::Mutex;

use crate::backoff::Backoff;

/// A memory node, whichever session it is in.
pub(crate) struct Node {
    /// As it was given.
    address: String,
    device: String,
    sessions: Mutex<Sessions>,
    /// Held by the caller.
    calling: Mutex<()>,
    backoff: Mutex<Backoff>,
}

struct Sessions {
    /// What queue pairs join and grants come from.
    current: Arc<NodeClient>,
    /// One that answers, while the queue pairs are lost.
    fresh: Option<Arc<NodeClient>>,
}

impl Node {
    pub fn new(session: Arc<NodeClient>) -> Self {
        Self {
            address: session.address().to_owned(),
            device: session.device().to_owned(),
            sessions: Mutex::new(Sessions {
                current: session,
                fresh: None,
            }),
            calling: Mutex::default(),
            backoff: Mutex::default(),
        }
    }

    /// The session that queue pairs join and grants come from; it may be over.
    pub fn session(&self) -> Arc<NodeClient> {
        Arc::clone(&self.sessions.lock().current)
    }

    /// Whether this is that session.
    pub fn is_in(&self, session: &Arc<NodeClient>) -> bool {
        Arc::ptr_eq(&self.sessions.lock().current, session)
    }

    /// Why that session is over, if it is.
    pub fn failure(&self) -> Option<String> {
        self.session().failure()
    }

    /// The local RDMA device that the way to the node goes through, in every session.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The node as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its name in messages.
    pub fn name(&self) -> String {
        format!("memory node {}", self.address)
    }

    /// Whether it is time to call it in the background.
    pub fn is_due(&self) -> bool {
        self.backoff.lock().is_due(Instant::now())
    }

    /// A try to take it back failed. Whether somebody is to be told.
    pub fn try_failed(&self, why: String) -> bool {
        self.backoff.lock().failed(Instant::now(), why)
    }

    /// It was taken back.
    pub fn try_worked(&self) {
        self.backoff.lock().worked();
    }

    /// Asks a node whose queue pairs are lost whether it serves. It has returned then: see
    /// [`returned`](Self::returned). The session that it had goes on where it is not over, so that nothing at the node is lost.
    pub fn call(&self, cancel: &AtomicBool) -> Result<(), NodeError> {
        let _calling = self.calling.lock();
        if self.returned().is_some() {
            return Ok(());
        }
        let current = self.session();
        let fresh = match current.failure() {
            None => current,
            Some(_) => current.connect_again(cancel)?,
        };
        self.sessions.lock().fresh = Some(fresh);
        Ok(())
    }

    /// The session to go on with, once the node was called and as long as it answers.
    pub fn returned(&self) -> Option<Arc<NodeClient>> {
        let fresh = self.sessions.lock().fresh.clone()?;
        if fresh.failure().is_none() {
            return Some(fresh);
        }
        self.forget_return();
        None
    }

    /// From here on this session is the node's.
    pub fn go_on_with(&self, session: &Arc<NodeClient>) {
        self.sessions.lock().current = Arc::clone(session);
    }

    /// Forgets that it has returned: it was taken back, or could not be.
    pub fn forget_return(&self) {
        let fresh = self.sessions.lock().fresh.take();
        // The goodbye takes a while: not under the lock.
        drop(fresh);
    }
}
