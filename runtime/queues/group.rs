//! Queue pairs of one NIC that reach the same home.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use gpuvm_memory_node::QueueLink;
use parking_lot::{Mutex, MutexGuard};

use crate::{local_home::LocalHome, node::Node};

/// Queue pairs that reach one home, for a region.
pub(crate) struct Reached {
    /// Their NIC's place.
    pub nic: usize,
    /// The first of them.
    pub first: u32,
    pub count: u32,
}

/// Queue pairs of one NIC that reach the same home.
pub(super) struct Group {
    /// The NIC's place.
    pub nic: usize,
    pub first: u32,
    pub count: u32,
    /// The node that they reach, and this host's memory without one.
    pub node: Option<Arc<Node>>,
    /// The home in this host's memory that can be lost by itself.
    pub local: Option<Arc<LocalHome>>,
    /// The connections to the node, one a queue pair; none while a pair is recovered.
    pub links: Mutex<Vec<Option<QueueLink>>>,
    /// The node does not come back: its queue pairs were given up.
    pub lost: AtomicBool,
    /// The home's epoch for which its queue pairs are good.
    pub epoch: AtomicU64,
    /// They were at some time: what the home holds may be behind.
    pub was_lost: AtomicBool,
    /// Tries in a row to recover a queue pair that failed.
    pub tries: AtomicU32,
    /// Since when requests got no answer over recovered queue pairs, in the keeper's time; 0: they do.
    pub silent_since_ns: AtomicU64,
    /// It counts as silent until then; 0: it does not.
    pub silent_until_ns: AtomicU64,
    /// Times that its queue pairs were cleared: what was read of them before holds no more.
    pub resets: AtomicU32,
}

impl Group {
    /// `count` queue pairs over NIC `nic`, from `first` on, that reach a node or a home of this host.
    pub fn new(nic: usize, first: u32, count: u32, node: Option<Arc<Node>>, local: Option<Arc<LocalHome>>) -> Self {
        Self {
            nic,
            first,
            count,
            node,
            local,
            links: Mutex::default(),
            lost: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            was_lost: AtomicBool::new(false),
            tries: AtomicU32::new(0),
            silent_since_ns: AtomicU64::new(0),
            silent_until_ns: AtomicU64::new(0),
            resets: AtomicU32::new(0),
        }
    }

    pub fn links(&self) -> MutexGuard<'_, Vec<Option<QueueLink>>> {
        self.links.lock()
    }

    /// Whether its queue pairs are recovered while kernels run: what they reach may be lost, and return.
    pub fn is_kept(&self) -> bool {
        self.node.is_some() || self.local.is_some()
    }

    /// Why its home cannot be reached any more.
    pub fn failure(&self) -> Option<String> {
        match (&self.node, &self.local) {
            (Some(node), _) => node.failure(),
            (None, Some(local)) => local.failure().or_else(|| {
                // It came back before anybody saw that it was gone. Relaxed: changed with `resetting`.
                let same = local.epoch() == self.epoch.load(Ordering::Relaxed);
                (!same).then(|| "it was restarted, and its contents are lost".into())
            }),
            (None, None) => None,
        }
    }

    /// Its home, for messages.
    pub fn home_name(&self) -> String {
        match (&self.node, &self.local) {
            (Some(node), _) => node.name(),
            (None, Some(local)) => local.name(),
            (None, None) => "this host's memory".into(),
        }
    }

    /// The places of its queue pairs.
    pub fn indexes(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.count
    }

    pub fn reached(&self) -> Reached {
        Reached {
            nic: self.nic,
            first: self.first,
            count: self.count,
        }
    }

    pub fn say_lost(&self, why: &dyn std::fmt::Display) {
        // Relaxed: flags for the host alone; the queue pairs' state is what lanes see.
        self.was_lost.store(true, Ordering::Relaxed);
        if !self.lost.swap(true, Ordering::Relaxed) {
            match self.is_kept() {
                true => tracing::error!("{} is lost: {why}", self.home_name()),
                false => tracing::error!("queue pairs to this host's memory are given up: {why}"),
            }
        }
    }

    /// Whether its queue pairs are lost, or should be.
    pub fn is_lost(&self) -> bool {
        // Relaxed: see `say_lost`.
        self.failure().is_some() || self.lost.load(Ordering::Relaxed)
    }

    /// Whether they were at some time.
    pub fn was_lost(&self) -> bool {
        // Relaxed: see `say_lost`.
        self.is_lost() || self.was_lost.load(Ordering::Relaxed)
    }
}
