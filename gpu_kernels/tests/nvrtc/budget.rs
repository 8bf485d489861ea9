//! What each kernel may take.
//!
//! Registers are given to threads by eights, so budgets are multiples of eight; each is the most over the compute
//! capabilities that are compiled for, with the chain of functions of the fault path, which costs most of them: a hit
//! does not need them, but a thread that may fault has them. Kernels that want the multiprocessor full say so with
//! `__launch_bounds__(threads, blocks)`; then the fault path keeps what does not fit in local memory, and the bytes
//! that it may spill are bounded here. Without such a cap no kernel spills, with one exception that says why.
//! Where lanes copy pages themselves kernels took up to 16 registers less before a miss weighed what to do with its page,
//! and before stores could go to its home.
//! Before a warp turned the clock for the frames that its lanes lack, nine kernels kept budgets of up to 4 registers or 132 bytes less.

mod alone;
mod files;
mod timeline;

use std::fmt;

pub use alone::SIMULATED_ALONE;
use alone::{OTHERS_ALONE, TESTS_ALONE};
pub use files::{ALL, BORROWING, FILES, GUARDED};
pub use timeline::TIMELINE;

/// A file, compiled once a form and compute capability.
pub struct File {
    /// From the root of the repository.
    pub path: &'static str,
    /// Macros and their values.
    pub defines: &'static [(&'static str, &'static str)],
    /// Its kernels, with arguments where they are templates.
    pub kernels: &'static [Kernel],
}

impl File {
    /// Whether it is a test, which runs on the architecture that is measured on, or an application.
    pub fn is_test_or_application(&self) -> bool {
        let applications = ["workloads/src/apps/", "workloads/src/gps/"];
        TESTS_ALONE.contains(&self.path) || applications.iter().any(|folder| self.path.starts_with(folder))
    }

    /// Whether it is compiled for the architecture that is measured on alone. Others beside these have every way to an element, and
    /// are compiled for all.
    pub fn is_for_one_architecture(&self) -> bool {
        let folders = ["workloads/src/", "python/ops/"];
        self.is_test_or_application()
            || OTHERS_ALONE.contains(&self.path)
            || folders.iter().any(|folder| self.path.starts_with(folder))
    }

    /// Whether the number of frames may change.
    pub fn is_resizable(&self) -> bool {
        self.defines.iter().any(|(name, _)| *name == "RESIZABLE")
    }

    /// Whether its kernels note what happens in a timeline.
    pub fn has_timeline(&self) -> bool {
        self.defines.iter().any(|(name, _)| *name == "TIMELINE")
    }

    /// Whether its pages have their home at a neighbour GPU: only lanes reach them.
    pub fn is_for_neighbours(&self) -> bool {
        self.defines.iter().any(|(name, _)| *name == "BENCH_NEIGHBOUR")
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path)?;
        let mut defines = self.defines.iter();
        defines.try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// A kernel and what it may take in each form of the device library.
pub struct Kernel {
    pub name: &'static str,
    /// It has no paged data, so that both forms are the same.
    pub is_plain: bool,
    pub direct: Limit,
    pub queued: Limit,
}

/// The most that a kernel may take.
#[derive(Clone, Copy)]
pub struct Limit {
    pub registers: u32,
    /// Stores and loads together.
    pub spilled_bytes: u32,
}

/// A kernel without paged data: it is the same in both forms.
pub(super) const fn plain(name: &'static str, registers: u32) -> Kernel {
    Kernel {
        is_plain: true,
        ..paged(name, registers, registers)
    }
}

/// A kernel that may take these registers where it copies pages itself, and where it asks a NIC.
pub(super) const fn paged(name: &'static str, direct: u32, queued: u32) -> Kernel {
    capped(name, direct, queued, 0, 0)
}

/// A kernel that may take these registers and may spill: bytes in the functions of the fault path, in each form.
pub(super) const fn capped(
    name: &'static str,
    direct: u32,
    queued: u32,
    direct_spilled: u32,
    queued_spilled: u32,
) -> Kernel {
    Kernel {
        name,
        is_plain: false,
        direct: Limit {
            registers: direct,
            spilled_bytes: direct_spilled,
        },
        queued: Limit {
            registers: queued,
            spilled_bytes: queued_spilled,
        },
    }
}

/// A kernel of the form with both, which is always queued.
pub(super) const fn guarded(name: &'static str, registers: u32) -> Kernel {
    paged(name, registers, registers)
}
