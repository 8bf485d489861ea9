//! Commands of the NIC's firmware that DEVX passes on: those that make, change, ask for and end completion queues and
//! queue pairs.
//!
//! Source: the layouts of the kernel's `include/linux/mlx5/mlx5_ifc.h` and, for the four fields that name registered
//! memory, which that header leaves reserved, those of the same structures in DOCA GPUNetIO (BSD-3); the tests compare
//! every field with a table of both (`nic/tests/mlx5_ifc_fields.txt`). Bits are counted from the most significant one of
//! the first byte; all fields are big-endian.

use std::fmt;

mod layout;

pub use layout::*;

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

/// `pm_state`: path migration is done, as it is where there is one path.
const MIGRATED: u64 = 3;
/// `rq_type`: no receive queue.
const NO_RECEIVE_QUEUE: u64 = 3;
/// `ts_format`: the device's default.
const DEFAULT_TIMESTAMPS: u64 = 1;
/// `log_msg_max`: 1 GiB.
const LOG_MESSAGE_MAX: u64 = 30;
/// What `stat_rate` is more than the code of verbs.
const RATE_OFFSET: u64 = 5;

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
    /// A packet is sent again after 4.096 us doubled so many times, 5 bits.
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

/// A command that is being built or read.
struct Bytes<B>(B);

impl Bytes<Vec<u8>> {
    fn new(bytes: usize, opcode: u64) -> Self {
        let mut made = Self(vec![0; bytes]);
        // Every command begins with its code.
        made.set(create_cq_in::opcode, opcode);
        made
    }

    fn set(&mut self, field: Field, value: impl Into<u64>) {
        let value = value.into();
        debug_assert!(value <= field.most(), "{value:#x} in {field:?}");
        field.set(&mut self.0, value);
    }

    /// Sets a run of whole bytes.
    fn copy(&mut self, field: Field, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            Field::new(field.offset + at * 8, 8).set(&mut self.0, u64::from(*byte));
        }
    }
}

impl Bytes<&[u8]> {
    fn get(&self, field: Field) -> u64 {
        // Lengths are checked before.
        field.get(self.0).unwrap_or(0)
    }

    fn small(&self, field: Field) -> u8 {
        self.get(field) as u8
    }

    fn word(&self, field: Field) -> u32 {
        self.get(field) as u32
    }

    fn flag(&self, field: Field) -> bool {
        self.get(field) != 0
    }

    fn copied<const N: usize>(&self, field: Field) -> [u8; N] {
        std::array::from_fn(|at| self.small(Field::new(field.offset + at * 8, 8)))
    }
}

/// A field of the context of a queue pair in a command, all of which hold it at the same place.
const fn context(field: Field) -> Field {
    field.within(rst2init_qp_in::qpc)
}

/// A field of its path.
const fn path(field: Field) -> Field {
    context(field.within(qpc::primary_address_path))
}

const fn completion_context(field: Field) -> Field {
    field.within(create_cq_in::cq_context)
}

const MAC: Field = path(Field::new(ads::rmac_47_32.offset, 48));

impl CreateCompletionQueue {
    fn encode(&self) -> Vec<u8> {
        let mut out = Bytes::new(create_cq_in::BYTES, opcode::CREATE_CQ);
        out.set(completion_context(cqc::cc), 1u8);
        out.set(completion_context(cqc::oi), 1u8);
        out.set(completion_context(cqc::log_cq_size), self.log_entries);
        out.set(completion_context(cqc::uar_page), self.uar_page);
        out.set(completion_context(cqc::c_eqn_or_apu_element), self.event_queue);
        out.set(completion_context(cqc::dbr_umem_valid), 1u8);
        out.set(completion_context(cqc::dbr_umem_id), self.record.umem);
        out.set(completion_context(cqc::dbr_addr), self.record.offset);
        out.set(create_cq_in::cq_umem_valid, 1u8);
        out.set(create_cq_in::cq_umem_id, self.ring.umem);
        out.set(create_cq_in::cq_umem_offset, self.ring.offset);
        out.0
    }

    fn decode(from: &Bytes<&[u8]>) -> Self {
        Self {
            log_entries: from.small(completion_context(cqc::log_cq_size)),
            uar_page: from.word(completion_context(cqc::uar_page)),
            event_queue: from.word(completion_context(cqc::c_eqn_or_apu_element)),
            ring: Place {
                umem: from.word(create_cq_in::cq_umem_id),
                offset: from.get(create_cq_in::cq_umem_offset),
            },
            record: Place {
                umem: from.word(completion_context(cqc::dbr_umem_id)),
                offset: from.get(completion_context(cqc::dbr_addr)),
            },
        }
    }
}

impl CreateQueuePair {
    fn encode(&self) -> Vec<u8> {
        let mut out = Bytes::new(create_qp_in::BYTES, opcode::CREATE_QP);
        // `st` 0 is a reliable connection; `cs_req` and `cs_res` 0 keep data out of completions.
        out.set(context(qpc::pm_state), MIGRATED);
        out.set(context(qpc::pd), self.domain);
        out.set(context(qpc::log_sq_size), self.log_blocks);
        out.set(context(qpc::ts_format), DEFAULT_TIMESTAMPS);
        out.set(context(qpc::uar_page), self.uar_page);
        out.set(context(qpc::cqn_snd), self.completion_queue);
        out.set(context(qpc::cqn_rcv), self.completion_queue);
        out.set(context(qpc::rq_type), NO_RECEIVE_QUEUE);
        out.set(context(qpc::dbr_umem_valid), 1u8);
        out.set(context(qpc::dbr_umem_id), self.record.umem);
        out.set(context(qpc::dbr_addr), self.record.offset);
        out.set(create_qp_in::wq_umem_valid, 1u8);
        out.set(create_qp_in::wq_umem_id, self.ring.umem);
        out.set(create_qp_in::wq_umem_offset, self.ring.offset);
        out.0
    }

    fn decode(from: &Bytes<&[u8]>) -> Self {
        Self {
            domain: from.word(context(qpc::pd)),
            log_blocks: from.small(context(qpc::log_sq_size)),
            uar_page: from.word(context(qpc::uar_page)),
            completion_queue: from.word(context(qpc::cqn_snd)),
            ring: Place {
                umem: from.word(create_qp_in::wq_umem_id),
                offset: from.get(create_qp_in::wq_umem_offset),
            },
            record: Place {
                umem: from.word(context(qpc::dbr_umem_id)),
                offset: from.get(context(qpc::dbr_addr)),
            },
        }
    }
}

impl ToInit {
    fn encode(&self) -> Vec<u8> {
        let mut out = Bytes::new(rst2init_qp_in::BYTES, opcode::RST2INIT_QP);
        out.set(rst2init_qp_in::qpn, self.queue_pair);
        out.set(context(qpc::pm_state), MIGRATED);
        out.set(path(ads::vhca_port_num), self.port);
        out.set(path(ads::pkey_index), self.pkey_index);
        out.set(context(qpc::rre), self.access.read);
        out.set(context(qpc::rwe), self.access.write);
        out.0
    }

    fn decode(from: &Bytes<&[u8]>) -> Self {
        Self {
            queue_pair: from.word(rst2init_qp_in::qpn),
            port: from.small(path(ads::vhca_port_num)),
            pkey_index: from.get(path(ads::pkey_index)) as u16,
            access: RemoteAccess {
                read: from.flag(context(qpc::rre)),
                write: from.flag(context(qpc::rwe)),
            },
        }
    }
}

impl ToReadyToReceive {
    fn encode(&self) -> Vec<u8> {
        let mut out = Bytes::new(init2rtr_qp_in::BYTES, opcode::INIT2RTR_QP);
        out.set(init2rtr_qp_in::qpn, self.queue_pair);
        out.set(context(qpc::mtu), self.mtu);
        out.set(context(qpc::log_msg_max), LOG_MESSAGE_MAX);
        out.set(context(qpc::remote_qpn), self.remote);
        out.set(context(qpc::next_rcv_psn), self.receive_psn);
        out.set(context(qpc::log_rra_max), self.log_reads_in);
        out.set(context(qpc::min_rnr_nak), self.rnr_timer);
        out.set(path(ads::vhca_port_num), self.port);
        out.set(path(ads::pkey_index), self.pkey_index);
        // Rates that the field cannot name are no limit.
        let rate = u64::from(self.rate) + RATE_OFFSET;
        let limited = self.rate != 0 && rate <= ads::stat_rate.most();
        out.set(path(ads::stat_rate), if limited { rate } else { 0 });
        if let Some(global) = &self.global {
            out.copy(path(ads::rgid_rip), &global.gid);
            out.set(path(ads::src_addr_index), global.source_index);
            out.set(path(ads::hop_limit), global.hop_limit);
            out.set(path(ads::tclass), global.traffic_class);
            out.set(path(ads::flow_label), global.flow_label);
        }
        match self.link {
            Link::Ethernet {
                mac,
                udp_source,
                priority,
            } => {
                out.copy(MAC, &mac);
                out.set(path(ads::udp_sport), udp_source);
                out.set(path(ads::eth_prio), priority);
                // Over RoCE v2 the class of service is the upper six bits.
                let class = self.global.map_or(0, |global| global.traffic_class);
                out.set(path(ads::dscp), class >> 2);
            }
            Link::InfiniBand {
                lid,
                source_path_bits,
                service_level,
            } => {
                out.set(path(ads::grh), self.global.is_some());
                out.set(path(ads::rlid), lid);
                out.set(path(ads::mlid), source_path_bits);
                out.set(path(ads::sl), service_level);
            }
        }
        out.0
    }

    fn decode(from: &Bytes<&[u8]>) -> Self {
        let mac: [u8; 6] = from.copied(MAC);
        let header = GlobalHeader {
            gid: from.copied(path(ads::rgid_rip)),
            source_index: from.small(path(ads::src_addr_index)),
            hop_limit: from.small(path(ads::hop_limit)),
            traffic_class: from.small(path(ads::tclass)),
            flow_label: from.word(path(ads::flow_label)),
        };
        let ethernet = mac != [0; 6];
        let link = if ethernet {
            Link::Ethernet {
                mac,
                udp_source: from.get(path(ads::udp_sport)) as u16,
                priority: from.small(path(ads::eth_prio)),
            }
        } else {
            Link::InfiniBand {
                lid: from.get(path(ads::rlid)) as u16,
                source_path_bits: from.small(path(ads::mlid)),
                service_level: from.small(path(ads::sl)),
            }
        };
        Self {
            queue_pair: from.word(init2rtr_qp_in::qpn),
            port: from.small(path(ads::vhca_port_num)),
            pkey_index: from.get(path(ads::pkey_index)) as u16,
            mtu: from.small(context(qpc::mtu)),
            remote: from.word(context(qpc::remote_qpn)),
            receive_psn: from.word(context(qpc::next_rcv_psn)),
            log_reads_in: from.small(context(qpc::log_rra_max)),
            rnr_timer: from.small(context(qpc::min_rnr_nak)),
            link,
            global: (ethernet || from.flag(path(ads::grh))).then_some(header),
            rate: from.small(path(ads::stat_rate)).saturating_sub(RATE_OFFSET as u8),
        }
    }
}

impl ToReadyToSend {
    fn encode(&self) -> Vec<u8> {
        let mut out = Bytes::new(rtr2rts_qp_in::BYTES, opcode::RTR2RTS_QP);
        out.set(rtr2rts_qp_in::qpn, self.queue_pair);
        out.set(context(qpc::next_send_psn), self.send_psn);
        out.set(context(qpc::log_sra_max), self.log_reads_out);
        out.set(context(qpc::retry_count), self.retries);
        out.set(context(qpc::rnr_retry), self.rnr_retries);
        out.set(path(ads::ack_timeout), self.ack_timeout);
        out.0
    }

    fn decode(from: &Bytes<&[u8]>) -> Self {
        Self {
            queue_pair: from.word(rtr2rts_qp_in::qpn),
            send_psn: from.word(context(qpc::next_send_psn)),
            log_reads_out: from.small(context(qpc::log_sra_max)),
            ack_timeout: from.small(path(ads::ack_timeout)),
            retries: from.small(context(qpc::retry_count)),
            rnr_retries: from.small(context(qpc::rnr_retry)),
        }
    }
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

/// What the firmware said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0 is success.
    pub status: u8,
    /// The firmware's own code of what is wrong: NVIDIA's support knows them.
    pub syndrome: u32,
    /// The number of what was made, or the state that was asked for; else 0.
    pub value: u32,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meaning = match self.status {
            0x00 => "well",
            0x01 => "internal error",
            0x02 => "bad operation",
            0x03 => "bad parameter",
            0x04 => "bad system state",
            0x05 => "bad resource",
            0x06 => "resource busy",
            0x08 => "limit exceeded",
            0x09 => "bad resource state",
            0x0a => "bad index",
            0x0f => "no resources",
            0x10 => "bad queue pair state",
            0x50 => "bad input length",
            0x51 => "bad output length",
            _ => "unknown status",
        };
        write!(
            f,
            "firmware status {:#04x} ({meaning}), syndrome {:#010x}",
            self.status, self.syndrome
        )
    }
}

#[cfg(test)]
mod tests;
