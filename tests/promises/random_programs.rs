//! Random programs of reads, writes, atomics, spans, prefetches and flushes by many warps come to what a plain array
//! would come to: over page sizes, element types, queue depths, and regions of 1 to 16 times the frames.

use crate::common::planted;
use crate::program::{Element, ProgramShape, give_up, rng, run, seeds};
use gpuvm::{CompileOptions, Placement};

fn programs<T: Element>(test: &str, page: u64, first: u64, count: u64) {
    for seed in seeds(first, count) {
        let mut rng = rng(seed);
        let shape = ProgramShape::random(&mut rng, page, size_of::<T>() as u64);
        if let Err(wrong) = run::<T>(&mut rng, &shape, &CompileOptions::default()) {
            give_up("random_programs", test, seed, &shape, &wrong);
        }
    }
}

macro_rules! tests {
    ($($name:ident: $element:ty, $page:expr, $first:literal, $count:literal;)*) => {$(
        #[test]
        fn $name() {
            programs::<$element>(stringify!($name), $page, $first, $count);
        }
    )*};
}
tests! {
    bytes_in_pages_of_4_kib: u8, 4 << 10, 1000, 7;
    halves_in_pages_of_4_kib: u16, 4 << 10, 2000, 7;
    words_in_pages_of_4_kib: u32, 4 << 10, 3000, 14;
    long_words_in_pages_of_4_kib: u64, 4 << 10, 4000, 7;
    floats_in_pages_of_4_kib: f32, 4 << 10, 5000, 7;
    doubles_in_pages_of_4_kib: f64, 4 << 10, 6000, 7;
    structures_of_16_bytes_in_pages_of_4_kib: [u64; 2], 4 << 10, 7000, 7;
    structures_of_32_bytes_in_pages_of_4_kib: [u64; 4], 4 << 10, 8000, 7;
    words_in_pages_of_64_kib: u32, 64 << 10, 9000, 5;
    structures_of_32_bytes_in_pages_of_64_kib: [u64; 4], 64 << 10, 10_000, 5;
    long_words_in_pages_of_2_mib: u64, 2 << 20, 11_000, 4;
    words_in_pages_of_2_mib: u32, 2 << 20, 12_000, 4;
}

/// Programs come to the same in each placement, under advice that changes it between launches, and so as over plain memory.
fn placements<T: Element>(test: &str, first: u64, count: u64) {
    for seed in seeds(first, count) {
        for placement in [
            Placement::Fetch,
            Placement::InPlace,
            Placement::WhileFree,
            Placement::Auto,
            Placement::LookUp,
        ] {
            // The program is drawn anew for each, the same each time.
            let mut rng = rng(seed);
            let drawn = ProgramShape::random(&mut rng, 4 << 10, size_of::<T>() as u64);
            let shape = ProgramShape {
                direct: true,
                placement,
                advised: seed % 2 == 1,
                ..drawn
            };
            if let Err(wrong) = run::<T>(&mut rng, &shape, &CompileOptions::default()) {
                give_up("random_programs", test, seed, &shape, &wrong);
            }
        }
    }
}

#[test]
fn a_program_comes_to_the_same_in_each_placement() {
    placements::<u32>("a_program_comes_to_the_same_in_each_placement", 13_000, 6);
}

#[test]
fn programs_of_other_elements_come_to_the_same_in_each_placement() {
    let test = "programs_of_other_elements_come_to_the_same_in_each_placement";
    placements::<u8>(test, 13_100, 2);
    placements::<[u64; 4]>(test, 13_200, 2);
}

/// Whether one of `count` programs goes wrong with a bug planted.
fn found(bug: &CompileOptions, count: u64) -> bool {
    (0..count).any(|seed| {
        let mut rng = rng(seed);
        let mut shape = ProgramShape::random(&mut rng, 4 << 10, 4);
        (shape.frames, shape.warp_spans, shape.thread_spans) = (3, false, false);
        run::<u32>(&mut rng, &shape, bug).is_err()
    })
}

#[test]
fn they_find_a_library_that_forgets_that_a_page_was_written() {
    let bug = planted(
        "gpuvm/detail/access.cuh",
        "            mark_dirty(word, old);\n            use(",
        "            use(",
    );
    assert!(found(&bug, 10));
}
