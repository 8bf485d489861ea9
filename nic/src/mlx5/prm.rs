//! Commands of the NIC's firmware that DEVX passes on: those that make, change, ask for and end completion queues and
//! queue pairs.
//!
//! Source: the layouts of the kernel's `include/linux/mlx5/mlx5_ifc.h` and, for the four fields that name registered
//! memory, which that header leaves reserved, those of the same structures in DOCA GPUNetIO (BSD-3); the tests compare
//! every field with a table of both (`nic/tests/mlx5_ifc_fields.txt`). Bits are counted from the most significant one of
//! the first byte; all fields are big-endian.

mod answer;
mod bytes;
mod codec;
mod layout;

pub use answer::Answer;
pub use layout::*;

use bytes::Bytes;

/// Codes of the commands.
pub mod opcode {
    /// `CREATE_CQ`.
    pub const CREATE_CQ: u64 = 0x400;
    /// `CREATE_QP`.
    pub const CREATE_QP: u64 = 0x500;
    /// `RST2INIT_QP`.
    pub const RST2INIT_QP: u64 = 0x502;
    /// `INIT2RTR_QP`.
    pub const INIT2RTR_QP: u64 = 0x503;
    /// `RTR2RTS_QP`.
    pub const RTR2RTS_QP: u64 = 0x504;
    /// `2ERR_QP`.
    pub const TO_ERROR_QP: u64 = 0x507;
    /// `2RST_QP`.
    pub const TO_RESET_QP: u64 = 0x50a;
    /// `QUERY_QP`.
    pub const QUERY_QP: u64 = 0x50b;
}

/// A place in registered memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// Number of the registration.
    pub umem: u32,
    /// Bytes from its start.
    pub offset: u64,
}

/// A completion queue: collapsed (every completion over the first entry), overrun ignored, entries of 64 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CreateCompletionQueue {
    /// Base-two logarithm of its entries, at most 31.
    pub log_entries: u8,
    /// Page of registers.
    pub uar_page: u32,
    /// The event queue that it would tell, 8 bits.
    pub event_queue: u32,
    /// Its ring.
    pub ring: Place,
    /// Its doorbell record.
    pub record: Place,
}

/// A reliable connection without a receive queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CreateQueuePair {
    /// Protection domain.
    pub domain: u32,
    /// Base-two logarithm of the send ring's blocks, at most 15.
    pub log_blocks: u8,
    /// Page of registers.
    pub uar_page: u32,
    /// Completion queue.
    pub completion_queue: u32,
    /// Send ring.
    pub ring: Place,
    /// Doorbell record.
    pub record: Place,
}

/// What the peer may do. Atomics are never among it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemoteAccess {
    /// READ.
    pub read: bool,
    /// WRITE.
    pub write: bool,
}

/// From reset to initialised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToInit {
    /// The queue pair.
    pub queue_pair: u32,
    /// Local port, from 1 on.
    pub port: u8,
    /// Partition key's index.
    pub pkey_index: u16,
    /// What the peer may do.
    pub access: RemoteAccess,
}

/// How a link addresses the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// RoCE v2.
    Ethernet {
        /// The next hop.
        mac: [u8; 6],
        /// Source port of the UDP packets, which spreads flows over paths.
        udp_source: u16,
        /// Priority, 3 bits.
        priority: u8,
    },
    /// InfiniBand.
    InfiniBand {
        /// The peer's LID.
        lid: u16,
        /// Path bits of the own LID, 7 bits.
        source_path_bits: u8,
        /// Service level, 4 bits.
        service_level: u8,
    },
}

impl Default for Link {
    fn default() -> Self {
        Self::InfiniBand {
            lid: 0,
            source_path_bits: 0,
            service_level: 0,
        }
    }
}

/// A global header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GlobalHeader {
    /// The peer's GID.
    pub gid: [u8; 16],
    /// Index of the own GID.
    pub source_index: u8,
    /// Routers that may be passed.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// From initialised to ready to receive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToReadyToReceive {
    /// The queue pair.
    pub queue_pair: u32,
    /// Local port, from 1 on.
    pub port: u8,
    /// Partition key's index.
    pub pkey_index: u16,
    /// `enum ibv_mtu`.
    pub mtu: u8,
    /// The peer's queue pair.
    pub remote: u32,
    /// First packet number that is expected.
    pub receive_psn: u32,
    /// Base-two logarithm of the READs that the peer may have in flight, at most 7.
    pub log_reads_in: u8,
    /// Code of the shortest wait of a peer that found no receive buffer, 5 bits.
    pub rnr_timer: u8,
    /// The link.
    pub link: Link,
    /// The global header, if packets have one; over Ethernet they do.
    pub global: Option<GlobalHeader>,
    /// Rate limit, `enum ibv_rate`: 0 is none.
    pub rate: u8,
}

/// From ready to receive to ready to send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToReadyToSend {
    /// The queue pair.
    pub queue_pair: u32,
    /// First packet number that is sent.
    pub send_psn: u32,
    /// Base-two logarithm of the READs in flight, at most 7.
    pub log_reads_out: u8,
    /// A packet is sent again after 4.096 us doubled this many times, 5 bits.
    pub ack_timeout: u8,
    /// How often, 3 bits.
    pub retries: u8,
    /// How often where the peer has no receive buffer, 3 bits.
    pub rnr_retries: u8,
}

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Makes a completion queue; the answer holds its number.
    CreateCompletionQueue(CreateCompletionQueue),
    /// Makes a queue pair; the answer holds its number.
    CreateQueuePair(CreateQueuePair),
    /// From reset to initialised.
    ToInit(ToInit),
    /// From initialised to ready to receive.
    ToReadyToReceive(ToReadyToReceive),
    /// From ready to receive to ready to send.
    ToReadyToSend(ToReadyToSend),
    /// From any state to reset.
    ToReset {
        /// The queue pair.
        queue_pair: u32,
    },
    /// From any state to the error state.
    ToError {
        /// The queue pair.
        queue_pair: u32,
    },
    /// Asks for a queue pair's state; the answer holds it, as `enum ibv_qp_state`.
    QueryQueuePair {
        /// The queue pair.
        queue_pair: u32,
    },
}

/// Why bytes are no command of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PrmError {
    /// Too few or too many bytes.
    #[error("command {opcode:#x} has {found} bytes, expected {expected}")]
    Length {
        /// The command's code.
        opcode: u64,
        /// Bytes given.
        found: usize,
        /// Bytes that it has.
        expected: usize,
    },
    /// A command that is not used.
    #[error("command {opcode:#x} is none that this program sends")]
    Opcode {
        /// Its code.
        opcode: u64,
    },
    /// Bits are set that no field explains, or fields that have to be set are not.
    #[error("command {opcode:#x} has {found:#04x} in byte {at}, expected {expected:#04x}")]
    Other {
        /// The command's code.
        opcode: u64,
        /// The first byte that differs.
        at: usize,
        /// Its value.
        found: u8,
        /// What it has to be.
        expected: u8,
    },
}

impl Command {
    /// The bytes for the firmware. Values that a field does not hold lose their upper bits.
    pub fn encode(&self) -> Vec<u8> {
        let plain = |bytes, code, queue_pair: u32| {
            let mut out = Bytes::new(bytes, code);
            out.set(qp_2rst_in::qpn, queue_pair);
            out.0
        };
        match self {
            Self::CreateCompletionQueue(command) => command.encode(),
            Self::CreateQueuePair(command) => command.encode(),
            Self::ToInit(command) => command.encode(),
            Self::ToReadyToReceive(command) => command.encode(),
            Self::ToReadyToSend(command) => command.encode(),
            Self::ToReset { queue_pair } => plain(qp_2rst_in::BYTES, opcode::TO_RESET_QP, *queue_pair),
            Self::ToError { queue_pair } => plain(qp_2err_in::BYTES, opcode::TO_ERROR_QP, *queue_pair),
            Self::QueryQueuePair { queue_pair } => plain(query_qp_in::BYTES, opcode::QUERY_QP, *queue_pair),
        }
    }

    /// Reads a command back.
    ///
    /// # Errors
    /// Bytes that [`encode`](Self::encode) does not make.
    pub fn parse(bytes: &[u8]) -> Result<Self, PrmError> {
        let opcode = create_cq_in::opcode.get(bytes).unwrap_or(0);
        let from = Bytes(bytes);
        let queue_pair = from.word(qp_2rst_in::qpn);
        let found = match opcode {
            opcode::CREATE_CQ => Self::CreateCompletionQueue(CreateCompletionQueue::decode(&from)),
            opcode::CREATE_QP => Self::CreateQueuePair(CreateQueuePair::decode(&from)),
            opcode::RST2INIT_QP => Self::ToInit(ToInit::decode(&from)),
            opcode::INIT2RTR_QP => Self::ToReadyToReceive(ToReadyToReceive::decode(&from)),
            opcode::RTR2RTS_QP => Self::ToReadyToSend(ToReadyToSend::decode(&from)),
            opcode::TO_RESET_QP => Self::ToReset { queue_pair },
            opcode::TO_ERROR_QP => Self::ToError { queue_pair },
            opcode::QUERY_QP => Self::QueryQueuePair { queue_pair },
            _ => return Err(PrmError::Opcode { opcode }),
        };
        let again = found.encode();
        if again.len() != bytes.len() {
            return Err(PrmError::Length {
                opcode,
                found: bytes.len(),
                expected: again.len(),
            });
        }
        match bytes.iter().zip(&again).position(|(found, expected)| found != expected) {
            None => Ok(found),
            Some(at) => Err(PrmError::Other {
                opcode,
                at,
                found: bytes[at],
                expected: again[at],
            }),
        }
    }

    /// Bytes of its answer.
    pub fn answer_bytes(&self) -> usize {
        match self {
            Self::QueryQueuePair { .. } => query_qp_out::BYTES,
            _ => qp_2err_out::BYTES,
        }
    }

    /// Where its answer has the number, or the state, that it was given for.
    fn value(&self) -> Option<Field> {
        match self {
            Self::CreateCompletionQueue(_) => Some(create_cq_out::cqn),
            Self::CreateQueuePair(_) => Some(create_qp_out::qpn),
            Self::QueryQueuePair { .. } => Some(qpc::state.within(query_qp_out::qpc)),
            _ => None,
        }
    }

    /// Its answer.
    pub fn read_answer(&self, bytes: &[u8]) -> Answer {
        let from = Bytes(bytes);
        Answer {
            status: from.small(qp_2err_out::status),
            syndrome: from.word(qp_2err_out::syndrome),
            value: self.value().map_or(0, |field| from.word(field)),
        }
    }

    /// Writes an answer as the firmware does.
    pub fn write_answer(&self, answer: &Answer, bytes: &mut [u8]) {
        qp_2err_out::status.set(bytes, answer.status.into());
        qp_2err_out::syndrome.set(bytes, answer.syndrome.into());
        if let Some(field) = self.value() {
            field.set(bytes, answer.value.into());
        }
    }
}

#[cfg(test)]
mod tests;
