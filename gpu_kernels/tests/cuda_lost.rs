//! What loses a GPU to its process: each case runs in a process of its own, which must go on, say what happened and end cleanly.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpuvm_gpu::cuda::CudaGpu;
use gpuvm_gpu::{CompileOptions, Gpu, GpuError, HostMemory, Kernel, LaunchConfig, LaunchOutcome, Source};

const CASE: &str = "GPUVM_LOST_CASE";
const DONE: &str = "the case was seen through";
const LIMIT: Duration = Duration::from_secs(20);
const HOME_BYTES: usize = 8 << 20;

const KERNELS: &str = "#include <gpuvm/gpuvm.cuh>\n\
    __global__ void asserts(unsigned* p) { assert(p == nullptr); }\n\
    __global__ void traps(unsigned*) { __trap(); }\n\
    __global__ void wild(unsigned*) { *(volatile unsigned*)64 = 1; }\n\
    __global__ void deaf(unsigned* p) { while (*(volatile unsigned*)p == 0) __nanosleep(1000); }\n";

/// The GPU that GPUVM_TEST_GPU names, as `cuda:0` or `cuda:GPU-...`; the first by default.
fn open() -> Result<CudaGpu, GpuError> {
    let name = std::env::var("GPUVM_TEST_GPU").unwrap_or_else(|_| "0".to_owned());
    CudaGpu::open(name.trim_start_matches("cuda:"))
}

fn gpu_is_there() -> bool {
    match open() {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var_os("GPUVM_REQUIRE_CUDA").is_none(), "{error}");
            eprintln!("SKIPPED: {error}");
            false
        }
    }
}

/// Runs this binary again for one kernel, and gives what it said.
fn in_child(kernel: &str) -> Option<String> {
    if !gpu_is_there() {
        return None;
    }
    let own = std::env::current_exe().expect("this binary");
    let mut child = Command::new(own)
        .args(["--exact", "the_child", "--nocapture", "--test-threads=1"])
        .env(CASE, kernel)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a child");
    let until = Instant::now() + LIMIT;
    while child.try_wait().expect("a child's state").is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            panic!("the child for `{kernel}` hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("its output");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{kernel}: {}: {said}", output.status);
    assert!(said.contains(DONE), "{kernel}: {said}");
    Some(said)
}

/// Memory of a home holds one byte everywhere, and another one from then on.
fn holds_then(home: Option<&HostMemory>, before: u8, after: u8) {
    let Some(home) = home else { return };
    // SAFETY: it has this many bytes, which no kernel uses.
    let held = unsafe { std::slice::from_raw_parts_mut(home.host_ptr(), HOME_BYTES) };
    assert!(held.iter().all(|&byte| byte == before));
    held.fill(after);
}

fn kernel(gpu: &CudaGpu, source: &Source, name: &str) -> Arc<dyn Kernel> {
    let names = ["asserts", "traps", "wild", "deaf"];
    let module = gpu.compile(source, &names, &CompileOptions::default());
    module
        .and_then(|module| module.kernel(name))
        .unwrap_or_else(|e| panic!("{e}"))
}

/// Not a test of its own: what a child does.
#[test]
fn the_child() {
    let Ok(name) = std::env::var(CASE) else { return };
    let gpu = open().expect("a GPU");
    let source = Source::new("lost.cu", KERNELS);
    let kernel = kernel(&gpu, &source, &name);
    let (stream, beside) = (gpu.stream().expect("a stream"), gpu.stream().expect("a stream"));
    let (small, large) = (
        gpu.allocate(4, 256).expect("memory"),
        gpu.allocate(4 << 20, 256).expect("memory"),
    );
    let host = gpu.allocate_host(1 << 20).expect("host memory");
    // What regions' homes hold outlives the GPU.
    let home = gpu.allocate_home(HOME_BYTES as u64).expect("memory for homes");
    holds_then(home.as_ref(), 0, 7);
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    let on_done = Box::new(move |_: &LaunchOutcome| tell.store(true, Ordering::SeqCst));
    // A trap takes the driver more than a second to report: longer than the deadline that ends the deaf kernel.
    let deadline = Duration::from_millis(if name == "deaf" { 300 } else { 10_000 });
    let config = LaunchConfig::linear(1, 32).deadline(deadline);
    let args: &[&[u8]] = &[&small.addr().to_ne_bytes()];
    let launch = stream
        .launch(&kernel, &config, args, host.device_addr(), on_done)
        .expect("a launch");
    let queued = stream.launch(&kernel, &config, args, host.device_addr(), Box::new(|_| ()));
    let outcome = launch.wait(Some(LIMIT)).expect("it ends");
    assert!(told.load(Ordering::SeqCst));
    let error = outcome.expect_err("it cannot end well");
    println!("outcome: {error}");
    if let Ok(queued) = queued {
        queued
            .wait(Some(LIMIT))
            .expect("it ends")
            .expect_err("it cannot end well");
    }
    let lost = gpu.lost().expect("the GPU is lost");
    println!("lost: {lost}");
    // Every later call says so, and nothing hangs or panics.
    // A kernel that runs on may reach memory still: that must not look like a dead context.
    let is_lost = |error: Option<GpuError>| match (name.as_str(), error) {
        ("deaf", Some(GpuError::Deadline { kernel, .. })) => assert_eq!(kernel, "deaf"),
        ("deaf", other) => panic!("{other:?}"),
        (_, Some(GpuError::Lost { .. })) => {}
        (_, other) => panic!("{other:?}"),
    };
    is_lost(Some(lost));
    is_lost(gpu.allocate(4, 256).err());
    is_lost(gpu.allocate_host(4).err());
    is_lost(gpu.read(small.addr(), &mut [0]).err());
    is_lost(gpu.write(small.addr(), &[0]).err());
    is_lost(gpu.stream().err());
    is_lost(gpu.compile(&source, &["traps"], &CompileOptions::default()).err());
    is_lost(beside.launch(&kernel, &config, args, 0, Box::new(|_| ())).err());
    beside.synchronize().expect("nothing was launched there");
    stream.synchronize().expect_err("it reports the error");
    holds_then(home.as_ref(), 7, 8);
    drop((small, large, host, home, stream, beside, kernel));
    let begun = Instant::now();
    drop(gpu);
    assert!(begun.elapsed() < Duration::from_secs(5), "dropping waits for nothing");
    println!("{DONE}");
    if name == "deaf" {
        // The driver's own clean-up would wait for the kernel.
        // SAFETY: it ends the process at once, which is what this case needs.
        unsafe { libc::_exit(0) };
    }
}

#[test]
fn an_assertion() {
    if let Some(said) = in_child("asserts") {
        assert!(
            said.contains("kernel `asserts`") && said.contains("CUDA_ERROR_ASSERT"),
            "{said}"
        );
    }
}

#[test]
fn a_trap() {
    if let Some(said) = in_child("traps") {
        assert!(
            said.contains("kernel `traps`") && said.contains("CUDA_ERROR_"),
            "{said}"
        );
    }
}

#[test]
fn a_wild_store() {
    if let Some(said) = in_child("wild") {
        assert!(
            said.contains("kernel `wild`") && said.contains("CUDA_ERROR_ILLEGAL_ADDRESS"),
            "{said}"
        );
    }
}

#[test]
fn a_kernel_that_does_not_listen() {
    if let Some(said) = in_child("deaf") {
        assert!(
            said.contains("kernel `deaf` did not end within 0.300 s") && said.contains("cannot be stopped"),
            "{said}"
        );
    }
}
