//! What elastic buffers have, and what their growth cost.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::handles::HandleStats;

/// What the elastic buffers of one GPU have, and what their growth cost so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ElasticStats {
    /// Buffers that there are, paused ones included.
    pub buffers: u64,
    /// Buffers that are paused.
    pub paused: u64,
    /// Bytes of the elements that there are, without those of paused buffers.
    pub used_bytes: u64,
    /// Bytes of paused buffers, in host memory.
    pub paused_bytes: u64,
    /// Bytes that buffers have beyond their lengths: mapped ahead, or left by one that became shorter.
    pub ahead_bytes: u64,
    /// Bytes of the handles in use that no buffer has: rests behind tails.
    pub rest_bytes: u64,
    /// Growths in pre-mapped memory, which only moved a length.
    pub premapped: u64,
    /// Growths that mapped memory on demand.
    pub on_demand: u64,
    /// Time of all growths in pre-mapped memory together.
    pub premapped_time: Duration,
    /// Time of all growths on demand together.
    pub on_demand_time: Duration,
    /// Bytes that were copied, since a buffer grew where another's began.
    pub moved_bytes: u64,
    /// Times that nothing could be mapped ahead.
    pub refused: u64,
    /// The pool that handles come from.
    pub handles: HandleStats,
}

impl ElasticStats {
    /// The share of the handles in use that holds no element: rests and what is mapped ahead. 0 where there are none.
    pub fn wasted(&self) -> f64 {
        let unused = self.ahead_bytes + self.rest_bytes;
        match self.used_bytes + unused {
            0 => 0.0,
            all => unused as f64 / all as f64,
        }
    }
}

/// The counts by name, each with where it is.
macro_rules! named {
    ($($name:ident $what:literal => |$stats:ident| $count:expr;)+) => {
        impl ElasticStats {
            /// The names of [`all`](Self::all), in its order, each with what it says.
            pub const NAMES: [(&str, &str); [$($what),+].len()] = [$((stringify!($name), $what)),+];

            /// All counts. Times are in nanoseconds.
            pub fn all(&self) -> [u64; Self::NAMES.len()] {
                [$({ let $stats = self; $count }),+]
            }
        }
    };
}
named! {
    buffers "Buffers, paused ones included." => |stats| stats.buffers;
    paused "Buffers that are paused." => |stats| stats.paused;
    used_bytes "Bytes of the elements that there are, without those of paused buffers." => |stats| stats.used_bytes;
    paused_bytes "Bytes of paused buffers, in host memory." => |stats| stats.paused_bytes;
    ahead_bytes "Bytes that buffers have beyond their lengths." => |stats| stats.ahead_bytes;
    rest_bytes "Bytes of handles in use that no buffer has." => |stats| stats.rest_bytes;
    premapped "Growths in pre-mapped memory, which only moved a length." => |stats| stats.premapped;
    on_demand "Growths that mapped memory on demand." => |stats| stats.on_demand;
    premapped_ns "Nanoseconds of all growths in pre-mapped memory together." => |stats| stats.premapped_time.as_nanos() as u64;
    on_demand_ns "Nanoseconds of all growths on demand together." => |stats| stats.on_demand_time.as_nanos() as u64;
    moved_bytes "Bytes that were copied, since a buffer grew where another's began." => |stats| stats.moved_bytes;
    refused "Times that nothing could be mapped ahead." => |stats| stats.refused;
    handle_bytes "Bytes of a handle of memory." => |stats| stats.handles.handle_bytes;
    handles_held "Handles in use." => |stats| stats.handles.held;
    handles_free "Handles that wait to be used again." => |stats| stats.handles.free;
    handles_from_driver "Handles that the driver made." => |stats| stats.handles.from_driver;
    handles_to_driver "Handles that went back to the driver." => |stats| stats.handles.to_driver;
    handles_reused "Handles that were used again." => |stats| stats.handles.reused;
}

/// Counted by all buffers.
#[derive(Default)]
pub(super) struct Counts {
    premapped: AtomicU64,
    on_demand: AtomicU64,
    premapped_ns: AtomicU64,
    on_demand_ns: AtomicU64,
    moved_bytes: AtomicU64,
    refused: AtomicU64,
}

// Relaxed throughout: each count is read by itself, and orders nothing.
impl Counts {
    pub fn premapped(&self, took: Duration) {
        self.premapped.fetch_add(1, Ordering::Relaxed);
        self.premapped_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn on_demand(&self, took: Duration, moved_bytes: u64) {
        self.on_demand.fetch_add(1, Ordering::Relaxed);
        self.on_demand_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        self.moved_bytes.fetch_add(moved_bytes, Ordering::Relaxed);
    }

    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// What growth cost.
    pub fn read(&self) -> ElasticStats {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        ElasticStats {
            premapped: count(&self.premapped),
            on_demand: count(&self.on_demand),
            premapped_time: Duration::from_nanos(count(&self.premapped_ns)),
            on_demand_time: Duration::from_nanos(count(&self.on_demand_ns)),
            moved_bytes: count(&self.moved_bytes),
            refused: count(&self.refused),
            ..ElasticStats::default()
        }
    }
}
