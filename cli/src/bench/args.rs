//! The options of `gpuvm bench`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use gpuvm::Placement;

use gpuvm_workloads::apps::Way;
use gpuvm_workloads::graph::GraphSpec;

use crate::args::{MachineArgs, parse_bytes, parse_page_bytes};
use crate::bench::elastic::ElasticArgs;
use crate::bench::files::FilesArgs;
use crate::bench::gps::GpsArgs;
use crate::bench::natural::NaturalArgs;
use crate::bench::resize::ResizeArgs;
use crate::bench::take::TakeArgs;
use crate::bench::tenants::TenantsArgs;

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// The time of one fault while nothing else is under way, by the number of lanes that wait for it.
    Latency(LatencyArgs),
    /// Pages a second: reads and writes of pages that are not there.
    Faults(FaultsArgs),
    /// What an access costs whose page is there, beside the raw pointer.
    Hits(HitsArgs),
    /// What this machine allows: copies, bare page kernels, single loads.
    Limits(LimitsArgs),
    /// Cold and sparse reads and writes through CUDA's managed memory. Needs an NVIDIA GPU.
    Uvm(UvmArgs),
    /// Breadth-first search, cold, beside managed memory and the host's memory in place.
    Bfs(BfsBenchArgs),
    /// What reads of a page without a frame do (--placement): fetch it, read in place, or let the GPU decide, by traces of reads.
    Placement(PlacementBenchArgs),
    /// Memory of a neighbour GPU for pages that leave their frames (--borrow): how soon the lender has it back, what lending
    /// costs the lender's own kernels, and what it is worth. Needs two GPUs, or the simulated one.
    Tier(TierArgs),
    /// Applications, paged and in the ways that a user would run them instead: in device memory, in host memory in place, managed
    /// memory, copies in chunks. Each result is compared with the processor's.
    Apps(AppsBenchArgs),
    /// Applications on several GPUs, each with a part of the work: over broadcast arrays, by loads of each other's memory, with copies
    /// between iterations, and over managed memory. All results are compared. Needs two GPUs, or simulated ones.
    Gps(GpsArgs),
    /// Elastic buffers: growths that were foreseen and others, beside what the driver takes for a bare handle; memory that buffers of many
    /// sizes waste.
    Elastic(ElasticArgs),
    /// Frames that come and go beside a kernel that faults: how soon memory is free, and what the kernel loses meanwhile.
    Resize(ResizeArgs),
    /// Rows of a large table at random, by the kernel of Python's `gpuvm.ops.take`.
    Take(TakeArgs),
    /// Two processes on one GPU: how soon one has memory for a while that the other pages with, and what that costs the other.
    Tenants(TenantsArgs),
    /// Loops as people write them, over `a[i]`, beside the raw pointer, the host's memory in place and managed memory.
    Natural(NaturalArgs),
    /// Pages of a file larger than the memory before it, random and in order, beside bare reads of the file by io_uring at the same depth.
    Files(FilesArgs),
    /// All of them but natural, elastic, resize, take, tenants and files, and apps and gps, which take longer, and tier unless --peer names a neighbour; one file each.
    All(AllArgs),
}

/// How often, and where results go.
#[derive(Clone, Debug, Args)]
pub struct OutputArgs {
    /// Runs of each row: the median and the best are shown.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,

    /// Print the report as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// One fault at a time.
#[derive(Debug, Args)]
pub struct LatencyArgs {
    /// GPU, transport and queues.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// Lanes that wait together for neighbouring words of the page.
    #[arg(long, value_name = "N,..", default_value = "1", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=32))]
    pub lanes: Vec<u32>,

    /// Faults to time; fewer where they would take more than 512 MiB (16 MiB on the simulated GPU).
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub faults: u64,

    /// Also time walks of so many warps through absent pages, a page or three apart, with read ahead and without.
    #[arg(long, value_name = "WARPS,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub walks: Vec<u32>,

    /// Also time pages that many warps wait for at once.
    #[arg(long, value_name = "WARPS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub crowd: Option<u32>,

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// In which order pages are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Ascending.
    Sequential,
    /// Each page once, in a random order.
    Random,
    /// Some pages often, most seldom: the k-th most popular one with probability proportional to 1/k.
    Zipf,
}

/// Who touches a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Access {
    /// The 32 lanes of a warp touch 32 words of one page by `a[i]`.
    Warp,
    /// The 32 lanes of a warp touch 32 words of one page through a span, `pin`.
    Span,
    /// Each lane reads two words of a page of its own by `a[i]`.
    Lanes,
}

/// Where the pages live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeArg {
    /// This host's memory.
    Host,
    /// The memory of a neighbour GPU.
    Gpu(u32),
}

impl FromStr for HomeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("gpu:").map(str::parse)) {
            ("host", _) => Ok(Self::Host),
            (_, Some(Ok(ordinal))) => Ok(Self::Gpu(ordinal)),
            _ => Err("expected host or gpu:N".to_owned()),
        }
    }
}

/// A part of the data: `1`, `1/4`, `0.25` or `25%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let share = match (text.strip_suffix('%'), text.split_once('/')) {
            (Some(percent), _) => number(percent).map(|percent| percent / 100.0),
            (_, Some((part, whole))) => number(part).zip(number(whole)).map(|(part, whole)| part / whole),
            _ => number(text),
        };
        match share {
            Some(share) if share > 0.0 && share <= 1.0 => Ok(Self(share)),
            _ => Err("a share is above 0 and at most 1: 1, 1/4, 0.25 or 25%".to_owned()),
        }
    }
}

/// Pages a second.
#[derive(Debug, Args)]
pub struct FaultsArgs {
    /// GPU, transport and queues.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// The data. Without it: 4 GiB, and 8192 pages of at most 64 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub data: Option<u64>,

    /// The data in pages.
    #[arg(long, value_name = "N", conflicts_with = "data", value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    pub pages: Option<u64>,

    /// Frame memory as shares of the data, with commas between; 1 leaves room besides for the frames that are kept
    /// free. Without it: 1 and 1/4, and 1/8 on the simulated GPU.
    #[arg(long, value_name = "SHARE,..", value_delimiter = ',')]
    pub frames_share: Vec<Share>,

    /// Page frames: fewer than pages, so that pages must leave.
    #[arg(long, value_name = "N", conflicts_with = "frames_share", value_parser = clap::value_parser!(u64).range(1..=1 << 28))]
    pub frames: Option<u64>,

    /// Warps that fault, with commas between. Without it: 32 a multiprocessor, and 4 on the simulated GPU.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub warps: Vec<u32>,

    /// Orders of the pages.
    #[arg(long, value_name = "ORDER,..", value_delimiter = ',', default_value = "random")]
    pub pattern: Vec<Pattern>,

    /// Who touches a page. Without it: warp and span where lanes copy pages themselves, lanes where a NIC does.
    #[arg(long, value_name = "WHO,..", value_delimiter = ',')]
    pub access: Vec<Access>,

    /// Short for --access lanes.
    #[arg(long, conflicts_with = "access")]
    pub lanes_apart: bool,

    /// How many of 100 pages are written instead of read.
    #[arg(long, value_name = "PERCENT,..", default_value = "0", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=100))]
    pub writes: Vec<u32>,

    /// Touch only so many pages of the data, chosen at random.
    #[arg(long, value_name = "PAGES", value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    pub sparse: Option<u64>,

    /// Where the pages live: host, gpu:N for a neighbour's memory, or two or three of those with commas between, page by page in turn.
    #[arg(long, value_name = "WHERE,..", default_value = "host", value_delimiter = ',')]
    pub home: Vec<HomeArg>,

    /// Measure each row without checksums of pages and with them. Not for the direct transport.
    #[arg(long)]
    pub integrity: bool,

    /// Leave the ceilings out, which take as much memory again of host and GPU.
    #[arg(long)]
    pub no_ceilings: bool,

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Accesses that find their page.
#[derive(Debug, Args)]
pub struct HitsArgs {
    /// GPU, transport and queues.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB,64KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// The data, all of it resident. Without it: 16 GiB, and 16 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub data: Option<u64>,

    /// Accesses of one thread, a multiple of 32. Without it: 256, and 64 on the simulated GPU.
    #[arg(long, value_name = "N", value_parser = parse_turns)]
    pub accesses: Option<u32>,

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A group of rows of `limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LimitGroup {
    /// The copy engines: each way, both at once, batches of pages. Needs an NVIDIA GPU.
    Copies,
    /// Warps that copy pages from and to the home.
    Pages,
    /// One page by one warp, one dependent load, a word to the processor and back.
    Latency,
    /// Warps that copy pages inside the GPU.
    Memory,
}

/// Ceilings.
#[derive(Debug, Args)]
pub struct LimitsArgs {
    /// GPU, transport and queues.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB,16KiB,64KiB,2MiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// The data. Without it: 4 GiB, and 16 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub data: Option<u64>,

    /// Only these groups. Without it: all that the GPU has.
    #[arg(long, value_name = "GROUP,..", value_delimiter = ',')]
    pub only: Vec<LimitGroup>,

    /// Where the pages live: host, or gpu:N for a neighbour's memory.
    #[arg(long, value_name = "WHERE", default_value = "host")]
    pub home: HomeArg,

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Managed memory.
#[derive(Debug, Args)]
pub struct UvmArgs {
    /// The GPU.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// The data; never more than 80 % of the GPU's free memory.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = parse_data)]
    pub data: u64,

    /// Pages of 4 KiB that the sparse rows touch.
    #[arg(long, value_name = "PAGES", default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    pub sparse: u64,

    /// Faults of the serial row.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub faults: u64,

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A whole search.
#[derive(Debug, Args)]
pub struct BfsBenchArgs {
    /// GPU, transport and queues.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// A file or a generator: Matrix Market or a SNAP edge list (either may be gzip), GAP's .sg or .wsg, .gcsr (see `gpuvm convert`), or
    /// kron:SCALE[:DEGREE] or urand:SCALE[:DEGREE].
    #[arg(long, value_name = "GRAPH", default_value = "kron:16")]
    pub graph: GraphSpec,

    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB,64KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// What reads of the graph do with a page that has no frame, with commas between: auto, fetch, in-place, while-free.
    #[arg(long, value_name = "HOW,..", default_value = "fetch", value_delimiter = ',')]
    pub placement: Vec<Placement>,

    /// Frames, as shares of the pages of the graph and the distances, with commas between.
    #[arg(long, value_name = "SHARE,..", default_value = "1,1/4", value_delimiter = ',')]
    pub frames_share: Vec<Share>,

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// An order in which words of a region are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Trace {
    /// All words in order, in ten launches, as PageRank reads its edges; frames for 1/2 and 1/4.
    Pagerank,
    /// Random words of pages by popularity (zipf 0.99), after launches that are not timed; frames for 1/4 and 1/20.
    Zipf,
    /// Words as for zipf, but half way other pages become the popular ones; frames for 1/20.
    ZipfMoves,
    /// Random words, all pages alike, after launches that are not timed; frames for 1/4.
    Uniform,
    /// A window of 1/64 of the pages that slides, each page visited 8 times; frames for 1/8.
    Window,
    /// All words in order 8 times within one launch; frames for 1/2.
    Loop,
    /// Random words, none twice; frames for 1/64.
    Once,
    /// The time of one word of an absent page while nothing else is under way; with a frame for each.
    FirstWord,
}

/// Traces under each placement.
#[derive(Debug, Args)]
pub struct PlacementBenchArgs {
    /// GPU and transport: reads in place need the direct one, which auto is here.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// The data. Without it: 1 GiB, and 1 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub data: Option<u64>,

    /// What is read in which order, with commas between. Without it: all of them.
    #[arg(long, value_name = "TRACE,..", value_delimiter = ',')]
    pub trace: Vec<Trace>,

    /// What reads do with a page that has no frame, with commas between: auto, fetch, in-place, while-free.
    #[arg(
        long,
        value_name = "HOW,..",
        default_value = "in-place,fetch,auto",
        value_delimiter = ','
    )]
    pub placement: Vec<Placement>,

    /// Frames, as shares of the pages, with commas between. Without it: those of each trace.
    #[arg(long, value_name = "SHARE,..", value_delimiter = ',')]
    pub frames_share: Vec<Share>,

    /// In place of reads: each word is stored once, in order and in a random order, where it lives (the advice `WriteOnce`), in frames,
    /// and by a plain pointer; frames for 1/4.
    #[arg(long, conflicts_with_all = ["trace", "placement"])]
    pub stores: bool,

    /// Random reads or stores of one launch (zipf, zipf-moves, uniform, once, --stores). Without it: as many as 64 GiB have pages, and
    /// 2^13 on the simulated GPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub reads: Option<u64>,

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Memory that a neighbour GPU lends.
#[derive(Debug, Args)]
pub struct TierArgs {
    /// GPU and loans. Without --borrow: of GPU 1 what the frames leave of the data. The transport is direct.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// The page size.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_page_bytes)]
    pub page_size: u64,

    /// The data, at home in this host's memory. Without it: 32 GiB, and 64 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub data: Option<u64>,

    /// Frame memory as a share of the data.
    #[arg(long, value_name = "SHARE", default_value = "1/4")]
    pub frames_share: Share,

    /// What the lender takes back at a time while a launch runs, once a run, as long as something is borrowed. Without it: 8 GiB, and
    /// 32 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub take_back: Option<u64>,

    /// What the lender's own kernel copies, to as much memory again. Without it: 2 GiB, and 2 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub lender_data: Option<u64>,

    /// How often each page is read where the ways to keep pages are compared; the first time none is there.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=100))]
    pub passes: u64,

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Applications beside their peers.
#[derive(Debug, Args)]
pub struct AppsBenchArgs {
    /// GPU, transport and queues.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Applications as NAME or NAME:INPUT, with commas between; `gpuvm run --help` lists them. Without it: all of them, with inputs of
    /// about 1 GiB, and small ones on the simulated GPU.
    #[arg(long, value_name = "APP,..", value_delimiter = ',')]
    pub apps: Vec<String>,

    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB,64KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// Frames, as shares of the arrays' pages, with commas between.
    #[arg(
        long,
        value_name = "SHARE,..",
        default_value = "1,1/2,1/4,1/8",
        value_delimiter = ','
    )]
    pub frames_share: Vec<Share>,

    /// What reads do with a page that has no frame, with commas between: auto, fetch, in-place, while-free, resident (memory for all:
    /// arrays have frames of their own, which auto then gives them, too).
    #[arg(long, value_name = "HOW,..", default_value = "auto", value_delimiter = ',', value_parser = parse_paged)]
    pub placement: Vec<Way>,

    /// What to compare with, with commas between. Managed memory and device memory are not limited to the frames' share: all of the
    /// card is theirs.
    #[arg(
        long,
        value_name = "WAY,..",
        default_value = "raw,host,managed,advised,prefetched,chunked",
        value_delimiter = ','
    )]
    pub peers: Vec<Way>,

    /// Keep the report in this file, after each row. Rows that are there already are not measured again.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Seconds after which no row begins; --out lets another run go on.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub limit: u64,

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Everything.
#[derive(Debug, Args)]
pub struct AllArgs {
    /// The folder for the reports; it is made.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// The GPU: sim, cuda:N, cuda:GPU-UUID, or auto.
    #[arg(long, default_value = "auto")]
    pub gpu: String,

    /// The neighbour GPU whose memory is measured too.
    #[arg(long, value_name = "N")]
    pub peer: Option<u32>,

    /// Runs of each row.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,

    /// Longest that one of them may take, in seconds; then it is ended and the next one begins.
    #[arg(long, value_name = "SECONDS", default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub limit: u64,

    /// The simulated GPU's sizes also on an NVIDIA GPU: to see that everything runs.
    #[arg(long)]
    pub quick: bool,
}

/// At least a page, in whole pages of 4 KiB.
fn parse_paged(text: &str) -> Result<Way, String> {
    match text.parse()? {
        way @ (Way::Paged(_) | Way::Resident) => Ok(way),
        peer => Err(format!("`{peer}` is no paging; name it among --peers")),
    }
}

pub(super) fn parse_data(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        bytes if bytes < 4096 => Err(format!("{bytes} bytes; give at least one page of 4096 bytes")),
        bytes if bytes > 1 << 43 => Err(format!("{bytes} bytes; at most 8 TiB")),
        bytes => Ok(bytes),
    }
}

fn parse_turns(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(count) if count.is_multiple_of(32) && (32..=65_536).contains(&count) => Ok(count),
        _ => Err("a multiple of 32 from 32 to 65536".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_understood() {
        for (text, share) in [("1", 1.0), ("1/4", 0.25), ("0.5", 0.5), ("25%", 0.25)] {
            assert_eq!(text.parse(), Ok(Share(share)), "{text}");
        }
        for text in ["", "0", "2", "1/0", "-1", "x/4", "NaN", "101%", "0/1"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }

    #[test]
    fn homes_are_understood() {
        assert_eq!("host".parse(), Ok(HomeArg::Host));
        assert_eq!("gpu:1".parse(), Ok(HomeArg::Gpu(1)));
        for text in ["", "gpu", "gpu:", "gpu:-1", "disk"] {
            assert!(text.parse::<HomeArg>().is_err(), "{text}");
        }
    }
}
