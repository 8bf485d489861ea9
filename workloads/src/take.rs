//! Rows of a table by their numbers, into plain device memory. `take.cu` beside this file has the kernel.

use bytemuck::Pod;
use gpuvm::{Buffer, CompileOptions, Error, Kernel, LaunchConfig, Region, VmGpu};

use crate::apps::ACCESS;

/// The kernels' source.
pub const SOURCE: &str = include_str!("take.cu");

/// Warps of a block.
const BLOCK_WARPS: u64 = 4;
/// Blocks for each multiprocessor: as many as the kernel's launch bounds let run, twice, so that none is without work.
const BLOCKS: u64 = 8;

/// An element that rows are made of.
pub trait Number: Pod {
    /// What it is in C++.
    const NAME: &'static str;
}

macro_rules! numbers {
    ($($number:ty = $name:literal),*) => {$(
        impl Number for $number {
            const NAME: &'static str = $name;
        }
    )*};
}
numbers!(f32 = "float", f64 = "double", i32 = "int", i64 = "long long");

/// Takes rows of tables on one GPU.
pub struct Take<'vm, T> {
    vm: &'vm VmGpu,
    kernel: Kernel,
    _of: std::marker::PhantomData<T>,
}

/// What [`Take::rows`] has made.
pub struct Taken<T> {
    /// The rows, in the order of their numbers.
    pub rows: Buffer<T>,
    /// How long the kernel took.
    pub kernel: std::time::Duration,
}

impl<'vm, T: Number> Take<'vm, T> {
    /// Compiles the kernel.
    ///
    /// # Errors
    /// As [`VmGpu::kernels`].
    pub fn new(vm: &'vm VmGpu) -> Result<Self, Error> {
        let options = CompileOptions {
            headers: vec![("access.cuh".to_owned(), ACCESS.to_owned())],
            ..CompileOptions::default()
        };
        let name = format!("take<{}>", T::NAME);
        let [kernel] = vm.kernels("take.cu", SOURCE, [&name], &options)?;
        Ok(Self {
            vm,
            kernel,
            _of: std::marker::PhantomData,
        })
    }

    /// The rows `ids` of `table`, which has `width` elements a row.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a number that is no row's, before anything runs; as [`VmGpu::buffer`], [`Kernel::launch`] and [`gpuvm::Launch::sync`].
    pub fn rows(&self, table: &Region<T>, width: u64, ids: &[i64]) -> Result<Taken<T>, Error> {
        let (count, length) = (ids.len() as u64, table.len() / width);
        let bounds = (ids.iter().min(), ids.iter().max());
        if let (Some(&least), Some(&most)) = bounds
            && (least < 0 || most as u64 >= length)
        {
            let first = if least < 0 { least as u64 } else { most as u64 };
            return Err(Error::OutOfRange {
                name: format!("rows of {}", table.name()),
                first,
                end: first.saturating_add(1),
                length,
            });
        }
        let rows = self.vm.buffer::<T>(count * width)?;
        let numbers = self.vm.buffer::<i64>(count)?;
        numbers.write(ids)?;
        let launch = self
            .kernel
            .launch(self.shape(count), (table, &numbers, &rows, width, count))?;
        let kernel = launch.sync()?.elapsed();
        Ok(Taken { rows, kernel })
    }

    /// As many warps as have work, can run, and find a frame each for the page that they hold.
    fn shape(&self, rows: u64) -> LaunchConfig {
        let most = u64::from(self.vm.device().capabilities().sm_count) * BLOCKS * BLOCK_WARPS;
        let warps = rows.min(most).min(self.vm.frames().saturating_sub(1));
        let config = match warps < BLOCK_WARPS {
            true => LaunchConfig::new(warps.max(1) as u32, 32),
            false => LaunchConfig::new((warps / BLOCK_WARPS) as u32, 32 * BLOCK_WARPS as u32),
        };
        config.warp_spans(1)
    }
}
