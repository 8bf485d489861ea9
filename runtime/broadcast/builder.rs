//! What a broadcast array is to be.

use std::{marker::PhantomData, sync::Arc};

use bytemuck::{Pod, Zeroable};
use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{BROADCAST_LINE_SHIFT, BROADCAST_VIEWS_MAX, BroadcastDesc};
use memmap2::MmapMut;
use parking_lot::{Mutex, RwLock};

use super::{Broadcast, BroadcastInner, OnView, RawBroadcast, Subscriptions, Views, subscriptions::part_shift};
use crate::{
    device::DeviceArray,
    element::{ElementType, Untyped},
    error::{Doing, Error, Result},
    gpu::PagedGpu,
    stored::stored,
};

/// Which GPUs hold which pages of a new broadcast array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subscribers {
    /// All GPUs hold all pages.
    #[default]
    All,
    /// Each page is held by one GPU, the pages shared out among them. A GPU that reads another page subscribes to it: from the next launch
    /// with the array on that begins while no other runs.
    Readers,
    /// Each page is held by one GPU, the pages shared out among them, until [`Broadcast::subscribe`] or [`crate::Vm::track`].
    Owners,
}

/// A broadcast array to be. The last call says how long it is.
#[must_use]
pub struct BroadcastBuilder<E> {
    gpus: Vec<Arc<PagedGpu>>,
    arrays: Arc<super::Arrays>,
    element: ElementType,
    name: Option<String>,
    subscribers: Subscribers,
    plain: bool,
    sample_shift: u32,
    _elements: PhantomData<E>,
}

/// One line in this many, as a power of two, is counted.
const SAMPLE_SHIFT: u32 = 8;

impl<E> BroadcastBuilder<E> {
    pub(crate) fn new(gpus: Vec<Arc<PagedGpu>>, arrays: Arc<super::Arrays>, element: ElementType) -> Self {
        Self {
            gpus,
            arrays,
            element,
            name: None,
            subscribers: Subscribers::All,
            plain: false,
            sample_shift: SAMPLE_SHIFT,
            _elements: PhantomData,
        }
    }

    stored! {
        /// The name that errors use. Default: the element's type.
        name(name: impl Into<String>) => name = Some(name.into());

        /// Which GPUs hold which pages at first. Default: [`Subscribers::All`].
        subscribers(subscribers: Subscribers) => subscribers = subscribers;
    }

    /// [`Traffic`](super::Traffic) counts every store, not those to one line in 256 alone: for tests, since counting takes atomics.
    pub fn count_all(mut self) -> Self {
        self.sample_shift = 0;
        self
    }

    /// This many views on the first GPU, which all hold all pages: for tests of what lanes do in one simulated GPU.
    #[doc(hidden)]
    pub fn views_on_one_gpu(mut self, count: usize) -> Self {
        self.gpus = vec![Arc::clone(&self.gpus[0]); count];
        self.plain = true;
        self
    }

    /// `length` elements whose bytes are all zero.
    ///
    /// # Errors
    /// [`Error::Setting`] for elements that do not divide a page, or more than 16 GPUs; [`Error::Gpu`] when memory is short, or a GPU does
    /// not reach another's memory.
    pub fn zeroed(self, length: u64) -> Result<Broadcast<E>> {
        self.filled(length, &[])
    }

    /// With `length` elements, of which `bytes` are the first, and the others zero.
    fn filled(self, length: u64, bytes: &[u8]) -> Result<Broadcast<E>> {
        let array = Broadcast::new(self.build(length)?);
        let inner = array.inner();
        inner.home.lock()[..bytes.len()].copy_from_slice(bytes);
        inner.fill_with_home()?;
        Ok(array)
    }

    fn build(self, length: u64) -> Result<Arc<BroadcastInner>> {
        let element = self.element.clone();
        let refuse = |setting, value: String, reason: String| Err(Error::Setting { setting, value, reason });
        let size = element.bytes() as u64;
        if !size.is_power_of_two() || size > 4096 {
            let reason = "it must divide a page: pad it to a power of two, at most 4096 bytes".to_owned();
            return refuse("element size of a broadcast array", size.to_string(), reason);
        }
        let count = self.gpus.len();
        if count > BROADCAST_VIEWS_MAX as usize {
            let reason = format!("a broadcast array has at most {BROADCAST_VIEWS_MAX} views");
            return refuse("number of GPUs", count.to_string(), reason);
        }
        let Some(bytes) = length.checked_mul(size).filter(|bytes| *bytes < 1 << 44) else {
            return refuse(
                "length of a broadcast array",
                length.to_string(),
                "it is too large for memory".into(),
            );
        };
        let name = self.name.clone().unwrap_or_else(|| element.name().to_owned());
        let doing = || format!("making broadcast array `{name}` of {length} elements");
        let devices: Vec<&dyn Gpu> = self.gpus.iter().map(|gpu| &*gpu.device).collect();
        let views = match self.plain {
            true => Views::plain(devices[0], count as u64, bytes),
            false => Views::reserve(&devices, bytes),
        };
        let first = &self.gpus[0];
        let views = first.map_device_lost(views.doing(doing))?;
        let pages: Vec<usize> = (0..views.pages()).collect();
        let subscriptions = Subscriptions::new(count, pages.len(), self.subscribers == Subscribers::All || self.plain);
        let supplied = views.supply(&devices, &subscriptions, &pages);
        first.map_device_lost(supplied.doing(doing))?;
        first.map_device_lost(views.place(&subscriptions, &pages).doing(doing))?;
        let on = (0..count).map(|view| self.on_view(&views, view, length));
        let on = on.collect::<Result<Vec<_>, _>>().doing(doing);
        let home = MmapMut::map_anon(bytes.max(1) as usize)
            .map_err(|source| GpuError::io(&format!("map {bytes} bytes of host memory"), None, source))
            .doing(doing)?;
        let inner = Arc::new(BroadcastInner {
            on: first.map_device_lost(on)?,
            name,
            element,
            length,
            views,
            subscriptions: RwLock::new(subscriptions.clone()),
            by_reading: self.subscribers == Subscribers::Readers,
            tracked: false.into(),
            launches: Mutex::default(),
            round: Mutex::default(),
            home: Mutex::new(home),
        });
        inner.tell(&subscriptions, &pages)?;
        inner.set_tracking();
        self.arrays.enter(&inner);
        Ok(inner)
    }

    fn on_view(&self, views: &Views, view: usize, length: u64) -> Result<OnView, GpuError> {
        let gpu = &self.gpus[view];
        let device = &*gpu.device;
        let pages = views.pages() as u64;
        let (entries, reads) = (DeviceArray::zeroed(device, pages)?, DeviceArray::zeroed(device, pages)?);
        let lines = views.stride >> BROADCAST_LINE_SHIFT;
        let marks = DeviceArray::zeroed(device, lines.next_multiple_of(8))?;
        let counters = DeviceArray::zeroed(device, 1)?;
        let marked = device.allocate_host(4)?;
        let desc = BroadcastDesc {
            own: views.addr(view),
            length,
            views: views.base,
            stride: views.stride,
            pages: entries.addr(),
            marks: marks.addr(),
            marked: marked.device_addr(),
            counters: counters.addr(),
            page_shift: views.page_bytes.trailing_zeros(),
            part_shift: views.page_bytes.trailing_zeros() + part_shift(pages),
            sample_mask: (1 << self.sample_shift) - 1,
            view: view as u32,
            ..BroadcastDesc::zeroed()
        };
        Ok(OnView {
            gpu: Arc::clone(gpu),
            entries,
            reads,
            _marks: marks,
            counters,
            marked,
            desc: Mutex::new(desc),
        })
    }
}

impl BroadcastBuilder<Untyped> {
    /// A copy of `bytes`, which are those of whole elements, in this machine's byte order.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed), and [`Error::PartOfAnElement`].
    pub fn from_bytes(self, bytes: &[u8]) -> Result<RawBroadcast> {
        let owner = self.name.as_deref().unwrap_or(self.element.name());
        let length = self.element.count(owner, bytes.len())?;
        self.filled(length, bytes)
    }
}

impl<T: Pod> BroadcastBuilder<T> {
    /// The elements of a slice.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn from_slice(self, values: &[T]) -> Result<Broadcast<T>> {
        self.filled(values.len() as u64, bytemuck::cast_slice(values))
    }

    /// The elements of an iterator.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    #[allow(clippy::should_implement_trait, reason = "a builder's last call, as a region's")]
    pub fn from_iter(self, values: impl IntoIterator<Item = T>) -> Result<Broadcast<T>> {
        let values: Vec<T> = values.into_iter().collect();
        self.from_slice(&values)
    }
}
