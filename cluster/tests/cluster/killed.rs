//! A rank that is lost at any moment: the job ends within 10 s, with an error that names the rank, and the next job runs.

use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::mpirun::{Ended, Job, LONG, is_there, signal, start};

const RANKS: usize = 4;
/// The promise.
const LIMIT: Duration = Duration::from_secs(10);

/// A job that would run for long.
fn job(options: &[&str]) -> Job {
    let arguments = [
        "pagerank",
        "kron:9",
        "--iterations",
        "100000",
        "--workers",
        "1",
        "--memory",
        "128KiB",
    ];
    start(RANKS, options, &arguments)
}

/// Sends the signal to a rank, and waits for the end of the job and of all its processes.
fn lose(job: Job, ranks: &[(usize, u32)], rank: usize, name: &str) -> Ended {
    let process = ranks.iter().find(|(found, _)| *found == rank).expect("a rank").1;
    let begun = Instant::now();
    signal(process, name);
    let ended = job.end(begun, LIMIT);
    println!("# {name} of rank {rank}: {:.2?}", ended.took);
    while ranks.iter().any(|(_, process)| is_there(*process)) {
        assert!(begun.elapsed() < LIMIT, "a rank is left");
        std::thread::sleep(Duration::from_millis(10));
    }
    ended
}

fn random() -> ChaCha8Rng {
    let seed = std::env::var("GPUVM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("# GPUVM_TEST_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

#[test]
fn a_rank_killed_at_any_moment_ends_the_job_and_is_named() {
    let mut random = random();
    for round in 0..5 {
        let job = job(&[]);
        let ranks = job.wait_for(RANKS, true);
        // From the start of the watch to the middle of the work.
        std::thread::sleep(Duration::from_millis(random.random_range(0..3000) * round / 4));
        let rank = random.random_range(0..RANKS);
        let ended = lose(job, &ranks, rank, "KILL");
        assert!(ended.status != Some(0), "{}", ended.errors);
        assert!(ended.errors.contains(&format!("rank {rank} ")), "{}", ended.errors);
    }
    runs_again();
}

/// Before the watch only the launcher can see it.
#[test]
fn no_rank_outlives_one_that_is_killed_while_mpi_starts() {
    let mut random = random();
    for _ in 0..4 {
        let job = job(&[]);
        let ranks = job.wait_for(RANKS, false);
        std::thread::sleep(Duration::from_millis(random.random_range(0..100)));
        let (rank, process) = ranks[random.random_range(0..RANKS)];
        let begun = Instant::now();
        signal(process, "KILL");
        let ended = job.end_of_ranks(&ranks, begun, LIMIT);
        println!("# KILL of rank {rank}: {:.2?}", ended.took);
        assert!(ended.status != Some(0), "{}", ended.errors);
    }
    runs_again();
}

#[test]
fn a_launcher_that_does_nothing_is_not_needed() {
    let mut random = random();
    // Rank 0, to which all others are connected, and another one.
    for rank in [0, random.random_range(1..RANKS)] {
        let job = job(&["--enable-recovery"]);
        let ranks = job.wait_for(RANKS, true);
        std::thread::sleep(Duration::from_millis(random.random_range(0..1500)));
        let ended = lose(job, &ranks, rank, "KILL");
        let named = format!("error: rank {rank} of {RANKS}");
        assert!(
            ended.errors.contains(&named) && ended.errors.contains("is lost: its process has ended"),
            "{}",
            ended.errors
        );
    }
}

#[test]
fn a_rank_that_hangs_ends_the_job_and_is_named() {
    let mut random = random();
    for rank in [0, random.random_range(1..RANKS)] {
        let job = job(&[]);
        let ranks = job.wait_for(RANKS, true);
        std::thread::sleep(Duration::from_millis(random.random_range(0..1500)));
        let ended = lose(job, &ranks, rank, "STOP");
        assert!(ended.status != Some(0), "{}", ended.errors);
        let named = format!("error: rank {rank} of {RANKS}");
        assert!(
            ended.errors.contains(&named) && ended.errors.contains("silent, stopped or hanging"),
            "{}",
            ended.errors
        );
    }
    runs_again();
}

/// Nothing of the lost jobs is in the way.
fn runs_again() {
    let ended = start(RANKS, &[], &["pagerank", "kron:8", "--workers", "1", "--check"]).end(Instant::now(), LONG);
    assert_eq!(ended.status, Some(0), "{}{}", ended.output, ended.errors);
}
