//! Faults that are planted on purpose. Each is counted when it bites, so that a test can tell that it did.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::failure::Failure;
use super::mix::{FaultKind, FaultMix, FaultTally, Mixed, Verdict};
use crate::wire::mlx5::{Opcode, Syndrome, WorkRequest};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is not executed and completes with this syndrome; the queue pair goes to error.
    Fail(Syndrome),
    /// The request is executed, but its completion is never written: the entry keeps what it held, and the next
    /// completion goes to the next entry. A real NIC does not do this; a poster must still not hang.
    LoseCompletion,
    /// The request completes so many nanoseconds later, and with it everything behind it on its queue pair.
    Delay {
        /// Nanoseconds.
        ns: u64,
    },
    /// The request is executed, and one bit of what it moved is wrong where it went. Not where a mover moves the data.
    Flip {
        /// The bit, counted from the first byte's lowest, modulo the request's length.
        bit: u64,
    },
}

/// Which requests a fault bites. Every condition that is set must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultPlan {
    /// What happens to them.
    pub fault: Fault,
    /// Only this operation.
    pub opcode: Option<Opcode>,
    /// Only this queue pair.
    pub queue_pair: Option<u32>,
    /// Only requests whose remote side starts in this range of addresses.
    pub remote: Option<Range<u64>>,
    /// Matching requests that are spared first.
    pub skip: u64,
    /// Matching requests that are bitten then; after them the plan is spent.
    pub times: u64,
}

impl FaultPlan {
    /// A plan for the next request of any kind, once.
    pub fn new(fault: Fault) -> Self {
        FaultPlan {
            fault,
            opcode: None,
            queue_pair: None,
            remote: None,
            skip: 0,
            times: 1,
        }
    }

    /// Only requests of this operation.
    #[must_use]
    pub fn opcode(self, opcode: Opcode) -> Self {
        FaultPlan {
            opcode: Some(opcode),
            ..self
        }
    }

    /// Only requests of this queue pair.
    #[must_use]
    pub fn queue_pair(self, number: u32) -> Self {
        FaultPlan {
            queue_pair: Some(number),
            ..self
        }
    }

    /// Only requests whose remote side starts in this range of addresses.
    #[must_use]
    pub fn remote(self, range: Range<u64>) -> Self {
        FaultPlan {
            remote: Some(range),
            ..self
        }
    }

    /// Spares the first `skip` matching requests.
    #[must_use]
    pub fn skip(self, skip: u64) -> Self {
        FaultPlan { skip, ..self }
    }

    /// Bites `times` matching requests.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        FaultPlan { times, ..self }
    }

    fn matches(&self, request: &WorkRequest<'_>) -> bool {
        let opcode = request.operation.opcode();
        self.opcode.is_none_or(|wanted| wanted == opcode)
            && self.queue_pair.is_none_or(|wanted| wanted == request.queue_pair)
            && self.remote.as_ref().is_none_or(|range| {
                request
                    .operation
                    .remote()
                    .is_some_and(|(address, _)| range.contains(&address))
            })
    }
}

/// Names a planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FaultId(usize);

struct Planted {
    plan: FaultPlan,
    bitten: u64,
}

/// The planted faults of a NIC.
#[derive(Default)]
pub(super) struct Faults {
    armed: AtomicBool,
    planted: Mutex<Vec<Planted>>,
    /// There is a mix. Data of earlier requests may be on its way still when it is calm.
    mixed: AtomicBool,
    mix: Mutex<Option<Mixed>>,
}

impl Faults {
    pub fn plant(&self, plan: FaultPlan) -> FaultId {
        let mut planted = self.planted.lock();
        planted.push(Planted { plan, bitten: 0 });
        // Release: pairs with the acquire in `armed`; requests posted after this call meet the plan, since their
        // doorbell is stored after it.
        self.armed.store(true, Ordering::Release);
        FaultId(planted.len() - 1)
    }

    pub fn bitten(&self, id: FaultId) -> u64 {
        self.planted.lock().get(id.0).map_or(0, |planted| planted.bitten)
    }

    /// Whether any plan is not spent, or there is a mix.
    #[inline]
    pub fn armed(&self) -> bool {
        // Acquire: see `plant`.
        self.armed.load(Ordering::Acquire)
    }

    /// Whether there is a mix.
    #[inline]
    pub fn mixed(&self) -> bool {
        // Acquire: pairs with the release in `mix`, as `armed` does.
        self.mixed.load(Ordering::Acquire)
    }

    /// Draws faults by `seed` from now on.
    pub fn mix(&self, mix: &FaultMix, seed: u64) {
        // In this order everywhere.
        let _planted = self.planted.lock();
        *self.mix.lock() = Some(Mixed::new(mix, seed));
        // Release: as in `plant`.
        self.mixed.store(true, Ordering::Release);
        self.armed.store(true, Ordering::Release);
    }

    /// No fault begins any more, planted ones included.
    pub fn calm(&self) {
        for planted in self.planted.lock().iter_mut() {
            planted.plan.times = 0;
        }
        self.with_mix(Mixed::calm);
    }

    /// What the mix has done so far.
    pub fn tally(&self) -> FaultTally {
        self.with_mix(|mix| mix.tally()).unwrap_or_default()
    }

    /// Asks the mix, where there is one.
    pub fn with_mix<R>(&self, ask: impl FnOnce(&mut Mixed) -> R) -> Option<R> {
        self.mix.lock().as_mut().map(ask)
    }

    /// A kind of the mix has shown.
    pub fn bit(&self, kind: FaultKind) {
        self.with_mix(|mix| mix.bit(kind));
    }

    /// What a planted fault and the mix make of this request.
    pub fn judge(&self, request: &WorkRequest<'_>, now_ns: u64) -> Verdict {
        let planted = if self.armed() { self.strike(request) } else { None };
        let mut verdict = match self.mixed() {
            true => self.with_mix(|mix| mix.judge(request, now_ns)).unwrap_or_default(),
            false => Verdict::default(),
        };
        match planted {
            Some(Fault::Fail(syndrome)) => verdict.failure = Some(Failure::injected(syndrome)),
            Some(Fault::Delay { ns }) => verdict.delay_ns = verdict.delay_ns.saturating_add(ns),
            Some(Fault::LoseCompletion) => verdict.lose = true,
            Some(Fault::Flip { bit }) => verdict.flip = Some(bit),
            None => {}
        }
        verdict
    }

    /// The fault for this request, if one bites it: the first plan that matches and is not spent.
    pub fn strike(&self, request: &WorkRequest<'_>) -> Option<Fault> {
        let mut planted = self.planted.lock();
        let mut struck = None;
        for Planted { plan, bitten } in planted.iter_mut() {
            if plan.times == 0 || !plan.matches(request) {
                continue;
            }
            if plan.skip > 0 {
                plan.skip -= 1;
                continue;
            }
            plan.times -= 1;
            *bitten += 1;
            struck = Some(plan.fault);
            break;
        }
        let armed = self.mixed() || planted.iter().any(|planted| planted.plan.times > 0);
        // Relaxed: only the lock's holder clears it, and a late sight costs one more look.
        self.armed.store(armed, Ordering::Relaxed);
        struck
    }
}
