//! Rows of a large table at random: the Rust form of Python's `gpuvm.ops.take`, with the same kernel.

use std::time::Instant;

use clap::Args;
use gpuvm::Region;
use gpuvm_workloads::take::Take;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::bench::args::Share;
use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{Machine, fill, must_be_right, size};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::sizes::parse_bytes;

/// Rows at random.
#[derive(Debug, Args)]
pub struct TakeArgs {
    /// Bytes of the table. Without it: 16 GiB, and 16 MiB on a simulated GPU.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub data: Option<u64>,

    /// Bytes of a row, a multiple of 4.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, default_value = "512")]
    pub row: u64,

    /// Rows that are taken. Without it: 1,000,000, and 20,000 on a simulated GPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub rows: Option<u64>,

    /// Frame memory as a share of the table.
    #[arg(long, value_name = "SHARE", default_value = "1/8")]
    pub frames_share: Share,
}

const PAGE: u64 = 4096;

/// One gather: seconds with the copy of the numbers and memory for the rows, seconds of the kernel, pages fetched.
struct Gather {
    took: f64,
    kernel: f64,
    pages: u64,
}

impl Benchmark for TakeArgs {
    const NAME: &'static str = "take";

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        drop(probe);
        let data = run.data.unwrap_or(run.usual(16 << 30, 16 << 20));
        let rows = run.rows.unwrap_or(run.usual(1_000_000, 20_000));
        let width = run.row / 4;
        if width == 0 || !run.row.is_multiple_of(4) || data < run.row {
            return Err(CliError::Options(
                "--row must be a positive multiple of 4, and --data at least one row".to_owned(),
            ));
        }
        let length = data / run.row;
        let frames = ((data / PAGE) as f64 * run.frames_share.0) as u64;
        let machine = Machine::open(&run.machine, PAGE, frames)?;
        // A row begins with its number, as the script for Python has it.
        let word = |at| if at % width == 0 { (at / width) as f32 } else { 0.0 };
        let table = fill(length * width, word)?;
        let take = Take::<f32>::new(&machine.vm)?;
        let mut numbers = ChaCha8Rng::seed_from_u64(1);
        let gathers = machine.vm.scope(|scope| {
            let table = scope.read_only("table", &table)?;
            // One more, which is not counted: it comes first, and finds no page.
            let once = |_| gather(&machine, &take, &table, width, &ids(&mut numbers, length, rows));
            let gathers = (0..=run.repeat).map(once);
            Ok(gathers.collect::<Result<Vec<_>, CliError>>())
        })??;
        let (first, others) = gathers.split_at(1);
        let all = |of: fn(&Gather) -> f64| Runs(others.iter().map(of).collect());
        let took = all(|one| one.took * 1e3);
        report.rows.push(
            Row::new("rows at random", Unit::Milliseconds, took.0.clone())
                .with("table", size(data))
                .with("frames", size(machine.vm.frames() * PAGE))
                .with("rows", rows)
                .with("row", size(run.row))
                .and("M rows/s", rows as f64 / took.median() / 1e3)
                .and("kernel ms", all(|one| one.kernel * 1e3).median())
                .and("first ms", first[0].took * 1e3)
                .and("pages fetched", all(|one| one.pages as f64).median())
                .verified(rows * (u64::from(run.repeat) + 1), "rows"),
        );
        Ok(())
    }
}

/// Numbers of rows.
pub(super) fn ids(numbers: &mut ChaCha8Rng, length: u64, rows: u64) -> Vec<i64> {
    // Of 64 random bits: which rows are a little likelier does not show.
    (0..rows).map(|_| (numbers.next_u64() % length) as i64).collect()
}

fn gather(
    machine: &Machine,
    take: &Take<'_, f32>,
    table: &Region<f32>,
    width: u64,
    ids: &[i64],
) -> Result<Gather, CliError> {
    let ((taken, took), stats) = machine.counted(|| {
        let begun = Instant::now();
        let taken = take.rows(table, width, ids)?;
        Ok((taken, begun.elapsed().as_secs_f64().max(1e-9)))
    })?;
    let rows = taken.rows.to_vec()?;
    let is_wrong = |(row, id): &(&[f32], &i64)| row[0] != **id as f32 || row[1..].iter().any(|value| *value != 0.0);
    let rows = rows.chunks(width as usize).zip(ids);
    must_be_right(rows.filter(is_wrong).count() as u64, ids.len() as u64, "take")?;
    Ok(Gather {
        took,
        kernel: taken.kernel.as_secs_f64(),
        pages: stats.pages_fetched,
    })
}
