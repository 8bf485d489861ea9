//! What a run does with each page of each region: why it pages as it does.
//!
//! A host thread reads the page tables by plain copies while kernels run, and clears nothing. Each eviction counts a page's version up,
//! so two tables tell how often a page was fetched between them, and nothing has to be counted on the way of an access. Whether a page
//! is there, was used and was written is as of the samples. What was read in place, lanes count by page, with the reads that they draw
//! in any case; only while a profile is taken.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    background::Background,
    device::DeviceArray,
    error::{Error, Result},
    gpu::{PagedGpu, RegionView},
    region::placement_of,
    stats::Stats,
};

mod advice;
mod pages;

pub use advice::Suggestion;
pub use pages::{HeatColumn, PageProfile};

use pages::Tally;

/// A profile that is being taken: see [`VmGpu::profile`](crate::VmGpu::profile). Dropped, it comes to nothing.
pub struct Profiler {
    // Before what it works on.
    thread: Background,
    sampler: Arc<Mutex<Sampler>>,
    before: Stats,
    interval: Duration,
}

/// What a run did with the pages of one GPU, from [`VmGpu::profile`](crate::VmGpu::profile) to [`Profiler::finish`].
#[derive(Debug, Clone)]
pub struct Profile {
    /// How long the sampler rested between two samples.
    pub interval: Duration,
    /// Samples of the page tables: one at each end among them.
    pub samples: u32,
    /// From the first sample to the last.
    pub elapsed: Duration,
    /// What of that time the sampler was at work. The program shares the link to the GPU with it, and a core of the host.
    pub sampling: Duration,
    /// What the device library counted meanwhile, all regions together.
    pub stats: Stats,
    /// Frames of the GPU.
    pub frames: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Regions that were there when it began and had pages, in the order of their making as long as none had ended before.
    pub regions: Vec<RegionProfile>,
}

/// What a run did with the pages of a region.
#[derive(Debug, Clone)]
pub struct RegionProfile {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Whether kernels only read it.
    pub read_only: bool,
    /// Whether its pages have frames of their own.
    pub never_evicted: bool,
    /// What a read of a page without a frame does: `fetch`, `in-place`, `while-free` or `auto`, as it holds for this region over this
    /// transport.
    pub placement: &'static str,
    /// Its pages, in their order.
    pub pages: Vec<PageProfile>,
    /// Stretches of time, in their order.
    pub columns: Vec<HeatColumn>,
}

impl Profile {
    /// Fetches that the counters know and the pages do not: of regions that were made or ended meanwhile, of what came before the first
    /// sample, and of pages that left their frame 2,048 times and more between two samples.
    pub fn fetches_unseen(&self) -> u64 {
        let seen: u64 = self.regions.iter().map(RegionProfile::fetches).sum();
        self.stats.pages_fetched.saturating_sub(seen)
    }
}

impl RegionProfile {
    fn sum(&self, field: impl Fn(&PageProfile) -> u64) -> u64 {
        self.pages.iter().map(field).sum()
    }

    /// Fetches of its pages: exact, prefetches included.
    pub fn fetches(&self) -> u64 {
        self.sum(|page| page.fetches.into())
    }

    /// Its pages that were fetched.
    pub fn pages_fetched(&self) -> u64 {
        self.sum(|page| (page.fetches > 0).into())
    }

    /// Times that its pages left their frames: exact.
    pub fn evictions(&self) -> u64 {
        self.sum(|page| page.evictions.into())
    }

    /// Samples in which its pages had a frame, added up.
    pub fn resident(&self) -> u64 {
        self.sum(|page| page.resident.into())
    }

    /// Those of them in which the page had been used since the clock's hand passed it.
    pub fn referenced(&self) -> u64 {
        self.sum(|page| page.referenced.into())
    }

    /// Those of them in which the page had been written and not written back yet.
    pub fn dirty(&self) -> u64 {
        self.sum(|page| page.dirty.into())
    }

    /// Stays of its pages in frames that a sample saw: others were over before one came.
    pub fn stays_seen(&self) -> u64 {
        self.sum(|page| page.stays_seen.into())
    }

    /// Those of them in which one saw the page used.
    pub fn stays_used(&self) -> u64 {
        self.sum(|page| page.stays_used.into())
    }

    /// Those of them in which one saw the page written.
    pub fn stays_written(&self) -> u64 {
        self.sum(|page| page.stays_written.into())
    }

    /// Bytes of its pages that were read in place, estimated as [`Stats::bytes_in_place`].
    pub fn bytes_in_place(&self) -> u64 {
        self.sum(|page| page.bytes_in_place)
    }
}

/// One region as the sampler knows it.
struct Watched {
    view: Arc<RegionView>,
    tally: Tally,
    chunks: Option<Arc<DeviceArray<u64>>>,
}

struct Sampler {
    gpu: Arc<PagedGpu>,
    regions: Vec<Watched>,
    started: Instant,
    elapsed: Duration,
    samples: u32,
    sampling: Duration,
    failure: Option<Error>,
}

impl Sampler {
    /// Of all regions that there are, with their first sample.
    fn start(gpu: &Arc<PagedGpu>) -> Result<Self> {
        let started = Instant::now();
        let watch = |view: Arc<RegionView>| {
            let chunks = view.count_chunks(&*gpu.device)?;
            let tally = Tally::new(&view.read_words(&*gpu.device)?);
            Ok(Watched { view, tally, chunks })
        };
        let views = gpu.views().into_iter().filter(|view| view.pages().count() > 0);
        Ok(Self {
            gpu: Arc::clone(gpu),
            regions: views.map(watch).collect::<Result<_>>()?,
            started,
            elapsed: Duration::ZERO,
            samples: 1,
            sampling: started.elapsed(),
            failure: None,
        })
    }

    /// Reads all tables once more.
    fn sample(&mut self) -> Result<()> {
        let begun = Instant::now();
        for Watched { view, tally, .. } in &mut self.regions {
            // None of a region that has ended.
            let words = view.read_words(&*self.gpu.device)?;
            tally.add(self.samples, self.started.elapsed(), &words);
        }
        self.samples += 1;
        self.elapsed = self.started.elapsed();
        self.sampling += begun.elapsed();
        Ok(())
    }

    /// A sample by the thread; false when there can be no more.
    fn turn(&mut self) -> bool {
        let sampled = self.sample();
        self.failure = sampled.err();
        self.failure.is_none()
    }

    /// The last sample, and what all of them come to.
    fn finish(&mut self) -> Result<Vec<RegionProfile>> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.sample()?;
        let gpu = &*self.gpu.device;
        let profile = |watched: Watched| {
            let Watched { view, tally, chunks } = watched;
            let chunks = match chunks {
                Some(chunks) => {
                    view.stop_counting_chunks(gpu)?;
                    let counted = chunks.read(gpu, 0, view.pages().count() as usize);
                    counted.map_err(|source| Error::Gpu {
                        doing: format!("reading what was read in place of `{}`", view.name()),
                        source,
                    })?
                }
                None => Vec::new(),
            };
            let (pages, columns) = tally.finish(&chunks);
            Ok(RegionProfile {
                name: view.name().to_owned(),
                bytes: view.pages().bytes(),
                read_only: view.is_read_only(),
                never_evicted: view.is_never_evicted(),
                placement: placement_of(view.array_flags()).name(),
                pages,
                columns,
            })
        };
        std::mem::take(&mut self.regions).into_iter().map(profile).collect()
    }
}

impl Profiler {
    pub(crate) fn start(gpu: &Arc<PagedGpu>, interval: Duration) -> Result<Self> {
        let before = Stats::read(gpu)?;
        let sampler = Arc::new(Mutex::new(Sampler::start(gpu)?));
        let sampled = Arc::clone(&sampler);
        let thread = Background::start("profile", interval, move |stop| {
            // Acquire: pairs with the release that stops the thread. Who stops it takes the last sample.
            stop.load(Ordering::Acquire) || sampled.lock().turn()
        });
        let thread = thread.map_err(|error| Error::Unavailable {
            what: "a profile".into(),
            reason: format!("cannot start a thread: {error}"),
        })?;
        Ok(Self {
            thread,
            sampler,
            before,
            interval,
        })
    }

    /// Takes a sample now, beside those of the thread: between two launches, for instance.
    ///
    /// # Errors
    /// As for [`finish`](Self::finish).
    pub fn sample(&self) -> Result<()> {
        let mut sampler = self.sampler.lock();
        let gpu = Arc::clone(&sampler.gpu);
        gpu.map_device_lost(sampler.sample())
    }

    /// Takes the last sample and says what all of them came to. Fetches are exact for launches that have ended: wait for them first.
    ///
    /// # Errors
    /// [`Error::Gpu`], [`Error::GpuLost`]: a page table could not be read, now or by the thread.
    pub fn finish(self) -> Result<Profile> {
        drop(self.thread);
        let mut sampler = self.sampler.lock();
        let gpu = Arc::clone(&sampler.gpu);
        let finish = |sampler: &mut Sampler| Ok((sampler.finish()?, Stats::read(&gpu)?));
        let (regions, after) = gpu.map_device_lost(finish(&mut sampler))?;
        Ok(Profile {
            interval: self.interval,
            samples: sampler.samples,
            elapsed: sampler.elapsed,
            sampling: sampler.sampling,
            stats: after.difference(&self.before),
            frames: u64::from(gpu.frame_count()),
            page_bytes: 1 << gpu.page_shift(),
            regions,
        })
    }
}
