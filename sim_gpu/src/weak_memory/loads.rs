//! Loads: what a lane sees.

use super::{
    Access, Bytes, LINE_BYTES, LINE_LASTS, LINES, Line, MULTIPROCESSORS, Order, SEEN_MAX, Scope, WeakMemory, Who,
    overlap,
};

impl<M: Bytes> WeakMemory<M> {
    /// The lane's own waiting stores over `value`.
    pub(super) fn overlay(&self, lane: u32, at: u64, bytes: usize, mut value: u64) -> u64 {
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

    pub(super) fn load(&mut self, who: Who, access: Access) -> u64 {
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

    pub(super) fn acquire(&mut self, lane: u32, scope: Scope) {
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
    pub(super) fn cached(&mut self, who: Who, at: u64, bytes: usize) -> u64 {
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
    pub(super) fn early(&mut self, lane: u32, at: u64, bytes: usize) -> u64 {
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
    pub(super) fn note_seen(&mut self, lane: u32, at: u64, clock: u64) {
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
}
