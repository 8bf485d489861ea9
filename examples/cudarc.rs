//! A program that uses cudarc: its streams, its memory and kernels that it compiled itself, beside an array that is larger than the GPU memory
//! for pages. It needs an NVIDIA GPU, and ends without one.

use std::{
    error::Error,
    io::{Write, stderr, stdout},
    sync::Arc,
};

use cudarc::{
    driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtrMut, DeviceRepr, PushKernelArg},
    nvrtc,
};
use gpuvm::{Arg, ArrayDesc, CudaGpu, ElementType, Gpu, LaunchConfig, Region, StreamHandle, Use, Vm};

const SOURCE: &str = include_str!("cudarc.cu");
/// A kernel over plain pointers, which knows nothing of gpuvm.
const PLAIN: &str = r#"extern "C" __global__ void count_plain(const unsigned* keys, unsigned long long n, unsigned* bins, unsigned bin_count) {
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < n; i += gridDim.x * 1ull * blockDim.x)
        atomicAdd(&bins[keys[i] % bin_count], 1u);
}"#;
const KEYS: u32 = 1 << 20;
const BINS: u32 = 1000;
const BLOCKS: u32 = 64;
const THREADS: u32 = 256;

/// A `gpuvm::array` as kernels take it.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Array(ArrayDesc);
// SAFETY: plain data that a kernel takes by value.
unsafe impl DeviceRepr for Array {}

fn main() -> Result<(), Box<dyn Error>> {
    // GPU memory for a quarter of the keys.
    let built = Vm::builder()
        .gpu(Gpu::Cuda(CudaGpu::ordinal(0)))
        .frame_memory(1 << 20)
        .build();
    let vm = match built {
        Ok(vm) => vm,
        Err(error) => return nothing_ran(error.into()),
    };
    // SAFETY: it loads the library, which every use of it does.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return nothing_ran("cudarc finds no libnvrtc: put its folder in LD_LIBRARY_PATH".into());
    }
    run(&vm)
}

/// Says why there was nothing to do.
fn nothing_ran(why: Box<dyn Error>) -> Result<(), Box<dyn Error>> {
    let mut causes = vec![why.to_string()];
    let mut next = why.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        next = cause.source();
    }
    writeln!(
        stderr(),
        "nothing was run, for want of an NVIDIA GPU: {}",
        causes.join(": ")
    )?;
    Ok(())
}

fn run(vm: &Vm) -> Result<(), Box<dyn Error>> {
    // Of the GPU's primary context, which gpuvm has too.
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    // SAFETY: the stream lives until both launches have ended, and longer than the handle.
    let borrowed = unsafe { vm.borrow_stream(stream.cu_stream() as u64) }?;
    let keys = vm.region::<u32>().name("keys").read_only().from_iter(0..KEYS)?;
    let mut bins = stream.alloc_zeros::<u32>(BINS as usize)?;

    let compiled_by_gpuvm = vm.kernel("cudarc.cu", SOURCE, "count")?;
    let first = {
        // Until it is dropped, behind the launch, cudarc leaves the slice alone.
        let (address, _in_use) = bins.device_ptr_mut(&stream);
        // SAFETY: `BINS` numbers, which nothing else uses until the stream has come past the launch.
        let bins = unsafe { Arg::address(ElementType::U32, address) };
        compiled_by_gpuvm.launch_on(&borrowed, shape(), (&keys, bins, BINS))?
    };
    let ptx = compile(vm, &context)?;
    let loaded_by_cudarc = context.load_module(ptx.clone())?.load_function("count")?;
    let second = launch_own(vm, (&stream, &borrowed), &loaded_by_cudarc, &keys, &mut bins)?;
    // The same PTX, whose kernel gpuvm launches and checks the arguments of: GPUVM_EXPORT describes it.
    let loaded_by_gpuvm = vm
        .load("cudarc.ptx", ptx.to_src().as_bytes(), &["count"])?
        .kernel("count")?;
    let third = {
        let (address, _in_use) = bins.device_ptr_mut(&stream);
        // SAFETY: as for the first launch.
        let bins = unsafe { Arg::address(ElementType::U32, address) };
        loaded_by_gpuvm.launch_on(&borrowed, shape(), (&keys, bins, BINS))?
    };
    for launch in [
        first,
        second,
        third,
        launch_plain(vm, (&stream, &borrowed), &keys, &mut bins)?,
    ] {
        launch.sync()?;
    }

    let counted = stream.clone_dtoh(&bins)?;
    for (bin, &count) in (0..BINS).zip(&counted) {
        let expected = 4 * (KEYS / BINS + u32::from(bin < KEYS % BINS));
        if count != expected {
            return Err(format!("bin {bin} has {count} keys, expected {expected}").into());
        }
    }
    let stats = vm.stats()?;
    // Not println!, which panics where the output is closed or full.
    writeln!(
        stdout(),
        "{KEYS} keys were counted by a kernel of gpuvm's, by one of cudarc's, by that of a PTX file and by one over plain pointers: {} pages fetched into {} frames",
        stats.pages_fetched,
        vm.frames()
    )?;
    Ok(())
}

fn shape() -> LaunchConfig {
    LaunchConfig::new(BLOCKS, THREADS)
}

/// The kernel, compiled by cudarc. A program that has PTX or a cubin of nvcc loads that.
fn compile(vm: &Vm, context: &Arc<CudaContext>) -> Result<nvrtc::Ptx, Box<dyn Error>> {
    let headers = tempfile::tempdir()?;
    gpuvm::write_headers(headers.path())?;
    let (major, minor) = context.compute_capability()?;
    let options = nvrtc::CompileOptions {
        include_paths: vec![headers.path().display().to_string()],
        options: vec![
            format!("--gpu-architecture=compute_{major}{minor}"),
            "--std=c++17".to_owned(),
            format!("--define-macro=GPUVM_FEATURES={}", vm.device_code().features),
        ],
        ..nvrtc::CompileOptions::default()
    };
    Ok(nvrtc::compile_ptx_with_opts(SOURCE, options)?)
}

/// A plain kernel, as cudarc compiles it: its PTX is rewritten to look pages up, and the array is given for one of its pointers.
fn launch_plain(
    vm: &Vm,
    (stream, borrowed): (&CudaStream, &StreamHandle),
    keys: &Region<u32>,
    bins: &mut CudaSlice<u32>,
) -> Result<gpuvm::Launch, Box<dyn Error>> {
    let ptx = nvrtc::compile_ptx(PLAIN)?.to_src();
    let kernel = vm.load_ptx("plain.ptx", ptx.as_bytes())?.kernel("count_plain")?;
    let (address, _in_use) = bins.device_ptr_mut(stream);
    // SAFETY: as for the first launch.
    let bins = unsafe { Arg::address(ElementType::U32, address) };
    Ok(kernel.launch_on(borrowed, shape(), (keys, u64::from(KEYS), bins, BINS))?)
}

/// Launches a function of cudarc's by cudarc: gpuvm has the array ready, and watches the launch.
fn launch_own(
    vm: &Vm,
    (stream, borrowed): (&CudaStream, &StreamHandle),
    function: &CudaFunction,
    keys: &Region<u32>,
    bins: &mut CudaSlice<u32>,
) -> gpuvm::Result<gpuvm::Launch> {
    let enqueue = |_: Option<u64>, views: &[Vec<u8>]| {
        let keys = Array(bytemuck::pod_read_unaligned(&views[0]));
        let shape = cudarc::driver::LaunchConfig {
            grid_dim: (BLOCKS, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = stream.launch_builder(function);
        launch.arg(&keys).arg(bins).arg(&BINS);
        // SAFETY: these are the kernel's parameters, and there are `BINS` bins.
        let launched = unsafe { launch.launch(shape) };
        launched.map(drop).map_err(|error| error.to_string())
    };
    let code = ("count", vm.device_code());
    // SAFETY: one kernel goes on that stream, which only reads the keys and was compiled for this virtual memory.
    unsafe { vm.launch_by(Some(borrowed), code, &shape(), &[Use::reads(keys)], enqueue) }
}
