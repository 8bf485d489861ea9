//! Homes in memory of this host.

use gpuvm_gpu::{Gpu, HostRegistration};
use gpuvm_layouts::StripeDesc;
use gpuvm_nic::Access;
use parking_lot::Mutex;

use super::{DataPaths, FileSpan, Home, HomeKeys, HostPages, Reach, Striped, unmoved};
use crate::{
    error::{Doing, Error, Result},
    frames::FrameMemory,
};

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
    fn register_with_nics(&self, paths: &DataPaths<'_>, read_only: bool) -> Result<Reach> {
        let doing = || format!("registering region `{}`", self.region);
        let HostPages { base, bytes, .. } = self.memory;
        let access = match read_only {
            true => Access::REMOTE_READ,
            false => Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
        };
        // Before the keys: requests that name them move by way of the GPU.
        let pinned = match paths.nics.iter().any(|nic| nic.capabilities().has_mover) {
            // SAFETY: the memory outlives the registration, which is dropped when the keys are gone.
            true => Some(unsafe { paths.gpu.register_host(base, bytes, read_only) }.doing(doing)?),
            false => None,
        };
        let mut keys = HomeKeys::default();
        for nic in paths.nics {
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

    fn register(&self, paths: &DataPaths<'_>, read_only: bool) -> Result<Reach> {
        if self.memory.bytes == 0 {
            return Ok(Reach::None);
        }
        if !paths.nics.is_empty() {
            return self.register_with_nics(paths, read_only);
        }
        // SAFETY: as for the keys of NICs; lanes write it only where the region may be written. The rest of its last page is mapped.
        let registered = unsafe {
            paths
                .gpu
                .register_host(self.memory.base, self.memory.pinned_bytes(), read_only)
        };
        let registered = registered.doing(|| format!("registering region `{}`", self.region))?;
        Ok(Reach::Lanes(Mutex::new(Some(registered))))
    }

    fn stripes(&self, paths: &DataPaths<'_>, reach: &Reach, own_frames: Option<&FrameMemory>) -> Vec<Vec<StripeDesc>> {
        match reach {
            Reach::Nics(..) => {
                let (home, place) = (self.memory.base as u64, self.place.unwrap_or(0));
                super::stripes_of_this_host(home, place, paths, reach, own_frames)
            }
            Reach::Lanes(_) | Reach::None => unmoved(self.direct_addr(reach)),
        }
    }

    fn direct_addr(&self, reach: &Reach) -> u64 {
        match reach {
            Reach::Lanes(registration) => registration.lock().as_ref().map_or(0, HostRegistration::device_addr),
            Reach::None | Reach::Nics(..) => 0,
        }
    }

    fn is_lost(&self, paths: &DataPaths<'_>, _page: u64) -> bool {
        let lost = |place| paths.queues.is_some_and(|queues| queues.is_local_lost(place));
        self.place.is_some_and(lost)
    }

    fn is_away(&self, paths: &DataPaths<'_>, page: u64) -> bool {
        self.is_lost(paths, page)
    }

    fn was_away(&self, paths: &DataPaths<'_>, _page: u64) -> bool {
        let was_lost = |place| paths.queues.is_some_and(|queues| queues.was_local_lost(place));
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

    fn at_nodes(&self) -> Option<&Striped> {
        None
    }

    fn retry_writes(&self) {}

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
