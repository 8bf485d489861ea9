//! The time of one fault.

use std::fmt;

use gpuvm::LaunchConfig;
use serde::Serialize;

use crate::args::LatencyArgs;
use crate::error::CliError;

/// Frames: enough that no fault waits for one.
const FRAMES: u64 = 256;

/// The report; the field names are the keys of the JSON object.
#[derive(Clone, Debug, Serialize)]
struct LatencyReport {
    gpu: String,
    transport: String,
    page_bytes: u64,
    faults: u64,
    ns_min: u64,
    ns_p50: u64,
    ns_p99: u64,
    ns_p999: u64,
}

/// Measures and prints.
pub fn run(args: &LatencyArgs) -> Result<(), CliError> {
    let builder = args.machine.builder()?.frame_memory(FRAMES * args.machine.page_size);
    let vm = builder.build().map_err(CliError::BackEnd)?;
    let kernel = super::kernel(&vm, "time_faults")?;
    let data = super::data(&vm, args.faults)?;
    let took = vm.buffer::<u64>(args.faults).map_err(CliError::Bench)?;
    let wrong = vm.buffer::<u64>(1).map_err(CliError::Bench)?;
    let before = vm.stats().map_err(CliError::Bench)?;
    kernel
        .launch(LaunchConfig::new(1, 1), (&data, vm.page_size() / 8, &took, &wrong))
        .and_then(|launch| launch.sync())
        .map_err(CliError::Bench)?;
    let stats = vm.stats().map_err(CliError::Bench)?.difference(&before);
    let wrong = wrong.to_vec().map_err(CliError::Bench)?[0];
    // A page that was there already was not a fault, and its time not one of a fault's.
    if wrong != 0 || stats.faults != args.faults {
        return Err(CliError::WrongData {
            wrong: wrong.max(args.faults.abs_diff(stats.faults)),
            pages: args.faults,
        });
    }
    let mut took = took.to_vec().map_err(CliError::Bench)?;
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share).round() as usize];
    let report = LatencyReport {
        gpu: vm.gpu_name(),
        transport: vm.transport().to_string(),
        page_bytes: vm.page_size(),
        faults: args.faults,
        ns_min: at(0.0),
        ns_p50: at(0.5),
        ns_p99: at(0.99),
        ns_p999: at(0.999),
    };
    Ok(super::print(&report, args.json)?)
}

impl fmt::Display for LatencyReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1e3;
        write!(
            out,
            "{} over {}: {} faults of {} bytes, one at a time: min {:.1} us, p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us",
            self.gpu,
            self.transport,
            self.faults,
            self.page_bytes,
            us(self.ns_min),
            us(self.ns_p50),
            us(self.ns_p99),
            us(self.ns_p999)
        )
    }
}
