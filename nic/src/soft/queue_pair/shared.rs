//! What several engines and callers see of a queue pair.

use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

use crate::soft::completion_queue::{CompletionQueue, word};
use crate::wire::mlx5::Completion;
use crate::{QueueMemory, QueuePairState};

/// What several engines and callers see of a queue pair.
pub struct QueuePairShared {
    pub number: u32,
    /// Its doorbell register.
    pub register: usize,
    /// The engine that serves it.
    pub engine: usize,
    state: AtomicU8,
    pub ends: Mutex<Ends>,
}

/// Where completions of a queue pair go. A leaf lock: nothing is waited for and no
/// data is moved under it.
pub struct Ends {
    pub(super) cq: CompletionQueue,
    /// The doorbell record of the queue pair.
    record: u64,
    /// Cleared when the queue pair is destroyed: its memory is not ours any more.
    alive: bool,
}

impl Ends {
    /// Writes a completion; returns whether it overwrote an unread one.
    pub fn push(&mut self, completion: Completion) -> bool {
        self.alive && self.cq.push(completion)
    }
}

impl QueuePairShared {
    pub fn new(
        number: u32,
        register: usize,
        engine: usize,
        memory: &QueueMemory,
        remote: bool,
        completions_go_on: bool,
    ) -> Self {
        let ends = Ends {
            cq: CompletionQueue::new(memory, remote, completions_go_on),
            record: memory.dbrec,
            alive: true,
        };
        let state = AtomicU8::new(QueuePairState::Reset as u8);
        QueuePairShared {
            number,
            register,
            engine,
            state,
            ends: Mutex::new(ends),
        }
    }

    pub fn state(&self) -> QueuePairState {
        // Acquire: pairs with the release in `set_state`.
        match self.state.load(Ordering::Acquire) {
            0 => QueuePairState::Reset,
            1 => QueuePairState::Init,
            2 => QueuePairState::ReadyToReceive,
            3 => QueuePairState::ReadyToSend,
            _ => QueuePairState::Error,
        }
    }

    /// Only the holder of the engine's lock may call this.
    pub fn set_state(&self, state: QueuePairState) {
        // Release: who sees an error state sees the completion that tells of it.
        self.state.store(state as u8, Ordering::Release);
    }

    /// Whether it answers requests of others.
    pub fn answers(&self) -> bool {
        matches!(
            self.state(),
            QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend
        )
    }

    /// Stops all use of the memory of the completion queue and the record.
    pub fn bury(&self) {
        self.ends.lock().alive = false;
    }

    /// Position of the first completion since the last reset.
    pub fn completions_start(&self) -> u32 {
        self.ends.lock().cq.first()
    }

    /// Sets completions and the records to their start.
    pub fn clear(&self) {
        let mut ends = self.ends.lock();
        if ends.alive {
            ends.cq.reset();
            // SAFETY: the record is valid while `alive`. Relaxed: nobody posts to a queue pair in reset.
            unsafe { word(ends.record).store(0, Ordering::Relaxed) };
        }
    }
}
