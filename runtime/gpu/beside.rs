//! Pages that come to free frames beside a launch that looks them up and only reads them. The protocol is in docs/PROTOCOL.md, T15.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use bytemuck::Zeroable;
use gpuvm_layouts::{self as layout, BesideDesc, BesideRegion};

use parking_lot::MutexGuard;

use super::{
    Job, Named, PagedGpu, RegionView,
    beside_state::{Beside, BesideMemory, Prepared},
    holds::LOOKING_SHARE,
    launcher::{arg, over_all},
    pool::Returning,
};
use crate::{
    device::DeviceArray,
    error::{Doing, Result},
    launch::{InFlight, LaunchConfig, Table, label},
};

/// Smaller arrays come between launches in less time than it takes to begin.
const BYTES_MIN: u64 = 8 << 20;
/// Places of the ring, of a GPU and of a simulated one.
const RING_PLACES: [u64; 2] = [1 << 16, 1 << 12];
/// The pause behind one that brought no page is twice as long as the last one, up to this.
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// So long is one waited for that was asked to end: it may have found no multiprocessor yet.
const TIMEOUT: Duration = Duration::from_millis(5);

const DOING: &str = "bringing pages beside a launch";
fn doing() -> String {
    DOING.to_owned()
}

impl PagedGpu {
    /// Takes what is needed to bring pages of regions beside a launch that is about to look them up by `by` and only reads them. No launch with them runs.
    /// None where nothing is worth it.
    pub(super) fn take_for_beside(&self, regions: &[Arc<RegionView>], by: Table) -> Option<Prepared<'_>> {
        let begun = Instant::now();
        let comes = |region: &&Arc<RegionView>| {
            region.is_held() && !(region.is_complete() || region.is_crowded() || region.is_captured())
        };
        let regions: Vec<_> = regions.iter().filter(comes).take(layout::BESIDE_MAX as usize).collect();
        let pages: u64 = regions.iter().map(|region| region.pages().count()).sum();
        let is_small = self.is_hardware() && pages << self.page_shift() < BYTES_MIN;
        let mut beside = self.scratch.beside.lock();
        // What follows a seed follows no clock of the host's.
        let is_early = !self.capabilities().deterministic && beside.next.is_some_and(|(next, _)| begun < next);
        // Behind other launches this one begins who knows when. Of those that bring pages there is one at a time.
        // Where they have more pages than there are frames, those that come first are not those that are used most, and would stay.
        let is_short = pages > u64::from(self.frame_count());
        if pages == 0 || is_small || is_early || is_short || !self.end_beside() || !self.is_quiet() {
            return None;
        }
        let changing = self.pool.changing.try_lock().filter(|changing| changing.is_none())?;
        let brought = self.has_brought(&beside);
        let prepared = self.take_for(&mut beside, &regions, by, changing);
        let least = begun.elapsed() * LOOKING_SHARE;
        let pause = match (brought, beside.next) {
            (false, Some((_, last))) => least.max(last * 2).min(PAUSE_MOST),
            _ => least,
        };
        beside.next = Some((Instant::now() + pause, pause));
        prepared.unwrap_or_else(|error| {
            // The launch does without.
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "no pages come beside a launch"
            );
            None
        })
    }

    /// Whether no launch of a program is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.lock().in_flight.iter().all(|launch| launch.is_done())
    }

    /// Whether the last one has brought a page.
    fn has_brought(&self, beside: &Beside) -> bool {
        let of = |memory: &BesideMemory| memory.desc.read(&*self.device, 0, 1);
        // What cannot be read is found by the thread that works on the GPU next.
        let last = beside.memory.as_ref().map(of).and_then(std::result::Result::ok);
        last.is_none_or(|last| last[0].brought != 0)
    }

    fn take_for<'a>(
        &'a self,
        beside: &mut Beside,
        regions: &[&Arc<RegionView>],
        by: Table,
        changing: MutexGuard<'a, Option<Returning>>,
    ) -> Result<Option<Prepared<'a>>> {
        let gpu = &*self.device;
        let places = RING_PLACES[usize::from(!self.is_hardware())];
        let memory = match &mut beside.memory {
            Some(memory) => memory,
            none => none.insert(BesideMemory::new(gpu, places).doing(doing)?),
        };
        beside.number += 1;
        let segments_of = |region: &RegionView| region.pages().count().div_ceil(layout::BESIDE_SEGMENT.into());
        let segments: u64 = regions.iter().map(|region| segments_of(region)).sum();
        let mut words = match &mut memory.segments {
            Some(words) if words.length() >= segments => words.addr(),
            other => other.insert(DeviceArray::zeroed(gpu, segments).doing(doing)?).addr(),
        };
        gpu.zero(words, 8 * segments).doing(doing)?;
        gpu.zero(memory.ring.addr(), 8 * places).doing(doing)?;
        let Some(rebuilt) = self.take_some(&mut memory.own, regions)? else {
            return Ok(None);
        };
        let own = memory.own.as_ref().map_or((0, 0), |own| (own.addr(), own.length()));
        let (stop, number) = (Arc::clone(&memory.stop), beside.number);
        let prepared = Prepared {
            regions: regions.iter().map(|region| region.id()).collect(),
            desc: memory.desc.addr(),
            own: own.0,
            own_words: own.1,
            rebuilt,
            watchers: if self.is_hardware() { 2 } else { 1 },
            ask: Arc::new(move || {
                // Relaxed: nothing is told but that.
                stop.word(0)
                    .inspect(|word| _ = word.fetch_max(number, Ordering::Relaxed));
            }),
            _changing: changing,
        };
        let mut desc = BesideDesc {
            count: regions.len() as u32,
            watchers: prepared.watchers,
            stop: memory.stop.device_addr(),
            own: own.0,
            own_words: own.1,
            ring: memory.ring.addr(),
            ring_places: places,
            limit_ns: (self.service_deadline() / 2).as_nanos() as u64,
            idle_ns: self.beside_idle().as_nanos() as u64,
            generation_ns: self.beside_generation().as_nanos() as u64,
            number,
            ..BesideDesc::zeroed()
        };
        let mut tell = || {
            for (region, of) in regions.iter().zip(&mut desc.regions) {
                *of = self.beside_of(region, by)?;
                of.segments = words;
                words += 8 * segments_of(region);
            }
            memory.desc.write(gpu, 0, &[desc]).doing(doing)
        };
        match tell() {
            Ok(()) => Ok(Some(prepared)),
            Err(error) => self.give_back(&prepared).and(Err(error)),
        }
    }

    fn give_back(&self, of: &Prepared<'_>) -> Result<()> {
        self.give_free(of.own, of.own_words, of.rebuilt, DOING)
    }

    /// Takes as many free frames as regions have pages: of one whose frames are to follow each other those, of others any that are in no such place. How often the
    /// pool was rebuilt until then; nothing where none is free.
    fn take_some(&self, own: &mut Option<DeviceArray<u64>>, regions: &[&Arc<RegionView>]) -> Result<Option<u64>> {
        let (addr, rebuilt) = self.take_free(own, DOING)?;
        let Some(own) = own else { return Ok(None) };
        let gpu = &*self.device;
        let choose = || {
            let there = own.read(gpu, 0, own.length() as usize).doing(doing)?;
            let (mut kept, mut any) = (vec![0; there.len()], 0);
            for region in regions {
                let pages = region.pages().count();
                if region.run() == RegionView::NO_RUN && self.survey(region)?.is_all_home() {
                    region.set_run(self.choose_run(region, there.clone(), false));
                }
                match region.run() {
                    RegionView::NO_RUN => any += pages,
                    run => keep_run(&there, &mut kept, run, pages),
                }
            }
            keep_some(&self.apart(there.clone(), None), &mut kept, any);
            let others: Vec<u64> = there.iter().zip(&kept).map(|(there, kept)| there & !kept).collect();
            own.write(gpu, 0, &others).doing(doing)?;
            Ok(kept)
        };
        let kept = choose();
        let given = self.give_free(addr, own.length(), rebuilt, DOING);
        let kept = kept.and_then(|kept| given.map(|()| kept))?;
        own.write(gpu, 0, &kept).doing(doing)?;
        Ok(kept.iter().any(|bits| *bits != 0).then_some(rebuilt))
    }

    /// Begins it, where the launch was put on its stream. It ends by itself, soon after the launch, or when it is asked.
    pub(super) fn begin_beside(&self, prepared: &Prepared<'_>, is_put: bool) -> Option<Arc<InFlight>> {
        let begun = is_put.then(|| self.put_beside(prepared)).transpose();
        let mover = begun.unwrap_or_else(|error| {
            // The launch does without.
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "no pages come beside a launch"
            );
            None
        });
        if let Some(Err(error)) = mover.is_none().then(|| self.give_back(prepared)) {
            tracing::warn!(error = &error as &dyn std::error::Error, "frames are not given back");
        }
        mover
    }

    fn put_beside(&self, prepared: &Prepared<'_>) -> Result<Arc<InFlight>> {
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
            true => Duration::from_micros(500),
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
        // It ends by itself, from when it finds a multiprocessor, which may be late.
        LaunchConfig::new(watchers + movers, threads).deadline(Duration::MAX)
    }

    /// What the kernel is told of a region, whose pages come in order where all of them may. From now on its marks do not say that pages were
    /// written.
    fn beside_of(&self, region: &RegionView, by: Table) -> Result<BesideRegion> {
        self.clear_marks(region, true)?;
        region.expect_beside(by);
        let (entries, window, marks) = match region.places_there().filter(|_| by == Table::Entries) {
            Some(places) => (places.entries, places.addr, places.marks),
            None => (region.places_addr().unwrap_or_default(), 0, region.marks_addr()),
        };
        Ok(BesideRegion {
            entries,
            window,
            marks,
            segments: 0,
            pages: region.pages().count(),
            region: region.id(),
            run: region.run(),
        })
    }

    /// Has those launches end that bring pages beside others. Whether they have: one that waits for a multiprocessor is not waited for.
    pub(crate) fn end_beside(&self) -> bool {
        let brings = |launch: &&Arc<InFlight>| launch.gives_way.is_some() && !launch.is_done();
        let those: Vec<_> = self.lock().in_flight.iter().filter(brings).map(Arc::clone).collect();
        let mut all = true;
        for launch in those {
            all &= launch.gives_way_within(self.beside_timeout());
        }
        all
    }

    /// How long one is waited for: on a GPU that follows a seed lanes run while the host waits.
    pub(crate) fn beside_timeout(&self) -> Option<Duration> {
        (!self.capabilities().deterministic).then_some(TIMEOUT)
    }

    /// Forgets the marks of pages in frames that launches set before those came. No launch with the region runs.
    pub fn forget_late_marks(&self, region: &RegionView) -> Result<()> {
        match region.came_beside() {
            true => {
                self.clear_marks(region, false)?;
                region.forget_beside();
                Ok(())
            }
            false => Ok(()),
        }
    }

    /// Has the marks of pages in frames go, which says with `folds` that they are dirty. No launch with the region runs.
    fn clear_marks(&self, region: &RegionView, folds: bool) -> Result<()> {
        if folds {
            self.take_marks(region, false)?;
        } else if let Some(places) = region.places_there() {
            self.take_marks_at(region, places.marks, false)?;
        }
        let (support, config) = (&self.support, self.over_pages(region.pages().count()));
        let args = |vm| [over_all(vm, region), vec![arg(u32::from(folds))]].concat();
        let label = format!("clearing marks of region `{}`", region.name());
        self.run(
            &support.stream,
            &support.clear_marks,
            config,
            args,
            Some(region),
            &label,
        )
    }
}

/// Keeps those frames of a run that are there.
fn keep_run(there: &[u64], kept: &mut [u64], run: u32, pages: u64) {
    for frame in u64::from(run)..u64::from(run) + pages {
        let (word, bit) = ((frame / 64) as usize, 1 << (frame % 64));
        if let (Some(there), Some(kept)) = (there.get(word), kept.get_mut(word)) {
            *kept |= there & bit;
        }
    }
}

/// Keeps this many others.
fn keep_some(there: &[u64], kept: &mut [u64], mut count: u64) {
    for (there, kept) in there.iter().zip(kept) {
        let mut left = there & !*kept;
        while count > 0 && left != 0 {
            *kept |= left & left.wrapping_neg();
            left &= left - 1;
            count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_kept_of_a_run_and_others_up_to_a_number() {
        let there = [!0b1000, u64::MAX, 0b11];
        let mut kept = vec![0; 3];
        keep_run(&there, &mut kept, 2, 4);
        assert_eq!(kept, [0b11_0100, 0, 0]);
        keep_some(&there, &mut kept, 3);
        assert_eq!(kept, [0b111_0111, 0, 0]);
        keep_some(&there, &mut kept, 1000);
        assert_eq!(kept, there);
        // A run that ends past the last frame.
        keep_run(&there, &mut kept, 190, 5);
        assert_eq!(kept, there);
    }
}
