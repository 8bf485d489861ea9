//! The workloads by their names, and what each is compiled for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bench::Kernels;
use crate::kernels::{BROADCAST, LOOKED_UP, PROGRAM, SLOTS, SPANS, SWEEPS, VICTIMS, WORDS};

/// A workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Random programs of every kind of access.
    Random,
    /// Lanes that add to the same few words, on more pages than frames.
    Counters,
    /// Reads, stores and atomics whose times and results are recorded: each word's history must have an order.
    Linear,
    /// Every page is read and written, and leaves again.
    Stream,
    /// A matrix is written across its pages.
    Transpose,
    /// Breadth-first search.
    Bfs,
    /// Warps and lanes hold pages while they touch others.
    Spans,
    /// Pages are asked for ahead, by lanes that stay and by lanes that leave.
    Prefetch,
    /// The host flushes beside kernels that write.
    Flush,
    /// A random program on a region with frames of its own.
    NeverEvicted,
    /// A random program whose lanes copy pages themselves.
    Direct,
    /// A random program like `Direct` with pages so large that all warps that wait for one fill it.
    LargePages,
    /// Like `Bfs`, with lanes that copy pages themselves and read the graph where it lives, always or when no frame is free.
    InPlace,
    /// Like `Linear`, with lanes that copy pages themselves and read words where they live, while others fetch, write and evict them.
    LinearInPlace,
    /// Words that rise, on short pages that take turns in one frame, read where they live all the while.
    Rising,
    /// Like `LinearInPlace`, with stores where words live as well, and reads there or not.
    StoresInPlace,
    /// Random programs whose pages have two homes, which are taken away while they run, and return between launches.
    Replicas,
    /// Homes are taken away and return beside a kernel that writes.
    Returns,
    /// Random programs whose pages have checksums, with bits that flip on the way and at a home.
    Checksums,
    /// Pages leave for a neighbour's memory and come from there, and the neighbour takes it back meanwhile.
    Victims,
    /// Lanes of several GPUs store to an array of which each holds a copy, change the owners' copies, and tell each other.
    Broadcast,
    /// Frames come and go while lanes use pages, and others have the memory of those that went at once.
    Resize,
    /// Like `Resize`, with lanes that copy pages themselves.
    ResizeDirect,
    /// Pages are looked up in some launches and fetched in others, and the host, another GPU and changes of frames come between and beside.
    LookedUp,
    /// Like `LookedUp`, over homes that lanes do not reach: launches look pages up while all have frames.
    Resident,
    /// Like `Returns`, but what goes on beside kernels catches up with homes that have returned.
    CaughtUp,
    /// Frames follow what is free of the GPU's memory, of which others take some and give some back, while lanes use pages.
    Headroom,
    /// Calls of a slot cache fill slots with records, beside lanes that look up what is there.
    Slots,
}

/// A workload that is none.
#[derive(Debug, Error)]
#[error("there is no workload `{name}`; there are {}, and all", names())]
pub struct UnknownWorkload {
    name: String,
}

fn names() -> String {
    let names: Vec<&str> = Workload::ALL.iter().map(|workload| workload.name()).collect();
    names.join(", ")
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(text: &str) -> Result<Self, UnknownWorkload> {
        let found = Self::ALL.into_iter().find(|workload| workload.name() == text);
        found.ok_or_else(|| UnknownWorkload { name: text.to_owned() })
    }
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 28] = [
        Self::Random,
        Self::Counters,
        Self::Linear,
        Self::Stream,
        Self::Transpose,
        Self::Bfs,
        Self::Spans,
        Self::Prefetch,
        Self::Flush,
        Self::NeverEvicted,
        Self::Direct,
        Self::LargePages,
        Self::InPlace,
        Self::LinearInPlace,
        Self::Rising,
        Self::StoresInPlace,
        Self::Replicas,
        Self::Returns,
        Self::Checksums,
        Self::Victims,
        Self::Broadcast,
        Self::Resize,
        Self::ResizeDirect,
        Self::LookedUp,
        Self::Resident,
        Self::CaughtUp,
        Self::Headroom,
        Self::Slots,
    ];

    /// Its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Counters => "counters",
            Self::Linear => "linear",
            Self::Stream => "stream",
            Self::Transpose => "transpose",
            Self::Bfs => "bfs",
            Self::Spans => "spans",
            Self::Prefetch => "prefetch",
            Self::Flush => "flush",
            Self::NeverEvicted => "never-evicted",
            Self::Direct => "direct",
            Self::LargePages => "large-pages",
            Self::InPlace => "in-place",
            Self::LinearInPlace => "linear-in-place",
            Self::Rising => "rising",
            Self::StoresInPlace => "stores-in-place",
            Self::Replicas => "replicas",
            Self::Returns => "returns",
            Self::Checksums => "checksums",
            Self::Victims => "victims",
            Self::Broadcast => "broadcast",
            Self::Resize => "resize",
            Self::ResizeDirect => "resize-direct",
            Self::LookedUp => "looked-up",
            Self::Resident => "resident",
            Self::CaughtUp => "caught-up",
            Self::Headroom => "headroom",
            Self::Slots => "slots",
        }
    }

    /// Its kernels, and what they are compiled for.
    pub(crate) fn sources(self) -> Sources {
        let (kernels, defines): (_, &'static [_]) = match self {
            Self::Random | Self::NeverEvicted | Self::Direct | Self::LargePages | Self::Replicas | Self::Checksums => {
                (PROGRAM, &[("ELEMENT", "unsigned")])
            }
            Self::Counters
            | Self::Linear
            | Self::LinearInPlace
            | Self::Rising
            | Self::StoresInPlace
            | Self::Flush
            | Self::Returns
            | Self::Resize
            | Self::ResizeDirect
            | Self::CaughtUp
            | Self::Headroom => (WORDS, &[]),
            Self::Stream | Self::Transpose | Self::Bfs | Self::InPlace | Self::Prefetch => (SWEEPS, &[]),
            Self::Spans => (SPANS, &[]),
            Self::Victims => (VICTIMS, &[]),
            Self::Broadcast => (BROADCAST, &[]),
            Self::LookedUp | Self::Resident => (LOOKED_UP, &[]),
            Self::Slots => (SLOTS, &[]),
        };
        Sources {
            kernels,
            defines,
            direct: self.is_direct(),
            homes: if self.is_replicated() { 2 } else { 1 },
            checked: matches!(self, Self::Replicas | Self::Checksums),
            slow: matches!(
                self,
                Self::Replicas | Self::Checksums | Self::LargePages | Self::Headroom
            ),
        }
    }

    /// Whether its lanes race for words by design: by storing equal values, where a page never leaves, or by marking a page that others mark.
    pub fn races_on_purpose(self) -> bool {
        matches!(
            self,
            Self::Bfs | Self::InPlace | Self::NeverEvicted | Self::LookedUp | Self::Resident
        )
    }

    /// Whether its lanes copy pages themselves.
    pub fn is_direct(self) -> bool {
        matches!(
            self,
            Self::Direct
                | Self::LargePages
                | Self::InPlace
                | Self::LinearInPlace
                | Self::Rising
                | Self::StoresInPlace
                | Self::Victims
                | Self::Broadcast
                | Self::ResizeDirect
                | Self::LookedUp
                | Self::Slots
        )
    }

    /// Whether it has pages that come to frames.
    pub fn has_pages(self) -> bool {
        !matches!(self, Self::Broadcast | Self::Slots)
    }

    /// Whether its pages leave their frames for a neighbour's memory.
    pub(crate) fn borrows(self) -> bool {
        self == Self::Victims
    }

    /// Whether its frames come and go.
    pub(crate) fn resizes(self) -> bool {
        matches!(self, Self::Resize | Self::ResizeDirect | Self::Headroom)
    }

    /// Whether its pages have two homes, some of which are taken away.
    pub(crate) fn loses_homes(self) -> bool {
        matches!(self, Self::Replicas | Self::Returns | Self::CaughtUp)
    }

    /// Whether its pages may have two homes.
    fn is_replicated(self) -> bool {
        self.loses_homes() || self == Self::Checksums
    }
}

/// What a workload is compiled for.
pub(crate) struct Sources {
    /// Its kernels.
    pub kernels: Kernels,
    /// The macros that they are compiled with.
    pub defines: &'static [(&'static str, &'static str)],
    /// Lanes copy pages themselves.
    pub direct: bool,
    /// Homes in this host's memory.
    pub homes: u32,
    /// Regions may have checksums.
    pub checked: bool,
    /// A page may take a lane a hundred times as long as usual, or many lanes run beside those that use pages.
    pub slow: bool,
}
