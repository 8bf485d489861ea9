//! Rings that the caller made: checked, and described to posters.

use super::limits::CQ_ENTRIES_MAX;
use crate::wire::mlx5::QUEUE_BLOCKS_MAX;
use crate::{NicError, QueueFormat, QueueMemory, QueuePair, RingSpan};

/// A software NIC's queue pair over the caller's rings, whose register is at `doorbell`.
pub fn describe(number: u32, doorbell: u64, memory: &QueueMemory, completion_start: u32) -> QueuePair {
    let ring = |address, slots, bytes: usize, start| RingSpan {
        address,
        slots,
        shift: bytes.trailing_zeros(),
        start,
    };
    QueuePair {
        number,
        format: QueueFormat::Mlx5,
        doorbell,
        // The send half of the pair's record.
        doorbell_record: memory.dbrec + 4,
        send: ring(memory.sq, memory.sq_entries, crate::wire::mlx5::BLOCK_BYTES, 0),
        completion: ring(
            memory.cq,
            memory.cq_entries,
            crate::wire::mlx5::CQE_BYTES,
            completion_start,
        ),
        collapsed: memory.collapsed,
        completion_produced: 0,
        completion_consumed: 0,
    }
}

/// Whether a software NIC takes these rings, with send queues of so many blocks at most.
///
/// # Errors
/// A misaligned or null address, a size that is no power of two or too large.
pub fn check_queue_memory(memory: &QueueMemory, send_entries_max: u32) -> Result<(), NicError> {
    let aligned = |what, value: u64, alignment: u64, expected| {
        if value == 0 || !value.is_multiple_of(alignment) {
            return Err(NicError::BadArgument { what, value, expected });
        }
        Ok(())
    };
    aligned("send queue address", memory.sq, 64, "a mapped address, aligned to 64")?;
    aligned(
        "completion queue address",
        memory.cq,
        64,
        "a mapped address, aligned to 64",
    )?;
    aligned(
        "doorbell record address",
        memory.dbrec,
        8,
        "a mapped address, aligned to 8",
    )?;
    aligned(
        "completion doorbell record address",
        memory.cq_dbrec,
        8,
        "a mapped address, aligned to 8",
    )?;
    let sized = |what, entries: u32, max, expected| {
        if !entries.is_power_of_two() || entries > max {
            return Err(NicError::BadArgument {
                what,
                value: u64::from(entries),
                expected,
            });
        }
        Ok(())
    };
    sized(
        "send queue entries",
        memory.sq_entries,
        QUEUE_BLOCKS_MAX,
        "a power of two up to 32768",
    )?;
    if memory.sq_entries > send_entries_max {
        return Err(NicError::BadArgument {
            what: "send queue entries",
            value: u64::from(memory.sq_entries),
            expected: "no more than the limits of the NIC allow",
        });
    }
    sized(
        "completion queue entries",
        memory.cq_entries,
        CQ_ENTRIES_MAX,
        "a power of two up to 2^22",
    )
}
