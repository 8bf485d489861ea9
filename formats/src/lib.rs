//! Files that other programs write, as regions of [`gpuvm`], in place: [`SafeTensors`] has the tensors of a `.safetensors` file,
//! [`ArrowFile`] the columns of an Arrow IPC file, which is Feather's version 2.
//!
//! Headers are read when a file is opened; they say where in the file which elements are. An [`Elements`] is such a place, and
//! [`Elements::region`] makes a read-only region of it, whose pages are the file's. While a region lives nothing may write the file or make it
//! shorter.
//!
//! Files are not trusted. A header that contradicts itself or the file's length is a [`FormatError`], found before a region is made. It is read up to
//! [`HEADER_BYTES_MAX`], and Arrow's describe a million columns at most. What the elements are is not looked at: offsets of strings and places in
//! dictionaries may lie, and a kernel that follows one finds the array's end checked.
//!
//! ```
//! use gpuvm::{LaunchConfig, Vm};
//! use gpuvm_formats::SafeTensors;
//!
//! const SOURCE: &str = r"
//! #include <gpuvm/gpuvm.cuh>
//! __global__ void largest(gpuvm::array<const float> w, unsigned* bits) {
//!     float found = 0;
//!     for (auto i = threadIdx.x; i < w.size(); i += blockDim.x) found = fmaxf(found, w[i]);
//!     atomicMax(bits, __float_as_uint(found));
//! }";
//!
//! # let file = std::env::temp_dir().join(format!("gpuvm-formats-{}.safetensors", std::process::id()));
//! # let header = format!("{:64}", r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#);
//! # let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
//! # bytes.extend(header.as_bytes());
//! # bytes.extend([1.0f32, 4.0, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()));
//! # std::fs::write(&file, bytes)?;
//! let vm = Vm::builder().frame_memory(1 << 20).page_size(4096).build()?;
//! let w = SafeTensors::open(&file)?.tensor("w")?.region::<f32>(&vm)?;
//! let bits = vm.buffer::<u32>(1)?;
//! vm.kernel("largest.cu", SOURCE, "largest")?.launch(LaunchConfig::new(1, 32), (&w, &bits))?.sync()?;
//! assert_eq!(f32::from_bits(bits.to_vec()?[0]), 4.0);
//! # drop(w);
//! # std::fs::remove_file(file)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arrow;
mod dtype;
mod elements;
mod error;
mod file;
mod tensors;

pub use arrow::{ArrowFile, Batch, Column};
pub use dtype::Dtype;
pub use elements::Elements;
pub use error::{FormatError, Result};
pub use tensors::{SafeTensors, Tensor};

/// Largest header, footer or description of a record batch that is read, in bytes: 100 million, as the crate `safetensors` has it.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// The programs of the crate's README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
