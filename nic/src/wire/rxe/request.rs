//! Send work queue entries (`struct rxe_send_wqe` with at most one `struct rxe_sge`).

use crate::wire::{WireError, view};

/// Operation codes (`enum ib_uverbs_wr_opcode`).
pub mod opcodes {
    /// Local data to remote memory.
    pub const RDMA_WRITE: u32 = 0;
    /// Remote memory to local data.
    pub const RDMA_READ: u32 = 4;
    /// Compare and swap of 8 remote bytes.
    pub const CMP_AND_SWP: u32 = 5;
    /// Fetch and add of 8 remote bytes.
    pub const FETCH_AND_ADD: u32 = 6;
}

/// Request flags (`enum ib_uverbs_send_flags`).
pub mod flags {
    /// Waits for the earlier READs and atomics of the queue pair.
    pub const FENCE: u32 = 1;
    /// Writes a completion when it succeeds.
    pub const SIGNALED: u32 = 2;
}

view! { le
    /// View of an entry with one local segment.
    SendEntry, 224;
    /// The poster's number, which the completion repeats.
    id, set_id: u64 => 0;
    /// [`opcodes`].
    opcode, set_opcode: u32 => 12;
    /// [`flags`].
    send_flags, set_send_flags: u32 => 16;
    /// Remote virtual address.
    remote_address, set_remote_address: u64 => 24;
    /// READ and WRITE: remote key.
    rdma_key, set_rdma_key: u32 => 32;
    /// Atomics: the value to compare with, or to add.
    compare_add, set_compare_add: u64 => 32;
    /// Atomics: the value to store.
    swap, set_swap: u64 => 40;
    /// Atomics: remote key.
    atomic_key, set_atomic_key: u32 => 48;
    /// The driver's: status.
    status, set_status: u32 => 144;
    /// The driver's: state.
    state, set_state: u32 => 148;
    /// Remote virtual address once more.
    iova, set_iova: u64 => 152;
    /// Bytes of local data.
    length, set_length: u32 => 184;
    /// The driver's: bytes left; begins as `length`.
    left, set_left: u32 => 188;
    /// The driver's: current segment.
    current_segment, set_current_segment: u32 => 192;
    /// Local segments.
    segments, set_segments: u32 => 196;
    /// The driver's: offset in the current segment.
    segment_offset, set_segment_offset: u32 => 200;
    /// The segment's address.
    local_address, set_local_address: u64 => 208;
    /// The segment's bytes.
    local_length, set_local_length: u32 => 216;
    /// The segment's key.
    local_key, set_local_key: u32 => 220;
}

/// Bytes of an entry with one segment.
const ENTRY_BYTES: usize = 224;

/// What a request does, with its remote side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Local data to remote memory.
    Write,
    /// Remote memory to local data.
    Read,
    /// Compare 8 remote bytes and swap them when equal; the old value goes to local data.
    CompareSwap {
        /// The value expected.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Add to 8 remote bytes; the old value goes to local data.
    FetchAdd {
        /// What to add, modulo 2^64.
        add: u64,
    },
}

/// The meaning of an entry: one operation between remote memory and one local segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRequest {
    /// The poster's number.
    pub id: u64,
    /// What it does.
    pub operation: Operation,
    /// Writes a completion when it succeeds; a failure always writes one.
    pub signalled: bool,
    /// Waits for the earlier READs and atomics of the queue pair.
    pub fence: bool,
    /// Remote virtual address.
    pub remote: u64,
    /// Remote key.
    pub rkey: u32,
    /// Local virtual address.
    pub local: u64,
    /// Local key.
    pub lkey: u32,
    /// Bytes; 8 for atomics.
    pub bytes: u32,
}

impl WorkRequest {
    /// Fills the first 224 bytes of `buffer`, the driver's own fields as they have to begin.
    ///
    /// # Errors
    /// A buffer shorter than 224 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<(), WireError> {
        let mut entry = SendEntry::new_checked(&mut *buffer)?;
        entry.clear();
        entry.set_id(self.id);
        entry.set_remote_address(self.remote);
        entry.set_iova(self.remote);
        let opcode = match self.operation {
            Operation::Write | Operation::Read => {
                entry.set_rdma_key(self.rkey);
                if self.operation == Operation::Write {
                    opcodes::RDMA_WRITE
                } else {
                    opcodes::RDMA_READ
                }
            }
            Operation::CompareSwap { compare, swap } => {
                entry.set_compare_add(compare);
                entry.set_swap(swap);
                entry.set_atomic_key(self.rkey);
                opcodes::CMP_AND_SWP
            }
            Operation::FetchAdd { add } => {
                entry.set_compare_add(add);
                entry.set_atomic_key(self.rkey);
                opcodes::FETCH_AND_ADD
            }
        };
        entry.set_opcode(opcode);
        let signalled = if self.signalled { flags::SIGNALED } else { 0 };
        entry.set_send_flags(signalled | if self.fence { flags::FENCE } else { 0 });
        entry.set_length(self.bytes);
        entry.set_left(self.bytes);
        entry.set_segments(1);
        entry.set_local_address(self.local);
        entry.set_local_length(self.bytes);
        entry.set_local_key(self.lkey);
        Ok(())
    }

    /// Reads an entry that was not executed yet.
    ///
    /// # Errors
    /// A buffer shorter than 224 bytes; an operation that this crate does not post; anything but one local segment of
    /// the request's length.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let entry = SendEntry::new_checked(bytes)?;
        let (operation, rkey) = match entry.opcode() {
            opcodes::RDMA_WRITE => (Operation::Write, entry.rdma_key()),
            opcodes::RDMA_READ => (Operation::Read, entry.rdma_key()),
            opcodes::CMP_AND_SWP => {
                let (compare, swap) = (entry.compare_add(), entry.swap());
                (Operation::CompareSwap { compare, swap }, entry.atomic_key())
            }
            opcodes::FETCH_AND_ADD => (
                Operation::FetchAdd {
                    add: entry.compare_add(),
                },
                entry.atomic_key(),
            ),
            other => {
                return Err(WireError {
                    field: "rxe_send_wqe.opcode",
                    value: u64::from(other),
                    offset: 12,
                    expected: "WRITE, READ or an atomic",
                });
            }
        };
        if entry.segments() != 1 || entry.local_length() != entry.length() {
            return Err(WireError {
                field: "rxe_send_wqe.dma.num_sge",
                value: u64::from(entry.segments()),
                offset: 196,
                expected: "one segment of the request's length",
            });
        }
        Ok(WorkRequest {
            id: entry.id(),
            operation,
            signalled: entry.send_flags() & flags::SIGNALED != 0,
            fence: entry.send_flags() & flags::FENCE != 0,
            remote: entry.remote_address(),
            rkey,
            local: entry.local_address(),
            lkey: entry.local_key(),
            bytes: entry.length(),
        })
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> SendEntry<T> {
    fn clear(&mut self) {
        for word in 0..ENTRY_BYTES / 8 {
            crate::wire::put_bytes(self.buffer.as_mut(), word * 8, &[0; 8]);
        }
    }
}
