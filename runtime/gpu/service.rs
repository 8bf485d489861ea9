//! What the runtime's own kernels do on a GPU, and the places of regions that they need for it.

use std::{ops::Range, sync::Arc, time::Instant};

use gpuvm_layouts::{self as layout, RegionDesc, StripeDesc};

use super::{Job, PagedGpu, RegionView, Retired};
use crate::{
    device::DeviceArray,
    error::{Doing, Error, Result},
    launch::LaunchConfig,
};

/// The GPU's clock is compared so often with the host's, and the closest look counts.
const CLOCK_LOOKS: u32 = 8;

/// A number as a kernel's argument.
pub(super) fn arg<T: bytemuck::Pod>(value: T) -> Vec<u8> {
    bytemuck::bytes_of(&value).to_vec()
}

/// The arguments of a kernel over pages of a region.
fn over(vm: u64, region: &RegionView, pages: Range<u64>) -> Vec<Vec<u8>> {
    vec![arg(vm), arg(region.id()), arg(pages.start), arg(pages.end)]
}

/// The arguments of a kernel over all pages of a region.
fn over_all(vm: u64, region: &RegionView) -> Vec<Vec<u8>> {
    over(vm, region, 0..region.pages().count())
}

impl PagedGpu {
    /// Runs a kernel on this GPU and compares the layouts it was compiled with to the runtime's.
    pub(super) fn check_version(&self) -> Result<()> {
        let doing = || "checking the device library".to_owned();
        let out = DeviceArray::<u32>::zeroed(&*self.device, 1).doing(doing)?;
        let (support, config) = (&self.support, self.service_config(1));
        let args = |_| vec![arg(out.addr())];
        self.run(&support.stream, &support.version, config, args, None, &doing())?;
        let found = out.read(&*self.device, 0, 1).doing(doing)?[0];
        if found != layout::LAYOUT_VERSION {
            return Err(Error::Unavailable {
                what: "the device library".into(),
                reason: format!(
                    "its layouts have version {found}, the runtime's {}; rebuild gpuvm",
                    layout::LAYOUT_VERSION
                ),
            });
        }
        Ok(())
    }

    /// Compares the clocks of GPU and host for the timeline, and begins it.
    pub(super) fn begin_timeline(&self) -> Result<()> {
        let (Some(timeline), Some(clock)) = (&self.timeline, &self.support.clock) else {
            return Ok(());
        };
        let doing = || "comparing the GPU's clock with the host's".to_owned();
        let out = DeviceArray::<u64>::zeroed(&*self.device, 1).doing(doing)?;
        for _ in 0..CLOCK_LOOKS {
            let before = Instant::now();
            let (support, args) = (&self.support, |_| vec![arg(out.addr())]);
            self.run(&support.stream, clock, self.service_config(1), args, None, &doing())?;
            let after = Instant::now();
            timeline.align(before, after, out.read(&*self.device, 0, 1).doing(doing)?[0]);
        }
        timeline.begin(!self.capabilities().deterministic)
    }

    /// Writes the dirty pages of a region home.
    pub fn flush(&self, region: &RegionView) -> Result<()> {
        let (support, config) = (&self.support, self.service_config(region.pages().count()));
        let args = |vm| over_all(vm, region);
        let label = format!("flush of region `{}`", region.name());
        self.run(&support.stream, &support.flush, config, args, Some(region), &label)
    }

    /// Gives the frames of pages of a region back, dropping what is dirty still if `discard`.
    pub fn release(&self, region: &RegionView, pages: Range<u64>, discard: bool) -> Result<()> {
        let (support, config) = (&self.support, self.service_config(pages.end - pages.start));
        let args = |vm| [over(vm, region, pages), vec![arg(u32::from(discard))]].concat();
        let label = format!("release of region `{}`", region.name());
        self.run(&support.stream, &support.release, config, args, Some(region), &label)
    }

    /// Finishes what has completed on queue pairs, and closes them to reservations.
    pub fn reap(&self, first: u32, count: u32) -> Result<()> {
        let (support, config) = (&self.support, self.service_config(1));
        let args = |vm: u64| vec![arg(vm), arg(first), arg(count)];
        let label = "closing the queue pairs of a home that has returned";
        self.run(&support.background, &support.reap, config, args, None, label)
    }

    /// Marks what a home holds of pages of a region as stale.
    pub fn age(&self, region: &RegionView, home: u32, pages: Range<u64>) -> Result<()> {
        let (support, config) = (&self.support, self.service_config(pages.end - pages.start));
        let args = |vm: u64| {
            let (first, last) = (arg(pages.start), arg(pages.end));
            vec![arg(vm), arg(region.id()), arg(home), first, last]
        };
        let label = format!("marking copies of region `{}` as stale", region.name());
        self.run(&support.background, &support.age, config, args, Some(region), &label)
    }

    /// Mends stale copies of pages of a region, whose kernel argument is `array`, given the launch's `VmDesc`.
    pub fn mend_copies(
        &self,
        region: &RegionView,
        array: impl FnOnce(u64) -> layout::ArrayDesc,
        pages: Range<u64>,
    ) -> Result<()> {
        let (support, config) = (&self.support, self.service_config(pages.end - pages.start));
        let args = |vm| vec![arg(array(vm)), arg(pages.start), arg(pages.end)];
        let label = format!("catching up copies of region `{}`", region.name());
        self.run(
            &support.background,
            &support.catch_up,
            config,
            args,
            Some(region),
            &label,
        )
    }

    /// Passes on the lines of a broadcast array that this GPU has marked, of so many. `array`: the argument, given the launch's `VmDesc`.
    pub fn pass_on(&self, array: impl FnOnce(u64) -> layout::BroadcastDesc, lines: u64, name: &str) -> Result<()> {
        let support = &self.support;
        let config = self.over_memory(lines.div_ceil(8));
        let label = format!("passing on what atomics changed of `{name}`");
        self.run(
            &support.stream,
            &support.pass_on,
            config,
            |vm| vec![arg(array(vm)), arg(lines)],
            None,
            &label,
        )
    }

    /// Copies bytes of a broadcast array from their owners' copies to this GPU's. `array`: the argument, given the launch's `VmDesc`.
    pub fn bring_copy(
        &self,
        array: impl FnOnce(u64) -> layout::BroadcastDesc,
        first: u64,
        bytes: u64,
        name: &str,
    ) -> Result<()> {
        let support = &self.support;
        let args = |vm| vec![arg(array(vm)), arg(first), arg(bytes)];
        let label = format!("subscribing to pages of `{name}`");
        let config = self.over_memory(bytes / 8);
        self.run(&support.stream, &support.bring_copy, config, args, None, &label)
    }

    /// The shape of a kernel that goes over so many words at memory's speed.
    fn over_memory(&self, words: u64) -> LaunchConfig {
        let multiprocessors = u64::from(self.capabilities().sm_count).max(1);
        let blocks = words.div_ceil(256).clamp(1, 4 * multiprocessors) as u32;
        LaunchConfig::new(blocks, 256).deadline(self.service_deadline())
    }

    /// Finishes what has completed on all queue pairs.
    pub(super) fn reaping_of(&self, queue_pairs: u32) -> Job<'_> {
        let args = move |vm: u64| vec![arg(vm), arg(0_u32), arg(queue_pairs)];
        Job::Kernel(&self.support.reap, Box::new(args))
    }

    /// Forgets failed fetches of a region's pages.
    pub(super) fn forgetting_of<'a>(&'a self, region: &'a RegionView) -> Job<'a> {
        Job::Kernel(&self.support.forget, Box::new(|vm| over_all(vm, region)))
    }

    /// Gives a region that is new a place, where kernels find it once `describe` has said what it is.
    pub fn enter(&self, view: &Arc<RegionView>, describe: impl FnOnce() -> Result<RegionDesc>) -> Result<()> {
        let mut state = self.lock();
        let Some(id) = state.free_place() else {
            let limit = state.views.len();
            return Err(Error::Region {
                region: view.name().to_owned(),
                reason: format!("all {limit} places for regions are taken: drop some, or raise VmBuilder::regions_max"),
            });
        };
        view.set_id(id as u32);
        let desc = describe()?;
        if let Some(timeline) = &self.timeline {
            timeline.name_region(id as u32, view.name());
        }
        self.regions
            .write(&*self.device, id as u32, desc)
            .doing(|| format!("describing region `{}`", view.name()))?;
        state.views[id] = Some(Arc::downgrade(view));
        self.write_low_water(&state)
    }

    /// Tells the device the `REGION_*` of a region anew. Launches that run may follow at once.
    pub fn write_region_flags(&self, view: &RegionView, flags: u32) -> Result<()> {
        let written = self.regions.write_flags(&*self.device, view.id(), flags);
        written.doing(|| format!("advising region `{}`", view.name()))
    }

    /// Address of the first stripe of a region.
    pub fn stripes_addr(&self, view: &RegionView) -> u64 {
        self.regions.stripes_addr(view.id())
    }

    /// Tells the device where pages of a region live, from its stripe `first` on.
    pub fn write_stripes(&self, view: &RegionView, first: u64, stripes: &[StripeDesc]) -> Result<()> {
        let written = self.regions.write_stripes(&*self.device, view.id(), first, stripes);
        written.doing(|| format!("describing region `{}`", view.name()))
    }

    /// Ends a region here: hands its page table to whoever gives it back once no lane can look at it any more.
    pub fn retire(&self, view: &RegionView, frames_left: bool) {
        let mut state = self.lock();
        // Frames of the region that are left, if any, are found by the host's pass.
        state.needs_recovery |= frames_left;
        let tables = view.end();
        if let Err(error) = self.write_low_water(&state) {
            tracing::warn!(%error, "pages are evicted ahead though frames would do for all");
        }
        if let Some(tables) = tables {
            state.retired.push(Retired {
                id: view.id(),
                _tables: tables,
            });
        }
    }
}
