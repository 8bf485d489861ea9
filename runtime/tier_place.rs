//! Where chunks of tiered buffers lie.

use std::{fmt, str::FromStr};

/// Where a chunk of a tiered buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TierPlace {
    /// In the memory of the buffer's GPU.
    Gpu,
    /// In pinned host memory, which kernels reach over the wire.
    Host,
}

impl TierPlace {
    /// `gpu` or `host`, as faces in other languages name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Host => "host",
        }
    }
}

impl FromStr for TierPlace {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let places = [Self::Gpu, Self::Host];
        let found = places.into_iter().find(|place| place.name() == name);
        found.ok_or_else(|| format!("place is {name:?}: expected \"gpu\" or \"host\""))
    }
}

impl fmt::Display for TierPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpu => "the GPU",
            Self::Host => "host memory",
        })
    }
}
