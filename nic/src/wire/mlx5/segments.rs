//! The segments a work request is made of.

use super::control_flags;
use crate::wire::view;

view! {
    /// View of a control segment (`struct mlx5_wqe_ctrl_seg`, 16 bytes): what, where in the ring, which queue pair.
    ControlSegment, 16;
    /// `opmod << 24 | index << 8 | opcode`.
    opmod_index_opcode, set_opmod_index_opcode: u32 => 0;
    /// `queue pair << 8 | ds`.
    qpn_ds, set_qpn_ds: u32 => 4;
    /// Signature byte; 0 when signatures are off.
    signature, set_signature: u8 => 8;
    /// Stream of a dynamically connected queue pair; 0 otherwise.
    dci_stream, set_dci_stream: u16 => 9;
    /// Fence, completion and solicited bits: see [`control_flags`].
    flags, set_flags: u8 => 11;
    /// Immediate data.
    immediate, set_immediate: u32 => 12;
}

impl<T: AsRef<[u8]>> ControlSegment<T> {
    /// The operation's raw code.
    pub fn opcode(&self) -> u8 {
        self.opmod_index_opcode() as u8
    }

    /// Index of the request's first block, modulo 2^16.
    pub fn index(&self) -> u16 {
        (self.opmod_index_opcode() >> 8) as u16
    }

    /// The 24-bit queue pair number.
    pub fn queue_pair(&self) -> u32 {
        self.qpn_ds() >> 8
    }

    /// Length of the request in 16-byte units, this segment included.
    pub fn units(&self) -> u8 {
        self.qpn_ds() as u8
    }

    /// Whether a completion is written on success.
    pub fn signalled(&self) -> bool {
        self.flags() & control_flags::CQ_UPDATE != 0
    }

    /// Whether its fence mode waits for earlier READs and atomics: all do but none and the initiator's small fence.
    pub fn fenced(&self) -> bool {
        self.flags() & control_flags::FENCE_MASK > control_flags::INITIATOR_SMALL_FENCE
    }
}

view! {
    /// View of a remote address segment (`struct mlx5_wqe_raddr_seg`, 16 bytes).
    RemoteAddressSegment, 16;
    /// Virtual address in the responder's memory.
    address, set_address: u64 => 0;
    /// The responder's key.
    rkey, set_rkey: u32 => 8;
    /// Must be 0.
    reserved, set_reserved: u32 => 12;
}

view! {
    /// View of an atomic segment (`struct mlx5_wqe_atomic_seg`, 16 bytes).
    AtomicSegment, 16;
    /// The value to swap in (compare and swap) or to add (fetch and add).
    swap_add, set_swap_add: u64 => 0;
    /// The value to compare with; unused by fetch and add.
    compare, set_compare: u64 => 8;
}

view! {
    /// View of a data segment (`struct mlx5_wqe_data_seg`, 16 bytes): a span of local memory.
    DataSegment, 16;
    /// Length in bytes; 0 stands for 2^31. The top bit marks an inline segment instead.
    byte_count, set_byte_count: u32 => 0;
    /// The local key.
    lkey, set_lkey: u32 => 4;
    /// Virtual address in local memory.
    address, set_address: u64 => 8;
}

view! {
    /// View of the head of an inline segment (`struct mlx5_wqe_inl_data_seg`, 4 bytes); the data follows it.
    InlineHeader, 4;
    /// `length | 0x8000_0000`.
    byte_count, set_byte_count: u32 => 0;
}

/// Bit of `byte_count` that marks an inline segment.
pub(super) const INLINE_BIT: u32 = 0x8000_0000;

/// One piece of a request's local data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment<'a> {
    /// A span of registered memory.
    Data {
        /// Length in bytes below 2^31, as stored: 0 stands for 2^31, see [`Segment::len_bytes`].
        bytes: u32,
        /// The local key.
        lkey: u32,
        /// Virtual address.
        address: u64,
    },
    /// Bytes carried in the request itself.
    Inline(&'a [u8]),
}

impl Segment<'_> {
    /// Bytes the segment stands for. A stored data length of 0 means 2^31, so an empty data segment does not exist.
    pub fn len_bytes(&self) -> u64 {
        match self {
            Segment::Data { bytes: 0, .. } => 1 << 31,
            Segment::Data { bytes, .. } => u64::from(*bytes),
            Segment::Inline(data) => data.len() as u64,
        }
    }

    /// Bytes the segment takes in a request: a multiple of 16.
    pub fn wire_bytes(&self) -> usize {
        match self {
            Segment::Data { .. } => 16,
            Segment::Inline(data) => (data.len() + 4).next_multiple_of(16),
        }
    }
}
