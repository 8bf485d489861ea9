//! What goes on beside kernels: threads that keep queue pairs, loans, and memory that others find free.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{PagedGpu, victims::Victims};
use crate::{
    error::{Doing, Error, Result},
    frames::FrameUnits,
    queues::{StepKeeper, start_keeper},
};

/// How often owners of borrowed memory are looked at.
const LOANS_PERIOD: Duration = Duration::from_millis(10);
/// How often the GPU's memory is looked at.
const HEADROOM_PERIOD: Duration = Duration::from_millis(20);
/// For how long what another tenant was given is its own to take.
const GIVEN_REST: Duration = Duration::from_secs(1);
/// Of the frames that there are, the part by which they grow each time: slowly, since what is free may be somebody's soon.
const GROWTH_SHARE: u64 = 8;

/// Starts all of it.
///
/// # Errors
/// [`Error::Thread`].
pub(super) fn start(gpu: &Arc<PagedGpu>) -> Result<()> {
    keep_queues(gpu)?;
    if gpu.victims().is_some_and(Victims::follows_owners) {
        keep(gpu, "gpuvm loans", LOANS_PERIOD, look_at_owners())?;
    }
    match gpu.settings.frames_leave_free {
        Some(headroom) => keep(gpu, "gpuvm headroom", HEADROOM_PERIOD, leave_free(headroom)),
        None => Ok(()),
    }
}

/// Has turns taken as long as they say so and the GPU is there.
fn keep(
    gpu: &Arc<PagedGpu>,
    name: &str,
    period: Duration,
    mut turn: impl FnMut(&PagedGpu) -> bool + Send + 'static,
) -> Result<()> {
    let weak = Arc::downgrade(gpu);
    let turn = move |_, _: &_| {
        let gpu = weak.upgrade();
        gpu.is_some_and(|gpu| turn(&gpu) && gpu.device.lost().is_none())
    };
    gpu.take_turns(name, period, Box::new(turn))
}

/// What fails now is tried again, unless the GPU is gone, and is told once.
fn tell_once(told: &mut bool, outcome: Result<()>, what: &str) {
    match outcome {
        Ok(()) => *told = false,
        Err(error) if !std::mem::replace(told, true) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "{what}");
        }
        Err(_) => {}
    }
}

/// Has the queue pairs recovered while kernels run: by a thread, or by a GPU that follows a seed, in its own time.
fn keep_queues(gpu: &PagedGpu) -> Result<()> {
    let Some(queues) = &gpu.queues else { return Ok(()) };
    let simulation = gpu.device.simulation();
    if let Some(simulation) = simulation.filter(|_| gpu.capabilities().deterministic) {
        simulation.attach(Arc::new(StepKeeper::new(queues, &gpu.device)));
        return Ok(());
    }
    let keeper = start_keeper(Arc::clone(queues), Arc::clone(&gpu.device));
    gpu.keep(keeper.map_err(|source| Error::Thread { source })?);
    Ok(())
}

/// Looks at owners of borrowed memory while launches run, where a loan follows from what they use.
fn look_at_owners() -> impl FnMut(&PagedGpu) -> bool {
    let mut told = false;
    move |gpu| {
        let Some(victims) = gpu.victims() else { return false };
        let looked = victims.relieve(&*gpu.device, gpu.settings.wait_limit);
        let settled = looked.and_then(|_| {
            if victims.is_awaited() {
                gpu.update_loans()
            } else {
                Ok(())
            }
        });
        tell_once(&mut told, settled, "owners of borrowed memory may wait for it");
        true
    }
}

/// Has the frames follow what is free of the GPU's memory, so that others find `headroom` bytes.
fn leave_free(headroom: u64) -> impl FnMut(&PagedGpu) -> bool {
    let (mut evictions, mut told) = (0, false);
    move |gpu| {
        let followed = follow(gpu, headroom, &mut evictions);
        tell_once(&mut told, followed, "the frame pool does not follow free memory");
        true
    }
}

/// Fewer frames where less than `headroom` bytes are free. More where more are, if pages have left their frames since `evictions` did.
fn follow(gpu: &PagedGpu, headroom: u64, evictions: &mut u64) -> Result<()> {
    let Some(units) = gpu.frames().units() else {
        return Ok(());
    };
    gpu.finish_frame_changes();
    let left = gpu.device.own_memory();
    let left = left.doing(|| "asking for free memory".into())?.free;
    // What this process has given back may not be the driver's yet.
    let free = left + gpu.device.lingering_bytes() + units.lingering_bytes();
    let handles = gpu.handles.stats();
    let spare = free.saturating_sub(headroom) + handles.free * handles.handle_bytes;
    let unit = units.unit_bytes();
    let seen = std::mem::replace(evictions, gpu.meters.evictions(&*gpu.device)?);
    if free < headroom {
        tracing::debug!(left, free, headroom, "frames give way");
        // The time of a GPU that follows a seed is not the host's.
        let until = (!gpu.capabilities().deterministic).then(|| Instant::now() + HEADROOM_PERIOD);
        gpu.handles.trim(headroom - free, until);
    } else if *evictions > seen && spare >= unit && !has_just_given(gpu) {
        grow(gpu, units, spare)?;
    }
    Ok(())
}

fn has_just_given(gpu: &PagedGpu) -> bool {
    let gave = *gpu.gave.lock();
    gave.is_some_and(|gave| gpu.turns.now().saturating_duration_since(gave) < GIVEN_REST)
}

/// A part more frames, of `spare` bytes at most.
fn grow(gpu: &PagedGpu, units: &FrameUnits, spare: u64) -> Result<()> {
    let (unit, there) = (units.unit_bytes(), units.present().len() as u64);
    let more = (there / GROWTH_SHARE).max(1).min(spare / unit);
    let wanted = (there + more).min(units.count() as u64);
    match gpu.resize_frames(wanted * unit, HEADROOM_PERIOD) {
        // Another change is under way: later.
        Ok(_) | Err(Error::Unavailable { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
