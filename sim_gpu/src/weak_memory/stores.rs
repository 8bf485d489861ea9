//! Stores: they wait, and are performed.

use super::{
    Access, Bytes, HIDDEN_MAX, HISTORY_MAX, Hidden, LINE_BYTES, Line, MULTIPROCESSORS, Order, PENDING_MAX, PIECE_BYTES,
    Past, Pending, Scope, WeakMemory, Who, overlap,
};

impl<M: Bytes> WeakMemory<M> {
    /// Takes the waiting store at `position` and performs it.
    pub(super) fn perform(&mut self, position: usize) {
        let p = self.pending.remove(position);
        self.view(p.who.lane).held -= 1;
        self.commit(p.who, p.at, p.bytes, p.value, p.system);
    }

    pub(super) fn commit(&mut self, who: Who, at: u64, bytes: usize, value: u64, system: bool) {
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
    pub(super) fn drain(&mut self, lane: u32, before: u64) {
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
    pub(super) fn drain_for(&mut self, lane: u32, after: u64, at: u64, bytes: usize) {
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

    pub(super) fn store(&mut self, who: Who, access: Access, value: u64) {
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
    pub(super) fn show_waiting(&mut self, lane: u32) {
        for p in self.pending.iter_mut().filter(|p| p.who.lane == lane) {
            p.system = true;
        }
    }
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
