//! The table that rewritten accesses look up, and the instructions that do it. This is the one place that defines both.
//!
//! A *window* of device addresses holds all paged arrays that a module's kernels may be given, at the addresses that kernels get. One
//! variable in constant memory, [`WINDOW`], describes it; the host fills it with a [`Window`] before the first launch. The window begins
//! and ends at multiples of [`GRANULE_BYTES`], so that the upper half of an address says whether it is inside. Page number
//! `(address - base) >> page_shift`, which has 32 bits, has
//!
//! - an *entry* of 8 bytes: the address where the page's bytes are now, in a frame or at home, less the page's address in the window.
//!   0 says that they are where the address says, as for memory in the window that is not paged at all. Places and addresses are
//!   equally aligned, to [`PLACE_ALIGNMENT`]. With [`TableLayout::touches`] the entry's lowest bit, [`AT_HOME`], says that a load has to
//!   mark the page. [`TableLayout::entry`] makes entries.
//! - a *mark*, a byte of its own: 1 after a store, an atomic, a reduction or a discard to the page, wherever the page is; with
//!   [`TableLayout::touches`] also after a load from a page at home. The mark is set before the access.
//!
//! Within a launch no entry changes: entries are read by `ld.global.nc`. The entries of the pages before and behind a page that kernels
//! use can be read too, whatever they are: a look-up that accesses with several guards share may read them, and nothing uses what is there.
//! No memory that kernels use lies next to the window. An address outside of the window is used as it is, so kernels
//! take other memory too, and generic addresses of shared and local memory need no care. Each element and each vector is aligned to its
//! size, as PTX demands, and pages are at least 512 bytes, so that none lies in two pages.
//!
//! Why differences and not addresses: an access takes nine machine instructions instead of fourteen, since nothing is masked and nothing
//! is chosen between; and a window may hold what is not paged, so that it can end at round addresses.

use std::ops::Range;

use crate::access::Access;
use crate::error::PtxError;

/// The variable that describes the window: `.visible .const .align 8 .b8 gpuvm_window[32]`. The driver finds it by its name
/// (`cuModuleGetGlobal`), in each module.
pub const WINDOW: &str = "gpuvm_window";
/// What names of the rewritten text's own registers begin with.
pub const REGISTERS: &str = "%gpuvm_";
/// What the names of kernels' second forms begin with, see [`TableLayout::both_forms`]; the rest is the kernel's own name.
pub const QUIET: &str = "gpuvm_quiet_";
/// Bit of an entry, with [`TableLayout::touches`]: loads mark the page. Without, entries have no flags.
pub const AT_HOME: u64 = 1;
/// Bytes of an entry.
pub const ENTRY_BYTES: u64 = 8;
/// The window's base and length are multiples of this.
pub const GRANULE_BYTES: u64 = 4 << 30;
/// Entries are multiples of this but for their flag: the widest access.
pub const PLACE_ALIGNMENT: u64 = 32;
/// Smallest page.
pub const PAGE_BYTES_MIN: u64 = 512;
/// Largest page.
pub const PAGE_BYTES_MAX: u64 = 2 << 20;
/// Pages of a window: the number of one behind its end has 32 bits too.
pub const PAGES_MAX: u64 = (1 << 32) - 1;

/// What the host writes to [`WINDOW`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// The window's first address.
    pub base: u64,
    /// Its length. 0: nothing is paged, and no entry and no mark is read or written.
    pub bytes: u64,
    /// Device address of the entries, [`ENTRY_BYTES`] a page.
    pub entries: u64,
    /// Device address of the marks, a byte a page.
    pub marks: u64,
}

impl Window {
    /// Bytes of the variable.
    pub const BYTES: usize = 32;

    /// The variable's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let fields = [self.base, self.bytes, self.entries, self.marks];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }
}

/// What the rewriter has to know of the table. The rest comes at run time, as [`Window`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLayout {
    page_shift: u32,
    touches: bool,
    form: Form,
}

/// Which loads mark pages, where entries have flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// All.
    Marking,
    /// All, and kernels get a second form.
    Both,
    /// None: it is that form.
    Quiet,
}

impl TableLayout {
    /// For pages of that size.
    ///
    /// # Errors
    ///
    /// The size is not a power of two from [`PAGE_BYTES_MIN`] to [`PAGE_BYTES_MAX`].
    pub fn new(page_bytes: u64) -> Result<Self, PtxError> {
        if !page_bytes.is_power_of_two() || !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes) {
            return Err(PtxError::PageSize { bytes: page_bytes });
        }
        Ok(Self {
            page_shift: page_bytes.trailing_zeros(),
            touches: false,
            form: Form::Marking,
        })
    }

    /// Loads mark pages at home too, and entries have [`AT_HOME`].
    #[must_use]
    pub fn touches(mut self, touches: bool) -> Self {
        self.touches = touches;
        self
    }

    /// With touches: kernels whose loads mark pages get a second form that does the same and marks none, [`QUIET`]. It is for launches
    /// whose pages are all in frames: no loop in which marks are set is unrolled by CUDA's assembler.
    #[must_use]
    pub fn both_forms(mut self, both: bool) -> Self {
        self.form = if both { Form::Both } else { Form::Marking };
        self
    }

    /// Base-two logarithm of the page size.
    #[must_use]
    pub fn page_shift(&self) -> u32 {
        self.page_shift
    }

    /// The smallest window around some addresses, still without tables.
    ///
    /// # Errors
    ///
    /// It has more than [`PAGES_MAX`] pages.
    pub fn window(&self, addresses: Range<u64>) -> Result<Window, PtxError> {
        let base = addresses.start & !(GRANULE_BYTES - 1);
        let bytes = addresses
            .end
            .saturating_sub(base)
            .checked_next_multiple_of(GRANULE_BYTES);
        match bytes.filter(|bytes| bytes >> self.page_shift <= PAGES_MAX && base.checked_add(*bytes).is_some()) {
            Some(bytes) => Ok(Window {
                base,
                bytes,
                ..Window::default()
            }),
            None => Err(PtxError::TooManyPages {
                bytes: addresses.end - addresses.start,
                page_bytes: 1 << self.page_shift,
            }),
        }
    }

    /// Pages of a window: this many entries and marks there have to be.
    #[must_use]
    pub fn pages(&self, window: &Window) -> u64 {
        window.bytes >> self.page_shift
    }

    /// The entry of the page with that address in the window, whose bytes are at `place`. With [`TableLayout::touches`] loads mark a
    /// page that is at home.
    #[must_use]
    pub fn entry(&self, page: u64, place: u64, at_home: bool) -> u64 {
        place.wrapping_sub(page) | (u64::from(self.touches && at_home) * AT_HOME)
    }

    /// Whether entries have [`AT_HOME`].
    pub(crate) fn has_flags(&self) -> bool {
        self.touches
    }

    /// Whether an access marks its page where that is at home.
    pub(crate) fn touches_by(&self, access: Access) -> bool {
        self.touches && self.form != Form::Quiet && access.reads() && !access.writes()
    }

    /// For the second form, over the same entries, where kernels are to have one.
    pub(crate) fn quiet(&self) -> Option<Self> {
        (self.touches && self.form == Form::Both).then_some(Self {
            form: Form::Quiet,
            ..*self
        })
    }

    /// The variable's declaration.
    pub(crate) fn declaration(&self) -> String {
        format!("\n.visible .const .align 8 .b8 {WINDOW}[{}];", Window::BYTES)
    }
}
