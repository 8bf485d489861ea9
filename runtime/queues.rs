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
use gpuvm_memory_node::QueueLink;
use gpuvm_nic::{Nic, QueueFormat, QueuePair, QueueRings};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    arena::RingArena,
    device::{DeviceArray, zero},
    error::{Doing, Result},
    frames::FrameMemory,
    local_home::LocalHome,
    node::Node,
};

mod doorbells;
mod group;
mod pair;
mod recovery;
mod returning;
mod rings;
mod sizing;

pub(crate) use group::Reached;
pub(crate) use recovery::{StepKeeper, start_keeper};
pub(crate) use returning::Returned;
pub(crate) use sizing::{LOADED, measure, pairs_for};

use doorbells::Doorbells;
use group::Group;
use pair::{Joining, Pair};
use rings::GivenRings;

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
    pub timeout: Duration,
    /// Pages may have a second home.
    pub reliable: bool,
}

/// Value of `QueueState::failed` for queue pairs whose node is lost: transport retries exceeded, seen by the host.
const FAILED_BY_HOST: u32 = layout::QUEUE_FAILED | layout::QUEUE_LOST | 0x15 << 8 | 0xff << 16;

/// All queue pairs, and their table in device memory.
pub(crate) struct Queues {
    groups: Vec<Group>,
    /// Given back before the queue pairs, with which a page may go. None where lanes reach the NICs' doorbells as it is.
    doorbells: Doorbells,
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
    /// Held by the thread that takes queue pairs through reset.
    resetting: Mutex<()>,
    /// Queue pairs recovered while kernels ran.
    recovered: AtomicU64,
    /// How long a request may take before its pair counts as failed.
    timeout_ns: u64,
    /// Pages may have a second home.
    reliable: bool,
    /// A home that was silent is asked again: what it missed can be recovered.
    spoke_again: AtomicBool,
    /// When overdue requests are looked for again.
    next_search_ns: AtomicU64,
}

impl Queues {
    /// Connected queue pairs of `shape`: some that reach this host's memory over each NIC, and as many for each node. Homes in this
    /// host's memory that can be lost one by one have queue pairs of their own.
    pub fn create(
        gpu: &dyn Gpu,
        nics: &[Arc<dyn Nic>],
        arena: Option<Arc<RingArena>>,
        (local_homes, nodes): (&[Arc<LocalHome>], &[Arc<Node>]),
        shape: QueueShape,
        frames: &FrameMemory,
    ) -> Result<Self> {
        let groups = groups(nics, local_homes, nodes, shape.count);
        let all = groups.len() as u32 * shape.count;
        let mut queues = Self {
            groups,
            doorbells: Doorbells::default(),
            local_homes: local_homes.to_vec(),
            nics: nics.to_vec(),
            arena,
            pairs: Vec::new(),
            states: DeviceArray::zeroed(gpu, u64::from(all) + 1)
                .doing(|| "allocating the states of queue pairs".into())?,
            table: DeviceArray::zeroed(gpu, u64::from(all) + 1)
                .doing(|| "allocating the table of queue pairs".into())?,
            depth: shape.depth,
            frame_keys: (0..nics.len()).map(|nic| frames.keys_of(nic)).collect(),
            flush_reads: shape.flush_reads,
            collapsed: shape.collapsed,
            resetting: Mutex::default(),
            recovered: AtomicU64::new(0),
            timeout_ns: u64::try_from(shape.timeout.as_nanos()).unwrap_or(u64::MAX),
            reliable: shape.reliable,
            spoke_again: AtomicBool::new(false),
            next_search_ns: AtomicU64::new(0),
        };
        queues.create_pairs(gpu, shape.count)?;
        queues.clear_software_state(gpu)?;
        queues.describe_nowhere(gpu)?;
        for group in &queues.groups {
            queues.connect(gpu, group)?;
        }
        Ok(queues)
    }

    /// Creates the queue pairs of all groups, with what lanes need to ring for them.
    fn create_pairs(&mut self, gpu: &dyn Gpu, count: u32) -> Result<()> {
        for nic in self.nics.iter().filter(|nic| nic.capabilities().has_mover) {
            let reached = self.doorbells.reach_all(gpu, &**nic);
            reached.doing(|| "letting kernels reach the NIC's doorbells".to_owned())?;
        }
        let hardware = gpu.capabilities().compute_capability.is_some();
        for index in 0..self.groups.len() as u32 * count {
            let pair = self.create_pair(gpu, &self.groups[(index / count) as usize], index)?;
            let (nic, number) = (Arc::clone(&pair.nic), pair.number);
            self.pairs.push(pair);
            let able = nic.capabilities();
            if hardware && !able.has_mover && !able.on_gpu {
                self.doorbells.reach(gpu, &*nic, number)?;
            }
        }
        for group in &self.groups {
            if let Some(local) = &group.local {
                let pairs = group.indexes().map(|index| &self.pairs[index as usize]);
                local.add_pairs(pairs.map(|pair| (Arc::clone(&pair.nic), pair.number)));
            }
        }
        Ok(())
    }

    fn create_pair(&self, gpu: &dyn Gpu, group: &Group, index: u32) -> Result<Pair> {
        let doing = || format!("creating queue pair {index}");
        let nic = &self.nics[group.nic];
        let able = nic.capabilities();
        let blocks = self.depth << u32::from(self.flush_reads);
        let rings = match able.makes_rings {
            true => None,
            false => Some(GivenRings::allocate(gpu, blocks, able.has_mover).doing(doing)?),
        };
        let records = DeviceArray::zeroed(gpu, u64::from(self.depth)).doing(doing)?;
        let wanted = match &rings {
            Some(rings) => QueueRings::Given(rings.memory(blocks, self.collapsed)),
            None => QueueRings::Own { depth: blocks },
        };
        // SAFETY: given rings stay allocated in `self.pairs`, which `drop` empties only after
        // `destroy_queue_pair` returned Ok (else it leaks them). Kernels reach all rings by atomics alone, and none
        // after that.
        let pair = unsafe { nic.create_queue_pair(wanted) }.doing(doing)?;
        Ok(Pair {
            nic: Arc::clone(nic),
            number: pair.number,
            rings,
            depth: self.depth,
            records,
            watch: Mutex::default(),
        })
    }

    /// Describes it. It lies behind those that lanes look through, and nothing reserves of it.
    fn describe_nowhere(&self, gpu: &dyn Gpu) -> Result<()> {
        let doing = || "describing queue pairs".to_owned();
        let index = self.count();
        let state = QueueState {
            reserved: layout::RESERVED_CLOSED,
            failed: FAILED_BY_HOST,
            ..zero()
        };
        let desc = QueueDesc {
            state: self.state_addr(index),
            ..zero()
        };
        self.states.write(gpu, u64::from(index), &[state]).doing(doing)?;
        self.table.write(gpu, u64::from(index), &[desc]).doing(doing)
    }

    /// Tells the GPU of a queue pair that was reset.
    fn describe_one(&self, gpu: &dyn Gpu, group: &Group, index: u32, next: u64) -> Result<()> {
        let pair = &self.pairs[index as usize];
        let doing = || format!("describing queue pair {:#x}", pair.number);
        let ready = pair.nic.queue_pair(pair.number).doing(doing)?;
        let desc = self.describe(pair, &ready, next, group, index);
        self.table.write(gpu, u64::from(index), &[desc]).doing(doing)
    }

    /// The queue pair for the GPU. Its rings stand where request `next` begins.
    fn describe(&self, pair: &Pair, ready: &QueuePair, next: u64, group: &Group, index: u32) -> QueueDesc {
        // Positions in the rings are start + index. Lanes take them modulo the ring, and modulo what the NIC counts to.
        let for_lanes = |address| match (&pair.rings, &self.arena) {
            (Some(rings), _) => rings.for_lanes(address),
            (None, Some(arena)) => arena.for_lanes(address).unwrap_or(address),
            (None, None) => address,
        };
        let start = |slot: u32| slot.wrapping_sub(next as u32);
        // Blocks a request, as a power of two.
        let doubled = u32::from(self.flush_reads);
        QueueDesc {
            kind: match ready.format {
                QueueFormat::Mlx5 => layout::QUEUE_KIND_MLX5,
                QueueFormat::Rxe => layout::QUEUE_KIND_RXE,
            },
            number: ready.number,
            send_ring: for_lanes(ready.send.address),
            completion_ring: for_lanes(ready.completion.address),
            doorbell_record: for_lanes(ready.doorbell_record),
            doorbell: self.doorbells.for_lanes(ready.doorbell).unwrap_or(ready.doorbell),
            mask: self.depth - 1,
            send_mask: (ready.send.slots >> doubled) - 1,
            completion_mask: ready.completion.slots - 1,
            send_shift: ready.send.shift + doubled,
            completion_shift: ready.completion.shift,
            send_start: start(ready.send.start >> doubled),
            completion_start: start(ready.completion.start),
            flags: [
                (self.flush_reads, layout::QUEUE_FLUSHES_READS),
                (ready.collapsed, layout::QUEUE_COLLAPSED),
            ]
            .into_iter()
            .filter_map(|(set, bit)| set.then_some(bit))
            .sum(),
            frame_keys: self.frame_keys[group.nic],
            state: self.state_addr(index),
            records: pair.records.addr(),
            completion_produced: ready.completion_produced,
            completion_consumed: ready.completion_consumed,
            // By the keeper, wherever they lead.
            recoverable: 1,
            ..zero()
        }
    }

    /// Indexes at 0, every slot free for the request of its own number.
    fn clear_software_state(&self, gpu: &dyn Gpu) -> Result<()> {
        (0..self.count()).try_for_each(|index| self.clear_pair(gpu, index, 0))
    }

    fn clear_pair(&self, gpu: &dyn Gpu, index: u32, failed: u32) -> Result<()> {
        let records: Vec<RequestRecord> = (0..u64::from(self.depth))
            .map(|slot| RequestRecord {
                state: slot << layout::RECORD_INDEX_SHIFT | layout::RECORD_FREE,
                ..zero()
            })
            .collect();
        self.pairs[index as usize].forget();
        let state = QueueState { failed, ..zero() };
        let written = self.states.write(gpu, u64::from(index), &[state]);
        let written = written.and_then(|()| self.pairs[index as usize].records.write(gpu, 0, &records));
        written.doing(|| "clearing queue pairs".to_owned())
    }

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

    /// Whether READs are flushed.
    pub fn flushes_reads(&self) -> bool {
        self.flush_reads
    }

    /// Queue pairs that a doorbell proxy rings for.
    pub fn proxied(&self) -> u32 {
        self.doorbells.proxied
    }

    /// Queue pairs recovered while kernels ran.
    pub fn recovered(&self) -> u64 {
        self.recovered.load(Ordering::Relaxed)
    }

    pub fn table_addr(&self) -> u64 {
        self.table.addr()
    }

    pub fn count(&self) -> u32 {
        self.pairs.len() as u32
    }
}

/// Groups of `count` queue pairs: of each home in this host's memory one a NIC, then of nodes.
fn groups(nics: &[Arc<dyn Nic>], local_homes: &[Arc<LocalHome>], nodes: &[Arc<Node>], count: u32) -> Vec<Group> {
    let of_host = (0..local_homes.len().max(1)).flat_map(|home| (0..nics.len()).map(move |nic| (nic, home)));
    let of_host = of_host.map(|(nic, home)| (nic, None, local_homes.get(home).cloned()));
    // A node is reached over the NIC whose network leads there.
    let of_nodes = nodes.iter().map(|node| {
        let there = |nic: &Arc<dyn Nic>| nic.capabilities().name == node.device();
        (nics.iter().position(there).unwrap_or(0), Some(Arc::clone(node)), None)
    });
    (0..)
        .zip(of_host.chain(of_nodes))
        .map(|(index, (nic, node, local))| Group::new(nic, index * count, count, node, local))
        .collect()
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
