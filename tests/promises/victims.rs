//! Clean pages that leave their frames go to memory that a neighbour GPU lends, and come from there; it has that memory back at any time.
//! `GPUVM_TEST_GPUS=cuda:0,cuda:1` takes those two in place of simulated ones.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};

use crate::common::{
    BASIC, Bench, PAGE, PAGE_WORDS, STEP, compare, config, named_gpus, refused, scaled, simulated_gpu, stepped, words,
};
use crate::mock_gpu::{MockGpu, NEIGHBOUR};
use gpuvm::{Advice, Error, LaunchConfig, Loan, Placement, SimulatedGpu, Soft, Transport, Vm, VmBuilder};

/// A loan is of whole chunks.
pub const CHUNK: u64 = Loan::CHUNK;
/// A smaller one: of one page.
pub const LITTLE: u64 = PAGE;
pub const FRAMES: u64 = 16;
pub const COUNT: u64 = 100 * PAGE_WORDS + 7;

/// A GPU with few frames that borrows one chunk of its neighbour.
fn borrowing() -> VmBuilder {
    borrowing_of(CHUNK)
}

/// A GPU with few frames that borrows this many bytes of its neighbour.
fn borrowing_of(bytes: u64) -> VmBuilder {
    let simulated = || simulated_gpu(FRAMES + 2 * CHUNK / PAGE).neighbours(1).into();
    Vm::builder()
        .placement(Placement::Fetch)
        .gpu(named_gpus().map_or_else(simulated, |gpus| gpus[0].clone()))
        .page_size(PAGE)
        .transport(Transport::Direct)
        .frame_memory(FRAMES * PAGE)
        .borrow_from(1, bytes)
        .wait_limit(scaled(Duration::from_secs(10)))
        .launch_deadline(scaled(Duration::from_secs(60)))
}

#[test]
fn pages_come_back_from_the_neighbour() {
    let bench = Bench::new(borrowing(), BASIC);
    assert_eq!(bench.vm.borrowed_bytes(), CHUNK);
    let before = words(1, COUNT);
    let region = bench.vm.region::<u32>().from_slice(&before).unwrap();
    for round in 1..=4 {
        bench.must("read_then_write", config(), (&region, STEP));
        compare(&region.to_vec().unwrap(), &stepped(&before, round)).unwrap();
    }
    // Reads alone: after the first round all that is absent is at the neighbour.
    let copy = bench.vm.region::<u32>().zeroed(COUNT).unwrap();
    let source = bench.vm.region::<u32>().read_only().from_slice(&before).unwrap();
    for _ in 0..3 {
        bench.must("copy", config(), (&source, &copy));
        compare(&copy.to_vec().unwrap(), &before).unwrap();
    }
    let stats = bench.vm.stats().unwrap();
    assert!(
        stats.victims_copied > 200 && stats.victims_fetched > 100 && stats.victims_lost == 0,
        "{stats:?}"
    );
    assert!(stats.victims_fetched <= stats.pages_fetched);
    // The bytes of both paths are all bytes, and the rate is that of the pages.
    let from_there = stats.bytes_from_neighbours();
    // But for the short last pages.
    let pages = stats.victims_fetched * PAGE;
    assert!(from_there.abs_diff(pages) < pages / 10, "{stats:?}");
    assert!(stats.bytes_from_homes() > 0);
    assert_eq!(from_there + stats.bytes_from_homes(), stats.bytes_fetched);
    let share = stats.victims_fetched as f64 / stats.pages_fetched as f64;
    assert!((stats.victims_hit_rate() - share).abs() < 1e-12);
    assert_eq!((stats.bytes_borrowed, stats.bytes_given_back), (CHUNK, 0));
}

#[test]
fn a_page_that_was_not_written_is_copied_once() {
    let bench = Bench::new(borrowing(), BASIC);
    let before = words(5, COUNT);
    let region = bench.vm.region::<u32>().from_slice(&before).unwrap();
    let total = |words: &[u32]| words.iter().map(|word| u64::from(*word)).sum::<u64>();
    let read = |expected: &[u32]| {
        let start = bench.vm.stats().unwrap();
        let out = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", config(), (&region, &out));
        assert_eq!(out.to_vec().unwrap(), [total(expected)]);
        bench.vm.stats().unwrap().difference(&start)
    };
    read(&before);
    read(&before);
    let again = read(&before);
    // It had kept its slot. What is in a frame since the first round alone has none yet.
    assert!(again.victims_fetched > 80 && again.evictions > 80, "{again:?}");
    assert!(again.victims_copied <= FRAMES, "{again:?}");
    // A page that was written has another copy at home, and none at the neighbour.
    bench.must("read_then_write", config(), (&region, STEP));
    let written = stepped(&before, 1);
    read(&written);
    // A chunk that was given back keeps nothing.
    bench.vm.give_back_borrowed(CHUNK).unwrap();
    assert_eq!(read(&written).victims_fetched, 0);
    let last = read(&written);
    assert_eq!((last.victims_copied, last.victims_lost), (0, 0), "{last:?}");
    compare(&region.to_vec().unwrap(), &written).unwrap();
}

#[test]
fn what_the_host_writes_is_not_hidden_by_an_old_copy() {
    let bench = Bench::new(borrowing(), BASIC);
    let mut expected = words(2, COUNT);
    let mut region = bench.vm.region::<u32>().from_slice(&expected).unwrap();
    let other = bench.vm.region::<u32>().zeroed(COUNT).unwrap();
    for round in 0..4 {
        // Most of the pages are at the neighbour now.
        bench.must("copy", config(), (&region, &other));
        compare(&other.to_vec().unwrap(), &expected).unwrap();
        let first = round * 20 * PAGE_WORDS + 5;
        let new = words(10 + round, 15 * PAGE_WORDS);
        region.write(first, &new).unwrap();
        expected[first as usize..][..new.len()].copy_from_slice(&new);
    }
    bench.must("copy", config(), (&region, &other));
    compare(&other.to_vec().unwrap(), &expected).unwrap();
    // Slots of dropped copies are used again: a region that is made and closed often does not use them up.
    drop(region);
    for round in 0..60 {
        let values = words(round, COUNT);
        region = bench.vm.region::<u32>().from_slice(&values).unwrap();
        bench.must("copy", config(), (&region, &other));
        region.close().unwrap();
    }
    let values = words(99, COUNT);
    let last = bench.vm.region::<u32>().read_only().from_slice(&values).unwrap();
    let before = bench.vm.stats().unwrap();
    for _ in 0..3 {
        bench.must("copy", config(), (&last, &other));
    }
    compare(&other.to_vec().unwrap(), &values).unwrap();
    let stats = bench.vm.stats().unwrap().difference(&before);
    assert!(stats.victims_fetched > 100, "{stats:?}");
}

#[test]
fn memory_is_given_back_while_kernels_use_it_and_nothing_wrong_is_read() {
    let bench = Bench::new(borrowing(), BASIC);
    let before = words(3, COUNT);
    let region = bench.vm.region::<u32>().from_slice(&before).unwrap();
    bench.must("read_then_write", config(), (&region, STEP));
    let rounds = 6;
    for round in 0..rounds {
        let launch = bench.launch("read_then_write", config(), (&region, STEP));
        if round == rounds / 2 {
            assert_eq!(bench.vm.give_back_borrowed(1).unwrap(), CHUNK, "whole chunks");
            // The lender uses it at once.
            assert_eq!(bench.vm.scribble_given_back(0xdd).unwrap(), CHUNK);
            assert_eq!(bench.vm.borrowed_bytes(), 0);
        }
        launch.sync().unwrap();
    }
    compare(&region.to_vec().unwrap(), &stepped(&before, rounds + 1)).unwrap();
    let stats = bench.vm.stats().unwrap();
    assert!(stats.victims_copied > 0 && stats.victims_lost > 0, "{stats:?}");
    assert_eq!((stats.bytes_borrowed, stats.bytes_given_back), (0, CHUNK));
    let later = bench.vm.stats().unwrap().difference(&stats);
    assert_eq!((later.bytes_borrowed, later.bytes_given_back), (0, 0));
    assert_eq!(bench.vm.give_back_borrowed(CHUNK).unwrap(), 0, "there is no more");
    let kept = stats.victims_copied;
    bench.must("read_then_write", config(), (&region, STEP));
    assert_eq!(
        bench.vm.stats().unwrap().victims_copied,
        kept,
        "nothing goes there any more"
    );
    compare(&region.to_vec().unwrap(), &stepped(&before, rounds + 2)).unwrap();
}

#[test]
fn what_is_read_once_takes_no_slot() {
    let bench = Bench::new(borrowing(), BASIC);
    let values = words(9, COUNT);
    let region = bench.vm.region::<u32>().read_only().from_slice(&values).unwrap();
    let out = bench.vm.buffer::<u64>(1).unwrap();
    let read = || {
        let start = bench.vm.stats().unwrap();
        bench.must("sum", config(), (&region, &out));
        bench.vm.stats().unwrap().difference(&start)
    };
    region.advise(Advice::ReadOnce).unwrap();
    for _ in 0..2 {
        let stats = read();
        assert_eq!((stats.victims_copied, stats.victims_fetched), (0, 0), "{stats:?}");
    }
    region.advise(Advice::Normal).unwrap();
    assert!(read().victims_copied > 0);
}

#[test]
fn what_is_fetched_often_takes_the_place_of_what_is_not() {
    // A set that fits the frames and what is borrowed together, and two that do not fit beside it.
    let (lent, often, once) = (40, 48 * PAGE_WORDS, 60 * PAGE_WORDS);
    let bench = Bench::new(borrowing_of(lent * LITTLE).borrowed_chunk(LITTLE), BASIC);
    let region = |seed, count| {
        let values = words(seed, count);
        let firsts = values.iter().step_by(PAGE_WORDS as usize);
        let total: u64 = firsts.map(|word| u64::from(*word)).sum();
        (bench.vm.region::<u32>().read_only().from_slice(&values).unwrap(), total)
    };
    let read = |(region, total): &(gpuvm::Region<u32>, u64)| {
        let start = bench.vm.stats().unwrap();
        let out = bench.vm.buffer::<u64>(1).unwrap();
        // One lane: each page comes once a round.
        bench.must("touch", LaunchConfig::new(1, 1), (region, PAGE_WORDS, &out));
        assert_eq!(out.to_vec().unwrap(), [*total]);
        bench.vm.stats().unwrap().difference(&start)
    };
    let (first, hot, later) = (region(21, once), region(22, often), region(23, once));
    // All slots are of pages that nothing reads again.
    assert!(read(&first).victims_copied >= lent - FRAMES);
    let missed = read(&hot);
    assert!(missed.victims_displaced == 0, "seen once: {missed:?}");
    let rounds: Vec<_> = (0..24).map(|_| read(&hot)).collect();
    let displaced: u64 = rounds.iter().map(|stats| stats.victims_displaced).sum();
    assert!(displaced >= lent / 2, "{displaced}");
    let last = rounds.last().unwrap();
    assert!(last.victims_hit_rate() > 0.8, "{last:?}");
    // What passes by once takes no one's place. What was in frames may.
    let passing = read(&later);
    assert!(passing.victims_displaced <= FRAMES, "{passing:?}");
    let back = read(&hot);
    assert!(back.victims_fetched > lent / 2, "{back:?}");
}

#[test]
fn memory_that_was_given_back_is_borrowed_again() {
    let bench = Bench::new(borrowing().borrowed_chunk(LITTLE), BASIC);
    let mut before = words(6, COUNT);
    let region = bench.vm.region::<u32>().from_slice(&before).unwrap();
    let mut round = |most: u64| {
        let start = bench.vm.stats().unwrap();
        for _ in 0..2 {
            bench.must("read_then_write", config(), (&region, STEP));
        }
        before = stepped(&before, 2);
        let stats = bench.vm.stats().unwrap().difference(&start);
        assert!((1..=most).contains(&stats.victims_copied) || most == 0, "{stats:?}");
        stats
    };
    round(u64::MAX);
    let lent = bench.vm.borrowed_bytes();
    // Parts of it, then all: pages whose copies went are as good as those whose copies stay.
    for part in [5 * LITTLE, 40 * LITTLE, lent] {
        let back = bench.vm.give_back_borrowed(part).unwrap();
        assert_eq!(bench.vm.borrowed_bytes(), lent - back);
        let stats = round(if back == lent { 0 } else { u64::MAX });
        assert_eq!(stats.victims_fetched == 0, back == lent, "{stats:?}");
        assert_eq!(bench.vm.borrow_again(u64::MAX / 2).unwrap(), back);
        assert_eq!(bench.vm.borrow_again(1).unwrap(), 0, "there is no more");
        assert!(round(u64::MAX).victims_fetched > 0);
        // Freed and borrowed again, memory is no longer what it was: a slot that a word still named would show it.
        assert_eq!(bench.vm.borrowed_bytes(), lent);
    }
    compare(&region.to_vec().unwrap(), &before).unwrap();
}

/// Frames that have come since the memory was made keep slots as others do.
#[test]
fn frames_that_came_later_keep_their_slots() {
    let unit = borrowing()
        .build()
        .unwrap()
        .elastic_stats()
        .handles
        .handle_bytes
        .max(PAGE);
    let lent = 2 * COUNT.div_ceil(PAGE_WORDS);
    let builder = borrowing_of(lent * LITTLE).borrowed_chunk(LITTLE);
    let bench = Bench::new(builder.frame_memory(unit).frame_capacity(3 * unit), BASIC);
    bench.vm.resize_frames(3 * unit).unwrap();
    let values = [21, 22].map(|seed| words(seed, COUNT));
    let regions = [0, 1].map(|n| bench.vm.region::<u32>().read_only().from_slice(&values[n]).unwrap());
    let out = bench.vm.buffer::<u64>(1).unwrap();
    for round in 0..12 {
        let (region, values) = (&regions[round / 2 % 2], &values[round / 2 % 2]);
        out.write(&[0]).unwrap();
        bench.must("sum", config(), (region, &out));
        let total: u64 = values.iter().map(|word| u64::from(*word)).sum();
        assert_eq!(out.to_vec().unwrap(), [total], "in round {round}");
        // All slots are listed anew.
        bench.vm.give_back_borrowed(20 * LITTLE).unwrap();
        bench.vm.borrow_again(20 * LITTLE).unwrap();
    }
}

#[test]
fn a_loan_follows_what_its_owner_leaves_free() {
    let used = Arc::new(AtomicU64::new(0));
    let gpu = SimulatedGpu::new()
        .memory(256 << 20)
        .neighbours(1)
        .neighbour_use(Arc::clone(&used));
    let builder = Vm::builder()
        .placement(Placement::Fetch)
        .gpu(gpu)
        .transport(Transport::Direct)
        .frame_memory(FRAMES * PAGE)
        .borrowed_chunk(PAGE)
        .borrow_from(1, Loan::Auto)
        .launch_deadline(scaled(Duration::from_secs(60)));
    let bench = Bench::new(builder, BASIC);
    let first = bench.vm.borrowed_bytes();
    let mut expected = words(7, COUNT);
    let region = bench.vm.region::<u32>().from_slice(&expected).unwrap();
    let mut until = |enough: &dyn Fn(u64) -> bool| {
        let deadline = Instant::now() + scaled(Duration::from_secs(20));
        while !enough(bench.vm.borrowed_bytes()) {
            assert!(Instant::now() < deadline, "{} bytes", bench.vm.borrowed_bytes());
            bench.must("read_then_write", config(), (&region, STEP));
            expected = stepped(&expected, 1);
        }
    };
    // It grows by a step at a time until no page of the region lacks a slot.
    until(&|lent| lent > first);
    until(&|lent| lent >= COUNT * 4);
    // The owner needs all of its memory, beside launches that use it.
    used.store(250 << 20, Ordering::Relaxed);
    until(&|lent| lent == 0);
    used.store(0, Ordering::Relaxed);
    until(&|lent| lent > first);
    let before = bench.vm.stats().unwrap();
    until(&|lent| lent >= COUNT * 4);
    assert!(bench.vm.stats().unwrap().difference(&before).victims_copied > 0);
    compare(&region.to_vec().unwrap(), &expected).unwrap();
}

#[test]
fn a_lender_that_is_gone_takes_its_copies_and_nothing_else() {
    let gpu = MockGpu::new(Some((9, 0)));
    let builder = Vm::builder()
        .placement(Placement::Fetch)
        .gpu(gpu.clone())
        .page_size(PAGE)
        .transport(Transport::Direct)
        .frame_memory(FRAMES * PAGE)
        .borrowed_chunk(PAGE)
        .borrow_from(NEIGHBOUR, Loan::Auto)
        .launch_deadline(scaled(Duration::from_secs(60)));
    let bench = Bench::new(builder, BASIC);
    let mut expected = words(12, COUNT);
    let region = bench.vm.region::<u32>().from_slice(&expected).unwrap();
    let mut round = || {
        bench.must("read_then_write", config(), (&region, STEP));
        expected = stepped(&expected, 1);
        compare(&region.to_vec().unwrap(), &expected).unwrap();
    };
    round();
    round();
    assert!(bench.vm.borrowed_bytes() > 0 && bench.vm.stats().unwrap().victims_copied > 0);
    gpu.lose_neighbour();
    let deadline = Instant::now() + scaled(Duration::from_secs(20));
    while bench.vm.borrowed_bytes() > 0 {
        assert!(Instant::now() < deadline, "{} bytes", bench.vm.borrowed_bytes());
        round();
    }
    let before = bench.vm.stats().unwrap();
    round();
    round();
    let after = bench.vm.stats().unwrap().difference(&before);
    assert_eq!((after.victims_copied, after.victims_fetched), (0, 0), "{after:?}");
    assert_eq!(bench.vm.borrowed_bytes(), 0);
}

#[test]
fn regions_that_are_used_in_place_or_stay_keep_their_rules() {
    let bench = Bench::new(borrowing(), BASIC);
    let values = words(4, COUNT);
    let copy = bench.vm.region::<u32>().zeroed(COUNT).unwrap();
    let region = || bench.vm.region::<u32>().read_only();
    let in_place = region().placement(Placement::Auto).from_slice(&values).unwrap();
    let kept = region().never_evicted().from_slice(&values).unwrap();
    for source in [&in_place, &kept] {
        for _ in 0..2 {
            bench.must("copy", config(), (source, &copy));
            compare(&copy.to_vec().unwrap(), &values).unwrap();
        }
    }
    // Advice to use pages in place comes too late for words that name slots: it changes no result.
    let written = bench.vm.region::<u32>().from_slice(&values).unwrap();
    bench.must("read_then_write", config(), (&written, STEP));
    for advice in [Advice::WriteOnce, Advice::InPlace] {
        written.advise(advice).unwrap();
        bench.must("read_then_write", config(), (&written, STEP));
    }
    compare(&written.to_vec().unwrap(), &stepped(&values, 3)).unwrap();
}

#[test]
fn what_cannot_be_borrowed_is_refused() {
    let refuse = |builder: VmBuilder| refused(builder.build());
    let message = refuse(borrowing().borrow_from(1, CHUNK - 1));
    assert!(message.contains("chunks") && message.contains("GPU 1"), "{message}");
    let everything = (0..5).fold(borrowing(), |builder, _| builder.borrow_from(1, u64::MAX));
    let message = refuse(everything);
    assert!(message.contains("borrow less"), "{message}");
    let message = refuse(borrowing().transport(Soft::new()));
    assert!(message.contains("direct"), "{message}");
    let Err(error) = borrowing().borrow_from(2, CHUNK).build() else {
        panic!("there is no such neighbour")
    };
    assert!(
        matches!(&error, Error::Gpu { .. }) && error.to_string().contains("GPU 2"),
        "{error}"
    );
    // An owner who has nothing to spare lends nothing.
    let used = Arc::new(AtomicU64::new(u64::MAX));
    let gpu = simulated_gpu(FRAMES).neighbours(1).neighbour_use(used);
    let builder = Vm::builder().gpu(gpu).frame_memory(FRAMES * PAGE);
    let vm = builder.borrow_from(1, Loan::Auto).build().unwrap();
    assert_eq!((vm.borrowed_bytes(), vm.borrow_again(1).unwrap()), (0, 0));
    // Who borrows nothing has nothing to give back.
    let vm = Vm::builder()
        .gpu(simulated_gpu(FRAMES))
        .transport(Transport::Direct)
        .frame_memory(FRAMES * PAGE)
        .build();
    let vm = vm.unwrap();
    assert_eq!((vm.borrowed_bytes(), vm.give_back_borrowed(1).unwrap()), (0, 0));
}
