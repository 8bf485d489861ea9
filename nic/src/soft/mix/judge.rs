//! A mix at work: what becomes of each request, by seed.

use std::time::Duration;

use super::{FaultCount, FaultKind, FaultMix, FaultRate, FaultTally};
use crate::soft::failure::Failure;
use crate::wire::mlx5::{Opcode, Segment, Syndrome, WorkRequest};

/// Bytes of the smallest piece in which data lands.
const PIECE_BYTES_MIN: u64 = 64;
/// Most pieces of one request.
const PIECES_MAX: u64 = 8;

/// A generator of its own: the same numbers on every machine, whatever becomes of other crates. (SplitMix64.)
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is at least 1.
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of a wide product: as good as even for the small ends that are asked for.
        ((u128::from(self.next()) * u128::from(end.max(1))) >> 64) as u64
    }

    fn up_to(&mut self, time: Duration) -> u64 {
        1 + self.below(time.as_nanos() as u64)
    }
}

/// What becomes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// It fails so.
    pub failure: Option<Failure>,
    /// Its completion is never written.
    pub lose: bool,
    /// It is due so much later.
    pub delay_ns: u64,
    /// Its data moves by itself, in this many pieces at most; 0: when it completes.
    pub pieces: u64,
    /// That its data overtakes an earlier request's is to be counted.
    pub reorders: bool,
    /// That a part of its data moves before the rest is to be counted.
    pub splits: bool,
    /// A part of its data lands up to so long after its completion; 0: none.
    pub adrift_ns: u64,
    /// Its queue pair goes to the error state before it starts.
    pub breaks: bool,
    /// One bit of what it moved is wrong where it went.
    pub flip: Option<u64>,
}

/// What of a request decides which faults can begin at it.
struct Target {
    signalled: bool,
    /// It is a READ or WRITE of bytes that lie in registered memory.
    moves: bool,
    reads: bool,
    remote: Option<u32>,
    /// Key, address and bytes of its first local span.
    local: Option<(u32, u64, u64)>,
}

impl Target {
    fn of(request: &WorkRequest<'_>) -> Self {
        let opcode = request.operation.opcode();
        let plain = |segment: Segment<'_>| matches!(segment, Segment::Data { .. });
        Target {
            signalled: request.signalled,
            moves: matches!(opcode, Opcode::Read | Opcode::Write)
                && request.segments.len_bytes() > 0
                && request.segments.iter().all(plain),
            reads: opcode == Opcode::Read,
            remote: request.operation.remote().map(|(_, rkey)| rkey),
            local: request.segments.iter().find_map(|segment| match segment {
                Segment::Data { lkey, address, .. } => Some((lkey, address, segment.len_bytes())),
                Segment::Inline(_) => None,
            }),
        }
    }
}

/// A mix at work.
pub struct Mixed {
    counts: Vec<FaultCount>,
    dice: Dice,
    /// Remote keys that do not answer, and until when.
    dead: Vec<(u32, u64)>,
    /// Remote keys that are slow, and by how much.
    slow: Vec<(u32, u64)>,
    revoked: Vec<u32>,
    /// Local keys, and the first address that they do not cover.
    short: Vec<(u32, u64)>,
    calm: bool,
}

impl Mixed {
    pub fn new(mix: &FaultMix, seed: u64) -> Self {
        let counts = mix.rates.iter().map(|rate| FaultCount {
            rate: *rate,
            begun: 0,
            bitten: 0,
        });
        Mixed {
            counts: counts.collect(),
            dice: Dice::new(seed),
            dead: Vec::new(),
            slow: Vec::new(),
            revoked: Vec::new(),
            short: Vec::new(),
            calm: false,
        }
    }

    pub fn tally(&self) -> FaultTally {
        FaultTally {
            counts: self.counts.clone(),
        }
    }

    /// No fault begins any more, and those that last end.
    pub fn calm(&mut self) {
        self.calm = true;
        self.dead.clear();
        self.slow.clear();
        self.revoked.clear();
        self.short.clear();
    }

    /// A kind that was drawn for a request has shown.
    pub fn bit(&mut self, kind: FaultKind) {
        if let Some(count) = self.counts.iter_mut().find(|count| count.rate.kind == kind) {
            count.bitten += 1;
        }
    }

    /// Whether count `place` begins now. It is counted.
    fn begins(&mut self, place: usize) -> bool {
        let count = &mut self.counts[place];
        let spent = count.rate.times.is_some_and(|times| count.begun >= u64::from(times));
        if spent || self.dice.below(u64::from(count.rate.odds)) != 0 {
            return false;
        }
        count.begun += 1;
        true
    }

    /// How long a doorbell that was just found is overlooked; 0: not.
    pub fn hold_doorbell(&mut self) -> u64 {
        if self.calm {
            return 0;
        }
        let place = self.counts.iter().position(|c| c.rate.kind == FaultKind::Doorbell);
        let Some(place) = place.filter(|place| self.begins(*place)) else {
            return 0;
        };
        self.counts[place].bitten += 1;
        self.dice.up_to(self.counts[place].rate.time)
    }

    /// A number below `end`, for whoever moves data.
    pub fn below(&mut self, end: u64) -> u64 {
        self.dice.below(end)
    }

    /// What becomes of a request that starts at `now_ns`.
    pub fn judge(&mut self, request: &WorkRequest<'_>, now_ns: u64) -> Verdict {
        let mut verdict = Verdict::default();
        if self.calm {
            return verdict;
        }
        self.dead.retain(|(_, until_ns)| *until_ns > now_ns);
        let target = Target::of(request);
        for place in 0..self.counts.len() {
            let FaultRate { kind, time, .. } = self.counts[place].rate;
            let begins = self.can_begin(kind, &target) && self.begins(place);
            if begins {
                self.begin_lasting(kind, time, &target, now_ns);
            }
            // Faults that last bite whoever meets them, the request that began them first.
            let bites = match kind {
                FaultKind::Slow | FaultKind::Die | FaultKind::Revoke => {
                    target.remote.is_some_and(|key| self.is_beset(kind, key))
                }
                FaultKind::Short => request.segments.iter().any(|segment| self.reaches_past(&segment)),
                _ => begins,
            };
            // What has failed already fails for one reason, and is not executed.
            if !bites || verdict.failure.is_some() || verdict.breaks {
                continue;
            }
            if !kind.shows_later() {
                self.counts[place].bitten += 1;
            }
            self.sentence(&mut verdict, kind, time);
        }
        verdict
    }

    /// Whether a fault of this kind can begin at a request: those that last begin once for each key.
    fn can_begin(&self, kind: FaultKind, target: &Target) -> bool {
        match kind {
            FaultKind::Lost => target.signalled,
            FaultKind::Reorder | FaultKind::Pieces => target.moves,
            FaultKind::Unflushed => target.moves && target.reads,
            FaultKind::Slow | FaultKind::Die | FaultKind::Revoke => {
                target.remote.is_some_and(|key| !self.is_beset(kind, key))
            }
            FaultKind::Short => target
                .local
                .is_some_and(|(key, ..)| self.short.iter().all(|(short, _)| *short != key)),
            FaultKind::Doorbell => false,
            FaultKind::Late | FaultKind::QueuePair | FaultKind::Fail(_) => true,
        }
    }

    /// Whether a fault that lasts, of this kind, has a remote key.
    fn is_beset(&self, kind: FaultKind, key: u32) -> bool {
        match kind {
            FaultKind::Slow => self.slow.iter().any(|(slow, _)| *slow == key),
            FaultKind::Die => self.dead.iter().any(|(dead, _)| *dead == key),
            FaultKind::Revoke => self.revoked.contains(&key),
            _ => false,
        }
    }

    /// Notes a fault that lasts, which begins at a request of `target`.
    fn begin_lasting(&mut self, kind: FaultKind, time: Duration, target: &Target, now_ns: u64) {
        let ns = time.as_nanos() as u64;
        match (kind, target.remote, target.local) {
            (FaultKind::Slow, Some(key), _) => self.slow.push((key, ns)),
            (FaultKind::Die, Some(key), _) => self.dead.push((key, now_ns.saturating_add(ns))),
            (FaultKind::Revoke, Some(key), _) => self.revoked.push(key),
            (FaultKind::Short, _, Some((key, address, bytes))) => {
                self.short.push((key, address.saturating_add(bytes / 2)));
            }
            _ => {}
        }
    }

    /// Adds to a verdict what a fault that bites does.
    fn sentence(&mut self, verdict: &mut Verdict, kind: FaultKind, time: Duration) {
        let injected = |syndrome| Some(Failure::injected(syndrome));
        match kind {
            FaultKind::Lost => verdict.lose = true,
            FaultKind::Late => verdict.delay_ns += self.dice.up_to(time),
            FaultKind::Slow => verdict.delay_ns += time.as_nanos() as u64,
            // Time for what is behind it to start, and for pieces to land one by one.
            FaultKind::Reorder => {
                verdict.delay_ns += self.dice.up_to(time);
                verdict.pieces = verdict.pieces.max(1);
                verdict.reorders = true;
            }
            FaultKind::Pieces => {
                verdict.delay_ns += self.dice.up_to(time);
                verdict.pieces = PIECES_MAX;
                verdict.splits = true;
            }
            FaultKind::Unflushed => {
                verdict.pieces = PIECES_MAX;
                verdict.adrift_ns = self.dice.up_to(time);
            }
            FaultKind::QueuePair => verdict.breaks = true,
            FaultKind::Die => verdict.failure = injected(Syndrome::TransportRetryExceeded),
            FaultKind::Revoke => verdict.failure = injected(Syndrome::RemoteAccess),
            FaultKind::Short => verdict.failure = injected(Syndrome::LocalProtection),
            FaultKind::Fail(syndrome) => verdict.failure = injected(syndrome),
            FaultKind::Doorbell => {}
        }
    }

    fn reaches_past(&self, segment: &Segment<'_>) -> bool {
        match segment {
            Segment::Data { lkey, address, .. } => self
                .short
                .iter()
                .any(|(key, end)| key == lkey && address.saturating_add(segment.len_bytes()) > *end),
            Segment::Inline(_) => false,
        }
    }
}

/// `bytes` bytes in at most `pieces` pieces, as (offset, length).
pub fn pieces_of(bytes: u64, pieces: u64) -> Vec<(u64, u64)> {
    let each = bytes
        .div_ceil(pieces.max(1))
        .next_multiple_of(PIECE_BYTES_MIN)
        .max(PIECE_BYTES_MIN);
    (0..bytes.div_ceil(each))
        .map(|number| (number * each, each.min(bytes - number * each)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_bytes_once() {
        for bytes in [1, 63, 64, 65, 100, 512, 513, 4096, 4095, 1 << 21] {
            for count in 1..=PIECES_MAX {
                let pieces = pieces_of(bytes, count);
                assert!(pieces.len() as u64 <= count && !pieces.is_empty());
                let mut at = 0;
                for (offset, length) in pieces {
                    assert!(offset == at && length > 0);
                    at += length;
                }
                assert_eq!(at, bytes);
            }
        }
    }
}
