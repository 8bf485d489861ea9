//! How a software NIC is set up.

use std::sync::Arc;
use std::time::Duration;

use super::clock::{Clock, RealClock};
use super::limits::ENGINES_MAX;
use super::timing::LinkTiming;
use crate::{Mover, NicError, NicLimits};

/// Settings of a [`SoftNic`](super::SoftNic); made by [`SoftNic::builder`](super::SoftNic::builder).
#[must_use]
#[derive(Clone)]
pub struct SoftNicBuilder {
    pub(super) engines: usize,
    pub(super) limits: NicLimits,
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
            limits: NicLimits {
                reads_per_queue_pair: NicLimits::connectx7().reads_per_queue_pair,
                ..NicLimits::unlimited()
            },
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
    pub fn max_rd_atomic(mut self, max_rd_atomic: u32) -> Self {
        self.limits.reads_per_queue_pair = max_rd_atomic;
        self
    }

    /// Nanoseconds from the start of a request to its completion, transfer time not counted (0).
    pub fn latency_ns(mut self, latency_ns: u64) -> Self {
        self.limits.latency_ns = latency_ns;
        self
    }

    /// Bytes a second that the NIC moves in each direction, over all queue pairs (no limit).
    pub fn bandwidth(mut self, bytes_per_second: u64) -> Self {
        self.limits.link_bytes_per_second = Some(bytes_per_second);
        self
    }

    /// Keeps to these limits, in place of all that [`max_rd_atomic`](Self::max_rd_atomic), [`latency_ns`](Self::latency_ns) and
    /// [`bandwidth`](Self::bandwidth) have said before (16 READs in flight of a queue pair, and no other).
    ///
    /// A request starts when its queue pair's limit of READs lets it, is then taken up by the device at its message rate, and puts its bytes on the
    /// link in the direction that they go; the latency follows. Requests for data and acknowledgements take no room on the link.
    pub fn limits(self, limits: NicLimits) -> Self {
        SoftNicBuilder { limits, ..self }
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
        self.limits.check()?;
        if self.clock.is_some() && self.engines != 0 {
            return bad(
                "number of engines",
                self.engines as u64,
                "0 beside a clock of one's own",
            );
        }
        if self.mover.is_some() && self.limits.take_time() {
            return Err(NicError::Unsupported {
                nic: "software",
                what: "keep to a latency, a bandwidth or a message rate beside a mover, whose copies take their own time",
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
        self.limits.take_time().then(|| LinkTiming::new(self.limits))
    }
}
