//! Pages that come to free frames while a launch runs that looks them up and only reads them.

use super::{N, add, config, direct, values};
use crate::common::{Bench, Kernels, PAGE_WORDS, compare};
use gpuvm::{Region, VmBuilder};
use gpuvm_simulate::adjust::Adjust;

const SOURCE: Kernels = Kernels {
    name: "beside.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>
using u64 = unsigned long long;
__device__ u64 lane() { return blockIdx.x * 1ull * blockDim.x + threadIdx.x; }
__device__ u64 lanes() { return gridDim.x * 1ull * blockDim.x; }
// Adds up the elements, again and again, with pauses between.
__global__ void again(gpuvm::array<const unsigned> a, unsigned rounds, unsigned pause_ns, unsigned* out) {
    for (unsigned round = 0; round < rounds; ++round) {
        unsigned sum = 0;
        for (u64 i = lane() * 32; i < a.size(); i += lanes() * 32) sum += a[i];
        atomicAdd(out, sum);
        __nanosleep(pause_ns);
    }
}
// One element of each page, in order, with pauses between.
__global__ void walk(gpuvm::array<const unsigned> a, unsigned pages, unsigned pause_ns, unsigned* out) {
    if (lane() != 0) return;
    unsigned sum = 0;
    for (unsigned page = 0; page < pages; ++page) {
        sum += a[page * 1024];
        __nanosleep(pause_ns);
    }
    *out = sum;
}
__global__ void add(gpuvm::array<unsigned> a, gpuvm::array<const unsigned> b, unsigned factor) {
    for (u64 i = lane(); i < a.size(); i += lanes()) a[i] += factor * b[i];
}
",
};

const PAGES: u64 = N.div_ceil(PAGE_WORDS);
const ROUNDS: u32 = 200;

fn beside(frames: u64) -> VmBuilder {
    direct(frames).bring_beside(true)
}

fn again(bench: &Bench, a: &Region<u32>, of_a: &[u32]) {
    let out = bench.vm.buffer::<u32>(1).unwrap();
    out.write(&[0]).unwrap();
    bench.must("again", config(), (a, ROUNDS, 2000u32, &out));
    let sum = of_a
        .iter()
        .step_by(32)
        .fold(0u32, |sum, value| sum.wrapping_add(*value));
    assert_eq!(out.to_vec().unwrap(), [sum.wrapping_mul(ROUNDS)]);
}

#[test]
fn what_a_launch_reads_again_and_again_comes_while_it_runs_and_goes_home_by_nobody() {
    for (frames, seed) in [(2 * PAGES, Some(1)), (PAGES / 2, Some(2)), (2 * PAGES, None)] {
        let with = beside(frames);
        let with = match seed {
            Some(seed) => with.seed(seed),
            None => with,
        };
        let bench = Bench::new(with, SOURCE);
        let (mut of_a, of_b) = (values(1), values(2));
        let a = bench.vm.region::<u32>().from_slice(&of_a).unwrap();
        let b = bench.vm.region::<u32>().from_slice(&of_b).unwrap();
        again(&bench, &a, &of_a);
        let fetched = bench.vm.stats().unwrap().pages_fetched;
        eprintln!("frames {frames} seed {seed:?}: {fetched} of {PAGES}");
        assert!(fetched > 0, "no page has come");
        // What it marked late is nothing that was written.
        again(&bench, &a, &of_a);
        a.flush_beside().unwrap();
        compare(&a.to_vec().unwrap(), &of_a).unwrap();
        assert_eq!(bench.vm.stats().unwrap().pages_written_back, 0);
        // What others store then comes home.
        bench.must("add", config(), (&a, &b, 3u32));
        add(&mut of_a, &of_b, 3);
        again(&bench, &a, &of_a);
        compare(&a.to_vec().unwrap(), &of_a).unwrap();
        a.evict().unwrap();
        compare(&a.to_vec().unwrap(), &of_a).unwrap();
    }
}
