//! `gpuvm bench`: what paging costs, measured and verified.

pub mod faults;
pub mod latency;

use std::io::{self, Write};

use gpuvm::{CompileOptions, Kernel, Region, Vm};
use serde::Serialize;

use crate::error::CliError;

const SOURCE: &str = include_str!("bench.cu");

/// What word `index` of the data holds; `bench.cu` has the same rule.
fn pattern(index: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995
}

/// One of the kernels of `bench.cu`.
fn kernel(vm: &Vm, name: &str) -> Result<Kernel, CliError> {
    let names = ["touch_pages", "time_faults"];
    vm.compile_with("bench.cu", SOURCE, &names, &CompileOptions::default())
        .and_then(|module| module.kernel(name))
        .map_err(CliError::Bench)
}

/// Read-only data of that many pages.
fn data(vm: &Vm, pages: u64) -> Result<Region<u64>, CliError> {
    let words = pages * vm.page_size() / 8;
    vm.region::<u64>(words)
        .name("data")
        .read_only()
        .from_iter((0..words).map(pattern))
        .map_err(CliError::Bench)
}

/// Prints a report as text or as one JSON object.
fn print(report: &(impl Serialize + std::fmt::Display), json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{report}")?;
    }
    out.flush()
}
