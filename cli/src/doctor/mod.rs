//! `gpuvm doctor`: what this machine has, what is missing, how to fix it, and a self-test.

pub mod args;
mod checks;
mod finding;
mod gpu;
mod modes;
mod peers;
mod platform;
mod rdma;
mod redact;
mod report;
mod selftest;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::process::ExitCode;

use gpuvm_nic::devices::Machine;
use serde::Serialize;

use crate::doctor::args::DoctorArgs;
use crate::doctor::report::Report;
use crate::doctor::view::{Probed, View};
use crate::error::CliError;
use crate::stdout;

/// Looks, or tests, and prints; the exit status says what works.
///
/// # Errors
/// A standard output that is closed.
pub fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let view = View::new(Machine::default(), Probed::here());
    if args.selftest {
        let report = selftest::run(args, &view);
        print(args.json, &report, || report.text())?;
        return Ok(ExitCode::from(report.exit_status));
    }
    let report = Report::of(&view);
    print(args.json, &report, || report.text())?;
    Ok(ExitCode::from(report.exit_status))
}

fn print(json: bool, report: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), CliError> {
    let text = match json {
        true => serde_json::to_string(report).map_err(io::Error::from)?,
        false => text(),
    };
    Ok(stdout::print_line(text)?)
}
