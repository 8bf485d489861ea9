//! A GPU whose memory is counted for the tenant who takes it.

use std::{any::Any, sync::Arc};

use gpuvm_gpu::{
    AddressSpace, Capabilities, CompileOptions, Copier, DeviceMemory, DmaBuf, FileAccess, Gpu, GpuError, HostMemory,
    HostRegistration, MemoryLeft, Module, OnDone, Piece, PtxKernel, Series, Simulation, Source, Stream,
    back_end::Release,
};
use gpuvm_tenants::{GpuKey, SharedGpu};

use super::{Counted, Member, Tenancy};
use crate::error::{Doing, Error};

/// A GPU, and the tenant who has it, where others may use it too.
type Joined = (Arc<dyn Gpu>, Option<Arc<Member>>);

/// The GPU with its memory counted, and the tenant who holds it; as it is where this process has it for itself.
///
/// # Errors
/// [`Error::Terms`], [`Error::Setting`] for a name that cannot be, [`Error::Gpu`]. Where the registry cannot be used, the process is no
/// tenant, which is a warning; its limit holds all the same.
pub(crate) fn join(gpu: Arc<dyn Gpu>, tenancy: &Tenancy) -> crate::error::Result<Joined> {
    let Some(name) = gpu.shared_name().filter(|_| !tenancy.alone) else {
        return Ok((gpu, None));
    };
    let key: GpuKey = name.parse().map_err(|error| Error::Setting {
        setting: "name of a GPU that is shared",
        value: format!("`{name}`"),
        reason: format!("{error}"),
    })?;
    let total_bytes = gpu.own_memory().doing(|| "asking for its memory".into())?.total;
    let member = Member::of_process(SharedGpu { key, total_bytes }, tenancy)?;
    Ok((Arc::new(CountedGpu::new(gpu, Arc::clone(&member))), Some(member)))
}

/// The GPU as its tenant has it. Memory of neighbours and of the host is not counted.
struct CountedGpu {
    gpu: Arc<dyn Gpu>,
    member: Arc<Member>,
}

impl CountedGpu {
    fn new(gpu: Arc<dyn Gpu>, member: Arc<Member>) -> Self {
        Self { gpu, member }
    }

    fn count(
        &self,
        bytes: u64,
        take: impl FnOnce() -> Result<DeviceMemory, GpuError>,
    ) -> Result<DeviceMemory, GpuError> {
        let counted = self.member.count(bytes)?;
        let memory = take()?;
        let (addr, bytes) = (memory.addr(), memory.bytes());
        let kept = Kept {
            _memory: memory,
            _counted: counted,
        };
        Ok(DeviceMemory::new(addr, bytes, Arc::new(kept)))
    }
}

/// Memory, and its place in the count: both go with their one owner.
struct Kept {
    _memory: DeviceMemory,
    _counted: Counted,
}

impl Release for Kept {
    fn release(&self, _addr: u64) {}
}

/// A piece, and its place in the count.
struct CountedPiece {
    piece: Arc<dyn Piece>,
    _counted: Counted,
}

impl Piece for CountedPiece {
    fn as_any(&self) -> &dyn Any {
        // For the address spaces of its GPU.
        self.piece.as_any()
    }
}

impl Gpu for CountedGpu {
    fn allocate(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        self.count(bytes, || self.gpu.allocate(bytes, align))
    }

    fn allocate_for_nics(&self, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        self.count(bytes, || self.gpu.allocate_for_nics(bytes, align))
    }

    fn allocate_for(&self, ordinals: &[u32], bytes: u64) -> Result<DeviceMemory, GpuError> {
        self.count(bytes, || self.gpu.allocate_for(ordinals, bytes))
    }

    fn piece(&self) -> Result<Arc<dyn Piece>, GpuError> {
        let counted = self.member.count(self.piece_bytes())?;
        Ok(Arc::new(CountedPiece {
            piece: self.gpu.piece()?,
            _counted: counted,
        }))
    }

    fn capabilities(&self) -> Capabilities {
        self.gpu.capabilities()
    }

    fn export_dma_buf(&self, addr: u64, bytes: u64) -> Result<DmaBuf, GpuError> {
        self.gpu.export_dma_buf(addr, bytes)
    }

    unsafe fn map_registers(&self, host: *mut u8, bytes: u64) -> Result<HostRegistration, GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.gpu.map_registers(host, bytes) }
    }

    fn allocate_host(&self, bytes: u64) -> Result<HostMemory, GpuError> {
        self.gpu.allocate_host(bytes)
    }

    fn allocate_home(&self, bytes: u64) -> Result<Option<HostMemory>, GpuError> {
        self.gpu.allocate_home(bytes)
    }

    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), GpuError> {
        self.gpu.write(addr, bytes)
    }

    fn zero(&self, addr: u64, bytes: u64) -> Result<(), GpuError> {
        self.gpu.zero(addr, bytes)
    }

    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), GpuError> {
        self.gpu.read(addr, out)
    }

    fn is_device_memory(&self, addr: u64, bytes: u64) -> bool {
        self.gpu.is_device_memory(addr, bytes)
    }

    unsafe fn register_host(&self, host: *mut u8, bytes: u64, read_only: bool) -> Result<HostRegistration, GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.gpu.register_host(host, bytes, read_only) }
    }

    fn allocate_on(&self, ordinal: u32, bytes: u64) -> Result<DeviceMemory, GpuError> {
        self.gpu.allocate_on(ordinal, bytes)
    }

    fn memory_left(&self, ordinal: u32) -> Result<MemoryLeft, GpuError> {
        self.gpu.memory_left(ordinal)
    }

    fn shared_name(&self) -> Option<String> {
        self.gpu.shared_name()
    }

    fn own_memory(&self) -> Result<MemoryLeft, GpuError> {
        self.gpu.own_memory()
    }

    fn memory_by_process(&self) -> Vec<(u32, u64)> {
        self.gpu.memory_by_process()
    }

    fn lingering_bytes(&self) -> u64 {
        self.gpu.lingering_bytes()
    }

    fn ordinal(&self) -> Option<u32> {
        self.gpu.ordinal()
    }

    fn copier(&self) -> Result<Arc<dyn Copier>, GpuError> {
        self.gpu.copier()
    }

    fn file_access(&self, memory: &DeviceMemory) -> Result<Arc<dyn FileAccess>, GpuError> {
        self.gpu.file_access(memory)
    }

    fn piece_bytes(&self) -> u64 {
        self.gpu.piece_bytes()
    }

    fn host_piece(&self) -> Result<Arc<dyn Piece>, GpuError> {
        self.gpu.host_piece()
    }

    fn reserve(&self, bytes: u64, beside: &[u32]) -> Result<Arc<dyn AddressSpace>, GpuError> {
        self.gpu.reserve(bytes, beside)
    }

    fn lost(&self) -> Option<GpuError> {
        self.gpu.lost()
    }

    fn load(&self, name: &str, image: &[u8], kernels: &[&str]) -> Result<Arc<dyn Module>, GpuError> {
        self.gpu.load(name, image, kernels)
    }

    fn compile(
        &self,
        source: &Source,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<Arc<dyn Module>, GpuError> {
        self.gpu.compile(source, kernels, options)
    }

    fn load_ptx(
        &self,
        name: &str,
        text: &str,
        kernels: &[PtxKernel],
        variables: &[(&str, &[u8])],
        library: Option<(&Source, &CompileOptions)>,
    ) -> Result<Arc<dyn Module>, GpuError> {
        self.gpu.load_ptx(name, text, kernels, variables, library)
    }

    unsafe fn borrow_stream(&self, stream: u64) -> Result<Arc<dyn Stream>, GpuError> {
        // SAFETY: passed on from the caller.
        unsafe { self.gpu.borrow_stream(stream) }
    }

    fn urgent_stream(&self) -> Result<Arc<dyn Stream>, GpuError> {
        self.gpu.urgent_stream()
    }

    fn stream(&self) -> Result<Arc<dyn Stream>, GpuError> {
        self.gpu.stream()
    }

    fn series(&self, on_done: OnDone) -> Result<Arc<dyn Series>, GpuError> {
        self.gpu.series(on_done)
    }

    unsafe fn is_captured(&self, stream: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.gpu.is_captured(stream) }
    }

    fn drain(&self) -> Result<(), GpuError> {
        self.gpu.drain()
    }

    fn simulation(&self) -> Option<&dyn Simulation> {
        self.gpu.simulation()
    }
}
