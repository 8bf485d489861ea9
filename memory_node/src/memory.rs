//! Memory that devices read and write: a node's pool, and registered buffers.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::NodeError;
use crate::verbs::{Domain, Region, RegionAccess};

/// What a node's memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Bytes of ordinary memory.
    Plain(u64),
    /// Bytes of huge pages, from the system's pool of them (`vm.nr_hugepages`).
    HugePages(u64),
    /// A file and how much of it, mapped shared: on tmpfs, hugetlbfs or a DAX device. It is made, or made longer, where
    /// that is needed; a client's grants begin as zeroes, whatever the file holds.
    File(PathBuf, u64),
}

impl Backing {
    /// Bytes asked for.
    pub fn bytes(&self) -> u64 {
        match self {
            Backing::Plain(bytes) | Backing::HugePages(bytes) | Backing::File(_, bytes) => *bytes,
        }
    }
}

/// Mapped memory.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Holds the lock on a file that is served.
    _file: Option<File>,
}

// SAFETY: the memory belongs to the mapping, which hands out raw pointers only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn map(bytes: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the system chooses a place that is free; the descriptor, if any, is the caller's.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Mapping {
                start,
                bytes,
                _file: None,
            }),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Ordinary memory, zeroed.
    pub fn plain(bytes: usize) -> Result<Mapping, NodeError> {
        Mapping::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).map_err(|source| NodeError::Memory {
            bytes: bytes as u64,
            what: "memory",
            hint: "ask for less",
            source,
        })
    }

    /// A node's memory.
    pub fn of(backing: &Backing) -> Result<Mapping, NodeError> {
        let bytes = usize::try_from(backing.bytes()).unwrap_or(usize::MAX);
        match backing {
            Backing::Plain(_) => Mapping::plain(bytes),
            Backing::HugePages(_) => {
                const HUGE_PAGE: usize = 2 << 20;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
                Mapping::map(bytes.next_multiple_of(HUGE_PAGE), flags, -1).map_err(|source| NodeError::Memory {
                    bytes: bytes as u64,
                    what: "huge pages",
                    hint: "reserve them first: sysctl vm.nr_hugepages=N, with pages of 2 MiB",
                    source,
                })
            }
            Backing::File(path, _) => {
                let failed = |what, source| NodeError::File {
                    path: path.clone(),
                    what,
                    source,
                };
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(path);
                let file = file.map_err(|source| failed("it cannot be opened for reading and writing", source))?;
                // Two nodes over one file would grant the same memory twice.
                // SAFETY: the descriptor is open; the call touches no memory.
                if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
                    let why = "another memory node serves it, or it cannot be locked";
                    return Err(failed(why, io::Error::last_os_error()));
                }
                let known = file
                    .metadata()
                    .map_err(|source| failed("it cannot be looked at", source))?;
                // A DAX device has its length already.
                if !known.file_type().is_char_device() {
                    if known.len() < bytes as u64 {
                        let longer = file.set_len(bytes as u64);
                        longer.map_err(|source| failed("it cannot be made long enough", source))?;
                    }
                    // Space that is missing later would end the process by a signal.
                    // SAFETY: the descriptor is open; the call touches no memory.
                    let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
                    if error != 0 && error != libc::EOPNOTSUPP && error != libc::EINVAL {
                        return Err(failed("there is no room for it", io::Error::from_raw_os_error(error)));
                    }
                }
                let mut mapping = Mapping::map(bytes, libc::MAP_SHARED, file.as_raw_fd())
                    .map_err(|source| failed("it cannot be mapped", source))?;
                mapping._file = Some(file);
                Ok(mapping)
            }
        }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first of `bytes` bytes at `offset`, where all are inside.
    pub fn place(&self, offset: usize, bytes: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        // SAFETY: inside the mapping.
        inside.then(|| unsafe { self.start.as_ptr().add(offset) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and the thread that registered it keeps it alive until the region is gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Memory that own requests read and write.
#[derive(Debug)]
pub struct Buffer {
    // Before the mapping: no key outlives the memory.
    region: Region,
    mapping: Mapping,
}

impl Buffer {
    pub fn new(domain: &Arc<Domain>, bytes: usize) -> Result<Buffer, NodeError> {
        let mapping = Mapping::plain(bytes.max(1))?;
        let start = mapping.start.as_ptr();
        // SAFETY: the mapping lives until the region is gone, see the order of the fields; it is touched by copies only.
        let region = unsafe { Region::register(domain, start, mapping.bytes, RegionAccess::Local) }?;
        Ok(Buffer { region, mapping })
    }

    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    pub fn place(&self, offset: usize, bytes: usize) -> Option<*mut u8> {
        self.mapping.place(offset, bytes)
    }

    /// Copies into the buffer; false where that is outside. No request of the device uses the place meanwhile, or it
    /// sends a mixture.
    pub fn fill(&self, offset: usize, data: &[u8]) -> bool {
        let Some(place) = self.place(offset, data.len()) else {
            return false;
        };
        // SAFETY: inside the mapping, which no reference points into, so it cannot overlap with `data`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), place, data.len()) };
        true
    }

    /// Copies out of the buffer; false where that is outside.
    pub fn copy(&self, offset: usize, out: &mut [u8]) -> bool {
        let Some(place) = self.place(offset, out.len()) else {
            return false;
        };
        // SAFETY: as above. What the device wrote before its completion was polled is there.
        unsafe { std::ptr::copy_nonoverlapping(place, out.as_mut_ptr(), out.len()) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_inside() {
        let mapping = Mapping::plain(8192).unwrap();
        assert!(mapping.place(0, 8192).is_some() && mapping.place(8191, 1).is_some());
        assert!(mapping.place(8192, 1).is_none() && mapping.place(usize::MAX, 2).is_none());
    }

    #[test]
    fn a_file_is_made_long_enough_and_shared() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let mapping = Mapping::of(&Backing::File(path.clone(), 8192)).unwrap();
        let second = Mapping::of(&Backing::File(path.clone(), 8192))
            .err()
            .unwrap()
            .to_string();
        assert!(second.contains("another memory node"), "{second}");
        // SAFETY: the byte is inside the mapping.
        unsafe { mapping.place(4096, 1).unwrap().write(7) };
        drop(mapping);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), bytes[4096]), (8192, 7));
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let text = Mapping::of(&Backing::File("no/such/folder/pool".into(), 4096))
            .unwrap_err()
            .to_string();
        assert!(text.starts_with("cannot use no/such/folder/pool as memory"), "{text}");
        let text = Mapping::of(&Backing::Plain(1 << 60)).unwrap_err().to_string();
        assert!(text.contains("1152921504606846976 bytes of memory"), "{text}");
        let text = Mapping::of(&Backing::HugePages(1 << 50)).unwrap_err().to_string();
        assert!(text.contains("vm.nr_hugepages"), "{text}");
    }
}
