//! Engines outside: what they do not see yet, and what of theirs comes late.

use super::{ARRIVALS_MAX, Arrival, Bytes, PIECE_BYTES, WeakMemory, mask, overlap};

impl<M: Bytes> WeakMemory<M> {
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

    pub(super) fn put(&mut self, arrival: &Arrival) {
        self.memory.set(arrival.at, 8, arrival.words[0]);
        self.memory.set(arrival.at + 8, 8, arrival.words[1]);
    }

    pub(super) fn land(&mut self, which: impl Fn(&Arrival) -> bool) {
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

    pub(super) fn land_known_to(&mut self, lane: u32) {
        if !self.arrivals.is_empty() {
            self.land(|a| a.known_to.contains(&lane));
        }
    }

    pub(super) fn land_where_known(&mut self, lane: u32, at: u64, bytes: usize) {
        if !self.arrivals.is_empty() {
            self.land(|a| overlap(a.at, PIECE_BYTES as usize, at, bytes) && a.known_to.contains(&lane));
        }
    }
}
