//! The ways in which an application's large arrays lie somewhere.

use std::fmt;
use std::str::FromStr;

use gpuvm::Placement;

/// The device header that every application's kernels include.
pub const ACCESS: &str = include_str!("access.cuh");

/// Where large arrays lie, and who brings them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Paged by gpuvm, with that placement.
    Paged(Placement),
    /// Paged by gpuvm, each array with frames of its own, which it keeps: for memory that holds all arrays.
    Resident,
    /// In device memory: the kernels as they would be if everything fitted.
    Raw,
    /// In pinned host memory, read and written in place (EMOGI's way).
    InPlace,
    /// In managed memory, the driver told nothing.
    Managed,
    /// In managed memory whose read-only arrays are `ReadMostly` and others `AccessedBy` the GPU.
    Advised,
    /// In managed memory that is prefetched in one piece at the start of each run.
    Prefetched,
    /// In pinned host memory, copied to the GPU in chunks, of which one travels while another one is worked on.
    Chunked,
}

impl Way {
    /// Every way that is not gpuvm's.
    pub const PEERS: [Self; 6] = [
        Self::Raw,
        Self::InPlace,
        Self::Managed,
        Self::Advised,
        Self::Prefetched,
        Self::Chunked,
    ];

    /// Whether kernels take plain pointers.
    pub(super) fn plain(self) -> bool {
        !matches!(self, Self::Paged(_) | Self::Resident)
    }

    /// What this way is where memory `holds_all` arrays: a GPU that may decide keeps them.
    #[must_use]
    pub fn where_memory(self, holds_all: bool) -> Self {
        match self {
            Self::Paged(Placement::Auto) if holds_all => Self::Resident,
            way => way,
        }
    }

    /// Whether arrays are in CUDA's managed memory.
    pub(super) fn managed(self) -> bool {
        matches!(self, Self::Managed | Self::Advised | Self::Prefetched)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paged(placement) => write!(f, "{placement}"),
            Self::Resident => f.write_str("resident"),
            Self::Raw => f.write_str("raw"),
            Self::InPlace => f.write_str("host"),
            Self::Managed => f.write_str("managed"),
            Self::Advised => f.write_str("advised"),
            Self::Prefetched => f.write_str("prefetched"),
            Self::Chunked => f.write_str("chunked"),
        }
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(placement) = text.parse() {
            return Ok(Self::Paged(placement));
        }
        let found = Self::PEERS
            .into_iter()
            .chain([Self::Resident])
            .find(|way| way.to_string() == text);
        found.ok_or_else(|| {
            format!("`{text}` is none of auto, fetch, in-place, while-free, look-up, resident, raw, host, managed, advised, prefetched, chunked")
        })
    }
}
