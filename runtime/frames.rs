//! Memory for frames, registered with the NICs where there are any.

mod units;

use std::{fmt, mem::ManuallyDrop, ops::Range, os::fd::AsFd, sync::Arc};

use gpuvm_gpu::{Capabilities, DeviceMemory, Gpu, HostMemory};
use gpuvm_layouts::FRAME_KEY_BYTES;
use gpuvm_nic::{Access, MemoryKey, Nic, host_page_bytes};

use crate::{
    device::DeviceArray,
    error::{Doing, Error, Result},
    handles::Handles,
};

pub(crate) use units::{FrameUnits, unit_bytes};

/// How the NICs reach the frames. Each is tried in this order where a NIC of the machine serves a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FrameAccess {
    /// No NIC does: lanes copy the pages themselves.
    Lanes,
    /// By their addresses: they are memory of this process, or a software NIC's mover, or its engine on the GPU, knows them.
    Address,
    /// GPUDirect over dma-bufs of the GPU's memory.
    DmaBuf,
    /// GPUDirect over the module nvidia-peermem.
    PeerMemory,
    /// The frames lie in pinned host memory: the NIC cannot reach the GPU's.
    HostMemory,
}

impl FrameAccess {
    /// Whether a NIC of the machine writes into the GPU's own memory.
    pub const fn is_gpu_direct(self) -> bool {
        matches!(self, Self::DmaBuf | Self::PeerMemory)
    }
}

impl fmt::Display for FrameAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lanes => "GPU memory, which no NIC reaches",
            Self::Address => "GPU memory, registered by address",
            Self::DmaBuf => "GPU memory, registered as dma-bufs",
            Self::PeerMemory => "GPU memory, registered through nvidia-peermem",
            Self::HostMemory => "pinned host memory",
        })
    }
}

/// Frames that follow each other: those of the virtual memory, or those of one region.
pub(crate) struct FrameMemory {
    memory: ManuallyDrop<Memory>,
    /// One a NIC.
    registrations: Vec<Registration>,
    access: FrameAccess,
}

enum Memory {
    Device(DeviceMemory),
    Host(HostMemory),
    /// More or less of it, as time goes by.
    Units(FrameUnits),
}

/// Frames whose number changes.
pub(crate) struct Changing<'a> {
    pub handles: &'a Arc<Handles>,
    /// Most frames that there may be.
    pub capacity: u64,
}

impl Memory {
    fn addr(&self) -> u64 {
        match self {
            Self::Device(memory) => memory.addr(),
            Self::Host(memory) => memory.device_addr(),
            Self::Units(units) => units.addr(),
        }
    }
}

/// What one NIC knows of the frames.
struct Registration {
    nic: Arc<dyn Nic>,
    keys: Vec<MemoryKey>,
    /// The local key of each `FRAME_KEY_BYTES` of the frames, for lanes.
    table: DeviceArray<u32>,
}

/// Keys that were made, and are taken back unless all went well.
struct Keys<'a> {
    nic: &'a dyn Nic,
    made: Vec<MemoryKey>,
}

impl Drop for Keys<'_> {
    fn drop(&mut self) {
        for key in self.made.drain(..) {
            if let Err(error) = self.nic.deregister(key) {
                tracing::error!(%error, "frames stay registered with the NIC");
            }
        }
    }
}

impl FrameMemory {
    /// `count` frames, at least one, of `page_size` bytes, reached in the first way that works; with `changing` more or fewer later.
    pub fn choose(
        gpu: &dyn Gpu,
        nics: &[Arc<dyn Nic>],
        count: u64,
        page_size: u64,
        changing: Option<Changing<'_>>,
    ) -> Result<Self> {
        let hardware = gpu.capabilities().compute_capability.is_some();
        let only = if nics.is_empty() {
            Some(FrameAccess::Lanes)
        } else if !hardware
            || nics
                .iter()
                .map(|nic| nic.capabilities())
                .all(|able| able.has_mover || able.on_gpu)
        {
            Some(FrameAccess::Address)
        } else {
            None
        };
        if let Some(Changing { handles, capacity }) = changing {
            let Some(access) = only else {
                return Err(Error::Setting {
                    setting: "frame capacity",
                    value: format!("{capacity} frames"),
                    reason: "a NIC of this machine has registered the frames, which then cannot change: leave frame_capacity out".into(),
                });
            };
            let units = FrameUnits::new(gpu, handles, page_size, count * page_size, capacity * page_size)?;
            return Self::of(gpu, nics, Memory::Units(units), capacity * page_size, access);
        }
        if let Some(access) = only {
            return Self::new(gpu, nics, count, page_size, access);
        }
        let mut refused = None;
        for access in [FrameAccess::DmaBuf, FrameAccess::PeerMemory, FrameAccess::HostMemory] {
            match Self::new(gpu, nics, count, page_size, access) {
                Ok(frames) => {
                    tracing::info!("frames: {access}");
                    return Ok(frames);
                }
                // Another way needs no less memory.
                Err(error) if error.is_out_of_memory() => return Err(error),
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "frames cannot be {access}");
                    refused = Some(error);
                }
            }
        }
        Err(refused.expect("three ways were tried, and each that failed left its error"))
    }

    /// Allocates frames that NICs reach by `access`.
    pub fn new(gpu: &dyn Gpu, nics: &[Arc<dyn Nic>], count: u64, page_size: u64, access: FrameAccess) -> Result<Self> {
        let bytes = count.saturating_mul(page_size);
        let doing = || format!("allocating {count} frames");
        let memory = match access {
            FrameAccess::HostMemory => Memory::Host(gpu.allocate_host(bytes).doing(doing)?),
            FrameAccess::DmaBuf | FrameAccess::PeerMemory => {
                // A driver exports whole pages of the host.
                let (host_page, whole) = (host_page_bytes(), in_host_pages(bytes, host_page_bytes()));
                Memory::Device(gpu.allocate_for_nics(whole, page_size.max(host_page)).doing(doing)?)
            }
            FrameAccess::Lanes | FrameAccess::Address => Memory::Device(gpu.allocate(bytes, page_size).doing(doing)?),
        };
        Self::of(gpu, nics, memory, bytes, access)
    }

    /// Registers `bytes` bytes of memory with the NICs.
    fn of(gpu: &dyn Gpu, nics: &[Arc<dyn Nic>], memory: Memory, bytes: u64, access: FrameAccess) -> Result<Self> {
        let mut frames = Self {
            memory: ManuallyDrop::new(memory),
            registrations: Vec::new(),
            access,
        };
        for nic in nics {
            let registration = frames.register(gpu, nic, bytes)?;
            frames.registrations.push(registration);
        }
        Ok(frames)
    }

    fn register(&self, gpu: &dyn Gpu, nic: &Arc<dyn Nic>, bytes: u64) -> Result<Registration> {
        let doing = || "registering frames".to_owned();
        let mut keys = Keys {
            nic: &**nic,
            made: Vec::new(),
        };
        let start = match &*self.memory {
            Memory::Device(memory) => memory.addr(),
            Memory::Host(memory) => memory.host_ptr().expose_provenance() as u64,
            Memory::Units(units) => units.addr(),
        };
        for piece in pieces(bytes, self.access.is_gpu_direct()) {
            let (addr, length) = (start + piece.start, piece.end - piece.start);
            let key = match self.access {
                FrameAccess::DmaBuf => {
                    let whole = in_host_pages(length, host_page_bytes());
                    let exported = gpu.export_dma_buf(addr, whole).doing(doing)?;
                    nic.register_dma_buf(exported.fd.as_fd(), exported.offset, length, addr, Access::LOCAL_WRITE)
                        .doing(doing)?
                }
                // SAFETY: the frames stay allocated until `drop` has deregistered them (else they are leaked), and
                // kernels and host reach them by raw addresses only.
                _ => unsafe { nic.register(addr, length, Access::LOCAL_WRITE).doing(doing)? },
            };
            keys.made.push(key);
        }
        let of_piece = |number: u64| keys.made[number.min(keys.made.len() as u64 - 1) as usize].lkey;
        let table: Vec<u32> = (0..bytes.div_ceil(FRAME_KEY_BYTES)).map(of_piece).collect();
        Ok(Registration {
            nic: Arc::clone(nic),
            table: DeviceArray::from_slice(gpu, &table).doing(doing)?,
            keys: std::mem::take(&mut keys.made),
        })
    }

    /// Where their number changes.
    pub fn units(&self) -> Option<&FrameUnits> {
        match &*self.memory {
            Memory::Units(units) => Some(units),
            _ => None,
        }
    }

    /// Device address of frame 0.
    pub fn addr(&self) -> u64 {
        self.memory.addr()
    }

    /// Device address of the keys by which a NIC writes fetched pages, one for each `FRAME_KEY_BYTES`; 0 without that NIC.
    pub fn keys_of(&self, nic: usize) -> u64 {
        self.registrations.get(nic).map_or(0, |one| one.table.addr())
    }

    /// Whether a READ's completion says nothing of its data: it lies in a GPU's memory, whose kernels see a NIC's writes in
    /// no order.
    pub fn needs_flush(&self, gpu: &Capabilities) -> bool {
        self.access.is_gpu_direct() && !gpu.for_nics.as_ref().is_some_and(|able| able.writes_ordered())
    }

    /// How the NICs reach them.
    pub fn access(&self) -> FrameAccess {
        self.access
    }
}

/// `bytes` rounded up to pages of the host.
fn in_host_pages(bytes: u64, host_page: u64) -> u64 {
    bytes.checked_next_multiple_of(host_page).unwrap_or(bytes)
}

/// The parts of `bytes` bytes that are registered by themselves.
fn pieces(bytes: u64, split: bool) -> impl Iterator<Item = Range<u64>> {
    let step = if split { FRAME_KEY_BYTES } else { bytes.max(1) };
    (0..bytes)
        .step_by(step as usize)
        .map(move |start| start..(start + step).min(bytes))
}

impl Drop for FrameMemory {
    fn drop(&mut self) {
        let mut gone = true;
        for one in &self.registrations {
            for key in &one.keys {
                if let Err(error) = one.nic.deregister(*key) {
                    tracing::error!(%error, "frames could not be deregistered; their memory is leaked");
                    gone = false;
                }
            }
        }
        if gone {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_gpu_are_registered_in_pieces_of_two_gibibytes() {
        let gib = 1u64 << 30;
        let ends = |bytes, split| pieces(bytes, split).map(|piece| (piece.start / gib, piece.end / gib));
        assert!(ends(5 * gib, true).eq([(0, 2), (2, 4), (4, 5)]));
        assert!(ends(2 * gib, true).eq([(0, 2)]));
        assert!(ends(5 * gib, false).eq([(0, 5)]));
    }

    #[test]
    fn dma_bufs_are_whole_pages_of_the_host() {
        let pages = |bytes| [4096, 65_536].map(|page| in_host_pages(bytes, page));
        assert_eq!(pages(4096), [4096, 65_536]);
        assert_eq!(pages(3 * 65_536 + 4096), [3 * 65_536 + 4096, 4 * 65_536]);
        assert_eq!(pages(65_536), [65_536; 2]);
        // No such memory: the allocation says so.
        assert_eq!(pages(u64::MAX), [u64::MAX; 2]);
        // Pieces begin on a page of any host.
        assert!(FRAME_KEY_BYTES.is_multiple_of(65_536));
        assert!(host_page_bytes().is_power_of_two());
    }
}
