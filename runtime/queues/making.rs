//! How queue pairs are made, and described to the GPU.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64},
};

use gpuvm_gpu::Gpu;
use gpuvm_layouts::{self as layout, QueueDesc, QueueState, RequestRecord};
use gpuvm_nic::{Nic, QueueFormat, QueuePair, QueueRings};
use parking_lot::Mutex;

use super::{
    FAILED_BY_HOST, Pair, QueueShape, Queues,
    doorbells::reach_doorbells,
    group::Group,
    rings::{GivenRings, translate},
};
use crate::{
    arena::RingArena,
    device::{DeviceArray, zero},
    error::{Doing, Result},
    frames::FrameMemory,
    local_home::LocalHome,
    node::Node,
};

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
            doorbells: Vec::new(),
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
            proxied: 0,
            resetting: Mutex::default(),
            mended: AtomicU64::new(0),
            patience_ns: u64::try_from(shape.patience.as_nanos()).unwrap_or(u64::MAX),
            guarded: shape.guarded,
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
            let reached = reach_doorbells(gpu, &**nic);
            self.doorbells
                .extend(reached.doing(|| "letting kernels reach the NIC's doorbells".to_owned())?);
        }
        let hardware = gpu.capabilities().compute_capability.is_some();
        for index in 0..self.groups.len() as u32 * count {
            let pair = self.create_pair(gpu, &self.groups[(index / count) as usize], index)?;
            let (nic, number) = (Arc::clone(&pair.nic), pair.number);
            self.pairs.push(pair);
            if hardware && !nic.capabilities().has_mover {
                self.reach_doorbell(gpu, &*nic, number)?;
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
            records,
            watch: Mutex::default(),
        })
    }

    /// Describes it. It lies behind those that lanes look through, and nobody reserves of it.
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
    pub(super) fn describe_one(&self, gpu: &dyn Gpu, group: &Group, index: u32, next: u64) -> Result<()> {
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
        let mut doorbells = self.doorbells.iter();
        let doorbell = doorbells.find_map(|pages| {
            let span = (pages.host, pages.registration.bytes(), pages.registration.device_addr());
            translate(span, ready.doorbell)
        });
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
            doorbell: doorbell.unwrap_or(ready.doorbell),
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
            mended: 1,
            ..zero()
        }
    }

    /// Indexes at 0, every slot free for the request of its own number.
    fn clear_software_state(&self, gpu: &dyn Gpu) -> Result<()> {
        (0..self.count()).try_for_each(|index| self.clear_pair(gpu, index, 0))
    }

    pub(super) fn clear_pair(&self, gpu: &dyn Gpu, index: u32, failed: u32) -> Result<()> {
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
