//! Chunks of regions that neighbours' copy engines bring to their memory, ahead of kernels that read them in order (HUVM, USENIX ATC 2022):
//! such kernels fetch a part of their pages over a neighbour's link to the host, and the rest over their GPU's own. What lanes do with
//! such copies is in `detail/mirror.cuh`; here is who makes them, and who says that they are none any more.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::Thread,
    time::{Duration, Instant},
};

use gpuvm_gpu::{Copier, CopySpan, DeviceMemory, Gpu, GpuError, HostMemory};
use gpuvm_layouts::{MirrorDesc, MirrorEntry};
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
const FLYING: usize = 4;
/// Chunks that copies are made ahead of a reader, besides those that it is seen to come.
const AHEAD: usize = 2 * FLYING;
/// Fewest chunks a neighbour: what is ahead of a reader, twice.
const SLOTS_MIN: u64 = 4 * FLYING as u64;
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
    entries: DeviceArray<MirrorEntry>,
    /// An entry a chunk as it was read last, and behind them the word of each that is to be written.
    shadow: HostMemory,
    chunks: u64,
    /// Device address of the region's home, and its length.
    home: u64,
    bytes: u64,
}

impl Mirror {
    /// Address of the [`MirrorDesc`].
    pub fn addr(&self) -> u64 {
        self.desc.addr()
    }

    /// The copy of all entries' uses.
    fn look_span(&self) -> CopySpan {
        CopySpan {
            to: self.shadow.device_addr(),
            from: self.entries.addr(),
            bytes: self.chunks * size_of::<MirrorEntry>() as u64,
        }
    }

    /// The uses that were read last.
    fn uses(&self) -> Vec<u32> {
        // SAFETY: the memory has an entry a chunk, zeroed at first, and is this value's own. The one copy that writes it has ended.
        let entries =
            unsafe { std::slice::from_raw_parts(self.shadow.host_ptr().cast::<MirrorEntry>(), self.chunks as usize) };
        entries.iter().map(|entry| entry.uses).collect()
    }

    /// Puts the word of a chunk where a copy to the GPU reads it, and returns that copy.
    fn name_span(&self, chunk: u64, copy: u64) -> CopySpan {
        let at = self.chunks * size_of::<MirrorEntry>() as u64 + chunk * 8;
        // SAFETY: behind the entries there is a word a chunk. A copy that reads it is over before the next one of the same chunk begins:
        // those of one chunk are made in turn, and each is waited for before the chunk's memory is used otherwise.
        unsafe {
            self.shadow
                .host_ptr()
                .add(at as usize)
                .cast::<u64>()
                .write_volatile(copy)
        };
        CopySpan {
            to: self.entries.addr() + chunk * size_of::<MirrorEntry>() as u64,
            from: self.shadow.device_addr() + at,
            bytes: 8,
        }
    }
}

/// Memory at one neighbour, and what brings chunks there.
struct Path {
    ordinal: u32,
    // Dropped first: it waits for copies to the memory.
    copier: Arc<dyn Copier>,
    memory: DeviceMemory,
    slots: Vec<Slot>,
    /// The slot whose copy is the oldest.
    oldest: usize,
    flying: VecDeque<Coming>,
    /// Copies that have arrived.
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
}

/// A copy on its way.
struct Coming {
    mirror: u64,
    chunk: u64,
    slot: usize,
}

/// A region that launches read and none may write.
struct Open {
    mirror: Arc<Mirror>,
    /// Chunks that have a copy, or are about to.
    held: HashMap<u64, u64>,
    streams: Streams,
}

struct State {
    paths: Vec<Path>,
    open: Vec<Open>,
    /// Copies of entries, both ways.
    own: Arc<dyn Copier>,
    submitted: u64,
}

/// The copies of all regions of one GPU.
pub(crate) struct Mirrors {
    state: Mutex<State>,
    chunk_bytes: u64,
    numbers: AtomicU64,
    /// Bytes.
    given_back: AtomicU64,
    waker: OnceLock<Thread>,
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
                slots: vec![Slot::default(); slots as usize],
                oldest: 0,
                flying: VecDeque::new(),
                arrived: 0,
                pace: Pace::default(),
            });
        }
        let own = gpu.copier().doing(|| "opening second paths".to_owned())?;
        Ok(Some(Self {
            state: Mutex::new(State {
                paths,
                open: Vec::new(),
                own,
                submitted: 0,
            }),
            chunk_bytes,
            numbers: AtomicU64::new(1),
            given_back: AtomicU64::new(0),
            waker: OnceLock::new(),
        }))
    }

    /// What a region of so many bytes, whose home lies at the device address `home`, needs to be mirrored.
    pub fn mirror(&self, gpu: &dyn Gpu, home: u64, bytes: u64, page_shift: u32) -> Result<Mirror, GpuError> {
        let chunks = bytes.div_ceil(self.chunk_bytes).max(1);
        let entries = DeviceArray::zeroed(gpu, chunks)?;
        let desc = MirrorDesc {
            entries: entries.addr(),
            chunk_mask: self.chunk_bytes - 1,
            page_shift: self.chunk_bytes.trailing_zeros() - page_shift,
            pad: 0,
        };
        Ok(Mirror {
            // Relaxed: only uniqueness matters.
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            desc: DeviceArray::from_slice(gpu, &[desc])?,
            entries,
            shadow: gpu.allocate_host(chunks * (size_of::<MirrorEntry>() as u64 + 8))?,
            chunks,
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
            held: HashMap::new(),
            streams: Streams::default(),
        });
        drop(state);
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
        let closed = state.close(gpu, at, self.chunk_bytes);
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
            if let Err(error) = state.close(gpu, 0, self.chunk_bytes) {
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
        self.waker.get_or_init(std::thread::current);
        let mut seen = Instant::now();
        // Relaxed: it only ends the turn.
        while !stop.load(Ordering::Relaxed) {
            let read = self.state.lock().step(self.chunk_bytes)?;
            if read {
                seen = Instant::now();
            }
            let quiet = seen.elapsed() > PATIENCE;
            if quiet && !busy() {
                return Ok(());
            }
            std::thread::park_timeout(if quiet { QUIET_LOOK } else { LOOK });
        }
        Ok(())
    }
}

impl State {
    /// Copies entries and waits until that is done: it takes as long as one transfer.
    fn copy_entries(&mut self, spans: &[CopySpan]) -> Result<(), GpuError> {
        if spans.is_empty() {
            return Ok(());
        }
        // SAFETY: entries and their shadows, which live as long as their region is open, or is being closed by who called; all copies have
        // ended when this returns. Lanes read and count there by atomics.
        unsafe { self.own.submit(spans, &[])? };
        self.submitted += 1;
        while self.own.completed()? < self.submitted {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn opened(&mut self, number: u64) -> Option<&mut Open> {
        self.open.iter_mut().find(|open| open.mirror.number == number)
    }

    /// Takes copies that have arrived, and lets words name them. Whether there were some.
    fn land(&mut self, chunk_bytes: u64) -> Result<bool, GpuError> {
        let mut landed = Vec::new();
        for (n, path) in self.paths.iter_mut().enumerate() {
            let arrived = path.copier.completed()?;
            while path.arrived < arrived {
                path.arrived += 1;
                landed.extend(path.flying.pop_front().map(|coming| (n, coming)));
                path.pace.arrived(Instant::now(), !path.flying.is_empty());
            }
        }
        let mut spans = Vec::new();
        for (n, Coming { mirror, chunk, slot }) in &landed {
            let path = &mut self.paths[*n];
            let address = path.address(*slot, chunk_bytes);
            path.slots[*slot].bringings += 1;
            let copy = address | (path.slots[*slot].bringings & (chunk_bytes - 1));
            match self.opened(*mirror) {
                Some(open) => {
                    open.held.insert(*chunk, copy);
                    spans.push(open.mirror.name_span(*chunk, copy));
                }
                // Closed meanwhile.
                None => self.paths[*n].slots[*slot].holder = None,
            }
        }
        self.copy_entries(&spans)?;
        Ok(!landed.is_empty())
    }

    /// One look, and what follows from it. Whether somebody reads in order, or a copy came.
    fn step(&mut self, chunk_bytes: u64) -> Result<bool, GpuError> {
        let landed = self.land(chunk_bytes)?;
        let now = Instant::now();
        let free = |path: &Path| path.flying.len() < FLYING && !path.pace.rests(now);
        if self.open.is_empty() || !self.paths.iter().any(free) {
            return Ok(landed);
        }
        let looks: Vec<CopySpan> = self.open.iter().map(|open| open.mirror.look_span()).collect();
        self.copy_entries(&looks)?;
        let (mut wanted, paths) = (Vec::new(), self.paths.len());
        for open in &mut self.open {
            let ahead = open.streams.look(&open.mirror.uses(), paths, AHEAD * paths);
            let new = ahead.into_iter().filter(|chunk| !open.held.contains_key(chunk));
            wanted.extend(new.map(|chunk| (open.mirror.number, chunk)));
        }
        let mut taken = Vec::new();
        for (mirror, chunk) in wanted.iter().copied() {
            let n = (chunk % (paths as u64 + 1)) as usize - 1;
            let waiting = taken.iter().filter(|(path, _)| *path == n).count();
            let path = &mut self.paths[n];
            if path.flying.len() + waiting < FLYING && !path.pace.rests(now) {
                let slot = path.oldest;
                path.oldest = (slot + 1) % path.slots.len();
                taken.push((n, Coming { mirror, chunk, slot }));
            }
        }
        self.unname(&taken)?;
        for (n, coming) in taken {
            self.bring(n, coming, chunk_bytes)?;
        }
        Ok(landed || !wanted.is_empty())
    }

    /// Takes the names of what is in these slots out of entries, and waits until no lane can find them there.
    fn unname(&mut self, taken: &[(usize, Coming)]) -> Result<(), GpuError> {
        let mut spans = Vec::new();
        for (n, coming) in taken {
            let held = self.paths[*n].slots[coming.slot].holder.take();
            let Some((number, chunk)) = held else { continue };
            if let Some(open) = self.opened(number)
                && open.held.remove(&chunk).is_some_and(|copy| copy != 0)
            {
                spans.push(open.mirror.name_span(chunk, 0));
            }
        }
        self.copy_entries(&spans)
    }

    /// Has a path bring a chunk to one of its slots, which no entry names.
    fn bring(&mut self, n: usize, coming: Coming, chunk_bytes: u64) -> Result<(), GpuError> {
        let Some(open) = self.open.iter_mut().find(|open| open.mirror.number == coming.mirror) else {
            return Ok(());
        };
        let path = &mut self.paths[n];
        let start = coming.chunk * chunk_bytes;
        let span = CopySpan {
            to: path.address(coming.slot, chunk_bytes),
            from: open.mirror.home + start,
            bytes: chunk_bytes.min(open.mirror.bytes - start),
        };
        // SAFETY: a slot of the path's own memory, which no entry names, so that lanes who read there still take nothing of it; and a part
        // of a region's home, which is registered until the region was closed, which waits for this copy. The host may write it when the
        // launches that read it have ended: what came then is named to nobody, since the next launch closes first.
        unsafe { path.copier.submit(&[span], &[])? };
        path.pace.begun(Instant::now());
        path.slots[coming.slot].holder = Some((coming.mirror, coming.chunk));
        open.held.insert(coming.chunk, 0);
        path.flying.push_back(coming);
        Ok(())
    }

    /// Ends the copies of a region that is open.
    fn close(&mut self, gpu: &dyn Gpu, at: usize, chunk_bytes: u64) -> Result<(), GpuError> {
        let open = self.open.swap_remove(at);
        let number = open.mirror.number;
        let flies = |path: &Path| path.flying.iter().any(|coming| coming.mirror == number);
        while self.paths.iter().any(flies) {
            self.land(chunk_bytes)?;
        }
        for slot in self.paths.iter_mut().flat_map(|path| &mut path.slots) {
            slot.holder.take_if(|(holder, _)| *holder == number);
        }
        if open.held.is_empty() && open.streams.saw_nothing() {
            return Ok(());
        }
        let none = vec![crate::device::zero::<MirrorEntry>(); open.mirror.chunks as usize];
        open.mirror.entries.write(gpu, 0, &none)
    }
}

impl Path {
    fn address(&self, slot: usize, chunk_bytes: u64) -> u64 {
        self.memory.addr().next_multiple_of(chunk_bytes) + slot as u64 * chunk_bytes
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
