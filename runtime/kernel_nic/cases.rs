//! The questions of warps whose requests the host judges, and the thread that answers them.

use std::{
    mem::offset_of,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use gpuvm_gpu::{Gpu, GpuError, HostMemory};
use gpuvm_layouts::{self as layout, NicCase};
use gpuvm_nic::{NicError, soft::Judge};

/// Looks without a question before the thread sleeps between two.
const LOOKS: u32 = 1000;
const NAP: Duration = Duration::from_micros(50);
/// Bytes of a unit of a request.
const UNIT: usize = 16;

/// A [`NicCase`] for each warp of an engine.
pub(super) struct Cases {
    memory: HostMemory,
    warps: usize,
}

impl Cases {
    pub fn new(gpu: &dyn Gpu, warps: usize) -> Result<Self, GpuError> {
        let memory = gpu.allocate_host((warps * size_of::<NicCase>()) as u64)?;
        Ok(Self { memory, warps })
    }

    pub fn addr(&self) -> u64 {
        self.memory.device_addr()
    }

    /// The 32-bit word at `offset` bytes of a warp's case.
    fn word(&self, warp: usize, offset: usize) -> Option<&AtomicU32> {
        self.memory.word((warp * size_of::<NicCase>() + offset) / 4)
    }

    fn load(&self, warp: usize, offset: usize) -> u32 {
        // Relaxed: the load of `asked`, with acquire, came before.
        self.word(warp, offset).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn store(&self, warp: usize, offset: usize, value: u32) {
        // Relaxed: the store of `answered`, with release, follows.
        self.word(warp, offset)
            .inspect(|word| word.store(value, Ordering::Relaxed));
    }

    fn load_wide(&self, warp: usize, offset: usize) -> u64 {
        u64::from(self.load(warp, offset)) | u64::from(self.load(warp, offset + 4)) << 32
    }

    /// Answers a warp, if it asks; whether it did.
    fn answer(&self, judge: &Judge, warp: usize) -> bool {
        let word = |offset| self.word(warp, offset);
        let (Some(asked), Some(answered)) = (word(offset_of!(NicCase, asked)), word(offset_of!(NicCase, answered)))
        else {
            return false;
        };
        // Acquire: the question is there. Relaxed: this thread alone stores it.
        let number = asked.load(Ordering::Acquire);
        if number == answered.load(Ordering::Relaxed) {
            return false;
        }
        match self.load(warp, offset_of!(NicCase, kind)) {
            layout::NIC_CASE_LOST => judge.lost(),
            _ => self.judge(judge, warp),
        }
        // Release: the answer is there.
        answered.store(number, Ordering::Release);
        true
    }

    fn judge(&self, judge: &Judge, warp: usize) {
        let request = offset_of!(NicCase, request);
        let most = size_of::<NicCase>() - request;
        let bytes = (self.load(warp, offset_of!(NicCase, units)) as usize * UNIT).min(most);
        let words = (0..bytes / 4).map(|word| self.load(warp, request + 4 * word));
        let mut blocks: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
        // A ring has whole blocks.
        blocks.resize(bytes.next_multiple_of(4 * UNIT), 0);
        let now_ns = self.load_wide(warp, offset_of!(NicCase, now));
        let is_answered = self.load(warp, offset_of!(NicCase, is_answered)) != 0;
        let said = judge.sentence(&blocks, now_ns, is_answered);
        let mut answer = said
            .failure
            .map_or(0, |(syndrome, vendor)| u32::from(syndrome) | u32::from(vendor) << 8);
        if said.loses_completion {
            answer |= layout::NIC_ANSWER_LOSES;
        }
        if said.breaks {
            answer |= layout::NIC_ANSWER_BREAKS;
        }
        let due = offset_of!(NicCase, due);
        self.store(warp, due, said.due_ns as u32);
        self.store(warp, due + 4, (said.due_ns >> 32) as u32);
        self.store(warp, offset_of!(NicCase, answer), answer);
    }

    /// Starts the thread that answers until `is_over`.
    ///
    /// # Errors
    /// [`NicError::Thread`].
    pub fn answer_until(self: &Arc<Self>, judge: &Arc<Judge>, is_over: &Arc<AtomicBool>) -> Result<(), NicError> {
        let name = "gpuvm-nic-judge";
        let (cases, judge, is_over) = (Arc::clone(self), Arc::clone(judge), Arc::clone(is_over));
        let run = move || {
            let mut looks = 0u32;
            // Acquire: nothing of the engine is read after it is over.
            while !is_over.load(Ordering::Acquire) {
                let asked = (0..cases.warps).filter(|warp| cases.answer(&judge, *warp)).count();
                looks = if asked > 0 { 0 } else { looks.saturating_add(1) };
                match looks {
                    0 => {}
                    1..LOOKS => std::thread::yield_now(),
                    _ => std::thread::sleep(NAP),
                }
            }
        };
        // It ends by itself, and owns all that it uses.
        let started = std::thread::Builder::new().name(name.into()).spawn(run);
        started.map(drop).map_err(|source| NicError::Thread {
            name: name.into(),
            source,
        })
    }
}
