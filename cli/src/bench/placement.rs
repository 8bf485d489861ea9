//! Reads in place beside fetches: traces of reads over a region, under each placement.

use std::cell::OnceCell;
use std::iter::Sum;

use clap::ValueEnum;
use gpuvm::{Buffer, KernelArgs, LaunchConfig, Module, Placement, Region, Scope, Transport, TransportKind};

use crate::args::MachineArgs;
use crate::bench::args::{PlacementBenchArgs, Share, Trace};
use crate::bench::latency::{self, OneByOne, spread};
use crate::bench::machine::{self, Machine, Tally, host_words, pattern, size};
use crate::bench::odds::Odds;
use crate::bench::raw::quantile;
use crate::bench::report::{Report, Row, Unit};
use crate::error::CliError;

const SOURCE: &str = include_str!("placement.cu");
const KERNELS: [&str; 9] = [
    "draw_pages",
    "read_in_order<false>",
    "read_in_order<true>",
    "read_drawn<false>",
    "read_drawn<true>",
    "read_window<false>",
    "read_window<true>",
    "read_once<false>",
    "read_once<true>",
];
const PAGERANK_ROUNDS: u64 = 10;
const LOOP_PASSES: u64 = 8;
const WINDOW_VISITS: u64 = 8;
/// The window's part of the pages.
const WINDOW_PART: u64 = 64;
const ZIPF_EXPONENT: f64 = 0.99;
/// Drawn reads of a page, on average, before those that are timed.
const WARM_READS: u64 = 16;
/// What rows have besides.
const FETCHED: &str = "fetched MB";
const IN_PLACE: &str = "in place MB";
/// `auto`'s time over that of the best one of the other placements.
const TIMES_BETTER: &str = "times the better";
/// The placement of rows without one.
const PLAIN: &str = "plain pointer";
/// The fewest pages that a share of 1/64 leaves a frame for.
const PAGES_MIN: u64 = 64;

impl Trace {
    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    /// The shares of the pages that have frames.
    fn shares(self) -> &'static [Share] {
        match self {
            Self::Pagerank => &[Share(0.5), Share(0.25)],
            Self::Zipf => &[Share(0.25), Share(0.05)],
            Self::ZipfMoves => &[Share(0.05)],
            Self::Uniform => &[Share(0.25)],
            Self::Window => &[Share(0.125)],
            Self::Loop => &[Share(0.5)],
            Self::Once => &[Share(1.0 / 64.0)],
            Self::FirstWord => &[],
        }
    }
}

/// How reads find their words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the home's address, as a program without paging does.
    Plain,
    Placed(Placement),
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::Plain => PLAIN.to_owned(),
            Self::Placed(placement) => placement.to_string(),
        }
    }
}

/// What some launches took, and what they moved.
#[derive(Clone, Copy, Default)]
struct Sample {
    seconds: f64,
    reads: u64,
    sum: u64,
    fetched: u64,
    in_place: u64,
}

impl Sum for Sample {
    fn sum<I: Iterator<Item = Self>>(samples: I) -> Self {
        samples.fold(Self::default(), |one, other| Self {
            seconds: one.seconds + other.seconds,
            reads: one.reads + other.reads,
            sum: one.sum.wrapping_add(other.sum),
            fetched: one.fetched + other.fetched,
            in_place: one.in_place + other.in_place,
        })
    }
}

/// Measures.
pub fn measure(args: &PlacementBenchArgs) -> Result<Report, CliError> {
    let machine_args = direct(&args.machine);
    let probe = Machine::probe(&machine_args)?;
    if probe.vm.transport() != TransportKind::Direct {
        return Err(CliError::Options(format!(
            "transport {} fetches every page, whatever the placement; use --transport direct",
            probe.vm.transport()
        )));
    }
    let mut report = Report::new("placement", probe.facts(&machine_args));
    let cuda = probe.is_cuda();
    drop(probe);
    let traces = match args.trace.as_slice() {
        [] => Trace::value_variants(),
        given => given,
    };
    let bytes = args.data.unwrap_or(if cuda { 1 << 30 } else { 1 << 20 });
    let largest = args.page_size.iter().copied().max().unwrap_or(4096);
    if bytes / largest < PAGES_MIN {
        return Err(CliError::Options(format!(
            "--data {bytes} bytes; the traces take at least {PAGES_MIN} pages of {}",
            size(largest)
        )));
    }
    let memory = host_words(bytes / 8)?;
    for &page_bytes in &args.page_size {
        let words = bytes / page_bytes * page_bytes / 8;
        let data = Data {
            args,
            machine: &machine_args,
            words: &bytemuck::cast_slice(&memory)[..words as usize],
            reads: args.reads.unwrap_or(if cuda { 1 << 24 } else { 1 << 13 }),
            faults: if cuda { 2000 } else { 64 },
            page_bytes,
            pages: words * 8 / page_bytes,
            sum: OnceCell::new(),
            zipf: OnceCell::new(),
        };
        data.rows(traces, &mut report)?;
    }
    say_worst(&mut report);
    Ok(report)
}

/// The direct transport, where another one was not asked for.
fn direct(args: &MachineArgs) -> MachineArgs {
    let mut args = args.clone();
    if matches!(args.transport, Transport::Auto(_)) {
        args.transport = Transport::Direct;
    }
    args
}

/// For scripts: the row that is furthest behind the better one of the fixed placements.
fn say_worst(report: &mut Report) {
    let times = |row: &Row| row.more.get(TIMES_BETTER).copied();
    let ratios = report.rows.iter().filter_map(|row| Some((times(row)?, row)));
    let worst = ratios.max_by(|one, other| one.0.total_cmp(&other.0));
    if let Some((ratio, row)) = worst {
        let row = format!("{}, {}", row.name, row.parameters());
        report.first.insert("worst_times_better".to_owned(), ratio.into());
        report.first.insert("worst_row".to_owned(), row.into());
    }
}

/// The rows of one trace with what they are beside each other.
fn beside(mut rows: Vec<(Way, Row)>) -> Vec<Row> {
    let of = |way| rows.iter().find(|row| row.0 == way).map(|row| row.1.clone());
    let (plain, in_place, fetch) = (
        of(Way::Plain),
        of(Way::Placed(Placement::InPlace)),
        of(Way::Placed(Placement::Fetch)),
    );
    let fixed = rows
        .iter()
        .filter(|row| !matches!(row.0, Way::Plain | Way::Placed(Placement::Auto)));
    let better = fixed
        .min_by(|one, other| one.1.figure.total_cmp(&other.1.figure))
        .cloned();
    let moved = |row: &Row| {
        row.more
            .get(FETCHED)
            .zip(row.more.get(IN_PLACE))
            .map(|(one, other)| one + other)
    };
    for (way, row) in &mut rows {
        let mut next = row.clone();
        for (other, name) in [(&in_place, "times in-place"), (&fetch, "times fetch")] {
            if let Some(other) = other {
                next = next.and(name, row.figure / other.figure);
            }
        }
        if let (Some(bytes), Some(most)) = (moved(row), fetch.as_ref().and_then(moved)) {
            next = next.and("bytes of fetch", bytes / most);
        }
        next = match (*way, &better, &plain) {
            (Way::Placed(Placement::Auto), Some((better, peer)), _) => {
                let times = next.figure / peer.figure;
                next.ceiling(&better.name(), &peer.runs).and(TIMES_BETTER, times)
            }
            (Way::Placed(_), _, Some(plain)) => next.ceiling(PLAIN, &plain.runs),
            _ => next,
        };
        *row = next;
    }
    rows.into_iter().map(|row| row.1).collect()
}

/// What all traces over pages of one size have.
struct Data<'a> {
    args: &'a PlacementBenchArgs,
    machine: &'a MachineArgs,
    words: &'a [u64],
    page_bytes: u64,
    pages: u64,
    /// Random reads of a launch.
    reads: u64,
    /// Pages of which one word is timed.
    faults: u64,
    /// Of all words.
    sum: OnceCell<u64>,
    zipf: OnceCell<Odds>,
}

impl Data<'_> {
    fn rows(&self, traces: &[Trace], report: &mut Report) -> Result<(), CliError> {
        let of = |trace: Trace| match (trace, self.args.frames_share.as_slice()) {
            (Trace::FirstWord, _) | (_, []) => trace.shares(),
            (_, given) => given,
        };
        let mut shares: Vec<Share> = Vec::new();
        for &share in traces.iter().flat_map(|&trace| of(trace)) {
            if !shares.contains(&share) {
                shares.push(share);
            }
        }
        // By trace, although memories are made by share.
        let mut found: Vec<(usize, Vec<Row>)> = Vec::new();
        for share in shares {
            let memory = Memory::new(self, share)?;
            let here = traces
                .iter()
                .enumerate()
                .filter(|(_, trace)| of(**trace).contains(&share));
            for (place, &trace) in here {
                match memory.impossible(trace) {
                    Some(reason) => report.skip(&format!("{} with frames for {}", trace.name(), share.0), reason),
                    None => found.push((place, memory.compared(trace)?)),
                }
            }
        }
        if let Some(place) = traces.iter().position(|&trace| trace == Trace::FirstWord) {
            found.push((place, self.first_words()?));
        }
        found.sort_by_key(|(place, _)| *place);
        report.rows.extend(found.into_iter().flat_map(|(_, rows)| rows));
        Ok(())
    }

    fn row(&self, trace: Trace, row: Row, way: Way, frames: u64) -> Row {
        Row {
            name: trace.name(),
            ..row
        }
        .with("page", size(self.page_bytes))
        .with("data", size(self.words.len() as u64 * 8))
        .with("placement", way.name())
        .with("frames", frames)
    }

    fn sum(&self) -> u64 {
        *self.sum.get_or_init(|| machine::sum(self.words.len() as u64, pattern))
    }

    /// The time of one word of an absent page, with a frame for each.
    fn first_words(&self) -> Result<Vec<Row>, CliError> {
        let faults = self.faults.min(self.pages);
        let machine = Machine::open(self.machine, self.page_bytes, faults * 2 + 64)?;
        let module = latency::compile(&machine)?;
        let clock = OneByOne::new(&machine, &module, faults)?;
        let words = &self.words[..(faults * machine.page_words) as usize];
        let of = |placement| {
            let (mut medians, mut all) = (Vec::new(), Vec::new());
            for run in 0..latency::WARM_RUNS + self.args.output.repeat {
                // New for each run: pages remember what was read of them in place.
                let times = machine.vm.scope(|scope| {
                    let region = scope.read_only_placed("data", words, placement)?;
                    Ok(clock.run(&region, 1).map(|(times, ..)| times))
                });
                let times = times.map_err(CliError::Bench)??;
                if run >= latency::WARM_RUNS {
                    medians.push(quantile(&times, 0.5));
                    all.extend(times);
                }
            }
            let row = spread("", medians, all).verified(faults, "words");
            let way = Way::Placed(placement);
            Ok(self.row(Trace::FirstWord, row, way, machine.vm.frames()))
        };
        let placements = self.args.placement.iter().copied();
        let rows: Vec<Row> = placements.clone().map(of).collect::<Result<_, CliError>>()?;
        // One load, which no fault can be as short as.
        let least = placements
            .zip(&rows)
            .find(|(placement, _)| *placement == Placement::InPlace);
        let least = least.map(|(placement, row)| (placement.to_string(), row.runs.clone()));
        Ok(match least {
            None => rows,
            Some((name, runs)) => rows.into_iter().map(|row| row.ceiling(&name, &runs)).collect(),
        })
    }
}

/// Frames for a share of the pages.
struct Memory<'a> {
    data: &'a Data<'a>,
    machine: Machine,
    module: Module,
    tally: Tally,
    share: Share,
    draws: Buffer<u32>,
}

impl<'a> Memory<'a> {
    fn new(data: &'a Data<'a>, share: Share) -> Result<Self, CliError> {
        let frames = Machine::frames_for(data.pages, share);
        let machine = Machine::open(data.machine, data.page_bytes, frames)?;
        Ok(Self {
            data,
            module: machine.compile("bench/placement.cu", SOURCE, &KERNELS)?,
            tally: Tally::new(&machine)?,
            draws: machine.vm.buffer(data.reads).map_err(CliError::Bench)?,
            machine,
            share,
        })
    }

    /// Why these frames are too few for that.
    fn impossible(&self, trace: Trace) -> Option<String> {
        let (frames, window) = (self.machine.vm.frames(), self.apart() * WINDOW_VISITS);
        (trace == Trace::Window && frames <= window)
            .then(|| format!("the window has {window} pages, and there are {frames} frames"))
    }

    /// Pages between the fronts of the window.
    fn apart(&self) -> u64 {
        (self.data.pages / WINDOW_PART / WINDOW_VISITS).max(1)
    }

    /// The trace in each way.
    fn compared(&self, trace: Trace) -> Result<Vec<Row>, CliError> {
        let draws = match trace {
            Trace::Zipf | Trace::ZipfMoves => {
                let zipf = || Odds::zipf(self.data.pages, ZIPF_EXPONENT);
                Some(Draws::new(self, self.data.zipf.get_or_init(zipf))?)
            }
            Trace::Uniform => Some(Draws::new(self, &Odds::even(self.data.pages))?),
            _ => None,
        };
        let rows = self.machine.vm.scope(|scope| {
            // Keeps the memory pinned while regions over it come and go.
            let _pinned = scope.read_only("data", self.data.words)?;
            let placed = self.data.args.placement.iter().copied().map(Way::Placed);
            let ways = std::iter::once(Way::Plain).chain(placed);
            Ok(ways
                .map(|way| Ok((way, self.row(scope, trace, draws.as_ref(), way)?)))
                .collect())
        });
        let rows: Result<Vec<_>, CliError> = rows.map_err(CliError::Bench)?;
        Ok(beside(rows?))
    }

    fn row<'scope>(
        &self,
        scope: &'scope Scope<'scope, 'a>,
        trace: Trace,
        draws: Option<&Draws>,
        way: Way,
    ) -> Result<Row, CliError> {
        let placement = match way {
            Way::Plain => Placement::InPlace,
            Way::Placed(placement) => placement,
        };
        let (mut times, mut last) = (Vec::new(), Sample::default());
        for _ in 0..self.data.args.output.repeat {
            // New for each run: no page is there, and the GPU has learned nothing.
            let region = scope.read_only_placed("data", self.data.words, placement);
            let region = region.map_err(CliError::Bench)?;
            let trial = Trial {
                memory: self,
                region: &region,
                plain: way == Way::Plain,
            };
            last = trial.run(trace, draws)?;
            times.push(last.seconds * 1e3);
        }
        let rate = last.reads as f64 / last.seconds / 1e6;
        let row = Row::new("", Unit::Milliseconds, times)
            .with("share", self.share.0)
            .and("M reads/s", rate)
            .verified(last.reads, "words");
        let row = self.data.row(trace, row, way, self.machine.vm.frames());
        // Of a plain pointer's loads nobody keeps count.
        Ok(match way {
            Way::Plain => row,
            Way::Placed(_) => row
                .and(FETCHED, last.fetched as f64 / 1e6)
                .and(IN_PLACE, last.in_place as f64 / 1e6),
        })
    }
}

/// What pages are drawn by.
struct Draws {
    odds: Buffer<u32>,
    others: Buffer<u32>,
}

impl Draws {
    fn new(memory: &Memory<'_>, table: &Odds) -> Result<Self, CliError> {
        Ok(Self {
            odds: memory.machine.upload(&table.odds)?,
            others: memory.machine.upload(&table.others)?,
        })
    }
}

/// One run of a trace over a region whose pages are all absent.
struct Trial<'a> {
    memory: &'a Memory<'a>,
    region: &'a Region<u64>,
    plain: bool,
}

impl Trial<'_> {
    fn run(&self, trace: Trace, draws: Option<&Draws>) -> Result<Sample, CliError> {
        let data = self.memory.data;
        match (trace, draws) {
            (Trace::Pagerank, _) => (0..PAGERANK_ROUNDS).map(|_| self.in_order(1)).sum(),
            (Trace::Loop, _) => self.in_order(LOOP_PASSES),
            (Trace::Window, _) => self.window(),
            (Trace::Once, _) => self.once(),
            (Trace::Zipf | Trace::ZipfMoves | Trace::Uniform, Some(draws)) => {
                let warm = (data.pages * WARM_READS).div_ceil(data.reads);
                for launch in 0..warm {
                    self.drawn(draws, launch, false)?;
                }
                let moves = trace == Trace::ZipfMoves;
                let halves = [false, moves].into_iter().take(if moves { 2 } else { 1 });
                (warm..)
                    .zip(halves)
                    .map(|(launch, moved)| self.drawn(draws, launch, moved))
                    .sum()
            }
            (Trace::Zipf | Trace::ZipfMoves | Trace::Uniform | Trace::FirstWord, _) => Ok(Sample::default()),
        }
    }

    /// A launch that reads so many words. `sum`: of them, where it is known.
    fn launch(&self, name: &str, args: impl KernelArgs, reads: u64, sum: Option<u64>) -> Result<Sample, CliError> {
        let Memory {
            machine, module, tally, ..
        } = self.memory;
        let name = format!("{name}<{}>", self.plain);
        let kernel = module.kernel(&name).map_err(CliError::Bench)?;
        let before = machine.vm.stats().map_err(CliError::Bench)?;
        let (seconds, said) = tally.run(&kernel, self.config(), args, reads)?;
        if sum.is_some_and(|sum| sum != said.sum) {
            return Err(CliError::WrongData {
                wrong: 1,
                of: reads,
                what: format!("the sum of {name}"),
            });
        }
        let stats = machine.vm.stats().map_err(CliError::Bench)?.difference(&before);
        Ok(Sample {
            seconds,
            reads,
            sum: said.sum,
            fetched: stats.bytes_fetched,
            in_place: stats.bytes_in_place,
        })
    }

    fn config(&self) -> LaunchConfig {
        self.memory.machine.many_warps().0
    }

    fn in_order(&self, passes: u64) -> Result<Sample, CliError> {
        let count = self.region.len() * passes;
        let sum = self.memory.data.sum().wrapping_mul(passes);
        self.launch(
            "read_in_order",
            (self.region, count, self.memory.tally.arg()),
            count,
            Some(sum),
        )
    }

    fn window(&self) -> Result<Sample, CliError> {
        let Memory {
            machine, data, tally, ..
        } = self.memory;
        let count = data.pages * WINDOW_VISITS;
        let args = (
            self.region,
            count,
            machine.page_words,
            WINDOW_VISITS,
            self.memory.apart(),
            tally.arg(),
        );
        self.launch("read_window", args, count, None)
    }

    fn once(&self) -> Result<Sample, CliError> {
        let words = self.region.len();
        let count = self.memory.data.reads.min(words);
        let bits = words.next_power_of_two().ilog2();
        let sum = (count == words).then(|| self.memory.data.sum());
        self.launch(
            "read_once",
            (self.region, count, bits, self.memory.tally.arg()),
            count,
            sum,
        )
    }

    /// The launch of that number draws and reads the same pages in each way.
    fn drawn(&self, table: &Draws, launch: u64, mirrored: bool) -> Result<Sample, CliError> {
        let Memory {
            machine,
            module,
            data,
            draws,
            tally,
            ..
        } = self.memory;
        let (count, seed) = (data.reads, launch * data.reads);
        let draw = module.kernel("draw_pages").map_err(CliError::Bench)?;
        let Draws { odds, others } = table;
        let args = (
            draws,
            count,
            odds,
            others,
            data.pages,
            seed,
            u32::from(mirrored),
            tally.arg(),
        );
        tally.run(&draw, self.config(), args, count)?;
        let args = (self.region, draws, count, machine.page_words, seed, tally.arg());
        self.launch("read_drawn", args, count, None)
    }
}
