//! Chunks of regions that neighbours' copy engines bring to their memory, ahead of kernels that read them in order (HUVM, USENIX ATC 2022):
//! such kernels fetch a part of their pages over a neighbour's link to the host, and the rest over their GPU's own. What lanes do with
//! such copies is in `detail/mirror.cuh`; here is who makes them, and who says that they are none any more.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::Thread,
    time::{Duration, Instant},
};

use gpuvm_gpu::{CopySpan, DeviceMemory, Gpu, GpuError, HostMemory};
use gpuvm_layouts::{MIRROR_USE_BYTES, MirrorDesc};
use gpuvm_nic::with_causes;
use parking_lot::Mutex;

use super::PagedGpu;
use crate::{
    background::Background,
    device::DeviceArray,
    error::{Doing, Error, Result},
    plan::Settings,
};

mod copies;
mod pace;
mod streams;

use copies::{Path, State};

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
    /// [`Error::Gpu`] when a neighbour has no such memory, or no path leads there.
    pub fn new(gpu: &dyn Gpu, settings: &Settings) -> Result<Option<Self>> {
        if settings.second_path == 0 {
            return Ok(None);
        }
        let chunk_bytes = settings.mirror_bytes();
        let slots = settings.second_path / chunk_bytes;
        let open = |(ordinal, _)| {
            let path = Path::new(gpu, ordinal, slots, chunk_bytes);
            path.doing(|| format!("opening a second path through GPU {ordinal}"))
        };
        let paths = settings.lenders(gpu).into_iter().map(open).collect::<Result<_>>()?;
        Ok(Some(Self {
            state: Mutex::new(State::new(paths)),
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
        let ordinals = self.state.lock().ordinals();
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
        self.state.lock().bytes()
    }

    /// Bytes that were given back so far.
    pub fn given_back_bytes(&self) -> u64 {
        // Relaxed: as above.
        self.given_back.load(Ordering::Relaxed)
    }

    /// A launch will read the region, and none may write it until [`close`](Self::close): its home holds everything.
    pub fn open(&self, mirror: &Arc<Mirror>) {
        let mut state = self.state.lock();
        if !state.open(mirror) {
            return;
        }
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
    /// The driver's, where the region may have copies still: a launch that may write it must not begin.
    pub fn close(&self, gpu: &dyn Gpu, mirror: &Mirror) -> Result<()> {
        let closed = self.state.lock().close(gpu, mirror.number);
        closed.doing(|| "ending the copies of a region at a neighbour".to_owned())
    }

    /// Gives a neighbour its memory back, or all of them: how many bytes. None reads there any more what is not checked afterwards.
    pub fn give_back(&self, gpu: &dyn Gpu, of: Option<u32>) -> Result<u64> {
        let gone = self.state.lock().give_back(gpu, of);
        let gone = gone.doing(|| "giving memory of copies back".to_owned())?;
        // Relaxed: a count that nothing is ordered by.
        self.given_back.fetch_add(gone, Ordering::Relaxed);
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
        let mut seen = self.woken.swap(false, Ordering::Relaxed).then_some(now);
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
                // Faults go on over the GPU's own link. Where entries could not be cleared, the next launch tries again.
                tracing::warn!("nothing is brought over second paths any more: {}", with_causes(&error));
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
