//! Plain device memory whose chunks lie on the GPU or in host memory, at one address. The GPU's own page table maps them, so any kernel and
//! any library uses a bare pointer; what may move when is in docs/PROTOCOL.md, "Tiered buffers".

mod buffer;
mod builder;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
    },
    time::Duration,
};

use gpuvm_gpu::{AddressSpace, Copier, CopySpan, Gpu, GpuError, back_end::Release};
use parking_lot::Mutex;

pub use buffer::{Moved, RawTieredBuffer, TieredBuffer};
pub use builder::TieredBuilder;

use crate::{
    error::{Doing, Error, Result},
    handles::{Handle, Handles},
    tier_place::TierPlace,
};

/// Chunks that are copied and mapped together. Their new memory has addresses of its own meanwhile.
const TOGETHER: usize = 16;
/// How long who needs memory waits for a buffer whose launches begin or whose chunks move.
const LOCK_TIMEOUT: Duration = Duration::from_millis(50);
/// Between two looks at copies that are under way.
const LOOK: Duration = Duration::from_micros(20);

/// The chunks of one buffer, and their addresses.
pub(crate) struct Tiers {
    name: String,
    device: Arc<dyn Gpu>,
    handles: Arc<Handles>,
    /// Who gives up memory first. Relaxed: it orders nothing.
    priority: AtomicI32,
    /// Chunks on the GPU, for who asks and waits for nothing. Relaxed: a count by itself.
    resident: AtomicU64,
    /// A thread that moves chunks asks others for handles: they need not ask this buffer.
    asking: AtomicBool,
    /// Its address was told: kernels may use it in launches that do not name it.
    lent: AtomicBool,
    /// Taken after the buffer's launches, but by who looks only.
    state: Mutex<State>,
}

struct State {
    /// None when the buffer is gone.
    space: Option<Arc<dyn AddressSpace>>,
    copier: Arc<dyn Copier>,
    /// Submits of the copier.
    submitted: u64,
    chunks: Vec<Chunk>,
    /// Host memory of chunks that came to the GPU: making it anew takes far longer than a copy.
    spare: Vec<Handle>,
    /// Bytes that may lie on the GPU.
    budget: u64,
    /// Moves so far.
    moves: u64,
    /// Chunks that the driver would put neither where they were to go nor back: no launch begins before they have their addresses.
    astray: Vec<usize>,
}

struct Chunk {
    memory: Handle,
    place: TierPlace,
    /// The move that brought it there.
    since: u64,
}

impl State {
    /// Chunks that lie at a place, in order of their addresses.
    fn at(&self, place: TierPlace) -> impl Iterator<Item = usize> {
        let chunks = self.chunks.iter().enumerate();
        chunks.filter(move |(_, chunk)| chunk.place == place).map(|(n, _)| n)
    }

    fn resident(&self) -> usize {
        self.at(TierPlace::Gpu).count()
    }

    /// This many chunks on the GPU that leave first: those that have been there longest, the last ones first.
    fn first_to_leave(&self, count: usize, stay: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut leaving: Vec<usize> = self.at(TierPlace::Gpu).filter(|n| !stay(*n)).collect();
        leaving.sort_by_key(|n| (self.chunks[*n].since, std::cmp::Reverse(*n)));
        leaving.truncate(count);
        leaving
    }
}

impl Tiers {
    fn chunk_bytes(&self) -> u64 {
        self.handles.handle_bytes()
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} tiered buffer `{}`", self.name)
    }

    /// Kernels that no launch names may use its address from now on.
    pub fn lend(&self) {
        if self.is_lent() {
            return;
        }
        // Under it the thread that moves chunks looks whether the address was told: the library is not told it while some move. Relaxed: the lock orders it.
        let _state = self.state.lock();
        self.lent.store(true, Ordering::Relaxed);
    }

    /// Bytes of the buffer, cut where chunks of another place begin: the driver is not asked to copy or fill what lies in both.
    pub fn parts(&self, bytes: Range<u64>) -> Vec<Range<u64>> {
        let (state, size) = (self.state.lock(), self.chunk_bytes());
        let place = |at: u64| state.chunks[(at / size) as usize].place;
        let mut parts: Vec<Range<u64>> = Vec::new();
        let mut at = bytes.start;
        while at < bytes.end {
            let end = (at - at % size + size).min(bytes.end);
            match parts.last_mut() {
                Some(last) if place(last.start) == place(at) => last.end = end,
                _ => parts.push(at..end),
            }
            at = end;
        }
        parts
    }

    fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Relaxed)
    }

    fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed) * self.chunk_bytes()
    }

    /// This many chunks do not move, since that place has no memory for them.
    fn not_moved(&self, state: &State, chunks: usize, place: TierPlace, source: Error) -> Error {
        let resident = state.resident() as u64;
        Error::NotMoved {
            buffer: self.name.clone(),
            chunks: chunks as u64,
            chunk_bytes: self.chunk_bytes(),
            place,
            resident,
            away: state.chunks.len() as u64 - resident,
            source: Box::new(source),
        }
    }

    /// Host memory for this many chunks: what was used before, then new pieces. None is taken after an error.
    fn host_memory(&self, state: &mut State, chunks: usize) -> Result<Vec<Handle>> {
        let kept = state.spare.len().saturating_sub(chunks);
        let mut pieces = state.spare.split_off(kept);
        while pieces.len() < chunks {
            match self.device.host_piece() {
                Ok(piece) => pieces.push(piece),
                Err(source) => {
                    state.spare.append(&mut pieces);
                    let doing = format!("making {chunks} pieces of host memory");
                    return Err(self.not_moved(state, chunks, TierPlace::Host, Error::Gpu { doing, source }));
                }
            }
        }
        Ok(pieces)
    }

    /// Handles of the GPU's memory for this many chunks, that others give up.
    fn gpu_memory(&self, state: &State, chunks: usize) -> Result<Vec<Handle>> {
        // Relaxed: a thread that misses it waits until its timeout.
        self.asking.store(true, Ordering::Relaxed);
        let taken = self.handles.take(chunks);
        self.asking.store(false, Ordering::Relaxed);
        taken.map_err(|error| self.not_moved(state, chunks, TierPlace::Gpu, error))
    }

    /// As [`gpu_memory`](Self::gpu_memory), as much as nothing has to give up.
    fn free_gpu_memory(handles: &Handles, chunks: usize) -> Result<Vec<Handle>> {
        let mut found = Vec::new();
        while found.len() < chunks {
            match handles.take_unasked(1) {
                Ok(mut handle) => found.append(&mut handle),
                Err(error) if error.is_out_of_memory() => break,
                Err(error) => {
                    handles.give(found);
                    return Err(error);
                }
            }
        }
        Ok(found)
    }

    /// Has some chunks leave the GPU and others come, into `gpu` and what those leave. All host memory is allocated first: without it nothing
    /// has changed. No launch that may use the buffer runs, and none begins.
    fn relocate(&self, state: &mut State, leaving: &[usize], coming: &[usize], gpu: Vec<Handle>) -> Result<()> {
        let (mut host, mut gpu) = match self.host_memory(state, leaving.len()) {
            Ok(host) => (host, gpu),
            Err(error) => {
                self.handles.give(gpu);
                return Err(error);
            }
        };
        state.moves += 1;
        let moved = self.move_all(state, leaving, TierPlace::Host, &mut host, &mut gpu);
        let moved = moved.and_then(|()| self.move_all(state, coming, TierPlace::Gpu, &mut gpu, &mut host));
        state.spare.append(&mut host);
        self.handles.give(gpu);
        self.resident.store(state.resident() as u64, Ordering::Relaxed);
        moved.doing(|| self.doing("moving chunks of"))
    }

    /// Puts chunks into `fresh` memory, which is of that place; what they lay in goes to `left`. Those that an error keeps from moving are
    /// where they were, and so is their memory.
    fn move_all(
        &self,
        state: &mut State,
        chunks: &[usize],
        place: TierPlace,
        fresh: &mut Vec<Handle>,
        left: &mut Vec<Handle>,
    ) -> Result<(), GpuError> {
        for some in chunks.chunks(TOGETHER) {
            let memory = &fresh[fresh.len() - some.len()..];
            self.put(state, some, memory)?;
            let memory = fresh.split_off(fresh.len() - some.len());
            let since = state.moves;
            for (n, memory) in some.iter().zip(memory) {
                let there = Chunk { memory, place, since };
                left.push(std::mem::replace(&mut state.chunks[*n], there).memory);
            }
        }
        Ok(())
    }

    /// Copies chunks to `memory` and maps that instead of what they lie in. After an error they lie there still.
    fn put(&self, state: &mut State, chunks: &[usize], memory: &[Handle]) -> Result<(), GpuError> {
        let Some(space) = state.space.clone() else {
            return Ok(());
        };
        let size = self.chunk_bytes();
        let own = |n: usize| n as u64 * size;
        let beside: Vec<u64> = (state.chunks.len()..).take(chunks.len()).map(own).collect();
        let placing: Vec<_> = beside.iter().copied().zip(memory.iter().cloned()).collect();
        let spans = chunks.iter().zip(&beside).map(|(n, beside)| CopySpan {
            from: space.addr() + own(*n),
            to: space.addr() + beside,
            bytes: size,
        });
        let spans: Vec<CopySpan> = spans.collect();
        let copied = space.place(&placing).and_then(|()| self.copy(state, &spans));
        let taken = space.take(&beside);
        copied.and(taken)?;
        let of = |state: &State| {
            chunks
                .iter()
                .map(|n| (own(*n), state.chunks[*n].memory.clone()))
                .collect()
        };
        let before: Vec<(u64, Handle)> = of(state);
        let after: Vec<_> = before
            .iter()
            .zip(memory)
            .map(|((at, _), new)| (*at, Arc::clone(new)))
            .collect();
        space.place(&after).inspect_err(|_| {
            // What they hold is where it was.
            if space.place(&before).is_err() {
                state.astray.extend(chunks);
            }
        })
    }

    /// Copies and waits. Copies end by themselves, or with the GPU.
    fn copy(&self, state: &mut State, spans: &[CopySpan]) -> Result<(), GpuError> {
        // SAFETY: all spans are mapped chunks of this buffer's addresses, which stay so until the copies have arrived, and which no kernel
        // uses: its launches are locked and have ended.
        unsafe { state.copier.submit(spans, &[])? };
        state.submitted += 1;
        while state.copier.completed()? < state.submitted {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Gives chunks their addresses that an error of the driver left without.
    pub fn repair(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        let (Some(space), false) = (&state.space, state.astray.is_empty()) else {
            return Ok(());
        };
        let memory = |n: &usize| (*n as u64 * self.chunk_bytes(), Arc::clone(&state.chunks[*n].memory));
        let placing: Vec<_> = state.astray.iter().map(memory).collect();
        space.place(&placing).doing(|| self.doing("mapping chunks of"))?;
        state.astray.clear();
        Ok(())
    }
}

impl Release for Tiers {
    fn release(&self, _addr: u64) {
        let state = &mut *self.state.lock();
        drop(state.space.take());
        state.spare.clear();
        let chunks = state.chunks.drain(..);
        let of_gpu = chunks
            .filter(|chunk| chunk.place == TierPlace::Gpu)
            .map(|chunk| chunk.memory);
        match self.is_lent() {
            // Kernels that no launch names may run still: their memory is nothing else's before it is unmapped.
            true => self.handles.drop_held(of_gpu.collect()),
            false => self.handles.give(of_gpu.collect()),
        }
        self.resident.store(0, Ordering::Relaxed);
    }
}
