//! What is brought and where it lies: the copies of chunks at all neighbours, and those on their way.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use gpuvm_gpu::{Copier, CopySpan, DeviceMemory, Gpu, GpuError, HostMemory};
use gpuvm_nic::with_causes;

use super::{chunks::Mirror, pace::Pace, streams::Streams};

/// Copies of one neighbour that are on their way at once: enough to keep its link busy.
const FLYING: usize = 6;
/// How long a copy is kept of which nothing is read, where others need its room.
const STALE: Duration = Duration::from_millis(5);
/// How long the host rests between two looks at copies that it waits for.
const SETTLE_LOOK: Duration = Duration::from_micros(20);
/// Chunks that are brought before it is known whether they are read.
const CREDIT: u64 = 128;
/// No more than so many times what was read is brought.
const PAYS_SHARE: u64 = 4;

/// Memory at one neighbour, and what brings chunks there. All that is copied is copied by the neighbour: this GPU's link has a queue of
/// faults, behind which a copy of one word waits for longer than a chunk takes.
pub(super) struct Path {
    ordinal: u32,
    // Dropped first: it waits for copies to the memory, and of the words.
    copier: Arc<dyn Copier>,
    memory: DeviceMemory,
    /// A word a slot, which its chunk's entry gets, and behind them one that is 0.
    words: HostMemory,
    slots: Vec<Slot>,
    /// In order. Those that only take names away are none of a chunk.
    flying: VecDeque<Option<Coming>>,
    /// Submits that have ended.
    arrived: u64,
    pace: Pace,
}

/// Room for a copy.
#[derive(Default, Clone)]
struct Slot {
    /// The region's number and its chunk, which a word names or is about to.
    holder: Option<(u64, u64)>,
    /// How often a chunk was brought here.
    bringings: u64,
    /// Whether it is on its way. Its slot is not taken then, also where nobody needs it any more: its word is to be copied still.
    flies: bool,
    /// How much of it was read, and since when that is so.
    read: u32,
    since: Option<Instant>,
}

/// A copy on its way, or about to be.
struct Coming {
    mirror: u64,
    chunk: u64,
    slot: usize,
}

/// A region that launches read and none may write.
struct Open {
    mirror: Arc<Mirror>,
    /// Chunks that have a copy, or are about to.
    held: HashSet<u64>,
    streams: Streams,
    /// Parts that were brought, and those of them that were read there.
    brought: u64,
    earned: u64,
}

impl Open {
    /// Whether it pays to bring more: enough of what was brought is read there.
    fn pays(&self) -> bool {
        self.brought <= CREDIT * u64::from(self.mirror.parts) + self.earned * PAYS_SHARE
    }
}

pub(super) struct State {
    paths: Vec<Path>,
    open: Vec<Open>,
    /// Of paths that failed, until no entry names what is there.
    left: Vec<(DeviceMemory, HostMemory)>,
    /// Chunks that were brought since the last report, and those of which much was read by then.
    brought: u64,
    late: u64,
}

impl State {
    pub fn new(paths: Vec<Path>) -> Self {
        Self {
            paths,
            open: Vec::new(),
            left: Vec::new(),
            brought: 0,
            late: 0,
        }
    }

    /// Bytes of neighbours' memory.
    pub fn bytes(&self) -> u64 {
        self.paths.iter().map(|path| path.memory.bytes()).sum()
    }

    /// The neighbours.
    pub fn ordinals(&self) -> Vec<u32> {
        self.paths.iter().map(|path| path.ordinal).collect()
    }

    /// Chunks of a region may be brought from now on. False where they are already, or there is no path.
    pub fn open(&mut self, mirror: &Arc<Mirror>) -> bool {
        if self.paths.is_empty() || self.open.iter().any(|open| open.mirror.number == mirror.number) {
            return false;
        }
        self.open.push(Open {
            mirror: Arc::clone(mirror),
            held: HashSet::new(),
            streams: Streams::new(mirror.parts),
            brought: 0,
            earned: 0,
        });
        true
    }

    /// No chunk of a region has a copy any more. After an error some may, and it is tried again.
    pub fn close(&mut self, gpu: &dyn Gpu, number: u64) -> Result<(), GpuError> {
        if !self.open.iter().any(|open| open.mirror.number == number) {
            return Ok(());
        }
        self.settle();
        self.clear(gpu, |open| open.mirror.number == number)
    }

    /// Takes all copies' names away, and gives up the memory at a neighbour, or at all of them: how many bytes. Regions that are open now are
    /// read over the GPU's own link until the next launch.
    pub fn give_back(&mut self, gpu: &dyn Gpu, of: Option<u32>) -> Result<u64, GpuError> {
        let leaves = |path: &Path| of.is_none_or(|ordinal| ordinal == path.ordinal);
        if !self.paths.iter().any(leaves) {
            return Ok(0);
        }
        self.settle();
        self.clear(gpu, |_| true)?;
        let before = self.bytes();
        self.paths.retain(|path| !leaves(path));
        Ok(before - self.bytes())
    }

    /// Waits for all that is on its way: copies end by themselves. A path that fails brings nothing any more, and what it had brought is
    /// as good as before.
    fn settle(&mut self) {
        while self.paths.iter().any(|path| !path.flying.is_empty()) {
            if let Err(error) = self.land() {
                tracing::warn!("nothing is brought over second paths any more: {}", with_causes(&error));
                // Each copier waits for the rest. Entries may name the memory still: it goes when they are cleared.
                let rest = self.paths.drain(..).map(|path| (path.memory, path.words));
                self.left.extend(rest);
            }
            std::thread::sleep(SETTLE_LOOK);
        }
    }

    /// No chunk of these regions has a copy any more. Nothing is on its way.
    fn clear(&mut self, gpu: &dyn Gpu, which: impl Fn(&Open) -> bool) -> Result<(), GpuError> {
        while let Some(at) = self.open.iter().position(&which) {
            let open = &self.open[at];
            let untouched = open.held.is_empty() && open.streams.saw_nothing();
            // A lost GPU reads nothing any more.
            if gpu.lost().is_none() && !untouched {
                open.mirror.forget_reads();
                let none = vec![0; open.mirror.chunks as usize * 8];
                gpu.write(open.mirror.entries.addr(), &none)?;
            }
            let number = self.open.swap_remove(at).mirror.number;
            for slot in self.paths.iter_mut().flat_map(|path| &mut path.slots) {
                slot.holder.take_if(|(holder, _)| *holder == number);
            }
        }
        if self.open.is_empty() {
            self.left.clear();
        }
        Ok(())
    }

    /// Tells what was brought since the last report.
    pub fn report(&mut self) {
        if self.brought > 0 {
            let leads: Vec<usize> = self.open.iter().map(|open| open.streams.lead()).collect();
            tracing::debug!(
                chunks = self.brought,
                late = self.late,
                ?leads,
                "brought over second paths"
            );
        }
        (self.brought, self.late) = (0, 0);
    }

    /// Takes what has arrived. Whether a chunk did.
    fn land(&mut self) -> Result<bool, GpuError> {
        let mut landed = false;
        for path in &mut self.paths {
            let arrived = path.copier.completed()?;
            while path.arrived < arrived {
                path.arrived += 1;
                let Some(Some(coming)) = path.flying.pop_front() else {
                    continue;
                };
                path.pace.arrived(Instant::now(), !path.flying.is_empty());
                let slot = &mut path.slots[coming.slot];
                (slot.flies, slot.read, slot.since) = (false, 0, Some(Instant::now()));
                if let Some(open) = self.open.iter_mut().find(|open| open.mirror.number == coming.mirror) {
                    slot.read = open.streams.read_of(coming.chunk);
                    self.late += u64::from(open.streams.landed(coming.chunk, path.slots.len() / 2));
                }
                self.brought += 1;
                landed = true;
            }
        }
        Ok(landed)
    }

    /// One look, and what follows from it. Whether somebody reads in order, or a copy came.
    pub fn step(&mut self, chunk_bytes: u64) -> Result<bool, GpuError> {
        let landed = self.land()?;
        let now = Instant::now();
        let room = |path: &Path| FLYING.saturating_sub(path.chunks_flying()) * usize::from(!path.pace.rests(now));
        let rooms: Vec<usize> = self.paths.iter().map(room).collect();
        if self.open.is_empty() || rooms.iter().all(|room| *room == 0) {
            return Ok(landed);
        }
        let (mut wanted, paths) = (Vec::new(), self.paths.len());
        let most: usize = rooms.iter().sum::<usize>() * paths;
        for open in &mut self.open {
            let pays = open.pays();
            let next = open.streams.look(open.mirror.read(), paths);
            let new = next.filter(|chunk| pays && !open.held.contains(chunk)).take(most);
            wanted.extend(new.map(|chunk| (open.mirror.number, chunk)));
            if open.streams.is_all_read() {
                open.mirror.forget_reads();
                open.streams.begin();
            }
        }
        let read = !wanted.is_empty();
        for (n, room) in rooms.into_iter().enumerate() {
            let of_path = wanted.iter().filter(|(_, chunk)| path_of(*chunk, paths) == n);
            let free = self.tend(n, now);
            let (mut held, mut coming) = (Vec::new(), Vec::new());
            for (&(mirror, chunk), slot) in of_path.take(room).zip(free) {
                let taken = &mut self.paths[n].slots[slot];
                held.extend(taken.holder.replace((mirror, chunk)));
                coming.push(Coming { mirror, chunk, slot });
            }
            self.unname(n, held)?;
            for coming in coming {
                self.bring(n, coming, chunk_bytes)?;
            }
        }
        Ok(landed || read)
    }

    /// Looks at what was read of copies since the last look, and finds slots of a path that have none, or one that is of no use any more: its
    /// chunk was read, or nothing of it for long. As many as copies may be on their way.
    fn tend(&mut self, n: usize, now: Instant) -> Vec<usize> {
        let (mut free, mut oldest): (Vec<usize>, Option<(Instant, usize)>) = (Vec::new(), None);
        for (at, slot) in self.paths[n]
            .slots
            .iter_mut()
            .enumerate()
            .filter(|(_, slot)| !slot.flies)
        {
            let held = slot.holder.zip(slot.since);
            let holder = held.and_then(|((number, chunk), since)| {
                let open = self.open.iter_mut().find(|open| open.mirror.number == number)?;
                Some((open, chunk, since))
            });
            let Some((open, chunk, since)) = holder else {
                free.push(at);
                continue;
            };
            let read = open.streams.read_of(chunk);
            if read != slot.read {
                open.earned += u64::from(read.saturating_sub(slot.read));
                (slot.read, slot.since) = (read, Some(now));
            } else if now.saturating_duration_since(since) > STALE && oldest.is_none_or(|(then, _)| since < then) {
                oldest = Some((since, at));
            }
            if open.streams.is_read(chunk) {
                free.push(at);
            }
        }
        free.truncate(FLYING);
        if let (true, Some((_, at))) = (free.is_empty(), oldest) {
            if let Some((number, chunk)) = self.paths[n].slots[at].holder
                && let Some(open) = self.open.iter_mut().find(|open| open.mirror.number == number)
            {
                open.streams.give_up(chunk);
            }
            free.push(at);
        }
        free
    }

    /// Has a path take the names of chunks' copies out of entries, before anything else that it does from now on.
    fn unname(&mut self, n: usize, held: Vec<(u64, u64)>) -> Result<(), GpuError> {
        let (path, mut spans) = (&mut self.paths[n], Vec::new());
        for (number, chunk) in held {
            let Some(open) = self.open.iter_mut().find(|open| open.mirror.number == number) else {
                continue;
            };
            if open.held.remove(&chunk) {
                spans.push(open.mirror.name_span(chunk, path.word_addr(path.slots.len())));
            }
        }
        if spans.is_empty() {
            return Ok(());
        }
        // SAFETY: entries of regions that are open, whose closing waits for this path; a word that stays 0 for as long as the path is.
        unsafe { path.copier.submit(&spans, &[])? };
        path.flying.push_back(None);
        Ok(())
    }

    /// Has a path bring a chunk to one of its slots, which no entry names by then, and let the chunk's entry name it.
    fn bring(&mut self, n: usize, coming: Coming, chunk_bytes: u64) -> Result<(), GpuError> {
        let Some(open) = self.open.iter_mut().find(|open| open.mirror.number == coming.mirror) else {
            return Ok(());
        };
        let path = &mut self.paths[n];
        let start = coming.chunk * chunk_bytes;
        let to = path.memory.addr().next_multiple_of(chunk_bytes) + coming.slot as u64 * chunk_bytes;
        let data = CopySpan {
            to,
            from: open.mirror.home + start,
            bytes: chunk_bytes.min(open.mirror.bytes - start),
        };
        let slot = &mut path.slots[coming.slot];
        slot.bringings += 1;
        slot.flies = true;
        let copy = to | (slot.bringings & (chunk_bytes - 1));
        // SAFETY: there is a word a slot, and one more. The last copy that read it has ended: no slot is taken whose chunk is on its way.
        unsafe {
            path.words
                .host_ptr()
                .cast::<u64>()
                .add(coming.slot)
                .write_volatile(copy)
        };
        let name = open.mirror.name_span(coming.chunk, path.word_addr(coming.slot));
        // SAFETY: a slot of the path's own memory, which no entry names, so that lanes who read there still take nothing of it; and a part
        // of a region's home, which is registered until the region was closed, which waits for this copy. The host may write it when the
        // launches that read it have ended: what came then is named to nobody, since the next launch closes first.
        unsafe { path.copier.submit(&[data], &[name])? };
        path.pace.begun(Instant::now());
        open.held.insert(coming.chunk);
        open.brought += u64::from(open.mirror.parts);
        path.flying.push_back(Some(coming));
        Ok(())
    }
}

/// The path that brings a chunk, of so many: the first chunk of each `paths` + 1 in a row is left to faults.
fn path_of(chunk: u64, paths: usize) -> usize {
    (chunk % (paths as u64 + 1)) as usize - 1
}

impl Path {
    /// Room for so many chunks at the neighbour `ordinal`.
    pub fn new(gpu: &dyn Gpu, ordinal: u32, slots: u64, chunk_bytes: u64) -> Result<Self, GpuError> {
        Ok(Self {
            ordinal,
            // Copies lie at multiples of their size.
            memory: gpu.allocate_on(ordinal, (slots + 1) * chunk_bytes)?,
            copier: gpu.copier_of(ordinal)?,
            words: gpu.allocate_host((slots + 1) * 8)?,
            slots: vec![Slot::default(); slots as usize],
            flying: VecDeque::new(),
            arrived: 0,
            pace: Pace::default(),
        })
    }

    fn chunks_flying(&self) -> usize {
        self.flying.iter().flatten().count()
    }

    /// Device address of a slot's word, or of the one that is 0.
    fn word_addr(&self, slot: usize) -> u64 {
        self.words.device_addr() + slot as u64 * 8
    }
}
