//! The trait all NICs implement, and what it speaks of.

use core::fmt;
use std::borrow::Cow;
use std::os::fd::BorrowedFd;

/// What may be done with registered memory. Reading it locally is always allowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Access(u32);

impl Access {
    /// Local reads only.
    pub const NONE: Access = Access(0);
    /// Results of READs and atomics may be placed here.
    pub const LOCAL_WRITE: Access = Access(1);
    /// The other side may WRITE here. Asks for `LOCAL_WRITE`, as verbs do.
    pub const REMOTE_WRITE: Access = Access(2);
    /// The other side may READ from here.
    pub const REMOTE_READ: Access = Access(4);
    /// The other side may do atomics here. Asks for `LOCAL_WRITE`, as verbs do.
    pub const REMOTE_ATOMIC: Access = Access(8);
    /// Everything.
    pub const ALL: Access = Access(15);

    /// Both sets of rights.
    #[must_use]
    pub const fn union(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Whether all rights of `other` are in this set.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set as bits (those of `enum ibv_access_flags`).
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set of the known rights in `bits`; others are dropped.
    pub const fn from_bits_truncate(bits: u32) -> Access {
        Access(bits & Access::ALL.0)
    }
}

impl core::ops::BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        self.union(other)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Access::LOCAL_WRITE, "LOCAL_WRITE"),
            (Access::REMOTE_WRITE, "REMOTE_WRITE"),
            (Access::REMOTE_READ, "REMOTE_READ"),
            (Access::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
        ];
        f.debug_set()
            .entries(
                names
                    .iter()
                    .filter(|(bit, _)| self.contains(*bit))
                    .map(|(_, name)| name),
            )
            .finish()
    }
}

/// The keys of registered memory, in host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryKey {
    /// For data segments of this side's requests.
    pub lkey: u32,
    /// For remote address segments. It need not equal `lkey`.
    pub rkey: u32,
}

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// A queue pair as its poster needs it. Positions change with [`Nic::reset`].
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

/// What takes a queue pair from one state to the next: `ibv_qp_attr` as plain numbers, such as `rdma_init_qp_attr` fills
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueAttributes {
    /// `enum ibv_qp_attr_mask`: which of the fields hold something.
    pub mask: u32,
    /// `enum ibv_qp_state`: 0 RESET, 1 INIT, 2 RTR, 3 RTS, 6 ERR.
    pub state: u32,
    /// `enum ibv_mtu` of the path: 1 is 256 bytes, 5 is 4096.
    pub mtu: u32,
    /// Q_Key, of datagrams only.
    pub qkey: u32,
    /// First packet number that is expected.
    pub rq_psn: u32,
    /// First packet number that is sent.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// `enum ibv_access_flags`: what the peer may do.
    pub access_flags: u32,
    /// The peer's address.
    pub address: AddressAttributes,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// READs and atomics in flight that this side begins.
    pub max_rd_atomic: u8,
    /// READs and atomics in flight that the peer begins.
    pub max_dest_rd_atomic: u8,
    /// The code of the shortest wait of a peer that found no receive buffer.
    pub min_rnr_timer: u8,
    /// The local port.
    pub port_num: u8,
    /// A packet is sent again after 4.096 us << timeout.
    pub timeout: u8,
    /// How often; 7 is for ever on rdma_rxe.
    pub retry_cnt: u8,
    /// How often where the peer has no receive buffer; 7 is for ever.
    pub rnr_retry: u8,
}

/// `ibv_ah_attr`: where packets go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressAttributes {
    /// The peer's GID.
    pub dgid: [u8; 16],
    /// Flow label.
    pub flow_label: u32,
    /// The peer's LID, InfiniBand only.
    pub dlid: u16,
    /// Index of the own GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Path bits of the source, InfiniBand only.
    pub src_path_bits: u8,
    /// Rate limit of the path.
    pub static_rate: u8,
    /// Whether the GIDs are used.
    pub is_global: bool,
    /// The local port.
    pub port: u8,
}

impl QueueAttributes {
    /// `IBV_QP_STATE`, a bit of `mask`, as are the next.
    pub const STATE: u32 = 1;
    /// `IBV_QP_ACCESS_FLAGS`.
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    /// `IBV_QP_PKEY_INDEX`.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// `IBV_QP_PORT`.
    pub const PORT: u32 = 1 << 5;
    /// `IBV_QP_AV`.
    pub const ADDRESS: u32 = 1 << 7;
    /// `IBV_QP_PATH_MTU`.
    pub const PATH_MTU: u32 = 1 << 8;
    /// `IBV_QP_TIMEOUT`.
    pub const TIMEOUT: u32 = 1 << 9;
    /// `IBV_QP_RETRY_CNT`.
    pub const RETRY_COUNT: u32 = 1 << 10;
    /// `IBV_QP_RNR_RETRY`.
    pub const RNR_RETRY: u32 = 1 << 11;
    /// `IBV_QP_RQ_PSN`.
    pub const RQ_PSN: u32 = 1 << 12;
    /// `IBV_QP_MAX_QP_RD_ATOMIC`.
    pub const MAX_RD_ATOMIC: u32 = 1 << 13;
    /// `IBV_QP_MIN_RNR_TIMER`.
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    /// `IBV_QP_SQ_PSN`.
    pub const SQ_PSN: u32 = 1 << 16;
    /// `IBV_QP_MAX_DEST_RD_ATOMIC`.
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// `IBV_QP_DEST_QPN`.
    pub const DEST_QP_NUM: u32 = 1 << 20;

    /// `IBV_QPS_RESET`, a state, as are the next.
    pub const RESET: u32 = 0;
    /// `IBV_QPS_INIT`.
    pub const INIT: u32 = 1;
    /// `IBV_QPS_RTR`.
    pub const READY_TO_RECEIVE: u32 = 2;
    /// `IBV_QPS_RTS`.
    pub const READY_TO_SEND: u32 = 3;
    /// `IBV_QPS_ERR`.
    pub const ERROR: u32 = 6;

    /// A change to a state that needs nothing else.
    pub fn to_state(state: u32) -> Self {
        Self {
            mask: Self::STATE,
            state,
            ..Self::default()
        }
    }
}

/// A first packet sequence number, 24 bits: different for successive queue pairs and resets, so that a packet of an
/// earlier connection is not taken for one of the next.
pub(crate) fn psn(of: u32) -> u32 {
    of.wrapping_mul(0x9e37_79b1).wrapping_add(0x5bd1) >> 8
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
}

/// What a NIC refused, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// An argument that cannot be.
    #[error("{what} is {value:#x}, expected {expected}")]
    BadArgument {
        /// The argument.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it has to be.
        expected: &'static str,
    },
    /// No queue pair of this number.
    #[error("no queue pair {queue_pair:#x} on this NIC; it was never created or is destroyed")]
    UnknownQueuePair {
        /// The number asked for.
        queue_pair: u32,
    },
    /// No registered memory of this key.
    #[error("no memory registered under lkey {:#x} and rkey {:#x}; it was never registered or is deregistered", key.lkey, key.rkey)]
    UnknownKey {
        /// The key given.
        key: MemoryKey,
    },
    /// The queue pair is not in the state that the call needs.
    #[error("queue pair {queue_pair:#x} is in state {state}, {operation} needs {needed}; reset it first")]
    WrongState {
        /// The queue pair.
        queue_pair: u32,
        /// Its state.
        state: QueuePairState,
        /// The call.
        operation: &'static str,
        /// The state it needs.
        needed: QueuePairState,
    },
    /// The NIC has no more of something.
    #[error("all {limit} {what} of the NIC are in use; release some first")]
    Exhausted {
        /// What ran out.
        what: &'static str,
        /// How many there are.
        limit: u64,
    },
    /// The NIC did not come to rest in time. What was to be released is still in use: its memory must stay valid.
    #[error(
        "{what} waited {waited_ms} ms for engine {engine} to finish the request it executes; keep the memory alive and try again"
    )]
    TimedOut {
        /// The call.
        what: &'static str,
        /// The engine waited for.
        engine: usize,
        /// How long, in milliseconds.
        waited_ms: u64,
    },
    /// The system refused a call.
    #[error("{doing} on {device}{}", if hint.is_empty() { String::new() } else { format!(" ({hint})") })]
    System {
        /// The RDMA device.
        device: String,
        /// What was being done.
        doing: String,
        /// What to do about it, if that is known; empty otherwise.
        hint: Cow<'static, str>,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// No device to open.
    #[error("{reason}")]
    NoDevice {
        /// What was looked for, what is there, and what to do.
        reason: String,
    },
    /// The NIC cannot do this at all.
    #[error("the {nic} NIC cannot {what}")]
    Unsupported {
        /// The NIC.
        nic: &'static str,
        /// The call.
        what: &'static str,
    },
    /// What moves the NIC's bytes failed.
    #[error("{what}: the NIC's mover failed")]
    Mover {
        /// What needed it.
        what: &'static str,
        /// The mover's reason.
        #[source]
        source: crate::MoverError,
    },
    /// A thread of the NIC could not be started.
    #[error("cannot start thread {name} of the NIC; lower the number of engines or raise the process limit")]
    Thread {
        /// The thread.
        name: String,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
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
    ) -> Result<MemoryKey, NicError> {
        let _ = (fd, offset, bytes, iova, access);
        Err(NicError::Unsupported {
            nic: "software",
            what: "register a dma-buf",
        })
    }

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
    /// An unknown queue pair; attributes that the state does not take; a NIC that reaches nobody else.
    fn modify(&self, qp: u32, attributes: &QueueAttributes) -> Result<(), NicError> {
        let _ = (qp, attributes);
        Err(NicError::Unsupported {
            nic: "software",
            what: "be connected to another machine",
        })
    }

    /// Takes a connected queue pair to the error state: everything posted completes with "flushed".
    ///
    /// # Errors
    /// An unknown queue pair; a NIC that does not do this on demand.
    fn fail(&self, qp: u32) -> Result<(), NicError> {
        let _ = qp;
        Err(NicError::Unsupported {
            nic: "software",
            what: "fail a queue pair on demand",
        })
    }

    /// Has a thread of the processor ring for a queue pair whose register its posters cannot reach: in the description that
    /// it returns, and in later ones, the doorbell is a word of memory, to which the same value is stored.
    ///
    /// # Errors
    /// An unknown queue pair; a NIC whose doorbells need none, or have one already; a thread that cannot be started.
    fn use_doorbell_proxy(&self, qp: u32) -> Result<QueuePair, NicError> {
        let _ = qp;
        Err(NicError::Unsupported {
            nic: "software",
            what: "ring by a doorbell proxy: every thread of this process reaches its registers",
        })
    }

    /// Calls that its doorbell proxy has made, where it has one: the only processor work on a request's way.
    fn doorbell_calls(&self) -> u64 {
        0
    }

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
    fn advance_to(&self, now_ns: u64) {
        let _ = now_ns;
    }

    /// Does one unit of work (starts or completes one request) and tells whether there was any. It is the only
    /// motor of a NIC in manual mode; with engine threads it lends them the caller's time, where the NIC can.
    fn step(&self) -> bool;
}
