//! The words of host memory by which the host and the engine speak, and who needs the engine.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use gpuvm_gpu::{Gpu, GpuError, HostMemory};
use gpuvm_layouts as layout;
use parking_lot::Mutex;

/// The words of which one asks an engine to end: what stops launches stores it.
const STOP: usize = 2;
/// Words before those of the warps: theirs begin on a line of their own.
const HEARD_FIRST: usize = 32;
const _: () = assert!(STOP + layout::NIC_STOP_WORDS as usize <= HEARD_FIRST);

/// Who needs an engine now.
#[derive(Default)]
struct Needed {
    /// Launches in flight that may post requests.
    by: u32,
    /// The engine that was started last: they are counted from 1.
    number: u32,
    /// Engines up to this one were told to end.
    ended: u32,
}

/// The words, and who needs an engine.
pub(super) struct Words {
    memory: HostMemory,
    warps: usize,
    needed: Mutex<Needed>,
}

impl Needed {
    fn end(&mut self, words: &Words, number: u32) {
        self.ended = self.ended.max(number);
        words.store(1, self.ended);
    }
}

fn stop_word(number: u32) -> usize {
    STOP + (number % layout::NIC_STOP_WORDS) as usize
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

    /// Device address of the word that asks an engine to end.
    pub fn stop_addr(&self, number: u32) -> u64 {
        self.memory.device_addr() + 4 * stop_word(number) as u64
    }

    /// Device address of what warps say.
    pub fn heard_addr(&self) -> u64 {
        self.memory.device_addr() + 4 * HEARD_FIRST as u64
    }

    /// A launch needs the engine.
    pub fn need(this: &Arc<Self>) -> Serving {
        this.needed.lock().by += 1;
        Serving(Arc::clone(this))
    }

    /// Whether the engine that was started last was told to end.
    pub fn is_ending(&self) -> bool {
        let needed = self.needed.lock();
        needed.ended >= needed.number
    }

    /// The number of an engine that begins; none runs. What warps have said is forgotten, and that one of its stop word was asked to end.
    pub fn begin(&self) -> u32 {
        let mut needed = self.needed.lock();
        needed.number += 1;
        self.store(stop_word(needed.number), 0);
        (0..self.warps).for_each(|warp| self.store(HEARD_FIRST + warp, 0));
        needed.number
    }

    /// Has engines up to this one end.
    pub fn end(&self, number: u32) {
        self.needed.lock().end(self, number);
    }

    /// Says that change number `change`, which is not 0, was made.
    pub fn tell(&self, change: u32) {
        // Release: whoever hears of it sees what was written before.
        self.store(0, change);
    }

    /// Asks an engine to end, as what stops launches does.
    #[cfg(test)]
    pub fn ask_to_end(&self, number: u32) {
        self.store(stop_word(number), 1);
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
pub struct Serving(Arc<Words>);

impl Drop for Serving {
    fn drop(&mut self) {
        let mut needed = self.0.needed.lock();
        needed.by -= 1;
        if needed.by == 0 {
            let last = needed.number;
            needed.end(&self.0, last);
        }
    }
}
