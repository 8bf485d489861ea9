//! Arrays whose accesses look their page's place up (`Placement::LookUp`): `a[i]` is a reference to plain memory, pages come to frames
//! between launches, and the host, kernels that fetch pages and frames that are given back find what was stored.

use std::time::Duration;

use crate::common::{Bench, Kernels, PAGE_WORDS, compare, simulated, simulated_gpu, small, with_causes};
use gpuvm::{Advice, Error, FaultKind, LaunchConfig, Placement, RegionBuilder, Transport, VmBuilder};

mod beside;
mod over_homes;
mod places;
mod plain;
pub mod ptx;
mod resident;
mod series;

const SOURCE: Kernels = Kernels {
    name: "look_up.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>
using u64 = unsigned long long;
__device__ u64 lane() { return blockIdx.x * 1ull * blockDim.x + threadIdx.x; }
__device__ u64 lanes() { return gridDim.x * 1ull * blockDim.x; }
__global__ void add(gpuvm::array<unsigned> a, gpuvm::array<const unsigned> b, unsigned factor) {
    for (u64 i = lane(); i < a.size(); i += lanes()) a[i] += factor * b[i];
}
__global__ void read(gpuvm::array<const unsigned> a, unsigned* out, u64 first, u64 count) {
    for (u64 i = lane(); i < count; i += lanes()) out[i] = a[first + i];
}
// What only references allow: of faulting arrays an element has no address.
__global__ void refer(gpuvm::array<unsigned> a, unsigned step) {
#if defined(GPUVM_LOOKS_UP)
    for (u64 i = lane() * 4; i + 4 <= a.size(); i += lanes() * 4) {
        unsigned* p = &a[i];
        auto& x = a[i + 1];
        p[0] += step;
        x += step;
        atomicAdd(&a[i + 2], step);
        struct four { unsigned words[4]; };
        reinterpret_cast<four*>(p)->words[3] += step;
    }
#endif
}
__global__ void count_up(gpuvm::array<u64> a) {
    for (u64 i = lane(); i < 4096; i += lanes()) a.atomic_add(i * 37 % a.size(), 1);
}
__global__ void ask_for(gpuvm::array<unsigned> a, u64 first, u64 count) {
    if (lane() == 0) a.prefetch(first, count);
}
// Walks by cursor and reader, named as their types.
__global__ void walk(gpuvm::array<unsigned> a, gpuvm::array<const unsigned> b) {
    gpuvm::cursor<unsigned> to = a.cursor();
    gpuvm::reader<unsigned> from = b.reader();
    u64 each = (a.size() + lanes() - 1) / lanes();
    for (u64 i = lane() * each; i < (lane() + 1) * each && i < a.size(); ++i) to.write(i, to[i] + from[i]);
}
// Stores, tells, and stays until it is stopped.
__global__ void store_and_stay(gpuvm::array<unsigned> a, unsigned value, unsigned* told) {
    for (u64 i = lane(); i < a.size(); i += lanes()) a[i] = value;
    __threadfence_system();
    atomicAdd(told, 1u);
    while (!a.failed()) __nanosleep(1000);
}
__global__ void past_the_end(gpuvm::array<unsigned> a, unsigned* out) {
    if (lane() == 0) *out = a[a.size() + 5] + 1;
    if (lane() == 1) a[a.size() + 6] = 7;
}
__global__ void fill_spans(gpuvm::array<unsigned> a, unsigned value) {
    for (u64 at = blockIdx.x * 1024ull; at < a.size(); at += gridDim.x * 1024ull) {
        auto s = a.pin(at);
        for (u64 k = threadIdx.x; k < s.size(); k += blockDim.x) s[k] = value + static_cast<unsigned>(s.first() + k);
    }
}
",
};

fn direct(frames: u64) -> VmBuilder {
    small(frames).transport(Transport::Direct)
}

fn config() -> LaunchConfig {
    LaunchConfig::new(3, 64)
}

fn placed(bench: &Bench) -> RegionBuilder<u32> {
    bench.vm.region::<u32>().placement(Placement::LookUp)
}

/// What `add` makes of `a`.
fn add(a: &mut [u32], b: &[u32], factor: u32) {
    a.iter_mut()
        .zip(b)
        .for_each(|(a, b)| *a = a.wrapping_add(b.wrapping_mul(factor)));
}

/// Sizes that are no multiple of anything.
const N: u64 = 11 * PAGE_WORDS + 77;

fn values(seed: u32) -> Vec<u32> {
    (0..N as u32)
        .map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed))
        .collect()
}

#[test]
fn pages_that_were_used_come_between_launches_as_far_as_frames_are_free() {
    for frames in [40, 7, 1] {
        let bench = Bench::new(direct(frames), SOURCE);
        let (mut wanted, b) = (values(1), values(2));
        let a = placed(&bench).from_slice(&wanted).unwrap();
        let of_b = placed(&bench).read_only().from_slice(&b).unwrap();
        let mut fetched = Vec::new();
        for factor in 1..=3u32 {
            bench.must("add", config(), (&a, &of_b, factor));
            add(&mut wanted, &b, factor);
            fetched.push(bench.vm.stats().unwrap().pages_fetched);
        }
        let some = frames.min(24);
        assert_eq!(fetched[..2], [0, some], "with {frames} frames");
        // Where frames are too few, one page of each region may give way.
        let moved = if frames < 24 { 2 } else { 0 };
        assert!(
            (some..=some + moved).contains(&fetched[2]),
            "with {frames} frames: {fetched:?}"
        );
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
        // Again after the host has looked, and has written.
        a.write(5, &[9; 3000]).unwrap();
        wanted[5..3005].fill(9);
        bench.must("add", config(), (&a, &of_b, 5u32));
        add(&mut wanted, &b, 5);
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
    }
}

#[test]
fn pages_that_are_used_take_frames_from_pages_that_are_not_used_any_more() {
    const PAGES: u64 = 40;
    let bench = Bench::new(direct(16), SOURCE);
    let wanted: Vec<u32> = (0..(PAGES * PAGE_WORDS) as u32).map(|i| i.wrapping_mul(7)).collect();
    let a = placed(&bench).from_slice(&wanted).unwrap();
    // What is stored in frames that others take is written back.
    let mut stored = values(4);
    let b = placed(&bench).from_slice(&stored).unwrap();
    let out = bench
        .vm
        .elastic::<u32>(8 * PAGE_WORDS)
        .length(8 * PAGE_WORDS)
        .build()
        .unwrap();
    let read = |first: u64, launches: u32| {
        let before = bench.vm.stats().unwrap().pages_fetched;
        for _ in 0..launches {
            let config = LaunchConfig::new(2, 256);
            bench.must("read", config, (&a, &out, first * PAGE_WORDS, 8 * PAGE_WORDS));
            let mut got = vec![0; (8 * PAGE_WORDS) as usize];
            out.read(0, &mut got).unwrap();
            compare(&got, &wanted[(first * PAGE_WORDS) as usize..][..got.len()]).unwrap();
        }
        bench.vm.stats().unwrap().pages_fetched - before
    };
    assert_eq!(read(0, 3), 8);
    for factor in 1..=2u32 {
        bench.must("add", config(), (&b, &b, factor));
        stored
            .iter_mut()
            .for_each(|word| *word = word.wrapping_add(factor.wrapping_mul(*word)));
    }
    // 8 of its 12 pages have come.
    assert!(read(20, 1) == 0 && bench.vm.stats().unwrap().evictions == 0);
    // Launches that look up other pages alone: `b` gives its frames back, and then each turn gives one of 16 frames to another page.
    for first in [20, 30] {
        let (mut come, mut launches) = (0, 0);
        while come < 8 {
            come += read(first, 10);
            launches += 10;
            assert!(launches < 5000, "{come} pages have come");
        }
    }
    assert!(bench.vm.stats().unwrap().evictions >= 16);
    compare(&b.to_vec().unwrap(), &stored).unwrap();
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
}

/// Of two regions that launches look up in turns, that of higher standing takes frames from the other, and keeps them.
#[test]
fn pages_of_higher_standing_take_frames_from_those_of_lower() {
    let frames = 8;
    for keep in [false, true] {
        // One that follows a seed looks at marks before each launch.
        let builder = direct(frames).gpu(simulated_gpu(frames).seed(1));
        let bench = Bench::new(builder, SOURCE);
        let values = values(3);
        let region = || placed(&bench).from_slice(&values).unwrap();
        let (low, high) = (region(), region());
        match keep {
            true => assert!(high.advise(Advice::KeepResident).unwrap()),
            false => high.set_priority(5).unwrap(),
        }
        let out = bench.vm.buffer::<u32>(values.len() as u64).unwrap();
        let count = values.len() as u64;
        let fetched = |region: &gpuvm::Region<u32>| {
            let before = bench.vm.stats().unwrap().pages_fetched;
            bench.must("read", config(), (region, &out, 0u64, count));
            compare(&out.to_vec().unwrap(), &values).unwrap();
            bench.vm.stats().unwrap().pages_fetched - before
        };
        // All frames are the first one's.
        for _ in 0..3 {
            fetched(&low);
        }
        let came: u64 = (0..40)
            .map(|_| {
                fetched(&low);
                fetched(&high)
            })
            .sum();
        assert!(came >= frames, "{came} pages came, keep {keep}");
        // Not the other way round, as long as both are in use.
        let took: u64 = (0..10).map(|_| fetched(&low)).sum();
        assert!(took <= 2, "{took} pages came back, keep {keep}");
    }
}

#[test]
fn an_element_is_a_reference_and_what_is_stored_through_it_comes_home() {
    for frames in [3, 20] {
        let bench = Bench::new(direct(frames), SOURCE);
        let mut wanted = values(3);
        let a = placed(&bench).from_slice(&wanted).unwrap();
        for step in 1..=3u32 {
            bench.must("refer", config(), (&a, step));
            let whole = wanted.len() / 4 * 4;
            wanted[..whole]
                .iter_mut()
                .for_each(|word| *word = word.wrapping_add(step));
        }
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
        let b = placed(&bench).read_only().from_slice(&values(9)).unwrap();
        bench.must("walk", config(), (&a, &b));
        add(&mut wanted, &values(9), 1);
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
        bench.must("fill_spans", config(), (&a, 17u32));
        // No thread holds a page: as many may as want to.
        bench.must("fill_spans", config().warp_spans(1000), (&a, 18u32));
        let filled: Vec<u32> = (0..N as u32).map(|i| 18 + i).collect();
        compare(&a.to_vec().unwrap(), &filled).unwrap();
    }
}

/// What only one form allows compiles, and the launch that needs the other one says so.
#[test]
fn a_launch_that_fetches_says_why_its_kernel_is_compiled_again() {
    let bench = Bench::new(direct(4), SOURCE);
    let text =
        "#include <gpuvm/gpuvm.cuh>\n__global__ void point(gpuvm::array<unsigned> a) { unsigned* p = &a[0]; *p = 7; }";
    let point = bench.vm.kernel("point.cu", text, "point").unwrap();
    let one = || LaunchConfig::new(1, 1);
    let a = bench.vm.region::<u32>().zeroed(8).unwrap();
    point.launch(one(), (&a,)).unwrap().sync().unwrap();
    assert_eq!(a.to_vec().unwrap()[0], 7);
    let fetched = bench.vm.region::<u32>().placement(Placement::Fetch).zeroed(8).unwrap();
    let refused = point
        .launch(one(), (&fetched,))
        .err()
        .expect("an address of a paged element");
    let message = with_causes(&refused);
    let said = ["not all looked up", "has no address", "point.cu"];
    assert!(said.iter().all(|part| message.contains(part)), "{message}");
}

#[test]
fn atomics_count_each_time_in_frames_and_at_home() {
    let bench = Bench::new(direct(2), SOURCE);
    let a = bench
        .vm
        .region::<u64>()
        .placement(Placement::LookUp)
        .zeroed(3000)
        .unwrap();
    for _ in 0..3 {
        bench.must("count_up", config(), (&a,));
    }
    let mut wanted = vec![0u64; 3000];
    (0..3 * 4096u64).for_each(|i| wanted[(i % 4096 * 37 % 3000) as usize] += 1);
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
}

#[test]
fn launches_that_fetch_find_what_those_stored_that_look_up_and_the_other_way_round() {
    let bench = Bench::new(direct(5), SOURCE);
    let mut wanted = values(4);
    let b = values(5);
    let a = placed(&bench).from_slice(&wanted).unwrap();
    let of_b = placed(&bench).read_only().from_slice(&b).unwrap();
    let other = bench.vm.region::<u32>().read_only().from_slice(&b).unwrap();
    let out = bench.vm.buffer::<u32>(N).unwrap();
    for factor in 1..=6u32 {
        // In turn: both looked up; one of them fetched, with which all are; nothing waits between the launches.
        let launch = match factor % 3 {
            0 => bench.launch("add", config(), (&a, &other, factor)),
            _ => bench.launch("add", config(), (&a, &of_b, factor)),
        };
        add(&mut wanted, &b, factor);
        if factor == 4 {
            a.advise(Advice::Fetch).unwrap();
        }
        if factor == 5 {
            a.advise(Advice::Normal).unwrap();
        }
        if factor % 2 == 0 {
            launch.sync().unwrap();
            // Frames that the first ones hold are given up for pages of another region.
            bench.must("read", config(), (&other, &out, 0u64, N));
            compare(&out.to_vec().unwrap(), &b).unwrap();
        }
    }
    a.flush().unwrap();
    a.evict().unwrap();
    bench.must("read", config(), (&a, &out, 0u64, N));
    compare(&out.to_vec().unwrap(), &wanted).unwrap();
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
}

#[test]
fn a_page_that_was_used_at_home_and_is_fetched_then_is_not_written_back() {
    let bench = Bench::new(direct(30), SOURCE);
    let b = values(7);
    let a = placed(&bench).read_only().from_slice(&b).unwrap();
    let out = bench.vm.buffer::<u32>(N).unwrap();
    // Used at home; fetched by lanes; kept for a launch that looks up; let go for one that fetches.
    for advice in [Advice::Normal, Advice::Fetch, Advice::Normal, Advice::Fetch] {
        a.advise(advice).unwrap();
        bench.must("read", config(), (&a, &out, 0u64, N));
        compare(&out.to_vec().unwrap(), &b).unwrap();
    }
    let stats = bench.vm.stats().unwrap();
    assert_eq!((stats.pages_fetched, stats.pages_written_back), (12, 0));
    a.evict().unwrap();
    assert_eq!(bench.vm.stats().unwrap().pages_written_back, 0);
}

#[test]
fn pages_that_a_kernel_asks_for_are_there_for_the_next_launch() {
    let bench = Bench::new(direct(30), SOURCE);
    let b = values(8);
    let a = placed(&bench).from_slice(&b).unwrap();
    bench.must("ask_for", config(), (&a, 3 * PAGE_WORDS, 4 * PAGE_WORDS));
    assert_eq!(bench.vm.stats().unwrap().pages_fetched, 0);
    bench.must("ask_for", config(), (&a, 0u64, 0u64));
    assert_eq!(bench.vm.stats().unwrap().pages_fetched, 4);
    compare(&a.to_vec().unwrap(), &b).unwrap();
    assert_eq!(bench.vm.stats().unwrap().pages_written_back, 0);
}

#[test]
fn an_index_past_the_end_is_told_and_harms_nobody() {
    let bench = Bench::new(direct(4), SOURCE);
    let wanted = values(6);
    let a = placed(&bench).from_slice(&wanted).unwrap();
    let out = bench.vm.buffer::<u32>(1).unwrap();
    let Err(Error::Fault { fault, .. }) = bench.run("past_the_end", config(), (&a, &out)) else {
        panic!("no fault");
    };
    let past =
        |kind: &FaultKind| matches!(kind, FaultKind::OutOfRange { index, length: N } if (N + 5..N + 7).contains(index));
    assert!(past(&fault.kind), "{fault}");
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
}

#[test]
fn a_region_is_held_still_after_a_launch_was_stopped() {
    // A kernel that runs on an NVIDIA GPU cannot be stopped where it stands. All pages in frames, and some at home.
    for frames in [40, 5] {
        let bench = Bench::new(simulated(frames).transport(Transport::Direct), SOURCE);
        let b = values(10);
        let a = placed(&bench).from_slice(&values(11)).unwrap();
        let of_b = placed(&bench).read_only().from_slice(&b).unwrap();
        let other = bench.vm.region::<u32>().read_only().from_slice(&b).unwrap();
        let mut wanted = values(11);
        let told = bench.vm.buffer::<u32>(1).unwrap();
        for stop in 1..=3u32 {
            bench.must("add", config(), (&a, &of_b, stop));
            told.write(&[0]).unwrap();
            let staying = bench.launch("store_and_stay", config(), (&a, stop, &told));
            // A read of the buffer would wait for the launch's end.
            let mut lanes = [0; 4];
            while u32::from_ne_bytes(lanes) != 3 * 64 {
                std::thread::sleep(Duration::from_millis(1));
                bench.vm.device().read(told.addr(), &mut lanes).unwrap();
            }
            staying.kill();
            staying.sync().unwrap_err();
            wanted.fill(stop);
            // What comes next looks pages up, fetches them, or is the host.
            let next = [&of_b, &other];
            match next.get(stop as usize - 1) {
                Some(next) => {
                    bench.must("add", config(), (&a, *next, 7u32));
                    add(&mut wanted, &b, 7);
                }
                None => compare(&a.to_vec().unwrap(), &wanted).unwrap(),
            }
            bench.must("add", config(), (&a, &other, 2u32));
            add(&mut wanted, &b, 2);
            a.evict().unwrap();
            compare(&a.to_vec().unwrap(), &wanted).unwrap();
        }
    }
}

#[test]
fn what_was_stored_in_frames_is_salvaged() {
    let bench = Bench::new(direct(40), SOURCE);
    let (mut wanted, b) = (values(12), values(13));
    let a = placed(&bench).from_slice(&wanted).unwrap();
    let of_b = placed(&bench).read_only().from_slice(&b).unwrap();
    for factor in 1..=2u32 {
        bench.must("add", config(), (&a, &of_b, factor));
        add(&mut wanted, &b, factor);
    }
    let saved: Vec<u32> = a
        .salvage()
        .unwrap()
        .into_iter()
        .flat_map(|page| page.elements)
        .collect();
    compare(&saved, &wanted).unwrap();
}

/// `a[i] += factor * b[i]`, as a compiler that knows nothing of pages writes it.
const PLAIN_ADD: &str = include_str!("plain_add.ptx");

#[test]
fn kernels_that_were_rewritten_find_pages_by_their_entries() {
    for frames in [40, 7] {
        let bench = Bench::new(direct(frames), SOURCE);
        let (mut wanted, b) = (values(1), values(2));
        let a = placed(&bench).from_slice(&wanted).unwrap();
        let of_b = placed(&bench).read_only().from_slice(&b).unwrap();
        let module = bench.vm.load_ptx("plain_add.ptx", PLAIN_ADD.as_bytes()).unwrap();
        let kernel = module.kernel("plain_add").unwrap();
        for factor in 1..=12u32 {
            // In turn with the form that the library compiles, with host accesses, and with launches that fetch.
            if factor % 4 == 3 {
                bench.must("add", config(), (&a, &of_b, factor));
            } else {
                let launch = kernel.launch(config(), (&a, &of_b, factor, N));
                launch.unwrap().sync().unwrap();
            }
            add(&mut wanted, &b, factor);
            if factor % 5 == 0 {
                a.write(17, &[factor; 2000]).unwrap();
                wanted[17..2017].fill(factor);
            }
            if factor % 3 == 0 {
                compare(&a.to_vec().unwrap(), &wanted).unwrap();
            }
        }
        assert!(bench.vm.stats().unwrap().pages_fetched >= frames.min(24));
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
        // Read from again, after its place was another region's.
        drop(a);
        let other = placed(&bench).from_slice(&values(5)).unwrap();
        kernel
            .launch(config(), (&other, &of_b, 1u32, N))
            .unwrap()
            .sync()
            .unwrap();
        let mut wanted = values(5);
        add(&mut wanted, &b, 1);
        compare(&other.to_vec().unwrap(), &wanted).unwrap();
        for placement in [Placement::Fetch, Placement::Auto, Placement::InPlace] {
            let region = bench.vm.region::<u32>().placement(placement);
            let (other, mut wanted) = (region.from_slice(&b).unwrap(), b.clone());
            for factor in 1..=4u32 {
                match factor {
                    3 => bench.must("add", config(), (&other, &of_b, factor)),
                    _ => kernel
                        .launch(config(), (&other, &of_b, factor, N))
                        .unwrap()
                        .sync()
                        .unwrap(),
                };
                add(&mut wanted, &b, factor);
            }
            compare(&other.to_vec().unwrap(), &wanted).unwrap();
        }
        // One whose pages come by faults: `calls.rs` has more of these.
        let whole = bench.vm.region::<u32>().never_evicted().from_slice(&[1]).unwrap();
        let launch = kernel.launch(config(), (&whole, &of_b, 1u32, 1u64));
        launch.unwrap().sync().unwrap();
        assert_eq!(whole.to_vec().unwrap(), [1 + b[0]]);
    }
}

/// A kernel and its second form, which count words, and the pages among them that are at home.
const BOTH_FORMS: &str = r"
using u64 = unsigned long long;
__device__ void words(const u64* w, const unsigned* a, u64 n, unsigned* told, unsigned form) {
    for (u64 i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < n; i += gridDim.x * 1ull * blockDim.x) {
        u64 at = (u64)(a + i), page = (at - w[0]) / 4096, entry = ((const u64*)w[2])[page];
        if (form == 0 && entry & 1) ((unsigned char*)w[3])[page] = 1;
        if (entry & 1) atomicAdd(told + 1, 1u);
        if (*(const unsigned*)(at + (entry & ~1ull)) == i * 3) atomicAdd(told + 2, 1u);
    }
    told[0] = form;
}
__global__ void look(const u64* w, const unsigned* a, u64 n, unsigned* told) { words(w, a, n, told, 0); }
__global__ void gpuvm_quiet_look(const u64* w, const unsigned* a, u64 n, unsigned* told) { words(w, a, n, told, 1); }
";

#[test]
fn what_rewritten_kernels_stored_goes_home_when_pages_give_way() {
    let frames = 8;
    let bench = Bench::new(direct(frames).gpu(simulated_gpu(frames).seed(1)), SOURCE);
    let (mut wanted, b) = (values(1), values(2));
    let low = placed(&bench).from_slice(&wanted).unwrap();
    let high = placed(&bench).priority(5).from_slice(&b).unwrap();
    let of_b = bench.vm.buffer::<u32>(N).unwrap();
    of_b.write(&b).unwrap();
    let out = bench.vm.buffer::<u32>(N).unwrap();
    let module = bench.vm.load_ptx("plain_add.ptx", PLAIN_ADD.as_bytes()).unwrap();
    let kernel = module.kernel("plain_add").unwrap();
    // Clean pages in all frames, of which nothing looks at the marks between one launch's stores and the pages' leaving.
    for _ in 0..3 {
        bench.must("read", config(), (&low, &out, 0u64, N));
    }
    let launch = kernel.launch(config(), (&low, &of_b, 3u32, N));
    launch.unwrap().sync().unwrap();
    add(&mut wanted, &b, 3);
    for _ in 0..12 {
        bench.must("read", config(), (&high, &out, 0u64, N));
        compare(&out.to_vec().unwrap(), &b).unwrap();
    }
    let stats = bench.vm.stats().unwrap();
    assert!(stats.pages_written_back >= frames / 2, "{stats:?}");
    compare(&low.to_vec().unwrap(), &wanted).unwrap();
}

#[test]
fn a_rewritten_kernel_marks_no_loads_where_all_pages_have_frames() {
    for (frames, fits) in [(40, true), (7, false)] {
        let bench = Bench::new(direct(frames), SOURCE);
        let data: Vec<u32> = (0..N as u32).map(|i| i * 3).collect();
        let a = placed(&bench).read_only().from_slice(&data).unwrap();
        let kernels = ["look", "gpuvm_quiet_look"];
        let (module, window) = bench.vm.compile_as_rewritten("both.cu", BOTH_FORMS, &kernels).unwrap();
        let kernel = module.kernel("look").unwrap();
        let words = bench.vm.buffer::<u64>(4).unwrap();
        words.write(&window).unwrap();
        let told = bench.vm.buffer::<u32>(3).unwrap();
        let look = || {
            told.write(&[9, 0, 0]).unwrap();
            let launch = kernel.launch(config(), (&words, &a, N, &told));
            launch.unwrap().sync().unwrap();
            let told = told.to_vec().unwrap();
            assert_eq!(u64::from(told[2]), N, "{told:?}");
            // The second form never finds a page at home.
            assert!(told[0] == 0 || told[1] == 0, "{told:?}");
            told[0] == 1
        };
        assert!(!look(), "nothing is there yet");
        let begun = std::time::Instant::now();
        let mut launches = 0;
        let mut was_seen = false;
        while !was_seen && (launches < 20 || fits && begun.elapsed().as_secs() < 20) {
            was_seen = look();
            launches += 1;
        }
        assert_eq!(was_seen, fits, "{frames} frames, {launches} launches");
    }
}

#[test]
fn what_was_used_before_an_eviction_brings_nothing_after_it() {
    let bench = Bench::new(direct(40), SOURCE);
    let (mut wanted, b) = (values(1), values(2));
    let a = placed(&bench).from_slice(&wanted).unwrap();
    let of_b = placed(&bench).read_only().from_slice(&b).unwrap();
    let fetched = || bench.vm.stats().unwrap().pages_fetched;
    for _ in 0..2 {
        let before = fetched();
        for launch in 0..2u32 {
            bench.must("add", config(), (&a, &of_b, launch));
            add(&mut wanted, &b, launch);
            assert_eq!(fetched() - before, u64::from(launch) * 24);
        }
        bench.must("add", config(), (&a, &of_b, 3u32));
        add(&mut wanted, &b, 3);
        a.evict().unwrap();
        of_b.evict().unwrap();
    }
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
}

#[test]
fn kernels_that_cannot_look_pages_up_use_them_at_home() {
    // An instruction that reads memory by an address, and for the simulated GPU a hint.
    let bulk = "\tcp.async.bulk.prefetch.L2.global [%rd9], 16;\n\n$L__BB0_2:";
    let bulk = PLAIN_ADD.replace("sm_80", "sm_90").replace("\n$L__BB0_2:", bulk);
    for frames in [40, 7] {
        let bench = Bench::new(direct(frames), SOURCE);
        let (mut wanted, b) = (values(1), values(2));
        let a = placed(&bench).from_slice(&wanted).unwrap();
        let of_b = bench.vm.region::<u32>().read_only().from_slice(&b).unwrap();
        let kernels = [PLAIN_ADD, &bulk].map(|text| {
            let module = bench.vm.load_ptx("add.ptx", text.as_bytes()).unwrap();
            module.kernel("plain_add").unwrap()
        });
        assert!(kernels[0].at_home().is_none());
        let why = kernels[1].at_home().unwrap();
        assert!(
            why.starts_with("cp.async.bulk.prefetch.L2.global of `plain_add` (line "),
            "{why}"
        );
        let mut launches = Vec::new();
        for factor in 1..=16u32 {
            match factor % 4 {
                // Frames are full of what this one writes when the next begins.
                0 => drop(bench.must("add", config(), (&a, &of_b, factor))),
                1 => launches.push(kernels[0].launch(config(), (&a, &of_b, factor, N)).unwrap()),
                // Two without a wait, on one stream.
                _ => launches.push(kernels[1].launch(config(), (&a, &of_b, factor, N)).unwrap()),
            }
            add(&mut wanted, &b, factor);
            if factor % 5 == 0 {
                compare(&a.to_vec().unwrap(), &wanted).unwrap();
                a.write(5, &[factor; 700]).unwrap();
                wanted[5..705].fill(factor);
            }
        }
        launches.into_iter().for_each(|launch| drop(launch.sync().unwrap()));
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
    }
}

/// What nvcc puts into a program for one source file (`gpuvm_ptx::embedded`).
fn fat_binary(text: &str) -> Vec<u8> {
    let mut entry = [0u8; 64];
    entry[..8].copy_from_slice(&[1, 0, 1, 1, 64, 0, 0, 0]);
    entry[8..16].copy_from_slice(&(text.len() as u64).to_le_bytes());
    entry[28] = 80;
    let magic = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
    [
        &magic[..],
        &(64 + text.len() as u64).to_le_bytes(),
        &entry,
        text.as_bytes(),
    ]
    .concat()
}

#[test]
fn kernels_of_one_name_in_several_files_are_told_apart() {
    let [a, b] = ["_ZN1a3addEv", "_ZN1b3addEv"];
    let of_a = PLAIN_ADD.replace("plain_add", a);
    let of_b = PLAIN_ADD.replace("plain_add", b);
    let of_b = of_b.replace("mad.lo.s32 \t%r8, %r6, %r1, %r7;", "xor.b32 \t%r8, %r6, %r7;");
    assert!(of_b.contains("xor.b32"));
    let program = [
        b"\x7fELF",
        &*fat_binary(&of_a),
        b"code",
        &fat_binary(&of_b),
        &fat_binary(&of_a),
    ]
    .concat();
    let bench = Bench::new(direct(40), SOURCE);
    let module = bench.vm.load_ptx("program", &program).unwrap();
    let none = with_causes(&module.kernel("add").err().unwrap());
    assert!(
        none.contains(a) && none.contains(b) && !none.contains("quiet"),
        "{none}"
    );
    let (mut wanted, right) = (values(1), values(2));
    let region = placed(&bench).from_slice(&wanted).unwrap();
    let of_right = placed(&bench).read_only().from_slice(&right).unwrap();
    let kernel = module.kernel(b).unwrap();
    // Until all pages have frames, and the second form runs.
    for _ in 0..5 {
        let launch = kernel.launch(config(), (&region, &of_right, 3u32, N));
        launch.unwrap().sync().unwrap();
        wanted.iter_mut().zip(&right).for_each(|(left, right)| *left ^= right);
        compare(&region.to_vec().unwrap(), &wanted).unwrap();
    }
    let launch = module
        .kernel(a)
        .unwrap()
        .launch(config(), (&region, &of_right, 3u32, N));
    launch.unwrap().sync().unwrap();
    add(&mut wanted, &right, 3);
    compare(&region.to_vec().unwrap(), &wanted).unwrap();
}

#[test]
fn ptx_that_cannot_be_run_is_refused_with_the_reason() {
    let bench = Bench::new(direct(4), SOURCE);
    let load = |text: &str| with_causes(&bench.vm.load_ptx("mine.ptx", text.as_bytes()).err().unwrap());
    assert!(load("__global__ void k() {}").contains("line 1"));
    let ptx = |body: &str| {
        format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a)\n{{\n{body}\nret;\n}}\n"
        )
    };
    if bench.vm.device().simulation().is_some() {
        let named = ".reg .b32 %r;\nbar.sync 3;";
        assert!(load(&ptx(named)).contains("`bar.sync 3;`: the simulated GPU does not run barriers with a number"));
    }
}
