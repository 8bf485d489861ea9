//! Plain device memory: a kernel's `T*`.

use std::{marker::PhantomData, ops::Range, sync::Arc};

use bytemuck::Pod;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    device::DeviceArray,
    element::{ElementType, Untyped},
    error::{Doing, Result, check_range},
    gpu::PagedGpu,
    launch::{LaunchKind, LaunchTracker, Memory},
    mapped,
    tiered::Tiers,
};

/// Shared by the handle and the launches that name it.
pub(crate) struct BufferInner {
    pub memory: DeviceArray<u8>,
    pub launches: Mutex<LaunchTracker>,
    /// Where its chunks lie, of a tiered one.
    pub tiers: Option<Arc<Tiers>>,
}

impl BufferInner {
    /// Bytes of it in parts that each lie in one place.
    fn parts(&self, bytes: Range<u64>) -> Vec<Range<u64>> {
        match &self.tiers {
            Some(tiers) => tiers.parts(bytes),
            None => vec![bytes],
        }
    }
}

impl Memory for BufferInner {
    fn launches(&self) -> &Mutex<LaunchTracker> {
        &self.launches
    }

    fn make_coherent(&self, _launches: &mut LaunchTracker, _to_begin: LaunchKind) -> Result<()> {
        // It lies on one GPU, or is one GPU's to reach.
        self.tiers.as_ref().map_or(Ok(()), |tiers| tiers.repair())
    }

    fn expect(&self, _launches: &mut LaunchTracker, _to_begin: LaunchKind) {
        // It has no home that would be behind.
    }
}

/// Device memory of a fixed number of elements, the argument for a pointer parameter. It is not paged and kernels'
/// accesses to it are not checked. Dropping it while a launch uses it is safe: the memory goes when the launch ends.
pub struct Buffer<E> {
    pub(crate) gpu: Arc<PagedGpu>,
    pub(crate) inner: Arc<BufferInner>,
    pub(crate) element: ElementType,
    length: u64,
    _elements: PhantomData<fn() -> E>,
}

/// A buffer whose element type is known at run time alone: [`Vm::raw_buffer`](crate::VmGpu::raw_buffer).
pub type RawBuffer = Buffer<Untyped>;

/// Zeroed memory: of the driver's own, or else of handles.
fn memory(gpu: &PagedGpu, bytes: u64, doing: &str) -> Result<DeviceArray<u8>> {
    let handles = &gpu.handles;
    // What the GPU cannot hold at all nothing of this process makes room for.
    let can_be = handles.handle_bytes() > 0 && bytes <= gpu.capabilities().memory_bytes;
    let take = || match DeviceArray::zeroed(&*gpu.device, bytes).doing(|| doing.into()) {
        Err(error) if error.is_out_of_memory() && can_be && handles.has_some() => {
            mapped::zeroed(handles, bytes, doing).map(DeviceArray::over)
        }
        taken => taken,
    };
    handles.make_room(bytes, doing, take)
}

impl<E> Buffer<E> {
    pub(crate) fn zeroed(gpu: Arc<PagedGpu>, element: ElementType, length: u64) -> Result<Self> {
        let bytes = length.max(1).saturating_mul(element.bytes() as u64);
        let doing = format!("allocating a buffer of {length} elements");
        let memory = gpu.map_device_lost(memory(&gpu, bytes, &doing))?;
        let inner = Arc::new(BufferInner {
            memory,
            launches: Mutex::default(),
            tiers: None,
        });
        Ok(Self::of(gpu, inner, element, length))
    }

    /// Over that memory.
    pub(crate) fn of(gpu: Arc<PagedGpu>, inner: Arc<BufferInner>, element: ElementType, length: u64) -> Self {
        Self {
            gpu,
            inner,
            element,
            length,
            _elements: PhantomData,
        }
    }

    /// The same memory as elements of another type, as many as there is room for.
    #[doc(hidden)]
    pub fn of_elements(&self, element: ElementType) -> RawBuffer {
        let length = self.length * self.element.bytes() as u64 / element.bytes() as u64;
        Buffer::of(Arc::clone(&self.gpu), Arc::clone(&self.inner), element, length)
    }

    /// Elements.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Device address of its first element, for other libraries that use the same GPU. It is valid while the buffer, or a launch that
    /// names it, is there.
    pub fn addr(&self) -> u64 {
        if let Some(tiers) = &self.inner.tiers {
            tiers.lend();
        }
        self.inner.memory.addr()
    }

    /// The type of its elements.
    pub fn element(&self) -> &ElementType {
        &self.element
    }

    /// Stores the bytes of elements from `first` on.
    fn write_elements(&self, first: u64, values: &[u8]) -> Result<()> {
        let offset = self.offset_of(first, values.len())?;
        let _guard = self.quiesce()?;
        let end = offset + values.len() as u64;
        let written = self.inner.parts(offset..end).into_iter().try_for_each(|part| {
            let values = &values[(part.start - offset) as usize..(part.end - offset) as usize];
            self.inner.memory.write(&*self.gpu.device, part.start, values)
        });
        self.gpu.map_device_lost(written.doing(|| "writing a buffer".into()))
    }

    /// Copies the bytes of elements from `first` on.
    fn read_elements(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let offset = self.offset_of(first, out.len())?;
        let _guard = self.quiesce()?;
        let end = offset + out.len() as u64;
        let read = self.inner.parts(offset..end).into_iter().try_for_each(|part| {
            let out = &mut out[(part.start - offset) as usize..(part.end - offset) as usize];
            self.inner.memory.read_into(&*self.gpu.device, part.start, out)
        });
        self.gpu.map_device_lost(read.doing(|| "reading a buffer".into()))
    }

    /// The first byte of elements from `first` on, if this many bytes are whole elements that there are.
    fn offset_of(&self, first: u64, bytes: usize) -> Result<u64> {
        let count = self.element.count("buffer", bytes)?;
        check_range("buffer", &(first..first.saturating_add(count)), self.length)?;
        Ok(first * self.element.bytes() as u64)
    }

    /// Waits for the launches that name the buffer and keeps others from beginning while the guard lives.
    fn quiesce(&self) -> Result<MutexGuard<'_, LaunchTracker>> {
        let mut launches = self.inner.launches.lock();
        launches.wait_idle();
        let repaired = self.inner.tiers.as_ref().map_or(Ok(()), |tiers| tiers.repair());
        self.gpu.map_device_lost(repaired)?;
        Ok(launches)
    }
}

impl RawBuffer {
    /// Stores `values`, a whole number of elements, from element 0 on, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::PartOfAnElement`](crate::Error::PartOfAnElement), [`Error::Gpu`](crate::Error::Gpu).
    pub fn write_bytes(&self, values: &[u8]) -> Result<()> {
        self.write_bytes_from(0, values)
    }

    /// [`write_bytes`](Self::write_bytes), from element `first` on.
    ///
    /// # Errors
    /// As there.
    pub fn write_bytes_from(&self, first: u64, values: &[u8]) -> Result<()> {
        self.write_elements(first, values)
    }

    /// Copies elements from 0 on, a whole number of them, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// As [`write_bytes`](Self::write_bytes).
    pub fn read_bytes(&self, out: &mut [u8]) -> Result<()> {
        self.read_bytes_from(0, out)
    }

    /// [`read_bytes`](Self::read_bytes), from element `first` on.
    ///
    /// # Errors
    /// As there.
    pub fn read_bytes_from(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.read_elements(first, out)
    }
}

impl<T: Pod> Buffer<T> {
    /// Stores `values` from element 0 on, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::Gpu`](crate::Error::Gpu).
    pub fn write(&self, values: &[T]) -> Result<()> {
        self.write_from(0, values)
    }

    /// [`write`](Self::write), from element `first` on.
    ///
    /// # Errors
    /// As there.
    pub fn write_from(&self, first: u64, values: &[T]) -> Result<()> {
        self.write_elements(first, bytemuck::cast_slice(values))
    }

    /// Copies elements from 0 on, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::Gpu`](crate::Error::Gpu).
    pub fn read(&self, out: &mut [T]) -> Result<()> {
        self.read_from(0, out)
    }

    /// [`read`](Self::read), from element `first` on.
    ///
    /// # Errors
    /// As there.
    pub fn read_from(&self, first: u64, out: &mut [T]) -> Result<()> {
        self.read_elements(first, bytemuck::cast_slice_mut(out))
    }

    /// All elements, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut out = vec![T::zeroed(); self.len() as usize];
        self.read(&mut out)?;
        Ok(out)
    }
}

impl<E> std::fmt::Debug for Buffer<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} elements of {} bytes)", self.length, self.element.bytes())
    }
}
