//! Where a region's pages are read.

use std::{fmt, str::FromStr};

use gpuvm_layouts as layout;

/// What a kernel's read of an element, `a[i]` or by a reader, does with a page that has no frame. It never changes results; spans and
/// prefetches fetch the page under each.
///
/// Pages of a [read-only](super::RegionBuilder::read_only) region can be read in place where lanes reach its home by loads
/// ([`Transport::Direct`](crate::Transport::Direct)) and the home begins at a multiple of 16 bytes. In any other region, and in one
/// that is never evicted, each of these fetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// The page is fetched, and another one leaves its frame when none is free. Right for data that is used again soon.
    #[default]
    Fetch,
    /// The element is read at the page's home, and the page stays there. Right for scattered reads of which each page sees few.
    InPlace,
    /// The page is fetched while frames are free, and read in place from then on. What came first stays: right for cycles that are
    /// larger than the frames, such as a graph that is searched level by level.
    WhileFree,
}

impl Placement {
    /// The bits of a kernel argument for a read-only region whose home lies at the device address `home`, 0 if lanes do not reach it.
    pub(crate) fn array_flags(self, home: u64) -> u32 {
        match self {
            _ if home == 0 || !home.is_multiple_of(16) => 0,
            Self::Fetch => 0,
            Self::InPlace => layout::ARRAY_IN_PLACE,
            Self::WhileFree => layout::ARRAY_IN_PLACE | layout::ARRAY_FETCH_WHILE_FREE,
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fetch => "fetch",
            Self::InPlace => "in-place",
            Self::WhileFree => "while-free",
        })
    }
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Fetch, Self::InPlace, Self::WhileFree];
        all.into_iter()
            .find(|placement| placement.to_string() == text)
            .ok_or_else(|| format!("`{text}` is none of fetch, in-place, while-free"))
    }
}
