//! A profile counts the fetches of each page, samples the rest, and says which advice would have helped.

use crate::common::{Bench, Kernels, PAGE, PAGE_WORDS, refused, says, small};
use gpuvm::{LaunchConfig, Placement, Profile, Profiler, Region, RegionProfile, Transport, VmBuilder};
use std::time::{Duration, Instant};

const SOURCE: Kernels = Kernels {
    name: "profiles.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>

// Lanes read the first `words` words of each listed page together.
__global__ void read_pages(gpuvm::array<const unsigned> a, const unsigned* pages, unsigned count, unsigned words,
                           unsigned long long* sum) {
    unsigned long long own = 0;
    for (unsigned n = 0; n < count; ++n)
        for (unsigned i = threadIdx.x; i < words; i += blockDim.x) own += a[pages[n] * 1024ull + i];
    atomicAdd(sum, own);
}
__global__ void write_pages(gpuvm::array<unsigned> a, const unsigned* pages, unsigned count) {
    for (unsigned n = 0; n < count; ++n)
        for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) a[pages[n] * 1024ull + i] = n + 1;
}
__global__ void read_first(gpuvm::array<const unsigned> a, unsigned long long words, unsigned rounds,
                           unsigned long long* sum) {
    unsigned long long own = 0, lanes = gridDim.x * 1ull * blockDim.x;
    for (unsigned round = 0; round < rounds; ++round)
        for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < words; i += lanes) own += a[i];
    atomicAdd(sum, own);
}
",
};

/// Not a multiple of the clock's window: it looks at every frame in its turn.
const FRAMES: u64 = 61;
/// More than four times as many, and a power of two.
const PAGES: u32 = 256;
/// The whole of a page.
const ALL: u32 = PAGE_WORDS as u32;
/// So long that the thread takes no sample: programs take theirs between two launches, and are the same each time.
const NEVER: Duration = Duration::from_secs(3600);

fn direct() -> VmBuilder {
    small(FRAMES).placement(Placement::Fetch).transport(Transport::Direct)
}

fn bench() -> Bench {
    Bench::new(direct().placement(Placement::Fetch), SOURCE)
}

fn read_only(bench: &Bench, name: &str, pages: u64, placement: Placement) -> Region<u32> {
    let region = bench.vm.region::<u32>().name(name).read_only().placement(placement);
    region.from_slice(&vec![1; (pages * PAGE_WORDS) as usize]).unwrap()
}

/// Reads the pages in their order, with a sample after each few.
fn read(bench: &Bench, profiler: &Profiler, region: &Region<u32>, pages: &[u32], words: u32) {
    for few in pages.chunks(8) {
        let list = bench.vm.buffer::<u32>(few.len() as u64).unwrap();
        list.write(few).unwrap();
        let sum = bench.vm.buffer::<u64>(1).unwrap();
        let args = (region, &list, few.len() as u32, words, &sum);
        // By one lane: others that lag behind could fetch a page again.
        bench.must("read_pages", LaunchConfig::new(1, 1), args);
        assert_eq!(sum.to_vec().unwrap(), [few.len() as u64 * u64::from(words)]);
        profiler.sample().unwrap();
    }
}

fn ascending(pages: u32) -> Vec<u32> {
    (0..pages).collect()
}

/// Each page once, neighbours far apart: the bits of their numbers backwards. `pages` is a power of two.
fn scattered(pages: u32) -> Vec<u32> {
    let shift = 32 - pages.ilog2();
    (0..pages).map(|n| n.reverse_bits() >> shift).collect()
}

fn region<'a>(profile: &'a Profile, name: &str) -> &'a RegionProfile {
    let found = profile.regions.iter().find(|region| region.name == name);
    found.unwrap_or_else(|| panic!("no region {name}"))
}

/// The advice for a region. Every fetch has to be known by its page.
fn advice(profile: &Profile, name: &str) -> Vec<&'static str> {
    assert_eq!(profile.fetches_unseen(), 0, "{:?}", profile.stats);
    let all = profile.suggestions().expect("enough samples");
    let of_region = all.iter().filter(|told| told.region == name);
    of_region.map(|told| told.advice).collect()
}

#[test]
fn pages_that_are_read_once_and_in_order_are_named_so() {
    let pages = PAGES;
    for (order, told) in [
        (ascending(pages), &["ReadOnce", "Sequential"][..]),
        (scattered(pages), &["ReadOnce"]),
        // What fits has no need to leave.
        (scattered(PAGES / 8), &[]),
    ] {
        let bench = bench();
        let a = read_only(&bench, "a", u64::from(pages), Placement::Fetch);
        let profiler = bench.vm.profile(NEVER).unwrap();
        read(&bench, &profiler, &a, &order, ALL);
        (0..8).for_each(|_| profiler.sample().unwrap());
        let profile = profiler.finish().unwrap();
        assert_eq!(advice(&profile, "a"), told);
        let a = region(&profile, "a");
        let read = order.len() as u64;
        assert_eq!(a.pages_fetched(), read);
        // The clock may take the page that has just come.
        assert!((read..=read + read / 20).contains(&a.fetches()), "{}", a.fetches());
        assert_eq!((a.stays_written(), a.bytes_in_place()), (0, 0));
        assert_eq!(a.evictions(), profile.stats.evictions);
    }
}

#[test]
fn pages_that_come_again_and_again_are_better_read_in_place() {
    let pages = PAGES;
    for (words, rounds, placement, told) in [
        // A page that is fetched for one word.
        (1, 4, Placement::Fetch, Some("InPlace")),
        // A cycle: all of each page.
        (ALL, 4, Placement::Fetch, Some("Placement::Auto")),
        (ALL, 1, Placement::Fetch, None),
        // It is done already.
        (ALL, 4, Placement::WhileFree, None),
    ] {
        let bench = bench();
        let a = read_only(&bench, "a", u64::from(pages), placement);
        let profiler = bench.vm.profile(NEVER).unwrap();
        for _ in 0..rounds {
            read(&bench, &profiler, &a, &scattered(pages), words);
        }
        let profile = profiler.finish().unwrap();
        let all = advice(&profile, "a");
        let in_place = all
            .iter()
            .copied()
            .find(|told| ["InPlace", "Placement::Auto"].contains(told));
        assert_eq!(
            in_place,
            told,
            "{words} words, {rounds} rounds: {:?}",
            profile.suggestions()
        );
        // Not once alone.
        assert_eq!(
            all.contains(&"ReadOnce"),
            rounds == 1 && placement == Placement::Fetch,
            "{all:?}"
        );
    }
}

#[test]
fn a_region_that_is_written_is_not_read_in_place_or_once() {
    for rounds in [1, 4] {
        let bench = bench();
        let pages = PAGES;
        let a = bench
            .vm
            .region::<u32>()
            .name("a")
            .zeroed(u64::from(pages) * PAGE_WORDS)
            .unwrap();
        let profiler = bench.vm.profile(NEVER).unwrap();
        for few in (0..rounds).flat_map(|_| scattered(pages)).collect::<Vec<_>>().chunks(8) {
            let list = bench.vm.buffer::<u32>(few.len() as u64).unwrap();
            list.write(few).unwrap();
            bench.must("write_pages", LaunchConfig::new(1, 4), (&a, &list, few.len() as u32));
            profiler.sample().unwrap();
        }
        let profile = profiler.finish().unwrap();
        assert_eq!(advice(&profile, "a"), [""; 0]);
        let a = region(&profile, "a");
        assert!(
            a.fetches() > u64::from(pages * rounds) / 2 && a.dirty() > 0,
            "{}",
            a.fetches()
        );
        // The pages of the last eight of each launch are seen dirty; each stay counts once.
        assert!((1..=a.fetches()).contains(&a.stays_written()), "{}", a.stays_written());
    }
}

#[test]
fn a_small_region_is_kept_where_it_is_used_all_the_time() {
    let pages = 8 * FRAMES as u32;
    for (hot, told) in [(true, &["KeepResident"][..]), (false, &[])] {
        let bench = bench();
        let small = read_only(&bench, "small", FRAMES / 8, Placement::Fetch);
        let large = read_only(&bench, "large", u64::from(pages), Placement::Fetch);
        let profiler = bench.vm.profile(NEVER).unwrap();
        let all = ascending(FRAMES as u32 / 8);
        read(&bench, &profiler, &small, &all, ALL);
        for (turn, few) in ascending(pages).chunks(8).enumerate() {
            read(&bench, &profiler, &large, few, ALL);
            // Not used, it has to come again now and then, and is gone at the next samples.
            if hot || turn % 24 == 0 {
                read(&bench, &profiler, &small, &all, ALL);
            }
        }
        let profile = profiler.finish().unwrap();
        let found = advice(&profile, "small");
        let kept: Vec<_> = found.iter().copied().filter(|told| *told == "KeepResident").collect();
        assert_eq!(kept, told, "{found:?}");
        assert!(!advice(&profile, "large").contains(&"KeepResident"));
    }
}

#[test]
fn what_is_read_in_place_often_is_better_fetched() {
    let whole = |pages: u64| pages * PAGE_WORDS;
    for (pages, words, rounds, told) in [
        (FRAMES / 2, whole(FRAMES / 2), 8u32, &["Fetch"][..]),
        (FRAMES * 4, whole(FRAMES * 4), 8, &["Placement::Auto"]),
        // Once, and not all of it.
        (FRAMES * 4, whole(FRAMES / 2), 1, &[]),
    ] {
        let bench = bench();
        let a = read_only(&bench, "a", pages, Placement::InPlace);
        let profiler = bench.vm.profile(NEVER).unwrap();
        let sum = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("read_first", LaunchConfig::new(2, 64), (&a, words, rounds, &sum));
        assert_eq!(sum.to_vec().unwrap(), [words * u64::from(rounds)]);
        for _ in 0..8 {
            profiler.sample().unwrap();
        }
        let profile = profiler.finish().unwrap();
        let in_place = profile.stats.bytes_in_place;
        assert_eq!(advice(&profile, "a"), told, "{in_place} bytes");
        // Page by page it is what the counter says of all.
        let read = &region(&profile, "a").pages[..(words / PAGE_WORDS) as usize];
        assert_eq!(read.iter().map(|page| page.bytes_in_place).sum::<u64>(), in_place);
        assert_eq!(region(&profile, "a").bytes_in_place(), in_place);
        assert!(in_place > 0);
    }
}

#[test]
fn samples_while_kernels_run_change_nothing_and_know_every_fetch() {
    for transport in [Transport::Direct, gpuvm::Soft::new().into()] {
        let bench = Bench::new(small(FRAMES).placement(Placement::Fetch).transport(transport), SOURCE);
        let pages = 4 * FRAMES;
        let a = read_only(&bench, "a", pages, Placement::Fetch);
        let profiler = bench.vm.profile(Duration::from_micros(100)).unwrap();
        let (begun, mut launches) = (Instant::now(), 0);
        let sum = bench.vm.buffer::<u64>(1).unwrap();
        // The thread of the profile has no turn at every interval where the machine is busy.
        while launches < 9 || begun.elapsed() < Duration::from_millis(50) {
            let arguments = (&a, pages * PAGE_WORDS, 1u32, &sum);
            let launch = bench.launch("read_first", LaunchConfig::new(4, 64), arguments);
            profiler.sample().unwrap();
            launch.sync().unwrap();
            launches += 1;
        }
        assert_eq!(sum.to_vec().unwrap(), [launches * pages * PAGE_WORDS]);
        let profile = profiler.finish().unwrap();
        assert!(profile.samples > 8, "{}", profile.samples);
        assert_eq!(profile.fetches_unseen(), 0);
        let a = region(&profile, "a");
        assert_eq!(a.fetches(), profile.stats.pages_fetched);
        assert!(a.fetches() > 4 * pages && a.resident() > 0 && a.referenced() > 0);
        assert!(profile.elapsed >= profile.sampling);
        let by_column: u32 = a.columns.iter().flat_map(|column| &column.fetches).sum();
        assert_eq!(u64::from(by_column), a.fetches());
    }
}

#[test]
fn too_few_samples_say_nothing() {
    let bench = bench();
    let a = read_only(&bench, "a", 4 * FRAMES, Placement::Fetch);
    let profiler = bench.vm.profile(NEVER).unwrap();
    let sum = bench.vm.buffer::<u64>(1).unwrap();
    bench.must(
        "read_first",
        LaunchConfig::new(1, 32),
        (&a, 4 * FRAMES * PAGE_WORDS, 4u32, &sum),
    );
    let profile = profiler.finish().unwrap();
    assert_eq!(profile.samples, 2);
    assert_eq!(profile.suggestions(), None);
    // Fetches are counted all the same.
    assert_eq!(region(&profile, "a").fetches(), profile.stats.pages_fetched);
}

#[test]
fn a_profile_sees_the_regions_that_are_there() {
    let bench = bench();
    let early = read_only(&bench, "early", 4, Placement::InPlace);
    let profiler = bench.vm.profile(NEVER).unwrap();
    // One at a time, where lanes count.
    says(
        &refused(bench.vm.profile(NEVER).map(drop)),
        &["region `early`: it is being profiled already"],
    );
    let late = read_only(&bench, "late", 4, Placement::Fetch);
    read(&bench, &profiler, &late, &ascending(4), ALL);
    let own = bench
        .vm
        .region::<u32>()
        .name("own")
        .never_evicted()
        .zeroed(2 * PAGE_WORDS)
        .unwrap();
    drop(own);
    early.close().unwrap();
    let profile = profiler.finish().unwrap();
    let names: Vec<_> = profile.regions.iter().map(|region| region.name.as_str()).collect();
    assert_eq!(names, ["early"]);
    assert_eq!(profile.fetches_unseen(), 4);
    assert_eq!((profile.frames, profile.page_bytes), (FRAMES, PAGE));
    // The next one starts anew.
    let profiler = bench.vm.profile(NEVER).unwrap();
    read(&bench, &profiler, &late, &ascending(4), ALL);
    let profile = profiler.finish().unwrap();
    let late = region(&profile, "late");
    assert_eq!((late.fetches(), late.placement, late.pages.len()), (0, "fetch", 4));
    // Pages that were there count as such.
    assert!(late.resident() > 0);
}

#[test]
fn a_profile_sees_what_was_advised() {
    let bench = bench();
    let a = read_only(&bench, "a", u64::from(PAGES), Placement::Fetch);
    assert!(a.advise(gpuvm::Advice::InPlace).unwrap());
    let profiler = bench.vm.profile(NEVER).unwrap();
    for _ in 0..4 {
        read(&bench, &profiler, &a, &scattered(PAGES), ALL);
    }
    let profile = profiler.finish().unwrap();
    let seen = region(&profile, "a");
    assert_eq!((seen.placement, seen.fetches()), ("in-place", 0));
    assert!(seen.pages.iter().map(|page| page.bytes_in_place).sum::<u64>() > 0);
    // And what took it back.
    a.advise(gpuvm::Advice::Fetch).unwrap();
    let profiler = bench.vm.profile(NEVER).unwrap();
    read(&bench, &profiler, &a, &scattered(PAGES), ALL);
    let profile = profiler.finish().unwrap();
    let seen = region(&profile, "a");
    assert!(seen.placement == "fetch" && seen.fetches() >= u64::from(PAGES));
}
