//! Faults by seed: a mix of kinds at rates, drawn anew for every request. The same seed and the same order of requests draw
//! the same faults; addresses and real time decide nothing.
//!
//! A mix is written as on a command line: `lost:1/200,late:1/50@20us,die:1`. Each item is a kind, a rate, and for the kinds
//! that take one a time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

mod judge;
mod tally;

pub(super) use judge::{Mixed, Verdict, pieces_of};
pub use tally::{FaultCount, FaultTally, Unbitten};

use crate::wire::mlx5::Syndrome;

/// Odds of a kind that is asked for by a number of times alone.
const ODDS: u32 = 32;
/// Least odds: a billionth.
const ODDS_MAX: u32 = 1_000_000_000;
/// Longest time of an item.
const TIME_MAX: Duration = Duration::from_secs(3600);

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
}
