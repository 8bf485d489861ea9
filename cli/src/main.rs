//! The command `gpuvm`.

mod apps;
mod args;
mod bench;
mod bfs;
mod convert;
mod doctor;
mod error;
mod exec;
mod machine;
mod output;
mod own;
mod process_limits;
mod profile;
mod progress;
mod ptx;
mod report;
mod secret;
mod serve;
mod several;
mod simulate;
mod sizes;
mod stdout;
mod table;
mod tenants;

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

use crate::args::{Cli, Command, Profiled, Workload, options_help};
use crate::error::CliError;
pub(crate) use crate::own::{NAME, own_program};

/// The status of a program that panicked, as Rust gives it.
const PANICKED: u8 = 101;

/// The command runs on a thread with a stack of its own: the first thread's is as large as `ulimit -s` says.
fn main() -> ExitCode {
    process_limits::raise_stack();
    process_limits::raise_files();
    let command = std::thread::Builder::new()
        .name("command".to_owned())
        .stack_size(process_limits::STACK_BYTES)
        .spawn(command);
    match command.map_err(CliError::Thread) {
        // A panic has said what it is.
        Ok(thread) => thread.join().unwrap_or_else(|_| ExitCode::from(PANICKED)),
        Err(error) => failed(&error),
    }
}

fn command() -> ExitCode {
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(refusal) if refusal.use_stderr() => refusal.exit(),
        Err(answer) => return answered(&answer),
    };
    // RUST_LOG=gpuvm=debug shows what the library does; nothing by default.
    let asked = std::env::var("RUST_LOG").unwrap_or_default();
    let shown = asked.parse::<Targets>().unwrap_or_else(|error| {
        eprintln!("warning: RUST_LOG is `{asked}`, which is not a list of TARGET=LEVEL, such as gpuvm=debug: {error}");
        Targets::new()
    });
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(!is_plain() && io::stderr().is_terminal());
    tracing_subscriber::registry().with(lines).with(shown).init();
    match execute(&cli) {
        Ok(status) => status,
        Err(error) => failed(&error),
    }
}

/// Prints the help or the version, which the parser gives as errors.
fn answered(answer: &clap::Error) -> ExitCode {
    let text = answer.render();
    let printed = match io::stdout().is_terminal() && !is_plain() {
        true => stdout::print(text.ansi()),
        false => stdout::print(text),
    };
    match printed.map_err(CliError::Print) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &CliError) -> ExitCode {
    print_chain(error);
    ExitCode::from(error.exit_status())
}

/// Whether the user wants no colours.
fn is_plain() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

fn execute(cli: &Cli) -> Result<ExitCode, CliError> {
    // A node ends its clients' sessions first, a simulation tells how far it came, and who watches has seen enough; everything else
    // ends at once.
    let ends_by_itself = match &cli.command {
        // A program that is run has signals as it finds them.
        Command::Serve(_) | Command::Simulate(_) | Command::Exec(_) => true,
        Command::Tenants(args) => args.list.watch.is_some(),
        _ => false,
    };
    if !ends_by_itself {
        output::end_on_signals().map_err(CliError::Signals)?;
    }
    match &cli.command {
        Command::Run(workload) => run(workload),
        Command::Profile(Profiled::Bfs(args)) => bfs::profile(args),
        Command::Bench(bench) => bench::run(bench),
        Command::Convert(args) => convert::run(args),
        Command::Ptx(args) => ptx::run(args),
        Command::Exec(args) => exec::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Doctor(args) => return doctor::run(args),
        Command::Simulate(args) => return simulate::run(args),
        Command::Tenants(args) => tenants::run(args),
        Command::Options => stdout::print(options_help()).map_err(CliError::Print),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn run(workload: &Workload) -> Result<(), CliError> {
    match workload {
        Workload::Bfs(args) if args.search.machine.several().is_some() => several::run_bfs(args),
        Workload::Bfs(args) => bfs::run(args),
        Workload::App(entry, args) if args.machine.several().is_some() => several::run_app(entry, args),
        Workload::App(entry, args) => apps::run(entry, args),
    }
}

/// Prints an error, its causes, and the limit that they point to. A standard error that is closed is no reason to panic.
fn print_chain(error: &dyn Error) {
    let mut text = format!("error: {error}\n");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!("  caused by: {error}\n"));
        cause = error.source();
    }
    if let Some(hint) = process_limits::hint(&text) {
        text.push_str(&format!("  note: {hint}\n"));
    }
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
