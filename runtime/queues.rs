//! The queue pairs of a virtual memory: rings in GPU memory, connected to the homes' side through the NIC.

use std::sync::Arc;

use gpuvm_gpu::Gpu;
use gpuvm_layouts::{self as layout, QueueDesc, QueueState, RequestRecord};
use gpuvm_nic::{Nic, QueueMemory, QueuePair};

use crate::{
    device::{DeviceArray, zero},
    error::{Doing, Result},
};

/// One queue pair's memory and number.
struct Pair {
    pair: QueuePair,
    send_ring: DeviceArray<[u64; 8]>,
    completion_ring: DeviceArray<[u64; 8]>,
    /// [0], [1]: the pair's record (receive, send); [2], [3]: the completion queue's.
    doorbell_records: DeviceArray<[u32; 16]>,
    state: DeviceArray<QueueState>,
    records: DeviceArray<RequestRecord>,
}

/// All queue pairs, and their table in device memory.
pub(crate) struct Queues {
    nic: Arc<dyn Nic>,
    pairs: Vec<Pair>,
    table: DeviceArray<QueueDesc>,
    depth: u32,
}

impl Queues {
    /// `count` connected queue pairs of `depth` requests each. `lkey` is the frames'.
    pub fn create(gpu: &dyn Gpu, nic: Arc<dyn Nic>, count: u32, depth: u32, lkey: u32) -> Result<Self> {
        let mut queues = Self {
            nic,
            pairs: Vec::new(),
            table: table(gpu, count)?,
            depth,
        };
        for index in 0..count {
            let doing = || format!("creating queue pair {index}");
            let send_ring = DeviceArray::zeroed(gpu, u64::from(depth)).doing(doing)?;
            let completion_ring = DeviceArray::zeroed(gpu, u64::from(depth)).doing(doing)?;
            let doorbell_records = DeviceArray::<[u32; 16]>::zeroed(gpu, 1).doing(doing)?;
            let state = DeviceArray::zeroed(gpu, 1).doing(doing)?;
            let records = DeviceArray::zeroed(gpu, u64::from(depth)).doing(doing)?;
            let memory = QueueMemory {
                sq: send_ring.addr(),
                sq_entries: depth,
                cq: completion_ring.addr(),
                cq_entries: depth,
                dbrec: doorbell_records.addr(),
                cq_dbrec: doorbell_records.addr() + 8,
                collapsed: false,
            };
            // SAFETY: the rings and records stay allocated in `self.pairs`, which `drop` empties only after
            // `destroy_queue_pair` returned Ok (else it leaks them). Kernels reach them by atomics alone.
            let pair = unsafe { queues.nic.create_queue_pair(memory) }.doing(doing)?;
            queues.pairs.push(Pair {
                pair,
                send_ring,
                completion_ring,
                doorbell_records,
                state,
                records,
            });
        }
        for pair in &queues.pairs {
            // Loopback: the pair answers its own requests from the memory that regions register.
            queues
                .nic
                .connect(pair.pair.number, pair.pair.number)
                .doing(|| "connecting queue pairs".into())?;
        }
        queues.write(gpu, lkey)?;
        Ok(queues)
    }

    fn write(&self, gpu: &dyn Gpu, lkey: u32) -> Result<()> {
        for (index, pair) in self.pairs.iter().enumerate() {
            let desc = QueueDesc {
                kind: layout::QUEUE_KIND_MLX5,
                number: pair.pair.number,
                send_ring: pair.send_ring.addr(),
                completion_ring: pair.completion_ring.addr(),
                // The send half of the pair's record.
                doorbell_record: pair.doorbell_records.addr() + 4,
                doorbell: pair.pair.doorbell,
                mask: self.depth - 1,
                completion_mask: self.depth - 1,
                lkey,
                state: pair.state.addr(),
                records: pair.records.addr(),
                ..zero()
            };
            self.table
                .write(gpu, index as u64, &[desc])
                .doing(|| "describing queue pairs".into())?;
        }
        self.clear_software_state(gpu)
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
            let number = pair.pair.number;
            self.nic
                .reset(number)
                .doing(|| format!("resetting queue pair {number:#x}"))?;
        }
        self.clear_software_state(gpu)?;
        for pair in &self.pairs {
            let number = pair.pair.number;
            self.nic
                .connect(number, number)
                .doing(|| format!("connecting queue pair {number:#x} again"))?;
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
            if let Err(error) = self.nic.destroy_queue_pair(pair.pair.number) {
                tracing::error!(%error, "a queue pair could not be destroyed; its rings are leaked");
                std::mem::forget(pair);
            }
        }
    }
}
