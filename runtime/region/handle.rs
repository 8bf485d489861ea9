//! The handle of a region.

use std::{marker::PhantomData, ops::Range, sync::Arc};

use bytemuck::Pod;
use gpuvm_layouts::{self as layout, PageWord};

use super::{OnGpu, RegionInner};
use crate::gpu::ReadCosts;
use crate::{
    element::{ElementType, Untyped},
    error::{Doing, Error, Result},
};

/// An array in host memory, or at memory nodes, that kernels reach page by page: the argument for a `gpuvm::array<T>` parameter.
///
/// Dropping it waits for the launches that name it, writes its dirty pages back and gives its frames back; use
/// [`close`](Self::close) to see whether that worked.
pub struct Region<T> {
    pub(crate) inner: Arc<RegionInner>,
    borrowed: bool,
    _elements: PhantomData<T>,
}

impl<E> Region<E> {
    /// The handle of a region, which is lent or its own.
    pub(super) fn new(inner: Arc<RegionInner>, borrowed: bool) -> Self {
        Self {
            inner,
            borrowed,
            _elements: PhantomData,
        }
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

    /// Whether kernels may only read it.
    pub fn is_read_only(&self) -> bool {
        self.inner.kind.read_only
    }

    /// What reads at the region's home cost, where [`Placement::Auto`](crate::Placement::Auto) weighs that against fetches; else none.
    pub fn read_costs(&self) -> Option<ReadCosts> {
        self.inner.own.read_costs
    }

    /// Pages, the last one perhaps not whole.
    pub fn pages(&self) -> u64 {
        self.inner.pages.count()
    }

    /// Writes back what the launches that were enqueued before this call, and that name the region, wrote.
    ///
    /// # Errors
    /// [`Error::Fault`] naming the first page that could not be written; it stays dirty in GPU memory and a later
    /// flush tries again.
    pub fn flush(&self) -> Result<()> {
        let _span = self.inner.span("wait and flush");
        let mut launches = self.inner.quiesce();
        self.inner.flush_quiet(&mut launches)?;
        self.inner.sync(true)
    }

    /// Writes dirty pages back without waiting for launches: it covers the writes that happened before it, and ends although kernels
    /// write on. A never-evicted region is flushed as by [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn flush_beside(&self) -> Result<()> {
        if self.inner.kind.never_evicted {
            // Its lanes store without a pin, so a page that is being written cannot be told from one that is not.
            return self.flush();
        }
        self.inner.flush_beside()?;
        self.inner.sync(false)
    }

    /// Writes dirty pages back and gives the frames back, so that the next launch finds no page in GPU memory. Waits for
    /// the launches that name the region.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn evict(&self) -> Result<()> {
        let _span = self.inner.span("eviction of all");
        self.inner.release_pages(&mut self.inner.quiesce(), false)
    }

    /// Drops the pages that lie wholly in a range of elements, without writing them back: their frames are free again, and each page
    /// holds what its home holds. That is what kernels wrote up to the page's last write-back, by a flush or for its frame, so pages of one
    /// range may be of different age. Pages that lie in the range in part stay as they are. A
    /// [never-evicted](super::RegionBuilder::never_evicted) region drops pages as well, and keeps the frames, into which they are fetched
    /// again.
    ///
    /// Waits for the launches that name the region. Right for scratch data that is written anew: what is dropped costs no bytes over the
    /// link.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) for a range that ends before it begins, or past the region's end;
    /// [`Error::Fault`](crate::Error::Fault) naming a page that could not be dropped.
    pub fn discard(&self, range: Range<u64>) -> Result<()> {
        let inner = &self.inner;
        let _span = inner.span("discard");
        inner.check_range(&range)?;
        let bytes = inner.element.bytes() as u64;
        let pages = inner.pages.within(&(range.start * bytes..range.end * bytes));
        inner.release_some(&mut inner.quiesce(), &pages, true)
    }

    /// Writes the dirty pages back that have some of these bytes, and gives their frames back: the host has written there, to other pages than
    /// launches did. Waits for the launches that name the region.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    #[doc(hidden)]
    pub fn evict_bytes(&self, bytes: Range<u64>) -> Result<()> {
        let pages = self.inner.pages.of_span(&bytes);
        self.inner.release_some(&mut self.inner.quiesce(), &pages, false)
    }

    /// Has the pages with some of these bytes that are at home come before the next launch that looks them up, as far as frames are free. Waits for
    /// the launches that name the region.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    #[doc(hidden)]
    pub fn want_bytes(&self, bytes: Range<u64>) -> Result<()> {
        let (inner, pages) = (&self.inner, self.inner.pages.of_span(&bytes));
        let mut launches = inner.quiesce();
        inner.want(&mut launches, &pages)
    }

    /// The type of its elements.
    pub fn element(&self) -> &ElementType {
        &self.inner.element
    }

    /// Device address of element 0, where all elements lie as plain memory for good: of a [never-evicted](super::RegionBuilder::never_evicted)
    /// region on the GPU that it was made on, once kernels have touched each of its pages. Else none. Stores there by others than this
    /// library's kernels are unknown to it and never reach the home, so it is for reading.
    ///
    /// # Errors
    /// [`Error::Gpu`] when GPU memory cannot be read.
    pub fn resident_addr(&self) -> Result<Option<u64>> {
        let own = &self.inner.own;
        if !self.inner.kind.never_evicted || self.is_empty() {
            return Ok(None);
        }
        let words = own.gpu.map_device_lost(own.view.read_words(&*own.gpu.device))?;
        let resident = |bits: &u64| u64::from(PageWord::from_bits(*bits).state) == layout::STATE_RESIDENT;
        let all = words.len() as u64 == self.pages() && words.iter().all(resident);
        Ok(all.then_some(own.frames_addr))
    }

    /// Ends the region and says whether every page reached its home.
    ///
    /// # Errors
    /// As [`flush`](Self::flush): then the pages that could not be written are lost with the region. [`Error::StillReached`] when the NIC or
    /// the GPU may go on to use the region's memory.
    pub fn close(self) -> Result<()> {
        let outcome = self.inner.close(self.borrowed);
        outcome.map_err(|source| match self.inner.is_leaked() {
            false => source,
            true => Error::StillReached {
                region: self.inner.name.clone(),
                source: Box::new(source),
            },
        })
    }

    /// Copies the bytes of elements from `first` on into `out`, after a flush.
    fn read_elements(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.inner.check_range(&self.elements_of(first, out.len())?)?;
        let _span = self.inner.span("read");
        let mut launches = self.inner.quiesce();
        self.inner.flush_quiet(&mut launches)?;
        self.copy(first, out)
    }

    /// Copies the bytes of elements from `first` on into `out`, after a flush where the GPU is there.
    fn read_home_elements(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.inner.check_range(&self.elements_of(first, out.len())?)?;
        let mut launches = self.inner.quiesce();
        self.inner.flush_reachable(&mut launches)?;
        self.copy(first, out)
    }

    /// Stores the bytes of elements from `first` on.
    fn write_elements(&self, first: u64, values: &[u8]) -> Result<()> {
        self.inner.check_range(&self.elements_of(first, values.len())?)?;
        if self.inner.kind.read_only {
            return Err(Error::Region {
                region: self.inner.name.clone(),
                reason: "it is read-only".into(),
            });
        }
        let _span = self.inner.span("write");
        let mut launches = self.inner.quiesce();
        self.inner.release_pages(&mut launches, false)?;
        self.inner.expect_stores();
        let offset = first * self.inner.element.bytes() as u64;
        // SAFETY: as in `copy`; after the release no frame holds a page of the region, so nothing reads or writes the home
        // until a launch that begins after the guard is gone.
        let copied = unsafe { self.inner.own.copy_in(offset, values) };
        self.inner.own.gpu.map_device_lost(copied)
    }

    /// The elements that this many bytes are, from `first` on.
    fn elements_of(&self, first: u64, bytes: usize) -> Result<Range<u64>> {
        let count = self.inner.element.count(&self.inner.name, bytes)?;
        Ok(first..first.saturating_add(count))
    }

    /// # Errors
    /// Of a home that is elsewhere. The range is checked, no launch names the region until this has returned, and its last
    /// WRITE has completed, or the GPU is lost.
    fn copy(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let offset = first * self.inner.element.bytes() as u64;
        // SAFETY: nothing writes the home, as this function's callers see to.
        let copied = unsafe { self.inner.own.copy_out(offset, out) };
        self.inner.own.gpu.map_device_lost(copied)
    }
}

/// A region whose element type is known at run time alone: [`Vm::raw_region`](crate::VmGpu::raw_region).
pub type RawRegion = Region<Untyped>;

impl RawRegion {
    /// Copies elements from `first` on into `out`, a whole number of them, after a flush.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::PartOfAnElement`], and as [`flush`](Self::flush).
    pub fn read_bytes(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.read_elements(first, out)
    }

    /// Stores `values`, a whole number of elements, from element `first` on. Kernels launched later see them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::PartOfAnElement`], [`Error::Region`] when it is read-only, and as
    /// [`flush`](Self::flush).
    pub fn write_bytes(&self, first: u64, values: &[u8]) -> Result<()> {
        self.write_elements(first, values)
    }

    /// Copies elements from `first` on as [`read_bytes`](Self::read_bytes) does; or, when the GPU is lost, as the home holds them: see
    /// [`Region::read_home`].
    ///
    /// # Errors
    /// As [`read_bytes`](Self::read_bytes) while the GPU is there; [`Error::GpuLost`] when the home itself was a GPU's memory.
    pub fn read_home_bytes(&self, first: u64, out: &mut [u8]) -> Result<()> {
        self.read_home_elements(first, out)
    }
}

impl<T: Pod> Region<T> {
    /// Copies elements from `first` on into `out`, after a flush.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], and as [`flush`](Self::flush).
    pub fn read(&self, first: u64, out: &mut [T]) -> Result<()> {
        self.read_elements(first, bytemuck::cast_slice_mut(out))
    }

    /// All elements as [`to_vec`](Self::to_vec) gives them; or, when the GPU is lost, as the home holds them: with what had
    /// been written back by then, and without what was only in GPU memory. [`Error::GpuLost`] says whether that is the same.
    ///
    /// # Errors
    /// As [`flush`](Self::flush) while the GPU is there; [`Error::GpuLost`] when the home itself was a GPU's memory.
    pub fn read_home(&self) -> Result<Vec<T>> {
        let mut out = vec![T::zeroed(); self.len() as usize];
        self.read_home_elements(0, bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// Stores `values` from element `first` on. Kernels launched later see them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Region`] when it is read-only, and as [`flush`](Self::flush).
    pub fn write(&self, first: u64, values: &[T]) -> Result<()> {
        self.write_elements(first, bytemuck::cast_slice(values))
    }

    /// All elements, after a flush.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut out = vec![T::zeroed(); self.len() as usize];
        self.read(0, &mut out)?;
        Ok(out)
    }

    /// The pages that are newer in GPU memory than at their home, with what they hold: what is left to save when the home
    /// cannot be reached any more. They stay dirty. Waits for all launches of the virtual memory.
    ///
    /// # Errors
    /// [`Error::Gpu`] when GPU memory cannot be read.
    pub fn salvage(&self) -> Result<Vec<DirtyPage<T>>> {
        let _launches = self.inner.quiesce();
        let mut found = Vec::new();
        for on in self.inner.everywhere() {
            let pages = on.gpu.when_idle(|| self.read_dirty(&on));
            found.extend(on.gpu.map_device_lost(pages)?);
        }
        Ok(found)
    }

    /// Those of one GPU. No launch may run there.
    fn read_dirty(&self, on: &OnGpu) -> Result<Vec<DirtyPage<T>>> {
        let inner = &self.inner;
        let mut found = Vec::new();
        let marks = on.view.marks(&*on.gpu.device)?;
        for (page, bits) in (0..).zip(on.view.read_words(&*on.gpu.device)?) {
            let word = PageWord::from_bits(bits);
            let resident = u64::from(word.state) == layout::STATE_RESIDENT;
            let is_marked = marks.get(page as usize) == Some(&true);
            if !resident || !(word.dirty || word.write_back || is_marked) {
                continue;
            }
            let (span, element) = (inner.pages.span(page), size_of::<T>() as u64);
            let mut elements = vec![T::zeroed(); ((span.end - span.start) / element) as usize];
            let address = on.frames_addr + (u64::from(word.frame) << on.gpu.page_shift());
            let read = on.gpu.device.read(address, bytemuck::cast_slice_mut(&mut elements));
            read.doing(|| format!("salvaging page {page} of region `{}`", inner.name))?;
            let first = span.start / element;
            found.push(DirtyPage { first, elements });
        }
        Ok(found)
    }
}

/// A page that is newer in GPU memory than at its home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirtyPage<T> {
    /// Its first element's index in the region.
    pub first: u64,
    /// Its elements; the last page of a region may have fewer than the others.
    pub elements: Vec<T>,
}

impl<T> Drop for Region<T> {
    fn drop(&mut self) {
        if let Err(error) = self.inner.close(self.borrowed) {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "region `{}` was dropped with an error",
                self.inner.name
            );
            if self.borrowed {
                *self.inner.failure.lock() = Some(error);
            }
        }
    }
}

impl<T> std::fmt::Debug for Region<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Region({:?}, {} elements of {} bytes)",
            self.inner.name,
            self.inner.length,
            self.inner.element.bytes()
        )
    }
}
