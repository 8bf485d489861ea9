//! Pages a second.

use std::fmt;
use std::time::Instant;

use gpuvm::LaunchConfig;
use serde::Serialize;

use crate::args::FaultsArgs;
use crate::error::CliError;

/// The report; the field names are the keys of the JSON object.
#[derive(Clone, Debug, Serialize)]
struct FaultsReport {
    gpu: String,
    transport: String,
    page_bytes: u64,
    pages: u64,
    queue_pairs: u32,
    queue_depth: u32,
    seconds: f64,
    pages_per_second: f64,
    bytes_per_second: f64,
    faults: u64,
    fault_ns_p50: u64,
    fault_ns_p99: u64,
    doorbells: u64,
    doorbell_calls: u64,
    doorbell_calls_per_read: f64,
}

/// Measures and prints.
pub fn run(args: &FaultsArgs) -> Result<(), CliError> {
    let machine = &args.machine;
    let builder = machine
        .builder()?
        .frame_memory(args.frames.saturating_mul(machine.page_size));
    let vm = builder.build().map_err(CliError::BackEnd)?;
    let kernel = super::kernel(&vm, "touch_pages")?;
    let data = super::data(&vm, args.pages)?;
    let wrong = vm.buffer::<u64>(1).map_err(CliError::Bench)?;
    let before = vm.stats().map_err(CliError::Bench)?;
    let started = Instant::now();
    kernel
        .launch(LaunchConfig::new(args.warps, 32), (&data, vm.page_size() / 8, &wrong))
        .and_then(|launch| launch.sync())
        .map_err(CliError::Bench)?;
    let seconds = started.elapsed().as_secs_f64().max(1e-9);
    let stats = vm.stats().map_err(CliError::Bench)?.difference(&before);
    match wrong.to_vec().map_err(CliError::Bench)?[0] {
        0 => {}
        wrong => {
            return Err(CliError::WrongData {
                wrong,
                pages: args.pages,
            });
        }
    }
    let report = FaultsReport {
        gpu: vm.gpu_name(),
        transport: vm.transport().to_string(),
        page_bytes: vm.page_size(),
        pages: stats.pages_fetched,
        queue_pairs: machine.queue_pairs,
        queue_depth: machine.queue_depth,
        seconds,
        pages_per_second: stats.pages_fetched as f64 / seconds,
        bytes_per_second: stats.bytes_fetched as f64 / seconds,
        faults: stats.faults,
        fault_ns_p50: stats.fault_ns(0.5),
        fault_ns_p99: stats.fault_ns(0.99),
        doorbells: stats.doorbells,
        doorbell_calls: stats.doorbell_calls,
        doorbell_calls_per_read: stats.doorbell_calls as f64 / stats.pages_fetched.max(1) as f64,
    };
    Ok(super::print(&report, args.json)?)
}

impl fmt::Display for FaultsReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "{} over {}: {} pages of {} bytes, {} queue pairs of {}",
            self.gpu, self.transport, self.pages, self.page_bytes, self.queue_pairs, self.queue_depth
        )?;
        writeln!(
            out,
            "{:.0} pages/s, {:.1} MB/s; a fault took {:.1} us (p50), {:.1} us (p99)",
            self.pages_per_second,
            self.bytes_per_second / 1e6,
            self.fault_ns_p50 as f64 / 1e3,
            self.fault_ns_p99 as f64 / 1e3
        )?;
        write!(
            out,
            "{} doorbells, {} calls for them: {:.3} a READ",
            self.doorbells, self.doorbell_calls, self.doorbell_calls_per_read
        )
    }
}
