//! The queue pairs of a virtual memory: rings that GPU threads fill, connected to the homes' side through the NIC.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuvm_gpu::Gpu;
use gpuvm_layouts::{self as layout, QueueDesc, QueueState, RequestRecord};
use gpuvm_memory_node::{JoinQueue, NodeClient, QueueLink};
use gpuvm_nic::{Nic, QueueAttributes, QueueFormat, QueueMemory, QueuePair, QueueRings};

use crate::{
    device::{DeviceArray, zero},
    error::{Doing, Result},
};

/// Rings in GPU memory, for a NIC that does not make its own.
struct GivenRings {
    send: DeviceArray<[u64; 8]>,
    completion: DeviceArray<[u64; 8]>,
    /// [0], [1]: the pair's record (receive, send); [2], [3]: the completion queue's.
    doorbell_records: DeviceArray<[u32; 16]>,
}

impl GivenRings {
    fn allocate(gpu: &dyn Gpu, depth: u32) -> Result<Self, gpuvm_gpu::GpuError> {
        Ok(Self {
            send: DeviceArray::zeroed(gpu, u64::from(depth))?,
            completion: DeviceArray::zeroed(gpu, u64::from(depth))?,
            doorbell_records: DeviceArray::zeroed(gpu, 1)?,
        })
    }

    fn memory(&self, depth: u32) -> QueueMemory {
        QueueMemory {
            sq: self.send.addr(),
            sq_entries: depth,
            cq: self.completion.addr(),
            cq_entries: depth,
            dbrec: self.doorbell_records.addr(),
            cq_dbrec: self.doorbell_records.addr() + 8,
            collapsed: false,
        }
    }
}

/// One queue pair's memory and number.
struct Pair {
    number: u32,
    /// Kept while the queue pair lives.
    _rings: Option<GivenRings>,
    state: DeviceArray<QueueState>,
    records: DeviceArray<RequestRecord>,
}

/// Queue pairs that reach the same homes.
struct Group {
    first: u32,
    count: u32,
    /// The node that they reach, and this host's memory without one.
    node: Option<Arc<NodeClient>>,
    /// The connections to the node, one a queue pair.
    links: Mutex<Vec<QueueLink>>,
}

impl Group {
    fn links(&self) -> MutexGuard<'_, Vec<QueueLink>> {
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
const FAILED_BY_HOST: u32 = 1 | 0x15 << 8 | 0xff << 16;

/// All queue pairs, and their table in device memory.
pub(crate) struct Queues {
    // Dropped first: connections end before the queue pairs that joined them.
    groups: Vec<Group>,
    nic: Arc<dyn Nic>,
    pairs: Vec<Pair>,
    table: DeviceArray<QueueDesc>,
    depth: u32,
    /// Local key of the frames.
    lkey: u32,
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
            })
            .collect();
        let count = groups.len() as u32 * count;
        let mut queues = Self {
            groups,
            nic,
            pairs: Vec::new(),
            table: table(gpu, count)?,
            depth,
            lkey,
        };
        for index in 0..count {
            let doing = || format!("creating queue pair {index}");
            let rings = match queues.nic.capabilities().makes_rings {
                true => None,
                false => Some(GivenRings::allocate(gpu, depth).doing(doing)?),
            };
            let state = DeviceArray::zeroed(gpu, 1).doing(doing)?;
            let records = DeviceArray::zeroed(gpu, u64::from(depth)).doing(doing)?;
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
                _rings: rings,
                state,
                records,
            });
        }
        queues.clear_software_state(gpu)?;
        for group in &queues.groups {
            queues.connect(gpu, group)?;
        }
        Ok(queues)
    }

    /// Takes reset queue pairs to ready and describes them to the GPU.
    fn connect(&self, gpu: &dyn Gpu, group: &Group) -> Result<()> {
        for index in group.first..group.first + group.count {
            let pair = &self.pairs[index as usize];
            let number = pair.number;
            let doing = || format!("connecting queue pair {number:#x}");
            let ready = self.nic.queue_pair(number).doing(doing)?;
            self.table
                .write(gpu, u64::from(index), &[self.describe(pair, &ready)])
                .doing(doing)?;
            match &group.node {
                // Loopback: the pair answers its own requests from the memory that regions register.
                None => self.nic.connect(number, number).doing(doing)?,
                Some(node) => {
                    let nic = &*self.nic;
                    let link = node.connect_queue(&Joining { nic, number }).doing(doing)?;
                    group.links().push(link);
                }
            }
        }
        Ok(())
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

    fn describe(&self, pair: &Pair, ready: &QueuePair) -> QueueDesc {
        QueueDesc {
            kind: match ready.format {
                QueueFormat::Mlx5 => layout::QUEUE_KIND_MLX5,
                QueueFormat::Rxe => layout::QUEUE_KIND_RXE,
            },
            number: ready.number,
            send_ring: ready.send.address,
            completion_ring: ready.completion.address,
            doorbell_record: ready.doorbell_record,
            doorbell: ready.doorbell,
            mask: self.depth - 1,
            send_mask: ready.send.slots - 1,
            completion_mask: ready.completion.slots - 1,
            send_shift: ready.send.shift,
            completion_shift: ready.completion.shift,
            send_start: ready.send.start,
            completion_start: ready.completion.start,
            lkey: self.lkey,
            state: pair.state.addr(),
            records: pair.records.addr(),
            completion_produced: ready.completion_produced,
            completion_consumed: ready.completion_consumed,
            ..zero()
        }
    }

    /// Indexes at 0, every slot free for the request of its own number.
    fn clear_software_state(&self, gpu: &dyn Gpu) -> Result<()> {
        let records: Vec<RequestRecord> = (0..u64::from(self.depth))
            .map(|slot| RequestRecord {
                state: slot << layout::RECORD_INDEX_SHIFT | layout::RECORD_FREE,
                ..zero()
            })
            .collect();
        for pair in &self.pairs {
            let doing = || "clearing queue pairs".to_owned();
            pair.state.write(gpu, 0, &[zero()]).doing(doing)?;
            pair.records.write(gpu, 0, &records).doing(doing)?;
        }
        Ok(())
    }

    /// Takes every queue pair through reset to ready again. No kernel may run. Requests in flight are dropped. Queue pairs
    /// whose node is lost stay in the error state: what they reach cannot be served, everything else can.
    pub fn reset(&self, gpu: &dyn Gpu) -> Result<()> {
        for group in &self.groups {
            group.links().clear();
        }
        for pair in &self.pairs {
            let number = pair.number;
            self.nic
                .reset(number)
                .doing(|| format!("resetting queue pair {number:#x}"))?;
        }
        self.clear_software_state(gpu)?;
        for group in &self.groups {
            match (self.connect(gpu, group), &group.node) {
                (Err(error), Some(node)) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "memory node {} is lost",
                        node.address()
                    );
                    self.fail(gpu, group)?;
                }
                (connected, _) => connected?,
            }
        }
        Ok(())
    }

    /// Keeps lanes from posting to a group's queue pairs.
    fn fail(&self, gpu: &dyn Gpu, group: &Group) -> Result<()> {
        let failed = QueueState {
            failed: FAILED_BY_HOST,
            ..zero()
        };
        for pair in &self.pairs[group.first as usize..(group.first + group.count) as usize] {
            pair.state
                .write(gpu, 0, &[failed])
                .doing(|| "giving queue pairs up".into())?;
        }
        Ok(())
    }

    /// Whether any queue pair completed a request with an error since the last reset.
    pub fn any_failed(&self, gpu: &dyn Gpu) -> Result<bool> {
        for pair in &self.pairs {
            let state = pair.state.read(gpu, 0, 1).doing(|| "reading queue pairs".into())?;
            if state[0].failed != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub fn table_addr(&self) -> u64 {
        self.table.addr()
    }

    pub fn count(&self) -> u32 {
        self.pairs.len() as u32
    }
}

fn table(gpu: &dyn Gpu, count: u32) -> Result<DeviceArray<QueueDesc>> {
    DeviceArray::zeroed(gpu, u64::from(count)).doing(|| "allocating the table of queue pairs".into())
}

impl Drop for Queues {
    fn drop(&mut self) {
        for pair in self.pairs.drain(..) {
            if let Err(error) = self.nic.destroy_queue_pair(pair.number) {
                tracing::error!(%error, "a queue pair could not be destroyed; its rings are leaked");
                std::mem::forget(pair);
            }
        }
    }
}
