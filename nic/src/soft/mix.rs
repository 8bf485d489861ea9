//! Faults by seed: a mix of kinds at rates, drawn anew for every request. The same seed and the same order of requests draw
//! the same faults; addresses and real time decide nothing.
//!
//! A mix is written as on a command line: `lost:1/200,late:1/50@20us,die:1`. Each item is a kind, a rate, and for the kinds
//! that take one a time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::execute::Failure;
use super::vendor;
use crate::wire::mlx5::{Opcode, Segment, Syndrome, WorkRequest};

/// Odds of a kind that is asked for by a number of times alone.
const ODDS: u32 = 32;
/// Least odds: a billionth.
const ODDS_MAX: u32 = 1_000_000_000;
/// Longest time of an item.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// Bytes of the smallest piece in which data lands.
const PIECE_BYTES_MIN: u64 = 64;
/// Most pieces of one request.
const PIECES_MAX: u64 = 8;

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// A signalled request is executed and its completion never written.
    Lost,
    /// A request, and what is behind it on its queue pair, completes up to a time later.
    Late,
    /// Data of a request moves before that of requests ahead of it. Completions keep their order.
    Reorder,
    /// Data of a request moves in pieces, in any order, with other requests' in between.
    Pieces,
    /// Data of a READ lands up to a time after its completion, unless a DUMP flushes it: a GPU that orders nothing.
    Unflushed,
    /// All requests to one remote key take so much longer, until faults end.
    Slow,
    /// All requests to one remote key fail with retries exceeded for a time: a memory node that dies and returns.
    Die,
    /// A queue pair goes to the error state by itself: its requests in flight are flushed, and none says why.
    QueuePair,
    /// A doorbell is seen up to a time late, with those that were rung meanwhile.
    Doorbell,
    /// All requests to one remote key fail with a remote access error, until faults end.
    Revoke,
    /// Requests that reach one local key at or past some address fail with a local protection error, until faults end: the
    /// memory was registered too short.
    Short,
    /// A request is not executed and completes with this syndrome.
    Fail(Syndrome),
}

/// Names on a command line; what a kind needs beside its rate.
const KINDS: &[(&str, FaultKind, Option<Duration>)] = &[
    ("lost", FaultKind::Lost, None),
    ("late", FaultKind::Late, Some(Duration::from_micros(20))),
    ("reorder", FaultKind::Reorder, Some(Duration::from_micros(4))),
    ("pieces", FaultKind::Pieces, Some(Duration::from_micros(4))),
    ("unflushed", FaultKind::Unflushed, Some(Duration::from_micros(20))),
    ("slow", FaultKind::Slow, Some(Duration::from_micros(10))),
    ("die", FaultKind::Die, Some(Duration::from_micros(200))),
    ("qp-error", FaultKind::QueuePair, None),
    ("doorbell", FaultKind::Doorbell, Some(Duration::from_micros(10))),
    ("revoke", FaultKind::Revoke, None),
    ("short", FaultKind::Short, None),
    ("local-length", FaultKind::Fail(Syndrome::LocalLength), None),
    ("local-qp", FaultKind::Fail(Syndrome::LocalQueuePairOperation), None),
    ("local-protection", FaultKind::Fail(Syndrome::LocalProtection), None),
    ("flushed", FaultKind::Fail(Syndrome::Flushed), None),
    ("window-bind", FaultKind::Fail(Syndrome::WindowBind), None),
    ("bad-response", FaultKind::Fail(Syndrome::BadResponse), None),
    ("local-access", FaultKind::Fail(Syndrome::LocalAccess), None),
    ("remote-invalid", FaultKind::Fail(Syndrome::RemoteInvalidRequest), None),
    ("remote-access", FaultKind::Fail(Syndrome::RemoteAccess), None),
    ("remote-operation", FaultKind::Fail(Syndrome::RemoteOperation), None),
    ("retries", FaultKind::Fail(Syndrome::TransportRetryExceeded), None),
    ("rnr", FaultKind::Fail(Syndrome::ReceiverNotReady), None),
    ("aborted", FaultKind::Fail(Syndrome::RemoteAborted), None),
];

impl FaultKind {
    /// Every kind that has a name.
    pub fn all() -> impl Iterator<Item = FaultKind> {
        KINDS.iter().map(|(_, kind, _)| *kind)
    }

    /// Its name in a mix.
    pub fn name(self) -> &'static str {
        let found = KINDS.iter().find(|(_, kind, _)| *kind == self);
        found.map_or("unknown", |(name, ..)| name)
    }

    /// Whether it bites some time after its request has started, or never, as others let it.
    fn shows_later(self) -> bool {
        matches!(self, Self::Lost | Self::Reorder | Self::Pieces | Self::Unflushed)
    }

    /// The time that an item of this kind has by itself; `None` where it takes none.
    pub fn time(self) -> Option<Duration> {
        KINDS.iter().find(|(_, kind, _)| *kind == self)?.2
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One kind of a mix, and how often it is to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultRate {
    /// The kind.
    pub kind: FaultKind,
    /// It happens to one in this many requests (doorbells, for [`FaultKind::Doorbell`]).
    pub odds: u32,
    /// It happens so many times at most; `None`: for ever.
    pub times: Option<u32>,
    /// How long it lasts, or delays; zero for kinds without a time. A delay is drawn up to it.
    pub time: Duration,
}

impl FaultRate {
    /// `kind` for one in `odds` requests, which is at least 1, with its own time.
    pub fn one_in(kind: FaultKind, odds: u32) -> Self {
        FaultRate {
            kind,
            odds: odds.clamp(1, ODDS_MAX),
            times: None,
            time: kind.time().unwrap_or_default(),
        }
    }

    /// At most `times` times.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        FaultRate {
            times: Some(times),
            ..self
        }
    }

    /// Lasting, or delaying up to, `time`, where the kind takes one.
    #[must_use]
    pub fn lasting(self, time: Duration) -> Self {
        let time = self.kind.time().map_or(Duration::ZERO, |_| time.min(TIME_MAX));
        FaultRate { time, ..self }
    }
}

impl fmt::Display for FaultRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.kind)?;
        match self.times {
            Some(times) if self.odds == ODDS => write!(f, "{times}")?,
            Some(times) => write!(f, "1/{}x{times}", self.odds)?,
            None => write!(f, "1/{}", self.odds)?,
        }
        match self.kind.time() {
            Some(usual) if usual != self.time => {
                let ns = self.time.as_nanos();
                match (ns % 1_000_000, ns % 1000) {
                    (0, _) => write!(f, "@{}ms", ns / 1_000_000),
                    (_, 0) => write!(f, "@{}us", ns / 1000),
                    _ => write!(f, "@{ns}ns"),
                }
            }
            _ => Ok(()),
        }
    }
}

/// Kinds of faults at rates. `Display` and `FromStr` are each other's inverse.
///
/// ```
/// use gpuvm_nic::soft::FaultMix;
///
/// let mix: FaultMix = "lost:1/200,late:1/50@5us,die:1".parse()?;
/// assert_eq!(mix.to_string(), "lost:1/200,late:1/50@5us,die:1");
/// # Ok::<(), gpuvm_nic::soft::FaultMixError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultMix {
    /// In the order in which they are drawn. A kind occurs once.
    rates: Vec<FaultRate>,
}

impl FaultMix {
    /// A mix of no faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rate, in place of an earlier one of its kind.
    #[must_use]
    pub fn with(mut self, rate: FaultRate) -> Self {
        match self.rates.iter_mut().find(|there| there.kind == rate.kind) {
            Some(there) => *there = rate,
            None => self.rates.push(rate),
        }
        self
    }

    /// What it asks for.
    pub fn rates(&self) -> &[FaultRate] {
        &self.rates
    }

    /// Whether it asks for nothing.
    pub fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }
}

impl fmt::Display for FaultMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, rate) in self.rates.iter().enumerate() {
            write!(f, "{}{rate}", if number == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// A mix of faults that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultMixError {
    /// No such kind.
    #[error("no fault is called `{name}`; there are {}", names())]
    UnknownKind {
        /// What was given.
        name: String,
    },
    /// A rate that is none.
    #[error(
        "the rate of fault `{kind}` is `{rate}`; write a number of times (`{kind}:2`), one in so many (`{kind}:1/200`), or both (`{kind}:1/200x2`), \
         1 to 1000000000"
    )]
    Rate {
        /// The kind.
        kind: FaultKind,
        /// What was given.
        rate: String,
    },
    /// A time that is none.
    #[error(
        "the time of fault `{kind}` is `{time}`; write it with its unit, as `500ns`, `20us` or `3ms`, up to an hour"
    )]
    Time {
        /// The kind.
        kind: FaultKind,
        /// What was given.
        time: String,
    },
    /// A time for a kind that takes none.
    #[error("fault `{kind}` takes no time; leave `@{time}` out")]
    NoTime {
        /// The kind.
        kind: FaultKind,
        /// What was given.
        time: String,
    },
    /// A kind that was asked for twice.
    #[error("fault `{kind}` is there twice; give it one rate")]
    Twice {
        /// The kind.
        kind: FaultKind,
    },
}

fn names() -> String {
    let names: Vec<&str> = KINDS.iter().map(|(name, ..)| *name).collect();
    names.join(", ")
}

impl FromStr for FaultMix {
    type Err = FaultMixError;

    /// Reads items with commas between: `KIND`, `KIND:TIMES`, `KIND:1/ODDS` or `KIND:1/ODDSxTIMES`, each perhaps with `@TIME`.
    /// An empty text is no faults, and so is `none`.
    fn from_str(text: &str) -> Result<Self, FaultMixError> {
        let text = text.trim();
        let mut mix = FaultMix::new();
        if text.is_empty() || text == "none" {
            return Ok(mix);
        }
        for item in text.split(',') {
            let rate = parse_rate(item.trim())?;
            if mix.rates.iter().any(|there| there.kind == rate.kind) {
                return Err(FaultMixError::Twice { kind: rate.kind });
            }
            mix.rates.push(rate);
        }
        Ok(mix)
    }
}

fn parse_rate(item: &str) -> Result<FaultRate, FaultMixError> {
    let (rest, time) = match item.split_once('@') {
        Some((rest, time)) => (rest, Some(time)),
        None => (item, None),
    };
    let (name, rate) = rest.split_once(':').unwrap_or((rest, "1"));
    let Some((_, kind, usual)) = KINDS.iter().find(|(known, ..)| *known == name) else {
        return Err(FaultMixError::UnknownKind { name: name.to_owned() });
    };
    let kind = *kind;
    let bad = || FaultMixError::Rate {
        kind,
        rate: rate.to_owned(),
    };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| (1..=ODDS_MAX).contains(number));
        number.filter(|_| digits).ok_or_else(bad)
    };
    let (odds, times) = match rate.split_once('/') {
        None => (ODDS, Some(number(rate)?)),
        Some((one, rest)) => {
            if one != "1" {
                return Err(bad());
            }
            match rest.split_once('x') {
                None => (number(rest)?, None),
                Some((odds, times)) => (number(odds)?, Some(number(times)?)),
            }
        }
    };
    let time = match (time, usual) {
        (None, usual) => usual.unwrap_or_default(),
        (Some(time), None) => {
            return Err(FaultMixError::NoTime {
                kind,
                time: time.to_owned(),
            });
        }
        (Some(time), Some(_)) => parse_time(time).ok_or_else(|| FaultMixError::Time {
            kind,
            time: time.to_owned(),
        })?,
    };
    Ok(FaultRate {
        kind,
        odds,
        times,
        time,
    })
}

fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let ns = match unit {
        "ns" => 1,
        "us" => 1000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let time = Duration::from_nanos(number.parse::<u64>().ok()?.checked_mul(ns)?);
    (!time.is_zero() && time <= TIME_MAX).then_some(time)
}

/// How often each kind of a mix was asked for and bit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultTally {
    counts: Vec<FaultCount>,
}

/// One kind of a [`FaultTally`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultCount {
    /// What was asked for.
    pub rate: FaultRate,
    /// How often it began.
    pub begun: u64,
    /// Requests, or doorbells, that it has bitten: not drawn, but shown. `lost` counts when a completion is left out, `reorder` when data
    /// moves ahead of an earlier request's, `pieces` when a part moves without the rest, `unflushed` when a request completes without
    /// its data; the others when the request starts, since they leave it no other way.
    pub bitten: u64,
}

/// Faults that were asked for and never happened: a run that shows nothing of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} asked for and never happened; give a higher rate, more seeds or a longer program",
    list(kinds)
)]
pub struct Unbitten {
    /// The kinds.
    pub kinds: Vec<FaultKind>,
}

fn list(kinds: &[FaultKind]) -> String {
    let names: Vec<String> = kinds.iter().map(|kind| format!("`{kind}`")).collect();
    match names.as_slice() {
        [one] => format!("fault {one} was"),
        many => format!("faults {} were", many.join(", ")),
    }
}

impl FaultTally {
    /// Each kind.
    pub fn counts(&self) -> &[FaultCount] {
        &self.counts
    }

    /// How often a kind bit.
    pub fn bitten(&self, kind: FaultKind) -> u64 {
        self.counts
            .iter()
            .filter(|count| count.rate.kind == kind)
            .map(|count| count.bitten)
            .sum()
    }

    /// Adds what another NIC, or another seed's run, has counted.
    pub fn merge(&mut self, other: &FaultTally) {
        for count in &other.counts {
            match self.counts.iter_mut().find(|there| there.rate.kind == count.rate.kind) {
                Some(there) => {
                    there.begun += count.begun;
                    there.bitten += count.bitten;
                }
                None => self.counts.push(*count),
            }
        }
    }

    /// Whether every kind that was asked for has happened.
    ///
    /// # Errors
    /// [`Unbitten`] with those that have not.
    pub fn check(&self) -> Result<(), Unbitten> {
        let never = self.counts.iter().filter(|count| count.bitten == 0);
        let kinds: Vec<FaultKind> = never.map(|count| count.rate.kind).collect();
        match kinds.is_empty() {
            true => Ok(()),
            false => Err(Unbitten { kinds }),
        }
    }
}

impl fmt::Display for FaultTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, count) in self.counts.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{} bitten {}", count.rate, count.bitten)?;
        }
        Ok(())
    }
}

/// A generator of its own: the same numbers on every machine, whatever becomes of other crates. (SplitMix64.)
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

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
pub(super) struct Verdict {
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
}

/// A mix at work.
pub(super) struct Mixed {
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
        let opcode = request.operation.opcode();
        let plain = |segment: Segment<'_>| matches!(segment, Segment::Data { .. });
        let moves = matches!(opcode, Opcode::Read | Opcode::Write)
            && request.segments.len_bytes() > 0
            && request.segments.iter().all(plain);
        let remote = request.operation.remote().map(|(_, rkey)| rkey);
        let local = request.segments.iter().find_map(|segment| match segment {
            Segment::Data { lkey, address, .. } => Some((lkey, address, segment.len_bytes())),
            Segment::Inline(_) => None,
        });
        self.dead.retain(|(_, until_ns)| *until_ns > now_ns);
        for place in 0..self.counts.len() {
            let FaultRate { kind, time, .. } = self.counts[place].rate;
            let possible = match kind {
                FaultKind::Lost => request.signalled,
                FaultKind::Reorder | FaultKind::Pieces => moves,
                FaultKind::Unflushed => moves && opcode == Opcode::Read,
                FaultKind::Slow => remote.is_some_and(|key| self.slow.iter().all(|(slow, _)| *slow != key)),
                FaultKind::Die => remote.is_some_and(|key| self.dead.iter().all(|(dead, _)| *dead != key)),
                FaultKind::Revoke => remote.is_some_and(|key| !self.revoked.contains(&key)),
                FaultKind::Short => local.is_some_and(|(key, ..)| self.short.iter().all(|(short, _)| *short != key)),
                FaultKind::Doorbell => false,
                FaultKind::Late | FaultKind::QueuePair | FaultKind::Fail(_) => true,
            };
            let begins = possible && self.begins(place);
            let ns = time.as_nanos() as u64;
            match (kind, remote) {
                (FaultKind::Slow, Some(key)) if begins => self.slow.push((key, ns)),
                (FaultKind::Die, Some(key)) if begins => self.dead.push((key, now_ns.saturating_add(ns))),
                (FaultKind::Revoke, Some(key)) if begins => self.revoked.push(key),
                (FaultKind::Short, _) if begins => {
                    if let Some((key, address, bytes)) = local {
                        self.short.push((key, address.saturating_add(bytes / 2)));
                    }
                }
                _ => {}
            }
            // Faults that last bite whoever meets them, the request that began them first.
            let bites = match kind {
                FaultKind::Slow => remote
                    .and_then(|key| self.slow.iter().find(|(slow, _)| *slow == key))
                    .is_some(),
                FaultKind::Die => remote.is_some_and(|key| self.dead.iter().any(|(dead, _)| *dead == key)),
                FaultKind::Revoke => remote.is_some_and(|key| self.revoked.contains(&key)),
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
            let injected = |syndrome| {
                Some(Failure {
                    syndrome,
                    vendor: vendor::INJECTED,
                })
            };
            match kind {
                FaultKind::Lost => verdict.lose = true,
                FaultKind::Late => verdict.delay_ns += self.dice.up_to(time),
                FaultKind::Slow => verdict.delay_ns += ns,
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
        verdict
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
pub(super) fn pieces_of(bytes: u64, pieces: u64) -> Vec<(u64, u64)> {
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
    fn what_is_written_is_what_is_read() {
        for kind in FaultKind::all() {
            for text in ["NAME:1/7", "NAME:1/7x2", "NAME:3", "NAME:1/1000000000x1000000000"] {
                let text = text.replace("NAME", kind.name());
                let mix: FaultMix = text.parse().expect(&text);
                assert_eq!((mix.rates().len(), mix.to_string()), (1, text));
                assert_eq!(mix.rates()[0].kind, kind);
            }
        }
        let mix: FaultMix = " lost:1/200, late:1/50@7ns ,die,slow:2@3ms,doorbell:1/2@1500us "
            .parse()
            .unwrap();
        assert_eq!(
            mix.to_string(),
            "lost:1/200,late:1/50@7ns,die:1,slow:2@3ms,doorbell:1/2@1500us"
        );
        assert_eq!(mix.to_string().parse(), Ok(mix));
        assert!("".parse::<FaultMix>().unwrap().is_empty() && "none".parse::<FaultMix>().unwrap().is_empty());
        // Every syndrome has its name.
        let named = |syndrome: &Syndrome| FaultKind::all().any(|kind| kind == FaultKind::Fail(*syndrome));
        assert!(Syndrome::KNOWN.iter().all(named));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (text, word) in [
            ("loss:1", "`loss`"),
            ("lost:", "`lost:2`"),
            ("lost:0", "`0`"),
            ("lost:1/0", "`1/0`"),
            ("lost:2/3", "`2/3`"),
            ("lost:1/+3", "`1/+3`"),
            ("lost:1/3x", "`1/3x`"),
            ("lost:99999999999", "`99999999999`"),
            ("lost:1@3us", "takes no time"),
            ("late:1@3", "`3`"),
            ("late:1@0us", "`0us`"),
            ("late:1@", "``"),
            ("late:1@99999999999999999999s", "up to an hour"),
            ("late:1@2h", "`2h`"),
            ("late:1,late:2", "twice"),
            (",", "``"),
            ("lost:1,", "``"),
        ] {
            let error = text.parse::<FaultMix>().expect_err(text);
            assert!(error.to_string().contains(word), "{text}: {error}");
        }
    }

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

    #[test]
    fn a_tally_names_what_never_happened() {
        let mix: FaultMix = "lost:1/2,die:1".parse().unwrap();
        let mut tally = Mixed::new(&mix, 1).tally();
        assert_eq!(tally.check().unwrap_err().kinds, [FaultKind::Lost, FaultKind::Die]);
        let mut other = tally.clone();
        other.counts[0].bitten = 3;
        tally.merge(&other);
        let error = tally.check().unwrap_err();
        assert_eq!(error.kinds, [FaultKind::Die]);
        assert!(
            error
                .to_string()
                .contains("fault `die` was asked for and never happened")
        );
        assert_eq!(tally.bitten(FaultKind::Lost), 3);
    }
}
