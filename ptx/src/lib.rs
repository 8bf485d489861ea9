//! Rewrites PTX so that every access to global memory looks its page up in a table, and goes where the page is.
//!
//! PTX is what nvcc, NVRTC, clang, Triton, Numba and others hand to the driver. So kernels whose source is not available or not to be changed can
//! use paged arrays: nothing of gpuvm is in them before.
//!
//! ```
//! let ptx = b".version 8.0 .target sm_80 .address_size 64
//! .visible .entry zero(.param .u64 at) {
//!     .reg .b64 %a;
//!     ld.param.u64 %a, [at];
//!     st.global.u32 [%a+4], 0;
//!     ret;
//! }";
//! let layout = gpuvm_ptx::TableLayout::new(4096)?;
//! let rewritten = gpuvm_ptx::rewrite(ptx, &layout)?;
//! assert_eq!(rewritten.report.functions[0].count(gpuvm_ptx::Access::Store), 1);
//! assert!(rewritten.text.contains("st.global.u32 [%gpuvm_a], 0;"));
//! # Ok::<(), gpuvm_ptx::PtxError>(())
//! ```
//!
//! [`rewrite`] does all of it; [`TableLayout`] has the table's form, [`Window`] what the host fills in, and [`Report`] what was done and
//! what was left. [`Module`] is the text as a list of statements. `docs/PTX.md` says what holds for rewritten kernels.

mod access;
mod bases;
mod calls;
mod error;
pub mod exec;
mod fat_binary;
mod look_up;
mod model;
mod names;
mod origin;
mod parse;
mod report;
mod rewrite;
mod sharing;
mod table;
mod tokens;

pub use access::{Access, Left};
pub use bases::AccessBases;
pub use calls::{LAUNCH, rewrite_to_calls, with_library};
pub use error::{Position, PtxError};
pub use fat_binary::{EmbeddedPtx, FatBinaryError, Reach, best, embedded, is_binary};
pub use model::{
    Address, Declaration, Declared, Function, Guard, Instruction, Item, Module, Offset, Operand, Parameter, Space,
    Statement, StatementKind,
};
pub use report::{Changed, FunctionReport, LeftAlone, Report};
pub use rewrite::{Rewritten, rewrite};
pub use table::{
    AT_HOME, ENTRY_BYTES, GRANULE_BYTES, PAGE_BYTES_MAX, PAGE_BYTES_MIN, PAGES_MAX, PLACE_ALIGNMENT, QUIET, REGISTERS,
    TableLayout, WINDOW, Window,
};
