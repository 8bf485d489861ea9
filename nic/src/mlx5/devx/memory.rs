//! Memory that queues made by DEVX lie in: registered in slabs, given out in whole pages.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::rdma_sys as sys;
use parking_lot::Mutex;

use super::library::{from_status, last_error, library};
use crate::mlx5::arena::{ArenaState, SharedMemory};
use crate::mlx5::device::Device;
use crate::mlx5::dv;
use crate::mlx5::failure::{failed, failed_with};
use crate::mlx5::prm::Place;
use crate::{NicError, PAGE_BYTES};

/// Bytes of a page, of which chunks are.
pub(super) const PAGE: u64 = PAGE_BYTES as u64;
/// Bytes of one registration, unless a queue pair needs more.
const SLAB_BYTES: u64 = 2 << 20;
/// `IBV_ACCESS_LOCAL_WRITE`.
const LOCAL_WRITE: u32 = 1;
/// Page sizes of a registration: all from 4 KiB on.
const ANY_PAGES: u64 = !(PAGE - 1);

/// Registered memory.
struct Slab {
    start: u64,
    bytes: u64,
    umem: NonNull<dv::Umem>,
    number: u32,
}

#[derive(Default)]
struct Slabs {
    free: ArenaState,
    slabs: Vec<Slab>,
}

/// What the queue pairs of a device that DEVX makes share.
pub struct Devx {
    /// Number of the protection domain.
    pub(super) domain: u32,
    /// Number of an event queue, which completion queues have to name.
    pub(super) event_queue: u32,
    pub(super) memory: Arc<dyn SharedMemory>,
    slabs: Mutex<Slabs>,
}

// SAFETY: libmlx5 may be called from any thread.
unsafe impl Send for Devx {}
// SAFETY: as above; what changes is behind a lock.
unsafe impl Sync for Devx {}

/// A chunk of registered memory.
pub(super) struct Chunk {
    pub start: u64,
    pub place: Place,
}

impl Devx {
    /// What queue pairs need of an open device and a protection domain.
    ///
    /// # Safety
    /// Context and domain live, and are of mlx5; the context was opened for DEVX.
    pub unsafe fn begin(
        dv: &dv::Mlx5Dv,
        device: &str,
        context: *mut sys::ibv_context,
        domain: *mut sys::ibv_pd,
        memory: Arc<dyn SharedMemory>,
    ) -> Result<Self, NicError> {
        let failed = |doing: &str, call: &str, source| failed(device, doing, call, source);
        // SAFETY: the caller's promise.
        let number = unsafe { dv.domain_number(domain) }
            .map_err(|error| failed("asking for the number of a protection domain", "mlx5dv_init_obj", error))?;
        let mut event_queue = 0;
        let library = library(dv, device)?;
        // SAFETY: the caller's promise; the number is a local.
        from_status(unsafe { (library.query_eqn)(context, 0, &mut event_queue) })
            .map_err(|error| failed("asking for an event queue", "mlx5dv_devx_query_eqn", error))?;
        Ok(Self {
            domain: number,
            event_queue,
            memory,
            slabs: Mutex::default(),
        })
    }

    /// A chunk of whole pages.
    pub(super) fn allocate(&self, device: &Device, dv: &dv::Mlx5Dv, bytes: u64) -> Result<Chunk, NicError> {
        let doing = || format!("registering memory for queues of {bytes} bytes");
        let failed = |why: io::ErrorKind| failed(&device.name, doing(), "mlx5dv_devx_umem_reg", why.into());
        let mut slabs = self.slabs.lock();
        let start = match slabs.free.cut(bytes, PAGE) {
            Some(start) => start,
            None => {
                let wanted = bytes.max(SLAB_BYTES);
                let slab = self.register(device, dv, wanted)?;
                slabs.free.add_slab(slab.start, wanted);
                slabs.slabs.push(slab);
                let cut = slabs.free.cut(bytes, PAGE);
                cut.ok_or_else(|| failed(io::ErrorKind::OutOfMemory))?
            }
        };
        let of = slabs
            .slabs
            .iter()
            .find(|slab| start.wrapping_sub(slab.start) < slab.bytes);
        let place = of.map(|slab| Place {
            umem: slab.number,
            offset: start - slab.start,
        });
        let place = place.ok_or_else(|| failed(io::ErrorKind::InvalidData))?;
        Ok(Chunk { start, place })
    }

    fn register(&self, device: &Device, dv: &dv::Mlx5Dv, bytes: u64) -> Result<Slab, NicError> {
        let library = library(dv, &device.name)?;
        let context = device.context.as_ptr();
        let doing = format!("registering {bytes} bytes for queues");
        let given = self.memory.allocate_queues(bytes).map_err(|error| {
            let why = format!("no {bytes} bytes of memory that the GPU reaches: {error}");
            let source = io::ErrorKind::OutOfMemory.into();
            failed_with(&device.name, doing.clone(), "mlx5dv_devx_umem_reg", source, why)
        })?;
        let first = std::ptr::with_exposed_provenance_mut::<c_void>(given.address as usize);
        let (made, call) = match &given.dma_buf {
            None => {
                // SAFETY: the context is open; the memory is this process's as long as `memory`, which outlives the umem.
                let made = unsafe { (library.umem_reg)(context, first, bytes as usize, LOCAL_WRITE) };
                (made, "mlx5dv_devx_umem_reg")
            }
            Some((fd, offset)) => {
                let mut wanted = dv::UmemIn {
                    addr: std::ptr::without_provenance_mut(*offset as usize),
                    size: bytes as usize,
                    access: LOCAL_WRITE,
                    pgsz_bitmap: ANY_PAGES,
                    comp_mask: dv::UMEM_DMA_BUF,
                    dmabuf_fd: fd.as_raw_fd(),
                };
                // SAFETY: the context is open; the kernel holds the buffer's memory.
                let made = unsafe { (library.umem_reg_ex)(context, &mut wanted) };
                (made, "mlx5dv_devx_umem_reg_ex")
            }
        };
        let umem = NonNull::new(made).ok_or_else(|| failed(&device.name, doing, call, last_error()))?;
        Ok(Slab {
            start: given.address,
            bytes,
            umem,
            // SAFETY: just made; the library does not change its number.
            number: unsafe { umem.as_ref() }.umem_id,
        })
    }

    pub(super) fn free(&self, chunk: &Chunk) {
        self.slabs.lock().free.take_back(chunk.start);
    }

    /// Gives the registrations back; whether all are gone. No queue pair may be left.
    pub fn end(&mut self, domain: &dv::Mlx5Dv, warn: impl Fn(&str, &io::Error)) {
        let Some(library) = domain.devx() else { return };
        for slab in self.slabs.lock().slabs.drain(..) {
            // SAFETY: made by `register`; no queue uses it, and it is taken out, so this happens once.
            if let Err(error) = from_status(unsafe { (library.umem_dereg)(slab.umem.as_ptr()) }) {
                warn("mlx5dv_devx_umem_dereg", &error);
            }
        }
    }
}
