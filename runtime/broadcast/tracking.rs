//! Copies that are made equal again, and subscriptions that change: by hand, by reading, and by one tracked iteration.

use std::{ops::Range, sync::atomic::Ordering};

use gpuvm_gpu::Gpu;
use gpuvm_layouts::BROADCAST_LINE_SHIFT;

use super::{BroadcastInner, OnView, Subscriptions};
use crate::error::{Doing, Error, Result};

impl BroadcastInner {
    /// Lines of a view.
    pub(super) fn lines(&self) -> u64 {
        self.views.stride >> BROADCAST_LINE_SHIFT
    }

    /// Has all copies equal again, if lanes have changed an owner's copy alone. No launch uses the array.
    pub(super) fn forward_atomics(&self) -> Result<()> {
        if self.on.len() == 1 {
            // The owner's copy is the only one.
            return Ok(());
        }
        let mut first = Ok(());
        for (view, on) in self.on.iter().enumerate() {
            let Some(marked) = on.marked.word(0) else { continue };
            // Relaxed: the launches that set it have ended, and the thread that learnt of that is ordered behind them.
            if marked.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let passed = on
                .gpu
                .forward_atomics(|vm| self.desc(view, vm), self.lines(), &self.name);
            if passed.is_ok() {
                // Lines that are marked still after an error are forwarded by the next.
                marked.store(0, Ordering::Relaxed);
            }
            first = first.and(passed);
        }
        first
    }

    /// Pages that a range of elements touches.
    fn touched(&self, elements: &Range<u64>) -> Range<usize> {
        let (size, element) = (self.views.page_bytes, self.element.bytes() as u64);
        let end = (elements.end * element).div_ceil(size) as usize;
        ((elements.start * element / size) as usize).min(end)..end
    }

    /// Pages of which a range has every element.
    fn covered(&self, elements: &Range<u64>) -> Range<usize> {
        let (size, element) = (self.views.page_bytes, self.element.bytes() as u64);
        let start = (elements.start * element).div_ceil(size) as usize;
        let end = match elements.end == self.length {
            true => self.views.pages(),
            false => (elements.end * element / size) as usize,
        };
        start.min(end)..end
    }

    /// # Errors
    /// [`Error::Setting`] for a view that is none, or where subscriptions are fixed.
    fn check_view(&self, view: usize) -> Result<()> {
        let refuse = |reason: String| {
            Err(Error::Setting {
                setting: "subscriber",
                value: format!("GPU {view}"),
                reason,
            })
        };
        if view >= self.on.len() {
            return refuse(format!("the array has {} views, counted from 0", self.on.len()));
        }
        if !self.views.is_paged() {
            return refuse("every view of this array subscribes to all of it".into());
        }
        Ok(())
    }

    pub(super) fn subscribe(&self, view: usize, elements: Range<u64>) -> Result<()> {
        self.check_range(&elements)?;
        self.check_view(view)?;
        let _launches = self.quiesce()?;
        let mut wanted = self.subscriptions.read().clone();
        let pages = self.touched(&elements);
        pages.for_each(|page| wanted.subscribe(view, page));
        self.change_to(wanted)
    }

    pub(super) fn unsubscribe(&self, view: usize, elements: Range<u64>) -> Result<()> {
        self.check_range(&elements)?;
        self.check_view(view)?;
        let _launches = self.quiesce()?;
        let mut wanted = self.subscriptions.read().clone();
        for page in self.covered(&elements) {
            if wanted.is_subscribed(view, page) && !wanted.unsubscribe(view, page) {
                return Err(Error::LastSubscriber {
                    array: self.name.clone(),
                    page: page as u64,
                    gpu: view,
                });
            }
        }
        self.change_to(wanted)
    }

    /// Makes the subscriptions so. No launch uses the array.
    pub(super) fn change_to(&self, wanted: Subscriptions) -> Result<()> {
        let pages: Vec<usize> = {
            let now = self.subscriptions.read();
            let differs = |page: &usize| {
                now.subscribers(*page) != wanted.subscribers(*page) || now.owner(*page) != wanted.owner(*page)
            };
            (0..wanted.pages()).filter(differs).collect()
        };
        if pages.is_empty() {
            return Ok(());
        }
        let gpus: Vec<&dyn Gpu> = self.on.iter().map(OnView::device).collect();
        let doing = || format!("subscribing to broadcast array `{}`", self.name);
        let new = self.views.supply(&gpus, &wanted, &pages);
        let new = self.host().gpu.map_device_lost(new.doing(doing))?;
        // With the old owners, who have the data, until the new copies have it: a new subscriber may be a new owner.
        let mut between = wanted.clone();
        {
            let now = self.subscriptions.read();
            for &page in &pages {
                between.keep_owner(page, now.owner(page));
            }
        }
        let placed = self.views.place(&between, &pages);
        self.host().gpu.map_device_lost(placed.doing(doing))?;
        self.tell(&between, &pages)?;
        for run in new.chunk_by(|a, b| (a.0, a.1 + 1) == *b) {
            let ((view, page), size) = (run[0], self.views.page_bytes);
            let (on, bytes) = (&self.on[view], run.len() as u64 * size);
            on.gpu
                .bring_copy(|vm| self.desc(view, vm), page as u64 * size, bytes, &self.name)?;
        }
        let placed = self.views.place(&wanted, &pages);
        self.host().gpu.map_device_lost(placed.doing(doing))?;
        self.tell(&wanted, &pages)?;
        *self.subscriptions.write() = wanted;
        self.set_tracking();
        Ok(())
    }

    /// Has reads noted by lanes of launches to come: of all views in an iteration that is tracked, else where a GPU is to subscribe to what
    /// it reads.
    pub(super) fn set_tracking(&self) {
        let always = self.tracked.load(Ordering::Relaxed);
        let subscriptions = self.subscriptions.read();
        for (view, on) in self.on.iter().enumerate() {
            let lacks = || (0..subscriptions.pages()).any(|page| !subscriptions.is_subscribed(view, page));
            let tracked = always || (self.by_reading && lacks());
            on.desc.lock().reads = if tracked { on.reads.addr() } else { 0 };
        }
    }

    /// The pages that a view's lanes have read, and forgets it.
    fn take_reads(&self, on: &OnView) -> Result<Vec<bool>> {
        let doing = || format!("reading which pages of broadcast array `{}` were read", self.name);
        let pages = self.views.pages();
        let read = on
            .gpu
            .map_device_lost(on.reads.read(on.device(), 0, pages).doing(doing))?;
        if read.iter().any(|seen| *seen != 0) {
            let cleared = on.reads.write(on.device(), 0, &vec![0; pages]);
            on.gpu.map_device_lost(cleared.doing(doing))?;
        }
        Ok(read.into_iter().map(|seen| seen != 0).collect())
    }

    /// Subscribes GPUs to what they have read, where that is asked for. No launch uses the array.
    pub(super) fn subscribe_readers(&self) -> Result<()> {
        if !self.by_reading || self.tracked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut wanted = self.subscriptions.read().clone();
        for (view, on) in self.on.iter().enumerate() {
            if on.desc.lock().reads == 0 {
                continue;
            }
            let read = self.take_reads(on)?;
            (0..wanted.pages())
                .filter(|page| read[*page])
                .for_each(|page| wanted.subscribe(view, page));
        }
        match self.change_to(wanted) {
            // A hint: without memory for its copy a GPU reads the owner's.
            Err(error) if error.is_out_of_memory() => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, array = %self.name, "reads use the owner's copies instead");
                Ok(())
            }
            other => other,
        }
    }

    /// Begins to note what every GPU reads.
    pub(crate) fn begin_tracking(&self) -> Result<()> {
        let _launches = self.quiesce()?;
        for on in &self.on {
            self.take_reads(on)?;
        }
        self.tracked.store(true, Ordering::Relaxed);
        self.set_tracking();
        Ok(())
    }

    /// Subscribes each GPU to the pages that it has read since, and to no others. A page that nothing has read stays with its owner.
    pub(crate) fn end_tracking(&self) -> Result<()> {
        let _launches = self.quiesce()?;
        self.tracked.store(false, Ordering::Relaxed);
        self.set_tracking();
        let mut wanted = self.subscriptions.read().clone();
        let reads: Vec<Vec<bool>> = self.on.iter().map(|on| self.take_reads(on)).collect::<Result<_>>()?;
        if !self.views.is_paged() {
            return Ok(());
        }
        for (view, read) in reads.iter().enumerate() {
            (0..wanted.pages())
                .filter(|page| read[*page])
                .for_each(|page| wanted.subscribe(view, page));
        }
        for page in (0..wanted.pages()).filter(|page| reads.iter().any(|read| read[*page])) {
            for view in (0..reads.len()).filter(|view| !reads[*view][page]) {
                wanted.unsubscribe(view, page);
            }
        }
        // Nothing reads it: only the owner keeps it.
        for page in (0..wanted.pages()).filter(|page| !reads.iter().any(|read| read[*page])) {
            let owner = wanted.owner(page);
            for view in (0..reads.len()).filter(|view| *view != owner) {
                wanted.unsubscribe(view, page);
            }
        }
        self.change_to(wanted)
    }
}
