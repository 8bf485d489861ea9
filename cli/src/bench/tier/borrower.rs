//! The GPU that borrows: kernels whose pages leave their frames and come back.

use std::time::{Duration, Instant};

use gpuvm::{Advice, Buffer, Kernel, Launch, LaunchConfig, Region, Scope, ScopedRegion, Stats};

use super::{Passes, Plan, millions};
use crate::args::MachineArgs;
use crate::bench::args::HomeArg;
use crate::bench::machine::{Machine, Tally, shuffled};
use crate::bench::report::{Row, Runs, Unit};
use crate::error::CliError;

const SOURCE: &str = include_str!("../tier.cu");
/// How often a launch that ended before something was done beside it is tried again, twice as long.
pub const TRIES: u32 = 6;
/// What the lender writes over what it has back: a lane that still used it would read that.
const SCRIBBLE: u8 = 0xdd;
/// Longest that the reads of one launch are to last, in seconds: well below the limit of a launch.
const LAUNCH_SECONDS_MAX: f64 = 20.0;

/// A virtual memory with few frames, and a kernel that reads whole pages in a random order.
pub struct Borrower<'a> {
    plan: &'a Plan,
    pub machine: Machine,
    kernel: Kernel,
    tally: Tally,
    order: Buffer<u32>,
    config: LaunchConfig,
}

impl<'a> Borrower<'a> {
    pub fn new(plan: &'a Plan, args: &MachineArgs) -> Result<Self, CliError> {
        let machine = Machine::open(args, plan.page_bytes, plan.frames)?;
        let source = args.borrow.first().map_or(HomeArg::Host, |loan| HomeArg::Gpu(loan.gpu));
        let module = machine.compile_for("bench/tier.cu", SOURCE, &["read_pages"], source)?;
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
    pub fn region<'scope, 'env>(
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
        self.machine.vm.stats().map_err(CliError::Vm)
    }

    /// Begins to read all pages so often.
    pub fn start(&self, region: &Region<u64>, passes: u64) -> Result<Launch, CliError> {
        let (pages, page_words) = (self.plan.pages, self.machine.page_words);
        let args = (region, &self.order, pages, passes * pages, page_words, self.tally.arg());
        self.tally.start(&self.kernel, self.config.clone(), args)
    }

    /// Waits for it; the seconds that it took. Every word has been compared.
    pub fn finish(&self, launch: &Launch, passes: u64) -> Result<f64, CliError> {
        let finished = self.tally.finish(&self.kernel, launch, passes * self.plan.pages)?;
        Ok(finished.0)
    }

    /// Reads all pages so often; the seconds that it took.
    pub fn read(&self, region: &Region<u64>, passes: u64) -> Result<f64, CliError> {
        let launch = self.start(region, passes)?;
        self.finish(&launch, passes)
    }

    /// How often to read all pages in one launch, at least twice, for so many seconds where each time takes `pass`.
    pub fn passes_for(seconds: f64, pass: f64) -> u64 {
        (seconds.min(LAUNCH_SECONDS_MAX) / pass).ceil().clamp(2.0, 1e6) as u64
    }

    /// Runs over regions that are new, so that the first pass finds nothing anywhere.
    pub fn passes<'scope, 'env>(
        &self,
        scope: &'scope Scope<'scope, 'env>,
        words: &'env [u64],
    ) -> Result<Passes, CliError> {
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
    pub fn take_back(&self, region: &Region<u64>) -> Result<Row, CliError> {
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
pub fn too_short() -> CliError {
    CliError::Options("the borrower's launches end before anything is done beside them; give more --data".to_owned())
}
