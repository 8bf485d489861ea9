//! The trait all NICs implement, and what it speaks of.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{Access, Backing, MemoryKey, NicError, QueueAttributes, QueuePair, QueuePairState, QueueRings};

/// What a NIC can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicCapabilities {
    /// Its name, for messages.
    pub name: String,
    /// READs and atomics that one queue pair has in flight; more of them queue inside the NIC.
    pub max_rd_atomic: u32,
    /// Most blocks of a send queue.
    pub sq_entries_max: u32,
    /// Most entries of a completion queue.
    pub cq_entries_max: u32,
    /// Most queue pairs at one time.
    pub queue_pairs_max: u32,
    /// Most registered spans of memory at one time.
    pub memory_regions_max: u32,
    /// Most bytes that one request moves.
    pub message_bytes_max: u64,
    /// Whether [`Nic::doorbell_written`] must follow each store to a doorbell. Real NICs see the store.
    pub needs_doorbell_call: bool,
    /// Bits a second that its link carries in each direction, where it has one and tells.
    pub link_bits_per_second: Option<u64>,
    /// Whether the driver makes the rings ([`QueueRings::Own`]).
    pub makes_rings: bool,
    /// Whether a mover brings data and completions: send rings, doorbell records and doorbell pages are to be memory of
    /// this process that posters reach, completion rings memory that the mover reaches.
    pub has_mover: bool,
    /// Whether its engine runs on the GPU: rings and registers are that GPU's memory, and it reaches all memory of it by address.
    pub on_gpu: bool,
}

/// A NIC whose queues others, such as GPU threads, fill and poll.
///
/// Setting up and tearing down goes through these calls; work does not: it is written to the rings, announced in the
/// doorbell record and rung by an 8-byte store to the doorbell register (see [`crate::wire::mlx5`] for the formats).
/// All calls may come from any thread.
pub trait Nic: Send + Sync {
    /// What the NIC can do.
    fn capabilities(&self) -> NicCapabilities;

    /// Makes `bytes` bytes at `addr` known to the NIC; requests name them by the same virtual addresses.
    ///
    /// # Errors
    /// An empty or wrapping span; remote write or atomic access without local write access; no key left.
    ///
    /// # Safety
    /// The memory must be mapped, and writable if `access` allows any write, until [`deregister`](Self::deregister)
    /// of the key has returned `Ok` or the NIC is dropped. The NIC touches it, on behalf of requests that name it, by
    /// means that count as relaxed atomic accesses: the owner holds no `&mut` to it, and no `&` to plain data
    /// that a request may write, while such a request is posted.
    unsafe fn register(&self, addr: u64, bytes: u64, access: Access) -> Result<MemoryKey, NicError>;

    /// Makes `bytes` bytes of a dma-buf, such as memory of a GPU, known to the NIC, from byte `offset` of it on; requests
    /// name them by addresses from `iova` on. The NIC keeps what it needs of the buffer: `fd` may be closed afterwards.
    ///
    /// One registration takes at most 2 GiB: register longer memory in pieces. Writes arrive in order (never with relaxed
    /// ordering) and memory is held in place (never on demand).
    ///
    /// # Errors
    /// An empty or wrapping span, or one of more than 2 GiB; remote write or atomic access without local write access; a
    /// kernel, driver or NIC that takes no dma-buf.
    fn register_dma_buf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        iova: u64,
        access: Access,
    ) -> Result<MemoryKey, NicError>;

    /// Makes `bytes` addresses from `addr` on known to the NIC that are no memory: what requests name there is asked of `backing`, which
    /// brings it into memory for as long as a request needs it. The addresses are the caller's, and nothing else's memory lies there.
    ///
    /// # Errors
    /// As [`register`](Self::register); a NIC that reads memory alone.
    fn register_backed(
        &self,
        addr: u64,
        bytes: u64,
        access: Access,
        backing: Arc<dyn Backing>,
    ) -> Result<MemoryKey, NicError>;

    /// Forgets a key. Waits (bounded) for work in flight on the memory; requests that name the key later fail with an
    /// access error.
    ///
    /// # Errors
    /// An unknown key; a bound that ran out: the key is dead then, but the memory must stay valid until a repeated call
    /// has returned `Ok`.
    fn deregister(&self, key: MemoryKey) -> Result<(), NicError>;

    /// Creates a queue pair in state reset. Of given rings it sets all completion queue entries to invalid (0xf0).
    ///
    /// # Errors
    /// Rings that this NIC does not take; a misaligned or null address, a size that is no power of two or too large; no
    /// queue pair left.
    ///
    /// # Safety
    /// The memory that given rings name must be valid and writable, and be accessed by others only by atomic or volatile
    /// accesses, until [`destroy_queue_pair`](Self::destroy_queue_pair) has returned `Ok` or the NIC is dropped. Rings
    /// that the NIC made are mapped for as long, and are accessed in the same way only.
    unsafe fn create_queue_pair(&self, rings: QueueRings) -> Result<QueuePair, NicError>;

    /// The queue pair as it is now.
    ///
    /// # Errors
    /// An unknown queue pair.
    fn queue_pair(&self, qp: u32) -> Result<QueuePair, NicError>;

    /// Takes the queue pair from reset through init and ready-to-receive to ready-to-send, with `remote`, a queue
    /// pair of this NIC, as its responder. `remote` may be `qp` itself. The responder answers only while it is ready
    /// to receive, so both sides are to be connected; until then requests fail with "transport retries exceeded".
    ///
    /// # Errors
    /// An unknown queue pair; a queue pair that is not in state reset.
    fn connect(&self, qp: u32, remote: u32) -> Result<(), NicError>;

    /// Changes the state of a queue pair as a connection manager asks for.
    ///
    /// # Errors
    /// An unknown queue pair; attributes that the state does not take; a NIC that reaches nothing else, which refuses all.
    fn modify(&self, qp: u32, attributes: &QueueAttributes) -> Result<(), NicError>;

    /// Takes a connected queue pair to the error state: everything posted completes with "flushed".
    ///
    /// # Errors
    /// An unknown queue pair; a NIC that does not do this on demand.
    fn fail(&self, qp: u32) -> Result<(), NicError>;

    /// Has a thread of the processor ring for a queue pair whose register its posters cannot reach: in the description that
    /// it returns, and in later ones, the doorbell is a word of memory, to which the same value is stored.
    ///
    /// # Errors
    /// An unknown queue pair; a NIC whose doorbells need none, or have one already; a thread that cannot be started.
    fn use_doorbell_proxy(&self, qp: u32) -> Result<QueuePair, NicError>;

    /// Calls that its doorbell proxy has made, where it has one: the only processor work on a request's way.
    fn doorbell_calls(&self) -> u64;

    /// The state of a queue pair.
    ///
    /// # Errors
    /// An unknown queue pair.
    fn state(&self, qp: u32) -> Result<QueuePairState, NicError>;

    /// Takes the queue pair from any state to reset: work in flight is dropped without completions, indexes,
    /// doorbell records and the doorbell register are 0, completion queue entries invalid again.
    ///
    /// # Errors
    /// An unknown queue pair; a bound that ran out. Rings that the NIC made go on where they were: ask
    /// [`queue_pair`](Self::queue_pair) for the positions.
    fn reset(&self, qp: u32) -> Result<(), NicError>;

    /// Destroys a queue pair; work in flight is dropped without completions. Its memory is not touched after `Ok`.
    ///
    /// # Errors
    /// An unknown queue pair; a bound that ran out: the memory must stay valid then, and the call may be repeated.
    fn destroy_queue_pair(&self, qp: u32) -> Result<(), NicError>;

    /// Address and length in bytes of the pages that hold doorbell registers, so that a simulated GPU can tell stores
    /// to them. Where the driver makes the rings, pages may be added when a queue pair is created or given a doorbell proxy;
    /// none is taken away during the life of the NIC.
    fn doorbell_pages(&self) -> Vec<(u64, u64)>;

    /// To be called after a store to the doorbell register at `addr`, by the same thread: wakes the engine that
    /// serves it if it sleeps. Costs one fence and one load when it does not. Other addresses are ignored.
    fn doorbell_written(&self, addr: u64);

    /// Tells a NIC whose clock a simulation drives what time it is, in nanoseconds; it never steps back. Other NICs ignore it.
    fn advance_to(&self, now_ns: u64);

    /// Does one unit of work (starts or completes one request) and tells whether there was any. It is the only
    /// motor of a NIC in manual mode; with engine threads it lends them the caller's time, where the NIC can.
    fn step(&self) -> bool;
}

/// Whether memory can be registered so.
///
/// # Errors
/// An empty or wrapping span; remote write or atomic access without local write access.
pub fn check_span(start: u64, bytes: u64, access: Access) -> Result<(), NicError> {
    let remote_change = access.bits() & (Access::REMOTE_WRITE | Access::REMOTE_ATOMIC).bits() != 0;
    if bytes == 0 || start.checked_add(bytes).is_none() || remote_change && !access.contains(Access::LOCAL_WRITE) {
        return Err(NicError::BadArgument {
            what: "memory to register",
            value: bytes,
            expected: "a span that is not empty; local write access where others may write",
        });
    }
    Ok(())
}
