//! What the users of a tier share: its settings, and the one lock around its slots.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{
    FileError,
    device::DeviceSlots,
    engine::Engine,
    opened::{OpenFiles, Opened},
    slots::{Got, How, Piece, Slots},
    storage::ALIGNMENT,
};

/// Blocks that a call of [`File::read`](crate::File::read) or [`File::write`](crate::File::write) asks for at a time.
const CHUNK_BLOCKS: u64 = 16;
/// Fewest slots of a tier: what calls that wait ask for at a time, twice, and some that load ahead.
pub(crate) const SLOTS_LEAST: u64 = 4 * CHUNK_BLOCKS;
/// Most reads and writes under way, whatever was asked for.
const DEPTH_MOST: usize = 4096;

/// Settings of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierOptions {
    /// Bytes of a block and of its slot: a power of two, of 4 KiB at least.
    pub block: u64,
    /// Most reads and writes that are under way at a time.
    pub depth: usize,
    /// Who reads and writes.
    pub engine: Engine,
}

impl Default for TierOptions {
    fn default() -> Self {
        Self {
            block: ALIGNMENT,
            depth: 256,
            engine: Engine::Auto,
        }
    }
}

impl TierOptions {
    /// These options with blocks of this many bytes, rounded up to a power of two of 4 KiB at least.
    #[must_use]
    pub fn block(mut self, bytes: u64) -> Self {
        self.block = bytes.clamp(ALIGNMENT, 1 << 40).next_power_of_two();
        self
    }

    /// These options with this many reads and writes under way at most.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth.clamp(1, DEPTH_MOST);
        self
    }

    /// These options with another engine.
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Fewest bytes of memory for them.
    pub const fn bytes_least(&self) -> u64 {
        SLOTS_LEAST * self.block
    }
}

/// What users of a tier share.
pub(crate) struct Shared {
    pub slots: Mutex<Slots>,
    pub files: Mutex<OpenFiles>,
    pub options: TierOptions,
    pub count: u64,
    pub engine: &'static str,
    /// Where slots are a device's memory.
    pub device: Option<Arc<dyn DeviceSlots>>,
    /// See [`File::progress`](crate::File::progress). Changed with the lock held, read without.
    pub progress: AtomicU64,
}

impl Shared {
    pub fn chunk_bytes(&self) -> u64 {
        CHUNK_BLOCKS * self.options.block
    }

    pub fn poll(&self) -> bool {
        self.act(Slots::poll)
    }

    pub fn progress(&self) -> u64 {
        // Acquire: who sees a count asks for what had come before it.
        self.progress.load(Ordering::Acquire)
    }

    /// Changes the slots, and says so where others may have waited for that.
    fn act<R>(&self, change: impl FnOnce(&mut Slots) -> R) -> R {
        let mut slots = self.slots.lock();
        let result = change(&mut slots);
        if slots.take_progress() {
            // Release: pairs with the acquire in `progress`.
            self.progress.fetch_add(1, Ordering::Release);
        }
        result
    }

    pub fn expect(&self, file: &Arc<Opened>, span: Range<u64>) -> bool {
        self.slots.lock().expect(file, span)
    }

    pub fn acquire(
        &self,
        file: &Arc<Opened>,
        span: Range<u64>,
        how: How,
        pieces: &mut Vec<Piece>,
    ) -> Result<Got, FileError> {
        self.act(|slots| slots.acquire(file, span, how, pieces))
    }

    pub fn release(&self, pieces: &[Piece], how: How) {
        self.act(|slots| slots.release(pieces, how));
    }

    pub fn retry_writes(&self, file: &Opened) {
        self.slots.lock().retry_writes(file);
    }

    /// Begins to write dirty blocks of the file. Whether it has none, and none is being written.
    pub fn write_some_of(&self, file: &Arc<Opened>) -> Result<bool, FileError> {
        self.slots.lock().write_some_of(file)
    }
}
