//! Watches a virtual memory while the simulated GPU runs it: after every access it looks at page table entries, frame, the
//! pool, request records and ring indexes, and compares each change with the paging protocol's rules.
//!
//! It keeps a shadow of every word it watches, and for each frame what became of it. It reads memory only, so it cannot
//! change an interleaving.

use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::OnceLock;

use gpuvm_layouts as layout;
use gpuvm_sim_gpu::{Observer, Step};
use layout::{PoolState, QueueDesc, QueueState, RegionDesc, RequestRecord, VmDesc};
use parking_lot::{Mutex, MutexGuard};

use crate::words;
use memory::{Cell, Kind, home_of, index_of, load, phase_of, read};
use page_id::page_of;
use slots::Slots;

pub use event::{Event, Finding, Looks, What, Who};
pub use page_id::page_name;
pub(crate) use page_id::{is_same_page, region_number};

mod copies;
mod event;
mod lending;
mod memory;
mod page_id;
mod pages;
mod requests;
mod slots;

/// Events kept for the trace of a failure.
const EVENTS_KEPT: usize = 4096;
/// Events kept for a timeline.
const EVENTS_MAX: usize = 4_000_000;

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    Free,
    /// Somebody took it, or made it free, and holds it.
    InHand,
    /// This page's.
    Of(u64),
}

/// What a frame was filled from last.
#[derive(Debug, Clone, Copy)]
struct Source {
    /// The page, with the replica.
    page_id: u64,
    /// Whether that copy was stale when the READ of it was over.
    stale: bool,
}

/// How far a home is that was taken away and returns by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Return {
    /// It is away, or was never lost.
    #[default]
    Not,
    /// It is there, and lanes may not know yet that it was lost.
    Expected,
    /// Its queue pairs are closed to lanes.
    Closed,
}

/// The watcher. Give it to the simulated GPU, tell it of the virtual memory by [`attach`](Self::attach), and take it off before
/// that ends.
#[derive(Default)]
pub struct Watcher {
    state: Mutex<WatchState>,
    /// The first finding, for who must not wait for a lane that was lost while it held `state`.
    first: OnceLock<Finding>,
}

#[derive(Default)]
struct WatchState {
    desc: Option<VmDesc>,
    regions: Vec<(u32, RegionDesc)>,
    queues: Vec<QueueDesc>,
    cells: Vec<Cell>,
    /// What each cell is.
    kinds: Vec<Kind>,
    frames: Vec<Frame>,
    /// The page for which a READ into the frame is under way.
    targets: Vec<Option<u64>>,
    /// What each frame was filled from, until a page is published in it.
    sources: Vec<Option<Source>>,
    /// Homes that were taken away, by replica: what they hold is garbage of which no stale bit tells before they are back.
    lost: [bool; layout::REPLICAS_MAX as usize],
    /// Those of them that are there again, until lanes go there.
    returning: [Return; layout::REPLICAS_MAX as usize],
    /// Memory of neighbours, where some is borrowed.
    slots: Option<Slots>,
    /// Whether single bits at homes may be wrong: of pages with checksums.
    flips: bool,
    /// Whether a frame without changes of its own may be older than its home.
    others: bool,
    events: VecDeque<Event>,
    all_events: bool,
    now_ns: u64,
    who: Option<Who>,
    looks: Looks,
    findings: Vec<Finding>,
}

impl Watcher {
    /// A watcher that keeps the last events, or, for a timeline, all of them.
    pub fn new(all_events: bool) -> Self {
        let watcher = Self::default();
        watcher.lock().all_events = all_events;
        watcher
    }

    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock()
    }

    /// Begins to watch the virtual memory whose description lies at this address.
    ///
    /// # Safety
    /// Until [`detach`](Self::detach) the address is that of the `VmDesc` of a virtual memory on the simulated GPU that this watcher
    /// observes, with a software NIC or the direct transport, and with homes in this process.
    pub unsafe fn attach(&self, description: u64) {
        let mut state = self.lock();
        // SAFETY: as the caller promises.
        state.desc = Some(unsafe { (description as *const VmDesc).read() });
        state.rebuild();
    }

    /// Ends watching; memory is not looked at any more.
    pub fn detach(&self) {
        let mut state = self.lock();
        state.desc = None;
        state.cells.clear();
        state.kinds.clear();
    }

    /// The rules that were broken so far, the first one first, at most 16.
    pub fn findings(&self) -> Vec<Finding> {
        self.lock().findings.clone()
    }

    /// The first finding. It waits for nothing.
    pub(crate) fn first(&self) -> Option<&Finding> {
        self.first.get()
    }

    /// Whether nothing holds the state for long: a lane whose stack overflows while it is watched never gives it back.
    pub(crate) fn is_sound(&self) -> bool {
        self.state.try_lock().is_some()
    }

    /// How often it looked.
    pub fn looks(&self) -> Looks {
        self.lock().looks
    }

    /// The events so far, as many as are kept.
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.iter().copied().collect()
    }

    /// 64-bit word `index` of region `region` at its home, or at one of its homes that counts, whatever the frames hold. None
    /// when it is not watched, or no copy counts.
    pub fn home_word(&self, region: u32, index: u64) -> Option<u64> {
        let mut state = self.lock();
        if state.regions.is_empty() {
            state.rebuild();
        }
        let desc = state.desc?;
        let (_, region) = *state.regions.iter().find(|(id, _)| *id == region)?;
        if (index + 1) * 8 > region.bytes {
            return None;
        }
        let row = state.good_rows(&region, (index * 8) >> desc.page_shift).next()?;
        home_of(&region, row).map(|home| read(home + index * 8))
    }

    /// Looks at a virtual memory that no launch uses and whose regions were closed: all requests are reaped, all frames are
    /// free, no pin is left.
    pub fn when_idle(&self) -> Result<(), Finding> {
        let mut state = self.lock();
        state.who = Some(Who::Host);
        state.rebuild();
        let (mut frame, mut queue, mut page_id) = (None, None, None);
        let what = state.unrest(&mut frame, &mut queue, &mut page_id);
        match what {
            None => Ok(()),
            Some(what) => Err(Finding {
                at_ns: state.now_ns,
                who: Who::Host,
                what,
                page_id,
                frame,
                queue,
            }),
        }
    }
}

impl Observer for Watcher {
    fn step(&self, now_ns: u64, step: Step) {
        let mut state = self.lock();
        if state.desc.is_none() {
            return;
        }
        state.now_ns = now_ns;
        state.who = Some(match step {
            Step::Lane { launch, block, thread } => Who::Lane { launch, block, thread },
            Step::Actor { did: false, .. } => return,
            Step::Actor { number, .. } => Who::Nic(number),
            Step::Host => Who::Host,
        });
        match step {
            Step::Host => {
                state.rebuild();
                state.look_at_returns();
            }
            _ => state.scan(),
        }
        if let Some(finding) = state.findings.first() {
            self.first.get_or_init(|| finding.clone());
        }
    }
}

impl WatchState {
    fn region_of(&self, page_id: u64) -> Option<&RegionDesc> {
        let number = region_number(page_id);
        self.regions
            .iter()
            .find(|(id, _)| *id == number)
            .map(|(_, region)| region)
    }

    fn is_pooled(&self, page_id: u64) -> bool {
        self.region_of(page_id)
            .is_some_and(|region| region.flags & layout::REGION_NEVER_EVICTED == 0)
    }

    /// Whether lanes copy the page themselves, and may use it where it lives.
    fn is_copied(&self, page_id: u64) -> bool {
        self.region_of(page_id).is_some_and(|region| region.home != 0)
    }

    /// Takes everything in anew: after the host ran, which keeps other rules.
    fn rebuild(&mut self) {
        let Some(desc) = self.desc else { return };
        self.regions.clear();
        self.cells.clear();
        for id in 0..desc.region_count {
            let region: RegionDesc = read(desc.regions + u64::from(id) * size_of::<RegionDesc>() as u64);
            if region.flags & layout::REGION_LIVE != 0 {
                self.regions.push((id, region));
            }
        }
        let queue_at = |n: u32| desc.queues + u64::from(n) * size_of::<QueueDesc>() as u64;
        self.queues = (0..desc.queue_count).map(|n| read(queue_at(n))).collect();
        self.find_slots();
        let (mut cells, mut kinds) = (Vec::new(), Vec::new());
        let mut watch = |address, kind| {
            let seen = load(address);
            cells.push(Cell { address, seen });
            kinds.push(kind);
        };
        // Before words: a slot's return and the publication behind it may show in one step.
        for (address, kind) in self.slots.iter().flat_map(Slots::cells) {
            watch(address, kind);
        }
        for (id, region) in &self.regions {
            for page in 0..region.pages {
                let page_id = layout::page_id(*id, page);
                watch(region.words + page * 8, Kind::Word { page_id });
            }
        }
        for place in 0..u64::from(desc.pool.count) {
            watch(desc.pool.ring + place * 8, Kind::PoolSlot);
        }
        for (queue, at) in (0..).zip(&self.queues) {
            let part = |offset: usize| at.state + offset as u64;
            watch(part(offset_of!(QueueState, reserved)), Kind::Reserved { queue });
            watch(part(offset_of!(QueueState, written)), Kind::Written { queue });
            watch(part(offset_of!(QueueState, ringer)), Kind::Failed { queue });
            watch(part(offset_of!(QueueState, posted)), Kind::Posted { queue });
            for slot in 0..=at.mask {
                let record = at.records + u64::from(slot) * size_of::<RequestRecord>() as u64;
                // The page before the state: delayed stores of both may show in one step.
                watch(record + 8, Kind::RecordPageId { queue, slot });
                watch(record, Kind::Record { queue, slot });
            }
        }
        (self.cells, self.kinds) = (cells, kinds);
        self.recount(&desc);
    }

    /// What became of each frame, from memory alone.
    fn recount(&mut self, desc: &VmDesc) {
        self.frames = vec![Frame::InHand; desc.pool.count as usize];
        self.targets = vec![None; desc.pool.count as usize];
        // What a READ has filled a frame from stays so whatever the host did.
        self.sources.resize(desc.pool.count as usize, None);
        let mut twice = None;
        for (cell, kind) in self.cells.iter().zip(&self.kinds) {
            match *kind {
                Kind::PoolSlot if cell.seen >> 32 & 1 != 0 => {
                    if let Some(frame) = self.frames.get_mut(cell.seen as u32 as usize) {
                        *frame = Frame::Free;
                    }
                }
                Kind::Word { page_id } if words::is_resident(cell.seen) && self.is_pooled(page_id) => {
                    if let Some(frame) = self.frames.get_mut(words::frame(cell.seen) as usize) {
                        if *frame != Frame::InHand {
                            twice = Some((page_id, words::frame(cell.seen), *frame));
                        }
                        *frame = Frame::Of(page_id);
                    }
                }
                _ => {}
            }
        }
        if let Some((page_id, frame, other)) = twice {
            let what = format!("frame {frame} belongs to {} and is {other:?}", page_name(page_id));
            self.find(what, (Some(page_id), Some(frame), None));
        }
        self.recount_slots();
        for queue in 0..self.queues.len() as u32 {
            for slot in 0..=self.queues[queue as usize].mask {
                let record = self.record(queue, slot);
                // A claimed one has filled its frame.
                let under_way = phase_of(record.state) == layout::RECORD_POSTED;
                if under_way && record.kind == layout::REQUEST_FETCH && self.is_pooled(record.page_id) {
                    self.set_target(record.frame, Some(page_of(record.page_id)));
                }
            }
        }
    }

    fn set_target(&mut self, frame: u32, page_id: Option<u64>) {
        if let Some(target) = self.targets.get_mut(frame as usize) {
            *target = page_id;
        }
    }

    fn record(&self, queue: u32, slot: u32) -> RequestRecord {
        let at = &self.queues[queue as usize];
        read(at.records + u64::from(slot & at.mask) * size_of::<RequestRecord>() as u64)
    }

    fn queue_state(&self, queue: u32) -> QueueState {
        read(self.queues[queue as usize].state)
    }

    fn find(&mut self, what: String, (page_id, frame, queue): (Option<u64>, Option<u32>, Option<u32>)) {
        if self.findings.len() < 16 {
            self.findings.push(Finding {
                at_ns: self.now_ns,
                who: self.who.unwrap_or(Who::Host),
                what,
                page_id,
                frame,
                queue,
            });
        }
    }

    fn tell(&mut self, what: What) {
        let most = if self.all_events { EVENTS_MAX } else { EVENTS_KEPT };
        if self.events.len() >= most {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            at_ns: self.now_ns,
            who: self.who.unwrap_or(Who::Host),
            what,
        });
    }

    /// Looks at every watched word; at most one has changed, since one access was made.
    fn scan(&mut self) {
        self.looks.steps += 1;
        self.look_at_lenders_memory();
        // Most steps change nothing: one pass without a branch says so.
        let changed = self
            .cells
            .iter()
            .fold(0, |changed, cell| changed | load(cell.address) ^ cell.seen);
        if changed == 0 {
            return;
        }
        // What was taken, before what was given: a lane's own stores to two slots may show in one step.
        for n in 0..self.cells.len() {
            let (old, now) = (self.cells[n].seen, load(self.cells[n].address));
            if old == now || old >> 32 & 1 == 0 {
                continue;
            }
            match self.kinds[n] {
                Kind::PoolSlot => self.frame_becomes(old as u32, Frame::InHand),
                Kind::SlotPlace => self.slot_taken(old as u32),
                _ => {}
            }
        }
        for n in 0..self.cells.len() {
            let now = load(self.cells[n].address);
            let cell = &mut self.cells[n];
            if now == cell.seen {
                continue;
            }
            let (old, kind) = (std::mem::replace(&mut cell.seen, now), self.kinds[n]);
            match kind {
                Kind::Word { page_id } => self.word_changed(page_id, old, now),
                Kind::PoolSlot => self.pool_changed(old, now),
                Kind::SlotsKept { frame } => self.slots_kept_changed(frame, old, now),
                Kind::SlotPlace => self.slot_list_changed(old, now),
                Kind::Turn { chunk } => self.lender_went_on(chunk, now),
                Kind::Record { queue, slot } => self.record_changed(queue, slot, old, now),
                Kind::RecordPageId { queue, slot } => self.page_id_changed(queue, slot, self.cells[n + 1].seen),
                Kind::Reserved { queue } | Kind::Written { queue } | Kind::Posted { queue } => {
                    self.index_changed(queue, kind, old, now);
                }
                Kind::Failed { queue } => {
                    if old >> 32 != now >> 32 {
                        let code = (now >> 32) as u32;
                        self.tell(What::Failed { queue, code });
                    }
                }
            }
        }
    }

    /// What is not as it has to be when everything was closed.
    fn unrest(&self, frame: &mut Option<u32>, queue: &mut Option<u32>, page_id: &mut Option<u64>) -> Option<String> {
        let desc = self.desc?;
        for (cell, kind) in self.cells.iter().zip(&self.kinds) {
            match *kind {
                Kind::Word { page_id: at } if cell.seen & !(layout::VERSION_MASK | layout::REFERENCED_BIT) != 0 => {
                    *page_id = Some(at);
                    let word = words::describe(cell.seen);
                    return Some(format!("{} is {word} at the end", page_name(at)));
                }
                Kind::Record { queue: at, slot } if phase_of(cell.seen) != layout::RECORD_FREE => {
                    *queue = Some(at);
                    let index = index_of(cell.seen);
                    let what = format!("request {index} in slot {slot} of queue pair {at} was never reaped");
                    return Some(what);
                }
                _ => {}
            }
        }
        for at in 0..self.queues.len() as u32 {
            let state = self.queue_state(at);
            // A pair of a home that is lost stays closed.
            let reserved = state.reserved & !layout::RESERVED_CLOSED;
            if reserved != state.written || state.written != state.posted {
                *queue = Some(at);
                let (written, posted) = (state.written, state.posted);
                let what = format!("ends with reserved {reserved}, written {written}, posted {posted}");
                return Some(format!("queue pair {at} {what}"));
            }
        }
        let pool: PoolState = read(desc.pool.state);
        let is_withdrawn = |frame: usize| load(desc.frame_pages + frame as u64 * 8) == layout::PAGE_WITHDRAWN;
        let there = (0..self.frames.len()).filter(|frame| !is_withdrawn(*frame)).count();
        if pool.available != there as u64 {
            let available = pool.available as i64;
            return Some(format!("{available} of {there} frames are free at the end"));
        }
        let mut held = self.frames.iter().enumerate();
        let lost = held.position(|(n, held)| (*held == Frame::Free) == is_withdrawn(n));
        let lost = lost.map(|lost| {
            *frame = Some(lost as u32);
            format!("frame {lost} is not in the pool at the end: {:?}", self.frames[lost])
        });
        lost.or_else(|| self.slots.as_ref().and_then(Slots::unrest))
    }
}

#[cfg(test)]
mod tests;
