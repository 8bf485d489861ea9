//! An application's large array, in whichever way.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bytemuck::Pod;
use gpuvm::{Arg, ElementType, Region};
use gpuvm_gpu::cuda::{Managed, Side};
use gpuvm_gpu::{DeviceMemory, Gpu, HostMemory};

use super::error::{AppError, Step};
use super::way::Way;

/// What kernels do with an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// They read it alone.
    Read,
    /// They read and write it.
    ReadWrite,
}

/// A large array of `T`.
pub struct Array<T> {
    pub(super) store: Store<T>,
    pub(super) gpu: Arc<dyn Gpu>,
    pub(super) way: Way,
    pub(super) usage: Use,
    pub(super) length: u64,
    pub(super) chunks: Chunks,
}

/// What holds an array's elements.
pub(super) enum Store<T> {
    Region(Region<T>),
    Device(DeviceMemory),
    Host(HostMemory),
    Managed(Managed),
}

/// Where an array's elements are while it is copied in chunks.
#[derive(Default)]
pub(super) struct Chunks {
    /// All of it, from its first use that is no chunk on.
    whole: RefCell<Option<DeviceMemory>>,
    /// Room for two chunks.
    slots: RefCell<Option<[DeviceMemory; 2]>>,
    /// What kernels take for the address of element 0, while a chunk is worked on.
    shifted: Cell<Option<u64>>,
}

impl<T: Pod> Array<T> {
    pub(super) fn new(store: Store<T>, gpu: &Arc<dyn Gpu>, way: Way, usage: Use, length: u64) -> Self {
        Self {
            store,
            gpu: Arc::clone(gpu),
            way,
            usage,
            length,
            chunks: Chunks::default(),
        }
    }

    /// Elements.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// For a launch.
    ///
    /// # Errors
    /// Where arrays are copied in chunks: too little device memory for one that is used as a whole.
    pub fn arg(&self) -> Result<Arg<'_>, AppError> {
        let address = match &self.store {
            Store::Region(region) => return Ok(Arg::from(region)),
            Store::Device(memory) => memory.addr(),
            Store::Managed(memory) => memory.addr(),
            Store::Host(home) if self.way == Way::InPlace => home.device_addr(),
            Store::Host(home) => match self.chunks.shifted.get() {
                Some(address) => address,
                None => self.whole(home)?,
            },
        };
        // SAFETY: memory of this array, for its whole length or for the part that the launch's rows need. The array outlives
        // the launch, which the thread that launches waits for, and only its methods reach the memory from the host.
        Ok(unsafe { Arg::address(ElementType::of::<T>(), address) })
    }

    /// The address of all of it in device memory, where it is copied at its first use.
    fn whole(&self, home: &HostMemory) -> Result<u64, AppError> {
        if let Some(memory) = &*self.chunks.whole.borrow() {
            return Ok(memory.addr());
        }
        let failed = AppError::device(Step::Copy);
        let memory = self.gpu.allocate(self.bytes().max(1), 256).map_err(&failed)?;
        // SAFETY: pinned memory of that many bytes, which nothing writes now: no launch that was given it is under way.
        let bytes = unsafe { std::slice::from_raw_parts(home.host_ptr(), self.bytes() as usize) };
        self.gpu.write(memory.addr(), bytes).map_err(&failed)?;
        let address = memory.addr();
        self.chunks.whole.replace(Some(memory));
        Ok(address)
    }

    fn bytes(&self) -> u64 {
        self.length * size_of::<T>() as u64
    }

    /// What it holds, when no launch uses it.
    ///
    /// # Errors
    /// The GPU's.
    pub fn to_vec(&self) -> Result<Vec<T>, AppError> {
        let mut values = vec![T::zeroed(); self.length as usize];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let failed = AppError::device(Step::ReadBack);
        match &self.store {
            Store::Region(region) => return region.to_vec().map_err(AppError::vm(Step::ReadBack)),
            Store::Managed(memory) => memory.read(0, bytes).map_err(failed)?,
            Store::Device(memory) => self.gpu.read(memory.addr(), bytes).map_err(failed)?,
            Store::Host(home) => {
                let whole = self.chunks.whole.borrow();
                let address = whole.as_ref().map_or(home.device_addr(), DeviceMemory::addr);
                self.gpu.read(address, bytes).map_err(failed)?;
            }
        }
        Ok(values)
    }

    /// What a sweep's rows need of it: row `row` begins at element `starts(row)`, where the row before ends.
    pub fn by_rows<'a>(&'a self, starts: &'a dyn Fn(u64) -> u64) -> Stream<'a> {
        Stream {
            array: self,
            first: starts,
            past: starts,
        }
    }

    /// Brings all of it to the GPU, where one call does that.
    ///
    /// # Errors
    /// The driver's.
    pub fn prefetch(&self) -> Result<(), AppError> {
        match &self.store {
            Store::Managed(memory) if self.way == Way::Prefetched => {
                memory.prefetch(Side::Gpu).map_err(AppError::device(Step::Copy))
            }
            _ => Ok(()),
        }
    }
}

/// An array that can be copied in chunks, whatever its elements are.
pub trait Streamed {
    /// Bytes of an element.
    fn element_bytes(&self) -> u64;
    /// What is copied: both ways where it is written.
    fn usage(&self) -> Use;
    /// The address of its home in pinned memory, where it has one.
    fn home(&self) -> Option<u64>;
    /// Rooms for two chunks of at most this many bytes: their addresses.
    ///
    /// # Errors
    /// Device memory is short.
    fn slots(&self, bytes: u64) -> Result<[u64; 2], AppError>;
    /// What kernels are to take for the address of element 0; `None`: of all of it.
    fn shift(&self, address: Option<u64>);
}

impl<T: Pod> Streamed for Array<T> {
    fn element_bytes(&self) -> u64 {
        size_of::<T>() as u64
    }

    fn usage(&self) -> Use {
        self.usage
    }

    fn home(&self) -> Option<u64> {
        match &self.store {
            Store::Host(home) => Some(home.host_ptr() as u64),
            _ => None,
        }
    }

    fn slots(&self, bytes: u64) -> Result<[u64; 2], AppError> {
        let mut slots = self.chunks.slots.borrow_mut();
        if slots.as_ref().is_none_or(|[one, _]| one.bytes() < bytes) {
            let room = || {
                self.gpu
                    .allocate(bytes.max(1), 256)
                    .map_err(AppError::device(Step::Memory))
            };
            *slots = None;
            *slots = Some([room()?, room()?]);
        }
        let Some(slots) = &*slots else {
            unreachable!("made above")
        };
        Ok(slots.each_ref().map(DeviceMemory::addr))
    }

    fn shift(&self, address: Option<u64>) {
        self.chunks.shifted.set(address);
    }
}

/// An array of which a sweep's rows need one part each.
pub struct Stream<'a> {
    /// The array.
    pub array: &'a dyn Streamed,
    /// The first element that a row needs; it ascends with the row.
    pub first: &'a dyn Fn(u64) -> u64,
    /// Past the last element that the rows before this one need; it ascends with the row.
    pub past: &'a dyn Fn(u64) -> u64,
}
