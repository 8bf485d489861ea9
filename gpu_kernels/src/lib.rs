//! GPUs whose threads serve their own page misses: the traits every GPU implements, [`cuda::CudaGpu`], an NVIDIA GPU, and
//! [`sim::SimGpu`], a GPU simulated in this process that runs CUDA C++ kernels through the host's C++ compiler.
//!
//! ```no_run
//! use gpuvm_gpu::{CompileOptions, Gpu, LaunchConfig, Source, sim::SimGpu};
//! # fn main() -> Result<(), gpuvm_gpu::GpuError> {
//! let gpu = SimGpu::builder().memory_bytes(64 << 20).build()?;
//! let source = Source::new("twice.cu", "__global__ void twice(int* a) { a[threadIdx.x] *= 2; }");
//! let kernel = gpu.compile(&source, &["twice"], &CompileOptions::default())?.kernel("twice")?;
//! let data = gpu.allocate(32 * 4, 256)?;
//! gpu.write(data.addr(), &[1u8; 128])?;
//! let stream = gpu.stream()?;
//! let config = LaunchConfig::linear(1, 32);
//! let launch = stream.launch(&kernel, &config, &[&data.addr().to_ne_bytes()], 0, Box::new(|_| ()))?;
//! launch.wait(None).expect("no timeout was given")?;
//! # Ok(()) }
//! ```
//!
//! Errors are [`GpuError`]; everything public may be used from several threads at once.

#[cfg(not(target_os = "linux"))]
compile_error!("gpuvm-gpu needs Linux: its kernels are loaded ELF modules and its lanes use Linux signals");

mod api;
mod arguments;
mod cache;
pub mod cuda;
mod diagnostics;
mod error;
mod headers;
mod lock;
mod params;
mod ranges;
pub mod sim;

pub use api::*;
pub use error::{Coordinates, GpuError};
pub use headers::headers;
