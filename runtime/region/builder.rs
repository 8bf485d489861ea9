//! What a region is to be, and where its data comes from.

use std::{io::Read, marker::PhantomData, path::Path};

use bytemuck::Pod;
use gpuvm_gpu::DeviceMemory;

use super::{Plan, Region, RegionInner, Source, guard::checksum, nodes::Spread};
use crate::{
    builder::Transport,
    error::{Doing, Error, Result},
    home::{FileMap, HostMemory, NodeMemory, Owner},
    vm::Vm,
};

/// A region to be: name and kind first, then the data.
#[must_use]
pub struct RegionBuilder<T> {
    vm: Vm,
    length: u64,
    name: Option<String>,
    read_only: bool,
    at_host: bool,
    never_evicted: bool,
    replicas: u32,
    integrity: Integrity,
    /// The neighbour GPU that holds the pages.
    neighbour: Option<u32>,
    _elements: PhantomData<T>,
}

/// Whether a region's pages have checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Integrity {
    /// None: what the home answers is taken for what was written.
    #[default]
    Unchecked,
    /// CRC-32C: kept for each page in GPU memory, made when the page is written home, compared when it is fetched.
    Crc32c,
}

/// Huge pages are asked for from this size on.
const HUGE_FROM: usize = 64 << 10;

/// Where GPU threads copy pages themselves, a vector of fewer bytes is copied rather than pinned where it lies: a system page
/// that it shares with other memory is a pinned piece of its own, and one copy would cross from one piece into another.
const COPIED_BELOW: usize = 2 << 20;

/// Elements on their way into a region.
enum Data<T> {
    Vec(Vec<T>),
    /// Exactly the region's elements.
    Pages(memmap2::MmapMut),
}

impl<T: Pod> Data<T> {
    fn elements(&self) -> &[T] {
        match self {
            Self::Vec(data) => data,
            Self::Pages(map) => bytemuck::cast_slice(map),
        }
    }

    fn elements_mut(&mut self) -> &mut [T] {
        match self {
            Self::Vec(data) => data,
            Self::Pages(map) => bytemuck::cast_slice_mut(map),
        }
    }

    fn into_memory(self) -> HostMemory {
        match self {
            Self::Vec(data) => HostMemory::of_vec(data),
            Self::Pages(map) => {
                let bytes = map.len() as u64;
                HostMemory::of_pages(map, bytes)
            }
        }
    }
}

impl<T: Pod> RegionBuilder<T> {
    pub(crate) fn new(vm: Vm, length: u64) -> Self {
        Self {
            vm,
            length,
            name: None,
            read_only: false,
            at_host: false,
            never_evicted: false,
            replicas: 1,
            integrity: Integrity::Unchecked,
            neighbour: None,
            _elements: PhantomData,
        }
    }

    /// The name that errors use. Default: the element's type.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Kernels may only read it: they take it as `gpuvm::array<const T>`, and no page is ever written home.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Keeps the pages in this host's memory although the virtual memory has memory nodes.
    pub fn at_host(mut self) -> Self {
        self.at_host = true;
        self
    }

    /// Gives the region frames of its own, one for every page, which it keeps until it ends: its pages are fetched once and
    /// never leave, and kernels read them at nearly the speed of plain memory. The frames come on top of
    /// [`frame_memory`](crate::VmBuilder::frame_memory). Such a region is flushed only when no launch uses it.
    pub fn never_evicted(mut self) -> Self {
        self.never_evicted = true;
        self
    }

    /// Keeps each page at so many homes, 1 or 2, so that losing one of two loses nothing: at two memory nodes, or, where
    /// there are none, at two homes of this host ([`VmBuilder::host_homes`](crate::VmBuilder::host_homes)). Default: 1.
    pub fn replicas(mut self, count: u32) -> Self {
        self.replicas = count;
        self
    }

    /// Keeps a checksum for each page, so that bits which flip at the home or on the way are found; with two replicas
    /// they are mended. Default: [`Integrity::Unchecked`].
    pub fn integrity(mut self, integrity: Integrity) -> Self {
        self.integrity = integrity;
        self
    }

    /// Keeps the pages in the memory of the neighbour GPU `ordinal`, which the faulting warps read and write over the link
    /// between the GPUs. For the direct transport.
    pub fn on_gpu(mut self, ordinal: u32) -> Self {
        self.neighbour = Some(ordinal);
        self
    }

    fn label(&self) -> String {
        self.name
            .clone()
            .unwrap_or_else(|| std::any::type_name::<T>().to_owned())
    }

    /// Checks the element's size and the length before any memory is taken.
    fn check(&self) -> Result<usize> {
        let refuse = |reason: String| {
            Err(Error::Region {
                region: self.label(),
                reason,
            })
        };
        let size = size_of::<T>() as u64;
        if size == 0 || !self.vm.page_size().is_multiple_of(size) {
            return refuse(format!(
                "elements of {size} bytes do not divide a page of {} bytes: pad the element to a power of two",
                self.vm.page_size()
            ));
        }
        if let (Some(ordinal), false) = (self.neighbour, self.vm.transport() == Transport::Direct) {
            return refuse(format!(
                "only the direct transport reaches memory of GPU {ordinal}; this Vm uses {}",
                self.vm.transport()
            ));
        }
        if let Err(reason) = self.check_guards() {
            return refuse(reason);
        }
        match self.length.checked_mul(size) {
            Some(bytes) if isize::try_from(bytes).is_ok() => Ok(self.length as usize),
            _ => refuse(format!(
                "{} elements of {size} bytes are more than an address space holds",
                self.length
            )),
        }
    }

    /// Whether this virtual memory can do what replicas and checksums need; else why not.
    fn check_guards(&self) -> Result<(), String> {
        let queues = self.vm.inner.queues.as_ref();
        let homes = match self.homed_at_nodes() {
            true => self.vm.inner.nodes.len(),
            false => queues.map_or(0, |queues| queues.local_homes().len()),
        };
        let guarded = self.replicas != 1 || self.integrity != Integrity::Unchecked;
        match self.replicas {
            _ if guarded && queues.is_none() => Err(format!(
                "transport {} has lanes copy pages themselves, without replicas or checksums; use one with queue pairs",
                self.vm.transport()
            )),
            _ if guarded && !self.vm.inner.settings.is_guarded() => Err(
                "replicas and checksums are compiled into kernels where asked for: say VmBuilder::guarded_regions"
                    .into(),
            ),
            _ if guarded && self.neighbour.is_some() => Err("pages at a neighbour GPU have one home, unchecked".into()),
            1 => Ok(()),
            2 if homes >= 2 => Ok(()),
            2 if self.homed_at_nodes() => Err("2 replicas need two memory nodes; name another one".into()),
            2 => Err("2 replicas need two homes; name memory nodes, or say VmBuilder::host_homes(2)".into()),
            other => Err(format!("{other} replicas; there are 1 or 2")),
        }
    }

    /// Checksums of the pages of `bytes`.
    fn checksums_of(&self, bytes: &[u8]) -> Option<Vec<u32>> {
        let page = self.vm.page_size() as usize;
        (self.integrity == Integrity::Crc32c).then(|| bytes.chunks(page).map(checksum).collect())
    }

    /// Those of zeros.
    fn checksums_of_zeros(&self) -> Option<Vec<u32>> {
        if self.integrity == Integrity::Unchecked {
            return None;
        }
        let (page, bytes) = (self.vm.page_size(), self.length * size_of::<T>() as u64);
        let zeros = vec![0; page as usize];
        let mut sums = vec![checksum(&zeros); bytes.div_ceil(page) as usize];
        if let (Some(last), rest) = (sums.last_mut(), bytes % page)
            && rest != 0
        {
            *last = checksum(&zeros[..rest as usize]);
        }
        Some(sums)
    }

    fn finish(self, data: Data<T>) -> Result<Region<T>> {
        let checksums = self.checksums_of(bytemuck::cast_slice(data.elements()));
        if self.homed_at_nodes() {
            let (memory, mirror) = self.node_memory()?;
            let doing = || format!("filling region `{}`", self.label());
            if !data.elements().is_empty() {
                for memory in std::iter::once(&memory).chain(&mirror) {
                    memory.write(0, bytemuck::cast_slice(data.elements())).doing(doing)?;
                }
            }
            return self.finish_at_nodes(memory, mirror, checksums);
        }
        if let Some(ordinal) = self.neighbour {
            let memory = self.neighbour_memory(ordinal)?;
            if let Some(memory) = &memory {
                let written = self
                    .vm
                    .inner
                    .gpu
                    .write(memory.addr(), bytemuck::cast_slice(data.elements()));
                let written = written.doing(|| format!("filling region `{}` on GPU {ordinal}", self.label()));
                self.vm.inner.or_lost(written)?;
            }
            return self.create(Source::Neighbour(memory), None, false);
        }
        let mirror = match self.replicas {
            1 => None,
            _ => Some(self.copy_of(&data)?),
        };
        self.create(Source::Host(data.into_memory(), mirror), checksums, false)
    }

    /// The same elements at another place of this host.
    fn copy_of(&self, data: &Data<T>) -> Result<HostMemory> {
        let mut copy = self.zeros()?;
        copy.elements_mut().copy_from_slice(data.elements());
        Ok(copy.into_memory())
    }

    /// Zeroed memory of a neighbour GPU; none for no element.
    fn neighbour_memory(&self, ordinal: u32) -> Result<Option<DeviceMemory>> {
        let bytes = self.length * size_of::<T>() as u64;
        if bytes == 0 {
            return Ok(None);
        }
        let memory = self.vm.inner.gpu.allocate_on(ordinal, bytes);
        let memory = memory.doing(|| format!("allocating region `{}` on GPU {ordinal}", self.label()));
        self.vm.inner.or_lost(memory).map(Some)
    }

    /// Whether the pages live at memory nodes.
    fn homed_at_nodes(&self) -> bool {
        !self.at_host && self.neighbour.is_none() && !self.vm.inner.nodes.is_empty()
    }

    /// Zeroed memory of the nodes, and that of the other replica: moved on by one node.
    fn node_memory(&self) -> Result<(NodeMemory, Option<NodeMemory>)> {
        let bytes = self.length * size_of::<T>() as u64;
        let at = |nodes: &[_]| {
            NodeMemory::zeroed(nodes, bytes, self.vm.page_size(), self.read_only)
                .doing(|| format!("getting memory for region `{}`", self.label()))
        };
        let mut nodes: Vec<_> = self.vm.inner.nodes.iter().map(|node| node.session()).collect();
        let pages = usize::try_from(bytes.div_ceil(self.vm.page_size())).unwrap_or(usize::MAX);
        let spread = Spread {
            stripes: nodes.len().min(pages),
            nodes: nodes.len(),
        };
        // A node that is being taken back grants memory before its queue pairs are there.
        for place in 0..nodes.len() {
            if let (Some(queues), Some(_)) = (
                &self.vm.inner.queues,
                spread.stripes_at(place, self.replicas as usize).next(),
            ) {
                let there = queues.check_node(place);
                there.doing(|| format!("getting memory for region `{}`", self.label()))?;
            }
        }
        let memory = at(&nodes)?;
        if self.replicas == 1 {
            return Ok((memory, None));
        }
        nodes.rotate_left(1);
        Ok((memory, Some(at(&nodes)?)))
    }

    fn finish_at_nodes(
        self,
        memory: NodeMemory,
        mirror: Option<NodeMemory>,
        checksums: Option<Vec<u32>>,
    ) -> Result<Region<T>> {
        if self.read_only {
            for memory in std::iter::once(&memory).chain(&mirror) {
                let sealed = memory.seal();
                sealed.doing(|| format!("sealing region `{}`", self.label()))?;
            }
        }
        self.create(Source::Nodes(memory, mirror), checksums, false)
    }

    /// `checksums`: of the pages, for a region that has any.
    fn create(self, source: Source, checksums: Option<Vec<u32>>, borrowed: bool) -> Result<Region<T>> {
        let plan = Plan {
            name: self.label(),
            read_only: self.read_only,
            never_evicted: self.never_evicted,
            length: self.length,
            element_bytes: size_of::<T>() as u32,
            checksums,
        };
        let inner = self.vm.inner.or_lost(RegionInner::create(&self.vm, plan, source))?;
        Ok(Region {
            inner,
            borrowed,
            _elements: PhantomData,
        })
    }

    /// Zeroed memory in system pages of its own: pages that nobody touches take no memory.
    fn zeros(&self) -> Result<Data<T>> {
        let length = self.check()?;
        let bytes = length * size_of::<T>();
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
    pub fn zeroed(self) -> Result<Region<T>> {
        if self.homed_at_nodes() {
            self.check()?;
            let (memory, mirror) = self.node_memory()?;
            let checksums = self.checksums_of_zeros();
            return self.finish_at_nodes(memory, mirror, checksums);
        }
        if let Some(ordinal) = self.neighbour {
            self.check()?;
            let memory = self.neighbour_memory(ordinal)?;
            return self.create(Source::Neighbour(memory), None, false);
        }
        let data = self.zeros()?;
        self.finish(data)
    }

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
        if self.vm.transport() == Transport::Direct && !stays {
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

    /// The bytes that `reader` gives, in this machine's byte order. It is read to the region's length, no further.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), and [`Error::Data`] when reading fails or ends early.
    pub fn from_reader(self, reader: impl Read) -> Result<Region<T>> {
        self.read_from(reader, "the reader".into())
    }

    fn read_from(self, mut reader: impl Read, from: String) -> Result<Region<T>> {
        let mut data = self.zeros()?;
        reader
            .read_exact(bytemuck::cast_slice_mut(data.elements_mut()))
            .map_err(|source| Error::Data {
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
    pub fn from_file(self, path: impl AsRef<Path>) -> Result<Region<T>> {
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
        let wanted = (length * size_of::<T>()) as u64;
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
    pub fn map_file(self, path: impl AsRef<Path>) -> Result<Region<T>> {
        self.read_only().mapped(path.as_ref(), false)
    }

    /// The same for a file that kernels may write: pages are written back into it, and a [`flush`](Region::flush) has the
    /// system store it, as has the region's end.
    ///
    /// # Errors
    /// As [`map_file`](Self::map_file), and [`Error::Region`] when the builder says read-only.
    pub fn map_file_mut(self, path: impl AsRef<Path>) -> Result<Region<T>> {
        if self.read_only {
            return Err(Error::Region {
                region: self.label(),
                reason: "it is read-only: map it by map_file".into(),
            });
        }
        self.mapped(path.as_ref(), true)
    }

    fn mapped(self, path: &Path, writable: bool) -> Result<Region<T>> {
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
                    "the map of {} lies in this host's memory: say at_host and not on_gpu",
                    path.display()
                ),
            });
        }
        let file = self.open(path, writable)?;
        if self.length == 0 {
            // The system maps no empty file.
            let empty = HostMemory::of_vec(Vec::<T>::new());
            let checksums = self.checksums_of(&[]);
            return self.create(Source::Host(empty, None), checksums, false);
        }
        let map = FileMap::of(&file, path, writable).map_err(|source| self.cannot_read(path, source))?;
        // Nothing is read before a kernel touches it: what a page holds when it is fetched first counts.
        let unknown = vec![0; (self.length * size_of::<T>() as u64).div_ceil(self.vm.page_size()) as usize];
        let checksums = (self.integrity == Integrity::Crc32c).then_some(unknown);
        self.create(Source::Host(HostMemory::of_file(map), None), checksums, false)
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
        let memory = HostMemory {
            base: base.cast(),
            bytes: (length * size_of::<T>()) as u64,
            owner: Owner::Borrowed,
        };
        let checksums = (self.integrity == Integrity::Crc32c).then(|| {
            // SAFETY: the caller's promise; the NIC does not know the memory yet.
            let bytes = unsafe { std::slice::from_raw_parts(base.cast::<u8>(), length * size_of::<T>()) };
            self.checksums_of(bytes).unwrap_or_default()
        });
        self.create(Source::Host(memory, None), checksums, true)
    }
}
