//! The words of host memory by which the host and the engine speak, and who needs the engine.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use gpuvm_gpu::{Gpu, GpuError, HostMemory};
use parking_lot::{Mutex, MutexGuard};

/// The word that asks the engine that runs to end, whatever its number: what stops launches stores it.
const STOP: usize = 2;
/// Words before those of the warps: theirs begin on a line of their own.
const HEARD_FIRST: usize = 32;

/// Who needs an engine now.
#[derive(Default)]
pub(super) struct Needed {
    /// Launches in flight that may post requests.
    pub by: u32,
    /// The engine that was started last: they are counted from 1.
    pub number: u32,
}

/// The words, and who needs an engine.
pub(super) struct Words {
    memory: HostMemory,
    warps: usize,
    needed: Mutex<Needed>,
}

impl Words {
    /// Of an engine of so many warps, which has heard of nothing.
    pub fn new(gpu: &dyn Gpu, warps: usize) -> Result<Self, GpuError> {
        let words = Self {
            memory: gpu.allocate_host(4 * (HEARD_FIRST + warps) as u64)?,
            warps,
            needed: Mutex::default(),
        };
        words.tell(1);
        Ok(words)
    }

    /// Device address of the word that says what has changed, and which engines end.
    pub fn control_addr(&self) -> u64 {
        self.memory.device_addr()
    }

    /// Device address of the word that asks the engine that runs to end.
    pub fn stop_addr(&self) -> u64 {
        self.memory.device_addr() + 4 * STOP as u64
    }

    /// Device address of what warps say.
    pub fn heard_addr(&self) -> u64 {
        self.memory.device_addr() + 4 * HEARD_FIRST as u64
    }

    pub fn needed(&self) -> MutexGuard<'_, Needed> {
        self.needed.lock()
    }

    /// Says that change number `change`, which is not 0, was made.
    pub fn tell(&self, change: u32) {
        // Release: whoever hears of it sees what was written before.
        self.store(0, change);
    }

    /// Has engines up to this one end.
    pub fn stop(&self, number: u32) {
        self.store(1, number);
    }

    /// Forgets what warps have said, and that an engine was asked to end. None runs.
    pub fn forget(&self) {
        self.store(STOP, 0);
        (0..self.warps).for_each(|warp| self.store(HEARD_FIRST + warp, 0));
    }

    /// Asks the engine that runs to end, as what stops launches does.
    #[cfg(test)]
    pub fn ask_to_end(&self) {
        self.store(STOP, 1);
    }

    fn store(&self, word: usize, value: u32) {
        // Release: for all of them alike.
        self.memory
            .word(word)
            .inspect(|word| word.store(value, Ordering::Release));
    }

    /// The first warp that has not said this yet, or with `None` nothing at all.
    pub fn deaf(&self, change: Option<u32>) -> Option<usize> {
        let heard = |warp: usize| {
            let word = self.memory.word(HEARD_FIRST + warp);
            // Acquire: what the warp did before it said so is done.
            let said = word.map_or(0, |word: &AtomicU32| word.load(Ordering::Acquire));
            change.map_or(said != 0, |change| said == change)
        };
        (0..self.warps).find(|warp| !heard(*warp))
    }
}

/// A launch needs the engine until this is dropped, on whatever thread.
pub struct Serving(pub(super) Arc<Words>);

impl Drop for Serving {
    fn drop(&mut self) {
        let mut needed = self.0.needed();
        needed.by -= 1;
        if needed.by == 0 {
            self.0.stop(needed.number);
        }
    }
}
