//! Memory of rings for NICs that do not make their own.

use gpuvm_gpu::{Gpu, GpuError, HostMemory};
use gpuvm_nic::QueueMemory;

use crate::device::DeviceArray;

/// Rings for a NIC that does not make its own.
pub(super) enum GivenRings {
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
    pub(super) fn allocate(gpu: &dyn Gpu, blocks: u32, split: bool) -> Result<Self, GpuError> {
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
    pub(super) fn memory(&self, blocks: u32, collapsed: bool) -> QueueMemory {
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
    pub(super) fn for_lanes(&self, address: u64) -> u64 {
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
pub(super) fn translate((host, bytes, device): (u64, u64, u64), address: u64) -> Option<u64> {
    let offset = address.checked_sub(host)?;
    (offset < bytes).then_some(device + offset)
}
