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

use gpuvm_gpu::{Gpu, GpuError};
use gpuvm_layouts::{MIRROR_USE_BYTES, MirrorDesc};
use parking_lot::Mutex;

use crate::{
    device::DeviceArray,
    error::{Doing, Result},
    plan::Settings,
};

mod chunks;
mod copies;
mod pace;
mod streams;

pub(crate) use chunks::Mirror;
use copies::{Path, State};

/// How long the thread rests between two looks while a region is read in order.
const LOOK: Duration = Duration::from_micros(20);
/// How long it rests while launches run that read in no order, or nothing.
const QUIET_LOOK: Duration = Duration::from_millis(1);
/// How long after the last sign of such a reader it looks on.
const PATIENCE: Duration = Duration::from_millis(2);

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

    /// Brings chunks while launches run that read in order, in the thread that calls it, always the same.
    ///
    /// # Errors
    /// The driver's.
    pub fn turn(&self, stop: &AtomicBool, busy: impl Fn() -> bool) -> Result<(), GpuError> {
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
