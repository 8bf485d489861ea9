//! The seeded mode: one seed, one interleaving, in every process.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{Bed, LIMIT, seeded};
use gpuvm_gpu::{Actor, Gpu, GpuError, LaunchConfig, Simulation};

const KERNELS: &str = r#"
// Lost updates: how many depends on the interleaving alone.
__global__ void racy(unsigned* out) {
    for (int i = 0; i < 20; ++i) { unsigned v = out[0]; out[0] = v + 1; if (i % 5 == 0) __nanosleep(50); }
    atomicAdd(out + 1, 1);
}
__global__ void mixed(unsigned* out) {
    __shared__ unsigned tile[64];
    unsigned t = threadIdx.x;
    tile[t] = t;
    __syncthreads();
    unsigned active, same = gpuvm_sim::match_active(t % 4, &active);
    unsigned ok = (active >> t % 32 & 1) && (same >> t % 32 & 1) && !(same & ~active);
    atomicAdd(out, ok && tile[63 - t] == 63 - t);
    atomicAdd(out + 1, __popc(active) == 1);
    atomicAdd(out + 2, __popc(active) > 1);
    unsigned sum = __reduce_add_sync(~0u, t);
    if (sum != (t < 32 ? 496 : 1520)) atomicAdd(out + 3, 1);
}
__global__ void wait(unsigned* out) {
    unsigned long long start = gpuvm_sim::globaltimer();
    while (*(volatile unsigned*)out == 0 && gpuvm_sim::globaltimer() - start < 1000000000ull) __nanosleep(1000);
    if (threadIdx.x == 0) out[1] = gpuvm_sim::globaltimer() - start >= 1000000000ull ? 2 : 1;
}
__global__ void spin(unsigned* out) { while (*(volatile unsigned*)out == 0) {} }
__global__ void set(unsigned* out) { *(volatile unsigned*)out = 1; }
__global__ void stuck(unsigned* out) { if (threadIdx.x) __syncthreads(); else __syncwarp(2); }
__global__ void wild(unsigned* out) { if (threadIdx.x == 5) out[1ull << 45] = 1; }
"#;
const NAMES: &[&str] = &["racy", "mixed", "wait", "spin", "set", "stuck", "wild"];

fn bed(seed: u64) -> Bed {
    seeded(seed, KERNELS, NAMES)
}

/// Result and trace of the racy kernels under a seed.
fn fingerprint(seed: u64) -> (Vec<u32>, u64) {
    let bed = bed(seed);
    let out = bed.run("racy", &LaunchConfig::linear(3, 48), 2, &[]);
    assert_eq!(out[1], 144);
    let mixed = bed.run("mixed", &LaunchConfig::linear(4, 64), 4, &[]);
    assert_eq!((mixed[0], mixed[3]), (256, 0));
    let trace = bed.gpu.trace_hash();
    ([out, mixed].concat(), trace)
}

#[test]
fn one_seed_is_one_interleaving_and_others_differ() {
    let runs: Vec<_> = (0..6).map(fingerprint).collect();
    for (seed, run) in runs.iter().enumerate() {
        assert_eq!(*run, fingerprint(seed as u64), "seed {seed}");
    }
    assert_eq!(
        runs.iter().map(|(_, trace)| trace).collect::<BTreeSet<_>>().len(),
        6,
        "{runs:?}"
    );
    assert!(
        runs.iter().map(|(out, _)| out[0]).collect::<BTreeSet<_>>().len() > 1,
        "races come out differently: {runs:?}"
    );
    // A schedule of few switches may lose none.
    let lossy = runs.iter().filter(|(out, _)| out[0] < 2880).count();
    assert!(lossy >= 4, "updates are lost: {runs:?}");
    let (alone, together): (u32, u32) = runs.iter().fold((0, 0), |(a, t), (out, _)| (a + out[3], t + out[4]));
    assert!(
        alone > 0 && together > 0,
        "active masks are drawn: {alone} alone, {together} in groups"
    );
}

/// Set for the process that `another_process_agrees` starts.
const CHILD: &str = "GPUVM_TEST_SEEDED_CHILD";

#[test]
fn another_process_agrees() {
    if std::env::var_os(CHILD).is_some() {
        println!("fingerprint {:?}", fingerprint(77));
        return;
    }
    let own = format!("fingerprint {:?}", fingerprint(77));
    for _ in 0..2 {
        let output = Command::new(std::env::current_exe().expect("this test's file"))
            .args(["--exact", "seeded::another_process_agrees", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&own), "{own} is not in\n{text}");
    }
}

struct Setter {
    steps: AtomicU64,
    flag: u64,
}

impl Actor for Setter {
    fn step(&self, _now_ns: u64) -> bool {
        // The 1000th step raises the flag that lanes wait for.
        if self.steps.fetch_add(1, Ordering::SeqCst) == 1000 {
            // SAFETY: the flag's memory outlives the launch that the test waits for; lanes read it on this thread.
            unsafe { (self.flag as *mut u32).write_volatile(1) };
            return true;
        }
        false
    }
}

#[test]
fn actors_are_stepped_and_time_is_virtual() {
    let run = |with_actor: bool| {
        let bed = bed(5);
        let out = bed.words(2);
        if with_actor {
            bed.gpu.attach(Arc::new(Setter {
                steps: AtomicU64::new(0),
                flag: out.addr(),
            }));
        }
        let report = bed
            .outcome("wait", &LaunchConfig::linear(1, 32), &[&out.addr().to_ne_bytes()])
            .expect("it ends");
        (bed.read(&out, 2)[1], report.elapsed(), report.trace_hash)
    };
    let (flagged, elapsed, trace) = run(true);
    assert_eq!(flagged, 1);
    assert_eq!((flagged, elapsed, trace), run(true));
    let (timed_out, elapsed, _) = run(false);
    assert_eq!(timed_out, 2);
    assert!(elapsed >= Duration::from_secs(1), "one virtual second, {elapsed:?}");
}

#[test]
fn launches_interleave_and_spin_loops_end() {
    let bed = bed(9);
    let out = bed.words(1);
    let arg = out.addr().to_ne_bytes();
    let other = bed.gpu.stream().expect("a stream");
    let spin = bed.start("spin", &LaunchConfig::linear(2, 32), &[&arg]);
    let set = bed.start_on(&other, "set", &LaunchConfig::linear(1, 1), &[&arg]);
    assert!(!spin.is_done() && !set.is_done(), "nothing runs before somebody waits");
    spin.wait(Some(LIMIT)).expect("in time").expect("it ends");
    set.wait(Some(LIMIT)).expect("in time").expect("it ends");
}

#[test]
fn errors_come_out_as_in_the_fast_mode() {
    let bed = bed(3);
    let out = bed.words(4);
    let arg = out.addr().to_ne_bytes();
    let error = bed.error("stuck", &LaunchConfig::linear(1, 32), &[&arg]);
    assert!(
        matches!(error, GpuError::Deadlock { .. } | GpuError::Collective { .. }),
        "{error}"
    );
    let error = bed.error("wild", &LaunchConfig::linear(1, 32), &[&arg]);
    assert!(
        matches!(error, GpuError::KernelFault { thread: [5, 0, 0], .. }),
        "{error}"
    );
    let error = bed.error(
        "spin",
        &LaunchConfig::linear(1, 32).deadline(Duration::from_millis(50)),
        &[&arg],
    );
    assert!(matches!(error, GpuError::Deadline { .. }), "{error}");
    assert!(
        bed.gpu
            .compiler_description()
            .expect("a compiler")
            .contains("-fsanitize=thread")
    );
    assert!(bed.gpu.capabilities().deterministic);
    // Dropped with a launch that never ran and one in the middle.
    let launch = bed.start("spin", &LaunchConfig::linear(2, 32), &[&arg]);
    assert!(launch.wait(Some(Duration::from_millis(50))).is_none());
    let queued = bed.start("spin", &LaunchConfig::linear(2, 32), &[&arg]);
    drop(bed);
    for launch in [launch, queued] {
        assert!(matches!(
            launch.wait(Some(LIMIT)),
            Some(Err(GpuError::Abandoned { .. }))
        ));
    }
}
