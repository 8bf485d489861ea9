//! Homes in files that are larger than memory: requests of a software NIC are served from a budget of host memory, which reads and
//! writes the file as it is needed.

use std::{ops::Range, sync::Arc};

use gpuvm_files::{File, FileError, Got, How};
use gpuvm_gpu::Gpu;
use gpuvm_layouts::StripeDesc;
use gpuvm_nic::{Access, Acquired, Backing, Piece};
use parking_lot::Mutex;

use super::{DataPaths, FileSpan, Home, HomeKeys, HostPages, Reach, Striped};
use crate::{
    error::{Doing, Error, Result},
    frames::FrameMemory,
};

/// A home in a file, from a byte of it on.
pub(crate) struct InFile {
    region: String,
    served: Arc<Served>,
    addresses: Addresses,
}

/// What a NIC asks: bytes of the file by their addresses.
struct Served {
    file: File,
    /// Address of byte `first` of the file.
    base: u64,
    first: u64,
    bytes: u64,
    /// The last failure, for who is told of a page that could not be served.
    failure: Mutex<Option<FileError>>,
}

/// Addresses that are no one's memory, so that each names one byte of one file.
struct Addresses(Range<u64>);

impl Addresses {
    fn reserve(bytes: u64) -> std::io::Result<Self> {
        let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::NORESERVE;
        let none = rustix::mm::ProtFlags::empty();
        // SAFETY: a new map at an address of the system's choice, which nothing may read or write.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes as usize, none, flags)? };
        let base = base.addr() as u64;
        Ok(Self(base..base + bytes))
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let base = std::ptr::with_exposed_provenance_mut(self.0.start as usize);
        // SAFETY: the map that `reserve` made, in which nothing lies; NICs know its addresses no more, or never look at them.
        let unmapped = unsafe { rustix::mm::munmap(base, (self.0.end - self.0.start) as usize) };
        if let Err(error) = unmapped {
            tracing::error!(%error, "addresses of a file stay reserved");
        }
    }
}

impl Served {
    fn offset(&self, address: u64) -> u64 {
        self.first + (address - self.base)
    }
}

impl Backing for Served {
    fn expect(&self, address: u64, bytes: u64) -> bool {
        self.file.expect(self.offset(address), bytes)
    }

    fn acquire(&self, address: u64, bytes: u64, writes: bool, pieces: &mut Vec<Piece>) -> Acquired {
        let how = if writes { How::Write } else { How::Read };
        let mut found = Vec::with_capacity(2);
        match self.file.acquire(self.offset(address), bytes, how, &mut found) {
            Ok(Got::Ready) => {
                pieces.extend(found.iter().map(|piece| Piece {
                    address: piece.address,
                    bytes: piece.bytes,
                    token: piece.slot.into(),
                }));
                Acquired::Ready
            }
            Ok(Got::Wait) => Acquired::Wait,
            Err(failure) => {
                tracing::warn!(%failure, "a page of a file cannot be served");
                *self.failure.lock() = Some(failure);
                Acquired::Failed
            }
        }
    }

    fn release(&self, pieces: &[Piece], writes: bool) {
        let how = if writes { How::Write } else { How::Read };
        for piece in pieces {
            let held = gpuvm_files::Piece {
                address: piece.address,
                bytes: piece.bytes,
                slot: piece.token as u32,
            };
            self.file.release(&[held], how);
        }
    }

    fn poll(&self) -> bool {
        self.file.poll()
    }

    fn polled(&self) -> usize {
        self.file.tier_address()
    }

    fn progress(&self) -> u64 {
        self.file.progress()
    }
}

impl InFile {
    /// `bytes` bytes of the file from byte `first` on, at least one.
    pub fn new(region: String, file: File, first: u64, bytes: u64) -> Result<Self> {
        let addresses = Addresses::reserve(bytes).map_err(|error| Error::Region {
            region: region.clone(),
            reason: format!("cannot reserve {bytes} bytes of address space for it ({error}): raise the limit of virtual memory (`ulimit -v`)"),
        })?;
        let base = addresses.0.start;
        let failure = Mutex::new(None);
        let served = Arc::new(Served {
            file,
            base,
            first,
            bytes,
            failure,
        });
        Ok(Self {
            region,
            served,
            addresses,
        })
    }

    fn failed(&self, source: FileError) -> Error {
        Error::FileHome {
            region: self.region.clone(),
            source,
        }
    }
}

impl Home for InFile {
    fn name(&self, _page: u64) -> String {
        self.served.file.path().display().to_string()
    }

    fn holder(&self, _page: u64) -> Option<String> {
        let failure = self.served.failure.try_lock()?;
        let path = self.served.file.path().display();
        Some(match &*failure {
            Some(failure) => gpuvm_nic::with_causes(failure),
            None => format!("file {path}"),
        })
    }

    unsafe fn read(&self, _gpu: &dyn Gpu, offset: u64, out: &mut [u8]) -> Result<()> {
        let read = self.served.file.read(self.served.first + offset, out);
        read.map_err(|source| self.failed(source))
    }

    unsafe fn write(&self, _gpu: &dyn Gpu, offset: u64, data: &[u8]) -> Result<()> {
        let written = self.served.file.write(self.served.first + offset, data);
        written.map_err(|source| self.failed(source))
    }

    fn register(&self, paths: &DataPaths<'_>, read_only: bool) -> Result<Reach> {
        let access = match read_only {
            true => Access::REMOTE_READ,
            false => Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE,
        };
        let mut keys = HomeKeys::default();
        for nic in paths.nics {
            let backing = Arc::clone(&self.served) as Arc<dyn Backing>;
            let key = nic.register_backed(self.addresses.0.start, self.served.bytes, access, backing);
            keys.push(nic, key.doing(|| format!("registering region `{}`", self.region))?);
        }
        Ok(Reach::Nics(Mutex::new(keys), Mutex::new(None)))
    }

    fn stripes(&self, paths: &DataPaths<'_>, reach: &Reach, own_frames: Option<&FrameMemory>) -> Vec<Vec<StripeDesc>> {
        super::stripes_of_this_host(self.addresses.0.start, 0, paths, reach, own_frames)
    }

    fn direct_addr(&self, _reach: &Reach) -> u64 {
        0
    }

    fn is_lost(&self, _paths: &DataPaths<'_>, _page: u64) -> bool {
        false
    }

    fn is_away(&self, _paths: &DataPaths<'_>, _page: u64) -> bool {
        false
    }

    fn was_away(&self, _paths: &DataPaths<'_>, _page: u64) -> bool {
        false
    }

    fn host_memory(&self) -> Option<&HostPages> {
        None
    }

    fn file_span(&self) -> Option<FileSpan> {
        let Served { file, first, bytes, .. } = &*self.served;
        Some(FileSpan {
            identity: file.identity(),
            bytes: *first..first + bytes,
        })
    }

    fn at_nodes(&self) -> Option<&Striped> {
        None
    }

    fn retry_writes(&self) {
        self.served.file.retry_writes();
    }

    fn sync(&self) -> Result<()> {
        self.served.file.sync().map_err(|source| self.failed(source))
    }

    fn give_back(&self) {
        // What is in memory of the file leaves when its slots are needed.
    }
}
