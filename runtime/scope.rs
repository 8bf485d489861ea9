//! Regions over memory that the caller lends for the time of a scope.

use std::{marker::PhantomData, ops::Deref, sync::Arc};

use bytemuck::Pod;
use parking_lot::Mutex;

use crate::{
    element::ElementType,
    error::Result,
    placement::Placement,
    region::{Region, RegionBuilder, RegionInner, RegionPlace},
};

/// The inside of [`Vm::scope`](crate::VmGpu::scope): regions made here may borrow memory that lives at least as long as the scope.
///
/// Forgetting a handle changes nothing: the scope itself ends its regions.
pub struct Scope<'scope, 'env: 'scope> {
    place: RegionPlace,
    regions: Mutex<Vec<Arc<RegionInner>>>,
    // Invariant in both, as in `std::thread::Scope`: neither lifetime may be shortened to smuggle a borrow in.
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

/// A region that borrows the caller's memory. It cannot leave its scope.
pub struct ScopedRegion<'scope, T> {
    region: Region<T>,
    _scope: PhantomData<&'scope ()>,
}

impl<T> Deref for ScopedRegion<'_, T> {
    type Target = Region<T>;

    fn deref(&self) -> &Region<T> {
        &self.region
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    pub(crate) fn run<R>(
        place: &RegionPlace,
        body: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> Result<R>,
    ) -> Result<R> {
        let scope = Scope {
            place: place.clone(),
            regions: Mutex::default(),
            _scope: PhantomData,
            _env: PhantomData,
        };
        // The regions end also when `body` unwinds.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&scope)));
        let regions = std::mem::take(&mut *scope.regions.lock());
        let mut closed = Ok(());
        for region in regions {
            let ended = region.close(true).and(region.take_failure());
            closed = closed.and(ended);
        }
        match outcome {
            Ok(result) => result.and_then(|value| closed.map(|()| value)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// A region over `memory`, which kernels may write.
    ///
    /// # Errors
    /// As [`RegionBuilder::zeroed`], and [`crate::Error::Overlap`].
    pub fn region<T: Pod>(&'scope self, name: &str, memory: &'env mut [T]) -> Result<ScopedRegion<'scope, T>> {
        self.written(name, memory, None)
    }

    /// [`region`](Self::region) with what a read does with a page that has no frame.
    ///
    /// # Errors
    /// As [`region`](Self::region).
    pub fn region_placed<T: Pod>(
        &'scope self,
        name: &str,
        memory: &'env mut [T],
        placement: Placement,
    ) -> Result<ScopedRegion<'scope, T>> {
        self.written(name, memory, Some(placement))
    }

    fn written<T: Pod>(
        &'scope self,
        name: &str,
        memory: &'env mut [T],
        placement: Option<Placement>,
    ) -> Result<ScopedRegion<'scope, T>> {
        let builder = self.builder(name, placement);
        // SAFETY: `memory` is borrowed mutably for 'env, which outlives the scope, and the scope closes the region
        // before it ends.
        unsafe { self.lend(builder, memory.as_mut_ptr(), memory.len()) }
    }

    /// A region over `memory`, which kernels may only read.
    ///
    /// # Errors
    /// As [`region`](Self::region).
    pub fn read_only<T: Pod>(&'scope self, name: &str, memory: &'env [T]) -> Result<ScopedRegion<'scope, T>> {
        self.read(name, memory, None)
    }

    /// [`read_only`](Self::read_only) with what a read does with a page that has no frame. Several such regions may lie over the same
    /// memory.
    ///
    /// # Errors
    /// As [`region`](Self::region).
    pub fn read_only_placed<T: Pod>(
        &'scope self,
        name: &str,
        memory: &'env [T],
        placement: Placement,
    ) -> Result<ScopedRegion<'scope, T>> {
        self.read(name, memory, Some(placement))
    }

    fn read<T: Pod>(
        &'scope self,
        name: &str,
        memory: &'env [T],
        placement: Option<Placement>,
    ) -> Result<ScopedRegion<'scope, T>> {
        let builder = self.builder(name, placement).read_only();
        // SAFETY: as in `region`; a read-only region is registered without write access and its pages are never
        // written back, so the shared borrow suffices.
        unsafe { self.lend(builder, memory.as_ptr().cast_mut(), memory.len()) }
    }

    fn builder<T: Pod>(&self, name: &str, placement: Option<Placement>) -> RegionBuilder<T> {
        let builder = RegionBuilder::<T>::new(self.place.clone(), ElementType::of::<T>()).name(name);
        match placement {
            Some(placement) => builder.placement(placement),
            None => builder,
        }
    }

    /// # Safety
    /// As [`RegionBuilder::over`] until the scope ends.
    unsafe fn lend<T: Pod>(
        &'scope self,
        builder: RegionBuilder<T>,
        base: *mut T,
        length: usize,
    ) -> Result<ScopedRegion<'scope, T>> {
        // SAFETY: the caller's promise.
        let region = unsafe { builder.over(base, length) }?;
        self.regions.lock().push(Arc::clone(&region.inner));
        Ok(ScopedRegion {
            region,
            _scope: PhantomData,
        })
    }
}
