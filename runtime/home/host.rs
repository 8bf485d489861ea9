//! Homes in memory of this host: of the region, of a file's map, or lent by the caller.

use std::{
    fs::File,
    mem::ManuallyDrop,
    ops::Range,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use bytemuck::Pod;
use gpuvm_gpu::{Gpu, HostRegistration};
use gpuvm_layouts::StripeDesc;
use gpuvm_nic::Access;
use parking_lot::Mutex;

use super::{AtNodes, FileSpan, Home, HomeKeys, Reach, Ways, unmoved};
use crate::{
    error::{Doing, Error, Result},
    frames::FrameMemory,
};

/// Memory of this host. `base` is valid for `bytes` until `owner` is dropped, or, for borrowed memory, until the scope
/// that lent it ends.
pub(crate) struct HostPages {
    pub base: *mut u8,
    pub bytes: u64,
    pub owner: Owner,
}

// SAFETY: the address is the only field that is not Send. It is dereferenced only by `InHost::read` and `InHost::write`, whose
// callers see to it that nobody else writes then, by a home that is lost under its lock, and by the NIC, which synchronises
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
    span: Range<u64>,
    writable: bool,
    /// Device and number of the file, which its names share.
    identity: (u64, u64),
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

    /// Whether it shares no byte with `other`.
    pub fn is_apart_from(&self, other: &Self) -> bool {
        let (mine, theirs) = (self.span(), other.span());
        let apart = theirs.end <= mine.start || mine.end <= theirs.start;
        apart || mine.is_empty() || theirs.is_empty()
    }

    /// The addresses it covers.
    fn span(&self) -> Range<u64> {
        self.base as u64..self.base as u64 + self.bytes
    }
}

/// A home in this host's memory.
pub(crate) struct InHost {
    region: String,
    memory: HostPages,
    /// Which of the two homes of this host it is; none for the only one of a region.
    place: Option<usize>,
}

impl InHost {
    pub fn new(region: String, memory: HostPages, place: Option<usize>) -> Self {
        Self { region, memory, place }
    }

    /// The keys by which the GPU's NICs reach it, and for NICs that move data by way of the GPU its registration there.
    fn register_with_nics(&self, ways: &Ways<'_>, read_only: bool) -> Result<Reach> {
        let doing = || format!("registering region `{}`", self.region);
        let HostPages { base, bytes, .. } = self.memory;
        let access = match read_only {
            true => Access::REMOTE_READ,
            false => Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
        };
        // Before the keys: requests that name them move by way of the GPU.
        let pinned = match ways.nics.iter().any(|nic| nic.capabilities().has_mover) {
            // SAFETY: the memory outlives the registration, which is dropped when the keys are gone.
            true => Some(unsafe { ways.gpu.register_host(base, bytes, read_only) }.doing(doing)?),
            false => None,
        };
        let mut keys = HomeKeys::default();
        for nic in ways.nics {
            // SAFETY: the memory outlives the keys: `close`, or `drop` when the region's creation fails,
            // deregisters first, and when that fails the memory is leaked (owned) or the process ends
            // (borrowed). No Rust reference to it exists until then.
            let key = unsafe { nic.register(base as u64, bytes, access) };
            keys.push(nic, key.doing(doing)?);
        }
        Ok(Reach::Nics(Mutex::new(keys), Mutex::new(pinned)))
    }
}

impl Home for InHost {
    fn name(&self, _page: u64) -> String {
        match self.place {
            Some(place) => format!("home {place} of this host"),
            None => "this host".into(),
        }
    }

    fn holder(&self, _page: u64) -> Option<String> {
        self.place.map(|_| "two homes of this host".into())
    }

    unsafe fn read(&self, _gpu: &dyn Gpu, offset: u64, out: &mut [u8]) -> Result<()> {
        // SAFETY: the memory is valid while `self` lives; the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(self.memory.base.add(offset as usize), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    unsafe fn write(&self, _gpu: &dyn Gpu, offset: u64, data: &[u8]) -> Result<()> {
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.memory.base.add(offset as usize), data.len()) };
        Ok(())
    }

    fn register(&self, ways: &Ways<'_>, read_only: bool) -> Result<Reach> {
        if self.memory.bytes == 0 {
            return Ok(Reach::Nobody);
        }
        if !ways.nics.is_empty() {
            return self.register_with_nics(ways, read_only);
        }
        // SAFETY: as for the keys of NICs; lanes write it only where the region may be written.
        let registered = unsafe { ways.gpu.register_host(self.memory.base, self.memory.bytes, read_only) };
        let registered = registered.doing(|| format!("registering region `{}`", self.region))?;
        Ok(Reach::Lanes(Mutex::new(Some(registered))))
    }

    fn stripes(&self, ways: &Ways<'_>, reach: &Reach, own_frames: Option<&FrameMemory>) -> Vec<Vec<StripeDesc>> {
        match reach {
            Reach::Nics(..) => {
                let (home, place) = (self.memory.base as u64, self.place.unwrap_or(0));
                super::stripes_of_this_host(home, place, ways, reach, own_frames)
            }
            Reach::Lanes(_) | Reach::Nobody => unmoved(self.direct_addr(reach)),
        }
    }

    fn direct_addr(&self, reach: &Reach) -> u64 {
        match reach {
            Reach::Lanes(registration) => registration.lock().as_ref().map_or(0, HostRegistration::device_addr),
            Reach::Nobody | Reach::Nics(..) => 0,
        }
    }

    fn is_lost(&self, ways: &Ways<'_>, _page: u64) -> bool {
        let lost = |place| ways.queues.is_some_and(|queues| queues.is_local_lost(place));
        self.place.is_some_and(lost)
    }

    fn is_away(&self, ways: &Ways<'_>, page: u64) -> bool {
        self.is_lost(ways, page)
    }

    fn was_away(&self, ways: &Ways<'_>, _page: u64) -> bool {
        let was_lost = |place| ways.queues.is_some_and(|queues| queues.was_local_lost(place));
        self.place.is_some_and(was_lost)
    }

    fn host_memory(&self) -> Option<&HostPages> {
        Some(&self.memory)
    }

    fn file_span(&self) -> Option<FileSpan> {
        let map = self.memory.file()?;
        Some(FileSpan {
            identity: map.identity,
            bytes: map.span.clone(),
        })
    }

    fn at_nodes(&self) -> Option<&AtNodes> {
        None
    }

    fn sync(&self) -> Result<()> {
        let Some(file) = self.memory.file() else { return Ok(()) };
        file.sync().map_err(|source| Error::Sync {
            region: self.region.clone(),
            path: file.path().to_owned(),
            source,
        })
    }

    fn give_back(&self) {
        // It goes with the region: its owner may be the caller.
    }
}
