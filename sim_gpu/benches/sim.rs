//! Lane rendezvous of the simulated GPU's fast mode on one worker: lanes times collectives a second, results verified.
//!
//! Times are the process's processor time, so that they say what one core does also when other programs share it.
//!
//! Goal: the switch between lanes and the rendezvous. Not a goal: compilation, launch latency, several workers.

use std::sync::Arc;
use std::time::Duration;

use corosensei::Coroutine;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gpuvm_gpu::{CompileOptions, DeviceMemory, Gpu, Kernel, LaunchConfig, Source, Stream};
use gpuvm_sim_gpu::SimGpu;

const KERNELS: &str = r#"
// Each lane's result depends on every turn of every collective.
__global__ void shuffle(unsigned* out, unsigned turns) {
    unsigned v = threadIdx.x;
    for (unsigned i = 0; i < turns; ++i) v = __shfl_sync(0xffffffffu, v, threadIdx.x + 1) + 1;
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
__global__ void sync_warp(unsigned* out, unsigned turns) {
    unsigned v = 0;
    for (unsigned i = 0; i < turns; ++i) { __syncwarp(); v += 1; }
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
__global__ void ballot(unsigned* out, unsigned turns) {
    unsigned v = 0;
    for (unsigned i = 0; i < turns; ++i) v += __ballot_sync(0xffffffffu, threadIdx.x % 32 == i % 32) == 1u << i % 32;
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
__global__ void match(unsigned* out, unsigned turns) {
    unsigned v = 0;
    for (unsigned i = 0; i < turns; ++i) {
        unsigned active;
        unsigned same = gpuvm_sim::match_active(threadIdx.x / 4, &active);
        v += same == 0xfu << threadIdx.x / 4 % 8 * 4 && active == 0xffffffffu;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
__global__ void barrier(unsigned* out, unsigned turns) {
    unsigned v = 0;
    for (unsigned i = 0; i < turns; ++i) { __syncthreads(); v += 1; }
    out[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
__global__ void tiny(unsigned* out, unsigned) { atomicAdd(out, 1); }
"#;

struct Bench {
    stream: Arc<dyn Stream>,
    out: DeviceMemory,
    gpu: SimGpu,
}

impl Bench {
    fn run(&self, kernel: &Arc<dyn Kernel>, blocks: u32, threads: u32, turns: u32) {
        let args: [&[u8]; 2] = [&self.out.addr().to_ne_bytes(), &turns.to_ne_bytes()];
        let config = LaunchConfig::linear(blocks, threads).deadline(Duration::from_secs(60));
        let launch = self
            .stream
            .launch(kernel, &config, &args, 0, Box::new(|_| ()))
            .expect("a launch");
        launch.wait(None).expect("no timeout").expect("the kernel runs");
    }

    fn words(&self, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; count * 4];
        self.gpu.read(self.out.addr(), &mut bytes).expect("live memory");
        bytes
            .chunks_exact(4)
            .map(|c| u32::from_ne_bytes([c[0], c[1], c[2], c[3]]))
            .collect()
    }
}

/// Processor time of all threads of this process for `times` calls.
fn processor_time(times: u64, mut call: impl FnMut()) -> Duration {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a local; the clock always exists.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let start = now();
    (0..times).for_each(|_| call());
    now() - start
}

/// The ceiling: bare switches into 32 coroutines in turn and back, with no rendezvous at all.
fn ceiling(criterion: &mut Criterion) {
    let mut lanes: Vec<Coroutine<(), (), ()>> = (0..32u32)
        .map(|_| {
            Coroutine::new(|yielder, ()| {
                loop {
                    yielder.suspend(());
                }
            })
        })
        .collect();
    let mut group = criterion.benchmark_group("ceiling");
    group.throughput(Throughput::Elements(32_000));
    group.bench_function("bare switches", |b| {
        b.iter_custom(|times| {
            processor_time(times, || {
                for _ in 0..1000 {
                    for lane in &mut lanes {
                        lane.resume(());
                    }
                }
            })
        });
    });
    group.finish();
    for lane in &mut lanes {
        // SAFETY: nothing on these stacks needs dropping.
        unsafe { lane.force_reset() };
    }
}

fn rendezvous(criterion: &mut Criterion) {
    let gpu = SimGpu::builder()
        .memory_bytes(64 << 20)
        .workers(1)
        .build()
        .expect("a simulated GPU");
    let names = ["shuffle", "sync_warp", "ballot", "match", "barrier", "tiny"];
    let module = gpu
        .compile(&Source::new("bench.cu", KERNELS), &names, &CompileOptions::default())
        .expect("it compiles");
    let out = gpu.allocate(1 << 20, 256).expect("memory");
    let bench = Bench {
        stream: gpu.stream().expect("a stream"),
        out,
        gpu,
    };
    let mut group = criterion.benchmark_group("rendezvous");
    for name in &names[..5] {
        let kernel = module.kernel(name).expect("compiled");
        for (blocks, threads) in [(1u32, 32u32), (16, 128)] {
            let turns = 64_000 / blocks / (threads / 32);
            group.throughput(Throughput::Elements(u64::from(turns) * u64::from(blocks * threads)));
            group.bench_function(format!("{name}/{blocks}x{threads}"), |b| {
                b.iter_custom(|times| processor_time(times, || bench.run(&kernel, blocks, threads, turns)));
            });
            // Also when the filter of the command line has left this bench out.
            bench.run(&kernel, blocks, threads, turns);
            for (lane, &value) in bench.words((blocks * threads) as usize).iter().enumerate() {
                // A shuffle from the next lane, plus one, `turns` times: the value that started `turns` lanes on.
                let lane = lane as u32 % threads;
                let warp = lane / 32 * 32;
                let expected = if *name == "shuffle" {
                    warp + (lane + turns) % 32 + turns
                } else {
                    turns
                };
                // A gathering may miss lanes that were preempted; each lane it did name was verified by the kernel.
                let missed = if *name == "match" { turns / 10 } else { 0 };
                assert!(
                    value <= expected && value + missed >= expected,
                    "{name}, lane {lane}: {value}, not {expected}"
                );
            }
        }
    }
    group.finish();
    let mut group = criterion.benchmark_group("blocks");
    let kernel = module.kernel("tiny").expect("compiled");
    group.throughput(Throughput::Elements(10_000));
    group.bench_function("of one warp", |b| {
        b.iter_custom(|times| processor_time(times, || bench.run(&kernel, 10_000, 32, 0)));
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = ceiling, rendezvous
}
criterion_main!(benches);
