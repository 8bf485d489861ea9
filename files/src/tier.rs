//! The tier: files are opened behind it.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU64},
};

use parking_lot::Mutex;

use crate::{
    FileError,
    device::DeviceSlots,
    engine::Engines,
    file::File,
    perfect,
    shared::{SLOTS_LEAST, Shared, TierOptions},
    slots::{Memory, Slots, TierStats},
    storage::{Storage, SystemFile},
};

/// A page cache for files, of a fixed number of bytes. Clones are the same tier.
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
    /// `base` is aligned to 4 KiB and valid for reads and writes of `bytes` bytes until `keeper` is dropped; nothing else touches the memory but
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

impl File {
    /// The tier before it.
    pub fn tier(&self) -> Tier {
        Tier(Arc::clone(&self.tier))
    }
}
