//! Pieces of GPUs' memory, and addresses at which several GPUs reach them.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::sys::{CUmemAccessDesc, CUmemGenericAllocationHandle};
use parking_lot::Mutex;

use super::calls::cu;
use super::core::{Core, Retired};
use super::memory::{DevicePool, GRANULE, check_size, writable, writable_by_host};
use crate::api::{AddressSpace, Piece};
use crate::error::GpuError;
use crate::memory::Release;

/// One handle of memory.
pub(crate) struct CudaPiece {
    core: Arc<Core>,
    handle: CUmemGenericAllocationHandle,
    /// The host's node whose memory it is; none of a GPU's.
    node: Option<i32>,
}

impl CudaPiece {
    /// Of the memory of the pool's GPU.
    pub(crate) fn new(pool: &DevicePool) -> Result<Self, GpuError> {
        let bytes = pool.piece_bytes()?;
        Ok(Self {
            handle: pool.create(bytes, pool.core.info.ordinal, false)?,
            core: Arc::clone(&pool.core),
            node: None,
        })
    }

    /// Of the host's memory next to the pool's GPU.
    pub(crate) fn of_host(pool: &DevicePool) -> Result<Self, GpuError> {
        let bytes = pool.piece_bytes()?;
        let (handle, node) = pool.create_of_host(bytes)?;
        Ok(Self {
            core: Arc::clone(&pool.core),
            handle,
            node: Some(node),
        })
    }
}

impl Piece for CudaPiece {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for CudaPiece {
    fn drop(&mut self) {
        self.core.retire(match self.node {
            None => Retired::Piece(self.handle),
            Some(_) => Retired::HostPiece(self.handle),
        });
    }
}

/// Reserved addresses, entered into the books of the GPU that reserved them.
pub(crate) struct CudaSpace {
    core: Arc<Core>,
    pool: Arc<DevicePool>,
    addr: u64,
    bytes: u64,
    piece_bytes: u64,
    users: Vec<CUmemAccessDesc>,
    /// What lies at each offset.
    placed: Mutex<BTreeMap<u64, Arc<dyn Piece>>>,
}

// SAFETY: `CUmemAccessDesc` is plain data.
unsafe impl Send for CudaSpace {}
// SAFETY: as for Send.
unsafe impl Sync for CudaSpace {}

impl CudaSpace {
    /// Addresses for `bytes` bytes and more, whole pieces, at which the pool's GPU and those neighbours reach pieces.
    pub(crate) fn reserve(pool: &Arc<DevicePool>, bytes: u64, beside: &[u32]) -> Result<Self, GpuError> {
        let core = &pool.core;
        check_size(bytes, GRANULE)?;
        beside.iter().try_for_each(|ordinal| pool.check_peer(*ordinal))?;
        let piece_bytes = pool.piece_bytes()?;
        let Some(bytes) = bytes.checked_next_multiple_of(piece_bytes).filter(|b| *b < 1 << 47) else {
            return Err(pool.out_of_memory(bytes));
        };
        let mut addr = 0;
        // SAFETY: an out-value; nothing is mapped there.
        core.check(format_args!("reserve addresses for {bytes} bytes"), unsafe {
            cu::cuMemAddressReserve(&raw mut addr, bytes as usize, piece_bytes as usize, 0, 0)
        })?;
        pool.enter_space(addr, bytes);
        let users = std::iter::once(core.info.ordinal).chain(beside.iter().copied());
        Ok(Self {
            core: Arc::clone(core),
            pool: Arc::clone(pool),
            addr,
            bytes,
            piece_bytes,
            users: users.map(writable).collect(),
            placed: Mutex::default(),
        })
    }

    fn unmap(&self, offset: u64) -> Result<(), GpuError> {
        // SAFETY: exactly what was mapped there, which no kernel uses, as the callers of `place` and `take` promise.
        self.core.check("take memory from its addresses", unsafe {
            cu::cuMemUnmap(self.addr + offset, self.piece_bytes as usize)
        })
    }
}

impl AddressSpace for CudaSpace {
    fn addr(&self) -> u64 {
        self.addr
    }

    fn place(&self, pieces: &[(u64, Arc<dyn Piece>)]) -> Result<(), GpuError> {
        self.core.enter()?;
        let size = self.piece_bytes;
        let mut placed = self.placed.lock();
        let mut opened: Vec<(u64, Option<i32>)> = Vec::with_capacity(pieces.len());
        for (offset, piece) in pieces {
            let addr = self.addr.saturating_add(*offset);
            let inside = offset.is_multiple_of(size) && offset.checked_add(size).is_some_and(|end| end <= self.bytes);
            let Some(own) = piece.as_any().downcast_ref::<CudaPiece>().filter(|_| inside) else {
                return Err(GpuError::BadAddress { addr, bytes: size });
            };
            if placed.remove(offset).is_some() {
                self.unmap(*offset)?;
            }
            // SAFETY: nothing is mapped there; the handle lives as long as `placed` holds the piece.
            self.core.check("give memory its addresses", unsafe {
                cu::cuMemMap(addr, size as usize, 0, own.handle, 0)
            })?;
            placed.insert(*offset, Arc::clone(piece));
            opened.push((*offset, own.node));
        }
        // A run of one place at a time: each call costs tens of microseconds.
        opened.sort_unstable();
        for run in opened.chunk_by(|a, b| a.0 + size == b.0 && a.1 == b.1) {
            let (addr, bytes) = (self.addr + run[0].0, run.len() as u64 * size);
            // The host reaches what is its own, too: a copy may be made by the processor.
            let users: Vec<_> = self
                .users
                .iter()
                .copied()
                .chain(run[0].1.map(writable_by_host))
                .collect();
            // SAFETY: all of it is mapped; the descriptions live across the call.
            self.core.check("open memory for GPUs", unsafe {
                cu::cuMemSetAccess(addr, bytes as usize, users.as_ptr(), users.len())
            })?;
        }
        Ok(())
    }

    fn take(&self, offsets: &[u64]) -> Result<(), GpuError> {
        self.core.enter()?;
        let mut placed = self.placed.lock();
        for offset in offsets {
            if placed.contains_key(offset) {
                self.unmap(*offset)?;
                placed.remove(offset);
            }
        }
        Ok(())
    }
}

impl Drop for CudaSpace {
    fn drop(&mut self) {
        self.pool.release(self.addr);
        let placed = std::mem::take(self.placed.get_mut());
        self.core.retire(Retired::Space {
            addr: self.addr,
            bytes: self.bytes,
            piece_bytes: self.piece_bytes,
            placed: placed.keys().copied().collect(),
        });
        // Handles may be released before they are unmapped: the driver keeps the memory until then.
        drop(placed);
    }
}
