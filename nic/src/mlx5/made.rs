//! What a queue pair is to its NIC, whichever way it was made.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::attributes::psn;
use crate::{NicError, ProxySlot, QueueAttributes, RingSpan};

/// A call that failed.
#[derive(Debug)]
pub(super) struct Refusal {
    pub call: &'static str,
    pub source: io::Error,
    /// What the firmware said; empty if nothing.
    pub said: String,
}

/// What a queue pair has, whichever way it was made. All is 0 before it is made.
#[derive(Default)]
pub(super) struct Parts {
    /// Dropped before the rings: its calls store to the register.
    pub proxy: Mutex<Option<ProxySlot>>,
    pub number: u32,
    pub send: RingSpan,
    pub completion: RingSpan,
    /// Address of the send half of the doorbell record.
    pub record: u64,
    /// Address of the doorbell register.
    pub register: u64,
    /// First packet sequence number of the requests that it sends; a new one after each reset.
    pub first_psn: AtomicU32,
}

impl Parts {
    /// Of a queue pair that is now made.
    pub fn numbered(&mut self, number: u32) {
        self.number = number;
        self.first_psn = AtomicU32::new(psn(number));
    }

    /// After the queue pair was taken to reset.
    pub fn begin_anew(&self) {
        if let Some(slot) = &*self.proxy.lock() {
            slot.reset();
        }
        // Relaxed: a number; its owner makes connections one after the other.
        let next = psn(self.first_psn.load(Ordering::Relaxed).wrapping_add(self.number));
        self.first_psn.store(next, Ordering::Relaxed);
    }

    /// What is wrong with the register, if something is.
    pub fn odd_register(&self) -> Option<String> {
        let odd = self.register == 0 || !self.register.is_multiple_of(8);
        odd.then(|| format!("it is at {:#x}", self.register))
    }
}

/// A queue pair with a completion queue of its own.
pub(super) trait Made: Send + Sync {
    fn parts(&self) -> &Parts;
    /// The completion ring, with where it goes on.
    fn completion(&self) -> RingSpan;
    /// Every completion overwrites entry 0.
    fn collapsed(&self) -> bool;
    /// After the queue pair was taken to reset: both rings begin anew where the NIC stands.
    fn begin_anew(&self) -> Result<(), NicError>;
    /// Changes its state.
    fn modify(&self, attributes: &QueueAttributes) -> Result<Result<(), Refusal>, NicError>;
    /// Its state, `enum ibv_qp_state`.
    fn query(&self) -> Result<Result<u32, Refusal>, NicError>;
    /// Destroys what is left of it. May be repeated after an error.
    fn destroy(&self) -> Result<(), NicError>;
}

/// Destroys one whose owner is gone.
pub(super) fn destroy_at_last(pair: &impl Made) {
    if let Err(error) = pair.destroy() {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "it is left to the kernel, which destroys it with the device's file"
        );
    }
}
