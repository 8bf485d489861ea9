//! The queue pairs of a virtual memory: rings that GPU threads fill, connected to the homes' side through the NIC.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use gpuvm_gpu::Gpu;
use gpuvm_layouts::{self as layout, QueueDesc, QueueState, RequestRecord};
use gpuvm_memory_node::{JoinQueue, QueueLink};
use gpuvm_nic::{Nic, QueueAttributes};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    arena::RingArena,
    device::DeviceArray,
    error::{Doing, Result},
    local_home::LocalHome,
};

mod doorbells;
mod group;
mod making;
mod mending;
mod patience;
mod resetting;
mod returning;
mod rings;
mod sizing;

pub(crate) use mending::{StepKeeper, start_keeper};
pub(crate) use returning::Returned;
pub(crate) use sizing::measure;

use doorbells::Doorbells;
use group::Group;
use patience::Watch;
use rings::GivenRings;

/// One queue pair's memory and number.
struct Pair {
    nic: Arc<dyn Nic>,
    number: u32,
    /// Kept while the queue pair lives.
    rings: Option<GivenRings>,
    records: DeviceArray<RequestRecord>,
    watch: Mutex<Watch>,
}

/// How many queue pairs there are for each home and NIC, and what they are like.
#[derive(Clone, Copy)]
pub(crate) struct QueueShape {
    pub count: u32,
    /// Requests in flight of each.
    pub depth: u32,
    pub flush_reads: bool,
    /// Of rings that are given to the NIC: one entry of the completion ring takes all.
    pub collapsed: bool,
    /// How long a request may take.
    pub patience: Duration,
    /// Pages may have a second home.
    pub guarded: bool,
}

/// Queue pairs that reach one home, for a region.
pub(crate) struct Reached {
    /// Their NIC's place.
    pub nic: usize,
    /// The first of them.
    pub first: u32,
    pub count: u32,
}

impl Pair {
    fn reset(&self) -> Result<()> {
        let reset = self.nic.reset(self.number);
        reset.doing(|| format!("resetting queue pair {:#x}", self.number))
    }
}

/// A queue pair of a NIC, for the connection manager.
struct Joining<'a> {
    nic: &'a dyn Nic,
    number: u32,
}

impl<'a> Joining<'a> {
    fn of(pair: &'a Pair) -> Self {
        Self {
            nic: &*pair.nic,
            number: pair.number,
        }
    }
}

impl JoinQueue for Joining<'_> {
    fn number(&self) -> u32 {
        self.number
    }

    fn modify(&self, attributes: &QueueAttributes) -> std::io::Result<()> {
        self.nic.modify(self.number, attributes).map_err(std::io::Error::other)
    }

    fn max_outstanding_reads(&self) -> u8 {
        u8::try_from(self.nic.capabilities().max_rd_atomic).unwrap_or(u8::MAX)
    }
}

/// Value of `QueueState::failed` for queue pairs whose node is lost: transport retries exceeded, seen by the host.
const FAILED_BY_HOST: u32 = layout::QUEUE_FAILED | layout::QUEUE_LOST | 0x15 << 8 | 0xff << 16;

/// All queue pairs, and their table in device memory.
pub(crate) struct Queues {
    groups: Vec<Group>,
    /// Given back before the queue pairs, with which a page may go. None where lanes reach the NICs' doorbells as it is.
    doorbells: Vec<Doorbells>,
    /// Homes in this host's memory that can be lost one by one.
    local_homes: Vec<Arc<LocalHome>>,
    /// In order: groups of each home in this host's memory, one a NIC, then groups of nodes.
    nics: Vec<Arc<dyn Nic>>,
    /// Memory of rings that the NICs' driver made, where lanes know it by other addresses.
    arena: Option<Arc<RingArena>>,
    pairs: Vec<Pair>,
    /// One a queue pair, as `table`.
    states: DeviceArray<QueueState>,
    table: DeviceArray<QueueDesc>,
    depth: u32,
    /// Address of each NIC's keys of the frames.
    frame_keys: Vec<u64>,
    /// A READ's completion says nothing of its data: see `QUEUE_FLUSHES_READS`.
    flush_reads: bool,
    /// Given completion rings are collapsed.
    collapsed: bool,
    /// Queue pairs that a doorbell proxy rings for.
    proxied: u32,
    /// Held by whoever takes queue pairs through reset.
    resetting: Mutex<()>,
    /// Queue pairs mended while kernels ran.
    mended: AtomicU64,
    /// How long a request may take before its pair counts as failed.
    patience_ns: u64,
    /// Pages may have a second home.
    guarded: bool,
    /// A home that was silent is asked again: what it missed can be mended.
    spoke_again: AtomicBool,
    /// When overdue requests are looked for again.
    next_search_ns: AtomicU64,
}

impl Queues {
    /// Takes the reset queue pairs of a group to ready and describes them to the GPU.
    fn connect(&self, gpu: &dyn Gpu, group: &Group) -> Result<()> {
        group.links().clear();
        for index in group.indexes() {
            let link = self.connect_one(gpu, group, index, 0)?;
            group.links().push(link);
        }
        Ok(())
    }

    /// Takes one reset queue pair, whose next request is `next`, to ready and describes it to the GPU.
    fn connect_one(&self, gpu: &dyn Gpu, group: &Group, index: u32, next: u64) -> Result<Option<QueueLink>> {
        self.describe_one(gpu, group, index, next)?;
        let pair = &self.pairs[index as usize];
        let number = pair.number;
        let doing = || format!("connecting queue pair {number:#x}");
        match &group.node {
            // Loopback: the pair answers its own requests from the memory that regions register.
            None => pair.nic.connect(number, number).doing(doing).map(|()| None),
            Some(node) => {
                let joined = node.session().connect_queue(&Joining::of(pair));
                joined.doing(doing).map(Some)
            }
        }
    }

    /// The queue pairs that reach home `home` in this host's memory, a group a NIC.
    pub fn of_host(&self, home: usize) -> impl Iterator<Item = Reached> {
        let first = home * self.nics.len();
        self.groups[first..first + self.nics.len()].iter().map(Group::reached)
    }

    /// The homes in this host's memory that can be lost one by one.
    pub fn local_homes(&self) -> &[Arc<LocalHome>] {
        &self.local_homes
    }

    /// The queue pairs that reach node `index`.
    pub fn of_node(&self, index: usize) -> Reached {
        self.node_group(index).reached()
    }

    fn node_group(&self, index: usize) -> &Group {
        &self.groups[self.nics.len() * self.local_homes.len().max(1) + index]
    }

    /// The queue pair of what a node had and has lost: it failed for good.
    pub fn nowhere(&self) -> Reached {
        Reached {
            nic: 0,
            first: self.count(),
            count: 1,
        }
    }

    /// Groups of queue pairs.
    pub fn group_count(&self) -> u32 {
        self.groups.len() as u32
    }

    fn lock_resetting(&self) -> MutexGuard<'_, ()> {
        self.resetting.lock()
    }

    /// Whether queue pairs to this host's memory were given up since the last reset. Those to a home that may be lost by
    /// itself are no reason for a reset: kernels go on without it.
    pub fn any_given_up(&self) -> bool {
        let mut unkept = self.groups.iter().filter(|group| !group.is_kept());
        // Relaxed: see `say_lost`.
        unkept.any(|group| group.lost.load(Ordering::Relaxed))
    }

    fn state_addr(&self, index: u32) -> u64 {
        self.states.addr() + u64::from(index) * size_of::<QueueState>() as u64
    }

    fn read_states(&self, gpu: &dyn Gpu) -> Result<Vec<QueueState>> {
        let read = self.states.read(gpu, 0, self.pairs.len());
        read.doing(|| "reading queue pairs".into())
    }

    /// Queue pairs mended while kernels ran.
    pub fn mended(&self) -> u64 {
        self.mended.load(Ordering::Relaxed)
    }

    pub fn table_addr(&self) -> u64 {
        self.table.addr()
    }

    pub fn count(&self) -> u32 {
        self.pairs.len() as u32
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // Connections end before the queue pairs that joined them.
        for group in &self.groups {
            group.links().clear();
        }
        // A register's page may go with its queue pair, and no lane rings any more.
        self.doorbells.clear();
        for pair in self.pairs.drain(..) {
            if let Err(error) = pair.nic.destroy_queue_pair(pair.number) {
                tracing::error!(%error, "a queue pair could not be destroyed; its rings are leaked");
                std::mem::forget(pair);
            }
        }
    }
}
