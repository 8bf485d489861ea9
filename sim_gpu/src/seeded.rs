//! The seeded mode: one thread, one seed, one interleaving.
//!
//! Kernels are instrumented, so every load, store and atomic of theirs is a [`step`], where the seed may switch to another lane. Time is virtual:
//! it moves by a fixed amount a step and jumps when everybody sleeps. No decision depends on an address, on real time or on another thread.
//! What loads see is the [memory model](super::weak_memory)'s to say.

mod chance;
mod scheduler;

use std::ffi::c_void;

pub(crate) use self::chance::Chance;
pub(crate) use self::chance::engine_copies;
pub(crate) use self::scheduler::Scheduler;

use self::chance::EVENT_NS;
use super::abi::{self, Lane};
use super::block::Block;
use super::core::Core;
use super::device_words::{DeviceWords, access_directly};
use super::events::{Event, EventKind};
use super::observer::Step;
use super::switch::{suspend, yield_now};
use super::warp::{BASIC_BLOCKS, lanes_of};
use super::weak_memory::{Bytes as _, Operation, WeakMemory};

/// Events of accesses in the trace.
const READ: u32 = 1;
const WRITE: u32 = 2;
const ATOMIC: u32 = 3;
const FENCE: u32 = 4;
/// Event of a completed collective in the trace.
pub(crate) const COLLECTIVE: u32 = 16;
/// Event of a basic block, when they are counted instead of seeded.
const BASIC_BLOCK: u32 = 5;

/// A load, store, atomic or basic block of an instrumented kernel, before it happens.
///
/// # Safety
/// Called by the running lane, with nothing held.
pub(crate) unsafe extern "C" fn step(lane: *mut Lane, event: u32) {
    // SAFETY: the lane runs, so its warp, block and chance are alive and used by this thread only.
    unsafe {
        let warp = (*lane).warp;
        let chance = (*Block::of(lane)).seeded;
        if chance.is_null() {
            if event == BASIC_BLOCK {
                (*warp).basic_blocks -= 1;
                if (*warp).basic_blocks < 0 {
                    (*warp).basic_blocks = BASIC_BLOCKS;
                    yield_now(lane);
                }
            }
            return;
        }
        settle(lane);
        (*chance).record((*lane).id, event);
        (*chance).now_ns += EVENT_NS;
        if (*chance).observer.is_some() {
            (*chance).observe(Step::of_lane((*lane).id));
        }
        (*chance).pass();
        if let Some(priorities) = &mut (*chance).priorities
            && priorities.event()
        {
            priorities.demote((*lane).who().lane);
            return suspend(lane);
        }
        match (*chance).gap.checked_sub(1) {
            Some(rest) => (*chance).gap = rest,
            None => {
                if let Some(priorities) = &mut (*chance).priorities {
                    priorities.demote((*lane).who().lane);
                }
                // Still ready: the scheduler may choose this very lane again.
                suspend(lane)
            }
        }
    }
}

/// Keeps an event of a lane, where events are kept.
///
/// # Safety
/// `lane` is a lane of a resident block, none of whose references is held.
unsafe fn tell(lane: *mut Lane, kind: EventKind, address: u64, value: u64) {
    // SAFETY: warp, block and launch outlive their lanes.
    unsafe {
        let block: *const Block = Block::of(lane);
        let core = Block::core_of(block);
        let kept = core.options.simulation.events_kept;
        let chance = (*block).seeded;
        if kept == 0 || chance.is_null() {
            return;
        }
        let event = Event {
            ns: (*chance).now_ns,
            launch: Block::launch_of(block).id,
            block: (*block).number,
            warp: (*(*lane).warp).index,
            lane: (*lane).lane,
            kind,
            address,
            value,
        };
        keep(core, event, kept);
    }
}

fn keep(core: &Core, event: Event, kept: usize) {
    let mut events = core.events.lock();
    if events.len() >= kept {
        events.pop_front();
    }
    events.push_back(event);
}

/// The chance of a lane's scheduler; null in the fast mode.
///
/// # Safety
/// `lane` is the running lane.
unsafe fn chance_of(lane: *mut Lane) -> *mut Chance {
    // SAFETY: the lane runs, so its warp and block are alive.
    unsafe { (*Block::of(lane)).seeded }
}

/// The memory model of the running lane, with what its last plain access left taken in.
///
/// # Safety
/// `lane` is the running lane; the answer is used before it suspends, and alone.
unsafe fn settle<'a>(lane: *mut Lane) -> Option<&'a mut WeakMemory<DeviceWords>> {
    // SAFETY: the chance outlives all blocks, and only this thread uses it.
    unsafe {
        let chance = chance_of(lane);
        if chance.is_null() {
            return None;
        }
        let memory = (*chance).memory.as_mut()?;
        memory.settle();
        Some(memory)
    }
}

/// An access with its order and scope.
///
/// # Safety
/// As for [`step`].
pub(crate) unsafe extern "C" fn access(lane: *mut Lane, what: u32, address: *mut u8, value: u64, expected: u64) -> u64 {
    // SAFETY: passed on; no reference is held where the lane suspends or may fault.
    unsafe {
        // The switch point comes before the access: what another lane does in between is what the access sees.
        step(lane, ATOMIC);
        let access = abi::access(what, address as u64);
        let chance = chance_of(lane);
        let covered = (*chance).words.covers(access.at, access.bytes as u64);
        let old = match settle(lane) {
            Some(memory) if covered => memory.access((*lane).who(), access, value, expected),
            _ => access_directly(access, value, expected),
        };
        if covered && let Some(races) = &mut (*chance).races {
            let stored = access.operation.apply(old, value, expected).is_some();
            races.access((*lane).racer(), access, stored);
        }
        let (kind, value) = match access.operation {
            Operation::Load => (EventKind::Load, old),
            Operation::Store => (EventKind::Store, value),
            _ => (EventKind::Atomic, old),
        };
        tell(lane, kind, access.at, value);
        old
    }
}

/// A plain access that the lane does next.
///
/// # Safety
/// As for [`step`].
pub(crate) unsafe extern "C" fn plain(
    lane: *mut Lane,
    kind: u32,
    address: *mut u8,
    bytes: usize,
    _site: *const c_void,
) {
    // SAFETY: passed on; no reference is held where the lane suspends.
    unsafe {
        if chance_of(lane).is_null() {
            return;
        }
        let writes = kind & abi::plain::WRITE != 0;
        step(lane, if writes { WRITE } else { READ });
        let (at, bytes) = (address as u64, bytes as u64);
        let chance = chance_of(lane);
        if !(*chance).words.covers(at, bytes) {
            return;
        }
        let told = if writes {
            EventKind::PlainStore
        } else {
            EventKind::PlainLoad
        };
        tell(lane, told, at, 0);
        let volatile = kind & abi::plain::VOLATILE != 0;
        if let Some(races) = &mut (*chance).races {
            races.plain((*lane).racer(), at, bytes, writes, volatile);
        }
        let Some(memory) = settle(lane) else { return };
        if kind & abi::plain::READ != 0 {
            memory.before_load((*lane).who(), at, bytes, volatile | writes);
        }
        if writes {
            memory.before_store((*lane).who(), at, bytes, volatile);
        }
    }
}

/// A fence.
///
/// # Safety
/// As for [`step`].
pub(crate) unsafe extern "C" fn fence(lane: *mut Lane, order: u32, scope: u32) {
    // SAFETY: passed on; no reference is held where the lane suspends.
    unsafe {
        step(lane, FENCE);
        tell(lane, EventKind::Fence, 0, 0);
        if let Some(memory) = settle(lane) {
            memory.fence((*lane).who(), abi::order(order), abi::scope(scope));
        }
        let chance = chance_of(lane);
        if !chance.is_null()
            && let Some(races) = &mut (*chance).races
        {
            races.fence((*lane).racer(), abi::scope(scope));
        }
    }
}

/// The lane comes to a barrier, of its warp or block, which orders memory among those who meet there.
///
/// # Safety
/// `lane` is the running lane.
pub(crate) unsafe fn arrive_at_barrier(lane: *mut Lane) {
    // SAFETY: passed on; the reference ends here.
    unsafe {
        if let Some(memory) = settle(lane) {
            memory.flush((*lane).who().lane);
        }
    }
}

/// The lanes of `mask` have met at a barrier of their warp, `lane` as the last.
///
/// # Safety
/// `lane` is the running lane.
pub(crate) unsafe fn warp_met(lane: *mut Lane, mask: u32) {
    // SAFETY: passed on; the reference ends here.
    unsafe {
        let first = (*lane).who().lane - (*lane).lane;
        let mask = mask & (*(*lane).warp).existing;
        let chance = chance_of(lane);
        if !chance.is_null() {
            (*chance).met(&lanes_of(mask).map(|lane| first + lane as u32).collect::<Vec<_>>());
        }
    }
}

/// Before a store to a register of an engine outside.
///
/// # Safety
/// `lane` is the running lane.
pub(crate) unsafe fn before_register(lane: *mut Lane, address: u64, value: u64) {
    // SAFETY: passed on; the reference ends here.
    unsafe {
        tell(lane, EventKind::RegisterStore, address, value);
        if let Some(memory) = settle(lane) {
            memory.before_register((*lane).who().lane);
        }
        let chance = chance_of(lane);
        if !chance.is_null()
            && let Some(races) = &mut (*chance).races
        {
            races.doorbell((*lane).racer());
        }
    }
}
