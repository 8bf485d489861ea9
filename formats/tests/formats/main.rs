//! Files of other libraries are regions in place; broken ones are errors.

mod arrow;
mod broken;
mod nested;
mod python;
mod tensors;

use std::path::{Path, PathBuf};

use gpuvm::{LaunchConfig, Region, SimulatedGpu, Vm};
use gpuvm_formats::Elements;

/// Bytes of a page: a few of them hold none of the test files as a whole.
const PAGE: u64 = 4096;

/// Adds up what a region has; looks at strings.
const SUMS: &str = r"
#include <gpuvm/gpuvm.cuh>

template <typename T, typename Sum>
__global__ void sum(gpuvm::array<const T> values, Sum* total) {
    Sum own = 0;
    auto threads = gridDim.x * 1ull * blockDim.x;
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < values.size(); i += threads) own += T(values[i]);
    atomicAdd(total, own);
}

// The length of the longest string, and the number of strings that are there.
__global__ void strings(gpuvm::array<const int> offsets, gpuvm::array<const unsigned char> validity, unsigned long long* found) {
    for (auto i = threadIdx.x; i + 1 < offsets.size(); i += blockDim.x) {
        unsigned byte = validity[i / 8];
        if (!(byte >> i % 8 & 1)) continue;
        unsigned long long length = int(offsets[i + 1]) - int(offsets[i]);
        atomicMax(found, length);
        atomicAdd(found + 1, 1ull);
    }
}
";

/// A virtual memory on the simulated GPU with frames for eight pages.
fn vm() -> Vm {
    let vm = Vm::builder().gpu(SimulatedGpu::new().memory(64 << 20));
    vm.frame_memory(8 * PAGE).page_size(PAGE).build().unwrap()
}

/// What elements are, by a region.
#[track_caller]
fn read<T: bytemuck::Pod>(elements: &Elements) -> Vec<T> {
    elements.region::<T>(&vm()).unwrap().to_vec().unwrap()
}

/// The sum of a region's elements by the kernel of these types of C's.
fn sum<T: bytemuck::Pod, Sum: bytemuck::Pod>(vm: &Vm, types: &str, values: &Region<T>) -> Sum {
    let total = vm.buffer::<Sum>(1).unwrap();
    let kernel = vm.kernel("sums.cu", SUMS, &format!("sum<{types}>")).unwrap();
    let launch = kernel.launch(LaunchConfig::new(2, 64), (values, &total)).unwrap();
    launch.sync().unwrap();
    total.to_vec().unwrap()[0]
}

/// A file in a folder of the test's.
fn write(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// What an error and its causes say.
#[track_caller]
fn refused<T>(outcome: gpuvm_formats::Result<T>) -> String {
    let Err(error) = outcome else {
        panic!("it was not refused")
    };
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[track_caller]
fn says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}
