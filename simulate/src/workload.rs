//! What is simulated: small kernels that page much, each with a model of what it must come to.

use std::fmt;
use std::str::FromStr;

use gpuvm::{Launch, LaunchConfig, Region, Vm};
use gpuvm_nic::wire::mlx5::Opcode;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bench::{Bench, Calm, Kernels, Wrong, compare};
use crate::homes::{Flips, Homes, names_damage};
use crate::kernels::{PROGRAM, SPANS, SWEEPS, WORDS};
use crate::linear::{self, Action, Operation, Verdict};
use crate::program::{self, Moment, Shape, rng, tiny};
use crate::run::{Happened, Needs, PAGE_WORDS, Room};

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
    /// Random programs whose pages have two homes, which are taken away while they run, and return between launches.
    Replicas,
    /// Homes are taken away and return beside a kernel that writes.
    Returns,
    /// Random programs whose pages have checksums, with bits that flip on the way and at a home.
    Checksums,
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
    pub const ALL: [Self; 14] = [
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
        Self::Replicas,
        Self::Returns,
        Self::Checksums,
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
            Self::Replicas => "replicas",
            Self::Returns => "returns",
            Self::Checksums => "checksums",
        }
    }

    /// Its kernels, and what they are compiled for.
    pub(crate) fn sources(self) -> Sources {
        let (kernels, defines): (_, &'static [_]) = match self {
            Self::Random | Self::NeverEvicted | Self::Direct | Self::Replicas | Self::Checksums => {
                (PROGRAM, &[("ELEMENT", "unsigned")])
            }
            Self::Counters | Self::Linear | Self::Flush | Self::Returns => (WORDS, &[]),
            Self::Stream | Self::Transpose | Self::Bfs | Self::Prefetch => (SWEEPS, &[]),
            Self::Spans => (SPANS, &[]),
        };
        Sources {
            kernels,
            defines,
            direct: self == Self::Direct,
            homes: if self.is_replicated() { 2 } else { 1 },
            checked: matches!(self, Self::Replicas | Self::Checksums),
        }
    }

    /// Whether its lanes race for words of the region by design: as operations of which any order is right, by storing equal values, or,
    /// where a page never leaves, by a weak look at a word that changes once.
    pub fn races_on_purpose(self) -> bool {
        matches!(self, Self::Linear | Self::Bfs | Self::NeverEvicted)
    }

    /// Whether its pages have two homes, some of which are taken away.
    pub(crate) fn loses_homes(self) -> bool {
        matches!(self, Self::Replicas | Self::Returns)
    }

    /// Whether its pages may have two homes.
    fn is_replicated(self) -> bool {
        self.loses_homes() || self == Self::Checksums
    }

    /// Runs it and compares what it came to with its model. Its regions are closed then.
    pub(crate) fn run(self, room: &mut Room<'_>) -> Result<(), Wrong> {
        match self {
            Self::Random => random(room),
            Self::Counters => counters(room),
            Self::Linear => linear(room),
            Self::Stream => stream(room),
            Self::Transpose => transpose(room),
            Self::Bfs => bfs(room),
            Self::Spans => spans(room),
            Self::Prefetch => prefetch(room),
            Self::Flush => flush(room),
            Self::NeverEvicted => never_evicted(room),
            Self::Direct => direct(room),
            Self::Replicas => replicas(room),
            Self::Returns => returns(room),
            Self::Checksums => checksums(room),
        }
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
}

/// Threads of a block where few contend more than many.
const THREADS: u64 = 12;

/// Few frames, short rings: drawn by the seed.
fn needs(seed: u64, frames: u64) -> Needs {
    Needs {
        frames,
        queue_pairs: 1 + (seed % 2) as u32,
        queue_depth: 1 << (seed / 2 % 4),
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

fn shape(seed: u64, frames: u64) -> Shape {
    Shape {
        launches: 1 + (seed / 4 % 2) as u32,
        steps: 4 + (seed / 8 % 4) as u32,
        // Parts of warps, small enough that a seed is done soon.
        threads: [8, 12, 16, 32][(seed % 4) as usize],
        ..tiny(seed, frames)
    }
}

fn needs_of(shape: &Shape) -> Needs {
    Needs {
        frames: shape.frames,
        queue_pairs: shape.queue_pairs,
        queue_depth: shape.queue_depth,
    }
}

fn program_on(room: &mut Room<'_>, shape: &Shape) -> Result<(), Wrong> {
    let shape = Shape {
        errors_allowed: room.has_faults(),
        ..shape.clone()
    };
    let bench = room.open(needs_of(&shape))?;
    program::run_in::<u32>(&bench, &mut rng(room.seed()), &shape).map(|_| ())
}

fn random(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    program_on(room, &shape(seed, 1 + seed % 3))
}

fn never_evicted(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let shape = Shape {
        never_evicted: true,
        ..shape(seed, 1 + seed % 3)
    };
    program_on(room, &shape)
}

fn direct(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let shape = Shape {
        direct: true,
        launches: 1,
        threads: 8,
        steps: 3,
        ..shape(seed, 1 + seed % 3)
    };
    program_on(room, &shape)
}

/// Words on `pages` pages: `each` a page, at places that the seed draws.
fn places(rng: &mut ChaCha8Rng, pages: u64, each: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..pages)
        .flat_map(|page| (0..each).map(move |n| (page, n)))
        .map(|(page, n)| page * PAGE_WORDS + n * (PAGE_WORDS / each) + rng.random_range(0..PAGE_WORDS / each))
        .collect();
    all.sort_unstable();
    all
}

fn counters(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (pages, steps, lanes) = (5, 5u32, 2 * THREADS);
    let bench = room.open(needs(seed, 1 + seed % 3))?;
    let words = places(&mut rng, pages, 2);
    let a = bench.vm.region::<u64>(pages * PAGE_WORDS).name("counters").zeroed()?;
    let _calm = Calm(&bench.vm);
    let which: Vec<u64> = (0..lanes * u64::from(steps))
        .map(|_| words[rng.random_range(0..words.len() as u32) as usize])
        .collect();
    let given = bench.vm.buffer::<u64>(which.len() as u64)?;
    given.write(&which)?;
    let found = bench.vm.buffer::<u64>(which.len() as u64)?;
    let ran = must(
        &bench,
        "counters",
        LaunchConfig::new(2, THREADS as u32),
        (&a, &given, steps, &found),
    );
    let mut model = vec![0u64; (pages * PAGE_WORDS) as usize];
    which.iter().for_each(|&word| model[word as usize] += 1);
    let found = found.to_vec()?;
    // Whoever was given a count has made it one more; an addition that failed gives 0.
    let counted = which.iter().zip(&found).filter(|(_, count)| **count != 0);
    let counted: Vec<(u64, u64)> = counted.map(|(word, count)| (*word, count + 1)).collect();
    keeps(&bench, ran, &a, &counted, &model)?;
    // Each count was returned to one lane.
    for &word in &words {
        let mut counts: Vec<u64> = (0..which.len())
            .filter(|&n| which[n] == word)
            .map(|n| found[n])
            .collect();
        counts.sort_unstable();
        let expected: Vec<u64> = (0..counts.len() as u64).collect();
        compare(&counts, &expected).map_err(|wrong| format!("counts returned for word {word}: {wrong}"))?;
    }
    close(&bench, a, &model)
}

fn linear(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (pages, steps, lanes) = (5u64, 14u32, 2 * THREADS);
    let bench = room.open(needs(seed, 1 + seed % 3))?;
    let words = places(&mut rng, pages, 2);
    let a = bench.vm.region::<u64>(pages * PAGE_WORDS).name("words").zeroed()?;
    let _calm = Calm(&bench.vm);
    let (mut used, mut at) = (vec![0usize; words.len()], 0);
    let mut ops = Vec::new();
    for n in 0..lanes * u64::from(steps) {
        // Often a lane stays and reads: only who finds a page resident reads it without holding it.
        let stays = n % u64::from(steps) != 0 && rng.random_range(0..4u32) != 0;
        let mut which = match stays {
            true => at / 2 * 2 + rng.random_range(0..2u32) as usize,
            false => rng.random_range(0..words.len() as u32) as usize,
        };
        while used[which] == linear::OPERATIONS_MAX {
            which = (which + 1) % words.len();
        }
        used[which] += 1;
        at = which;
        // Every value is stored once only; additions keep to the upper half.
        let kind = [0, 0, 0, 1, 1, 2, 3, 4][rng.random_range(0..if stays { 4 } else { 8u32 }) as usize];
        let value = if kind == 3 { 1 << 20 } else { n + 1 };
        ops.push(kind << 56 | value << 24 | words[which]);
    }
    let given = bench.vm.buffer::<u64>(ops.len() as u64)?;
    given.write(&ops)?;
    let log = bench.vm.buffer::<u64>(4 * ops.len() as u64)?;
    must(
        &bench,
        "linear",
        LaunchConfig::new(2, THREADS as u32),
        (&a, &given, steps, &log),
    )?;
    let log = log.to_vec()?;
    let last = a.to_vec()?;
    for &word in &words {
        let history: Vec<Operation> = (0..ops.len())
            .filter(|&n| ops[n] & 0xff_ffff == word)
            .map(|n| operation(ops[n], &log[4 * n..4 * n + 4]))
            .collect();
        match linear::check(0, &history, last[word as usize]) {
            Verdict::Linearisable => room.linear.0 += 1,
            Verdict::Undecided => room.linear.1 += 1,
            Verdict::Broken => {
                return Err(Wrong::Differs(format!(
                    "word {word}: no order of its operations explains what they returned, and {} at the end: {}",
                    last[word as usize],
                    in_words(&history)
                )));
            }
        }
    }
    let mut model = vec![0; last.len()];
    words
        .iter()
        .for_each(|&word| model[word as usize] = last[word as usize]);
    close(&bench, a, &model)
}

fn operation(op: u64, log: &[u64]) -> Operation {
    let value = op >> 24 & 0xffff_ffff;
    Operation {
        begin: log[0],
        end: log[1],
        action: match op >> 56 {
            0 => Action::Read,
            1 => Action::Write(value),
            2 => Action::Exchange(value),
            3 => Action::Add(value),
            _ => Action::CompareExchange(log[3], value),
        },
        returned: log[2],
    }
}

fn in_words(history: &[Operation]) -> String {
    let mut history = history.to_vec();
    history.sort_unstable_by_key(|operation| operation.begin);
    let one = |o: &Operation| format!("[{}..{}] {:?} -> {}", o.begin, o.end, o.action, o.returned);
    history.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn stream(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let (pages, apart) = (6, 32u64);
    let length = pages * PAGE_WORDS + 37;
    let bench = room.open(needs(seed, 1 + seed % 4))?;
    let mut model: Vec<u64> = (0..length).map(|i| i ^ seed).collect();
    let a = bench.vm.region::<u64>(length).name("stream").from_slice(&model)?;
    let _calm = Calm(&bench.vm);
    for _ in 0..2 {
        must(&bench, "stream", LaunchConfig::new(2, 32), (&a, apart))?;
        for i in (0..length).step_by(apart as usize) {
            let seen = &mut model[i as usize];
            *seen = seen.wrapping_mul(3).wrapping_add(i);
        }
    }
    close(&bench, a, &model)
}

fn transpose(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let side = 23 + (seed % 5) as u32;
    let length = u64::from(side) * u64::from(side);
    let bench = room.open(needs(seed, 1 + seed % 2))?;
    let values: Vec<u64> = (0..length).map(|i| i * 7 + seed).collect();
    let matrix = bench.vm.region::<u64>(length).name("matrix").read_only();
    let matrix = matrix.from_slice(&values)?;
    let out = bench.vm.region::<u64>(length).name("transposed").zeroed()?;
    let _calm = Calm(&bench.vm);
    must(&bench, "transpose", LaunchConfig::new(2, 16), (&matrix, &out, side))?;
    let side = u64::from(side);
    let model: Vec<u64> = (0..length)
        .map(|i| values[(i % side * side + i / side) as usize] + 1)
        .collect();
    close(&bench, out, &model)?;
    close(&bench, matrix, &values)
}

fn bfs(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    // Rows and neighbours lie apart, so that a small graph has many pages.
    let (vertices, degree, apart) = (24u64, 3u64, 128u64);
    let bench = room.open(needs(seed, 1 + seed % 3))?;
    let mut rows = vec![0u32; ((vertices + 1) * apart) as usize];
    let mut neighbours = vec![0u32; (vertices * degree * apart) as usize];
    for v in 0..vertices {
        rows[(v * apart) as usize] = (v * degree) as u32;
        rows[(v * apart + 1) as usize] = ((v + 1) * degree) as u32;
        for k in 0..degree {
            neighbours[((v * degree + k) * apart) as usize] = rng.random_range(0..vertices as u32);
        }
    }
    let region = |name: &str, of: &[u32]| {
        let region = bench.vm.region::<u32>(of.len() as u64).name(name).read_only();
        region.from_slice(of).map_err(Wrong::from)
    };
    let (row_region, neighbour_region) = (region("rows", &rows)?, region("neighbours", &neighbours)?);
    let mut distances = vec![u32::MAX; (vertices * apart) as usize];
    distances[0] = 0;
    let paged = bench.vm.region::<u32>(distances.len() as u64).name("distances");
    let paged = paged.from_slice(&distances)?;
    let _calm = Calm(&bench.vm);
    for level in 0..vertices as u32 {
        let changed = bench.vm.buffer::<u32>(1)?;
        let args = (&row_region, &neighbour_region, &paged, apart, vertices, level, &changed);
        must(&bench, "bfs_level", LaunchConfig::new(2, 12), args)?;
        let mut any = false;
        for v in (0..vertices)
            .filter(|v| distances[(v * apart) as usize] == level)
            .collect::<Vec<_>>()
        {
            for k in 0..degree {
                let to = u64::from(neighbours[((v * degree + k) * apart) as usize]) * apart;
                if distances[to as usize] > level + 1 {
                    (distances[to as usize], any) = (level + 1, true);
                }
            }
        }
        if (changed.to_vec()?[0] != 0) != any {
            return Err(Wrong::Differs(format!(
                "level {level}: the search goes on although its model ends, or the other way round"
            )));
        }
        if !any {
            break;
        }
    }
    compare(&paged.to_vec()?, &distances)?;
    paged.close()?;
    row_region.close()?;
    Ok(neighbour_region.close()?)
}

fn spans(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let lanes_hold = seed % 4 == 3;
    let (warps, steps) = (2u64, 5u32);
    let holders = if lanes_hold { 8 } else { warps };
    // One frame more than can be held at once.
    let frames = holders + u64::from(!room.frames_equal_spans());
    let pages = frames + 4;
    let bench = room.open(needs(seed, frames))?;
    let mut model: Vec<u64> = (0..pages * PAGE_WORDS).map(|i| i ^ seed).collect();
    let a = bench
        .vm
        .region::<u64>(pages * PAGE_WORDS)
        .name("held")
        .from_slice(&model)?;
    let _calm = Calm(&bench.vm);
    let declared = u64::from(!room.frames_equal_spans());
    if lanes_hold {
        // Rows of one word each, 8 lanes with a column of their own.
        let rows: Vec<u64> = (0..holders * u64::from(steps))
            .map(|n| rng.random_range(0..pages as u32) as u64 * PAGE_WORDS + n / u64::from(steps))
            .collect();
        let given = bench.vm.buffer::<u64>(rows.len() as u64)?;
        given.write(&rows)?;
        let config = LaunchConfig::new(1, 8).lane_spans(declared);
        must(&bench, "lane_spans", config, (&a, &given, steps))?;
        for (n, &row) in (0u64..).zip(&rows) {
            let word = &mut model[row as usize];
            *word = word.wrapping_mul(7).wrapping_add(n / u64::from(steps) + 1);
        }
        return close(&bench, a, &model);
    }
    // Each warp has one row of 32 words in every page; rows from 8 on are never written.
    let row = |page: u64, row: u64| page * PAGE_WORDS + row * 32;
    let mut given = Vec::new();
    let mut sums = vec![0u64; (warps * 32) as usize];
    for warp in 0..warps {
        for step in 0..u64::from(steps) {
            let first = row(rng.random_range(0..pages as u32).into(), warp);
            let other = row(rng.random_range(0..pages as u32).into(), 8 + rng.random_range(0..8u64));
            given.extend([first, other]);
            for lane in 0..32 {
                let word = &mut model[(first + lane) as usize];
                *word = word.wrapping_mul(5).wrapping_add(step + 1);
                let sum = &mut sums[(warp * 32 + lane) as usize];
                *sum = sum.wrapping_add(model[(other + lane) as usize]);
            }
        }
    }
    let buffer = bench.vm.buffer::<u64>(given.len() as u64)?;
    buffer.write(&given)?;
    let out = bench.vm.buffer::<u64>(sums.len() as u64)?;
    let config = LaunchConfig::new(2, 32).warp_spans(declared);
    must(&bench, "warp_spans", config, (&a, &buffer, steps, &out))?;
    compare(&out.to_vec()?, &sums).map_err(|wrong| format!("what lanes read: {wrong}"))?;
    close(&bench, a, &model)
}

fn prefetch(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let (pages, apart) = (6u64, 8u64);
    let length = pages * PAGE_WORDS;
    let bench = room.open(needs(seed, 1 + seed % 5))?;
    let values: Vec<u64> = (0..length).map(|i| i * 3 + seed).collect();
    let a = bench
        .vm
        .region::<u64>(length)
        .name("ahead")
        .read_only()
        .from_slice(&values)?;
    let _calm = Calm(&bench.vm);
    // Its warp has left before any of the pages is there.
    must(
        &bench,
        "prefetch_only",
        LaunchConfig::new(1, 32),
        (&a, seed % (length / 2), length / 2),
    )?;
    let sum = bench.vm.buffer::<u64>(1)?;
    let stretch = length / 2;
    must(
        &bench,
        "prefetch_and_sum",
        LaunchConfig::new(2, 32),
        (&a, stretch, apart, &sum),
    )?;
    let expected: u64 = values
        .iter()
        .step_by(apart as usize)
        .fold(0, |sum, value| sum.wrapping_add(*value));
    compare(&sum.to_vec()?, &[expected])?;
    must(&bench, "prefetch_only", LaunchConfig::new(1, 32), (&a, 0u64, length))?;
    close(&bench, a, &values)
}

fn flush(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (lanes, turns, pages) = (2 * THREADS, 6u32, 6u64);
    let apart = pages * PAGE_WORDS / lanes;
    let bench = room.open(needs(seed, 1 + seed % 3))?;
    let a = bench.vm.region::<u64>(pages * PAGE_WORDS).name("flushed").zeroed()?;
    let _calm = Calm(&bench.vm);
    let progress = bench.vm.buffer::<u64>(lanes)?;
    let beside = bench.vm.stream()?;
    let writing = launch(
        &bench,
        "writers",
        LaunchConfig::new(2, THREADS as u32),
        (&a, apart, turns, &progress),
    )?;
    let mut flushed = Ok(());
    for _ in 0..4 {
        // Virtual time goes by: the host waits for a launch of another stream.
        let ns: u32 = rng.random_range(1_000..60_000);
        let kernel = bench.kernel("delay")?;
        let waited = kernel.launch_on(&beside, LaunchConfig::new(1, 1), (ns,))?;
        waited.sync()?;
        let before = progress.to_vec()?;
        flushed = a
            .flush_beside()
            .map_err(|error| Wrong::from(error).of("a flush beside the kernel"));
        if flushed.is_err() {
            break;
        }
        for lane in 0..lanes {
            let stored = before[lane as usize];
            let home = room
                .home_word(0, lane * apart)
                .ok_or_else(|| format!("element {} has no home", lane * apart))?;
            if home < stored {
                return Err(Wrong::Differs(format!(
                    "element {}: the home holds {home} after a flush that began when {stored} was stored",
                    lane * apart
                )));
            }
        }
        if writing.is_done() {
            break;
        }
    }
    let written = writing.sync().map_err(|error| Wrong::from(error).of("writers"));
    let mut model = vec![0; (pages * PAGE_WORDS) as usize];
    (0..lanes).for_each(|lane| model[(lane * apart) as usize] = u64::from(turns));
    let stored: Vec<(u64, u64)> = (0..lanes).map(|lane| lane * apart).zip(progress.to_vec()?).collect();
    keeps(&bench, flushed.and(written.map(drop)), &a, &stored, &model)?;
    close(&bench, a, &model)
}

/// What becomes of a home that was taken away in the first launch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It does not return.
    Gone,
    /// It returns, with everything stale in the second launch, and is caught up only then.
    Stale,
    /// It returns and is caught up at once.
    Mended,
}

fn replicas(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let shape = Shape {
        replicas: 2,
        checked: seed % 8 == 7,
        launches: 3,
        steps: 2 + (seed / 8 % 3) as u32,
        threads: [8, 8, 12, 16][(seed % 4) as usize],
        // Those to a home that is lost.
        errors_allowed: true,
        ..shape(seed, 1 + seed % 3)
    };
    let bench = room.open(needs_of(&shape))?;
    let homes = Homes::of(&bench.vm, room.watcher());
    let mut draw = rng(seed ^ SECOND);
    let one = draw.random_range(0..2u32) as usize;
    let other = 1 - one;
    let fate = [Fate::Gone, Fate::Stale, Fate::Mended][draw.random_range(0..3u32) as usize];
    let (first, second) = (draw.random_range(0..STEPS), draw.random_range(0..STEPS));
    let returns = |vm: &Vm, home: usize| {
        homes.stop();
        if !homes.is_lost(home) {
            homes.lose(home)?;
        }
        homes.give_back(vm, home)
    };
    let mut watch = |vm: &Vm, moment: Moment| {
        match (moment, fate) {
            (Moment::Before(0), _) => homes.lose_within(vm, one, first),
            (Moment::After(0), Fate::Stale) => returns(vm, one)?,
            (Moment::After(0), Fate::Mended) => {
                returns(vm, one)?;
                vm.catch_up()?;
            }
            (Moment::Before(1), Fate::Mended) => homes.lose_within(vm, other, second),
            (Moment::After(1), Fate::Stale) => vm.catch_up()?,
            (Moment::After(1), Fate::Mended) => {
                returns(vm, other)?;
                vm.catch_up()?;
            }
            (Moment::Before(2), Fate::Stale) => homes.lose_within(vm, other, second),
            (Moment::Before(2), Fate::Mended) => homes.lose_within(vm, one, second),
            (Moment::After(2), _) => homes.stop(),
            (Moment::Ended, _) => homes.agree()?,
            _ => {}
        }
        Ok(())
    };
    let ran = program::run_watched_in::<u32>(&bench, &mut rng(seed), &shape, &mut watch);
    room.happened = happened(&homes);
    ran.map(|_| ())
}

/// Set apart from the program's own draws.
const SECOND: u64 = 0x7365_636f_6e64_0000;
/// Steps of the scheduler after which a home may be taken away: a launch has some more, or some less.
const STEPS: u32 = 600;

fn happened(homes: &Homes) -> Happened {
    let (losses, within, returns) = homes.counts();
    Happened {
        losses,
        within,
        returns,
        flips: 0,
    }
}

fn returns(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (lanes, turns, pages) = (2 * THREADS, 6u32, 6u64);
    let apart = pages * PAGE_WORDS / lanes;
    let bench = room.open(needs(seed, 1 + seed % 3))?;
    let homes = Homes::of(&bench.vm, room.watcher());
    let a = bench.vm.region::<u64>(pages * PAGE_WORDS).name("returned").replicas(2);
    let a = a.zeroed()?;
    let _calm = Calm(&bench.vm);
    let progress = bench.vm.buffer::<u64>(lanes)?;
    let beside = bench.vm.stream()?;
    let delay = |rng: &mut ChaCha8Rng| -> Result<(), Wrong> {
        // Virtual time goes by: the host waits for a launch of another stream.
        let ns: u32 = rng.random_range(1_000..60_000);
        let waited = bench
            .kernel("delay")?
            .launch_on(&beside, LaunchConfig::new(1, 1), (ns,))?;
        waited.sync()?;
        Ok(())
    };
    let writing = launch(
        &bench,
        "writers",
        LaunchConfig::new(2, THREADS as u32),
        (&a, apart, turns, &progress),
    )?;
    let mut within = 0;
    let mut home = (seed / 16 % 2) as usize;
    let mut rounds = || -> Result<(), Wrong> {
        for _ in 0..3 {
            delay(&mut rng)?;
            // Only where the other one holds everything.
            if !a.health()?.is_whole() {
                bench.vm.catch_up()?;
                continue;
            }
            homes.lose(home)?;
            within += u64::from(!writing.is_done());
            if rng.random_range(0..4u32) != 0 {
                delay(&mut rng)?;
            }
            homes.give_back(&bench.vm, home)?;
            if rng.random() {
                delay(&mut rng)?;
            }
            bench.vm.catch_up()?;
            home = 1 - home;
        }
        Ok(())
    };
    let ran = rounds();
    room.happened = Happened {
        within,
        ..happened(&homes)
    };
    let ended = writing.sync().map_err(|error| Wrong::from(error).of("writers"));
    ran?;
    ended?;
    let mut model = vec![0; (pages * PAGE_WORDS) as usize];
    (0..lanes).for_each(|lane| model[(lane * apart) as usize] = u64::from(turns));
    compare(&a.to_vec()?, &model)?;
    // Once faults have stopped both homes hold everything again; without faults they do already.
    bench.vm.soft_nics().iter().for_each(|nic| nic.calm());
    if room.has_faults() {
        bench.vm.catch_up()?;
    }
    if !a.health()?.is_whole() {
        return Err(Wrong::Differs(format!("both homes are there, and {:?}", a.health()?)));
    }
    homes.agree()?;
    close(&bench, a, &model)
}

/// Bits that flip in a run.
const FLIPS: u32 = 4;

fn checksums(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let replicas = 1 + (seed / 2 % 2) as u32;
    // Without a second copy every other run has nothing to find: what writers do beside write-backs is no damage.
    let flips = replicas == 2 || seed % 2 == 1;
    let shape = Shape {
        replicas,
        checked: true,
        steps: 3 + (seed / 8 % 2) as u32,
        threads: if seed.is_multiple_of(3) { 12 } else { 8 },
        errors_allowed: room.has_faults(),
        ..shape(seed / 4, 1 + seed % 3)
    };
    let bench = room.open(needs_of(&shape))?;
    let homes = Homes::of(&bench.vm, room.watcher());
    let watcher = room.watcher();
    let mut draw = rng(seed ^ SECOND);
    let mut planted: Option<Flips> = None;
    let mut watch = |vm: &Vm, moment: Moment| {
        match moment {
            Moment::Before(0) if flips => {
                // The host reads from the first home and compares no checksum, so that one is damaged on the way only. Of both
                // homes one stays right.
                let (replica, opcodes): (u32, &[_]) = match replicas == 2 && draw.random() {
                    true => (1, &[Opcode::Read, Opcode::Write]),
                    false => (0, &[Opcode::Read]),
                };
                planted = Some(Flips::plant(vm, &watcher, &mut draw, (0, replica), opcodes, FLIPS)?);
            }
            Moment::Ended if replicas == 2 => homes.agree()?,
            _ => {}
        }
        Ok(())
    };
    let ran = program::run_watched_in::<u32>(&bench, &mut rng(seed), &shape, &mut watch);
    let bitten = planted.map_or(0, |planted| planted.bitten(&bench.vm));
    room.happened.flips = bitten;
    let corrupt = bench.vm.stats()?.pages_corrupt;
    if corrupt > bitten {
        return Err(Wrong::Differs(format!(
            "{corrupt} pages were taken for damaged, and {bitten} bits were flipped"
        )));
    }
    match ran {
        // A single copy that is damaged is an error of the launch that needs it, which says so.
        Err(Wrong::Refused(error)) if replicas == 1 && corrupt != 0 && names_damage(&error, "`elements`") => Ok(()),
        Ok(_) if replicas == 1 && corrupt != 0 => Err(Wrong::Differs(format!(
            "{corrupt} pages were damaged, and no launch says so"
        ))),
        ran => ran.map(|_| ()),
    }
}
