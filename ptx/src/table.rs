//! The table that rewritten accesses look up, and the instructions that do it. This is the one place that defines both.
//!
//! A *window* of device addresses holds all paged arrays that a module's kernels may be given. It is described by one variable in
//! constant memory, [`WINDOW`], which the host fills before the first launch with a [`Window`]. Page number
//! `(address - base) >> page_shift` has
//!
//! - an *entry* of 8 bytes: the complete address where the page's bytes are now, in a frame or at home. It needs the alignment of the
//!   widest access (32 bytes) and no more. With [`TableLayout::touches`] its lowest bit, [`AT_HOME`], says that the page is at home.
//! - a *mark*, a byte of its own: 1 after a store, an atomic, a reduction or a discard to the page, wherever the page is; with
//!   [`TableLayout::touches`] also after a load from a page at home. The mark is set before the access.
//!
//! Within a launch no entry changes: entries are read by `ld.global.nc`. An address outside of the window is used as it is, so kernels
//! take other memory too, and generic addresses of shared and local memory need no care. Each element and each vector is aligned to its
//! size, as PTX demands, and pages are at least 512 bytes, so that none lies in two pages.

use std::fmt::{self, Write as _};

use crate::access::Access;
use crate::error::PtxError;
use crate::model::{Address, Guard};

/// The variable that describes the window: `.visible .const .align 8 .b8 gpuvm_window[32]`. The driver finds it by its name
/// (`cuModuleGetGlobal`), in each module.
pub const WINDOW: &str = "gpuvm_window";
/// What names of the rewritten text's own registers begin with.
pub const REGISTERS: &str = "%gpuvm_";
/// Bit of an entry, with [`TableLayout::touches`]: the page is at home. Without, entries have no flags.
pub const AT_HOME: u64 = 1;
/// Bytes of an entry.
pub const ENTRY_BYTES: u64 = 8;
/// Smallest page.
pub const PAGE_BYTES_MIN: u64 = 512;
/// Largest page.
pub const PAGE_BYTES_MAX: u64 = 2 << 20;

/// What the host writes to [`WINDOW`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// The window's first address, a multiple of the page size.
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
        })
    }

    /// Loads mark pages at home too, and entries have [`AT_HOME`].
    #[must_use]
    pub fn touches(mut self, touches: bool) -> Self {
        self.touches = touches;
        self
    }

    /// Base-two logarithm of the page size.
    #[must_use]
    pub fn page_shift(&self) -> u32 {
        self.page_shift
    }

    /// The variable's declaration.
    pub(crate) fn declaration(&self) -> String {
        format!("\n.visible .const .align 8 .b8 {WINDOW}[{}];", Window::BYTES)
    }

    /// Opens a block in which `%gpuvm_a` is the address where an access has to go.
    pub(crate) fn look_up(&self, access: Access, guard: Option<Guard<'_>>, address: &Address<'_>) -> String {
        let mut text = String::with_capacity(900);
        // Writing to a string does not fail.
        let _ = self.write(&mut text, access, guard, address);
        text
    }

    fn write(
        &self,
        out: &mut String,
        access: Access,
        guard: Option<Guard<'_>>,
        address: &Address<'_>,
    ) -> fmt::Result {
        out.push_str("{ .reg .b64 %gpuvm_a, %gpuvm_o, %gpuvm_i, %gpuvm_e, %gpuvm_w; .reg .pred %gpuvm_p;\n");
        match address.offset {
            None => writeln!(out, "\tmov.b64 %gpuvm_a, {};", address.base)?,
            Some(offset) if !offset.subtracted => {
                writeln!(out, "\tadd.s64 %gpuvm_a, {}, {};", address.base, offset.text)?;
            }
            Some(offset) => writeln!(out, "\tsub.s64 %gpuvm_a, {}, {};", address.base, offset.text)?,
        }
        // The window's four numbers are operands in constant memory, not loads.
        write!(
            out,
            "\tld.const.u64 %gpuvm_w, [{WINDOW}];\n\tsub.s64 %gpuvm_o, %gpuvm_a, %gpuvm_w;\n\
             \tld.const.u64 %gpuvm_w, [{WINDOW}+8];\n"
        )?;
        match guard {
            // Only threads that access look up.
            Some(Guard { register, negated }) => {
                let not = if negated { "!" } else { "" };
                writeln!(out, "\tsetp.lt.and.u64 %gpuvm_p, %gpuvm_o, %gpuvm_w, {not}{register};")?;
            }
            None => out.push_str("\tsetp.lt.u64 %gpuvm_p, %gpuvm_o, %gpuvm_w;\n"),
        }
        let (shift, mask) = (self.page_shift, (1_u64 << self.page_shift) - 1);
        write!(
            out,
            "\tshr.u64 %gpuvm_i, %gpuvm_o, {shift};\n\tshl.b64 %gpuvm_e, %gpuvm_i, 3;\n\
             \tld.const.u64 %gpuvm_w, [{WINDOW}+16];\n\tadd.s64 %gpuvm_e, %gpuvm_w, %gpuvm_e;\n\
             \t@%gpuvm_p ld.global.nc.u64 %gpuvm_e, [%gpuvm_e];\n\tand.b64 %gpuvm_o, %gpuvm_o, {mask};\n"
        )?;
        let touches = self.touches && access.reads() && !access.writes();
        if touches {
            out.push_str(
                "\t.reg .b64 %gpuvm_h; .reg .pred %gpuvm_q; and.b64 %gpuvm_h, %gpuvm_e, 1;\n\
                 \tsetp.ne.and.s64 %gpuvm_q, %gpuvm_h, 0, %gpuvm_p;\n",
            );
        }
        if self.touches {
            out.push_str("\tand.b64 %gpuvm_e, %gpuvm_e, -2;\n");
        }
        out.push_str("\t@%gpuvm_p add.s64 %gpuvm_a, %gpuvm_e, %gpuvm_o;\n");
        if touches || access.writes() {
            let when = if touches { 'q' } else { 'p' };
            write!(
                out,
                "\t.reg .b16 %gpuvm_1; mov.u16 %gpuvm_1, 1; ld.const.u64 %gpuvm_w, [{WINDOW}+24];\n\
                 \tadd.s64 %gpuvm_w, %gpuvm_w, %gpuvm_i;\n\t@%gpuvm_{when} st.global.u8 [%gpuvm_w], %gpuvm_1;\n"
            )?;
        }
        Ok(())
    }
}
