//! Memory that the NIC's driver, this process and the GPU share: rings and doorbell records.
//!
//! libmlx5 asks a parent domain's allocators for the memory of each ring and record. They cut it, in whole pages, from
//! slabs that the NIC's opener provides, so that all of it is within the GPU's reach at known addresses.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::error::Error;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, fence};

use crate::rdma_sys as sys;
use parking_lot::Mutex;

use crate::{PAGE_BYTES, Pages};

/// Bytes of a slab, unless one chunk needs more.
const SLAB_BYTES: u64 = 2 << 20;
const PAGE: u64 = PAGE_BYTES as u64;

/// Memory that this process and the GPU reach under the same address.
///
/// # Safety
/// What [`allocate`](Self::allocate) returns is the start of this many bytes, zeroed, page-aligned, readable and writable in
/// this process, that nothing else uses, for as long as the object lives.
pub unsafe trait SharedMemory: Send + Sync {
    /// More memory: its address.
    ///
    /// # Errors
    /// Why there is none.
    fn allocate(&self, bytes: u64) -> Result<u64, Box<dyn Error + Send + Sync>>;

    /// More memory for queues that DEVX makes, which only their posters and the NIC have to reach: it may be the GPU's own.
    /// Without another way of its own it is [`allocate`](Self::allocate)'s.
    ///
    /// # Errors
    /// Why there is none.
    fn allocate_queues(&self, bytes: u64) -> Result<QueueSlab, Box<dyn Error + Send + Sync>> {
        let address = self.allocate(bytes)?;
        Ok(QueueSlab { address, dma_buf: None })
    }

    /// Writes to memory of [`allocate_queues`](Self::allocate_queues), which this process may not reach by itself. It is
    /// there when the call returns.
    ///
    /// # Errors
    /// Why it could not be written.
    ///
    /// # Safety
    /// `bytes` fit into that memory from `address` on, and the NIC does not write there meanwhile.
    unsafe fn write_queues(&self, address: u64, bytes: &[u8]) -> Result<(), Box<dyn Error + Send + Sync>> {
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: within memory that `allocate` gave, by the caller's promise; all access to it is atomic.
            let place = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU8>(address as usize + at) };
            // Relaxed: the fence below comes before the command that lets others look.
            place.store(*byte, Ordering::Relaxed);
        }
        // Release: the bytes before whatever tells the NIC or posters of them.
        fence(Ordering::Release);
        Ok(())
    }
}

/// Memory for queues that DEVX makes.
#[derive(Debug)]
pub struct QueueSlab {
    /// Address, as posters on the host or, of a GPU's own memory, the GPU call it.
    pub address: u64,
    /// A GPU's memory as a dma-buf, and where the slab begins in it. None: the memory is this process's.
    pub dma_buf: Option<(OwnedFd, u64)>,
}

/// Shared memory where the GPU is this process: a simulated one, or none.
#[derive(Debug, Default)]
pub struct ProcessMemory(Mutex<Vec<Pages>>);

impl ProcessMemory {
    /// No memory yet.
    pub fn new() -> Self {
        Self::default()
    }
}

// SAFETY: `Pages` are zeroed, page-aligned, this object's own, and live as long as it.
unsafe impl SharedMemory for ProcessMemory {
    fn allocate(&self, bytes: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
        let pages = Pages::new(usize::try_from(bytes)?);
        let address = pages.address();
        self.0.lock().push(pages);
        Ok(address)
    }
}

/// The memory of one NIC's queues.
pub(super) struct Arena {
    memory: Arc<dyn SharedMemory>,
    state: Mutex<ArenaState>,
}

#[derive(Default)]
pub(super) struct ArenaState {
    /// Free spans, zeroed: bytes by address. Neighbours of one slab are joined.
    free: BTreeMap<u64, u64>,
    /// Chunks in use: bytes by address.
    used: HashMap<u64, u64>,
    /// Where slabs begin: spans of two slabs are not joined, even if they meet.
    slabs: HashSet<u64>,
    /// Why the last allocation failed.
    failure: Option<String>,
}

impl ArenaState {
    /// Adds memory to cut from.
    pub fn add_slab(&mut self, start: u64, bytes: u64) {
        self.slabs.insert(start);
        self.give_back(start, bytes);
    }

    /// Takes a chunk back; the bytes that it had, if it is one.
    pub fn take_back(&mut self, start: u64) -> Option<u64> {
        let bytes = self.used.remove(&start)?;
        self.give_back(start, bytes);
        Some(bytes)
    }

    /// Cuts a chunk from the first free span that has room for it.
    pub fn cut(&mut self, bytes: u64, alignment: u64) -> Option<u64> {
        let (span, length, start) = self.free.iter().find_map(|(span, length)| {
            let start = span.checked_next_multiple_of(alignment)?;
            (start.checked_add(bytes)? <= span + length).then_some((*span, *length, start))
        })?;
        self.free.remove(&span);
        if start > span {
            self.free.insert(span, start - span);
        }
        if start + bytes < span + length {
            self.free.insert(start + bytes, span + length - start - bytes);
        }
        self.used.insert(start, bytes);
        Some(start)
    }

    fn give_back(&mut self, start: u64, bytes: u64) {
        let (mut start, mut bytes) = (start, bytes);
        if !self.slabs.contains(&(start + bytes))
            && let Some(next) = self.free.remove(&(start + bytes))
        {
            bytes += next;
        }
        let before = self.free.range(..start).next_back().map(|(at, length)| (*at, *length));
        if let Some((at, length)) = before
            && at + length == start
            && !self.slabs.contains(&start)
        {
            (start, bytes) = (at, length + bytes);
        }
        self.free.insert(start, bytes);
    }
}

impl Arena {
    pub fn new(memory: Arc<dyn SharedMemory>) -> Self {
        Self {
            memory,
            state: Mutex::default(),
        }
    }

    /// A zeroed chunk of whole pages.
    fn allocate(&self, bytes: u64, alignment: u64) -> Result<u64, String> {
        let refused = || format!("a chunk of {bytes} bytes aligned to {alignment} is not what rings need");
        if bytes == 0 || !alignment.is_power_of_two() || alignment > SLAB_BYTES {
            return Err(refused());
        }
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or_else(refused)?;
        let alignment = alignment.max(PAGE);
        let mut state = self.state.lock();
        if let Some(start) = state.cut(bytes, alignment) {
            return Ok(start);
        }
        // Room to align in.
        let wanted = bytes.checked_add(alignment - PAGE).ok_or_else(refused)?;
        let slab_bytes = wanted.max(SLAB_BYTES);
        let slab = self
            .memory
            .allocate(slab_bytes)
            .map_err(|error| format!("no {slab_bytes} bytes of memory that the GPU reaches: {error}"))?;
        if slab == 0 || !slab.is_multiple_of(PAGE) {
            return Err(format!("memory at {slab:#x} for the GPU is not page-aligned"));
        }
        state.add_slab(slab, slab_bytes);
        state.cut(bytes, alignment).ok_or_else(refused)
    }

    /// Takes a chunk back.
    fn free(&self, start: u64) {
        let mut state = self.state.lock();
        // A pointer that was never given out is none of ours.
        let Some(bytes) = state.used.remove(&start) else { return };
        let first = std::ptr::with_exposed_provenance_mut::<u8>(start as usize);
        // SAFETY: a chunk of a slab, which lives as long as `memory`; the driver gave it back, so nothing uses it.
        unsafe { first.write_bytes(0, bytes as usize) };
        state.give_back(start, bytes);
    }

    /// Whether all of a span is inside one chunk in use.
    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        let state = self.state.lock();
        state.used.iter().any(|(start, length)| {
            let end = address.checked_add(bytes);
            *start <= address && end.is_some_and(|end| end <= start + length)
        })
    }

    /// Why the last allocation failed, if one failed since the last call.
    pub fn take_failure(&self) -> Option<String> {
        self.state.lock().failure.take()
    }

    /// Keeps all memory for ever.
    pub fn leak(&self) {
        std::mem::forget(Arc::clone(&self.memory));
    }

    /// Chunks in use.
    #[cfg(test)]
    fn chunks(&self) -> usize {
        self.state.lock().used.len()
    }
}

/// `alloc` of a parent domain whose `pd_context` is an [`Arena`].
pub(super) unsafe extern "C" fn allocate(
    _: *mut sys::ibv_pd,
    context: *mut c_void,
    bytes: usize,
    alignment: usize,
    _resource: u64,
) -> *mut c_void {
    // SAFETY: the domain was made with an arena that outlives it.
    let arena = unsafe { &*context.cast::<Arena>() };
    let made = catch_unwind(AssertUnwindSafe(|| {
        let made = arena.allocate(bytes as u64, alignment as u64);
        made.map_err(|why| arena.state.lock().failure = Some(why)).ok()
    }));
    // A panic must not cross C: null tells the driver that there is no memory.
    let address = made.ok().flatten().unwrap_or(0);
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// `free` of such a parent domain.
pub(super) unsafe extern "C" fn free(_: *mut sys::ibv_pd, context: *mut c_void, chunk: *mut c_void, _resource: u64) {
    // SAFETY: as in `allocate`.
    let arena = unsafe { &*context.cast::<Arena>() };
    // A panic must not cross C; a chunk that is not given back is lost, no more.
    let _ = catch_unwind(AssertUnwindSafe(|| arena.free(chunk.expose_provenance() as u64)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> Arena {
        Arena::new(Arc::new(ProcessMemory::new()))
    }

    #[test]
    fn chunks_do_not_overlap_and_come_back_zeroed() {
        let arena = arena();
        let mut chunks: Vec<(u64, u64)> = Vec::new();
        for turn in 0..200u64 {
            let bytes = 2 + turn * 977 % 20_000;
            let alignment = 1 << (turn % 17);
            let start = arena.allocate(bytes, alignment).expect("memory");
            assert!(start.is_multiple_of(alignment.max(PAGE)));
            assert!(arena.holds(start, bytes) && !arena.holds(start, bytes.next_multiple_of(PAGE) + 1));
            for (other, length) in &chunks {
                assert!(start + bytes <= *other || other + length <= start);
            }
            let first = std::ptr::with_exposed_provenance_mut::<u8>(start as usize);
            for at in [0, bytes as usize - 1] {
                // SAFETY: within the chunk, which is this test's.
                unsafe {
                    assert_eq!(*first.add(at), 0);
                    *first.add(at) = 0xa5;
                }
            }
            chunks.push((start, bytes));
            if turn % 3 == 2 {
                let (start, _) = chunks.swap_remove(turn as usize % chunks.len());
                arena.free(start);
            }
        }
        chunks.iter().for_each(|(start, _)| arena.free(*start));
        assert_eq!(arena.chunks(), 0);
        let slabs = arena.state.lock().free.len();
        assert!(slabs <= 4, "neighbours are joined: {slabs} spans are left");
    }

    #[test]
    fn what_is_no_chunk_is_refused_or_ignored() {
        let arena = arena();
        assert!(arena.allocate(0, 8).is_err());
        assert!(arena.allocate(8, 3).is_err());
        assert!(arena.allocate(u64::MAX, 8).is_err());
        arena.free(0x1000);
        assert_eq!(arena.chunks(), 0);
    }

    struct Empty;

    // SAFETY: it returns no memory.
    unsafe impl SharedMemory for Empty {
        fn allocate(&self, _: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
            Err("the GPU is full".into())
        }
    }

    struct Panics;

    // SAFETY: it returns no memory.
    unsafe impl SharedMemory for Panics {
        fn allocate(&self, _: u64) -> Result<u64, Box<dyn Error + Send + Sync>> {
            panic!("planted")
        }
    }

    #[test]
    fn the_driver_is_told_of_missing_memory_and_the_reason_is_kept() {
        let arena = Arena::new(Arc::new(Empty));
        let context = (&raw const arena).cast_mut().cast();
        // SAFETY: the context is an arena that lives.
        let chunk = unsafe { allocate(std::ptr::null_mut(), context, 4096, 4096, super::super::dv::RESOURCE_QP) };
        assert!(chunk.is_null());
        let why = arena.take_failure().expect("a reason");
        assert!(why.contains("the GPU is full"), "{why}");
        assert!(arena.take_failure().is_none());
    }

    #[test]
    fn a_panic_does_not_reach_the_driver() {
        let arena = Arena::new(Arc::new(Panics));
        let context = (&raw const arena).cast_mut().cast();
        // SAFETY: the context is an arena that lives.
        let chunk = unsafe { allocate(std::ptr::null_mut(), context, 4096, 4096, super::super::dv::RESOURCE_QP) };
        assert!(chunk.is_null());
    }
}
