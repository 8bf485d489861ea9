//! `gpuvm-mpi`: applications over the ranks that `mpirun` or `srun` starts.

#[cfg_attr(
    not(feature = "mpi"),
    expect(dead_code, reason = "a program without MPI reads options and runs nothing")
)]
mod args;
#[cfg(feature = "mpi")]
mod run;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;

/// The exit status of a program that cannot run what it is asked for.
#[cfg(not(feature = "mpi"))]
const WRONG_OPTIONS: u8 = 2;

/// What tells a process its rank before MPI does: OpenMPI, MPICH and its kin, Slurm.
const RANK_VARIABLES: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => start(&cli),
        // All ranks have the same options: the first one tells, and its status is the job's. Without an error in the others, since launchers
        // end a job at the first error, before the first rank has told.
        Err(_) if !is_first() => ExitCode::SUCCESS,
        Err(answer) => answer.exit(),
    }
}

/// Whether this process has to tell what all would tell.
fn is_first() -> bool {
    let rank = RANK_VARIABLES.iter().find_map(|name| std::env::var(name).ok());
    rank.is_none_or(|rank| rank == "0")
}

#[cfg(feature = "mpi")]
fn start(cli: &Cli) -> ExitCode {
    run::start(cli)
}

#[cfg(not(feature = "mpi"))]
fn start(_: &Cli) -> ExitCode {
    if is_first() {
        eprintln!(
            "error: gpuvm-mpi needs MPI, and this program was built without it; install OpenMPI or MPICH (Debian: openmpi-bin libopenmpi-dev) \
             and build it with: cargo build --release -p gpuvm-cluster --features mpi"
        );
    }
    ExitCode::from(WRONG_OPTIONS)
}
