//! Regions with two replicas: either home may be lost at any time, and return with garbage, and the other then too: the
//! result is a plain array's.

mod common;
#[path = "common/program.rs"]
mod program;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU32, Ordering},
};
use std::time::{Duration, Instant};

use common::{BASIC, Bench, PAGE_WORDS, chain, compare, planted, refused, scaled, simulated_soft};
use gpuvm::{CompileOptions, HostHome, LaunchConfig, Region, Vm};
use program::{Moment, Shape, give_up, rng, run_watched, seeds, tiny};

/// A tiny program whose regions have two homes.
fn doubled(seed: u64) -> Shape {
    Shape {
        replicas: 2,
        // Those to a home that is lost.
        errors_allowed: true,
        launches: 4,
        ..tiny(seed, 1 + seed % 3)
    }
}

/// Takes a home away after so many steps of the scheduler.
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

impl gpuvm_gpu::Actor for Taker {
    fn step(&self) -> bool {
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

/// What happens to the homes of a program: one is taken in its first launch, and returns after its second one; then, once
/// it is caught up, the other one is taken for good in the third.
fn losses(seed: u64, options: &CompileOptions, taken: &mut u32) -> Result<(), String> {
    let shape = doubled(seed);
    let (first, second) = (Taker::new(seed), Taker::new(seed + 77));
    let mut watch = |vm: &Vm, moment: Moment| {
        let homes = vm.host_homes();
        let (one, other) = (&homes[(seed % 2) as usize], &homes[1 - (seed % 2) as usize]);
        match moment {
            Moment::Before(0) => {
                vm.gpu().attach(Arc::clone(&first) as Arc<dyn gpuvm_gpu::Actor>);
                let _ = first.home.set(one.clone());
            }
            Moment::After(1) => {
                first.steps.store(0, Ordering::Relaxed);
                if !one.is_lost() {
                    one.lose()?;
                }
                one.restore();
                vm.catch_up()?;
            }
            Moment::Before(2) => {
                vm.gpu().attach(Arc::clone(&second) as Arc<dyn gpuvm_gpu::Actor>);
                let _ = second.home.set(other.clone());
            }
            Moment::After(3) => {
                second.steps.store(0, Ordering::Relaxed);
                if !other.is_lost() {
                    other.lose()?;
                }
            }
            _ => {}
        }
        Ok(())
    };
    let outcome = run_watched::<u32>(shape.builder(), &mut rng(seed), &shape, options, &mut watch);
    *taken += first.taken.load(Ordering::Relaxed) + second.taken.load(Ordering::Relaxed);
    outcome.map(|_| ())
}

#[test]
fn without_a_loss_both_homes_hold_everything() {
    for seed in seeds(0, 12) {
        let shape = doubled(seed);
        let mut watch = |vm: &Vm, moment: Moment| match moment {
            // Whichever home the results are read from at the end, they are right.
            Moment::After(3) => vm.host_homes()[(seed % 2) as usize].lose().map_err(Into::into),
            _ => Ok(()),
        };
        let stock = CompileOptions::default();
        if let Err(wrong) = run_watched::<u32>(shape.builder(), &mut rng(seed), &shape, &stock, &mut watch) {
            give_up(
                "replicas",
                "without_a_loss_both_homes_hold_everything",
                seed,
                &shape,
                &wrong,
            );
        }
    }
}

#[test]
fn homes_are_lost_and_return_at_any_time() {
    let (mut taken, mut runs) = (0, 0);
    for seed in seeds(1000, 24) {
        runs += 1;
        if let Err(wrong) = losses(seed, &CompileOptions::default(), &mut taken) {
            give_up(
                "replicas",
                "homes_are_lost_and_return_at_any_time",
                seed,
                &doubled(seed),
                &wrong,
            );
        }
    }
    println!("{taken} losses within launches of {runs} programs");
    assert!(taken >= runs / 2, "homes are lost while kernels run: {taken} of {runs}");
}

#[test]
fn a_write_back_that_ends_with_its_first_write_is_found() {
    let early = "if (next & (layout::JOIN_REPEAT - 1)) return kNotLast;";
    let bug = planted("gpuvm/detail/replica.cuh", early, "");
    let wrong = (0..20).find(|&seed| losses(seed, &bug, &mut 0).is_err());
    let seed = wrong.expect("one of 20 programs shows the bug");
    losses(seed, &CompileOptions::default(), &mut 0).expect("the library as it is");
}

/// Pages of the regions of the tests without a seed.
const PAGES: u64 = 40;
const N: u64 = PAGES * PAGE_WORDS - 100;

fn doubled_region(bench: &Bench) -> Region<u32> {
    let region = bench.vm.region::<u32>(N).name("doubled").replicas(2);
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
            .unwrap_or_else(|error| panic!("turn {turn}: {}", chain(&error)));
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
    assert!(stats.replicas_missed > 0 && stats.replicas_missed == stats.replicas_mended);
    bench.no_violations();
}

#[test]
fn what_the_host_writes_while_a_home_is_lost_reaches_it_later() {
    let bench = Bench::new(simulated_soft(8).host_homes(2), BASIC);
    let a = doubled_region(&bench);
    let still = bench.vm.region::<u32>(N).name("still").replicas(2).read_only();
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
        "pages that could not go home are in GPU memory still"
    );
    for page in salvaged {
        for (i, &found) in (page.first as u32..).zip(&page.elements) {
            assert_eq!(found, 5 + i);
        }
    }
    let message = refused(a.to_vec());
    assert!(message.contains("`doubled`"), "{message}");
}
