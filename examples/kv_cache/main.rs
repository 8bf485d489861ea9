//! Decode steps of attention over growing sequences, whose keys and values lie in elastic buffers, in blocks of a pool, in paged arrays, in
//! managed memory, or in buffers that have room for all: the same kernels, the same results, other speed and other memory.

mod args;
mod cache;
mod elastic;
mod error;
mod managed;
mod paged;
mod reference;
mod report;
mod run;
#[cfg(test)]
mod tests;

use std::{
    io::{Write, stderr, stdout},
    process::ExitCode,
    sync::Arc,
};

use clap::Parser;
use gpuvm::{Gpu, Vm};

use self::{
    args::{Options, Plan},
    error::Problem,
    report::Report,
    run::Outcome,
};

fn main() -> ExitCode {
    match decode(&Options::parse(), &mut stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            // Nobody is left to tell where this fails.
            let _ = writeln!(stderr(), "error: {}", chain(&problem));
            ExitCode::FAILURE
        }
    }
}

/// An error and what caused it.
fn chain(problem: &Problem) -> String {
    let causes = std::iter::successors(Some(problem as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Runs all forms, compares their results, and writes what came of it.
fn decode(options: &Options, out: &mut impl Write) -> Result<(), Problem> {
    let probe = Vm::builder().gpu(options.gpu.clone()).build()?;
    let device = Gpu::from(Arc::clone(probe.device()));
    let simulated = probe.device().capabilities().compute_capability.is_none();
    let (gpu, handle_bytes) = (probe.gpu_name(), probe.elastic_stats().handles.handle_bytes);
    // Its frames are others' then.
    drop(probe);
    let plan = Plan::new(options, simulated)?;
    let mut outcomes: Vec<Outcome> = Vec::new();
    for &form in &plan.forms {
        let vm = run::machine(device.clone(), form, &plan)?;
        let outcome = run::run(&vm, form, &plan)?;
        if let Some(first) = outcomes.first() {
            outcome.check_beside(first)?;
        }
        outcomes.push(outcome);
    }
    let with_reference = reference::is_small(&plan);
    if let (true, Some(first)) = (with_reference, outcomes.first()) {
        reference::check(&plan, &first.results)?;
    }
    let report = Report {
        gpu,
        plan: &plan,
        outcomes: &outcomes,
        with_reference,
        handle_bytes,
    };
    match options.json {
        true => report.write_json(out),
        false => report.write_table(out),
    }
}
