//! The queue pairs of a virtual memory: rings that GPU threads fill, connected to the homes' side through the NIC.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use gpuvm_gpu::{Gpu, GpuError, HostMemory, HostRegistration};
use gpuvm_layouts::{self as layout, QueueDesc, QueueState, RequestRecord};
use gpuvm_memory_node::{JoinQueue, NodeClient, QueueLink};
use gpuvm_nic::{Nic, QueueAttributes, QueueFormat, QueueMemory, QueuePair, QueueRings};

use crate::{
    device::{DeviceArray, zero},
    error::{Doing, Result},
};

mod mending;

pub(crate) use mending::Keeper;

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
    fn allocate(gpu: &dyn Gpu, depth: u32, split: bool) -> Result<Self, GpuError> {
        let completion = DeviceArray::zeroed(gpu, u64::from(depth))?;
        if split {
            let bytes = send_bytes(depth) + size_of::<Records>() as u64;
            let posted = gpu.allocate_host(bytes)?;
            return Ok(Self::Split { posted, completion });
        }
        Ok(Self::Device {
            send: DeviceArray::zeroed(gpu, u64::from(depth))?,
            completion,
            doorbell_records: DeviceArray::zeroed(gpu, 1)?,
        })
    }

    /// As the NIC names it.
    fn memory(&self, depth: u32) -> QueueMemory {
        let (sq, cq, records) = match self {
            Self::Device {
                send,
                completion,
                doorbell_records,
            } => (send.addr(), completion.addr(), doorbell_records.addr()),
            Self::Split { posted, completion } => {
                let first = posted.host_ptr().expose_provenance() as u64;
                (first, completion.addr(), first + send_bytes(depth))
            }
        };
        QueueMemory {
            sq,
            sq_entries: depth,
            cq,
            cq_entries: depth,
            dbrec: records,
            cq_dbrec: records + 8,
            collapsed: false,
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

fn send_bytes(depth: u32) -> u64 {
    u64::from(depth) * 64
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
    number: u32,
    /// Kept while the queue pair lives.
    rings: Option<GivenRings>,
    memory: PairMemory,
}

/// State and records of a queue pair.
enum PairMemory {
    /// In device memory.
    Device {
        state: DeviceArray<QueueState>,
        records: DeviceArray<RequestRecord>,
    },
    /// In memory that the host reaches too, while kernels run, since it mends the pair: the state, then the records.
    Shared(HostMemory),
}

impl PairMemory {
    fn allocate(gpu: &dyn Gpu, depth: u32, shared: bool) -> Result<Self, GpuError> {
        let records = u64::from(depth);
        if shared {
            let bytes = size_of::<QueueState>() as u64 + records * size_of::<RequestRecord>() as u64;
            return Ok(Self::Shared(gpu.allocate_host(bytes)?));
        }
        Ok(Self::Device {
            state: DeviceArray::zeroed(gpu, 1)?,
            records: DeviceArray::zeroed(gpu, records)?,
        })
    }

    fn state_addr(&self) -> u64 {
        match self {
            Self::Device { state, .. } => state.addr(),
            Self::Shared(memory) => memory.device_addr(),
        }
    }

    fn records_addr(&self) -> u64 {
        match self {
            Self::Device { records, .. } => records.addr(),
            Self::Shared(memory) => memory.device_addr() + size_of::<QueueState>() as u64,
        }
    }

    /// Sets everything. No kernel may run.
    fn write(&self, gpu: &dyn Gpu, state: QueueState, records: &[RequestRecord]) -> Result<(), GpuError> {
        match self {
            Self::Device {
                state: to,
                records: to_records,
            } => {
                to.write(gpu, 0, &[state])?;
                to_records.write(gpu, 0, records)
            }
            Self::Shared(memory) => {
                // SAFETY: the allocation holds the state and as many records as the queue is deep, page-aligned; nobody
                // else touches it now.
                unsafe {
                    memory.host_ptr().cast::<QueueState>().write(state);
                    let to = memory.host_ptr().add(size_of::<QueueState>()).cast::<RequestRecord>();
                    to.copy_from_nonoverlapping(records.as_ptr(), records.len());
                }
                Ok(())
            }
        }
    }
}

/// Queue pairs that reach the same homes.
struct Group {
    first: u32,
    count: u32,
    /// The node that they reach, and this host's memory without one.
    node: Option<Arc<NodeClient>>,
    /// The connections to the node, one a queue pair; none while a pair is mended.
    links: Mutex<Vec<Option<QueueLink>>>,
    /// The node does not come back: its queue pairs were given up.
    lost: AtomicBool,
    /// Tries in a row to mend a queue pair that failed.
    tries: AtomicU32,
}

impl Group {
    fn links(&self) -> MutexGuard<'_, Vec<Option<QueueLink>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue pair of a NIC, for the connection manager.
struct Joining<'a> {
    nic: &'a dyn Nic,
    number: u32,
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
    /// Given back before the NIC, whose pages they are. None where lanes reach the NIC's doorbells as it is.
    doorbells: Vec<Doorbells>,
    nic: Arc<dyn Nic>,
    pairs: Vec<Pair>,
    table: DeviceArray<QueueDesc>,
    depth: u32,
    /// Local key of the frames.
    lkey: u32,
    /// Held by whoever takes queue pairs through reset.
    resetting: Mutex<()>,
    /// Queue pairs mended while kernels ran.
    mended: AtomicU64,
}

impl Queues {
    /// Connected queue pairs of `depth` requests each: `count` that reach this host's memory, and as many for each node.
    /// `lkey` is the frames'.
    pub fn create(
        gpu: &dyn Gpu,
        nic: Arc<dyn Nic>,
        nodes: &[Arc<NodeClient>],
        count: u32,
        depth: u32,
        lkey: u32,
    ) -> Result<Self> {
        let homes = std::iter::once(None).chain(nodes.iter().cloned().map(Some));
        let groups: Vec<Group> = (0..)
            .zip(homes)
            .map(|(index, node)| Group {
                first: index * count,
                count,
                node,
                links: Mutex::default(),
                lost: AtomicBool::new(false),
                tries: AtomicU32::new(0),
            })
            .collect();
        let count = groups.len() as u32 * count;
        let doing = || "letting kernels reach the NIC's doorbells".to_owned();
        let split = nic.capabilities().has_mover;
        let doorbells = match split {
            true => reach_doorbells(gpu, &*nic).doing(doing)?,
            false => Vec::new(),
        };
        let mut queues = Self {
            groups,
            doorbells,
            nic,
            pairs: Vec::new(),
            table: table(gpu, count)?,
            depth,
            lkey,
            resetting: Mutex::default(),
            mended: AtomicU64::new(0),
        };
        for index in 0..count {
            let doing = || format!("creating queue pair {index}");
            let rings = match queues.nic.capabilities().makes_rings {
                true => None,
                false => Some(GivenRings::allocate(gpu, depth, split).doing(doing)?),
            };
            let group = &queues.groups[(index / queues.groups[0].count) as usize];
            let memory = PairMemory::allocate(gpu, depth, group.node.is_some()).doing(doing)?;
            let wanted = match &rings {
                Some(rings) => QueueRings::Given(rings.memory(depth)),
                None => QueueRings::Own { depth },
            };
            // SAFETY: given rings stay allocated in `self.pairs`, which `drop` empties only after
            // `destroy_queue_pair` returned Ok (else it leaks them). Kernels reach all rings by atomics alone, and none
            // after that.
            let pair = unsafe { queues.nic.create_queue_pair(wanted) }.doing(doing)?;
            queues.pairs.push(Pair {
                number: pair.number,
                rings,
                memory,
            });
        }
        queues.clear_software_state(gpu)?;
        for group in &queues.groups {
            queues.connect(gpu, group)?;
        }
        Ok(queues)
    }

    /// Takes the reset queue pairs of a group to ready and describes them to the GPU.
    fn connect(&self, gpu: &dyn Gpu, group: &Group) -> Result<()> {
        group.links().clear();
        for index in group.first..group.first + group.count {
            let link = self.connect_one(gpu, group, index, 0)?;
            group.links().push(link);
        }
        Ok(())
    }

    /// The same for one queue pair, whose next request is `next`.
    fn connect_one(&self, gpu: &dyn Gpu, group: &Group, index: u32, next: u64) -> Result<Option<QueueLink>> {
        self.describe_one(gpu, group, index, next)?;
        let number = self.pairs[index as usize].number;
        let doing = || format!("connecting queue pair {number:#x}");
        match &group.node {
            // Loopback: the pair answers its own requests from the memory that regions register.
            None => self.nic.connect(number, number).doing(doing).map(|()| None),
            Some(node) => {
                let nic = &*self.nic;
                node.connect_queue(&Joining { nic, number }).doing(doing).map(Some)
            }
        }
    }

    /// First queue pair of a group, and how many there are: group 0 reaches this host's memory, the others the nodes.
    pub fn group(&self, index: usize) -> (u32, u32) {
        let group = &self.groups[index];
        (group.first, group.count)
    }

    /// Groups of queue pairs.
    pub fn group_count(&self) -> u32 {
        self.groups.len() as u32
    }

    /// Tells the GPU of a queue pair that was reset.
    fn describe_one(&self, gpu: &dyn Gpu, group: &Group, index: u32, next: u64) -> Result<()> {
        let pair = &self.pairs[index as usize];
        let doing = || format!("describing queue pair {:#x}", pair.number);
        let ready = self.nic.queue_pair(pair.number).doing(doing)?;
        let desc = self.describe(pair, &ready, next, group.node.is_some());
        self.table.write(gpu, u64::from(index), &[desc]).doing(doing)
    }

    /// The queue pair for the GPU. Its rings stand where request `next` begins.
    fn describe(&self, pair: &Pair, ready: &QueuePair, next: u64, mended: bool) -> QueueDesc {
        // Indexes count on, ring positions wrap: both rings have a power of two of slots.
        let for_lanes = |address| pair.rings.as_ref().map_or(address, |rings| rings.for_lanes(address));
        let mut doorbells = self.doorbells.iter();
        let doorbell = doorbells.find_map(|pages| {
            let span = (pages.host, pages.registration.bytes(), pages.registration.device_addr());
            translate(span, ready.doorbell)
        });
        // What a lane adds to an index to have its place: all of it where the NIC counts further than the ring is long.
        let start = |ring: &gpuvm_nic::RingSpan| match ready.format {
            QueueFormat::Mlx5 => ring.start.wrapping_sub(next as u32),
            QueueFormat::Rxe => ring.start.wrapping_sub(next as u32) & (ring.slots - 1),
        };
        QueueDesc {
            kind: match ready.format {
                QueueFormat::Mlx5 => layout::QUEUE_KIND_MLX5,
                QueueFormat::Rxe => layout::QUEUE_KIND_RXE,
            },
            number: ready.number,
            send_ring: for_lanes(ready.send.address),
            completion_ring: ready.completion.address,
            doorbell_record: for_lanes(ready.doorbell_record),
            doorbell: doorbell.unwrap_or(ready.doorbell),
            mask: self.depth - 1,
            send_mask: ready.send.slots - 1,
            completion_mask: ready.completion.slots - 1,
            send_shift: ready.send.shift,
            completion_shift: ready.completion.shift,
            send_start: start(&ready.send),
            completion_start: start(&ready.completion),
            lkey: self.lkey,
            state: pair.memory.state_addr(),
            records: pair.memory.records_addr(),
            completion_produced: ready.completion_produced,
            completion_consumed: ready.completion_consumed,
            mended: u32::from(mended),
            ..zero()
        }
    }

    /// Indexes at 0, every slot free for the request of its own number.
    fn clear_software_state(&self, gpu: &dyn Gpu) -> Result<()> {
        self.pairs.iter().try_for_each(|pair| self.clear_pair(gpu, pair, 0))
    }

    fn clear_pair(&self, gpu: &dyn Gpu, pair: &Pair, failed: u32) -> Result<()> {
        let records: Vec<RequestRecord> = (0..u64::from(self.depth))
            .map(|slot| RequestRecord {
                state: slot << layout::RECORD_INDEX_SHIFT | layout::RECORD_FREE,
                ..zero()
            })
            .collect();
        let state = QueueState { failed, ..zero() };
        let written = pair.memory.write(gpu, state, &records);
        written.doing(|| "clearing queue pairs".to_owned())
    }

    /// Takes every queue pair through reset to ready again. No kernel may run. Requests in flight are dropped. Queue pairs
    /// whose node is lost stay in the error state: what they reach cannot be served, everything else can.
    pub fn reset(&self, gpu: &dyn Gpu) -> Result<()> {
        let _resetting = self.lock_resetting();
        for group in &self.groups {
            match &group.node {
                None => {
                    for pair in self.pairs_of(group) {
                        self.reset_one(pair.number)?;
                        self.clear_pair(gpu, pair, 0)?;
                    }
                    self.connect(gpu, group)?;
                }
                Some(node) => self.reset_at_node(gpu, group, node)?,
            }
        }
        Ok(())
    }

    fn reset_at_node(&self, gpu: &dyn Gpu, group: &Group, node: &NodeClient) -> Result<()> {
        for turn in 0..group.count {
            let pair = &self.pairs[(group.first + turn) as usize];
            self.clear_pair(gpu, pair, 0)?;
            // Relaxed: see `say_lost`.
            while !group.lost.load(Ordering::Relaxed) {
                if let Some(why) = node.failure() {
                    group.say_lost(&why);
                } else if self.mend(gpu, group, turn, 0).is_ok() {
                    break;
                }
            }
        }
        if group.lost.load(Ordering::Relaxed) {
            for pair in self.pairs_of(group) {
                self.reset_one(pair.number)?;
                self.clear_pair(gpu, pair, FAILED_BY_HOST)?;
            }
        }
        Ok(())
    }

    fn reset_one(&self, number: u32) -> Result<()> {
        let reset = self.nic.reset(number);
        reset.doing(|| format!("resetting queue pair {number:#x}"))
    }

    fn lock_resetting(&self) -> MutexGuard<'_, ()> {
        self.resetting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pairs_of(&self, group: &Group) -> &[Pair] {
        &self.pairs[group.first as usize..(group.first + group.count) as usize]
    }

    /// Whether a queue pair that nobody mends completed a request with an error since the last reset.
    pub fn any_failed(&self, gpu: &dyn Gpu) -> Result<bool> {
        for pair in &self.pairs {
            if let PairMemory::Device { state, .. } = &pair.memory {
                let state = state.read(gpu, 0, 1).doing(|| "reading queue pairs".into())?;
                if state[0].failed != 0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
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

/// Registers the NIC's doorbell pages with the GPU.
fn reach_doorbells(gpu: &dyn Gpu, nic: &dyn Nic) -> Result<Vec<Doorbells>, GpuError> {
    let reach = |(host, bytes): (u64, u64)| {
        let first = std::ptr::with_exposed_provenance_mut(host as usize);
        // SAFETY: the pages live as long as the NIC, which outlives the registration; all access to them is atomic.
        let registration = unsafe { gpu.register_host(first, bytes, false)? };
        Ok(Doorbells { host, registration })
    };
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
        for pair in self.pairs.drain(..) {
            if let Err(error) = self.nic.destroy_queue_pair(pair.number) {
                tracing::error!(%error, "a queue pair could not be destroyed; its rings are leaked");
                std::mem::forget(pair);
            }
        }
    }
}
