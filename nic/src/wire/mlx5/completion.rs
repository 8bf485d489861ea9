//! Completion queue entries, 64 bytes (`struct mlx5_cqe64`, `struct mlx5_err_cqe`).

use core::fmt;

use super::{CQE_BYTES, CqeOpcode, Opcode, Syndrome};
use crate::wire::{WireError, view};

view! {
    /// View of a completion queue entry.
    Cqe, 64;
    /// Receive: tag of the posted buffer.
    wqe_id, set_wqe_id: u16 => 2;
    /// Receive: flags and the sender's queue pair.
    flags_rqpn, set_flags_rqpn: u32 => 24;
    /// Shared receive queue number or user index.
    srqn_uidx, set_srqn_uidx: u32 => 32;
    /// Immediate data.
    immediate, set_immediate: u32 => 36;
    /// Bytes moved.
    byte_count, set_byte_count: u32 => 44;
    /// When the request completed, in the NIC's clock.
    timestamp, set_timestamp: u64 => 48;
    /// Error entries only: the vendor's detail of the syndrome.
    vendor_syndrome, set_vendor_syndrome: u8 => 54;
    /// Error entries only: the syndrome.
    syndrome, set_syndrome: u8 => 55;
    /// `opcode of the request << 24 | queue pair`.
    opcode_qpn, set_opcode_qpn: u32 => 56;
    /// Index of the request's first block, modulo 2^16.
    wqe_counter, set_wqe_counter: u16 => 60;
    /// Signature byte; 0 when signatures are off.
    signature, set_signature: u8 => 62;
    /// `opcode << 4 | format << 2 | solicited << 1 | owner`; the NIC writes it last.
    op_own, set_op_own: u8 => 63;
}

impl<T: AsRef<[u8]>> Cqe<T> {
    /// Whether the entry is the `consumed`-th completion (counted from 0, unwrapped) of a ring of `entries`
    /// entries: it was written at all, and in this lap. `entries` is a power of two.
    pub fn is_valid(&self, consumed: u64, entries: u32) -> bool {
        let op_own = self.op_own();
        op_own >> 4 != 15 && (op_own & 1 != 0) == (consumed & u64::from(entries) != 0)
    }
}

/// What a completion says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionDetail {
    /// The request, or an arrival at the responder, succeeded.
    Success {
        /// Bytes moved.
        bytes: u32,
        /// Immediate data (arrivals only).
        immediate: u32,
        /// NIC time.
        timestamp: u64,
    },
    /// The request failed; the queue pair is in error.
    Error {
        /// Why.
        syndrome: Syndrome,
        /// The vendor's detail; 0 when there is none.
        vendor: u8,
    },
}

/// The meaning of a completion queue entry that has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Kind of entry.
    pub kind: CqeOpcode,
    /// The request's operation (0, NOP, in entries of arrivals).
    pub opcode: Opcode,
    /// The 24-bit queue pair number.
    pub queue_pair: u32,
    /// Index of the request's first block, modulo 2^16.
    pub index: u16,
    /// Solicited bit.
    pub solicited: bool,
    /// Owner bit: the lap, inverted each time the ring wraps.
    pub owner: bool,
    /// The outcome.
    pub detail: CompletionDetail,
}

impl Completion {
    /// Reads an entry.
    ///
    /// # Errors
    /// A buffer shorter than 64 bytes; an entry that was not written yet.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let cqe = Cqe::new_checked(bytes)?;
        let op_own = cqe.op_own();
        let kind = CqeOpcode::from(op_own >> 4);
        let detail = match kind {
            CqeOpcode::Invalid => {
                return Err(WireError {
                    field: "Cqe.op_own",
                    value: u64::from(op_own),
                    offset: 63,
                    expected: "an entry that was written (opcode other than 15)",
                });
            }
            CqeOpcode::RequestError | CqeOpcode::ResponderError => CompletionDetail::Error {
                syndrome: cqe.syndrome().into(),
                vendor: cqe.vendor_syndrome(),
            },
            _ => CompletionDetail::Success {
                bytes: cqe.byte_count(),
                immediate: cqe.immediate(),
                timestamp: cqe.timestamp(),
            },
        };
        Ok(Completion {
            kind,
            opcode: Opcode::from((cqe.opcode_qpn() >> 24) as u8),
            queue_pair: cqe.opcode_qpn() & 0xff_ffff,
            index: cqe.wqe_counter(),
            solicited: op_own & 2 != 0,
            owner: op_own & 1 != 0,
            detail,
        })
    }

    /// Fills the first 64 bytes of `buffer` with the entry, unused fields zero.
    ///
    /// # Errors
    /// A buffer shorter than 64 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<(), WireError> {
        let mut cqe = Cqe::new_checked(&mut *buffer)?;
        // Everything but the last word is zero unless set below.
        cqe.clear();
        match self.detail {
            CompletionDetail::Success {
                bytes,
                immediate,
                timestamp,
            } => {
                cqe.set_byte_count(bytes);
                cqe.set_immediate(immediate);
                cqe.set_timestamp(timestamp);
            }
            CompletionDetail::Error { syndrome, vendor } => {
                cqe.set_syndrome(syndrome.into());
                cqe.set_vendor_syndrome(vendor);
            }
        }
        cqe.set_opcode_qpn(u32::from(u8::from(self.opcode)) << 24 | self.queue_pair & 0xff_ffff);
        cqe.set_wqe_counter(self.index);
        cqe.set_op_own(u8::from(self.kind) << 4 | u8::from(self.solicited) << 1 | u8::from(self.owner));
        Ok(())
    }

    /// Whether the completion reports success.
    pub fn is_success(&self) -> bool {
        matches!(self.detail, CompletionDetail::Success { .. })
    }

    /// The syndrome of a failed request.
    pub fn syndrome(&self) -> Option<Syndrome> {
        match self.detail {
            CompletionDetail::Error { syndrome, .. } => Some(syndrome),
            CompletionDetail::Success { .. } => None,
        }
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Cqe<T> {
    fn clear(&mut self) {
        for word in 0..CQE_BYTES / 8 {
            crate::wire::put_bytes(self.buffer.as_mut(), word * 8, &[0; 8]);
        }
    }
}

impl fmt::Display for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} qp {:#x} #{}: ",
            self.kind, self.opcode, self.queue_pair, self.index
        )?;
        match self.detail {
            CompletionDetail::Success {
                bytes, immediate: 0, ..
            } => write!(f, "{bytes} B"),
            CompletionDetail::Success { bytes, immediate, .. } => write!(f, "{bytes} B, immediate {immediate:#x}"),
            CompletionDetail::Error { syndrome, vendor } => {
                write!(
                    f,
                    "{syndrome} (syndrome {:#04x}, vendor {vendor:#04x})",
                    u8::from(syndrome)
                )
            }
        }
    }
}
