//! Pieces of simulated memory, and addresses at which lanes of all simulated GPUs of this process reach them: parts of a file in memory,
//! mapped where they are placed.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr;
use std::sync::Arc;

use gpuvm_gpu::back_end::{Ranges, Release as _};
use gpuvm_gpu::{AddressSpace, GpuError, Piece};
use parking_lot::Mutex;

use super::memory::{Memory, Opened, PieceFile};

/// Bytes of a piece: small, so that tests have many.
pub(crate) const PIECE_BYTES: u64 = 64 << 10;
const FILE_NAME: &CStr = c"gpuvm-pieces";

/// Addresses of host memory that pieces may have: the system gives memory to what is touched.
const HOST_BYTES: u64 = 1 << 40;

/// A part of a file.
struct SimPiece {
    memory: Arc<Memory>,
    file: Arc<OwnedFd>,
    at: u64,
    of_host: bool,
}

impl PieceFile {
    /// A piece of the memory of `memory`, counted among what is allocated there.
    pub(crate) fn piece(memory: &Arc<Memory>) -> Result<Arc<dyn Piece>, GpuError> {
        let mut opened = memory.pieces.0.lock();
        let opened = match &mut *opened {
            Some(opened) => opened,
            none => none.insert(open(memory.capacity())?),
        };
        memory.take_for_piece(PIECE_BYTES)?;
        let Some(at) = opened.holes.take(PIECE_BYTES, PIECE_BYTES) else {
            memory.give_of_piece(PIECE_BYTES);
            return Err(memory.out_of_memory(PIECE_BYTES));
        };
        Ok(Arc::new(SimPiece {
            memory: Arc::clone(memory),
            file: Arc::clone(&opened.file),
            at,
            of_host: false,
        }))
    }

    /// A piece of host memory. A simulated GPU reaches it as fast as its own.
    pub(crate) fn host_piece(memory: &Arc<Memory>) -> Result<Arc<dyn Piece>, GpuError> {
        let mut opened = memory.host_pieces.0.lock();
        let opened = match &mut *opened {
            Some(opened) => opened,
            none => none.insert(open(HOST_BYTES)?),
        };
        let asked = PIECE_BYTES;
        let at = opened
            .holes
            .take(asked, asked)
            .ok_or(GpuError::OutOfHostMemory { asked })?;
        Ok(Arc::new(SimPiece {
            memory: Arc::clone(memory),
            file: Arc::clone(&opened.file),
            at,
            of_host: true,
        }))
    }
}

/// A file that has room for so many bytes, rounded up to pieces.
fn open(capacity: u64) -> Result<Opened, GpuError> {
    let bytes = capacity.next_multiple_of(PIECE_BYTES);
    let failed = || GpuError::io("make a file in memory", None, std::io::Error::last_os_error());
    // SAFETY: the name is a C string; the descriptor is new and nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(FILE_NAME.as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(failed());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: the descriptor is ours.
    if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as i64) } != 0 {
        return Err(failed());
    }
    Ok(Opened {
        file: Arc::new(file),
        holes: Ranges::new(PIECE_BYTES, bytes - PIECE_BYTES.min(bytes)),
    })
}

impl Piece for SimPiece {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SimPiece {
    fn drop(&mut self) {
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a part of the file that is mapped nowhere: spaces hold what they map. Its memory goes back; failing costs memory alone.
        let _ = unsafe { libc::fallocate(self.file.as_raw_fd(), punch, self.at as i64, PIECE_BYTES as i64) };
        let file = match self.of_host {
            true => &self.memory.host_pieces,
            false => &self.memory.pieces,
        };
        if let Some(opened) = &mut *file.0.lock() {
            opened.holes.give(self.at, PIECE_BYTES);
        }
        if !self.of_host {
            self.memory.give_of_piece(PIECE_BYTES);
        }
    }
}

/// Reserved addresses.
pub(crate) struct SimSpace {
    memory: Arc<Memory>,
    addr: u64,
    /// Of the mapping, which begins before `addr` where that is aligned.
    mapping: (u64, u64),
    bytes: u64,
    placed: Mutex<BTreeMap<u64, Arc<dyn Piece>>>,
}

impl SimSpace {
    /// Addresses for `bytes` bytes; `memory` answers for host accesses there.
    pub(crate) fn reserve(memory: &Arc<Memory>, bytes: u64) -> Result<Self, GpuError> {
        let bad = GpuError::BadAllocation {
            bytes,
            align: PIECE_BYTES,
            cause: "zero bytes, or more than an address space".into(),
        };
        let Some(bytes) = bytes
            .checked_next_multiple_of(PIECE_BYTES)
            .filter(|b| *b > 0 && *b < 1 << 46)
        else {
            return Err(bad);
        };
        let mapped = bytes + PIECE_BYTES;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: fresh addresses of the system's choice touch no memory in use.
        let start = unsafe { libc::mmap(ptr::null_mut(), mapped as usize, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            let what = format!("reserve addresses for {bytes} bytes");
            return Err(GpuError::io(&what, None, std::io::Error::last_os_error()));
        }
        let addr = (start as u64).next_multiple_of(PIECE_BYTES);
        memory.enter_space(addr, bytes);
        Ok(Self {
            memory: Arc::clone(memory),
            addr,
            mapping: (start as u64, mapped),
            bytes,
            placed: Mutex::default(),
        })
    }

    /// Maps a piece at an offset inside, or what no lane reaches.
    fn map(&self, offset: u64, piece: Option<&SimPiece>) -> Result<(), GpuError> {
        let fixed = libc::MAP_FIXED;
        let (prot, flags, fd, at) = match piece {
            Some(piece) => {
                let (prot, fd) = (libc::PROT_READ | libc::PROT_WRITE, piece.file.as_raw_fd());
                (prot, libc::MAP_SHARED | fixed, fd, piece.at)
            }
            None => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                (libc::PROT_NONE, flags | fixed, -1, 0)
            }
        };
        let addr = (self.addr + offset) as *mut libc::c_void;
        // SAFETY: inside our own addresses, which no lane uses meanwhile; a part of the file is the piece's.
        let mapped = unsafe { libc::mmap(addr, PIECE_BYTES as usize, prot, flags, fd, at as i64) };
        if mapped == libc::MAP_FAILED {
            return Err(GpuError::io("place memory", None, std::io::Error::last_os_error()));
        }
        Ok(())
    }
}

impl AddressSpace for SimSpace {
    fn addr(&self) -> u64 {
        self.addr
    }

    fn place(&self, pieces: &[(u64, Arc<dyn Piece>)]) -> Result<(), GpuError> {
        let mut placed = self.placed.lock();
        for (offset, piece) in pieces {
            let addr = self.addr.saturating_add(*offset);
            let end = offset.checked_add(PIECE_BYTES);
            let inside = offset.is_multiple_of(PIECE_BYTES) && end.is_some_and(|end| end <= self.bytes);
            let Some(own) = piece.as_any().downcast_ref::<SimPiece>().filter(|_| inside) else {
                let bytes = PIECE_BYTES;
                return Err(GpuError::BadAddress { addr, bytes });
            };
            let at = (*offset, PIECE_BYTES);
            self.memory
                .remap(self.addr, at, true, || self.map(*offset, Some(own)))?;
            placed.insert(*offset, Arc::clone(piece));
        }
        Ok(())
    }

    fn take(&self, offsets: &[u64]) -> Result<(), GpuError> {
        let mut placed = self.placed.lock();
        for offset in offsets.iter().filter(|offset| **offset < self.bytes) {
            if placed.contains_key(offset) {
                let at = (*offset, PIECE_BYTES);
                self.memory.remap(self.addr, at, false, || self.map(*offset, None))?;
                placed.remove(offset);
            }
        }
        Ok(())
    }
}

impl Drop for SimSpace {
    fn drop(&mut self) {
        self.memory.release(self.addr);
        let (start, bytes) = self.mapping;
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { libc::munmap(start as *mut _, bytes as usize) };
    }
}
