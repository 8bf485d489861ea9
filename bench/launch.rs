//! What a launch costs its caller on the simulated GPU: the calls alone, not the kernel. Beside it stands the simulated GPU's own part, for
//! which the runtime keeps no state, locks no memory and watches nothing.
//!
//! `cargo bench --bench launch`; `-- --test` runs each once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::Criterion;
use gpuvm::{Arg, Buffer, ElementType, Gpu, Kernel, LaunchConfig, Region, Transport, Vm, sim::SimGpu};
use gpuvm_gpu::{CompileOptions, DeviceMemory, Gpu as Device, Source};

const SOURCE: &str = r"
#include <gpuvm/gpuvm.cuh>
__global__ void count(gpuvm::array<unsigned> a, unsigned* launches) {
    if (threadIdx.x == 0) atomicAdd(launches, 1u);
}
__global__ void hold(unsigned* go) {
    while (atomicAdd(go, 0u) == 0) __nanosleep(10000);
}
__global__ void bare(unsigned long long unused, unsigned* launches) {
    if (threadIdx.x == 0) atomicAdd(launches, 1u);
}";
/// Launches that are in flight together.
const TOGETHER: [u64; 3] = [1, 16, 128];

type AnyResult<T> = Result<T, Box<dyn std::error::Error>>;

struct World {
    device: Arc<dyn Device>,
    count: Kernel,
    hold: Kernel,
    bare: [Arc<dyn gpuvm_gpu::Kernel>; 2],
    region: Region<u32>,
    launches: Buffer<u32>,
    /// A word that lets what is enqueued begin, and one that counts.
    words: DeviceMemory,
}

impl World {
    fn new() -> AnyResult<Self> {
        let device: Arc<dyn Device> = Arc::new(SimGpu::builder().memory_bytes(64 << 20).workers(1).build()?);
        let vm = Vm::builder()
            .gpu(Gpu::Device(Arc::clone(&device)))
            .transport(Transport::Direct)
            .frame_memory(1 << 20)
            .build()?;
        let (source, options) = (Source::new("launch.cu", SOURCE), CompileOptions::default());
        let module = device.compile(&source, &["hold", "bare"], &options)?;
        Ok(Self {
            count: vm.kernel("launch.cu", SOURCE, "count")?,
            hold: vm.kernel("launch.cu", SOURCE, "hold")?,
            bare: [module.kernel("hold")?, module.kernel("bare")?],
            region: vm.region().name("data").zeroed(1 << 12)?,
            launches: vm.buffer(1)?,
            words: device.allocate(8, 256)?,
            device,
        })
    }

    fn word(&self, number: u64) -> u64 {
        self.words.addr() + 4 * number
    }

    fn go(&self, value: u32) -> AnyResult<()> {
        Ok(self.device.write(self.word(0), &value.to_ne_bytes())?)
    }

    /// Time of the calls of `n` launches, `together` of which are enqueued before they run, behind one that waits for that. All of them
    /// have to run.
    fn paged(&self, n: u64, together: u64) -> AnyResult<Duration> {
        let before = self.launches.to_vec()?[0];
        let (mut took, mut left) = (Duration::ZERO, n);
        while left > 0 {
            let now = left.min(together);
            self.go(0)?;
            // SAFETY: the word lives longer than the launch, and is changed by whole words.
            let word = unsafe { Arg::address(ElementType::U32, self.word(0)) };
            let first = self.hold.launch(LaunchConfig::new(1, 32), (word,))?;
            let config = LaunchConfig::new(1, 32);
            let begun = Instant::now();
            let launches = (0..now).map(|_| self.count.launch(config.clone(), (&self.region, &self.launches)));
            let launches = launches.collect::<Result<Vec<_>, _>>()?;
            took += begun.elapsed();
            self.go(1)?;
            first.sync()?;
            launches.iter().try_for_each(|launch| launch.sync().map(drop))?;
            left -= now;
        }
        assert_eq!(u64::from(self.launches.to_vec()?[0] - before), n);
        Ok(took)
    }

    /// As [`paged`](Self::paged), of launches of the simulated GPU itself.
    fn bare(&self, n: u64, together: u64) -> AnyResult<Duration> {
        let stream = self.device.stream()?;
        let config = gpuvm_gpu::LaunchConfig::linear(1, 32);
        let [hold, count] = &self.bare;
        let (unused, words) = (0u64.to_ne_bytes(), [0, 1].map(|number| self.word(number).to_ne_bytes()));
        let (mut took, mut left) = (Duration::ZERO, n);
        while left > 0 {
            let now = left.min(together);
            self.go(0)?;
            let mut launches = vec![stream.launch(hold, &config, &[&words[0]], 0, Box::new(|_| ()))?];
            let begun = Instant::now();
            for _ in 0..now {
                launches.push(stream.launch(count, &config, &[&unused, &words[1]], 0, Box::new(|_| ()))?);
            }
            took += begun.elapsed();
            self.go(1)?;
            for launch in launches {
                launch.wait(None).ok_or("no timeout was given")??;
            }
            left -= now;
        }
        Ok(took)
    }
}

fn main() -> AnyResult<()> {
    let tiny = std::env::args().any(|argument| argument == "--test");
    let mut criterion = Criterion::default().configure_from_args();
    let world = World::new()?;
    let (rounds, each) = if tiny { (1, 64) } else { (40, 1024) };
    for together in TOGETHER {
        let best = |run: &dyn Fn() -> AnyResult<Duration>| {
            let runs = (0..rounds).map(|_| run()).collect::<AnyResult<Vec<_>>>()?;
            Ok::<_, Box<dyn std::error::Error>>(runs.into_iter().min().unwrap_or_default())
        };
        let per_launch = |time: Duration| time.as_secs_f64() * 1e6 / each as f64;
        let paged = per_launch(best(&|| world.paged(each, together))?);
        let bare = per_launch(best(&|| world.bare(each, together))?);
        println!("{together:4} in flight: {paged:.2} us a launch, of which the simulated GPU {bare:.2} us");
        let mut benches = criterion.benchmark_group(format!("launch/{together} in flight"));
        benches.sample_size(10);
        benches.bench_function("paged", |b| {
            b.iter_custom(|n| world.paged(n, together).expect("launches that run"));
        });
        benches.bench_function("bare", |b| {
            b.iter_custom(|n| world.bare(n, together).expect("launches that run"));
        });
        benches.finish();
    }
    criterion.final_summary();
    Ok(())
}
