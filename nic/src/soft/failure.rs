//! Why a request fails.

use super::report::ViolationKind;
use super::vendor;
use crate::wire::mlx5::Syndrome;

/// Why a request failed: the syndrome, and this NIC's detail of it (see [`vendor`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    pub syndrome: Syndrome,
    pub vendor: u8,
}

impl Failure {
    /// Of a request that no queue pair answers.
    pub const NO_RESPONDER: Self = Failure {
        syndrome: Syndrome::TransportRetryExceeded,
        vendor: vendor::NO_RESPONDER,
    };

    /// Of a request that is made to fail.
    pub fn injected(syndrome: Syndrome) -> Self {
        let vendor = vendor::INJECTED;
        Failure { syndrome, vendor }
    }

    /// Of a request that cannot be told from garbage.
    pub fn of_violation(kind: ViolationKind) -> Self {
        let vendor = match kind {
            ViolationKind::WrongIndex => vendor::WRONG_INDEX,
            ViolationKind::WrongQueuePair => vendor::WRONG_QUEUE_PAIR,
            _ => vendor::MALFORMED,
        };
        Failure {
            syndrome: Syndrome::LocalQueuePairOperation,
            vendor,
        }
    }
}
