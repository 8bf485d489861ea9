//! The CUDA back end on a real GPU. Where there is none, nothing is tested, unless GPUVM_REQUIRE_CUDA makes that a failure.
//! GPUVM_TEST_GPU names the GPU, as `cuda:0` or `cuda:GPU-...`; the first by default.

#[path = "cuda/images.rs"]
mod images;
#[path = "cuda/memory.rs"]
mod memory;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpuvm_gpu::cuda::{Advice, CudaGpu, Side, devices};
use gpuvm_gpu::{
    CompileOptions, DeviceMemory, Gpu, GpuError, HostMemory, Kernel, Launch, LaunchConfig, LaunchOutcome, Module,
    Source, Stream,
};

/// No wait of a test is longer.
const LIMIT: Duration = Duration::from_secs(20);

fn gpu() -> Option<CudaGpu> {
    let name = std::env::var("GPUVM_TEST_GPU").unwrap_or_else(|_| "0".to_owned());
    match CudaGpu::open(name.trim_start_matches("cuda:")) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            assert!(std::env::var_os("GPUVM_REQUIRE_CUDA").is_none(), "{error}");
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

fn module(gpu: &CudaGpu, text: &str, kernels: &[&str]) -> Arc<dyn Module> {
    gpu.compile(&Source::new("test.cu", text), kernels, &CompileOptions::default())
        .unwrap_or_else(|e| panic!("{e}"))
}

fn kernel(gpu: &CudaGpu, text: &str, name: &str) -> Arc<dyn Kernel> {
    module(gpu, text, &[name]).kernel(name).expect("it was compiled")
}

fn start(
    stream: &Arc<dyn Stream>,
    kernel: &Arc<dyn Kernel>,
    config: &LaunchConfig,
    args: &[&[u8]],
    state: u64,
) -> Arc<dyn Launch> {
    stream
        .launch(kernel, config, args, state, Box::new(|_| ()))
        .unwrap_or_else(|e| panic!("{e}"))
}

fn run(
    stream: &Arc<dyn Stream>,
    kernel: &Arc<dyn Kernel>,
    config: &LaunchConfig,
    args: &[&[u8]],
    state: u64,
) -> LaunchOutcome {
    start(stream, kernel, config, args, state)
        .wait(Some(LIMIT))
        .expect("it ends in time")
}

fn words(gpu: &CudaGpu, memory: &DeviceMemory, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    gpu.read(memory.addr(), &mut bytes).expect("live memory");
    bytes
        .chunks_exact(4)
        .map(|c| u32::from_ne_bytes([c[0], c[1], c[2], c[3]]))
        .collect()
}

fn state(gpu: &CudaGpu, mark: u32) -> HostMemory {
    let state = gpu.allocate_host(4096).expect("host memory");
    gpu.write(state.device_addr() + 4, &mark.to_ne_bytes())
        .expect("live memory");
    state
}

/// Runs `step` on a thread of its own, so that one that waits for a running kernel fails with its name.
fn within<T: Send>(what: &str, step: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let thread = scope.spawn(step);
        while !thread.is_finished() && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_micros(200));
        }
        if !thread.is_finished() {
            // The scope would wait for the thread, and it for the kernel: nothing could say what hangs.
            eprintln!("FAILED: {what} did not return within {LIMIT:?}: the driver waits for running kernels");
            // The driver's own clean-up would wait for the kernel.
            // SAFETY: it ends the process at once, which a hang leaves as the only way out.
            unsafe { libc::_exit(101) };
        }
        eprintln!("{what}: {:?}", begun.elapsed());
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A kernel that runs until it is asked to end: by the first word of its state, whose second is a mark.
const SPIN: &str = "__global__ void spin(unsigned* out, volatile unsigned* state) {\n\
    if (threadIdx.x == 0) { atomicAdd(out, state[1]); while (state[0] == 0) __nanosleep(200); }\n}";

#[test]
fn a_gpu_is_where_sysfs_has_one() {
    let Some(gpu) = gpu() else { return };
    let ability = gpu.device_info().for_nics.clone();
    let bus = std::path::Path::new("/sys/bus/pci/devices");
    match bus.is_dir() {
        true => {
            let vendor = std::fs::read_to_string(bus.join(&ability.pci_address).join("vendor"));
            let vendor = vendor.unwrap_or_else(|error| panic!("{ability:?}: {error}"));
            assert_eq!(vendor.trim(), "0x10de");
        }
        false => eprintln!("SKIPPED: {} is not there to compare with", bus.display()),
    }
    assert!([0, 100, 200].contains(&ability.writes_ordered_for), "{ability:?}");
}

#[test]
fn arguments_and_shapes_are_checked() {
    let Some(gpu) = gpu() else { return };
    let text = "template <class T> __global__ void put(T* p, T v) { p[threadIdx.x] = v; }\n\
        __global__ void __launch_bounds__(128) narrow() {}\n__global__ void wide() {}";
    let module = module(&gpu, text, &["put<double>", "narrow", "wide"]);
    let put = module.kernel("put<double>").expect("it was compiled");
    let stream = gpu.stream().expect("a stream");
    let memory = gpu.allocate(64 * 8, 256).expect("memory");
    let (addr, value) = (memory.addr().to_ne_bytes(), 2.5f64.to_ne_bytes());
    run(&stream, &put, &LaunchConfig::linear(1, 64), &[&addr, &value], 0).expect("it runs");
    let mut bytes = [0; 8];
    gpu.read(memory.addr() + 63 * 8, &mut bytes).expect("live memory");
    assert_eq!(bytes, value);
    let refused = |kernel: &Arc<dyn Kernel>, config: LaunchConfig, args: &[&[u8]]| {
        let never = Box::new(|_: &LaunchOutcome| panic!("it is not launched"));
        stream
            .launch(kernel, &config, args, 0, never)
            .err()
            .expect("refused")
            .to_string()
    };
    assert!(refused(&put, LaunchConfig::linear(1, 1), &[&addr]).contains("2 arguments, 1 were given"));
    assert!(refused(&put, LaunchConfig::linear(1, 1), &[&addr, &[0; 4]]).contains("4 bytes"));
    let (narrow, wide) = (module.kernel("narrow").expect("it"), module.kernel("wide").expect("it"));
    assert!(refused(&narrow, LaunchConfig::linear(1, 256), &[]).contains("registers"));
    assert!(refused(&wide, LaunchConfig::linear(0, 1), &[]).contains("empty"));
    assert!(refused(&wide, LaunchConfig::linear(1, 1025), &[]).contains("1024"));
    assert!(refused(&wide, LaunchConfig::linear(1, 1).dynamic_shared(1 << 20), &[]).contains("shared"));
    assert!(narrow.info().resources.expect("known").registers > 0);
    let blocks = wide
        .blocks_per_multiprocessor(256, 0)
        .expect("known")
        .expect("an NVIDIA GPU");
    assert!(blocks >= 4, "{blocks}");
    let big = LaunchConfig {
        grid: [1 << 20, 2, 2],
        ..LaunchConfig::linear(1, 32)
    };
    assert_eq!(run(&stream, &wide, &big, &[], 0).expect("it runs").blocks, 4 << 20);
}

#[test]
fn compile_errors_have_the_users_line() {
    let Some(gpu) = gpu() else { return };
    let source = Source::new("mine.cu", "__global__ void k() {\n  nonsense;\n}\n");
    let error = gpu
        .compile(&source, &["k"], &CompileOptions::default())
        .err()
        .expect("refused")
        .to_string();
    assert!(error.contains("mine.cu(2)"), "{error}");
}

#[test]
fn the_cache_gives_the_same_module() {
    let Some(open) = gpu() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let builder = || {
        CudaGpu::builder(open.device_info().uuid.clone())
            .cache_dir(dir.path())
            .build()
    };
    let text = "__global__ void seven(unsigned* p) { p[0] = 7; }";
    for round in 0..3 {
        let gpu = builder().expect("the same GPU");
        let seven = kernel(&gpu, text, "seven");
        let (stream, memory) = (gpu.stream().expect("a stream"), gpu.allocate(4, 256).expect("memory"));
        run(
            &stream,
            &seven,
            &LaunchConfig::linear(1, 1),
            &[&memory.addr().to_ne_bytes()],
            0,
        )
        .expect("it runs");
        assert_eq!(words(&gpu, &memory, 1), [7]);
        let entries: Vec<_> = dir
            .path()
            .read_dir()
            .expect("the folder")
            .map(|e| e.expect("an entry").path())
            .collect();
        assert_eq!(entries.len(), 1, "{entries:?}");
        if round == 1 {
            std::fs::write(&entries[0], b"damaged").expect("the entry is damaged");
        }
    }
}

/// Allocates, writes and frees memory while kernels run.
fn memory_comes_and_goes(gpu: &CudaGpu) {
    for bytes in [100, 8 << 20] {
        let memory = within(&format!("allocate {bytes} bytes beside the kernels"), || {
            gpu.allocate(bytes, 256).expect("memory")
        });
        within("write beside the kernels", || {
            gpu.write(memory.addr(), &[1]).expect("live memory");
        });
        within(
            &format!("allocate {bytes} bytes of host memory beside the kernels"),
            || {
                drop(gpu.allocate_host(bytes).expect("host memory"));
            },
        );
        within("free beside the kernels", || drop(memory));
    }
}

#[test]
fn streams_with_their_own_states_run_beside_each_other() {
    let Some(gpu) = gpu() else { return };
    let spin = kernel(&gpu, SPIN, "spin");
    let count = 4;
    let all: Vec<_> = (0..count)
        .map(|i| {
            let (stream, out) = (gpu.stream().expect("a stream"), gpu.allocate(4, 256).expect("memory"));
            (stream, out, state(&gpu, 100 + i))
        })
        .collect();
    // Longer than the steps below, so that it hides none that waits for the kernels.
    let config = LaunchConfig::linear(1, 32).deadline(3 * LIMIT);
    let launches: Vec<_> = all
        .iter()
        .enumerate()
        .map(|(i, (stream, out, state))| {
            within(&format!("launch {i} beside those before"), || {
                let (out, word) = (out.addr().to_ne_bytes(), state.device_addr());
                start(stream, &spin, &config, &[&out, &word.to_ne_bytes()], word)
            })
        })
        .collect();
    // Each has read its own state while all of them run; the host's reads wait for none.
    let until = Instant::now() + LIMIT;
    for ((_, out, _), mark) in all.iter().zip(100..) {
        while within("read beside the kernels", || words(&gpu, out, 1)) != [mark] {
            assert!(
                Instant::now() < until,
                "the launch with mark {mark} starts beside the others"
            );
        }
    }
    assert!(launches.iter().all(|launch| !launch.is_done()));
    // As many as there are streams, and one after the other on each.
    let fifth_stream = within("make a stream beside the kernels", || gpu.stream().expect("a stream"));
    let fifth_out = gpu.allocate(4, 256).expect("memory of a slab that is there");
    let fifth_state = state(&gpu, 200);
    gpu.write(fifth_state.device_addr(), &1u32.to_ne_bytes())
        .expect("live memory");
    let fifth = within("launch a fifth", || {
        let (out, word) = (fifth_out.addr().to_ne_bytes(), fifth_state.device_addr());
        start(&fifth_stream, &spin, &config, &[&out, &word.to_ne_bytes()], word)
    });
    fifth.wait(Some(LIMIT)).expect("the fifth ends").expect("it ends well");
    assert_eq!(words(&gpu, &fifth_out, 1), [200], "beside the others");
    memory_comes_and_goes(&gpu);
    for ((_, _, state), launch) in all.iter().zip(&launches) {
        gpu.write(state.device_addr(), &1u32.to_ne_bytes())
            .expect("live memory");
        launch
            .wait(Some(LIMIT))
            .expect("it ends")
            .unwrap_or_else(|e| panic!("{e}"));
    }
    // The same stream takes another state for its next launch.
    let (stream, out, _) = &all[0];
    let other = state(&gpu, 1000);
    gpu.write(other.device_addr(), &1u32.to_ne_bytes())
        .expect("live memory");
    let word = other.device_addr();
    let args: &[&[u8]] = &[&out.addr().to_ne_bytes(), &word.to_ne_bytes()];
    run(stream, &spin, &config, args, word).expect("it ends");
    assert_eq!(words(&gpu, out, 1), [1100]);
}

#[test]
fn a_kernel_that_listens_ends_at_its_deadline() {
    let Some(gpu) = gpu() else { return };
    let spin = kernel(&gpu, SPIN, "spin");
    let (stream, out, state) = (
        gpu.stream().expect("a stream"),
        gpu.allocate(4, 256).expect("memory"),
        state(&gpu, 1),
    );
    let limit = Duration::from_millis(200);
    let args: &[&[u8]] = &[&out.addr().to_ne_bytes(), &state.device_addr().to_ne_bytes()];
    let begun = Instant::now();
    let config = LaunchConfig::linear(1, 32).deadline(limit);
    match run(&stream, &spin, &config, args, state.device_addr()) {
        Err(GpuError::Deadline {
            kernel,
            limit: said,
            report,
        }) => {
            assert_eq!((kernel.as_str(), said), ("spin", limit));
            assert!(report.contains("and did"), "{report}");
        }
        other => panic!("{other:?}"),
    }
    assert!(
        begun.elapsed() >= limit && begun.elapsed() < limit + Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    assert!(gpu.lost().is_none());
    assert!(matches!(stream.synchronize(), Err(GpuError::Deadline { .. })));
    stream.synchronize().expect("it was told once");
    // Stopped by hand, its callback comes before the waiter wakes.
    gpu.write(state.device_addr(), &0u32.to_ne_bytes())
        .expect("live memory");
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    let on_done = Box::new(move |outcome: &LaunchOutcome| {
        assert!(matches!(outcome, Err(GpuError::Abandoned { .. })), "{outcome:?}");
        std::thread::sleep(Duration::from_millis(20));
        tell.store(true, Ordering::SeqCst);
    });
    let launch = stream
        .launch(&spin, &LaunchConfig::linear(1, 32), args, state.device_addr(), on_done)
        .expect("a launch");
    assert!(launch.wait(Some(Duration::from_millis(50))).is_none());
    launch.abandon();
    let outcome = launch.wait(Some(LIMIT)).expect("it ends");
    assert!(told.load(Ordering::SeqCst), "the callback came first");
    assert!(matches!(outcome, Err(GpuError::Abandoned { .. })), "{outcome:?}");
}

#[test]
fn launches_of_a_stream_end_in_order() {
    let Some(gpu) = gpu() else { return };
    let bump = kernel(
        &gpu,
        "__global__ void bump(unsigned* p) { p[0] = p[0] * 3 + 1; }",
        "bump",
    );
    let (stream, memory) = (gpu.stream().expect("a stream"), gpu.allocate(4, 256).expect("memory"));
    let order = Arc::new(Mutex::new(Vec::new()));
    for i in 0..500u32 {
        let order = Arc::clone(&order);
        let on_done = Box::new(move |_: &LaunchOutcome| order.lock().expect("no panic").push(i));
        let args: &[&[u8]] = &[&memory.addr().to_ne_bytes()];
        stream
            .launch(&bump, &LaunchConfig::linear(1, 1), args, 0, on_done)
            .expect("a launch");
    }
    stream.synchronize().expect("all of them run");
    assert_eq!(*order.lock().expect("no panic"), (0..500).collect::<Vec<_>>());
    let wanted = (0..500).fold(0u32, |p, _| p.wrapping_mul(3).wrapping_add(1));
    assert_eq!(words(&gpu, &memory, 1), [wanted]);
}

#[test]
fn a_short_launch_costs_little() {
    let Some(gpu) = gpu() else { return };
    let none = kernel(&gpu, "__global__ void none() {}", "none");
    let stream = gpu.stream().expect("a stream");
    let mut times: Vec<Duration> = (0..200)
        .map(|_| {
            let begun = Instant::now();
            run(&stream, &none, &LaunchConfig::linear(1, 1), &[], 0).expect("it runs");
            begun.elapsed()
        })
        .collect();
    times.sort();
    eprintln!(
        "launch and wait: median {:?}, 99th percentile {:?}",
        times[100], times[198]
    );
    assert!(times[100] < Duration::from_micros(200), "{:?}", times[100]);
}

#[test]
fn shared_memory_beyond_48_kib() {
    let Some(gpu) = gpu() else { return };
    let text = "__global__ void turn(unsigned* p, unsigned n) { extern __shared__ unsigned s[];\n\
        for (unsigned i = threadIdx.x; i < n; i += blockDim.x) s[i] = i * 5;\n__syncthreads();\n\
        for (unsigned i = threadIdx.x; i < n; i += blockDim.x) p[i] = s[n - 1 - i]; }";
    let turn = kernel(&gpu, text, "turn");
    let stream = gpu.stream().expect("a stream");
    let most = gpu.capabilities().shared_bytes_per_block;
    for bytes in [1 << 10, 60 << 10, 48 << 10, most] {
        let n = bytes / 4;
        let out = gpu.allocate(u64::from(bytes), 256).expect("memory");
        let config = LaunchConfig::linear(1, 256).dynamic_shared(bytes);
        run(
            &stream,
            &turn,
            &config,
            &[&out.addr().to_ne_bytes(), &n.to_ne_bytes()],
            0,
        )
        .expect("it runs");
        assert!(
            words(&gpu, &out, n as usize)
                .iter()
                .zip((0..n).rev())
                .all(|(&word, i)| word == i * 5)
        );
    }
}

#[test]
fn what_benchmarks_compare_with() {
    let Some(gpu) = gpu() else { return };
    let bytes = 64 << 20;
    let (a, b, host) = (
        gpu.allocate(bytes, 256).expect("memory"),
        gpu.allocate(bytes, 256).expect("memory"),
        gpu.allocate_host(2 * bytes).expect("host memory"),
    );
    gpu.write(host.device_addr(), &vec![9; bytes as usize])
        .expect("live memory");
    let (from, to) = (host.device_addr(), host.device_addr() + bytes);
    // SAFETY: all ranges are live and used by nothing else.
    let (one, batch, both) = unsafe {
        let pieces: Vec<_> = (0..64)
            .map(|i| (b.addr() + i * 4096, from + (63 - i) * 4096, 4096))
            .collect();
        (
            gpu.timed_copy(a.addr(), from, bytes, 2).expect("a copy"),
            gpu.timed_batch_copy(&pieces).expect("a batch"),
            gpu.both_ways((a.addr(), from, bytes), (to, a.addr(), bytes), 1)
                .expect("two copies"),
        )
    };
    assert!(one > Duration::ZERO && batch > Duration::ZERO && both > Duration::ZERO);
    let mut out = [0; 4];
    gpu.read(b.addr() + 63 * 4096, &mut out).expect("live memory");
    assert_eq!(out, [9; 4]);
    let managed = gpu.managed(8 << 20).expect("managed memory");
    managed.advise(Advice::PreferredLocation(Side::Gpu)).expect("advice");
    managed.advise(Advice::AccessedBy(Side::Host)).expect("advice");
    managed.advise(Advice::ReadMostly).expect("advice");
    managed.prefetch(Side::Gpu).expect("it moves");
    managed.prefetch(Side::Host).expect("it moves");
    let free = gpu.free_memory().expect("known");
    assert!(matches!(gpu.managed(free / 10 * 9), Err(GpuError::OutOfMemory { .. })));
}

#[test]
fn a_dropped_gpu_ends_its_launches() {
    let Some(gpu) = gpu() else { return };
    let spin = kernel(&gpu, SPIN, "spin");
    let (stream, out, state) = (
        gpu.stream().expect("a stream"),
        gpu.allocate(4, 256).expect("memory"),
        state(&gpu, 1),
    );
    let args: &[&[u8]] = &[&out.addr().to_ne_bytes(), &state.device_addr().to_ne_bytes()];
    let launches: Vec<_> = (0..2)
        .map(|_| start(&stream, &spin, &LaunchConfig::linear(1, 32), args, state.device_addr()))
        .collect();
    drop(gpu);
    for launch in launches {
        let outcome = launch.wait(Some(LIMIT)).expect("it ends");
        assert!(matches!(outcome, Err(GpuError::Abandoned { .. })), "{outcome:?}");
    }
    let refused = stream.launch(&spin, &LaunchConfig::linear(1, 1), args, 0, Box::new(|_| ()));
    assert!(matches!(refused, Err(GpuError::ShutDown)));
}
