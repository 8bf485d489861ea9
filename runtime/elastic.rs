//! Plain device memory that grows and shrinks at one address. The GPU's own page table maps it, a handle at a time, so kernels use a bare
//! pointer; who may map when is in docs/PROTOCOL.md, "Elastic buffers".

mod book;
mod builder;
mod growing;
mod handle;
mod pace;
mod pausing;
mod stats;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicI32, Ordering},
    },
    time::{Duration, Instant},
};

use gpuvm_gpu::{AddressSpace, Gpu, GpuError};
use parking_lot::{Mutex, MutexGuard};

pub use builder::ElasticBuilder;
pub use handle::{ElasticBuffer, Grown, RawElasticBuffer};
pub use stats::ElasticStats;

use self::{
    book::{Book, BufferId},
    pace::Pace,
    stats::Counts,
};
use crate::{
    background::Background,
    crowd::Crowd,
    element::ElementType,
    error::{Doing, Error, Result},
    handles::{GivesHandles, Handle, Handles},
    launch::{LaunchKind, LaunchTracker, Memory},
    turns::Turns,
};

/// How long who needs memory waits for the lock of a buffer that may have some: another thread may be mapping some handles there.
const LOCK_TIMEOUT: Duration = Duration::from_millis(50);

/// The elastic buffers of one GPU.
pub(crate) struct Elastics {
    device: Arc<dyn Gpu>,
    handles: Arc<Handles>,
    book: Mutex<Book<Handle>>,
    buffers: Mutex<Crowd<Weak<ElasticInner>>>,
    /// Held by who pauses or resumes.
    pausing: Mutex<()>,
    ahead: Ahead,
    turns: Arc<Turns>,
    counts: Counts,
}

/// Shared by the handle and the launches that name the buffer.
///
/// Locks are taken in this order: launches, mapping, state or the book. Who needs handles holds the mapping of its own buffer, and asks
/// others by trying their locks for some time, not longer.
pub(crate) struct ElasticInner {
    pub name: String,
    pub element: ElementType,
    tag: Option<String>,
    /// Who gives up memory first. Relaxed: it orders nothing.
    priority: AtomicI32,
    /// The most elements that it can have.
    max: u64,
    id: BufferId,
    /// Address of element 0, for ever.
    pub addr: u64,
    /// Held, with no launch running, by who takes away memory that a launch could use, and by host accesses.
    launches: Mutex<LaunchTracker>,
    /// Held while memory is placed or taken out.
    mapping: Mutex<Mapping>,
    /// Held for some instructions only.
    state: Mutex<State>,
    family: Arc<Elastics>,
}

struct Mapping {
    space: Arc<dyn AddressSpace>,
    /// What it held, while it is paused.
    contents: Option<Vec<u8>>,
}

#[derive(Default)]
struct State {
    /// Elements.
    length: u64,
    /// Bytes from the first one on that are mapped, and the buffer's own.
    mapped: u64,
    /// Its memory is not there, and nothing is mapped for it.
    paused: bool,
    /// Its memory is not there, and never will be.
    closed: bool,
    pace: Pace,
    /// Who maps for it asks others for handles.
    asking: bool,
    /// The thread in the background will map more.
    asked: bool,
    /// It will give back what is not in use, some time after this.
    going: Option<Instant>,
}

/// The thread, and what it is to look at.
#[derive(Default)]
struct Ahead {
    asked: Mutex<Vec<Weak<ElasticInner>>>,
    thread: Mutex<Thread>,
}

#[derive(Default)]
enum Thread {
    #[default]
    NotYet,
    Runs(Background),
    /// A thread that waits for launches takes its turns.
    Stepped,
    /// All goes on without it, each growth at its own cost.
    Cannot,
}

impl Elastics {
    /// No buffer yet.
    pub fn new(device: Arc<dyn Gpu>, handles: Arc<Handles>, turns: Arc<Turns>) -> Self {
        Self {
            book: Mutex::new(Book::new(handles.handle_bytes().max(book::UNIT))),
            turns,
            device,
            handles,
            buffers: Mutex::default(),
            pausing: Mutex::default(),
            ahead: Ahead::default(),
            counts: Counts::default(),
        }
    }

    /// Those that there are.
    fn live(&self) -> Vec<Arc<ElasticInner>> {
        let buffers = self.buffers.lock();
        let live = buffers.iter().filter_map(Weak::upgrade);
        live.filter(|buffer| !buffer.state.lock().closed).collect()
    }

    fn enter(&self, buffer: &Arc<ElasticInner>) {
        let giver: Weak<ElasticInner> = Arc::downgrade(buffer);
        self.handles.register(giver);
        let buffer = Arc::downgrade(buffer);
        self.buffers.lock().push(buffer, |buffer| buffer.strong_count() > 0);
    }

    fn handle_bytes(&self) -> u64 {
        self.handles.handle_bytes()
    }

    /// Asks the book for bytes, with as many new handles as it wants. The buffer's locks are held, the book's is not.
    fn supply<R>(&self, mut ask: impl FnMut(&mut Book<Handle>, &mut Vec<Handle>) -> Result<R, usize>) -> Result<R> {
        let mut fresh = Vec::new();
        loop {
            let asked = ask(&mut self.book.lock(), &mut fresh);
            match asked {
                Ok(found) => {
                    // Others may have left room since it was asked first.
                    self.handles.give(fresh);
                    return Ok(found);
                }
                Err(missing) => match self.handles.take(missing) {
                    Ok(more) => fresh.extend(more),
                    Err(error) => {
                        self.handles.give(fresh);
                        return Err(error);
                    }
                },
            }
        }
    }

    /// All of it. Buffers that change meanwhile are counted as they are then.
    pub fn stats(&self) -> ElasticStats {
        let mut stats = self.counts.read();
        stats.handles = self.handles.stats();
        for buffer in self.live() {
            let state = buffer.state.lock();
            let bytes = buffer.bytes_of(state.length);
            stats.buffers += 1;
            match state.paused {
                true => (stats.paused, stats.paused_bytes) = (stats.paused + 1, stats.paused_bytes + bytes),
                false => stats.used_bytes += bytes,
            }
        }
        let (all, claimed) = self.book.lock().totals();
        stats.ahead_bytes = claimed.saturating_sub(stats.used_bytes);
        stats.rest_bytes = all - claimed;
        stats
    }
}

impl ElasticInner {
    fn element_bytes(&self) -> u64 {
        self.element.bytes() as u64
    }

    fn bytes_of(&self, elements: u64) -> u64 {
        elements * self.element_bytes()
    }

    /// Elements.
    pub fn length(&self) -> u64 {
        self.state.lock().length
    }

    fn capacity(&self) -> u64 {
        (self.state.lock().mapped / self.element_bytes()).min(self.max)
    }

    fn paused(&self) -> Error {
        Error::Paused {
            buffer: self.name.clone(),
            tag: self.tag.clone().unwrap_or_default(),
        }
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} elastic buffer `{}`", self.name)
    }

    /// Waits for the launches that name the buffer, and keeps others from beginning while the guard lives.
    fn quiesce(&self) -> MutexGuard<'_, LaunchTracker> {
        let mut launches = self.launches.lock();
        launches.wait_idle();
        launches
    }

    /// Places the handles that the book has for slots from `first` on. After an error nothing lies there.
    fn place(&self, space: &dyn AddressSpace, first: usize) -> Result<()> {
        let handles = self.family.book.lock().handles(self.id);
        let size = self.family.handle_bytes();
        let slots = handles.into_iter().enumerate().skip(first);
        let placing: Vec<(u64, Handle)> = slots.map(|(slot, handle)| (slot as u64 * size, handle)).collect();
        place(space, &placing).doing(|| self.doing("mapping memory for"))
    }

    /// Takes out what lies behind the first `bytes` bytes, a handle at a time from the end, and gives it back; `freed` counts the handles.
    /// No launch that may name the buffer runs, and none begins.
    fn unmap(&self, space: &dyn AddressSpace, bytes: u64, freed: &mut usize) -> Result<()> {
        let size = self.family.handle_bytes();
        let (head, slots) = {
            let book = self.family.book.lock();
            (book.head(self.id), book.handles(self.id).len())
        };
        let kept = if bytes == 0 { 0 } else { (head + bytes).div_ceil(size) };
        for slot in (kept..slots as u64).rev() {
            let taken = space.take(&[slot * size]);
            taken.doing(|| self.doing("taking memory out of"))?;
            *freed += self.release((slot * size).saturating_sub(head));
        }
        *freed += self.release(bytes);
        Ok(())
    }

    /// Leaves the buffer its first `bytes` bytes in the book, and gives back the handles that nothing has a part of: how many.
    fn release(&self, bytes: u64) -> usize {
        let free = self.family.book.lock().cut(self.id, bytes);
        let count = free.len();
        self.family.handles.give(free);
        count
    }
}

/// Places handles. After an error nothing lies there.
fn place(space: &dyn AddressSpace, placing: &[(u64, Handle)]) -> Result<(), GpuError> {
    space.place(placing).inspect_err(|_| {
        let offsets: Vec<u64> = placing.iter().map(|(offset, _)| *offset).collect();
        // The first error is told.
        let _ = space.take(&offsets);
    })
}

impl Memory for ElasticInner {
    fn launches(&self) -> &Mutex<LaunchTracker> {
        &self.launches
    }

    fn make_coherent(&self, _launches: &mut LaunchTracker, _to_begin: LaunchKind) -> Result<()> {
        // Who pauses it holds the launches.
        match self.state.lock().paused {
            true => Err(self.paused()),
            false => Ok(()),
        }
    }

    fn expect(&self, _launches: &mut LaunchTracker, _to_begin: LaunchKind) {
        // It lies on one GPU, and has no home that would be behind.
    }
}

impl GivesHandles for ElasticInner {
    fn holds(&self) -> (String, u64) {
        let who = match &self.tag {
            Some(tag) => format!("elastic buffers tagged `{tag}`"),
            None => "elastic buffers without a tag".to_owned(),
        };
        (who, self.family.book.lock().bytes(self.id))
    }

    fn priority(&self) -> i32 {
        self.priority.load(Ordering::Relaxed)
    }

    fn give_up(&self, handles: usize, until: Option<Instant>) -> usize {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // Of what is mapped and not in use.
        self.give_unused(0, handles, left.map_or(LOCK_TIMEOUT, |left| left.min(LOCK_TIMEOUT)))
            .unwrap_or_default()
    }
}

impl ElasticInner {
    /// Gives back its memory when its handle goes, unless a launch that names it is in flight: then with the last of those. Its addresses
    /// go later; nothing uses them.
    fn close(&self) {
        if !self.launches.lock().is_idle() {
            // Nothing uses an element when those have ended, also where their handles live on: then it is for who needs memory.
            self.state.lock().length = 0;
            return;
        }
        // The thread in the background may be mapping.
        let _mapping = self.mapping.lock();
        {
            let mut state = self.state.lock();
            (state.paused, state.closed) = (true, true);
        }
        self.leave();
    }

    fn leave(&self) {
        let free = self.family.book.lock().close(self.id);
        self.family.handles.give(free);
    }
}

impl Drop for ElasticInner {
    fn drop(&mut self) {
        self.leave();
    }
}
