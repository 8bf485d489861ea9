//! What programs hold of an elastic buffer.

use std::{
    marker::PhantomData,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytemuck::Pod;

use super::ElasticInner;
use crate::{
    element::{ElementType, Untyped},
    error::{Doing, Result, check_range},
    gpu::PagedGpu,
};

/// Device memory that grows and shrinks at one address: the argument for a pointer parameter, as [`Buffer`](crate::Buffer) is. Nothing is
/// paged and kernels' accesses are not checked; an access beyond the length is an error of the kernel.
///
/// ```
/// # use gpuvm::{LaunchConfig, Vm};
/// # fn main() -> Result<(), gpuvm::Error> {
/// # let vm = Vm::builder().frame_memory(1 << 18).build()?;
/// # let source = "__global__ void fill(float* at, unsigned long long n) { for (unsigned long long i = threadIdx.x; i < n; i += blockDim.x) at[i] = i; }";
/// # let fill = vm.kernel("fill.cu", source, "fill")?;
/// let keys = vm.elastic_buffer::<f32>(1 << 30)?; // 4 GiB of addresses, no memory
/// keys.grow(1000)?;
/// fill.launch(LaunchConfig::new(1, 32), (&keys, keys.len()))?.sync()?;
/// keys.grow(1)?; // at the same address
/// assert_eq!(keys.to_vec()?[999], 999.0);
/// # Ok(()) }
/// ```
///
/// - *Memory* comes in handles: 2 MiB on NVIDIA GPUs. A buffer that grows has whole ones, and more of them are mapped ahead of it: a handle
///   at least, more when it grows fast. A growth in pre-mapped memory only moves the length; another maps memory first ([`Grown`] says
///   which). Buffers that were made with a [length](crate::ElasticBuilder::length) and have not grown share handles: one may begin behind
///   another's end. The first growth of one over another's beginning waits for the launches that name it, and copies up to a handle.
/// - *Contents* of new elements are unspecified, those of [`ensure`](Self::ensure) too: what other buffers of this GPU and virtual memory
///   held, or zero. Other processes' data is never there.
/// - *Growing* waits for no launch, but for that copy. Launches that run go on with the elements that there were when they were enqueued;
///   launches that are enqueued after `grow` has returned use the new ones.
/// - *Shrinking* waits for nothing. What is behind the new length must not be used any more, also by launches that run; it is unmapped when
///   they have ended, and goes to a pool for other elastic buffers. [`VmGpu::trim`](crate::VmGpu::trim) gives it to the driver.
/// - *Dropping* it while a launch uses it is safe: the memory is for others when the launch has ended.
///
/// A kernel that uses more buffers than it has parameters finds them by a table of their addresses ([`pointer`](Self::pointer)), written once, as
/// `examples/kv_cache` does. The launch does not name them then: wait for its end before one of them shrinks, is paused or is dropped, and
/// before one that was made with a length grows for the first time.
pub struct ElasticBuffer<E> {
    pub(crate) gpu: Arc<PagedGpu>,
    pub(crate) inner: Arc<ElasticInner>,
    _elements: PhantomData<fn() -> E>,
}

/// An elastic buffer whose element type is known at run time alone: [`VmGpu::raw_elastic`](crate::VmGpu::raw_elastic).
pub type RawElasticBuffer = ElasticBuffer<Untyped>;

/// What a growth was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// The first new element; where several threads grow a buffer, of this growth.
    pub first: u64,
    /// Its memory was pre-mapped: only the length has moved.
    pub premapped: bool,
    /// Bytes that were copied, since another buffer began where this one grew.
    pub moved_bytes: u64,
    /// How long the caller was held.
    pub took: Duration,
}

impl<E> ElasticBuffer<E> {
    pub(super) fn new(gpu: Arc<PagedGpu>, inner: Arc<ElasticInner>) -> Self {
        Self {
            gpu,
            inner,
            _elements: PhantomData,
        }
    }

    /// Elements.
    pub fn len(&self) -> u64 {
        self.inner.length()
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements that it can have without waiting for memory; 0 while it is paused.
    pub fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    /// The most elements that it can have.
    pub fn max_len(&self) -> u64 {
        self.inner.max
    }

    /// Address of element 0, for ever: a multiple of 512.
    pub fn pointer(&self) -> u64 {
        self.inner.addr
    }

    /// Who gives up memory that is mapped and not in use when GPU memory is short: those of low priority first, among elastic buffers and
    /// [frames](crate::VmGpu::set_frame_priority). It holds for the next who is short.
    pub fn set_priority(&self, priority: i32) {
        // Relaxed: it orders nothing.
        self.inner.priority.store(priority, Ordering::Relaxed);
    }

    /// The name that errors use.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The type of its elements.
    pub fn element(&self) -> &ElementType {
        &self.inner.element
    }

    /// Makes it longer by `elements`. What they hold is unspecified.
    ///
    /// # Errors
    /// [`Error::BeyondMax`](crate::Error::BeyondMax), [`Error::Paused`](crate::Error::Paused),
    /// [`Error::OutOfHandles`](crate::Error::OutOfHandles) where GPU memory is short, [`Error::Gpu`](crate::Error::Gpu). Length, contents and
    /// what is mapped are then as before.
    pub fn grow(&self, elements: u64) -> Result<Grown> {
        self.gpu.map_device_lost(self.inner.grow(|_| elements))
    }

    /// Makes it `elements` long, if it is shorter.
    ///
    /// # Errors
    /// As for [`grow`](Self::grow).
    pub fn ensure(&self, elements: u64) -> Result<Grown> {
        self.gpu
            .map_device_lost(self.inner.grow(|length| elements.saturating_sub(length)))
    }

    /// Makes it shorter by `elements`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) when it has fewer, [`Error::Paused`](crate::Error::Paused).
    pub fn shrink(&self, elements: u64) -> Result<()> {
        self.inner.shrink(elements)
    }

    /// Stores the bytes of elements from `first` on.
    fn write_elements(&self, first: u64, values: &[u8]) -> Result<()> {
        self.access(first, values.len(), |inner, addr| {
            let written = inner.family.device.write(addr, values);
            written.doing(|| inner.doing("writing"))
        })
    }

    /// Copies the bytes of elements from `first` on.
    fn read_elements(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.access(first, out.len(), |inner, addr| {
            let read = inner.family.device.read(addr, out);
            read.doing(|| inner.doing("reading"))
        })
    }

    /// Calls `act` with the address of an element behind which this many bytes of elements lie, when no launch that names the buffer runs.
    fn access(&self, first: u64, bytes: usize, act: impl FnOnce(&ElasticInner, u64) -> Result<()>) -> Result<()> {
        let inner = &*self.inner;
        let count = inner.element.count(&inner.name, bytes)?;
        // While it is held nothing is taken out.
        let _launches = inner.quiesce();
        let (length, paused) = {
            let state = inner.state.lock();
            (state.length, state.paused)
        };
        check_range(&inner.name, &(first..first.saturating_add(count)), length)?;
        if paused {
            return Err(inner.paused());
        }
        if count == 0 {
            return Ok(());
        }
        self.gpu.map_device_lost(act(inner, inner.addr + inner.bytes_of(first)))
    }
}

impl RawElasticBuffer {
    /// Stores `values`, a whole number of elements, from element `first` on, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::PartOfAnElement`](crate::Error::PartOfAnElement),
    /// [`Error::Paused`](crate::Error::Paused), [`Error::Gpu`](crate::Error::Gpu).
    pub fn write_bytes(&self, first: u64, values: &[u8]) -> Result<()> {
        self.write_elements(first, values)
    }

    /// Copies elements from `first` on, a whole number of them, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// As [`write_bytes`](Self::write_bytes).
    pub fn read_bytes(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.read_elements(first, out)
    }
}

impl<T: Pod> ElasticBuffer<T> {
    /// Stores `values` from element `first` on, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::Paused`](crate::Error::Paused), [`Error::Gpu`](crate::Error::Gpu).
    pub fn write(&self, first: u64, values: &[T]) -> Result<()> {
        self.write_elements(first, bytemuck::cast_slice(values))
    }

    /// Copies elements from `first` on, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn read(&self, first: u64, out: &mut [T]) -> Result<()> {
        self.read_elements(first, bytemuck::cast_slice_mut(out))
    }

    /// All elements, after the launches that were enqueued with the buffer.
    ///
    /// # Errors
    /// As for [`write`](Self::write); [`Error::OutOfRange`](crate::Error::OutOfRange) when another thread makes it shorter meanwhile.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut out = vec![T::zeroed(); self.len() as usize];
        self.read(0, &mut out)?;
        Ok(out)
    }
}

impl<E> Drop for ElasticBuffer<E> {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl<E> std::fmt::Debug for ElasticBuffer<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (length, size) = (self.len(), self.inner.element.bytes());
        write!(
            f,
            "ElasticBuffer({length} of {} elements of {size} bytes)",
            self.inner.max
        )
    }
}
