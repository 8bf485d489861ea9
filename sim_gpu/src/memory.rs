//! Device memory of a fixed capacity, and host memory for kernels: plain mappings of this process.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use gpuvm_gpu::back_end::{Ranges, Release, host_page_bytes};
use gpuvm_gpu::{DeviceMemory, GpuError, HostMemory};
use parking_lot::Mutex;

/// Smallest alignment and granule of an allocation, bytes; CUDA's.
const GRANULE: u64 = 256;

/// The file that pieces of one GPU are parts of.
#[derive(Default)]
pub(crate) struct PieceFile(pub(crate) Mutex<Option<Opened>>);

pub(crate) struct Opened {
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) holes: Ranges,
}

/// All memory of one simulated GPU.
pub(crate) struct Memory {
    base: u64,
    capacity: u64,
    state: Mutex<MemoryState>,
    pub(crate) pieces: PieceFile,
    /// Those of the host's memory, which is as large as the system lets it be.
    pub(crate) host_pieces: PieceFile,
}

#[derive(Default)]
struct MemoryState {
    /// Live device allocations: address -> (bytes asked for, bytes taken).
    live: BTreeMap<u64, (u64, u64)>,
    holes: Ranges,
    /// Live host allocations: address -> (bytes asked for, bytes mapped).
    host: BTreeMap<u64, (u64, u64)>,
    /// Address spaces, by their addresses.
    spaces: BTreeMap<u64, Space>,
    /// Bytes of pieces, which no hole has.
    in_pieces: u64,
}

/// An address space, for host accesses.
struct Space {
    bytes: u64,
    /// Where something lies: offset -> bytes.
    placed: BTreeMap<u64, u64>,
}

impl Space {
    /// Whether something lies at all of these bytes.
    fn covers(&self, offset: u64, bytes: u64) -> bool {
        let Some(end) = offset.checked_add(bytes).filter(|end| *end <= self.bytes) else {
            return false;
        };
        let mut at = offset;
        while at < end {
            let below = self.placed.range(..=at).next_back();
            match below.map(|(start, len)| start + len).filter(|covered| *covered > at) {
                Some(covered) => at = covered,
                None => return false,
            }
        }
        true
    }
}

impl Memory {
    /// Reserves address space for `capacity` bytes; pages are taken from the system when they are touched.
    pub(crate) fn new(capacity: u64) -> Result<Arc<Self>, GpuError> {
        let page = host_page_bytes();
        let capacity = capacity.max(page).next_multiple_of(page);
        let base = map(capacity)? as u64;
        let state = MemoryState {
            holes: Ranges::new(base, capacity),
            ..MemoryState::default()
        };
        Ok(Arc::new(Self {
            base,
            capacity,
            state: Mutex::new(state),
            pieces: PieceFile::default(),
            host_pieces: PieceFile::default(),
        }))
    }

    /// First byte of the device.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Bytes of the whole device.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    fn state(&self) -> parking_lot::MutexGuard<'_, MemoryState> {
        self.state.lock()
    }

    /// Bytes that are free.
    pub(crate) fn free(&self) -> u64 {
        self.state().free()
    }

    /// Counts a piece; its bytes lie elsewhere.
    pub(crate) fn take_for_piece(&self, bytes: u64) -> Result<(), GpuError> {
        let mut state = self.state();
        if state.free() < bytes {
            drop(state);
            return Err(self.out_of_memory(bytes));
        }
        state.in_pieces += bytes;
        Ok(())
    }

    /// A piece is gone.
    pub(crate) fn give_of_piece(&self, bytes: u64) {
        self.state().in_pieces -= bytes;
    }

    /// So many bytes were asked for and are not there.
    pub(crate) fn out_of_memory(&self, asked: u64) -> GpuError {
        GpuError::OutOfMemory {
            asked,
            free: self.free(),
            capacity: self.capacity,
        }
    }

    /// Host accesses reach what lies at the addresses of an address space, until they are released.
    pub(crate) fn enter_space(&self, addr: u64, bytes: u64) {
        let placed = BTreeMap::new();
        self.state().spaces.insert(addr, Space { bytes, placed });
    }

    /// Maps something at an offset of an address space, or takes it out where `lies` is false. No host access looks there meanwhile.
    pub(crate) fn remap<R>(
        &self,
        space: u64,
        (offset, bytes): (u64, u64),
        lies: bool,
        map: impl FnOnce() -> Result<R, GpuError>,
    ) -> Result<R, GpuError> {
        let mut state = self.state();
        let mapped = map()?;
        if let Some(space) = state.spaces.get_mut(&space) {
            match lies {
                true => space.placed.insert(offset, bytes),
                false => space.placed.remove(&offset),
            };
        }
        Ok(mapped)
    }

    /// First fit in the holes.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64, align: u64) -> Result<DeviceMemory, GpuError> {
        let bad = |cause: &str| {
            Err(GpuError::BadAllocation {
                bytes,
                align,
                cause: cause.to_owned(),
            })
        };
        if bytes == 0 {
            return bad("zero bytes");
        }
        if !align.is_power_of_two() {
            return bad("the alignment is not a power of two");
        }
        let align = align.max(GRANULE);
        let mut state = self.state();
        let out_of_memory = GpuError::OutOfMemory {
            asked: bytes,
            free: state.free(),
            capacity: self.capacity,
        };
        if bytes > state.free() {
            return Err(out_of_memory);
        }
        let taken = bytes.checked_next_multiple_of(GRANULE);
        let Some((addr, taken)) = taken.and_then(|taken| Some((state.holes.take(taken, align)?, taken))) else {
            return Err(out_of_memory);
        };
        state.live.insert(addr, (bytes, taken));
        Ok(DeviceMemory::new(addr, bytes, Arc::clone(self) as Arc<dyn Release>))
    }

    /// A mapping of its own.
    pub(crate) fn allocate_host(self: &Arc<Self>, bytes: u64) -> Result<HostMemory, GpuError> {
        let page = host_page_bytes();
        let Some(mapped) = bytes.checked_next_multiple_of(page).filter(|m| *m > 0 && *m < 1 << 47) else {
            return Err(GpuError::BadAllocation {
                bytes,
                align: page,
                cause: "zero bytes, or more than an address space".into(),
            });
        };
        let host = map(mapped)?;
        self.state().host.insert(host as u64, (bytes, mapped));
        let owner = Arc::clone(self) as Arc<dyn Release>;
        // SAFETY: the mapping was just made for it, and `release` alone unmaps it.
        Ok(unsafe { HostMemory::new(host, host as u64, bytes, owner) })
    }

    /// Host to device.
    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), GpuError> {
        let state = self.state();
        state.check(addr, bytes.len() as u64)?;
        // Release: lanes that run see this host's writes in their order.
        fence(Ordering::Release);
        // SAFETY: a live allocation covers the range (checked, and kept alive by the lock); kernels that race with this see
        // torn bytes, as on a device, and no Rust reference to these bytes exists anywhere.
        unsafe { ptr::copy(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        Ok(())
    }

    /// Whether it is the GPU's, all of it.
    pub(crate) fn is_device_memory(&self, addr: u64, bytes: u64) -> bool {
        let state = self.state();
        state.in_space(addr, bytes) || inside(&state.live, addr, bytes)
    }

    /// Device to host.
    pub(crate) fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), GpuError> {
        let state = self.state();
        state.check(addr, out.len() as u64)?;
        // SAFETY: as in `write`.
        unsafe { ptr::copy(addr as *const u8, out.as_mut_ptr(), out.len()) };
        // Acquire: what is read next is no older than this.
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Makes the freed range read as zeros again.
    fn clear(&self, addr: u64, bytes: u64) {
        // Whole ones: the system clears all of a page that a range ends in.
        let page = host_page_bytes();
        let (first, last) = (addr.next_multiple_of(page), (addr + bytes) & !(page - 1));
        let zero = |from: u64, to: u64| {
            // SAFETY: [from, to) lies inside the allocation just released, which nobody may use any more.
            unsafe { ptr::write_bytes(from as *mut u8, 0, (to - from) as usize) }
        };
        if first >= last {
            return zero(addr, addr + bytes);
        }
        zero(addr, first);
        zero(last, addr + bytes);
        // SAFETY: whole pages inside our own mapping, unused from here on; private anonymous pages come back zeroed.
        if unsafe { libc::madvise(first as *mut libc::c_void, (last - first) as usize, libc::MADV_DONTNEED) } != 0 {
            zero(first, last);
        }
    }
}

impl MemoryState {
    fn free(&self) -> u64 {
        self.holes.free().saturating_sub(self.in_pieces)
    }

    fn in_space(&self, addr: u64, bytes: u64) -> bool {
        let below = self.spaces.range(..=addr).next_back();
        below.is_some_and(|(start, space)| space.covers(addr - start, bytes))
    }

    fn check(&self, addr: u64, bytes: u64) -> Result<(), GpuError> {
        if self.in_space(addr, bytes) || inside(&self.live, addr, bytes) || inside(&self.host, addr, bytes) {
            Ok(())
        } else {
            Err(GpuError::BadAddress { addr, bytes })
        }
    }
}

/// Whether one allocation of these covers it.
fn inside(map: &BTreeMap<u64, (u64, u64)>, addr: u64, bytes: u64) -> bool {
    map.range(..=addr)
        .next_back()
        .is_some_and(|(start, (len, _))| addr.checked_add(bytes).is_some_and(|end| end <= start + len))
}

impl Release for Memory {
    fn release(&self, addr: u64) {
        let mut state = self.state();
        if state.spaces.remove(&addr).is_some() {
            return;
        }
        if let Some((_, mapped)) = state.host.remove(&addr) {
            // SAFETY: this mapping was made by `allocate_host` and its only owner has just been dropped.
            unsafe { libc::munmap(addr as *mut libc::c_void, mapped as usize) };
            return;
        }
        let Some((_, taken)) = state.live.remove(&addr) else {
            return;
        };
        self.clear(addr, taken);
        state.holes.give(addr, taken);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: every DeviceMemory holds an Arc of this, so no allocation is left when it is dropped.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.capacity as usize) };
    }
}

fn map(bytes: u64) -> Result<*mut u8, GpuError> {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: a fresh anonymous mapping at an address of the system's choice touches no memory in use.
    let p = unsafe { libc::mmap(ptr::null_mut(), bytes as usize, prot, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        let what = format!("map {bytes} bytes of memory");
        return Err(GpuError::io(&what, None, std::io::Error::last_os_error()));
    }
    Ok(p.cast())
}
