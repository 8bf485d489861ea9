//! The tier: its memory, its settings, and the one lock around its slots.

use std::{
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    DeviceSlots, Engine, File, FileError, Piece, Storage,
    engine::Engines,
    file::{OpenFiles, Opened},
    perfect,
    slots::{Memory, Slots},
    storage::{ALIGNMENT, SystemFile},
};

/// Blocks that a call of [`File::read`] or [`File::write`] asks for at a time.
const CHUNK_BLOCKS: u64 = 16;
/// Fewest slots of a tier: what calls that wait ask for at a time, twice, and some that load ahead.
const SLOTS_LEAST: u64 = 4 * CHUNK_BLOCKS;
/// Most reads and writes under way, whatever was asked for.
const DEPTH_MOST: usize = 4096;

/// Settings of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierOptions {
    /// Bytes of a block and of its slot: a power of two, of 4 KiB at least.
    pub block: u64,
    /// Most reads and writes that are under way at a time.
    pub depth: usize,
    /// Who reads and writes.
    pub engine: Engine,
}

impl Default for TierOptions {
    fn default() -> Self {
        Self {
            block: ALIGNMENT,
            depth: 256,
            engine: Engine::Auto,
        }
    }
}

impl TierOptions {
    /// These options with blocks of so many bytes, rounded up to a power of two of 4 KiB at least.
    #[must_use]
    pub fn block(mut self, bytes: u64) -> Self {
        self.block = bytes.clamp(ALIGNMENT, 1 << 40).next_power_of_two();
        self
    }

    /// These options with so many reads and writes under way at most.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth.clamp(1, DEPTH_MOST);
        self
    }

    /// These options with another engine.
    #[must_use]
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Fewest bytes of memory for them.
    pub const fn bytes_least(&self) -> u64 {
        SLOTS_LEAST * self.block
    }
}

/// What a request does with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// Reads them.
    Read,
    /// Writes all of them.
    Write,
}

/// Whether blocks are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    /// They are, and stay until they are released.
    Ready,
    /// Not yet.
    Wait,
}

/// What a tier did since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStats {
    /// Blocks that requests were given.
    pub served: u64,
    /// Blocks read from files.
    pub loaded: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Reads that brought them: neighbours come together.
    pub reads: u64,
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Writes that brought them.
    pub writes: u64,
    /// Reads and writes that failed.
    pub failures: u64,
    /// Blocks that made room for others.
    pub evicted: u64,
    /// Blocks in memory that files do not hold yet.
    pub dirty: u64,
    /// Slots.
    pub slots: u64,
    /// Bytes of a slot.
    pub block: u64,
}

/// What users of a tier share.
pub(crate) struct Shared {
    slots: Mutex<Slots>,
    files: Mutex<OpenFiles>,
    options: TierOptions,
    count: u64,
    engine: &'static str,
    /// Where slots are a device's memory.
    device: Option<Arc<dyn DeviceSlots>>,
    /// See [`File::progress`]. Changed with the lock held, read without.
    progress: AtomicU64,
}

/// A budget of host memory before files. Clones are the same tier.
#[derive(Clone)]
pub struct Tier(pub(crate) Arc<Shared>);

impl std::fmt::Debug for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tier")
            .field("slots", &self.0.count)
            .field("options", &self.0.options)
            .finish()
    }
}

impl Tier {
    /// A tier in `bytes` bytes of memory of its own.
    ///
    /// # Errors
    /// [`FileError::TooSmall`], [`FileError::Memory`]; [`FileError::Ring`] where io_uring was asked for.
    pub fn new(bytes: u64, options: TierOptions) -> Result<Self, FileError> {
        let memory = memmap2::MmapOptions::new().len(bytes as usize).map_anon();
        let mut memory = memory.map_err(|source| FileError::Memory {
            bytes,
            source: Arc::new(source),
        })?;
        let base = memory.as_mut_ptr();
        // SAFETY: the map is the tier's, as long as it lives, and pages of it are aligned.
        unsafe { Self::over(base, bytes, Box::new(memmap2::MmapRaw::from(memory)), options) }
    }

    /// A tier in memory that `keeper` keeps: such as memory that copy engines of a GPU reach.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Safety
    /// `base` is aligned to 4 KiB and valid for reads and writes of `bytes` bytes until `keeper` is dropped; nobody else touches the memory but
    /// by pieces that were [acquired](File::acquire), and not behind their release.
    pub unsafe fn over(
        base: *mut u8,
        bytes: u64,
        keeper: Box<dyn Send + Sync>,
        options: TierOptions,
    ) -> Result<Self, FileError> {
        let base = base.expose_provenance() as u64;
        Self::with(base, bytes, keeper, None, options)
    }

    /// A tier in `bytes` bytes of a device's memory at `base`. Blocks come and go by threads.
    ///
    /// # Errors
    /// [`FileError::TooSmall`].
    ///
    /// # Safety
    /// As [`over`](Self::over), of the device's memory, which `slots` keeps as long as it lives.
    pub unsafe fn on_device(
        base: u64,
        bytes: u64,
        slots: Arc<dyn DeviceSlots>,
        options: TierOptions,
    ) -> Result<Self, FileError> {
        Self::with(base, bytes, Box::new(Arc::clone(&slots)), Some(slots), options)
    }

    fn with(
        base: u64,
        bytes: u64,
        keeper: Box<dyn Send + Sync>,
        device: Option<Arc<dyn DeviceSlots>>,
        options: TierOptions,
    ) -> Result<Self, FileError> {
        let (block, slots) = (options.block, bytes / options.block);
        if slots < SLOTS_LEAST || slots > u64::from(u32::MAX) {
            return Err(FileError::TooSmall {
                bytes,
                block,
                slots,
                least: SLOTS_LEAST,
            });
        }
        let engines = Engines::start(
            options.engine,
            options.depth,
            device.as_ref().map(|device| device.name()),
        )?;
        let engine = engines.name();
        let memory = Memory { base, block, keeper };
        Ok(Self(Arc::new(Shared {
            slots: Mutex::new(Slots::new(memory, slots as u32, engines)),
            files: Mutex::default(),
            options,
            count: slots,
            engine,
            device,
            progress: AtomicU64::new(0),
        })))
    }

    /// Opens a file. Several of one file are one: what one writes the others read.
    ///
    /// # Errors
    /// [`FileError::Open`].
    pub fn open(&self, path: impl AsRef<Path>, writable: bool) -> Result<File, FileError> {
        let path = path.as_ref();
        let failed = |source| FileError::Open {
            path: path.to_owned(),
            source: Arc::new(source),
        };
        let file = SystemFile::open(path, writable).map_err(failed)?;
        self.attach(path, Arc::new(file), writable)
    }

    /// A file of another kind, with a name for errors.
    ///
    /// # Errors
    /// [`FileError::Open`] where it cannot be looked at.
    pub fn attach(&self, name: impl AsRef<Path>, storage: Arc<dyn Storage>, writable: bool) -> Result<File, FileError> {
        let path = name.as_ref().to_owned();
        let failed = |source| FileError::Open {
            path: path.clone(),
            source: Arc::new(source),
        };
        let look = storage.look().map_err(failed)?;
        let device = self.0.device.as_ref();
        let opened = self.0.files.lock().enter(storage, path.clone(), writable, look, device);
        let opened = opened.map_err(failed)?;
        Ok(File {
            tier: Arc::clone(&self.0),
            opened,
        })
    }

    /// Takes note of reads and writes that have ended, and begins others. Whether any had ended. It never waits for a file.
    pub fn poll(&self) -> bool {
        self.0.poll()
    }

    /// Whether reads or writes are under way, so that [`poll`](Self::poll) is to be called.
    pub fn is_busy(&self) -> bool {
        self.0.slots.lock().is_busy()
    }

    /// What it did.
    pub fn stats(&self) -> TierStats {
        TierStats {
            slots: self.0.count,
            block: self.0.options.block,
            ..self.0.slots.lock().stats()
        }
    }

    /// Notes from now on which blocks are asked for, in 16 bytes each, until [`perfect_reads`](Self::perfect_reads).
    pub fn record(&self) {
        self.0.slots.lock().record();
    }

    /// Blocks that a perfect cache of this size would have read for what was asked since [`record`](Self::record), had it known all of that:
    /// no cache reads fewer. None without a record.
    pub fn perfect_reads(&self) -> Option<u64> {
        let asked = self.0.slots.lock().recorded()?;
        Some(perfect::reads(&asked, self.0.count as usize))
    }

    /// What reads and writes: `io_uring`, `threads`, `polled`, or a device's [name](DeviceSlots::name).
    pub fn engine(&self) -> &'static str {
        self.0.engine
    }

    /// Whether both are one.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Shared {
    pub fn chunk_bytes(&self) -> u64 {
        CHUNK_BLOCKS * self.options.block
    }

    pub fn poll(&self) -> bool {
        self.act(Slots::poll)
    }

    pub fn progress(&self) -> u64 {
        // Acquire: who sees a count asks for what had come before it.
        self.progress.load(Ordering::Acquire)
    }

    /// Changes the slots, and says so where others may have waited for that.
    fn act<R>(&self, change: impl FnOnce(&mut Slots) -> R) -> R {
        let mut slots = self.slots.lock();
        let result = change(&mut slots);
        if slots.take_progress() {
            // Release: pairs with the acquire in `progress`.
            self.progress.fetch_add(1, Ordering::Release);
        }
        result
    }

    pub fn expect(&self, file: &Arc<Opened>, span: Range<u64>) -> bool {
        self.slots.lock().expect(file, span)
    }

    pub fn acquire(
        &self,
        file: &Arc<Opened>,
        span: Range<u64>,
        how: How,
        pieces: &mut Vec<Piece>,
    ) -> Result<Got, FileError> {
        self.act(|slots| slots.acquire(file, span, how, pieces))
    }

    pub fn release(&self, pieces: &[Piece], how: How) {
        self.act(|slots| slots.release(pieces, how));
    }

    pub fn retry_writes(&self, file: &Opened) {
        self.slots.lock().retry_writes(file);
    }

    /// Begins to write dirty blocks of the file. Whether it has none, and none is being written.
    pub fn write_some_of(&self, file: &Arc<Opened>) -> Result<bool, FileError> {
        self.slots.lock().write_some_of(file)
    }
}

/// How long blocks wait that could not be written, before their slots' next user has them tried again.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(200);
