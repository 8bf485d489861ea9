//! Where the seeded mode's decisions and time come from.

use std::cell::Cell;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::core::Options;
use crate::device_words::DeviceWords;
use crate::observer::{Observer, Step};
use crate::options::{MemoryModel, Schedule};
use crate::priorities::Priorities;
use crate::races::{Racer, Races};
use crate::warp::lanes_of;
use crate::weak_memory::{Bytes as _, WeakMemory};

/// Virtual time of one event of a lane, ns.
pub(super) const EVENT_NS: u64 = 20;

/// Where the seeded mode's decisions and time come from.
pub(crate) struct Chance {
    pub(super) rng: ChaCha8Rng,
    pub(super) now_ns: u64,
    /// Events until the running lane is switched away from.
    pub(super) gap: u32,
    /// The longest gap of this phase.
    pub(super) gap_max: u32,
    /// One decision in this many steps an actor.
    pub(super) actor_odds: u32,
    /// One gathering in this many answers a lane alone.
    pub(super) alone_odds: u32,
    /// Earliest end of a sleep, ns.
    pub(super) next_wake_ns: u64,
    pub(super) hash: u64,
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// None where memory is sequentially consistent.
    pub(super) memory: Option<WeakMemory<DeviceWords>>,
    /// Where device memory lies.
    pub(super) words: DeviceWords,
    /// None where nobody looks for races.
    pub(super) races: Option<Races>,
    /// None in a random walk.
    pub(super) priorities: Option<Priorities>,
}

thread_local! {
    /// The chance whose actor is being stepped by this thread; null else.
    pub(super) static STEPPING: Cell<*mut Chance> = const { Cell::new(std::ptr::null_mut()) };
}

/// What [`Simulation::on_copy`](gpuvm_gpu::Simulation::on_copy) gives.
pub(crate) fn engine_copies(to: u64, from: u64, bytes: u64) {
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
    pub(super) fn new(options: &Options, words: DeviceWords, observer: Option<Arc<dyn Observer>>) -> Self {
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

    pub(super) fn draw_odds(&mut self) {
        self.gap_max = 1 << self.rng.random_range(1..10u32);
        self.actor_odds = 1 << self.rng.random_range(1..7u32);
        self.alone_odds = self.rng.random_range(2..8u32);
        if let Some(memory) = &mut self.memory {
            memory.draw_odds();
        }
    }

    /// Time has moved on: performs what waited for it.
    pub(super) fn pass(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.pass(self.now_ns);
        }
    }

    /// Lanes have met at a barrier.
    pub(crate) fn met(&mut self, lanes: &[u32]) {
        if let Some(memory) = &mut self.memory {
            memory.join(lanes.iter().copied());
        }
        if let Some(races) = &mut self.races {
            races.join(lanes);
        }
    }

    /// Another lane begins in the place of `lane`.
    pub(super) fn lane_starts(&mut self, racer: Racer) {
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

    pub(super) fn one_in(&mut self, odds: u32) -> bool {
        self.rng.random_range(0..odds) == 0
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        // u32, so that a seed means the same on machines of both word sizes.
        self.rng.random_range(0..end as u32) as usize
    }

    pub(super) fn record(&mut self, lane: u64, event: u32) {
        for word in [lane, u64::from(event)] {
            self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
    }

    /// Tells the observer. A panic of its is its owner's mistake, and must not cross a lane's C++.
    pub(super) fn observe(&self, step: Step) {
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
    pub(super) fn pick(&mut self, mask: u32) -> usize {
        let chosen = self.below(mask.count_ones() as usize);
        lanes_of(mask).nth(chosen).unwrap_or(0)
    }
}
