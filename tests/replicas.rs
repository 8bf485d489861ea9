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

use common::{BASIC, Bench, PAGE_WORDS, chain, planted, refused, simulated_soft};
use gpuvm::{CompileOptions, HostHome, LaunchConfig, Vm};
use program::{Moment, Shape, give_up, rng, run, run_watched, seeds, tiny};

/// A tiny program whose regions have two homes.
fn doubled(seed: u64) -> Shape {
    Shape {
        replicas: 2,
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
    let told = |error: gpuvm::Error| chain(&error);
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
                    one.lose().map_err(told)?;
                }
                one.restore();
                vm.catch_up().map_err(told)?;
            }
            Moment::Before(2) => {
                vm.gpu().attach(Arc::clone(&second) as Arc<dyn gpuvm_gpu::Actor>);
                let _ = second.home.set(other.clone());
            }
            Moment::After(3) => {
                second.steps.store(0, Ordering::Relaxed);
                if !other.is_lost() {
                    other.lose().map_err(told)?;
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
            Moment::After(3) => vm.host_homes()[(seed % 2) as usize].lose().map_err(|e| chain(&e)),
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

/// Whether one of `most` programs with losses goes wrong with the bug.
fn found(header: &str, from: &str, to: &str, most: u64) {
    let bug = planted(header, from, to);
    let wrong = (0..most).find_map(|seed| losses(seed, &bug, &mut 0).err().map(|wrong| (seed, wrong)));
    let (seed, wrong) = wrong.unwrap_or_else(|| panic!("none of {most} programs shows the bug"));
    println!("found by seed {seed}: {wrong}");
    losses(seed, &CompileOptions::default(), &mut 0).expect("the library as it is");
}

const REPLICA: &str = "gpuvm/detail/replica.cuh";

#[test]
fn a_stale_copy_that_is_read_is_found() {
    found(
        REPLICA,
        "if (!is_stale(vm, way) && !all_queues_gone(vm, way)) return way;",
        "if (!all_queues_gone(vm, way)) return way;",
        20,
    );
}

#[test]
fn a_lost_home_that_is_not_marked_is_found() {
    found(
        REPLICA,
        "if (lost >> n & 1) set_stale(vm, at_replica(owner, n));",
        "",
        40,
    );
}

#[test]
fn a_write_back_that_ends_with_its_first_write_is_found() {
    found(
        REPLICA,
        "if (next & (layout::JOIN_REPEAT - 1)) return kNotLast;",
        "",
        60,
    );
}
