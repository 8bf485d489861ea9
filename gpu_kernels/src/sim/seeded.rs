//! The seeded mode: one thread, one seed, one interleaving.
//!
//! Kernels are instrumented, so every load, store and atomic of theirs is a [`step`], where the seed may switch to another lane. Time is virtual:
//! it moves by a fixed amount a step and jumps when everybody sleeps. No decision depends on an address, on real time or on another thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::abi::Lane;
use super::block::{Block, WarpUnit};
use super::core::Core;
use super::hooks;
use super::launch::{LaunchState, lock};
use super::resident::Residents;
use super::trap::{self, WorkerSignals};
use super::warp::lanes_of;
use crate::api::Actor;
use crate::error::GpuError;

/// Virtual time of one event of a lane, ns.
const EVENT_NS: u64 = 20;
/// Virtual time of one decision of the scheduler, ns.
const DECISION_NS: u64 = 100;
/// Decisions between two draws of the odds, so that one run sees both long stretches and rapid switching.
const DECISIONS_A_PHASE: u32 = 4096;
/// Steps of idle actors before time jumps, so that an actor that never rests cannot stop time.
const IDLE_STEPS: u32 = 1024;
/// Basic blocks a lane runs before it yields, where kernels count them.
const BASIC_BLOCKS: i32 = 1 << 16;

/// Event of a completed collective in the trace; the others come from the instrumentation.
pub(crate) const COLLECTIVE: u32 = 16;
const RESUMED: u32 = 17;
const GATHERED: u32 = 18;
const ACTOR: u32 = 19;
/// Event of a basic block, when they are counted instead of seeded.
const BASIC_BLOCK: u32 = 5;

/// Where the seeded mode's decisions and time come from.
pub(crate) struct Chance {
    rng: ChaCha8Rng,
    now_ns: u64,
    /// Events until the running lane is switched away from.
    gap: u32,
    /// The longest gap of this phase.
    gap_max: u32,
    /// One decision in this many steps an actor.
    actor_odds: u32,
    /// One gathering in this many answers a lane alone.
    alone_odds: u32,
    /// Earliest end of a sleep, ns.
    next_wake_ns: u64,
    hash: u64,
}

impl Chance {
    fn new(seed: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        let mut chance = Self {
            rng,
            now_ns: 0,
            gap: 0,
            gap_max: 1,
            actor_odds: 1,
            alone_odds: 1,
            next_wake_ns: u64::MAX,
            hash: 0xcbf2_9ce4_8422_2325,
        };
        chance.draw_odds();
        chance
    }

    fn draw_odds(&mut self) {
        self.gap_max = 1 << self.rng.random_range(1..10u32);
        self.actor_odds = 1 << self.rng.random_range(1..7u32);
        self.alone_odds = self.rng.random_range(2..8u32);
    }

    fn one_in(&mut self, odds: u32) -> bool {
        self.rng.random_range(0..odds) == 0
    }

    fn below(&mut self, end: usize) -> usize {
        // u32, so that a seed means the same on machines of both word sizes.
        self.rng.random_range(0..end as u32) as usize
    }

    fn record(&mut self, lane: u64, event: u32) {
        for word in [lane, u64::from(event)] {
            self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
    }

    /// Virtual time as a lane reads it: every look takes time, so that loops on the clock end.
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now_ns += EVENT_NS;
        self.now_ns
    }

    /// When a lane that sleeps `ns` from now wakes.
    pub(crate) fn sleep_until(&mut self, ns: u32) -> u64 {
        let wake_ns = self.now_ns + u64::from(ns);
        self.next_wake_ns = self.next_wake_ns.min(wake_ns);
        wake_ns
    }

    /// One set bit of `mask`.
    fn pick(&mut self, mask: u32) -> usize {
        let chosen = self.below(mask.count_ones() as usize);
        lanes_of(mask).nth(chosen).unwrap_or(0)
    }
}

/// A load, store, atomic or basic block of an instrumented kernel, before it happens.
///
/// # Safety
/// Called by the running lane, with nothing held.
pub(crate) unsafe extern "C" fn step(lane: *mut Lane, event: u32) {
    // SAFETY: the lane runs, so its warp, block and chance are alive and used by this thread only.
    unsafe {
        let warp = (*lane).warp;
        let chance = (*(*warp).block).seeded;
        if chance.is_null() {
            if event == BASIC_BLOCK {
                (*warp).basic_blocks -= 1;
                if (*warp).basic_blocks < 0 {
                    (*warp).basic_blocks = BASIC_BLOCKS;
                    hooks::yield_now(lane);
                }
            }
            return;
        }
        (*chance).record((*lane).id, event);
        (*chance).now_ns += EVENT_NS;
        match (*chance).gap.checked_sub(1) {
            Some(rest) => (*chance).gap = rest,
            // Still ready: the scheduler may choose this very lane again.
            None => hooks::suspend(lane),
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.residents.drop_all();
        // SAFETY: made by `Box::into_raw` in `new`; no lane is left to use it.
        drop(unsafe { Box::from_raw(self.chance) });
    }
}

/// The one thread of the seeded mode.
pub(crate) struct Scheduler {
    residents: Residents,
    /// Owned; a raw pointer because running lanes use it too.
    chance: *mut Chance,
    launches: Vec<Arc<LaunchState>>,
    actors: Vec<Arc<dyn Actor>>,
    generation: Option<u64>,
    decisions: u32,
    next_launch: usize,
}

impl Scheduler {
    /// The scheduler of `core`, whose options hold the seed.
    pub(crate) fn new(core: Arc<Core>, signals: Arc<WorkerSignals>) -> Self {
        let chance = Box::into_raw(Box::new(Chance::new(core.options.seed.unwrap_or(0))));
        let residents = Residents::new(core, 0, signals, chance);
        Self {
            residents,
            chance,
            launches: Vec::new(),
            actors: Vec::new(),
            generation: None,
            decisions: 0,
            next_launch: 0,
        }
    }

    /// The chance, while no lane runs.
    fn chance(&mut self) -> &mut Chance {
        // SAFETY: made in `new`, freed in `drop`; lanes use it only inside `Block::resume`, over which no such reference is held.
        unsafe { &mut *self.chance }
    }

    /// Runs lanes and actors whenever a host thread waits, until the GPU is shut down.
    pub(crate) fn run(mut self) {
        let _signals = trap::enter(&self.residents.signals);
        while !self.wait_until_wanted() {
            self.take_blocks();
            self.decide();
        }
    }

    /// Parks while nobody waits; true when the GPU is shut down. Looks closer only when something has changed, which is when a launch has
    /// begun or ended, at this thread's own doing.
    fn wait_until_wanted(&mut self) -> bool {
        let core = Arc::clone(&self.residents.core);
        if self.generation == Some(core.generation()) {
            return false;
        }
        let mut running = lock(&core.running);
        while !(running.shut_down || running.wanted()) {
            running = core.changed.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        self.launches.clone_from(&running.launches);
        // Read again under the lock: it moves only while the lock is held.
        self.generation = Some(core.generation());
        let shut_down = running.shut_down;
        drop(running);
        self.actors.clone_from(&lock(&core.actors));
        let now = self.chance().now_ns;
        for launch in &self.launches {
            lock(&launch.seeded).get_or_insert((now, now, 0));
        }
        shut_down
    }

    fn take_blocks(&mut self) {
        let count = self.launches.len();
        for turn in 0..count {
            let launch = Arc::clone(&self.launches[(self.next_launch + turn) % count]);
            while launch.has_blocks() && self.residents.has_room(&launch) {
                let Some(number) = launch.take_block() else { break };
                self.residents.start(&launch, number);
            }
        }
        self.next_launch = self.next_launch.wrapping_add(1);
    }

    /// One decision: who runs next, and that it runs.
    fn decide(&mut self) {
        self.decisions += 1;
        if self.decisions.is_multiple_of(DECISIONS_A_PHASE) {
            self.chance().draw_odds();
            self.check_deadlines();
        }
        let actor_odds = self.chance().actor_odds;
        if !self.actors.is_empty() && self.chance().one_in(actor_odds) {
            let chosen = self.actors.len();
            let chosen = self.chance().below(chosen);
            self.step_actor(chosen);
        }
        self.chance().now_ns += DECISION_NS;
        if self.chance().now_ns >= self.chance().next_wake_ns {
            self.wake();
        }
        let candidates: Vec<usize> = (0..self.residents.blocks.len()).filter(|&b| self.runs(b)).collect();
        if candidates.is_empty() {
            return self.idle();
        }
        let chosen = self.chance().below(candidates.len());
        self.run_block(candidates[chosen]);
    }

    fn runs(&self, block: usize) -> bool {
        let block = &self.residents.blocks[block];
        block.launch.stopped() || block.units.iter().any(|u| u.warp.ready | u.warp.gathering != 0) || !block.can_run()
    }

    fn step_actor(&mut self, chosen: usize) -> bool {
        let (now_ns, _) = self.publish();
        let actor = Arc::clone(&self.actors[chosen]);
        // A panic of an actor is its owner's mistake; it is printed by the panic hook and must not end the scheduler.
        let did = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| actor.step_at(now_ns))).unwrap_or(false);
        self.chance().record(chosen as u64, ACTOR + u32::from(did));
        did
    }

    /// Shows time and trace to other threads; both. Before a launch ends, so that its waiters see them.
    fn publish(&mut self) -> (u64, u64) {
        let (now, trace) = (self.chance().now_ns, self.chance().hash);
        let core = &self.residents.core;
        core.virtual_ns.store(now, Ordering::Release);
        core.trace.store(trace, Ordering::Release);
        (now, trace)
    }

    /// Makes lanes ready whose sleep is over.
    fn wake(&mut self) {
        let now = self.chance().now_ns;
        let mut next = u64::MAX;
        for block in &mut self.residents.blocks {
            block.wake(&mut || now);
            for unit in &block.units {
                for lane in lanes_of(unit.warp.sleeping) {
                    // SAFETY: the lane is suspended, and its constants live in the unit's stacks.
                    next = next.min(unsafe { (*unit.lane(lane)).wake_ns });
                }
            }
        }
        self.chance().next_wake_ns = next;
    }

    /// No lane can run now: actors work, else time jumps to the next wake-up.
    fn idle(&mut self) {
        for _ in 0..IDLE_STEPS {
            let mut did = false;
            for actor in 0..self.actors.len() {
                did |= self.step_actor(actor);
            }
            if !did {
                break;
            }
        }
        if self.chance().next_wake_ns != u64::MAX {
            let next = self.chance().next_wake_ns;
            let chance = self.chance();
            chance.now_ns = chance.now_ns.max(next);
        }
        self.wake();
        self.check_deadlines();
    }

    fn check_deadlines(&mut self) {
        let now = self.chance().now_ns;
        for launch in self.launches.clone() {
            let start = lock(&launch.seeded).map_or(now, |(start, _, _)| start);
            if launch
                .config
                .deadline
                .is_some_and(|limit| Duration::from_nanos(now.saturating_sub(start)) > limit)
            {
                launch.time_out();
                launch.try_finish();
            }
        }
    }

    /// Lets a lane of the block run until the seed switches, or answers gathering lanes.
    fn run_block(&mut self, position: usize) {
        let block: *mut Block = &raw mut *self.residents.blocks[position];
        // SAFETY: the block is boxed and stays resident until it is removed below; references into it end before lanes run.
        let keep = unsafe {
            if Block::launch_of(block).stopped() {
                false
            } else if !(*block).can_run() {
                let error = super::report::deadlock(&*block);
                Block::launch_of(block).fail(error);
                false
            } else {
                self.run_lane(block)
            }
        };
        if keep {
            return;
        }
        let block = self.residents.blocks.swap_remove(position);
        let completed = block.live == 0 && !block.launch.stopped();
        let (now, trace) = self.publish();
        if let Some((_, end, hash)) = lock(&block.launch.seeded).as_mut() {
            (*end, *hash) = (now, trace);
        }
        self.residents.drop_block(block, completed);
    }

    /// Runs one lane of the block, by chance; false when the block is to be dropped.
    ///
    /// # Safety
    /// `block` is resident.
    unsafe fn run_lane(&mut self, block: *mut Block) -> bool {
        // SAFETY: as in `Worker::run_warp`.
        unsafe {
            let warps: Vec<usize> = {
                let units = &(*block).units;
                (0..units.len())
                    .filter(|&u| units[u].warp.ready | units[u].warp.gathering != 0)
                    .collect()
            };
            let warp = self.chance().below(warps.len());
            let unit: *mut WarpUnit = &raw mut **(&mut (*block).units)[warps[warp]..].as_mut_ptr();
            let lane = self.chance().pick((*unit).warp.ready | (*unit).warp.gathering);
            let id = (*(*unit).lane(lane)).id;
            if (*unit).warp.gathering >> lane & 1 != 0 {
                let odds = self.chance().alone_odds;
                let alone = self.chance().one_in(odds);
                let others = if alone { 0 } else { self.chance().rng.random::<u32>() };
                self.chance().record(id ^ u64::from(others) << 32, GATHERED);
                (*unit).warp.answer_gathering(lane, others | 1 << lane);
                return true;
            }
            self.residents.put_in_place(block);
            self.residents
                .signals
                .set_text(&Block::launch_of(block).kernel.module.text);
            let gap_max = self.chance().gap_max;
            self.chance().gap = self.chance().rng.random_range(0..gap_max);
            self.chance().record(id, RESUMED);
            let preempted = self.residents.signals.preempted();
            self.residents.signals.enter_lane(unit, lane);
            let returned = Block::resume(unit, lane);
            self.residents.signals.leave_lane();
            if returned && !self.residents.lane_ended(block, unit, lane) {
                return false;
            }
            if self.residents.signals.preempted() != preempted {
                self.endless(block);
                return false;
            }
            !Block::launch_of(block).stopped() && (*block).live != 0
        }
    }

    /// A lane ran on in real time without one event: nothing else would ever run.
    ///
    /// # Safety
    /// `block` is resident and none of its lanes runs.
    unsafe fn endless(&self, block: *const Block) {
        // SAFETY: as the caller promises.
        unsafe {
            let launch = Block::launch_of(block);
            let mut report = super::report::Report::default();
            report.add(&*block);
            let text = report.text(launch.blocks, 0, &launch.core.note_formatter());
            launch.fail(GpuError::Deadline {
                kernel: launch.kernel.info.name.clone(),
                limit: launch.core.options.preempt_after,
                report: format!("  a thread ran on without touching memory\n{text}"),
            });
        }
    }
}
