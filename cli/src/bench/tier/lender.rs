//! The GPU that lends: a kernel of its own, while its neighbour faults over its memory.

use std::time::Duration;

use gpuvm::{Kernel, LaunchConfig, Region};

use super::borrower::{Borrower, TRIES, too_short};
use super::{Plan, millions};
use crate::bench::machine::{Machine, size};
use crate::bench::raw::Raw;
use crate::bench::report::{Row, Runs, Unit};
use crate::error::CliError;

const SOURCE: &str = include_str!("../tier.cu");
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
        let module = machine.compile("bench/tier.cu", SOURCE, &["stream_copy"])?;
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
pub fn row(plan: &Plan, borrower: &Borrower<'_>, region: &Region<u64>) -> Result<Row, CliError> {
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
        .ceiling("the same while nobody borrows", &Runs(alone))
        .and("borrower M pages/s", Runs(of_borrower).median())
        .and("borrower alone M pages/s", millions(plan.pages, pass))
        .and("copies a launch", lender.passes as f64)
        .verified(verified, "words"))
}
