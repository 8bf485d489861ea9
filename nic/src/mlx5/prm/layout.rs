//! Where the fields of commands, answers and contexts lie.

/// Where a field lies in its structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its first bit.
    pub offset: usize,
    /// Its bits, at most 64.
    pub bits: usize,
}

impl Field {
    pub(super) const fn new(offset: usize, bits: usize) -> Self {
        Self { offset, bits }
    }

    /// The field in a structure that holds this one's at bit `base`.
    pub(super) const fn within(self, base: Field) -> Self {
        Self::new(base.offset + self.offset, self.bits)
    }

    /// Its value, if `bytes` reach so far.
    pub fn get(self, bytes: &[u8]) -> Option<u64> {
        (self.offset..self.offset + self.bits).try_fold(0, |value, bit| {
            let byte = bytes.get(bit / 8)?;
            Some(value << 1 | u64::from(byte >> (7 - bit % 8) & 1))
        })
    }

    /// Sets it to the low bits of `value`; of bytes that do not reach so far, what there is.
    pub fn set(self, bytes: &mut [u8], value: u64) {
        for (place, bit) in (self.offset..self.offset + self.bits).rev().enumerate() {
            if let Some(byte) = bytes.get_mut(bit / 8) {
                let mask = 0x80 >> (bit % 8);
                *byte = if value >> place & 1 != 0 {
                    *byte | mask
                } else {
                    *byte & !mask
                };
            }
        }
    }

    /// The largest value that it holds.
    pub(super) const fn most(self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }
}

macro_rules! layout {
    ($(#[$doc:meta])* $module:ident: $bits:literal { $($field:ident: $offset:literal, $width:literal;)* }) => {
        $(#[$doc])*
        #[allow(non_upper_case_globals, reason = "named as in the headers")]
        pub mod $module {
            use super::Field;
            /// Bytes of the structure, without what may follow it.
            pub const BYTES: usize = $bits / 8;
            /// Its fields that are used, by name.
            pub const FIELDS: &[(&str, Field)] = &[$((stringify!($field), $field)),*];
            $(#[doc = concat!("`", stringify!($field), "`.")]
            pub const $field: Field = Field::new($offset, $width);)*
        }
    };
}

layout! {
    /// Context of a completion queue.
    cqc: 512 {
        dbr_umem_valid: 6, 1; cqe_sz: 8, 3; cc: 11, 1; oi: 14, 1; dbr_umem_id: 32, 32; log_cq_size: 99, 5;
        uar_page: 104, 24; c_eqn_or_apu_element: 160, 32; log_page_size: 195, 5; dbr_addr: 448, 64;
    }
}
layout! {
    /// A path to the peer.
    ads: 352 {
        pkey_index: 16, 16; grh: 40, 1; mlid: 41, 7; rlid: 48, 16; ack_timeout: 64, 5; src_addr_index: 72, 8;
        stat_rate: 84, 4; hop_limit: 88, 8; tclass: 100, 8; flow_label: 108, 20; rgid_rip: 128, 128; dscp: 266, 6;
        udp_sport: 272, 16; eth_prio: 289, 3; sl: 292, 4; vhca_port_num: 296, 8; rmac_47_32: 304, 16; rmac_31_0: 320, 32;
    }
}
layout! {
    /// Context of a queue pair.
    qpc: 1856 {
        state: 0, 4; st: 8, 8; pm_state: 19, 2; pd: 40, 24; mtu: 64, 3; log_msg_max: 67, 5; log_sq_size: 81, 4;
        ts_format: 88, 2; uar_page: 104, 24; user_index: 136, 24; log_page_size: 163, 5; remote_qpn: 168, 24;
        primary_address_path: 192, 352; log_sra_max: 904, 3; retry_count: 909, 3; rnr_retry: 912, 3;
        next_send_psn: 968, 24; cqn_snd: 1000, 24; log_rra_max: 1160, 3; atomic_mode: 1164, 4; rre: 1168, 1; rwe: 1169, 1;
        rae: 1170, 1; min_rnr_nak: 1187, 5; next_rcv_psn: 1192, 24; cqn_rcv: 1256, 24; dbr_addr: 1280, 64;
        rq_type: 1381, 3; cs_req: 1584, 8; cs_res: 1592, 8; dbr_umem_valid: 1667, 1; dbr_umem_id: 1824, 32;
    }
}
layout! {
    /// Makes a completion queue.
    create_cq_in: 2176 {
        opcode: 0, 16; op_mod: 48, 16; cq_context: 128, 512; cq_umem_offset: 640, 64; cq_umem_id: 704, 32;
        cq_umem_valid: 736, 1;
    }
}
layout! {
    /// The answer.
    create_cq_out: 128 { status: 0, 8; syndrome: 32, 32; cqn: 72, 24; }
}
layout! {
    /// Makes a queue pair.
    create_qp_in: 2176 {
        opcode: 0, 16; op_mod: 48, 16; opt_param_mask: 128, 32; qpc: 192, 1856; wq_umem_offset: 2048, 64;
        wq_umem_id: 2112, 32; wq_umem_valid: 2144, 1;
    }
}
layout! {
    /// The answer.
    create_qp_out: 128 { status: 0, 8; syndrome: 32, 32; qpn: 72, 24; }
}
layout! {
    /// From reset to initialised.
    rst2init_qp_in: 2176 { opcode: 0, 16; op_mod: 48, 16; qpn: 72, 24; opt_param_mask: 128, 32; qpc: 192, 1856; }
}
layout! {
    /// From initialised to ready to receive.
    init2rtr_qp_in: 2176 { opcode: 0, 16; op_mod: 48, 16; qpn: 72, 24; opt_param_mask: 128, 32; qpc: 192, 1856; }
}
layout! {
    /// From ready to receive to ready to send.
    rtr2rts_qp_in: 2176 { opcode: 0, 16; op_mod: 48, 16; qpn: 72, 24; opt_param_mask: 128, 32; qpc: 192, 1856; }
}
layout! {
    /// To reset.
    qp_2rst_in: 128 { opcode: 0, 16; op_mod: 48, 16; qpn: 72, 24; }
}
layout! {
    /// To the error state.
    qp_2err_in: 128 { opcode: 0, 16; op_mod: 48, 16; qpn: 72, 24; }
}
layout! {
    /// The answer to a change of state.
    qp_2err_out: 128 { status: 0, 8; syndrome: 32, 32; }
}
layout! {
    /// Asks for a queue pair's context.
    query_qp_in: 128 { opcode: 0, 16; op_mod: 48, 16; qpn: 72, 24; }
}
layout! {
    /// The answer, without the addresses that may follow.
    query_qp_out: 2176 { status: 0, 8; syndrome: 32, 32; opt_param_mask: 128, 32; qpc: 192, 1856; }
}

/// A structure: its name, its bytes, and its fields by name.
pub type Structure = (&'static str, usize, &'static [(&'static str, Field)]);

/// All structures.
pub const STRUCTURES: &[Structure] = &[
    ("cqc", cqc::BYTES, cqc::FIELDS),
    ("ads", ads::BYTES, ads::FIELDS),
    ("qpc", qpc::BYTES, qpc::FIELDS),
    ("create_cq_in", create_cq_in::BYTES, create_cq_in::FIELDS),
    ("create_cq_out", create_cq_out::BYTES, create_cq_out::FIELDS),
    ("create_qp_in", create_qp_in::BYTES, create_qp_in::FIELDS),
    ("create_qp_out", create_qp_out::BYTES, create_qp_out::FIELDS),
    ("rst2init_qp_in", rst2init_qp_in::BYTES, rst2init_qp_in::FIELDS),
    ("init2rtr_qp_in", init2rtr_qp_in::BYTES, init2rtr_qp_in::FIELDS),
    ("rtr2rts_qp_in", rtr2rts_qp_in::BYTES, rtr2rts_qp_in::FIELDS),
    ("qp_2rst_in", qp_2rst_in::BYTES, qp_2rst_in::FIELDS),
    ("qp_2err_in", qp_2err_in::BYTES, qp_2err_in::FIELDS),
    ("qp_2err_out", qp_2err_out::BYTES, qp_2err_out::FIELDS),
    ("query_qp_in", query_qp_in::BYTES, query_qp_in::FIELDS),
    ("query_qp_out", query_qp_out::BYTES, query_qp_out::FIELDS),
];
