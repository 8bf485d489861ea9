//! Memory that a neighbour GPU lends: how soon the lender can reclaim it, what lending costs its own kernels, what it is worth.

use std::time::{Duration, Instant};

use clap::Args;
use gpuvm::{Advice, Buffer, CudaGpu, Gpu, Kernel, Launch, LaunchConfig, Loan, Region, Scope, ScopedRegion, Stats};
use gpuvm_gpu::cuda::Side;

use crate::bench::args::{HomeArg, Share, parse_data};
use crate::bench::door::{Door, move_to};
use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{Machine, Tally, direct, host_words, pinned, shuffled, size};
use crate::bench::raw::{self, Raw};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::machine::MachineArgs;
use crate::sizes::{Borrow, parse_page_bytes};

/// Memory that a neighbour GPU lends.
#[derive(Debug, Args)]
pub struct TierArgs {
    /// The page size.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_page_bytes)]
    pub page_size: u64,

    /// The data, at home in this host's memory. Without it: 32 GiB, and 64 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub data: Option<u64>,

    /// Frame memory as a share of the data.
    #[arg(long, value_name = "SHARE", default_value = "1/4")]
    pub frames_share: Share,

    /// What the lender takes back at a time while a launch runs, once a run, as long as something is borrowed. Without it: 8 GiB, and
    /// 32 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub take_back: Option<u64>,

    /// What the lender's own kernel copies, to as much memory again. Without it: 2 GiB, and 2 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub lender_data: Option<u64>,

    /// How often each page is read where the ways to keep pages are compared; the first time none is there.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=100))]
    pub passes: u64,
}

/// The neighbour that lends where none is named.
const LENDER: u32 = 1;
/// The fewest pages with which there is something to see.
const PAGES_MIN: u64 = 64;
/// Ways to keep pages that have no frame.
const BORROWED: &str = "borrowed memory";
const WITHOUT: &str = "without a tier";
const MANAGED: &str = "managed memory";

/// Options with what this machine has for those that were not given.
struct Plan {
    /// The borrower, with its loans and without.
    with: MachineArgs,
    without: MachineArgs,
    lender: MachineArgs,
    cuda: bool,
    page_bytes: u64,
    pages: u64,
    frames: u64,
    warps: u32,
    passes: u64,
    take_back: u64,
    lender_bytes: u64,
    repeat: u32,
}

impl Benchmark for TierArgs {
    const NAME: &'static str = "tier";

    /// Asks every GPU that lends for a little, so that one that is not there is known before data are made.
    fn machine(&self, said: &MachineArgs) -> MachineArgs {
        let mut machine = direct(said);
        let lenders = lenders(said).into_iter();
        machine.borrow = lenders.map(|gpu| Borrow::of_bytes(gpu, Loan::CHUNK)).collect();
        machine
    }

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        let warps = run.usual(32 * probe.able.sm_count, 4);
        drop(probe);
        let plan = Plan::new(run, warps)?;
        // Before the data are made: it may not get its memory.
        let borrower = Borrower::new(&plan, &plan.with)?;
        let memory = host_words(plan.bytes() / 8)?;
        let words: &[u64] = bytemuck::cast_slice(&memory);
        let (tier, beside, back) = pinned(&borrower.machine, words, |scope| {
            let tier = borrower.passes(scope, words)?;
            let region = borrower.region(scope, words)?;
            // The first pass leaves the pages with the lender.
            borrower.read(&region, 1)?;
            let beside = lender_row(&plan, &borrower, &region)?;
            // Last: the loan ends with it.
            let back = borrower.take_back(&region)?;
            Ok((tier, beside, back))
        })?;
        drop(borrower);
        let alone = {
            let borrower = Borrower::new(&plan, &plan.without)?;
            pinned(&borrower.machine, words, |scope| borrower.passes(scope, words))?
        };
        drop(memory);
        report.first.insert("give_back_ms".to_owned(), back.figure.into());
        report.first.insert("lender_share".to_owned(), beside.ratio.into());
        let tier = plan.consolidation(BORROWED, &tier);
        report.rows = vec![
            back.and("without a tier M pages/s", alone.warm().median()),
            beside,
            tier.ceiling(WITHOUT, &Runs(alone.rates())),
            plan.consolidation(WITHOUT, &alone),
        ];
        match managed(&plan) {
            Ok(passes) => report.rows.push(plan.consolidation(MANAGED, &passes)),
            Err(error @ (CliError::NeedsNvidia { .. } | CliError::Memory { .. })) => report.skip(MANAGED, error),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// The GPUs that lend.
fn lenders(said: &MachineArgs) -> Vec<u32> {
    match said.borrow.as_slice() {
        [] => vec![LENDER],
        loans => loans.iter().map(|loan| loan.gpu).collect(),
    }
}

impl Plan {
    fn new(run: &Run<'_, TierArgs>, warps: u32) -> Result<Self, CliError> {
        let (mut with, mut without) = (run.machine.clone(), run.machine.clone());
        without.borrow.clear();
        let mut lender = without.clone();
        if run.is_cuda {
            lender.gpu = vec![Gpu::Cuda(CudaGpu::ordinal(with.borrow[0].gpu))];
            Machine::probe(&lender)?;
        }
        let page_bytes = run.page_size;
        let pages = run.data.unwrap_or(run.usual(32 << 30, 64 << 20)) / page_bytes;
        let frames = Machine::frames_for(pages, run.frames_share);
        with.borrow.clone_from(&run.said.borrow);
        if with.borrow.is_empty() {
            let left = pages.saturating_sub(frames).max(1) * page_bytes;
            let bytes = left.next_multiple_of(Loan::CHUNK);
            with.borrow.push(Borrow::of_bytes(LENDER, bytes));
        }
        let plan = Self {
            with,
            without,
            lender,
            cuda: run.is_cuda,
            page_bytes,
            pages,
            frames,
            warps,
            passes: run.passes,
            take_back: run.take_back.unwrap_or(run.usual(8 << 30, 32 << 20)),
            lender_bytes: run.lender_data.unwrap_or(run.usual(2 << 30, 2 << 20)) / 4096 * 4096,
            repeat: run.repeat,
        };
        plan.check(run.frames_share)?;
        Ok(plan)
    }

    fn check(&self, share: Share) -> Result<(), CliError> {
        let page = size(self.page_bytes);
        let refuse = |reason| Err(CliError::Options(reason));
        if self.pages < PAGES_MIN || self.pages > u64::from(u32::MAX) {
            let pages = self.pages;
            return refuse(format!(
                "the data has {pages} pages of {page}; it must have {PAGES_MIN} to 4294967295: see --data"
            ));
        }
        if share == Share(1.0) {
            return refuse("with a frame for each page none leaves; give --frames-share below 1".to_owned());
        }
        for loan in &self.with.borrow {
            let chunk = size(Loan::CHUNK);
            let asked = match loan.bytes() {
                None => "what is free there; name the bytes, which are taken back",
                Some(bytes) if bytes < Loan::CHUNK => "less than a chunk",
                Some(_) => continue,
            };
            return refuse(format!(
                "--borrow asks GPU {} for {asked}; memory is lent in chunks of {chunk}",
                loan.gpu
            ));
        }
        // Each warp holds a page while it reads it.
        if self.frames <= u64::from(self.warps) {
            return refuse(format!(
                "{} warps hold a page of {page} each, and there are {} frames; ask for more with --data",
                self.warps, self.frames
            ));
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.pages * self.page_bytes
    }

    /// How long a launch lasts that something is done beside, in seconds.
    fn beside_seconds(&self) -> f64 {
        if self.cuda { 0.3 } else { 0.03 }
    }

    /// A row of what was done with the loan.
    fn row(&self, name: &str, unit: Unit, runs: Vec<f64>) -> Row {
        self.loan(
            self.data(Row::new(name, unit, runs))
                .with("frames", size(self.frames * self.page_bytes)),
        )
    }

    fn data(&self, row: Row) -> Row {
        row.with("page", size(self.page_bytes)).with("data", size(self.bytes()))
    }

    fn loan(&self, row: Row) -> Row {
        let loans = self.with.borrow.iter();
        let loans = loans.map(|loan| format!("{} of GPU {}", size(loan.bytes().unwrap_or(0)), loan.gpu));
        row.with("loan", loans.collect::<Vec<_>>().join(" and "))
    }

    /// A way to keep pages. The same reads in each; managed memory has room for all of the data, the others for the frames.
    fn consolidation(&self, way: &str, passes: &Passes) -> Row {
        let row = self.data(Row::new("consolidation", Unit::MegaPages, passes.rates()));
        let row = match way {
            MANAGED => row.with("frames", "all"),
            _ => row.with("frames", size(self.frames * self.page_bytes)),
        };
        let row = if way == BORROWED { self.loan(row) } else { row };
        let row = row
            .with("way", way)
            .with("passes", self.passes)
            .and("first pass M pages/s", passes.cold().median())
            .and("others M pages/s", passes.warm().median())
            .verified(self.passes * self.pages, "whole pages");
        let more = passes.more.iter();
        more.fold(row, |row, (name, value)| row.and(name, *value))
    }
}

/// Launches that read each page several times, and the first time none was there.
#[derive(Default)]
struct Passes {
    pages: u64,
    /// Of each run: seconds of the first pass, how many others there were, and their seconds.
    runs: Vec<(f64, u64, f64)>,
    more: Vec<(&'static str, f64)>,
}

impl Passes {
    /// Millions of pages a second, of all passes of each run.
    fn rates(&self) -> Vec<f64> {
        let of_run = |&(cold, others, warm): &(f64, u64, f64)| millions(self.pages * (1 + others), cold + warm);
        self.runs.iter().map(of_run).collect()
    }

    fn cold(&self) -> Runs {
        Runs(self.runs.iter().map(|run| millions(self.pages, run.0)).collect())
    }

    fn warm(&self) -> Runs {
        Runs(
            self.runs
                .iter()
                .map(|run| millions(self.pages * run.1, run.2))
                .collect(),
        )
    }
}

/// Millions of them a second.
fn millions(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds.max(1e-9) / 1e6
}

/// The same reads of managed memory, which the door keeps below what the card has free.
fn managed(plan: &Plan) -> Result<Passes, CliError> {
    let machine = Machine::probe(&plan.without)?;
    let door = Door::open(&machine, &plan.without, MANAGED)?;
    let module = raw::compile(&machine, "fill_pattern check_pages")?;
    let (fill, check) = (module.kernel("fill_pattern")?, module.kernel("check_pages")?);
    let (tally, order) = (Tally::new(&machine)?, machine.upload(&shuffled(plan.pages, 7))?);
    let (config, _) = machine.many_warps();
    let mut passes = Passes {
        pages: plan.pages,
        ..Passes::default()
    };
    for _ in 0..plan.repeat {
        // New for each run, with all pages on the host: what the driver learned is gone.
        let memory = door.managed(plan.bytes())?;
        let words = plan.bytes() / 8;
        tally.run(&fill, config.clone(), (memory.addr(), words, tally.arg()), words)?;
        move_to(&memory, Side::Host)?;
        let pass = || {
            let page_words = plan.page_bytes / 8;
            let args = (memory.addr(), &order, 0u64, plan.pages, page_words, 0u32, tally.arg());
            tally.run(&check, config.clone(), args, plan.pages)
        };
        let (cold, _) = pass()?;
        let mut warm = 0.0;
        for _ in 1..plan.passes {
            warm += pass()?.0;
        }
        passes.runs.push((cold, plan.passes - 1, warm));
    }
    Ok(passes)
}

const SOURCE: &str = include_str!("tier.cu");
/// How often a launch that ended before something was done beside it is tried again, twice as long.
const TRIES: u32 = 6;
/// What the lender writes over what it has back: a lane that still used it would read that.
const SCRIBBLE: u8 = 0xdd;
/// Longest that the reads of one launch are to last, in seconds: well below the limit of a launch.
const LAUNCH_SECONDS_MAX: f64 = 20.0;

/// A virtual memory with few frames, and a kernel that reads whole pages in a random order.
struct Borrower<'a> {
    plan: &'a Plan,
    machine: Machine,
    kernel: Kernel,
    tally: Tally,
    order: Buffer<u32>,
    config: LaunchConfig,
}

impl<'a> Borrower<'a> {
    fn new(plan: &'a Plan, args: &MachineArgs) -> Result<Self, CliError> {
        let machine = Machine::open(args, plan.page_bytes, plan.frames)?;
        let source = args.borrow.first().map_or(HomeArg::Host, |loan| HomeArg::Gpu(loan.gpu));
        let module = machine.compile_for("bench/tier.cu", SOURCE, "read_pages", source)?;
        let (config, _) = machine.warps(plan.warps);
        Ok(Self {
            kernel: module.kernel("read_pages")?,
            tally: Tally::new(&machine)?,
            order: machine.upload(&shuffled(plan.pages, 7))?,
            config: config.warp_spans(1),
            machine,
            plan,
        })
    }

    /// The data, of which no page is there.
    fn region<'scope, 'env>(
        &self,
        scope: &'scope Scope<'scope, 'env>,
        words: &'env [u64],
    ) -> Result<ScopedRegion<'scope, u64>, CliError> {
        let region = scope.read_only("data", words)?;
        // Each page is to be a fault.
        region.advise(Advice::Random)?;
        Ok(region)
    }

    fn stats(&self) -> Result<Stats, CliError> {
        Ok(self.machine.vm.stats()?)
    }

    /// Begins to read all pages so often.
    fn start(&self, region: &Region<u64>, passes: u64) -> Result<Launch, CliError> {
        let (pages, page_words) = (self.plan.pages, self.machine.page_words);
        let args = (region, &self.order, pages, passes * pages, page_words, self.tally.arg());
        self.tally.start(&self.kernel, self.config.clone(), args)
    }

    /// Waits for it; the seconds that it took. Every word has been compared.
    fn finish(&self, launch: &Launch, passes: u64) -> Result<f64, CliError> {
        let finished = self.tally.finish(&self.kernel, launch, passes * self.plan.pages)?;
        Ok(finished.0)
    }

    /// Reads all pages so often; the seconds that it took.
    fn read(&self, region: &Region<u64>, passes: u64) -> Result<f64, CliError> {
        let launch = self.start(region, passes)?;
        self.finish(&launch, passes)
    }

    /// How often to read all pages in one launch, at least twice, for this many seconds where each time takes `pass`.
    fn passes_for(seconds: f64, pass: f64) -> u64 {
        (seconds.min(LAUNCH_SECONDS_MAX) / pass).ceil().clamp(2.0, 1e6) as u64
    }

    /// Runs over regions that are new, so that the first pass finds nothing anywhere.
    fn passes<'scope, 'env>(&self, scope: &'scope Scope<'scope, 'env>, words: &'env [u64]) -> Result<Passes, CliError> {
        let (pages, others) = (self.plan.pages, self.plan.passes - 1);
        let mut passes = Passes {
            pages,
            ..Passes::default()
        };
        for _ in 0..self.plan.repeat {
            let region = self.region(scope, words)?;
            let before = self.stats()?;
            let cold = self.read(&region, 1)?;
            let between = self.stats()?;
            let faults = between.difference(&before).faults;
            if faults < pages {
                return Err(CliError::NotCold { faults, pages });
            }
            let mut warm = 0.0;
            for _ in 0..others {
                warm += self.read(&region, 1)?;
            }
            passes.runs.push((cold, others, warm));
            let stats = self.stats()?.difference(&between);
            passes.more = vec![
                ("others' fetches", stats.pages_fetched as f64),
                ("of the neighbour %", stats.victims_hit_rate() * 100.0),
            ];
        }
        Ok(passes)
    }

    /// The time until the lender has memory back, once a run and as long as some is lent.
    fn take_back(&self, region: &Region<u64>) -> Result<Row, CliError> {
        let before = self.stats()?;
        let mut runs: Vec<TakenBack> = Vec::new();
        while (runs.len() as u32) < self.plan.repeat && (runs.is_empty() || self.machine.vm.borrowed_bytes() > 0) {
            runs.push(self.taken_back(region)?);
        }
        let stats = self.stats()?.difference(&before);
        let of = |figure: fn(&TakenBack) -> f64| runs.iter().map(figure).collect::<Vec<_>>();
        let median = |figure| Runs(of(figure)).median();
        let visits = runs.iter().map(|run| run.visits).sum();
        let given = runs.iter().map(|run| run.given).sum::<u64>();
        Ok(self
            .plan
            .row("take back", Unit::Milliseconds, of(|run| run.milliseconds))
            .and("MB a time", median(|run| run.given as f64 / 1e6))
            .and("of the launch %", median(|run| run.into_launch * 100.0))
            .and("before M pages/s", median(|run| run.before))
            .and("meanwhile M pages/s", median(|run| run.meanwhile))
            .and("after M pages/s", median(|run| run.after))
            .and("pages lost", stats.victims_lost as f64)
            .and("given back MB", given as f64 / 1e6)
            .and("still borrowed MB", self.machine.vm.borrowed_bytes() as f64 / 1e6)
            .verified(visits, "whole pages"))
    }

    /// Takes memory back once, a third into a launch, and writes over it.
    fn taken_back(&self, region: &Region<u64>) -> Result<TakenBack, CliError> {
        let (vm, pages) = (&self.machine.vm, self.plan.pages);
        let pass = self.read(region, 1)?;
        let mut passes = Self::passes_for(self.plan.beside_seconds(), pass);
        for _ in 0..TRIES {
            let launch = self.start(region, passes)?;
            let started = Instant::now();
            std::thread::sleep(Duration::from_secs_f64(pass * passes as f64 / 3.0));
            if launch.is_done() {
                self.finish(&launch, passes)?;
                passes *= 2;
                continue;
            }
            let asked = Instant::now();
            let given = vm.give_back_borrowed(self.plan.take_back)?;
            let took = asked.elapsed();
            vm.scribble_given_back(SCRIBBLE)?;
            let seconds = self.finish(&launch, passes)?;
            let after = self.read(region, 1)?;
            return Ok(TakenBack {
                milliseconds: took.as_secs_f64() * 1e3,
                given,
                into_launch: asked.duration_since(started).as_secs_f64() / seconds,
                before: millions(pages, pass),
                meanwhile: millions(pages * passes, seconds),
                after: millions(pages, after),
                visits: pages * (passes + 2),
            });
        }
        Err(too_short())
    }
}

/// One time that memory was taken back.
struct TakenBack {
    milliseconds: f64,
    given: u64,
    /// The part of the launch that was over.
    into_launch: f64,
    /// Millions of pages a second, in launches before, meanwhile and after.
    before: f64,
    meanwhile: f64,
    after: f64,
    visits: u64,
}

/// Launches are over before anything else is done.
fn too_short() -> CliError {
    CliError::Options(
        "the borrower's launches end before anything runs concurrently with them; give more --data".to_owned(),
    )
}

/// What the kernel copies at a time.
const COPY_BYTES: u64 = 16;
/// The borrower is under way by then.
const HEAD_START: Duration = Duration::from_millis(10);

/// A kernel that its GPU's memory bounds, over memory of that GPU.
struct Lender<'a> {
    raw: Raw<'a>,
    kernel: Kernel,
    config: LaunchConfig,
    bytes: u64,
    passes: u64,
}

impl<'a> Lender<'a> {
    fn new(plan: &Plan, machine: &'a Machine) -> Result<Self, CliError> {
        let module = machine.compile("bench/tier.cu", SOURCE, "stream_copy")?;
        let mut lender = Self {
            raw: Raw::inside(machine, plan.lender_bytes)?,
            kernel: module.kernel("stream_copy")?,
            config: machine.many_warps().0,
            bytes: plan.lender_bytes,
            passes: 1,
        };
        // The first one warms up.
        lender.copy()?;
        let once = lender.copy()?;
        // Long enough for a time, and short beside the borrower's.
        lender.passes = (plan.beside_seconds() / 2.0 / once).ceil().clamp(1.0, 1e4) as u64;
        Ok(lender)
    }

    /// Copies; the seconds that it took.
    fn copy(&self) -> Result<f64, CliError> {
        let chunks = self.bytes / COPY_BYTES;
        let args = (
            self.raw.home(),
            self.raw.frames(),
            chunks,
            self.passes,
            self.raw.tally().arg(),
        );
        let done = chunks * self.passes;
        let ran = self.raw.tally().run(&self.kernel, self.config.clone(), args, done)?;
        Ok(ran.0)
    }

    /// Billions of bytes a second, read and written.
    fn rate(&self, seconds: f64) -> f64 {
        (2 * self.bytes * self.passes) as f64 / seconds / 1e9
    }

    /// Copies while nothing else is under way.
    fn alone(&self) -> Result<f64, CliError> {
        self.raw.clear_frames()?;
        let seconds = self.copy()?;
        self.raw.check_frames()?;
        Ok(seconds)
    }

    /// Copies while the neighbour reads all pages again and again; the seconds of the copy, and the neighbour's rate. `pass` is what the
    /// neighbour takes for all pages once, `alone` what the copy takes.
    fn beside(
        &self,
        borrower: &Borrower<'_>,
        region: &Region<u64>,
        (pages, pass, alone): (u64, f64, f64),
    ) -> Result<(f64, f64), CliError> {
        let mut passes = Borrower::passes_for(2.0 * alone + 4.0 * HEAD_START.as_secs_f64(), pass);
        for _ in 0..TRIES {
            self.raw.clear_frames()?;
            let launch = borrower.start(region, passes)?;
            std::thread::sleep(HEAD_START);
            let seconds = self.copy();
            let was_beside = !launch.is_done();
            let of_borrower = borrower.finish(&launch, passes)?;
            let seconds = seconds?;
            self.raw.check_frames()?;
            if was_beside {
                return Ok((seconds, millions(passes * pages, of_borrower)));
            }
            passes *= 2;
        }
        Err(too_short())
    }
}

/// The lender's kernel alone, and while its neighbour faults over its memory.
fn lender_row(plan: &Plan, borrower: &Borrower<'_>, region: &Region<u64>) -> Result<Row, CliError> {
    let machine = Machine::probe(&plan.lender)?;
    let lender = Lender::new(plan, &machine)?;
    let pass = borrower.read(region, 1)?;
    let (mut rates, mut alone, mut of_borrower) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.repeat {
        let seconds = lender.alone()?;
        alone.push(lender.rate(seconds));
        let (seconds, rate) = lender.beside(borrower, region, (plan.pages, pass, seconds))?;
        rates.push(lender.rate(seconds));
        of_borrower.push(rate);
    }
    let verified = u64::from(plan.repeat) * lender.bytes / 8;
    Ok(plan
        .row("lender's kernel", Unit::GigaBytes, rates)
        .with("copied", size(lender.bytes))
        .ceiling("the same without a borrower", &Runs(alone))
        .and("borrower M pages/s", Runs(of_borrower).median())
        .and("borrower alone M pages/s", millions(plan.pages, pass))
        .and("copies a launch", lender.passes as f64)
        .verified(verified, "words"))
}
