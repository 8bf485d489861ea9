//! The seeded mode: one thread, one seed, one interleaving.
//!
//! Kernels are instrumented, so every load, store and atomic of theirs is a [`step`], where the seed may switch to another lane. Time is virtual:
//! it moves by a fixed amount a step and jumps when everybody sleeps. No decision depends on an address, on real time or on another thread.
//! What loads see is the [memory model](super::weak_memory)'s to say.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::abi::{self, Lane};
use super::block::{Block, WarpUnit};
use super::core::{Core, Options};
use super::device_words::{DeviceWords, access_directly};
use super::events::{Event, EventKind};
use super::hooks;
use super::launch::{LaunchState, lock};
use super::observer::{Observer, Step};
use super::priorities::{self, Priorities};
use super::races::{Racer, Races};
use super::resident::Residents;
use super::trap::{self, WorkerSignals};
use super::warp::lanes_of;
use super::weak_memory::{Bytes as _, Operation, WeakMemory};
use super::{MemoryModel, Schedule};
use gpuvm_gpu::{Actor, GpuError};

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

/// Events of accesses in the trace.
const READ: u32 = 1;
const WRITE: u32 = 2;
const ATOMIC: u32 = 3;
const FENCE: u32 = 4;
/// Event of a completed collective in the trace.
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
    observer: Option<Arc<dyn Observer>>,
    /// None where memory is sequentially consistent.
    memory: Option<WeakMemory<DeviceWords>>,
    /// Where device memory lies.
    words: DeviceWords,
    /// None where nobody looks for races.
    races: Option<Races>,
    /// None in a random walk.
    priorities: Option<Priorities>,
}

thread_local! {
    /// The chance whose actor is being stepped by this thread; null else.
    static STEPPING: Cell<*mut Chance> = const { Cell::new(std::ptr::null_mut()) };
}

/// To be called by an engine that a seeded GPU steps as an [`Actor`], before it copies `bytes` bytes of what lanes see: the memory model then
/// knows what comes from outside. It does nothing on other threads.
pub fn engine_copies(to: u64, from: u64, bytes: u64) {
    let chance = STEPPING.get();
    if chance.is_null() {
        return;
    }
    // SAFETY: set only while `step_actor` runs on this thread, which holds no reference to the chance meanwhile.
    let chance = unsafe { &mut *chance };
    if let Some(memory) = &mut chance.memory {
        memory.engine_copies(to, from, bytes);
    }
    if let Some(races) = &mut chance.races {
        let here = |at: u64| chance.words.covers(at, bytes).then_some(at);
        races.engine_copies(here(to), here(from), bytes);
    }
}

impl Chance {
    fn new(options: &Options, words: DeviceWords, observer: Option<Arc<dyn Observer>>) -> Self {
        let seed = options.seed.unwrap_or(0);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Drawn: who makes up a program by its seed takes the seed's low bits for its shape, and every shape is to meet
        // every strategy.
        let changes_by_seed = rng.random_bool(0.5).then(|| rng.random_range(1..=5));
        let changes = match options.simulation.schedule {
            Schedule::RandomWalk => None,
            Schedule::BySeed => changes_by_seed,
            Schedule::Priorities { changes } => Some(changes),
        };
        let priorities = changes.map(|changes| Priorities::new(&mut rng, changes));
        let weak = options.simulation.memory_model == MemoryModel::Weak && !options.simulation.find_races;
        let memory = weak.then(|| WeakMemory::new(words, seed));
        let mut chance = Self {
            rng,
            memory,
            words,
            races: options.simulation.find_races.then(Races::default),
            priorities,
            now_ns: 0,
            gap: 0,
            gap_max: 1,
            actor_odds: 1,
            alone_odds: 1,
            next_wake_ns: u64::MAX,
            hash: 0xcbf2_9ce4_8422_2325,
            observer,
        };
        chance.draw_odds();
        chance
    }

    fn draw_odds(&mut self) {
        self.gap_max = 1 << self.rng.random_range(1..10u32);
        self.actor_odds = 1 << self.rng.random_range(1..7u32);
        self.alone_odds = self.rng.random_range(2..8u32);
        if let Some(memory) = &mut self.memory {
            memory.draw_odds();
        }
    }

    /// Time has moved on: performs what waited for it.
    fn pass(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.pass(self.now_ns);
        }
    }

    /// Lanes have met at a barrier.
    fn met(&mut self, lanes: &[u32]) {
        if let Some(memory) = &mut self.memory {
            memory.join(lanes.iter().copied());
        }
        if let Some(races) = &mut self.races {
            races.join(lanes);
        }
    }

    /// Another lane begins in the place of `lane`.
    fn lane_starts(&mut self, racer: Racer) {
        let lane = racer.lane;
        if let Some(races) = &mut self.races {
            races.start(racer);
        }
        if let Some(memory) = &mut self.memory {
            memory.start(lane);
        }
        if let Some(priorities) = &mut self.priorities {
            priorities.start(lane, &mut self.rng);
        }
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

    /// Tells the observer. A panic of its is its owner's mistake, and must not cross a lane's C++.
    fn observe(&self, step: Step) {
        if let Some(observer) = &self.observer {
            let told = || observer.step(self.now_ns, step);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(told));
        }
    }

    /// Virtual time as a lane reads it: every look takes time, so that loops on the clock end.
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now_ns += EVENT_NS;
        self.now_ns
    }

    /// When a lane that sleeps `ns` from now wakes.
    pub(crate) fn sleep_until(&mut self, lane: u32, ns: u32) -> u64 {
        if let Some(priorities) = &mut self.priorities {
            priorities.demote(lane);
        }
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
            return hooks::suspend(lane);
        }
        match (*chance).gap.checked_sub(1) {
            Some(rest) => (*chance).gap = rest,
            None => {
                if let Some(priorities) = &mut (*chance).priorities {
                    priorities.demote((*lane).who().lane);
                }
                // Still ready: the scheduler may choose this very lane again.
                hooks::suspend(lane)
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
        let block: *const Block = (*(*lane).warp).block;
        let core = &Block::launch_of(block).core;
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
    let mut events = lock(&core.events);
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
    unsafe { (*(*(*lane).warp).block).seeded }
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

/// All live lanes of the block have met at its barrier.
pub(crate) fn block_met(block: &Block) {
    // SAFETY: the chance outlives all blocks, and only this thread uses it.
    if let Some(chance) = unsafe { block.seeded.as_mut() } {
        chance.met(&racers_in(block).iter().map(|racer| racer.lane).collect::<Vec<_>>());
    }
}

/// The lanes of a block.
fn racers_in(block: &Block) -> Vec<Racer> {
    let units = block.units.iter();
    // SAFETY: the lane's constants live in the unit's stacks, and are not written while it lives.
    let racer = |unit: &WarpUnit, lane| unsafe { (*unit.lane(lane)).racer() };
    units
        .flat_map(|unit| lanes_of(unit.warp.existing).map(move |lane| racer(unit, lane)))
        .collect()
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

impl Step {
    /// The step of the lane with this name.
    fn of_lane(id: u64) -> Self {
        Self::Lane {
            launch: (id >> 48) as u32,
            block: (id >> 10) as u32,
            thread: (id & 1023) as u32,
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
                    let racers = self.residents.blocks.last().map(|block| racers_in(block));
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
            let mut found = lock(&core.races);
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
        let last = self.residents.blocks.is_empty();
        if let Some(memory) = &mut self.chance().memory {
            for racer in racers_in(&block) {
                memory.flush(racer.lane);
            }
            if last {
                memory.settle_all();
            }
        }
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
