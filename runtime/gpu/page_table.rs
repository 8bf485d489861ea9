//! A region's page table in GPU memory.

use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{self as layout, PageWord};

use crate::device::DeviceArray;

/// A word a page. Before those of a never-evicted region stands how many of its pages are not resident, for lanes to see
/// that all are there.
pub(crate) struct PageTable {
    memory: DeviceArray<u64>,
    pages: u64,
    counts: bool,
}

/// Words before those of the pages.
const fn head(counts: bool) -> u64 {
    if counts { layout::ABSENT_COUNT_WORDS } else { 0 }
}

/// All words of a table.
pub(crate) const fn words_of(pages: u64, counts: bool) -> u64 {
    head(counts) + pages
}

impl PageTable {
    /// No page is resident. With `counts` for a region that is never evicted.
    pub fn absent(gpu: &dyn Gpu, pages: u64, counts: bool) -> Result<Self, GpuError> {
        let table = Self {
            memory: DeviceArray::zeroed(gpu, words_of(pages, counts))?,
            pages,
            counts,
        };
        table.write_count(gpu, pages)?;
        Ok(table)
    }

    fn head(&self) -> u64 {
        head(self.counts)
    }

    /// Address of the first page's word.
    pub fn addr(&self) -> u64 {
        self.memory.addr() + self.head() * size_of::<u64>() as u64
    }

    /// All words.
    pub fn read(&self, gpu: &dyn Gpu) -> Result<Vec<u64>, GpuError> {
        self.memory.read(gpu, self.head(), self.pages as usize)
    }

    /// Replaces all words, and counts them anew. No kernel may run.
    pub fn write(&self, gpu: &dyn Gpu, words: &[u64]) -> Result<(), GpuError> {
        self.memory.write(gpu, self.head(), words)?;
        let resident = |bits: &&u64| u64::from(PageWord::from_bits(**bits).state) == layout::STATE_RESIDENT;
        let there = words.iter().filter(resident).count() as u64;
        self.write_count(gpu, self.pages - there)
    }

    fn write_count(&self, gpu: &dyn Gpu, absent: u64) -> Result<(), GpuError> {
        if !self.counts {
            return Ok(());
        }
        self.memory.write(gpu, layout::ABSENT_COUNT_WORDS - 1, &[absent])
    }
}
