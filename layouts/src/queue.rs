//! Queue pairs as GPU threads see them, and the records of the requests in their rings.

use bytemuck::{Pod, Zeroable};

use crate::facts::shared_layout;

/// Queue kind: mlx5 work requests and completions (ConnectX, or the software NIC).
pub const QUEUE_KIND_MLX5: u32 = 1;
/// Queue kind: Linux SoftRoCE (`rdma_rxe`).
pub const QUEUE_KIND_RXE: u32 = 2;

/// Bit of `QueueDesc::flags`: a READ's completion says nothing of its data in GPU memory. Each request takes two blocks of
/// the send ring, and the second, a read of the frame's end behind a fence, completes when the data is there. mlx5 only.
pub const QUEUE_FLUSHES_READS: u32 = 1;
/// Bit of `QueueDesc::flags`: every completion overwrites entry 0 of the completion ring. mlx5 only.
pub const QUEUE_COLLAPSED: u32 = 2;
/// Base-two logarithm of `FRAME_KEY_BYTES`.
pub const FRAME_KEY_SHIFT: u32 = 31;
/// Bytes of frames that one local key covers, but for the last: drivers register GPU memory in pieces of at most 2 GiB.
pub const FRAME_KEY_BYTES: u64 = 1 << 31;
const _: () = assert!(FRAME_KEY_BYTES == 1 << FRAME_KEY_SHIFT);

/// One queue pair: where its rings and registers are, and the keys to use. Read-only for the GPU.
///
/// Request `i` lies in slot `(send_start + i) & send_mask` of the send ring and completes in slot
/// `(completion_start + i) & completion_mask` of the completion ring; its record is number `i & mask`. Both sums wrap at
/// 2^32; mlx5 counts blocks and laps by them.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Pod, Zeroable, Default)]
pub struct QueueDesc {
    /// `QUEUE_KIND_*`: the format of work requests and completions.
    pub kind: u32,
    /// Queue pair number, 24 bits.
    pub number: u32,
    /// Address of slot 0 of the send ring.
    pub send_ring: u64,
    /// Address of slot 0 of the completion ring.
    pub completion_ring: u64,
    /// Address of the 32-bit word that tells the NIC how far the send ring is written. mlx5: the send doorbell
    /// record, big-endian. rxe: the send ring's producer index.
    pub doorbell_record: u64,
    /// Address of the 8-byte doorbell: the NIC's register, or a word that a doorbell proxy watches.
    pub doorbell: u64,
    /// Requests in flight less one; a power of two less one.
    pub mask: u32,
    /// Send ring slots less one; a power of two less one, at least `mask`.
    pub send_mask: u32,
    /// Completion ring slots less one; at least `mask` (mlx5), or twice as many slots as requests (rxe).
    pub completion_mask: u32,
    /// Base-two logarithm of a send slot's bytes.
    pub send_shift: u32,
    /// Base-two logarithm of a completion slot's bytes.
    pub completion_shift: u32,
    /// Position of request 0 in the send ring. mlx5: modulo 2^32, since positions beyond the ring are in the requests.
    pub send_start: u32,
    /// Position of request 0's completion. mlx5: modulo 2^32, since the lap is in the completions.
    pub completion_start: u32,
    /// `QUEUE_*` bits.
    pub flags: u32,
    /// Address of the pair's [`QueueState`].
    pub state: u64,
    /// Address of `mask + 1` [`RequestRecord`]s.
    pub records: u64,
    /// rxe: address of the completion ring's 32-bit producer index, which the NIC advances.
    pub completion_produced: u64,
    /// rxe: address of the completion ring's 32-bit consumer index, which makes room for completions.
    pub completion_consumed: u64,
    /// Not 0: the host takes the pair out of the error state while kernels run, so its failure is not the end.
    pub recoverable: u32,
    /// Unused.
    pub reserved: u32,
    /// Address of the NIC's local keys of the pool's frames: 32 bits for each `FRAME_KEY_BYTES` of them.
    pub frame_keys: u64,
    /// Unused, to 128 bytes.
    pub reserved_tail: u64,
}

/// What GPU threads change in a queue pair. One 128-byte line a word, so that posters, the ringer
/// and readers do not disturb each other.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct QueueState {
    /// Index of the next request to reserve. Every request below it has an owner that will write it. With
    /// `RESERVED_CLOSED` nothing can reserve: the host recovers the pair.
    pub reserved: u64,
    /// Unused, to the end of the line.
    pub pad0: [u64; 15],
    /// Every request below this index is written. Advanced in order.
    pub written: u64,
    /// Unused, to the end of the line.
    pub pad1: [u64; 15],
    /// Taken (1) by the one lane that may store the doorbell record and ring.
    pub ringer: u32,
    /// Not 0: a request completed with an error and the pair takes no more. `QUEUE_FAILED`, perhaps `QUEUE_LOST`, the first
    /// error's syndrome from bit 8 and the vendor's from bit 16.
    pub failed: u32,
    /// Every request below this index was rung. Written by the ringer alone.
    pub posted: u64,
    /// Unused, to the end of the line.
    pub pad2: [u64; 14],
    /// A hint: requests below this index need no one's help any more.
    pub cursor: u64,
    /// Not 0: the far end has answered a request of a region with replicas or checksums since the host set it to 0.
    pub answered: u32,
    /// Not 0: requests have got no answer for some time, though the host recovers the pair again and again. Regions with replicas turn
    /// to the other home. Written by the host.
    pub silent: u32,
    /// Unused, to the end of the line.
    pub pad3: [u32; 28],
}

/// The record of the request in one ring slot. A thread that needs the request finished can finish it.
///
/// `state` is `index << RECORD_INDEX_SHIFT | phase` for the request with that 64-bit index.
#[repr(C, align(32))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RequestRecord {
    /// Index and phase of the slot's request.
    pub state: u64,
    /// The page, as in the table of frames: [`crate::page_id`].
    pub page_id: u64,
    /// The frame that is filled or written back.
    pub frame: u32,
    /// `REQUEST_*`.
    pub kind: u32,
    /// Not 0: a lane waits for the outcome, and a fetch's publication takes this many pins for it. Handler and
    /// waiter both exchange it for 0; who finds 0 knows that the other was there first.
    pub pins: u32,
    /// What the page table entry's frame field holds while this fetch is in flight: 0, or a request token. With
    /// `RECORD_DONE` the outcome: `OUTCOME_*`.
    pub token: u32,
}

/// Bit of `QueueState::reserved`: the pair is being recovered.
pub const RESERVED_CLOSED: u64 = 1 << 63;
/// Bit of `QueueState::failed`: the pair is in the error state.
pub const QUEUE_FAILED: u32 = 1;
/// Bit of `QueueState::failed`: and stays there.
pub const QUEUE_LOST: u32 = 2;

/// Phase bits of a record's state.
pub const RECORD_INDEX_SHIFT: u32 = 2;
/// The slot may be written for the request whose index the state names.
pub const RECORD_FREE: u64 = 0;
/// The request is written and may complete.
pub const RECORD_POSTED: u64 = 1;
/// Somebody is handling the request's completion.
pub const RECORD_CLAIMED: u64 = 2;
/// The completion was handled and a lane waits for the outcome; that lane frees the slot.
pub const RECORD_DONE: u64 = 3;

/// The request did what it should.
pub const OUTCOME_OK: u32 = 1;
/// The request failed for a reason of its own.
pub const OUTCOME_FAILED: u32 = 2;
/// The request was flushed because its queue pair had failed before: another queue pair may serve it.
pub const OUTCOME_FLUSHED: u32 = 3;

/// The page's data has arrived; it has a checksum, which the waiter compares before it publishes the page.
pub const OUTCOME_ARRIVED: u32 = 4;

/// A READ that fills a frame.
pub const REQUEST_FETCH: u32 = 1;
/// A WRITE of a cleaned page, whose frame goes to the pool afterwards.
pub const REQUEST_CLEAN: u32 = 2;
/// A WRITE by flush: the page stays.
pub const REQUEST_FLUSH: u32 = 3;

/// Request token: queue index above, ring slot plus one below; 0 is no token. 28 bits in all.
pub const TOKEN_SLOT_BITS: u32 = 16;
/// Queue pairs a virtual memory may have: the token's upper 12 bits.
pub const QUEUES_MAX: u32 = 1 << 12;
/// Large pages that may be filled at one time: their places are tokens as well.
pub const FILLS_MAX: u32 = 1 << 10;
/// Ring entries a queue pair may have, so that slot plus one fits the token.
pub const RING_ENTRIES_MAX: u32 = 1 << 15;

shared_layout! {
    QueueDesc: 128 {
        kind: 0, number: 4, send_ring: 8, completion_ring: 16, doorbell_record: 24, doorbell: 32, mask: 40,
        send_mask: 44, completion_mask: 48, send_shift: 52, completion_shift: 56, send_start: 60, completion_start: 64,
        flags: 68, state: 72, records: 80, completion_produced: 88, completion_consumed: 96, recoverable: 104, reserved: 108,
        frame_keys: 112, reserved_tail: 120,
    }
    QueueState: 512 {
        reserved: 0, pad0: 8, written: 128, pad1: 136, ringer: 256, failed: 260, posted: 264, pad2: 272, cursor: 384,
        answered: 392, silent: 396, pad3: 400,
    }
    RequestRecord: 32 { state: 0, page_id: 8, frame: 16, kind: 20, pins: 24, token: 28, }
}
