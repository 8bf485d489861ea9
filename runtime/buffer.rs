//! Plain device memory: a kernel's `T*`.

use std::{
    marker::PhantomData,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use bytemuck::Pod;

use crate::{
    device::DeviceArray,
    error::{Doing, Error, Result},
    gpu::PagedGpu,
    launch::{InFlight, Memory},
};

/// Shared by the handle and the launches that name it.
pub(crate) struct BufferInner<T> {
    pub memory: DeviceArray<T>,
    pub launches: Mutex<Vec<Weak<InFlight>>>,
}

impl<T: Pod> Memory for BufferInner<T> {
    fn launches(&self) -> &Mutex<Vec<Weak<InFlight>>> {
        &self.launches
    }

    fn may_be_written(&self) {
        // It has no home that would be behind.
    }
}

/// Device memory of a fixed number of elements, the argument for a pointer parameter. It is not paged and kernels'
/// accesses to it are not checked. Dropping it while a launch uses it is safe: the memory goes when the launch ends.
pub struct Buffer<T> {
    pub(crate) gpu: Arc<PagedGpu>,
    pub(crate) inner: Arc<BufferInner<T>>,
    length: u64,
    _elements: PhantomData<fn() -> T>,
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn zeroed(gpu: Arc<PagedGpu>, length: u64) -> Result<Self> {
        let memory =
            DeviceArray::zeroed(&**gpu.device(), length).doing(|| format!("allocating a buffer of {length} elements"));
        let memory = gpu.or_lost(memory)?;
        let inner = Arc::new(BufferInner {
            memory,
            launches: Mutex::default(),
        });
        Ok(Self {
            gpu,
            inner,
            length,
            _elements: PhantomData,
        })
    }

    /// Elements.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Stores `values` from element 0 on, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Gpu`].
    pub fn write(&self, values: &[T]) -> Result<()> {
        self.check(values.len())?;
        let _guard = self.quiesce();
        let written = self.inner.memory.write(&**self.gpu.device(), 0, values);
        self.gpu.or_lost(written.doing(|| "writing a buffer".into()))
    }

    /// Copies elements from 0 on, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Gpu`].
    pub fn read(&self, out: &mut [T]) -> Result<()> {
        self.check(out.len())?;
        let _guard = self.quiesce();
        out.copy_from_slice(&self.copy(out.len())?);
        Ok(())
    }

    /// All elements, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let _guard = self.quiesce();
        self.copy(self.length as usize)
    }

    /// Elements from 0 on. No launch that names the buffer may run.
    fn copy(&self, count: usize) -> Result<Vec<T>> {
        let values = self.inner.memory.read(&**self.gpu.device(), 0, count);
        self.gpu.or_lost(values.doing(|| "reading a buffer".into()))
    }

    fn check(&self, count: usize) -> Result<()> {
        if count as u64 > self.length {
            return Err(Error::OutOfRange {
                name: "buffer".into(),
                first: 0,
                end: count as u64,
                length: self.length,
            });
        }
        Ok(())
    }

    /// Waits for the launches that name the buffer and keeps others from beginning while the guard lives.
    fn quiesce(&self) -> MutexGuard<'_, Vec<Weak<InFlight>>> {
        let mut launches = self.inner.launches.lock().unwrap_or_else(PoisonError::into_inner);
        for launch in launches.drain(..).filter_map(|launch| launch.upgrade()) {
            launch.settle();
        }
        launches
    }
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} elements of {} bytes)", self.length, size_of::<T>())
    }
}
