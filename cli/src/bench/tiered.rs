//! What kernels have of a buffer whose chunks lie in part on the GPU and in part in host memory, and what it costs to move a chunk.

use std::time::Instant;

use clap::Args;
use gpuvm::{Buffer, Kernel, Module, TierPlace, TieredBuffer};

use crate::bench::args::HomeArg;
use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{Machine, Tally, fill, must_be_right, pattern, size, sum};
use crate::bench::raw;
use crate::bench::report::{Report, Row, Runs, Times, Unit};
use crate::error::CliError;
use crate::sizes::parse_bytes;

/// Tiered buffers.
#[derive(Debug, Args)]
pub struct TieredArgs {
    /// Bytes of the buffer, rounded down to four chunks: 8 MiB on NVIDIA GPUs. Without it: 4 GiB, and 4 MiB on a simulated GPU.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub data: Option<u64>,
}

/// Words of a row.
const ROW: u64 = 8192;
/// The part of the chunks that is on the GPU: this many of four.
const RESIDENT: [u64; 4] = [4, 2, 1, 0];
const FOURTHS: [&str; 5] = ["none", "1/4", "1/2", "3/4", "all"];
/// What is measured with each part.
const KERNELS: [&str; 2] = ["sum", "row sums"];

impl Benchmark for TieredArgs {
    const NAME: &'static str = "tiered";
    const DIRECT: bool = true;

    fn measure(run: &Run<'_, Self>, machine: Machine, report: &mut Report) -> Result<(), CliError> {
        let chunk = machine.vm.elastic_stats().handles.handle_bytes;
        let wanted = run.data.unwrap_or(run.usual(4 << 30, 4 << 20));
        let bytes = wanted - wanted % (4 * chunk).max(1);
        if bytes == 0 {
            let reason = format!("--data must be at least four chunks of {}", size(chunk));
            return Err(CliError::Options(reason));
        }
        let bench = Bench::new(&machine, bytes)?;
        let on_gpu = machine.device_memory(bytes)?;
        bench.fill(on_gpu.addr())?;
        let raw = bench.rates(run, on_gpu.addr())?;
        drop(on_gpu);
        let at_host = machine.memory(HomeArg::Host, bytes)?;
        bench.fill(at_host.addr())?;
        let wire = bench.rates(run, at_host.addr())?;
        drop(at_host);
        for (runs, place) in [(&raw, "one allocation on the GPU"), (&wire, "pinned host memory")] {
            report.rows.extend(bench.rows(place, runs));
        }
        let buffer = machine.vm.tiered::<u64>(bytes / 8).name("tiered").build()?;
        bench.fill(buffer.addr())?;
        let (mut first, mut alone, mut together) = (Moves::default(), Moves::default(), Moves::default());
        // Host memory is made with these, and used again by the others.
        first.all(&buffer, bytes / chunk)?;
        for fourths in RESIDENT {
            alone.leave(&buffer, fourths)?;
            let resident = bytes / 4 * fourths;
            must_be_right(resident.abs_diff(buffer.resident_bytes()), bytes, "chunks on the GPU")?;
            let reached = bench.rates(run, buffer.addr())?;
            let share = fourths as f64 / 4.0;
            let rows = bench.rows("tiered", &reached).into_iter().zip(raw.iter().zip(&wire));
            report.rows.extend(rows.map(|(row, (raw, wire))| {
                let bound = 1.0 / (share / raw.median() + (1.0 - share) / wire.median());
                let name = "1 / (resident / GPU + away / wire)";
                row.with("resident", FOURTHS[fourths as usize])
                    .ceiling(name, &Runs(vec![bound]))
            }));
        }
        for _ in 0..run.repeat {
            alone.come(&buffer)?;
            together.all(&buffer, bytes / chunk)?;
        }
        // All that was moved is as it was.
        bench.rates(run, buffer.addr())?;
        let moves = [
            (first, "together, the first time"),
            (alone, "alone"),
            (together, "together"),
        ];
        report
            .rows
            .extend(moves.into_iter().flat_map(|(moves, how)| moves.rows(how)));
        Ok(())
    }
}

struct Bench<'a> {
    machine: &'a Machine,
    words: u64,
    module: Module,
    fill: Module,
    tally: Tally,
    sums: Buffer<u64>,
    /// What is to be found.
    sum: u64,
    row_sums: Vec<u64>,
}

impl<'a> Bench<'a> {
    fn new(machine: &'a Machine, bytes: u64) -> Result<Self, CliError> {
        let words = bytes / 8;
        let row = |row: u64| (row * ROW..(row + 1) * ROW).map(pattern).fold(0, u64::wrapping_add);
        Ok(Self {
            machine,
            words,
            module: machine.compile("bench/tiered.cu", include_str!("tiered.cu"), "sum_words sum_rows")?,
            fill: raw::compile(machine, "fill_pattern")?,
            tally: Tally::new(machine)?,
            sums: machine.vm.buffer(words / ROW)?,
            sum: sum(words, pattern),
            row_sums: fill(words / ROW, row)?,
        })
    }

    fn kernel(&self, name: &str) -> Result<Kernel, CliError> {
        Ok(self.module.kernel(name)?)
    }

    fn fill(&self, memory: u64) -> Result<(), CliError> {
        let (config, _) = self.machine.many_warps();
        let args = (memory, self.words, self.tally.arg());
        self.tally
            .run(&self.fill.kernel("fill_pattern")?, config, args, self.words)?;
        Ok(())
    }

    /// GB/s of each kernel over memory that has the pattern; one more run of each comes first, and is not counted.
    fn rates(&self, run: &Run<'_, TieredArgs>, memory: u64) -> Result<[Runs; 2], CliError> {
        let (config, _) = self.machine.most_warps();
        let (words, tally, rows) = (self.words, self.tally.arg(), self.words / ROW);
        let rate = |seconds: f64| words as f64 * 8.0 / seconds / 1e9;
        let sum_words = self.kernel("sum_words")?;
        let sum = || {
            let (seconds, said) = self
                .tally
                .run(&sum_words, config.clone(), (memory, words, tally), words)?;
            must_be_right(u64::from(said.sum != self.sum), 1, "sum")?;
            Ok(rate(seconds))
        };
        let sum_rows = self.kernel("sum_rows")?;
        let row_sums = || {
            self.sums.write(&vec![0; rows as usize])?;
            let (seconds, _) =
                self.tally
                    .run(&sum_rows, config.clone(), (memory, ROW, rows, &self.sums, tally), rows)?;
            let found = self.sums.to_vec()?;
            let wrong = found.iter().zip(&self.row_sums).filter(|(found, right)| found != right);
            must_be_right(wrong.count() as u64, rows, "row sums")?;
            Ok(rate(seconds))
        };
        sum()?;
        row_sums()?;
        Ok([Runs(run.times(sum)?), Runs(run.times(row_sums)?)])
    }

    fn rows(&self, place: &str, rates: &[Runs; 2]) -> Vec<Row> {
        let verified = [(1, "sums"), (self.words / ROW, "row sums")];
        let rows = KERNELS
            .iter()
            .zip(rates)
            .zip(verified)
            .map(|((name, runs), (count, unit))| {
                Row::new(&format!("{name}, {place}"), Unit::GigaBytes, runs.0.clone())
                    .with("data", size(self.words * 8))
                    .verified(count * runs.0.len() as u64, unit)
            });
        rows.collect()
    }
}

/// Microseconds of chunks that were moved.
#[derive(Default)]
struct Moves {
    left: Vec<f64>,
    came: Vec<f64>,
}

impl Moves {
    /// Has chunks leave one by one, spread evenly, until this many of four are on the GPU.
    fn leave(&mut self, buffer: &TieredBuffer<u64>, fourths: u64) -> Result<(), CliError> {
        self.each(buffer, TierPlace::Host, |chunk| chunk % 4 >= fourths)
    }

    /// Has all that are away come one by one.
    fn come(&mut self, buffer: &TieredBuffer<u64>) -> Result<(), CliError> {
        self.each(buffer, TierPlace::Gpu, |_| true)
    }

    fn each(&mut self, buffer: &TieredBuffer<u64>, to: TierPlace, which: impl Fn(u64) -> bool) -> Result<(), CliError> {
        let words = buffer.chunk_bytes() / 8;
        for chunk in (0..buffer.len() / words).filter(|chunk| which(*chunk)) {
            let moved = buffer.move_to(chunk * words..(chunk + 1) * words, to)?;
            let times = if to == TierPlace::Gpu {
                &mut self.came
            } else {
                &mut self.left
            };
            times.extend((moved.came + moved.left > 0).then_some(moved.took.as_secs_f64() * 1e6));
        }
        Ok(())
    }

    /// Has all of this many chunks leave, and come again: the time of each is its part.
    fn all(&mut self, buffer: &TieredBuffer<u64>, chunks: u64) -> Result<(), CliError> {
        for (place, times) in [(TierPlace::Host, &mut self.left), (TierPlace::Gpu, &mut self.came)] {
            let began = Instant::now();
            let moved = buffer.move_to(0..buffer.len(), place)?;
            times.push(began.elapsed().as_secs_f64() * 1e6 / chunks as f64);
            must_be_right(chunks - moved.came - moved.left, chunks, "moved chunks")?;
        }
        Ok(())
    }

    fn rows(self, how: &str) -> [Row; 2] {
        [
            ("a chunk goes to host memory", self.left),
            ("a chunk comes to the GPU", self.came),
        ]
        .map(|(name, times)| {
            let (mut spread, count) = (Times::default(), times.len() as u64);
            spread.add(times);
            spread.row(&format!("{name}, {how}")).verified(count, "moves")
        })
    }
}
