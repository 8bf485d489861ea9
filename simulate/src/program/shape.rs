//! What a random program runs on: element types, and the shapes of programs.

use std::time::Duration;

use bytemuck::Pod;
use gpuvm::soft::FaultMix;
use gpuvm::{Placement, Queues, SimulatedGpu, Transport, Vm, VmBuilder};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// An element type, as numbers.
pub trait Element: Pod + PartialEq + std::fmt::Debug {
    /// Its name in the kernel.
    const NAME: &'static str;
    /// Whether `+=` on it wraps as integers do.
    const WRAPS: bool;
    /// The element that stands for `number`, which is cut to what fits.
    fn make(number: u64) -> Self;
    /// The number it stands for.
    fn get(self) -> u64;
}

macro_rules! integers {
    ($($rust:ty, $name:literal;)*) => {$(
        impl Element for $rust {
            const NAME: &'static str = $name;
            const WRAPS: bool = true;
            fn make(number: u64) -> Self {
                number as $rust
            }
            fn get(self) -> u64 {
                self.into()
            }
        }
    )*};
}

integers! { u8, "unsigned char"; u16, "unsigned short"; u32, "unsigned"; u64, "unsigned long long"; }

macro_rules! others {
    ($($rust:ty, $name:literal, $make:expr, $get:expr;)*) => {$(
        impl Element for $rust {
            const NAME: &'static str = $name;
            const WRAPS: bool = false;
            fn make(number: u64) -> Self {
                let make: fn(u64) -> $rust = $make;
                make(number)
            }
            fn get(self) -> u64 {
                let get: fn($rust) -> u64 = $get;
                get(self)
            }
        }
    )*};
}

others! {
    f32, "float", |n| (n & 0xffff) as f32, |e| e as u64;
    f64, "double", |n| (n & 0xffff_ffff) as f64, |e| e as u64;
    [u64; 2], "wide16", |n| [n, !n], |e| if e[1] == !e[0] { e[0] } else { 0xbad };
    [u64; 4], "wide32", |n| [n, !n, n.wrapping_add(1), n.wrapping_mul(3)], |e| e[0];
}

/// The virtual memory, the region and the launches of one program.
#[derive(Debug, Clone)]
pub struct ProgramShape {
    /// Bytes of a page.
    pub page: u64,
    /// Frames.
    pub frames: u64,
    /// Elements of the region that lanes own parts of.
    pub elements: u64,
    /// Counters in the region that all lanes change.
    pub shared: u64,
    /// Blocks of a launch.
    pub blocks: u32,
    /// Threads of a block, whole warps.
    pub threads: u32,
    /// Operations of a lane in one launch.
    pub steps: u32,
    /// Launches, one after the other.
    pub launches: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Requests of a queue pair.
    pub queue_depth: u32,
    /// Whether lanes hold spans.
    pub thread_spans: bool,
    /// Whether warps hold spans.
    pub warp_spans: bool,
    /// Whether the host flushes while kernels run.
    pub beside: bool,
    /// The seed of the simulated GPU's interleaving, if that is to be decided.
    pub interleaving: Option<u64>,
    /// Whether lanes copy pages themselves.
    pub direct: bool,
    /// Whether the region keeps frames of its own.
    pub never_evicted: bool,
    /// Where reads of a page without a frame are made, in regions with memory of their own.
    pub placement: Placement,
    /// The elements lie in memory that the host lends, this many elements behind the begin of a system page and between guards that must
    /// stay as they are; none: in memory of the region's own. Without the options of a region.
    pub lent: Option<u64>,
    /// Homes of each page, of both regions: 1, or 2 in this host's memory, of which one may be lost.
    pub replicas: u32,
    /// Whether both regions have checksums.
    pub checked: bool,
    /// Whether requests may complete with errors: they are repeated.
    pub errors_allowed: bool,
    /// Whether the host gives advice on both regions before each launch, drawn anew.
    pub advised: bool,
    /// Faults that the software NIC draws by the interleaving's seed. The result must be the model's all the same.
    pub faults: Option<FaultMix>,
}

impl ProgramShape {
    /// Threads of a launch.
    pub fn lanes(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.threads)
    }

    /// A shape that `rng` picks: pages and frames of every kind, regions of 1 to 16 times the frames.
    pub fn random(rng: &mut ChaCha8Rng, page: u64, element_bytes: u64) -> Self {
        let threads = [32, 64, 96][rng.random_range(0..3)];
        let blocks = rng.random_range(1..=3u32);
        let lanes = u64::from(threads * blocks);
        let warps = lanes / 32;
        // One frame in all, one a warp, as many as spans of warps or of lanes need, and plenty.
        let (frames, warp_spans, thread_spans) = match rng.random_range(0..5) {
            0 => (1, false, false),
            1 => (warps, false, false),
            2 => (warps + 1, true, false),
            3 if page <= 65_536 => (lanes + warps + 1, true, true),
            _ => (rng.random_range(2..=24), false, false),
        };
        let frames = if page > 65_536 { frames.min(warps + 1) } else { frames };
        let most = (16 << 20) / (page * frames);
        let bytes = page * frames * rng.random_range(1..=most.clamp(1, 16));
        let least = 4 * lanes;
        let ragged = rng.random_range(0..100);
        Self {
            page,
            frames,
            elements: (bytes / element_bytes).saturating_sub(ragged).max(least),
            shared: rng.random_range(4..4 * page.min(65_536) / 8),
            blocks,
            threads,
            steps: rng.random_range(10..if page > 4096 { 25 } else { 60 }),
            launches: 3,
            queue_pairs: rng.random_range(1..=3),
            queue_depth: [1, 2, 4, 64][rng.random_range(0..4)],
            thread_spans,
            warp_spans,
            beside: rng.random(),
            interleaving: None,
            direct: false,
            never_evicted: false,
            placement: Placement::Fetch,
            lent: None,
            replicas: 1,
            checked: false,
            errors_allowed: false,
            advised: false,
            faults: None,
        }
    }

    /// Longer than any wait that is served; in virtual time a wait that is not costs as many polls.
    fn wait_limit(&self) -> Duration {
        match self.interleaving {
            Some(_) => Duration::from_millis(50),
            None => Duration::from_secs(20),
        }
    }

    /// Settings of the virtual memory that it asks for.
    pub fn builder(&self) -> VmBuilder {
        let builder = Vm::builder()
            .page_size(self.page)
            .frame_memory(self.frames * self.page)
            .reliable_regions(self.checked)
            .placement(Placement::Fetch)
            .wait_limit(self.wait_limit())
            .launch_deadline(Duration::from_secs(60));
        let gpu = SimulatedGpu::new().memory(self.frames * self.page + (32 << 20));
        let gpu = match self.interleaving {
            Some(seed) => gpu.seed(seed),
            None => gpu.workers(2),
        };
        let queues = Queues::new().pairs(self.queue_pairs).depth(self.queue_depth);
        builder.gpu(gpu).transport(match self.direct {
            true => Transport::Direct,
            false => Transport::Auto(queues.host_homes(self.replicas)),
        })
    }
}

/// A small program for one interleaving: few lanes, few frames, much paging.
pub fn tiny(seed: u64, frames: u64) -> ProgramShape {
    ProgramShape {
        page: 4096,
        frames,
        elements: 4096 * 6 / 4 + 11,
        shared: 700,
        blocks: 2,
        threads: 32,
        steps: 12,
        launches: 2,
        queue_pairs: 1 + (seed % 2) as u32,
        queue_depth: 1 << (seed % 4),
        thread_spans: false,
        warp_spans: frames > 2,
        // The host's clock is no part of a seed.
        beside: false,
        interleaving: Some(seed),
        direct: false,
        never_evicted: false,
        placement: Placement::Fetch,
        lent: None,
        replicas: 1,
        checked: false,
        errors_allowed: false,
        advised: false,
        faults: None,
    }
}
