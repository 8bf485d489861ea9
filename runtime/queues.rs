//! The queue pairs of a virtual memory: rings that GPU threads fill, connected to the homes' side through the NIC.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use gpuvm_gpu::{Gpu, GpuError, HostMemory, HostRegistration};
use gpuvm_layouts::{self as layout, QueueDesc, QueueState, RequestRecord};
use gpuvm_memory_node::{JoinQueue, QueueLink};
use gpuvm_nic::{
    Nic, QueueAttributes, QueueFormat, QueueMemory, QueuePair, QueueRings, host_page_bytes, mlx5::QueueMaking,
};

use crate::{
    arena::RingArena,
    builder::{Transport, VmBuilder},
    device::{DeviceArray, zero},
    error::{Doing, Error, Result},
    frames::FrameMemory,
    local_home::LocalHome,
    node::Node,
};

mod mending;
mod patience;
mod returning;
mod sizing;

pub(crate) use mending::{Keeper, StepKeeper};
pub(crate) use returning::Returned;
pub(crate) use sizing::measure;

use patience::Watch;

/// Rings for a NIC that does not make its own.
enum GivenRings {
    /// In GPU memory, all of which the NIC reaches.
    Device {
        send: DeviceArray<[u64; 8]>,
        completion: DeviceArray<[u64; 8]>,
        doorbell_records: DeviceArray<Records>,
    },
    /// For a NIC with a mover. What lanes write and the NIC polls is the host's; completions, which lanes poll, are the GPU's:
    /// a look at its own memory takes a tenth of one at the host's.
    Split {
        /// The send ring, then the records.
        posted: HostMemory,
        completion: DeviceArray<[u64; 8]>,
    },
}

/// [0], [1]: the pair's record (receive, send); [2], [3]: the completion queue's.
type Records = [u32; 16];

impl GivenRings {
    /// Rings of `blocks` blocks and as many completions.
    fn allocate(gpu: &dyn Gpu, blocks: u32, split: bool) -> Result<Self, GpuError> {
        let completion = DeviceArray::zeroed(gpu, u64::from(blocks))?;
        if split {
            let bytes = send_bytes(blocks) + size_of::<Records>() as u64;
            let posted = gpu.allocate_host(bytes)?;
            return Ok(Self::Split { posted, completion });
        }
        Ok(Self::Device {
            send: DeviceArray::zeroed(gpu, u64::from(blocks))?,
            completion,
            doorbell_records: DeviceArray::zeroed(gpu, 1)?,
        })
    }

    /// As the NIC names it.
    fn memory(&self, blocks: u32, collapsed: bool) -> QueueMemory {
        let (sq, cq, records) = match self {
            Self::Device {
                send,
                completion,
                doorbell_records,
            } => (send.addr(), completion.addr(), doorbell_records.addr()),
            Self::Split { posted, completion } => {
                let first = posted.host_ptr().expose_provenance() as u64;
                (first, completion.addr(), first + send_bytes(blocks))
            }
        };
        QueueMemory {
            sq,
            sq_entries: blocks,
            cq,
            cq_entries: blocks,
            dbrec: records,
            cq_dbrec: records + 8,
            collapsed,
        }
    }

    /// What the NIC calls `address`, as lanes call it.
    fn for_lanes(&self, address: u64) -> u64 {
        match self {
            Self::Device { .. } => address,
            Self::Split { posted, .. } => {
                let span = (posted.host_ptr() as u64, posted.bytes(), posted.device_addr());
                translate(span, address).unwrap_or(address)
            }
        }
    }
}

fn send_bytes(blocks: u32) -> u64 {
    u64::from(blocks) * 64
}

/// The device address of host address `address`, if it is inside a span of host address, bytes and device address.
fn translate((host, bytes, device): (u64, u64, u64), address: u64) -> Option<u64> {
    let offset = address.checked_sub(host)?;
    (offset < bytes).then_some(device + offset)
}

/// A NIC's doorbell pages, within lanes' reach.
struct Doorbells {
    host: u64,
    registration: HostRegistration,
}

/// One queue pair's memory and number.
struct Pair {
    nic: Arc<dyn Nic>,
    number: u32,
    /// Kept while the queue pair lives.
    rings: Option<GivenRings>,
    records: DeviceArray<RequestRecord>,
    watch: Mutex<Watch>,
}

/// Queue pairs of one NIC that reach the same home.
struct Group {
    /// The NIC's place.
    nic: usize,
    first: u32,
    count: u32,
    /// The node that they reach, and this host's memory without one.
    node: Option<Arc<Node>>,
    /// The home in this host's memory that can be lost by itself.
    local: Option<Arc<LocalHome>>,
    /// The connections to the node, one a queue pair; none while a pair is mended.
    links: Mutex<Vec<Option<QueueLink>>>,
    /// The node does not come back: its queue pairs were given up.
    lost: AtomicBool,
    /// The home's epoch for which its queue pairs are good.
    epoch: AtomicU64,
    /// They were at some time: what the home holds may be behind.
    was_lost: AtomicBool,
    /// Tries in a row to mend a queue pair that failed.
    tries: AtomicU32,
    /// Since when requests got no answer over mended queue pairs, in the keeper's time; 0: they do.
    silent_since_ns: AtomicU64,
    /// It counts as silent until then; 0: it does not.
    silent_until_ns: AtomicU64,
    /// Times that its queue pairs were cleared: what was read of them before holds no more.
    resets: AtomicU32,
}

impl Group {
    fn links(&self) -> MutexGuard<'_, Vec<Option<QueueLink>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    /// Whether its queue pairs are mended while kernels run: what they reach may be lost, and return.
    fn is_kept(&self) -> bool {
        self.node.is_some() || self.local.is_some()
    }

    /// Why its home cannot be reached any more.
    fn failure(&self) -> Option<String> {
        match (&self.node, &self.local) {
            (Some(node), _) => node.failure(),
            (None, Some(local)) => local.failure().or_else(|| {
                // It came back before anybody saw that it was gone. Relaxed: changed with `resetting`.
                let same = local.epoch() == self.epoch.load(Ordering::Relaxed);
                (!same).then(|| "it was away, and what it held is gone".into())
            }),
            (None, None) => None,
        }
    }

    /// Its home, for messages.
    fn home_name(&self) -> String {
        match (&self.node, &self.local) {
            (Some(node), _) => node.name(),
            (None, Some(local)) => local.name(),
            (None, None) => "this host's memory".into(),
        }
    }

    /// The places of its queue pairs.
    fn indexes(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.count
    }

    fn reached(&self) -> Reached {
        Reached {
            nic: self.nic,
            first: self.first,
            count: self.count,
        }
    }
}

/// How many queue pairs there are for each home and NIC, and what they are like.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub count: u32,
    /// Requests in flight of each.
    pub depth: u32,
    pub flush_reads: bool,
    /// Homes in this host's memory, each with queue pairs of its own.
    pub host_homes: u32,
    /// Of rings that are given to the NIC: one entry of the completion ring takes all.
    pub collapsed: bool,
    /// How long a request may take.
    pub patience: Duration,
    /// Pages may have a second home.
    pub guarded: bool,
}

/// Whether a transport's completion queues can be collapsed, where that is asked for.
pub(crate) fn check_collapsed(settings: &VmBuilder, transport: Transport, hardware: bool) -> Result<()> {
    let reason = match transport {
        _ if !settings.collapsed_completions => return Ok(()),
        Transport::Soft if !hardware => return Ok(()),
        Transport::Mlx5 if settings.rdma_queues == QueueMaking::Devx => return Ok(()),
        Transport::Soft => {
            "the software NIC's copies to a GPU of hardware follow no such order; leave it out".to_owned()
        }
        other => format!("transport {other} has none; use soft, or mlx5 with queues that DEVX makes"),
    };
    Err(Error::Setting {
        setting: "collapsed completions",
        value: "true".into(),
        reason,
    })
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
    /// Connected queue pairs of `shape`: some that reach this host's memory over each NIC, and as many for each node.
    pub fn create(
        gpu: &dyn Gpu,
        nics: &[Arc<dyn Nic>],
        arena: Option<Arc<RingArena>>,
        nodes: &[Arc<Node>],
        shape: Shape,
        frames: &FrameMemory,
    ) -> Result<Self> {
        let Shape {
            count,
            depth,
            flush_reads,
            host_homes,
            collapsed,
            patience,
            guarded,
        } = shape;
        let local_homes: Vec<_> = match host_homes {
            1 => Vec::new(),
            several => (0..several).map(|home| Arc::new(LocalHome::new(home))).collect(),
        };
        let of_host = (0..host_homes).flat_map(|home| (0..nics.len()).map(move |nic| (nic, home)));
        let of_host = of_host.map(|(nic, home)| (nic, None, local_homes.get(home as usize).cloned()));
        // A node is reached over the NIC whose network leads there.
        let of_nodes = nodes.iter().map(|node| {
            let there = |nic: &Arc<dyn Nic>| nic.capabilities().name == node.device();
            (nics.iter().position(there).unwrap_or(0), Some(Arc::clone(node)), None)
        });
        let groups: Vec<Group> = (0..)
            .zip(of_host.chain(of_nodes))
            .map(|(index, (nic, node, local))| Group {
                nic,
                first: index * count,
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
            })
            .collect();
        let all = groups.len() as u32 * count;
        let mut queues = Self {
            groups,
            doorbells: Vec::new(),
            local_homes,
            nics: nics.to_vec(),
            arena,
            pairs: Vec::new(),
            states: DeviceArray::zeroed(gpu, u64::from(all) + 1)
                .doing(|| "allocating the states of queue pairs".into())?,
            table: table(gpu, all + 1)?,
            depth,
            frame_keys: (0..nics.len()).map(|nic| frames.keys_of(nic)).collect(),
            flush_reads,
            collapsed,
            proxied: 0,
            resetting: Mutex::default(),
            mended: AtomicU64::new(0),
            patience_ns: u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX),
            guarded,
            spoke_again: AtomicBool::new(false),
            next_search_ns: AtomicU64::new(0),
        };
        for nic in nics.iter().filter(|nic| nic.capabilities().has_mover) {
            let reached = reach_doorbells(gpu, &**nic);
            queues
                .doorbells
                .extend(reached.doing(|| "letting kernels reach the NIC's doorbells".to_owned())?);
        }
        let hardware = gpu.capabilities().compute_capability.is_some();
        for index in 0..all {
            let pair = queues.create_pair(gpu, &queues.groups[(index / count) as usize], index)?;
            let (nic, number) = (Arc::clone(&pair.nic), pair.number);
            queues.pairs.push(pair);
            if hardware && !nic.capabilities().has_mover {
                queues.reach_doorbell(gpu, &*nic, number)?;
            }
        }
        for group in &queues.groups {
            if let Some(local) = &group.local {
                let pairs = group.indexes().map(|index| &queues.pairs[index as usize]);
                local.add_pairs(pairs.map(|pair| (Arc::clone(&pair.nic), pair.number)));
            }
        }
        queues.clear_software_state(gpu)?;
        queues.describe_nowhere(gpu)?;
        for group in &queues.groups {
            queues.connect(gpu, group)?;
        }
        Ok(queues)
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

    /// Takes the reset queue pairs of a group to ready and describes them to the GPU.
    fn connect(&self, gpu: &dyn Gpu, group: &Group) -> Result<()> {
        group.links().clear();
        for index in group.indexes() {
            let link = self.connect_one(gpu, group, index, 0)?;
            group.links().push(link);
        }
        Ok(())
    }

    /// The same for one queue pair, whose next request is `next`.
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

    /// Groups of queue pairs.
    pub fn group_count(&self) -> u32 {
        self.groups.len() as u32
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

    /// Takes every queue pair through reset to ready again. No kernel may run. Requests in flight are dropped. Queue pairs
    /// whose node is lost stay in the error state: what they reach cannot be served, everything else can.
    pub fn reset(&self, gpu: &dyn Gpu) -> Result<()> {
        let _resetting = self.lock_resetting();
        for group in &self.groups {
            match group.is_kept() {
                false => {
                    for index in group.indexes() {
                        self.pairs[index as usize].reset()?;
                        self.clear_pair(gpu, index, 0)?;
                    }
                    self.connect(gpu, group)?;
                    // Relaxed: see `say_lost`. This host's memory is there again once its pairs are.
                    group.lost.store(false, Ordering::Relaxed);
                }
                true => self.reset_kept(gpu, group)?,
            }
        }
        Ok(())
    }

    fn reset_kept(&self, gpu: &dyn Gpu, group: &Group) -> Result<()> {
        let _held = group.local.as_ref().map(|local| local.hold());
        // Relaxed: a count of whoever holds `resetting`.
        group.resets.fetch_add(1, Ordering::Relaxed);
        for turn in 0..group.count {
            self.clear_pair(gpu, group.first + turn, 0)?;
            // Relaxed: see `say_lost`.
            while !group.lost.load(Ordering::Relaxed) {
                if let Some(why) = group.failure() {
                    group.say_lost(&why);
                } else if self.mend(gpu, group, turn, 0).is_ok() {
                    break;
                }
            }
        }
        if group.lost.load(Ordering::Relaxed) {
            for index in group.indexes() {
                self.pairs[index as usize].reset()?;
                self.clear_pair(gpu, index, FAILED_BY_HOST)?;
            }
        }
        Ok(())
    }

    fn lock_resetting(&self) -> MutexGuard<'_, ()> {
        self.resetting.lock().unwrap_or_else(PoisonError::into_inner)
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

impl Queues {
    /// Lets a real GPU's lanes reach the doorbell of a queue pair, or a doorbell proxy's word where the GPU's driver refuses.
    fn reach_doorbell(&mut self, gpu: &dyn Gpu, nic: &dyn Nic, number: u32) -> Result<()> {
        // A driver maps whole pages of the host.
        let page = host_page_bytes();
        let doing = || format!("letting kernels reach the doorbell of queue pair {number:#x}");
        let known = |doorbells: &[Doorbells], doorbell: u64| {
            let mut spans = doorbells.iter().map(|pages| (pages.host, pages.registration.bytes()));
            spans.any(|(first, bytes)| doorbell.wrapping_sub(first) < bytes)
        };
        let doorbell = nic.queue_pair(number).doing(doing)?.doorbell;
        if known(&self.doorbells, doorbell) {
            return Ok(());
        }
        let host = doorbell / page * page;
        let first = std::ptr::with_exposed_provenance_mut(host as usize);
        // SAFETY: the register's page stays mapped as long as the queue pair, which `drop` destroys after the registration; all
        // access to it is by single stores.
        match unsafe { gpu.map_registers(first, page) } {
            Ok(registration) => {
                self.doorbells.push(Doorbells { host, registration });
                return Ok(());
            }
            Err(error) if self.proxied == 0 => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the GPU cannot ring the NIC: a thread of the processor does, which costs each request its way there"
            ),
            Err(_) => {}
        }
        self.proxied += 1;
        let doorbell = nic.use_doorbell_proxy(number).doing(doing)?.doorbell;
        if known(&self.doorbells, doorbell) {
            return Ok(());
        }
        let words = nic.doorbell_pages().into_iter();
        let mut words = words.filter(|(first, bytes)| doorbell.wrapping_sub(*first) < *bytes);
        let (host, bytes) = words.next().unwrap_or((doorbell / page * page, page));
        self.doorbells.push(reach_pages(gpu, host, bytes).doing(doing)?);
        Ok(())
    }

    /// Whether READs are flushed.
    pub fn flushes_reads(&self) -> bool {
        self.flush_reads
    }

    /// Queue pairs that a doorbell proxy rings for.
    pub fn proxied(&self) -> u32 {
        self.proxied
    }
}

/// Registers pages of doorbells that are memory of this process with the GPU.
fn reach_pages(gpu: &dyn Gpu, host: u64, bytes: u64) -> Result<Doorbells, GpuError> {
    let first = std::ptr::with_exposed_provenance_mut(host as usize);
    // SAFETY: the pages live as long as the NIC, which outlives the registration; all access to them is atomic.
    let registration = unsafe { gpu.register_host(first, bytes, false)? };
    Ok(Doorbells { host, registration })
}

/// Registers the NIC's doorbell pages with the GPU.
fn reach_doorbells(gpu: &dyn Gpu, nic: &dyn Nic) -> Result<Vec<Doorbells>, GpuError> {
    let reach = |(host, bytes): (u64, u64)| reach_pages(gpu, host, bytes);
    nic.doorbell_pages().into_iter().map(reach).collect()
}

fn table(gpu: &dyn Gpu, count: u32) -> Result<DeviceArray<QueueDesc>> {
    DeviceArray::zeroed(gpu, u64::from(count)).doing(|| "allocating the table of queue pairs".into())
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
