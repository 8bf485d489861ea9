//! Frames that follow what is free of the GPU's memory, so that others find some.

use std::sync::{Arc, atomic::AtomicBool};
use std::time::{Duration, Instant};

use super::PagedGpu;
use crate::{
    background::Background,
    error::{Doing, Error, Result},
    frames::FrameUnits,
};

/// How often the GPU's memory is looked at.
const PERIOD: Duration = Duration::from_millis(20);
/// For how long what another tenant was given is its own to take.
const GIVEN_REST: Duration = Duration::from_secs(1);
/// Of the frames that there are, the part by which they grow each time: slowly, since what is free may be somebody's soon.
const GROWTH_SHARE: u64 = 8;

impl PagedGpu {
    /// Has the frames follow what is free, where they are to leave some.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub(super) fn keep_headroom(self: &Arc<Self>) -> Result<()> {
        // A GPU that follows a seed has no time of its own.
        let Some(headroom) = self
            .settings
            .frames_leave_free
            .filter(|_| !self.capabilities().deterministic)
        else {
            return Ok(());
        };
        let gpu = Arc::downgrade(self);
        let (mut evictions, mut told) = (0, false);
        let look = move |_: &AtomicBool| {
            let Some(gpu) = gpu.upgrade() else { return false };
            match gpu.follow(headroom, &mut evictions) {
                Ok(()) => told = false,
                // What fails now is tried again, unless the GPU is gone, and is told once.
                Err(error) if !std::mem::replace(&mut told, true) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "frames do not follow what is free"
                    );
                }
                Err(_) => {}
            }
            gpu.device.lost().is_none()
        };
        let keeper = Background::start("gpuvm headroom", PERIOD, look);
        self.keep(keeper.map_err(|source| Error::Thread { source })?);
        Ok(())
    }

    /// Fewer frames where less than `headroom` bytes are free. More where more are, if pages have left their frames since `evictions` did.
    fn follow(&self, headroom: u64, evictions: &mut u64) -> Result<()> {
        let Some(units) = self.frames().units() else {
            return Ok(());
        };
        self.settle_frames();
        let left = self.device.own_memory();
        let left = left.doing(|| "asking for free memory".into())?.free;
        // What this process has given back may not be the driver's yet.
        let free = left + self.device.lingering_bytes() + units.lingering_bytes();
        let handles = self.handles.stats();
        let spare = free.saturating_sub(headroom) + handles.free * handles.handle_bytes;
        let unit = units.unit_bytes();
        let seen = std::mem::replace(evictions, self.meters.evictions(&*self.device)?);
        if free < headroom {
            tracing::debug!(left, free, headroom, "frames give way");
            self.handles.trim(headroom - free, Some(Instant::now() + PERIOD));
        } else if *evictions > seen && spare >= unit && !self.has_just_given() {
            self.grow(units, spare)?;
        }
        Ok(())
    }

    fn has_just_given(&self) -> bool {
        let gave = *self.gave.lock();
        gave.is_some_and(|gave| gave.elapsed() < GIVEN_REST)
    }

    /// A part more frames, of `spare` bytes at most.
    fn grow(&self, units: &FrameUnits, spare: u64) -> Result<()> {
        let (unit, there) = (units.unit_bytes(), units.present().len() as u64);
        let more = (there / GROWTH_SHARE).max(1).min(spare / unit);
        let wanted = (there + more).min(units.count() as u64);
        match self.resize_frames(wanted * unit, PERIOD) {
            // Another change is under way: later.
            Ok(_) | Err(Error::Unavailable { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
