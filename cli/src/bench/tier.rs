//! Memory that a neighbour GPU lends: how soon the lender has it back, what lending costs its own kernels, what it is worth.

mod borrower;
mod lender;

use gpuvm::{CudaGpu, Gpu, Loan};
use gpuvm_gpu::cuda::Side;

use crate::args::MachineArgs;
use crate::bench::args::{Share, TierArgs};
use crate::bench::door::{Door, move_to};
use crate::bench::machine::{Machine, Tally, direct, host_words, pinned, shuffled, size};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::bench::tier::borrower::Borrower;
use crate::error::CliError;
use crate::sizes::Borrow;

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

/// Measures.
pub fn measure(args: &TierArgs) -> Result<Report, CliError> {
    let (plan, mut report) = Plan::new(args)?;
    // Before the data are made: it may not get its memory.
    let borrower = Borrower::new(&plan, &plan.with)?;
    let memory = host_words(plan.bytes() / 8)?;
    let words: &[u64] = bytemuck::cast_slice(&memory);
    let (tier, beside, back) = pinned(&borrower.machine, words, |scope| {
        let tier = borrower.passes(scope, words)?;
        let region = borrower.region(scope, words)?;
        // The first pass leaves the pages with the lender.
        borrower.read(&region, 1)?;
        let beside = lender::row(&plan, &borrower, &region)?;
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
    report
        .rows
        .push(back.and("without a tier M pages/s", alone.warm().median()));
    report.rows.push(beside);
    report.rows.push(
        plan.consolidation(BORROWED, &tier)
            .ceiling(WITHOUT, &Runs(alone.rates())),
    );
    report.rows.push(plan.consolidation(WITHOUT, &alone));
    match managed(&plan) {
        Ok(passes) => report.rows.push(plan.consolidation(MANAGED, &passes)),
        Err(error @ (CliError::NeedsNvidia { .. } | CliError::Memory { .. })) => report.skip(MANAGED, error),
        Err(error) => return Err(error),
    }
    Ok(report)
}

impl Plan {
    /// Asks every GPU that is needed for a little, so that one that is not there is known before data are made.
    fn new(args: &TierArgs) -> Result<(Self, Report), CliError> {
        let mut without = direct(&args.machine);
        without.borrow.clear();
        let mut with = without.clone();
        let named = args.machine.borrow.iter().map(|loan| loan.gpu);
        let lenders = if args.machine.borrow.is_empty() {
            vec![LENDER]
        } else {
            named.collect()
        };
        let a_little = lenders.iter().map(|&gpu| Borrow::of_bytes(gpu, Loan::CHUNK));
        with.borrow = a_little.collect();
        let probe = Machine::probe(&with)?;
        let report = Report::new("tier", probe.facts(&with));
        let cuda = probe.is_cuda();
        let warps = if cuda { 32 * probe.able.sm_count } else { 4 };
        drop(probe);
        let mut lender = without.clone();
        if cuda {
            lender.gpu = Gpu::Cuda(CudaGpu::ordinal(lenders[0]));
            Machine::probe(&lender)?;
        }
        let usual = |on_cuda: u64, simulated: u64| if cuda { on_cuda } else { simulated };
        let page_bytes = args.page_size;
        let pages = args.data.unwrap_or(usual(32 << 30, 64 << 20)) / page_bytes;
        let frames = Machine::frames_for(pages, args.frames_share);
        with.borrow.clone_from(&args.machine.borrow);
        if with.borrow.is_empty() {
            let left = pages.saturating_sub(frames).max(1) * page_bytes;
            let bytes = left.next_multiple_of(Loan::CHUNK);
            with.borrow.push(Borrow::of_bytes(LENDER, bytes));
        }
        let plan = Self {
            with,
            without,
            lender,
            cuda,
            page_bytes,
            pages,
            frames,
            warps,
            passes: args.passes,
            take_back: args.take_back.unwrap_or(usual(8 << 30, 32 << 20)),
            lender_bytes: args.lender_data.unwrap_or(usual(2 << 30, 2 << 20)) / 4096 * 4096,
            repeat: args.output.repeat,
        };
        plan.check(args.frames_share)?;
        Ok((plan, report))
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
    let module = machine.compile("bench/raw.cu", include_str!("raw.cu"), &["fill_pattern", "check_pages"])?;
    let kernel = |name| module.kernel(name).map_err(CliError::Vm);
    let (fill, check) = (kernel("fill_pattern")?, kernel("check_pages")?);
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
