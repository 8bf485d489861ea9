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
mod loads;
mod outside;
mod stores;

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

    // ---- Accesses and fences ----

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

#[cfg(test)]
mod tests;
