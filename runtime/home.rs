//! Where a region's pages live: memory of this host, or of memory nodes across the network.

use std::{
    mem::ManuallyDrop,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use bytemuck::Pod;
use gpuvm_memory_node::{Grant, GrantAccess, NodeClient, NodeError};

/// Pages that are copied to or from several nodes at a time.
const WINDOW_PAGES: u64 = 1024;

/// Memory of this host. `base` is valid for `bytes` until `owner` is dropped, or, for borrowed memory, until the scope
/// that lent it ends.
pub(crate) struct HostMemory {
    pub base: *mut u8,
    pub bytes: u64,
    /// The `Vec` that owns the memory, or nothing when it is borrowed.
    pub owner: Option<Box<dyn Send + Sync>>,
}

/// A vector given away as raw parts, so that no reference to its elements exists while the NIC writes them.
struct OwnedVec<T> {
    base: *mut T,
    length: usize,
    capacity: usize,
}

// SAFETY: an OwnedVec is the vector it was made of, whose elements are Pod: Copy, so dropping them does nothing; it hands out nothing.
unsafe impl<T: Pod> Send for OwnedVec<T> {}
// SAFETY: as for Send: a shared OwnedVec has no methods.
unsafe impl<T: Pod> Sync for OwnedVec<T> {}

impl<T> Drop for OwnedVec<T> {
    fn drop(&mut self) {
        // SAFETY: the parts are those of the vector that `HostMemory::of_vec` took apart, and this runs once.
        drop(unsafe { Vec::from_raw_parts(self.base, self.length, self.capacity) });
    }
}

impl HostMemory {
    pub fn of_vec<T: Pod>(data: Vec<T>) -> Self {
        let mut data = ManuallyDrop::new(data);
        let owned = OwnedVec {
            base: data.as_mut_ptr(),
            length: data.len(),
            capacity: data.capacity(),
        };
        Self {
            base: owned.base.cast(),
            bytes: (owned.length * size_of::<T>()) as u64,
            owner: Some(Box::new(owned)),
        }
    }

    /// The addresses it covers.
    pub fn span(&self) -> Range<u64> {
        self.base as u64..self.base as u64 + self.bytes
    }
}

/// Memory of one node or more: page `p` is page `p / n` of grant `p % n`.
pub(crate) struct NodeMemory {
    pub grants: Vec<Grant>,
    page_bytes: u64,
}

/// A part of a copy.
enum Piece {
    /// Bytes of one page: its grant, the offset there, and the bytes of the host's buffer.
    Part {
        grant: usize,
        offset: u64,
        buffer: Range<usize>,
    },
    /// Whole pages, from this one on, and where they begin in the host's buffer.
    Pages { first: u64, count: u64, buffer: usize },
}

impl NodeMemory {
    /// Zeroed memory for `bytes` bytes, striped over as many of `nodes` as there are pages.
    pub fn zeroed(nodes: &[Arc<NodeClient>], bytes: u64, page_bytes: u64, read_only: bool) -> Result<Self, NodeError> {
        let pages = bytes.div_ceil(page_bytes);
        let stripes = (nodes.len() as u64).min(pages);
        let access = if read_only {
            GrantAccess::ReadOnly
        } else {
            GrantAccess::ReadWrite
        };
        let grants = (0..stripes).map(|stripe| {
            let here = (pages - stripe).div_ceil(stripes);
            nodes[stripe as usize].grant(here * page_bytes, access)
        });
        Ok(Self {
            grants: grants.collect::<Result<_, _>>()?,
            page_bytes,
        })
    }

    /// No further host may write; the keys change.
    pub fn seal(&self) -> Result<(), NodeError> {
        self.grants.iter().try_for_each(Grant::seal)
    }

    fn stripes(&self) -> u64 {
        self.grants.len() as u64
    }

    /// Pages of `first..first + count` that lie in `grant`: the first of them, and how many.
    fn pages_of(&self, grant: usize, first: u64, count: u64) -> (u64, u64) {
        let stripes = self.stripes();
        let start = first + (grant as u64 + stripes - first % stripes) % stripes;
        (start, (first + count).saturating_sub(start).div_ceil(stripes))
    }

    /// Cuts the copy of `bytes` bytes at `offset` into pieces.
    fn pieces(&self, offset: u64, bytes: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (page, end) = (self.page_bytes, offset + bytes as u64);
        let mut at = offset;
        while at < end {
            let (number, inside) = (at / page, at % page);
            let buffer = (at - offset) as usize;
            let whole = ((end - at) / page).min(WINDOW_PAGES);
            if inside != 0 || whole == 0 {
                let here = (page - inside).min(end - at);
                pieces.push(Piece::Part {
                    grant: (number % self.stripes()) as usize,
                    offset: number / self.stripes() * page + inside,
                    buffer: buffer..buffer + here as usize,
                });
                at += here;
            } else {
                pieces.push(Piece::Pages {
                    first: number,
                    count: whole,
                    buffer,
                });
                at += whole * page;
            }
        }
        pieces
    }

    /// Copies bytes out. What kernels wrote must have been flushed.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), NodeError> {
        if let [grant] = &self.grants[..] {
            return grant.read(offset, out);
        }
        let page = self.page_bytes as usize;
        for piece in self.pieces(offset, out.len()) {
            match piece {
                Piece::Part { grant, offset, buffer } => self.grants[grant].read(offset, &mut out[buffer])?,
                Piece::Pages { first, count, buffer } => {
                    for (index, grant) in self.grants.iter().enumerate() {
                        let (start, here) = self.pages_of(index, first, count);
                        let mut gathered = vec![0; here as usize * page];
                        grant.read(start / self.stripes() * self.page_bytes, &mut gathered)?;
                        for (turn, source) in gathered.chunks_exact(page).enumerate() {
                            let number = start + turn as u64 * self.stripes();
                            let at = buffer + (number - first) as usize * page;
                            out[at..at + page].copy_from_slice(source);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Copies bytes in. No frame may hold a page of theirs.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), NodeError> {
        if let [grant] = &self.grants[..] {
            return grant.write(offset, data);
        }
        let page = self.page_bytes as usize;
        for piece in self.pieces(offset, data.len()) {
            match piece {
                Piece::Part { grant, offset, buffer } => self.grants[grant].write(offset, &data[buffer])?,
                Piece::Pages { first, count, buffer } => {
                    for (index, grant) in self.grants.iter().enumerate() {
                        let (start, here) = self.pages_of(index, first, count);
                        let mut gathered = Vec::with_capacity(here as usize * page);
                        for turn in 0..here {
                            let number = start + turn * self.stripes();
                            let at = buffer + (number - first) as usize * page;
                            gathered.extend_from_slice(&data[at..at + page]);
                        }
                        grant.write(start / self.stripes() * self.page_bytes, &gathered)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The home of a region.
pub(crate) enum Home {
    /// Memory of this host, and its key; none when it is empty.
    Host(HostMemory, Option<gpuvm_nic::MemoryKey>),
    /// Memory of nodes; given back when the region ends.
    Nodes(Mutex<Option<NodeMemory>>),
}

impl Home {
    /// Gives the nodes' memory back.
    pub fn leave_nodes(&self) {
        if let Home::Nodes(memory) = self {
            drop(memory.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
