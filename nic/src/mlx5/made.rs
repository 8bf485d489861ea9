//! What a queue pair is to its NIC, whichever way it was made.

use std::io;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use crate::{NicError, ProxySlot, QueueAttributes, RingSpan};

/// A call that failed.
#[derive(Debug)]
pub(super) struct Refusal {
    pub call: &'static str,
    pub source: io::Error,
    /// What the firmware said; empty if nothing.
    pub said: String,
}

/// A queue pair with a completion queue of its own.
pub(super) trait Made: Send + Sync {
    fn number(&self) -> u32;
    fn send(&self) -> RingSpan;
    fn completion(&self) -> RingSpan;
    /// Every completion overwrites entry 0.
    fn collapsed(&self) -> bool;
    /// Address of the send half of the doorbell record.
    fn record(&self) -> u64;
    /// Address of the doorbell register.
    fn register(&self) -> u64;
    /// First packet sequence number of the requests that it sends; a new one after each reset.
    fn first_psn(&self) -> &AtomicU32;
    fn proxy(&self) -> &Mutex<Option<ProxySlot>>;
    /// After the queue pair was taken to reset: both rings begin anew where the NIC stands.
    fn begin_anew(&self) -> Result<(), NicError>;
    /// Changes its state.
    fn modify(&self, attributes: &QueueAttributes) -> Result<Result<(), Refusal>, NicError>;
    /// Its state, `enum ibv_qp_state`.
    fn query(&self) -> Result<Result<u32, Refusal>, NicError>;
    /// Destroys what is left of it. May be repeated after an error.
    fn destroy(&self) -> Result<(), NicError>;
}
