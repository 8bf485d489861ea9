//! The scheduler of the seeded mode: which lane, actor or block is next.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gpuvm_gpu::{Actor, GpuError};
use rand::RngExt;

use super::chance::{Chance, STEPPING};
use super::{keep, tell};
use crate::block::{Block, WarpUnit};
use crate::core::Core;
use crate::device_words::DeviceWords;
use crate::events::{Event, EventKind};
use crate::launch::{LaunchState, Launches as _};
use crate::observer::Step;
use crate::priorities;
use crate::report::Report;
use crate::resident::Residents;
use crate::trap::{self, WorkerSignals};
use crate::waits;
use crate::warp::lanes_of;
use crate::weak_memory::WeakMemory;

/// Virtual time of one decision of the scheduler, ns.
const DECISION_NS: u64 = 100;
/// Decisions between two draws of the odds, so that one run sees both long stretches and rapid switching.
const DECISIONS_A_PHASE: u32 = 4096;
/// Steps of idle actors before time jumps, so that an actor that never rests cannot stop time.
const IDLE_STEPS: u32 = 1024;

/// Events of the scheduler in the trace.
const RESUMED: u32 = 17;
const GATHERED: u32 = 18;
const ACTOR: u32 = 19;

/// The one thread of the seeded mode.
pub(crate) struct Scheduler {
    residents: Residents,
    /// Owned; a raw pointer because running lanes use it too.
    chance: *mut Chance,
    launches: Vec<Arc<LaunchState>>,
    actors: Vec<Arc<dyn Actor>>,
    generation: Option<u64>,
    /// Virtual time at which a host thread is to go on.
    stop_ns: u64,
    decisions: u32,
    next_launch: usize,
}

impl Scheduler {
    /// The scheduler of `core`, whose options hold the seed.
    pub(crate) fn new(core: Arc<Core>, signals: Arc<WorkerSignals>) -> Self {
        // SAFETY: the core, which the scheduler's blocks hold, keeps the mapping.
        let words = unsafe { DeviceWords::new(core.memory.base(), core.memory.capacity()) };
        let chance = Box::into_raw(Box::new(Chance::new(&core.options, words, core.observer.clone())));
        let residents = Residents::new(core, 0, signals, chance);
        Self {
            residents,
            chance,
            launches: Vec::new(),
            actors: Vec::new(),
            generation: None,
            stop_ns: u64::MAX,
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
            if self.chance().now_ns >= self.stop_ns {
                self.generation = None;
            }
        }
    }

    /// Parks while nobody waits; true when the GPU is shut down. Looks closer only when something has changed, which is when a launch has
    /// begun or ended, at this thread's own doing, or at a time that somebody waits for.
    fn wait_until_wanted(&mut self) -> bool {
        let core = Arc::clone(&self.residents.core);
        if self.generation == Some(core.generation()) {
            return false;
        }
        // Who waits for a time looks at this one.
        let (now, _) = self.publish();
        let mut running = core.running.lock();
        while !(running.wanted(now) || running.shut_down) {
            core.looked.notify_all();
            core.changed.wait(&mut running);
        }
        core.looked.notify_all();
        self.stop_ns = running.next_stop_ns();
        self.launches.clone_from(&running.launches);
        // Read again under the lock: it moves only while the lock is held.
        self.generation = Some(core.generation());
        let shut_down = running.shut_down;
        drop(running);
        self.actors.clone_from(&core.actors.lock());
        for launch in &self.launches {
            launch.seeded.lock().get_or_insert((now, now, 0));
        }
        self.chance().observe(Step::Host);
        shut_down
    }

    fn take_blocks(&mut self) {
        let count = self.launches.len();
        for turn in 0..count {
            let launch = Arc::clone(&self.launches[(self.next_launch + turn) % count]);
            while launch.has_blocks() && self.residents.has_room(&launch) {
                let Some(number) = launch.take_block() else { break };
                if self.residents.start(&launch, number) {
                    let racers = self.residents.blocks.last().map(|block| block.racers());
                    for racer in racers.into_iter().flatten() {
                        self.chance().lane_starts(racer);
                    }
                }
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
        self.chance().pass();
        if self.chance().now_ns >= self.chance().next_wake_ns {
            self.wake();
        }
        let candidates: Vec<usize> = (0..self.residents.blocks.len()).filter(|&b| self.runs(b)).collect();
        if candidates.is_empty() {
            return self.idle();
        }
        let chosen = match self.first_by_priority(&candidates) {
            Some(chosen) => chosen,
            None => {
                let chosen = self.chance().below(candidates.len());
                candidates[chosen]
            }
        };
        self.run_block(chosen);
    }

    /// The block to run next by priorities; none in a random walk. Blocks that end go first.
    fn first_by_priority(&mut self, candidates: &[usize]) -> Option<usize> {
        self.chance().priorities.as_ref()?;
        let ends = |&&at: &&usize| {
            let block = &self.residents.blocks[at];
            block.launch.stopped() || !block.can_run()
        };
        if let Some(&ending) = candidates.iter().find(ends) {
            return Some(ending);
        }
        let highest = |at: usize| {
            self.first_lane(&self.residents.blocks[at])
                .map_or(0, |(priority, ..)| priority)
        };
        candidates.iter().copied().max_by_key(|&at| highest(at))
    }

    /// Priority, warp and lane of the block's lane that runs first by priorities.
    fn first_lane(&self, block: &Block) -> Option<(u64, usize, usize)> {
        // SAFETY: as in `chance`; the reference ends here, before lanes run.
        let priorities = unsafe { (*self.chance).priorities.as_ref()? };
        let lanes = block.units.iter().enumerate().flat_map(|(at, unit)| {
            let can_run = lanes_of(unit.warp.ready | unit.warp.gathering);
            // SAFETY: no lane runs, and constants live in the unit's stacks.
            can_run.map(move |lane| (priorities.of(unsafe { (*unit.lane(lane)).who().lane }), at, lane))
        });
        lanes.max()
    }

    fn runs(&self, block: usize) -> bool {
        let block = &self.residents.blocks[block];
        block.launch.stopped() || block.units.iter().any(|u| u.warp.ready | u.warp.gathering != 0) || !block.can_run()
    }

    fn step_actor(&mut self, chosen: usize) -> bool {
        let (now_ns, _) = self.publish();
        let actor = Arc::clone(&self.actors[chosen]);
        // A panic of an actor is its owner's mistake; it is printed by the panic hook and must not end the scheduler.
        let memory = |this: &mut Self, what: fn(&mut WeakMemory<DeviceWords>)| {
            if let Some(memory) = &mut this.chance().memory {
                what(memory);
            }
        };
        memory(self, WeakMemory::hide);
        STEPPING.set(self.chance);
        let did = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| actor.step(now_ns))).unwrap_or(false);
        STEPPING.set(std::ptr::null_mut());
        memory(self, WeakMemory::shown);
        self.chance().record(chosen as u64, ACTOR + u32::from(did));
        let kept = self.residents.core.options.simulation.events_kept;
        if did && kept != 0 {
            let event = Event {
                ns: self.chance().now_ns,
                launch: 0,
                block: chosen as u64,
                warp: 0,
                lane: 0,
                kind: EventKind::Engine,
                address: 0,
                value: 0,
            };
            keep(&self.residents.core, event, kept);
        }
        self.chance().observe(Step::Actor {
            number: chosen as u32,
            did,
        });
        did
    }

    /// Shows time and trace to other threads; both. Before a launch ends, so that its waiters see them.
    fn publish(&mut self) -> (u64, u64) {
        let (now, trace) = (self.chance().now_ns, self.chance().hash);
        let core = &self.residents.core;
        core.virtual_ns.store(now, Ordering::Release);
        core.trace.store(trace, Ordering::Release);
        // SAFETY: as in `chance`; the reference ends here.
        if let Some(races) = unsafe { &(*self.chance).races } {
            let mut found = core.races.lock();
            // Cheap where nothing is new, which is nearly always.
            if found.1 != races.count() {
                *found = races.found();
            }
        }
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
        self.chance().pass();
        self.wake();
        self.check_deadlines();
    }

    fn check_deadlines(&mut self) {
        let now = self.chance().now_ns;
        for launch in self.launches.clone() {
            let start = launch.seeded.lock().map_or(now, |(start, _, _)| start);
            if launch
                .config
                .watch
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
                let error = waits::deadlock(&*block);
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
        let last = self.residents.blocks.is_empty();
        if let Some(memory) = &mut self.chance().memory {
            for racer in block.racers() {
                memory.flush(racer.lane);
            }
            if last {
                memory.settle_all();
            }
        }
        let completed = block.live == 0 && !block.launch.stopped();
        let (now, trace) = self.publish();
        if let Some((_, end, hash)) = block.launch.seeded.lock().as_mut() {
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
            let (warp, lane) = match self.first_lane(&*block) {
                Some((_, warp, lane)) => (warp, lane),
                None => {
                    let units = &(*block).units;
                    let can_run = |u: &usize| units[*u].warp.ready | units[*u].warp.gathering != 0;
                    let warps: Vec<usize> = (0..units.len()).filter(can_run).collect();
                    let warp = warps[self.chance().below(warps.len())];
                    let lane = self.chance().pick(units[warp].warp.ready | units[warp].warp.gathering);
                    (warp, lane)
                }
            };
            let unit: *mut WarpUnit = &raw mut **(&mut (*block).units)[warp..].as_mut_ptr();
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
            self.chance().gap = match self.chance().priorities {
                Some(_) => priorities::EVENTS_MAX,
                None => self.chance().rng.random_range(0..gap_max),
            };
            self.chance().record(id, RESUMED);
            let preempted = self.residents.signals.preempted();
            let running = (*unit).lane(lane);
            tell(running, EventKind::Resumed, 0, 0);
            self.residents.signals.enter_lane(unit, lane);
            let returned = Block::resume(unit, lane);
            self.residents.signals.leave_lane();
            tell(running, EventKind::Left, 0, 0);
            if let Some(memory) = &mut self.chance().memory {
                // Whatever it left by: a switch, its end, a fault.
                memory.settle();
                if returned {
                    memory.flush((*(*unit).lane(lane)).who().lane);
                }
            }
            if returned && let Some(races) = &mut self.chance().races {
                races.end((*(*unit).lane(lane)).racer());
            }
            // Its last access, if no other follows at once.
            self.chance().observe(Step::of_lane(id));
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
            let mut report = Report::default();
            report.add(&*block);
            let text = report.text(launch.blocks, 0, &self.residents.core.note_formatter());
            launch.fail(GpuError::Deadline {
                kernel: launch.kernel.info.name.clone(),
                limit: self.residents.core.options.preempt_after,
                report: format!("  a thread ran on without touching memory\n{text}"),
            });
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
