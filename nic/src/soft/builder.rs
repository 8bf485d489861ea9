//! How a software NIC is set up, and the time its requests take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::clock::{Clock, RealClock};
use super::limits::ENGINES_MAX;
use crate::{Mover, NicError};

/// Settings of a [`SoftNic`](super::SoftNic); made by [`SoftNic::builder`](super::SoftNic::builder).
#[must_use]
#[derive(Clone)]
pub struct SoftNicBuilder {
    pub(super) engines: usize,
    pub(super) max_rd_atomic: u32,
    pub(super) latency_ns: u64,
    pub(super) bytes_per_second: Option<u64>,
    pub(super) strict: bool,
    pub(super) spin: Duration,
    pub(super) yields_max: u32,
    pub(super) bound: Duration,
    pub(super) clock: Option<Arc<dyn Clock>>,
    pub(super) mover: Option<Arc<dyn Mover>>,
    pub(super) watches: bool,
    pub(super) completions_go_on: bool,
}

impl Default for SoftNicBuilder {
    fn default() -> Self {
        SoftNicBuilder {
            engines: 1,
            max_rd_atomic: 16,
            latency_ns: 0,
            bytes_per_second: None,
            strict: true,
            spin: Duration::from_micros(2),
            yields_max: 8,
            bound: Duration::from_secs(10),
            clock: None,
            mover: None,
            watches: false,
            completions_go_on: false,
        }
    }
}

impl SoftNicBuilder {
    /// Engine threads, over which queue pairs are spread (1). With 0 the NIC is in manual mode: it does something
    /// only in calls of [`Nic::step`](crate::Nic::step).
    pub fn engines(self, engines: usize) -> Self {
        SoftNicBuilder { engines, ..self }
    }

    /// READs and atomics that one queue pair may have in flight (16, as a ConnectX reports). It matters when
    /// requests take time, that is with a latency, a bandwidth or a planted delay.
    pub fn max_rd_atomic(self, max_rd_atomic: u32) -> Self {
        SoftNicBuilder { max_rd_atomic, ..self }
    }

    /// Nanoseconds from the start of a request to its completion, transfer time not counted (0).
    pub fn latency_ns(self, latency_ns: u64) -> Self {
        SoftNicBuilder { latency_ns, ..self }
    }

    /// Bytes a second that the NIC moves in each direction, over all queue pairs (no limit).
    pub fn bandwidth(self, bytes_per_second: u64) -> Self {
        SoftNicBuilder {
            bytes_per_second: Some(bytes_per_second),
            ..self
        }
    }

    /// Whether breaches of the queues' rules are collected for [`SoftNic::violations`](super::SoftNic::violations) (yes). Requests that are
    /// garbage fail in any case.
    pub fn strict(self, strict: bool) -> Self {
        SoftNicBuilder { strict, ..self }
    }

    /// How long an engine without work looks for new work without giving its core up (2 microseconds), and how many
    /// times it then yields the core before it sleeps (8).
    pub fn idle(self, spin: Duration, yields_max: u32) -> Self {
        SoftNicBuilder {
            spin,
            yields_max,
            ..self
        }
    }

    /// How long calls wait for an engine to finish the request it executes (10 seconds).
    pub fn bound(self, bound: Duration) -> Self {
        SoftNicBuilder { bound, ..self }
    }

    /// The clock, in manual mode only; engine threads keep to the machine's.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        SoftNicBuilder {
            clock: Some(clock),
            ..self
        }
    }

    /// Has `mover` move the data and the completions, instead of the processor: memory that requests name, and completion
    /// queues, may be anything that the mover reaches. Send queues and doorbell records are memory of this process as
    /// ever. Posters' stores must reach it by themselves: engines look for them, and need no call.
    ///
    /// READs and WRITEs run beside each other, so a READ of what an earlier WRITE writes has to follow the WRITE's
    /// completion, and so has a second WRITE there. Only READ, WRITE of registered memory, NOP and DUMP are executed. The
    /// limit of READs in flight is the mover's.
    pub fn mover(self, mover: Arc<dyn Mover>) -> Self {
        SoftNicBuilder {
            mover: Some(mover),
            ..self
        }
    }

    /// Has engines look for doorbells by themselves, as hardware does: posters need not call
    /// [`Nic::doorbell_written`](crate::Nic::doorbell_written) (no). An engine without work then sleeps no longer than 50
    /// microseconds at a time.
    pub fn watch_doorbells(self, watches: bool) -> Self {
        SoftNicBuilder { watches, ..self }
    }

    /// Lets a completion queue go on where it is when its queue pair is reset, as hardware does, whose completion queues
    /// are objects of their own (no): entries stay, and the next completion has the position that
    /// [`Nic::queue_pair`](crate::Nic::queue_pair) tells.
    pub fn completions_go_on(self, completions_go_on: bool) -> Self {
        SoftNicBuilder {
            completions_go_on,
            ..self
        }
    }

    /// Refuses a setting that cannot be.
    pub(super) fn check(&self) -> Result<(), NicError> {
        let bad = |what, value, expected| Err(NicError::BadArgument { what, value, expected });
        if self.engines > ENGINES_MAX {
            return bad("number of engines", self.engines as u64, "at most 64");
        }
        if self.max_rd_atomic == 0 {
            return bad("max_rd_atomic", 0, "at least 1");
        }
        if self.bytes_per_second == Some(0) {
            return bad("bandwidth", 0, "at least 1 byte a second");
        }
        if self.clock.is_some() && self.engines != 0 {
            return bad(
                "number of engines",
                self.engines as u64,
                "0 beside a clock of one's own",
            );
        }
        if self.mover.is_some() && (self.latency_ns != 0 || self.bytes_per_second.is_some()) {
            return Err(NicError::Unsupported {
                nic: "software",
                what: "shape latency or bandwidth beside a mover, whose copies take their own time",
            });
        }
        if self.mover.is_some() && self.completions_go_on {
            return Err(NicError::Unsupported {
                nic: "software",
                what: "let completion queues go on over a reset beside a mover",
            });
        }
        Ok(())
    }

    pub(super) fn take_clock(&mut self) -> Arc<dyn Clock> {
        self.clock.take().unwrap_or_else(|| Arc::new(RealClock::new()))
    }

    pub(super) fn shape(&self) -> Option<LinkTiming> {
        (self.latency_ns != 0 || self.bytes_per_second.is_some()).then(|| LinkTiming {
            latency_ns: self.latency_ns,
            bytes_per_second: self.bytes_per_second,
            free_at_ns: Default::default(),
        })
    }
}

/// How long requests take on the modelled link.
pub(super) struct LinkTiming {
    latency_ns: u64,
    bytes_per_second: Option<u64>,
    /// When the link is free again: outbound, inbound.
    free_at_ns: [AtomicU64; 2],
}

impl LinkTiming {
    /// Puts `bytes` bytes on the link at `now_ns` or when it is free, and returns when they have arrived.
    pub fn due_ns(&self, now_ns: u64, inbound: bool, bytes: u64) -> u64 {
        let Some(bytes_per_second) = self.bytes_per_second else {
            return now_ns.saturating_add(self.latency_ns);
        };
        let transfer = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second);
        let transfer_ns = u64::try_from(transfer).unwrap_or(u64::MAX);
        let end = |free_at: u64| free_at.max(now_ns).saturating_add(transfer_ns);
        // Relaxed: a number that engines share; nothing is ordered by it.
        let free_at =
            self.free_at_ns[usize::from(inbound)]
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free_at| Some(end(free_at)));
        end(free_at.unwrap_or_else(|free_at| free_at)).saturating_add(self.latency_ns)
    }
}
