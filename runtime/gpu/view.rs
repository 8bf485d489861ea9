//! A region as one GPU has it: its words there, and what else of it lies in that GPU's memory.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use gpuvm_gpu::Gpu;
use parking_lot::{Mutex, MutexGuard};

use super::{
    guards::Guards,
    page_table::{PageTable, bytes_of},
};
use crate::{
    error::{Doing, Result},
    frames::FrameMemory,
    home::Home,
    pages::Pages,
};

/// What of a region lies in a GPU's memory.
pub(crate) struct RegionTables {
    pub words: PageTable,
    pub guards: Guards,
    /// Frames of the region's own; none when it uses those of all.
    pub frames: Option<FrameMemory>,
}

/// A region on one GPU.
pub(crate) struct RegionView {
    /// Its place in the GPU's region table, once it has one.
    id: OnceLock<u32>,
    name: String,
    pages: Pages,
    never_evicted: bool,
    /// The first of the region's homes, which messages name.
    home: Arc<dyn Home>,
    words_addr: u64,
    /// Until the region has ended.
    tables: Mutex<Option<RegionTables>>,
    /// A launch may have written it since its last flush that was completed.
    unflushed: AtomicBool,
    /// No frame holds a page of the region, and none comes any more.
    ended: AtomicBool,
}

impl RegionView {
    /// Of a region that has no place yet.
    pub fn new(name: &str, pages: Pages, never_evicted: bool, home: Arc<dyn Home>, tables: RegionTables) -> Self {
        Self {
            id: OnceLock::new(),
            name: name.to_owned(),
            pages,
            never_evicted,
            home,
            words_addr: tables.words.addr(),
            tables: Mutex::new(Some(tables)),
            unflushed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Its place in the region table. No kernel knows the region before it has one.
    pub fn id(&self) -> u32 {
        self.id.get().copied().unwrap_or_default()
    }

    pub(super) fn set_id(&self, id: u32) {
        // It gets a place once.
        let _ = self.id.set(id);
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pages(&self) -> Pages {
        self.pages
    }

    pub fn is_never_evicted(&self) -> bool {
        self.never_evicted
    }

    pub fn home(&self) -> &dyn Home {
        &*self.home
    }

    /// Address of the first page's word.
    pub fn words_addr(&self) -> u64 {
        self.words_addr
    }

    /// Whether the region has given its frames back.
    pub fn has_ended(&self) -> bool {
        // Acquire: pairs with the release in `end`.
        self.ended.load(Ordering::Acquire)
    }

    /// Its frames are given back; what is left of it in GPU memory.
    pub(super) fn end(&self) -> Option<RegionTables> {
        self.ended.store(true, Ordering::Release);
        self.tables().take()
    }

    /// A launch is about to begin that may write it. Called with the launches locked, as `note_flushed` is.
    pub fn expect_writes(&self) {
        // Relaxed: the lock on the launches orders it for all but the report of a lost GPU, which may come late.
        self.unflushed.store(true, Ordering::Relaxed);
    }

    /// The home holds everything.
    pub fn note_flushed(&self) {
        self.unflushed.store(false, Ordering::Relaxed);
    }

    /// Whether its home may lack what launches wrote.
    pub fn may_have_writes(&self) -> bool {
        self.unflushed.load(Ordering::Relaxed)
    }

    /// Bytes of the page table.
    pub fn table_bytes(&self) -> u64 {
        bytes_of(self.pages.count())
    }

    /// What lies in GPU memory; nothing once the region has ended.
    pub fn tables(&self) -> MutexGuard<'_, Option<RegionTables>> {
        self.tables.lock()
    }

    /// The page table; empty once the region has ended.
    pub fn read_words(&self, gpu: &dyn Gpu) -> Result<Vec<u64>> {
        match &*self.tables() {
            Some(RegionTables { words, .. }) => words
                .read(gpu)
                .doing(|| format!("reading the page table of `{}`", self.name)),
            None => Ok(Vec::new()),
        }
    }

    /// Has so many of the reads at the home ask what to do with their page: `DRAW_*`.
    pub fn write_draws(&self, gpu: &dyn Gpu, draws: u32) -> Result<()> {
        match &*self.tables() {
            Some(RegionTables { words, .. }) => words
                .write_draws(gpu, draws)
                .doing(|| format!("advising region `{}`", self.name)),
            None => Ok(()),
        }
    }

    /// Replaces the page table. No kernel may run.
    pub fn write_words(&self, gpu: &dyn Gpu, new: &[u64]) -> Result<()> {
        match &*self.tables() {
            Some(RegionTables { words, .. }) => words
                .write(gpu, new)
                .doing(|| format!("writing the page table of `{}`", self.name)),
            None => Ok(()),
        }
    }
}
