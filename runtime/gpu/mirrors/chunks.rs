//! The chunks of one region that neighbours may have copies of.

use std::sync::atomic::{AtomicU64, Ordering};

use gpuvm_gpu::{CopySpan, DeviceMemory, HostMemory};
use gpuvm_layouts::{MIRROR_USE_BYTES, MirrorDesc};

use crate::device::DeviceArray;

/// A region's chunks on one GPU.
pub(crate) struct Mirror {
    pub number: u64,
    pub desc: DeviceArray<MirrorDesc>,
    /// Of this GPU's memory, which neighbours' copy engines reach.
    pub entries: DeviceMemory,
    /// What lanes have read, as a [`MirrorDesc`] has it.
    pub uses: HostMemory,
    pub chunks: u64,
    pub chunk_bytes: u64,
    /// Parts of a chunk that are told apart.
    pub parts: u32,
    /// Device address of the region's home, and its length.
    pub home: u64,
    pub bytes: u64,
}

impl Mirror {
    /// Address of the [`MirrorDesc`].
    pub fn addr(&self) -> u64 {
        self.desc.addr()
    }

    /// How many parts of each chunk were read: of [`MIRROR_USE_BYTES`], or pages that are larger.
    pub fn read(&self) -> Vec<u32> {
        let words = self.uses_of(self.chunk_bytes).max(8) / 8;
        let whole = self.uses_of(self.chunk_bytes).is_multiple_of(8);
        let count = |chunk: u64| match whole {
            true => (chunk * words..(chunk + 1) * words)
                .map(|word| self.eight_uses(word).count_ones())
                .sum(),
            false => {
                let first = chunk * self.chunk_bytes / MIRROR_USE_BYTES;
                let uses = first..first + self.uses_of(self.chunk_bytes);
                uses.map(|n| (self.eight_uses(n / 8) >> (8 * (n % 8)) & 1) as u32).sum()
            }
        };
        (0..self.chunks).map(count).collect()
    }

    fn uses_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(MIRROR_USE_BYTES)
    }

    fn eight_uses(&self, word: u64) -> u64 {
        let words = self.uses.host_ptr().cast::<u64>();
        // SAFETY: the memory has a byte a use of every chunk, in whole words, and lives as long as this value. Relaxed: lanes store there at
        // any time, and nothing is ordered by it.
        unsafe { AtomicU64::from_ptr(words.add(word as usize)) }.load(Ordering::Relaxed)
    }

    /// Nothing was read.
    pub fn forget_reads(&self) {
        let words = self.uses.host_ptr().cast::<u64>();
        for word in 0..self.uses.bytes() as usize / 8 {
            // SAFETY: as above.
            unsafe { AtomicU64::from_ptr(words.add(word)) }.store(0, Ordering::Relaxed);
        }
    }

    /// The copy of a word, at a device address, to a chunk's entry.
    pub fn name_span(&self, chunk: u64, word: u64) -> CopySpan {
        CopySpan {
            to: self.entries.addr() + chunk * 8,
            from: word,
            bytes: 8,
        }
    }
}
