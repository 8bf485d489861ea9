//! What a queue pair remembers of its requests.

use std::collections::VecDeque;

use super::super::failure::Failure;
use super::super::faults::Fault;
use super::super::moving::Way;
use crate::wire::mlx5::Opcode;

/// Data of a request in flight that moves by itself.
pub struct Scattered {
    /// What has not moved: offset and length.
    pub pieces: Vec<(u64, u64)>,
    /// What has not moved when the request completes may land up to so much later; 0: it moves then.
    pub adrift_ns: u64,
    /// Moving ahead of an earlier request's data is to be counted.
    pub reorders: bool,
    /// Moving a part before the rest is to be counted.
    pub splits: bool,
}

/// Data of a completed READ that has not landed.
pub struct Adrift {
    pub bytes: Vec<u8>,
    pub pieces: Vec<(u64, u64)>,
    pub due_ns: u64,
}

/// What a mover's queue pair has under way.
#[derive(Default)]
pub struct UnderWay {
    /// The last batch of each lane that holds a request of this queue pair.
    pub last: [u64; 2],
    /// A request that failed, and completes when all before it have.
    pub failed: Option<(Opcode, u16, Failure)>,
    /// The fault of the request at the head, once it was looked for: number of the head.
    pub struck: Option<(u64, Option<Fault>)>,
    /// The request at the head does not start before this time.
    pub not_before_ns: u64,
}

/// What the checks remember of a queue pair. All indexes are unwrapped and count blocks.
#[derive(Default)]
pub struct Order {
    /// Every request below this index has completed, and its completion was written.
    pub completed: u64,
    /// The first request that was announced before it was written.
    pub unwritten: Option<u64>,
    /// Completions of requests that were written, or handed to a mover.
    pub completions: u64,
    /// Those that the poster may have read at the last look.
    pub readable: u64,
    /// Doorbells that had more blocks in flight than the completion queue has entries.
    pub crowded: VecDeque<Crowd>,
    /// A doorbell that may have come too early: to be judged once the mover has been asked.
    pub doubtful: Option<Doubt>,
    /// How often the mover had been asked at the last look.
    pub looks: u64,
    /// Requests in a mover's hands.
    pub landing: VecDeque<Landing>,
}

/// Requests of one batch that follow each other.
pub struct Landing {
    pub way: Way,
    pub batch: u64,
    /// They end before this block.
    pub end: u64,
    /// Completions up to them.
    pub completions: u64,
}

/// One doorbell.
pub struct Crowd {
    /// It announced the blocks below this index.
    pub end: u64,
    /// Completions that the poster may have read by then.
    pub completions: u64,
}

#[derive(Clone, Copy)]
pub struct Doubt {
    pub end: u64,
    /// How often the mover had been asked before the doorbell was seen.
    pub looks: u64,
}

/// A request that was started and completes later.
pub struct Pending {
    pub bytes: Vec<u8>,
    pub index: u16,
    /// The block after it, unwrapped.
    pub end: u64,
    pub due_ns: u64,
    pub waits_for_data: bool,
    /// Known to fail.
    pub failure: Option<Failure>,
    pub lose_completion: bool,
    /// Its data moves by itself.
    pub scattered: Option<Scattered>,
    /// The bit of the moved data to turn over.
    pub flip: Option<u64>,
}
