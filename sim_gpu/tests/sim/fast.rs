//! The fast mode: shared memory, scheduling, preemption, launches beside each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{LIMIT, bed, bed_on, builder};
use gpuvm_gpu::{Gpu, GpuError, LaunchConfig, Simulation, Watch};
use gpuvm_sim_gpu::Preemption;

#[test]
fn resident_blocks_do_not_share_shared_memory() {
    let bed = bed_on(
        builder().workers(1),
        r#"
template <int N> __device__ unsigned* scratch() { __shared__ unsigned words[N]; return words; }
static __shared__ unsigned at_file_scope[4];
__global__ void isolated(unsigned* out) {
    __shared__ unsigned tile[64];
    unsigned* other = scratch<64>();
    tile[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;
    other[threadIdx.x] = ~tile[threadIdx.x];
    if (threadIdx.x < 4) at_file_scope[threadIdx.x] = blockIdx.x;
    // Blocks take turns while each waits for its own threads and for time.
    for (int turn = 0; turn < 20; ++turn) {
        if (threadIdx.x % 7 == turn % 7) __nanosleep(6000);
        __syncthreads();
        unsigned from = (threadIdx.x + turn) % 64;
        if (tile[from] != blockIdx.x * 1000 + from || other[from] != ~tile[from]) atomicAdd(out, 1);
        if (at_file_scope[turn % 4] != blockIdx.x) atomicAdd(out, 1);
    }
    if (threadIdx.x == 0) atomicAdd(out + 1, 1);
}
"#,
        &["isolated"],
    );
    assert_eq!(bed.run("isolated", &LaunchConfig::linear(60, 64), 2, &[]), vec![0, 60]);
}

#[test]
fn dynamic_shared_memory_is_declared_as_in_cuda() {
    let bed = bed(
        r#"
extern __shared__ float at_file_scope[];
namespace inner { extern __shared__ __align__(16) unsigned char bytes[]; }
/* extern __shared__ int commented[]; */ // extern __shared__ int too[];
static const char* text = "extern __shared__ int literal[];";
__device__ float from_helper(unsigned i) { return at_file_scope[i]; }
__global__ void one(unsigned* out) {
    extern __shared__ __align__(16) unsigned words[];
    words[threadIdx.x] = threadIdx.x * 3;
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = words[blockDim.x - 1 - threadIdx.x];
}
template <class T> __global__ void other(unsigned* out) {
    extern __shared__
        T rows[][4];
    rows[threadIdx.x][3] = T(threadIdx.x);
    __syncthreads();
    unsigned i = (threadIdx.x + 1) % blockDim.x;
    T* flat = &rows[0][0];
    unsigned char* raw = inner::bytes;
    out[threadIdx.x] = flat[i * 4 + 3] == T(i) && from_helper(i * 4 + 3) == float(i) &&
                       (void*)raw == (void*)flat && text[0] == 'e';
}
"#,
        &["one", "other<float>"],
    );
    let out = bed.run("one", &LaunchConfig::linear(50, 64).dynamic_shared(256), 3200, &[]);
    assert!(out.iter().enumerate().all(|(i, &v)| v == (63 - i as u32 % 64) * 3));
    assert_eq!(
        bed.run(
            "other<float>",
            &LaunchConfig::linear(1, 32).dynamic_shared(512),
            32,
            &[]
        ),
        vec![1; 32]
    );
    let too_much = LaunchConfig::linear(1, 32).dynamic_shared(1 << 20);
    let refused = bed
        .stream
        .launch(&bed.kernel("one"), &too_much, &[&[0; 8]], 0, Box::new(|_| ()));
    assert!(matches!(refused, Err(GpuError::LaunchConfig { .. })));
}

const SPIN: &str = r#"
__global__ void by_block(unsigned* flag) {
    if (blockIdx.x != gridDim.x - 1) { while (*(volatile unsigned*)flag == 0) {} }
    else { *(volatile unsigned*)flag = 1; }
}
__global__ void by_warp(unsigned* flag) {
    if (threadIdx.x / 32 == 0) { while (__all_sync(~0u, *(volatile unsigned*)flag == 0)) {} }
    else if (threadIdx.x / 32 == 1) { while (*(volatile unsigned*)(flag + 1) == 0) __syncwarp(1u << threadIdx.x % 32); }
    else if (threadIdx.x / 32 == 2) { while (*(volatile unsigned*)(flag + 2) == 0) __activemask(); }
    else { flag[0] = flag[1] = flag[2] = 1; }
}
__global__ void by_lane(unsigned* flag) {
    if (threadIdx.x == 0) { while (*(volatile unsigned*)flag == 0) {} } else if (threadIdx.x == 31) *(volatile unsigned*)flag = 1;
}
// A checksum over integer, floating point and flags, with neighbours that spin, so that every lane is preempted many times.
__global__ void registers(unsigned* out, unsigned turns) {
    unsigned a = threadIdx.x + 1, b = 7, c = 11, d = 13, e = 17, f = 19, g = 23, h = 29;
    double x = 1.0 + threadIdx.x, y = 2.0, z = 0.5, w = 0.25;
    float p = 1.5f, q = 2.5f;
    unsigned long long carry = 1;
    for (unsigned i = 0; i < turns; ++i) {
        a = a * 1664525u + b; b = (b << 7 | b >> 25) ^ c; c += d ^ a; d = d * 5 + e; e ^= f + i; f = f * 3 + g; g += h; h ^= a;
        x = x * 0.999 + y * 0.001; y = y * 0.998 + z; z = z * 0.9 + w * x * 0.001; w = w * 0.5 + 0.1;
        p = p * 0.75f + q * 0.125f; q = q * 0.5f + 1.0f;
        carry = __builtin_add_overflow(carry, ~0ull - a, &carry) ? carry + 1 : carry ^ b;
    }
    double s = x + y + z + w + p + q;
    out[blockIdx.x * blockDim.x + threadIdx.x] =
        a ^ b ^ c ^ d ^ e ^ f ^ g ^ h ^ (unsigned)carry ^ (unsigned)(carry >> 32) ^ (unsigned)(__double_as_longlong(s) >> 20);
}
"#;
const SPIN_NAMES: &[&str] = &["by_block", "by_warp", "by_lane", "registers"];

#[test]
fn spin_loops_do_not_hold_a_worker() {
    for preemption in [Preemption::Signal, Preemption::Counter] {
        let bed = bed_on(builder().workers(1).preemption(preemption), SPIN, SPIN_NAMES);
        bed.run("by_block", &LaunchConfig::linear(20, 1), 4, &[]);
        bed.run("by_warp", &LaunchConfig::linear(1, 128), 4, &[]);
        bed.run("by_lane", &LaunchConfig::linear(1, 32), 4, &[]);
    }
}

#[test]
#[cfg_attr(
    target_arch = "aarch64",
    ignore = "kernels count basic blocks there: nothing interrupts them"
)]
fn preemption_keeps_registers() {
    let turns = 1_500_000u32.to_ne_bytes();
    let calm = bed_on(
        builder().workers(1).preempt_after(Duration::from_secs(3600)),
        SPIN,
        SPIN_NAMES,
    );
    let expected = calm.run("registers", &LaunchConfig::linear(2, 16), 32, &[&turns]);
    assert_eq!(calm.gpu.preemptions(), 0);
    let bed = bed_on(builder().workers(1).preempt_after(Duration::ZERO), SPIN, SPIN_NAMES);
    assert_eq!(
        bed.run("registers", &LaunchConfig::linear(2, 16), 32, &[&turns]),
        expected
    );
    assert!(
        bed.gpu.preemptions() >= 10,
        "only {} preemptions",
        bed.gpu.preemptions()
    );
}

#[test]
fn a_million_tiny_blocks() {
    let bed = bed(
        "__global__ void count(unsigned* out) { atomicAdd(out + (blockIdx.x + blockIdx.y * gridDim.x) % 64, 1 + blockIdx.z); }",
        &["count"],
    );
    let config = LaunchConfig {
        grid: [1000, 500, 2],
        block: [1, 1, 1],
        dynamic_shared_bytes: 0,
        watch: Watch {
            deadline: Some(LIMIT),
            ..Watch::default()
        },
    };
    let out = bed.run("count", &config, 64, &[]);
    assert_eq!(out.iter().sum::<u32>(), 1_500_000);
}

#[test]
fn launches_of_different_streams_run_beside_each_other() {
    let bed = bed_on(
        builder().workers(1),
        r#"
// Each waits for the other, and the first is a grid larger than what is resident.
__global__ void ping(unsigned* p) { atomicAdd(p, 1); while (*(volatile unsigned*)(p + 1) == 0) __nanosleep(500); }
__global__ void pong(unsigned* p) { while (*(volatile unsigned*)p < 64) __nanosleep(500); *(volatile unsigned*)(p + 1) = 1; }
__global__ void add(unsigned* p, unsigned n) { if (*p == n) *p = n + 1; }
"#,
        &["ping", "pong", "add"],
    );
    let p = bed.words(2);
    let arg = p.addr().to_ne_bytes();
    let other = bed.gpu.stream().expect("a stream");
    let ping = bed.start("ping", &LaunchConfig::linear(200, 64), &[&arg]);
    let pong = bed.start_on(&other, "pong", &LaunchConfig::linear(1, 32), &[&arg]);
    for launch in [ping, pong] {
        launch.wait(Some(LIMIT)).expect("in time").expect("both end");
    }
    // One stream keeps order.
    let p = bed.words(1);
    for n in 0..200u32 {
        bed.start(
            "add",
            &LaunchConfig::linear(1, 1),
            &[&p.addr().to_ne_bytes(), &n.to_ne_bytes()],
        );
    }
    bed.stream.synchronize().expect("all end");
    assert_eq!(bed.read(&p, 1), vec![200]);
}

#[test]
fn registers_of_devices_are_watched() {
    let bed = bed(
        r#"
__global__ void ring(unsigned long long* doorbell) {
    gpuvm_sim::mmio_store64(doorbell + threadIdx.x, 1000ull + threadIdx.x);
}
"#,
        &["ring"],
    );
    let page = bed.gpu.allocate_host(4096).expect("host memory");
    let seen = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&seen);
    let base = page.device_addr();
    let on_store = move |address: u64| {
        counter.fetch_add(address - base, Ordering::SeqCst);
    };
    bed.gpu.watch_stores(&[(base, 2048)], Arc::new(on_store));
    let (done, arg) = (Arc::new(AtomicU64::new(0)), base.to_ne_bytes());
    let flag = Arc::clone(&done);
    let callback = Box::new(move |outcome: &gpuvm_gpu::LaunchOutcome| {
        flag.store(1 + u64::from(outcome.is_ok()), Ordering::SeqCst)
    });
    let launch = bed
        .stream
        .launch(&bed.kernel("ring"), &LaunchConfig::linear(1, 32), &[&arg], 0, callback);
    launch
        .expect("a launch")
        .wait(Some(LIMIT))
        .expect("in time")
        .expect("it ends well");
    assert_eq!(done.load(Ordering::SeqCst), 2, "on_done came before wait returned");
    assert_eq!(seen.load(Ordering::SeqCst), (0..32).map(|i| i * 8).sum::<u64>());
    let mut value = [0; 8];
    bed.gpu.read(base + 8 * 31, &mut value).expect("live memory");
    assert_eq!(u64::from_ne_bytes(value), 1031);
}

#[test]
fn atomics_and_intrinsics() {
    let bed = bed(
        r#"
__global__ void atomics(unsigned* out) {
    atomicAdd(out + 0, 2u); atomicSub(out + 1, 1u); atomicMax(out + 2, threadIdx.x); atomicOr(out + 3, 1u << threadIdx.x % 32);
    atomicXor_system(out + 4, threadIdx.x); atomicInc(out + 5, 9); atomicAdd((float*)out + 6, 0.5f);
    atomicAdd((double*)(out + 8), 0.25); atomicAdd_block((unsigned long long*)(out + 10), 1ull << 32);
    unsigned seen = out[12], next;
    do { next = seen; seen = atomicCAS(out + 12, next, next + 3); } while (seen != next);
    atomicMin((int*)out + 13, -(int)threadIdx.x); atomicExch(out + 14, 5u); atomicDec(out + 15, 100);
}
__global__ void intrinsics(unsigned* out) {
    unsigned r = 0;
    r |= (__popc(0xf0f0) == 8 && __popcll(~0ull) == 64) << 0;
    r |= (__clz(1) == 31 && __clz(0) == 32 && __clzll(1) == 63 && __ffs(8) == 4 && __ffs(0) == 0 && __ffsll(1ll << 40) == 41) << 1;
    r |= (__brev(1) == 0x80000000u && __brev(0x12345678u) == 0x1e6a2c48u && __brevll(1) == 1ull << 63) << 2;
    r |= (__umulhi(0x80000000u, 6) == 3 && __umul64hi(1ull << 63, 10) == 5 && __mulhi(-1, 1) == -1) << 3;
    r |= (__byte_perm(0x03020100, 0x07060504, 0x7531) == 0x07050301 && __funnelshift_l(0x80000000u, 1, 1) == 3) << 4;
    r |= (min(3, 2) == 2 && max(2u, 3) == 3u && min(1.5f, 2.0f) == 1.5f && max((unsigned long long)7, 9ull) == 9) << 5;
    r |= (__float_as_uint(1.0f) == 0x3f800000 && rsqrtf(4.0f) == 0.5f && fabsf(sqrtf(9.0f) - 3.0f) < 1e-6f) << 6;
    float4 v = make_float4(1, 2, 3, 4); uint2 u = make_uint2(5, 6);
    r |= (v.w == 4 && u.y == 6 && sizeof(float4) == 16 && alignof(float4) == 16 && dim3(2).y == 1) << 7;
    long long t0 = clock64(); unsigned long long g0 = gpuvm_sim::globaltimer();
    __nanosleep(20000);
    r |= (clock64() > t0 && gpuvm_sim::globaltimer() - g0 >= 20000) << 8;
    out[threadIdx.x] = r;
}
"#,
        &["atomics", "intrinsics"],
    );
    let out = bed.run("atomics", &LaunchConfig::linear(4, 64), 16, &[]);
    let xor = 0u32;
    assert_eq!(out[..6], [512, 0u32.wrapping_sub(256), 63, u32::MAX, xor, 256 % 10]);
    assert_eq!(
        (
            f32::from_bits(out[6]),
            f64::from_bits(u64::from(out[9]) << 32 | u64::from(out[8]))
        ),
        (128.0, 64.0)
    );
    assert_eq!((out[11], out[12], out[13] as i32, out[14]), (256, 768, -63, 5));
    // Wraps from 0 to 100 and then counts down 255 times, over 101 values.
    assert_eq!(out[15], 100 - 255 % 101);
    assert_eq!(
        bed.run("intrinsics", &LaunchConfig::linear(1, 4), 4, &[]),
        vec![0x1ff; 4]
    );
}

/// Set for the process that `printed_lines_stay_whole` starts.
const CHILD: &str = "GPUVM_TEST_PRINT_CHILD";

#[test]
fn printed_lines_stay_whole() {
    if std::env::var_os(CHILD).is_some() {
        let bed = bed(
            r#"__global__ void hello(unsigned*) { printf("<%u.%u %s %.1f>\n", blockIdx.x, threadIdx.x, "from a lane", 0.5); }"#,
            &["hello"],
        );
        bed.run("hello", &LaunchConfig::linear(20, 32), 1, &[]);
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().expect("this test's file"))
        .args(["--exact", "fast::printed_lines_stay_whole", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines: Vec<&str> = text.lines().filter(|l| l.starts_with('<')).collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 640, "{text}");
    assert!(lines.iter().all(|l| l.ends_with(" from a lane 0.5>")));
}

#[test]
fn an_idle_gpu_uses_no_processor() {
    // In a process of its own, so that other tests' time does not count.
    if std::env::var_os(CHILD).is_none() {
        let output = std::process::Command::new(std::env::current_exe().expect("this test's file"))
            .args(["--exact", "fast::an_idle_gpu_uses_no_processor"])
            .env(CHILD, "1")
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let bed = bed("__global__ void one(unsigned* out) { out[0] = 1; }", &["one"]);
    bed.run("one", &LaunchConfig::linear(1, 1), 1, &[]);
    std::thread::sleep(Duration::from_millis(20));
    let used = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a local; the clock always exists.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = used();
    std::thread::sleep(Duration::from_millis(500));
    let idle = used() - before;
    assert!(
        idle < Duration::from_millis(5),
        "{idle:?} of processor time in half a second of idleness"
    );
}
