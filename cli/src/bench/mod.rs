//! `gpuvm bench`: what paging costs, measured, verified, and beside what the machine allows.

mod all;
pub mod args;
mod door;
mod faults;
mod hits;
mod latency;
mod limits;
mod machine;
mod plot;
mod raw;
mod report;
mod uvm;

use std::fs::OpenOptions;

use gpuvm::{GpuKind, Vm};

use crate::bench::args::{Bench, OutputArgs};
use crate::bench::report::Report;
use crate::error::CliError;

/// Measures and prints.
///
/// # Errors
/// A machine that cannot be used, a kernel that did not run, wrong data, an output that cannot be written.
pub fn run(bench: &Bench) -> Result<(), CliError> {
    match bench {
        Bench::Latency(args) => finish(&args.output, || latency::measure(args)),
        Bench::Faults(args) => finish(&args.output, || faults::measure(args)),
        Bench::Hits(args) => finish(&args.output, || hits::measure(args)),
        Bench::Limits(args) => finish(&args.output, || limits::measure(args)),
        Bench::Uvm(args) => finish(&args.output, || uvm::measure(args)),
        Bench::All(args) => all::run(args),
    }
}

/// A plot that cannot be written is said before the work.
fn finish(output: &OutputArgs, measure: impl FnOnce() -> Result<Report, CliError>) -> Result<(), CliError> {
    if let Some(path) = &output.plot {
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|source| CliError::Plot {
            path: path.clone(),
            source,
        })?;
    }
    measure()?.finish(output)
}

/// Whether that choice of a GPU is an NVIDIA GPU here.
fn has_cuda(gpu: &str) -> Result<bool, CliError> {
    let kind: GpuKind = gpu.parse().map_err(CliError::BackEnd)?;
    let vm = Vm::builder().gpu(kind).frame_memory(1 << 20).build();
    let vm = vm.map_err(CliError::BackEnd)?;
    Ok(vm.gpu().capabilities().compute_capability.is_some())
}

#[cfg(test)]
mod tests {
    use gpuvm_gpu::Source;
    use gpuvm_gpu::cuda::{Architecture, compile_to_cubin, presence};

    use super::*;

    /// Needs no GPU and no driver.
    fn compile(name: &str, source: &str, kernels: &[&str]) {
        if !presence().nvrtc {
            assert!(
                std::env::var_os("GPUVM_REQUIRE_NVRTC").is_none(),
                "GPUVM_REQUIRE_NVRTC is set, and there is no libnvrtc"
            );
            eprintln!("not compiled: there is no libnvrtc");
            return;
        }
        for architecture in [75, 80, 90] {
            let source = Source::new(name, source);
            let cubin = compile_to_cubin(&source, kernels, &machine::options(), Architecture(architecture));
            let cubin =
                cubin.unwrap_or_else(|error| panic!("{name} for {architecture}: {}", crate::error::chain(&error)));
            assert_eq!(cubin.kernels.len(), kernels.len(), "{name}");
            assert!(!cubin.log.contains("warning"), "{name}: {}", cubin.log);
            for kernel in &cubin.kernels {
                let usage = kernel.usage.expect("ptxas tells what a kernel takes");
                println!("sm_{architecture} {}: {usage:?}", kernel.name);
                let spilled = usage.spill_store_bytes + usage.spill_load_bytes;
                assert_eq!(spilled, 0, "{} for {architecture}: {usage:?}", kernel.name);
            }
        }
    }

    #[test]
    fn bare_kernels_compile_for_nvidia_gpus() {
        compile("bench/raw.cu", raw::SOURCE, &raw::KERNELS);
        compile("bench/uvm.cu", uvm::SOURCE, &uvm::KERNELS);
    }

    #[test]
    fn latency_compiles_for_nvidia_gpus() {
        compile("bench/latency.cu", latency::SOURCE, &latency::KERNELS);
    }

    #[test]
    fn faults_compile_for_nvidia_gpus() {
        compile("bench/faults.cu", faults::SOURCE, &faults::KERNELS);
    }

    #[test]
    fn hits_compile_for_nvidia_gpus() {
        compile("bench/hits.cu", hits::SOURCE, &hits::KERNELS);
    }
}
