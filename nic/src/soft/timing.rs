//! The time that requests take on the modelled NIC.

use parking_lot::Mutex;

use super::failure::Failure;
use super::mix::Verdict;
use crate::NicLimits;
use crate::wire::mlx5::{Syndrome, WorkRequest};

const PS_PER_NS: u128 = 1000;
const PS_PER_SECOND: u128 = 1_000_000_000_000;

/// When what all queue pairs share is free again, in picoseconds: a link of 400 Gb/s carries a byte in 20.
#[derive(Default)]
struct Busy {
    /// What starts requests.
    device_ps: u128,
    /// The link: outbound, inbound.
    link_ps: [u128; 2],
}

/// How long requests take, by the limits of a NIC.
pub(super) struct LinkTiming {
    pub limits: NicLimits,
    busy: Mutex<Busy>,
}

impl LinkTiming {
    pub fn new(limits: NicLimits) -> Self {
        LinkTiming {
            limits,
            busy: Mutex::default(),
        }
    }

    /// Starts a request at `now_ns`, or when the device is free; puts its `bytes` bytes on the link then, or when that is free; and returns when they
    /// have arrived. One with `None` stays in the NIC.
    pub fn due_ns(&self, now_ns: u64, inbound: bool, bytes: Option<u64>) -> u64 {
        let NicLimits {
            messages_per_second,
            link_bytes_per_second,
            ..
        } = self.limits;
        let starts_ps = messages_per_second.map_or(0, |rate| PS_PER_SECOND / u128::from(rate));
        let busy = &mut *self.busy.lock();
        let begun_ps = busy.device_ps.max(u128::from(now_ns) * PS_PER_NS);
        busy.device_ps = begun_ps + starts_ps;
        let mut arrived_ps = begun_ps;
        if let (Some(bytes), Some(rate)) = (bytes, link_bytes_per_second) {
            let transfer_ps = u128::from(self.limits.link_bytes(bytes)) * PS_PER_SECOND / u128::from(rate);
            let link_ps = &mut busy.link_ps[usize::from(inbound)];
            *link_ps = begun_ps.max(*link_ps) + transfer_ps;
            arrived_ps = *link_ps;
        }
        let due_ns = arrived_ps.div_ceil(PS_PER_NS) + u128::from(self.limits.latency_ns);
        u64::try_from(due_ns).unwrap_or(u64::MAX)
    }
}

/// When a request that starts at `now_ns` completes, and how it fails if a verdict says so, or if nobody answers it on a NIC that knows how long that
/// takes.
pub(super) fn sentence(
    timing: Option<&LinkTiming>,
    request: &WorkRequest<'_>,
    verdict: &Verdict,
    now_ns: u64,
    is_answered: impl FnOnce() -> bool,
) -> (u64, Option<Failure>) {
    let remote = request.operation.remote();
    let unanswered_ns = timing.map_or(0, |timing| timing.limits.unanswered_ns);
    let silent = || remote.is_some() && unanswered_ns != 0 && !is_answered();
    let failure = verdict.failure.or_else(|| silent().then_some(Failure::NO_RESPONDER));
    let inbound = request.operation.is_read_or_atomic();
    let bytes = remote.map(|_| request.segments.len_bytes());
    let mut due_ns = timing.map_or(now_ns, |timing| timing.due_ns(now_ns, inbound, bytes));
    due_ns = due_ns.saturating_add(verdict.delay_ns);
    if failure.is_some_and(|failure| failure.syndrome == Syndrome::TransportRetryExceeded) {
        // It is sent again and again before it fails.
        due_ns = due_ns.saturating_add(unanswered_ns);
    }
    (due_ns, failure)
}
