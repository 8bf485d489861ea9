//! Device memory: large allocations are mapped by themselves, small ones share slabs.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdevice_attribute_enum as Attribute, CUmemAccess_flags_enum as Access, CUmemAccessDesc,
    CUmemAllocationGranularity_flags_enum as Granularity, CUmemAllocationHandleType_enum as Shareable,
    CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1 as Flags, CUmemAllocationType_enum as Kind,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType_enum as Place, CUresult,
};
use parking_lot::Mutex;

use super::calls::cu;
use super::copy::HostCopies;
use super::core::{Block, Core, Retired};
use super::device::attribute;
use super::driver::{Failure, is, outcome};
use crate::back_end::Ranges;
use crate::error::GpuError;
use crate::memory::{DeviceMemory, Release};

/// Smallest alignment and granule, bytes.
pub(crate) const GRANULE: u64 = 256;
/// Allocations below this come from slabs.
const LARGE_BYTES: u64 = 2 << 20;
const SLAB_BYTES: u64 = 32 << 20;

/// All device memory that this process has from one GPU, and what neighbours lend to it.
pub(crate) struct DevicePool {
    pub(crate) core: Arc<Core>,
    copier: Arc<HostCopies>,
    state: Mutex<DeviceMemoryState>,
}

#[derive(Default)]
struct DeviceMemoryState {
    /// First address -> what lies there.
    live: BTreeMap<u64, Live>,
    /// First address -> slab.
    slabs: BTreeMap<u64, Slab>,
}

struct Live {
    bytes: u64,
    kind: LiveKind,
}

enum LiveKind {
    /// A part of a slab: the slab and the bytes taken of it.
    Small {
        slab: u64,
        taken: u64,
    },
    Large(Block),
    /// Addresses of an address space, which frees what lies there.
    Space,
}

struct Slab {
    block: Block,
    ranges: Ranges,
}

impl DevicePool {
    /// Nothing allocated.
    pub(crate) fn new(core: Arc<Core>, copier: Arc<HostCopies>) -> Arc<Self> {
        Arc::new(Self {
            core,
            copier,
            state: Mutex::default(),
        })
    }

    /// Zeroed memory of this GPU.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        check_size(bytes, align)?;
        self.core.enter()?;
        let align = align.max(GRANULE);
        let (addr, kind) = if bytes < LARGE_BYTES && align <= LARGE_BYTES {
            self.small(bytes, align)?
        } else {
            let block = self.map(bytes, align, &[self.core.info.ordinal], false)?;
            (block.addr, LiveKind::Large(block))
        };
        self.admit(addr, bytes, kind)
    }

    /// Memory of its own mapping, which NICs can register.
    pub(crate) fn allocate_for_nics(self: &Arc<Self>, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        check_size(bytes, align)?;
        self.core.enter()?;
        let for_nics = self.core.info.memory_for_nics;
        let block = self.map(bytes, align.max(GRANULE), &[self.core.info.ordinal], for_nics)?;
        self.admit(block.addr, bytes, LiveKind::Large(block))
    }

    /// Zeroed memory of the neighbour `ordinal`.
    pub(crate) fn allocate_on(self: &Arc<Self>, ordinal: u32, bytes: u64) -> Result<DeviceMemory, GpuError> {
        check_size(bytes, GRANULE)?;
        self.check_peer(ordinal)?;
        let block = self.map(bytes, GRANULE, &[ordinal, self.core.info.ordinal], false)?;
        self.admit(block.addr, bytes, LiveKind::Large(block))
    }

    /// Zeroed memory of this GPU that those neighbours' engines reach, too.
    pub(crate) fn allocate_for(self: &Arc<Self>, ordinals: &[u32], bytes: u64) -> Result<DeviceMemory, GpuError> {
        check_size(bytes, GRANULE)?;
        ordinals.iter().try_for_each(|ordinal| self.check_peer(*ordinal))?;
        let devices: Vec<u32> = std::iter::once(self.core.info.ordinal)
            .chain(ordinals.iter().copied())
            .collect();
        let block = self.map(bytes, GRANULE, &devices, false)?;
        self.admit(block.addr, bytes, LiveKind::Large(block))
    }

    /// Whether this GPU reaches the memory of the neighbour `ordinal`.
    pub(crate) fn check_peer(&self, ordinal: u32) -> Result<(), GpuError> {
        self.core.enter()?;
        let refuse = |cause: String| Err(GpuError::NoPeer { ordinal, cause });
        if ordinal == self.core.info.ordinal {
            return refuse("it is this GPU itself; allocate without naming a neighbour".into());
        }
        let count = super::device::count()?;
        if ordinal >= count {
            return refuse(format!("this process sees {count} GPUs"));
        }
        let peer = super::device::handle(ordinal)?;
        let mut can = 0;
        // SAFETY: an out-value of the right type; both handles are the driver's own.
        self.core.check("ask for a path between GPUs", unsafe {
            cu::cuDeviceCanAccessPeer(&raw mut can, self.core.device, peer)
        })?;
        if can == 0 {
            return refuse(
                "there is no path between the two that loads and stores can take: see nvidia-smi topo -p2p r".into(),
            );
        }
        Ok(())
    }

    /// Zeroes the memory and enters it into the books.
    fn admit(self: &Arc<Self>, addr: u64, bytes: u64, kind: LiveKind) -> Result<DeviceMemory, GpuError> {
        self.state.lock().live.insert(addr, Live { bytes, kind });
        // Gives the memory back should zeroing fail.
        let memory = DeviceMemory {
            addr,
            bytes,
            owner: Arc::clone(self) as Arc<dyn Release>,
        };
        self.copier.zero(addr, bytes)?;
        Ok(memory)
    }

    fn small(&self, bytes: u64, align: u64) -> Result<(u64, LiveKind), GpuError> {
        // At most 2 MiB, so this does not overflow.
        let taken = bytes.next_multiple_of(GRANULE);
        let find = |state: &mut DeviceMemoryState| {
            let mut slabs = state.slabs.iter_mut();
            slabs.find_map(|(&slab, one)| Some((one.ranges.take(taken, align)?, LiveKind::Small { slab, taken })))
        };
        if let Some(found) = find(&mut self.state.lock()) {
            return Ok(found);
        }
        // Not under the lock: the driver may wait for kernels, and launches and callbacks look into the books.
        let block = self.map(SLAB_BYTES, LARGE_BYTES, &[self.core.info.ordinal], false)?;
        let mut ranges = Ranges::new(block.addr, block.bytes);
        // A fresh slab is aligned to the largest alignment and longer than the largest size that comes here.
        let addr = ranges.take(taken, align).unwrap_or(block.addr);
        let slab = block.addr;
        self.state.lock().slabs.insert(slab, Slab { block, ranges });
        Ok((addr, LiveKind::Small { slab, taken }))
    }

    /// Memory of the first of `devices` that all of them reach, perhaps made for NICs.
    fn map(&self, bytes: u64, align: u64, devices: &[u32], for_nics: bool) -> Result<Block, GpuError> {
        let what = format!("map {bytes} bytes of GPU memory");
        let mut granularity = 1;
        for &device in devices {
            granularity = granularity.max(self.granularity(device)?);
        }
        let Some(rounded) = bytes.checked_next_multiple_of(granularity).filter(|b| *b < 1 << 47) else {
            return Err(self.out_of_memory(bytes));
        };
        let handle = self.create(rounded, devices[0], for_nics)?;
        let mut addr = 0;
        let align = align.max(granularity) as usize;
        // SAFETY: each call gets what the one before gave; what was made is taken back in reverse order when one fails.
        unsafe {
            let give_back = |mapped: bool, addr: u64| {
                if mapped {
                    let _ = cu::cuMemUnmap(addr, rounded as usize);
                }
                if addr != 0 {
                    let _ = cu::cuMemAddressFree(addr, rounded as usize);
                }
                let _ = cu::cuMemRelease(handle);
            };
            let reserved = cu::cuMemAddressReserve(&raw mut addr, rounded as usize, align, 0, 0);
            self.core.check(&what, reserved).inspect_err(|_| give_back(false, 0))?;
            let mapped = cu::cuMemMap(addr, rounded as usize, 0, handle, 0);
            self.core.check(&what, mapped).inspect_err(|_| give_back(false, addr))?;
            let access: Vec<CUmemAccessDesc> = devices.iter().map(|&device| writable(device)).collect();
            let opened = cu::cuMemSetAccess(addr, rounded as usize, access.as_ptr(), access.len());
            self.core.check(&what, opened).inspect_err(|_| give_back(true, addr))?;
        }
        Ok(Block {
            addr,
            bytes: rounded,
            handle,
        })
    }

    /// `bytes` bytes of memory of a GPU, whole granules.
    pub(crate) fn create(
        &self,
        bytes: u64,
        device: u32,
        for_nics: bool,
    ) -> Result<CUmemGenericAllocationHandle, GpuError> {
        let mut prop = properties(location(device));
        prop.allocFlags.gpuDirectRDMACapable = u8::from(for_nics);
        match self.create_by(bytes, &prop) {
            Ok(handle) => Ok(handle),
            Err(failure) if is_short(&failure) => Err(self.out_of_memory(bytes)),
            Err(failure) => Err(self.core.error(format!("make {bytes} bytes of GPU memory"), failure)),
        }
    }

    /// As [`create`](Self::create), of the host's memory next to this GPU: the handle, and the node.
    pub(crate) fn create_of_host(&self, bytes: u64) -> Result<(CUmemGenericAllocationHandle, i32), GpuError> {
        self.core.enter()?;
        let device = self.core.device;
        if attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        )? == 0
        {
            return Err(GpuError::Unsupported {
                what: "place host memory at addresses: its driver does not map host memory by handles".into(),
            });
        }
        let node = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)? as i32;
        let prop = properties(host_location(node));
        let granularity = self.granularity_of(&prop)?;
        if !bytes.is_multiple_of(granularity) {
            return Err(GpuError::Unsupported {
                what: format!("place host memory at addresses in {bytes} bytes: the driver maps {granularity} at once"),
            });
        }
        match self.create_by(bytes, &prop) {
            Ok(handle) => Ok((handle, node)),
            Err(failure) if is_short(&failure) => Err(GpuError::OutOfHostMemory { asked: bytes }),
            Err(failure) => Err(self.core.error(format!("make {bytes} bytes of host memory"), failure)),
        }
    }

    /// Memory as described; what waits to be freed is freed for it where it is short. The context is current.
    fn create_by(&self, bytes: u64, prop: &CUmemAllocationProp) -> Result<CUmemGenericAllocationHandle, Failure> {
        let mut handle = 0;
        // SAFETY: an out-value and a complete description; the context is current.
        let mut create = || outcome(unsafe { cu::cuMemCreate(&raw mut handle, bytes as usize, prop, 0) });
        let mut created = create();
        if created.as_ref().is_err_and(is_short) {
            self.core.free_retired();
            created = create();
        }
        created.map(|()| handle)
    }

    /// Bytes of a piece.
    pub(crate) fn piece_bytes(&self) -> Result<u64, GpuError> {
        self.core.enter()?;
        self.granularity(self.core.info.ordinal)
    }

    /// Enters addresses of an address space into the books, until they are released.
    pub(crate) fn enter_space(&self, addr: u64, bytes: u64) {
        let kind = LiveKind::Space;
        self.state.lock().live.insert(addr, Live { bytes, kind });
    }

    fn granularity(&self, device: u32) -> Result<u64, GpuError> {
        self.granularity_of(&properties(location(device)))
    }

    fn granularity_of(&self, prop: &CUmemAllocationProp) -> Result<u64, GpuError> {
        let mut bytes = 0usize;
        let option = Granularity::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED as u32;
        // SAFETY: an out-value and a complete description.
        self.core.check("ask for the granularity of memory", unsafe {
            cu::cuMemGetAllocationGranularity(&raw mut bytes, prop, option)
        })?;
        Ok(bytes.max(1) as u64)
    }

    pub(crate) fn out_of_memory(&self, asked: u64) -> GpuError {
        match self.core.memory_left() {
            Ok(left) => GpuError::OutOfMemory {
                asked,
                free: left.free,
                capacity: self.core.info.memory_bytes,
            },
            Err(error) => error,
        }
    }

    /// Whether one live allocation covers the range.
    pub(crate) fn covers(&self, addr: u64, bytes: u64) -> bool {
        let state = self.state.lock();
        let below = state.live.range(..=addr).next_back();
        below.is_some_and(|(start, live)| addr.checked_add(bytes).is_some_and(|end| end <= start + live.bytes))
    }
}

impl Release for DevicePool {
    fn release(&self, addr: u64) {
        let gone = {
            let _forgetting = self.core.forgetting();
            let mut state = self.state.lock();
            let Some(live) = state.live.remove(&addr) else { return };
            match live.kind {
                LiveKind::Large(block) => Some(block),
                LiveKind::Small { slab, taken } => state.give(slab, addr, taken),
                LiveKind::Space => None,
            }
        };
        if let Some(block) = gone {
            self.core.retire(Retired::Block(block));
        }
    }
}

impl Drop for DevicePool {
    fn drop(&mut self) {
        // Every allocation holds this pool, so nothing of a slab is in use.
        for slab in std::mem::take(&mut self.state.lock().slabs).into_values() {
            self.core.retire(Retired::Block(slab.block));
        }
    }
}

impl DeviceMemoryState {
    /// Takes a part back into its slab; the slab's memory when it is the second empty one.
    fn give(&mut self, slab: u64, addr: u64, taken: u64) -> Option<Block> {
        let others_empty = self
            .slabs
            .iter()
            .any(|(&other, one)| other != slab && one.ranges.free() == one.block.bytes);
        let own = self.slabs.get_mut(&slab)?;
        own.ranges.give(addr, taken);
        if others_empty && own.ranges.free() == own.block.bytes {
            return self.slabs.remove(&slab).map(|slab| slab.block);
        }
        None
    }
}

/// Refuses what can never be allocated.
pub(crate) fn check_size(bytes: u64, align: u64) -> Result<(), GpuError> {
    let cause = match (bytes, align.is_power_of_two()) {
        (0, _) => "zero bytes",
        (_, false) => "the alignment is not a power of two",
        _ => return Ok(()),
    };
    Err(GpuError::BadAllocation {
        bytes,
        align,
        cause: cause.to_owned(),
    })
}

fn location(device: u32) -> CUmemLocation {
    CUmemLocation {
        type_: Place::CU_MEM_LOCATION_TYPE_DEVICE,
        id: device as i32,
    }
}

fn host_location(node: i32) -> CUmemLocation {
    CUmemLocation {
        type_: Place::CU_MEM_LOCATION_TYPE_HOST_NUMA,
        id: node,
    }
}

fn is_short(failure: &Failure) -> bool {
    is(failure.code, CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

fn properties(location: CUmemLocation) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: Kind::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: Shareable::CU_MEM_HANDLE_TYPE_NONE,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: Flags {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Reads and writes by one GPU.
pub(crate) fn writable(device: u32) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(device),
        flags: Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

/// Reads and writes by the processors, of memory of that node.
pub(crate) fn writable_by_host(node: i32) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: host_location(node),
        flags: Access::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}
