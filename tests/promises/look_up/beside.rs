//! Pages that come to free frames while a launch runs that looks them up and only reads them.

use super::{N, add, config, direct, values};
use crate::common::{Bench, Kernels, PAGE_WORDS, check_frames, compare};
use gpuvm::{Placement, Region, VmBuilder};
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

/// Whether pages come: to frames for all of them, and on an NVIDIA GPU none of so small an array.
fn comes(bench: &Bench, frames: u64) -> bool {
    frames >= PAGES && bench.vm.device().capabilities().compute_capability.is_none()
}

/// Of what a launch adds up once.
fn sum(of_a: &[u32]) -> u32 {
    of_a.iter().step_by(32).fold(0, |sum, value| sum.wrapping_add(*value))
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
    for (frames, seed) in [
        (2 * PAGES, Some(1)),
        (PAGES / 2, Some(2)),
        (PAGES, Some(3)),
        (2 * PAGES, None),
    ] {
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
        // Where frames do not suffice for all none comes.
        assert_eq!(fetched > 0, comes(&bench, frames), "{fetched} pages have come");
        // What it marked late is nothing that was written.
        again(&bench, &a, &of_a);
        a.flush_beside().unwrap();
        compare(&a.to_vec().unwrap(), &of_a).unwrap();
        assert_eq!(bench.vm.stats().unwrap().pages_written_back, 0);
        // What others store then is written back.
        bench.must("add", config(), (&a, &b, 3u32));
        add(&mut of_a, &of_b, 3);
        again(&bench, &a, &of_a);
        compare(&a.to_vec().unwrap(), &of_a).unwrap();
        a.evict().unwrap();
        compare(&a.to_vec().unwrap(), &of_a).unwrap();
    }
}

/// Kernels that came as PTX find pages by entries in a window, whose marks lie beside those of other regions.
#[test]
fn what_rewritten_kernels_read_again_and_again_comes_while_they_run() {
    for frames in [2 * PAGES, PAGES / 2] {
        let bench = Bench::new(beside(frames).seed(3), SOURCE);
        let of_a = values(1);
        let (a, b) = (
            bench.vm.region::<u32>().read_only().from_slice(&of_a).unwrap(),
            bench.vm.region::<u32>().read_only().from_slice(&values(2)).unwrap(),
        );
        let module = bench
            .vm
            .load_ptx("again.ptx", include_str!("again.ptx").as_bytes())
            .unwrap();
        let kernel = module.kernel("again").unwrap();
        let out = bench.vm.buffer::<u32>(1).unwrap();
        for turn in 0..4 {
            out.write(&[0]).unwrap();
            let (region, values) = if turn == 2 { (&b, values(2)) } else { (&a, of_a.clone()) };
            let launch = kernel.launch(config(), (region, N, ROUNDS, 2000u32, &out)).unwrap();
            launch.sync().unwrap();
            assert_eq!(out.to_vec().unwrap(), [sum(&values).wrapping_mul(ROUNDS)]);
            let fetched = bench.vm.stats().unwrap().pages_fetched;
            assert!(
                turn > 0 || (fetched > 0) == comes(&bench, frames),
                "{fetched} pages have come"
            );
        }
        compare(&a.to_vec().unwrap(), &of_a).unwrap();
        assert_eq!(bench.vm.stats().unwrap().pages_written_back, 0);
    }
}

/// Frames come and go while some are out of the pool for such a launch; launches that fetch find those that it took.
#[test]
fn frames_that_were_taken_for_it_serve_others() {
    let unit = direct(4)
        .seed(4)
        .build()
        .unwrap()
        .elastic_stats()
        .handles
        .handle_bytes
        .max(4096);
    let units = |count: u64| count * unit;
    let frames = beside(units(1) / 4096);
    let bench = Bench::new(frames.frame_memory(units(1)).frame_capacity(units(3)).seed(4), SOURCE);
    let of_a = values(5);
    let a = bench.vm.region::<u32>().from_slice(&of_a).unwrap();
    let fetched = bench.vm.region::<u32>().placement(Placement::Fetch);
    let mut of_b = values(6);
    let b = fetched.from_slice(&of_b).unwrap();
    for turn in 1..4u32 {
        let out = bench.vm.buffer::<u32>(1).unwrap();
        out.write(&[0]).unwrap();
        let kernel = bench.kernel("again");
        let launch = kernel.launch(config(), (&a, 20u32, 2000u32, &out)).unwrap();
        // The launch may keep some of those that were to go.
        let resized = bench.vm.resize_frames(units(u64::from(turn % 3) + 1)).unwrap();
        assert_eq!(resized.missing_bytes, 0);
        bench.must("add", config(), (&b, &b, turn));
        let before = of_b.clone();
        add(&mut of_b, &before, turn);
        launch.sync().unwrap();
        assert_eq!(out.to_vec().unwrap(), [sum(&of_a).wrapping_mul(20)]);
    }
    compare(&a.to_vec().unwrap(), &of_a).unwrap();
    compare(&b.to_vec().unwrap(), &of_b).unwrap();
    check_frames(&bench.vm).unwrap();
}
