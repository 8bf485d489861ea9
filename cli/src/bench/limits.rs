//! What this machine allows, without paging.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use gpuvm::LaunchConfig;
use gpuvm_gpu::cuda::Copying;

use crate::bench::args::{HomeArg, parse_data};
use crate::bench::door::Door;
use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{Machine, RawMemory, Tally, hash, must_be_right, pattern, shuffled, size};
use crate::bench::raw::Raw;
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::sizes::parse_page_bytes;

/// A group of rows of `limits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LimitGroup {
    /// The copy engines: each way, both at once, batches of pages. Needs an NVIDIA GPU.
    Copies,
    /// Warps that copy pages from and to the home.
    Pages,
    /// One page by one warp, one dependent load, a word to the processor and back.
    Latency,
    /// Warps that copy pages inside the GPU.
    Memory,
}

/// Ceilings.
#[derive(Debug, Args)]
pub struct LimitsArgs {
    /// Page sizes, with commas between.
    #[arg(long, value_name = "SIZE,..", default_value = "4KiB,16KiB,64KiB,2MiB", value_delimiter = ',', value_parser = parse_page_bytes)]
    pub page_size: Vec<u64>,

    /// The data. Without it: 4 GiB, and 16 MiB on the simulated GPU.
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub data: Option<u64>,

    /// Only these groups. Without it: all that the GPU has.
    #[arg(long, value_name = "GROUP,..", value_delimiter = ',')]
    pub only: Vec<LimitGroup>,

    /// Where the pages live: host, or gpu:N for a neighbour's memory.
    #[arg(long, value_name = "WHERE", default_value = "host")]
    pub home: HomeArg,
}

/// Longest that the processor waits for the GPU's next word.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

impl Benchmark for LimitsArgs {
    const NAME: &'static str = "limits";

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        let bytes = run.data.unwrap_or(run.usual(4 << 30, 16 << 20));
        let largest = run.page_size.iter().copied().max().unwrap_or(4096);
        if bytes < 2 * largest {
            return Err(CliError::Options(format!(
                "--data {bytes} bytes; it must hold two pages of {}",
                size(largest)
            )));
        }
        let bytes = bytes / largest * largest;
        let wanted = |group| run.only.is_empty() || run.only.contains(&group);
        if wanted(LimitGroup::Copies) {
            match Door::open(&probe, &run.machine, "the copy engine") {
                Ok(door) => copies(&probe, &door, run, bytes, report)?,
                // Asked for by name: then it is an error.
                Err(error) if !run.only.is_empty() => return Err(error),
                Err(error) => report.skip("copy engine", error),
            }
        }
        let limits = Limits {
            raw: Raw::new(&probe, run.home, bytes)?,
            machine: &probe,
            run,
            bytes,
        };
        if wanted(LimitGroup::Pages) {
            limits.pages(report)?;
        }
        if wanted(LimitGroup::Latency) {
            limits.latency(report)?;
        }
        if wanted(LimitGroup::Memory) {
            limits.memory(report)?;
        }
        Ok(())
    }
}

/// With the data, and the home where the pages live.
fn row(run: &Run<'_, LimitsArgs>, bytes: u64, row: Row) -> Row {
    let row = row.with("data", size(bytes));
    match run.home {
        HomeArg::Host => row,
        HomeArg::Gpu(ordinal) => row.with("home", format!("gpu:{ordinal}")),
    }
}

/// The copy engines, over memory of the door.
fn copies(
    machine: &Machine,
    door: &Door,
    args: &Run<'_, LimitsArgs>,
    bytes: u64,
    report: &mut Report,
) -> Result<(), CliError> {
    let home = match args.home {
        HomeArg::Host => RawMemory::Host(door.host_memory(bytes)?),
        HomeArg::Gpu(ordinal) => RawMemory::Device(door.device_memory(Some(ordinal), bytes)?),
    };
    let frames = RawMemory::Device(door.device_memory(None, bytes)?);
    let raw = Raw::over(machine, home, frames, bytes)?;
    let (home, frames, half) = (raw.home(), raw.frames(), bytes / 2);
    let gb = |seconds: f64| bytes as f64 / seconds / 1e9;
    let mut rates = [const { Vec::new() }; 3];
    for _ in 0..args.repeat {
        raw.clear_frames()?;
        rates[0].push(gb(door.copy(&[(frames, home, bytes)], Copying::InTurn)?));
        raw.check_frames()?;
        raw.clear_home()?;
        rates[1].push(gb(door.copy(&[(home, frames, bytes)], Copying::InTurn)?));
        raw.check_home()?;
        // The lower half comes, the upper half goes.
        raw.clear_frames_below(half)?;
        raw.clear_home_from(half)?;
        let both = [(frames, home, half), (home + half, frames + half, bytes - half)];
        rates[2].push(gb(door.copy(&both, Copying::TwoAtOnce)?));
        raw.check_frames()?;
        raw.check_home()?;
    }
    let names = [
        "copy engine, home to GPU",
        "copy engine, GPU to home",
        "copy engine, both at once, together",
    ];
    for (rates, name) in rates.into_iter().zip(names) {
        let row = row(args, bytes, Row::new(name, Unit::GigaBytes, rates));
        report.rows.push(row.verified(bytes / 8, "words"));
    }
    batches(door, (args, bytes), &raw, report)
}

/// Pages by the copy engine, in batches.
fn batches(
    door: &Door,
    (args, bytes): (&Run<'_, LimitsArgs>, u64),
    raw: &Raw<'_>,
    report: &mut Report,
) -> Result<(), CliError> {
    let (home, frames) = (raw.home(), raw.frames());
    let name = format!("copy engine, batches of {BATCH} pages");
    for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
        let count = (bytes / page_bytes).min(BATCHED_PAGES);
        let order = shuffled(bytes / page_bytes, 7);
        let pages = raw.ordered(page_bytes, &order)?;
        let copies: Vec<(u64, u64, u64)> = (0..count)
            .zip(&order)
            .map(|(n, &page)| (frames + n * page_bytes, home + u64::from(page) * page_bytes, page_bytes))
            .collect();
        let mut rates = Vec::new();
        for _ in 0..args.repeat {
            raw.clear_frames()?;
            match door.copy(&copies, Copying::Batches(BATCH)) {
                Ok(seconds) => rates.push((count * page_bytes) as f64 / seconds / 1e9),
                // Drivers before CUDA 12.8 have none.
                Err(error) => {
                    report.skip(&name, gpuvm_nic::with_causes(&error));
                    return Ok(());
                }
            }
            raw.check_slots(&pages, count)?;
        }
        let us = page_bytes as f64 / Runs(rates.clone()).median() / 1e3;
        report.rows.push(
            row(args, bytes, Row::new(&name, Unit::GigaBytes, rates))
                .with("page", size(page_bytes))
                .and("us a page", us)
                .verified(count, "pages"),
        );
    }
    Ok(())
}

struct Limits<'a> {
    machine: &'a Machine,
    raw: Raw<'a>,
    run: &'a Run<'a, LimitsArgs>,
    bytes: u64,
}

impl Limits<'_> {
    fn row(&self, name: &str, unit: Unit, runs: Vec<f64>) -> Row {
        row(self.run, self.bytes, Row::new(name, unit, runs))
    }

    fn pages(&self, report: &mut Report) -> Result<(), CliError> {
        let repeat = self.run.repeat;
        for &page_bytes in &self.run.page_size {
            let pages = self.raw.pages(page_bytes, true)?;
            let gb = |runs: &Runs| runs.times(page_bytes as f64 / 1e9).0;
            let reads = self.raw.fetch(&pages, repeat)?;
            let writes = self.raw.write_back(&pages, repeat)?;
            let both = self.raw.both(&pages, 1.0, repeat)?;
            for (name, runs, verified) in [
                ("warps read random pages", reads, pages.count),
                ("warps write random pages", writes, pages.count),
                (
                    "warps read while others write as much, reads",
                    both,
                    pages.count / 2 * 2,
                ),
            ] {
                report.rows.push(
                    self.row(name, Unit::GigaBytes, gb(&runs))
                        .with("page", size(page_bytes))
                        .and("M pages/s", runs.median() / 1e6)
                        .verified(verified, "pages"),
                );
            }
        }
        Ok(())
    }

    fn latency(&self, report: &mut Report) -> Result<(), CliError> {
        for &page_bytes in &self.run.page_size {
            let count = (self.bytes / page_bytes).min(((64 << 20) / page_bytes).clamp(8, 1000));
            let order = shuffled(self.bytes / page_bytes, 7);
            let pages = self.raw.ordered(page_bytes, &order[..count as usize])?;
            let times = self.run.spread(|| self.raw.one_page(&pages))?;
            report.rows.push(
                row(self.run, self.bytes, times.row("one warp, one page, p50"))
                    .with("page", size(page_bytes))
                    .verified(count, "pages"),
            );
        }
        let times = self.run.times(|| self.dependent_load())?;
        let row = self.row("one dependent load", Unit::Microseconds, times);
        report.rows.push(row.verified(LOADS, "loads"));
        if self.run.home == HomeArg::Host {
            let trips = self.run.usual(20_000, 200);
            let times = self.run.times(|| self.round_trips(trips))?;
            report.rows.push(
                Row::new("GPU to processor to GPU", Unit::Microseconds, times).verified(trips.into(), "round trips"),
            );
        }
        Ok(())
    }

    /// Microseconds of one load whose address the one before gave.
    fn dependent_load(&self) -> Result<f64, CliError> {
        let words = self.bytes / 8;
        let args = (self.raw.home(), words, LOADS, self.raw.tally().arg());
        let kernel = self.raw.kernel("time_loads")?;
        let (seconds, said) = self.raw.tally().run(&kernel, LaunchConfig::new(1, 1), args, LOADS)?;
        let expected = (0..LOADS).fold(0, |word, n| {
            let value = pattern(word);
            u64::from(hash(((value >> 8) as u32).wrapping_add(n as u32))) % words / 2 * 2
        });
        must_be_right(u64::from(said.sum != expected), LOADS, "a chain of loads")?;
        // A short launch is not timed by its events: they hold its start too.
        let time = match said.time_ns {
            0 => seconds,
            time_ns => time_ns as f64 / 1e9,
        };
        Ok(time * 1e6 / LOADS as f64)
    }

    /// Microseconds from a store of the GPU to the processor's answer.
    fn round_trips(&self, count: u32) -> Result<f64, CliError> {
        let words = self.machine.gpu().allocate_host(4096);
        let words = words.map_err(|source| CliError::Memory { bytes: 4096, source })?;
        let (Some(bell), Some(answer)) = (words.word(0), words.word(32)) else {
            return Err(CliError::HostMemory { bytes: 4096 });
        };
        let tally = Tally::new(self.machine)?;
        let kernel = self.raw.kernel("time_round_trips")?;
        let said = std::thread::scope(|scope| {
            let gpu = scope.spawn(|| {
                let args = (words.device_addr(), count, tally.arg());
                tally.run(&kernel, LaunchConfig::new(1, 1), args, count.into())
            });
            // Relaxed: the words are all that is exchanged.
            let order = std::sync::atomic::Ordering::Relaxed;
            let (mut seen, mut last) = (0, Instant::now());
            while seen < count && !gpu.is_finished() {
                let rung = bell.load(order);
                if rung == seen {
                    std::hint::spin_loop();
                    if last.elapsed() > ANSWER_LIMIT {
                        break;
                    }
                    continue;
                }
                answer.store(rung, order);
                (seen, last) = (rung, Instant::now());
            }
            gpu.join()
        });
        let (_, said) = said.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(said.time_ns as f64 / 1e3 / f64::from(count))
    }

    /// Page copies inside the GPU.
    fn memory(&self, report: &mut Report) -> Result<(), CliError> {
        let inside = Raw::inside(self.machine, self.bytes)?;
        for &page_bytes in &self.run.page_size {
            let runs = inside.fetch(&inside.pages(page_bytes, true)?, self.run.repeat)?;
            let rates = runs.times(page_bytes as f64 / 1e9).0;
            report.rows.push(
                Row::new("warps copy random pages inside the GPU", Unit::GigaBytes, rates)
                    .with("page", size(page_bytes))
                    .with("data", size(self.bytes))
                    .verified(self.bytes / page_bytes, "pages"),
            );
        }
        Ok(())
    }
}

/// Pages that are copied in batches, and those of one batch.
const BATCHED_PAGES: u64 = 4096;
const BATCH: usize = 64;
/// Loads of the chain.
const LOADS: u64 = 1000;
