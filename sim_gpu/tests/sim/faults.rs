//! Kernels that go wrong end their launch with an error; the process and other launches go on.

use std::time::{Duration, Instant};

use crate::common::{LIMIT, bed};
use gpuvm_gpu::{Gpu, GpuError, LaunchConfig, Simulation, Watch};

const KERNELS: &str = r#"
#include <assert.h>
__device__ int deep(int n, volatile int* p) {
    volatile int frame[256];
    for (int i = 0; i < 256; ++i) frame[i] = n + i;
    if (n == *p) return 1;
    return deep(n + 1, p) + frame[n % 256];
}
__global__ void wild(unsigned* p) { if (blockIdx.x == 3 && threadIdx.x == 17) *(volatile unsigned*)0x10 = 1; p[0] = 1; }
__global__ void overflow(int* p) { if (threadIdx.x == 5) p[1] = deep(0, p); }
__global__ void big_frame(int* p) { volatile char frame[100000]; frame[p[0]] = 1; p[1] = frame[0]; }
__global__ void too_big_frame(int* p) { volatile char frame[1000000]; frame[p[0]] = 1; p[1] = frame[0]; }
__global__ void divide(int* p) { p[1] = threadIdx.x / p[0]; }
__global__ void asserts(int* p) {
    if (threadIdx.x == 33) assert(p[0] == 42 && "a reason");
}
__global__ void traps(int*) { if (threadIdx.x == 7 && threadIdx.y == 1) __trap(); __syncthreads(); }
__global__ void fine(unsigned* out) { atomicAdd(out, 1); }
__global__ void deadlock(unsigned*) {
    if (threadIdx.x < 32) __syncthreads();
    else if (threadIdx.x == 32) __syncwarp(3); else if (threadIdx.x == 33) __syncthreads();
}
__global__ void spin(unsigned* p) {
    gpuvm_sim::wait_note(7, 11, 13);
    while (*(volatile unsigned*)p == 0) __nanosleep(1000);
}
__global__ void hard_spin(unsigned* p) { while (*(volatile unsigned*)p == 0) {} }
"#;

const NAMES: &[&str] = &[
    "wild",
    "overflow",
    "big_frame",
    "too_big_frame",
    "divide",
    "asserts",
    "traps",
    "fine",
    "deadlock",
    "spin",
    "hard_spin",
];

#[test]
fn faults_name_kernel_block_thread_and_address() {
    let bed = bed(KERNELS, NAMES);
    let memory = bed.words(16);
    let p = memory.addr().to_ne_bytes();
    let config = LaunchConfig::linear(8, 64);
    match bed.error("wild", &config, &[&p]) {
        GpuError::KernelFault {
            kernel,
            block: [3, 0, 0],
            thread: [17, 0, 0],
            address: 0x10,
            what,
        } => {
            assert_eq!((kernel.as_str(), what.as_str()), ("wild", "invalid memory access"));
        }
        other => panic!("{other}"),
    }
    let what = |name: &str| match bed.error(name, &LaunchConfig::linear(1, 32), &[&p]) {
        GpuError::KernelFault { what, thread, .. } => (what, thread),
        other => panic!("{name}: {other}"),
    };
    bed.set(&memory, u32::MAX);
    assert_eq!(what("overflow"), ("stack overflow".to_owned(), [5, 0, 0]));
    bed.set(&memory, 50_000);
    assert_eq!(what("too_big_frame").0, "stack overflow");
    bed.outcome("big_frame", &LaunchConfig::linear(1, 32), &[&p])
        .expect("100,000 bytes of stack are there");
    bed.set(&memory, 0);
    if cfg!(target_arch = "aarch64") {
        // No fault there: the quotient is 0.
        assert_eq!(bed.run("divide", &LaunchConfig::linear(1, 32), 2, &[])[1], 0);
    } else {
        assert_eq!(what("divide").0, "integer division by zero");
    }
    // The GPU still works.
    assert_eq!(bed.run("fine", &LaunchConfig::linear(10, 64), 1, &[]), vec![640]);
}

#[test]
fn asserts_and_traps_are_launch_errors() {
    let bed = bed(KERNELS, NAMES);
    let memory = bed.words(16);
    let p = memory.addr().to_ne_bytes();
    match bed.error("asserts", &LaunchConfig::linear(2, 64), &[&p]) {
        GpuError::Assert {
            expression,
            file,
            line,
            thread: [33, 0, 0],
            ..
        } => {
            assert_eq!(expression, "p[0] == 42 && \"a reason\"");
            assert_eq!((file.as_str(), line), ("test.cu", 15));
        }
        other => panic!("{other}"),
    }
    let config = LaunchConfig {
        grid: [1, 1, 1],
        block: [16, 2, 1],
        dynamic_shared_bytes: 0,
        watch: Watch::default(),
    };
    match bed.error("traps", &config, &[&p]) {
        GpuError::Trap { thread: [7, 1, 0], .. } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn deadlocks_are_found_at_once_and_reported_by_lane() {
    let bed = bed(KERNELS, NAMES);
    let began = Instant::now();
    let error = bed.error("deadlock", &LaunchConfig::linear(1, 34), &[&[0; 8]]);
    let GpuError::Deadlock { report, .. } = &error else {
        panic!("{error}")
    };
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(
        report.contains("33 threads") && report.contains("33 of 34 live threads"),
        "{report}"
    );
    assert!(
        report.contains("lane 0") && report.contains("__syncwarp") && report.contains("waits for lane 1"),
        "{report}"
    );
}

#[test]
fn deadlines_report_wait_notes() {
    let bed = bed(KERNELS, NAMES);
    bed.gpu.set_note_formatter(std::sync::Arc::new(|code, a, b| {
        format!("waits for page {code}.{a}.{b}")
    }));
    let memory = bed.words(1);
    let config = LaunchConfig::linear(200, 64).deadline(Duration::from_millis(100));
    for (name, words) in [
        ("spin", "waits for page 7.11.13"),
        ("hard_spin", "running or polling memory"),
    ] {
        let began = Instant::now();
        let error = bed.error(name, &config, &[&memory.addr().to_ne_bytes()]);
        let GpuError::Deadline { report, limit, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(*limit, Duration::from_millis(100));
        assert!(report.contains(words) && report.contains("0 of 200 blocks"), "{report}");
        assert!(report.len() < 4096 && began.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(bed.run("fine", &LaunchConfig::linear(1, 1), 1, &[]), vec![1]);
}

#[test]
fn a_fault_leaves_other_launches_alone() {
    let bed = bed(KERNELS, NAMES);
    let (flag, out) = (bed.words(1), bed.words(1));
    let other = bed.gpu.stream().expect("a stream");
    let spinning = bed.start_on(
        &other,
        "spin",
        &LaunchConfig::linear(4, 32),
        &[&flag.addr().to_ne_bytes()],
    );
    let queued = bed.start_on(
        &other,
        "fine",
        &LaunchConfig::linear(4, 32),
        &[&out.addr().to_ne_bytes()],
    );
    for _ in 0..5 {
        let error = bed.error("wild", &LaunchConfig::linear(8, 64), &[&out.addr().to_ne_bytes()]);
        assert!(matches!(error, GpuError::KernelFault { .. }), "{error}");
    }
    assert!(!spinning.is_done() && !queued.is_done());
    bed.set(&flag, 1);
    spinning.wait(Some(LIMIT)).expect("in time").expect("unharmed");
    queued.wait(Some(LIMIT)).expect("in time").expect("unharmed");
}

#[test]
fn abandoned_and_dropped_launches_end() {
    let bed = bed(KERNELS, NAMES);
    let flag = bed.words(1);
    let arg = flag.addr().to_ne_bytes();
    for name in ["spin", "hard_spin"] {
        let launch = bed.start(name, &LaunchConfig::linear(64, 128), &[&arg]);
        let behind = bed.start("fine", &LaunchConfig::linear(1, 1), &[&arg]);
        assert!(launch.wait(Some(Duration::from_millis(20))).is_none());
        launch.abandon();
        let outcome = launch.wait(Some(LIMIT)).expect("in time");
        assert!(matches!(outcome, Err(GpuError::Abandoned { .. })), "{outcome:?}");
        behind.wait(Some(LIMIT)).expect("in time").expect("the stream goes on");
        bed.set(&flag, 0);
    }
    // Everything dropped while a kernel runs and another waits.
    let running = bed.start("hard_spin", &LaunchConfig::linear(64, 128), &[&arg]);
    let queued = bed.start("fine", &LaunchConfig::linear(1, 1), &[&arg]);
    std::thread::sleep(Duration::from_millis(20));
    drop(bed);
    for launch in [running, queued] {
        let outcome = launch.wait(Some(LIMIT)).expect("in time");
        assert!(matches!(outcome, Err(GpuError::Abandoned { .. })), "{outcome:?}");
    }
}
