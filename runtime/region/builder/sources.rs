//! Where a new region's data comes from: a builder's last calls.

use std::{io::Read, path::Path};

use bytemuck::Pod;

use super::{Integrity, Region, RegionBuilder};
use crate::{
    element::Untyped,
    error::{Error, Result},
    home::{FileMap, HostPages, Owner},
    plan::TransportKind,
    region::RawRegion,
};

/// Huge pages are asked for from this size on.
const HUGE_FROM: usize = 64 << 10;

/// Where GPU threads copy pages themselves, a vector of fewer bytes is copied rather than pinned where it lies: a system page
/// that it shares with other memory is a pinned piece of its own, and one copy would cross from one piece into another.
const COPIED_BELOW: usize = 2 << 20;

/// Elements on their way into a region.
pub(super) enum Data<T> {
    Vec(Vec<T>),
    /// Exactly the region's elements.
    Pages(memmap2::MmapMut),
}

impl<T: Pod> Data<T> {
    pub fn elements(&self) -> &[T] {
        match self {
            Self::Vec(data) => data,
            Self::Pages(map) => bytemuck::cast_slice(map),
        }
    }

    pub fn elements_mut(&mut self) -> &mut [T] {
        match self {
            Self::Vec(data) => data,
            Self::Pages(map) => bytemuck::cast_slice_mut(map),
        }
    }

    pub fn into_memory(self) -> HostPages {
        match self {
            Self::Vec(data) => HostPages::of_vec(data),
            Self::Pages(map) => {
                let bytes = map.len() as u64;
                HostPages::of_pages(map, bytes)
            }
        }
    }
}

impl<E> RegionBuilder<E> {
    /// Zeroed memory in system pages of its own: pages that nobody touches take no memory.
    pub(super) fn zeros<T: Pod>(&self) -> Result<Data<T>> {
        let length = self.check()?;
        let bytes = length * self.element.bytes();
        if bytes == 0 {
            return Ok(Data::Vec(Vec::new()));
        }
        let map = memmap2::MmapOptions::new().len(bytes).map_anon();
        let map = map.map_err(|source| self.no_room(length, source))?;
        if bytes >= HUGE_FROM
            && let Err(error) = map.advise(memmap2::Advice::HugePage)
        {
            tracing::debug!(%error, "no huge pages for region `{}`", self.label());
        }
        Ok(Data::Pages(map))
    }

    /// Refuses a number of elements that is not the region's.
    fn must_be_all(&self, given: usize) -> Result<()> {
        if given as u64 == self.length {
            return Ok(());
        }
        let reason = format!("{given} elements were given for a length of {}", self.length);
        Err(Error::Region {
            region: self.label(),
            reason,
        })
    }

    fn no_room(&self, length: usize, source: std::io::Error) -> Error {
        Error::Data {
            region: self.label(),
            from: format!("{length} elements into host memory"),
            source,
        }
    }

    /// Zeros.
    ///
    /// # Errors
    /// [`Error::Region`] for an element size or a length that cannot be, [`Error::Gpu`] or [`Error::Nic`] when memory or keys are short.
    pub fn zeroed(self) -> Result<Region<E>> {
        if self.homed_at_nodes() {
            self.check()?;
            let (memory, mirror) = self.node_memory()?;
            let checksums = self.checksums_of_zeros();
            return self.finish_at_nodes(memory, mirror, checksums);
        }
        if let Some(ordinal) = self.neighbour {
            self.check()?;
            let memory = self.neighbour_memory(ordinal)?;
            return self.create_at_neighbour(memory);
        }
        let data = self.zeros::<u8>()?;
        self.finish(data)
    }

    /// The bytes that `reader` gives, in this machine's byte order. It is read to the region's length, no further.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), and [`Error::Data`] when reading fails or ends early.
    pub fn from_reader(self, reader: impl Read) -> Result<Region<E>> {
        self.read_from(reader, "the reader".into())
    }

    fn read_from(self, mut reader: impl Read, from: String) -> Result<Region<E>> {
        let mut data = self.zeros::<u8>()?;
        reader.read_exact(data.elements_mut()).map_err(|source| Error::Data {
            region: self.label(),
            from,
            source,
        })?;
        self.finish(data)
    }

    /// The bytes of a file, which must be exactly as long as the region.
    ///
    /// # Errors
    /// As [`from_reader`](Self::from_reader), and [`Error::Region`] for a file of another size.
    pub fn from_file(self, path: impl AsRef<Path>) -> Result<Region<E>> {
        let path = path.as_ref();
        let file = self.open(path, false)?;
        self.read_from(file, path.display().to_string())
    }

    /// Opens a file that must be exactly as long as the region.
    fn open(&self, path: &Path, writable: bool) -> Result<std::fs::File> {
        let length = self.check()?;
        let wrap = |source| self.cannot_read(path, source);
        let file = std::fs::OpenOptions::new().read(true).write(writable).open(path);
        let file = file.map_err(wrap)?;
        let bytes = file.metadata().map_err(wrap)?.len();
        let wanted = (length * self.element.bytes()) as u64;
        if bytes != wanted {
            let reason = format!("{} has {bytes} bytes, the region {wanted}", path.display());
            return Err(Error::Region {
                region: self.label(),
                reason,
            });
        }
        Ok(file)
    }

    fn cannot_read(&self, path: &Path, source: std::io::Error) -> Error {
        Error::Data {
            region: self.label(),
            from: path.display().to_string(),
            source,
        }
    }

    /// The pages of a file, in place: nothing is read before a kernel touches it. The file must be exactly as long as the
    /// region, which is read-only. While the region lives nobody may write the file or make it shorter: kernels would see
    /// any mixture, and a page that is gone ends the process.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file); [`Error::Gpu`] when the GPU cannot reach memory that is read-only.
    pub fn map_file(self, path: impl AsRef<Path>) -> Result<Region<E>> {
        self.read_only().mapped(path.as_ref(), false)
    }

    /// The pages of a file, in place, which kernels may write: pages are written back into it, and a [`flush`](Region::flush) has the
    /// system store it, as has the region's end.
    ///
    /// # Errors
    /// As [`map_file`](Self::map_file), and [`Error::Region`] when the builder says read-only.
    pub fn map_file_mut(self, path: impl AsRef<Path>) -> Result<Region<E>> {
        if self.read_only {
            return Err(Error::Region {
                region: self.label(),
                reason: "it is read-only: map it by map_file".into(),
            });
        }
        self.mapped(path.as_ref(), true)
    }

    fn mapped(self, path: &Path, writable: bool) -> Result<Region<E>> {
        if self.replicas != 1 {
            let reason = format!("{} is one home; a map has no second one", path.display());
            return Err(Error::Region {
                region: self.label(),
                reason,
            });
        }
        if self.homed_at_nodes() || self.neighbour.is_some() {
            return Err(Error::Region {
                region: self.label(),
                reason: format!(
                    "the map of {} lies in this host's memory: say at_host and not home_on_gpu",
                    path.display()
                ),
            });
        }
        let file = self.open(path, writable)?;
        if self.length == 0 {
            // The system maps no empty file.
            let empty = HostPages::of_vec(Vec::<u8>::new());
            let checksums = self.checksums_of(&[]);
            return self.create_in_host(empty, None, checksums, false);
        }
        let map = FileMap::of(&file, path, writable).map_err(|source| self.cannot_read(path, source))?;
        // Nothing is read before a kernel touches it: what a page holds when it is fetched first counts.
        let unknown = vec![0; self.bytes().div_ceil(self.page_size()) as usize];
        let checksums = (self.integrity == Integrity::Crc32c).then_some(unknown);
        self.create_in_host(HostPages::of_file(map), None, checksums, false)
    }
}

impl RegionBuilder<Untyped> {
    /// A copy of `bytes`, which must be those of all elements.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), and [`Error::Region`] for another number of bytes.
    pub fn from_bytes(self, bytes: &[u8]) -> Result<RawRegion> {
        let mut data = self.zeros::<u8>()?;
        let wanted = data.elements().len();
        if bytes.len() != wanted {
            let reason = format!("{} bytes were given, all elements are {wanted}", bytes.len());
            return Err(Error::Region {
                region: self.label(),
                reason,
            });
        }
        data.elements_mut().copy_from_slice(bytes);
        self.finish(data)
    }
}

impl<T: Pod> RegionBuilder<T> {
    /// A copy of `values`, whose number must be the length.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), and [`Error::Region`] for another number.
    pub fn from_slice(self, values: &[T]) -> Result<Region<T>> {
        let mut data = self.zeros()?;
        self.must_be_all(values.len())?;
        data.elements_mut().copy_from_slice(values);
        self.finish(data)
    }

    /// The elements of `values`, which the region takes over. Without a copy, unless GPU threads copy the pages themselves
    /// and the vector is smaller than 2 MiB or begins off a multiple of 128 bytes, as large vectors of most allocators do,
    /// which would cost every fetch half of its speed.
    ///
    /// # Errors
    /// As [`from_slice`](Self::from_slice).
    pub fn from_vec(self, values: Vec<T>) -> Result<Region<T>> {
        self.check()?;
        self.must_be_all(values.len())?;
        let bytes = size_of_val(values.as_slice());
        let stays = bytes >= COPIED_BELOW && values.as_ptr().addr().is_multiple_of(128);
        if self.place.gpu.transport() == TransportKind::Direct && !stays {
            return self.from_slice(&values);
        }
        self.finish(Data::Vec(values))
    }

    /// What `values` yields: neither more nor fewer than the length.
    ///
    /// # Errors
    /// As [`from_slice`](Self::from_slice).
    #[allow(
        clippy::should_implement_trait,
        reason = "it is a builder's last call, not a conversion"
    )]
    pub fn from_iter(self, values: impl IntoIterator<Item = T>) -> Result<Region<T>> {
        let mut data = self.zeros()?;
        let mut values = values.into_iter();
        let mut given = 0;
        for (place, value) in data.elements_mut().iter_mut().zip(&mut values) {
            *place = value;
            given += 1;
        }
        // One more than wanted shows an iterator that is too long without running it to its end.
        if given as u64 == self.length && values.next().is_some() {
            given += 1;
        }
        self.must_be_all(given)?;
        self.finish(data)
    }

    /// A region over memory that is valid, and touched by nobody else, until `close` has returned.
    ///
    /// # Safety
    /// `base` is valid for reads of `length` elements, and for writes unless the builder says read-only, until the
    /// region is closed; while it is open the memory is reached through the region only.
    pub(crate) unsafe fn over(self, base: *mut T) -> Result<Region<T>> {
        let length = self.check()?;
        if self.replicas != 1 {
            return Err(Error::Region {
                region: self.label(),
                reason: "memory that is lent is one home; give the data to a region of its own for two".into(),
            });
        }
        let memory = HostPages {
            base: base.cast(),
            bytes: (length * self.element.bytes()) as u64,
            owner: Owner::Borrowed,
        };
        let checksums = (self.integrity == Integrity::Crc32c).then(|| {
            // SAFETY: the caller's promise; the NIC does not know the memory yet.
            let bytes = unsafe { std::slice::from_raw_parts(base.cast::<u8>(), length * self.element.bytes()) };
            self.checksums_of(bytes).unwrap_or_default()
        });
        self.create_in_host(memory, None, checksums, true)
    }
}
