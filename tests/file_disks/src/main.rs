//! `file-disks run FILE` has kernels write versions of a file's pages and flush them, as its standard input says; `check` looks at the file
//! afterwards, when its disk has failed or lost its power; `replay` makes the disks that a loss of power may leave, from a log of its writes.

mod error;
mod log;
mod pages;
mod steps;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use error::chain;
use pages::Pages;

/// Versions of a file's pages, on disks that fail.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Does steps from standard input, a line each: see `steps.rs`.
    Run {
        #[command(flatten)]
        file: FileArgs,
        /// A device of dm-log-writes that gets a mark behind each flush.
        #[arg(long)]
        mark: Option<String>,
        /// A planted bug: the flush does not have the system store anything.
        #[arg(long)]
        forget: bool,
    },
    /// Compiles the kernels, for machines whose compilers are slow.
    Compile,
    /// Fails where a page holds neither what was flushed nor something that was written since.
    Check {
        #[command(flatten)]
        file: FileArgs,
        /// The version up to which all was flushed.
        #[arg(long)]
        flushed: u32,
        /// The last version that may have been written.
        #[arg(long)]
        written: u32,
    },
    /// Writes the disk that a loss of power may leave, and says up to which mark it must be whole.
    Replay {
        /// The log's device.
        log: PathBuf,
        /// The device that gets the contents; at first all zeros.
        target: PathBuf,
        /// Draws the moment of the loss, among those behind the first mark, and what is lost.
        #[arg(long)]
        seed: u64,
        /// Loses the power right behind a mark, and all that was not flushed then.
        #[arg(long)]
        at_mark: bool,
    },
}

#[derive(Args)]
struct FileArgs {
    path: PathBuf,
    /// Its bytes.
    #[arg(long)]
    bytes: u64,
    /// Decides what pages hold, and which of them a version changes.
    #[arg(long)]
    seed: u32,
}

impl FileArgs {
    fn pages(&self) -> Pages {
        Pages {
            seed: self.seed,
            bytes: self.bytes,
        }
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run { file, mark, forget } => steps::run(&file.path, file.pages(), mark.as_deref(), forget),
        Command::Compile => steps::kernels().map(drop),
        Command::Check { file, flushed, written } => {
            let newer = file.pages().check(&file.path, flushed, written);
            newer.map(|newer| println!("whole: {newer} pages are newer than version {flushed}"))
        }
        Command::Replay {
            log,
            target,
            seed,
            at_mark,
        } => log::replay(&log, &target, seed, at_mark),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("file-disks: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}
