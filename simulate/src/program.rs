//! Random programs, and what they must come to: the same as on a plain array.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytemuck::Pod;
use gpuvm::soft::{FaultMix, FaultTally};
use gpuvm::{CompileOptions, Integrity, LaunchConfig, Queues, Region, SimulatedGpu, Stats, Transport, Vm, VmBuilder};
use gpuvm_nic::with_causes;
use gpuvm_sim_gpu::SimGpu;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::bench::{Bench, Calm, Wrong, compare};
use crate::kernels::PROGRAM;

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
pub struct Shape {
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
    pub lane_spans: bool,
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
    /// Homes of each page, of both regions: 1, or 2 in this host's memory, of which one may be lost.
    pub replicas: u32,
    /// Whether both regions have checksums.
    pub checked: bool,
    /// Whether requests may complete with errors: they are repeated.
    pub errors_allowed: bool,
    /// Faults that the software NIC draws by the interleaving's seed. The result must be the model's all the same.
    pub faults: Option<FaultMix>,
}

impl Shape {
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
        let (frames, warp_spans, lane_spans) = match rng.random_range(0..5) {
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
            lane_spans,
            warp_spans,
            beside: rng.random(),
            interleaving: None,
            direct: false,
            never_evicted: false,
            replicas: 1,
            checked: false,
            errors_allowed: false,
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
            .guarded_regions(self.checked)
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

/// What an array without paging would hold.
struct Model<T> {
    seed: u64,
    written: HashMap<u64, u64>,
    shared: Vec<u64>,
    _elements: std::marker::PhantomData<T>,
}

fn mix(seed: u64, i: u64) -> u64 {
    let mut x = seed ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}

fn fold(hash: u64, value: u64) -> u64 {
    (hash.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The number of `number` cut to what fits the element.
fn cut<T: Element>(number: u64) -> u64 {
    T::make(number).get()
}

impl<T: Element> Model<T> {
    fn number(&self, i: u64) -> u64 {
        self.written
            .get(&i)
            .copied()
            .unwrap_or_else(|| cut::<T>(mix(self.seed, i)))
    }

    fn write(&mut self, i: u64, number: u64) -> u64 {
        let before = self.number(i);
        self.written.insert(i, cut::<T>(number));
        before
    }

    /// Makes one lane's operation on element `i` and returns the lane's hash.
    fn apply(&mut self, shape: &Shape, kind: u64, value: u64, i: u64, hash: u64) -> u64 {
        let atomics = size_of::<T>() == 4 || size_of::<T>() == 8;
        match kind {
            0 => return fold(hash, self.number(i)),
            1 => {
                self.write(i, value);
            }
            2 => {
                self.write(i, self.number(i).wrapping_add(value));
            }
            3 if T::WRAPS => {
                self.write(i, self.number(i).wrapping_add(value));
            }
            4 => {
                let cell = &mut self.shared[i as usize];
                match i % 4 {
                    0 => *cell = cell.wrapping_add(value),
                    1 => *cell = (*cell).max(value << 20),
                    2 => *cell |= 1 << (value % 64),
                    _ => *cell = (*cell).min(u64::MAX - value),
                }
            }
            5 | 6 => {
                let bytes = size_of::<T>() as u64;
                let in_page = (shape.page - i * bytes % shape.page) / bytes;
                let hash = fold(hash, in_page.min(shape.elements - i));
                return fold(hash, self.write(i, value));
            }
            7 => {
                let fixed = (i..(i + value).min(shape.elements)).filter(|k| k % 4 == 0);
                return fixed.fold(hash, |hash, k| fold(hash, self.number(k)));
            }
            9 if atomics => return fold(hash, self.write(i, value)),
            10 if atomics => {
                let before = fold(hash, self.write(i, value));
                return fold(before, self.number(i));
            }
            _ => {}
        }
        hash
    }
}

/// One random operation of `lane`: its kind, value and index.
fn operation<T: Element>(rng: &mut ChaCha8Rng, shape: &Shape, lane: u64, warp_turn: u64) -> (u64, u64, u64) {
    let lanes = shape.lanes();
    let turns = shape.elements / (4 * lanes);
    // Elements 4k + 1 to 4k + 3 belong to lane k mod `lanes`; nobody writes those at 4k.
    let own = |turn: u64, rng: &mut ChaCha8Rng| 4 * (lane + lanes * turn) + rng.random_range(1..4);
    let value = rng.random_range(0..0x1_0000);
    let far = rng.random_range(0..turns);
    // Half of the accesses stay together as a warp's do, the others go anywhere.
    let turn = if rng.random() { warp_turn % turns } else { far };
    match rng.random_range(0..16u64) {
        0..=2 => (0, value, own(turn, rng)),
        3 | 4 => (0, value, rng.random_range(0..shape.elements.div_ceil(4)) * 4),
        5 | 6 => (1, value, own(turn, rng)),
        7 => (2, value, own(turn, rng)),
        8 if T::WRAPS => (3, value, own(turn, rng)),
        9 | 10 => (4, value, rng.random_range(0..shape.shared)),
        11 if shape.lane_spans => (5, value, own(far, rng)),
        12 if shape.warp_spans => (6, value, own(warp_turn % turns, rng)),
        13 => (7, value % 60, rng.random_range(0..shape.elements)),
        14 => (8, value % 5000, rng.random_range(0..shape.elements)),
        15 => (9 + value % 2, value, own(turn, rng)),
        _ => (1, value, own(turn, rng)),
    }
}

/// A small program for one interleaving: few lanes, few frames, much paging.
pub fn tiny(seed: u64, frames: u64) -> Shape {
    Shape {
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
        lane_spans: false,
        warp_spans: frames > 2,
        // The host's clock is no part of a seed.
        beside: false,
        interleaving: Some(seed),
        direct: false,
        never_evicted: false,
        replicas: 1,
        checked: false,
        errors_allowed: false,
        faults: None,
    }
}

/// What a program came to, for comparison with another run of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the device library counted.
    pub stats: Stats,
    /// The interleavings of the launches.
    pub traces: Vec<Option<u64>>,
    /// Faults of the shape's mix that were asked for and that bit.
    pub faults: FaultTally,
}

/// Runs the program that `rng` makes for `shape` and compares everything that can be seen with the model.
///
/// # Errors
/// What differs.
pub fn run<T: Element>(rng: &mut ChaCha8Rng, shape: &Shape, options: &CompileOptions) -> Result<Outcome, String> {
    run_on::<T>(shape.builder(), rng, shape, options)
}

/// The same on a virtual memory of other settings than the shape's.
///
/// # Errors
/// What differs.
pub fn run_on<T: Element>(
    builder: VmBuilder,
    rng: &mut ChaCha8Rng,
    shape: &Shape,
    options: &CompileOptions,
) -> Result<Outcome, String> {
    run_watched::<T>(builder, rng, shape, options, &mut |_, _| Ok(()))
}

/// When a run calls whoever watches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A launch will begin.
    Before(u32),
    /// It has ended, and the host has done what it does between launches.
    After(u32),
    /// All of them have, and everything was written home and compared.
    Ended,
}

/// Somebody who does things to the virtual memory between launches.
pub type Watcher<'a> = &'a mut dyn FnMut(&Vm, Moment) -> Result<(), Wrong>;

/// The same with somebody who does things to the virtual memory between launches.
///
/// # Errors
/// What differs.
pub fn run_watched<T: Element>(
    builder: VmBuilder,
    rng: &mut ChaCha8Rng,
    shape: &Shape,
    options: &CompileOptions,
    watch: Watcher<'_>,
) -> Result<Outcome, String> {
    let mut options = options.clone();
    options.defines.push(("ELEMENT".into(), Some(T::NAME.into())));
    let bench = Bench::with(builder, PROGRAM, &options)?;
    run_watched_in::<T>(&bench, rng, shape, watch).map_err(|wrong| wrong.to_string())
}

/// The same in a virtual memory that is there, with [`PROGRAM`] compiled for `T`.
///
/// # Errors
/// What differs.
pub fn run_in<T: Element>(bench: &Bench, rng: &mut ChaCha8Rng, shape: &Shape) -> Result<Outcome, Wrong> {
    run_watched_in::<T>(bench, rng, shape, &mut |_, _| Ok(()))
}

/// The same with somebody who does things to the virtual memory between launches.
///
/// # Errors
/// What differs.
pub fn run_watched_in<T: Element>(
    bench: &Bench,
    rng: &mut ChaCha8Rng,
    shape: &Shape,
    watch: Watcher<'_>,
) -> Result<Outcome, Wrong> {
    if let (Some(mix), Some(seed), Some(nic)) = (&shape.faults, shape.interleaving, bench.vm.soft_nic()) {
        nic.mix_faults(mix, seed).map_err(|error| with_causes(&error))?;
    }
    let seed = rng.random();
    let mut model = Model::<T> {
        seed,
        written: HashMap::new(),
        shared: (0..shape.shared)
            .map(|i| if i % 4 == 3 { u64::MAX } else { i })
            .collect(),
        _elements: std::marker::PhantomData,
    };
    let data = (0..shape.elements).map(|i| T::make(mix(seed, i)));
    let a = bench.vm.region::<T>(shape.elements).name("elements");
    let a = match shape.never_evicted {
        true => a.never_evicted(),
        false => a,
    };
    let integrity = match shape.checked {
        true => Integrity::Crc32c,
        false => Integrity::Unchecked,
    };
    let a = a.replicas(shape.replicas).integrity(integrity).from_iter(data)?;
    let shared = bench.vm.region::<u64>(shape.shared).name("shared");
    let shared = shared.replicas(shape.replicas).integrity(integrity);
    let shared = shared.from_slice(&model.shared)?;
    let _calm = Calm(&bench.vm);
    let mut traces = Vec::new();
    for launch in 0..shape.launches {
        watch(&bench.vm, Moment::Before(launch))?;
        traces.push(
            launch_once(bench, rng, shape, &mut model, (&a, &shared))
                .map_err(|wrong| wrong.of(&format!("launch {launch}")))?,
        );
        between(rng, shape, &mut model, &a)?;
        watch(&bench.vm, Moment::After(launch))?;
    }
    let mut faults = FaultTally::default();
    if shape.faults.is_some() {
        for nic in bench.vm.soft_nics() {
            nic.calm();
            faults.merge(&nic.fault_tally());
        }
    }
    let found = a.to_vec()?;
    if let Some((i, e)) = (0..).zip(&found).find(|(i, e)| **e != T::make(model.number(*i))) {
        return Err(format!("element {i} is {e:?} instead of {:?}", T::make(model.number(i))).into());
    }
    compare(&shared.to_vec()?, &model.shared).map_err(|wrong| format!("shared: {wrong}"))?;
    let violations: Vec<_> = bench.vm.soft_nics().iter().flat_map(|nic| nic.violations()).collect();
    let stats = bench.vm.stats()?;
    if !violations.is_empty() || (stats.errors != 0 && !shape.errors_allowed && shape.faults.is_none()) {
        return Err(format!(
            "the queues' rules were broken, or {} requests failed: {violations:?}",
            stats.errors
        )
        .into());
    }
    watch(&bench.vm, Moment::Ended)?;
    // Where they are looked for.
    let races = SimGpu::behind(&**bench.vm.gpu()).map(|gpu| gpu.races());
    if let Some((races, count @ 1..)) = races {
        let told: Vec<String> = races.iter().take(4).map(ToString::to_string).collect();
        return Err(format!("{count} races: {}", told.join("; ")).into());
    }
    Ok(Outcome { stats, traces, faults })
}

fn launch_once<T: Element>(
    bench: &Bench,
    rng: &mut ChaCha8Rng,
    shape: &Shape,
    model: &mut Model<T>,
    (a, shared): (&Region<T>, &Region<u64>),
) -> Result<Option<u64>, Wrong> {
    let (lanes, steps) = (shape.lanes(), u64::from(shape.steps));
    let warp_turns: Vec<u64> = (0..lanes.div_ceil(32) * steps)
        .map(|_| rng.random_range(0..1 << 30))
        .collect();
    let mut ops = Vec::with_capacity((lanes * steps) as usize);
    let mut hashes = Vec::new();
    for lane in 0..lanes {
        let mut hash = 0;
        for step in 0..steps {
            let warp_turn = warp_turns[(lane / 32 * steps + step) as usize];
            let (kind, value, i) = operation::<T>(rng, shape, lane, warp_turn);
            ops.push(kind << 56 | value << 40 | i);
            hash = model.apply(shape, kind, value, i, hash);
        }
        hashes.push(hash);
    }
    let given = bench.vm.buffer::<u64>(ops.len() as u64)?;
    given.write(&ops)?;
    let out = bench.vm.buffer::<u64>(lanes)?;
    let config = LaunchConfig::new(shape.blocks, shape.threads)
        .lane_spans(shape.lane_spans.into())
        .warp_spans(shape.warp_spans.into());
    let launched = bench
        .kernel("program")?
        .launch(config, (a, shared, &given, shape.steps, &out))?;
    let failed = AtomicBool::new(false);
    if shape.beside {
        while !launched.is_done() {
            let flushed = if rng.random() {
                a.flush_beside()
            } else {
                shared.flush_beside()
            };
            failed.fetch_or(flushed.is_err(), Ordering::Relaxed);
        }
    }
    let report = launched.sync()?;
    if failed.into_inner() {
        return Err(Wrong::Refused("a flush beside the kernel failed".into()));
    }
    compare(&out.to_vec()?, &hashes).map_err(|wrong| format!("what lanes read: {wrong}"))?;
    Ok(report.trace_hash)
}

/// What the host does between launches: nothing, a flush, a look, or a write.
fn between<T: Element>(rng: &mut ChaCha8Rng, shape: &Shape, model: &mut Model<T>, a: &Region<T>) -> Result<(), Wrong> {
    let count = rng.random_range(1..=shape.elements.min(3000));
    let first = rng.random_range(0..=shape.elements - count);
    match rng.random_range(0..4) {
        0 => {}
        1 => a.flush()?,
        2 => {
            let mut found = vec![T::make(0); count as usize];
            a.read(first, &mut found)?;
            let expected: Vec<T> = (first..first + count).map(|i| T::make(model.number(i))).collect();
            compare(&found, &expected).map_err(|wrong| format!("host read from {first}: {wrong}"))?;
        }
        _ => {
            let values: Vec<u64> = (0..count).map(|_| rng.random_range(0..0x1_0000)).collect();
            let elements: Vec<T> = values.iter().map(|&v| T::make(v)).collect();
            a.write(first, &elements)?;
            for (i, value) in (first..).zip(values) {
                model.write(i, value);
            }
        }
    }
    Ok(())
}

/// A generator for one numbered program.
pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}
