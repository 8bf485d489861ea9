//! Reads in place beside fetches: traces of reads over a region, under each placement.

use std::cell::OnceCell;
use std::iter::Sum;

use clap::{Args, ValueEnum};
use gpuvm::{Advice, Buffer, KernelArgs, LaunchConfig, Module, Placement, Region, Scope, TransportKind};

use crate::bench::args::{Share, parse_data};
use crate::bench::driver::{Benchmark, Run, each};
use crate::bench::latency::{self, OneByOne};
use crate::bench::machine::{self, Machine, Tally, host_words, must_be_right, pattern, pinned, size};
use crate::bench::odds::Odds;
use crate::bench::report::{Report, Row, Times, Unit};
use crate::error::CliError;
use crate::sizes::parse_page_bytes;

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
pub struct PlacementArgs {
    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// The data. Without it: 1 GiB, and 1 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub data: Option<u64>,

    /// What is read in which order, with commas between. Without it: all of them.
    #[arg(long, value_name = "TRACE,..", value_delimiter = ',')]
    pub trace: Vec<Trace>,

    /// What reads do with a page that has no frame, with commas between: auto, fetch, in-place, while-free, look-up.
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
}

/// What a launch of random reads moves where each of them fetches its page: about a second over PCIe 5.
const READ_PAGES_BYTES: u64 = 64 << 30;
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

impl Benchmark for PlacementArgs {
    const NAME: &'static str = "placement";
    const DIRECT: bool = true;

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        let transport = probe.vm.transport();
        drop(probe);
        if transport != TransportKind::Direct {
            return Err(CliError::Options(format!(
                "transport {transport} fetches every page, whatever the placement; use --transport direct"
            )));
        }
        let traces = match run.trace.as_slice() {
            [] => Trace::value_variants(),
            given => given,
        };
        let bytes = run.data.unwrap_or(run.usual(1 << 30, 1 << 20));
        let largest = run.page_size.iter().copied().max().unwrap_or(4096);
        if bytes / largest < PAGES_MIN {
            return Err(CliError::Options(format!(
                "--data {bytes} bytes; the traces take at least {PAGES_MIN} pages of {}",
                size(largest)
            )));
        }
        if run.stores {
            return Stores::all(run, bytes, report);
        }
        let memory = host_words(bytes / 8)?;
        for &page_bytes in &run.page_size {
            let words = bytes / page_bytes * page_bytes / 8;
            let data = Data {
                run,
                words: &bytemuck::cast_slice(&memory)[..words as usize],
                reads: reads_of(run, page_bytes),
                faults: run.usual(2000, 64),
                page_bytes,
                pages: words * 8 / page_bytes,
                sum: OnceCell::new(),
                zipf: OnceCell::new(),
            };
            data.rows(traces, report)?;
        }
        say_worst(report);
        Ok(())
    }
}

/// Random reads or stores of a launch.
fn reads_of(run: &Run<'_, PlacementArgs>, page_bytes: u64) -> u64 {
    let usual = run.usual(READ_PAGES_BYTES / page_bytes, 1 << 13);
    run.reads.unwrap_or(usual)
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
    let moved = |row: &Row| Some(row.more.get(FETCHED)? + row.more.get(IN_PLACE)?);
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
    run: &'a Run<'a, PlacementArgs>,
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
        let of = |trace: Trace| match (trace, self.run.frames_share.as_slice()) {
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
        let machine = Machine::open(&self.run.machine, self.page_bytes, faults * 2 + 64)?;
        let module = latency::compile(&machine)?;
        let clock = OneByOne::new(&machine, &module, faults)?;
        let words = &self.words[..(faults * machine.page_words) as usize];
        let placements = self.run.placement.iter().copied();
        let rows = pinned(&machine, words, |scope| {
            let row = |placement| {
                let mut all = Times::default();
                for count in 0..latency::WARM_RUNS + self.run.repeat {
                    // New for each run: pages remember what was read of them in place.
                    let region = scope.read_only_placed("data", words, placement)?;
                    let (times, ..) = clock.run(&region, 1)?;
                    if count >= latency::WARM_RUNS {
                        all.add(times);
                    }
                }
                let row = all.row("").verified(faults, "words");
                Ok(self.row(Trace::FirstWord, row, Way::Placed(placement), machine.vm.frames()))
            };
            placements.clone().map(row).collect::<Result<Vec<_>, _>>()
        })?;
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

const SOURCE: &str = include_str!("placement.cu");
const KERNELS: &str = "draw_pages read_in_order<false> read_in_order<true> read_drawn<false> read_drawn<true> read_window<false> \
                       read_window<true> read_once<false> read_once<true>";
const PAGERANK_ROUNDS: u64 = 10;
const LOOP_PASSES: u64 = 8;
const WINDOW_VISITS: u64 = 8;
/// The window's part of the pages.
const WINDOW_PART: u64 = 64;
const ZIPF_EXPONENT: f64 = 0.99;
/// Drawn reads of a page, on average, before those that are timed.
const WARM_READS: u64 = 16;

/// Those kernels of the traces' file.
fn compile(machine: &Machine, kernels: &str) -> Result<Module, CliError> {
    machine.compile("bench/placement.cu", SOURCE, kernels)
}

/// What some launches took, and what they moved.
#[derive(Clone, Copy, Default)]
struct Sample {
    seconds: f64,
    reads: u64,
    fetched: u64,
    in_place: u64,
}

impl Sum for Sample {
    fn sum<I: Iterator<Item = Self>>(samples: I) -> Self {
        samples.fold(Self::default(), |one, other| Self {
            seconds: one.seconds + other.seconds,
            reads: one.reads + other.reads,
            fetched: one.fetched + other.fetched,
            in_place: one.in_place + other.in_place,
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
    /// A virtual memory with these frames.
    fn new(data: &'a Data<'a>, share: Share) -> Result<Self, CliError> {
        let frames = Machine::frames_for(data.pages, share);
        let machine = Machine::open(&data.run.machine, data.page_bytes, frames)?;
        Ok(Self {
            data,
            module: compile(&machine, KERNELS)?,
            tally: Tally::new(&machine)?,
            draws: machine.vm.buffer(data.reads)?,
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

    /// What a trace launches; nothing for one word of each page.
    fn walk(&self, trace: Trace) -> Result<Option<Walk>, CliError> {
        let drawn = |table: &Odds| {
            Ok(Some(Walk::Drawn {
                odds: self.machine.upload(&table.odds)?,
                others: self.machine.upload(&table.others)?,
                moves: trace == Trace::ZipfMoves,
            }))
        };
        let in_order = |launches, passes| Ok(Some(Walk::InOrder { launches, passes }));
        let Data { pages, zipf, .. } = self.data;
        match trace {
            Trace::Pagerank => in_order(PAGERANK_ROUNDS, 1),
            Trace::Loop => in_order(1, LOOP_PASSES),
            Trace::Zipf | Trace::ZipfMoves => drawn(zipf.get_or_init(|| Odds::zipf(*pages, ZIPF_EXPONENT))),
            Trace::Uniform => drawn(&Odds::even(*pages)),
            Trace::Window => Ok(Some(Walk::Window)),
            Trace::Once => Ok(Some(Walk::Once)),
            Trace::FirstWord => Ok(None),
        }
    }

    /// The trace in each way.
    fn compared(&self, trace: Trace) -> Result<Vec<Row>, CliError> {
        let Some(walk) = self.walk(trace)? else {
            return Ok(Vec::new());
        };
        let rows = pinned(&self.machine, self.data.words, |scope| {
            let placed = self.data.run.placement.iter().copied().map(Way::Placed);
            let ways = std::iter::once(Way::Plain).chain(placed);
            ways.map(|way| Ok((way, self.row(scope, trace, &walk, way)?)))
                .collect::<Result<Vec<_>, _>>()
        })?;
        Ok(beside(rows))
    }

    fn row<'scope>(
        &self,
        scope: &'scope Scope<'scope, 'a>,
        trace: Trace,
        walk: &Walk,
        way: Way,
    ) -> Result<Row, CliError> {
        let placement = match way {
            Way::Plain => Placement::InPlace,
            Way::Placed(placement) => placement,
        };
        let (mut times, mut last) = (Vec::new(), Sample::default());
        for _ in 0..self.data.run.repeat {
            // New for each run: no page is there, and the GPU has learned nothing.
            let region = scope.read_only_placed("data", self.data.words, placement)?;
            let trial = Trial {
                memory: self,
                region: &region,
                plain: way == Way::Plain,
            };
            last = trial.run(walk)?;
            times.push(last.seconds * 1e3);
        }
        let rate = last.reads as f64 / last.seconds / 1e6;
        let row = Row::new("", Unit::Milliseconds, times)
            .with("share", self.share.0)
            .and("M reads/s", rate)
            .verified(last.reads, "words");
        let row = self.data.row(trace, row, way, self.machine.vm.frames());
        // Of a plain pointer's loads nothing keeps count.
        Ok(match way {
            Way::Plain => row,
            Way::Placed(_) => row
                .and(FETCHED, last.fetched as f64 / 1e6)
                .and(IN_PLACE, last.in_place as f64 / 1e6),
        })
    }
}

/// The launches of a trace.
enum Walk {
    /// Each launch reads all words so often.
    InOrder {
        launches: u64,
        passes: u64,
    },
    Window,
    Once,
    Drawn {
        odds: Buffer<u32>,
        others: Buffer<u32>,
        /// Half way the first page is as popular as the last one was, and so on.
        moves: bool,
    },
}

/// One run of a trace over a region whose pages are all absent.
struct Trial<'a> {
    memory: &'a Memory<'a>,
    region: &'a Region<u64>,
    plain: bool,
}

impl Trial<'_> {
    fn run(&self, walk: &Walk) -> Result<Sample, CliError> {
        let data = self.memory.data;
        match walk {
            Walk::InOrder { launches, passes } => (0..*launches).map(|_| self.in_order(*passes)).sum(),
            Walk::Window => self.window(),
            Walk::Once => self.once(),
            Walk::Drawn { odds, others, moves } => {
                let warm = (data.pages * WARM_READS).div_ceil(data.reads);
                for launch in 0..warm {
                    self.drawn([odds, others], launch, false)?;
                }
                let mirrored = if *moves { &[false, true][..] } else { &[false] };
                let launches = (warm..).zip(mirrored);
                launches
                    .map(|(launch, mirrored)| self.drawn([odds, others], launch, *mirrored))
                    .sum()
            }
        }
    }

    /// A launch that reads this many words; and their sum.
    fn launch(
        &self,
        name: &str,
        config: LaunchConfig,
        args: impl KernelArgs,
        reads: u64,
    ) -> Result<(Sample, u64), CliError> {
        let Memory {
            machine, module, tally, ..
        } = self.memory;
        let kernel = module.kernel(&format!("{name}<{}>", self.plain));
        let ((seconds, said), stats) = machine.counted(|| tally.run(&kernel?, config, args, reads))?;
        let sample = Sample {
            seconds,
            reads,
            fetched: stats.bytes_fetched,
            in_place: stats.bytes_in_place,
        };
        Ok((sample, said.sum))
    }

    /// The sample of a launch that read each word this many times.
    fn of_all_words(&self, (sample, sum): (Sample, u64), times: u64) -> Result<Sample, CliError> {
        let wrong = sum != self.memory.data.sum().wrapping_mul(times);
        must_be_right(u64::from(wrong), sample.reads, "the sum of all words")?;
        Ok(sample)
    }

    fn in_order(&self, passes: u64) -> Result<Sample, CliError> {
        let Memory { machine, tally, .. } = self.memory;
        let count = self.region.len() * passes;
        let args = (self.region, count, tally.arg());
        let ran = self.launch("read_in_order", machine.many_warps().0, args, count)?;
        self.of_all_words(ran, passes)
    }

    fn window(&self) -> Result<Sample, CliError> {
        let Memory {
            machine, data, tally, ..
        } = self.memory;
        let (count, apart) = (data.pages * WINDOW_VISITS, self.memory.apart());
        let args = (
            self.region,
            count,
            machine.page_words,
            WINDOW_VISITS,
            apart,
            tally.arg(),
        );
        // What is under way at a time is of one window.
        let (_, most) = machine.many_warps();
        let warps = most.min((apart * WINDOW_VISITS * WINDOW_VISITS).div_ceil(32));
        let (config, _) = machine.warps(warps as u32);
        Ok(self.launch("read_window", config, args, count)?.0)
    }

    fn once(&self) -> Result<Sample, CliError> {
        let Memory {
            machine, data, tally, ..
        } = self.memory;
        let words = self.region.len();
        let count = data.reads.min(words);
        let args = (self.region, count, words.next_power_of_two().ilog2(), tally.arg());
        let ran = self.launch("read_once", machine.many_warps().0, args, count)?;
        match count == words {
            true => self.of_all_words(ran, 1),
            false => Ok(ran.0),
        }
    }

    /// The launch of that number draws and reads the same pages in each way.
    fn drawn(&self, [odds, others]: [&Buffer<u32>; 2], launch: u64, mirrored: bool) -> Result<Sample, CliError> {
        let Memory {
            machine,
            module,
            data,
            draws,
            tally,
            ..
        } = self.memory;
        let (count, seed) = (data.reads, launch * data.reads);
        let (config, _) = machine.many_warps();
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
        let draw = module.kernel("draw_pages")?;
        tally.run(&draw, config.clone(), args, count)?;
        let args = (self.region, draws, count, machine.page_words, seed, tally.arg());
        Ok(self.launch("read_drawn", config, args, count)?.0)
    }
}

const STORES: &str = "store_once<false,false> store_once<false,true> store_once<true,false> store_once<true,true>";
/// Frames, where not given.
const SHARE: Share = Share(0.25);
/// What rows have besides.
const WRITTEN: &str = "written back MB";

/// How words are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// By the home's address, as a program without paging does.
    Plain,
    /// As `Advice::WriteOnce` says.
    InPlace,
    /// In frames.
    Paged,
}

impl Stored {
    const ALL: [Self; 3] = [Self::Plain, Self::InPlace, Self::Paged];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => PLAIN,
            Self::InPlace => "in place",
            Self::Paged => "paged",
        }
    }
}

/// A region whose words are stored.
struct Stores {
    region: Region<u64>,
    module: Module,
    tally: Tally,
    machine: Machine,
    /// Words of a launch that scatters them, at most.
    scattered: u64,
}

impl Stores {
    /// Measures stores to this many bytes.
    fn all(run: &Run<'_, PlacementArgs>, bytes: u64, report: &mut Report) -> Result<(), CliError> {
        let shares = match run.frames_share.as_slice() {
            [] => &[SHARE],
            given => given,
        };
        for (page_bytes, share) in each(&run.page_size, shares) {
            let pages = bytes / page_bytes;
            let machine = Machine::open(&run.machine, page_bytes, Machine::frames_for(pages, share))?;
            let region = machine.vm.region::<u64>().name("stored");
            let stores = Stores {
                module: compile(&machine, STORES)?,
                tally: Tally::new(&machine)?,
                region: region.zeroed(pages * page_bytes / 8)?,
                machine,
                scattered: reads_of(run, page_bytes),
            };
            for scattered in [false, true] {
                let rows = stores.rows(run.repeat, scattered)?;
                let of_all = |row: Row| row.with("page", size(page_bytes)).with("share", share.0);
                report.rows.extend(rows.into_iter().map(of_all));
            }
        }
        Ok(())
    }

    /// The ways beside each other.
    fn rows(&self, repeat: u32, scattered: bool) -> Result<Vec<Row>, CliError> {
        let row = |way| Ok((way, self.row(way, repeat, scattered)?));
        let rows = Stored::ALL.into_iter().map(row).collect::<Result<Vec<_>, CliError>>()?;
        let of = |wanted| rows.iter().find(|(way, _)| *way == wanted).map(|(_, row)| row.clone());
        let (plain, paged) = (of(Stored::Plain), of(Stored::Paged));
        let beside = |(way, row): (Stored, Row)| {
            let times = paged.as_ref().map(|paged| row.figure / paged.figure);
            let row = times.into_iter().fold(row, |row, times| row.and("times paged", times));
            match &plain {
                Some(plain) if way != Stored::Plain => row.ceiling(PLAIN, &plain.runs),
                _ => row,
            }
        };
        Ok(rows.into_iter().map(beside).collect())
    }

    fn row(&self, way: Stored, repeat: u32, scattered: bool) -> Result<Row, CliError> {
        let words = self.region.len();
        let count = if scattered { self.scattered.min(words) } else { words };
        let bits = words.next_power_of_two().ilog2();
        let kernel = self
            .module
            .kernel(&format!("store_once<{},{scattered}>", way == Stored::Plain));
        let kernel = kernel?;
        let advice = if way == Stored::InPlace {
            Advice::WriteOnce
        } else {
            Advice::Normal
        };
        self.region.advise(advice)?;
        let (mut times, mut last) = (Vec::new(), None);
        for round in 1..=u64::from(repeat) {
            // No page is there, and every word gets another value than it has, whatever way was before.
            self.region.evict()?;
            let value = (round << 8) | (way as u64 + 1);
            let (config, _) = self.machine.many_warps();
            let args = (&self.region, count, bits, value, self.tally.arg());
            let run = || self.tally.run(&kernel, config, args, count);
            let ((seconds, _), stats) = self.machine.counted(run)?;
            last = Some(stats);
            times.push(seconds * 1e3);
            self.verify(count, value, |n| {
                if scattered { in_random_order(n, words, bits) } else { n }
            })?;
        }
        let row = Row::new("stores", Unit::Milliseconds, times)
            .with("order", if scattered { "scattered" } else { "in order" })
            .with("way", way.name())
            .with("data", size(words * 8))
            .with("frames", self.machine.vm.frames())
            .verified(count, "words");
        let rate = count as f64 / row.figure / 1e3;
        let row = row.and("M stores/s", rate);
        // Of a plain pointer's stores nothing keeps count.
        Ok(match last.filter(|_| way != Stored::Plain) {
            None => row,
            Some(took) => row
                .and(FETCHED, took.bytes_fetched as f64 / 1e6)
                .and(WRITTEN, took.bytes_written_back as f64 / 1e6)
                .and(IN_PLACE, took.bytes_stored_in_place as f64 / 1e6),
        })
    }

    /// That the home holds what the launch stored: in frames still, or there already.
    fn verify(&self, count: u64, value: u64, word_of: impl Fn(u64) -> u64 + Sync) -> Result<(), CliError> {
        let found = self.region.to_vec()?;
        let wrong = machine::sum(count, |n| {
            let word = word_of(n);
            u64::from(found[word as usize] != pattern(word).wrapping_add(value))
        });
        must_be_right(wrong, count, "the words that were stored")
    }
}

/// Word `n` of all of them in a random order, none twice, as `placement.cu` has it.
fn in_random_order(n: u64, words: u64, bits: u32) -> u64 {
    let (mut x, mask, shift) = (n, (1 << bits) - 1, bits / 2 + 1);
    loop {
        x = (x ^ x >> shift).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
        x = (x ^ x >> shift).wrapping_mul(0x94d0_49bb_1331_11eb) & mask;
        x = (x ^ x >> shift).wrapping_add(0x5bd1_e995) & mask;
        if x < words {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_order_has_each_word_once() {
        for words in [1u64, 2, 511, 512, 513, 5000] {
            let mut all: Vec<u64> = (0..words)
                .map(|n| in_random_order(n, words, words.next_power_of_two().ilog2()))
                .collect();
            all.sort_unstable();
            assert!((0..words).eq(all), "{words}");
        }
    }
}
