//! What is simulated: small kernels that page much, each with a model of what it must come to.

use std::fmt;
use std::str::FromStr;

use gpuvm::{Launch, LaunchConfig, Region};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bench::{Bench, Kernels, Wrong, compare};
use crate::kernels::{PROGRAM, SPANS, SWEEPS, WORDS};
use crate::linear::{self, Action, Operation, Verdict};
use crate::program::{self, Shape, rng, tiny};
use crate::run::{Needs, PAGE_WORDS, Room};

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
    pub const ALL: [Self; 11] = [
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
        }
    }

    /// Its kernels, with the macros that they are compiled with, and whether lanes copy pages themselves.
    pub(crate) fn sources(self) -> (Kernels, &'static [(&'static str, &'static str)], bool) {
        match self {
            Self::Random | Self::NeverEvicted => (PROGRAM, &[("ELEMENT", "unsigned")], false),
            Self::Direct => (PROGRAM, &[("ELEMENT", "unsigned")], true),
            Self::Counters | Self::Linear | Self::Flush => (WORDS, &[], false),
            Self::Stream | Self::Transpose | Self::Bfs | Self::Prefetch => (SWEEPS, &[], false),
            Self::Spans => (SPANS, &[], false),
        }
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
        }
    }
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
fn close(region: Region<u64>, expected: &[u64]) -> Result<(), Wrong> {
    let found = region.to_vec()?;
    compare(&found, expected)?;
    let home = region.read_home()?;
    compare(&home, expected).map_err(|wrong| format!("at its home: {wrong}"))?;
    Ok(region.close()?)
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

fn program_on(room: &mut Room<'_>, shape: &Shape) -> Result<(), Wrong> {
    let needs = Needs {
        frames: shape.frames,
        queue_pairs: shape.queue_pairs,
        queue_depth: shape.queue_depth,
    };
    let shape = Shape {
        errors_allowed: room.has_faults(),
        ..shape.clone()
    };
    let bench = room.open(needs)?;
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
    let which: Vec<u64> = (0..lanes * u64::from(steps))
        .map(|_| words[rng.random_range(0..words.len() as u32) as usize])
        .collect();
    let given = bench.vm.buffer::<u64>(which.len() as u64)?;
    given.write(&which)?;
    let found = bench.vm.buffer::<u64>(which.len() as u64)?;
    must(
        &bench,
        "counters",
        LaunchConfig::new(2, THREADS as u32),
        (&a, &given, steps, &found),
    )?;
    let mut model = vec![0u64; (pages * PAGE_WORDS) as usize];
    which.iter().for_each(|&word| model[word as usize] += 1);
    // Each count was returned to one lane.
    let found = found.to_vec()?;
    for &word in &words {
        let mut counts: Vec<u64> = (0..which.len())
            .filter(|&n| which[n] == word)
            .map(|n| found[n])
            .collect();
        counts.sort_unstable();
        let expected: Vec<u64> = (0..counts.len() as u64).collect();
        compare(&counts, &expected).map_err(|wrong| format!("counts returned for word {word}: {wrong}"))?;
    }
    close(a, &model)
}

fn linear(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (pages, steps, lanes) = (5u64, 14u32, 2 * THREADS);
    let bench = room.open(needs(seed, 1 + seed % 3))?;
    let words = places(&mut rng, pages, 2);
    let a = bench.vm.region::<u64>(pages * PAGE_WORDS).name("words").zeroed()?;
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
    close(a, &model)
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
    for _ in 0..2 {
        must(&bench, "stream", LaunchConfig::new(2, 32), (&a, apart))?;
        for i in (0..length).step_by(apart as usize) {
            let seen = &mut model[i as usize];
            *seen = seen.wrapping_mul(3).wrapping_add(i);
        }
    }
    close(a, &model)
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
    must(&bench, "transpose", LaunchConfig::new(2, 16), (&matrix, &out, side))?;
    let side = u64::from(side);
    let model: Vec<u64> = (0..length)
        .map(|i| values[(i % side * side + i / side) as usize] + 1)
        .collect();
    close(out, &model)?;
    close(matrix, &values)
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
        return close(a, &model);
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
    close(a, &model)
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
    close(a, &values)
}

fn flush(room: &mut Room<'_>) -> Result<(), Wrong> {
    let seed = room.seed();
    let mut rng = rng(seed);
    let (lanes, turns, pages) = (2 * THREADS, 6u32, 6u64);
    let apart = pages * PAGE_WORDS / lanes;
    let bench = room.open(needs(seed, 1 + seed % 3))?;
    let a = bench.vm.region::<u64>(pages * PAGE_WORDS).name("flushed").zeroed()?;
    let progress = bench.vm.buffer::<u64>(lanes)?;
    let beside = bench.vm.stream()?;
    let writing = launch(
        &bench,
        "writers",
        LaunchConfig::new(2, THREADS as u32),
        (&a, apart, turns, &progress),
    )?;
    for _ in 0..4 {
        // Virtual time goes by: the host waits for a launch of another stream.
        let ns: u32 = rng.random_range(1_000..60_000);
        let kernel = bench.kernel("delay")?;
        let waited = kernel.launch_on(&beside, LaunchConfig::new(1, 1), (ns,))?;
        waited.sync()?;
        let before = progress.to_vec()?;
        a.flush_beside()
            .map_err(|error| Wrong::from(error).of("a flush beside the kernel"))?;
        for lane in 0..lanes {
            let stored = before[lane as usize];
            let home = room.home_word(0, lane * apart).unwrap_or(stored);
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
    writing.sync().map_err(|error| Wrong::from(error).of("writers"))?;
    let mut model = vec![0; (pages * PAGE_WORDS) as usize];
    (0..lanes).for_each(|lane| model[(lane * apart) as usize] = u64::from(turns));
    close(a, &model)
}
