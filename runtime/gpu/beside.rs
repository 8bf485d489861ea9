//! Pages that come to free frames beside a launch that looks them up and only reads them. The protocol is in docs/PROTOCOL.md, T15.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bytemuck::Zeroable;
use gpuvm_gpu::HostMemory;
use gpuvm_layouts::{self as layout, BesideDesc, BesideRegion};

use super::{Job, Named, PagedGpu, RegionView, holds::LOOKING_SHARE, launcher::arg};
use crate::{
    device::DeviceArray,
    error::{Doing, Result},
    launch::{Ask, InFlight, LaunchConfig, Table, label},
};

/// Smaller arrays come between launches in less time than it takes to begin.
const BYTES_MIN: u64 = 8 << 20;
/// Places of the ring, of a GPU and of a simulated one.
const RING_PLACES: [u64; 2] = [1 << 16, 1 << 12];

/// What is kept from one such launch to the next.
#[derive(Default)]
pub(super) struct Beside {
    memory: Option<BesideMemory>,
    /// How many there were.
    number: u32,
    /// Not before.
    next: Option<Instant>,
}

struct BesideMemory {
    /// The number of the last one that is to end.
    stop: Arc<HostMemory>,
    desc: DeviceArray<BesideDesc>,
    ring: DeviceArray<u64>,
    /// Frames that are its own, a bit each.
    own: Option<DeviceArray<u64>>,
    segments: Option<DeviceArray<u64>>,
}

/// What such a launch needs is there.
pub(super) struct Prepared {
    /// Address of what the kernel is told.
    desc: u64,
    /// Frames that were taken out of the pool, and how often that was rebuilt until then.
    own: u64,
    own_words: u64,
    rebuilt: u64,
    watchers: u32,
    ask: Ask,
}

impl Prepared {
    /// What has it end soon.
    pub fn ask(&self) -> Ask {
        Arc::clone(&self.ask)
    }
}

const DOING: &str = "bringing pages beside a launch";
fn doing() -> String {
    DOING.to_owned()
}

impl PagedGpu {
    /// Takes what is needed to bring pages of regions beside a launch that is about to look them up by `by` and only reads them. No launch with them runs.
    /// None where nothing is worth it.
    pub(super) fn take_for_beside(&self, regions: &[Arc<RegionView>], by: Table) -> Result<Option<Prepared>> {
        let begun = Instant::now();
        let comes = |region: &&Arc<RegionView>| {
            region.is_held() && !(region.is_complete() || region.is_crowded() || region.is_captured())
        };
        let regions: Vec<_> = regions.iter().filter(comes).take(layout::BESIDE_MAX as usize).collect();
        let pages: u64 = regions.iter().map(|region| region.pages().count()).sum();
        let is_small = self.is_hardware() && pages << self.page_shift() < BYTES_MIN;
        let mut beside = self.scratch.beside.lock();
        // What follows a seed follows no clock of the host's.
        let is_early = !self.capabilities().deterministic && beside.next.is_some_and(|next| begun < next);
        if pages == 0 || is_small || is_early {
            return Ok(None);
        }
        // Whoever changes the number of frames finds those that are taken here when it has asked for the end.
        let changing = self.pool.changing.try_lock().filter(|changing| changing.is_none());
        if changing.is_none() {
            return Ok(None);
        }
        // One at a time.
        self.end_beside();
        let prepared = self.take_for(&mut beside, &regions, by)?;
        beside.next = Some(Instant::now() + begun.elapsed() * LOOKING_SHARE);
        Ok(Some(prepared))
    }

    fn take_for(&self, beside: &mut Beside, regions: &[&Arc<RegionView>], by: Table) -> Result<Prepared> {
        let gpu = &*self.device;
        let places = RING_PLACES[usize::from(!self.is_hardware())];
        let memory = match &mut beside.memory {
            Some(memory) => memory,
            none => none.insert(BesideMemory {
                stop: Arc::new(gpu.allocate_host(4).doing(doing)?),
                desc: DeviceArray::zeroed(gpu, 1).doing(doing)?,
                ring: DeviceArray::zeroed(gpu, places).doing(doing)?,
                own: None,
                segments: None,
            }),
        };
        beside.number += 1;
        let segments_of = |region: &RegionView| region.pages().count().div_ceil(layout::BESIDE_SEGMENT.into());
        let pages: u64 = regions.iter().map(|region| region.pages().count()).sum();
        let segments: u64 = regions.iter().map(|region| segments_of(region)).sum();
        let mut words = match &mut memory.segments {
            Some(words) if words.length() >= segments => words.addr(),
            other => other.insert(DeviceArray::zeroed(gpu, segments).doing(doing)?).addr(),
        };
        gpu.zero(words, 8 * segments).doing(doing)?;
        gpu.zero(memory.ring.addr(), 8 * places).doing(doing)?;
        let (own, rebuilt) = self.take_free(&mut memory.own, DOING)?;
        let (stop, number) = (Arc::clone(&memory.stop), beside.number);
        let prepared = Prepared {
            desc: memory.desc.addr(),
            own,
            own_words: memory.own.as_ref().map_or(0, DeviceArray::length),
            rebuilt,
            watchers: if self.is_hardware() { 2 } else { 1 },
            ask: Arc::new(move || {
                // Relaxed: nothing is told but that.
                stop.word(0)
                    .inspect(|word| _ = word.fetch_max(number, Ordering::Relaxed));
            }),
        };
        let mut desc = BesideDesc {
            count: regions.len() as u32,
            watchers: prepared.watchers,
            stop: memory.stop.device_addr(),
            own,
            own_words: prepared.own_words,
            ring: memory.ring.addr(),
            ring_places: places,
            limit_ns: (self.service_deadline() / 2).as_nanos() as u64,
            idle_ns: self.beside_idle().as_nanos() as u64,
            generation_ns: self.beside_generation().as_nanos() as u64,
            number,
            few: (pages > u64::from(self.frame_count())).into(),
            ..BesideDesc::zeroed()
        };
        let mut tell = || {
            for (region, of) in regions.iter().zip(&mut desc.regions) {
                *of = self.beside_of(region, by, memory)?;
                of.segments = words;
                words += 8 * segments_of(region);
            }
            memory.desc.write(gpu, 0, &[desc]).doing(doing)
        };
        match tell() {
            Ok(()) => Ok(prepared),
            Err(error) => self
                .give_free(prepared.own, prepared.own_words, prepared.rebuilt, DOING)
                .and(Err(error)),
        }
    }

    /// Begins it, where the launch was put on its stream. It ends by itself, soon after the launch, or when it is asked.
    pub(super) fn begin_beside(&self, prepared: &Prepared, is_put: bool) -> Option<Arc<InFlight>> {
        let begun = is_put.then(|| self.put_beside(prepared)).transpose();
        let mover = begun.unwrap_or_else(|error| {
            // The launch does without.
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "no pages come beside a launch"
            );
            None
        });
        if mover.is_none() {
            if let Err(error) = self.give_free(prepared.own, prepared.own_words, prepared.rebuilt, DOING) {
                tracing::warn!(error = &error as &dyn std::error::Error, "frames are not given back");
            }
        }
        mover
    }

    fn put_beside(&self, prepared: &Prepared) -> Result<Arc<InFlight>> {
        let named = Named {
            continues: true,
            gives_way: Some(prepared.ask()),
            ..Named::default()
        };
        let args = |vm: u64| {
            let is_there = self.rebuilt() == prepared.rebuilt;
            vec![arg(vm), arg(if is_there { prepared.desc } else { 0 })]
        };
        let job = Job::Kernel(&self.support.bring_beside, Box::new(args));
        let config = self.beside_shape(prepared.watchers);
        self.enqueue(&self.support.beside, job, &config, named, &label(DOING))
    }

    /// How long it goes on without a mark.
    fn beside_idle(&self) -> Duration {
        match self.capabilities().deterministic {
            true => Duration::from_micros(100),
            false => Duration::from_millis(2),
        }
    }

    /// How long a generation of marks lasts: longer than lanes use a page that walk over it once.
    fn beside_generation(&self) -> Duration {
        match self.is_hardware() {
            true => Duration::from_micros(500),
            false => Duration::from_micros(2),
        }
    }

    /// Few blocks, which leave the launch its multiprocessors: as many as keep the link busy.
    fn beside_shape(&self, watchers: u32) -> LaunchConfig {
        let (movers, threads) = if self.is_hardware() { (32, 256) } else { (2, 32) };
        LaunchConfig::new(watchers + movers, threads).deadline(self.service_deadline())
    }

    /// What the kernel is told of a region, whose pages come in order where all of them may. From now on its marks do not say that pages were
    /// written.
    fn beside_of(&self, region: &RegionView, by: Table, memory: &BesideMemory) -> Result<BesideRegion> {
        self.settle_marks(region, true)?;
        region.expect_beside(by);
        let pages = region.pages().count();
        if region.run() == RegionView::NO_RUN && pages <= u64::from(self.frame_count()) {
            let own = match &memory.own {
                Some(own) => own.read(&*self.device, 0, own.length() as usize).doing(doing)?,
                None => Vec::new(),
            };
            region.set_run(self.choose_run(region, own, false));
        }
        let (entries, window, marks) = match region.places_there().filter(|_| by == Table::Entries) {
            Some(places) => (places.entries, places.addr, places.marks),
            None => (region.places_addr().unwrap_or_default(), 0, region.marks_addr()),
        };
        Ok(BesideRegion {
            entries,
            window,
            marks,
            segments: 0,
            pages,
            region: region.id(),
            run: region.run(),
        })
    }

    /// Has those launches end that bring pages beside others.
    pub(crate) fn end_beside(&self) {
        let brings = |launch: &&Arc<InFlight>| launch.gives_way.is_some() && !launch.is_done();
        let those: Vec<_> = self.lock().in_flight.iter().filter(brings).map(Arc::clone).collect();
        those.iter().for_each(|launch| launch.settle());
    }

    /// Forgets the marks of pages in frames that launches set before those came. No launch with the region runs.
    pub fn forget_late_marks(&self, region: &RegionView) -> Result<()> {
        match region.came_beside() {
            true => {
                self.settle_marks(region, false)?;
                region.forget_beside();
                Ok(())
            }
            false => Ok(()),
        }
    }

    /// Has the marks of pages in frames go, which says with `folds` that they are dirty. No launch with the region runs.
    fn settle_marks(&self, region: &RegionView, folds: bool) -> Result<()> {
        if folds {
            self.take_marks(region, false)?;
        } else if let Some(places) = region.places_there() {
            self.take_marks_at(region, places.marks, false)?;
        }
        let (support, config) = (&self.support, self.over_pages(region.pages().count()));
        let args = |vm| [super::launcher::over_all(vm, region), vec![arg(u32::from(folds))]].concat();
        let label = format!("settling marks of region `{}`", region.name());
        self.run(
            &support.stream,
            &support.settle_marks,
            config,
            args,
            Some(region),
            &label,
        )
    }
}
