//! `gpuvm simulate`: seeds of small workloads on all cores, and the replay of one.

pub mod args;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use gpuvm_simulate::Workload;
use gpuvm_simulate::campaign::{self, Campaign, Progress, Ran, Summary};
use gpuvm_simulate::mutations::{self, Mutation};
use gpuvm_simulate::run::{self, Options};
use gpuvm_simulate::trace;

use crate::error::CliError;
use args::SimulateArgs;

/// Between two lines of progress, where a person watches and where a file does.
const TOLD_EVERY: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// Runs the command.
///
/// # Errors
/// Workers do not start, or a file cannot be written.
pub fn run(args: &SimulateArgs) -> Result<ExitCode, CliError> {
    if args.mutation.as_deref() == Some("list") {
        for mutation in mutations::all() {
            say(&format!("{:<28} {}", mutation.name, mutation.rule));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mutation = args.mutation.as_deref().map(mutations::find).transpose()?;
    let mut options = match &mutation {
        Some(mutation) => mutation.options()?,
        None => Options::default(),
    };
    if args.faults.as_ref().is_some_and(|mix| !mix.is_empty()) {
        options.faults.clone_from(&args.faults);
    }
    if args.worker {
        return campaign::serve(&options)
            .map(|()| ExitCode::SUCCESS)
            .map_err(CliError::Worker);
    }
    match args.seed {
        Some(seed) if args.trace.is_some() || args.workload.0.len() == 1 => one(args, seed, options),
        _ => many(args, mutation),
    }
}

/// What replays a run.
fn replay(args: &SimulateArgs, workload: Workload, seed: u64) -> String {
    let mut text = format!("gpuvm simulate --workload {workload} --seed {seed}");
    if let Some(mix) = &args.faults {
        text.push_str(&format!(" --faults {mix}"));
    }
    if let Some(mutation) = &args.mutation {
        text.push_str(&format!(" --mutation {mutation}"));
    }
    text
}

/// One seed of one workload, in this process.
fn one(args: &SimulateArgs, seed: u64, mut options: Options) -> Result<ExitCode, CliError> {
    let [workload] = args.workload.0[..] else {
        return Err(CliError::TraceOfMany);
    };
    options.all_events = args.trace.is_some();
    let ended = run::run(workload, seed, &options);
    if let Some(path) = &args.trace {
        let title = format!("gpuvm simulate, workload {workload}, seed {seed}");
        let wrong = ended.outcome.as_ref().err().map(|failure| failure.what.as_str());
        let timeline = trace::timeline(&title, &ended.events, wrong);
        let unwritten = |source| CliError::Trace {
            path: path.clone(),
            source,
        };
        let text = serde_json::to_vec(&timeline).map_err(|error| unwritten(error.into()))?;
        std::fs::write(path, text).map_err(unwritten)?;
    }
    let ran = Ran {
        workload,
        seed,
        outcome: ended.outcome,
    };
    let passed = ran.outcome.is_ok();
    if args.json {
        print_json(&ran)?;
    } else {
        match &ran.outcome {
            Ok(passed) => say(&format!(
                "{workload}, seed {seed}: passed; {} us of virtual time, {} steps watched, {} pages fetched, {} evicted, {} written back, \
                 interleaving {:016x}",
                passed.virtual_ns / 1000,
                passed.looks.steps,
                passed.fetched,
                passed.evicted,
                passed.written_back,
                passed.hash
            )),
            Err(_) => tell(args, &ran),
        }
        if let Some(path) = &args.trace {
            say(&format!("timeline: {} ({} events)", path.display(), ended.events.len()));
        }
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Seeds in worker processes.
fn many(args: &SimulateArgs, mutation: Option<&Mutation>) -> Result<ExitCode, CliError> {
    let seeds = match (&args.seeds, args.seed) {
        (Some(seeds), _) => seeds.0.clone(),
        (None, seed) => {
            let seed = seed.unwrap_or_default();
            seed..seed.saturating_add(1)
        }
    };
    let mut arguments = vec!["simulate".to_owned(), "--worker".to_owned()];
    if let Some(mutation) = mutation {
        arguments.extend(["--mutation".to_owned(), mutation.name.to_owned()]);
    }
    if let Some(mix) = &args.faults {
        arguments.extend(["--faults".to_owned(), mix.to_string()]);
    }
    let campaign = Campaign {
        program: std::env::current_exe().map_err(CliError::Worker)?,
        arguments,
        seeds,
        workloads: args.workload.0.clone(),
        jobs: args.jobs.map_or_else(cores, usize::from),
        limit: Duration::from_secs(args.limit),
        keep_going: args.keep_going,
    };
    let every = TOLD_EVERY[usize::from(!std::io::stderr().is_terminal())];
    let summary = campaign::run(&campaign, every, |progress| tell_progress(&progress, campaign.jobs))?;
    if args.json {
        print_json(&summary)?;
    } else {
        tell_summary(&summary);
        for ran in &summary.failures {
            tell(args, ran);
        }
        for unseen in &summary.unseen {
            say(&format!("\nFAILED: {unseen}"));
        }
    }
    if let Some(mix) = &args.faults {
        let bitten = |name: &str| {
            summary
                .workloads
                .iter()
                .any(|total| total.faults.get(name).is_some_and(|&n| n != 0))
        };
        let never: Vec<&str> = mix
            .rates()
            .iter()
            .map(|rate| rate.kind.name())
            .filter(|name| !bitten(name))
            .collect();
        if !never.is_empty() {
            return Err(CliError::Unbitten {
                kinds: never.join(", "),
            });
        }
    }
    Ok(match summary.failures.is_empty() && summary.unseen.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn print_json(value: &impl serde::Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|error| CliError::Worker(error.into()))?;
    say(&text);
    Ok(())
}

/// A line of standard output; a closed pipe is no reason to fail.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

fn tell_progress(progress: &Progress, jobs: usize) {
    let rate = progress.ran as f64 / progress.elapsed.as_secs_f64().max(1e-9);
    let left = (progress.asked - progress.ran) as f64 / rate.max(1e-9);
    let _ = writeln!(
        std::io::stderr().lock(),
        "{} of {} runs, {rate:.1} a second ({:.1} a worker), {} failed, about {left:.0} s left",
        progress.ran,
        progress.asked,
        rate / jobs as f64,
        progress.failed
    );
}

fn tell_summary(summary: &Summary) {
    let mut table = comfy_table::Table::new();
    table.set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    table.set_header([
        "workload",
        "passed",
        "failed",
        "fetched",
        "evicted",
        "written",
        "compared",
        "steps (M)",
        "virtual ms",
        "runs/s of a core",
    ]);
    for total in &summary.workloads {
        let runs = total.passed + total.failed;
        table.add_row([
            total.workload.name().to_owned(),
            total.passed.to_string(),
            total.failed.to_string(),
            total.fetched.to_string(),
            total.evicted.to_string(),
            total.written_back.to_string(),
            total.compared.to_string(),
            format!("{:.1}", total.steps as f64 / 1e6),
            format!("{:.1}", total.virtual_ns as f64 / 1e6),
            format!("{:.1}", runs as f64 / total.seconds.max(1e-9)),
        ]);
    }
    say(&table.to_string());
    say(&format!(
        "{} of {} runs in {:.1} s, {:.1} a second and worker ({} workers); {} failed",
        summary.ran,
        summary.asked,
        summary.seconds,
        summary.rate,
        summary.jobs,
        summary.failures.len()
    ));
}

/// A failure: what differed, what replays it, and the last events.
fn tell(args: &SimulateArgs, ran: &Ran) {
    let Err(failure) = &ran.outcome else { return };
    say(&format!(
        "\nFAILED: {}, seed {}: {}",
        ran.workload, ran.seed, failure.what
    ));
    for further in &failure.further {
        say(&format!("  then: {further}"));
    }
    for line in &failure.trace {
        say(line);
    }
    say(&format!("replay: {}", replay(args, ran.workload, ran.seed)));
    say(&format!(
        "timeline: {} --trace trace.json",
        replay(args, ran.workload, ran.seed)
    ));
}
