//! A warp whose faults come in strides finds the pages that it walks to, and what it reads ahead takes no frame of a page that is used.

use gpuvm::{Advice, CompileOptions, LaunchConfig, Stats};

use crate::common::{BASIC, Bench, PAGE_WORDS, planted, small_soft};

const PAGE: u64 = PAGE_WORDS * 4;

/// What byte `at` of a region holds.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// What it takes a lane to read a byte of each of these pages of a region, one after the other.
fn walk(frames: u64, pages: u64, order: &[u64], advice: Advice, options: &CompileOptions) -> Stats {
    let bench = Bench::with(small_soft(frames), BASIC, options);
    let a = bench
        .vm
        .region::<u8>()
        .read_only()
        .from_iter((0..pages * PAGE).map(byte));
    let a = a.unwrap();
    assert!(a.advise(advice).unwrap());
    let places: Vec<u64> = order.iter().map(|page| page * PAGE + page * 5 % PAGE).collect();
    let at = bench.vm.buffer::<u64>(places.len() as u64).unwrap();
    at.write(&places).unwrap();
    let found = bench.vm.buffer::<u32>(places.len() as u64).unwrap();
    bench.must("fetch", LaunchConfig::new(1, 1), (&a, &at, places.len() as u32, &found));
    let expected: Vec<u32> = places.iter().map(|&place| u32::from(byte(place))).collect();
    assert_eq!(found.to_vec().unwrap(), expected);
    bench.no_violations();
    bench.vm.stats().unwrap()
}

fn by_default(frames: u64, pages: u64, order: &[u64]) -> Stats {
    walk(frames, pages, order, Advice::Normal, &CompileOptions::default())
}

/// Walks through 600 pages: up, by three, down, and rows of 12 pages of a picture that is 40 pages wide.
fn walks() -> [(&'static str, Vec<u64>); 4] {
    let rows = (0..15).flat_map(|row| (0..12).map(move |column| row * 40 + 3 + column));
    [
        ("up", (0..600).collect()),
        ("by three", (0..200).map(|n| n * 3).collect()),
        ("down", (0..600).rev().collect()),
        ("rows", rows.collect()),
    ]
}

#[test]
fn a_walk_in_strides_finds_its_pages_on_their_way() {
    for (name, order) in walks() {
        for frames in [160, 700] {
            let stats = by_default(frames, 600, &order);
            let pages = order.len() as u64;
            assert!(stats.faults * 3 < pages, "{name} with {frames} frames: {stats:?}");
            // No farther ahead than it has come: at most as many for nothing as are used.
            assert!(
                stats.pages_fetched <= 2 * pages + 32,
                "{name} with {frames} frames: {stats:?}"
            );
        }
    }
}

#[test]
fn nothing_is_read_ahead_where_that_was_advised() {
    for (name, order) in walks() {
        let stats = walk(160, 600, &order, Advice::Random, &CompileOptions::default());
        assert_eq!(
            (stats.read_ahead, stats.faults),
            (0, order.len() as u64),
            "{name}: {stats:?}"
        );
    }
}

#[test]
fn pages_in_no_order_are_not_read_ahead() {
    // Steps of different lengths through all pages, the same each time.
    let order: Vec<u64> = (0..1021).map(|n: u64| n * n * n % 1021).collect();
    for frames in [160, 2000] {
        let stats = by_default(frames, 1021, &order);
        assert_eq!(stats.read_ahead, 0, "{stats:?}");
    }
}

/// How often pages were fetched again while a lane walked through 476 pages and used 24 others between any two of them.
fn fetched_again(options: &CompileOptions) -> (u64, Stats) {
    let used = 0..24;
    let order: Vec<u64> = (24..500).flat_map(|page| used.clone().chain([page])).collect();
    let stats = walk(70, 500, &order, Advice::Normal, options);
    (stats.pages_fetched - 500, stats)
}

#[test]
fn what_is_read_ahead_takes_no_frame_of_a_page_that_is_used() {
    let (again, stats) = fetched_again(&CompileOptions::default());
    assert!(stats.read_ahead > 300, "{stats:?}");
    // A lane that finds no frame at all may turn the clock round several times, when so few are there.
    assert!(again <= 24, "{again} pages again: {stats:?}");
}

#[test]
fn the_test_above_finds_a_library_that_takes_used_pages() {
    let spared = "if (idle_alone && (seen & layout::REFERENCED_BIT) && !is_read_once(region_of(vm, id))) continue;";
    let taken = "if (idle_alone && (seen & layout::REFERENCED_BIT)) {
            atom_and_relaxed_gpu(word, ~layout::REFERENCED_BIT);
            seen &= ~layout::REFERENCED_BIT;
        }";
    let options = planted("gpuvm/detail/clock.cuh", spared, taken);
    let (again, stats) = fetched_again(&options);
    assert!(again > 60, "{again} pages were fetched again: {stats:?}");
}
