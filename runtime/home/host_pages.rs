//! Memory of this host: of the region, of a file's map, or lent by the caller.

use std::{
    fs::File,
    mem::ManuallyDrop,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use bytemuck::Pod;

/// Bytes of a system page, or a part of one.
const SYSTEM_PAGE: u64 = 4096;

/// Memory of this host. `base` is valid for `bytes` until `owner` is dropped, or, for borrowed memory, until the scope
/// that lent it ends.
pub(crate) struct HostPages {
    pub base: *mut u8,
    pub bytes: u64,
    pub owner: Owner,
}

// SAFETY: the address is the only field that is not Send. It is dereferenced only by `InHost::read` and `InHost::write`, whose
// callers see to it that nothing else writes then, by a home that is lost under its lock, and by the NIC, which synchronises
// through completions.
unsafe impl Send for HostPages {}
// SAFETY: as for Send.
unsafe impl Sync for HostPages {}

/// What keeps a region's host memory.
pub(crate) enum Owner {
    /// The caller, until its scope ends.
    Borrowed,
    /// What the caller gave to keep it.
    Kept { _owner: Box<dyn Send + Sync> },
    /// A `Vec` of the region's.
    Vec { _vec: Box<dyn Send + Sync> },
    /// System pages of the region's.
    Pages { _map: memmap2::MmapRaw },
    /// A map of a file.
    File(FileMap),
}

/// A shared map of a file's bytes.
pub(crate) struct FileMap {
    map: memmap2::MmapRaw,
    path: PathBuf,
    /// Bytes of the file. They may begin within a system page.
    pub span: Range<u64>,
    writable: bool,
    /// Device and number of the file, which its names share.
    pub identity: (u64, u64),
}

impl FileMap {
    /// Of the file's bytes `span`, which are there, are some, and fit into an address space.
    pub fn of(file: &File, path: &Path, span: Range<u64>, writable: bool) -> std::io::Result<Self> {
        let mut options = memmap2::MmapOptions::new();
        options.offset(span.start).len((span.end - span.start) as usize);
        let map = match writable {
            true => options.map_raw(file)?,
            false => options.map_raw_read_only(file)?,
        };
        let about = file.metadata()?;
        Ok(Self {
            map,
            path: path.to_owned(),
            span,
            writable,
            identity: (about.dev(), about.ino()),
        })
    }

    /// Has the system write to the file what the map holds.
    pub fn sync(&self) -> std::io::Result<()> {
        if self.writable { self.map.flush() } else { Ok(()) }
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
        // SAFETY: the parts are those of the vector that `HostPages::of_vec` took apart, and this runs once.
        drop(unsafe { Vec::from_raw_parts(self.base, self.length, self.capacity) });
    }
}

impl HostPages {
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

    /// Memory of somebody else's.
    pub fn borrowed(base: *mut u8, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            owner: Owner::Borrowed,
        }
    }

    /// Memory that `owner` keeps.
    pub fn kept_by(owner: Box<dyn Send + Sync>, base: *mut u8, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            owner: Owner::Kept { _owner: owner },
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

    /// Bytes of it that a GPU may pin: of system pages that are all its own the rest of the last one as well, which would be pinned as one that others
    /// share otherwise, and no copy goes from the one kind into the other.
    pub fn pinned_bytes(&self) -> u64 {
        match self.owner {
            Owner::Pages { .. } => self.bytes.next_multiple_of(SYSTEM_PAGE),
            _ => self.bytes,
        }
    }

    /// The addresses it covers.
    pub fn span(&self) -> Range<u64> {
        self.base as u64..self.base as u64 + self.bytes
    }
}
