//! Faults of NIC, network and homes, drawn by seed on the simulated GPU: what can be repeated is, and the result is a plain
//! array's; what cannot is an error of the kernels that touched it, and loses nothing.

mod common;
#[path = "common/program.rs"]
mod program;

use std::time::Instant;

use common::{BASIC, Bench, PAGE_WORDS, chain, compare, simulated_soft};
use gpuvm::soft::{FaultKind, FaultMix, FaultTally};
use gpuvm::{CompileOptions, Error, FaultKind as Cause, LaunchConfig};
use program::{Outcome, Shape, give_up, rng, run, run_on, seeds, tiny};

const SEEDS: u64 = 50;

fn shape(seed: u64, mix: &FaultMix) -> Shape {
    Shape {
        faults: Some(mix.clone()),
        // One queue pair or two, rings of one request to eight.
        ..tiny(seed, 1 + seed % 3)
    }
}

/// Runs programs under a mix of faults that can all be served in the end, and sees that each kind happened.
fn heals(test: &str, mix: &str, change: impl Fn(&Shape) -> gpuvm::VmBuilder) -> FaultTally {
    let mix: FaultMix = mix.parse().unwrap_or_else(|error| panic!("{error}"));
    let (mut tally, started, mut mended) = (FaultTally::default(), Instant::now(), 0);
    for seed in seeds(0, SEEDS) {
        let shape = shape(seed, &mix);
        match run_on::<u32>(change(&shape), &mut rng(seed), &shape, &CompileOptions::default()) {
            Ok(outcome) => {
                tally.merge(&outcome.faults);
                mended += outcome.stats.queue_pairs_mended;
            }
            Err(wrong) => give_up("faults_heal", test, seed, &shape, &wrong),
        }
    }
    println!("{tally}; {mended} queue pairs mended; {:.1} s", started.elapsed().as_secs_f64());
    if std::env::var_os("GPUVM_TEST_SEED").is_none() {
        tally.check().unwrap_or_else(|error| panic!("{error}"));
    }
    tally
}

macro_rules! healing {
    ($($name:ident: $mix:literal;)*) => {$(
        #[test]
        fn $name() {
            heals(stringify!($name), $mix, Shape::builder);
        }
    )*};
}
healing! {
    lost_completions: "lost:1/60x3";
    late_completions: "late:1/6@30us";
    data_of_later_requests_first: "reorder:1/3";
    data_in_pieces: "pieces:1/3";
    a_slow_home: "slow:1";
    a_home_that_dies_and_returns: "die:2@150us";
    queue_pairs_that_fail_by_themselves: "qp-error:1/30x6";
    doorbells_late_and_together: "doorbell:1/4@15us";
    retries_exceeded: "retries:1/30x8";
    receiver_not_ready: "rnr:1/30x8";
    remote_aborted: "aborted:1/30x8";
    flushed_out_of_nothing: "flushed:1/30x8";
    a_mix_of_all: "lost:1/200x2,late:1/20,reorder:1/8,pieces:1/8,slow:1@3us,die:1@80us,qp-error:1/150x3,doorbell:1/15,\
        retries:1/120x3,rnr:1/120x3,aborted:1/120x3";
}
