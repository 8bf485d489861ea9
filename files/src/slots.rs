//! Slots, the blocks in them, and what may happen to a block when.
//!
//! | state | how it comes | who may reach the memory |
//! |---|---|---|
//! | free | at first; its block left, or could not be read | nothing |
//! | loading | a request asks for an absent block | the read |
//! | ready | the read has ended; a request writes all of an absent block | who acquired it, and a write to the file |
//!
//! A ready block may be dirty, and it may be on its way to the file, both at once. A block leaves when it is ready and clean, nothing
//! acquired it, and nothing writes it. The rules that matter, of each of which the tests run a broken form ([`Rule`]):
//!
//! 1. A block that is acquired stays.
//! 2. A dirty block stays until its write has succeeded.
//! 3. A block is dirty from when it is acquired for writing, not from its release: who is told that a NIC wrote it may sync before the NIC
//!    lets go of it.
//! 4. A block that is acquired for writing while the file's write reads it is dirty still when that write has ended.
//! 5. A block that is written whole without having been read is nothing else's before its release.
//! 6. A block that could not be read is read again for the next request. Who waited for it is told; where nothing did, nothing is.

mod loading;
mod writing;

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap as HashMap;

use crate::{
    FileError,
    device::Span,
    engine::{Done, Engines, Op},
    opened::Opened,
    order::Order,
    rules::{Rule, holds},
    streams::Streams,
};

/// Most bytes and blocks of one read or write.
const JOINED_BYTES: u64 = 64 << 10;
const JOINED_BLOCKS: usize = 256;
/// Most bytes that are read ahead of one stream.
const AHEAD_BYTES: u64 = 8 << 20;
/// Blocks are written without being asked for once one in this many slots is dirty.
const DIRTY_SHARE: usize = 4;
/// Failed reads that are remembered.
const FAILED_MOST: usize = 4096;

/// How long blocks wait that could not be written, before their slots' next user has them tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// What a request does with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// Reads them.
    Read,
    /// Writes all of them.
    Write,
}

/// Whether blocks are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// They are, and stay until they are released.
    Ready,
    /// Not yet.
    Wait,
}

/// What a tier did since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStats {
    /// Blocks that requests were given.
    pub served: u64,
    /// Blocks read from files.
    pub loaded: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Reads that brought them: neighbours come together.
    pub reads: u64,
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Writes that brought them.
    pub writes: u64,
    /// Reads and writes that failed.
    pub failures: u64,
    /// Blocks that made room for others.
    pub evicted: u64,
    /// Blocks in memory that files do not hold yet.
    pub dirty: u64,
    /// Slots.
    pub slots: u64,
    /// Bytes of a slot.
    pub block: u64,
}

/// One piece of a block in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Address in this process.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The slot that holds it: for [`File::release`](crate::File::release).
    pub slot: u32,
}

/// A block of a file: the file's number, and the block's.
pub(crate) type Key = (u32, u64);

/// The slots' memory.
pub(crate) struct Memory {
    pub base: u64,
    pub block: u64,
    /// Dropped last: engines wait for the kernel first.
    #[allow(dead_code, reason = "it is kept for its drop")]
    pub keeper: Box<dyn Send + Sync>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Free,
    Loading,
    Ready,
}

/// A slot.
struct Slot {
    key: Key,
    phase: Phase,
    readers: u32,
    writers: u32,
    dirty: bool,
    /// A write to the file is under way.
    writing: bool,
    /// It was dirtied since that write began.
    again: bool,
    /// It was never read, and its writer has not released it.
    blank: bool,
    /// Loaded for a request that has not come yet: it stays until this many loads have begun.
    wanted_until: u64,
    /// Read ahead of a stream, and nothing has asked for it.
    unasked: bool,
    /// A request waits for it, which is to be told should it fail.
    waited_for: bool,
}

const EMPTY: Slot = Slot {
    key: (0, 0),
    phase: Phase::Free,
    readers: 0,
    writers: 0,
    dirty: false,
    writing: false,
    again: false,
    blank: false,
    wanted_until: 0,
    unasked: false,
    waited_for: false,
};

/// A file with dirty blocks, which is kept open for them.
struct DirtyFile {
    file: Arc<Opened>,
    blocks: u64,
    /// Why a write failed last, and when.
    failed: Option<(FileError, Instant)>,
    /// Slots that could not be written by themselves: they are not among those that are to be written before they are tried again.
    refused: Vec<u32>,
    /// Writes that had begun when somebody said that the cause is fixed: what fails of them is tried once more first.
    doubted: u64,
    /// A write of several blocks failed: each is written by itself, so that one that cannot be keeps no other back.
    alone: bool,
}

/// A load that has no operation yet.
struct ToLoad {
    key: Key,
    slot: u32,
    file: Arc<Opened>,
    /// A read of it failed before: it is read by itself.
    alone: bool,
}

/// All slots of a tier.
pub(crate) struct Slots {
    // Dropped before the memory: they wait for what is under way.
    engines: Engines,
    slots: Vec<Slot>,
    places: HashMap<Key, u32>,
    order: Order<Key>,
    free: Vec<u32>,
    /// Loads that have no operation yet.
    to_load: Vec<ToLoad>,
    /// Slots in the order in which they became dirty; some are clean again.
    dirtied: VecDeque<u32>,
    dirty_files: HashMap<u32, DirtyFile>,
    failed: HashMap<Key, FileError>,
    done: Vec<Done>,
    /// Loads begun.
    loads: u64,
    /// Slots that load or were loaded for requests to come.
    ahead: usize,
    stats: TierStats,
    /// Blocks in the order in which they were given, where somebody asked for that.
    asked: Option<Vec<Key>>,
    streams: Streams,
    /// Blocks that were asked for first, for the streams that they may be of.
    first_asked: Vec<(Weak<Opened>, u64)>,
    /// A request found no slot, and was told to wait.
    starved: bool,
    /// What somebody waits for may be there.
    progressed: bool,
    memory: Memory,
}

impl Slots {
    pub fn new(memory: Memory, count: u32, engines: Engines) -> Self {
        Self {
            engines,
            slots: (0..count).map(|_| EMPTY).collect(),
            places: HashMap::with_capacity_and_hasher(count as usize, Default::default()),
            order: Order::new(count as usize),
            free: (0..count).rev().collect(),
            to_load: Vec::new(),
            dirtied: VecDeque::new(),
            dirty_files: HashMap::default(),
            failed: HashMap::default(),
            done: Vec::new(),
            loads: 0,
            ahead: 0,
            stats: TierStats::default(),
            asked: None,
            streams: Streams::default(),
            first_asked: Vec::new(),
            starved: false,
            progressed: false,
            memory,
        }
    }

    pub fn stats(&self) -> TierStats {
        let dirty = self.dirty_files.values().map(|file| file.blocks).sum();
        TierStats { dirty, ..self.stats }
    }

    /// Whether what somebody waits for may be there, since this was asked last.
    pub fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.progressed)
    }

    pub fn record(&mut self) {
        self.asked = Some(Vec::new());
    }

    pub fn recorded(&mut self) -> Option<Vec<Key>> {
        self.asked.take()
    }

    pub fn is_busy(&self) -> bool {
        self.engines.under_way() > 0 || !self.to_load.is_empty()
    }

    /// The blocks that hold a span.
    fn blocks(&self, span: &Range<u64>) -> Range<u64> {
        match span.is_empty() {
            true => 0..0,
            false => span.start / self.memory.block..(span.end - 1) / self.memory.block + 1,
        }
    }

    /// The bytes of a block that its file has.
    fn bytes_of(&self, file: &Opened, block: u64) -> u64 {
        (file.length - block * self.memory.block).min(self.memory.block)
    }

    /// The part of a block that lies in the span: its offset in the block, and its length.
    fn part(&self, span: &Range<u64>, block: u64) -> (u64, u64) {
        let first = block * self.memory.block;
        let from = span.start.max(first);
        (from - first, span.end.min(first + self.memory.block) - from)
    }

    fn address(&self, slot: u32) -> u64 {
        self.memory.base + u64::from(slot) * self.memory.block
    }

    /// See [`File::acquire`](crate::File::acquire).
    pub fn acquire(
        &mut self,
        file: &Arc<Opened>,
        span: Range<u64>,
        how: How,
        pieces: &mut Vec<Piece>,
    ) -> Result<Got, FileError> {
        let blocks = self.blocks(&span);
        let mut waits = false;
        for block in blocks.clone() {
            let key = (file.id, block);
            if let Some(failure) = self.failed.get(&key).cloned() {
                if holds(Rule::ReadAgain) {
                    self.failed.remove(&key);
                }
                return Err(failure);
            }
            if let Some(&slot) = self.places.get(&key) {
                self.note_asked(file, slot);
                let slot = &mut self.slots[slot as usize];
                slot.waited_for |= slot.phase == Phase::Loading;
                waits |= slot.phase == Phase::Loading || slot.blank && holds(Rule::BlankIsPrivate);
            } else if !self.is_whole(file, &span, block, how) {
                waits = true;
                match self.take_slot(true) {
                    Some(slot) => {
                        self.load_asked(file, key, slot);
                        self.slots[slot as usize].waited_for = true;
                    }
                    None => self.check_stuck()?,
                }
            }
        }
        if waits {
            return Ok(Got::Wait);
        }
        self.hold_all(file, &span, how, pieces)
    }

    /// Holds the blocks of a span, which are there or are written whole.
    fn hold_all(
        &mut self,
        file: &Arc<Opened>,
        span: &Range<u64>,
        how: How,
        pieces: &mut Vec<Piece>,
    ) -> Result<Got, FileError> {
        let blocks = self.blocks(span);
        // Those that are there first: a slot for another one may not be theirs.
        for block in blocks.clone() {
            if let Some(slot) = self.places.get(&(file.id, block)) {
                self.hold(*slot, file, how);
            }
        }
        let mut lacks = false;
        for block in blocks.clone() {
            let key = (file.id, block);
            if lacks || self.places.contains_key(&key) {
                continue;
            }
            match self.take_slot(true) {
                Some(slot) => {
                    self.blank(key, slot);
                    self.hold(slot, file, how);
                }
                None => lacks = true,
            }
        }
        let before = pieces.len();
        for block in blocks {
            if let Some(&slot) = self.places.get(&(file.id, block)) {
                let (offset, bytes) = self.part(span, block);
                pieces.push(Piece {
                    address: self.address(slot) + offset,
                    bytes,
                    slot,
                });
            }
        }
        if lacks {
            let held = pieces.split_off(before);
            self.let_go(&held, how, false);
            self.check_stuck()?;
            return Ok(Got::Wait);
        }
        self.stats.served += (pieces.len() - before) as u64;
        Ok(Got::Ready)
    }

    /// Whether a request writes all that the file has of the block.
    fn is_whole(&self, file: &Opened, span: &Range<u64>, block: u64, how: How) -> bool {
        let (offset, bytes) = self.part(span, block);
        how == How::Write && offset == 0 && bytes == self.bytes_of(file, block)
    }

    /// Counts a user of a ready block.
    fn hold(&mut self, slot: u32, file: &Arc<Opened>, how: How) {
        let held = &mut self.slots[slot as usize];
        if let Some(asked) = &mut self.asked {
            asked.push(held.key);
        }
        if held.wanted_until > 0 {
            held.wanted_until = 0;
            self.ahead -= 1;
        } else {
            self.order.touch(slot);
        }
        match how {
            How::Read => held.readers += 1,
            How::Write => {
                held.writers += 1;
                held.again |= held.writing;
                if !std::mem::replace(&mut held.dirty, true) {
                    self.dirtied.push_back(slot);
                    let entry = self.dirty_files.entry(file.id);
                    let file = Arc::clone(file);
                    entry
                        .or_insert(DirtyFile {
                            file,
                            blocks: 0,
                            failed: None,
                            refused: Vec::new(),
                            doubted: 0,
                            alone: false,
                        })
                        .blocks += 1;
                }
            }
        }
    }

    /// See [`File::release`](crate::File::release).
    pub fn release(&mut self, pieces: &[Piece], how: How) {
        self.let_go(pieces, how, true);
    }

    /// `written`: the writers did write.
    fn let_go(&mut self, pieces: &[Piece], how: How, written: bool) {
        // Who waits for a slot may have one of these.
        self.progressed |= std::mem::take(&mut self.starved);
        for piece in pieces {
            let slot = &mut self.slots[piece.slot as usize];
            match how {
                How::Read => slot.readers -= 1,
                How::Write => {
                    slot.writers -= 1;
                    slot.again |= slot.writing;
                    self.progressed |= slot.blank;
                    if slot.blank && written {
                        slot.blank = false;
                    } else if slot.blank {
                        self.cleaned(piece.slot);
                        self.empty(piece.slot);
                    }
                }
            }
        }
    }

    /// An absent block's slot, without the file's contents.
    fn blank(&mut self, key: Key, slot: u32) {
        self.slots[slot as usize] = Slot {
            key,
            phase: Phase::Ready,
            blank: true,
            ..EMPTY
        };
        self.places.insert(key, slot);
        self.order.enter(slot, key);
    }

    /// A slot for another block: a free one, or one whose block may leave. `urgent`: what was loaded ahead may go for it.
    fn take_slot(&mut self, urgent: bool) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        let (slots, loads) = (&self.slots, self.loads);
        let leaves = |slot: u32, ahead: bool| {
            let slot = &slots[slot as usize];
            let unused = slot.readers == 0 || !holds(Rule::AcquiredStays);
            let idle = slot.phase == Phase::Ready && unused && slot.writers == 0 && !slot.dirty && !slot.writing;
            idle && (ahead || slot.wanted_until <= loads)
        };
        let key_of = |slot: u32| slots[slot as usize].key;
        let mut victim = self.order.victim(|slot| leaves(slot, false), key_of);
        if victim.is_none() && urgent {
            victim = self.order.victim(|slot| leaves(slot, true), key_of);
        }
        let Some(victim) = victim else {
            self.starved = true;
            self.write_oldest(usize::MAX);
            return None;
        };
        let left = std::mem::replace(&mut self.slots[victim as usize], EMPTY);
        self.ahead -= usize::from(left.wanted_until > 0);
        self.places.remove(&left.key);
        self.stats.evicted += 1;
        Some(victim)
    }

    /// Why no slot will ever be free, if that is so.
    fn check_stuck(&mut self) -> Result<(), FileError> {
        // Others may be dirty, too: they can be written.
        let refused: usize = self.dirty_files.values().map(|file| file.refused.len()).sum();
        let failed = self.dirty_files.values().find_map(|file| file.failed.as_ref());
        match failed {
            // What failed a while ago is tried again first.
            Some((failure, when)) if refused >= self.slots.len() / 2 && when.elapsed() < RETRY_AFTER => {
                Err(failure.clone())
            }
            _ => Ok(()),
        }
    }

    /// Takes the block out of a slot that nothing uses.
    fn empty(&mut self, slot: u32) {
        let left = std::mem::replace(&mut self.slots[slot as usize], EMPTY);
        self.ahead -= usize::from(left.wanted_until > 0);
        self.places.remove(&left.key);
        self.order.forget(slot);
        self.free.push(slot);
    }

    /// See [`Tier::poll`](crate::Tier::poll).
    pub fn poll(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.engines.reap(&mut done);
        let any = !done.is_empty();
        self.progressed |= any;
        for (op, result) in done.drain(..) {
            match op.write {
                true => self.written(op, result),
                false => self.loaded(op, result),
            }
        }
        self.done = done;
        let dirty: u64 = self.dirty_files.values().map(|file| file.blocks).sum();
        let limit = self.slots.len() / DIRTY_SHARE;
        if dirty as usize > limit {
            self.write_oldest(dirty as usize - limit);
        }
        self.read_ahead();
        self.begin_loads();
        self.engines.start_all();
        any
    }

    /// Begins a read or write of neighbouring blocks. `again`: a read that failed before.
    fn begin(&mut self, file: Arc<Opened>, write: bool, again: bool, run: &[(u64, u32)]) {
        match write {
            true => self.stats.writes += 1,
            false => self.stats.reads += 1,
        }
        let span = |&(block, slot): &(u64, u32)| Span {
            address: self.address(slot),
            bytes: self.bytes_of(&file, block),
        };
        let op = Op {
            write,
            again,
            number: self.stats.writes,
            offset: run[0].0 * self.memory.block,
            slots: run.iter().map(|(_, slot)| *slot).collect(),
            spans: run.iter().map(span).collect(),
            file,
        };
        self.engines.begin(op);
    }
}
