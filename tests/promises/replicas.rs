//! Regions with two replicas: either home may be lost at any time, and return with garbage, and the other then too: the
//! result is a plain array's.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, Ordering},
};
use std::time::{Duration, Instant};

use crate::common::{Adjust, BASIC, Bench, PAGE_WORDS, compare, planted, refused, scaled, simulated_soft, with_causes};
use crate::program::{Moment, Outcome, ProgramShape, give_up, rng, run_watched, seeds, tiny};
use gpuvm::sim::SimOptions;
use gpuvm::soft::{Fault, FaultMix, FaultPlan, FaultTally};
use gpuvm::{CompileOptions, HostHome, LaunchConfig, Region, Vm, VmBuilder};
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

/// What is special in a program whose regions have two homes.
#[derive(Default)]
struct Case {
    /// A bug in the device library of its kernel, and in that of the runtime's own kernels.
    bug: CompileOptions,
    support: CompileOptions,
    /// Faults of the NIC besides.
    faults: Option<FaultMix>,
    find_races: bool,
    checked: bool,
}

impl Case {
    fn with_bug(header: &str, from: &str, to: &str) -> Self {
        Self {
            bug: planted(header, from, to),
            ..Self::default()
        }
    }

    fn shape(&self, seed: u64) -> ProgramShape {
        ProgramShape {
            replicas: 2,
            checked: self.checked,
            faults: self.faults.clone(),
            // Those to a home that is lost.
            errors_allowed: true,
            launches: 5,
            ..tiny(seed, 1 + seed % 3)
        }
    }

    fn builder(&self, seed: u64) -> VmBuilder {
        let builder = self.shape(seed).builder().support_options(self.support.clone());
        match self.find_races {
            true => builder.sim_options(SimOptions {
                find_races: true,
                ..SimOptions::default()
            }),
            false => builder,
        }
    }
}

/// Takes a home away after this many steps of the scheduler.
struct Taker {
    home: OnceLock<HostHome>,
    steps: AtomicU32,
    taken: AtomicU32,
}

impl Taker {
    /// Steps of the launches of tiny programs, by far not all.
    fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            home: OnceLock::new(),
            steps: AtomicU32::new((seed.wrapping_mul(0x9e37_79b9) >> 7) as u32 % 1500),
            taken: AtomicU32::new(0),
        })
    }
}

fn attach(vm: &Vm, taker: &Arc<Taker>) {
    let simulation = vm.device().simulation().expect("a simulated GPU");
    simulation.attach(Arc::clone(taker) as Arc<dyn gpuvm_gpu::Actor>);
}

impl gpuvm_gpu::Actor for Taker {
    fn step(&self, _now_ns: u64) -> bool {
        let Some(home) = self.home.get() else { return false };
        // Relaxed: one thread steps it.
        match self.steps.load(Ordering::Relaxed) {
            0 => false,
            1 => {
                self.steps.store(0, Ordering::Relaxed);
                self.taken.store(1, Ordering::Relaxed);
                home.lose().is_ok()
            }
            more => {
                self.steps.store(more - 1, Ordering::Relaxed);
                false
            }
        }
    }
}

/// What happens to the homes of a program: one is taken in its first launch, and returns after its second one, with all that
/// it holds stale in the third; then it is caught up, and the other one is taken for good in the fourth.
fn losses(seed: u64, case: &Case, taken: &mut u32) -> Result<Outcome, String> {
    let shape = case.shape(seed);
    let (first, second) = (Taker::new(seed), Taker::new(seed + 77));
    let mut watch = |vm: &Vm, moment: Moment| {
        let homes = vm.host_homes();
        let (one, other) = (&homes[(seed % 2) as usize], &homes[1 - (seed % 2) as usize]);
        match moment {
            Moment::Before(0) => {
                attach(vm, &first);
                let _ = first.home.set(one.clone());
            }
            Moment::After(1) => {
                first.steps.store(0, Ordering::Relaxed);
                if !one.is_lost() {
                    one.lose()?;
                }
                one.restore();
                vm.readmit_homes()?;
            }
            Moment::After(2) => vm.catch_up()?,
            Moment::Before(3) => {
                attach(vm, &second);
                let _ = second.home.set(other.clone());
            }
            Moment::After(4) => {
                second.steps.store(0, Ordering::Relaxed);
                if !other.is_lost() {
                    other.lose()?;
                }
            }
            _ => {}
        }
        Ok(())
    };
    let outcome = run_watched::<u32>(case.builder(seed), &mut rng(seed), &shape, &case.bug, &mut watch);
    *taken += first.taken.load(Ordering::Relaxed) + second.taken.load(Ordering::Relaxed);
    outcome
}

/// Runs programs of a case, each of which must end as without any loss. What their faults came to.
fn survive(test: &str, case: &Case, first: u64, count: u64) -> FaultTally {
    let (mut taken, mut runs, mut recovered) = (0, 0, 0);
    let mut tally = FaultTally::default();
    for seed in seeds(first, count) {
        runs += 1;
        match losses(seed, case, &mut taken) {
            Ok(outcome) => {
                recovered += outcome.stats.queue_pairs_recovered;
                tally.merge(&outcome.faults);
            }
            Err(wrong) => give_up("replicas", test, seed, &case.shape(seed), &wrong),
        }
    }
    println!("{taken} losses within launches of {runs} programs; {recovered} queue pairs recovered; {tally}");
    if std::env::var_os("GPUVM_TEST_SEED").is_none() {
        assert!(taken >= runs / 2, "homes are lost while kernels run: {taken} of {runs}");
        tally.check().unwrap_or_else(|error| panic!("{error}"));
    }
    tally
}

#[test]
fn without_a_loss_both_homes_hold_everything() {
    let test = "without_a_loss_both_homes_hold_everything";
    let case = Case::default();
    for seed in seeds(0, 8) {
        let shape = case.shape(seed);
        let mut watch = |vm: &Vm, moment: Moment| match moment {
            // Whichever home the results are read from at the end, they are right.
            Moment::After(4) => vm.host_homes()[(seed % 2) as usize].lose().map_err(Into::into),
            _ => Ok(()),
        };
        if let Err(wrong) = run_watched::<u32>(shape.builder(), &mut rng(seed), &shape, &case.bug, &mut watch) {
            give_up("replicas", test, seed, &shape, &wrong);
        }
    }
}

#[test]
fn homes_are_lost_and_return_at_any_time() {
    survive("homes_are_lost_and_return_at_any_time", &Case::default(), 1000, 16);
}

#[test]
fn queue_pairs_are_recovered_while_homes_are_lost() {
    // A pair that is recovered is no home that is lost: its WRITEs are repeated, its copies stay good.
    for (first, mix) in [
        (2000, "lost:1/80x3"),
        (2100, "retries:1/60x3,flushed:1/60x3"),
        (2200, "qp-error:1/80x3,aborted:1/80x3"),
    ] {
        let case = Case {
            faults: Some(mix.parse().unwrap()),
            checked: first == 2200,
            ..Case::default()
        };
        survive("queue_pairs_are_recovered_while_homes_are_lost", &case, first, 6);
    }
}

#[test]
fn nothing_races_for_stale_bits_and_checksums() {
    let case = Case {
        find_races: true,
        checked: true,
        ..Case::default()
    };
    survive("nothing_races_for_stale_bits_and_checksums", &case, 3000, 6);
}

/// A bug that one in this many programs must show.
fn found(case: &Case, most: u64) {
    let wrong = (0..most).find_map(|seed| Some((seed, losses(seed, case, &mut 0).err()?)));
    let (seed, wrong) = wrong.unwrap_or_else(|| panic!("none of {most} programs shows the bug"));
    println!("found by seed {seed}: {wrong}");
    losses(seed, &Case::default(), &mut 0).expect("the library as it is");
}

const REPLICA: &str = "gpuvm/detail/replica.cuh";

#[test]
fn a_write_back_that_ends_with_its_first_write_is_found() {
    let early = "if (next & (layout::JOIN_REPEAT - 1)) return kNotLast;";
    found(&Case::with_bug(REPLICA, early, ""), 20);
}

#[test]
fn a_stale_copy_that_is_read_is_found() {
    let look = "return ld_relaxed_gpu(stale_word(vm, id)) & stale_bit(id);";
    found(&Case::with_bug(REPLICA, look, "return false;"), 10);
}

#[test]
fn a_home_that_returns_with_nothing_stale_is_found() {
    let aged = "if (at == home) set_stale(vm, at_replica(id, n));";
    let case = Case {
        support: planted("gpuvm/detail/catch_up.cuh", aged, ";"),
        ..Case::default()
    };
    found(&case, 10);
}

/// Pages of the regions of the tests without a seed.
const PAGES: u64 = 40;
const N: u64 = PAGES * PAGE_WORDS - 100;

fn doubled_region(bench: &Bench) -> Region<u32> {
    let region = bench.vm.region::<u32>().name("doubled").replicas(2);
    region.from_iter(0..N as u32).unwrap()
}

/// Waits until both homes hold everything, with launches that write all the time.
fn write_until_whole(bench: &Bench, a: &Region<u32>, rounds: &mut u32) {
    let since = Instant::now();
    loop {
        bench.must("read_then_write", LaunchConfig::new(2, 64), (a, 1u32));
        *rounds += 1;
        a.flush().unwrap();
        if a.health().unwrap().is_whole() {
            return;
        }
        assert!(since.elapsed() < scaled(Duration::from_secs(30)), "{:?}", a.health());
    }
}

#[test]
fn a_home_is_caught_up_in_the_background_while_kernels_write() {
    let bench = Bench::new(simulated_soft(8).host_homes(2), BASIC);
    let a = doubled_region(&bench);
    let homes = bench.vm.host_homes();
    let mut rounds = 0;
    for turn in 0..6 {
        let home = &homes[turn % 2];
        let launch = bench.launch("read_then_write", LaunchConfig::new(2, 64), (&a, 1u32));
        std::thread::sleep(Duration::from_micros(300 * turn as u64));
        home.lose().unwrap();
        launch
            .sync()
            .unwrap_or_else(|error| panic!("turn {turn}: {}", with_causes(&error)));
        rounds += 1;
        let expected: Vec<u32> = (0..N as u32).map(|i| i + rounds).collect();
        compare(&a.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("turn {turn}: {wrong}"));
        let health = a.health().unwrap();
        assert_eq!(health.homes.iter().filter(|home| home.is_lost).count(), 1, "{health:?}");
        assert_eq!(health.pages_without_copy, 0, "{health:?}");
        home.restore();
        write_until_whole(&bench, &a, &mut rounds);
    }
    let expected: Vec<u32> = (0..N as u32).map(|i| i + rounds).collect();
    compare(&a.to_vec().unwrap(), &expected).unwrap();
    let stats = bench.vm.stats().unwrap();
    assert!(stats.replicas_missed > 0 && stats.replicas_missed == stats.replicas_repaired);
    bench.no_violations();
}

#[test]
fn a_catch_up_that_failed_is_tried_again_in_the_background() {
    let bench = Bench::new(simulated_soft(8).host_homes(2), BASIC);
    let a = doubled_region(&bench);
    let homes = bench.vm.host_homes();
    homes[1].lose().unwrap();
    bench.must("fill", LaunchConfig::new(2, 64), (&a, 5u32));
    // So that catching up fetches every page, of which one is not available once.
    a.evict().unwrap();
    let refused = FaultPlan::new(Fault::Fail(Syndrome::LocalProtection)).opcode(Opcode::Read);
    let fault = bench.soft_nic().inject(refused);
    homes[1].restore();
    becomes_whole(&a);
    assert_eq!(bench.soft_nic().bitten(fault), 1);
    homes[0].lose().unwrap();
    compare(&a.to_vec().unwrap(), &(5..5 + N as u32).collect::<Vec<_>>()).unwrap();
}

fn stale_copies(a: &Region<u32>) -> u64 {
    a.health().unwrap().homes.iter().map(|home| home.stale_pages).sum()
}

/// Waits until both homes hold everything, though nothing asks for it.
fn becomes_whole(a: &Region<u32>) {
    let since = Instant::now();
    while !a.health().unwrap().is_whole() {
        assert!(since.elapsed() < scaled(Duration::from_secs(30)), "{:?}", a.health());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_copy_that_missed_a_write_is_repaired_though_its_home_never_went() {
    let bench = Bench::new(simulated_soft(8).host_homes(2), BASIC);
    let a = doubled_region(&bench);
    let refused = FaultPlan::new(Fault::Fail(Syndrome::RemoteOperation)).opcode(Opcode::Write);
    let fault = bench.soft_nic().inject(refused);
    bench.must("fill", LaunchConfig::new(2, 64), (&a, 5u32));
    a.evict().unwrap();
    assert_eq!(bench.soft_nic().bitten(fault), 1);
    assert_eq!(bench.vm.stats().unwrap().replicas_missed, 1);
    becomes_whole(&a);
    let homes = bench.vm.host_homes();
    for home in [0, 1] {
        homes[home].lose().unwrap();
        compare(&a.to_vec().unwrap(), &(5..5 + N as u32).collect::<Vec<_>>()).unwrap();
        homes[home].restore();
        bench.vm.catch_up().unwrap();
    }
}

#[test]
fn an_error_of_this_machine_condemns_no_copy() {
    for opcode in [Opcode::Read, Opcode::Write] {
        // With a seed nothing is recovered in the background.
        let bench = Bench::new(simulated_soft(8).host_homes(2).seed(1), BASIC);
        let a = doubled_region(&bench);
        let own = FaultPlan::new(Fault::Fail(Syndrome::LocalProtection)).opcode(opcode);
        let fault = bench.soft_nic().inject(own);
        // A page that cannot be fetched is an error of the launch; one that is not written back stays dirty.
        let filled = bench.run("fill", LaunchConfig::new(2, 64), (&a, 5u32));
        let flushed = a.flush();
        assert_eq!(bench.soft_nic().bitten(fault), 1);
        assert!(filled.is_err() || flushed.is_err() || opcode == Opcode::Write);
        assert_eq!(bench.vm.stats().unwrap().replicas_missed, 0);
        bench.must("fill", LaunchConfig::new(2, 64), (&a, 6u32));
        a.flush().unwrap();
        assert!(a.health().unwrap().is_whole());
    }
}

#[test]
fn bytes_in_a_copy_that_lacks_others_are_no_copy() {
    // With a seed nothing is recovered in the background.
    let bench = Bench::new(simulated_soft(8).host_homes(2).seed(2), BASIC);
    let a = doubled_region(&bench);
    let homes = bench.vm.host_homes();
    homes[0].lose().unwrap();
    homes[0].restore();
    bench.vm.readmit_homes().unwrap();
    homes[1].lose().unwrap();
    // Home 0 is there and holds nothing that counts; home 1 held everything.
    let message = refused(a.write(5, &[1]));
    assert!(message.contains("no valid replica of page 0"), "{message}");
    // A whole page needs nothing of what was there.
    let page: Vec<u32> = (0..PAGE_WORDS as u32).map(|i| i ^ 9).collect();
    a.write(PAGE_WORDS, &page).unwrap();
    let mut found = vec![0; PAGE_WORDS as usize];
    a.read(PAGE_WORDS, &mut found).unwrap();
    compare(&found, &page).unwrap();
}

#[test]
fn a_page_that_cannot_be_read_keeps_no_other_from_being_caught_up() {
    let bench = Bench::new(simulated_soft(8).host_homes(2).seed(3), BASIC);
    let a = doubled_region(&bench);
    let homes = bench.vm.host_homes();
    homes[1].lose().unwrap();
    homes[1].restore();
    bench.vm.readmit_homes().unwrap();
    let pages = stale_copies(&a);
    assert_eq!(pages, N.div_ceil(PAGE_WORDS));
    let unread = FaultPlan::new(Fault::Fail(Syndrome::RemoteOperation)).opcode(Opcode::Read);
    bench.soft_nic().inject(unread);
    bench.vm.catch_up().expect_err("a page that cannot be read");
    let left = stale_copies(&a);
    assert_eq!(left, 1);
}

#[test]
fn what_the_host_writes_while_a_home_is_lost_reaches_it_later() {
    let bench = Bench::new(simulated_soft(8).host_homes(2), BASIC);
    let a = doubled_region(&bench);
    let still = bench.vm.region::<u32>().name("still").replicas(2).read_only();
    let still = still.from_iter(0..N as u32).unwrap();
    let homes = bench.vm.host_homes();
    homes[1].lose().unwrap();
    let values: Vec<u32> = (0..3000).map(|i| i ^ 0xff00).collect();
    a.write(1500, &values).unwrap();
    homes[1].restore();
    bench.vm.catch_up().unwrap();
    assert!(a.health().unwrap().is_whole() && still.health().unwrap().is_whole());
    homes[0].lose().unwrap();
    let mut expected: Vec<u32> = (0..N as u32).collect();
    compare(&still.to_vec().unwrap(), &expected).unwrap();
    expected[1500..4500].copy_from_slice(&values);
    compare(&a.to_vec().unwrap(), &expected).unwrap();
}

#[test]
fn with_both_homes_lost_nothing_hangs_and_dirty_pages_are_kept() {
    let builder = simulated_soft(8)
        .host_homes(2)
        .wait_limit(scaled(Duration::from_secs(1)));
    let bench = Bench::new(builder, BASIC);
    let a = doubled_region(&bench);
    bench.must("fill", LaunchConfig::new(2, 64), (&a, 5u32));
    for home in bench.vm.host_homes() {
        home.lose().unwrap();
    }
    let since = Instant::now();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    let message = refused(bench.run("sum", LaunchConfig::new(2, 64), (&a, &sink)));
    assert!(message.contains("`doubled`") && message.contains("page"), "{message}");
    assert!(
        since.elapsed() < scaled(Duration::from_secs(30)),
        "{:?}",
        since.elapsed()
    );
    let salvaged = a.salvage().unwrap();
    assert!(
        !salvaged.is_empty(),
        "pages that could not be written back are in GPU memory still"
    );
    for page in salvaged {
        for (i, &found) in (page.first as u32..).zip(&page.elements) {
            assert_eq!(found, 5 + i);
        }
    }
    let message = refused(a.to_vec());
    assert!(message.contains("`doubled`"), "{message}");
}
