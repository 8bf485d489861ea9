//! A cursor keeps its page between accesses of its lane: what it reads and writes comes to the same as element by element, its page
//! stays in its frame as long as it is used and no longer, and in place or without a pin where that will do.

use crate::common::{Bench, Kernels, PAGE, PAGE_WORDS, compare, refused, small};
use gpuvm::{LaunchConfig, Placement, Region, RegionBuilder, Stats, Transport, VmBuilder};

const SOURCE: Kernels = Kernels {
    name: "cursors.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>

typedef unsigned long long u64;
struct alignas(16) wide16 { u64 a, b; };
struct wide32 { u64 a, b, c, d; };
struct large { u64 words[32]; };

// Copies neighbours by a cursor: lanes go upwards and downwards, through stretches of their own.
template <class T>
__device__ void copy_by(const gpuvm::array<const T>& a, T* out) {
    u64 lanes = gridDim.x * 1ull * blockDim.x, lane = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    u64 each = (a.size() + lanes - 1) / lanes, first = lane * each;
    u64 end = first + each < a.size() ? first + each : a.size();
    auto walk = a.cursor();
    for (u64 i = first; i < end; ++i) {
        u64 at = lane % 2 ? i : end - 1 - (i - first);
        out[at] = walk[at];
    }
}
__global__ void copy_u8(gpuvm::array<const unsigned char> a, unsigned char* out) { copy_by(a, out); }
__global__ void copy_u16(gpuvm::array<const unsigned short> a, unsigned short* out) { copy_by(a, out); }
__global__ void copy_u32(gpuvm::array<const unsigned> a, unsigned* out) { copy_by(a, out); }
__global__ void copy_u64(gpuvm::array<const u64> a, u64* out) { copy_by(a, out); }
__global__ void copy_wide16(gpuvm::array<const wide16> a, wide16* out) { copy_by(a, out); }
__global__ void copy_wide32(gpuvm::array<const wide32> a, wide32* out) { copy_by(a, out); }
__global__ void copy_large(gpuvm::array<const large> a, large* out) { copy_by(a, out); }

// Each lane changes every `lanes`-th element, from a begin of its own.
template <class T>
__device__ void change_by(const gpuvm::array<T>& a, unsigned more) {
    u64 lanes = gridDim.x * 1ull * blockDim.x, lane = blockIdx.x * 1ull * blockDim.x + threadIdx.x;
    u64 turns = (a.size() + lanes - 1) / lanes;
    auto walk = a.cursor();
    for (u64 n = 0; n < turns; ++n) {
        u64 i = (n + lane * 300) % turns * lanes + lane;
        if (i >= a.size()) continue;
        walk.write(i, static_cast<T>(walk[i] + more));
        // Its own store is seen at once.
        walk.write(i, static_cast<T>(walk[i] * 3));
    }
}
__global__ void change_u8(gpuvm::array<unsigned char> a, unsigned more) { change_by(a, more); }
__global__ void change_u32(gpuvm::array<unsigned> a, unsigned more) { change_by(a, more); }
__global__ void change_u64(gpuvm::array<u64> a, unsigned more) { change_by(a, more); }

// The last element, the one behind it, and the last again.
__global__ void read_past(gpuvm::array<const unsigned> a, unsigned* out) {
    auto walk = a.cursor();
    for (unsigned n = 0; n < 3; ++n) out[n] = walk[a.size() - 1 + n % 2] + 1;
}
__global__ void write_past(gpuvm::array<unsigned> a) {
    auto walk = a.cursor();
    walk.write(a.size(), 7);
}

// Holds an element's page, reads another page, and then reads the first one's next element; `drop`: without holding it.
__global__ void read_beside(gpuvm::array<const unsigned> a, u64 page_words, unsigned drop, unsigned* out) {
    auto walk = a.cursor();
    out[0] = walk[0];
    if (drop) walk.drop();
    out[1] = a[page_words];
    out[2] = walk[1];
}
",
};

fn config(lanes: u32) -> LaunchConfig {
    LaunchConfig::new(2, lanes / 2).thread_spans(1)
}

fn transports(frames: u64) -> [VmBuilder; 2] {
    [
        small(frames).placement(Placement::Fetch),
        small(frames).placement(Placement::Fetch).transport(Transport::Direct),
    ]
}

/// Words that differ.
fn numbers(count: u64) -> Vec<u64> {
    (1..=count).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

/// `bytes` bytes as elements.
fn elements<T: bytemuck::AnyBitPattern>(bytes: u64) -> Vec<T> {
    bytemuck::cast_slice(&numbers(bytes / 8))
        .chunks_exact(size_of::<T>())
        .map(bytemuck::pod_read_unaligned)
        .collect()
}

/// Copies `bytes` bytes by the cursors of `lanes` lanes, which must read what is there.
fn copied<T>(
    bench: &Bench,
    kernel: &str,
    lanes: u32,
    bytes: u64,
    make: impl FnOnce(RegionBuilder<T>) -> RegionBuilder<T>,
) -> Stats
where
    T: bytemuck::Pod + PartialEq + std::fmt::Debug,
{
    let data = elements::<T>(bytes);
    let a = make(bench.vm.region::<T>().read_only()).from_slice(&data).unwrap();
    let out = bench.vm.buffer::<T>(data.len() as u64).unwrap();
    let before = bench.vm.stats().unwrap();
    bench.must(kernel, config(lanes), (&a, &out));
    compare(&out.to_vec().unwrap(), &data).unwrap_or_else(|wrong| panic!("{kernel}: {wrong}"));
    bench.vm.stats().unwrap().difference(&before)
}

/// Elements of each size, on this many pages and a part of one.
fn copies(bench: &Bench, lanes: u32, pages: u64, placement: Placement) {
    let bytes = pages * PAGE + 5 * 256;
    // The last page ends within a chunk of 16 bytes where elements are smaller.
    copied::<u8>(bench, "copy_u8", lanes, bytes + 8, |a| a.placement(placement));
    copied::<u16>(bench, "copy_u16", lanes, bytes + 8, |a| a.placement(placement));
    copied::<u32>(bench, "copy_u32", lanes, bytes + 8, |a| a.placement(placement));
    copied::<u64>(bench, "copy_u64", lanes, bytes + 8, |a| a.placement(placement));
    copied::<[u64; 2]>(bench, "copy_wide16", lanes, bytes + 16, |a| a.placement(placement));
    copied::<[u64; 4]>(bench, "copy_wide32", lanes, bytes + 32, |a| a.placement(placement));
    copied::<[u64; 32]>(bench, "copy_large", lanes, bytes, |a| a.placement(placement));
}

#[test]
fn elements_of_every_size_are_read_while_pages_come_and_go() {
    for settings in transports(17).map(|builder| builder.placement(Placement::Fetch)) {
        let bench = Bench::new(settings, SOURCE);
        copies(&bench, 16, 40, Placement::Fetch);
        bench.no_violations();
    }
}

#[test]
fn elements_of_every_size_are_read_in_each_placement() {
    let bench = Bench::new(
        small(17).placement(Placement::Fetch).transport(Transport::Direct),
        SOURCE,
    );
    for placement in [
        Placement::Auto,
        Placement::InPlace,
        Placement::WhileFree,
        Placement::LookUp,
    ] {
        copies(&bench, 16, 40, placement);
    }
}

#[test]
fn pages_that_stay_at_home_are_not_fetched_and_are_counted() {
    let bench = Bench::new(
        small(17).placement(Placement::Fetch).transport(Transport::Direct),
        SOURCE,
    );
    let in_place = |a: RegionBuilder<u32>| a.placement(Placement::InPlace);
    let took = copied::<u32>(&bench, "copy_u32", 16, 800 * PAGE, in_place);
    assert_eq!((took.pages_fetched, took.evictions), (0, 0), "{took:?}");
    // An estimate, from one of 128 looks. An eighth of it would be one chunk a line.
    assert!((200 * PAGE..3200 * PAGE).contains(&took.bytes_in_place), "{took:?}");
}

#[test]
fn a_region_that_is_never_evicted_is_read_without_pins_or_faults() {
    for settings in transports(4).map(|builder| builder.placement(Placement::Fetch)) {
        let bench = Bench::new(settings, SOURCE);
        let data = elements::<u32>(40 * PAGE + 12);
        let a = bench.vm.region::<u32>().read_only().never_evicted();
        let a = a.from_slice(&data).unwrap();
        for round in 0..2 {
            let out = bench.vm.buffer::<u32>(a.len()).unwrap();
            let before = bench.vm.stats().unwrap();
            // More lanes than frames: nothing is declared, since nothing is held.
            bench.must("copy_u32", LaunchConfig::new(2, 16), (&a, &out));
            compare(&out.to_vec().unwrap(), &data).unwrap();
            let fetched = bench.vm.stats().unwrap().difference(&before).pages_fetched;
            assert_eq!(fetched, if round == 0 { 41 } else { 0 }, "round {round}");
        }
    }
}

/// Changes `a` by cursors, and compares it with `model` before and after it was written back.
fn changed<T>(bench: &Bench, kernel: &str, a: &Region<T>, model: &mut [T], change: impl Fn(T) -> T)
where
    T: bytemuck::Pod + PartialEq + std::fmt::Debug,
{
    for _ in 0..2 {
        bench.must(kernel, config(16), (a, 77u32));
        model.iter_mut().for_each(|x| *x = change(*x));
    }
    a.flush().unwrap();
    compare(&a.read_home().unwrap(), model).unwrap_or_else(|wrong| panic!("{kernel}: {wrong}"));
}

#[test]
fn what_a_cursor_writes_reaches_the_home() {
    for settings in transports(17).map(|builder| builder.placement(Placement::Fetch)) {
        for kept in [false, true] {
            let bench = Bench::new(settings.clone(), SOURCE);
            let bytes = 40 * PAGE + 8;
            let (mut bytes8, mut words, mut longs) = (elements::<u8>(bytes), elements(bytes), elements::<u64>(bytes));
            fn region<T: bytemuck::Pod>(bench: &Bench, kept: bool, data: &[T]) -> Region<T> {
                let a = bench.vm.region::<T>();
                let a = if kept { a.never_evicted() } else { a };
                a.from_slice(data).unwrap()
            }
            let a = region(&bench, kept, &bytes8);
            changed(&bench, "change_u8", &a, &mut bytes8, |x| {
                x.wrapping_add(77).wrapping_mul(3)
            });
            let a = region(&bench, kept, &words);
            changed(&bench, "change_u32", &a, &mut words, |x: u32| {
                x.wrapping_add(77).wrapping_mul(3)
            });
            let a = region(&bench, kept, &longs);
            changed(&bench, "change_u64", &a, &mut longs, |x| {
                x.wrapping_add(77).wrapping_mul(3)
            });
            bench.no_violations();
        }
    }
}

#[test]
fn one_frame_is_enough_for_one_cursor() {
    for settings in transports(1).map(|builder| builder.placement(Placement::Fetch)) {
        let bench = Bench::new(settings, SOURCE);
        let data = elements::<u32>(10 * PAGE + 8);
        let a = bench.vm.region::<u32>().read_only().from_slice(&data).unwrap();
        let out = bench.vm.buffer::<u32>(a.len()).unwrap();
        // It has given its page back when it waits for the next one.
        let took = bench.vm.stats().unwrap();
        bench.must("copy_u32", LaunchConfig::new(1, 1), (&a, &out));
        compare(&out.to_vec().unwrap(), &data).unwrap();
        // One look a page.
        let took = bench.vm.stats().unwrap().difference(&took);
        assert_eq!((took.faults, took.pages_fetched), (11, 11), "{took:?}");
    }
}

#[test]
fn a_page_is_given_back_by_drop() {
    for settings in transports(1).map(|builder| builder.placement(Placement::Fetch)) {
        let bench = Bench::new(settings.wait_limit(std::time::Duration::from_secs(1)), SOURCE);
        let data = elements::<u32>(2 * PAGE);
        let a = bench.vm.region::<u32>().read_only().from_slice(&data).unwrap();
        let out = bench.vm.buffer::<u32>(3).unwrap();
        bench.must("read_beside", LaunchConfig::new(1, 1), (&a, PAGE_WORDS, 1u32, &out));
        assert_eq!(out.to_vec().unwrap(), [data[0], data[PAGE_WORDS as usize], data[1]]);
        // Without it the only frame is held, and the launch says what to do.
        let held = bench.run("read_beside", LaunchConfig::new(1, 1), (&a, PAGE_WORDS, 0u32, &out));
        let message = refused(held);
        assert!(message.contains("1 are pinned"), "{message}");
    }
}

#[test]
fn past_the_end_there_is_zero_and_a_fault() {
    let bench = Bench::new(small(4).placement(Placement::Fetch), SOURCE);
    let data: Vec<u32> = (1..=PAGE_WORDS as u32 + 2).collect();
    let a = bench.vm.region::<u32>().name("short").from_slice(&data).unwrap();
    let out = bench.vm.buffer::<u32>(3).unwrap();
    let message = refused(bench.run("read_past", LaunchConfig::new(1, 1), (&a, &out)));
    let expected = "index 1026 of region `short` is out of range: it has 1026 elements";
    assert!(message.contains(expected), "{message}");
    assert_eq!(out.to_vec().unwrap()[..2], [1027, 1]);
    let message = refused(bench.run("write_past", LaunchConfig::new(1, 1), (&a,)));
    assert!(message.contains(expected), "{message}");
    compare(&a.to_vec().unwrap(), &data).unwrap();
}
