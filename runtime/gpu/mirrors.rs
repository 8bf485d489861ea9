//! Chunks of regions that neighbours' copy engines bring to their memory, ahead of kernels that read them in order (HUVM, USENIX ATC 2022):
//! such kernels fetch a part of their pages over a neighbour's link to the host, and the rest over their GPU's own. What lanes do with
//! such copies is in `detail/mirror.cuh`; here is who makes them, and who says that they are none any more.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::Thread,
    time::{Duration, Instant},
};

use gpuvm_gpu::{Copier, CopySpan, DeviceMemory, Gpu, GpuError, HostMemory};
use gpuvm_layouts::{MIRROR_USE_BYTES, MirrorDesc};
use gpuvm_nic::with_causes;
use parking_lot::Mutex;

use super::PagedGpu;
use crate::{
    background::Background,
    device::DeviceArray,
    error::{Doing, Error, Result},
    plan::{Settings, refuse},
};

mod pace;
mod streams;

use pace::Pace;
use streams::Streams;

/// Copies of one neighbour that are on their way at once: enough to keep its link busy.
const FLYING: usize = 6;
/// Fewest chunks a neighbour.
const SLOTS_MIN: u64 = 16;
/// How long a copy is kept of which nothing is read, where others need its room.
const STALE: Duration = Duration::from_millis(5);
/// Chunks that are brought before it is known whether they are read.
const CREDIT: u64 = 128;
/// No more than so many times what was read is brought.
const PAYS_SHARE: u64 = 4;
/// How long the thread rests between two looks while a region is read in order.
const LOOK: Duration = Duration::from_micros(20);
/// How long it rests while launches run that read in no order, or nothing.
const QUIET_LOOK: Duration = Duration::from_millis(1);
/// How long after the last sign of such a reader it looks on.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long it rests where nobody wakes it.
const PERIOD: Duration = Duration::from_millis(100);

/// A region's chunks on one GPU.
pub(crate) struct Mirror {
    number: u64,
    desc: DeviceArray<MirrorDesc>,
    /// Of this GPU's memory, which neighbours' copy engines reach.
    entries: DeviceMemory,
    /// What lanes have read, as a [`MirrorDesc`] has it.
    uses: HostMemory,
    chunks: u64,
    chunk_bytes: u64,
    /// Parts of a chunk that are told apart.
    parts: u32,
    /// Device address of the region's home, and its length.
    home: u64,
    bytes: u64,
}

impl Mirror {
    /// Address of the [`MirrorDesc`].
    pub fn addr(&self) -> u64 {
        self.desc.addr()
    }

    /// How many parts of each chunk were read: of [`MIRROR_USE_BYTES`], or pages that are larger.
    fn read(&self) -> Vec<u32> {
        let words = self.uses_of(self.chunk_bytes).max(8) / 8;
        let whole = self.uses_of(self.chunk_bytes).is_multiple_of(8);
        let count = |chunk: u64| match whole {
            true => (chunk * words..(chunk + 1) * words)
                .map(|word| self.eight_uses(word).count_ones())
                .sum(),
            false => {
                let first = chunk * self.chunk_bytes / MIRROR_USE_BYTES;
                let uses = first..first + self.uses_of(self.chunk_bytes);
                uses.map(|n| (self.eight_uses(n / 8) >> (8 * (n % 8)) & 1) as u32).sum()
            }
        };
        (0..self.chunks).map(count).collect()
    }

    fn uses_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(MIRROR_USE_BYTES)
    }

    fn eight_uses(&self, word: u64) -> u64 {
        let words = self.uses.host_ptr().cast::<u64>();
        // SAFETY: the memory has a byte a use of every chunk, in whole words, and lives as long as this value. Relaxed: lanes store there at
        // any time, and nothing is ordered by it.
        unsafe { AtomicU64::from_ptr(words.add(word as usize)) }.load(Ordering::Relaxed)
    }

    /// Nothing was read.
    fn forget_reads(&self) {
        let words = self.uses.host_ptr().cast::<u64>();
        for word in 0..self.uses.bytes() as usize / 8 {
            // SAFETY: as above.
            unsafe { AtomicU64::from_ptr(words.add(word)) }.store(0, Ordering::Relaxed);
        }
    }

    /// The copy of a word, at a device address, to a chunk's entry.
    fn name_span(&self, chunk: u64, word: u64) -> CopySpan {
        CopySpan {
            to: self.entries.addr() + chunk * 8,
            from: word,
            bytes: 8,
        }
    }
}

/// Memory at one neighbour, and what brings chunks there. All that is copied is copied by the neighbour: this GPU's link has a queue of
/// faults, behind which a copy of one word waits for longer than a chunk takes.
struct Path {
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

struct State {
    paths: Vec<Path>,
    open: Vec<Open>,
    /// Chunks that were brought since the last report, and those of which much was read by then.
    brought: u64,
    late: u64,
}

/// The copies of all regions of one GPU.
pub(crate) struct Mirrors {
    state: Mutex<State>,
    chunk_bytes: u64,
    numbers: AtomicU64,
    /// Bytes.
    given_back: AtomicU64,
    waker: OnceLock<Thread>,
    /// Somebody waked the thread.
    woken: AtomicBool,
}

impl Mirrors {
    /// Memory for copies at every neighbour that lends; none where the settings ask for none.
    ///
    /// # Errors
    /// [`Error::Setting`], [`Error::Gpu`] when a neighbour has no such memory, or no path leads there.
    pub fn new(gpu: &dyn Gpu, settings: &Settings) -> Result<Option<Self>> {
        if settings.second_path == 0 {
            return Ok(None);
        }
        let value = || format!("{} bytes", settings.second_path);
        if settings.borrowed.is_empty() {
            return refuse(
                "second path",
                value(),
                "name a neighbour GPU that lends memory: its link is the second path",
            );
        }
        let chunk_bytes = settings.mirror_chunk.max(settings.page_size);
        let slots = settings.second_path / chunk_bytes;
        if slots < SLOTS_MIN {
            let reason = format!("it takes room for {SLOTS_MIN} chunks of {chunk_bytes} bytes");
            return refuse("second path", value(), reason);
        }
        let mut paths = Vec::new();
        for &(ordinal, _) in &settings.borrowed {
            if settings.gpu_count > 1 && gpu.ordinal() == Some(ordinal) {
                continue;
            }
            let doing = || format!("opening a second path through GPU {ordinal}");
            // Copies lie at multiples of their size.
            let memory = gpu.allocate_on(ordinal, (slots + 1) * chunk_bytes).doing(doing)?;
            paths.push(Path {
                ordinal,
                copier: gpu.copier_of(ordinal).doing(doing)?,
                memory,
                words: gpu.allocate_host((slots + 1) * 8).doing(doing)?,
                slots: vec![Slot::default(); slots as usize],
                flying: VecDeque::new(),
                arrived: 0,
                pace: Pace::default(),
            });
        }
        Ok(Some(Self {
            state: Mutex::new(State {
                paths,
                open: Vec::new(),
                brought: 0,
                late: 0,
            }),
            chunk_bytes,
            numbers: AtomicU64::new(1),
            given_back: AtomicU64::new(0),
            waker: OnceLock::new(),
            woken: AtomicBool::new(false),
        }))
    }

    /// What a region of so many bytes, whose home lies at the device address `home`, needs to be mirrored.
    pub fn mirror(&self, gpu: &dyn Gpu, home: u64, bytes: u64, page_shift: u32) -> Result<Mirror, GpuError> {
        let chunks = bytes.div_ceil(self.chunk_bytes).max(1);
        let ordinals: Vec<u32> = self.state.lock().paths.iter().map(|path| path.ordinal).collect();
        let entries = gpu.allocate_for(&ordinals, chunks * 8)?;
        let uses = (chunks * self.chunk_bytes).div_ceil(MIRROR_USE_BYTES);
        let uses = gpu.allocate_host(uses.next_multiple_of(8))?;
        let desc = MirrorDesc {
            entries: entries.addr(),
            uses: uses.device_addr(),
            chunk_mask: self.chunk_bytes - 1,
            page_shift: self.chunk_bytes.trailing_zeros() - page_shift,
            pad: 0,
        };
        Ok(Mirror {
            // Relaxed: only uniqueness matters.
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            desc: DeviceArray::from_slice(gpu, &[desc])?,
            entries,
            uses,
            chunks,
            chunk_bytes: self.chunk_bytes,
            parts: (self.chunk_bytes / MIRROR_USE_BYTES.max(1 << page_shift)).max(1) as u32,
            home,
            bytes,
        })
    }

    /// Bytes of neighbours' memory that it uses.
    pub fn bytes(&self) -> u64 {
        self.state.lock().paths.iter().map(|path| path.memory.bytes()).sum()
    }

    /// Bytes that were given back so far.
    pub fn given_back_bytes(&self) -> u64 {
        // Relaxed: as above.
        self.given_back.load(Ordering::Relaxed)
    }

    /// A launch will read the region, and none may write it until [`close`](Self::close): its home holds everything.
    pub fn open(&self, mirror: &Arc<Mirror>) {
        let mut state = self.state.lock();
        if state.paths.is_empty() || state.open.iter().any(|open| open.mirror.number == mirror.number) {
            return;
        }
        state.open.push(Open {
            mirror: Arc::clone(mirror),
            held: HashSet::new(),
            streams: Streams::new(mirror.parts),
            brought: 0,
            earned: 0,
        });
        drop(state);
        // Relaxed: the thread sees it at its next turn at the latest.
        self.woken.store(true, Ordering::Relaxed);
        if let Some(thread) = self.waker.get() {
            thread.unpark();
        }
    }

    /// No chunk of the region has a copy any more, and none is brought: its home may change, or go, when this returns.
    ///
    /// # Errors
    /// The driver's. Then no region has copies any more.
    pub fn close(&self, gpu: &dyn Gpu, mirror: &Mirror) -> Result<()> {
        let mut state = self.state.lock();
        let Some(at) = state.open.iter().position(|open| open.mirror.number == mirror.number) else {
            return Ok(());
        };
        let closed = state.close(gpu, at);
        if closed.is_err() {
            // Waits for what is on its way.
            state.paths.clear();
            state.open.clear();
        }
        closed.doing(|| "ending the copies of a region at a neighbour".to_owned())
    }

    /// Gives a neighbour its memory back, or all of them: how many bytes. None reads there any more what is not checked afterwards.
    pub fn give_back(&self, gpu: &dyn Gpu, of: Option<u32>) -> Result<u64> {
        let mut state = self.state.lock();
        let leaves = |path: &Path| of.is_none_or(|ordinal| ordinal == path.ordinal);
        if !state.paths.iter().any(leaves) {
            return Ok(0);
        }
        // Regions that are open now are read over the GPU's own link from now on.
        while !state.open.is_empty() {
            if let Err(error) = state.close(gpu, 0) {
                state.open.clear();
                state.paths.clear();
                return Err(error).doing(|| "giving memory of copies back".to_owned());
            }
        }
        let gone = state
            .paths
            .iter()
            .filter(|path| leaves(path))
            .map(|path| path.memory.bytes())
            .sum();
        // Relaxed: a count that nothing is ordered by.
        self.given_back.fetch_add(gone, Ordering::Relaxed);
        state.paths.retain(|path| !leaves(path));
        Ok(gone)
    }

    /// Brings chunks while launches run that read in order.
    fn turn(&self, stop: &AtomicBool, busy: impl Fn() -> bool) -> Result<(), GpuError> {
        self.waker.get_or_init(|| {
            // SAFETY: it sets how late this thread's own sleeps may end, ns.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
            std::thread::current()
        });
        // A launch is about to begin, and is in flight soon.
        let now = Instant::now();
        let mut seen = if self.woken.swap(false, Ordering::Relaxed) {
            Some(now)
        } else {
            None
        };
        // Relaxed: it only ends the turn.
        while !stop.load(Ordering::Relaxed) {
            let read = self.state.lock().step(self.chunk_bytes)?;
            if read {
                seen = Some(Instant::now());
            }
            let quiet = seen.is_none_or(|seen| seen.elapsed() > PATIENCE);
            if quiet && !busy() {
                self.state.lock().report();
                return Ok(());
            }
            std::thread::park_timeout(if quiet { QUIET_LOOK } else { LOOK });
        }
        Ok(())
    }
}

impl State {
    /// Tells what was brought since the last report.
    fn report(&mut self) {
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
    fn step(&mut self, chunk_bytes: u64) -> Result<bool, GpuError> {
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
        for n in 0..paths {
            let of_path = wanted.iter().filter(|(_, chunk)| path_of(*chunk, paths) == n);
            let free = self.tend(n, now);
            let (mut held, mut coming) = (Vec::new(), Vec::new());
            for (&(mirror, chunk), slot) in of_path.take(rooms[n]).zip(free) {
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

    /// Ends the copies of a region that is open.
    fn close(&mut self, gpu: &dyn Gpu, at: usize) -> Result<(), GpuError> {
        let open = self.open.swap_remove(at);
        let number = open.mirror.number;
        // Also of what takes its names away.
        while self.paths.iter().any(|path| !path.flying.is_empty()) {
            self.land()?;
        }
        for slot in self.paths.iter_mut().flat_map(|path| &mut path.slots) {
            slot.holder.take_if(|(holder, _)| *holder == number);
        }
        if open.held.is_empty() && open.streams.saw_nothing() {
            return Ok(());
        }
        open.mirror.forget_reads();
        gpu.write(open.mirror.entries.addr(), &vec![0; open.mirror.chunks as usize * 8])
    }
}

/// The path that brings a chunk, of so many: the first chunk of each `paths` + 1 in a row is left to faults.
fn path_of(chunk: u64, paths: usize) -> usize {
    (chunk % (paths as u64 + 1)) as usize - 1
}

impl Path {
    fn chunks_flying(&self) -> usize {
        self.flying.iter().flatten().count()
    }

    /// Device address of a slot's word, or of the one that is 0.
    fn word_addr(&self, slot: usize) -> u64 {
        self.words.device_addr() + slot as u64 * 8
    }
}

impl PagedGpu {
    /// Has chunks brought while launches run.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub(super) fn keep_mirrors(self: &Arc<Self>) -> Result<()> {
        // A GPU that follows a seed has no time of its own.
        if self.mirrors().is_none() || self.capabilities().deterministic {
            return Ok(());
        }
        let gpu = Arc::downgrade(self);
        let turn = move |stop: &AtomicBool| {
            let Some(gpu) = gpu.upgrade() else { return false };
            let Some(mirrors) = gpu.mirrors() else { return false };
            let turned = mirrors.turn(stop, || !gpu.lock().in_flight.is_empty());
            if let Err(error) = turned {
                // Faults go on over the GPU's own link.
                tracing::warn!(
                    "nothing is brought over a second path any more: {}",
                    with_causes(&error)
                );
                let _ = mirrors.give_back(&*gpu.device, None);
                return false;
            }
            gpu.device.lost().is_none()
        };
        let keeper = Background::start("gpuvm paths", PERIOD, turn);
        self.keep(keeper.map_err(|source| Error::Thread { source })?);
        Ok(())
    }
}
