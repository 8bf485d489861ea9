//! Pages a second.

mod homes;

use std::collections::HashMap;

use clap::{Args, ValueEnum};
use gpuvm::{Buffer, Integrity, Kernel, LaunchConfig, Module, Stats, TransportKind};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::bench::args::{HomeArg, Share, parse_data};
use crate::bench::driver::{Benchmark, Run, each};
use crate::bench::faults::homes::Data;
use crate::bench::machine::{self, Machine, Tally, hash, must_be_right, pattern, shuffled, size};
use crate::bench::raw::{Pages, Parts, Raw};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::sizes::parse_page_bytes;

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

/// Pages a second.
#[derive(Debug, Args)]
pub struct FaultsArgs {
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

    /// What touches a page. Without it: warp and span where GPU threads copy pages themselves, lanes where a NIC does.
    #[arg(long, value_name = "WHO,..", value_delimiter = ',')]
    pub access: Vec<Access>,

    /// Short for --access lanes.
    #[arg(long, conflicts_with = "access")]
    pub lanes_apart: bool,

    /// How many of 100 pages are written instead of read.
    #[arg(long, value_name = "PERCENT,..", default_value = "0", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=100))]
    pub writes: Vec<u32>,

    /// Touch only this many pages of the data, chosen at random.
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
}

const SOURCE: &str = include_str!("faults.cu");
const KERNELS: &str = "touch_warps<false> touch_warps<true> touch_spans<false> touch_spans<true> touch_lanes";
/// Where the pages live with several neighbours.
const KERNELS_OF_HOMES: &str = "touch_homes<false> touch_homes<true>";
/// An entry of the order: the page is written.
const WRITTEN: u32 = 1 << 31;

/// What is measured besides page size and frames.
#[derive(Clone, Copy)]
struct Work {
    access: Access,
    pattern: Pattern,
    writes: u32,
    warps: u32,
}

/// Options with what this machine has for those that were not given.
struct Plan {
    frames: Vec<Frames>,
    works: Vec<Work>,
}

#[derive(Clone, Copy)]
enum Frames {
    Share(Share),
    Count(u64),
}

impl Benchmark for FaultsArgs {
    const NAME: &'static str = "faults";

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        let plan = Plan::new(run, &probe)?;
        let ways: &[Integrity] = match run.integrity {
            true => &[Integrity::Unchecked, Integrity::Crc32c],
            false => &[Integrity::Unchecked],
        };
        for &page_bytes in &run.page_size {
            let data_bytes = data_bytes(run, page_bytes)?;
            let mut ceilings = match run.no_ceilings {
                true => None,
                false => Some(Ceilings::new(&probe, run, page_bytes, data_bytes)?),
            };
            for (frames, integrity) in each(&plan.frames, ways) {
                let mut bench = Faults::new(run, page_bytes, data_bytes, frames, integrity)?;
                for &work in &plan.works {
                    if let Some(reason) = bench.impossible(work) {
                        let (access, warps) = (work.access, work.warps);
                        report.skip(&format!("{access:?} by {warps} warps").to_lowercase(), reason);
                        continue;
                    }
                    let (mut row, stats) = bench.row(work, run.repeat)?;
                    if let Some(ceilings) = &mut ceilings {
                        row = ceilings.beside(row, work, &stats, run.repeat)?;
                    }
                    if report.first.is_empty() {
                        tell(report, &row, &stats);
                    }
                    report.rows.push(row);
                }
            }
        }
        Ok(())
    }
}

/// The data in whole pages.
fn data_bytes(args: &Run<'_, FaultsArgs>, page_bytes: u64) -> Result<u64, CliError> {
    let pages = match (args.pages, args.data, args.is_cuda) {
        (Some(pages), _, _) => pages,
        (_, Some(bytes), _) => bytes / page_bytes,
        (_, _, true) => (4 << 30) / page_bytes,
        (_, _, false) => 8192.min((64 << 20) / page_bytes),
    };
    let least = args.sparse.unwrap_or(1);
    if pages < least || pages >= u64::from(WRITTEN) {
        return Err(CliError::Options(format!(
            "the data has {pages} pages of {}; it must have {least} to 2147483647: see --data, --pages and --sparse",
            size(page_bytes)
        )));
    }
    Ok(pages * page_bytes)
}

/// Whose memory the pages come from: their homes, or the neighbours that lend memory to keep them.
fn sources_of(args: &Run<'_, FaultsArgs>) -> Vec<HomeArg> {
    let lenders = args.machine.borrow.iter().map(|loan| HomeArg::Gpu(loan.gpu));
    match args.machine.borrow.is_empty() {
        false => lenders.collect(),
        true => args.home.clone(),
    }
}

/// Figures under names of their own, for scripts.
fn tell(report: &mut Report, row: &Row, stats: &Stats) {
    let calls = stats.doorbell_calls as f64 / stats.pages_fetched.max(1) as f64;
    let figures = [
        ("pages_per_second", row.figure * 1e6),
        ("bytes_per_second", row.more["GB/s"] * 1e9),
        ("pages", stats.pages_fetched as f64),
        ("faults", stats.faults as f64),
        ("fault_ns_p50", stats.fault_ns(0.5) as f64),
        ("fault_ns_p99", stats.fault_ns(0.99) as f64),
        ("doorbells", stats.doorbells as f64),
        ("doorbell_calls", stats.doorbell_calls as f64),
        ("doorbell_calls_per_read", calls),
    ];
    for (name, value) in figures {
        report.first.insert(name.to_owned(), value.into());
    }
}

impl Plan {
    fn new(args: &Run<'_, FaultsArgs>, machine: &Machine) -> Result<Self, CliError> {
        let writes = args.writes.iter().any(|&writes| writes > 0);
        let direct = machine.vm.transport() == TransportKind::Direct;
        let cuda = machine.is_cuda();
        let access = match (args.access.as_slice(), args.lanes_apart) {
            (_, true) => vec![Access::Lanes],
            ([], _) if direct => vec![Access::Warp, Access::Span],
            ([], _) if writes => vec![Access::Warp],
            ([], _) => vec![Access::Lanes],
            (given, _) => given.to_vec(),
        };
        if access.contains(&Access::Lanes) && writes {
            return Err(CliError::Options(
                "lanes with a page each only read: leave out --writes, or use --access warp or span".to_owned(),
            ));
        }
        homes::check(&args.home, access.contains(&Access::Lanes) || writes)?;
        let frames = match (args.frames, args.frames_share.as_slice()) {
            (Some(count), _) => vec![Frames::Count(count)],
            (_, []) if cuda => vec![Frames::Share(Share(1.0)), Frames::Share(Share(0.25))],
            (_, []) => vec![Frames::Share(Share(0.125))],
            (_, shares) => shares.iter().copied().map(Frames::Share).collect(),
        };
        let warps = match args.warps.as_slice() {
            [] if cuda => vec![32 * machine.able.sm_count],
            [] => vec![4],
            given => given.to_vec(),
        };
        let kinds: Vec<_> = each(&args.pattern, &access).collect();
        let amounts: Vec<_> = each(&args.writes, &warps).collect();
        let works = each(&kinds, &amounts).map(|((pattern, access), (writes, warps))| Work {
            access,
            pattern,
            writes,
            warps,
        });
        Ok(Self {
            frames,
            works: works.collect(),
        })
    }
}

struct Faults<'a> {
    args: &'a Run<'a, FaultsArgs>,
    machine: Machine,
    module: Module,
    tally: Tally,
    data: Data,
    integrity: Integrity,
    page_bytes: u64,
    pages: u64,
    share: String,
    /// What was added to the touched words of each page.
    rounds: Vec<u32>,
    round: u32,
}

impl<'a> Faults<'a> {
    fn new(
        args: &'a Run<'a, FaultsArgs>,
        page_bytes: u64,
        data_bytes: u64,
        frames: Frames,
        integrity: Integrity,
    ) -> Result<Self, CliError> {
        let pages = data_bytes / page_bytes;
        let (share, frames) = match frames {
            Frames::Count(count) => (format!("{count} pages"), count),
            Frames::Share(share) if share == Share(1.0) => ("all".to_owned(), Machine::frames_for(pages, share)),
            Frames::Share(share) => (format!("{} of the data", share.0), Machine::frames_for(pages, share)),
        };
        let reliable = integrity != Integrity::Unchecked;
        let machine = Machine::open_with(&args.machine, page_bytes, frames, reliable)?;
        let kernels = if args.home.len() == 1 {
            KERNELS
        } else {
            KERNELS_OF_HOMES
        };
        Ok(Self {
            args,
            module: machine.compile_for("bench/faults.cu", SOURCE, kernels, sources_of(args)[0])?,
            tally: Tally::new(&machine)?,
            data: Data::new(&machine, &args.home, integrity, data_bytes)?,
            machine,
            integrity,
            page_bytes,
            pages,
            share,
            rounds: vec![0; pages as usize],
            round: 0,
        })
    }

    fn kernel(&self, access: Access, write: bool) -> Result<Kernel, CliError> {
        let name = match (access, write) {
            (Access::Warp, _) if self.args.home.len() > 1 => "touch_homes<false>",
            (Access::Span, _) if self.args.home.len() > 1 => "touch_homes<true>",
            (Access::Warp, false) => "touch_warps<false>",
            (Access::Warp, true) => "touch_warps<true>",
            (Access::Span, false) => "touch_spans<false>",
            (Access::Span, true) => "touch_spans<true>",
            (Access::Lanes, _) => "touch_lanes",
        };
        self.module.kernel(name).map_err(CliError::Vm)
    }

    /// The pages to touch, in order, marked where they are written.
    fn order(&self, work: Work) -> Vec<u32> {
        let mut order = match work.pattern {
            Pattern::Sequential => (0..self.pages as u32).collect(),
            Pattern::Random => shuffled(self.pages, 7),
            Pattern::Zipf => zipf(self.pages, 7),
        };
        order.truncate(self.args.sparse.unwrap_or(u64::MAX).min(self.pages) as usize);
        for page in &mut order {
            if hash(*page) % 100 < work.writes {
                *page |= WRITTEN;
            }
        }
        order
    }

    /// Why these frames are too few for that.
    fn impossible(&self, work: Work) -> Option<String> {
        let (_, warps) = self.machine.warps(work.warps);
        let frames = self.machine.vm.frames();
        (work.access == Access::Span && warps >= frames).then(|| {
            format!(
                "each warp holds a page of {}, and there are {frames} frames",
                size(self.page_bytes)
            )
        })
    }

    fn row(&mut self, work: Work, repeat: u32) -> Result<(Row, Stats), CliError> {
        let order = self.order(work);
        let touched = order.len() as u64;
        let kernel = self.kernel(work.access, work.writes > 0)?;
        let order_there = self.machine.upload(&order)?;
        let (config, warps) = self.machine.warps(work.warps);
        let mut rates = Vec::new();
        let start = self.machine.vm.stats()?;
        let mut stats = start.difference(&start);
        let lent = !self.args.machine.borrow.is_empty();
        // Where memory is borrowed, a launch that does not count leaves the pages there.
        for run in 0..repeat + u32::from(lent) {
            if !lent {
                self.data.evict()?;
            }
            self.round += 1;
            let rounds = self.machine.upload(&self.rounds)?;
            let seconds;
            let config = shape(config.clone(), work.access);
            let launched = || self.launch(&kernel, config, &order_there, &rounds, touched);
            (seconds, stats) = self.machine.counted(launched)?;
            self.check_cold(&stats, work, touched)?;
            for &entry in order.iter().filter(|entry| **entry & WRITTEN != 0) {
                self.rounds[(entry & !WRITTEN) as usize] = self.round;
            }
            if lent && run == 0 {
                continue;
            }
            // A page that left before all its lanes had read it is fetched again, and counts once.
            let useful = match work.pattern {
                _ if lent => stats.pages_fetched,
                Pattern::Zipf => stats.pages_fetched,
                Pattern::Sequential | Pattern::Random => touched,
            };
            rates.push(useful as f64 / seconds / 1e6);
        }
        let verified = if work.writes > 0 { self.check_home()? } else { touched };
        let figure = Runs(rates.clone()).median();
        let row = Row::new("faults", Unit::MegaPages, rates)
            .with("page", size(self.page_bytes))
            .with("data", size(self.pages * self.page_bytes))
            .with("frames", &self.share)
            .with("order", format!("{:?}", work.pattern).to_lowercase())
            .with("access", format!("{:?}", work.access).to_lowercase())
            .with("written", format!("{} %", work.writes))
            .with("warps", warps)
            .with("touched", touched)
            .and("GB/s", figure * self.page_bytes as f64 / 1e3)
            .and("fetches", stats.pages_fetched as f64)
            .and("evictions", stats.evictions as f64)
            .and("written back", stats.pages_written_back as f64)
            .verified(verified, "pages");
        Ok((self.with_options(row, &stats), stats))
    }

    /// Touches `touched` pages in that order; the seconds that it took.
    fn launch(
        &self,
        kernel: &Kernel,
        config: LaunchConfig,
        order: &Buffer<u32>,
        rounds: &Buffer<u32>,
        touched: u64,
    ) -> Result<f64, CliError> {
        let (page_words, round, tally) = (self.machine.page_words, self.round, self.tally.arg());
        let ran = match self.data.several() {
            None => {
                let data = self.data.first();
                let args = (data, order, touched, page_words, rounds, round, tally);
                self.tally.run(kernel, config, args, touched)
            }
            Some(([a, b, c], homes)) => {
                let args = (a, b, c, homes, order, touched, page_words, tally);
                self.tally.run(kernel, config, args, touched)
            }
        };
        Ok(ran?.0)
    }

    /// The row with what only some runs have: checksums, a loan, another home.
    fn with_options(&self, row: Row, stats: &Stats) -> Row {
        let row = match (self.args.integrity, self.integrity) {
            (false, _) => row,
            (true, Integrity::Crc32c) => row.with("checksums", "crc32c"),
            (true, _) => row.with("checksums", "none"),
        };
        let row = if self.args.machine.borrow.is_empty() {
            row
        } else {
            row.with("borrowed", size(self.machine.vm.borrowed_bytes()))
                .and("of the neighbour %", stats.victims_hit_rate() * 100.0)
                .and("copied there", stats.victims_copied as f64)
        };
        let row = self.args.beside(row);
        match self.args.home.as_slice() {
            [HomeArg::Host] => row,
            homes => row.with("home", homes::names(homes)),
        }
    }

    /// Each page was fetched at least once, and once only where none has to leave.
    fn check_cold(&self, stats: &Stats, work: Work, touched: u64) -> Result<(), CliError> {
        // A page that stayed in its frame since the launch before is a hit.
        let again = work.pattern == Pattern::Zipf || !self.args.machine.borrow.is_empty();
        let for_all = self.machine.vm.frames() > self.pages;
        let right = match (again, for_all) {
            (true, _) => stats.faults > 0,
            (false, true) => stats.faults == touched,
            (false, false) => stats.faults >= touched,
        };
        if right {
            return Ok(());
        }
        Err(CliError::NotCold {
            faults: stats.faults,
            pages: touched,
        })
    }

    /// Compares every word at home with what the launches so far have made of it; the pages compared.
    fn check_home(&self) -> Result<u64, CliError> {
        let data = self.data.first();
        let words = data.to_vec()?;
        let (page_words, rounds) = (self.machine.page_words, &self.rounds);
        let step = page_words / 32;
        let wrong = machine::sum(data.len(), |index| {
            let (page, offset) = (index / page_words, index % page_words);
            let touched = offset % step == page % step;
            let added = if touched { rounds[page as usize] } else { 0 };
            u64::from(words[index as usize] != pattern(index).wrapping_add(u64::from(added)))
        });
        must_be_right(wrong, self.pages, "the home after its pages were written back")?;
        Ok(self.pages)
    }
}

/// Spans are declared.
fn shape(config: LaunchConfig, access: Access) -> LaunchConfig {
    match access {
        Access::Span => config.warp_spans(1),
        Access::Warp | Access::Lanes => config,
    }
}

/// As many draws as there are pages; the k-th most popular page comes with probability proportional to 1/k.
fn zipf(pages: u64, seed: u64) -> Vec<u32> {
    let ranks = shuffled(pages, seed);
    let mut random = ChaCha8Rng::seed_from_u64(seed + 1);
    let log = ((pages + 1) as f64).ln();
    let draw = |_| {
        let uniform = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let rank = ((uniform * log).exp() - 1.0) as u64;
        ranks[rank.min(pages - 1) as usize]
    };
    (0..pages).map(draw).collect()
}

/// Bare page kernels over memory of the same kind, measured once for each order and each share of writes.
struct Ceilings<'a> {
    raw: Raw<'a>,
    /// The pages with all neighbours that they come from, where those are several.
    parts: Option<Parts>,
    sources: usize,
    page_bytes: u64,
    sparse: u64,
    /// By what was measured: reads in order or not, those of several neighbours, reads beside this many percent of writes.
    found: HashMap<(&'static str, u32), Runs>,
}

impl<'a> Ceilings<'a> {
    fn new(machine: &'a Machine, args: &Run<'_, FaultsArgs>, page_bytes: u64, bytes: u64) -> Result<Self, CliError> {
        let sources = sources_of(args);
        let raw = Raw::new(machine, sources[0], bytes)?;
        let parts = match sources.len() {
            1 => None,
            _ => Some(raw.parts(&sources, page_bytes)?),
        };
        Ok(Self {
            raw,
            parts,
            sources: sources.len(),
            page_bytes,
            sparse: args.sparse.unwrap_or(u64::MAX),
            found: HashMap::new(),
        })
    }

    /// The row with its ceiling: reading alone, or reading while as many pages as in the row flow back.
    fn beside(&mut self, row: Row, work: Work, stats: &Stats, repeat: u32) -> Result<Row, CliError> {
        let random = work.pattern != Pattern::Sequential;
        let alone = self.measured(("one", u32::from(random)), |it| {
            it.raw.fetch(&it.pages(random)?, repeat)
        })?;
        if self.parts.is_some() {
            let runs = self.measured(("several", u32::from(random)), |it| match &it.parts {
                Some(parts) => it.raw.fetch_parts(parts, &it.pages(random)?, repeat),
                None => Ok(Runs(Vec::new())),
            })?;
            let ceiling = format!("bare page reads from {} GPUs", self.sources);
            let row = row.and("bare reads from one M pages/s", alone.median());
            return Ok(row.ceiling(&ceiling, &runs));
        }
        let back = (stats.pages_written_back + stats.victims_copied) as f64 / stats.pages_fetched.max(1) as f64;
        let percent = (back * 100.0).round() as u32;
        if percent == 0 {
            return Ok(row.ceiling("bare page reads", &alone));
        }
        let both = self.measured(("both", percent), |it| {
            it.raw.both(&it.raw.pages(it.page_bytes, true)?, back.min(1.0), repeat)
        })?;
        let of_reads = row.figure / alone.median();
        Ok(row
            .ceiling("bare page reads and writes together", &both)
            .and("of bare reads %", of_reads * 100.0))
    }

    /// Millions of pages a second, measured when they are first asked for.
    fn measured(
        &mut self,
        what: (&'static str, u32),
        measure: impl FnOnce(&Self) -> Result<Runs, CliError>,
    ) -> Result<Runs, CliError> {
        if let Some(runs) = self.found.get(&what) {
            return Ok(runs.clone());
        }
        let runs = measure(self)?.times(1e-6);
        self.found.insert(what, runs.clone());
        Ok(runs)
    }

    fn pages(&self, random: bool) -> Result<Pages, CliError> {
        let pages = self.raw.pages(self.page_bytes, random)?;
        if self.sparse >= pages.count {
            return Ok(pages);
        }
        let order = shuffled(pages.count, 7);
        self.raw.ordered(self.page_bytes, &order[..self.sparse as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_pages_are_drawn_often() {
        let drawn = zipf(10_000, 3);
        assert_eq!(drawn.len(), 10_000);
        let mut counts = HashMap::new();
        for page in &drawn {
            assert!(*page < 10_000);
            *counts.entry(page).or_insert(0) += 1;
        }
        // 1 / ln(10,001) of the draws are of the most popular page; about 3,000 pages are drawn at all.
        let most = counts.values().copied().max().unwrap_or(0);
        assert!((500..2000).contains(&most), "{most}");
        assert!(counts.len() < 6000, "{}", counts.len());
    }
}
