//! What becomes of requests, for an engine that runs elsewhere: by the rules of this crate's own.

use super::faults::{Fault, FaultId, FaultPlan, Faults};
use super::mix::{FaultKind, FaultMix, FaultTally};
use super::timing::{LinkTiming, sentence};
use crate::wire::mlx5::WorkRequest;
use crate::{NicError, NicLimits};

/// Keeps the limits and the faults of a NIC whose engine is not in this crate, and says of each request what becomes of it.
pub struct Judge {
    nic: &'static str,
    faults: Faults,
    timing: Option<LinkTiming>,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sentence {
    /// When it completes at the earliest, in the engine's clock; not before those ahead of it on its queue pair.
    pub due_ns: u64,
    /// It is not executed, and completes with this syndrome and this vendor's detail.
    pub failure: Option<(u8, u8)>,
    /// It is executed, and its completion is never written: [`Judge::lost`] is to be told when that happens.
    pub loses_completion: bool,
    /// Its queue pair goes to the error state before it starts.
    pub breaks: bool,
}

impl Judge {
    /// One of a NIC that errors call so, without faults.
    pub fn new(nic: &'static str, limits: Option<NicLimits>) -> Self {
        Judge {
            nic,
            faults: Faults::default(),
            timing: limits.filter(NicLimits::take_time).map(LinkTiming::new),
        }
    }

    /// As [`SoftNic::inject`](super::SoftNic::inject).
    ///
    /// # Errors
    /// A [`Fault::Flip`].
    pub fn inject(&self, plan: FaultPlan) -> Result<FaultId, NicError> {
        match plan.fault {
            Fault::Flip { .. } => self.refuse("turn a bit over of what it has moved: plant that with the engine cpu"),
            _ => Ok(self.faults.plant(plan)),
        }
    }

    /// As [`SoftNic::mix_faults`](super::SoftNic::mix_faults).
    ///
    /// # Errors
    /// A kind that needs data to move apart from its completion, or doorbells that are overlooked.
    pub fn mix_faults(&self, mix: &FaultMix, seed: u64) -> Result<(), NicError> {
        for rate in mix.rates() {
            match rate.kind {
                FaultKind::Reorder | FaultKind::Pieces | FaultKind::Unflushed => {
                    return self.refuse(
                        "draw the faults `reorder`, `pieces` and `unflushed`: its data moves when its request completes; use the engine cpu",
                    );
                }
                FaultKind::Doorbell => {
                    return self.refuse("draw the fault `doorbell`: it overlooks none; use the engine cpu");
                }
                _ => {}
            }
        }
        self.faults.mix(mix, seed);
        Ok(())
    }

    fn refuse<T>(&self, what: &'static str) -> Result<T, NicError> {
        Err(NicError::Unsupported { nic: self.nic, what })
    }

    /// As [`SoftNic::bitten`](super::SoftNic::bitten).
    pub fn bitten(&self, fault: FaultId) -> u64 {
        self.faults.bitten(fault)
    }

    /// As [`SoftNic::calm`](super::SoftNic::calm).
    pub fn calm(&self) {
        self.faults.calm();
    }

    /// As [`SoftNic::fault_tally`](super::SoftNic::fault_tally).
    pub fn fault_tally(&self) -> FaultTally {
        self.faults.tally()
    }

    /// What becomes of a request, whole blocks as its ring has them, that starts at `now_ns` with a responder that answers or does not. One that
    /// cannot be parsed completes now: its engine says how.
    pub fn sentence(&self, request: &[u8], now_ns: u64, is_answered: bool) -> Sentence {
        let Ok(request) = WorkRequest::parse(request) else {
            return Sentence {
                due_ns: now_ns,
                failure: None,
                loses_completion: false,
                breaks: false,
            };
        };
        let verdict = self.faults.judge(&request, now_ns);
        let (due_ns, failure) = match verdict.breaks {
            // It does not start.
            true => (now_ns, None),
            false => sentence(self.timing.as_ref(), &request, &verdict, now_ns, || is_answered),
        };
        Sentence {
            due_ns,
            failure: failure.map(|failure| (failure.syndrome.into(), failure.vendor)),
            loses_completion: verdict.lose,
            breaks: verdict.breaks,
        }
    }

    /// A completion that was to be lost is.
    pub fn lost(&self) {
        self.faults.bit(FaultKind::Lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_elsewhere_cannot_do_is_refused_by_name() {
        let judge = Judge::new("other", None);
        for kind in FaultKind::all() {
            let mix = FaultMix::new().with(super::super::FaultRate::one_in(kind, 1));
            let refused = judge.mix_faults(&mix, 1);
            match kind {
                FaultKind::Reorder | FaultKind::Pieces | FaultKind::Unflushed | FaultKind::Doorbell => {
                    let error = refused.expect_err(kind.name()).to_string();
                    assert!(
                        error.contains(&format!("`{kind}`")) && error.contains("other NIC"),
                        "{error}"
                    );
                }
                _ => assert!(refused.is_ok(), "{kind}: {refused:?}"),
            }
        }
        let flip = judge.inject(FaultPlan::new(Fault::Flip { bit: 3 }));
        assert!(flip.expect_err("a bit").to_string().contains("turn a bit over"));
    }
}
