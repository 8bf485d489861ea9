//! `Advice::WriteOnce`: stores go past the frames to where pages live, and what comes of them is what it was without.

use std::time::Duration;

use crate::common::{Bench, Kernels, PAGE, PAGE_WORDS, compare, direct, file_to_map, simulated, simulated_soft};
use crate::mock_gpu::{MockGpu, NEIGHBOUR};
use gpuvm::{Advice, Error, LaunchConfig, Placement, Region, Stats, Transport};

const SOURCE: Kernels = Kernels {
    name: "stores_in_place.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 first_index() { return blockIdx.x * 1ull * blockDim.x + threadIdx.x; }
__device__ inline u64 lanes() { return gridDim.x * 1ull * blockDim.x; }

struct alignas(16) wide {
    u64 lo, hi;
};
struct wider {
    u64 words[8];
};
template <class T>
__device__ T made(u64 x) { return static_cast<T>(x * 7 + 1); }
template <>
__device__ wide made<wide>(u64 x) { return wide{x + 1, ~x}; }
template <>
__device__ wider made<wider>(u64 x) { return wider{{x + 1, x, x, x, x, x, x, ~x}}; }

// Each element once: neighbours by neighbouring lanes, or far apart. `step` has no factor in common with the size.
template <class T>
__device__ void store_each(gpuvm::array<T>& a, u64 step) {
    for (u64 n = first_index(); n < a.size() && !a.failed(); n += lanes()) {
        u64 i = n * step % a.size();
        a[i] = made<T>(i);
    }
}
__global__ void store_bytes(gpuvm::array<unsigned char> a, u64 step) { store_each(a, step); }
__global__ void store_shorts(gpuvm::array<unsigned short> a, u64 step) { store_each(a, step); }
__global__ void store_words(gpuvm::array<unsigned> a, u64 step) { store_each(a, step); }
__global__ void store_longs(gpuvm::array<u64> a, u64 step) { store_each(a, step); }
__global__ void store_wide(gpuvm::array<wide> a, u64 step) { store_each(a, step); }
__global__ void store_wider(gpuvm::array<wider> a, u64 step) { store_each(a, step); }

__global__ void count_wrong(gpuvm::array<const unsigned> a, u64* wrong) {
    u64 bad = 0;
    for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) bad += a[i] != made<unsigned>(i);
    if (bad) atomicAdd(wrong, bad);
}

// Of every eight elements each is used in another way, by lanes that do so beside each other. Nothing touches the last.
__global__ void use_each_way(gpuvm::array<unsigned> a, u64* wrong) {
    u64 bad = 0;
    for (u64 n = first_index(); n < a.size() && !a.failed(); n += lanes()) {
        // Lanes of a warp go different ways, over all pages.
        u64 i = n * 1021 % a.size();
        unsigned x = static_cast<unsigned>(i);
        switch (i % 8) {
            case 0:
            case 1:
                a[i] = x + 1;
                bad += a[i] != x + 1;
                break;
            case 2:
                a.atomic_add(i, x);
                break;
            case 3:
                bad += a[i] != 5;
                a[i] = x;
                break;
            case 4:
                a[i] += x;
                break;
            case 5: {
                auto held = a.pin(i);
                if (held) held[0] = x;
                break;
            }
            case 6:
                if (i % 64 == 6) a.prefetch(i, 2);
                a[i] = x;
                a[i] = x + 2;
                break;
        }
    }
    if (bad) atomicAdd(wrong, bad);
}

// Stores until it is stopped.
__global__ void store_on(gpuvm::array<unsigned> a) {
    while (!a.failed())
        for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) a[i] = made<unsigned>(i);
}

// All lanes but one store to one page without end, until that one has fetched it.
__global__ void store_until_fetched(gpuvm::array<unsigned> a, unsigned* fetched) {
    if (first_index() == lanes() - 1) {
        if (a.atomic_add(0, 1) == 0) atomicExch(fetched, 1u);
        return;
    }
    while (atomicAdd(fetched, 0u) == 0 && !a.failed()) a[first_index() + 1] = made<unsigned>(first_index() + 1);
}
",
};

fn bench(frames: u64) -> Bench {
    Bench::new(direct(frames).placement(Placement::Fetch), SOURCE)
}

fn config() -> LaunchConfig {
    LaunchConfig::new(3, 64)
}

fn made(i: u64) -> u32 {
    (i * 7 + 1) as u32
}

fn advised<T>(a: Region<T>) -> Region<T> {
    assert!(a.advise(Advice::WriteOnce).unwrap());
    a
}

/// What one launch took.
fn took(bench: &Bench, kernel: &str, args: impl gpuvm::KernelArgs) -> Stats {
    let before = bench.vm.stats().unwrap();
    bench.must(kernel, config(), args);
    bench.vm.stats().unwrap().difference(&before)
}

/// That a launch stored this many bytes, and used no frame.
fn went_past_the_frames(took: &Stats, bytes: u64) {
    let moved = (took.pages_fetched, took.evictions, took.pages_written_back, took.faults);
    assert_eq!((moved, took.bytes_stored_in_place), ((0, 0, 0, 0), bytes));
}

#[test]
fn elements_of_every_size_reach_their_home_past_the_frames() {
    // Frames for a quarter of the pages, or for more than all.
    for frames in [5, 64] {
        let bench = bench(frames);
        fn each<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(bench: &Bench, kernel: &str, made: fn(u64) -> T) {
            // The last page is short, and the number of elements has no factor in common with the steps.
            let n = 20 * PAGE / size_of::<T>() as u64 + 3;
            for step in [1u64, 1021] {
                let a = advised(bench.vm.region::<T>().zeroed(n).unwrap());
                let took = took(bench, kernel, (&a, step));
                went_past_the_frames(&took, n * size_of::<T>() as u64);
                let expected: Vec<T> = (0..n).map(made).collect();
                compare(&a.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("{kernel}, {step}: {wrong}"));
            }
        }
        each::<u8>(&bench, "store_bytes", |i| (i * 7 + 1) as u8);
        each::<u16>(&bench, "store_shorts", |i| (i * 7 + 1) as u16);
        each::<u32>(&bench, "store_words", made);
        each::<u64>(&bench, "store_longs", |i| i * 7 + 1);
        each::<[u64; 2]>(&bench, "store_wide", |i| [i + 1, !i]);
        each::<[u64; 8]>(&bench, "store_wider", |i| [i + 1, i, i, i, i, i, i, !i]);
    }
}

#[test]
fn what_was_stored_in_place_is_read_by_later_launches_and_stays_in_a_file() {
    let n = 20 * PAGE_WORDS + 3;
    for placement in [
        Placement::Auto,
        Placement::Fetch,
        Placement::InPlace,
        Placement::WhileFree,
    ] {
        let bench = bench(6);
        let file = file_to_map();
        file.as_file().set_len(n * 4).unwrap();
        let region = || bench.vm.region::<u32>().placement(placement);
        for a in [region().zeroed(n), region().map_file_mut(file.path())] {
            let a = advised(a.unwrap());
            for step in [1u64, 1021] {
                went_past_the_frames(&took(&bench, "store_words", (&a, step)), n * 4);
                let wrong = bench.vm.buffer::<u64>(1).unwrap();
                bench.must("count_wrong", config(), (&a, &wrong));
                assert_eq!(wrong.to_vec().unwrap(), [0], "{placement}");
                // No page has a frame for the next one.
                a.evict().unwrap();
            }
            a.close().unwrap();
        }
        let stored = std::fs::read(file.path()).unwrap();
        let expected: Vec<u32> = (0..n).map(made).collect();
        compare(bytemuck::pod_collect_to_vec::<u8, u32>(&stored).as_slice(), &expected).unwrap();
    }
}

#[test]
fn stores_at_a_neighbour_reach_its_memory() {
    let gpu = MockGpu::new(Some((9, 0)));
    let builder = simulated_soft(6).transport(Transport::default()).gpu(gpu);
    let bench = Bench::new(builder.placement(Placement::Fetch), SOURCE);
    let n = 20 * PAGE_WORDS + 3;
    let a = advised(bench.vm.region::<u32>().home_on_gpu(NEIGHBOUR).zeroed(n).unwrap());
    went_past_the_frames(&took(&bench, "store_words", (&a, 1021u64)), n * 4);
    let expected: Vec<u32> = (0..n).map(made).collect();
    compare(&a.to_vec().unwrap(), &expected).unwrap();
}

#[test]
fn other_ways_to_use_the_region_go_on_beside_stores_in_place() {
    let n = 90 * PAGE_WORDS + 8;
    for placement in [Placement::Auto, Placement::Fetch, Placement::InPlace] {
        // The spans of a warp have frames, and there are for half of the pages or for all.
        for frames in [48, 128] {
            let bench = bench(frames);
            let a = bench.vm.region::<u32>().placement(placement);
            let a = advised(a.from_slice(&vec![5; n as usize]).unwrap());
            let wrong = bench.vm.buffer::<u64>(1).unwrap();
            let before = bench.vm.stats().unwrap();
            bench.must("use_each_way", LaunchConfig::new(1, 32).thread_spans(1), (&a, &wrong));
            let took = bench.vm.stats().unwrap().difference(&before);
            assert_eq!(wrong.to_vec().unwrap(), [0]);
            let expected: Vec<u32> = (0..n as u32)
                .map(|x| match x % 8 {
                    0 | 1 => x + 1,
                    2 | 4 => x + 5,
                    3 | 5 => x,
                    6 => x + 2,
                    _ => 5,
                })
                .collect();
            compare(&a.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("{placement}: {wrong}"));
            assert!(took.bytes_stored_in_place > 0 && took.pages_fetched > 0, "{took:?}");
        }
    }
}

#[test]
fn a_page_that_has_a_frame_is_stored_there() {
    let bench = bench(64);
    let n = 20 * PAGE_WORDS;
    let a = advised(bench.vm.region::<u32>().zeroed(n).unwrap());
    let wrong = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("count_wrong", config(), (&a, &wrong));
    let took = took(&bench, "store_words", (&a, 1u64));
    assert_eq!((took.bytes_stored_in_place, took.pages_fetched), (0, 0));
    let before = bench.vm.stats().unwrap();
    let expected: Vec<u32> = (0..n).map(made).collect();
    compare(&a.to_vec().unwrap(), &expected).unwrap();
    assert_eq!(bench.vm.stats().unwrap().difference(&before).pages_written_back, 20);
}

#[test]
fn the_advice_holds_until_it_is_taken_back() {
    let bench = bench(8);
    let n = 20 * PAGE_WORDS + 3;
    let a = bench.vm.region::<u32>().zeroed(n).unwrap();
    for (advice, in_place) in [
        (Advice::WriteOnce, true),
        // Of another kind.
        (Advice::InPlace, true),
        (Advice::Fetch, true),
        (Advice::ReadOnce, false),
        (Advice::WriteOnce, true),
        (Advice::Normal, false),
    ] {
        assert!(a.advise(advice).unwrap());
        a.evict().unwrap();
        let took = took(&bench, "store_words", (&a, 1021u64));
        assert_eq!(took.bytes_stored_in_place == n * 4, in_place, "{advice:?}");
        assert_eq!(took.pages_fetched == 0, in_place, "{advice:?}");
    }
}

#[test]
fn launches_that_disagree_about_the_advice_never_meet() {
    let bench = bench(6);
    let n = 20 * PAGE_WORDS + 3;
    let a = bench.vm.region::<u32>().zeroed(n).unwrap();
    for advice in [Advice::WriteOnce, Advice::Normal, Advice::WriteOnce] {
        let running = bench.launch("store_on", config(), (&a,));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                running.abort();
            });
            a.advise(advice).unwrap();
        });
        assert!(running.is_done(), "{advice:?}");
        // Nothing to agree about: the launch goes on.
        let running = bench.launch("store_on", config(), (&a,));
        a.advise(advice).unwrap();
        a.advise(Advice::InPlace).unwrap();
        assert!(!running.is_done(), "{advice:?}");
        running.abort();
        assert!(matches!(running.sync(), Err(Error::Stopped { .. })));
    }
}

#[test]
fn a_page_that_is_stored_without_end_is_fetched_all_the_same() {
    let bench = bench(8);
    for _ in 0..5 {
        let a = advised(bench.vm.region::<u32>().zeroed(PAGE_WORDS).unwrap());
        let fetched = bench.vm.buffer::<u32>(1).unwrap();
        bench.must("store_until_fetched", config(), (&a, &fetched));
        assert_eq!(fetched.to_vec().unwrap(), [1]);
        let found = a.to_vec().unwrap();
        assert_eq!(found[0], 1);
        assert!((1..191).all(|i| [0, made(i)].contains(&found[i as usize])));
    }
}

#[test]
fn a_launch_that_is_stopped_while_it_stores_in_place_leaves_no_page_held() {
    let bench = Bench::new(
        simulated(8).placement(Placement::Fetch).transport(Transport::Direct),
        SOURCE,
    );
    let n = 20 * PAGE_WORDS + 3;
    let a = advised(bench.vm.region::<u32>().zeroed(n).unwrap());
    let running = bench.launch("store_on", config(), (&a,));
    std::thread::sleep(Duration::from_millis(20));
    running.kill();
    assert!(matches!(running.sync(), Err(Error::Gpu { .. })));
    let wrong = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("store_words", config(), (&a, 1u64));
    bench.must("count_wrong", config(), (&a, &wrong));
    assert_eq!(wrong.to_vec().unwrap(), [0]);
}
