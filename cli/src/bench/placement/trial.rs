//! The traces over one memory, launch by launch.

use std::iter::Sum;

use gpuvm::{Buffer, KernelArgs, LaunchConfig, Module, Placement, Region, Scope};

use super::{Data, FETCHED, IN_PLACE, Way, beside};
use crate::bench::args::{Share, Trace};
use crate::bench::machine::{Machine, Tally, pinned};
use crate::bench::odds::Odds;
use crate::bench::report::{Row, Unit};
use crate::error::CliError;

const SOURCE: &str = include_str!("../placement.cu");
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

/// Those kernels of the traces' file.
pub fn compile(machine: &Machine, kernels: &[&str]) -> Result<Module, CliError> {
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
pub struct Memory<'a> {
    data: &'a Data<'a>,
    machine: Machine,
    module: Module,
    tally: Tally,
    share: Share,
    draws: Buffer<u32>,
}

impl<'a> Memory<'a> {
    /// A virtual memory with these frames.
    pub fn new(data: &'a Data<'a>, share: Share) -> Result<Self, CliError> {
        let frames = Machine::frames_for(data.pages, share);
        let machine = Machine::open(data.machine, data.page_bytes, frames)?;
        Ok(Self {
            data,
            module: compile(&machine, &KERNELS)?,
            tally: Tally::new(&machine)?,
            draws: machine.vm.buffer(data.reads)?,
            machine,
            share,
        })
    }

    /// Why these frames are too few for that.
    pub fn impossible(&self, trace: Trace) -> Option<String> {
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
    pub fn compared(&self, trace: Trace) -> Result<Vec<Row>, CliError> {
        let Some(walk) = self.walk(trace)? else {
            return Ok(Vec::new());
        };
        let rows = pinned(&self.machine, self.data.words, |scope| {
            let placed = self.data.args.placement.iter().copied().map(Way::Placed);
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
        for _ in 0..self.data.args.output.repeat {
            // New for each run: no page is there, and the GPU has learned nothing.
            let region = scope.read_only_placed("data", self.data.words, placement);
            let region = region?;
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
        // Of a plain pointer's loads nobody keeps count.
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

    /// A launch that reads so many words; and their sum.
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
        let before = machine.vm.stats()?;
        let (seconds, said) = tally.run(&kernel?, config, args, reads)?;
        let stats = machine.vm.stats()?.difference(&before);
        let sample = Sample {
            seconds,
            reads,
            fetched: stats.bytes_fetched,
            in_place: stats.bytes_in_place,
        };
        Ok((sample, said.sum))
    }

    /// The sample of a launch that read each word so many times.
    fn of_all_words(&self, (sample, sum): (Sample, u64), times: u64) -> Result<Sample, CliError> {
        if sum == self.memory.data.sum().wrapping_mul(times) {
            return Ok(sample);
        }
        Err(CliError::WrongData {
            wrong: 1,
            of: sample.reads,
            what: "the sum of all words".to_owned(),
        })
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
