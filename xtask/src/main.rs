//! `cargo xtask`: commands of the repository.

use std::{
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use clap::{Parser, Subcommand};
use xtask::InstallError;

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
        /// Optimised
        #[arg(long)]
        release: bool,
    },
}

/// Builds gpuvm-capi and finds its static library.
fn build(release: bool) -> Result<PathBuf, InstallError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args([
        "build",
        "--locked",
        "--package",
        "gpuvm-capi",
        "--message-format",
        "json-render-diagnostics",
    ]);
    build.args(release.then_some("--release"));
    let output = build.current_dir(xtask::root()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|source| InstallError::Program {
        program: "cargo",
        package: "cargo",
        source,
    })?;
    if !output.status.success() {
        let output = "see above".into();
        return Err(InstallError::Failed {
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
    archive.ok_or(InstallError::NoLibrary)
}

fn main() -> ExitCode {
    let Task::Install { prefix, release } = Args::parse().command;
    match build(release).and_then(|archive| xtask::install(&archive, &prefix)) {
        Ok(()) => {
            println!("installed gpuvm {} in {}", xtask::VERSION, prefix.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}", gpuvm_nic::with_causes(&error));
            ExitCode::FAILURE
        }
    }
}
