//! A happens-before checker for the seeded mode: vector clocks that know PTX's scopes and fences.
//!
//! Two accesses conflict when they touch the same bytes and one of them stores. They race when neither happens before the other, unless
//! both are strong (not weak) and the scope of each includes the other. Happens-before comes from program order; from a release, or a fence
//! and a store, whose value an acquire, or a load and a fence, reads (read-modify-writes hand it on); from barriers; from the launch; and
//! from a doorbell to the engine behind it and from the engine to who acquires at system scope.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use super::weak_memory::{Access, Operation, Order, Scope};

/// Races that are kept; later ones are counted.
const RACES_MAX: usize = 64;
/// Loads of one word that are remembered.
const READS_MAX: usize = 16;
/// Bytes of a shadow word.
const WORD_BYTES: u64 = 8;
/// Where an engine outside has its place in vector clocks.
const ENGINE: usize = 0;

/// One of the two accesses of a [`Race`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaceAccess {
    /// Launch, block and thread; none for an engine outside, such as a NIC.
    pub lane: Option<RacingLane>,
    /// First byte.
    pub address: u64,
    /// Length, bytes.
    pub bytes: u64,
    /// For example "weak load" or "atomic (gpu scope)".
    pub what: String,
}

/// A lane by its place in its launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RacingLane {
    /// The launch's number on its GPU, from 0.
    pub launch: u64,
    /// The block's number in the grid's linear order.
    pub block: u64,
    /// The thread's number in the block's linear order.
    pub thread: u64,
}

/// Two accesses that conflict and that nothing orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The one that came first in this interleaving.
    pub first: RaceAccess,
    /// The one that came later.
    pub second: RaceAccess,
}

impl fmt::Display for RaceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes at {:#x} by ", self.what, self.bytes, self.address)?;
        match self.lane {
            Some(lane) => write!(
                f,
                "launch {}, block {}, thread {}",
                lane.launch, lane.block, lane.thread
            ),
            None => f.write_str("an engine outside the GPU"),
        }
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {} is not ordered with an earlier {}", self.second, self.first)
    }
}

/// A vector clock: how far each participant was.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
struct Clock(Vec<u32>);

impl Clock {
    fn of(&self, who: usize) -> u32 {
        self.0.get(who).copied().unwrap_or(0)
    }

    fn tick(&mut self, who: usize) {
        if who >= self.0.len() {
            self.0.resize(who + 1, 0);
        }
        self.0[who] += 1;
    }

    fn join(&mut self, other: &Self) {
        if other.0.len() > self.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*other);
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a fence or a word hands on: to everybody of the GPU, and outside of it.
#[derive(Clone, Default)]
struct Handed {
    gpu: Clock,
    sys: Clock,
    /// Only to this block.
    cta: Option<(u64, Clock)>,
}

impl Handed {
    fn join(&mut self, other: &Self) {
        self.gpu.join(&other.gpu);
        self.sys.join(&other.sys);
        match (&mut self.cta, &other.cta) {
            (Some((block, own)), Some((of, clock))) if block == of => own.join(clock),
            (own, Some(other)) => *own = Some(other.clone()),
            (_, None) => {}
        }
    }

    /// As far as a store of `scope` hands it on.
    fn within(&self, scope: Scope, block: u64) -> Self {
        match scope {
            Scope::Sys => self.clone(),
            Scope::Gpu => Self {
                sys: Clock::default(),
                ..self.clone()
            },
            Scope::Cta => {
                let mut clock = self.gpu.clone();
                if let Some((_, own)) = &self.cta {
                    clock.join(own);
                }
                Self {
                    cta: Some((block, clock)),
                    ..Self::default()
                }
            }
        }
    }

    /// What a lane of `block` releases at `scope`.
    fn release(clock: &Clock, scope: Scope, block: u64) -> Self {
        let all = Self {
            gpu: clock.clone(),
            sys: clock.clone(),
            cta: None,
        };
        all.within(scope, block)
    }

    /// Into the clock of a lane of `block` that acquires at `scope`.
    fn acquire(&self, clock: &mut Clock, scope: Scope, block: u64) {
        if let Some((of, own)) = &self.cta
            && *of == block
        {
            clock.join(own);
        }
        if scope != Scope::Cta {
            clock.join(&self.gpu);
        }
        if scope == Scope::Sys {
            clock.join(&self.sys);
        }
    }
}

#[derive(Clone, Default)]
struct Participant {
    clock: Clock,
    /// What its last fence hands on with later stores.
    fenced: Handed,
    /// What its loads have seen since, for its next fence.
    loaded: Handed,
    id: u64,
}

/// An access in the shadow of a word.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    who: usize,
    when: u32,
    id: u64,
    at: u64,
    bytes: u8,
    order: Order,
    scope: Scope,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Load,
    Store,
    Atomic,
}

impl Shadow {
    fn overlaps(&self, other: &Self) -> bool {
        self.at < other.at + u64::from(other.bytes) && other.at < self.at + u64::from(self.bytes)
    }

    fn strong(&self) -> bool {
        self.order != Order::Weak
    }

    fn told(&self) -> RaceAccess {
        let what = match (self.kind, self.order) {
            (Kind::Load, Order::Weak) => "weak load".to_owned(),
            (Kind::Store, Order::Weak) => "weak store".to_owned(),
            (kind, _) => {
                let kind = match kind {
                    Kind::Load => "load",
                    Kind::Store => "store",
                    Kind::Atomic => "read-modify-write",
                };
                let scope = match self.scope {
                    Scope::Cta => "block",
                    Scope::Gpu => "GPU",
                    Scope::Sys => "system",
                };
                format!("strong {kind} at {scope} scope")
            }
        };
        let lane = (self.who != ENGINE).then_some(RacingLane {
            launch: self.id >> 48,
            block: self.id >> 10 & ((1 << 38) - 1),
            thread: self.id & 0x3ff,
        });
        RaceAccess {
            lane,
            address: self.at,
            bytes: self.bytes.into(),
            what,
        }
    }
}

#[derive(Default)]
struct Word {
    stores: Vec<Shadow>,
    loads: VecDeque<Shadow>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Races {
    /// The engine first, then lanes by their number.
    all: Vec<Participant>,
    /// What the last store to a word handed on.
    handed: HashMap<u64, Handed>,
    words: HashMap<u64, Word>,
    /// Everything that has ended, and what launches began after.
    ended: Clock,
    launches: HashMap<u64, Clock>,
    races: Vec<Race>,
    count: u64,
}

/// A lane for the checker: its number among all that can be resident, and its id (launch, block, thread).
#[derive(Clone, Copy)]
pub(crate) struct Racer {
    pub(crate) lane: u32,
    pub(crate) id: u64,
}

impl Racer {
    fn index(self) -> usize {
        self.lane as usize + 1
    }

    /// Launch and block.
    fn block(self) -> u64 {
        self.id >> 10
    }
}

impl Races {
    /// What was found so far, and how often.
    pub(crate) fn found(&self) -> (Vec<Race>, u64) {
        (self.races.clone(), self.count)
    }

    /// How often a race was found.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    fn participant(&mut self, index: usize) -> &mut Participant {
        if index >= self.all.len() {
            self.all.resize_with(index + 1, Participant::default);
        }
        &mut self.all[index]
    }

    /// A lane begins: after all that had ended when its launch began.
    pub(crate) fn start(&mut self, racer: Racer) {
        let engine = self.participant(ENGINE).clock.clone();
        let ended = &self.ended;
        let began = self.launches.entry(racer.id >> 48).or_insert_with(|| {
            let mut began = ended.clone();
            began.join(&engine);
            began
        });
        let began = began.clone();
        let index = racer.index();
        let own = self.participant(index);
        // The lane that was here before has ended; it is one participant with this one.
        own.clock.join(&began);
        own.clock.tick(index);
        (own.fenced, own.loaded, own.id) = (Handed::default(), Handed::default(), racer.id);
    }

    /// A lane has ended.
    pub(crate) fn end(&mut self, racer: Racer) {
        let clock = self.participant(racer.index()).clock.clone();
        self.ended.join(&clock);
        self.participant(racer.index()).clock.tick(racer.index());
    }

    /// Lanes meet at a barrier.
    pub(crate) fn join(&mut self, lanes: &[u32]) {
        let mut clock = Clock::default();
        for &lane in lanes {
            clock.join(&self.participant(lane as usize + 1).clock);
        }
        for &lane in lanes {
            let index = lane as usize + 1;
            let own = self.participant(index);
            own.clock.join(&clock);
            own.clock.tick(index);
        }
    }

    /// A fence of a lane.
    pub(crate) fn fence(&mut self, racer: Racer, scope: Scope) {
        let index = racer.index();
        if scope == Scope::Sys {
            self.hear_engine(index);
        }
        let own = self.participant(index);
        let loaded = std::mem::take(&mut own.loaded);
        loaded.acquire(&mut own.clock, scope, racer.block());
        own.loaded = loaded;
        own.fenced = Handed::release(&own.clock, scope, racer.block());
        own.clock.tick(index);
    }

    /// A register store of a lane: what a fence of system scope put before it, the engine knows.
    pub(crate) fn doorbell(&mut self, racer: Racer) {
        let fenced = self.participant(racer.index()).fenced.sys.clone();
        let engine = self.participant(ENGINE);
        engine.clock.join(&fenced);
        engine.clock.tick(ENGINE);
    }

    /// Completions carry what the engine has done so far.
    fn hear_engine(&mut self, index: usize) {
        let engine = self.participant(ENGINE).clock.clone();
        let own = self.participant(index);
        own.clock.join(&engine);
        self.participant(ENGINE).clock.tick(ENGINE);
    }

    /// The engine copies.
    pub(crate) fn engine_copies(&mut self, to: Option<u64>, from: Option<u64>, bytes: u64) {
        let engine = &mut self.participant(ENGINE).clock;
        if engine.of(ENGINE) == 0 {
            // Nobody has heard of it yet: time 0 is everybody's past.
            engine.tick(ENGINE);
        }
        let when = engine.of(ENGINE);
        for (start, kind) in [(from, Kind::Load), (to, Kind::Store)] {
            let Some(start) = start else { continue };
            let mut at = start;
            while at < start + bytes {
                let piece = (WORD_BYTES - at % WORD_BYTES).min(start + bytes - at);
                self.look(Shadow {
                    who: ENGINE,
                    when,
                    id: 0,
                    at,
                    bytes: piece as u8,
                    order: Order::Relaxed,
                    scope: Scope::Sys,
                    kind,
                });
                at += piece;
            }
        }
    }

    /// A plain access.
    pub(crate) fn plain(&mut self, racer: Racer, at: u64, bytes: u64, stores: bool, volatile: bool) {
        let (order, scope) = match volatile {
            true => (Order::Relaxed, Scope::Sys),
            false => (Order::Weak, Scope::Gpu),
        };
        let end = at + bytes;
        let mut at = at;
        while at < end {
            let piece = (WORD_BYTES - at % WORD_BYTES).min(end - at);
            let operation = if stores { Operation::Store } else { Operation::Load };
            let access = Access {
                operation,
                order,
                scope,
                at,
                bytes: piece as usize,
            };
            self.access(racer, access, stores);
            at += piece;
        }
    }

    /// An access of a lane. `stored`: it changed the word, as a failed compare-and-swap does not.
    pub(crate) fn access(&mut self, racer: Racer, access: Access, stored: bool) {
        let Access {
            operation,
            order,
            scope,
            at,
            bytes,
        } = access;
        let (index, block) = (racer.index(), racer.block());
        let kind = match operation {
            Operation::Load => Kind::Load,
            Operation::Store => Kind::Store,
            _ if stored => Kind::Atomic,
            _ => Kind::Load,
        };
        if kind != Kind::Store {
            let handed = self.handed.get(&at).cloned().unwrap_or_default();
            if order.acquires() && scope == Scope::Sys {
                self.hear_engine(index);
            }
            let own = self.participant(index);
            if order.acquires() {
                handed.acquire(&mut own.clock, scope, block);
            } else if order != Order::Weak {
                own.loaded.join(&handed.within(scope, block));
                if scope != Scope::Cta
                    && let Some((of, clock)) = &handed.cta
                    && *of == block
                {
                    own.loaded.gpu.join(clock);
                }
            }
        }
        let when = self.participant(index).clock.of(index);
        self.look(Shadow {
            who: index,
            when,
            id: racer.id,
            at,
            bytes: bytes as u8,
            order,
            scope,
            kind,
        });
        if kind == Kind::Load {
            return;
        }
        let own = self.participant(index);
        let handed = match order {
            Order::Weak => Handed::default(),
            _ if order.releases() => Handed::release(&own.clock, scope, block),
            _ => own.fenced.within(scope, block),
        };
        if order.releases() {
            own.clock.tick(index);
        }
        if kind == Kind::Atomic {
            self.handed.entry(at).or_default().join(&handed);
        } else if handed.gpu.is_empty() && handed.sys.is_empty() && handed.cta.is_none() {
            self.handed.remove(&at);
        } else {
            self.handed.insert(at, handed);
        }
    }

    /// Compares an access with the earlier ones of its word, and remembers it.
    fn look(&mut self, access: Shadow) {
        let clock = &self.all[access.who].clock;
        let before = |other: &Shadow| other.who == access.who || clock.of(other.who) >= other.when;
        let word = self.words.entry(access.at / WORD_BYTES).or_default();
        let races = |other: &&Shadow| !before(other) && other.overlaps(&access) && !may_meet(other, &access);
        let mut race = word.stores.iter().find(races);
        if access.kind != Kind::Load {
            race = race.or_else(|| word.loads.iter().find(races));
        }
        if let Some(first) = race {
            self.count += 1;
            let race = Race {
                first: first.told(),
                second: access.told(),
            };
            if self.races.len() < RACES_MAX {
                self.races.push(race);
            }
        }
        if access.kind == Kind::Load {
            word.loads
                .retain(|other| !(before(other) && other.at == access.at && other.bytes <= access.bytes));
            if word.loads.len() == READS_MAX {
                word.loads.pop_front();
            }
            word.loads.push_back(access);
        } else {
            let covered = |other: &Shadow| {
                other.at >= access.at && other.at + u64::from(other.bytes) <= access.at + u64::from(access.bytes)
            };
            word.stores.retain(|other| !(before(other) && covered(other)));
            word.loads.retain(|other| !(before(other) && covered(other)));
            if word.stores.len() == READS_MAX {
                word.stores.remove(0);
            }
            word.stores.push(access);
        }
    }
}

/// Whether two unordered accesses are no race: both strong, each within the other's scope. A strong load may meet any store. A lane's element
/// reads are optimistic, validated after the load, and order nothing; a NIC that writes a page home may meet stores to it, after which the page
/// is dirty again.
fn may_meet(a: &Shadow, b: &Shadow) -> bool {
    let optimistic = |access: &Shadow| access.strong() && access.kind == Kind::Load;
    if optimistic(a) || optimistic(b) {
        return true;
    }
    if !(a.strong() && b.strong()) {
        return false;
    }
    if a.who == ENGINE || b.who == ENGINE {
        return a.scope == Scope::Sys && b.scope == Scope::Sys;
    }
    let same_block = a.id >> 10 == b.id >> 10;
    same_block || (a.scope != Scope::Cta && b.scope != Scope::Cta)
}

#[cfg(test)]
mod tests;
