//! What is simulated: small kernels that page much, each with a model of what it must come to.

use std::fmt;
use std::str::FromStr;

use gpuvm::{Advice, Launch, LaunchConfig, Placement, Region};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bench::{Bench, Calm, Kernels, Wrong, compare};
use crate::kernels::{BROADCAST, LOOKED_UP, PROGRAM, SPANS, SWEEPS, VICTIMS, WORDS};
use crate::run::{Borrowed, Needs, PAGE, Room};

use guarded::CatchUp;

mod broadcast;
mod contended;
mod guarded;
mod headroom;
mod looked_up;
mod programs;
mod resize;
mod spans;
mod sweeps;
mod victims;

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
    /// Like `Returns`, but what goes on beside kernels catches up with homes that have returned.
    CaughtUp,
    /// Frames follow what is free of the GPU's memory, of which others take some and give some back, while lanes use pages.
    Headroom,
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
    pub const ALL: [Self; 26] = [
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
        Self::CaughtUp,
        Self::Headroom,
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
            Self::CaughtUp => "caught-up",
            Self::Headroom => "headroom",
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
            Self::LookedUp => (LOOKED_UP, &[]),
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
        matches!(self, Self::Bfs | Self::InPlace | Self::NeverEvicted | Self::LookedUp)
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
        )
    }

    /// Whether it has pages that come to frames.
    pub fn has_pages(self) -> bool {
        self != Self::Broadcast
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

    /// Compiles what its first launch would compile.
    pub(crate) fn compile(self, bench: &Bench) -> Result<(), Wrong> {
        match self {
            Self::LookedUp => looked_up::compile(bench),
            _ => Ok(()),
        }
    }

    /// Runs it and compares what it came to with its model. Its regions are closed then.
    pub(crate) fn run(self, room: &mut Room<'_>) -> Result<(), Wrong> {
        match self {
            Self::Random => programs::random(room),
            Self::Counters => contended::counters(room),
            Self::Linear => contended::linear(room, Placement::Fetch, Advice::Normal),
            Self::Stream => sweeps::stream(room),
            Self::Transpose => sweeps::transpose(room),
            Self::Bfs => sweeps::bfs(room, Placement::Fetch),
            Self::Spans => spans::spans(room),
            Self::Prefetch => sweeps::prefetch(room),
            Self::Flush => contended::flush(room),
            Self::NeverEvicted => programs::never_evicted(room),
            Self::Direct => programs::direct(room),
            Self::LargePages => programs::large_pages(room),
            Self::InPlace => sweeps::bfs(room, in_place(room.seed())),
            Self::LinearInPlace => contended::linear(room, in_place(room.seed()), Advice::Normal),
            Self::StoresInPlace => {
                let placement = match room.seed() % 4 {
                    0 => Placement::Fetch,
                    _ => in_place(room.seed()),
                };
                contended::linear(room, placement, Advice::WriteOnce)
            }
            Self::Rising => contended::rising(room, in_place(room.seed())),
            Self::Replicas => guarded::replicas(room),
            Self::Returns => guarded::returns(room, CatchUp::Called),
            Self::CaughtUp => guarded::returns(room, CatchUp::ByItself),
            Self::Checksums => guarded::checksums(room),
            Self::Victims => victims::victims(room),
            Self::Broadcast => broadcast::broadcast(room),
            Self::Resize | Self::ResizeDirect => resize::resize(room),
            Self::LookedUp => looked_up::looked_up(room),
            Self::Headroom => headroom::headroom(room),
        }
    }
}

/// A placement under which pages are read where they live.
fn in_place(seed: u64) -> Placement {
    [Placement::InPlace, Placement::WhileFree, Placement::Auto][(seed % 3) as usize]
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

/// Sets a workload's draws apart from those of the program that it runs.
const SECOND: u64 = 0x7365_636f_6e64_0000;
/// Threads of a block where few contend more than many.
const THREADS: u64 = 12;

/// Few frames, short rings: drawn by the seed.
fn needs(seed: u64, frames: u64) -> Needs {
    Needs {
        page: PAGE,
        frames,
        queue_pairs: 1 + (seed % 2) as u32,
        queue_depth: 1 << (seed / 2 % 4),
        borrowed: Borrowed::default(),
        frame_capacity: 0,
        second_gpu: false,
        leave_free: 0,
    }
}

fn launch(bench: &Bench, name: &str, config: LaunchConfig, args: impl gpuvm::KernelArgs) -> Result<Launch, Wrong> {
    Ok(bench.kernel(name)?.launch(config, args)?)
}

fn must(bench: &Bench, name: &str, config: LaunchConfig, args: impl gpuvm::KernelArgs) -> Result<(), Wrong> {
    let launched = launch(bench, name, config, args)?;
    launched.sync().map(|_| ()).map_err(|error| Wrong::from(error).of(name))
}

/// What the region's home holds after everything was written there, which closes it.
fn close(bench: &Bench, region: Region<u64>, expected: &[u64]) -> Result<(), Wrong> {
    let _calm = Calm(&bench.vm);
    let found = region.to_vec()?;
    compare(&found, expected)?;
    let home = region.read_home()?;
    compare(&home, expected).map_err(|wrong| format!("at its home: {wrong}"))?;
    Ok(region.close()?)
}

/// Where faults have ended `ran`: nothing that took place may be lost. Once they are over each word of `at_least` (index, value) is no
/// less at its home than that, and no more than in `model`. Gives back what `ran` was.
fn keeps(
    bench: &Bench,
    ran: Result<(), Wrong>,
    region: &Region<u64>,
    at_least: &[(u64, u64)],
    model: &[u64],
) -> Result<(), Wrong> {
    let Err(Wrong::Refused(_)) = &ran else { return ran };
    drop(Calm(&bench.vm));
    let told = |error: gpuvm::Error| Wrong::Differs(format!("after the faults: {}", gpuvm_nic::with_causes(&error)));
    region.flush().map_err(told)?;
    let home = region.read_home().map_err(told)?;
    let lost = at_least.iter().find(|&&(at, least)| home[at as usize] < least);
    if let Some((at, least)) = lost {
        let found = home[*at as usize];
        return Err(Wrong::Differs(format!(
            "word {at}: {found} after the faults, and it was {least} before"
        )));
    }
    if let Some(at) = home.iter().zip(model).position(|(found, most)| found > most) {
        let (found, most) = (home[at], model[at]);
        return Err(Wrong::Differs(format!(
            "word {at}: {found} after the faults, and no launch makes it more than {most}"
        )));
    }
    ran
}
