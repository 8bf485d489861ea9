//! Queue pairs as their owners and posters see them.

use core::fmt;

/// Who makes the rings of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueRings {
    /// The caller: mlx5's formats, of a software NIC.
    Given(QueueMemory),
    /// The NIC's driver, for this many requests in flight, a power of two, in the NIC's own format.
    Own {
        /// Requests in flight.
        depth: u32,
    },
}

/// Where the rings and doorbell records of a queue pair lie that the caller made: addresses in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueMemory {
    /// Send queue: `sq_entries` blocks of 64 bytes, aligned to 64.
    pub sq: u64,
    /// Blocks of the send queue: a power of two, at most 32,768.
    pub sq_entries: u32,
    /// Completion queue: `cq_entries` entries of 64 bytes, aligned to 64. To a software NIC with a mover it is an address of
    /// the mover's, such as device memory, and need not be mapped in this process.
    pub cq: u64,
    /// Entries of the completion queue: a power of two.
    pub cq_entries: u32,
    /// Doorbell record of the queue pair: two big-endian 32-bit words, first receive, then send; aligned to 8.
    pub dbrec: u64,
    /// Doorbell record of the completion queue: two big-endian 32-bit words; aligned to 8.
    pub cq_dbrec: u64,
    /// Write every completion over the first entry (a collapsed queue) instead of filling the ring.
    pub collapsed: bool,
}

/// Format of the work requests and completions of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueFormat {
    /// [`crate::wire::mlx5`].
    Mlx5,
    /// [`crate::wire::rxe`].
    Rxe,
}

/// A ring in memory: `slots` entries of `1 << shift` bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingSpan {
    /// Address of slot 0, in this process.
    pub address: u64,
    /// Slots: a power of two.
    pub slots: u32,
    /// Base-two logarithm of a slot's bytes.
    pub shift: u32,
    /// Position of the first request since the queue pair was reset, or of its completion: its slot, and for completions of
    /// mlx5 the slot plus `slots` where the lap is an odd one, since their owner bit tells the lap.
    pub start: u32,
}

/// A queue pair as its poster needs it. Positions change with [`Nic::reset`](crate::Nic::reset).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePair {
    /// Its 24-bit number. Numbers of successive queue pairs do not follow each other.
    pub number: u32,
    /// What the rings hold.
    pub format: QueueFormat,
    /// Address of its 8-byte doorbell, in this process: a register, or the word that a doorbell proxy watches.
    pub doorbell: u64,
    /// Address of the 32-bit word that is stored before the doorbell: mlx5's send doorbell record, or the send ring's
    /// producer index.
    pub doorbell_record: u64,
    /// Send ring.
    pub send: RingSpan,
    /// Completion ring.
    pub completion: RingSpan,
    /// Every completion overwrites entry 0 of the completion ring. mlx5's formats only.
    pub collapsed: bool,
    /// rxe: address of the completion ring's producer index; 0 otherwise.
    pub completion_produced: u64,
    /// rxe: address of the completion ring's consumer index; 0 otherwise.
    pub completion_consumed: u64,
}

/// States of a queue pair (InfiniBand specification, 10.3.1), less the two that paging does not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QueuePairState {
    /// Created or reset: neither sends nor answers.
    Reset = 0,
    /// Initialised: as `Reset`, with port and access set.
    Init = 1,
    /// Answers requests of the other side.
    ReadyToReceive = 2,
    /// Answers, and executes its send queue.
    ReadyToSend = 3,
    /// A request failed: everything posted completes with "flushed".
    Error = 4,
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueuePairState::Reset => "reset",
            QueuePairState::Init => "init",
            QueuePairState::ReadyToReceive => "ready to receive",
            QueuePairState::ReadyToSend => "ready to send",
            QueuePairState::Error => "error",
        })
    }
}
