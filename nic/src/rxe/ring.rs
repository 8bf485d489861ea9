//! A ring that the driver shares with this process.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::uverbs::MapInfo;
use crate::RingSpan;
use crate::wire::rxe::{CONSUMER_OFFSET, PRODUCER_OFFSET, RING_HEADER_BYTES, RingHeader};

/// A mapped ring. Its memory stays valid until this value is dropped; driver, GPU threads and this type reach it by
/// atomic or volatile accesses only.
pub(super) struct Ring {
    map: MmapRaw,
    slots: u32,
    shift: u32,
}

impl Ring {
    /// Maps a ring whose slots must hold `slot_bytes_min`. Each offset can be mapped once.
    pub fn map(device: &File, info: MapInfo, slot_bytes_min: u32) -> io::Result<Self> {
        let map = MmapOptions::new()
            .offset(info.offset)
            .len(info.bytes as usize)
            .map_raw(device)?;
        if map.len() < RING_HEADER_BYTES {
            return Err(io::Error::other(format!(
                "a ring of {} bytes has no room for its header",
                map.len()
            )));
        }
        let mut header = [0; 8];
        // SAFETY: the mapping has at least RING_HEADER_BYTES bytes. Volatile: the driver shares the memory; it wrote these
        // two words when it made the ring and changes them no more.
        header.copy_from_slice(&unsafe { map.as_ptr().cast::<[u8; 8]>().read_volatile() });
        let mut whole = [0; RING_HEADER_BYTES];
        whole[..8].copy_from_slice(&header);
        let (slots, shift) = RingHeader::new_checked(&whole[..])
            .and_then(|header| header.shape(map.len() as u64, slot_bytes_min))
            .map_err(io::Error::other)?;
        Ok(Self { map, slots, shift })
    }

    pub fn slots(&self) -> u32 {
        self.slots
    }

    fn index(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= RING_HEADER_BYTES);
        // SAFETY: within the header, aligned to 4 (mappings are page-aligned); all sides access it atomically.
        unsafe { &*self.map.as_mut_ptr().add(offset).cast::<AtomicU32>() }
    }

    pub fn producer(&self) -> &AtomicU32 {
        self.index(PRODUCER_OFFSET)
    }

    pub fn consumer(&self) -> &AtomicU32 {
        self.index(CONSUMER_OFFSET)
    }

    fn base(&self) -> u64 {
        self.map.as_mut_ptr().expose_provenance() as u64
    }

    pub fn producer_address(&self) -> u64 {
        self.base() + PRODUCER_OFFSET as u64
    }

    pub fn consumer_address(&self) -> u64 {
        self.base() + CONSUMER_OFFSET as u64
    }

    /// The ring with its producer index as the place of the next entry.
    pub fn span(&self) -> RingSpan {
        RingSpan {
            address: self.base() + RING_HEADER_BYTES as u64,
            slots: self.slots,
            shift: self.shift,
            // Acquire: pairs with the driver's release of what it wrote before.
            start: self.producer().load(Ordering::Acquire) & (self.slots - 1),
        }
    }
}
