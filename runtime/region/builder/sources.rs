//! Where a new region's data comes from: a builder's last calls.

use std::{io::Read, path::Path, sync::Arc};

use bytemuck::Pod;
use gpuvm_files::{File, FileError, Storage, open_regular};
use gpuvm_gpu::HostMemory;

use super::{Integrity, Region, RegionBuilder, data::Data};
use crate::{
    element::Untyped,
    error::{Doing, Error, Result},
    home::{FileMap, HostPages, InFile},
    plan::TransportKind,
    region::RawRegion,
};

/// Huge pages are asked for from this size on.
const HUGE_FROM: usize = 64 << 10;

/// Memory of a GPU's own kind for homes is asked for from this size on: it is allocated in pieces of that size, and caches hold less.
const HOME_FROM: u64 = 2 << 20;

/// Where GPU threads copy pages themselves, a vector of fewer bytes is copied rather than pinned where it lies: a system page
/// that it shares with other memory is a pinned piece of its own, and one copy would cross from one piece into another.
const COPIED_BELOW: usize = 2 << 20;

/// The elements of a file that a region lies over.
#[derive(Clone, Copy)]
struct SpanAsked {
    offset_bytes: u64,
    length: u64,
}

impl<E> RegionBuilder<E> {
    /// Zeroed memory: where lanes copy pages themselves, of the kind that they reach fastest; else in system pages of its own, where pages that
    /// nothing touches take no memory.
    pub(super) fn zeros<T: Pod>(&self) -> Result<Data<T>> {
        let length = self.check()?;
        let bytes = length * self.element.bytes();
        if bytes == 0 {
            return Ok(Data::Vec(Vec::new()));
        }
        if let Some(memory) = self.home_memory(bytes as u64)? {
            return Ok(Data::Home(memory));
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

    /// Of the GPU's fast kind, unless a NIC has to reach it or it is small.
    fn home_memory(&self, bytes: u64) -> Result<Option<HostMemory>> {
        let gpu = &self.place.gpu;
        let elsewhere = self.homed_at_nodes() || self.neighbour.is_some();
        if bytes < HOME_FROM || elsewhere || !gpu.data_paths().nics.is_empty() {
            return Ok(None);
        }
        let doing = || format!("getting memory for region `{}`", self.label());
        gpu.map_device_lost(gpu.device.allocate_home(bytes).doing(doing))
    }

    pub(super) fn refused(&self, reason: String) -> Error {
        Error::Region {
            region: self.label(),
            reason,
        }
    }

    /// With as many elements as `bytes` bytes of `from` hold.
    fn of_bytes(self, bytes: u64, from: &str) -> Result<Self> {
        // Of a size that pages can hold, and so not 0.
        self.check()?;
        let size = self.element.bytes() as u64;
        if !bytes.is_multiple_of(size) {
            return Err(self.refused(format!(
                "{from} has {bytes} bytes, not a multiple of the element size of {size} bytes"
            )));
        }
        Ok(self.of_length(bytes / size))
    }

    /// Why such a region does not lie in memory that is lent, if so.
    fn not_in_lent_memory(&self) -> Option<&'static str> {
        match (self.replicas, self.neighbour) {
            (1, None) => None,
            (1, Some(_)) => Some("lent memory is host memory: leave home_on_gpu out"),
            _ => Some("lent memory cannot be replicated: copy the data into a region that owns its memory"),
        }
    }

    /// Checksums of the pages of memory that is lent, for a region that has any.
    ///
    /// # Safety
    /// All of the region's bytes from `base` on can be read, and nothing writes them meanwhile.
    unsafe fn checksums_of_lent(&self, base: *const u8) -> Option<Vec<u32>> {
        let bytes = match self.integrity {
            Integrity::Crc32c if self.length > 0 => self.bytes() as usize,
            _ => 0,
        };
        // An empty slice does not take the address of empty memory, which may be null.
        let bytes = match bytes {
            0 => &[],
            // SAFETY: the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(base, bytes) },
        };
        self.checksums_of(bytes)
    }

    fn no_room(&self, length: usize, source: std::io::Error) -> Error {
        Error::Data {
            region: self.label(),
            from: format!("{length} elements into host memory"),
            source,
        }
    }

    /// `length` zeros.
    ///
    /// # Errors
    /// [`Error::Region`] for an element size or a length that cannot be, [`Error::Gpu`] or [`Error::Nic`] when memory or keys are short.
    pub fn zeroed(self, length: u64) -> Result<Region<E>> {
        self.of_length(length).zeros_of_length()
    }

    fn zeros_of_length(self) -> Result<Region<E>> {
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

    /// `length` elements that `reader` gives as bytes, in this machine's byte order. It is read to their end, no further.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), and [`Error::Data`] when reading fails or ends early.
    pub fn from_reader(self, reader: impl Read, length: u64) -> Result<Region<E>> {
        self.of_length(length).read_from(reader, "the reader".into())
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

    /// All bytes of a file, in this machine's byte order. The region is as long as the file.
    ///
    /// # Errors
    /// As [`from_reader`](Self::from_reader), and [`Error::Region`] for a file that ends within an element.
    pub fn from_file(self, path: impl AsRef<Path>) -> Result<Region<E>> {
        let path = path.as_ref();
        let (this, file) = self.open(path, false, None)?;
        this.read_from(file, path.display().to_string())
    }

    /// Opens a file, and takes its length, or that of the span.
    fn open(self, path: &Path, writable: bool, span: Option<SpanAsked>) -> Result<(Self, std::fs::File)> {
        let wrap = |source| self.cannot_read(path, source);
        let file = open_regular(path, std::fs::OpenOptions::new().read(true).write(writable)).map_err(wrap)?;
        let bytes = file.metadata().map_err(wrap)?.len();
        let this = match span {
            None => self.of_bytes(bytes, &path.display().to_string())?,
            Some(span) => self.of_span(span, path, bytes)?,
        };
        Ok((this, file))
    }

    /// With the length of a span, which lies within the file's `bytes` bytes.
    fn of_span(self, span: SpanAsked, path: &Path, bytes: u64) -> Result<Self> {
        let SpanAsked { offset_bytes, length } = span;
        let this = self.of_length(length);
        this.check()?;
        let align = this.element.align().max(1) as u64;
        if !offset_bytes.is_multiple_of(align) {
            return Err(this.refused(format!(
                "byte offset {offset_bytes} of {} is not a multiple of {align}, the alignment of {}: copy it by from_reader",
                path.display(),
                this.element.name()
            )));
        }
        match offset_bytes.checked_add(this.bytes()) {
            Some(end) if end <= bytes => Ok(this),
            _ => Err(this.refused(format!(
                "{} has {bytes} bytes; {length} elements of {} bytes from byte {offset_bytes} on exceed it",
                path.display(),
                this.element.bytes()
            ))),
        }
    }

    fn cannot_read(&self, path: &Path, source: std::io::Error) -> Error {
        Error::Data {
            region: self.label(),
            from: path.display().to_string(),
            source,
        }
    }

    /// The pages of a file, in place: nothing is read before a kernel touches it. The region is as long as the
    /// file, and read-only. While the region lives nothing may write the file or make it shorter: kernels would see
    /// any mixture, and a page that is gone ends the process.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file); [`Error::Gpu`] when the GPU cannot reach memory that is read-only.
    pub fn map_file(self, path: impl AsRef<Path>) -> Result<Region<E>> {
        self.read_only().mapped(path.as_ref(), false, None)
    }

    /// `length` elements of a file from byte `offset_bytes` on, in place, as [`map_file`](Self::map_file) maps all of it. The offset is a
    /// multiple of the element's alignment. Where GPU threads copy the pages themselves, one of 128 bytes is fetched twice as fast as
    /// others. Regions over one file's spans may overlap if all of them are read-only.
    ///
    /// # Errors
    /// As [`map_file`](Self::map_file); [`Error::Region`] for a span beyond the file's end or one that is not aligned; [`Error::Overlap`].
    pub fn map_file_span(self, path: impl AsRef<Path>, offset_bytes: u64, length: u64) -> Result<Region<E>> {
        let span = SpanAsked { offset_bytes, length };
        self.read_only().mapped(path.as_ref(), false, Some(span))
    }

    /// A span as by [`map_file_span`](Self::map_file_span), which kernels may write, as by [`map_file_mut`](Self::map_file_mut). The
    /// bytes around it stay as they are, and other regions may write those.
    ///
    /// # Errors
    /// As [`map_file_span`](Self::map_file_span), and [`Error::Region`] when the builder says read-only.
    pub fn map_file_span_mut(self, path: impl AsRef<Path>, offset_bytes: u64, length: u64) -> Result<Region<E>> {
        self.mapped_mut(path.as_ref(), Some(SpanAsked { offset_bytes, length }))
    }

    /// The pages of a file, in place, which kernels may write: pages are written back into it, and a [`flush`](Region::flush) has the
    /// system store it, as has the region's end.
    ///
    /// # Errors
    /// As [`map_file`](Self::map_file), and [`Error::Region`] when the builder says read-only.
    pub fn map_file_mut(self, path: impl AsRef<Path>) -> Result<Region<E>> {
        self.mapped_mut(path.as_ref(), None)
    }

    fn mapped_mut(self, path: &Path, span: Option<SpanAsked>) -> Result<Region<E>> {
        if self.kind.read_only {
            let by = span.map_or("map_file", |_| "map_file_span");
            return Err(self.refused(format!("it is read-only: map it by {by}")));
        }
        self.mapped(path, true, span)
    }

    /// Bytes that `storage` reads and writes as kernels need them, as those of a file are with [`VmBuilder::file_cache`](crate::VmBuilder::file_cache): a
    /// home of the caller's making, which errors call `name`. The region is as long as it says, and kernels may write it unless the builder
    /// says read-only.
    ///
    /// # Errors
    /// As [`map_file`](Self::map_file); [`Error::Region`] without a file cache.
    pub fn map_storage(self, name: impl AsRef<Path>, storage: Arc<dyn Storage>) -> Result<Region<E>> {
        let name = name.as_ref();
        self.check_in_file(name)?;
        let Some(tier) = self.place.gpu.tier().cloned() else {
            return Err(self.refused("storage is read through the file cache: set file_cache".into()));
        };
        let look = storage.look().map_err(|source| self.cannot_read(name, source))?;
        let this = self.of_bytes(look.length, &name.display().to_string())?;
        if this.length == 0 {
            return Err(this.refused(format!("{} is empty", name.display())));
        }
        let writable = !this.kind.read_only;
        this.behind(0, || tier.attach(name, storage, writable))
    }

    /// A region over a file that is behind host memory, from byte `offset` of it on.
    fn behind(self, offset: u64, open: impl FnOnce() -> std::result::Result<File, FileError>) -> Result<Region<E>> {
        let file = open().map_err(|source| Error::FileHome {
            region: self.label(),
            source,
        })?;
        let home = InFile::new(self.label(), file, offset, self.bytes())?;
        let checksums = self.unknown_checksums();
        self.create(vec![Arc::new(home)], checksums, false)
    }

    /// Whether a region as this one may lie over a file.
    fn check_in_file(&self, path: &Path) -> Result<()> {
        if self.replicas != 1 {
            let reason = format!("memory-mapped files cannot be replicated: {} is one", path.display());
            return Err(Error::Region {
                region: self.label(),
                reason,
            });
        }
        if self.homed_at_nodes() || self.neighbour.is_some() {
            return Err(Error::Region {
                region: self.label(),
                reason: format!(
                    "{} is reached by this host: say at_host and not home_on_gpu",
                    path.display()
                ),
            });
        }
        Ok(())
    }

    fn mapped(self, path: &Path, writable: bool, span: Option<SpanAsked>) -> Result<Region<E>> {
        self.check_in_file(path)?;
        let (this, file) = self.open(path, writable, span)?;
        if this.length == 0 {
            // The system maps no empty file.
            let empty = HostPages::of_vec(Vec::<u8>::new());
            let checksums = this.checksums_of(&[]);
            return this.create_in_host(empty, None, checksums, false);
        }
        let offset = span.map_or(0, |span| span.offset_bytes);
        if let Some(tier) = this.place.gpu.tier().cloned() {
            return this.behind(offset, || tier.open(path, writable));
        }
        let map = FileMap::of(&file, path, offset..offset + this.bytes(), writable)
            .map_err(|source| this.cannot_read(path, source))?;
        let checksums = this.unknown_checksums();
        this.create_in_host(HostPages::of_file(map), None, checksums, false)
    }

    /// Of pages that nothing reads before a kernel touches them: what a page holds when it is fetched first counts.
    fn unknown_checksums(&self) -> Option<Vec<u32>> {
        let pages = self.bytes().div_ceil(self.page_size()) as usize;
        (self.integrity == Integrity::Crc32c).then(|| vec![0; pages])
    }

    /// A region over `memory` of somebody else's, which is as long as was said. `scoped`: a scope sees to its end.
    ///
    /// # Safety
    /// The memory is valid for reads, and for writes unless the builder says read-only, until the region is closed or its owner dropped;
    /// while it is open the memory is reached through the region only, or as the public functions say.
    unsafe fn over_bytes(self, memory: HostPages, scoped: bool) -> Result<Region<E>> {
        self.check()?;
        if let Some(reason) = self.not_in_lent_memory() {
            return Err(self.refused(reason.into()));
        }
        // SAFETY: the caller's promise; nothing reaches the memory but by this before the region is made.
        let checksums = unsafe { self.checksums_of_lent(memory.base) };
        self.create_in_host(memory, None, checksums, scoped)
    }
}

impl RegionBuilder<Untyped> {
    /// A copy of `bytes`, which are those of whole elements, in this machine's byte order.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), and [`Error::Region`] where the bytes end within an element.
    pub fn from_bytes(self, bytes: &[u8]) -> Result<RawRegion> {
        let this = self.of_bytes(bytes.len() as u64, "the slice")?;
        let mut data = this.zeros::<u8>()?;
        data.elements_mut().copy_from_slice(bytes);
        this.finish(data)
    }

    /// Memory of this host that `owner` keeps, `bytes` bytes of whole elements from `base` on, in place: nothing is copied. The owner
    /// is dropped when neither the region nor a launch of it is left. A caller that lends memory and waits for no owner gives `()`: the memory is
    /// the lender's again when [`close`](Region::close) has returned. The pages live in this host's memory, whatever memory nodes there are.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes); [`Error::Region`] with two replicas; [`Error::Overlap`].
    ///
    /// # Safety
    /// Until `owner` is dropped or `close` has returned, and for good if that returns [`Error::StillReached`], `base` is valid for reads of
    /// `bytes` bytes, and for writes unless the builder says read-only. A region that is dropped gives no answer: lenders close it. From
    /// now on until the region has ended nothing holds a Rust reference to the memory; what others read or write there meanwhile they
    /// read and write as foreign code does that shares memory with a device: a kernel may see it before or after.
    pub unsafe fn from_owner(self, owner: impl Send + Sync + 'static, base: *mut u8, bytes: u64) -> Result<RawRegion> {
        let this = self.of_bytes(bytes, "the memory")?;
        let memory = HostPages::kept_by(Box::new(owner), base, bytes);
        // SAFETY: the caller's promise.
        unsafe { this.over_bytes(memory, false) }
    }
}

impl<T: Pod> RegionBuilder<T> {
    /// A copy of `values`.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn from_slice(self, values: &[T]) -> Result<Region<T>> {
        let this = self.of_length(values.len() as u64);
        let mut data = this.zeros()?;
        data.elements_mut().copy_from_slice(values);
        this.finish(data)
    }

    /// The elements of `values`, which the region takes over. Without a copy, unless GPU threads copy the pages themselves
    /// and the vector is smaller than 2 MiB or begins off a multiple of 128 bytes, as large vectors of most allocators do,
    /// which would cost every fetch half of its speed.
    ///
    /// # Errors
    /// As [`from_slice`](Self::from_slice).
    pub fn from_vec(self, values: Vec<T>) -> Result<Region<T>> {
        let this = self.of_length(values.len() as u64);
        this.check()?;
        let bytes = size_of_val(values.as_slice());
        let stays = bytes >= COPIED_BELOW && values.as_ptr().addr().is_multiple_of(128);
        if this.place.gpu.transport == TransportKind::Direct && !stays {
            return this.from_slice(&values);
        }
        this.finish(Data::Vec(values))
    }

    /// All that `values` yields. An iterator that knows how much that is, such as a range, a `map` of one or whatever is an
    /// [`ExactSizeIterator`], writes into the region's memory; what another one yields is gathered in a vector first.
    ///
    /// # Errors
    /// As [`from_slice`](Self::from_slice), and [`Error::Region`] when the iterator yields more or fewer elements than its
    /// [`size_hint`](Iterator::size_hint) says.
    #[allow(
        clippy::should_implement_trait,
        reason = "it is a builder's last call, not a conversion"
    )]
    pub fn from_iter(self, values: impl IntoIterator<Item = T>) -> Result<Region<T>> {
        let mut values = values.into_iter();
        let (least, most) = values.size_hint();
        let this = self.of_length(least as u64);
        if most != Some(least) {
            // An endless one says more than any memory holds.
            this.check()?;
            return this.from_vec(values.collect());
        }
        let mut data = this.zeros()?;
        let mut given = 0;
        for (place, value) in data.elements_mut().iter_mut().zip(&mut values) {
            *place = value;
            given += 1;
        }
        let fewer = given < least;
        if fewer || values.next().is_some() {
            let relation = if fewer { "fewer" } else { "more" };
            return Err(this.refused(format!(
                "the iterator yields {relation} elements than the {least} of its size hint"
            )));
        }
        this.finish(data)
    }

    /// A region over `length` elements in memory that is valid, and touched by nothing else, until `close` has returned.
    ///
    /// # Safety
    /// As [`over_bytes`](Self::over_bytes).
    pub(crate) unsafe fn over(self, base: *mut T, length: usize) -> Result<Region<T>> {
        let this = self.of_length(length as u64);
        let memory = HostPages::borrowed(base.cast(), this.bytes());
        // SAFETY: passed on from the caller.
        unsafe { this.over_bytes(memory, true) }
    }
}
