//! GPUs whose threads serve their own page misses: the traits every GPU implements, the device library's
//! [`headers`](headers()), and [`cuda::CudaGpu`], an NVIDIA GPU. The simulated GPU is the crate `gpuvm-sim-gpu`.
//!
//! ```no_run
//! use gpuvm_gpu::{CompileOptions, Gpu, LaunchConfig, Source, cuda::CudaGpu};
//! # fn main() -> Result<(), gpuvm_gpu::GpuError> {
//! let gpu = CudaGpu::open(0)?;
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
compile_error!("gpuvm-gpu needs Linux: its GPUs map memory as Linux does");

mod api;
pub mod back_end;
pub mod cuda;
mod error;
mod headers;
mod memory;
mod simulation;

pub use api::*;
pub use error::{Coordinates, GpuError};
pub use headers::{headers, write_headers};
pub use memory::{DeviceMemory, HostMemory, HostRegistration};
pub use simulation::{Actor, IsOver, NoteFormatter, OnCopy, OnStore, Simulation};
