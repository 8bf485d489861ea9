//! The command `gpuvm`.

mod args;
mod bench;
mod bfs;
mod doctor;
mod error;
mod machine;
mod metrics_http;
mod output;
mod progress;
mod report;
mod serve;
mod simulate;
mod sizes;

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::args::{Cli, Command, Workload};
use crate::error::CliError;

/// What processes that this program starts of itself are called.
const NAME: &str = "gpuvm";

fn main() -> ExitCode {
    let cli = Cli::parse();
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    // RUST_LOG=gpuvm=debug shows what the library does; nothing by default.
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_ansi(!plain && io::stderr().is_terminal())
        .with_env_filter(EnvFilter::from_default_env())
        .init();
    match execute(&cli) {
        Ok(status) => status,
        Err(error) => {
            print_chain(&error);
            ExitCode::from(error.exit_status())
        }
    }
}

fn execute(cli: &Cli) -> Result<ExitCode, CliError> {
    // A node ends its clients' sessions first, and a simulation tells how far it came; everything else ends at once.
    if !matches!(cli.command, Command::Serve(_) | Command::Simulate(_)) {
        output::end_on_signals().map_err(CliError::Signals)?;
    }
    match &cli.command {
        Command::Run(Workload::Bfs(args)) => bfs::run(args),
        Command::Bench(bench) => bench::run(bench),
        Command::Serve(args) => serve::run(args),
        Command::Doctor(args) => return doctor::run(args),
        Command::Simulate(args) => return simulate::run(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// This program's file, also after another one has taken its name.
fn own_program() -> io::Result<PathBuf> {
    /// Names the file that runs, not what bears its name now.
    const OWN: &str = "/proc/self/exe";
    match Path::new(OWN).exists() {
        true => Ok(OWN.into()),
        false => std::env::current_exe(),
    }
}

/// Prints an error and its causes. A standard error that is closed is no reason to panic.
fn print_chain(error: &dyn Error) {
    let mut text = format!("error: {error}\n");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!("  caused by: {error}\n"));
        cause = error.source();
    }
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
