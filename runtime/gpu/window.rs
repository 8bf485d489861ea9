//! Where regions lie for kernels whose PTX was rewritten: a range of addresses, a *window*, with an entry and a mark for each of its pages.
//! `gpuvm-ptx` defines both. Nothing is mapped at the window's addresses themselves, unless it lies over the homes.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Weak},
};

use gpuvm_gpu::{AddressSpace, Gpu};
use gpuvm_ptx::{ENTRY_BYTES, GRANULE_BYTES, TableLayout};
use parking_lot::Mutex;

use crate::{
    error::{Doing, Error, Result},
    handles::{Handle, Handles},
};

/// Pages of a window: 4 TiB of pages of 4 KiB. Only addresses are taken for those that no region has.
const PAGES: u64 = 1 << 30;

/// The window of a GPU.
pub(crate) struct Window {
    /// As the variable `gpuvm_window` describes it.
    pub described: gpuvm_ptx::Window,
    page_shift: u32,
    /// None of a window over the homes.
    addresses: Option<Arc<dyn AddressSpace>>,
    entries: Table,
    marks: Table,
    slots: Mutex<Slots>,
}

/// A table of which only what is used has memory. What has some keeps it.
struct Table {
    space: Arc<dyn AddressSpace>,
    /// By their place.
    held: Mutex<BTreeMap<u64, Handle>>,
}

impl Table {
    fn new(gpu: &dyn Gpu, bytes: u64) -> Result<Self> {
        let bytes = bytes.next_multiple_of(gpu.piece_bytes().max(1));
        let space = gpu.reserve(bytes, &[]).doing(|| "reserving a window's tables".into())?;
        Ok(Self {
            space,
            held: Mutex::default(),
        })
    }

    /// Sees to memory for some bytes, zeros at first.
    fn fill(&self, handles: &Handles, bytes: Range<u64>) -> Result<()> {
        let doing = || "growing a window's tables".to_owned();
        let gpu = &**handles.gpu();
        let (mut held, size) = (self.held.lock(), gpu.piece_bytes());
        let missing: Vec<u64> = (bytes.start / size..bytes.end.div_ceil(size))
            .filter(|place| !held.contains_key(place))
            .collect();
        let more = handles.take(missing.len())?;
        let placing: Vec<_> = missing
            .iter()
            .map(|place| place * size)
            .zip(more.iter().cloned())
            .collect();
        self.space.place(&placing).doing(doing)?;
        for (offset, _) in placing {
            gpu.zero(self.space.addr() + offset, size).doing(doing)?;
        }
        held.extend(missing.into_iter().zip(more));
        Ok(())
    }
}

/// Which pages are taken.
#[derive(Default)]
struct Slots {
    /// Up to here some were.
    end: u64,
    /// Those below that are free, by their number.
    free: BTreeMap<u64, Vec<u64>>,
}

/// Pages of a window that are one region's, until it is dropped.
pub(crate) struct Slot {
    window: Weak<Window>,
    first: u64,
    pages: u64,
}

/// What is where in a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    /// The first page's address.
    pub addr: u64,
    /// Address of its entry.
    pub entries: u64,
    /// Address of its mark.
    pub marks: u64,
}

impl Window {
    /// For addresses and tables of that form; `homes`: over these addresses, at which the homes lie.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Gpu`].
    pub fn new(gpu: &dyn Gpu, layout: &TableLayout, homes: Option<&Range<u64>>) -> Result<Self> {
        if gpu.piece_bytes() == 0 {
            return Err(Error::Unavailable {
                what: "a window for rewritten kernels".into(),
                reason: "this GPU places no memory at addresses: compile the kernels' source".into(),
            });
        }
        let doing = || "reserving addresses for rewritten kernels".to_owned();
        let (addresses, base, pages) = match homes {
            Some(homes) => (None, homes.start, (homes.end - homes.start) >> layout.page_shift()),
            None => {
                // One granule more, to begin at a multiple, and another one, so that other memory is a page away.
                let bytes = (PAGES << layout.page_shift()) + 2 * GRANULE_BYTES;
                let addresses = gpu.reserve(bytes, &[]).doing(doing)?;
                let base = (addresses.addr() + (1 << layout.page_shift())).next_multiple_of(GRANULE_BYTES);
                (Some(addresses), base, PAGES)
            }
        };
        let (entries, marks) = (Table::new(gpu, pages * ENTRY_BYTES)?, Table::new(gpu, pages)?);
        Ok(Self {
            described: gpuvm_ptx::Window {
                base,
                bytes: pages << layout.page_shift(),
                entries: entries.space.addr(),
                marks: marks.space.addr(),
            },
            page_shift: layout.page_shift(),
            addresses,
            entries,
            marks,
            slots: Mutex::default(),
        })
    }

    /// Takes pages for a region whose home is at `home`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when all are taken; as [`Handles::take`].
    pub fn take(self: &Arc<Self>, handles: &Handles, pages: u64, home: u64) -> Result<(Slot, Places)> {
        // In sizes of which there are few, so that those of a region that has ended serve others. What is used alone has memory.
        let (used, pages) = (pages, pages.next_power_of_two());
        let first = if self.is_over_homes() {
            self.page_of_home(home, used)?
        } else {
            let mut slots = self.slots.lock();
            match slots.free.get_mut(&pages).and_then(Vec::pop) {
                Some(first) => first,
                None if pages <= PAGES - slots.end => {
                    let first = slots.end;
                    slots.end += pages;
                    first
                }
                None => {
                    return Err(Error::Unavailable {
                        what: format!("a place of {pages} pages for rewritten kernels"),
                        reason: format!(
                            "regions of up to {PAGES} pages together have one: close some, or choose larger pages"
                        ),
                    });
                }
            }
        };
        let slot = Slot {
            window: Arc::downgrade(self),
            first,
            pages,
        };
        // A look-up that guards share may read the entry before the first one and that behind the last one.
        let all = self.described.bytes >> self.page_shift;
        let (before, behind) = (first.saturating_sub(1), (first + used + 1).min(all));
        self.entries.fill(handles, before * ENTRY_BYTES..behind * ENTRY_BYTES)?;
        self.marks.fill(handles, first..first + used)?;
        // Of the former owner of the place.
        let places = self.places(&slot);
        let cleared = handles.gpu().zero(places.marks, used);
        cleared.doing(|| "clearing marks of a window".into())?;
        Ok((slot, places))
    }

    /// Whether its addresses are those of the homes.
    pub fn is_over_homes(&self) -> bool {
        self.addresses.is_none()
    }

    /// Where this many pages of a home lie.
    fn page_of_home(&self, home: u64, pages: u64) -> Result<u64> {
        let gpuvm_ptx::Window { base, bytes, .. } = self.described;
        let (offset, page) = (home.wrapping_sub(base), 1 << self.page_shift);
        if offset >= bytes || pages > (bytes - offset) >> self.page_shift || !offset.is_multiple_of(page) {
            return Err(Error::Unavailable {
                what: format!("a place of {pages} pages at {home:#x} for rewritten kernels"),
                reason: format!("the window over homes has {bytes} bytes from {base:#x} on, in pages of {page}"),
            });
        }
        Ok(offset >> self.page_shift)
    }

    fn places(&self, slot: &Slot) -> Places {
        Places {
            addr: self.described.base + (slot.first << self.page_shift),
            entries: self.described.entries + slot.first * ENTRY_BYTES,
            marks: self.described.marks + slot.first,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(window) = self.window.upgrade()
            && !window.is_over_homes()
        {
            let mut slots = window.slots.lock();
            slots.free.entry(self.pages).or_default().push(self.first);
        }
    }
}
