//! What a launch is to be, and what is known of one that has ended.

use std::sync::Arc;
use std::time::Duration;

use crate::GpuError;

/// The shape of a launch.
#[derive(Clone, Debug)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block in bytes.
    pub dynamic_shared_bytes: u32,
    /// How it is watched.
    pub watch: Watch,
}

/// How a launch is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Longest time the launch may run, counted from when it starts; none: no limit.
    pub deadline: Option<Duration>,
    /// Whether its report says how long it took: an NVIDIA GPU notes the times of its start and end, for about 2 us of its caller's time.
    pub timed: bool,
    /// Whether it serves other launches of the GPU, and has no end of its own: when one of them is stopped, for its deadline or by its owner, this
    /// is asked to end, too. Calls of the driver may wait for all kernels; the others' ends are seen when it lets go. The simulated GPU, which has no such
    /// calls, leaves it alone.
    pub serves: bool,
}

impl Default for Watch {
    /// Timed, and without a limit.
    fn default() -> Self {
        Self {
            deadline: None,
            timed: true,
            serves: false,
        }
    }
}

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads in x, no dynamic shared memory, no deadline.
    pub fn linear(blocks: u32, threads: u32) -> Self {
        Self {
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            dynamic_shared_bytes: 0,
            watch: Watch::default(),
        }
    }

    /// Dynamic shared memory of a block in bytes.
    #[must_use]
    pub fn dynamic_shared(mut self, bytes: u32) -> Self {
        self.dynamic_shared_bytes = bytes;
        self
    }

    /// Longest time the launch may run.
    #[must_use]
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.watch.deadline = Some(limit);
        self
    }
}

/// What a finished launch tells.
#[derive(Clone)]
#[non_exhaustive]
pub struct LaunchReport {
    /// Blocks that ran to their end.
    pub blocks: u64,
    /// Hash of the interleaving, in the seeded mode only.
    pub trace_hash: Option<u64>,
    time: Arc<dyn LaunchTime>,
}

/// What knows how long a launch took: for back ends, which may have to ask a driver.
pub trait LaunchTime: Send + Sync {
    /// From the start of the launch to its last block's end; zero where that cannot be told any more.
    fn elapsed(&self) -> Duration;
}

impl LaunchTime for Duration {
    fn elapsed(&self) -> Duration {
        *self
    }
}

impl LaunchReport {
    /// A launch of `blocks` blocks that took `time`: for back ends.
    pub fn new(blocks: u64, time: Arc<dyn LaunchTime>, trace_hash: Option<u64>) -> Self {
        Self {
            blocks,
            trace_hash,
            time,
        }
    }

    /// From the start of the launch to its last block's end; virtual time in the seeded mode. Zero of a launch that is not [timed](Watch::timed), and where the GPU was lost since. An NVIDIA
    /// GPU's driver takes microseconds for it, which a program that does not ask does not pay.
    pub fn elapsed(&self) -> Duration {
        self.time.elapsed()
    }
}

impl std::fmt::Debug for LaunchReport {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("LaunchReport")
            .field("blocks", &self.blocks)
            .field("elapsed", &self.elapsed())
            .field("trace_hash", &self.trace_hash)
            .finish()
    }
}

/// How a launch ended.
pub type LaunchOutcome = Result<LaunchReport, GpuError>;

/// Called once when a launch has ended, before its waiters wake. It must not wait for that launch.
pub type OnDone = Box<dyn FnOnce(&LaunchOutcome) + Send>;

/// Puts kernels on a stream, and says why when it cannot.
pub type Enqueue<'a> = Box<dyn FnOnce() -> Result<(), String> + 'a>;
