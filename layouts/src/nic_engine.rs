//! What the host and a NIC's engine that is a kernel share: queue pairs, memory keys, and how the host speaks to it.

use bytemuck::{Pod, Zeroable};

use crate::facts::shared_layout;

/// Threads of a block of the engine, all that a multiprocessor has registers for.
pub const NIC_ENGINE_THREADS: u32 = 768;
/// Stop words of engines, 32 bits each, behind the word that they read as `control`: that of engine `n` is `n` modulo this many. What is stored late
/// to one that has ended stops no later one.
pub const NIC_STOP_WORDS: u32 = 16;
/// Index of the first key, as a key has it above its low 8 bits: no key is mlx5's invalid one, 0x100.
pub const NIC_KEY_FIRST: u32 = 0x21;
/// Low bit of a key: set in remote keys.
pub const NIC_KEY_REMOTE: u32 = 1;
/// Bits of [`NicKey::access`]: those of verbs.
pub const NIC_LOCAL_WRITE: u32 = 1;
/// See [`NIC_LOCAL_WRITE`].
pub const NIC_REMOTE_WRITE: u32 = 2;
/// See [`NIC_LOCAL_WRITE`].
pub const NIC_REMOTE_READ: u32 = 4;

/// States of [`NicQueue::state`]: it answers others in the two of these, and executes requests in the second.
pub const NIC_READY_TO_RECEIVE: u32 = 2;
/// See [`NIC_READY_TO_RECEIVE`].
pub const NIC_READY_TO_SEND: u32 = 3;
/// A request failed: everything posted is flushed.
pub const NIC_ERROR: u32 = 4;

/// Requests of a queue pair that wait for their time at most, where the host judges them.
pub const NIC_IN_FLIGHT: u32 = 64;
/// Values of [`NicCase::kind`]: what becomes of a request.
pub const NIC_CASE_REQUEST: u32 = 0;
/// A completion that was to be lost is lost.
pub const NIC_CASE_LOST: u32 = 1;
/// Bits of [`NicCase::answer`], whose low 16 are syndrome and vendor's detail: the completion is never written.
pub const NIC_ANSWER_LOSES: u32 = 1 << 16;
/// The queue pair goes to the error state before the request starts.
pub const NIC_ANSWER_BREAKS: u32 = 1 << 17;

/// Places of [`NicQueue::counts`]: READs that did well.
pub const NIC_COUNT_READS: u32 = 0;
/// WRITEs that did well.
pub const NIC_COUNT_WRITES: u32 = 1;
/// Other requests that did well.
pub const NIC_COUNT_OTHERS: u32 = 2;
/// Bytes that READs and WRITEs moved.
pub const NIC_COUNT_BYTES: u32 = 3;
/// Completions, of any kind.
pub const NIC_COUNT_COMPLETIONS: u32 = 4;
/// Requests that failed, flushed ones not counted.
pub const NIC_COUNT_ERRORS: u32 = 5;
/// Requests that were flushed.
pub const NIC_COUNT_FLUSHED: u32 = 6;
/// Doorbells that broke a rule: of another queue pair or for more than the ring has, which are ignored, or ahead of their record.
pub const NIC_COUNT_DOORBELLS: u32 = 7;

/// Registered memory. Written by the host alone; all zeros while no key has it.
#[repr(C, align(32))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct NicKey {
    /// The local key; 0 while nothing has it.
    pub lkey: u32,
    /// `NIC_*` rights.
    pub access: u32,
    /// First address, as requests name it.
    pub address: u64,
    /// Length.
    pub bytes: u64,
    /// What lanes add, modulo 2^64, to an address that requests name.
    pub shift: u64,
}

/// A queue pair. The host writes all of it, while no warp serves it; while one does, that warp alone changes `state` and what follows `seen`,
/// and posters store `doorbell`.
#[repr(C, align(128))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct NicQueue {
    /// Not 0: its warp serves it.
    pub served: u32,
    /// A queue pair's state.
    pub state: u32,
    /// Queue pair number, 24 bits.
    pub number: u32,
    /// `QUEUE_COLLAPSED`.
    pub flags: u32,
    /// Address of the send ring.
    pub send_ring: u64,
    /// Address of the completion ring.
    pub completion_ring: u64,
    /// Address of the send half of the doorbell record.
    pub doorbell_record: u64,
    /// Blocks of the send ring less one.
    pub send_mask: u32,
    /// Entries of the completion ring less one.
    pub completion_mask: u32,
    /// Place of the queue pair that answers.
    pub responder: u32,
    /// Its number.
    pub responder_number: u32,
    /// Unused, to the end of the line.
    pub pad0: u64,
    /// The doorbell that was last looked at.
    pub seen: u64,
    /// Blocks that were executed.
    pub head: u64,
    /// Blocks that were announced.
    pub target: u64,
    /// Completions that were written.
    pub produced: u64,
    /// Blocks that were started, of those announced, where the host judges requests; so are the next.
    pub started: u64,
    /// Requests that were started.
    pub begun: u64,
    /// Those of them that were executed, or flushed.
    pub ended: u64,
    /// READs and atomics among those that were not.
    pub reads: u64,
    /// The doorbell register.
    pub doorbell: u64,
    /// Unused, to the end of the line.
    pub pad2: [u64; 7],
    /// `NIC_COUNT_*`.
    pub counts: [u64; 8],
}

/// What the kernel works on, as its argument.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct NicEngine {
    /// Address of the [`NicQueue`]s.
    pub queues: u64,
    /// Address of the [`NicKey`]s.
    pub keys: u64,
    /// Address of a 64-bit word in host memory. Low half: raised with each change of tables that is waited for. High half: engines up to this
    /// number end. Behind it a 32-bit word, the launch's stop word: not 0, and the engine that runs ends.
    pub control: u64,
    /// Address of a copy of it for each block, 128 bytes apart.
    pub told: u64,
    /// Address of a 32-bit word in host memory for each warp: the low half of `control` that it has seen after all that it did before.
    pub heard: u64,
    /// Address of [`NIC_IN_FLIGHT`] pairs of 64-bit words for each queue pair: of a request in flight when it is due, and the host's answer.
    pub plans: u64,
    /// Address of the [`NicCase`]s, one a warp.
    pub cases: u64,
    /// Queue pairs that there may be, of those at `queues`.
    pub queue_count: u32,
    /// Keys that there may be.
    pub key_count: u32,
    /// READs and atomics of a queue pair that may be in flight, where the host judges requests.
    pub reads_max: u32,
    /// Unused.
    pub pad0: u32,
}

/// What a warp asks the host, in host memory, where the host judges requests. The warp writes all but `answered`, `answer` and `due`.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct NicCase {
    /// Raised with each question, when the rest of it is there.
    pub asked: u32,
    /// The question that was answered last, when its answer is there.
    pub answered: u32,
    /// `NIC_CASE_*`.
    pub kind: u32,
    /// Units of 16 bytes of the request.
    pub units: u32,
    /// The engine's time.
    pub now: u64,
    /// Not 0: the queue pair that answers is there.
    pub is_answered: u32,
    /// Syndrome, vendor's detail and `NIC_ANSWER_*`.
    pub answer: u32,
    /// When the request is due.
    pub due: u64,
    /// Unused, to the end of the line.
    pub pad0: [u64; 3],
    /// The request as its ring has it.
    pub request: [u64; 128],
}

shared_layout! {
    NicKey: 32 { lkey: 0, access: 4, address: 8, bytes: 16, shift: 24, }
    NicQueue: 256 {
        served: 0, state: 4, number: 8, flags: 12, send_ring: 16, completion_ring: 24, doorbell_record: 32, send_mask: 40, completion_mask: 44,
        responder: 48, responder_number: 52, pad0: 56, seen: 64, head: 72, target: 80, produced: 88, started: 96, begun: 104, ended: 112,
        reads: 120, doorbell: 128, pad2: 136, counts: 192,
    }
    NicEngine: 72 {
        queues: 0, keys: 8, control: 16, told: 24, heard: 32, plans: 40, cases: 48, queue_count: 56, key_count: 60, reads_max: 64, pad0: 68,
    }
    NicCase: 1088 {
        asked: 0, answered: 4, kind: 8, units: 12, now: 16, is_answered: 24, answer: 28, due: 32, pad0: 40, request: 64,
    }
}
