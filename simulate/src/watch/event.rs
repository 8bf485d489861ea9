//! What the watcher tells of: events, broken rules, and how often each check looked.

use serde::{Deserialize, Serialize};

use crate::words::Transition;

/// Who did something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    /// A lane of a launch.
    Lane {
        /// The launch's number since the GPU was made.
        launch: u32,
        /// The block's number.
        block: u32,
        /// The thread's number.
        thread: u32,
    },
    /// An engine of a NIC.
    Nic(u32),
    /// The host, between launches.
    Host,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A page's entry changed.
    Word {
        /// The page, as in the table of frames.
        page_id: u64,
        /// Before.
        old: u64,
        /// After.
        new: u64,
        /// What that is.
        transition: Transition,
    },
    /// A frame went to the pool.
    Given {
        /// The frame.
        frame: u32,
    },
    /// A frame was taken from the pool.
    Taken {
        /// The frame.
        frame: u32,
    },
    /// A slot at a neighbour became free.
    SlotGiven {
        /// The slot.
        slot: u32,
    },
    /// A slot at a neighbour was taken.
    SlotTaken {
        /// The slot.
        slot: u32,
    },
    /// A lender has come this far with a chunk that it takes back.
    TakenBack {
        /// The chunk.
        chunk: u32,
        /// 1: the loan has ended; 2: nothing writes there any more; 3: somebody always did.
        turn: u64,
    },
    /// A request's record changed its phase.
    Request {
        /// The queue pair's place in the table.
        queue: u32,
        /// The request's index.
        index: u64,
        /// `RECORD_*`.
        phase: u64,
        /// `REQUEST_*`.
        kind: u32,
        /// The page.
        page_id: u64,
        /// The frame.
        frame: u32,
    },
    /// Slots were reserved up to this index.
    Reserved {
        /// The queue pair's place in the table.
        queue: u32,
        /// The next index.
        index: u64,
    },
    /// Requests up to this index were handed over.
    Written {
        /// The queue pair's place in the table.
        queue: u32,
        /// The next index.
        index: u64,
    },
    /// The doorbell was rung up to this index.
    Posted {
        /// The queue pair's place in the table.
        queue: u32,
        /// The next index.
        index: u64,
    },
    /// A queue pair went to error, or out of it.
    Failed {
        /// The queue pair's place in the table.
        queue: u32,
        /// `QueueState::failed`.
        code: u32,
    },
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Virtual time, ns.
    pub at_ns: u64,
    /// Who.
    pub who: Who,
    /// What.
    pub what: What,
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// When, in virtual ns.
    pub at_ns: u64,
    /// Who made the access.
    pub who: Who,
    /// Which rule, and the values.
    pub what: String,
    /// The page concerned, as in the table of frames.
    pub page_id: Option<u64>,
    /// The frame concerned.
    pub frame: Option<u32>,
    /// The queue pair concerned.
    pub queue: Option<u32>,
}

/// How often each check looked, so that a check that never ran shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looks {
    /// Accesses and engine steps after which memory was looked at.
    pub steps: u64,
    /// Changes of page table entries.
    pub words: u64,
    /// Publications whose frame was compared with the home.
    pub published: u64,
    /// Evictions whose frame was compared with the home.
    pub evicted: u64,
    /// Write-backs whose frame was compared with the home.
    pub cleaned: u64,
    /// Publications of pages that lanes have filled by chunks.
    pub filled: u64,
    /// Frames whose checksum was compared with the one that is kept.
    pub checksums: u64,
    /// Comparisons with a page's second home.
    pub copies: u64,
    /// Pages of which all copies that count were compared when everything was over.
    pub agreed: u64,
    /// Copies that differed by a bit that was flipped on purpose.
    pub damaged: u64,
    /// Homes that returned, whose copies were then looked at.
    pub returned: u64,
    /// Changes of request records.
    pub requests: u64,
    /// Changes of ring indexes.
    pub indexes: u64,
    /// Frames that went through the pool.
    pub frames: u64,
    /// Copies at a neighbour that were compared with the page's home.
    pub victims: u64,
    /// Slots at a neighbour that were given or taken.
    pub slots: u64,
    /// Chunks whose lender used them, and found its own bytes there at the end.
    pub taken_back: u64,
    /// Most READs of one queue pair under way at one time.
    pub in_flight_max: u64,
}

impl Looks {
    /// Counts those of another run as well.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.words += other.words;
        self.published += other.published;
        self.evicted += other.evicted;
        self.cleaned += other.cleaned;
        self.filled += other.filled;
        self.checksums += other.checksums;
        self.copies += other.copies;
        self.agreed += other.agreed;
        self.damaged += other.damaged;
        self.returned += other.returned;
        self.requests += other.requests;
        self.indexes += other.indexes;
        self.frames += other.frames;
        self.victims += other.victims;
        self.slots += other.slots;
        self.taken_back += other.taken_back;
        self.in_flight_max = self.in_flight_max.max(other.in_flight_max);
    }
}
