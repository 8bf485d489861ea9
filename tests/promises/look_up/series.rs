//! Series: kernels over one region that are enqueued without being told apart, on the simulated GPU and, as a graph captures and launches
//! them, on one that is simulated beside it.

use gpuvm::{Buffer, Error, Kernel, Placement, Region, Series};

use super::{N, SOURCE, config, direct, values};
use crate::common::{Bench, Kernels, compare, refused, with_causes};
use crate::mock_gpu::MockGpu;

pub(super) const STEPS: Kernels = Kernels {
    name: "series.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>
using u64 = unsigned long long;
__device__ u64 lane() { return blockIdx.x * 1ull * blockDim.x + threadIdx.x; }
__device__ u64 lanes() { return gridDim.x * 1ull * blockDim.x; }
__global__ void step(gpuvm::array<unsigned> a, u64 by) {
    for (u64 i = lane(); i < a.size(); i += lanes()) a[i] += static_cast<unsigned>(by);
}
__global__ void copy(gpuvm::array<const unsigned> a, u64 out) {
    for (u64 i = lane(); i < a.size(); i += lanes()) reinterpret_cast<unsigned*>(out)[i] = a[i];
}
// Words of another size than the region's elements.
__global__ void copy_pairs(gpuvm::array<const u64> a, u64 out) {
    for (u64 i = lane(); i < a.size(); i += lanes()) reinterpret_cast<u64*>(out)[i] = a[i];
}
__global__ void add(gpuvm::array<unsigned> a, gpuvm::array<const unsigned> b, unsigned factor) {
    for (u64 i = lane(); i < a.size(); i += lanes()) a[i] += factor * b[i];
}
",
};

/// Enqueues a kernel in a series: whether it has not ended.
pub(super) fn put(series: &Series, kernel: &Kernel, word: u64, arg: u64) -> bool {
    // SAFETY: the kernels wait for nothing; they store only in series that say so, and to buffers that the tests keep.
    let put = unsafe { kernel.launch_in(series, 0, &config(), word, &[&arg.to_ne_bytes()]) };
    put.unwrap_or_else(|error| panic!("{}", with_causes(&error)))
}

/// What kernels of a series have left in a buffer, which does not know of them.
pub(super) fn told(bench: &Bench, out: &Buffer<u32>) -> Vec<u32> {
    bench.vm.device().drain().unwrap();
    out.to_vec().unwrap()
}

pub(super) fn begin(region: &Region<u32>, writes: bool) -> Series {
    let begun = region
        .series(writes)
        .unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    begun.expect("its pages are looked up")
}

fn same(found: &[u32], wanted: &[u32]) {
    compare(found, wanted).unwrap_or_else(|wrong| panic!("{wrong}"));
}

fn stepped(values: &[u32], by: u32) -> Vec<u32> {
    values.iter().map(|value| value.wrapping_add(by)).collect()
}

#[test]
fn launches_of_a_series_are_seen_by_what_waits_for_it() {
    for frames in [40, 7, 1] {
        let bench = Bench::new(direct(frames), STEPS);
        let wanted = values(1);
        let region = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
        let out = bench.vm.buffer::<u32>(N).unwrap();
        let mut series = begin(&region, true);
        for round in 0..6 {
            for _ in 0..3 {
                assert!(put(&series, &bench.kernel("step"), 4, 5));
            }
            assert!(put(&series, &bench.kernel("copy"), 4, out.addr()) && !series.is_over());
            let wanted = stepped(&wanted, 15 * (round + 1));
            same(&told(&bench, &out), &wanted);
            assert!(put(&series, &bench.kernel("copy_pairs"), 8, out.addr()));
            // A word of two elements that has one past the end is not there.
            same(&told(&bench, &out)[..N as usize & !1], &wanted[..N as usize & !1]);
            match round % 3 {
                0 => same(&region.to_vec().unwrap(), &wanted),
                1 => region.evict().unwrap(),
                _ => series.end().unwrap(),
            }
            assert!(series.is_over() && !put(&series, &bench.kernel("step"), 4, 5));
            // Pages that it used come before the next one.
            series = begin(&region, true);
            series.end().unwrap();
            series = begin(&region, true);
        }
        let stats = bench.vm.stats().unwrap();
        assert!(stats.pages_fetched > 0, "with {frames} frames: {stats:?}");
        series.end().unwrap();
        region.close().unwrap();
    }
}

#[test]
fn launches_that_fetch_pages_end_series_and_take_their_frames() {
    let bench = Bench::new(direct(7), STEPS);
    let (wanted, b) = (values(1), values(2));
    let region = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
    let fetched = bench
        .vm
        .region::<u32>()
        .placement(Placement::Fetch)
        .from_slice(&b)
        .unwrap();
    let mut expected = wanted;
    for factor in 1..4u32 {
        let series = begin(&region, true);
        assert!(put(&series, &bench.kernel("step"), 4, u64::from(factor)));
        bench.must("add", config(), (&fetched, &fetched, 0u32));
        assert!(series.is_over());
        expected = stepped(&expected, factor);
        same(&region.to_vec().unwrap(), &expected);
    }
    same(&fetched.to_vec().unwrap(), &b);
}

#[test]
fn what_others_write_at_home_is_seen_once_it_is_said() {
    let bench = Bench::new(direct(40), STEPS);
    let region = bench.vm.region::<u32>().from_slice(&values(1)).unwrap();
    let out = bench.vm.buffer::<u32>(N).unwrap();
    for seed in 2..5 {
        for _ in 0..3 {
            let series = begin(&region, false);
            assert!(put(&series, &bench.kernel("copy"), 4, out.addr()));
            series.end().unwrap();
        }
        let (home, wanted) = (region.home_memory().unwrap(), values(seed));
        assert_eq!(home.bytes, 4 * N);
        assert!(region.is_home_current());
        let to: *mut u32 = std::ptr::with_exposed_provenance_mut(home.addr as usize);
        // SAFETY: the home has `N` words, and no launch runs.
        unsafe { std::ptr::copy_nonoverlapping(wanted.as_ptr(), to, wanted.len()) };
        region.wrote().unwrap();
        let series = begin(&region, false);
        assert!(put(&series, &bench.kernel("copy"), 4, out.addr()));
        same(&told(&bench, &out), &wanted);
    }
    let series = begin(&region, true);
    assert!(put(&series, &bench.kernel("step"), 4, 1) && !region.is_home_current());
    region.flush().unwrap();
    assert!(region.is_home_current());
}

#[test]
fn graphs_go_on_with_pages_that_moved_and_with_what_was_written() {
    let gpu = MockGpu::new(None);
    let bench = Bench::new(direct(7).gpu(gpu.clone()), STEPS);
    let region = bench.vm.region::<u32>().from_slice(&values(1)).unwrap();
    let other = bench.vm.region::<u32>().from_slice(&values(2)).unwrap();
    let out = bench.vm.buffer::<u32>(N).unwrap();
    let series = begin(&region, true);
    gpu.capture(true);
    assert!(put(&series, &bench.kernel("step"), 4, 3) && put(&series, &bench.kernel("copy"), 4, out.addr()));
    gpu.capture(false);
    assert!(series.was_captured());
    let mut wanted = values(1);
    for round in 0..12 {
        gpu.launch_captured();
        wanted = stepped(&wanted, 3);
        same(&told(&bench, &out), &wanted);
        match round % 4 {
            0 => same(&region.to_vec().unwrap(), &wanted),
            // Others look pages up, and want frames.
            1 => drop(bench.must("add", config(), (&other, &region, 0u32))),
            2 => drop(bench.must("step", config(), (&region, 4u64))),
            _ => {
                let others = begin(&region, true);
                assert!(put(&others, &bench.kernel("step"), 4, 5));
                others.end().unwrap();
            }
        }
        wanted = stepped(&wanted, [0, 0, 4, 5][round % 4]);
    }
    let why = refused(region.evict());
    assert!(why.contains("CUDA graph") && why.contains("forget_graphs"), "{why}");
    refused(region.write(0, &[1]));
    same(&region.to_vec().unwrap(), &wanted);
    region.forget_graphs().unwrap();
    region.evict().unwrap();
    same(&region.to_vec().unwrap(), &wanted);
    same(&other.to_vec().unwrap(), &values(2));
}

#[test]
fn launches_that_fetch_do_not_run_over_a_region_of_a_graph() {
    let gpu = MockGpu::new(None);
    let bench = Bench::new(direct(40).gpu(gpu.clone()), STEPS);
    let region = bench.vm.region::<u32>().from_slice(&values(1)).unwrap();
    let fetched = bench
        .vm
        .region::<u32>()
        .placement(Placement::Fetch)
        .from_slice(&values(2))
        .unwrap();
    let series = begin(&region, false);
    gpu.capture(true);
    assert!(put(
        &series,
        &bench.kernel("copy"),
        4,
        bench.vm.buffer::<u32>(N).unwrap().addr()
    ));
    gpu.capture(false);
    let error = bench.run("add", config(), (&fetched, &region, 1u32)).unwrap_err();
    assert!(matches!(error, Error::Region { .. }), "{}", with_causes(&error));
    // Over others they do.
    bench.must("add", config(), (&fetched, &fetched, 0u32));
    region.close().unwrap();
}

#[test]
fn no_series_begins_where_pages_are_not_looked_up() {
    let bench = Bench::new(direct(7), SOURCE);
    for region in [
        bench.vm.region::<u32>().placement(Placement::Fetch).zeroed(N).unwrap(),
        bench.vm.region::<u32>().never_evicted().zeroed(9).unwrap(),
        bench.vm.region::<u32>().zeroed(0).unwrap(),
    ] {
        assert!(region.series(false).unwrap().is_none());
    }
}
