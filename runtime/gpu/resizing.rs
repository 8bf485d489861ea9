//! Frames that come and go while kernels run. The protocol is in docs/PROTOCOL.md, "Frames that come and go".

use std::{
    ops::Range,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use gpuvm_gpu::GpuError;
use gpuvm_layouts as layout;
use parking_lot::MutexGuard;

use super::{GpuState, Job, Named, PagedGpu, launcher::arg, pool::Returning};
use crate::{
    error::{Doing, Error, Result},
    frames::{FrameAccess, FrameUnits},
    handles::GivesHandles,
    launch::InFlight,
    tenancy::{Member, Occupant},
};

/// Of the longest wait of a lane, how long frames are emptied for somebody who needs memory now, and how much longer than its work the
/// host waits for a kernel that empties frames.
const TIMEOUT_SHARE: u32 = 10;
/// How often the host looks at a change that lanes work on.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// After how long without a frame that is done the kernel counts as one that has found no place, and lanes of others are called.
const CALL_AFTER: Duration = Duration::from_millis(3);
/// Of the frame memory, what stays when others need it, unless a setting says otherwise.
const MINIMUM_SHARE: u64 = 8;

/// What became of a change of the number of frames.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resized {
    /// Bytes of frames that there are now.
    pub bytes: u64,
    /// Bytes of frames that were to go and stay: pages in them were held, or written back too slowly, or kernels that look for no
    /// frames left no place on the GPU. Asking once more goes on.
    pub kept_bytes: u64,
    /// Bytes of frames that were to come, for which there is no memory, or whose addresses lanes may still use.
    pub missing_bytes: u64,
    /// How long it took.
    pub took: Duration,
}

/// A change of the number of frames: one at a time.
struct Change<'a> {
    gpu: &'a PagedGpu,
    units: &'a FrameUnits,
    /// The change that an earlier one left behind.
    returning: MutexGuard<'a, Option<Returning>>,
}

/// How long to work on a change, and how much longer to wait for it.
#[derive(Clone, Copy)]
struct Timeouts {
    within: Duration,
    longer: Duration,
}

impl PagedGpu {
    /// Has the frames take `bytes` bytes, rounded down to whole units, and says how far that went. Fewer frames are emptied `within`
    /// that time.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the number of frames stays as it is, or another change is under way; [`Error::Setting`] for less than
    /// a unit or more than the capacity; [`Error::Gpu`], [`Error::GpuLost`].
    pub fn resize_frames(&self, bytes: u64, within: Duration) -> Result<Resized> {
        let units = self.units()?;
        let (least, most) = (units.unit_bytes(), units.count() as u64 * units.unit_bytes());
        if !(least..=most).contains(&bytes) {
            return Err(Error::Setting {
                setting: "frame memory",
                value: format!("{bytes} bytes"),
                reason: format!("it must be from {least} bytes, one unit, to the frame capacity, {most} bytes"),
            });
        }
        let _span = self.span(|| format!("resize of frames to {bytes} bytes"));
        let begun = Instant::now();
        self.let_unused_go();
        let mut change = Change {
            gpu: self,
            units,
            returning: self.pool.changing.lock(),
        };
        change.stop_returning()?;
        self.map_device_lost(units.unmap_ended())?;
        let (present, wanted) = (units.present().len(), (bytes / units.unit_bytes()) as usize);
        let longer = self.change_timeout();
        let (missing, kept) = match wanted > present {
            true => (wanted - present - change.add_frames(wanted - present)?, 0),
            false => {
                let going = present - wanted;
                (0, going - change.withdraw(going, Timeouts { within, longer })?)
            }
        };
        let of = |count: usize| count as u64 * units.unit_bytes();
        Ok(Resized {
            bytes: of(units.present().len()),
            kept_bytes: of(kept),
            missing_bytes: of(missing),
            took: begun.elapsed(),
        })
    }

    fn units(&self) -> Result<&FrameUnits> {
        self.frames().units().ok_or_else(|| Error::Unavailable {
            what: "resizing the frame pool".into(),
            reason: "the frame pool is not resizable: set frame_capacity when the Vm is built".into(),
        })
    }

    /// Takes memory that others have by now out of the frames' addresses, where no lane uses them any more, and ends a change that was left
    /// behind.
    pub(super) fn finish_frame_changes(&self) {
        let Some(units) = self.frames().units() else { return };
        let left_behind = self.pool.changing.try_lock();
        let finished = match left_behind.filter(|change| change.as_ref().is_some_and(Returning::is_left_alone)) {
            Some(returning) => Change {
                gpu: self,
                units,
                returning,
            }
            .go_on_returning(),
            None => Ok(()),
        };
        if let Err(error) = finished.and_then(|()| units.unmap_ended()) {
            tracing::warn!(%error, "addresses of frames keep memory that was given away");
        }
    }

    /// Has what finds no memory ask the frames for some, and other tenants all that is there.
    pub(super) fn lend_frames(self: &Arc<Self>, member: Option<&Member>) {
        if let Some(member) = member {
            let occupant: Weak<Self> = Arc::downgrade(self);
            member.admit(occupant);
        }
        if self.frames().units().is_some() {
            let giver: Weak<Self> = Arc::downgrade(self);
            self.handles.register(giver);
        }
    }

    /// Others of lower priority give up memory first from now on.
    pub fn set_frame_priority(&self, priority: i32) {
        self.frame_priority.store(priority, Ordering::Relaxed);
    }

    fn change_timeout(&self) -> Duration {
        self.settings.wait_limit / TIMEOUT_SHARE
    }

    /// Bytes of frames that stay when others need memory.
    fn minimum(&self) -> u64 {
        let eighth = self.settings.frame_memory / MINIMUM_SHARE;
        self.settings.frame_minimum.unwrap_or(eighth)
    }
}

impl Change<'_> {
    /// Up to this many units more, of memory that is free: how many there are more.
    fn add_frames(&mut self, count: usize) -> Result<usize> {
        let (added, short) = self.units.add(count);
        self.bring_back(&added, self.gpu.change_timeout())?;
        match short.filter(|error| !error.is_out_of_memory()) {
            Some(error) => self.gpu.map_device_lost(Err(error)),
            None => Ok(added.len()),
        }
    }

    /// Gives the pool the frames of units that are there, as far as they are withdrawn, and those of an earlier change. Those that are not
    /// back in time come later.
    fn bring_back(&mut self, which: &[usize], timeout: Duration) -> Result<()> {
        let mut frames = frames_of(self.units, which);
        if let Some(earlier) = self.returning.as_ref().map(|earlier| &earlier.frames) {
            // Frames between them that do not come back are passed over.
            frames = match frames.is_empty() {
                true => earlier.clone(),
                false => frames.start.min(earlier.start)..frames.end.max(earlier.end),
            };
        }
        if frames.is_empty() {
            return Ok(());
        }
        {
            let state = self.gpu.lock();
            let marked = self.mark(which, layout::PAGE_WITHDRAWN, layout::PAGE_RETURNING);
            self.gpu.map_device_lost_locked(marked, &state)?;
            self.gpu.map_device_lost_locked(self.tell_frames(&state), &state)?;
        }
        // What fails from here on is done by the next change.
        let change = self.returning.insert(Returning {
            frames: frames.clone(),
            launch: None,
        });
        let launch = begin_change(
            self.gpu,
            &frames,
            layout::POOL_RESTORE_BIT,
            frames.len() as u32,
            Duration::MAX,
        )?;
        change.launch = Some(Arc::clone(&launch));
        match await_change(self.gpu, &launch, timeout)? {
            true => self.stop_returning(),
            false => Ok(()),
        }
    }

    /// Gives frames of these units another mark, and says how many have it then. No lane gives frames a mark meanwhile: no change is under way.
    fn mark(&self, which: &[usize], from: u64, to: u64) -> Result<usize> {
        let range = frames_of(self.units, which);
        let doing = || "marking frames that come or go".to_owned();
        let held = self
            .gpu
            .pool
            .frame_pages
            .read(&*self.gpu.device, range.start.into(), range.len())
            .doing(doing)?;
        let that_have = |mark| {
            let of_units = which.iter().flat_map(|unit| self.units.frames(*unit));
            let held = &held;
            of_units.filter(move |frame| held[(frame - range.start) as usize] == mark)
        };
        let changed: Vec<u32> = that_have(from).collect();
        for run in changed.chunk_by(|a, b| a + 1 == *b) {
            let marks = vec![to; run.len()];
            let written = self
                .gpu
                .pool
                .frame_pages
                .write(&*self.gpu.device, run[0].into(), &marks);
            written.doing(doing)?;
        }
        Ok(changed.len() + that_have(to).count())
    }

    /// Tells host and lanes how many frames there are.
    fn tell_frames(&self, state: &GpuState) -> Result<()> {
        let frames = |unit: usize| self.units.frames(unit).len() as u32;
        self.gpu
            .pool
            .set_count(self.units.present().into_iter().map(frames).sum());
        tell_limit(self.gpu, self.gpu.pool.limit())?;
        self.gpu.write_low_water(state)
    }

    /// Empties up to this many units, the last ones, and gives their handles to the pool: how many.
    fn withdraw(&mut self, count: usize, timeouts: Timeouts) -> Result<usize> {
        let Some((going, left)) = self.choose_going(count)? else {
            self.bring_back(&[], timeouts.longer)?;
            return Ok(0);
        };
        let frames = frames_of(self.units, &going);
        let begun = begin_change(self.gpu, &frames, layout::POOL_WITHDRAW_BIT, left, timeouts.within);
        let launch = match begun {
            Ok(launch) => launch,
            Err(error) => {
                // All of them are there still.
                let state = self.gpu.lock();
                self.gpu.map_device_lost_locked(self.tell_frames(&state), &state)?;
                return Err(error);
            }
        };
        await_change(self.gpu, &launch, timeouts.within.saturating_add(timeouts.longer))?;
        let ended = end_change(self.gpu, &launch);
        let (gone, stay) = {
            let state = self.gpu.lock();
            let (gone, stay) = self.gpu.map_device_lost_locked(self.emptied(&going), &state)?;
            let in_flight: Vec<Weak<InFlight>> = state.in_flight.iter().map(Arc::downgrade).collect();
            self.units.lift(&gone, in_flight);
            self.gpu.map_device_lost_locked(self.tell_frames(&state), &state)?;
            (gone, stay)
        };
        self.bring_back(&stay, timeouts.longer)?;
        self.gpu.prune();
        ended.map(|()| gone.len())
    }

    /// Up to this many units that are to go, and how many of their frames have to. Launches to come count on those that stay.
    fn choose_going(&self, count: usize) -> Result<Option<(Vec<usize>, u32)>> {
        let state = self.gpu.lock();
        let present = self.units.present();
        let going = self.can_go(&state, &present, count);
        let Some(&first) = going.first() else { return Ok(None) };
        // Before the first frame goes.
        let each = self.units.frames(first).len() as u32;
        self.gpu.pool.set_count((present.len() - going.len()) as u32 * each);
        self.gpu
            .map_device_lost_locked(tell_limit(self.gpu, self.units.frames(first).start.max(1)), &state)?;
        let gone = match self.returning.is_some() {
            true => self.mark(&going, layout::PAGE_RETURNING, layout::PAGE_WITHDRAWN),
            false => Ok(0),
        };
        let gone = self.gpu.map_device_lost_locked(gone, &state)? as u32;
        let left = going.len() as u32 * each - gone;
        Ok(Some((going, left)))
    }

    /// The last units of those that are there, up to `count` of them: those that stay have frames for all spans of launches in flight.
    fn can_go(&self, state: &GpuState, present: &[usize], count: usize) -> Vec<usize> {
        let spans = state.in_flight.iter().filter(|launch| !launch.is_done());
        let held = spans.map(|launch| launch.span_frames).fold(0, u64::saturating_add);
        let each = self.units.frames(0).len() as u64;
        let stay = (held.saturating_add(1).div_ceil(each).max(1) as usize).max(present.len() - count);
        present[stay.min(present.len())..].to_vec()
    }

    /// Ends an earlier change by which frames come back, as far as they have: the others are marked still.
    fn stop_returning(&mut self) -> Result<()> {
        // Frames that are out of the pool for launches of others come back.
        self.gpu.end_beside();
        let Some(launch) = self.returning.as_mut().and_then(|change| change.launch.take()) else {
            return Ok(());
        };
        let is_back = look_at_change(self.gpu)?.0 <= 0;
        end_change(self.gpu, &launch)?;
        if is_back {
            *self.returning = None;
        }
        let state = self.gpu.lock();
        self.gpu.map_device_lost_locked(self.tell_frames(&state), &state)
    }

    /// Frames of an earlier change come back, whose kernel was stopped or never began.
    fn go_on_returning(&mut self) -> Result<()> {
        self.stop_returning()?;
        self.bring_back(&[], self.gpu.change_timeout())
    }

    /// Of these units, those whose frames are all withdrawn, and the others. Under the state's lock: a recovery would undo it.
    fn emptied(&self, which: &[usize]) -> Result<(Vec<usize>, Vec<usize>)> {
        let range = frames_of(self.units, which);
        let count = (range.end - range.start) as usize;
        let held = self
            .gpu
            .pool
            .frame_pages
            .read(&*self.gpu.device, range.start.into(), count);
        let held = held.doing(|| "looking for frames that are withdrawn".into())?;
        let is_empty = |unit: &usize| {
            let frames = self.units.frames(*unit);
            let frames = (frames.start - range.start) as usize..(frames.end - range.start) as usize;
            held[frames].iter().all(|page| *page == layout::PAGE_WITHDRAWN)
        };
        Ok(which.iter().partition(|unit| is_empty(unit)))
    }
}

fn tell_limit(gpu: &PagedGpu, limit: u32) -> Result<()> {
    let told = gpu.pool.free.set_limit(&*gpu.device, limit);
    told.doing(|| "telling the clock how many frames there are".into())
}

/// Begins a change of these frames, and starts a kernel that works on it for so long.
fn begin_change(gpu: &PagedGpu, frames: &Range<u32>, kind: u64, left: u32, within: Duration) -> Result<Arc<InFlight>> {
    let label = "resizing the frame pool";
    // A lane that was waited for in vain when an earlier change ended may work on that one still.
    await_helpers(gpu)?;
    // A recovery knows of no change.
    gpu.make_ready(&mut gpu.lock())?;
    let begun = gpu.pool.free.begin_change(&*gpu.device, frames, kind, left);
    let change = gpu.map_device_lost(begun.doing(|| label.into()))?;
    if gpu.capabilities().deterministic {
        // Nothing looks whether the kernel finds a place.
        call_lanes(gpu)?;
    }
    let launch = start_changing(gpu, change, left, within);
    if launch.is_err() {
        let ended = gpu.pool.free.end_change(&*gpu.device);
        gpu.map_device_lost(ended.doing(|| label.into()))?;
    }
    gpu.map_device_lost(launch)
}

/// Starts a kernel that works on a change, for so long at most.
fn start_changing(gpu: &PagedGpu, change: u64, frames: u32, within: Duration) -> Result<Arc<InFlight>> {
    let nanoseconds = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
    let args = |vm: u64| vec![arg(vm), arg(change), arg(nanoseconds)];
    let (support, config) = (&gpu.support, gpu.service_config(u64::from(frames)));
    let named = Named {
        continues: true,
        ..Named::default()
    };
    let label = "resizing the frame pool";
    let job = Job::Kernel(&support.change_frames, Box::new(args));
    gpu.enqueue(&support.background, job, &config, named, &label.into())
}

/// Waits until nothing is left of the change, or its kernel has ended, for so long at most: whether nothing is left.
fn await_change(gpu: &PagedGpu, launch: &InFlight, limit: Duration) -> Result<bool> {
    let begun = Instant::now();
    let (mut least, mut progress, mut called) = (i64::MAX, begun, false);
    // The time of a GPU that follows a seed is not the host's.
    let each = (!gpu.capabilities().deterministic).then_some(LOOK_AGAIN);
    loop {
        let ended = launch.wait(each).is_some();
        let (left, _) = look_at_change(gpu)?;
        if ended || left <= 0 || begun.elapsed() > limit {
            return Ok(left <= 0);
        }
        if left < least {
            (least, progress) = (left, Instant::now());
        } else if !called && progress.elapsed() > CALL_AFTER {
            call_lanes(gpu)?;
            called = true;
        }
    }
}

/// Has lanes that look for a frame work on the change, too: they hold the places on the GPU that its kernel does not find.
fn call_lanes(gpu: &PagedGpu) -> Result<()> {
    let called = gpu.pool.free.call_lanes(&*gpu.device);
    gpu.map_device_lost(called.doing(|| "asking kernels to resize the frame pool".into()))
}

fn look_at_change(gpu: &PagedGpu) -> Result<(i64, u64)> {
    let looked = gpu.pool.free.change(&*gpu.device);
    gpu.map_device_lost(looked.doing(|| "polling a resize of the frame pool".into()))
}

/// Ends a change, whose kernel this is: nothing works on it when this returns.
fn end_change(gpu: &PagedGpu, launch: &InFlight) -> Result<()> {
    let ended = gpu.pool.free.end_change(&*gpu.device);
    gpu.map_device_lost(ended.doing(|| "ending a resize of the frame pool".into()))?;
    // One that has found no place finds nothing to do when it starts.
    if !launch.is_done() {
        launch.abort(&*gpu.device);
    }
    await_helpers(gpu)?;
    if !launch.is_done() {
        return Ok(());
    }
    let outcome = launch.wait(None).unwrap_or(Err(GpuError::ShutDown));
    match gpu.map_device_lost(gpu.outcome_of(launch, outcome)) {
        // It went as far as it could.
        Ok(_) | Err(Error::Stopped { .. } | Error::Fault { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Waits until no lane works on the change that has ended. Lanes that come later look at it and go.
fn await_helpers(gpu: &PagedGpu) -> Result<()> {
    // Lanes of a GPU that follows a seed run while the host waits for a launch alone. There the kernel has ended the change, and waited.
    if gpu.capabilities().deterministic {
        return Ok(());
    }
    let begun = Instant::now();
    // A lane helps for a moment, unless its kernel was stopped where it stood.
    while look_at_change(gpu)?.1 != 0 && !gpu.lock().in_flight.iter().all(|launch| launch.is_done()) {
        if begun.elapsed() > gpu.settings.wait_limit {
            return Err(Error::Unavailable {
                what: "resizing the frame pool".into(),
                reason: "timed out waiting for a kernel to release frames".into(),
            });
        }
        std::thread::yield_now();
    }
    Ok(())
}

impl GivesHandles for PagedGpu {
    fn priority(&self) -> i32 {
        self.frame_priority.load(Ordering::Relaxed)
    }

    fn holds(&self) -> (String, u64) {
        let bytes = u64::from(self.frame_count()) << self.page_shift();
        ("frames".into(), bytes)
    }

    fn give_up(&self, handles: usize, until: Option<Instant>) -> usize {
        let Ok(units) = self.units() else { return 0 };
        self.let_unused_go();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()) / 2);
        let each = left.map_or(self.change_timeout(), |left| left.min(self.change_timeout()));
        // Who changes their number already may be waiting for the caller, so it is not waited for without end.
        let Some(returning) = self.pool.changing.try_lock_for(each) else {
            return 0;
        };
        let mut change = Change {
            gpu: self,
            units,
            returning,
        };
        let given = change.stop_returning().and_then(|()| {
            let least = self.minimum().div_ceil(units.unit_bytes()).max(1) as usize;
            let spare = units.present().len().saturating_sub(least);
            let wanted = handles.div_ceil(units.handles_each()).min(spare);
            let timeouts = Timeouts {
                within: each,
                longer: each,
            };
            change.withdraw(wanted, timeouts)
        });
        match given {
            Ok(count) => count * units.handles_each(),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the frame pool gives no memory"
                );
                0
            }
        }
    }
}

impl Occupant for PagedGpu {
    fn frame_bytes(&self) -> u64 {
        match self.frames().access() {
            FrameAccess::HostMemory => 0,
            _ => self.holds().1,
        }
    }

    fn give_back(&self, bytes: u64, most: u64, until: Instant) -> u64 {
        let handle = self.handles.handle_bytes();
        let unit = self.frames().units().map_or(handle, FrameUnits::unit_bytes).max(1);
        let whole = bytes.div_ceil(unit).min(most / unit) * unit;
        *self.gave.lock() = Some(self.turns.now());
        self.let_unused_go();
        self.handles.trim(whole, Some(until))
    }

    fn release_ended(&self) {
        self.finish_frame_changes();
    }

    fn lingering_bytes(&self) -> u64 {
        self.device.lingering_bytes()
    }
}

/// The frames from the first to the last of these units, which ascend.
fn frames_of(units: &FrameUnits, which: &[usize]) -> Range<u32> {
    match which {
        [] => 0..0,
        [first, .., last] => units.frames(*first).start..units.frames(*last).end,
        [only] => units.frames(*only),
    }
}
