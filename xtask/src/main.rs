//! `cargo xtask`: commands of the repository.

use std::{
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use clap::{Parser, Subcommand};
use xtask::TaskError;

/// Commands of the repository.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Builds the C library and installs it, its headers, and what CMake and pkg-config read
    Install {
        /// Where to: it gets `lib` and `include`
        prefix: PathBuf,
    },
    /// Packs the crates that are published, as `cargo publish` would, and checks that each package is complete
    Package {
        /// Installs the command gpuvm from the packages alone and runs it, which builds everything: minutes
        #[arg(long)]
        install: bool,
    },
}

/// Builds gpuvm-capi and finds its static library.
fn build() -> Result<PathBuf, TaskError> {
    let mut build = Command::new(xtask::cargo());
    build.args([
        "build",
        "--locked",
        "--release",
        "--package",
        "gpuvm-capi",
        "--message-format",
        "json-render-diagnostics",
    ]);
    let output = build.current_dir(xtask::root()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|source| TaskError::Program {
        program: "cargo",
        package: "cargo",
        source,
    })?;
    if !output.status.success() {
        let output = "see above".into();
        return Err(TaskError::Failed {
            program: "cargo",
            output,
        });
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let archive = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let ours = message["target"]["name"] == "gpuvm_capi";
        let files = message["filenames"].as_array().filter(|_| ours)?;
        files
            .iter()
            .filter_map(|file| file.as_str())
            .find(|file| file.ends_with(".a"))
            .map(PathBuf::from)
    });
    archive.ok_or(TaskError::NoLibrary)
}

/// Packs, says what is in the packages, and installs the command from them where that is asked for.
fn package(install: bool) -> Result<(), TaskError> {
    let packages = xtask::package()?;
    for package in &packages {
        println!(
            "{}: {} files, {} KiB packed",
            package.name,
            package.files,
            package.bytes >> 10
        );
    }
    if install {
        print!("{}", xtask::install_command(&packages)?);
    }
    Ok(())
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Task::Install { prefix } => build()
            .and_then(|archive| xtask::install(&archive, &prefix))
            .map(|()| println!("installed gpuvm {} in {}", xtask::VERSION, prefix.display())),
        Task::Package { install } => package(install),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("error: {error}");
            let mut cause = std::error::Error::source(&error);
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}
