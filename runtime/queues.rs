//! The queue pairs of a virtual memory: rings that GPU threads fill, connected to the homes' side through the NIC.

use std::sync::Arc;

use gpuvm_gpu::Gpu;
use gpuvm_layouts::{self as layout, QueueDesc, QueueState, RequestRecord};
use gpuvm_nic::{Nic, QueueFormat, QueueMemory, QueuePair, QueueRings};

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

/// All queue pairs, and their table in device memory.
pub(crate) struct Queues {
    nic: Arc<dyn Nic>,
    pairs: Vec<Pair>,
    table: DeviceArray<QueueDesc>,
    depth: u32,
    /// Local key of the frames.
    lkey: u32,
}

impl Queues {
    /// `count` connected queue pairs of `depth` requests each. `lkey` is the frames'.
    pub fn create(gpu: &dyn Gpu, nic: Arc<dyn Nic>, count: u32, depth: u32, lkey: u32) -> Result<Self> {
        let mut queues = Self {
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
        queues.connect(gpu)?;
        Ok(queues)
    }

    /// Takes reset queue pairs to ready and describes them to the GPU.
    fn connect(&self, gpu: &dyn Gpu) -> Result<()> {
        for (index, pair) in self.pairs.iter().enumerate() {
            let number = pair.number;
            let doing = || format!("connecting queue pair {number:#x}");
            let ready = self.nic.queue_pair(number).doing(doing)?;
            self.table
                .write(gpu, index as u64, &[self.describe(pair, &ready)])
                .doing(doing)?;
            // Loopback: the pair answers its own requests from the memory that regions register.
            self.nic.connect(number, number).doing(doing)?;
        }
        self.clear_software_state(gpu)
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

    /// Takes every queue pair through reset to ready again. No kernel may run. Requests in flight are dropped.
    pub fn reset(&self, gpu: &dyn Gpu) -> Result<()> {
        for pair in &self.pairs {
            let number = pair.number;
            self.nic
                .reset(number)
                .doing(|| format!("resetting queue pair {number:#x}"))?;
        }
        self.connect(gpu)
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
