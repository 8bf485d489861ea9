//! Tenants that are killed at any instant, and many at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuvm_tenants::{Tenant, tenants};
use rand::{RngExt, SeedableRng};

use crate::child::{Process, ask};
use crate::pool::Pool;
use crate::{HANG, MIB, Registry, ends, terms};

const KILLS: u32 = 100;

/// `GPUVM_TEST_SEED` repeats a run, as far as processes can be.
fn seed() -> u64 {
    let given = std::env::var("GPUVM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or(1);
    eprintln!("seed {seed}");
    seed
}

/// Four that ask each other without end; one after the other is killed in the middle of it. Those who stay get answers,
/// and nothing is left of the dead.
#[test]
fn a_hundred_kills_leave_no_one_waiting_and_nothing_behind() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed());
    let registry = Registry::new();
    let mut start = |priority: i8| {
        let mut process = Process::start(&registry, 16 * MIB, terms(MIB, None, priority));
        process.tell(&format!("ask-forever {}", MIB / 4));
        process
    };
    let mut processes: Vec<Process> = (0..4).map(&mut start).collect();
    let pool = Arc::new(Pool::new(16 * MIB, 0));
    let tenant = Tenant::join(
        &registry.folder,
        &registry.gpu,
        terms(2 * MIB, None, 1),
        Arc::clone(&pool) as _,
    );
    let tenant = Arc::new(tenant.unwrap());
    for kill in 0..KILLS {
        std::thread::sleep(Duration::from_micros(rng.random_range(0..20_000)));
        let victim = rng.random_range(0..processes.len());
        processes[victim].kill();
        let (asker, held) = (Arc::clone(&tenant), Arc::clone(&pool));
        ends(&format!("kill {kill}"), move || ask(&asker, &held, MIB / 4));
        assert!(pool.frames() >= 2 * MIB, "below the minimum");
        let gone = processes[victim].pid();
        assert!(!registry.pids().contains(&gone), "pid {gone} is dead");
        processes[victim] = start((kill % 4) as i8);
    }
    for process in &mut processes {
        process.kill();
    }
    assert_eq!(registry.pids(), [std::process::id()]);
    ends("leaving", move || drop(tenant));
    assert_eq!(registry.files(), [""; 0]);
}

/// Killed while it joins: whatever it has left is not listed, and goes with the next look.
#[test]
fn a_kill_while_joining_leaves_nothing_for_long() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed());
    let registry = Registry::new();
    let own = Tenant::join(
        &registry.folder,
        &registry.gpu,
        terms(0, None, 0),
        Arc::new(Pool::default()),
    )
    .unwrap();
    // How long joining takes here.
    let started = Instant::now();
    Process::start(&registry, 0, terms(0, None, 0)).leave();
    let most = started.elapsed().as_micros().min(HANG.as_micros()) as u64;
    for _ in 0..50 {
        let mut process = Process::start_unheard(&registry, 0, terms(0, None, 0));
        std::thread::sleep(Duration::from_micros(rng.random_range(0..=most)));
        process.kill();
        assert_eq!(registry.pids(), [std::process::id()]);
        assert_eq!(registry.files().len(), 2, "{:?}", registry.files());
    }
    drop(own);
    assert_eq!(registry.files(), [""; 0]);
}

#[test]
fn fifty_tenants_find_each_other() {
    const COUNT: usize = 50;
    let registry = Registry::new();
    let processes: Vec<Process> = (0..COUNT)
        .map(|_| Process::start_unheard(&registry, MIB, terms(0, None, -1)))
        .collect();
    for process in &processes {
        assert_eq!(process.hear(), "ready");
    }
    let mut pids: Vec<u32> = processes.iter().map(Process::pid).collect();
    pids.sort_unstable();
    // Where the machine has no time for them all, the next look finds them.
    crate::eventually("all of them answer", || {
        let mut found = registry.pids();
        found.sort_unstable();
        found == pids
    });
    let pool = Arc::new(Pool::default());
    let tenant = Tenant::join(
        &registry.folder,
        &registry.gpu,
        terms(0, None, 0),
        Arc::clone(&pool) as _,
    )
    .unwrap();
    let bytes = COUNT as u64 * MIB / 2;
    // One that has no time to answer is not asked.
    let outcome = ask(&tenant, &pool, bytes);
    assert!(outcome.starts_with("granted by "), "{outcome}");
    drop(processes);
    let peers = tenants(&registry.folder, &registry.gpu.key).unwrap();
    assert_eq!(peers.len(), 1, "{peers:?}");
    assert_eq!(registry.files().len(), 2);
}
