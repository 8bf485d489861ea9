//! The queues of mlx5 NICs (ConnectX-4 and later): work requests, completions, doorbells.
//!
//! A send queue is a ring of 64-byte blocks (WQEBBs); a request takes one or more of them and is named by the 16-bit
//! index of its first block. All fields are big-endian. The layouts are those of the public header
//! `<infiniband/mlx5dv.h>` of rdma-core, against which `tests/mlx5_header.rs` compares them; `DUMP` is not in that
//! header. Nothing here has run on a ConnectX yet.

mod codes;
mod completion;
mod doorbell;
mod request;
mod segments;
#[cfg(test)]
mod tests;

pub use codes::{CqeOpcode, Opcode, Syndrome};
pub use completion::{Completion, CompletionDetail, Cqe};
pub use doorbell::{CqDoorbellRecord, Doorbell, DoorbellRecord};
pub use request::{Operation, SegmentIter, Segments, WorkRequest};
pub use segments::{AtomicSegment, ControlSegment, DataSegment, InlineHeader, RemoteAddressSegment, Segment};

/// Bytes of one block of a send queue (WQEBB).
pub const BLOCK_BYTES: usize = 64;
/// Bytes of one unit in which a request states its length (`ds`).
pub const UNIT_BYTES: usize = 16;
/// Most units in one request: `ds` has six bits.
pub const UNITS_MAX: usize = 63;
/// Most blocks in one request.
pub const BLOCKS_MAX: usize = (UNITS_MAX * UNIT_BYTES).div_ceil(BLOCK_BYTES);
/// Bytes of one completion queue entry.
pub const CQE_BYTES: usize = 64;
/// Most blocks in a send queue: its indexes have 16 bits and a full ring must differ from an empty one.
pub const QUEUE_BLOCKS_MAX: u32 = 32_768;
/// Most bytes one request moves.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// `op_own` of a completion queue entry that no completion was written to yet: opcode invalid, owner 0.
pub const CQE_INVALID: u8 = 0xf0;

/// Bits of the control segment's `fm_ce_se`.
pub mod control_flags {
    /// Write a completion when the request succeeds (without it, only when it fails).
    pub const CQ_UPDATE: u8 = 0x08;
    /// Ask the responder for an event.
    pub const SOLICITED: u8 = 0x02;
    /// Order after earlier local operations only.
    pub const INITIATOR_SMALL_FENCE: u8 = 0x20;
    /// Do not start before the earlier READs and atomics of the queue pair are complete.
    pub const FENCE: u8 = 0x80;
    /// All fence bits.
    pub const FENCE_MASK: u8 = 0xe0;
}
