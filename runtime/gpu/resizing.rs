//! Frames that come and go while kernels run. The protocol is in docs/PROTOCOL.md, "Frames that come and go".

use std::{
    ops::Range,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use gpuvm_gpu::GpuError;
use gpuvm_layouts as layout;
use parking_lot::MutexGuard;

use super::{GpuState, PagedGpu, service::arg};
use crate::{
    error::{Doing, Error, Result},
    frames::{FrameAccess, FrameUnits},
    handles::GivesHandles,
    launch::InFlight,
    tenancy::{Member, Occupant},
};

/// Of the longest wait of a lane, how long frames are emptied for somebody who needs memory now, and how much longer than its work the
/// host waits for a kernel that empties frames.
const PATIENCE_SHARE: u32 = 10;
/// Of the frame memory, what stays when others need it, unless a setting says otherwise.
const MINIMUM_SHARE: u64 = 8;

/// What became of a change of the number of frames.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resized {
    /// Bytes of frames that there are now.
    pub bytes: u64,
    /// Bytes of frames that were to go and stay: pages in them were held, or written back too slowly, or no place on the GPU was free
    /// for the kernel that empties them. Asking once more goes on.
    pub kept_bytes: u64,
    /// Bytes of frames that were to come, for which there is no memory, or whose addresses lanes may still use.
    pub missing_bytes: u64,
    /// How long it took.
    pub took: Duration,
}

/// A kernel that empties units. There is one at a time.
pub(super) struct Withdrawing {
    launch: Arc<InFlight>,
    units: Vec<usize>,
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
        let begun = Instant::now();
        let mut under_way = self.changing.lock();
        self.finish_change(units, &mut under_way)?;
        self.or_lost(units.settle())?;
        let (present, wanted) = (units.present().len(), (bytes / units.unit_bytes()) as usize);
        let (missing, kept) = match wanted > present {
            true => (wanted - present - self.add_frames(units, wanted - present)?, 0),
            false => {
                let going = present - wanted;
                let gone = self.withdraw(units, &mut under_way, going, (within, self.patience()))?;
                (0, going - gone)
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
            what: "changing the number of frames".into(),
            reason: "they were allocated at once: name their most with VmBuilder::frame_capacity".into(),
        })
    }

    /// Up to so many units more, of memory that is free: how many there are more.
    fn add_frames(&self, units: &FrameUnits, count: usize) -> Result<usize> {
        let (added, short) = units.add(count);
        if let Some(error) = short.filter(|error| !error.is_out_of_memory()) {
            self.bring_back(units, &added)?;
            return self.or_lost(Err(error));
        }
        self.bring_back(units, &added)?;
        Ok(added.len())
    }

    /// Gives the pool the frames of units that are there, as far as they are withdrawn.
    fn bring_back(&self, units: &FrameUnits, which: &[usize]) -> Result<()> {
        if which.is_empty() {
            return Ok(());
        }
        self.or_lost(self.tell_frames(&self.lock(), units))?;
        for run in which.chunk_by(|a, b| a + 1 == *b) {
            let frames = frames_of(units, run);
            let args = [arg(self.desc.addr()), arg(frames.start), arg(frames.end)];
            let (support, config) = (&self.support, self.service_config(u64::from(frames.end - frames.start)));
            let label = "giving frames to the pool";
            self.run(&support.background, &support.restore, config, &args, None, label)?;
        }
        Ok(())
    }

    /// Tells host and lanes how many frames there are.
    fn tell_frames(&self, state: &GpuState, units: &FrameUnits) -> Result<()> {
        let frames = |unit: usize| units.frames(unit).len() as u32;
        self.pool.set_count(units.present().into_iter().map(frames).sum());
        self.tell_limit(self.pool.limit())?;
        self.write_low_water(state)
    }

    fn tell_limit(&self, limit: u32) -> Result<()> {
        let told = self.pool.free.set_limit(&*self.device, limit);
        told.doing(|| "telling the clock how many frames there are".into())
    }

    /// Empties up to so many units, the last ones, and gives their handles to the pool: how many. The kernel works `within` that time, and
    /// is waited for so much longer.
    fn withdraw(
        &self,
        units: &FrameUnits,
        under_way: &mut MutexGuard<'_, Option<Withdrawing>>,
        count: usize,
        (within, patience): (Duration, Duration),
    ) -> Result<usize> {
        let going = {
            let state = self.lock();
            let present = units.present();
            let going = self.can_go(&state, units, &present, count);
            let Some(&first) = going.first() else { return Ok(0) };
            // Before the first frame goes: launches to come count on those that stay.
            let each = units.frames(first).len() as u32;
            self.pool.set_count((present.len() - going.len()) as u32 * each);
            self.or_lost_locked(self.tell_limit(units.frames(first).start.max(1)), &state)?;
            going
        };
        let begun = match self.start_withdrawing(units, going, within) {
            Ok(begun) => begun,
            Err(error) => {
                // All of them are there still.
                let state = self.lock();
                self.or_lost_locked(self.tell_frames(&state, units), &state)?;
                return Err(error);
            }
        };
        let Withdrawing { launch, .. } = under_way.insert(begun);
        // The time of a GPU that follows a seed is not the host's.
        let limit = (!self.capabilities().deterministic).then(|| within.saturating_add(patience));
        if launch.wait(limit).is_none() {
            // It has found no place on the GPU, or hangs at a home that is lost: it ends when it can, and is looked at then.
            launch.abort(&*self.device);
            let state = self.lock();
            return self.or_lost_locked(self.tell_frames(&state, units), &state).map(|()| 0);
        }
        self.finish_change(units, under_way)
    }

    /// The last units of those that are there, up to `count` of them: those that stay have frames for all spans of launches in flight.
    fn can_go(&self, state: &GpuState, units: &FrameUnits, present: &[usize], count: usize) -> Vec<usize> {
        let spans = state.in_flight.iter().filter(|launch| !launch.is_done());
        let held = spans.map(|launch| launch.span_frames).fold(0, u64::saturating_add);
        let each = units.frames(0).len() as u64;
        let stay = (held.saturating_add(1).div_ceil(each).max(1) as usize).max(present.len() - count);
        present[stay.min(present.len())..].to_vec()
    }

    /// Starts the kernel that empties these units.
    fn start_withdrawing(&self, units: &FrameUnits, going: Vec<usize>, within: Duration) -> Result<Withdrawing> {
        let doing = || "withdrawing frames".to_owned();
        let frames = frames_of(units, &going);
        let count = going.len() as u32 * units.frames(going[0]).len() as u32;
        let left = &self.pool.left;
        self.or_lost(left.write(&*self.device, 0, &[count]).doing(doing))?;
        let nanoseconds = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let args = [
            arg(self.desc.addr()),
            arg(frames.start),
            arg(frames.end),
            arg(left.addr()),
            arg(nanoseconds),
        ];
        let (support, config) = (&self.support, self.service_config(u64::from(count)));
        let named = super::Named {
            continues: true,
            ..super::Named::default()
        };
        let args = || args.to_vec();
        let launch = self.enqueue(&support.background, &support.withdraw, &config, args, named, &doing());
        Ok(Withdrawing {
            launch: self.or_lost(launch)?,
            units: going,
        })
    }

    /// Ends a change whose kernel has ended: units that are empty give their handles, others stay. How many went.
    ///
    /// # Errors
    /// [`Error::Unavailable`] while it runs, or waits for a place on the GPU.
    fn finish_change(&self, units: &FrameUnits, under_way: &mut MutexGuard<'_, Option<Withdrawing>>) -> Result<usize> {
        let Some(change) = under_way.take() else { return Ok(0) };
        if !change.launch.is_done() {
            **under_way = Some(change);
            return Err(Error::Unavailable {
                what: "changing the number of frames".into(),
                reason: "an earlier change waits for a place on the GPU: try again when a kernel has ended".into(),
            });
        }
        let outcome = change.launch.wait(None).unwrap_or(Err(GpuError::ShutDown));
        let ended = self.or_lost(self.outcome_of(&change.launch, outcome));
        let (gone, stay) = {
            let state = self.lock();
            let (gone, stay) = self.or_lost_locked(self.emptied(units, &change.units), &state)?;
            let in_flight: Vec<Weak<InFlight>> = state.in_flight.iter().map(Arc::downgrade).collect();
            units.lift(&gone, in_flight);
            self.or_lost_locked(self.tell_frames(&state, units), &state)?;
            (gone, stay)
        };
        self.bring_back(units, &stay)?;
        self.prune();
        match ended {
            // It went as far as it could.
            Ok(_) | Err(Error::Stopped { .. } | Error::Fault { .. }) => Ok(gone.len()),
            Err(error) => Err(error),
        }
    }

    /// Of these units, those whose frames are all withdrawn, and the others. Under the state's lock: a recovery would undo it.
    fn emptied(&self, units: &FrameUnits, which: &[usize]) -> Result<(Vec<usize>, Vec<usize>)> {
        let range = frames_of(units, which);
        let count = (range.end - range.start) as usize;
        let held = self.pool.frame_pages.read(&*self.device, range.start.into(), count);
        let held = held.doing(|| "looking for frames that are withdrawn".into())?;
        let is_empty = |unit: &usize| {
            let frames = units.frames(*unit);
            let frames = (frames.start - range.start) as usize..(frames.end - range.start) as usize;
            held[frames].iter().all(|page| *page == layout::PAGE_WITHDRAWN)
        };
        Ok(which.iter().partition(|unit| is_empty(unit)))
    }

    /// As [`or_lost`](Self::or_lost), for a caller who holds the state.
    fn or_lost_locked<T>(&self, result: Result<T>, state: &GpuState) -> Result<T> {
        match result {
            Err(error @ Error::Gpu { .. }) => Err(self.lost_with(state).unwrap_or(error)),
            other => other,
        }
    }

    /// Takes memory that others have by now out of the frames' addresses, where no lane uses them any more, and ends a change that was left
    /// behind.
    pub(super) fn settle_frames(&self) {
        let Some(units) = self.frames().units() else { return };
        let ended = |change: &Withdrawing| change.launch.is_done();
        let left_behind = self.changing.try_lock();
        let finished = match left_behind.filter(|change| change.as_ref().is_some_and(ended)) {
            Some(mut change) => self.finish_change(units, &mut change).map(drop),
            None => Ok(()),
        };
        if let Err(error) = finished.and_then(|()| units.settle()) {
            tracing::warn!(%error, "addresses of frames keep memory that others have");
        }
    }

    /// Has whoever finds no memory ask the frames for some, and other tenants all that is there.
    pub(super) fn lend_frames(self: &Arc<Self>, member: Option<&Member>) {
        if let Some(member) = member {
            let occupant: Weak<Self> = Arc::downgrade(self);
            member.admit(occupant);
        }
        if self.frames().units().is_some() {
            let giver: Weak<Self> = Arc::downgrade(self);
            self.handles.register(self.settings.frame_priority, giver);
        }
    }

    fn patience(&self) -> Duration {
        self.settings.wait_limit / PATIENCE_SHARE
    }

    /// Bytes of frames that stay when others need memory.
    fn minimum(&self) -> u64 {
        let eighth = self.settings.frame_memory / MINIMUM_SHARE;
        self.settings.frame_minimum.unwrap_or(eighth)
    }
}

impl GivesHandles for PagedGpu {
    fn holds(&self) -> (String, u64) {
        let bytes = u64::from(self.frame_count()) << self.page_shift();
        ("frames".into(), bytes)
    }

    fn give_up(&self, handles: usize, until: Option<Instant>) -> usize {
        let Ok(units) = self.units() else { return 0 };
        // Who changes their number already may be waiting for the caller.
        let Some(mut under_way) = self.changing.try_lock() else {
            return 0;
        };
        let given = self.finish_change(units, &mut under_way).and_then(|before| {
            let least = self.minimum().div_ceil(units.unit_bytes()).max(1) as usize;
            let spare = units.present().len().saturating_sub(least);
            let wanted = handles.div_ceil(units.handles_each()).saturating_sub(before);
            let left = until.map(|until| until.saturating_duration_since(Instant::now()) / 2);
            let patience = left.map_or(self.patience(), |left| left.min(self.patience()));
            let more = self.withdraw(units, &mut under_way, wanted.min(spare), (patience, patience))?;
            Ok(before + more)
        });
        match given {
            Ok(count) => count * units.handles_each(),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "frames give no memory");
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
        self.handles.trim(whole, Some(until))
    }

    fn settle(&self) {
        self.settle_frames();
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
