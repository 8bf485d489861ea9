//! Reads in place beside fetches: traces of reads over a region, under each placement.

mod stores;
mod trial;

use std::cell::OnceCell;

use clap::ValueEnum;
use gpuvm::{Placement, TransportKind};

use crate::args::MachineArgs;
use crate::bench::args::{PlacementBenchArgs, Share, Trace};
use crate::bench::latency::{self, OneByOne, spread};
use crate::bench::machine::{self, Machine, direct, host_words, pattern, pinned, size};
use crate::bench::odds::Odds;
use crate::bench::placement::trial::Memory;
use crate::bench::raw::quantile;
use crate::bench::report::{Report, Row};
use crate::error::CliError;

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
    let reads_of = |page_bytes: u64| {
        let usual = if cuda { READ_PAGES_BYTES / page_bytes } else { 1 << 13 };
        args.reads.unwrap_or(usual)
    };
    if args.stores {
        stores::measure(args, &machine_args, (bytes, reads_of), &mut report)?;
        return Ok(report);
    }
    let memory = host_words(bytes / 8)?;
    for &page_bytes in &args.page_size {
        let words = bytes / page_bytes * page_bytes / 8;
        let data = Data {
            args,
            machine: &machine_args,
            words: &bytemuck::cast_slice(&memory)[..words as usize],
            reads: reads_of(page_bytes),
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
        let placements = self.args.placement.iter().copied();
        let rows = pinned(&machine, words, |scope| {
            let row = |placement| {
                let (mut medians, mut all) = (Vec::new(), Vec::new());
                for run in 0..latency::WARM_RUNS + self.args.output.repeat {
                    // New for each run: pages remember what was read of them in place.
                    let region = scope.read_only_placed("data", words, placement);
                    let region = region?;
                    let (times, ..) = clock.run(&region, 1)?;
                    if run >= latency::WARM_RUNS {
                        medians.push(quantile(&times, 0.5));
                        all.extend(times);
                    }
                }
                let row = spread("", medians, all).verified(faults, "words");
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
