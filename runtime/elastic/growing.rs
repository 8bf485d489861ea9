//! A buffer's length moves; memory comes before it and goes behind it, in the background where that can be: the next memory is mapped before
//! it is needed, and what is not in use is given back.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;

use super::{ElasticInner, Elastics, Grown, Mapping, State, Thread, book::UNIT, place};
use crate::{
    error::{Doing, Error, Result, check_range},
    handles::Handle,
    launch::LaunchTracker,
};

/// How often the thread looks whether launches have ended whose memory is to go; growth wakes it.
const PERIOD: Duration = Duration::from_millis(50);

/// How long a buffer keeps what it shrank by: it may grow again, or begin anew.
const LAZY: Duration = Duration::from_millis(100);

/// What stands between a buffer and more memory.
enum Mapped {
    Yes,
    /// Its last bytes have to move first: another buffer's lie behind them.
    MustMove,
}

impl ElasticInner {
    /// Makes it longer by `count` elements, or as long as `least` says.
    pub(super) fn grow(self: &Arc<Self>, count: impl Fn(u64) -> u64) -> Result<Grown> {
        let began = Instant::now();
        let counts = &self.family.counts;
        if let Some(first) = self.move_length(&count, true)? {
            let took = began.elapsed();
            counts.premapped(took);
            return Ok(grown(first, true, 0, took));
        }
        let mut moved = 0;
        let mut quiet: Option<MutexGuard<'_, LaunchTracker>> = None;
        let first = loop {
            let mut mapping = self.mapping.lock();
            // Another thread may have been here, or the one that maps ahead.
            if let Some(first) = self.move_length(&count, false)? {
                break first;
            }
            let wanted = {
                let state = self.state.lock();
                (state.length + count(state.length)).min(self.max)
            };
            match self.map_up_to(&mapping, self.bytes_of(wanted))? {
                Mapped::Yes => {}
                Mapped::MustMove if quiet.is_some() => moved += self.move_last(&mut mapping)?,
                Mapped::MustMove => {
                    drop(mapping);
                    // Its addresses may not change under a launch that names it.
                    quiet = Some(self.quiesce());
                }
            }
        };
        let took = began.elapsed();
        counts.on_demand(took, moved);
        Ok(grown(first, false, moved, took))
    }

    /// Moves the length where that many elements are mapped: the first new element.
    fn move_length(self: &Arc<Self>, count: impl Fn(u64) -> u64, premapped: bool) -> Result<Option<u64>> {
        let mut state = self.state.lock();
        if state.paused {
            drop(state);
            return Err(self.paused());
        }
        let first = state.length;
        let by = count(first);
        let wanted = first.checked_add(by).filter(|wanted| *wanted <= self.max);
        let Some(wanted) = wanted else {
            drop(state);
            return Err(Error::BeyondMax {
                buffer: self.name.clone(),
                wanted: first.saturating_add(by),
                max: self.max,
            });
        };
        if self.bytes_of(wanted) > state.mapped {
            return Ok(None);
        }
        state.length = wanted;
        state.pace.grew(self.bytes_of(by), premapped);
        let more = state.mapped < self.bytes_of(self.max);
        let unused = state.mapped - self.bytes_of(wanted);
        let short = state.pace.is_short(unused, self.family.handle_bytes());
        let ask = more && short && !state.asked;
        state.asked |= ask;
        drop(state);
        if ask {
            self.family.ask(self);
        }
        Ok(Some(first))
    }

    /// Maps this many bytes, if that takes new handles alone.
    fn map_up_to(&self, mapping: &Mapping, bytes: u64) -> Result<Mapped> {
        let family = &self.family;
        let (has_rest, mapped, missing, slots) = {
            let mut book = family.book.lock();
            let has_rest = book.take_rest(self.id);
            let slots = book.handles(self.id).len();
            (has_rest, book.bytes(self.id), book.missing(self.id, bytes), slots)
        };
        if mapped < bytes && !has_rest {
            return Ok(Mapped::MustMove);
        }
        if missing > 0 {
            let handles = self.take(missing)?;
            self.map_more(mapping, slots, handles)?;
        }
        self.publish();
        Ok(Mapped::Yes)
    }

    /// Handles for itself. Its mapping is held: nothing need wait for it to ask it for some meanwhile.
    fn take(&self, count: usize) -> Result<Vec<Handle>> {
        self.state.lock().asking = true;
        let taken = self.family.handles.take(count);
        self.state.lock().asking = false;
        taken
    }

    /// Puts handles behind further slots, from `slots` on. After an error nothing has changed.
    pub(super) fn map_more(&self, mapping: &Mapping, slots: usize, handles: Vec<Handle>) -> Result<()> {
        let size = self.family.handle_bytes();
        let placing = (slots as u64..).zip(&handles);
        let placing: Vec<_> = placing
            .map(|(slot, handle)| (slot * size, Arc::clone(handle)))
            .collect();
        if let Err(error) = place(&*mapping.space, &placing) {
            self.family.handles.give(handles);
            return Err(error).doing(|| self.doing("mapping memory for"));
        }
        self.family.book.lock().add(self.id, handles);
        Ok(())
    }

    /// Lets the length move over all that the book has for it.
    pub(super) fn publish(&self) {
        let mapped = self.family.book.lock().bytes(self.id);
        self.state.lock().mapped = mapped;
    }

    /// Copies the buffer's last bytes to a handle of its own, and maps that where they lay: how many bytes. No launch that may name the
    /// buffer runs, and none begins. After an error all is as before.
    fn move_last(&self, mapping: &mut Mapping) -> Result<u64> {
        let family = &self.family;
        let size = family.handle_bytes();
        let (head, handles) = {
            let book = family.book.lock();
            (book.head(self.id), book.handles(self.id))
        };
        let Some(old) = handles.last() else { return Ok(0) };
        let offset = (handles.len() as u64 - 1) * size;
        let end = head + self.bytes_of(self.length());
        let start = offset.max(head);
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        let own = self.take(1)?;
        let addr = mapping.space.addr() + start;
        let moved = (|| {
            family.device.read(addr, &mut bytes)?;
            mapping.space.place(&[(offset, Arc::clone(&own[0]))])?;
            family.device.write(addr, &bytes)
        })();
        if let Err(error) = moved {
            // What it held is where it was.
            let _ = mapping.space.place(&[(offset, Arc::clone(old))]);
            family.handles.give(own);
            return Err(error).doing(|| self.doing("moving the end of"));
        }
        for handle in own {
            let free = family.book.lock().replace_last(self.id, handle);
            family.handles.give(free.into_iter().collect());
        }
        self.publish();
        Ok(bytes.len() as u64)
    }

    /// Makes it shorter by `count` elements. What was there is unmapped later.
    pub(super) fn shrink(self: &Arc<Self>, count: u64) -> Result<()> {
        let mut state = self.state.lock();
        if state.paused {
            drop(state);
            return Err(self.paused());
        }
        check_range(&self.name, &(0..count), state.length)?;
        if count == 0 {
            return Ok(());
        }
        state.length -= count;
        state.pace.shrank();
        let ample = state.is_ample(self.bytes_of(state.length), self.family.handle_bytes());
        let ask = ample && state.going.replace(self.family.turns.now()).is_none();
        drop(state);
        if ask {
            self.family.ask_later(self);
        }
        Ok(())
    }

    /// Gives back up to this many handles of what is mapped and not in use, but for `ahead` bytes: how many became free. It waits for
    /// at most `timeout`, for each of the buffer's locks.
    ///
    /// # Errors
    /// [`Busy`] while a launch that may name the buffer runs, or somebody else maps.
    pub(super) fn give_unused(&self, ahead: u64, handles: usize, timeout: Duration) -> Result<usize, Busy> {
        {
            let state = self.state.lock();
            if state.paused || state.asking {
                return Ok(0);
            }
        }
        // A thread that has one of them may wait for the other, or for one of the caller's: the timeout ends that.
        let mapping = self.mapping.try_lock_for(timeout).ok_or(Busy)?;
        let launches = self.launches.try_lock_for(timeout).ok_or(Busy)?;
        if !launches.is_idle() {
            return Err(Busy);
        }
        let (head, had) = {
            let book = self.family.book.lock();
            (book.head(self.id), book.bytes(self.id))
        };
        let mut state = self.state.lock();
        let kept = self.kept(&state, head, had, ahead, handles as u64);
        if state.paused || kept >= had {
            return Ok(0);
        }
        // No length moves there any more.
        state.mapped = kept;
        drop(state);
        let mut freed = 0;
        if let Err(error) = self.unmap(&*mapping.space, kept, &mut freed) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "memory stays with elastic buffer `{}`", self.name);
        }
        self.publish();
        Ok(freed)
    }

    /// Bytes that stay mapped, of `had`, when no more handles go than this many.
    fn kept(&self, state: &State, head: u64, had: u64, ahead: u64, handles: u64) -> u64 {
        let size = self.family.handle_bytes();
        let used = self.bytes_of(state.length).saturating_add(ahead);
        let least = match (used, state.pace.grows()) {
            (0, _) => 0,
            // The rest of the last handle is its own where it grows.
            (used, true) => (head + used).next_multiple_of(size) - head,
            (used, false) => used.next_multiple_of(UNIT),
        };
        let slots = |bytes: u64| if bytes == 0 { 0 } else { (head + bytes).div_ceil(size) };
        let most = slots(had).saturating_sub(handles);
        match slots(least) >= most {
            true => least,
            false => (most * size).saturating_sub(head),
        }
    }

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
            // Until it is done nothing needs to ask again.
            let now = self.family.turns.now();
            if now.saturating_duration_since(*state.going.get_or_insert(now)) < LAZY {
                return Err(Busy);
            }
            state.pace.ahead()
        };
        self.give_unused(ahead, usize::MAX, Duration::ZERO)?;
        self.state.lock().going = None;
        Ok(())
    }

    /// Maps this many bytes, with handles that nothing else has to give up.
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

impl Elastics {
    /// Has the thread look at a buffer that is to get more, at once; it starts with the first one.
    pub(super) fn ask(self: &Arc<Self>, buffer: &Arc<ElasticInner>) {
        self.queue(buffer, true);
    }

    /// Has the thread look at a buffer that is to give back what it does not use, some time later.
    pub(super) fn ask_later(self: &Arc<Self>, buffer: &Arc<ElasticInner>) {
        self.queue(buffer, false);
    }

    fn queue(self: &Arc<Self>, buffer: &Arc<ElasticInner>, at_once: bool) {
        let mut thread = self.ahead.thread.lock();
        if matches!(*thread, Thread::NotYet) {
            *thread = self.start();
        }
        if matches!(*thread, Thread::Cannot) {
            return;
        }
        self.ahead.asked.lock().push(Arc::downgrade(buffer));
        if let (Thread::Runs(background), true) = (&*thread, at_once) {
            background.wake();
        }
    }

    fn start(self: &Arc<Self>) -> Thread {
        let family = Arc::downgrade(self);
        let turn = move |_, stop: &AtomicBool| family.upgrade().is_some_and(|family| family.turn(stop));
        match self.turns.start("gpuvm-elastic", PERIOD, Box::new(turn)) {
            Ok(Some(background)) => Thread::Runs(background),
            Ok(None) => Thread::Stepped,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "nothing is mapped ahead: the thread cannot be started");
                Thread::Cannot
            }
        }
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

/// What is not in use cannot be given back now.
#[derive(Debug)]
pub(super) struct Busy;

impl State {
    /// Whether some of what is mapped may go.
    pub(super) fn is_ample(&self, used: u64, handle_bytes: u64) -> bool {
        self.pace.is_ample(self.mapped.saturating_sub(used), handle_bytes)
    }
}

fn grown(first: u64, premapped: bool, moved_bytes: u64, took: Duration) -> Grown {
    Grown {
        first,
        premapped,
        moved_bytes,
        took,
    }
}
