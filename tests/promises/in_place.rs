//! Elements are read where their pages live, and come to the same wherever that is.

use crate::common::{Adjust, Bench, Kernels, PAGE, PAGE_WORDS, compare, direct, small};
use gpuvm::{LaunchConfig, Placement, RegionBuilder, Stats};

const SOURCE: Kernels = Kernels {
    name: "in_place.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>

// Each element is copied by `a[i]`, and by a reader to the half behind; lanes go different ways through the array.
template <class T>
__device__ void copy_twice(const gpuvm::array<const T>& a, T* out, unsigned rounds) {
    unsigned long long lanes = gridDim.x * 1ull * blockDim.x, n = a.size();
    unsigned long long lane = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    for (unsigned round = 0; round < rounds; ++round) {
        for (auto i = lane; i < n; i += lanes) out[i] = a[i];
        // Neighbours of one lane.
        unsigned long long each = (n + lanes - 1) / lanes, end = (lane + 1) * each < n ? (lane + 1) * each : n;
        auto reader = a.reader();
        for (auto i = lane * each; i < end; ++i) out[n + i] = reader[i];
    }
}
__global__ void copy_bytes(gpuvm::array<const unsigned char> a, unsigned char* out, unsigned rounds) {
    copy_twice<unsigned char>(a, out, rounds);
}
__global__ void copy_words(gpuvm::array<const unsigned> a, unsigned* out, unsigned rounds) {
    copy_twice<unsigned>(a, out, rounds);
}
__global__ void copy_longs(gpuvm::array<const unsigned long long> a, unsigned long long* out, unsigned rounds) {
    copy_twice<unsigned long long>(a, out, rounds);
}
// Chunks as they travel: no two lanes share one, so that each lane may be counted by itself.
struct alignas(16) chunk {
    unsigned words[4];
};
__global__ void sum_chunks(gpuvm::array<const chunk> a, unsigned long long first, unsigned long long count,
                           unsigned rounds, unsigned long long* sum) {
    unsigned long long own = 0;
    for (unsigned round = 0; round < rounds; ++round)
        for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < count; i += gridDim.x * 1ull * blockDim.x) {
            chunk read = a[first + i];
            own += read.words[0] + 0ull + read.words[3];
        }
    atomicAdd(sum, own);
}
__global__ void sum_range(gpuvm::array<const unsigned> a, unsigned long long first, unsigned long long count,
                          unsigned rounds, unsigned long long* sum) {
    unsigned long long own = 0;
    for (unsigned round = 0; round < rounds; ++round)
        for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < count; i += gridDim.x * 1ull * blockDim.x)
            own += a[first + i];
    atomicAdd(sum, own);
}
__global__ void add_one(gpuvm::array<unsigned> a) {
    unsigned long long lanes = gridDim.x * 1ull * blockDim.x;
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size(); i += lanes) a[i] += 1;
}
// Adds to each element, and reads it afterwards, when other lanes' pages may have displaced its page.
__global__ void read_written(gpuvm::array<unsigned> a, unsigned* out, unsigned step) {
    unsigned long long lanes = gridDim.x * 1ull * blockDim.x;
    unsigned long long lane = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    if (step)
        for (auto i = lane; i < a.size(); i += lanes) a[i] += step;
    for (auto i = lane; i < a.size(); i += lanes) out[i] = a[i];
}
// All elements by spans, a warp a page.
__global__ void copy_by_spans(gpuvm::array<const unsigned> a, unsigned* out) {
    for (auto first = blockIdx.x * 1024ull; first < a.size(); first += gridDim.x * 1024ull) {
        auto held = a.pin(first);
        if (!held) return;
        for (unsigned k = threadIdx.x; k < held.size(); k += 32) out[first + k] = held[k];
    }
}
// A span and a prefetch beside reads.
__global__ void pin_and_read(gpuvm::array<const unsigned> a, unsigned* out) {
    if (threadIdx.x == 0 && blockIdx.x == 0) a.prefetch(0, a.size());
    auto held = a.pin(blockIdx.x * 1024ull);
    out[blockIdx.x * blockDim.x + threadIdx.x] = held ? held[threadIdx.x] + a[threadIdx.x] : 0;
}
",
};

const ALL: [Placement; 5] = [
    Placement::Auto,
    Placement::LookUp,
    Placement::Fetch,
    Placement::InPlace,
    Placement::WhileFree,
];

fn config() -> LaunchConfig {
    LaunchConfig::new(3, 64)
}

/// Copies a region that `make` builds, twice over, and returns what that took.
fn copied<T>(bench: &Bench, kernel: &str, data: &[T], make: impl FnOnce(RegionBuilder<T>) -> RegionBuilder<T>) -> Stats
where
    T: bytemuck::Pod + PartialEq + std::fmt::Debug,
{
    let a = make(bench.vm.region::<T>().read_only()).from_slice(data).unwrap();
    let out = bench.vm.buffer::<T>(2 * data.len() as u64).unwrap();
    let before = bench.vm.stats().unwrap();
    bench.must(kernel, config(), (&a, &out, 2u32));
    let twice: Vec<T> = data.iter().chain(data).copied().collect();
    compare(&out.to_vec().unwrap(), &twice).unwrap_or_else(|wrong| panic!("{kernel}: {wrong}"));
    bench.vm.stats().unwrap().difference(&before)
}

#[test]
fn elements_of_every_size_are_the_same_in_each_placement() {
    let bench = Bench::new(direct(6).placement(Placement::Fetch), SOURCE);
    // Each region ends within a page, and within a reader's chunk of 16 bytes.
    let bytes: Vec<u8> = (0..9 * PAGE + 77).map(|i| (i * 7 % 251 + 1) as u8).collect();
    let words: Vec<u32> = (0..9 * PAGE_WORDS as u32 + 3)
        .map(|i| i.wrapping_mul(2_654_435_761) + 1)
        .collect();
    let longs: Vec<u64> = (0..5 * PAGE_WORDS + 1)
        .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1)
        .collect();
    for placement in ALL {
        copied(&bench, "copy_bytes", &bytes, |a| a.placement(placement));
        copied(&bench, "copy_words", &words, |a| a.placement(placement));
        copied(&bench, "copy_longs", &longs, |a| a.placement(placement));
    }
}

#[test]
fn a_page_that_is_read_in_place_is_not_fetched() {
    let bench = Bench::new(direct(6).placement(Placement::Fetch), SOURCE);
    // Whole chunks: the last one is read in place, too.
    let words: Vec<u32> = (1..=40 * PAGE_WORDS as u32 + 4).collect();
    let took = copied(&bench, "copy_words", &words, |a| a.placement(Placement::InPlace));
    assert_eq!((took.pages_fetched, took.evictions), (0, 0), "{took:?}");
    let took = copied(&bench, "copy_words", &words, |a| a);
    assert!(took.pages_fetched > 80 && took.evictions > 80, "{took:?}");
}

#[test]
fn what_came_while_frames_were_free_stays() {
    let frames = 16;
    let bench = Bench::new(direct(frames).placement(Placement::Fetch), SOURCE);
    let words: Vec<u32> = (1..=40 * PAGE_WORDS as u32).collect();
    let took = copied(&bench, "copy_words", &words, |a| a.placement(Placement::WhileFree));
    assert!((1..=frames).contains(&took.pages_fetched), "{took:?}");
    assert_eq!(took.evictions, 0, "{took:?}");
    // Memory for all: every page is fetched, once.
    let bench = Bench::new(direct(64).placement(Placement::Fetch), SOURCE);
    let took = copied(&bench, "copy_words", &words, |a| a.placement(Placement::WhileFree));
    assert_eq!((took.pages_fetched, took.evictions), (40, 0), "{took:?}");
}

/// Chunks of a page.
const PAGE_CHUNKS: u64 = PAGE_WORDS / 4;

/// What it took to sum stretches of `count` pages that begin at each of `firsts`, `rounds` times each.
/// By few lanes: those of a larger warp that drift apart on the simulated GPU look as if they read scattered pages.
fn summed(
    placement: Placement,
    pages: u64,
    frames: u64,
    firsts: impl Iterator<Item = u64>,
    count: u64,
    rounds: u32,
) -> Stats {
    let bench = Bench::new(direct(frames).placement(Placement::Fetch), SOURCE);
    let hash = |i: u64| (i as u32).wrapping_mul(2_654_435_761) >> 8;
    let chunks: Vec<[u32; 4]> = (0..pages * PAGE_CHUNKS).map(|i| [hash(i), 0, 0, hash(i + 1)]).collect();
    let a = bench.vm.region::<[u32; 4]>().read_only().placement(placement);
    let a = a.from_slice(&chunks).unwrap();
    let before = bench.vm.stats().unwrap();
    for first in firsts {
        let (at, length) = (first * PAGE_CHUNKS, count * PAGE_CHUNKS);
        let sum = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum_chunks", LaunchConfig::new(3, 4), (&a, at, length, rounds, &sum));
        let read = chunks[at as usize..][..length as usize].iter();
        let expected: u64 = read.map(|chunk| u64::from(chunk[0]) + u64::from(chunk[3])).sum();
        assert_eq!(
            sum.to_vec().unwrap(),
            [expected * u64::from(rounds)],
            "pages from {first} on"
        );
    }
    bench.vm.stats().unwrap().difference(&before)
}

#[test]
fn a_cycle_that_is_larger_than_memory_keeps_a_part_of_its_pages() {
    let cycle = |placement| summed(placement, 1536, 512, [0; 8].into_iter(), 1536, 1);
    let (fetch, auto) = (cycle(Placement::Fetch), cycle(Placement::Auto));
    assert!(auto.pages_fetched * 2 < fetch.pages_fetched, "{auto:?} {fetch:?}");
    assert!(
        auto.bytes_in_place > 0 && fetch.bytes_in_place == 0,
        "{auto:?} {fetch:?}"
    );
    // The rules that compete admit pages; what fetches in any case admits and displaces none.
    assert!(auto.admissions > 0 && auto.admissions < auto.pages_fetched, "{auto:?}");
    assert_eq!((fetch.admissions, fetch.displacements), (0, 0), "{fetch:?}");
}

#[test]
fn a_window_that_slides_is_fetched() {
    let window = |placement| summed(placement, 2048, 64, (0..2000).step_by(24), 24, 6);
    let (home, auto) = (window(Placement::WhileFree), window(Placement::Auto));
    // Most pages, once the rules have been compared.
    assert!(
        auto.pages_fetched > 1000 && home.pages_fetched <= 64,
        "{auto:?} {home:?}"
    );
    // What came first filled the frames; each page after it was admitted, and the region is alone, so all displaced are its own.
    assert!(
        auto.admissions + 2 * 64 > auto.pages_fetched && auto.admissions <= auto.pages_fetched,
        "{auto:?}"
    );
    assert!(
        auto.displacements > 900 && auto.displacements <= auto.evictions,
        "{auto:?}"
    );
    assert_eq!((home.admissions, home.displacements), (0, 0), "{home:?}");
}

#[test]
fn pages_that_leave_for_another_region_are_not_displaced() {
    let frames = 32;
    let bench = Bench::new(direct(frames).placement(Placement::Fetch), SOURCE);
    let words: Vec<u32> = (1..=16 * PAGE_WORDS as u32).collect();
    let a = bench.vm.region::<u32>().read_only().placement(Placement::Auto);
    let a = a.from_slice(&words).unwrap();
    let out = bench.vm.buffer::<u32>(2 * words.len() as u64).unwrap();
    bench.must("copy_words", config(), (&a, &out, 1u32));
    let other = bench
        .vm
        .region::<u32>()
        .read_only()
        .from_slice(&vec![1; 64 * PAGE_WORDS as usize]);
    let sum = bench.vm.buffer::<u64>(1).unwrap();
    let range = (other.as_ref().unwrap(), 0u64, 64 * PAGE_WORDS, 1u32, &sum);
    bench.must("sum_range", config(), range);
    let stats = bench.vm.stats().unwrap();
    assert!(stats.pages_fetched >= 80 && stats.evictions >= 48, "{stats:?}");
    assert_eq!((stats.admissions, stats.displacements), (0, 0), "{stats:?}");
}

#[test]
fn a_large_page_is_fetched_when_it_is_read_again() {
    let bench = Bench::new(direct(64).placement(Placement::Fetch).page_size(PAGE * 4), SOURCE);
    let words: Vec<u32> = (1..=40 * PAGE_WORDS as u32).collect();
    let a = bench.vm.region::<u32>().read_only().placement(Placement::Auto);
    let a = a.from_slice(&words).unwrap();
    let before = bench.vm.stats().unwrap();
    let once = |count: u32| {
        let sum = bench.vm.buffer::<u64>(1).unwrap();
        for _ in 0..count {
            bench.must("sum_range", LaunchConfig::new(1, 1), (&a, 5u64, 1u64, 1u32, &sum));
        }
        assert_eq!(sum.to_vec().unwrap(), [6 * u64::from(count)]);
        bench.vm.stats().unwrap().difference(&before).pages_fetched
    };
    assert_eq!((once(1), once(2)), (0, 1));
}

#[test]
fn a_region_that_kernels_write_is_read_in_place() {
    let words: Vec<u32> = (1..=20 * PAGE_WORDS as u32 + 7).collect();
    for placement in [Placement::InPlace, Placement::Auto] {
        let bench = Bench::new(direct(6).placement(Placement::Fetch), SOURCE);
        let a = bench
            .vm
            .region::<u32>()
            .placement(placement)
            .from_slice(&words)
            .unwrap();
        let out = bench.vm.buffer::<u32>(words.len() as u64).unwrap();
        bench.must("read_written", config(), (&a, &out, 0u32));
        compare(&out.to_vec().unwrap(), &words).unwrap();
        let read = bench.vm.stats().unwrap();
        match placement {
            Placement::InPlace => assert_eq!(read.pages_fetched, 0, "{read:?}"),
            _ => assert!(read.pages_fetched > 0, "{read:?}"),
        }
        // Each lane reads what it stored, in a frame or at home.
        bench.must("read_written", config(), (&a, &out, 3u32));
        let expected: Vec<u32> = words.iter().map(|word| word + 3).collect();
        compare(&out.to_vec().unwrap(), &expected).unwrap();
        compare(&a.to_vec().unwrap(), &expected).unwrap();
        let evicted = bench.vm.stats().unwrap().evictions;
        assert!(evicted >= 14, "{evicted} pages left their frames");
    }
}

#[test]
fn what_cannot_be_read_in_place_is_fetched() {
    let words: Vec<u32> = (1..=20 * PAGE_WORDS as u32).collect();
    // Its frames are its own.
    let bench = Bench::new(direct(6).placement(Placement::Fetch), SOURCE);
    let took = copied(&bench, "copy_words", &words, |a| {
        a.placement(Placement::InPlace).never_evicted()
    });
    assert_eq!(took.pages_fetched, 20, "{took:?}");
    // Stores need a frame.
    let a = bench.vm.region::<u32>().placement(Placement::InPlace);
    let a = a.from_slice(&words).unwrap();
    for _ in 0..2 {
        bench.must("add_one", config(), (&a,));
    }
    let expected: Vec<u32> = words.iter().map(|word| word + 2).collect();
    compare(&a.to_vec().unwrap(), &expected).unwrap();
    assert!(bench.vm.stats().unwrap().pages_fetched >= 20 + 40);
    // Its home is reached by a NIC.
    let bench = Bench::new(
        small(6)
            .placement(Placement::Fetch)
            .transport(gpuvm::Soft::new())
            .queue_pairs(2),
        SOURCE,
    );
    let took = copied(&bench, "copy_words", &words, |a| a.placement(Placement::InPlace));
    assert!(took.pages_fetched >= 20, "{took:?}");
}

#[test]
fn memory_that_does_not_begin_at_16_bytes_is_fetched() {
    let bench = Bench::new(direct(6).placement(Placement::Fetch), SOURCE);
    let words: Vec<u32> = (0..20 * PAGE_WORDS as u32).collect();
    let first = words.as_ptr().align_offset(16) + 1;
    let lent = &words[first..words.len() - 4];
    let out = bench.vm.buffer::<u32>(2 * lent.len() as u64).unwrap();
    bench
        .vm
        .scope(|scope| {
            let a = scope.read_only("lent", lent)?;
            bench.run("copy_words", config(), (&a, &out, 1u32))?;
            Ok(())
        })
        .unwrap();
    let twice: Vec<u32> = lent.iter().chain(lent).copied().collect();
    compare(&out.to_vec().unwrap(), &twice).unwrap();
}

#[test]
fn a_span_lies_where_its_page_lives() {
    let bench = Bench::new(direct(6).placement(Placement::Fetch), SOURCE);
    let words: Vec<u32> = (1..=40 * PAGE_WORDS as u32 + 5).collect();
    let out = bench.vm.buffer::<u32>(words.len() as u64).unwrap();
    let spans = |a: &gpuvm::Region<u32>| {
        let before = bench.vm.stats().unwrap();
        out.write(&vec![0; words.len()]).unwrap();
        bench.must("copy_by_spans", LaunchConfig::new(3, 32).warp_spans(1), (a, &out));
        compare(&out.to_vec().unwrap(), &words).unwrap();
        bench.vm.stats().unwrap().difference(&before)
    };
    let region = |placement| bench.vm.region::<u32>().placement(placement);
    let a = region(Placement::InPlace).read_only().from_slice(&words).unwrap();
    let took = spans(&a);
    assert_eq!(took.pages_fetched, 0, "{took:?}");
    // In whole pages: spans say how much they are, not how much of them is read.
    assert_eq!(took.bytes_in_place, 41 * PAGE, "{took:?}");
    // Frames that are free are filled, and almost nothing leaves them: three warps may be on their way when they are full.
    let a = region(Placement::WhileFree).read_only().from_slice(&words).unwrap();
    let took = spans(&a);
    assert!((1..=9).contains(&took.pages_fetched) && took.evictions <= 3, "{took:?}");
    // The home changes.
    let a = region(Placement::InPlace).from_slice(&words).unwrap();
    let took = spans(&a);
    assert_eq!((took.pages_fetched, took.bytes_in_place), (41, 0), "{took:?}");
    // The GPU decides: not all pages come again, and the sums are right.
    let a = region(Placement::Auto).read_only().from_slice(&words).unwrap();
    for _ in 0..20 {
        spans(&a);
    }
}

#[test]
fn prefetches_fetch_beside_reads_in_place() {
    let bench = Bench::new(direct(16).placement(Placement::Fetch), SOURCE);
    let words: Vec<u32> = (1..=8 * PAGE_WORDS as u32).collect();
    let a = bench.vm.region::<u32>().read_only().placement(Placement::InPlace);
    let a = a.from_slice(&words).unwrap();
    let out = bench.vm.buffer::<u32>(4 * 32).unwrap();
    bench.must("pin_and_read", LaunchConfig::new(4, 32).warp_spans(1), (&a, &out));
    let expected: Vec<u32> = (0..4 * 32)
        .map(|at| words[at / 32 * 1024 + at % 32] + words[at % 32])
        .collect();
    compare(&out.to_vec().unwrap(), &expected).unwrap();
    assert!(bench.vm.stats().unwrap().pages_fetched >= 4);
}
