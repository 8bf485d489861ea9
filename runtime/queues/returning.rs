//! Homes that were lost and are there again. Their queue pairs are opened only after everything that they held counts as
//! stale.
//!
//! Lanes reserve no more on a lost pair, but one may be between its look and its reservation, and a handler between a
//! completion and what it means. So a kernel that sees them failed closes the pairs first, by an atomic that lanes see, and
//! they are opened once they are at rest.
//!
//! A node's queue pairs join its new session between the two, each while the others of this virtual memory are kept: joining
//! may take seconds.

use std::sync::{Arc, atomic::Ordering};

use gpuvm_gpu::Gpu;
use gpuvm_memory_node::{NodeClient, NodeError};

use super::{Group, Queues, recovery::Rest};
use crate::{
    error::{Doing, Error, Result},
    node::Node,
};

/// A home that is there again, whose queue pairs are lost still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Returned {
    /// In this host's memory, by its place.
    Local(usize),
    /// A memory node, by its place.
    Node(usize),
}

impl Queues {
    /// The homes that have returned.
    pub fn returned(&self) -> Vec<Returned> {
        let homes = self.local_homes.iter().enumerate();
        let homes = homes.filter(|(home, local)| local.failure().is_none() && self.is_local_lost(*home));
        let nodes = self.lost_nodes().filter(|(_, node)| node.returned().is_some());
        let nodes = nodes.map(|(place, _)| Returned::Node(place));
        homes.map(|(home, _)| Returned::Local(home)).chain(nodes).collect()
    }

    /// The nodes whose queue pairs are lost, or should be, with their places.
    pub fn lost_nodes(&self) -> impl Iterator<Item = (usize, &Arc<Node>)> {
        let nodes = self
            .groups
            .iter()
            .filter_map(|group| Some((group, group.node.as_ref()?)));
        let lost = nodes.enumerate().filter(|(_, (group, _))| group.is_lost());
        lost.map(|(place, (_, node))| (place, node))
    }

    /// Whether the queue pairs of a home in this host's memory are lost, or should be.
    pub fn is_local_lost(&self, home: usize) -> bool {
        self.local_homes.get(home).is_some() && self.groups_of(Returned::Local(home)).iter().any(Group::is_lost)
    }

    /// Whether they were lost at some time.
    pub fn was_local_lost(&self, home: usize) -> bool {
        self.groups_of(Returned::Local(home)).iter().any(Group::was_lost)
    }

    /// Whether the queue pairs of a node are lost, or should be.
    pub fn is_node_lost(&self, place: usize) -> bool {
        self.groups_of(Returned::Node(place)).iter().any(Group::is_lost)
    }

    /// Whether they were lost at some time.
    pub fn was_node_lost(&self, place: usize) -> bool {
        self.groups_of(Returned::Node(place)).iter().any(Group::was_lost)
    }

    /// Why a region can have no memory at a node now.
    pub fn check_node(&self, place: usize) -> Result<(), NodeError> {
        let group = self.node_group(place);
        let Some(node) = group.node.as_ref().filter(|_| group.is_lost()) else {
            return Ok(());
        };
        let why = node.failure();
        Err(NodeError::Dead {
            address: node.address().to_owned(),
            why: why.unwrap_or_else(|| "its queue pairs are lost".into()),
        })
    }

    fn groups_of(&self, home: Returned) -> &[Group] {
        match home {
            Returned::Local(home) => {
                let first = home * self.nics.len();
                &self.groups[first..first + self.nics.len()]
            }
            Returned::Node(place) => std::slice::from_ref(self.node_group(place)),
        }
    }

    /// The queue pairs of a home: the first, and how many.
    pub fn pairs_of(&self, home: Returned) -> (u32, u32) {
        let groups = self.groups_of(home);
        let first = groups.iter().map(|group| group.first).min().unwrap_or(0);
        (first, groups.iter().map(|group| group.count).sum())
    }

    /// Which of its stays a home in this host's memory is in.
    pub fn epoch_of(&self, home: usize) -> u64 {
        self.local_homes.get(home).map_or(0, |local| local.epoch())
    }

    /// Has lanes go to other homes, where nothing has seen yet that this one was lost.
    pub fn give_up_home(&self, gpu: &dyn Gpu, home: Returned) -> Result<()> {
        let _resetting = self.lock_resetting();
        for group in self.groups_of(home) {
            let _held = group.local.as_ref().map(|local| local.hold());
            // Relaxed: see `say_lost`.
            if let (Some(why), false) = (group.failure(), group.lost.load(Ordering::Relaxed)) {
                self.give_up(gpu, group, &why)?;
            }
        }
        Ok(())
    }

    /// Whether no request is in flight on a home's closed queue pairs. Requests whose completions do not come are ended.
    pub fn are_idle(&self, gpu: &dyn Gpu, home: Returned) -> Result<bool> {
        let _resetting = self.lock_resetting();
        let (first, count) = self.pairs_of(home);
        let mut all = true;
        for index in first..first + count {
            match self.rest_of(gpu, index)?.0 {
                Rest::Complete => {}
                Rest::Closed(waiting) => {
                    all = false;
                    self.end_waiting(gpu, index, &waiting)?;
                }
                Rest::Awake | Rest::Stray => all = false,
            }
        }
        Ok(all)
    }

    /// The index of the next request of a queue pair that is at rest.
    fn must_be_idle(&self, gpu: &dyn Gpu, group: &Group, index: u32) -> Result<u64> {
        self.idle_index(gpu, index)?.ok_or_else(|| Error::Unavailable {
            what: group.home_name(),
            reason: format!("queue pair {index} still has requests in flight; it is tried again"),
        })
    }

    /// Opens the queue pairs of a home in this host's memory that are at rest, unless it was lost again since `epoch`.
    pub fn reopen_local(&self, gpu: &dyn Gpu, home: usize, epoch: u64) -> Result<()> {
        let _resetting = self.lock_resetting();
        let Some(local) = self.local_homes.get(home) else {
            return Ok(());
        };
        // It is not taken away again meanwhile.
        let _held = local.hold();
        if local.failure().is_some() || local.epoch() != epoch {
            return Ok(());
        }
        // None is opened before all are recovered: after an error all are at rest still, for the next try.
        let mut recovered = Vec::new();
        for group in self.groups_of(Returned::Local(home)) {
            for index in group.indexes() {
                let next = self.must_be_idle(gpu, group, index)?;
                self.recover(gpu, group, index - group.first, next)?;
                recovered.push((index, next));
            }
        }
        for group in self.groups_of(Returned::Local(home)) {
            self.begin_stay(gpu, group)?;
        }
        for (index, next) in recovered {
            self.open(gpu, index, next)?;
        }
        for group in self.groups_of(Returned::Local(home)) {
            group.epoch.store(epoch, Ordering::Relaxed);
            group.lost.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Lets the queue pairs of a node, which are at rest, join the session that it goes on with, as long as `go_on` says so.
    /// They are closed still. How often they had been cleared by then, for [`reopen_node`](Self::reopen_node).
    pub fn join_anew(&self, gpu: &dyn Gpu, place: usize, go_on: &dyn Fn() -> Result<()>) -> Result<u32> {
        let group = self.node_group(place);
        // Relaxed: a count that is compared under `resetting`.
        let resets = group.resets.load(Ordering::Relaxed);
        for index in group.indexes() {
            go_on()?;
            let next = {
                let _resetting = self.lock_resetting();
                self.must_be_idle(gpu, group, index)?
            };
            // Without the lock: others are recovered meanwhile. A host's pass that resets the pair is counted.
            self.begin_anew(gpu, group, index - group.first, next)?;
        }
        Ok(resets)
    }

    /// Opens the queue pairs of a node that have joined `session`.
    pub fn reopen_node(&self, gpu: &dyn Gpu, place: usize, session: &NodeClient, resets: u32) -> Result<()> {
        let group = self.node_group(place);
        let _resetting = self.lock_resetting();
        if let Some(why) = session.failure() {
            let address = session.address().to_owned();
            return Err(NodeError::Dead { address, why }).doing(|| format!("taking {} back", group.home_name()));
        }
        // Relaxed: the thread that changes it holds the lock.
        if group.resets.load(Ordering::Relaxed) != resets {
            return Err(Error::Unavailable {
                what: group.home_name(),
                reason: "its queue pairs were reset for another reason while they joined; it is tried again".into(),
            });
        }
        let next = group.indexes().map(|index| self.must_be_idle(gpu, group, index));
        let next = next.collect::<Result<Vec<_>>>()?;
        self.begin_stay(gpu, group)?;
        for (index, next) in group.indexes().zip(next) {
            self.open(gpu, index, next)?;
        }
        // Relaxed: see `say_lost`. From here on the keeper recovers them, or gives them up.
        group.lost.store(false, Ordering::Relaxed);
        Ok(())
    }
}
