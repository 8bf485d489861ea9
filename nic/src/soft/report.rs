//! What the software NIC counts, and what it holds against its posters.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::wire::mlx5::{Opcode, WorkRequest};

/// A rule of the queues that a poster broke. Real NICs mostly do not notice, and do something wrong later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ViolationKind {
    /// The doorbell register named a later block than the doorbell record: record and register were not stored in
    /// this order, or the record was not stored.
    DoorbellAheadOfRecord,
    /// The doorbell record named a request that was not in its slot: the record was stored before the request.
    RecordAheadOfRequest,
    /// The doorbell named a request that came to its slot only later.
    DoorbellAheadOfRequest,
    /// The doorbell stepped back, or named more blocks than the send queue has. It was ignored.
    DoorbellOutOfRange,
    /// The doorbell named another queue pair. It was ignored.
    DoorbellWrongQueuePair,
    /// The doorbell was rung before the queue pair was ready to send. It was ignored.
    DoorbellNotReady,
    /// The doorbell register was stored to, but nobody called [`doorbell_written`](crate::Nic::doorbell_written)
    /// while the engine slept.
    DoorbellWithoutCall,
    /// A request's index was not that of its ring slot: the slot was not written, or rewritten too early.
    WrongIndex,
    /// A request named another queue pair.
    WrongQueuePair,
    /// A request that cannot be parsed.
    Malformed,
    /// A request that is longer than what the doorbell announced.
    BeyondDoorbell,
    /// The doorbell announced a request in a send slot whose earlier request had not completed.
    SendSlotReused,
    /// A completion overwrote an entry that was not written yet when its request was announced: the poster cannot have
    /// read what is lost. Not for collapsed completion queues, where that is the rule.
    CompletionSlotReused,
    /// A completion overwrote an entry that the consumer, by its index, had not read.
    CompletionOverrun,
}

impl ViolationKind {
    /// All kinds.
    pub const ALL: [ViolationKind; 14] = [
        ViolationKind::DoorbellAheadOfRecord,
        ViolationKind::RecordAheadOfRequest,
        ViolationKind::DoorbellAheadOfRequest,
        ViolationKind::DoorbellOutOfRange,
        ViolationKind::DoorbellWrongQueuePair,
        ViolationKind::DoorbellNotReady,
        ViolationKind::DoorbellWithoutCall,
        ViolationKind::WrongIndex,
        ViolationKind::WrongQueuePair,
        ViolationKind::Malformed,
        ViolationKind::BeyondDoorbell,
        ViolationKind::SendSlotReused,
        ViolationKind::CompletionSlotReused,
        ViolationKind::CompletionOverrun,
    ];
}

/// One breach, or several of one kind on one queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub kind: ViolationKind,
    /// The queue pair.
    pub queue_pair: u32,
    /// How often.
    pub count: u64,
    /// The first case, in words.
    pub first: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} on qp {:#x}, {} times; first: {}",
            self.kind, self.queue_pair, self.count, self.first
        )
    }
}

/// Most different violations that are kept apart; the rest is only counted.
const VIOLATIONS_MAX: usize = 256;

/// The breaches so far.
pub(super) struct Violations {
    strict: bool,
    any: AtomicBool,
    list: Mutex<Vec<Violation>>,
}

impl Violations {
    pub fn new(strict: bool) -> Self {
        Violations {
            strict,
            any: AtomicBool::new(false),
            list: Mutex::new(Vec::new()),
        }
    }

    /// Whether breaches are noted at all.
    pub fn strict(&self) -> bool {
        self.strict
    }

    /// Notes a breach; `first` is called when it is the first of its kind on the queue pair.
    pub fn note(&self, kind: ViolationKind, queue_pair: u32, first: impl FnOnce() -> String) {
        if !self.strict {
            return;
        }
        let mut list = self.list.lock();
        // Relaxed: a hint for `list`, which takes the lock when it is set.
        self.any.store(true, Ordering::Relaxed);
        if let Some(found) = list.iter_mut().find(|v| v.kind == kind && v.queue_pair == queue_pair) {
            found.count += 1;
        } else if list.len() < VIOLATIONS_MAX {
            let violation = Violation {
                kind,
                queue_pair,
                count: 1,
                first: first(),
            };
            tracing::warn!(%violation, "queue rule broken");
            list.push(violation);
        } else if let Some(last) = list.last_mut() {
            last.count += 1;
        }
    }

    pub fn list(&self) -> Vec<Violation> {
        // Relaxed: see `note`.
        if self.any.load(Ordering::Relaxed) {
            self.list.lock().clone()
        } else {
            Vec::new()
        }
    }
}

/// Text for a request that failed its checks.
pub(super) fn describe(bytes: &[u8]) -> String {
    match WorkRequest::parse(bytes) {
        Ok(request) => request.to_string(),
        Err(error) => error.to_string(),
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// What the software NIC has done since it was made.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct SoftNicStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// Counters of one engine. Only the holder of the engine's lock adds to them; all may read.
        #[derive(Default)]
        pub(super) struct Counters {
            $(pub $name: Count,)*
        }

        impl Counters {
            /// Adds this engine's counts to `sum`.
            pub fn add_to(&self, sum: &mut SoftNicStats) {
                $(sum.$name += self.$name.get();)*
            }
        }
    };
}

counters! {
    /// NOPs executed.
    nops;
    /// WRITEs executed.
    writes;
    /// READs executed.
    reads;
    /// DUMPs executed.
    dumps;
    /// Bytes READ.
    bytes_read;
    /// Bytes written by WRITE.
    bytes_written;
    /// Completions written, of any kind.
    completions;
    /// Requests that failed, flushed ones not counted.
    errors;
    /// Requests that were flushed.
    flushed;
    /// Changes seen in doorbell registers: several rings between two looks count once.
    doorbells;
    /// Times an engine went to sleep.
    sleeps;
    /// Times an engine that slept out its bound found work nobody had woken it for.
    late_wakes;
    /// Most READs one queue pair had in flight at one time (a sum over engines).
    read_depth_max;
    /// Most READs that all queue pairs together had in flight at one time. Counted where requests take
    /// modelled time; elsewhere one is done before the next one starts, or a mover has it.
    reads_in_flight_max;
}

/// READs in flight on a whole NIC.
#[derive(Default)]
pub(super) struct InFlight {
    now: AtomicU64,
    max: AtomicU64,
}

impl InFlight {
    pub fn start(&self) {
        // Relaxed: numbers that engines share; nothing is ordered by them.
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.max.fetch_max(now, Ordering::Relaxed);
    }

    pub fn end(&self, count: u64) {
        // Relaxed: as in `start`.
        self.now.fetch_sub(count, Ordering::Relaxed);
    }

    /// The most there were at one time.
    pub fn max(&self) -> u64 {
        // Relaxed: as in `start`.
        self.max.load(Ordering::Relaxed)
    }
}

/// A counter with one writer.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// Adds `n`. Only the holder of the engine's lock may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed, load and store: one writer, and nothing is ordered by a count.
        self.0
            .store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Raises the counter to `n`. Only the holder of the engine's lock may call this.
    #[inline]
    pub fn raise(&self, n: u64) {
        // Relaxed: as in `add`.
        self.0.store(self.0.load(Ordering::Relaxed).max(n), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        // Relaxed: as in `add`.
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    /// Counts one executed request.
    #[inline]
    pub fn executed(&self, opcode: Opcode, bytes: u64) {
        match opcode {
            Opcode::Read => {
                self.reads.add(1);
                self.bytes_read.add(bytes);
            }
            Opcode::Write => {
                self.writes.add(1);
                self.bytes_written.add(bytes);
            }
            Opcode::Dump => self.dumps.add(1),
            _ => self.nops.add(1),
        }
    }
}
