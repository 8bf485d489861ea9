//! A program's host part: it makes arrays and launches kernels, over plain memory for the original and over pages for the port.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;

use bytemuck::Pod;
use gpuvm::{Buffer, Gpu, Kernel, KernelArgs, LaunchConfig, Placement, SimulatedGpu, Stats, Vm};
use gpuvm_gpu::cuda::{Architecture, compile_to_cubin, presence};
use gpuvm_gpu::{CompileOptions, Source};
use gpuvm_workloads::apps::{Array, Space, Use, Way};

pub type Failure = Box<dyn Error>;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Kernels on a GPU, and arrays for them.
pub struct Bench {
    space: Space,
    kernels: BTreeMap<String, Kernel>,
    bytes: Cell<u64>,
    /// The size of the problem; what it counts depends on the program.
    pub n: u32,
}

/// Compiles kernels for an NVIDIA GPU too, where NVRTC is there: whether they were.
pub fn compiles_for_nvidia(file: &str, source: &str, kernels: &[&str]) -> Result<bool, Failure> {
    if !presence().nvrtc {
        return Ok(false);
    }
    let source = Source::new(file, source);
    compile_to_cubin(&source, kernels, &CompileOptions::default(), Architecture(90))?;
    Ok(true)
}

/// The GPU that `GPUVM_TEST_GPU` names, such as cuda:0; else the simulated one.
pub fn gpu() -> Result<Gpu, Failure> {
    match std::env::var("GPUVM_TEST_GPU") {
        Ok(name) => Ok(name.parse()?),
        Err(_) => Ok(SimulatedGpu::new().workers(2).into()),
    }
}

impl Bench {
    /// With the kernels of `source`; `frames`: how many pages of the arrays fit into memory. `None`: arrays are plain memory.
    pub fn new(file: &str, source: &str, kernels: &[&str], n: u32, frames: Option<u64>) -> Result<Self, Failure> {
        let vm = Vm::builder()
            .gpu(gpu()?)
            .transport(gpuvm::Transport::Direct)
            .page_size(PAGE)
            .frame_memory(frames.unwrap_or(4) * PAGE)
            .build()?;
        let way = match frames {
            Some(_) => Way::Paged(Placement::Fetch),
            None => Way::Raw,
        };
        let module = vm.compile(file, source, kernels)?;
        let kernel = |name: &&str| -> Result<_, Failure> { Ok((name.to_string(), module.kernel(name)?)) };
        Ok(Self {
            kernels: kernels.iter().map(kernel).collect::<Result<_, _>>()?,
            space: Space::new(&vm, way, "0")?,
            bytes: Cell::new(0),
            n,
        })
    }

    /// Whether the kernels are the port's.
    pub fn paged(&self) -> bool {
        matches!(self.space.way(), Way::Paged(_))
    }

    /// An array that the port pages.
    pub fn large<T: Pod>(&self, name: &'static str, usage: Use, values: &[T]) -> Result<Array<T>, Failure> {
        let bytes = size_of_val(values) as u64;
        self.bytes.set(self.bytes.get() + bytes.next_multiple_of(PAGE));
        Ok(self.space.array(name, usage, values)?)
    }

    /// An array that stays plain memory in the port.
    pub fn small<T: Pod>(&self, values: &[T]) -> Result<Buffer<T>, Failure> {
        Ok(self.space.upload(values)?)
    }

    /// Launches a kernel and waits for it.
    pub fn launch(&self, kernel: &str, grid: [u32; 2], block: [u32; 2], args: impl KernelArgs) -> Result<(), Failure> {
        let shape = LaunchConfig::grid([grid[0], grid[1], 1], [block[0], block[1], 1]);
        let kernel = self.kernels.get(kernel).ok_or_else(|| format!("no kernel {kernel}"))?;
        kernel.launch(shape, args)?.sync()?;
        Ok(())
    }

    /// Pages of the arrays so far.
    pub fn pages(&self) -> u64 {
        self.bytes.get() / PAGE
    }

    /// What paging has done.
    pub fn stats(&self) -> Result<Stats, Failure> {
        Ok(self.space.stats()?)
    }
}

/// A program's results, in a type that holds all of theirs exactly.
pub fn results<T: Copy + Into<f64>>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| (*value).into()).collect()
}
