//! A region as one GPU has it: its words there, and what else of it lies in that GPU's memory.

use std::{
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{self as layout, PageWord, TableHead};
use parking_lot::{Mutex, MutexGuard};

use super::{Places, Slot, guards::Guards};
use crate::{
    device::DeviceArray,
    error::{Doing, Error, Result},
    frames::FrameMemory,
    home::Home,
    launch::Table,
    pages::Pages,
};

/// A word a page, behind a [`TableHead`], and before that a byte a page that launches which look pages up set.
pub(crate) struct PageTable {
    memory: DeviceArray<u64>,
    pages: u64,
}

/// Looks for pages of a held region that are not put off.
const FIRST_LOOKS: u32 = 3;
/// This many launches begin beside others before one waits to see whether all pages have come.
const COUNTED_AFTER: u32 = 16;
/// Words of the head.
const HEAD: u64 = (size_of::<TableHead>() / size_of::<u64>()) as u64;
const PAGE_CHUNKS: u64 = (core::mem::offset_of!(TableHead, page_chunks) / size_of::<u64>()) as u64;
const ABSENT: u64 = (core::mem::offset_of!(TableHead, absent) / size_of::<u64>()) as u64;

/// Words of the marks.
const fn marks(pages: u64) -> u64 {
    (pages + 1).next_multiple_of(layout::MARKS_STEP) / size_of::<u64>() as u64
}

/// Bytes of a table.
const fn bytes_of(pages: u64) -> u64 {
    (marks(pages) + HEAD + pages) * size_of::<u64>() as u64
}

impl PageTable {
    /// No page is resident. With what `head` says of placement.
    pub fn absent(gpu: &dyn Gpu, pages: u64, head: TableHead) -> Result<Self, GpuError> {
        let memory = DeviceArray::zeroed(gpu, marks(pages) + HEAD + pages)?;
        let head = TableHead { absent: pages, ..head };
        memory.write(gpu, marks(pages), bytemuck::cast_slice(&[head]))?;
        Ok(Self { memory, pages })
    }

    /// Number of the head's first word.
    fn head(&self) -> u64 {
        marks(self.pages)
    }

    /// Address of the first page's entry.
    pub fn addr(&self) -> u64 {
        self.memory.addr() + (self.head() + HEAD) * size_of::<u64>() as u64
    }

    /// Address of the first page's mark.
    pub fn marks_addr(&self) -> u64 {
        self.memory.addr()
    }

    /// Has this many of the reads at the home ask what to do with their page: `DRAW_*`.
    pub fn write_draws(&self, gpu: &dyn Gpu, draws: u32) -> Result<(), GpuError> {
        let at = self.memory.addr() + self.head() * 8 + core::mem::offset_of!(TableHead, sampling) as u64;
        // The low half of the word: host and GPU are little-endian.
        gpu.write(at, &draws.to_ne_bytes())
    }

    /// All words.
    pub fn read(&self, gpu: &dyn Gpu) -> Result<Vec<u64>, GpuError> {
        self.memory.read(gpu, self.head() + HEAD, self.pages as usize)
    }

    /// The marks, the first page's first.
    pub fn marks(&self, gpu: &dyn Gpu) -> Result<Vec<bool>, GpuError> {
        let words = self.memory.read(gpu, 0, self.head() as usize)?;
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        Ok(bytes[..self.pages as usize].iter().map(|mark| *mark != 0).collect())
    }

    /// Sets those of some pages.
    pub fn set_marks(&self, gpu: &dyn Gpu, pages: Range<u64>) -> Result<(), GpuError> {
        let marks = vec![1; (pages.end - pages.start) as usize];
        gpu.write(self.memory.addr() + pages.start, &marks)
    }

    /// From now on none is set.
    pub fn clear_marks(&self, gpu: &dyn Gpu) -> Result<(), GpuError> {
        gpu.zero(self.memory.addr(), self.head() * size_of::<u64>() as u64)
    }

    /// Lanes count there what they read at each page's home; 0: nowhere.
    pub fn count_chunks_at(&self, gpu: &dyn Gpu, addr: u64) -> Result<(), GpuError> {
        self.memory.write(gpu, self.head() + PAGE_CHUNKS, &[addr])
    }

    /// Replaces all words, and counts them anew. No kernel may run.
    pub fn write(&self, gpu: &dyn Gpu, words: &[u64]) -> Result<(), GpuError> {
        self.memory.write(gpu, self.head() + HEAD, words)?;
        let resident = |bits: &&u64| u64::from(PageWord::from_bits(**bits).state) == layout::STATE_RESIDENT;
        let there = words.iter().filter(resident).count() as u64;
        self.memory.write(gpu, self.head() + ABSENT, &[self.pages - there])
    }
}

/// This many launches in a row only read a region that was written, before its pages come to slots at neighbours.
const READS_BEFORE_SLOTS: u32 = 4;
/// This many launches are few, for all of a region to be written back behind them.
const FEW: u32 = 4;
/// So often, before launches that write mark pages again.
const COSTLY: u32 = 2;
/// After this many of those it is tried again.
const LAUNCHES_BEFORE_RETRY: u32 = 64;

/// What it costs that launches over plain memory mark nothing.
#[derive(Default)]
struct Costly {
    /// Launches since all of it was written back last, or that did without plain memory.
    launches: u32,
    /// How often that was behind few launches, one after the other.
    times: u32,
}

/// Where a region lies as plain memory: addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainMemory {
    /// Of element 0.
    pub first: u64,
    /// Of elements that belong to nothing.
    pub dummy: u64,
}

/// What of a region lies in a GPU's memory.
pub(crate) struct RegionTables {
    pub words: PageTable,
    pub guards: Guards,
    /// Frames of the region's own; none when it uses those of all.
    pub frames: Option<FrameMemory>,
    /// Where lanes count the chunks that they read at each page's home, once a profile was taken. It stays: lanes may look at it still.
    pub page_chunks: Option<Arc<DeviceArray<u64>>>,
    /// Where each page is, and one that is no one's, once a launch has looked pages up.
    pub places: Option<DeviceArray<u64>>,
}

/// A region on one GPU.
pub(crate) struct RegionView {
    /// Its place in the GPU's region table, once it has one.
    id: OnceLock<u32>,
    name: String,
    pages: Pages,
    read_only: bool,
    /// `ARRAY_*`, which follow what is advised.
    array_flags: AtomicU32,
    /// The first of the region's homes, which messages name.
    home: Arc<dyn Home>,
    words_addr: u64,
    marks_addr: u64,
    /// Address of [`RegionTables::places`].
    places_addr: OnceLock<u64>,
    /// They are up to date.
    has_places: AtomicBool,
    /// Until the region has ended.
    tables: Mutex<Option<RegionTables>>,
    /// A launch may have written it since its last flush that was completed.
    unflushed: AtomicBool,
    /// A launch may have brought pages of it: no other has any to give back.
    touched: AtomicBool,
    /// None of its pages has a frame: see `set_all_home`.
    all_home: AtomicBool,
    /// No frame holds a page of the region, and none comes any more.
    ended: AtomicBool,
    /// Its pages stay where they are, for launches that look them up. Changed with the launches locked.
    held: AtomicBool,
    /// Each of them has a frame.
    complete: AtomicBool,
    /// Where its frames follow each other as its pages do, while each has one.
    plain: Mutex<Option<PlainMemory>>,
    /// They have before.
    been_plain: AtomicBool,
    /// Launches used it as plain memory and may have written all of it, which no mark says.
    written: AtomicBool,
    costly: Mutex<Costly>,
    /// Where they are to do so: the frame of its first page, or [`NO_RUN`](Self::NO_RUN).
    run: AtomicU32,
    /// Some were used at home, and no frame was free for them.
    crowded: AtomicBool,
    /// See `expect_beside`.
    came_beside: AtomicBool,
    /// How often it was looked for pages to bring since it is held, and when it is again.
    looks: Mutex<(u32, Option<Instant>)>,
    /// When its pages are counted again, of which launches fetch some, and how many launches have not done so since others were in flight.
    counts: Mutex<(Option<Instant>, u32)>,
    /// Where it lies for kernels whose PTX was rewritten, once there is one that uses it.
    slot: OnceLock<(Slot, Places)>,
    /// Its entries there say where its pages are.
    has_entries: AtomicBool,
    /// Graphs have launches of it, of which the library is not told: its pages stay held. And whether those write.
    captured: AtomicBool,
    captured_writes: AtomicBool,
    /// See `share_home`.
    home_is_shared: AtomicBool,
    /// See `slots_since`.
    slots_since: AtomicU64,
    /// This many launches to come that only read it, before its pages come to slots at neighbours again.
    rests: AtomicU32,
}

impl RegionView {
    /// Of a region that has no place yet.
    pub fn new(
        name: &str,
        pages: Pages,
        (read_only, array_flags): (bool, u32),
        home: Arc<dyn Home>,
        tables: RegionTables,
    ) -> Self {
        Self {
            id: OnceLock::new(),
            name: name.to_owned(),
            pages,
            read_only,
            array_flags: AtomicU32::new(array_flags),
            home,
            words_addr: tables.words.addr(),
            marks_addr: tables.words.marks_addr(),
            places_addr: OnceLock::new(),
            has_places: AtomicBool::new(false),
            tables: Mutex::new(Some(tables)),
            unflushed: AtomicBool::new(false),
            touched: AtomicBool::new(false),
            all_home: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            held: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            plain: Mutex::default(),
            been_plain: AtomicBool::new(false),
            written: AtomicBool::new(false),
            costly: Mutex::default(),
            run: AtomicU32::new(Self::NO_RUN),
            crowded: AtomicBool::new(false),
            came_beside: AtomicBool::new(false),
            looks: Mutex::default(),
            counts: Mutex::default(),
            slot: OnceLock::new(),
            has_entries: AtomicBool::new(false),
            captured: AtomicBool::new(false),
            captured_writes: AtomicBool::new(false),
            home_is_shared: AtomicBool::new(false),
            slots_since: AtomicU64::new(0),
            rests: AtomicU32::new(0),
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
        self.array_flags() & layout::ARRAY_NEVER_EVICTED != 0
    }

    /// Whether words of its absent pages name slots at a neighbour.
    pub fn has_victims(&self) -> bool {
        self.array_flags() & layout::ARRAY_VICTIMS != 0
    }

    /// Whether kernels only read it.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// `ARRAY_*` of the kernel argument of launches to come.
    pub fn array_flags(&self) -> u32 {
        // Relaxed: a number by itself; the thread that changes it holds the region's advice.
        self.array_flags.load(Ordering::Relaxed)
    }

    /// Has launches to come, and who asks meanwhile, see what was advised.
    pub fn follow(&self, array_flags: u32) {
        // Relaxed: as in `array_flags`.
        self.array_flags.store(array_flags, Ordering::Relaxed);
    }

    pub fn home(&self) -> &dyn Home {
        &*self.home
    }

    /// Address of the first page's entry.
    pub fn words_addr(&self) -> u64 {
        self.words_addr
    }

    /// Address of the first page's mark.
    pub fn marks_addr(&self) -> u64 {
        self.marks_addr
    }

    /// Address of the places that launches look up, once one has: a page's each, and that of what is no one's.
    pub fn places_addr(&self) -> Option<u64> {
        self.places_addr.get().copied()
    }

    /// Takes memory for them. `dummy` is the place that is no one's.
    pub fn make_places(&self, gpu: &dyn Gpu, dummy: u64) -> Result<u64> {
        let mut tables = self.tables();
        if let Some(addr) = self.places_addr() {
            return Ok(addr);
        }
        let doing = || format!("allocating places of region `{}`", self.name);
        let pages = self.pages.count();
        let places = DeviceArray::zeroed(gpu, pages + 1).doing(doing)?;
        places.write(gpu, pages, &[dummy]).doing(doing)?;
        let addr = *self.places_addr.get_or_init(|| places.addr());
        // A region that has ended has none: no launch names it.
        if let Some(tables) = &mut *tables {
            tables.places = Some(places);
        }
        Ok(addr)
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

    /// A launch is about to begin that may touch its pages. Called with the launches locked.
    pub fn expect_pages(&self) {
        // Relaxed: the lock on the launches orders it.
        self.touched.store(true, Ordering::Relaxed);
        self.all_home.store(false, Ordering::Relaxed);
    }

    /// Whether no page has had a frame since [`set_all_home`](Self::set_all_home). Called with the launches locked.
    pub fn is_all_home(&self) -> bool {
        // Relaxed: the lock on the launches orders it.
        self.all_home.load(Ordering::Relaxed)
    }

    /// All frames were given back, and no launch runs.
    pub fn set_all_home(&self) {
        self.all_home.store(true, Ordering::Relaxed);
    }

    /// Whether a launch may have touched its pages.
    pub fn may_have_pages(&self) -> bool {
        self.touched.load(Ordering::Relaxed)
    }

    /// A launch is about to begin that may write it. Called with the launches locked, as `note_flushed` is.
    pub fn expect_writes(&self) {
        // Relaxed: the lock on the launches orders it for all but the report of a lost GPU, which may come late.
        self.unflushed.store(true, Ordering::Relaxed);
    }

    /// The home holds everything.
    pub fn note_flushed(&self) {
        // The library is not told what graphs write.
        let again = self.captured_writes.load(Ordering::Relaxed);
        self.unflushed.store(again, Ordering::Relaxed);
    }

    /// Whether its home may lack what launches wrote.
    pub fn may_have_writes(&self) -> bool {
        self.unflushed.load(Ordering::Relaxed)
    }

    /// Whether graphs have launches of it, of which the library is not told.
    pub fn is_captured(&self) -> bool {
        // Acquire: pairs with the release in `set_captured`.
        self.captured.load(Ordering::Acquire)
    }

    /// A graph has a launch of it, from now until [`forget_captured`](Self::forget_captured).
    pub fn set_captured(&self, writes: bool) {
        // Relaxed: `captured` orders it.
        self.captured_writes.fetch_or(writes, Ordering::Relaxed);
        self.captured.store(true, Ordering::Release);
    }

    /// Whether those may write it.
    pub fn graphs_write(&self) -> bool {
        self.is_captured() && self.captured_writes.load(Ordering::Relaxed)
    }

    /// Others use its home besides, and say what they wrote there page by page.
    pub fn share_home(&self) {
        // Relaxed: the thread that is given the home has it from here on.
        self.home_is_shared.store(true, Ordering::Relaxed);
    }

    /// Whether others do.
    pub fn shares_home(&self) -> bool {
        self.home_is_shared.load(Ordering::Relaxed)
    }

    /// No graph is launched any more.
    pub fn forget_captured(&self) {
        self.captured_writes.store(false, Ordering::Relaxed);
        self.captured.store(false, Ordering::Release);
    }

    /// Whether its pages stay where they are, for launches that look them up.
    pub fn is_held(&self) -> bool {
        // Relaxed, as all of it: the lock on the launches orders it.
        self.held.load(Ordering::Relaxed)
    }

    pub fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
        self.set_crowded(false);
        *self.looks.lock() = (0, None);
        // A region has slots while it is held.
        self.set_slots_since(None);
        self.forget_places();
    }

    /// Whether some of its pages may have slots at neighbours, where launches read them.
    pub fn has_slots(&self) -> bool {
        self.slots_since().is_some()
    }

    /// How many bytes had been given back when none of those slots was.
    pub fn slots_since(&self) -> Option<u64> {
        self.slots_since.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Whether some may be in memory that was given back since, when this many bytes were.
    pub fn may_have_slots_from(&self, given_back: u64) -> bool {
        self.slots_since().is_some_and(|since| since != given_back)
    }

    pub fn set_slots_since(&self, given_back: Option<u64>) {
        let since = given_back.map_or(0, |bytes| bytes + 1);
        self.slots_since.store(since, Ordering::Relaxed);
    }

    /// A launch is about to begin that looks its pages up, and may write; or others have written its home, which `writes` as well.
    pub fn note_use(&self, writes: bool) {
        let rests = self.rests.load(Ordering::Relaxed);
        let left = if writes {
            READS_BEFORE_SLOTS
        } else {
            rests.saturating_sub(1)
        };
        self.rests.store(left, Ordering::Relaxed);
    }

    /// Whether pages of it may come to slots at neighbours: of what launches write, and others, they would soon be old. A home that is a neighbour's memory
    /// is as near. What graphs read is written by launches beside them.
    pub fn may_use_slots(&self) -> bool {
        let is_read = self.rests.load(Ordering::Relaxed) == 0;
        is_read && !self.is_captured() && !self.shares_home() && self.home.host_memory().is_some()
    }

    /// Whether each page of a held region has a frame.
    pub fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
    }

    pub fn set_complete(&self, complete: bool) {
        self.complete.store(complete, Ordering::Relaxed);
        self.set_plain(None);
    }

    /// Where its elements lie as plain memory, if they do.
    pub fn plain(&self) -> Option<PlainMemory> {
        *self.plain.lock()
    }

    /// Whether it lies so, or has before.
    pub fn has_been_plain(&self) -> bool {
        self.been_plain.load(Ordering::Relaxed)
    }

    /// Whether a launch may use it as plain memory where it lies so. One that `writes` it marks nothing, so that all of it is written back then: not
    /// where that has happened behind few launches, twice, nor where others write its home besides.
    pub fn may_serve_as_plain(&self, writes: bool) -> bool {
        !writes || !(self.home_is_shared.load(Ordering::Relaxed) || self.costly.lock().times >= COSTLY)
    }

    /// Whether a launch may use it as plain memory now.
    pub fn serves_as_plain(&self, writes: bool) -> bool {
        self.plain().is_some() && self.may_serve_as_plain(writes)
    }

    /// A launch is about to begin that may write it, and marks what it writes.
    pub fn expect_marked(&self) {
        let mut costly = self.costly.lock();
        if costly.times >= COSTLY {
            costly.launches += 1;
            if costly.launches >= LAUNCHES_BEFORE_RETRY {
                *costly = Costly::default();
            }
        }
    }

    pub fn set_plain(&self, plain: Option<PlainMemory>) {
        if plain.is_some() {
            self.been_plain.store(true, Ordering::Relaxed);
        }
        *self.plain.lock() = plain;
    }

    /// No frame.
    pub const NO_RUN: u32 = u32::MAX;

    /// The frame from which on its frames are to follow each other, [`NO_RUN`](Self::NO_RUN) where none was chosen.
    pub fn run(&self) -> u32 {
        self.run.load(Ordering::Relaxed)
    }

    pub fn set_run(&self, frame: u32) {
        self.run.store(frame, Ordering::Relaxed);
    }

    /// A launch is about to begin that uses it as plain memory and may write it.
    pub fn expect_written(&self) {
        self.costly.lock().launches += 1;
        self.written.store(true, Ordering::Relaxed);
    }

    /// Whether such launches may have written all of it, and no mark says so yet.
    pub fn may_be_written(&self) -> bool {
        self.written.load(Ordering::Relaxed)
    }

    /// All pages are marked.
    pub fn note_marked(&self) {
        if self.written.swap(false, Ordering::Relaxed) {
            let mut costly = self.costly.lock();
            costly.times = if costly.launches < FEW { costly.times + 1 } else { 0 };
            costly.launches = 0;
        }
    }

    /// Where it lies for kernels whose PTX was rewritten, which `take` finds for this many pages.
    pub fn places(&self, take: impl FnOnce(u64) -> Result<(Slot, Places)>) -> Result<Places> {
        if let Some(places) = self.places_there() {
            return Ok(places);
        }
        let taken = take(self.pages.count().max(1))?;
        // Another thread may have been faster: then this one is given back.
        Ok(self.slot.get_or_init(|| taken).1)
    }

    /// Where it lies for them, if one has used it.
    pub fn places_there(&self) -> Option<Places> {
        self.slot.get().map(|(_, places)| *places)
    }

    /// Whether its entries there say where its pages are.
    pub fn has_entries(&self) -> bool {
        self.has_entries.load(Ordering::Relaxed)
    }

    pub fn set_has_entries(&self) {
        self.has_entries.store(true, Ordering::Relaxed);
    }

    /// Whether [`places_addr`](Self::places_addr) says where its pages are.
    pub fn has_places(&self) -> bool {
        self.has_places.load(Ordering::Relaxed)
    }

    pub fn set_has_places(&self) {
        self.has_places.store(true, Ordering::Relaxed);
    }

    /// Pages come or go: neither says so any more, nor whether all have frames.
    pub fn forget_places(&self) {
        self.set_complete(false);
        self.has_entries.store(false, Ordering::Relaxed);
        self.has_places.store(false, Ordering::Relaxed);
    }

    /// Whether it is time to look for pages of a held region that were used at home. At once after the first launches: those to come are
    /// faster then.
    pub fn is_worth_a_look(&self, now: Instant) -> bool {
        let (looks, next) = *self.looks.lock();
        looks < FIRST_LOOKS || next.is_none_or(|next| now >= next)
    }

    pub fn set_next_look(&self, next: Instant) {
        let mut looks = self.looks.lock();
        *looks = (looks.0.saturating_add(1), Some(next));
    }

    /// Whether it is time to count its pages, which launches fetch by faults.
    pub fn is_worth_counting(&self, now: Instant) -> bool {
        self.counts.lock().0.is_none_or(|next| now >= next)
    }

    pub fn set_next_count(&self, next: Instant) {
        *self.counts.lock() = (Some(next), 0);
    }

    /// Whether to wait for other launches for that: behind this many launches that have not.
    pub fn is_counted_beside(&self) -> bool {
        let mut counts = self.counts.lock();
        counts.1 += 1;
        counts.1 >= COUNTED_AFTER
    }

    /// Whether pages of a held region were used at home for which no frame was free.
    pub fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    pub fn set_crowded(&self, crowded: bool) {
        self.crowded.store(crowded, Ordering::Relaxed);
    }

    /// Pages come beside launches that only read it, which may mark a page as used at home that has a frame by then: until that is forgotten, marks do
    /// not say that pages were written. The table that those launches look up follows, and the other one does not.
    pub fn expect_beside(&self, by: Table) {
        self.came_beside.store(true, Ordering::Relaxed);
        self.set_complete(false);
        match by {
            Table::Entries => self.has_places.store(false, Ordering::Relaxed),
            _ => self.has_entries.store(false, Ordering::Relaxed),
        }
    }

    /// Whether that is so.
    pub fn came_beside(&self) -> bool {
        self.came_beside.load(Ordering::Relaxed)
    }

    /// Such marks are gone.
    pub fn forget_beside(&self) {
        self.came_beside.store(false, Ordering::Relaxed);
    }

    /// Bytes of the page table, and of the places that launches look up.
    pub fn table_bytes(&self) -> u64 {
        let pages = self.pages.count();
        let places = self.places_addr().map_or(0, |_| (pages + 1) * size_of::<u64>() as u64);
        bytes_of(pages) + places
    }

    /// What lies in GPU memory; nothing once the region has ended.
    pub fn tables(&self) -> MutexGuard<'_, Option<RegionTables>> {
        self.tables.lock()
    }

    /// Works on the page table, unless the region has ended.
    fn with_words<R: Default>(&self, doing: &str, work: impl FnOnce(&PageTable) -> Result<R, GpuError>) -> Result<R> {
        match &*self.tables() {
            Some(tables) => work(&tables.words).doing(|| format!("{doing} `{}`", self.name)),
            None => Ok(R::default()),
        }
    }

    /// The page table; empty once the region has ended.
    pub fn read_words(&self, gpu: &dyn Gpu) -> Result<Vec<u64>> {
        self.with_words("reading the page table of", |words| words.read(gpu))
    }

    /// From now on lanes count, page by page and from 0 on, the chunks that they read at the region's home. None where they read nothing
    /// there.
    pub fn count_chunks(&self, gpu: &dyn Gpu) -> Result<Option<Arc<DeviceArray<u64>>>> {
        let mut tables = self.tables();
        let Some(tables) = tables
            .as_mut()
            .filter(|_| self.array_flags() & layout::ARRAY_IN_PLACE != 0)
        else {
            return Ok(None);
        };
        let doing = || format!("counting what is read in place of `{}`", self.name);
        let counts = match &tables.page_chunks {
            Some(counts) if Arc::strong_count(counts) > 1 => {
                return Err(Error::Region {
                    region: self.name.clone(),
                    reason: "it is being profiled already: finish that profile first".to_owned(),
                });
            }
            Some(counts) => {
                let zeros = vec![0; self.pages.count() as usize];
                counts.write(gpu, 0, &zeros).doing(doing)?;
                Arc::clone(counts)
            }
            None => Arc::new(DeviceArray::zeroed(gpu, self.pages.count()).doing(doing)?),
        };
        tables.page_chunks = Some(Arc::clone(&counts));
        tables.words.count_chunks_at(gpu, counts.addr()).doing(doing)?;
        Ok(Some(counts))
    }

    /// Lanes of later launches count chunks no more.
    pub fn stop_counting_chunks(&self, gpu: &dyn Gpu) -> Result<()> {
        self.with_words("ending the profile of", |words| words.count_chunks_at(gpu, 0))
    }

    /// Has this many of the reads at the home ask what to do with their page: `DRAW_*`.
    pub fn write_draws(&self, gpu: &dyn Gpu, draws: u32) -> Result<()> {
        self.with_words("advising region", |words| words.write_draws(gpu, draws))
    }

    /// Which pages of a held region launches marked that look pages up: of those in frames, which may be newer than their home. No kernel
    /// may run.
    pub fn marks(&self, gpu: &dyn Gpu) -> Result<Vec<bool>> {
        match self.is_held() {
            true => self.with_words("reading the marks of", |words| {
                let mut marks = words.marks(gpu)?;
                if self.came_beside() {
                    marks.fill(false);
                    return Ok(marks);
                }
                if self.may_be_written() {
                    marks.fill(true);
                }
                if let Some(places) = self.places_there() {
                    let mut others = vec![0; marks.len()];
                    gpu.read(places.marks, &mut others)?;
                    marks
                        .iter_mut()
                        .zip(others)
                        .for_each(|(mark, other)| *mark |= other != 0);
                }
                Ok(marks)
            }),
            false => Ok(Vec::new()),
        }
    }

    /// Forgets those marks. No kernel may run.
    pub fn clear_marks(&self, gpu: &dyn Gpu) -> Result<()> {
        self.forget_places();
        match self.is_held() {
            true => self.forget_uses(gpu),
            false => Ok(()),
        }
    }

    /// Forgets which pages launches used at their home, too. No kernel may run, and nothing that marks say may count any more.
    pub fn forget_uses(&self, gpu: &dyn Gpu) -> Result<()> {
        self.forget_places();
        self.forget_beside();
        self.note_marked();
        self.with_words("clearing the marks of", |words| {
            if let Some(places) = self.places_there() {
                gpu.zero(places.marks, self.pages.count())?;
            }
            words.clear_marks(gpu)
        })
    }

    /// Has pages of a region that is not held count as used at home: they come before the next launch that looks them up, as far as frames are free.
    pub fn want(&self, gpu: &dyn Gpu, pages: Range<u64>) -> Result<()> {
        self.with_words("marking pages of", |words| words.set_marks(gpu, pages))
    }

    /// Replaces the page table. No kernel may run.
    pub fn write_words(&self, gpu: &dyn Gpu, new: &[u64]) -> Result<()> {
        self.with_words("writing the page table of", |words| words.write(gpu, new))
    }
}
