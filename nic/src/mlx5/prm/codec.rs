//! Commands as bytes: each one is built field by field, and read back.

use super::{bytes::Bytes, *};

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

/// A field of the context of a queue pair in a command, all of which hold it at the same place.
pub(super) const fn context(field: Field) -> Field {
    field.within(rst2init_qp_in::qpc)
}

/// A field of its path.
pub(super) const fn path(field: Field) -> Field {
    context(field.within(qpc::primary_address_path))
}

pub(super) const fn completion_context(field: Field) -> Field {
    field.within(create_cq_in::cq_context)
}

const MAC: Field = path(Field::new(ads::rmac_47_32.offset, 48));

impl CreateCompletionQueue {
    pub(super) fn encode(&self) -> Vec<u8> {
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

    pub(super) fn decode(from: &Bytes<&[u8]>) -> Self {
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
    pub(super) fn encode(&self) -> Vec<u8> {
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

    pub(super) fn decode(from: &Bytes<&[u8]>) -> Self {
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
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Bytes::new(rst2init_qp_in::BYTES, opcode::RST2INIT_QP);
        out.set(rst2init_qp_in::qpn, self.queue_pair);
        out.set(context(qpc::pm_state), MIGRATED);
        out.set(path(ads::vhca_port_num), self.port);
        out.set(path(ads::pkey_index), self.pkey_index);
        out.set(context(qpc::rre), self.access.read);
        out.set(context(qpc::rwe), self.access.write);
        out.0
    }

    pub(super) fn decode(from: &Bytes<&[u8]>) -> Self {
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
    pub(super) fn encode(&self) -> Vec<u8> {
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

    pub(super) fn decode(from: &Bytes<&[u8]>) -> Self {
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
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Bytes::new(rtr2rts_qp_in::BYTES, opcode::RTR2RTS_QP);
        out.set(rtr2rts_qp_in::qpn, self.queue_pair);
        out.set(context(qpc::next_send_psn), self.send_psn);
        out.set(context(qpc::log_sra_max), self.log_reads_out);
        out.set(context(qpc::retry_count), self.retries);
        out.set(context(qpc::rnr_retry), self.rnr_retries);
        out.set(path(ads::ack_timeout), self.ack_timeout);
        out.0
    }

    pub(super) fn decode(from: &Bytes<&[u8]>) -> Self {
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
