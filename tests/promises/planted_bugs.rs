//! Device libraries with one rule of the paging protocol broken: random programs under random interleavings must find
//! each of them, or they prove nothing about the library without it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Adjust, BASIC, Bench, PAGE_WORDS, planted, scaled, simulated_soft};
use crate::program::{ProgramShape, rng, run, run_on, tiny};
use gpuvm::sim::SimOptions;
use gpuvm::{CompileOptions, LaunchConfig, SoftNic};
use gpuvm_nic::soft::ViolationKind;

/// Whether one of `most` interleavings goes wrong with the bug, in any way that a user would see.
fn found(header: &str, from: &str, to: &str, most: u64) {
    let shape = |seed| ProgramShape {
        launches: 1,
        ..tiny(seed, 1 + seed % 3)
    };
    found_in(header, from, to, 0..most, &shape);
}

/// Finds a planted bug by programs of the given shape, under these seeds.
fn found_in(header: &str, from: &str, to: &str, seeds: Range<u64>, shape: &dyn Fn(u64) -> ProgramShape) {
    let bug = planted(header, from, to);
    let wrong = |seed| run::<u32>(&mut rng(seed), &shape(seed), &bug).err();
    match seeds.clone().find_map(|seed| wrong(seed).map(|wrong| (seed, wrong))) {
        Some((seed, wrong)) => {
            println!("found by seed {seed}: {wrong}");
            // It was the bug: the same program in the same interleaving is right without it.
            run::<u32>(&mut rng(seed), &shape(seed), &CompileOptions::default()).expect("the library as it is");
        }
        None => panic!("none of the interleavings {seeds:?} shows the bug"),
    }
}

const WORD: &str = "gpuvm/detail/page_word.cuh";
const LEAVE: &str = "gpuvm/detail/leave.cuh";
const QUEUE: &str = "gpuvm/detail/queue.cuh";
const ACCESS: &str = "gpuvm/detail/access.cuh";

#[test]
fn a_read_without_a_second_look() {
    found(ACCESS, "if (difference & kSameStay) return false;", "", 60);
}

#[test]
fn a_pinned_page_evicted() {
    found(
        LEAVE,
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

/// When a launch ends whose lanes may wait for each other for ever.
const WRECKED: Duration = Duration::from_secs(1);

/// Whether the software NIC names the rule that a library with the bug breaks, in one of `most` interleavings; the library
/// without it breaks none in them. What the kernel comes to does not matter.
fn named(header: &str, from: &str, to: &str, kinds: &[ViolationKind], most: u64) {
    let bug = planted(header, from, to);
    let violations = |seed, options: &CompileOptions, deadline| {
        // More pages than frames and slots, so that both are used again.
        let builder = simulated_soft(8).queue_pairs(2).queue_depth(4).seed(seed);
        let builder = builder.wait_limit(Duration::from_millis(20)).launch_deadline(deadline);
        let bench = Bench::with(builder, BASIC, options);
        let a = bench.vm.region::<u32>().zeroed(20 * PAGE_WORDS).unwrap();
        let ended = bench.run("read_then_write", LaunchConfig::new(2, 64), (&a, 1u32));
        (ended.is_ok(), bench.soft_nic().violations())
    };
    for seed in 0..most {
        let (_, broken) = violations(seed, &bug, WRECKED);
        let (works, clean) = violations(seed, &CompileOptions::default(), scaled(Duration::from_secs(60)));
        assert!(works && clean.is_empty(), "the library as it is: {clean:?}");
        if let Some(broken) = broken.iter().find(|broken| kinds.contains(&broken.kind)) {
            println!("named by seed {seed}: {broken}");
            return;
        }
    }
    panic!("none of {most} interleavings shows the bug");
}

const WIRE: &str = "gpuvm/detail/wire.cuh";
const MLX5: &str = "gpuvm/detail/mlx5.cuh";
const FAULT: &str = "gpuvm/detail/fault.cuh";

#[test]
fn a_doorbell_before_its_record() {
    let doorbell =
        "st_mmio_sys(reinterpret_cast<u64*>(queue->doorbell), is_rxe ? written : mlx5::doorbell(queue, written));";
    let (_, text) = gpuvm_gpu::headers()
        .iter()
        .find(|(name, _)| *name == WIRE)
        .expect("the header");
    let record = text.find("    st_relaxed_sys(reinterpret_cast<u32*>(queue->doorbell_record)");
    let record = record.expect("the record's store");
    let end = record + text[record..].find(doorbell).expect("the doorbell's store") + doorbell.len();
    let from = &text[record..end];
    let without = from.strip_suffix(doorbell).expect("it ends so");
    named(
        WIRE,
        from,
        &format!("{doorbell}\n{without}"),
        &[ViolationKind::DoorbellAheadOfRecord],
        60,
    );
}

#[test]
fn a_record_ahead_of_its_requests() {
    named(
        WIRE,
        "mlx5::doorbell_record(queue, written)",
        "mlx5::doorbell_record(queue, written + 1)",
        &[ViolationKind::RecordAheadOfRequest],
        10,
    );
}

#[test]
fn a_doorbell_before_its_request() {
    let write = "    write_slot(q, index, layout::REQUEST_FETCH, id, got, pins, 0);\n";
    let ring = "    commit(q, index, 1);\n    ring(q);\n";
    named(
        FAULT,
        &format!("{write}{ring}"),
        &format!("{ring}{write}"),
        // Before the first lap the slot is empty.
        &[ViolationKind::WrongIndex, ViolationKind::Malformed],
        60,
    );
}

#[test]
fn a_request_index_off_by_one() {
    named(
        MLX5,
        "control16(place, ",
        "control16(place + 1, ",
        &[ViolationKind::WrongIndex],
        10,
    );
}

#[test]
fn another_queue_pairs_number() {
    named(
        MLX5,
        "control24(queue->number, kSegments)",
        "control24(queue->number ^ 1, kSegments)",
        &[ViolationKind::WrongQueuePair],
        10,
    );
    named(
        MLX5,
        "control24(queue->number, 0)",
        "control24(queue->number ^ 1, 0)",
        &[ViolationKind::DoorbellWrongQueuePair],
        10,
    );
}

#[test]
fn a_slot_that_is_not_free_yet() {
    let bug = planted(
        QUEUE,
        "more = free < want && states[n] == record_state(index + free, layout::RECORD_FREE);",
        "more = free < want;",
    );
    let works = (CompileOptions::default(), scaled(Duration::from_secs(60)));
    for (options, deadline) in [(bug, WRECKED), works] {
        // Two warps of 32 pages each over a ring of 4; nothing completes before both have posted.
        let nic = Arc::new(SoftNic::builder().latency_ns(20_000_000).build().unwrap());
        let builder = simulated_soft(80).queue_pairs(1).queue_depth(4).soft_nic(nic);
        let builder = builder.wait_limit(Duration::from_millis(500)).launch_deadline(deadline);
        let bench = Bench::with(builder, BASIC, &options);
        let a = bench.vm.region::<u32>().zeroed(64 * PAGE_WORDS).unwrap();
        let out = bench.vm.buffer::<u32>(64).unwrap();
        let ended = bench.run("gather", LaunchConfig::new(2, 32), (&a, PAGE_WORDS, &out));
        let broken = bench.soft_nic().violations();
        if deadline == WRECKED {
            // More than the ring has in one doorbell, or in several.
            let kinds = [ViolationKind::SendSlotReused, ViolationKind::DoorbellOutOfRange];
            let is_named = broken.iter().any(|broken| kinds.contains(&broken.kind));
            assert!(is_named, "{broken:?}");
        } else {
            assert!(ended.is_ok() && broken.is_empty(), "{broken:?}");
        }
    }
}

// Orders and fences taken out: a machine of sequentially consistent memory would show none of these. Searches begin near a
// seed that shows the bug; which one does moves with the library and the compiler.

/// Pages that go by queue pairs, through one to three frames; with three, warps hold spans.
fn queued(seed: u64) -> ProgramShape {
    ProgramShape {
        launches: 1,
        ..tiny(seed, 1 + seed % 3)
    }
}

/// A few operations over two frames: so few hand-overs that no later one hides that one was seen early.
fn short(seed: u64) -> ProgramShape {
    ProgramShape {
        elements: 4 * PAGE_WORDS,
        steps: 4,
        launches: 1,
        ..tiny(seed, 2)
    }
}

/// Frames and slots for several lanes of a warp at a time, which ask together.
fn batches(seed: u64) -> ProgramShape {
    ProgramShape {
        steps: 24,
        launches: 1,
        queue_pairs: 1,
        queue_depth: 8,
        ..tiny(seed, 8)
    }
}

/// Warps that hold spans, whose accesses are weak; two of them share a multiprocessor and its cache.
fn spans(seed: u64) -> ProgramShape {
    ProgramShape {
        threads: 64,
        steps: 16,
        launches: 1,
        ..tiny(seed, 5)
    }
}

const POOL: &str = "gpuvm/detail/pool.cuh";

#[test]
fn order_a_weak_load_after_a_relaxed_word() {
    let strong = "ld_acquire_gpu(word);\n    if (!is_resident(first)) return false;\n    *value = load_strong<T>(";
    let weak = strong.replace("acquire", "relaxed").replace("strong", "weak");
    found_in(ACCESS, strong, &weak, 0..2000, &queued);
}

#[test]
fn order_an_unpin_without_release() {
    let release = "atom_add_release_gpu(word, 0 - count * kPin);";
    found_in(WORD, release, &release.replace("release", "relaxed"), 0..2000, &queued);
}

#[test]
fn order_a_frame_given_without_release() {
    let release = "st_release_gpu(slot, (2 * lap + 1) << 32 | frame);";
    found_in(
        POOL,
        release,
        &release.replace("release", "relaxed"),
        150..2150,
        &queued,
    );
}

#[test]
fn order_a_completion_read_relaxed() {
    let acquire = "u64 entry = completion_slot(queue, index);\n    u32 tail = ld_acquire_sys(";
    found_in(MLX5, acquire, &acquire.replace("acquire", "relaxed"), 0..2000, &queued);
}

#[test]
fn order_a_completion_read_at_gpu_scope() {
    let acquire = "u64 entry = completion_slot(queue, index);\n    u32 tail = ld_acquire_sys(";
    found_in(MLX5, acquire, &acquire.replace("_sys", "_gpu"), 0..2000, &queued);
}

#[test]
fn order_a_hand_over_without_release() {
    let release = "st_release_gpu(&s->written, first + count_);";
    found_in(
        QUEUE,
        release,
        &release.replace("release", "relaxed"),
        250..2250,
        &short,
    );
}

#[test]
fn order_a_ringers_second_look_before_its_unlock() {
    let second = "        fence_sc_gpu();\n        if (ld_relaxed_gpu(&s->written) == written) return;";
    let without = second.replace("        fence_sc_gpu();\n", "");
    found_in(QUEUE, second, &without, 0..2000, &queued);
    // A fence that orders nothing between a store and a later load is none for it.
    let weaker = second.replace("fence_sc_gpu", "fence_acq_rel_gpu");
    found_in(QUEUE, second, &weaker, 0..2000, &queued);
}

#[test]
fn order_a_batch_handed_over_before_its_lanes_meet() {
    let meet = "__syncwarp(granted);";
    found_in(FAULT, meet, "", 0..2000, &batches);
}

#[test]
fn order_a_page_settled_before_its_group_meets() {
    let meet = "// The group's stores come before the leader's release.\n    __syncwarp(miss->group);";
    let bug = planted(FAULT, meet, "");
    // Two warps whose lanes all write to one page, with a frame for it or for the page that they read.
    let copied = |seed, options| {
        let shape = ProgramShape {
            direct: true,
            ..tiny(seed, 1)
        };
        let bench = Bench::with(shape.builder(), BASIC, options);
        let values: Vec<u32> = (1..=64).collect();
        let from = bench.vm.region::<u32>().from_slice(&values).unwrap();
        let to = bench.vm.region::<u32>().zeroed(64).unwrap();
        bench.must("copy", LaunchConfig::new(2, 32), (&from, &to));
        to.to_vec().unwrap() == values
    };
    // One interleaving in some three hundred.
    let seed = (0..4000).find(|&seed| !copied(seed, &bug));
    let seed = seed.expect("an interleaving that shows the bug");
    println!("found by seed {seed}");
    assert!(copied(seed, &CompileOptions::default()), "the library as it is");
}

#[test]
fn order_a_doorbell_before_its_record() {
    let fence = "// The record before the doorbell, at the NIC or its proxy.\n    fence_acq_rel_sys();";
    named(WIRE, fence, "", &[ViolationKind::DoorbellAheadOfRecord], 400);
}

#[test]
fn a_page_in_its_own_frame_counted_twice() {
    let own_frames = |seed| ProgramShape {
        elements: 4 * PAGE_WORDS,
        never_evicted: true,
        launches: 1,
        ..tiny(seed, 1)
    };
    let count = "atom_add_release_gpu(words - 1, ~u64{0});";
    found_in(WORD, count, &count.replace("~u64{0}", "~u64{1}"), 0..60, &own_frames);
}

/// Whether the happens-before checker reports a race in one of `most` interleavings of the library with the bug, and none in the
/// same interleaving of the library without it.
fn races(header: &str, from: &str, to: &str, most: u64, shape: &dyn Fn(u64) -> ProgramShape) {
    let bug = planted(header, from, to);
    let run = |seed, options: &CompileOptions| {
        let shape = shape(seed);
        let simulated = SimOptions {
            find_races: true,
            ..SimOptions::default()
        };
        run_on::<u32>(shape.builder().sim_options(simulated), &mut rng(seed), &shape, options)
    };
    for seed in 0..most {
        let Err(wrong) = run(seed, &bug) else { continue };
        println!("seed {seed}: {wrong}");
        if wrong.contains("races:") {
            run(seed, &CompileOptions::default()).expect("the library as it is");
            return;
        }
    }
    panic!("no race is reported in {most} interleavings");
}

#[test]
fn race_publication_without_release() {
    let release = "atom_add_release_gpu(word, (kResident - kFetching) + fields + pins * kPin);";
    races(WORD, release, &release.replace("release", "relaxed"), 40, &spans);
}

#[test]
fn race_a_pin_without_acquire() {
    let acquire = "return atom_add_acquire_gpu(word, count * kPin);";
    races(WORD, acquire, &acquire.replace("acquire", "relaxed"), 40, &spans);
}

#[test]
fn race_an_unpin_without_release() {
    let release = "atom_add_release_gpu(word, 0 - count * kPin);";
    races(WORD, release, &release.replace("release", "relaxed"), 40, &spans);
}

#[test]
fn race_a_completion_read_relaxed() {
    let acquire = "u64 entry = completion_slot(queue, index);\n    u32 tail = ld_acquire_sys(";
    races(MLX5, acquire, &acquire.replace("acquire", "relaxed"), 40, &spans);
}

#[test]
fn race_a_doorbell_without_its_fences() {
    let fence = "// The record before the doorbell, at the NIC or its proxy.\n    fence_acq_rel_sys();";
    races(WIRE, fence, &fence.replace("acq_rel_sys", "acq_rel_gpu"), 40, &spans);
}

#[test]
fn race_a_follower_that_does_not_acquire() {
    let acquire = "state_of(ld_acquire_gpu(miss->word())) == kError) outcome = kRoundFailed;";
    races(FAULT, acquire, &acquire.replace("acquire", "relaxed"), 40, &spans);
}
