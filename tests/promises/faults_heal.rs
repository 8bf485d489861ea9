//! Faults of NIC, network and homes, drawn by seed on the simulated GPU: what can be repeated is, and the result is a plain
//! array's; what cannot is an error of the kernels that touched it, and loses nothing.

use std::time::{Duration, Instant};

use crate::common::{Adjust, BASIC, Bench, PAGE_WORDS, compare, planted, simulated_soft, with_causes};
use crate::program::{ProgramShape, give_up, rng, run_on, seeds, tiny};
use gpuvm::soft::{FaultMix, FaultTally};
use gpuvm::{CompileOptions, DirtyPage, Error, LaunchConfig, Region};
use gpuvm_nic::wire::mlx5::Syndrome;

const SEEDS: u64 = 50;

fn shape(seed: u64, mix: &FaultMix) -> ProgramShape {
    ProgramShape {
        faults: Some(mix.clone()),
        // One queue pair or two, rings of one request to eight.
        ..tiny(seed, 1 + seed % 3)
    }
}

/// Runs programs under a mix of faults that can all be served in the end, and sees that each kind happened.
fn heals(test: &str, mix: &str, change: impl Fn(&ProgramShape) -> gpuvm::VmBuilder) -> FaultTally {
    let mix: FaultMix = mix.parse().unwrap_or_else(|error| panic!("{error}"));
    let (mut tally, started, mut recovered) = (FaultTally::default(), Instant::now(), 0);
    for seed in seeds(0, SEEDS) {
        let shape = shape(seed, &mix);
        match run_on::<u32>(change(&shape), &mut rng(seed), &shape, &CompileOptions::default()) {
            Ok(outcome) => {
                tally.merge(&outcome.faults);
                recovered += outcome.stats.queue_pairs_recovered;
            }
            Err(wrong) => give_up("faults_heal", test, seed, &shape, &wrong),
        }
    }
    println!(
        "{tally}; {recovered} queue pairs recovered; {:.1} s",
        started.elapsed().as_secs_f64()
    );
    if std::env::var_os("GPUVM_TEST_SEED").is_none() {
        tally.check().unwrap_or_else(|error| panic!("{error}"));
    }
    tally
}

macro_rules! healing {
    ($($name:ident: $mix:literal;)*) => {$(
        #[test]
        fn $name() {
            heals(stringify!($name), $mix, ProgramShape::builder);
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

#[test]
fn a_mix_with_collapsed_completions() {
    let mix = "lost:1/60x2,late:1/20,pieces:1/8,qp-error:1/150x3,doorbell:1/15,retries:1/90x4";
    heals("a_mix_with_collapsed_completions", mix, |shape| {
        shape.builder().collapsed_completions(true)
    });
}

const UNFLUSHED: &str = "unflushed:1/2@30us";

#[test]
fn data_that_lands_after_its_completion_is_flushed() {
    heals("data_that_lands_after_its_completion_is_flushed", UNFLUSHED, |shape| {
        shape.builder().flush_reads(true)
    });
}

#[test]
fn the_test_above_finds_a_library_that_does_not_flush() {
    let mix: FaultMix = UNFLUSHED.parse().unwrap();
    let wrong = (0..SEEDS).any(|seed| {
        let shape = shape(seed, &mix);
        run_on::<u32>(shape.builder(), &mut rng(seed), &shape, &CompileOptions::default()).is_err()
    });
    assert!(wrong);
}

/// Whether a kernel that changes pages with two homes comes to its end though one of the homes answers nothing for longer than a wait
/// may take, and then loses nothing.
fn continues_beside_a_silent_home(seed: u64, options: &CompileOptions) -> Result<FaultTally, String> {
    let settings = simulated_soft(3).seed(seed).host_homes(2).wait_limit(LIMIT);
    let bench = Bench::with(settings.queue_pairs(1 + (seed % 2) as u32), BASIC, options);
    let words = PAGES * PAGE_WORDS;
    let region = bench.vm.region::<u32>().name("both").replicas(2);
    let region = region.from_iter(0..words as u32).unwrap();
    let nic = bench.soft_nic();
    nic.mix_faults(&"die:1@10s".parse().unwrap(), seed).unwrap();
    for _ in 0..2 {
        let ran = bench.run("write_by", LaunchConfig::new(2, 32), (&region, ATOMIC_ADD, ADDED));
        ran.map_err(|error| with_causes(&error))?;
    }
    let tally = nic.fault_tally();
    let expected: Vec<u32> = (0..words as u32).map(|i| i + 2 * ADDED).collect();
    compare(&region.to_vec().map_err(|error| with_causes(&error))?, &expected)?;
    Ok(tally)
}

#[test]
fn a_home_that_answers_nothing_is_left_for_the_other_one() {
    let mut tally = FaultTally::default();
    for seed in seeds(0, SEEDS) {
        match continues_beside_a_silent_home(seed, &CompileOptions::default()) {
            Ok(faults) => tally.merge(&faults),
            Err(wrong) => panic!("seed {seed}: {wrong}"),
        }
    }
    tally.check().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_test_above_finds_a_library_that_waits_for_the_silent_home() {
    let waits = planted(
        "gpuvm/detail/replica.cuh",
        "silent |= (is_silent(vm, replica) ? 1u : 0u) << n;",
        "",
    );
    assert!((0..SEEDS).any(|seed| continues_beside_a_silent_home(seed, &waits).is_err()));
}

/// What became of two kernels, each with a region of its own, under faults of which some cannot be served.
#[derive(Default, Debug)]
struct Ends {
    /// Kernels that ended with an error.
    failed: u32,
    /// Seeds in which both did.
    both: u32,
    /// Pages that could not be written back and were salvaged.
    salvaged: usize,
}

const PAGES: u64 = 6;
const ADDED: u32 = 1 << 20;
/// How `write_by` is to write: by one access, so that what an access gives after a fault goes nowhere.
const ATOMIC_ADD: u32 = 2;
/// Longer than any wait that is served.
const LIMIT: Duration = Duration::from_millis(50);

/// Two kernels beside each other add to their own regions, page by page in and out.
fn fatal(mix: &str, syndromes: &[Syndrome], wait_limit: Duration) -> Ends {
    let mix: FaultMix = mix.parse().unwrap_or_else(|error| panic!("{error}"));
    let (mut ends, mut tally, started) = (Ends::default(), FaultTally::default(), Instant::now());
    for seed in seeds(0, SEEDS) {
        // More frames than pages of one region: what cannot be written back leaves room for the other's.
        let settings = simulated_soft(PAGES + 2)
            .seed(seed)
            .queue_pairs(1 + (seed % 2) as u32)
            .wait_limit(wait_limit);
        let bench = Bench::new(settings, BASIC);
        let words = PAGES * PAGE_WORDS;
        let regions = ["left", "right"].map(|name| {
            let region = bench.vm.region::<u32>().name(name);
            region.from_iter(0..words as u32).unwrap()
        });
        let nic = bench.soft_nic();
        nic.mix_faults(&mix, seed).unwrap();
        let failed = add_to_both(&bench, &regions, syndromes, seed);
        ends.failed += failed.iter().map(|failed| u32::from(*failed)).sum::<u32>();
        ends.both += u32::from(failed == [true; 2]);
        // What is dirty can be salvaged while nothing of it can be written back.
        let salvaged = regions.each_ref().map(|region| region.salvage().unwrap());
        tally.merge(&nic.fault_tally());
        nic.calm();
        for ((region, failed), salvaged) in regions.iter().zip(failed).zip(&salvaged) {
            ends.salvaged += salvaged.len();
            check_after(&bench, region, failed, salvaged, seed);
        }
        bench.no_violations();
    }
    println!("{tally}; {ends:?}; {:.1} s", started.elapsed().as_secs_f64());
    if std::env::var_os("GPUVM_TEST_SEED").is_none() {
        tally.check().unwrap_or_else(|error| panic!("{error}"));
        assert!(ends.failed > 0 && ends.salvaged > 0, "{ends:?}");
    }
    ends
}

/// A kernel for each of the two regions; whether each failed, by a fault of its own region with one of the syndromes.
fn add_to_both(bench: &Bench, regions: &[Region<u32>; 2], syndromes: &[Syndrome], seed: u64) -> [bool; 2] {
    let kernel = bench.kernel("write_by");
    let launches = regions.each_ref().map(|region| {
        let stream = bench.vm.stream().unwrap();
        let config = LaunchConfig::new(1, 32);
        kernel.launch_on(&stream, config, (region, ATOMIC_ADD, ADDED)).unwrap()
    });
    let mut failed = [false; 2];
    for ((launch, region), failed) in launches.iter().zip(regions).zip(&mut failed) {
        match launch.sync() {
            Ok(_) => {}
            Err(Error::Fault { fault, .. }) => {
                assert_eq!(fault.region, region.name(), "seed {seed}: {fault}");
                let syndrome = Syndrome::from(fault.syndrome);
                assert!(syndromes.contains(&syndrome), "seed {seed}: {fault}");
                *failed = true;
            }
            Err(other) => panic!("seed {seed}: {}", with_causes(&other)),
        }
    }
    failed
}

/// After the faults: each element was written or not, salvaged pages are what the region holds, and another kernel works.
fn check_after(bench: &Bench, region: &Region<u32>, failed: bool, salvaged: &[DirtyPage<u32>], seed: u64) {
    let found = region
        .to_vec()
        .unwrap_or_else(|error| panic!("seed {seed}: {}", with_causes(&error)));
    for page in salvaged {
        let first = page.first as usize;
        let home = &found[first..first + page.elements.len()];
        compare(&page.elements, home).unwrap_or_else(|wrong| panic!("seed {seed}, salvaged: {wrong}"));
    }
    for (i, value) in (0..).zip(&found) {
        // A kernel that failed has stopped somewhere; one that did not has done all.
        let right = *value == i + ADDED || failed && *value == i;
        assert!(right, "seed {seed}: element {i} of {} is {value:#x}", region.name());
    }
    // In the GPU's own time, which no other faults stretch now.
    let config = LaunchConfig::new(1, 32).deadline(Duration::from_millis(100));
    bench.must("read_then_write", config, (region, 1u32));
    let again: Vec<u32> = found.iter().map(|value| value + 1).collect();
    compare(&region.to_vec().unwrap(), &again).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
}

#[test]
fn a_revoked_key_is_an_error_of_its_own_kernel_alone() {
    let ends = fatal("revoke:1/8x1", &[Syndrome::RemoteAccess], LIMIT);
    assert_eq!(ends.both, 0, "{ends:?}");
}

#[test]
fn memory_registered_too_short_loses_nothing() {
    // Dirty pages beyond the end cannot leave their frames: for want of frames, a kernel may end at the wait limit.
    let syndromes = [Syndrome::LocalProtection, Syndrome::Unknown(0)];
    fatal("short:1/8x1", &syndromes, LIMIT);
}

#[test]
fn each_error_that_is_not_repeated_is_one_of_its_own_kernel_alone() {
    for (name, syndrome) in [
        ("local-length", Syndrome::LocalLength),
        ("local-qp", Syndrome::LocalQueuePairOperation),
        ("local-protection", Syndrome::LocalProtection),
        ("window-bind", Syndrome::WindowBind),
        ("bad-response", Syndrome::BadResponse),
        ("local-access", Syndrome::LocalAccess),
        ("remote-invalid", Syndrome::RemoteInvalidRequest),
        ("remote-access", Syndrome::RemoteAccess),
        ("remote-operation", Syndrome::RemoteOperation),
    ] {
        let ends = fatal(&format!("{name}:1/8x1"), &[syndrome], LIMIT);
        assert_eq!(ends.both, 0, "{name}: {ends:?}");
    }
}

#[test]
fn a_home_that_does_not_return_is_a_bounded_error_and_keeps_its_pages() {
    // No request says why: the wait limit ends it. Each wait costs as many polls as its time.
    let wait_limit = Duration::from_millis(4);
    let syndromes = [Syndrome::TransportRetryExceeded, Syndrome::Unknown(0)];
    let ends = fatal("die:1/8x1@1s", &syndromes, wait_limit);
    assert_eq!(ends.both, 0, "{ends:?}");
}
