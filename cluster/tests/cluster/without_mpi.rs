//! The command as everybody builds it.

use std::process::Command;

fn run(arguments: &[&str], rank: Option<&str>) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm-mpi"));
    command.args(arguments).env_remove("SLURM_PROCID");
    if let Some(rank) = rank {
        command.env("OMPI_COMM_WORLD_RANK", rank);
    }
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_program_without_mpi_says_what_to_do() {
    let (status, text) = run(&["pagerank", "kron:8"], None);
    assert_eq!(status, Some(2));
    assert!(text.starts_with("error: gpuvm-mpi needs MPI"), "{text}");
    assert!(text.contains("--features mpi") && text.contains("openmpi"), "{text}");
}

#[test]
fn one_rank_tells_of_options_that_cannot_be() {
    let (status, text) = run(&["pagerank", "kron:8", "--iterations", "0"], Some("0"));
    assert_eq!(status, Some(2));
    assert!(text.contains("--iterations"), "{text}");
    let (status, text) = run(&["pagerank", "kron:8", "--iterations", "0"], Some("3"));
    // An error here could end the job before the first rank has told.
    assert_eq!((status, text.as_str()), (Some(0), ""));
}
