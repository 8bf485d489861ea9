//! The header of a ring (`struct rxe_queue_buf`).

use crate::wire::{WireError, view};

/// Bytes before slot 0.
pub const RING_HEADER_BYTES: usize = 384;
/// Offset of the producer index.
pub const PRODUCER_OFFSET: usize = 128;
/// Offset of the consumer index.
pub const CONSUMER_OFFSET: usize = 256;

view! { le
    /// View of a ring's header.
    RingHeader, 384;
    /// Base-two logarithm of a slot's bytes.
    slot_shift, set_slot_shift: u32 => 0;
    /// Slots less one.
    index_mask, set_index_mask: u32 => 4;
    /// Where the next entry is written, masked.
    producer, set_producer: u32 => 128;
    /// Which entry is read next, masked.
    consumer, set_consumer: u32 => 256;
}

impl<T: AsRef<[u8]>> RingHeader<T> {
    /// Slots of a ring of `bytes` bytes in all, and the logarithm of a slot's bytes.
    ///
    /// # Errors
    /// A mask that is not a power of two less one, slots shorter than `slot_bytes_min`, or a ring that `bytes` do not hold.
    pub fn shape(&self, bytes: u64, slot_bytes_min: u32) -> Result<(u32, u32), WireError> {
        let (shift, mask) = (self.slot_shift(), self.index_mask());
        if shift >= 16 || 1u32 << shift < slot_bytes_min {
            return Err(WireError {
                field: "rxe_queue_buf.log2_elem_size",
                value: u64::from(shift),
                offset: 0,
                expected: "slots that hold an entry, below 64 KiB",
            });
        }
        let slots = u64::from(mask) + 1;
        if !slots.is_power_of_two() || slots > 1 << 30 || RING_HEADER_BYTES as u64 + (slots << shift) > bytes {
            return Err(WireError {
                field: "rxe_queue_buf.index_mask",
                value: u64::from(mask),
                offset: 4,
                expected: "a power of two less one, of slots within the mapping",
            });
        }
        Ok((slots as u32, shift))
    }
}
