//! The memory of the seeded mode: as weak as PTX lets a GPU's be, within bounds.
//!
//! One memory holds what has been performed. Around it:
//!
//! - A lane's stores wait in its *store buffer* and leave it in any order that fences, releases and coherence allow.
//! - Weak loads go through a *cache* a multiprocessor: a line may be as old as the lane's last acquire.
//! - Relaxed loads bypass it, but may have been performed early: they see a value that was current at some time since the lane's
//!   last acquire, and never one older than what the lane has seen there.
//! - To engines outside (NICs), stores are *hidden* until a fence or release of system scope.
//! - Data that an engine wrote *arrives* late for everybody who did not acquire at system scope, or was not released to by such a one.
//!
//! All of it ends by itself after some virtual microseconds, so that polling ends. Every choice is drawn from the seed.

mod access;

use std::collections::VecDeque;

pub(crate) use self::access::{Access, Bytes, Operation, Order, Scope, Who};

/// Multiprocessors of the seeded mode: each has a cache.
pub(crate) const MULTIPROCESSORS: u32 = 4;
const LINE_BYTES: u64 = 128;
/// Lines of a cache.
const LINES: usize = 24;
/// How many times as long as a store may wait a line lasts: long enough that its frame gets another page meanwhile.
const LINE_LASTS: u64 = 8;
/// Stores that wait, of all lanes.
const PENDING_MAX: usize = 64;
/// Performed stores whose old values are remembered.
const HISTORY_MAX: usize = 64;
/// Addresses at which a lane remembers how new a value it has seen.
const SEEN_MAX: usize = 8;
/// Stores that engines outside do not see yet.
const HIDDEN_MAX: usize = 48;
/// Pieces of arriving data, and their size.
const ARRIVALS_MAX: usize = 32;
const PIECE_BYTES: u64 = 16;

/// A generator for many small choices.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        // xorshift64*.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// True in `of_256` of 256 cases.
    fn one(&mut self, of_256: u32) -> bool {
        of_256 != 0 && (self.next() & 0xff) < u64::from(of_256)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// Up to 2^bits ns, short ones as likely as long ones.
    fn delay_ns(&mut self, bits: u32) -> u64 {
        let scale = self.below(bits as usize + 1) as u32;
        self.next() & ((1 << scale) - 1)
    }
}

/// How weak the memory is for a while; chances of 256.
#[derive(Clone, Copy, Default)]
struct Odds {
    /// A store waits.
    delay: u32,
    /// A relaxed load sees an older value.
    stale: u32,
    /// A weak load goes through the cache.
    cached: u32,
    /// A store is hidden from engines outside.
    hide: u32,
    /// An engine's data comes late.
    late: u32,
    /// How long all of that lasts: 2^bits ns at most.
    bits: u32,
}

#[derive(Clone, Default)]
struct View {
    /// When it last acquired.
    floor: u64,
    /// Stores with a lower index come before a fence.
    fence_at: u64,
    next_index: u64,
    /// Its stores that wait.
    held: u32,
    /// Addresses and the time before which no value may be returned there.
    seen: Vec<(u64, u64)>,
    /// Lanes that it has met at barriers since it last acquired, and when: it sees what they had stored by then.
    met: Vec<(u32, u64)>,
}

#[derive(Clone, Copy)]
struct Pending {
    who: Who,
    index: u64,
    at: u64,
    bytes: usize,
    value: u64,
    due_ns: u64,
    /// Engines outside see it as soon as it is performed.
    system: bool,
}

impl Pending {
    fn overlaps(&self, at: u64, bytes: usize) -> bool {
        overlap(self.at, self.bytes, at, bytes)
    }
}

fn overlap(a: u64, a_bytes: usize, b: u64, b_bytes: usize) -> bool {
    a < b + b_bytes as u64 && b < a + a_bytes as u64
}

/// A store that was performed: what it replaced, and until when that was current.
struct Past {
    clock: u64,
    ns: u64,
    at: u64,
    bytes: usize,
    old: u64,
    lane: u32,
}

struct Line {
    at: u64,
    filled: u64,
    filled_ns: u64,
    words: [u64; LINE_BYTES as usize / 8],
}

struct Hidden {
    at: u64,
    bytes: usize,
    old: u64,
    /// The true value while an engine looks.
    saved: u64,
    due_ns: u64,
}

struct Arrival {
    at: u64,
    words: [u64; 2],
    due_ns: u64,
    /// Lanes that acquired at system scope since.
    known_to: Vec<u32>,
}

/// See the [module](self).
pub(crate) struct WeakMemory<M> {
    memory: M,
    dice: Dice,
    odds: Odds,
    /// Counts events; times of views, lines and the past are in it.
    clock: u64,
    now_ns: u64,
    views: Vec<View>,
    pending: Vec<Pending>,
    history: VecDeque<Past>,
    lines: [Vec<Line>; MULTIPROCESSORS as usize],
    hidden: Vec<Hidden>,
    arrivals: Vec<Arrival>,
    /// Old words where an engine writes now.
    landing: Vec<(u64, [u64; 2])>,
    next_due_ns: u64,
    /// Values put in place for a plain load: address, length, true value.
    pokes: Vec<(u64, usize, u64)>,
    /// Places of a plain store: the lane, address, length, old value, order and scope.
    captures: Vec<(Who, u64, usize, u64, Order, Scope)>,
}

impl<M: Bytes> WeakMemory<M> {
    /// The model over `memory`, with the choices of `seed`.
    pub(crate) fn new(memory: M, seed: u64) -> Self {
        let mut dice = Dice((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xd134_2543_de82_ef95) | 1);
        for _ in 0..4 {
            dice.next();
        }
        let mut model = Self {
            memory,
            dice,
            odds: Odds::default(),
            clock: 1,
            now_ns: 0,
            views: Vec::new(),
            pending: Vec::with_capacity(PENDING_MAX),
            history: VecDeque::with_capacity(HISTORY_MAX + 1),
            lines: [const { Vec::new() }; MULTIPROCESSORS as usize],
            hidden: Vec::with_capacity(HIDDEN_MAX + 1),
            arrivals: Vec::new(),
            landing: Vec::new(),
            next_due_ns: u64::MAX,
            pokes: Vec::with_capacity(64),
            captures: Vec::with_capacity(64),
        };
        model.draw_odds();
        model
    }

    /// How weak the memory is from now on.
    pub(crate) fn draw_odds(&mut self) {
        let dice = &mut self.dice;
        if dice.below(4) == 0 {
            // As strong as it can be, so that every long run sees this too.
            self.odds = Odds::default();
            return;
        }
        let levels = [0, 16, 96, 256];
        let mut level = || levels[dice.below(4)];
        self.odds = Odds {
            delay: level(),
            stale: level(),
            cached: level(),
            hide: level(),
            late: level(),
            bits: 0,
        };
        self.odds.bits = 6 + self.dice.below(10) as u32;
    }

    fn view(&mut self, lane: u32) -> &mut View {
        let lane = lane as usize;
        if lane >= self.views.len() {
            self.views.resize_with(lane + 1, View::default);
        }
        &mut self.views[lane]
    }

    /// A lane begins: all that was performed so far is visible to it.
    pub(crate) fn start(&mut self, lane: u32) {
        self.clock += 1;
        let clock = self.clock;
        *self.view(lane) = View {
            floor: clock,
            ..View::default()
        };
    }

    /// A lane has ended, or is at a barrier: its stores are performed, and what it has acquired is everybody's.
    pub(crate) fn flush(&mut self, lane: u32) {
        self.drain(lane, u64::MAX);
        self.land_known_to(lane);
    }

    /// Lanes have met at a barrier, and were flushed: what one has acquired or stored, all have.
    pub(crate) fn join(&mut self, lanes: impl Iterator<Item = u32> + Clone) {
        let floor = lanes.clone().map(|lane| self.view(lane).floor).max().unwrap_or(0);
        // What is not remembered is seen by everybody; stores before the floor are.
        let mut met: Vec<(u32, u64)> = Vec::new();
        for past in self.history.iter().rev().take_while(|past| past.clock > floor) {
            if !met.iter().any(|(lane, _)| *lane == past.lane) && lanes.clone().any(|lane| lane == past.lane) {
                met.push((past.lane, past.clock));
            }
        }
        for lane in lanes.clone() {
            for &(other, clock) in &self.view(lane).met {
                match met.iter_mut().find(|(known, _)| *known == other) {
                    Some((_, known)) => *known = clock.max(*known),
                    None => met.push((other, clock)),
                }
            }
        }
        met.retain(|(_, clock)| *clock > floor);
        for lane in lanes {
            let view = self.view(lane);
            if view.floor < floor {
                view.floor = floor;
                view.seen.clear();
            }
            view.met.clone_from(&met);
        }
    }

    /// Performs what is due. To be called whenever time has moved on and no lane runs.
    pub(crate) fn pass(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if now_ns < self.next_due_ns {
            return;
        }
        loop {
            let due = self.pending.iter().enumerate().filter(|(_, p)| p.due_ns <= now_ns);
            let Some((position, _)) = due.min_by_key(|(_, p)| (p.due_ns, p.index)) else {
                break;
            };
            self.perform(position);
        }
        self.land(|arrival| arrival.due_ns <= now_ns);
        self.hidden.retain(|hidden| hidden.due_ns > now_ns);
        let due = self.pending.iter().map(|p| p.due_ns);
        let due = due.chain(self.arrivals.iter().map(|a| a.due_ns));
        self.next_due_ns = due
            .chain(self.hidden.iter().map(|h| h.due_ns))
            .min()
            .unwrap_or(u64::MAX);
    }

    /// Nobody runs any more: everything is performed and seen.
    pub(crate) fn settle_all(&mut self) {
        self.settle();
        while !self.pending.is_empty() {
            let first = self.pending.iter().enumerate().min_by_key(|(_, p)| (p.due_ns, p.index));
            let Some((position, _)) = first else { break };
            self.perform(position);
        }
        self.land(|_| true);
        self.hidden.clear();
    }

    fn due(&mut self) -> u64 {
        let due = self.now_ns + self.dice.delay_ns(self.odds.bits);
        self.next_due_ns = self.next_due_ns.min(due);
        due
    }

    // ---- Stores ----

    /// Takes the waiting store at `position` and performs it.
    fn perform(&mut self, position: usize) {
        let p = self.pending.remove(position);
        self.view(p.who.lane).held -= 1;
        self.commit(p.who, p.at, p.bytes, p.value, p.system);
    }

    fn commit(&mut self, who: Who, at: u64, bytes: usize, value: u64, system: bool) {
        if !self.arrivals.is_empty() {
            self.land(|a| overlap(a.at, PIECE_BYTES as usize, at, bytes));
        }
        let old = self.memory.get(at, bytes);
        self.memory.set(at, bytes, value);
        self.clock += 1;
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(Past {
            clock: self.clock,
            ns: self.now_ns,
            at,
            bytes,
            old,
            lane: who.lane,
        });
        // Write-through: the multiprocessor's own copy is up to date.
        let lines = &mut self.lines[who.sm as usize % MULTIPROCESSORS as usize];
        for line in lines.iter_mut() {
            if overlap(line.at, LINE_BYTES as usize, at, bytes) {
                patch(line, at, bytes, value);
            }
        }
        if !system && self.dice.one(self.odds.hide) {
            if self.hidden.len() == HIDDEN_MAX {
                self.hidden.remove(0);
            }
            let due_ns = self.due();
            self.hidden.push(Hidden {
                at,
                bytes,
                old,
                saved: value,
                due_ns,
            });
        }
    }

    /// Performs the lane's waiting stores with an index below `before`.
    fn drain(&mut self, lane: u32, before: u64) {
        if self.view(lane).held == 0 {
            return;
        }
        let mut position = 0;
        while position < self.pending.len() {
            let p = &self.pending[position];
            // In the vector's order, which is that of issue.
            if p.who.lane == lane && p.index < before {
                self.perform(position);
            } else {
                position += 1;
            }
        }
    }

    /// Performs what the lane must have performed before an operation that comes after its stores below `after` and touches these bytes.
    fn drain_for(&mut self, lane: u32, after: u64, at: u64, bytes: usize) {
        if self.view(lane).held == 0 {
            return;
        }
        let mut before = after;
        for p in self
            .pending
            .iter()
            .filter(|p| p.who.lane == lane && p.overlaps(at, bytes))
        {
            before = before.max(p.index + 1);
        }
        // What lies between is performed early, which is allowed.
        self.drain(lane, before);
    }

    fn store(&mut self, who: Who, access: Access, value: u64) {
        let Access {
            order,
            scope,
            at,
            bytes,
            ..
        } = access;
        self.clock += 1;
        let view = self.view(who.lane);
        let index = view.next_index;
        view.next_index += 1;
        let after = if order.releases() { index } else { view.fence_at };
        let system = scope == Scope::Sys && order.releases();
        if order.releases() {
            self.land_known_to(who.lane);
        }
        if system {
            self.hidden.clear();
            self.show_waiting(who.lane);
        }
        let waits = order != Order::Sc && self.pending.len() < PENDING_MAX && self.dice.one(self.odds.delay);
        if !waits {
            self.drain_for(who.lane, after, at, bytes);
            return self.commit(who, at, bytes, value, system);
        }
        let mut due_ns = self.due();
        for p in self.pending.iter().filter(|p| p.who.lane == who.lane) {
            if p.index < after || p.overlaps(at, bytes) {
                due_ns = due_ns.max(p.due_ns);
            }
        }
        self.view(who.lane).held += 1;
        self.pending.push(Pending {
            who,
            index,
            at,
            bytes,
            value,
            due_ns,
            system,
        });
    }

    /// Waiting stores of the lane are seen outside as soon as they are performed.
    fn show_waiting(&mut self, lane: u32) {
        for p in self.pending.iter_mut().filter(|p| p.who.lane == lane) {
            p.system = true;
        }
    }

    // ---- Loads ----

    /// The lane's own waiting stores over `value`.
    fn overlay(&self, lane: u32, at: u64, bytes: usize, mut value: u64) -> u64 {
        for p in self
            .pending
            .iter()
            .filter(|p| p.who.lane == lane && p.overlaps(at, bytes))
        {
            for n in 0..p.bytes as u64 {
                let to = (p.at + n).wrapping_sub(at);
                if to < bytes as u64 {
                    value = value & !(0xff << (8 * to)) | (p.value >> (8 * n) & 0xff) << (8 * to);
                }
            }
        }
        value
    }

    fn load(&mut self, who: Who, access: Access) -> u64 {
        let Access {
            order,
            scope,
            at,
            bytes,
            ..
        } = access;
        self.clock += 1;
        if order == Order::Sc {
            self.drain(who.lane, u64::MAX);
        }
        self.land_where_known(who.lane, at, bytes);
        let mut value = match order {
            Order::Weak => self.cached(who, at, bytes),
            Order::Relaxed => self.early(who.lane, at, bytes),
            _ => self.memory.get(at, bytes),
        };
        if self.view(who.lane).held != 0 {
            value = self.overlay(who.lane, at, bytes, value);
        }
        if order.acquires() {
            self.acquire(who.lane, scope);
        }
        value
    }

    fn acquire(&mut self, lane: u32, scope: Scope) {
        let clock = self.clock;
        let view = self.view(lane);
        view.floor = clock;
        view.seen.clear();
        view.met.clear();
        if scope == Scope::Sys {
            for arrival in &mut self.arrivals {
                if !arrival.known_to.contains(&lane) {
                    arrival.known_to.push(lane);
                }
            }
        }
    }

    /// A weak load: through the multiprocessor's cache, whose lines are as new as the lane's last acquire, or newer.
    fn cached(&mut self, who: Who, at: u64, bytes: usize) -> u64 {
        let line_at = at & !(LINE_BYTES - 1);
        let whole = self.memory.covers(line_at, LINE_BYTES) && at + bytes as u64 <= line_at + LINE_BYTES;
        if !whole || !self.dice.one(self.odds.cached) {
            return self.memory.get(at, bytes);
        }
        let (floor, now_ns, clock) = (self.view(who.lane).floor, self.now_ns, self.clock);
        let lasts_ns = LINE_LASTS << self.odds.bits;
        let lines = &mut self.lines[who.sm as usize % MULTIPROCESSORS as usize];
        let position = match lines.iter().position(|line| line.at == line_at) {
            Some(found) if lines[found].filled >= floor && now_ns - lines[found].filled_ns <= lasts_ns => found,
            Some(found) => {
                lines.remove(found);
                usize::MAX
            }
            None => usize::MAX,
        };
        let line = match lines.get(position) {
            Some(line) => line,
            None => {
                if lines.len() == LINES {
                    lines.remove(0);
                }
                let mut words = [0; LINE_BYTES as usize / 8];
                for (n, word) in words.iter_mut().enumerate() {
                    *word = self.memory.get(line_at + n as u64 * 8, 8);
                }
                lines.push(Line {
                    at: line_at,
                    filled: clock,
                    filled_ns: now_ns,
                    words,
                });
                return self.memory.get(at, bytes);
            }
        };
        let mut value = 0;
        for n in 0..bytes as u64 {
            let offset = at - line_at + n;
            let byte = line.words[offset as usize / 8] >> (offset % 8 * 8) & 0xff;
            value |= byte << (8 * n);
        }
        value
    }

    /// A relaxed load: perhaps a value that was current at an earlier time since the lane's last acquire.
    fn early(&mut self, lane: u32, at: u64, bytes: usize) -> u64 {
        let current = self.memory.get(at, bytes);
        if self.odds.stale == 0 {
            return current;
        }
        let mut bound = self.view(lane).floor;
        for &(seen_at, clock) in &self.view(lane).seen {
            // Words are accessed whole: 8 bytes around cover the other sizes.
            if seen_at.abs_diff(at) < 8 {
                bound = bound.max(clock);
            }
        }
        let met = self.view(lane).met.clone();
        // Newest first: the old values, and since when each was current.
        let mut candidates = [(0u64, 0u64); 4];
        let mut count = 0;
        let oldest_ns = self.now_ns.saturating_sub(1 << self.odds.bits);
        for past in self.history.iter().rev() {
            if past.clock <= bound || past.ns < oldest_ns {
                break;
            }
            if !overlap(past.at, past.bytes, at, bytes) {
                continue;
            }
            if count > 0 {
                // The value before this store was current only until this store.
                candidates[count - 1].1 = past.clock;
            }
            let ours = past.lane == lane
                || met
                    .iter()
                    .any(|&(other, when)| other == past.lane && past.clock <= when);
            if ours || past.at != at || past.bytes != bytes || count == candidates.len() {
                break;
            }
            candidates[count] = (past.old, bound);
            count += 1;
        }
        if count == 0 {
            return current;
        }
        let (value, since) = match self.dice.one(self.odds.stale) {
            true => candidates[self.dice.below(count)],
            false => (current, self.clock),
        };
        self.note_seen(lane, at, since);
        value
    }

    /// The lane reads nothing older than `clock` at `at` from now on.
    fn note_seen(&mut self, lane: u32, at: u64, clock: u64) {
        let view = self.view(lane);
        if let Some(seen) = view.seen.iter_mut().find(|(seen_at, _)| *seen_at == at) {
            seen.1 = seen.1.max(clock);
            return;
        }
        if view.seen.len() == SEEN_MAX {
            // Forgotten addresses must not step back.
            let (_, forgotten) = view.seen.remove(0);
            view.floor = view.floor.max(forgotten);
        }
        view.seen.push((at, clock));
    }

    // ---- Both, and fences ----

    /// Carries out one access and returns what it read: 0 for a store.
    pub(crate) fn access(&mut self, who: Who, access: Access, value: u64, expected: u64) -> u64 {
        match access.operation {
            Operation::Load => return self.load(who, access),
            Operation::Store => {
                self.store(who, access, value);
                return 0;
            }
            _ => {}
        }
        let Access {
            order,
            scope,
            at,
            bytes,
            ..
        } = access;
        self.clock += 1;
        if order.releases() {
            self.flush(who.lane);
            if scope == Scope::Sys {
                self.hidden.clear();
            }
        } else {
            let after = self.view(who.lane).fence_at;
            self.drain_for(who.lane, after, at, bytes);
        }
        let old = self.memory.get(at, bytes);
        match access.operation.apply(old, value, expected) {
            // At once, and seen outside: engines outside have their own atomics.
            Some(new) => self.commit(who, at, bytes, new & mask(bytes), true),
            None => {
                let clock = self.clock;
                self.note_seen(who.lane, at, clock);
            }
        }
        if order.acquires() {
            self.acquire(who.lane, scope);
        }
        old
    }

    /// A fence of the lane: acquire and release at least.
    pub(crate) fn fence(&mut self, who: Who, order: Order, scope: Scope) {
        self.clock += 1;
        let view = self.view(who.lane);
        view.fence_at = view.next_index;
        if order == Order::Sc {
            self.drain(who.lane, u64::MAX);
        }
        if scope != Scope::Cta {
            self.acquire(who.lane, scope);
        }
        self.land_known_to(who.lane);
        if scope == Scope::Sys {
            self.hidden.clear();
            self.show_waiting(who.lane);
        }
    }

    /// Before a store of the lane to a register of an engine outside: what a fence put before it is performed.
    pub(crate) fn before_register(&mut self, lane: u32) {
        let before = self.view(lane).fence_at;
        self.drain(lane, before);
    }

    // ---- Plain accesses, which the kernel's own instructions do ----

    /// The lane loads these bytes next: puts in place what it is to see there, until [`settle`](Self::settle).
    pub(crate) fn before_load(&mut self, who: Who, at: u64, bytes: u64, volatile: bool) {
        self.clock += 1;
        for (at, bytes) in pieces(at, bytes) {
            if volatile {
                self.drain_for(who.lane, 0, at, bytes);
                continue;
            }
            self.land_where_known(who.lane, at, bytes);
            let current = self.memory.get(at, bytes);
            let mut value = self.cached(who, at, bytes);
            if self.view(who.lane).held != 0 {
                value = self.overlay(who.lane, at, bytes, value);
            }
            if value != current {
                self.pokes.push((at, bytes, current));
                self.memory.set(at, bytes, value);
            }
        }
    }

    /// The lane stores these bytes next; [`settle`](Self::settle) takes them.
    pub(crate) fn before_store(&mut self, who: Who, at: u64, bytes: u64, volatile: bool) {
        let (order, scope) = match volatile {
            true => (Order::Relaxed, Scope::Sys),
            false => (Order::Weak, Scope::Gpu),
        };
        for (at, bytes) in pieces(at, bytes) {
            let old = self.memory.get(at, bytes);
            self.captures.push((who, at, bytes, old, order, scope));
        }
    }

    /// The announced plain access has been done: memory holds what is true again.
    pub(crate) fn settle(&mut self) {
        while let Some((at, bytes, value)) = self.pokes.pop() {
            self.memory.set(at, bytes, value);
        }
        if self.captures.is_empty() {
            return;
        }
        let mut captures = std::mem::take(&mut self.captures);
        for &(who, at, bytes, old, order, scope) in &captures {
            let value = self.memory.get(at, bytes);
            self.memory.set(at, bytes, old);
            let operation = Operation::Store;
            let access = Access {
                operation,
                order,
                scope,
                at,
                bytes,
            };
            self.store(who, access, value);
        }
        captures.clear();
        // Its room is used again.
        self.captures = captures;
    }

    // ---- Engines outside ----

    /// An engine outside looks at memory from now until [`shown`](Self::shown): it does not see what is hidden.
    pub(crate) fn hide(&mut self) {
        for hidden in self.hidden.iter_mut().rev() {
            hidden.saved = self.memory.get(hidden.at, hidden.bytes);
            self.memory.set(hidden.at, hidden.bytes, hidden.old);
        }
    }

    /// The engine copies: what lies at `from` has arrived, and some of what comes to `to` will be late.
    pub(crate) fn engine_copies(&mut self, to: u64, from: u64, bytes: u64) {
        if self.memory.covers(from, bytes) && !self.arrivals.is_empty() {
            self.land(|a| overlap(a.at, PIECE_BYTES as usize, from, bytes as usize));
        }
        if !self.memory.covers(to, bytes) {
            return;
        }
        self.arrivals
            .retain(|a| !overlap(a.at, PIECE_BYTES as usize, to, bytes as usize));
        let first = to.next_multiple_of(PIECE_BYTES);
        let pieces = (to + bytes).saturating_sub(first) / PIECE_BYTES;
        if pieces == 0 || !self.dice.one(self.odds.late) {
            return;
        }
        // A run of pieces: whole lines are late, or a few bytes of one.
        let from = self.dice.below(pieces as usize) as u64;
        let most = 1 + self.dice.below(ARRIVALS_MAX) as u64;
        for piece in from..(from + most).min(pieces) {
            let at = first + piece * PIECE_BYTES;
            self.landing
                .push((at, [self.memory.get(at, 8), self.memory.get(at + 8, 8)]));
        }
    }

    /// The engine is done for now.
    pub(crate) fn shown(&mut self) {
        for hidden in &self.hidden {
            // Where it wrote itself, that stays.
            if self.memory.get(hidden.at, hidden.bytes) == hidden.old & mask(hidden.bytes) {
                self.memory.set(hidden.at, hidden.bytes, hidden.saved);
            }
        }
        let due_ns = if self.landing.is_empty() { 0 } else { self.due() };
        while let Some((at, old)) = self.landing.pop() {
            if self.arrivals.len() == ARRIVALS_MAX {
                let first = self.arrivals.remove(0);
                self.put(&first);
            }
            let words = [self.memory.get(at, 8), self.memory.get(at + 8, 8)];
            self.memory.set(at, 8, old[0]);
            self.memory.set(at + 8, 8, old[1]);
            self.arrivals.push(Arrival {
                at,
                words,
                due_ns,
                known_to: Vec::new(),
            });
        }
    }

    fn put(&mut self, arrival: &Arrival) {
        self.memory.set(arrival.at, 8, arrival.words[0]);
        self.memory.set(arrival.at + 8, 8, arrival.words[1]);
    }

    fn land(&mut self, which: impl Fn(&Arrival) -> bool) {
        let mut position = 0;
        while position < self.arrivals.len() {
            if which(&self.arrivals[position]) {
                let arrival = self.arrivals.remove(position);
                self.put(&arrival);
            } else {
                position += 1;
            }
        }
    }

    fn land_known_to(&mut self, lane: u32) {
        if !self.arrivals.is_empty() {
            self.land(|a| a.known_to.contains(&lane));
        }
    }

    fn land_where_known(&mut self, lane: u32, at: u64, bytes: usize) {
        if !self.arrivals.is_empty() {
            self.land(|a| overlap(a.at, PIECE_BYTES as usize, at, bytes) && a.known_to.contains(&lane));
        }
    }
}

fn mask(bytes: usize) -> u64 {
    if bytes >= 8 { u64::MAX } else { (1 << (8 * bytes)) - 1 }
}

/// Up to 8 bytes each, none across an 8-byte boundary unless the whole is 8 bytes or less.
fn pieces(at: u64, bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let left = bytes - done;
        if left == 0 {
            return None;
        }
        let start = at + done;
        let piece = if bytes <= 8 { bytes } else { left.min(8 - start % 8) };
        done += piece;
        Some((start, piece as usize))
    })
}

/// The bytes of a store in a line's copy.
fn patch(line: &mut Line, at: u64, bytes: usize, value: u64) {
    for n in 0..bytes as u64 {
        let offset = (at + n).wrapping_sub(line.at);
        if offset < LINE_BYTES {
            let (word, shift) = (offset as usize / 8, offset % 8 * 8);
            line.words[word] = line.words[word] & !(0xff << shift) | (value >> (8 * n) & 0xff) << shift;
        }
    }
}

#[cfg(test)]
mod tests;
