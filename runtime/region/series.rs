//! Series: kernels over one region that are enqueued on any streams, one call of the driver each, and end together. Pages stay where they are
//! until somebody waits for the series: the thread that reads, flushes or moves them does.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use gpuvm_gpu::{GpuError, HostMemory, Kernel as GpuKernel, Put};
use gpuvm_layouts::LookedUpDesc;

use super::{OnGpu, RawRegion, Region, RegionInner};
use crate::{
    error::{Doing, Error, Result},
    gpu::{Job, Named, PagedGpu},
    launch::{self, InFlight, LaunchConfig},
};

/// Launches over one region that are not told apart: see [`Region::series`].
pub struct Series {
    gpu: Arc<PagedGpu>,
    on: Arc<OnGpu>,
    in_flight: Arc<InFlight>,
    series: Arc<dyn gpuvm_gpu::Series>,
    array: LookedUpDesc,
    bytes: u64,
    /// All pages have frames, and go on having them.
    complete: bool,
    /// Frames hold the region.
    fits: bool,
    writes: bool,
    captured: AtomicBool,
}

/// Words for kernels to tell something: [`Region::tell_words`]. They live as long as this.
pub struct TellWords(HostMemory);

impl TellWords {
    /// Address of the first, for kernels.
    pub fn device_addr(&self) -> u64 {
        self.0.device_addr()
    }

    /// One of them.
    pub fn word(&self, n: usize) -> Option<&AtomicU32> {
        self.0.word(n)
    }
}

/// The bytes of a region, where GPU threads of its GPU reach all of them: see [`Region::home_memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HomeMemory {
    /// Address for kernels, and for the host of a simulated GPU.
    pub addr: u64,
    /// Bytes.
    pub bytes: u64,
}

impl<E> Region<E> {
    /// Begins a series: kernels of this library's that are enqueued by [`Kernel::launch_in`](crate::Kernel::launch_in). Pages that launches used at home come to frames first. None where
    /// pages are not looked up ([`effective`](Self::effective)). `writes`: whether its kernels may write the region.
    ///
    /// # Errors
    /// As [`Kernel::launch`](crate::Kernel::launch).
    pub fn series(&self, writes: bool) -> Result<Option<Series>> {
        let region = &self.inner;
        let gpu = &region.own.gpu;
        let on = gpu.map_device_lost(region.on(gpu))?;
        if !region.looks_up(&on) || self.is_empty() {
            return Ok(None);
        }
        let named = Named {
            memories: vec![(Arc::clone(region) as _, writes)],
            looks_up: true,
            ..Named::default()
        };
        let (mut begun, label) = (None, launch::label(&format!("series over {}", region.name)));
        let begin = |state: &_, on_done| {
            let series = gpu.device.series(on_done)?;
            begun = Some((
                Arc::clone(&series),
                region.looked_up(&on, state, None),
                on.view.is_complete(),
            ));
            Ok(series.as_launch())
        };
        let job = Job::Series("series", Box::new(begin));
        let in_flight = gpu.enqueue(&gpu.stream, job, &LaunchConfig::new(1, 1), named, &label);
        let in_flight = gpu.map_device_lost(in_flight)?;
        let fits = region.pages.count() <= u64::from(gpu.frame_count());
        Ok(begun.map(|(series, array, complete)| Series {
            gpu: Arc::clone(gpu),
            complete: complete && !on.view.is_captured(),
            fits,
            on,
            in_flight,
            series,
            array,
            bytes: region.pages.bytes(),
            writes,
            captured: AtomicBool::new(false),
        }))
    }

    /// Where all of it lies for kernels of others, which read and write it there without looking pages up; none where GPU threads do not reach the home, or
    /// some of it has no place there. What frames hold that is newer is not there before a [`flush`](Self::flush).
    pub fn home_memory(&self) -> Option<HomeMemory> {
        let inner = &self.inner;
        let addr = inner.loads_from(&inner.own);
        inner.everywhere().iter().for_each(|on| on.view.share_home());
        let bytes = inner.pages.bytes();
        (addr != 0 || bytes == 0).then_some(HomeMemory { addr, bytes })
    }

    /// Whether the home holds what launches before this call wrote, or may write still. Never so of what a graph writes.
    pub fn is_home_current(&self) -> bool {
        self.inner.is_home_current()
    }

    /// Others have written to its [home](Self::home_memory): waits for all work of the GPU, and gives the frames back. What launches wrote since the last
    /// [`flush`](Self::flush) is written back first.
    ///
    /// # Errors
    /// As [`evict`](Self::evict).
    pub fn wrote(&self) -> Result<()> {
        let gpu = &self.inner.own.gpu;
        gpu.map_device_lost(gpu.device.drain().doing(|| "waiting for writers of a home".into()))?;
        self.inner.expect_stores();
        self.evict()
    }

    /// Graphs into which launches of series were captured are launched no more: pages may leave their frames again.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn forget_graphs(&self) -> Result<()> {
        self.inner.forget_graphs()
    }
}

impl RawRegion {
    /// Words for kernels to tell something, in memory of the host that kernels reach. They are zero.
    ///
    /// # Errors
    /// [`Error::Gpu`].
    pub fn tell_words(&self, words: usize) -> Result<TellWords> {
        let gpu = &self.inner.own.gpu;
        let memory = gpu.device.allocate_host(4 * words as u64);
        gpu.map_device_lost(memory.doing(|| "allocating words for errors".into()))
            .map(TellWords)
    }

    /// Whether a stream of another library is being captured.
    ///
    /// # Safety
    /// It is live.
    pub unsafe fn is_captured(&self, stream: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.inner.own.gpu.device.is_captured(stream) }
    }

    /// Whether pages of it may come to frames that are worth that a series ends: they were used at home, and it was not looked for them for a
    /// while.
    pub fn is_worth_a_step(&self) -> bool {
        let view = &self.inner.own.view;
        !view.is_complete() && self.inner.own.gpu.looks_at(view)
    }
}

impl Series {
    /// Whether all pages have frames, and go on having them.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether frames hold the region.
    pub(crate) fn fits(&self) -> bool {
        self.fits
    }

    /// See [`Kernel::launch_in`](crate::Kernel::launch_in).
    pub(crate) unsafe fn launch(
        &self,
        stream: u64,
        kernel: &Arc<dyn GpuKernel>,
        config: &LaunchConfig,
        word: u64,
        args: &[&[u8]],
    ) -> Result<bool> {
        let array = LookedUpDesc {
            length: self.bytes / word,
            ..self.array
        };
        let all: Vec<&[u8]> = std::iter::once(bytemuck::bytes_of(&array))
            .chain(args.iter().copied())
            .collect();
        // Before who ends the series meanwhile may let pages go. SAFETY: the caller's promise.
        if unsafe { self.gpu.device.is_captured(stream) } {
            self.on.view.set_captured(self.writes);
        }
        // SAFETY: the region's memory lives until the series has ended, which its launch in flight says; the rest is the caller's promise.
        let put = unsafe { self.series.launch(stream, kernel, &config.shape, &all) };
        let put = self
            .gpu
            .map_device_lost(put.doing(|| format!("launching kernel `{}`", kernel.info().name)))?;
        if put == Put::Captured {
            self.on.view.set_captured(self.writes);
            // Relaxed: who asks has waited for the launch to return.
            self.captured.store(true, Ordering::Relaxed);
        }
        Ok(put != Put::Over)
    }

    /// Whether launches of it were captured into a graph, which needs the series as long as it is launched.
    pub fn was_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }

    /// Whether its kernels may write.
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.in_flight.is_done()
    }

    /// Waits for its launches and ends it.
    ///
    /// # Errors
    /// [`Error::GpuLost`].
    pub fn end(&self) -> Result<()> {
        let outcome = self.in_flight.wait(None).unwrap_or(Err(GpuError::ShutDown));
        let ended = self.gpu.map_device_lost(self.gpu.outcome_of(&self.in_flight, outcome));
        self.in_flight.let_go();
        self.gpu.try_prune();
        ended.map(drop)
    }
}

impl RegionInner {
    /// Whether no launch that may write it runs, and none has since its last flush. Never so of what a graph writes.
    fn is_home_current(&self) -> bool {
        let launches = self.lock();
        let unwritten = |on: &Arc<OnGpu>| !on.view.may_have_writes() && !on.view.is_captured();
        launches.none_writes() && self.everywhere().iter().all(unwritten)
    }

    fn forget_graphs(&self) -> Result<()> {
        let mut launches = self.quiesce();
        self.end_graphs()?;
        self.flush_quiet(&mut launches)
    }

    /// Graphs are launched no more. No other launch runs.
    pub(super) fn end_graphs(&self) -> Result<()> {
        let mut drained = Ok(());
        for on in self.everywhere() {
            drained = drained.and(self.drain_graphs(&on));
            on.view.forget_captured();
        }
        drained
    }

    /// Waits for graphs that use it, of which the library is not told.
    pub fn drain_graphs(&self, on: &OnGpu) -> Result<()> {
        match on.view.is_captured() {
            true => on
                .gpu
                .map_device_lost(on.gpu.device.drain().doing(|| "waiting for graphs".into())),
            false => Ok(()),
        }
    }

    /// Refuses a launch on the GPU at a place beside graphs on others, whose frames are neither dropped nor current: one that writes, and any where the graphs do.
    pub fn refuse_beside_graphs_elsewhere(&self, place: usize, writes: bool) -> Result<()> {
        let places = self.everywhere();
        let mut others = places
            .iter()
            .filter(|on| on.gpu.place != place && on.view.is_captured());
        let refused = others.find(|on| writes || on.view.graphs_write());
        refused.map_or(Ok(()), |on| self.refuse_beside_graphs(on))
    }

    /// Refuses what would have its pages leave their frames while graphs may use them there.
    pub fn refuse_beside_graphs(&self, on: &OnGpu) -> Result<()> {
        match on.view.is_captured() {
            false => Ok(()),
            true => Err(Error::Region {
                region: self.name.clone(),
                reason: "a CUDA graph was captured with it, so its pages must stay in their frames: call forget_graphs first, once the graph is no longer launched"
                    .into(),
            }),
        }
    }
}
