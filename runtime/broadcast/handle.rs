//! The handle of a broadcast array.

use std::{marker::PhantomData, ops::Range, sync::Arc};

use bytemuck::Pod;

use super::BroadcastInner;
use crate::{
    element::{ElementType, Untyped},
    error::{Doing, Result},
};

/// An array of which each subscribed GPU of a [`Vm`](crate::Vm) holds a copy: the argument for a `gpuvm::broadcast<T>` parameter of a kernel
/// on any of its GPUs. Loads are loads of GPU memory; stores go to the copies of all subscribers as they happen.
///
/// Launches that name it run side by side on all GPUs. A launch comes after the last one on its own GPU and all that were
/// enqueued since, if it or one of them may store: so launches on each GPU in turn, again and again, are rounds. At the end of the launches all copies are equal,
/// unless stores of several lanes to one element raced.
///
/// Kernels' atomics on it are atomics on another GPU's memory: they need a link that has them, as NVLink does and PCIe does not. `gpuvm
/// doctor` says which GPUs have such a link.
///
/// ```
/// use gpuvm::{LaunchConfig, SimulatedGpu, Transport, Vm};
///
/// const SOURCE: &str = r"
/// #include <gpuvm/gpuvm.cuh>
/// __global__ void step(gpuvm::broadcast<const float> from, gpuvm::broadcast<float> to, unsigned first, unsigned end) {
///     unsigned i = first + blockIdx.x * blockDim.x + threadIdx.x;
///     if (i < end) to[i] = (from[i ? i - 1 : i] + from[i] + from[i + 1 < from.size() ? i + 1 : i]) / 3;
/// }";
///
/// # fn main() -> Result<(), gpuvm::Error> {
/// let gpus = [SimulatedGpu::new().workers(1), SimulatedGpu::new().workers(1)];
/// let vm = Vm::builder().gpus(gpus).transport(Transport::Direct).frame_memory(1 << 16).build()?;
/// let n = 1 << 10;
/// let mut from = vm.broadcast::<f32>().from_iter((0..n).map(|i| (i % 3) as f32))?;
/// let mut to = vm.broadcast::<f32>().zeroed(n)?;
/// let steps: Vec<_> = vm.gpus().iter().map(|gpu| gpu.kernel("step.cu", SOURCE, "step")).collect::<Result<_, _>>()?;
/// for _ in 0..4 {
///     for (part, step) in (0u32..).zip(&steps) {
///         let half = n as u32 / 2;
///         let config = LaunchConfig::new(half.div_ceil(256), 256);
///         step.launch(config, (&from, &to, part * half, (part + 1) * half))?.sync()?;
///     }
///     std::mem::swap(&mut from, &mut to);
/// }
/// assert_eq!(from.to_vec()?[n as usize / 2], 1.0);
/// # Ok(()) }
/// ```
///
/// Dropping it waits for the launches that name it.
pub struct Broadcast<T> {
    inner: Arc<BroadcastInner>,
    _elements: PhantomData<T>,
}

/// What one GPU has stored to another's copies of a broadcast array.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Stores of single lanes that went to other GPUs.
    pub stores: u64,
    /// Lines of 128 bytes, or parts of them, in which those left: stores of one warp to one line leave as one, and so do stores that a
    /// `gpuvm::merge_queue` has merged.
    pub lines: u64,
    /// Bytes that left for each GPU, by its place.
    pub bytes: Vec<u64>,
    /// Lines that atomics and system-scope stores had changed, forwarded at the end of launches. Every one is counted.
    pub lines_forwarded: u64,
}

impl Traffic {
    /// Bytes of a line that left, on average over the GPUs that it went to; none where none left. Well under 128, a `gpuvm::merge_queue`
    /// may pay: a link carries a part of a line in about the time of a whole one.
    pub fn bytes_a_line(&self) -> Option<f64> {
        let to = self.bytes.iter().filter(|bytes| **bytes > 0).count() as u64;
        let lines = self.lines * to;
        (lines > 0).then(|| self.bytes.iter().sum::<u64>() as f64 / lines as f64)
    }
}

impl<T> Broadcast<T> {
    pub(super) fn new(inner: Arc<BroadcastInner>) -> Self {
        Self {
            inner,
            _elements: PhantomData,
        }
    }

    pub(crate) fn inner(&self) -> &Arc<BroadcastInner> {
        &self.inner
    }

    /// Elements.
    pub fn len(&self) -> u64 {
        self.inner.length
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.inner.length == 0
    }

    /// The name that errors use.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Elements of a page: what a GPU subscribes to. 2 MiB on NVIDIA GPUs, 64 KiB on simulated ones.
    pub fn page_elements(&self) -> u64 {
        self.inner.views.page_bytes / self.inner.element.bytes() as u64
    }

    /// Has GPU `gpu` of the [`Vm`](crate::Vm) hold copies of all pages that have one of these elements. Waits for the launches that name
    /// the array.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::Setting`](crate::Error::Setting) for a GPU that the `Vm` does not have,
    /// [`Error::Gpu`](crate::Error::Gpu) when its memory is short: then nothing is changed.
    pub fn subscribe(&self, gpu: usize, elements: Range<u64>) -> Result<()> {
        self.inner.subscribe(gpu, elements)
    }

    /// Has GPU `gpu` give back its copies of the pages that have no other elements than these. It reads the owner's copy from then on, over
    /// the link. If it was the owner, another subscriber becomes it. Waits for the launches that name the array.
    ///
    /// # Errors
    /// [`Error::LastSubscriber`](crate::Error::LastSubscriber) when nothing else has one of the pages: then nothing is changed; else as
    /// [`subscribe`](Self::subscribe).
    pub fn unsubscribe(&self, gpu: usize, elements: Range<u64>) -> Result<()> {
        self.inner.unsubscribe(gpu, elements)
    }

    /// The GPUs that hold a copy of the element's page, by their places.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn subscribers_of(&self, element: u64) -> Result<Vec<usize>> {
        self.inner.check_range(&(element..element.saturating_add(1)))?;
        let page = self.inner.page_of(element);
        let held = self.inner.subscriptions.read().subscribers(page);
        Ok((0..self.inner.on.len()).filter(|gpu| held >> gpu & 1 == 1).collect())
    }

    /// The GPU that owns the element's page: its copy is what atomics and system-scope accesses use.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange).
    pub fn owner_of(&self, element: u64) -> Result<usize> {
        self.inner.check_range(&(element..element.saturating_add(1)))?;
        Ok(self.inner.subscriptions.read().owner(self.inner.page_of(element)))
    }

    /// Bytes of GPU memory that copies take on GPU `gpu`.
    pub fn bytes_held_by(&self, gpu: usize) -> u64 {
        let subscriptions = self.inner.subscriptions.read();
        let held = (0..subscriptions.pages()).filter(|page| gpu < 32 && subscriptions.is_subscribed(gpu, *page));
        held.count() as u64 * self.inner.views.page_bytes
    }

    /// Writes what the GPUs hold to the array's home in host memory, after the launches that name it.
    ///
    /// # Errors
    /// As a launch; [`Error::Gpu`](crate::Error::Gpu).
    pub fn flush(&self) -> Result<()> {
        let _launches = self.inner.quiesce()?;
        let mut home = self.inner.home.lock();
        let bytes = self.inner.bytes() as usize;
        self.inner.read_out(0, &mut home[..bytes])
    }

    /// The type of its elements.
    pub fn element(&self) -> &ElementType {
        &self.inner.element
    }

    /// The first byte of elements from `first` on, if this many bytes are whole elements that there are.
    fn offset_of(&self, first: u64, bytes: usize) -> Result<u64> {
        let count = self.inner.element.count(&self.inner.name, bytes)?;
        self.inner.check_range(&(first..first.saturating_add(count)))?;
        Ok(first * self.inner.element.bytes() as u64)
    }

    fn read_elements(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let offset = self.offset_of(first, out.len())?;
        let _launches = self.inner.quiesce()?;
        self.inner.read_out(offset, out)
    }

    fn write_elements(&self, first: u64, values: &[u8]) -> Result<()> {
        let offset = self.offset_of(first, values.len())?;
        let _launches = self.inner.quiesce()?;
        self.inner.write_in(offset, values)
    }

    fn read_home_elements(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let offset = self.offset_of(first, out.len())?;
        self.inner.copy_home(offset as usize, out);
        Ok(())
    }

    /// What each GPU has stored to others' copies, by its place; estimated from every 256th line. Exact when no launch runs, for what is
    /// counted.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu).
    pub fn traffic(&self) -> Result<Vec<Traffic>> {
        self.inner.on.iter().map(|on| self.inner.traffic_of(on)).collect()
    }
}

/// A broadcast array whose element type is known at run time alone: [`Vm::raw_broadcast`](crate::Vm::raw_broadcast).
pub type RawBroadcast = Broadcast<Untyped>;

impl RawBroadcast {
    /// Copies elements from `first` on into `out`, a whole number of them, after the launches that name the array.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::PartOfAnElement`](crate::Error::PartOfAnElement),
    /// [`Error::Gpu`](crate::Error::Gpu).
    pub fn read_bytes(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.read_elements(first, out)
    }

    /// Stores `values`, a whole number of elements, from element `first` on in all copies, after the launches that name the array.
    ///
    /// # Errors
    /// As [`read_bytes`](Self::read_bytes).
    pub fn write_bytes(&self, first: u64, values: &[u8]) -> Result<()> {
        self.write_elements(first, values)
    }

    /// Copies elements from `first` on as the home has them: see [`Broadcast::read_home`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::PartOfAnElement`](crate::Error::PartOfAnElement).
    pub fn read_home_bytes(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.read_home_elements(first, out)
    }
}

impl<T: Pod> Broadcast<T> {
    /// Copies elements from `first` on into `out`, after the launches that name the array.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::Gpu`](crate::Error::Gpu).
    pub fn read(&self, first: u64, out: &mut [T]) -> Result<()> {
        self.read_elements(first, bytemuck::cast_slice_mut(out))
    }

    /// Stores `values` from element `first` on in all copies, after the launches that name the array.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, first: u64, values: &[T]) -> Result<()> {
        self.write_elements(first, bytemuck::cast_slice(values))
    }

    /// All elements, after the launches that name the array.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut out = vec![T::zeroed(); self.len() as usize];
        self.read(0, &mut out)?;
        Ok(out)
    }

    /// All elements as the home has them: what the array was made of, or what the last [`flush`](Self::flush) wrote. It asks no GPU.
    pub fn read_home(&self) -> Vec<T> {
        let mut out = vec![T::zeroed(); self.len() as usize];
        self.inner.copy_home(0, bytemuck::cast_slice_mut(&mut out));
        out
    }

    /// Each view's copy of all elements, for tests: what its lanes would read.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[doc(hidden)]
    pub fn copies(&self) -> Result<Vec<Vec<T>>> {
        let _launches = self.inner.quiesce()?;
        let subscriptions = self.inner.subscriptions.read();
        let copy = (0..self.inner.on.len()).map(|view| {
            let mut out = vec![T::zeroed(); self.len() as usize];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut out);
            let runs = self
                .inner
                .by_run(0..bytes.len() as u64, |page| subscriptions.behind(view, page));
            for (_, span) in runs {
                let part = &mut bytes[span.start as usize..span.end as usize];
                self.inner.read_view(view, span.start, part)?;
            }
            Ok(out)
        });
        copy.collect()
    }
}

impl BroadcastInner {
    fn page_of(&self, element: u64) -> usize {
        (element * self.element.bytes() as u64 / self.views.page_bytes) as usize
    }

    /// Stores the home in all copies, once the array is made.
    pub(super) fn fill_with_home(&self) -> Result<()> {
        let home = self.home.lock();
        self.write_in(0, &home[..self.bytes() as usize])
    }

    /// Copies bytes of the home, which there are.
    fn copy_home(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.home.lock()[offset..][..out.len()]);
    }

    fn traffic_of(&self, on: &super::OnView) -> Result<Traffic> {
        let read = on.counters.read(on.device(), 0, 1);
        let counted = on
            .gpu
            .map_device_lost(read.doing(|| format!("counting stores to `{}`", self.name)))?[0];
        let lines = u64::from(on.desc.lock().sample_mask) + 1;
        let bytes = counted.bytes.iter().take(self.on.len());
        Ok(Traffic {
            stores: counted.stores * lines,
            lines: counted.lines * lines,
            bytes: bytes.map(|bytes| bytes * lines).collect(),
            lines_forwarded: counted.forwarded,
        })
    }
}

impl<T> Drop for Broadcast<T> {
    fn drop(&mut self) {
        // Launches keep the memory alive; the thread that drops the array expects to be told of nothing after it.
        self.inner.launches.lock().wait_idle();
    }
}

impl<T> std::fmt::Debug for Broadcast<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, length) = (self.name(), self.len());
        write!(
            f,
            "Broadcast(`{name}`, {length} elements, {} GPUs)",
            self.inner.on.len()
        )
    }
}
