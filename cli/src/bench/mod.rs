//! `gpuvm bench`: what paging costs, measured, verified, and beside what the machine allows.

mod all;
mod apps;
pub mod args;
mod bfs;
mod changing;
mod door;
mod elastic;
mod faults;
mod files;
mod gps;
mod hits;
mod latency;
mod limits;
pub mod machine;
mod natural;
mod odds;
mod placement;
mod raw;
pub mod report;
mod resize;
mod take;
mod tenants;
mod tier;
mod uvm;

use gpuvm::{Gpu, Vm};

pub use crate::bench::machine::size;

use crate::bench::args::Bench;
use crate::bench::report::Report;
use crate::error::CliError;

/// Measures and prints.
///
/// # Errors
/// A machine that cannot be used, a kernel that did not run, wrong data, an output that cannot be written.
pub fn run(bench: &Bench) -> Result<(), CliError> {
    let output = match bench {
        Bench::Latency(args) => &args.output,
        Bench::Faults(args) => &args.output,
        Bench::Hits(args) => &args.output,
        Bench::Limits(args) => &args.output,
        Bench::Uvm(args) => &args.output,
        Bench::Bfs(args) => &args.output,
        Bench::Placement(args) => &args.output,
        Bench::Tier(args) => &args.output,
        Bench::Apps(args) => &args.output,
        Bench::Gps(args) => &args.output,
        Bench::Elastic(args) => &args.output,
        Bench::Resize(args) => &args.output,
        Bench::Files(args) => &args.output,
        Bench::Natural(args) => &args.output,
        Bench::Take(args) => &args.output,
        Bench::Tenants(args) if args.as_other => return tenants::be_other(args),
        Bench::Tenants(args) => &args.output,
        Bench::All(args) => return all::run(args),
    };
    Ok(measure(bench)?.print(output.json)?)
}

/// Measures, and prints nothing.
///
/// # Errors
/// As for [`run`]; [`Bench::All`] is many reports, and refused.
pub fn measure(bench: &Bench) -> Result<Report, CliError> {
    match bench {
        Bench::Latency(args) => latency::measure(args),
        Bench::Faults(args) => faults::measure(args),
        Bench::Hits(args) => hits::measure(args),
        Bench::Limits(args) => limits::measure(args),
        Bench::Uvm(args) => uvm::measure(args),
        Bench::Bfs(args) => bfs::measure(args),
        Bench::Placement(args) => placement::measure(args),
        Bench::Tier(args) => tier::measure(args),
        Bench::Apps(args) => apps::measure_all(args),
        Bench::Gps(args) => gps::measure(args),
        Bench::Elastic(args) => elastic::measure(args),
        Bench::Resize(args) => resize::measure(args),
        Bench::Files(args) => files::measure(args),
        Bench::Natural(args) => natural::measure(args),
        Bench::Take(args) => take::measure(args),
        Bench::Tenants(args) => tenants::measure(args),
        Bench::All(_) => Err(CliError::Options("all benchmarks have no one report".to_owned())),
    }
}

/// Whether that choice of a GPU is an NVIDIA GPU here.
fn has_cuda(gpu: &str) -> Result<bool, CliError> {
    let gpu: Gpu = gpu.parse().map_err(CliError::BackEnd)?;
    let vm = Vm::builder().gpu(gpu).frame_memory(1 << 20).build();
    let vm = vm.map_err(CliError::BackEnd)?;
    Ok(vm.device().capabilities().compute_capability.is_some())
}
