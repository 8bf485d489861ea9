//! One seed is one interleaving, of GPU, NIC and time; many seeds, with warps that split at random, find no difference
//! to a plain array, and do find a library with a race.

use crate::common::{Adjust, Bench, HOLDING, PAGE_WORDS, simulated_soft};
use crate::program::{Outcome, ProgramShape, give_up, rng, run, run_on, seeds, tiny};
use gpuvm::sim::SimOptions;
use gpuvm::{CompileOptions, LaunchConfig};

fn outcome(seed: u64, options: &CompileOptions) -> Result<Outcome, String> {
    run::<u32>(&mut rng(7), &tiny(seed, 3), options)
}

#[test]
fn a_seed_is_one_interleaving_to_the_last_switch_and_counter() {
    let stock = CompileOptions::default();
    let first: Vec<Outcome> = (20..24).map(|seed| outcome(seed, &stock).unwrap()).collect();
    let again: Vec<Outcome> = (20..24).map(|seed| outcome(seed, &stock).unwrap()).collect();
    assert_eq!(first, again);
    assert!(
        first
            .iter()
            .all(|o| o.stats.evictions > 10 && o.traces.iter().all(Option::is_some))
    );
    for (n, one) in first.iter().enumerate() {
        for other in &first[n + 1..] {
            assert_ne!(one.traces, other.traces);
        }
    }
}

#[test]
fn many_interleavings_come_to_what_a_plain_array_comes_to() {
    for seed in seeds(100, 24) {
        for frames in [1, 2, 3] {
            let shape = tiny(seed, frames);
            if let Err(wrong) = run::<u32>(&mut rng(seed), &shape, &CompileOptions::default()) {
                let test = "many_interleavings_come_to_what_a_plain_array_comes_to";
                give_up("seeds", test, seed, &shape, &wrong);
            }
        }
    }
}

#[test]
fn nothing_in_the_device_library_races() {
    let simulated = SimOptions {
        find_races: true,
        ..SimOptions::default()
    };
    for seed in seeds(400, 5) {
        for (frames, threads, direct) in [(2, 32, false), (5, 64, false), (2, 32, true), (5, 64, true)] {
            let shape = ProgramShape {
                threads,
                direct,
                ..tiny(seed, frames)
            };
            let builder = shape.builder().sim_options(simulated);
            if let Err(wrong) = run_on::<u32>(builder, &mut rng(seed), &shape, &CompileOptions::default()) {
                let test = "nothing_in_the_device_library_races";
                give_up("seeds", test, seed, &shape, &wrong);
            }
        }
    }
}

#[test]
fn groups_that_split_at_random_share_two_frames() {
    for seed in seeds(200, 20) {
        let bench = Bench::new(simulated_soft(2).seed(seed), HOLDING);
        let n = 5 * PAGE_WORDS;
        let a = bench.vm.region::<u32>().from_iter(0..n as u32).unwrap();
        let out = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("two_pages", LaunchConfig::new(2, 64), (&a, PAGE_WORDS, 4u32, &out));
        let lane = |block: u64, thread: u64| -> u64 {
            let page = |n: u64| (block * 64 + thread) / 32 * 7 + n * 3;
            (0..4u64)
                .map(|n| (page(n) + 1 - thread % 2) % 5 * PAGE_WORDS + thread)
                .sum()
        };
        let expected: u64 = (0..2).flat_map(|b| (0..64).map(move |t| lane(b, t))).sum();
        assert_eq!(out.to_vec().unwrap(), [expected], "seed {seed}");
        bench.no_violations();
    }
}

#[test]
fn prefetches_and_spins_end_in_every_interleaving() {
    for seed in seeds(300, 12) {
        let bench = Bench::new(simulated_soft(2).seed(seed), HOLDING);
        let a = bench.vm.region::<u32>().zeroed(4 * PAGE_WORDS).unwrap();
        let out = bench.vm.buffer::<u32>(1).unwrap();
        bench.must("prefetch_only", LaunchConfig::new(1, 32), (&a, 0u64, 4 * PAGE_WORDS));
        bench.must("spin_on_element", LaunchConfig::new(2, 32), (&a, &out));
        assert_eq!(out.to_vec().unwrap(), [99], "seed {seed}");
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", LaunchConfig::new(1, 32), (&a, &sink));
        assert_eq!(sink.to_vec().unwrap(), [100], "seed {seed}");
    }
}
