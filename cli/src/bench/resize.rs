//! Frames that come and go beside a kernel that faults: how soon memory is free, and what the kernel loses.

use std::time::{Duration, Instant};

use clap::Args;
use gpuvm::{ElasticBuffer, LaunchConfig, Region, Vm};

use crate::bench::changing::{Changing, ChangingArgs};
use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{Machine, Tally, host_words, pinned, shuffled, size};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::sizes::parse_bytes;

/// Frames that come and go.
#[derive(Debug, Args)]
pub struct ResizeArgs {
    /// Data and frames.
    #[command(flatten)]
    pub sizes: ChangingArgs,

    /// Bytes of frames that go and come back. Without it: 16 GiB, and 6 MiB on a simulated GPU.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub shrink: Option<u64>,
}

const PAGE: u64 = 4096;
/// Longest that frames may take to go.
const WITHIN: Duration = Duration::from_secs(5);
/// Pages that the kernel visits in a second at most, and seconds that it runs at most beside one change.
const VISITS_A_SECOND: u64 = 200_000_000;
const SECONDS: u64 = 8;

/// What is measured, with what this machine has for options that were not given.
struct Bench {
    machine: Machine,
    pages: u64,
    frames: u64,
    shrink: u64,
    /// How long the kernel's rate is taken before and after.
    sample: Duration,
    repeat: u32,
}

/// One change beside the kernel.
struct Change {
    took: Duration,
    kept: u64,
    /// Pages fetched a second: before it, meanwhile, and after.
    rates: [f64; 3],
    visited: u64,
}

impl Benchmark for ResizeArgs {
    const NAME: &'static str = "resize";
    const DIRECT: bool = true;

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        drop(probe);
        let shrink = run.shrink.unwrap_or(run.usual(16 << 30, 6 << 20));
        let Changing { pages, frames, going } = run.sizes.sizes(run.is_cuda, "--shrink", PAGE, shrink)?;
        let builder = run.machine.builder(PAGE, None)?;
        let bench = Bench {
            machine: Machine::of(builder.frame_memory(frames).frame_capacity(frames), PAGE)?,
            pages,
            frames: frames / PAGE * PAGE,
            shrink: going,
            sample: Duration::from_millis(run.usual(200, 50)),
            repeat: run.repeat,
        };
        let memory = host_words(pages * PAGE / 8)?;
        let words: &[u64] = bytemuck::cast_slice(&memory);
        report.rows = pinned(&bench.machine, words, |scope| {
            bench.rows(&*scope.read_only("data", words)?)
        })?;
        Ok(())
    }
}

impl Bench {
    fn vm(&self) -> &Vm {
        &self.machine.vm
    }

    fn rows(&self, region: &Region<u64>) -> Result<Vec<Row>, CliError> {
        let (mut going, mut coming) = (Vec::new(), Vec::new());
        for _ in 0..self.repeat {
            going.push(self.beside(region, || self.resize(self.frames - self.shrink))?);
            coming.push(self.beside(region, || self.resize(self.frames))?);
        }
        let wanted = self.shrink / 2;
        let hog = self.fill_memory()?;
        let given = self.beside(region, || {
            let begun = Instant::now();
            hog.grow(wanted / 8)?;
            Ok((begun.elapsed(), 0))
        })?;
        Ok(vec![
            self.row("frames go", self.shrink, &going),
            self.row("frames come back", self.shrink, &coming),
            self.row("a buffer that finds no memory has that of frames", wanted, &[given]),
        ])
    }

    /// Changes the number of frames: how long it took, and bytes that stayed or did not come.
    fn resize(&self, bytes: u64) -> Result<(Duration, u64), CliError> {
        let resized = self.vm().resize_frames_within(bytes, WITHIN)?;
        Ok((resized.took, resized.kept_bytes + resized.missing_bytes))
    }

    /// A buffer that has all memory which is free: the next growth takes that of frames.
    fn fill_memory(&self) -> Result<ElasticBuffer<u64>, CliError> {
        let hog = self.vm().elastic::<u64>(1 << 40).name("hog").build()?;
        let (before, step) = (self.vm().frames(), (self.shrink / 64).max(1 << 16));
        while self.vm().frames() == before {
            hog.grow(step / 8)?;
        }
        Ok(hog)
    }

    /// Does something beside a kernel that reads random pages, each of them whole, and compares them.
    fn beside(
        &self,
        region: &Region<u64>,
        change: impl FnOnce() -> Result<(Duration, u64), CliError>,
    ) -> Result<Change, CliError> {
        let machine = &self.machine;
        let module = machine.compile("bench/tier.cu", include_str!("tier.cu"), "read_pages")?;
        let kernel = module.kernel("read_pages")?;
        let (tally, order) = (Tally::new(machine)?, machine.upload(&shuffled(self.pages, 7))?);
        // On half of the multiprocessors: the kernel that empties frames needs places, too.
        let blocks = match machine.is_cuda() {
            true => machine.able.sm_count.div_ceil(2),
            false => 1,
        };
        let threads = if machine.is_cuda() { 256 } else { 32 };
        let (config, warps) = (LaunchConfig::new(blocks, threads), u64::from(blocks * threads / 32));
        let visits = VISITS_A_SECOND * SECONDS;
        let args = (region, &order, self.pages, visits, machine.page_words, tally.arg());
        let launch = tally.start(&kernel, config.warp_spans(1), args)?;
        let fetched = || Ok::<_, CliError>((Instant::now(), self.vm().stats()?.pages_fetched));
        let rate = |from: (Instant, u64), to: (Instant, u64)| {
            (to.1 - from.1) as f64 / to.0.duration_since(from.0).as_secs_f64().max(1e-9) / 1e6
        };
        // The first pages come while frames are free.
        std::thread::sleep(3 * self.sample);
        let first = fetched()?;
        std::thread::sleep(self.sample);
        let begun = fetched()?;
        let changed = change();
        let ended = fetched()?;
        std::thread::sleep(self.sample);
        let last = fetched()?;
        launch.abort();
        let visited = tally.stopped(&kernel, &launch)?;
        let (took, kept) = changed?;
        if visited < warps {
            return Err(CliError::DidNotRun {
                kernel: kernel.info().name.clone(),
                done: visited,
                wanted: warps,
            });
        }
        Ok(Change {
            took,
            kept,
            rates: [rate(first, begun), rate(begun, ended), rate(ended, last)],
            visited,
        })
    }

    fn row(&self, name: &str, bytes: u64, changes: &[Change]) -> Row {
        let took = changes.iter().map(|change| change.took.as_secs_f64() * 1e3).collect();
        let median = |of: &dyn Fn(&Change) -> f64| Runs(changes.iter().map(of).collect()).median();
        Row::new(name, Unit::Milliseconds, took)
            .with("frames", size(self.frames))
            .with("bytes", size(bytes))
            .with("data", size(self.pages * PAGE))
            .and("before M fetches/s", median(&|change| change.rates[0]))
            .and("meanwhile M fetches/s", median(&|change| change.rates[1]))
            .and("after M fetches/s", median(&|change| change.rates[2]))
            .and("not done MB", median(&|change| change.kept as f64 / 1e6))
            .verified(changes.iter().map(|change| change.visited).sum(), "whole pages")
    }
}
