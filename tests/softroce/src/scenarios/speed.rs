//! How fast pages come, beside what perftest reaches with the same device, size and depth.

use std::time::Duration;

use super::programs::{gpuvm, json, number, warm};
use super::start::{SHORT, check};
use crate::error::Error;
use crate::machine::Machine;
use crate::options::Options;

const BANDWIDTH: &str = "-s 4096 -t 32 -o 32 -n 20000";
const LATENCY: &str = "-s 4096 -n 2000";
const FAULTS: &str = "bench faults --pages 8192 --frames 1024 --lanes-apart --repeat 1 --queue-pairs 1 --queue-depth 32 --warps 4 --json";
const ONE_FAULT: &str = "bench latency --lanes 1 --repeat 1 --queue-pairs 1 --json";

/// How long one program may take.
const PROGRAM: Duration = Duration::from_secs(90);

/// What the programs reached, a round each.
#[derive(Default)]
struct Figures {
    reads: Vec<f64>,
    pages: Vec<f64>,
    calls: Vec<f64>,
    read_us: Vec<f64>,
    fault_us: Vec<f64>,
}

pub(super) fn prepare() -> Result<(), Error> {
    warm(gpuvm()?, "bench faults --pages 64 --frames 16")?;
    warm(gpuvm()?, "bench latency --faults 64")
}

pub(super) fn table(machine: &Machine) -> Result<(), Error> {
    measure(machine, 2, 3)?;
    if machine.is_virtual() {
        machine.kill()?;
        let options = Options {
            cpus: 4,
            ..Options::default()
        };
        let larger = Machine::boot(&options)?;
        measure(&larger, 4, 1)?;
        larger.check_kernel()?;
    }
    Ok(())
}

fn measure(machine: &Machine, cpus: u32, rounds: u32) -> Result<(), Error> {
    let program = gpuvm()?;
    let over = format!("--transport rxe --rdma-device {}", machine.device());
    let ours = |arguments: &str| -> Result<serde_json::Value, Error> {
        let command = format!("{} {arguments} {over}", program.display());
        json(&machine.run(&command, PROGRAM)?.success()?)
    };
    let mut figures = Figures::default();
    for _ in 0..rounds {
        // Columns: bytes, iterations, peak and average MB/s, messages in millions a second.
        let millions = perftest(machine, "ib_read_bw", BANDWIDTH, "20000", 4)?;
        figures.reads.push(millions * 1e6);
        let faults = ours(FAULTS)?;
        figures.pages.push(number(&faults, "pages_per_second")?);
        figures.calls.push(number(&faults, "doorbell_calls_per_read")?);
        // Columns: bytes, iterations, least, most, typical (the median) and more.
        figures
            .read_us
            .push(perftest(machine, "ib_read_lat", LATENCY, "2000", 4)?);
        let fault = ours(ONE_FAULT)?;
        figures.fault_us.push(number(&fault, "ns_p50")? / 1e3);
    }
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let cpus = if machine.is_virtual() {
        cpus.to_string()
    } else {
        "own".to_owned()
    };
    println!(
        "         {cpus} CPUs, {rounds} rounds            theirs best/median     ours best/median    ratio best/median"
    );
    let row = |what: &str, theirs: &[f64], ours: &[f64], best: &dyn Fn(&[f64]) -> f64, digits: usize| {
        let (theirs, ours) = ((best(theirs), median(theirs)), (best(ours), median(ours)));
        println!(
            "         {what:<26} {:>10.digits$} /{:>10.digits$} {:>10.digits$} /{:>10.digits$}     {:>6.2} /{:>6.2}",
            theirs.0,
            theirs.1,
            ours.0,
            ours.1,
            ours.0 / theirs.0,
            ours.1 / theirs.1
        );
    };
    row("READs of 4 KiB, 32 deep, /s", &figures.reads, &figures.pages, &most, 0);
    row(
        "one at a time, median us",
        &figures.read_us,
        &figures.fault_us,
        &least,
        1,
    );
    println!(
        "         doorbell calls a READ: best {:.3}, median {:.3}",
        least(&figures.calls),
        median(&figures.calls)
    );
    Ok(())
}

/// Runs client and server of perftest on one machine; the number in that column of the row of results.
fn perftest(machine: &Machine, program: &str, flags: &str, iterations: &str, column: usize) -> Result<f64, Error> {
    let command = format!("{program} -d {} -F {flags}", machine.device());
    let mut server = machine.spawn(&format!("stdbuf -oL {command}"))?;
    server.wait_for("Waiting for client", SHORT)?;
    let client = format!("{command} {}", machine.address());
    let report = machine.run(&client, PROGRAM)?.success()?.text();
    server.wait(SHORT)?.success()?;
    let rows = report.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.into_iter().find(|words| words.starts_with(&["4096", iterations]));
    let value = row.and_then(|words| words.get(column)?.parse::<f64>().ok());
    let value = value.ok_or_else(|| Error::Check(format!("`{client}` shows no result:\n{report}")))?;
    check(value > 0.0, || format!("`{client}` reached nothing:\n{report}"))?;
    Ok(value)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
