//! Engines: threads that serve queue pairs, or their manual counterpart.
//!
//! An engine finds work by looking at the doorbell registers of its queue pairs. When there is none it looks again
//! for a short while, yields its core a few times, then sleeps; see [`crate::sleeper`] for why no ring is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::moving::Moving;
use super::queue_pair::{QueuePairEngine, RequestBuffer, Step};
use super::report::{Counters, ViolationKind};
use super::shared::{Context, Shared};
use crate::NicError;
use crate::sleeper::Sleeper;
use crate::wire::mlx5::{BLOCK_BYTES, BLOCKS_MAX};

/// Units of work done under one hold of the engine's lock.
const UNITS_A_ROUND: u32 = 64;
/// Bytes moved for one queue pair before the next one has its turn.
const BYTES_A_TURN: u64 = 256 * 1024;
/// Units done for one queue pair before the next one has its turn.
const UNITS_A_TURN: u32 = 16;
/// Longest sleep. An engine that is rung does not wait for it; it bounds the wait all the same.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Longest sleep where doorbells are stored without a call.
const WATCHER_NAP: Duration = Duration::from_micros(50);
/// Requests that are due sooner than this are awaited without sleeping: waking up takes about as long.
const DUE_SOON_NS: u64 = 60_000;
/// Units of work that go into a mover's batches in one round.
const MOVED_A_ROUND: u32 = 512;
/// How long an engine with a mover looks for work without giving its core up, and how long it then goes on while it yields
/// the core after each look. Nobody tells it of doorbells, so it looks, and only naps after that.
const MOVER_SPIN: Duration = Duration::from_micros(50);
const MOVER_AWAKE: Duration = Duration::from_millis(20);
const MOVER_NAP: Duration = Duration::from_micros(50);

/// One engine.
#[repr(align(128))]
pub(super) struct Engine {
    pub core: Mutex<Core>,
    pub counters: Counters,
    /// Callers that want `core`; the engine's thread stands back for them.
    callers: AtomicU32,
    pub sleeper: Sleeper,
}

/// What an engine works on.
pub(super) struct Core {
    pub queue_pairs: Vec<QueuePairEngine>,
    /// The queue pair whose turn is next.
    cursor: usize,
    buffer: Box<RequestBuffer>,
    /// What moves the data, where the processor does not.
    pub moving: Option<Moving>,
}

/// What a round came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// No work.
    Idle,
    /// No work before this time.
    Until(u64),
    /// Some was done.
    Worked,
}

impl Core {
    /// Does up to `units_max` units of work, all queue pairs in turn.
    pub fn round(&mut self, context: &Context<'_>, units_max: u32) -> Round {
        // Taken for the round, so that queue pairs can be reached beside it.
        if let Some(mut moving) = self.moving.take() {
            let round = self.round_moving(&mut moving, context, units_max);
            self.moving = Some(moving);
            return round;
        }
        let mut units = 0;
        let mut until: Option<u64> = None;
        let count = self.queue_pairs.len();
        for _ in 0..count {
            let turn = if self.cursor < count { self.cursor } else { 0 };
            self.cursor = turn + 1;
            let queue_pair = &mut self.queue_pairs[turn];
            let (mut turn_units, mut turn_bytes) = (0, 0);
            while units < units_max && turn_units < UNITS_A_TURN && turn_bytes < BYTES_A_TURN {
                match queue_pair.step(context, &mut self.buffer) {
                    Step::Did(bytes) => {
                        units += 1;
                        turn_units += 1;
                        turn_bytes += bytes;
                    }
                    Step::Until(due) => {
                        until = Some(until.map_or(due, |until| until.min(due)));
                        break;
                    }
                    Step::Idle => break,
                }
            }
            if units >= units_max {
                break;
            }
        }
        match until {
            _ if units > 0 => Round::Worked,
            Some(due) => Round::Until(due),
            None => Round::Idle,
        }
    }
}

impl Core {
    /// Collects up to `units_max` requests of all queue pairs into batches and starts them.
    fn round_moving(&mut self, moving: &mut Moving, context: &Context<'_>, units_max: u32) -> Round {
        let arrived = moving.poll(&mut self.queue_pairs, context.shared);
        let mut units = 0;
        let mut until: Option<u64> = None;
        let count = self.queue_pairs.len();
        for _ in 0..count {
            let place = if self.cursor < count { self.cursor } else { 0 };
            self.cursor = place + 1;
            let mut left = UNITS_A_ROUND.min(units_max - units);
            while left > 0 {
                match self.queue_pairs[place].step_moving(place, context, &mut self.buffer, moving) {
                    Step::Did(_) => (units, left) = (units + 1, left - 1),
                    Step::Until(due) => {
                        until = Some(until.map_or(due, |until| until.min(due)));
                        break;
                    }
                    Step::Idle => break,
                }
            }
        }
        moving.start(&mut self.queue_pairs, context);
        match until {
            _ if units > 0 || arrived => Round::Worked,
            Some(due) => Round::Until(due),
            None => Round::Idle,
        }
    }

    /// With the mover and the queue pairs, where there is a mover.
    pub fn with_mover<R>(&mut self, act: impl FnOnce(&mut Moving, &mut [QueuePairEngine]) -> R) -> Option<R> {
        let moving = self.moving.as_mut()?;
        Some(act(moving, &mut self.queue_pairs))
    }
}

impl Engine {
    pub fn new(moving: Option<Moving>) -> Self {
        let buffer = Box::new([0; BLOCKS_MAX * BLOCK_BYTES]);
        Engine {
            core: Mutex::new(Core {
                queue_pairs: Vec::new(),
                cursor: 0,
                buffer,
                moving,
            }),
            counters: Counters::default(),
            callers: AtomicU32::new(0),
            sleeper: Sleeper::default(),
        }
    }

    pub fn context<'a>(&'a self, shared: &'a Shared) -> Context<'a> {
        Context::new(shared, &self.counters)
    }

    /// Does up to `units_max` units of work.
    pub fn round(&self, core: &mut Core, shared: &Shared, units_max: u32) -> Round {
        let round = core.round(&self.context(shared), units_max);
        // Once for what all queue pairs wait for, so that a backing begins much together.
        match shared.memory.poll_backings() {
            true => Round::Worked,
            false => round,
        }
    }

    /// The engine's lock, for a caller. Whatever was cleared before is out of the engine's use once it is held.
    ///
    /// # Errors
    /// The engine did not come to rest within `bound`.
    pub fn lock_for_caller(
        &self,
        what: &'static str,
        engine: usize,
        bound: Duration,
    ) -> Result<MutexGuard<'_, Core>, NicError> {
        // Relaxed: a request to stand back, which orders nothing; the lock does.
        self.callers.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        let guard = loop {
            match self.core.try_lock() {
                Some(guard) => break Ok(guard),
                None if start.elapsed() < bound => std::thread::yield_now(),
                None => {
                    let waited_ms = start.elapsed().as_millis() as u64;
                    break Err(NicError::TimedOut {
                        what,
                        engine,
                        waited_ms,
                    });
                }
            }
        };
        // Relaxed: as above.
        self.callers.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Lets callers have the lock that this thread has just released; bounded, since they may be gone.
    fn stand_back(&self) {
        for _ in 0..1000 {
            // Relaxed: see `lock_for_caller`.
            if self.callers.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Body of an engine's thread.
    pub fn run(&self, shared: &Shared) {
        self.sleeper.adopt();
        if shared.moved {
            return self.run_mover(shared);
        }
        let mut idle = Idle::default();
        // Acquire: pairs with the release in `SoftNic::drop`.
        while !shared.stop.load(Ordering::Acquire) {
            let round = self.round(&mut self.core.lock(), shared, UNITS_A_ROUND);
            self.stand_back();
            match round {
                Round::Worked => idle = Idle::default(),
                Round::Until(due) if due.saturating_sub(shared.clock.now_ns()) < DUE_SOON_NS => {
                    if idle.pause(shared) {
                        std::thread::yield_now();
                    }
                }
                Round::Until(_) | Round::Idle => {
                    if idle.pause(shared) {
                        self.sleep(shared);
                        idle = Idle::default();
                    }
                }
            }
        }
    }

    /// Runs an engine with a mover: posters' stores arrive by themselves, and the engine waits only when it is idle.
    fn run_mover(&self, shared: &Shared) {
        let mut since: Option<Instant> = None;
        let mut turns = 0u32;
        // Acquire: pairs with the release in `SoftNic::drop`.
        while !shared.stop.load(Ordering::Acquire) {
            let (round, under_way) = {
                let mut core = self.core.lock();
                let round = self.round(&mut core, shared, MOVED_A_ROUND);
                (round, core.moving.as_ref().is_some_and(Moving::under_way))
            };
            self.stand_back();
            turns = turns.wrapping_add(1);
            if round == Round::Worked {
                since = None;
                continue;
            }
            std::hint::spin_loop();
            // The clock is looked at every few turns only: reading it costs as much as a look at a doorbell.
            if since.is_some() && !turns.is_multiple_of(8) {
                continue;
            }
            let idle = since.get_or_insert_with(Instant::now).elapsed();
            if under_way || matches!(round, Round::Until(_)) || idle < MOVER_AWAKE {
                if idle >= MOVER_SPIN {
                    std::thread::yield_now();
                }
                continue;
            }
            self.sleeper.doze();
            if self.round(&mut self.core.lock(), shared, MOVED_A_ROUND) == Round::Worked {
                self.sleeper.stay_awake();
                since = None;
                continue;
            }
            self.sleeper.sleep(MOVER_NAP);
            // Awake on: the next look decides.
        }
    }

    fn sleep(&self, shared: &Shared) {
        self.sleeper.doze();
        let round = self.round(&mut self.core.lock(), shared, UNITS_A_ROUND);
        let sleep_max = if shared.watches { WATCHER_NAP } else { SLEEP_MAX };
        let bound = match round {
            Round::Worked => {
                self.sleeper.stay_awake();
                return;
            }
            Round::Until(due) => Duration::from_nanos(due.saturating_sub(shared.clock.now_ns())).min(sleep_max),
            Round::Idle => sleep_max,
        };
        let start = Instant::now();
        // Acquire: pairs with the release in `SoftNic::drop`, whose unpark comes after it.
        let bound = if shared.stop.load(Ordering::Acquire) {
            Duration::ZERO
        } else {
            bound
        };
        let rung = self.sleeper.rest(bound);
        let mut core = self.core.lock();
        self.counters.sleeps.add(1);
        if !(rung || shared.watches || start.elapsed() < SLEEP_MAX || round != Round::Idle) {
            let doorbells = self.counters.doorbells.get();
            self.round(&mut core, shared, UNITS_A_ROUND);
            let came = self.counters.doorbells.get() != doorbells;
            drop(core);
            if came {
                self.await_call(shared);
            }
        }
        self.sleeper.stay_awake();
    }

    /// Notes that a doorbell was found without its call, unless the call comes within a second: the thread that stored the doorbell may
    /// have been stopped before it called.
    fn await_call(&self, shared: &Shared) {
        let start = Instant::now();
        while start.elapsed() < SLEEP_MAX {
            // Acquire: as in `sleep`; the NIC's drop ends this rest as well.
            if self.sleeper.rest(SLEEP_MAX) || shared.stop.load(Ordering::Acquire) {
                return;
            }
        }
        let _core = self.core.lock();
        self.counters.late_wakes.add(1);
        let text = || "a doorbell found after a sleep of a second".to_string();
        shared.violations.note(ViolationKind::DoorbellWithoutCall, 0, text);
    }
}

/// How long an engine has been without work.
#[derive(Default)]
struct Idle {
    since: Option<Instant>,
    turns: u32,
    yields: u32,
}

impl Idle {
    /// Spins or yields once; returns whether it is time to sleep.
    fn pause(&mut self, shared: &Shared) -> bool {
        self.turns += 1;
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.yields == 0 {
            std::hint::spin_loop();
            // The clock is looked at every few turns only: reading it costs about as much as a turn.
            if !self.turns.is_multiple_of(8) || since.elapsed() < shared.spin {
                return false;
            }
        }
        if self.yields >= shared.yields_max {
            return true;
        }
        self.yields += 1;
        std::thread::yield_now();
        false
    }
}

/// Finds an engine by the doorbell register of a queue pair, without a lock.
pub(super) struct Owners(Box<[AtomicU32]>);

impl Owners {
    pub fn new(registers: usize) -> Self {
        Owners((0..registers).map(|_| AtomicU32::new(0)).collect())
    }

    pub fn set(&self, register: usize, engine: usize) {
        if let Some(owner) = self.0.get(register) {
            // Relaxed: the queue pair's number reaches its posters after this, by means that order it.
            owner.store(engine as u32, Ordering::Relaxed);
        }
    }

    #[inline]
    pub fn get(&self, register: usize) -> Option<usize> {
        // Relaxed: see `set`.
        self.0.get(register).map(|owner| owner.load(Ordering::Relaxed) as usize)
    }
}

/// Starts the thread of engine `index`.
pub(super) fn spawn(
    engines: &Arc<[Engine]>,
    shared: &Arc<Shared>,
    index: usize,
) -> Result<std::thread::JoinHandle<()>, NicError> {
    let (engines, shared) = (Arc::clone(engines), Arc::clone(shared));
    std::thread::Builder::new()
        .name(format!("nic-engine-{index}"))
        .spawn(move || engines[index].run(&shared))
        .map_err(|source| NicError::Thread {
            name: format!("nic-engine-{index}"),
            source,
        })
}
