//! Where a region's pages live: memory of this host, of a neighbour GPU, or of memory nodes across the network.

use std::{
    fs::File,
    mem::ManuallyDrop,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use bytemuck::Pod;
use gpuvm_gpu::{DeviceMemory, HostRegistration};
use gpuvm_memory_node::{Grant, GrantAccess, NodeClient, NodeError};
use gpuvm_nic::{MemoryKey, Nic, NicError};

/// Pages that are copied to or from several nodes at a time.
const WINDOW_PAGES: u64 = 1024;

/// Memory of this host. `base` is valid for `bytes` until `owner` is dropped, or, for borrowed memory, until the scope
/// that lent it ends.
pub(crate) struct HostMemory {
    pub base: *mut u8,
    pub bytes: u64,
    pub owner: Owner,
}

/// What keeps a region's host memory.
pub(crate) enum Owner {
    /// The caller, until its scope ends.
    Borrowed,
    /// A `Vec` of the region's.
    Vec { _vec: Box<dyn Send + Sync> },
    /// System pages of the region's.
    Pages { _map: memmap2::MmapRaw },
    /// A map of a file.
    File(FileMap),
}

/// A shared map of a whole file.
pub(crate) struct FileMap {
    map: memmap2::MmapRaw,
    path: PathBuf,
    writable: bool,
    /// Device and number of the file, which its names share.
    identity: (u64, u64),
}

impl FileMap {
    pub fn of(file: &File, path: &Path, writable: bool) -> std::io::Result<Self> {
        let options = memmap2::MmapOptions::new();
        let map = match writable {
            true => options.map_raw(file)?,
            false => options.map_raw_read_only(file)?,
        };
        let about = file.metadata()?;
        Ok(Self {
            map,
            path: path.to_owned(),
            writable,
            identity: (about.dev(), about.ino()),
        })
    }

    /// Has the system write to the file what the map holds.
    pub fn sync(&self) -> std::io::Result<()> {
        if self.writable { self.map.flush() } else { Ok(()) }
    }

    /// Whether both are maps of one file.
    pub fn is_of_the_file_of(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
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
            owner: Owner::Vec { _vec: Box::new(owned) },
        }
    }

    /// Pages of the system.
    pub fn of_pages(pages: memmap2::MmapMut, bytes: u64) -> Self {
        let map = memmap2::MmapRaw::from(pages);
        Self {
            base: map.as_mut_ptr(),
            bytes,
            owner: Owner::Pages { _map: map },
        }
    }

    /// A file's map.
    pub fn of_file(map: FileMap) -> Self {
        Self {
            base: map.map.as_mut_ptr(),
            bytes: map.map.len() as u64,
            owner: Owner::File(map),
        }
    }

    /// The file behind the memory.
    pub fn file(&self) -> Option<&FileMap> {
        match &self.owner {
            Owner::File(map) => Some(map),
            _ => None,
        }
    }

    /// The addresses it covers.
    pub fn span(&self) -> Range<u64> {
        self.base as u64..self.base as u64 + self.bytes
    }
}

/// Memory of one node or more, striped.
pub(crate) struct NodeMemory {
    pub grants: Vec<Grant>,
    stripes: Stripes,
}

/// Page `p` is page `p / count` of stripe `p % count`.
#[derive(Clone, Copy)]
struct Stripes {
    count: u64,
    page_bytes: u64,
}

impl Stripes {
    /// Stripes of a region of `pages` pages over up to `most` homes, and the pages of each.
    fn over(pages: u64, most: u64, page_bytes: u64) -> (Self, Vec<u64>) {
        let count = most.min(pages);
        let sizes = (0..count).map(|stripe| (pages - stripe).div_ceil(count)).collect();
        (Self { count, page_bytes }, sizes)
    }

    /// Pages of `first..first + count` that lie in `grant`: the first of them, and how many.
    fn pages_of(&self, grant: usize, first: u64, count: u64) -> (u64, u64) {
        let stripes = self.count;
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
                    grant: (number % self.count) as usize,
                    offset: number / self.count * page + inside,
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

    /// Where a page lies in its stripe, in bytes.
    fn offset_of(&self, page: u64) -> u64 {
        page / self.count * self.page_bytes
    }
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
        let (stripes, sizes) = Stripes::over(bytes.div_ceil(page_bytes), nodes.len() as u64, page_bytes);
        let access = if read_only {
            GrantAccess::ReadOnly
        } else {
            GrantAccess::ReadWrite
        };
        let grants = nodes.iter().zip(sizes);
        let grants = grants.map(|(node, pages)| node.grant(pages * page_bytes, access));
        Ok(Self {
            grants: grants.collect::<Result<_, _>>()?,
            stripes,
        })
    }

    /// Bytes of a stripe.
    pub fn stripe_bytes(&self, stripe: usize, pages: u64) -> u64 {
        let (_, held) = self.stripes.pages_of(stripe, 0, pages);
        held * self.stripes.page_bytes
    }

    /// No further host may write; the keys change.
    pub fn seal(&self) -> Result<(), NodeError> {
        self.grants.iter().try_for_each(Grant::seal)
    }

    /// Copies bytes out. What kernels wrote must have been flushed.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), NodeError> {
        if let [grant] = &self.grants[..] {
            return grant.read(offset, out);
        }
        let stripes = self.stripes;
        let page = stripes.page_bytes as usize;
        for piece in stripes.pieces(offset, out.len()) {
            match piece {
                Piece::Part { grant, offset, buffer } => self.grants[grant].read(offset, &mut out[buffer])?,
                Piece::Pages { first, count, buffer } => {
                    for (index, grant) in self.grants.iter().enumerate() {
                        let (start, here) = stripes.pages_of(index, first, count);
                        // A node that holds none of them may be lost.
                        if here == 0 {
                            continue;
                        }
                        let mut gathered = vec![0; here as usize * page];
                        grant.read(stripes.offset_of(start), &mut gathered)?;
                        for (turn, source) in gathered.chunks_exact(page).enumerate() {
                            let number = start + turn as u64 * stripes.count;
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
        let stripes = self.stripes;
        let page = stripes.page_bytes as usize;
        for piece in stripes.pieces(offset, data.len()) {
            match piece {
                Piece::Part { grant, offset, buffer } => self.grants[grant].write(offset, &data[buffer])?,
                Piece::Pages { first, count, buffer } => {
                    for (index, grant) in self.grants.iter().enumerate() {
                        let (start, here) = stripes.pages_of(index, first, count);
                        // A node that holds none of them may be lost.
                        if here == 0 {
                            continue;
                        }
                        let mut gathered = Vec::with_capacity(here as usize * page);
                        for turn in 0..here {
                            let number = start + turn * stripes.count;
                            let at = buffer + (number - first) as usize * page;
                            gathered.extend_from_slice(&data[at..at + page]);
                        }
                        grant.write(stripes.offset_of(start), &gathered)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The home of a region.
pub(crate) enum Home {
    /// Memory of this host, and how frames are filled from it.
    Host(HostMemory, Reach),
    /// Memory of a neighbour GPU, which lanes reach by loads and stores; none when it is empty, or when the region has ended.
    Neighbour(Mutex<Option<DeviceMemory>>),
    /// Memory of nodes; given back when the region ends.
    Nodes(Mutex<Option<NodeMemory>>),
}

/// Who reaches host memory.
pub(crate) enum Reach {
    /// Nobody: it is empty.
    Nobody,
    /// The NICs, each by a key, and what moves a software NIC's bytes, in place.
    Nics(Mutex<HomeKeys>, Mutex<Option<HostRegistration>>),
    /// Lanes, in place; none once they may not any more.
    Lanes(Mutex<Option<HostRegistration>>),
}

/// The keys of one home, one a NIC, in the NICs' order.
#[derive(Default)]
pub(crate) struct HomeKeys(Vec<(Arc<dyn Nic>, MemoryKey)>);

impl HomeKeys {
    pub fn push(&mut self, nic: &Arc<dyn Nic>, key: MemoryKey) {
        self.0.push((Arc::clone(nic), key));
    }

    pub fn iter(&self) -> impl Iterator<Item = MemoryKey> {
        self.0.iter().map(|(_, key)| *key)
    }

    /// Takes the keys back. Those that could not be are left for another try.
    pub fn deregister(&mut self) -> Result<(), NicError> {
        while let Some((nic, key)) = self.0.last() {
            nic.deregister(*key)?;
            self.0.pop();
        }
        Ok(())
    }
}

impl Drop for HomeKeys {
    fn drop(&mut self) {
        // A region whose creation failed half way: nobody has used the keys.
        if let Err(error) = self.deregister() {
            tracing::error!(%error, "host memory stays registered with the NIC");
        }
    }
}

impl Home {
    /// Device address of page 0 where lanes copy pages themselves, else 0.
    pub fn direct_addr(&self) -> u64 {
        match self {
            Self::Host(_, Reach::Lanes(registration)) => {
                let registration = registration.lock().unwrap_or_else(PoisonError::into_inner);
                registration.as_ref().map_or(0, HostRegistration::device_addr)
            }
            Self::Neighbour(memory) => {
                let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                memory.as_ref().map_or(0, DeviceMemory::addr)
            }
            Self::Host(..) | Self::Nodes(_) => 0,
        }
    }

    /// Gives the nodes' memory back.
    pub fn leave_nodes(&self) {
        if let Home::Nodes(memory) = self {
            drop(memory.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where byte `at` of a region lies: its stripe and the offset there.
    fn place(at: u64, stripes: Stripes) -> (u64, u64) {
        let page = at / stripes.page_bytes;
        (
            page % stripes.count,
            page / stripes.count * stripes.page_bytes + at % stripes.page_bytes,
        )
    }

    #[test]
    fn every_byte_of_a_copy_lies_in_one_piece_at_its_place() {
        let page = 8;
        for (pages, most) in [(1, 1), (1, 3), (2, 3), (5, 2), (9, 3), (2500, 3)] {
            let (stripes, sizes) = Stripes::over(pages, most, page);
            assert_eq!(sizes.iter().sum::<u64>(), pages);
            let end = pages * page;
            for (offset, bytes) in [
                (0, end),
                (3, end - 3),
                (0, end - 5),
                (7, end.min(9) - 7),
                (end - 1, 1),
                (end / 2, 0),
            ] {
                let mut seen = vec![None; bytes as usize];
                let mut put = |at: usize, to: (u64, u64)| assert_eq!(seen[at].replace(to), None, "twice");
                for piece in stripes.pieces(offset, bytes as usize) {
                    match piece {
                        Piece::Part { grant, offset, buffer } => {
                            let start = buffer.start;
                            buffer.for_each(|at| put(at, (grant as u64, offset + (at - start) as u64)));
                        }
                        Piece::Pages { first, count, buffer } => {
                            for grant in 0..stripes.count {
                                let (start, here) = stripes.pages_of(grant as usize, first, count);
                                for byte in 0..here * page {
                                    let number = start + byte / page * stripes.count;
                                    let at = buffer as u64 + (number - first) * page + byte % page;
                                    put(at as usize, (grant, stripes.offset_of(start) + byte));
                                }
                            }
                        }
                    }
                }
                for (at, found) in (offset..).zip(seen) {
                    let (stripe, inside) = place(at, stripes);
                    assert_eq!(found, Some((stripe, inside)), "byte {at} of {pages} pages over {most}");
                    assert!(inside < sizes[stripe as usize] * page);
                }
            }
        }
    }
}
