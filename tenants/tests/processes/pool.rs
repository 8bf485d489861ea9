//! Memory that tests hold and give up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use gpuvm_tenants::{Holder, Holding};

/// Counters in the place of memory. Orders are relaxed: each is a value by itself.
#[derive(Debug, Default)]
pub struct Pool {
    frames: AtomicU64,
    /// Never given up.
    buffers: u64,
    /// Holds out until the deadline and gives nothing.
    is_stubborn: bool,
    /// While it is asked in vain.
    is_asked: AtomicBool,
}

impl Pool {
    pub fn new(frames: u64, buffers: u64) -> Self {
        Self {
            frames: frames.into(),
            buffers,
            is_stubborn: false,
            is_asked: AtomicBool::new(false),
        }
    }

    /// One that is asked in vain.
    pub fn stubborn(frames: u64) -> Self {
        Self {
            is_stubborn: true,
            ..Self::new(frames, 0)
        }
    }

    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Takes what was granted.
    pub fn grow(&self, bytes: u64) {
        self.frames.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Holder for Pool {
    fn holding(&self) -> Holding {
        Holding {
            frames: self.frames(),
            buffers: self.buffers,
            other: 0,
        }
    }

    fn give_up(&self, bytes: u64, deadline: Instant) -> u64 {
        if self.is_stubborn {
            self.is_asked.store(true, Ordering::Relaxed);
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            self.is_asked.store(false, Ordering::Relaxed);
            return 0;
        }
        let less = |held: u64| Some(held.saturating_sub(bytes));
        // Relaxed: a number by itself. There always is a new value.
        let before = self.frames.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        before.unwrap_or_else(|held| held).min(bytes)
    }
}
