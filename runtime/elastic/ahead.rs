//! What is done for buffers in the background: the next memory is mapped before it is needed, and what is not in use is given back.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{ElasticInner, Elastics, growing::Busy};
use crate::{background::Background, error::Result};

/// How often the thread looks whether launches have ended whose memory is to go; growth wakes it.
const PERIOD: Duration = Duration::from_millis(50);

/// How long a buffer keeps what it shrank by: it may grow again, or begin anew.
const LAZY: Duration = Duration::from_millis(100);

/// The thread, and what it is to look at.
#[derive(Default)]
pub(super) struct Ahead {
    asked: Mutex<Vec<Weak<ElasticInner>>>,
    thread: Mutex<Thread>,
}

#[derive(Default)]
enum Thread {
    #[default]
    NotYet,
    Runs(Background),
    /// All goes on without it, each growth at its own cost.
    Cannot,
}

impl Elastics {
    /// Has the thread look at a buffer that is to get more, at once; it starts with the first one.
    pub(super) fn ask(self: &Arc<Self>, buffer: &Arc<ElasticInner>) {
        if self.deterministic {
            // Nothing is mapped ahead.
            buffer.state.lock().asked = false;
            return;
        }
        self.queue(buffer, true);
    }

    /// Has the thread look at a buffer that is to give back what it does not use, some time later.
    pub(super) fn ask_later(self: &Arc<Self>, buffer: &Arc<ElasticInner>) {
        if self.deterministic {
            // Not while a launch runs: then who needs it asks again.
            let _: Result<usize, Busy> = buffer.give_unused(0, usize::MAX, Duration::ZERO);
            buffer.state.lock().going = None;
            return;
        }
        self.queue(buffer, false);
    }

    fn queue(self: &Arc<Self>, buffer: &Arc<ElasticInner>, at_once: bool) {
        let mut thread = self.ahead.thread.lock();
        if matches!(*thread, Thread::NotYet) {
            *thread = self.start();
        }
        let Thread::Runs(background) = &*thread else { return };
        self.ahead.asked.lock().push(Arc::downgrade(buffer));
        if at_once {
            background.wake();
        }
    }

    fn start(self: &Arc<Self>) -> Thread {
        let family = Arc::downgrade(self);
        let turn = move |stop: &AtomicBool| family.upgrade().is_some_and(|family| family.turn(stop));
        Background::start("gpuvm-elastic", PERIOD, turn).map_or_else(
            |error| {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "nothing is mapped ahead: the thread cannot be started");
                Thread::Cannot
            },
            Thread::Runs,
        )
    }

    /// Looks at the buffers that were asked for. Those whose launches have not ended are looked at again.
    fn turn(&self, stop: &AtomicBool) -> bool {
        let asked = std::mem::take(&mut *self.ahead.asked.lock());
        for buffer in asked.iter().filter_map(Weak::upgrade) {
            // Acquire: as in `Background`, whose flag it is.
            if stop.load(Ordering::Acquire) {
                return false;
            }
            if let Err(Busy) = buffer.tend() {
                self.ahead.asked.lock().push(Arc::downgrade(&buffer));
            }
        }
        true
    }
}

impl ElasticInner {
    /// Maps ahead of its length, or gives back what is far behind it.
    fn tend(&self) -> Result<(), Busy> {
        let (short, wanted) = {
            let mut state = self.state.lock();
            state.asked = false;
            let ahead = state.pace.look_ahead(self.family.handle_bytes());
            let wanted = self
                .bytes_of(state.length)
                .saturating_add(ahead)
                .min(self.bytes_of(self.max));
            let short = !state.paused && wanted > state.mapped;
            if short {
                // It shrank, and has grown again.
                state.going = None;
            }
            (short, wanted)
        };
        if short {
            if let Err(error) = self.map_ahead(wanted) {
                // Who needs it tries again, and is told what stands in its way then.
                self.family.counts.refused();
                tracing::debug!(error = &error as &dyn std::error::Error, "nothing is mapped ahead");
            }
            return Ok(());
        }
        self.tend_unused()
    }

    /// Gives back what is mapped and will not be used soon.
    ///
    /// # Errors
    /// [`Busy`]: it is to be tried again.
    fn tend_unused(&self) -> Result<(), Busy> {
        let ahead = {
            let mut state = self.state.lock();
            if state.paused || !state.is_ample(self.bytes_of(state.length), self.family.handle_bytes()) {
                state.going = None;
                return Ok(());
            }
            // Until it is done nobody needs to ask again.
            if state.going.get_or_insert_with(Instant::now).elapsed() < LAZY {
                return Err(Busy);
            }
            state.pace.ahead()
        };
        self.give_unused(ahead, usize::MAX, Duration::ZERO)?;
        self.state.lock().going = None;
        Ok(())
    }

    /// Maps so many bytes, with handles that nobody else has to give up.
    fn map_ahead(&self, bytes: u64) -> Result<()> {
        let mapping = self.mapping.lock();
        if self.state.lock().paused {
            return Ok(());
        }
        let (has_rest, missing, slots) = {
            let mut book = self.family.book.lock();
            let has_rest = book.take_rest(self.id);
            (has_rest, book.missing(self.id, bytes), book.handles(self.id).len())
        };
        if has_rest && missing > 0 {
            let handles = self.family.handles.take_unasked(missing)?;
            self.map_more(&mapping, slots, handles)?;
        }
        // Where another buffer's bytes lie behind the last ones, those are moved by who needs it: launches have to end first.
        self.publish();
        Ok(())
    }
}
