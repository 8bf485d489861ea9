//! A region's page table in GPU memory.

use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{self as layout, PageWord, TableHead};

use crate::device::DeviceArray;

/// A word a page, behind a [`TableHead`].
pub(crate) struct PageTable {
    memory: DeviceArray<u64>,
    pages: u64,
}

/// Words of the head.
const HEAD: u64 = (size_of::<TableHead>() / size_of::<u64>()) as u64;
const PAGE_CHUNKS: u64 = (core::mem::offset_of!(TableHead, page_chunks) / size_of::<u64>()) as u64;
const ABSENT: u64 = (core::mem::offset_of!(TableHead, absent) / size_of::<u64>()) as u64;

/// Bytes of a table.
pub(crate) const fn bytes_of(pages: u64) -> u64 {
    (HEAD + pages) * size_of::<u64>() as u64
}

impl PageTable {
    /// No page is resident. With what `head` says of placement.
    pub fn absent(gpu: &dyn Gpu, pages: u64, head: TableHead) -> Result<Self, GpuError> {
        let memory = DeviceArray::zeroed(gpu, HEAD + pages)?;
        let head = TableHead { absent: pages, ..head };
        memory.write(gpu, 0, bytemuck::cast_slice(&[head]))?;
        Ok(Self { memory, pages })
    }

    /// Address of the first page's word.
    pub fn addr(&self) -> u64 {
        self.memory.addr() + size_of::<TableHead>() as u64
    }

    /// Has so many of the reads at the home ask what to do with their page: `DRAW_*`.
    pub fn write_draws(&self, gpu: &dyn Gpu, draws: u32) -> Result<(), GpuError> {
        let at = self.memory.addr() + core::mem::offset_of!(TableHead, sampling) as u64;
        // The low half of the word: host and GPU are little-endian.
        gpu.write(at, &draws.to_ne_bytes())
    }

    /// All words.
    pub fn read(&self, gpu: &dyn Gpu) -> Result<Vec<u64>, GpuError> {
        self.memory.read(gpu, HEAD, self.pages as usize)
    }

    /// Lanes count there what they read at each page's home; 0: nowhere.
    pub fn count_chunks_at(&self, gpu: &dyn Gpu, addr: u64) -> Result<(), GpuError> {
        self.memory.write(gpu, PAGE_CHUNKS, &[addr])
    }

    /// Replaces all words, and counts them anew. No kernel may run.
    pub fn write(&self, gpu: &dyn Gpu, words: &[u64]) -> Result<(), GpuError> {
        self.memory.write(gpu, HEAD, words)?;
        let resident = |bits: &&u64| u64::from(PageWord::from_bits(**bits).state) == layout::STATE_RESIDENT;
        let there = words.iter().filter(resident).count() as u64;
        self.memory.write(gpu, ABSENT, &[self.pages - there])
    }
}
