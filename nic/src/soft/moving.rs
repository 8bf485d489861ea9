//! The engine's side of a mover: batches of copies under way, and the completions that follow them.
//!
//! READs and WRITEs have a lane each, so that both directions move at once. A batch is what was announced when the engine
//! looked, up to a limit; its completions are staged beside it and follow its data in the lane's order. Completions of
//! one queue pair so arrive in order within a direction, and in any order between the two.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::backed::Kept;
use super::completion_queue::{INVALID, bytes_of, word};
use super::report::Counters;
use crate::wire::mlx5::{CQE_BYTES, Completion, Opcode};
use crate::{Move, MoverError, MoverLane, QueueMemory};

/// Most requests of one batch.
const BATCH_REQUESTS: usize = 256;
/// A batch takes no further request from here on: later ones need not wait for so much.
const BATCH_BYTES: u64 = 4 << 20;
/// Batches of one lane that are under way at a time.
const BATCHES: u64 = 8;
/// Completions that can be staged.
const STAGED: u64 = BATCHES * BATCH_REQUESTS as u64;
/// Staging memory of one lane.
pub(super) const STAGING_BYTES: u64 = STAGED * CQE_BYTES as u64;

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// READs, and what moves no data.
    Fetch = 0,
    /// WRITEs.
    WriteBack = 1,
}

/// The mover's part of an engine.
pub(super) struct Moving {
    pub lanes: [Lane; 2],
    /// How often the mover was asked what has arrived.
    pub looks: u64,
}

/// One line of batches, and the batch that is being collected.
pub(super) struct Lane {
    moves: Box<dyn MoverLane>,
    pub data: Vec<Move>,
    then: Vec<Move>,
    /// Remote and local key of the last request in `data`, where that is one span.
    keys: Option<(u32, u32)>,
    items: Vec<Taken>,
    /// What keeps far sides in memory, by batch: until it has arrived.
    kept: VecDeque<(u64, Kept)>,
    bytes: u64,
    started: u64,
    completed: u64,
}

/// A request of the batch that is being collected, besides its data.
pub(super) struct Taken {
    /// Place of its queue pair among the engine's.
    pub place: usize,
    pub opcode: Opcode,
    pub index: u16,
    pub bytes: u64,
    /// What its entry is to say, where it has one, and the entry's address and owner bit.
    pub completion: Option<(Completion, u64, bool)>,
    /// It counts as executed once it is under way.
    pub executed: bool,
    /// What keeps its far side in memory.
    pub kept: Option<Kept>,
}

impl Lane {
    pub fn new(moves: Box<dyn MoverLane>) -> Self {
        Lane {
            moves,
            // A request may have several spans; most have one.
            data: Vec::with_capacity(2 * BATCH_REQUESTS),
            then: Vec::with_capacity(BATCH_REQUESTS),
            keys: None,
            items: Vec::with_capacity(BATCH_REQUESTS),
            kept: VecDeque::new(),
            bytes: 0,
            started: 0,
            completed: 0,
        }
    }

    /// Whether the batch that is being collected takes one more request.
    pub fn has_room(&self) -> bool {
        self.started - self.completed < BATCHES && self.items.len() < BATCH_REQUESTS && self.bytes < BATCH_BYTES
    }

    /// The number of the batch that is being collected. Batches up to `completed` have arrived.
    pub fn collecting(&self) -> u64 {
        self.started + 1
    }

    pub fn has_arrived(&self, batch: u64) -> bool {
        batch <= self.completed
    }

    /// A request added its spans to `self.data`, from place `at` on. One that goes on where the last one ended, on both sides and in the
    /// same memory regions, is one copy with it: a driver takes about 2 us for each.
    pub fn join_last(&mut self, at: usize, keys: Option<(u32, u32)>) {
        let before = std::mem::replace(&mut self.keys, keys);
        let same = keys.is_some() && before == keys;
        if let Some(next) = self.data.get(at).copied().filter(|_| same && self.data.len() == at + 1)
            && let Some(last) = at.checked_sub(1).map(|before| &mut self.data[before])
            && (last.to + last.bytes, last.from + last.bytes) == (next.to, next.from)
        {
            last.bytes += next.bytes;
            self.data.pop();
        }
    }

    /// Adds a request whose data is in `self.data` already. Stages its completion.
    pub fn take(&mut self, taken: Taken) {
        if let Some((completion, entry, owner)) = &taken.completion {
            let staged = self.stage(self.items.len() as u64, &bytes_of(completion, *owner));
            follow(&mut self.then, *entry, staged);
        }
        self.bytes += taken.bytes;
        self.items.push(taken);
    }

    /// Puts an entry into the place of request `item` of the batch that is being collected.
    fn stage(&self, item: u64, entry: &[u8; CQE_BYTES]) -> u64 {
        // Free: at most BATCHES batches are under way, and this one is not yet.
        let place = (self.started % BATCHES) * BATCH_REQUESTS as u64 + item;
        self.store(place, entry)
    }

    fn store(&self, place: u64, entry: &[u8; CQE_BYTES]) -> u64 {
        let address = self.moves.staging() + place * CQE_BYTES as u64;
        for (i, bytes) in entry.as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: inside the staging memory, which is aligned and lives as long as the lane. Relaxed: the mover
            // starts after this, by means that order it.
            unsafe { word(address + i as u64 * 8) }
                .store(u64::from_ne_bytes(*bytes), std::sync::atomic::Ordering::Relaxed);
        }
        address
    }

    /// Whether a batch is being collected.
    pub fn has_collected(&self) -> bool {
        !self.items.is_empty()
    }

    /// The number of the batch that was started last.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Starts what was collected.
    pub fn start(&mut self, counters: &Counters) -> Result<(), MoverError> {
        // SAFETY: the engine's lock is held. Data was allowed by live keys, rings belong to live queue pairs, and whoever
        // takes either away waits for `drain` under that lock. The staging memory is the lane's.
        unsafe { self.moves.submit(&self.data, &self.then)? };
        self.started += 1;
        let batch = self.started;
        let kept = self.items.iter_mut().filter_map(|item| item.kept.take());
        self.kept.extend(kept.map(|kept| (batch, kept)));
        for item in self.items.iter().filter(|item| item.executed) {
            counters.executed(item.opcode, item.bytes);
        }
        Ok(())
    }

    /// Completes the requests of a batch that could not be started with what `refused` says, should the mover bring those at least.
    #[cold]
    pub fn refuse(&mut self, mut refused: impl FnMut(&Taken) -> Option<(Completion, u64, bool)>) {
        self.then.clear();
        for (at, item) in self.items.iter().enumerate() {
            let Some((completion, entry, owner)) = refused(item) else {
                continue;
            };
            let staged = self.stage(at as u64, &bytes_of(&completion, owner));
            follow(&mut self.then, entry, staged);
        }
        // SAFETY: as in `start`.
        match unsafe { self.moves.submit(&[], &self.then) } {
            Ok(()) => self.started += 1,
            // Nobody can be told: pollers wait until their limit, and the launch names the failure.
            Err(error) => tracing::error!(%error, "errors of {} requests could not be delivered", self.items.len()),
        }
    }

    /// Ends the batch that was being collected.
    pub fn clear(&mut self) {
        self.data.clear();
        self.then.clear();
        self.keys = None;
        self.items.clear();
        self.bytes = 0;
    }

    /// Looks for batches that have arrived; whether there were any.
    pub fn poll(&mut self) -> Result<bool, MoverError> {
        if self.started == self.completed {
            return Ok(false);
        }
        let before = self.completed;
        match self.moves.completed() {
            Ok(completed) => {
                self.completed = completed.min(self.started);
                while self.kept.front().is_some_and(|(batch, _)| *batch <= self.completed) {
                    self.kept.pop_front();
                }
                Ok(self.completed != before)
            }
            Err(error) => {
                // Nothing of them moves any more.
                self.started = self.completed;
                self.kept.clear();
                Err(error)
            }
        }
    }
}

/// Appends the copy of one entry, to its predecessor's where both sides are neighbours.
///
/// The mover may write the entry in pieces. What its poller needs lies in one 32-byte half, of which no copy engine
/// shows a part: opcode and owner in the last byte, syndromes in bytes 54 and 55.
fn follow(then: &mut Vec<Move>, to: u64, from: u64) {
    let bytes = CQE_BYTES as u64;
    match then.last_mut() {
        Some(last) if last.to + last.bytes == to && last.from + last.bytes == from => last.bytes += bytes,
        _ => then.push(Move { to, from, bytes }),
    }
}

impl Moving {
    pub fn lane(&mut self, way: Way) -> &mut Lane {
        &mut self.lanes[way as usize]
    }

    /// Whether a lane's batch has arrived.
    pub fn has_arrived(&self, way: Way, batch: u64) -> bool {
        self.lanes[way as usize].has_arrived(batch)
    }

    /// Whether batches are under way.
    pub fn under_way(&self) -> bool {
        self.lanes.iter().any(|lane| lane.started != lane.completed)
    }

    /// Sets every entry of a completion queue to invalid and waits for it. Nothing may be under way.
    pub fn invalidate(&mut self, memory: &QueueMemory, bound: Duration) -> Result<bool, MoverError> {
        let lane = self.lane(Way::Fetch);
        let entries = u64::from(memory.cq_entries);
        let staged = entries.min(STAGED);
        (0..staged).for_each(|place| {
            lane.store(place, &INVALID);
        });
        let bytes = CQE_BYTES as u64;
        let spans: Vec<Move> = (0..entries)
            .step_by(staged as usize)
            .map(|first| Move {
                to: memory.cq + first * bytes,
                from: lane.moves.staging(),
                bytes: staged.min(entries - first) * bytes,
            })
            .collect();
        // SAFETY: the ring belongs to a queue pair that is not in use, and stays valid until its destruction, which drains.
        unsafe { lane.moves.submit(&[], &spans)? };
        lane.started += 1;
        let begun = Instant::now();
        while lane.started != lane.completed {
            lane.poll()?;
            if begun.elapsed() >= bound {
                return Ok(false);
            }
            std::thread::yield_now();
        }
        Ok(true)
    }
}
