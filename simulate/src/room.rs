//! What a workload runs in: a virtual memory as it asks for, on a simulated GPU that follows the seed and is watched.

use std::sync::Arc;
use std::time::Duration;

use gpuvm::{CompileOptions, Placement, Queues, Soft, Transport, Vm, VmBuilder};
use gpuvm_gpu::Gpu;
use gpuvm_nic::soft::{FaultKind, FaultMix};
use gpuvm_nic::wire::mlx5::Syndrome;
use gpuvm_nic::with_causes;
use gpuvm_sim_gpu::{Mode, SimGpu, SimOptions};
use serde::{Deserialize, Serialize};

use crate::bench::Bench;
use crate::watch::Watcher;
use crate::workload::catalog::{Sources, Workload};

/// Bytes of a page in every workload but the one of large pages.
pub const PAGE: u64 = 4096;
/// 64-bit words of a page.
pub const PAGE_WORDS: u64 = PAGE / 8;
/// Frames of a handle of a simulated GPU's memory: those whose number changes come and go together.
pub const RESIZED_FRAMES: u64 = 16;
/// Longest wait of a lane, in virtual time: longer than any that is served.
const WAIT_LIMIT: Duration = Duration::from_millis(20);
/// Longest launch, in virtual time.
const LAUNCH_DEADLINE: Duration = Duration::from_millis(200);
/// How much longer both are where checksums are computed, or pages are large: one takes a lane a hundred times as long as a small page
/// takes to come.
const SLOW_TIMES: u32 = 5;

/// How a seed is run.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// How the workloads' kernels are compiled: with a device library that is changed, perhaps.
    pub compile: CompileOptions,
    /// How the runtime's own kernels are compiled, those that flush and release.
    pub compile_support: CompileOptions,
    /// Which variant of it runs, of a device library that has several.
    pub variant: u32,
    /// Faults of the NIC, drawn by the seed.
    pub faults: Option<FaultMix>,
    /// Leave READs unflushed although their data lands late.
    pub unflushed: bool,
    /// Keep all events instead of the last ones.
    pub all_events: bool,
    /// Whether memory is watched while it runs; else results alone are compared.
    pub unwatched: bool,
    /// Fewer frames than spans may hold, undeclared.
    pub frames_equal_spans: bool,
    /// Whether data races in device memory are looked for, and are failures; memory is sequentially consistent then.
    pub find_races: bool,
}

impl Options {
    /// Whether a READ's data may land after its completion.
    fn lands_late(&self) -> bool {
        self.kinds().any(|kind| kind == FaultKind::Unflushed)
    }

    /// Whether faults may end kernels with errors. What only delays, and what the library repeats and recovers, must not.
    pub(crate) fn may_refuse(&self) -> bool {
        self.kinds().any(|kind| match kind {
            FaultKind::Revoke | FaultKind::Short => true,
            FaultKind::Fail(syndrome) => !matches!(
                syndrome,
                Syndrome::Flushed
                    | Syndrome::TransportRetryExceeded
                    | Syndrome::ReceiverNotReady
                    | Syndrome::RemoteAborted
            ),
            FaultKind::Lost
            | FaultKind::Late
            | FaultKind::Reorder
            | FaultKind::Pieces
            | FaultKind::Unflushed
            | FaultKind::Slow
            | FaultKind::Die
            | FaultKind::QueuePair
            | FaultKind::Doorbell => false,
        })
    }

    fn kinds(&self) -> impl Iterator<Item = FaultKind> {
        self.faults.iter().flat_map(|mix| mix.rates()).map(|rate| rate.kind)
    }
}

/// What a workload did to its homes and its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happened {
    /// Homes that were taken away.
    pub losses: u64,
    /// Of them while a kernel ran.
    pub within: u64,
    /// Homes that returned.
    pub returns: u64,
    /// Bits that were flipped.
    pub flips: u64,
}

/// What a workload runs in.
pub struct Room<'a> {
    workload: Workload,
    seed: u64,
    /// How it is run.
    pub options: &'a Options,
    watcher: Arc<Watcher>,
    /// The GPU that is watched, once it is there.
    pub gpu: Option<Arc<SimGpu>>,
    /// The virtual memory on it.
    pub vm: Option<Vm>,
    /// Histories of words: linearisable, undecided.
    pub linear: (u64, u64),
    /// What was done to homes and data.
    pub happened: Happened,
}

/// What a workload asks of its virtual memory.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// Bytes of a page.
    pub page: u64,
    /// Frames.
    pub frames: u64,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Requests of a queue pair.
    pub queue_depth: u32,
    /// Memory of a neighbour.
    pub borrowed: Borrowed,
    /// Most frames that there may be; 0 where their number stays.
    pub frame_capacity: u64,
    /// Whether there is another GPU, which nothing watches.
    pub second_gpu: bool,
    /// Bytes of the GPU's memory that frames leave to others, as far as they can; 0 where they follow nothing.
    pub leave_free: u64,
    /// Whether pages come beside launches that look them up and only read them.
    pub beside: bool,
}

impl Needs {
    /// Few frames, short rings: drawn by the seed.
    pub fn few(seed: u64, frames: u64) -> Self {
        Self {
            page: PAGE,
            frames,
            queue_pairs: 1 + (seed % 2) as u32,
            queue_depth: 1 << (seed / 2 % 4),
            borrowed: Borrowed::default(),
            frame_capacity: 0,
            second_gpu: false,
            leave_free: 0,
            beside: false,
        }
    }
}

/// Memory that a workload borrows of a neighbour; none by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Borrowed {
    /// Pages of a chunk, a power of two.
    pub chunk_pages: u64,
    /// Chunks.
    pub chunks: u64,
}

impl<'a> Room<'a> {
    /// Without a GPU before the workload opens it.
    pub fn new(workload: Workload, seed: u64, options: &'a Options, watcher: Arc<Watcher>) -> Self {
        Self {
            workload,
            seed,
            options,
            watcher,
            gpu: None,
            vm: None,
            linear: (0, 0),
            happened: Happened::default(),
        }
    }

    /// What runs in it.
    pub fn workload(&self) -> Workload {
        self.workload
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether requests may fail.
    pub fn has_faults(&self) -> bool {
        self.options.faults.is_some()
    }

    /// Whether data races are looked for, and are failures.
    pub fn finds_races(&self) -> bool {
        self.options.find_races
    }

    /// 64-bit word `index` of region `region` at its home, whatever the frames hold.
    pub fn home_word(&self, region: u32, index: u64) -> Option<u64> {
        self.watcher.home_word(region, index)
    }

    /// Who watches.
    pub fn watcher(&self) -> Arc<Watcher> {
        Arc::clone(&self.watcher)
    }

    /// Whether spans are to be short of frames.
    pub fn frames_equal_spans(&self) -> bool {
        self.options.frames_equal_spans
    }

    /// A virtual memory with the workload's kernels on a GPU of its own, which follows the seed and is watched.
    ///
    /// # Errors
    /// It is not available.
    pub fn open(&mut self, needs: Needs) -> Result<Bench, String> {
        let sources = self.workload.sources();
        let builder = self.settings(needs, &sources)?;
        let bench = Bench::with(builder, sources.kernels, &self.compile_options())?;
        if let (Some(nic), Some(mix)) = (bench.vm.soft_nic(), &self.options.faults) {
            nic.mix_faults(mix, self.seed).map_err(|error| with_causes(&error))?;
        }
        self.vm = Some(bench.vm.clone());
        if !self.options.unwatched {
            // SAFETY: the GPU's observer is this watcher; `run::run` detaches it before it drops the last handle of `vm`. Homes of these
            // workloads are memory of this process.
            unsafe { self.watcher.attach(bench.vm.description_address()) };
        }
        Ok(bench)
    }

    /// How the workload's kernels are compiled.
    pub fn compile_options(&self) -> CompileOptions {
        let mut options = self.options.compile.clone();
        let defines = self.workload.sources().defines.iter();
        let defines = defines.map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())));
        options.defines.extend(defines);
        options
    }

    fn settings(&mut self, needs: Needs, sources: &Sources) -> Result<VmBuilder, String> {
        let (frames, borrowed) = (needs.frames.max(needs.frame_capacity), needs.borrowed);
        let memory = frames * needs.page + (8 << 20);
        let simulated = |seed| {
            let options = SimOptions {
                find_races: self.options.find_races,
                variant: self.options.variant,
                ..SimOptions::default()
            };
            let gpu = SimGpu::builder().memory_bytes(memory).lanes_per_worker(256);
            gpu.neighbours(1).options(options).mode(Mode::Seeded(seed))
        };
        let mut gpu = simulated(self.seed);
        if !self.options.unwatched {
            gpu = gpu.observer(Arc::clone(&self.watcher) as _);
        }
        let gpu = Arc::new(gpu.build().map_err(|error| with_causes(&error))?);
        self.gpu = Some(Arc::clone(&gpu));
        let mut gpus = vec![gpu as Arc<dyn Gpu>];
        if needs.second_gpu {
            let second = simulated(!self.seed).build().map_err(|error| with_causes(&error))?;
            gpus.push(Arc::new(second));
            self.watcher.expect_others();
        }
        let times = if sources.slow { SLOW_TIMES } else { 1 };
        let builder = Vm::builder()
            .gpus(gpus)
            .page_size(needs.page)
            .frame_memory(needs.frames * needs.page)
            .regions_max(8)
            .wait_limit(WAIT_LIMIT * times)
            .launch_deadline(LAUNCH_DEADLINE * times)
            .reliable_regions(sources.checked)
            .placement(Placement::Fetch)
            .bring_beside(needs.beside)
            .support_options(self.options.compile_support.clone());
        let queues = Queues::new().pairs(needs.queue_pairs).depth(needs.queue_depth);
        let soft = Soft::new()
            .queues(queues.host_homes(sources.homes))
            .flush_reads(self.options.lands_late() && !self.options.unflushed);
        let builder = match needs.frame_capacity {
            0 => builder,
            most => builder.frame_capacity(most * needs.page),
        };
        let builder = match needs.leave_free {
            0 => builder,
            bytes => builder.frames_leave_free(bytes),
        };
        let chunk = borrowed.chunk_pages * needs.page;
        let builder = match borrowed.chunks {
            0 => builder,
            chunks => builder.borrowed_chunk(chunk).borrow_from(1, chunks * chunk),
        };
        Ok(match sources.direct {
            true => builder.transport(Transport::Direct),
            false => builder.transport(soft),
        })
    }
}
