//! What takes a queue pair from one state to the next.

use crate::QueuePairState;
use crate::rdma_sys as sys;

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

    /// What the connection manager filled in; `mask` says which of it.
    pub fn from_verbs(attr: &sys::ibv_qp_attr, mask: u32) -> Self {
        let path = &attr.ah_attr;
        Self {
            mask,
            state: attr.qp_state,
            mtu: attr.path_mtu,
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qp_num: attr.dest_qp_num,
            access_flags: attr.qp_access_flags,
            address: AddressAttributes {
                dgid: path.grh.dgid.raw,
                flow_label: path.grh.flow_label,
                dlid: path.dlid,
                sgid_index: path.grh.sgid_index,
                hop_limit: path.grh.hop_limit,
                traffic_class: path.grh.traffic_class,
                sl: path.sl,
                src_path_bits: path.src_path_bits,
                static_rate: path.static_rate,
                is_global: path.is_global != 0,
                port: path.port_num,
            },
            pkey_index: attr.pkey_index,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port_num: attr.port_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
        }
    }

    /// As libibverbs takes them.
    pub fn to_verbs(&self) -> sys::ibv_qp_attr {
        // SAFETY: all zero bytes are a valid ibv_qp_attr, which holds integers only.
        let mut attr: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = self.state;
        attr.path_mtu = self.mtu;
        attr.qkey = self.qkey;
        attr.rq_psn = self.rq_psn;
        attr.sq_psn = self.sq_psn;
        attr.dest_qp_num = self.dest_qp_num;
        attr.qp_access_flags = self.access_flags;
        attr.ah_attr = self.address.to_verbs();
        attr.pkey_index = self.pkey_index;
        attr.max_rd_atomic = self.max_rd_atomic;
        attr.max_dest_rd_atomic = self.max_dest_rd_atomic;
        attr.min_rnr_timer = self.min_rnr_timer;
        attr.port_num = self.port_num;
        attr.timeout = self.timeout;
        attr.retry_cnt = self.retry_cnt;
        attr.rnr_retry = self.rnr_retry;
        attr
    }

    /// A change to a state that needs nothing else.
    pub fn to_state(state: u32) -> Self {
        Self {
            mask: Self::STATE,
            state,
            ..Self::default()
        }
    }

    /// From reset to ready to send: the peer may do what `access` allows; `reads` READs may be in flight each way.
    pub(crate) fn to_connected(peer: &Peer, access: u32, first_psn: u32, reads: u8, repeats: Repeats) -> [Self; 3] {
        [
            Self::to_init(peer.address.port, access),
            Self::to_ready_to_receive(peer, reads),
            Self::to_ready_to_send(first_psn, reads, repeats),
        ]
    }

    /// The state that verbs call that.
    pub(crate) fn state_of(state: u32) -> QueuePairState {
        match state {
            Self::RESET => QueuePairState::Reset,
            Self::INIT => QueuePairState::Init,
            Self::READY_TO_RECEIVE => QueuePairState::ReadyToReceive,
            Self::READY_TO_SEND => QueuePairState::ReadyToSend,
            _ => QueuePairState::Error,
        }
    }

    /// From reset to initialised, at local port `port`: the peer may do what `access` allows, as `enum ibv_access_flags`.
    fn to_init(port: u8, access: u32) -> Self {
        Self {
            mask: Self::STATE | Self::PKEY_INDEX | Self::PORT | Self::ACCESS_FLAGS,
            state: Self::INIT,
            port_num: port,
            access_flags: access,
            ..Self::default()
        }
    }

    /// From initialised to ready to receive from `peer`, which may have `reads` READs in flight.
    fn to_ready_to_receive(peer: &Peer, reads: u8) -> Self {
        Self {
            mask: Self::STATE
                | Self::ADDRESS
                | Self::PATH_MTU
                | Self::DEST_QP_NUM
                | Self::RQ_PSN
                | Self::MAX_DEST_RD_ATOMIC
                | Self::MIN_RNR_TIMER,
            state: Self::READY_TO_RECEIVE,
            mtu: peer.mtu,
            dest_qp_num: peer.number,
            rq_psn: peer.first_psn,
            address: peer.address,
            max_dest_rd_atomic: reads,
            min_rnr_timer: RNR_TIMER,
            ..Self::default()
        }
    }

    /// From ready to receive to ready to send, with at most `reads` READs in flight.
    fn to_ready_to_send(first_psn: u32, reads: u8, repeats: Repeats) -> Self {
        Self {
            mask: Self::STATE
                | Self::TIMEOUT
                | Self::RETRY_COUNT
                | Self::RNR_RETRY
                | Self::SQ_PSN
                | Self::MAX_RD_ATOMIC,
            state: Self::READY_TO_SEND,
            sq_psn: first_psn,
            max_rd_atomic: reads,
            timeout: repeats.ack_timeout,
            retry_cnt: repeats.count,
            rnr_retry: RNR_RETRIES,
            ..Self::default()
        }
    }
}

impl AddressAttributes {
    /// As libibverbs takes it.
    pub fn to_verbs(&self) -> sys::ibv_ah_attr {
        // SAFETY: all zero bytes are a valid ibv_ah_attr, which holds integers only.
        let mut attr: sys::ibv_ah_attr = unsafe { std::mem::zeroed() };
        attr.grh.dgid = sys::ibv_gid { raw: self.dgid };
        attr.grh.flow_label = self.flow_label;
        attr.grh.sgid_index = self.sgid_index;
        attr.grh.hop_limit = self.hop_limit;
        attr.grh.traffic_class = self.traffic_class;
        attr.dlid = self.dlid;
        attr.sl = self.sl;
        attr.src_path_bits = self.src_path_bits;
        attr.static_rate = self.static_rate;
        attr.is_global = self.is_global.into();
        attr.port_num = self.port;
        attr
    }
}

/// Receiver-not-ready timer and repeats: nothing is received here, so neither is ever used.
const RNR_TIMER: u8 = 12;
/// See [`RNR_TIMER`].
const RNR_RETRIES: u8 = 6;

/// The other end of a connection.
pub(crate) struct Peer {
    /// Its queue pair.
    pub number: u32,
    /// The first packet number that it sends.
    pub first_psn: u32,
    /// `enum ibv_mtu` of the path to it.
    pub mtu: u32,
    /// Where it is.
    pub address: AddressAttributes,
}

/// When and how often a packet without an answer is sent again.
#[derive(Clone, Copy)]
pub(crate) struct Repeats {
    /// After 4.096 us << this.
    pub ack_timeout: u8,
    /// This many times.
    pub count: u8,
}

/// A first packet sequence number, 24 bits: different for successive queue pairs and resets, so that a packet of an
/// earlier connection is not taken for one of the next.
pub(crate) fn psn(of: u32) -> u32 {
    of.wrapping_mul(0x9e37_79b1).wrapping_add(0x5bd1) >> 8
}
