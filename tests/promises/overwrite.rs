//! `overwrite` brings no page that is written whole, keeps what lies beside what is written, and comes to the same as a plain array.

use crate::common::{
    Adjust, Bench, Kernels, PAGE, PAGE_WORDS, check_frames, compare, says, simulated, simulated_soft, small,
};
use crate::program::seeds;
use gpuvm::{LaunchConfig, Placement, Stats, Transport, VmBuilder};

const SOURCE: Kernels = Kernels {
    name: "overwrite.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;

__device__ inline u64 warp() { return (blockIdx.x * 1ull * blockDim.x + threadIdx.x) / 32; }
__device__ inline u64 warps() { return gridDim.x * 1ull * blockDim.x / 32; }

// Words [first, past) by warps, which take pieces of `piece` words in turn.
__global__ void write_between(gpuvm::array<unsigned> a, u64 first, u64 past, u64 piece, unsigned base) {
    for (u64 begin = first + warp() * piece; begin < past; begin += warps() * piece) {
        u64 end = begin + piece < past ? begin + piece : past;
        for (u64 at = begin; at < end;) {
            auto held = a.overwrite(at, end - at);
            if (!held) return;
            u64 count = held.size() < end - at ? held.size() : end - at;
            for (u64 k = threadIdx.x % 32; k < count; k += 32) held[k] = base + static_cast<unsigned>(at + k);
            at += count;
        }
    }
}

// All warps write the same words, each page in a piece of its own, again and again.
__global__ void write_together(gpuvm::array<unsigned> a, u64 page_words, unsigned rounds, unsigned base) {
    for (unsigned round = 0; round < rounds; ++round) {
        for (u64 at = round % 3 * page_words; at < a.size(); at += page_words) {
            auto held = a.overwrite(at, page_words);
            if (!held) return;
            for (u64 k = threadIdx.x % 32; k < held.size(); k += 32) held[k] = base + static_cast<unsigned>(at + k);
        }
    }
}

// A page a lane: those that are left over in the last warp stay away.
__global__ void write_pages(gpuvm::array<unsigned> a, u64 page_words, unsigned base) {
    u64 page = blockIdx.x * 1ull * blockDim.x + threadIdx.x, pages = (a.size() + page_words - 1) / page_words;
    unsigned together = __ballot_sync(~0u, page < pages);
    if (page >= pages) return;
    auto held = a.overwrite(page * page_words, page_words, together);
    for (u64 k = 0; k < held.size(); ++k) held[k] = base + static_cast<unsigned>(page * page_words + k);
}

// Half of the lanes are on the first page, the others on one of which they write the latter half.
__global__ void write_one_and_a_half(gpuvm::array<unsigned> a, u64 page_words, unsigned base) {
    bool half = threadIdx.x % 32 >= 16;
    u64 first = half ? page_words + page_words / 2 : 0, count = half ? page_words / 2 : page_words;
    auto held = a.overwrite(first, count);
    for (u64 k = threadIdx.x % 16; k < count && held; k += 16) held[k] = base + static_cast<unsigned>(first + k);
}

__global__ void past_the_end(gpuvm::array<unsigned> a, unsigned* sizes) {
    auto held = a.overwrite(a.size(), 1);
    sizes[threadIdx.x] = static_cast<unsigned>(held.size());
}
",
};

const OLD: u32 = 5;

fn config() -> LaunchConfig {
    LaunchConfig::new(2, 64).warp_spans(1)
}

/// Words [first, past) of `n`, written in pieces; what that took.
fn write_between(bench: &Bench, n: u64, never_evicted: bool, (first, past, piece): (u64, u64, u64)) -> Stats {
    let region = bench.vm.region::<u32>();
    let region = match never_evicted {
        true => region.never_evicted(),
        false => region,
    };
    let a = region.from_iter((0..n).map(|_| OLD)).unwrap();
    let before = bench.vm.stats().unwrap();
    bench.must("write_between", config(), (&a, first, past, piece, 9u32));
    let took = bench.vm.stats().unwrap().difference(&before);
    let expected: Vec<u32> = (0..n)
        .map(|i| match (first..past).contains(&i) {
            true => 9 + i as u32,
            false => OLD,
        })
        .collect();
    compare(&a.to_vec().unwrap(), &expected)
        .unwrap_or_else(|wrong| panic!("[{first}, {past}) of {n} by {piece}: {wrong}"));
    bench.no_violations();
    took
}

/// With frames for a few of the pages, by every transport.
fn benches() -> [Bench; 2] {
    let bench = |builder: VmBuilder| Bench::new(builder, SOURCE);
    [
        bench(small(6).placement(Placement::Fetch).transport(Transport::Direct)),
        bench(simulated_soft(6)),
    ]
}

#[test]
fn a_page_that_is_written_whole_is_not_fetched() {
    for bench in benches() {
        for n in [20 * PAGE_WORDS, 19 * PAGE_WORDS + 3] {
            for piece in [PAGE_WORDS, 4 * PAGE_WORDS] {
                let took = write_between(&bench, n, false, (0, n, piece));
                assert_eq!((took.pages_overwritten, took.bytes_fetched), (20, 0), "{took:?}");
            }
        }
    }
}

#[test]
fn what_lies_beside_stays() {
    for bench in benches() {
        let n = 20 * PAGE_WORDS;
        let took = write_between(&bench, n, false, (PAGE_WORDS / 2, n - 1, n));
        assert_eq!((took.pages_overwritten, took.bytes_fetched), (18, 2 * PAGE), "{took:?}");
        // Pieces that begin anywhere in a page, none of which covers one.
        let took = write_between(&bench, n, false, (7, n - 7, PAGE_WORDS - 1));
        assert_eq!(took.pages_overwritten, 0, "{took:?}");
        assert!(took.pages_fetched >= 20, "{took:?}");
    }
}

#[test]
fn a_page_that_is_there_is_written_where_it_is() {
    let bench = Bench::new(
        small(32).placement(Placement::Fetch).transport(Transport::Direct),
        SOURCE,
    );
    let n = 20 * PAGE_WORDS;
    let a = bench.vm.region::<u32>().zeroed(n).unwrap();
    let before = bench.vm.stats().unwrap();
    for base in 0..3u32 {
        bench.must("write_between", config(), (&a, 0u64, n, PAGE_WORDS, base));
        let expected: Vec<u32> = (0..n as u32).map(|i| base + i).collect();
        compare(&a.to_vec().unwrap(), &expected).unwrap();
    }
    let took = bench.vm.stats().unwrap().difference(&before);
    assert_eq!((took.pages_overwritten, took.bytes_fetched), (20, 0), "{took:?}");
}

#[test]
fn warps_that_come_to_a_page_together_leave_every_frame_in_its_place() {
    for seed in seeds(50_000, 20) {
        let direct = seed % 2 == 0;
        // Each warp holds one; while it looks for that nothing may have claimed the page for good.
        let builder = match direct {
            true => simulated(5).placement(Placement::Fetch).transport(Transport::Direct),
            false => simulated_soft(5),
        };
        let bench = Bench::new(builder.seed(seed), SOURCE);
        let n = (6 + seed % 5) * PAGE_WORDS + 77 * (seed % 3);
        let a = bench.vm.region::<u32>().from_iter((0..n).map(|_| OLD)).unwrap();
        let config = LaunchConfig::new(2, 64).warp_spans(1);
        bench.must("write_together", config, (&a, PAGE_WORDS, 6u32, 9u32));
        check_frames(&bench.vm).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let expected: Vec<u32> = (0..n as u32).map(|i| 9 + i).collect();
        compare(&a.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn never_evicted_pages_need_no_fetch_either() {
    let bench = Bench::new(
        small(6).placement(Placement::Fetch).transport(Transport::Direct),
        SOURCE,
    );
    let n = 20 * PAGE_WORDS;
    let took = write_between(&bench, n, true, (PAGE_WORDS / 2, n, n));
    assert_eq!((took.pages_overwritten, took.bytes_fetched), (19, PAGE), "{took:?}");
}

#[test]
fn large_pages_are_overwritten() {
    let large = |builder: VmBuilder| Bench::new(builder.page_size(64 << 10).frame_memory((6 * 64) << 10), SOURCE);
    for bench in [
        large(
            simulated(6 * 16)
                .placement(Placement::Fetch)
                .transport(Transport::Direct),
        ),
        large(simulated_soft(6 * 16)),
    ] {
        let n = 6 * 16 * PAGE_WORDS + 1;
        let took = write_between(&bench, n, false, (0, n, 16 * PAGE_WORDS));
        assert_eq!((took.pages_overwritten, took.bytes_fetched), (7, 0), "{took:?}");
    }
}

#[test]
fn lanes_overwrite_pages_of_their_own() {
    let pages = 37;
    for builder in [
        small(80).placement(Placement::Fetch).transport(Transport::Direct),
        simulated_soft(80),
    ] {
        let bench = Bench::new(builder, SOURCE);
        let n = pages * PAGE_WORDS - 1;
        let a = bench.vm.region::<u32>().zeroed(n).unwrap();
        bench.must(
            "write_pages",
            LaunchConfig::new(1, 64).thread_spans(1),
            (&a, PAGE_WORDS, 3u32),
        );
        let expected: Vec<u32> = (0..n as u32).map(|i| 3 + i).collect();
        compare(&a.to_vec().unwrap(), &expected).unwrap();
        let stats = bench.vm.stats().unwrap();
        assert_eq!((stats.pages_overwritten, stats.bytes_fetched), (pages, 0), "{stats:?}");
    }
}

#[test]
fn lanes_of_one_warp_may_differ() {
    for bench in benches() {
        let n = 2 * PAGE_WORDS;
        let a = bench.vm.region::<u32>().from_iter((0..n).map(|_| OLD)).unwrap();
        bench.must(
            "write_one_and_a_half",
            LaunchConfig::new(1, 32).warp_spans(2),
            (&a, PAGE_WORDS, 3u32),
        );
        let kept = PAGE_WORDS as u32..(PAGE_WORDS + PAGE_WORDS / 2) as u32;
        let expected: Vec<u32> = (0..n as u32)
            .map(|i| if kept.contains(&i) { OLD } else { 3 + i })
            .collect();
        compare(&a.to_vec().unwrap(), &expected).unwrap();
        let stats = bench.vm.stats().unwrap();
        assert_eq!((stats.pages_overwritten, stats.bytes_fetched), (1, PAGE), "{stats:?}");
    }
}

#[test]
fn past_the_end_is_a_fault() {
    for bench in benches() {
        let a = bench.vm.region::<u32>().zeroed(PAGE_WORDS).unwrap();
        let sizes = bench.vm.buffer::<u32>(32).unwrap();
        let failed = bench.run("past_the_end", LaunchConfig::new(1, 32).warp_spans(1), (&a, &sizes));
        says(
            &failed.expect_err("an element past the end was overwritten"),
            &[&format!("{PAGE_WORDS}")],
        );
        assert_eq!(sizes.to_vec().unwrap(), [0; 32]);
    }
}
