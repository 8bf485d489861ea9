//! What a launch is to be.

use std::time::Duration;

use crate::stored::stored;

/// The shape of a launch, and what it declares of its spans.
#[derive(Debug, Clone)]
#[must_use]
pub struct LaunchConfig {
    pub(crate) shape: gpuvm_gpu::LaunchConfig,
    pub(crate) thread_spans: u64,
    pub(crate) warp_spans: u64,
}

impl LaunchConfig {
    /// `blocks` blocks of `threads` threads.
    pub fn new(blocks: u32, threads: u32) -> Self {
        Self {
            shape: gpuvm_gpu::LaunchConfig::linear(blocks, threads),
            thread_spans: 0,
            warp_spans: 0,
        }
    }

    /// A grid and blocks of up to three dimensions: x, y, z.
    pub fn grid(grid: [u32; 3], block: [u32; 3]) -> Self {
        let mut config = Self::new(1, 1);
        config.shape.grid = grid;
        config.shape.block = block;
        config
    }

    stored! {
        /// Dynamic shared memory of a block in bytes.
        dynamic_shared(bytes: u32) => shape.dynamic_shared_bytes = bytes;

        /// Longest that the launch may run, instead of [`crate::VmBuilder::launch_deadline`]. Then it is stopped, and
        /// `sync` says what its lanes waited for.
        deadline(limit: Duration) => shape.watch.deadline = Some(limit);
    }

    /// Its report does not say how long it took. On an NVIDIA GPU that spares the caller about 2 us, of which many small launches are made.
    pub fn untimed(mut self) -> Self {
        self.shape.watch.timed = false;
        self
    }

    stored! {
        /// Spans of `pin(i)`, and cursors, that one thread holds at once, at most, of pages of its own. Declared spans are checked against
        /// the frames at launch; undeclared ones can end in a "no frame" fault.
        thread_spans(spans: u64) => thread_spans = spans;

        /// Spans of `pin(i)`, and cursors, that one warp holds at once, at most, where all its lanes hold the same pages.
        warp_spans(spans: u64) => warp_spans = spans;
    }
}
