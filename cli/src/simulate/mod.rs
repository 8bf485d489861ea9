//! `gpuvm simulate`: seeds of small workloads on all cores, and the replay of one.

pub mod args;
mod scale;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gpuvm_simulate::Workload;
use gpuvm_simulate::campaign::{self, Campaign, Progress, Ran, Summary};
use gpuvm_simulate::mutations;
use gpuvm_simulate::room::Options;
use gpuvm_simulate::run;
use gpuvm_simulate::trace;
use gpuvm_simulate::watch::Event;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::error::CliError;
use crate::output::{self, Output};
use args::{Computed, SimulateArgs};

/// Between two lines of progress, where a person watches and where a file does.
const TOLD_EVERY: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// Signals that come this soon after the first one are the same wish: `timeout` and terminals tell a process and its group.
const SAME_WISH: Duration = Duration::from_millis(500);

/// A signal that asks to end: the first one ends the campaign, a later one the process.
struct Interrupt {
    stop: Arc<AtomicBool>,
    /// The exit status that goes with the signal.
    status: Arc<AtomicUsize>,
}

impl Interrupt {
    fn new() -> io::Result<Self> {
        let (stop, status) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        for (signal, code) in [(SIGINT, 130), (SIGTERM, 143)] {
            flag::register_usize(signal, Arc::clone(&status), code)?;
            // In the handler itself: a worker that the same signal ended must not be taken for one that crashed.
            flag::register(signal, Arc::clone(&stop))?;
        }
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let mut first: Option<Instant> = None;
            for signal in signals.forever() {
                if first.get_or_insert_with(Instant::now).elapsed() > SAME_WISH {
                    // Without exit handlers: the main thread still runs.
                    signal_hook::low_level::exit(128 + signal);
                }
            }
        })?;
        Ok(Self { stop, status })
    }

    fn exit_code(&self) -> ExitCode {
        // Relaxed: nothing else is told by it.
        ExitCode::from(self.status.load(Ordering::Relaxed) as u8)
    }
}

/// Runs the command.
///
/// # Errors
/// Workers do not start, or a file cannot be written.
pub fn run(args: &SimulateArgs) -> Result<ExitCode, CliError> {
    if let Some(Computed::Scale(args)) = &args.computed {
        return scale::run(args).map(|()| ExitCode::SUCCESS);
    }
    if args.mutation.as_deref() == Some("list") {
        for mutation in mutations::all() {
            say(&format!("{:<28} {}", mutation.name, mutation.rule))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let without_races;
    let args = match args.races {
        true => {
            without_races = race_free(args)?;
            &without_races
        }
        false => args,
    };
    let mut options = match args.mutation.as_deref() {
        None => Options::default(),
        Some("none") => mutations::none()?,
        Some(name) => mutations::find(name)?.options()?,
    };
    if args.faults.as_ref().is_some_and(|mix| !mix.is_empty()) {
        options.faults.clone_from(&args.faults);
    }
    options.find_races |= args.races;
    if args.worker {
        // A terminal sends Ctrl-C to workers as well; the campaign ends them.
        flag::register(SIGINT, Arc::default()).map_err(CliError::Signals)?;
        return campaign::serve(&options)
            .map(|()| ExitCode::SUCCESS)
            .map_err(CliError::Worker);
    }
    match args.seed {
        Some(seed) if args.trace.is_some() || args.workload.0.len() == 1 => {
            output::end_on_signals().map_err(CliError::Signals)?;
            one(args, seed, options)
        }
        _ => many(args),
    }
}

/// These arguments for the workloads whose lanes do not race on purpose.
fn race_free(args: &SimulateArgs) -> Result<SimulateArgs, CliError> {
    let mut args = args.clone();
    let asked: Vec<&str> = args.workload.0.iter().map(|workload| workload.name()).collect();
    let workloads = asked.join(", ");
    args.workload.0.retain(|workload| !workload.races_on_purpose());
    match args.workload.0.is_empty() {
        true => Err(CliError::RacesOnPurpose { workloads }),
        false => Ok(args),
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
    if args.races {
        text.push_str(" --races");
    }
    text
}

/// One seed of one workload, in this process.
fn one(args: &SimulateArgs, seed: u64, mut options: Options) -> Result<ExitCode, CliError> {
    let [workload] = args.workload.0[..] else {
        return Err(CliError::TraceOfMany);
    };
    options.all_events = args.trace.is_some();
    let timeline = args.trace.as_deref().map(Timeline::create).transpose()?;
    let ended = run::run(workload, seed, &options);
    let ran = Ran {
        workload,
        seed,
        outcome: ended.outcome,
    };
    // Told before the timeline is written, and written also where nothing can be told: neither costs the other.
    let told = tell_one(args, &ran);
    if let Some(timeline) = timeline {
        let path = timeline.path;
        timeline.finish(&ran, &ended.events)?;
        if !args.json {
            say(&format!("timeline: {} ({} events)", path.display(), ended.events.len()))?;
        }
    }
    told?;
    match &ran.outcome {
        Ok(passed) => all_bitten(args, std::iter::once(&passed.faults)).map(|()| ExitCode::SUCCESS),
        Err(_) => Ok(ExitCode::FAILURE),
    }
}

/// How the one run went.
fn tell_one(args: &SimulateArgs, ran: &Ran) -> io::Result<()> {
    if args.json {
        return print_json(ran);
    }
    let (workload, seed) = (ran.workload, ran.seed);
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
        Err(_) => tell(args, ran),
    }
}

/// The file of a timeline.
struct Timeline<'a> {
    path: &'a Path,
    output: Output,
}

impl<'a> Timeline<'a> {
    /// Begins the file, so that one that cannot be written is known before the run.
    fn create(path: &'a Path) -> Result<Self, CliError> {
        let output = Output::create(path).map_err(|source| unwritten(path, source))?;
        Ok(Self { path, output })
    }

    fn finish(self, ran: &Ran, events: &[Event]) -> Result<(), CliError> {
        let title = format!("gpuvm simulate, workload {}, seed {}", ran.workload, ran.seed);
        let wrong = ran.outcome.as_ref().err().map(|failure| failure.what.as_str());
        let timeline = trace::timeline(&title, events, wrong);
        self.output
            .finish(|out| Ok(serde_json::to_writer(out, &timeline)?))
            .map_err(|source| unwritten(self.path, source))
    }
}

fn unwritten(path: &Path, source: io::Error) -> CliError {
    CliError::Trace {
        path: path.to_owned(),
        source,
    }
}

/// Every kind of fault that was asked for has happened in one of these.
fn all_bitten<'a>(
    args: &SimulateArgs,
    tallies: impl Iterator<Item = &'a BTreeMap<String, u64>> + Clone,
) -> Result<(), CliError> {
    let bitten = |name: &str| {
        tallies
            .clone()
            .any(|faults| faults.get(name).is_some_and(|&count| count != 0))
    };
    let rates = args.faults.iter().flat_map(|mix| mix.rates());
    let never: Vec<&str> = rates
        .map(|rate| rate.kind.name())
        .filter(|name| !bitten(name))
        .collect();
    match never.is_empty() {
        true => Ok(()),
        false => Err(CliError::Unbitten {
            kinds: never.join(", "),
        }),
    }
}

/// Seeds in worker processes.
fn many(args: &SimulateArgs) -> Result<ExitCode, CliError> {
    let seeds = match (&args.seeds, args.seed) {
        (Some(seeds), _) => seeds.0.clone(),
        (None, Some(seed)) => seed..seed.saturating_add(1),
        (None, None) => return Err(CliError::NoSeeds),
    };
    let mut arguments = vec!["simulate".to_owned(), "--worker".to_owned()];
    if let Some(mutation) = &args.mutation {
        arguments.extend(["--mutation".to_owned(), mutation.clone()]);
    }
    if let Some(mix) = &args.faults {
        arguments.extend(["--faults".to_owned(), mix.to_string()]);
    }
    if args.races {
        arguments.push("--races".to_owned());
    }
    let interrupt = Interrupt::new().map_err(CliError::Signals)?;
    let campaign = Campaign {
        program: crate::own_program().map_err(CliError::Worker)?,
        name: crate::NAME.to_owned(),
        arguments,
        seeds,
        workloads: args.workload.0.clone(),
        jobs: args.jobs.map_or_else(cores, usize::from),
        limit: Duration::from_secs(args.limit),
        keep_going: args.keep_going,
        stop: Arc::clone(&interrupt.stop),
    };
    let every = TOLD_EVERY[usize::from(!std::io::stderr().is_terminal())];
    let mut summary = campaign::run(&campaign, every, |progress| tell_progress(&progress, campaign.jobs))?;
    if args.json {
        print_json(&summary)?;
    } else {
        tell_summary(args, &summary)?;
    }
    if let Some(error) = summary.error.take() {
        return Err(error.into());
    }
    if summary.stopped {
        return Ok(interrupt.exit_code());
    }
    all_bitten(args, summary.workloads.iter().map(|total| &total.faults))?;
    Ok(match summary.failures.is_empty() && summary.unseen.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn print_json(value: &impl serde::Serialize) -> io::Result<()> {
    say(&serde_json::to_string(value)?)
}

fn say(text: &str) -> io::Result<()> {
    crate::stdout::print_line(text)
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

fn tell_summary(args: &SimulateArgs, summary: &Summary) -> io::Result<()> {
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
        "ended by a fault",
        "steps (M)",
        "virtual ms",
        "runs/s of a core",
    ]);
    for total in &summary.workloads {
        let (runs, looks) = (total.passed + total.failed, &total.looks);
        table.add_row([
            total.workload.name().to_owned(),
            total.passed.to_string(),
            total.failed.to_string(),
            total.fetched.to_string(),
            total.evicted.to_string(),
            total.written_back.to_string(),
            (looks.published + looks.evicted + looks.cleaned).to_string(),
            total.errors.to_string(),
            format!("{:.1}", looks.steps as f64 / 1e6),
            format!("{:.1}", total.virtual_ns as f64 / 1e6),
            format!("{:.1}", runs as f64 / total.seconds.max(1e-9)),
        ]);
    }
    say(&table.to_string())?;
    say(&format!(
        "{} of {} runs in {:.1} s, {:.1} a second and worker ({} workers); {} failed",
        summary.ran,
        summary.asked,
        summary.seconds,
        summary.rate,
        summary.jobs,
        summary.failures.len()
    ))?;
    if summary.stopped {
        let (first, end) = (summary.seeds.start, summary.seeds.end);
        say(&format!(
            "interrupted: of seeds {first}..{end} the first {} ({first}..{}) had run with every workload, and {} runs in all; {} failed so far",
            summary.whole,
            first + summary.whole,
            summary.ran,
            summary.failures.len()
        ))?;
    }
    for ran in &summary.failures {
        tell(args, ran)?;
    }
    for unseen in &summary.unseen {
        say(&format!("\nFAILED: {unseen}"))?;
    }
    Ok(())
}

/// A failure: what differed, what replays it, and the last events.
fn tell(args: &SimulateArgs, ran: &Ran) -> io::Result<()> {
    let Err(failure) = &ran.outcome else { return Ok(()) };
    say(&format!(
        "\nFAILED: {}, seed {}: {}",
        ran.workload, ran.seed, failure.what
    ))?;
    for further in &failure.further {
        say(&format!("  then: {further}"))?;
    }
    for line in &failure.trace {
        say(line)?;
    }
    say(&format!("replay: {}", replay(args, ran.workload, ran.seed)))?;
    say(&format!(
        "timeline: {} --trace trace.json",
        replay(args, ran.workload, ran.seed)
    ))
}
