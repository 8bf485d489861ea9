//! Device libraries with one rule of the paging protocol broken: random programs under random interleavings must find
//! each of them, or they prove nothing about the library without it.

mod common;
#[path = "common/program.rs"]
mod program;

use common::planted;
use gpuvm::CompileOptions;
use program::{Shape, rng, run, tiny};

/// Whether one of `most` interleavings goes wrong with the bug, in any way that a user would see.
fn found(header: &str, from: &str, to: &str, most: u64) {
    let bug = planted(header, from, to);
    let shape = |seed| Shape {
        launches: 1,
        ..tiny(seed, 1 + seed % 3)
    };
    let wrong = |seed| run::<u32>(&mut rng(seed), &shape(seed), &bug).err();
    match (0..most).find_map(|seed| wrong(seed).map(|wrong| (seed, wrong))) {
        Some((seed, wrong)) => {
            println!("found by seed {seed}: {wrong}");
            // It was the bug: the same program in the same interleaving is right without it.
            run::<u32>(&mut rng(seed), &shape(seed), &CompileOptions::default()).expect("the library as it is");
        }
        None => panic!("none of {most} interleavings shows the bug"),
    }
}

const WORD: &str = "gpuvm/detail/page_word.cuh";
const CLOCK: &str = "gpuvm/detail/clock.cuh";
const QUEUE: &str = "gpuvm/detail/queue.cuh";
const ACCESS: &str = "gpuvm/detail/access.cuh";

#[test]
fn a_read_without_a_second_look() {
    found(ACCESS, "if (difference & kSameStay) return false;", "", 60);
}

#[test]
fn a_pinned_page_evicted() {
    found(
        CLOCK,
        "pins_of(seen) || (seen & layout::WRITE_BACK_BIT)",
        "(seen & layout::WRITE_BACK_BIT)",
        60,
    );
}

#[test]
fn a_page_made_clean_when_its_write_completes() {
    let late = "atom_and_release_gpu(word, ~(layout::WRITE_BACK_BIT | layout::DIRTY_BIT));";
    found(
        WORD,
        "GPUVM_DEVICE void write_back_done(u64* word) { atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT); }",
        &format!("GPUVM_DEVICE void write_back_done(u64* word) {{ {late} }}"),
        100,
    );
}

#[test]
fn a_pin_that_was_not_had() {
    found(
        ACCESS,
        "        if (GPUVM_LIKELY(pins_held(old))) {",
        "        if (GPUVM_LIKELY(true)) {",
        100,
    );
}

#[test]
fn a_doorbell_without_a_second_look() {
    found(
        QUEUE,
        "if (ld_relaxed_gpu(&s->written) == written) return;",
        "return;",
        200,
    );
}

#[test]
fn a_claim_that_does_not_look_whether_it_won() {
    found(
        WORD,
        "return atom_cas_acquire_gpu(word, seen, (seen & ~(layout::STATE_MASK | layout::FRAME_MASK)) | kFetching) == seen;",
        "atom_cas_acquire_gpu(word, seen, (seen & ~(layout::STATE_MASK | layout::FRAME_MASK)) | kFetching); return true;",
        60,
    );
}
