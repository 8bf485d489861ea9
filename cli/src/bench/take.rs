//! Rows of a large table at random: the Rust form of Python's `gpuvm.ops.take`, with the same kernel.

use std::time::Instant;

use clap::Args;
use gpuvm::Region;
use gpuvm_workloads::take::Take;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::args::{MachineArgs, parse_bytes};
use crate::bench::args::{OutputArgs, Share};
use crate::bench::machine::{Machine, fill, size};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;

/// Rows at random.
#[derive(Debug, Args)]
pub struct TakeArgs {
    /// GPU and transport.
    #[command(flatten)]
    pub machine: MachineArgs,

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

    /// Repetitions and output.
    #[command(flatten)]
    pub output: OutputArgs,
}

const PAGE: u64 = 4096;

/// One gather: seconds with the copy of the numbers and memory for the rows, seconds of the kernel, pages fetched.
struct Run {
    took: f64,
    kernel: f64,
    pages: u64,
}

/// Measures.
pub fn measure(args: &TakeArgs) -> Result<Report, CliError> {
    let is_cuda = Machine::probe(&args.machine)?.is_cuda();
    let usual = |cuda: u64, simulated: u64| if is_cuda { cuda } else { simulated };
    let (data, rows) = (
        args.data.unwrap_or(usual(16 << 30, 16 << 20)),
        args.rows.unwrap_or(usual(1_000_000, 20_000)),
    );
    let width = args.row / 4;
    if width == 0 || !args.row.is_multiple_of(4) || data < args.row {
        return Err(CliError::Options(
            "--row must be a multiple of 4 and 4 at least, and --data a row at least".to_owned(),
        ));
    }
    let length = data / args.row;
    let frames = ((data / PAGE) as f64 * args.frames_share.0) as u64;
    let machine = Machine::open(&args.machine, PAGE, frames)?;
    let mut report = Report::new("take", machine.facts(&args.machine));
    // A row begins with its number, as the script for Python has it.
    let table = fill(
        length * width,
        |at| if at % width == 0 { (at / width) as f32 } else { 0.0 },
    )?;
    let take = Take::<f32>::new(&machine.vm)?;
    let mut numbers = ChaCha8Rng::seed_from_u64(1);
    let runs = machine.vm.scope(|scope| {
        let table = scope.read_only("table", &table)?;
        // One more, which is not counted: it comes first, and finds no page.
        let gather = |_| run(&machine, &take, &table, width, &ids(&mut numbers, length, rows));
        Ok((0..=args.output.repeat)
            .map(gather)
            .collect::<Result<Vec<_>, CliError>>())
    });
    let runs = runs??;
    let (first, runs) = runs.split_first().ok_or(CliError::Options("no run".to_owned()))?;
    let seconds = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<_>>();
    let middle = |all: Vec<f64>| Runs(all).median();
    let took = seconds(|run| run.took * 1e3);
    let row = Row::new("rows at random", Unit::Milliseconds, took.clone())
        .with("table", size(data))
        .with("frames", size(machine.vm.frames() * PAGE))
        .with("rows", rows)
        .with("row", size(args.row))
        .and("M rows/s", rows as f64 / middle(took) / 1e3)
        .and("kernel ms", middle(seconds(|run| run.kernel * 1e3)))
        .and("first ms", first.took * 1e3)
        .and("pages fetched", middle(seconds(|run| run.pages as f64)))
        .verified(rows * (u64::from(args.output.repeat) + 1), "rows");
    report.rows.push(row);
    Ok(report)
}

/// Numbers of rows.
pub(super) fn ids(numbers: &mut ChaCha8Rng, length: u64, rows: u64) -> Vec<i64> {
    // Of 64 random bits: which rows are a little likelier does not show.
    (0..rows).map(|_| (numbers.next_u64() % length) as i64).collect()
}

fn run(machine: &Machine, take: &Take<'_, f32>, table: &Region<f32>, width: u64, ids: &[i64]) -> Result<Run, CliError> {
    let fetched = || {
        machine
            .vm
            .stats()
            .map(|stats| stats.pages_fetched)
            .map_err(CliError::Vm)
    };
    let before = fetched()?;
    let begun = Instant::now();
    let taken = take.rows(table, width, ids)?;
    let took = begun.elapsed().as_secs_f64().max(1e-9);
    let pages = fetched()? - before;
    let rows = taken.rows.to_vec()?;
    let is_right = |(row, id): &(&[f32], &i64)| row[0] == **id as f32 && row[1..].iter().all(|value| *value == 0.0);
    let wrong = rows
        .chunks(width as usize)
        .zip(ids)
        .filter(|both| !is_right(both))
        .count();
    if wrong > 0 {
        return Err(CliError::WrongData {
            wrong: wrong as u64,
            of: ids.len() as u64,
            what: "take".to_owned(),
        });
    }
    let kernel = taken.kernel.as_secs_f64();
    Ok(Run { took, kernel, pages })
}
