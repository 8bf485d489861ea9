//! A mover moves what the software NIC would copy: completions follow their data, whatever is slow or breaks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::common::mover::{SHORT, TestMover};
use crate::common::{BOUND, BYTES, Bed, Sure as _, assert_failed, pattern};
use gpuvm_nic::poster::{Flags, Poster, PosterError};
use gpuvm_nic::soft::{Fault, FaultPlan, vendor};
use gpuvm_nic::wire::mlx5::{Completion, CompletionDetail, Operation, Segment, Syndrome};
use gpuvm_nic::{Access, Nic, NicError, QueuePairState, SoftNic};

fn page(bed: &Bed, n: u64) -> (Operation, [Segment<'static>; 1]) {
    (bed.read(n * 4096), [bed.local(n * 4096, 4096)])
}

fn post_reads(bed: &Bed, poster: &mut Poster, pages: impl Iterator<Item = u64>) {
    for n in pages {
        let (operation, segments) = page(bed, n);
        poster.put(operation, &segments);
    }
    poster.ring();
}

#[track_caller]
fn assert_page(bed: &Bed, n: u64) {
    for word in n * 512..(n + 1) * 512 {
        assert_eq!(
            bed.frames.word(word).load(Ordering::Relaxed),
            pattern(word),
            "word {word}"
        );
    }
}

fn error_of(completion: &Completion) -> (Syndrome, u8) {
    match completion.detail {
        CompletionDetail::Error { syndrome, vendor } => (syndrome, vendor),
        CompletionDetail::Success { .. } => panic!("{completion} is no error"),
    }
}

#[test]
fn data_arrives_both_ways_and_in_one_batch() {
    let mover = TestMover::default();
    let bed = mover.manual();
    let mut poster = bed.poster(64);
    post_reads(&bed, &mut poster, 0..32);
    while bed.nic.step() {}
    for n in 0..32 {
        let done = poster.wait(BOUND).unwrap();
        assert_eq!((done.is_success(), u64::from(done.index)), (true, n));
        assert_page(&bed, n);
    }
    // Manual steps take one request each.
    assert_eq!(mover.with(|wires| wires.largest), 1);
    bed.frames.fill(|word| !pattern(word));
    // Several spans, of odd lengths at odd places.
    let spans = [bed.local(3, 5), bed.local(4097, 1), bed.local(100, 1000)];
    assert!(bed.run(&mut poster, bed.write(77), &spans).is_success());
    let written: Vec<u8> = [(3, 5), (4097, 1), (100, 1000)]
        .into_iter()
        .flat_map(|(at, count)| bed.frames.bytes(at, count))
        .collect();
    assert_eq!(bed.home.bytes(77, 1006), written);
    let stats = bed.nic.stats();
    assert_eq!((stats.reads, stats.bytes_read), (32, 32 * 4096));
    assert_eq!((stats.writes, stats.bytes_written), (1, 1006));
    assert_eq!((stats.completions, stats.errors), (33, 0));
    bed.assert_clean();
}

/// The next completion. Nothing is done here for the engine, as [`Poster::wait`] does: it takes one request at a time.
fn polled(poster: &mut Poster) -> Completion {
    let begun = Instant::now();
    loop {
        if let Some(completion) = poster.poll() {
            return completion;
        }
        assert!(begun.elapsed() < BOUND, "no completion comes");
        std::thread::yield_now();
    }
}

#[test]
fn an_engine_takes_all_that_is_there_into_one_batch() {
    let mover = TestMover::default();
    let bed = mover.bed(SoftNic::builder().engines(1));
    assert!(
        !bed.nic.capabilities().needs_doorbell_call,
        "stores arrive without a word"
    );
    let mut posters: Vec<Poster> = (0..3).map(|_| bed.poster(64)).collect();
    // An engine that takes the first requests waits here for the mover until all are posted.
    mover.with(|_| {
        for (turn, poster) in posters.iter_mut().enumerate() {
            let first = turn as u64 * 20;
            // Backwards: neighbours would be one copy.
            post_reads(&bed, poster, (first..first + 20).rev());
        }
    });
    for (turn, poster) in posters.iter_mut().enumerate() {
        for n in 0..20 {
            assert!(polled(poster).is_success());
            assert_page(&bed, turn as u64 * 20 + n);
        }
    }
    assert!(
        mover.with(|wires| wires.largest) > 10,
        "one request a batch is no batch"
    );
    bed.assert_clean();
}

#[test]
fn neighbours_of_one_batch_are_one_copy() {
    let mover = TestMover::default();
    let bed = mover.bed(SoftNic::builder().engines(1));
    let mut poster = bed.poster(64);
    // SAFETY: the home's memory, which outlives the NIC and is accessed by atomics only.
    let other = unsafe { bed.nic.register(bed.home.address(), BYTES, Access::REMOTE_READ) }.unwrap();
    mover.with(|_| {
        post_reads(&bed, &mut poster, 0..20);
        // A key of another registration, a gap on one side, and on the other.
        let (remote, rkey) = (bed.home.address() + 20 * 4096, other.rkey);
        for (operation, at) in [
            (Operation::Read { remote, rkey }, 20),
            (bed.read(21 * 4096), 21),
            (bed.read(22 * 4096), 23),
            (bed.read(24 * 4096), 24),
        ] {
            poster.put(operation, &[bed.local(at * 4096, 4096)]);
        }
        poster.ring();
    });
    for n in 0..24 {
        assert!(polled(&mut poster).is_success(), "{n}");
    }
    (0..22).chain([24]).for_each(|n| assert_page(&bed, n));
    assert_eq!(bed.frames.bytes(23 * 4096, 4096), bed.home.bytes(22 * 4096, 4096));
    let moves = mover.with(|wires| wires.moves.clone());
    assert_eq!(moves.iter().map(|copy| copy.bytes).sum::<u64>(), 24 * 4096);
    // The engine may have taken a part of them before the mover was held.
    assert!((5..8).contains(&moves.len()), "{moves:?}");
    assert!(moves.iter().rev().take(4).all(|copy| copy.bytes == 4096), "{moves:?}");
    let stats = bed.nic.stats();
    assert_eq!((stats.reads, stats.completions), (24, 24));
    bed.assert_clean();
}

#[test]
fn many_laps_of_threads_lose_nothing() {
    let bed = TestMover::default().bed(SoftNic::builder().engines(2));
    std::thread::scope(|scope| {
        for turn in 0..4u64 {
            let bed = &bed;
            scope.spawn(move || {
                let mut poster = bed.poster(8);
                // Pages of its own.
                for lap in 0..300u64 {
                    let n = turn * 32 + lap % 32;
                    let (operation, segments) = page(bed, n);
                    assert!(bed.run(&mut poster, operation, &segments).is_success());
                    assert_page(bed, n);
                    bed.frames.word(n * 512).store(pattern(n * 512), Ordering::Relaxed);
                    assert!(bed.run(&mut poster, bed.write(n * 4096), &segments).is_success());
                }
            });
        }
    });
    let stats = bed.nic.stats();
    assert_eq!((stats.reads, stats.writes, stats.errors), (1200, 1200, 0));
    bed.assert_clean();
}

#[test]
fn a_completion_waits_for_its_data() {
    let mover = TestMover::default();
    let bed = mover.manual();
    let mut poster = bed.poster(64);
    mover.hold(true);
    post_reads(&bed, &mut poster, 0..20);
    while bed.nic.step() {}
    assert!(poster.poll().is_none(), "nothing has arrived");
    // 8 batches are under way, and no more are started.
    assert_eq!(mover.with(|wires| wires.moves.len()), 8);
    mover.hold(false);
    for n in 0..20 {
        assert!(poster.wait(BOUND).unwrap().is_success());
        assert_page(&bed, n);
    }
}

#[test]
fn a_fence_waits_for_reads() {
    let mover = TestMover::default();
    let bed = mover.manual();
    let mut poster = bed.poster(8);
    mover.hold(true);
    let (read, segments) = page(&bed, 0);
    poster.submit(read, &segments, Flags::SIGNALLED).unwrap();
    // What was read goes to another place at the home.
    poster.submit(bed.write(8 * 4096), &segments, Flags::FENCED).unwrap();
    while bed.nic.step() {}
    assert_eq!(mover.with(|wires| wires.moves.len()), 1, "the WRITE has to wait");
    mover.hold(false);
    assert!(poster.wait(BOUND).unwrap().is_success());
    assert!(poster.wait(BOUND).unwrap().is_success());
    assert_eq!(bed.home.bytes(8 * 4096, 4096), bed.home.bytes(0, 4096));
}

#[test]
fn a_fenced_dump_completes_after_the_data_of_the_reads_before_it() {
    let mover = TestMover::default();
    let bed = mover.manual();
    let mut poster = bed.poster(8);
    mover.hold(true);
    let (read, segments) = page(&bed, 0);
    poster.submit(read, &segments, Flags::SILENT).unwrap();
    poster.submit(Operation::Dump, &segments, Flags::FENCED).unwrap();
    while bed.nic.step() {}
    assert_eq!(bed.nic.stats().dumps, 0, "the DUMP has to wait");
    assert!(poster.poll().is_none());
    mover.hold(false);
    let done = poster.wait(BOUND).unwrap();
    assert_eq!((done.is_success(), done.index), (true, 1));
    assert_page(&bed, 0);
    assert_eq!(bed.nic.stats().dumps, 1);
    bed.assert_clean();
}

#[test]
fn an_error_comes_after_what_is_before_it_and_flushes_what_is_behind() {
    let mover = TestMover::default();
    let bed = mover.manual();
    let mut poster = bed.poster(16);
    mover.hold(true);
    let wrong = Operation::Read {
        remote: bed.home.address(),
        rkey: bed.home.key.rkey ^ 2,
    };
    post_reads(&bed, &mut poster, 0..3);
    poster.put(bed.write(4 * 4096), &[bed.local(0, 64)]);
    poster.post(wrong, &[bed.local(0, 64)], Flags::SILENT).unwrap();
    post_reads(&bed, &mut poster, 5..7);
    while bed.nic.step() {}
    assert_eq!(bed.nic.state(poster.number()).unwrap(), QueuePairState::ReadyToSend);
    assert_eq!(
        mover.with(|wires| wires.moves.len()),
        4,
        "nothing behind the error starts"
    );
    mover.hold(false);
    for _ in 0..4 {
        assert!(poster.wait(BOUND).unwrap().is_success());
    }
    let failed = poster.wait(BOUND).unwrap();
    assert_eq!(error_of(&failed), (Syndrome::RemoteAccess, vendor::REMOTE_KEY));
    assert_eq!(failed.index, 4);
    for index in 5..7 {
        let flushed = poster.wait(BOUND).unwrap();
        assert_eq!(
            (error_of(&flushed), flushed.index),
            ((Syndrome::Flushed, vendor::FLUSHED), index)
        );
    }
    assert_eq!(bed.nic.stats().errors, 1);
    assert_eq!(bed.nic.mover_failure(), None, "the mover did nothing wrong");
    // It works again after a reset, from the start of the rings.
    poster.reset().unwrap();
    assert_eq!(poster.entry(3)[63], 0xf0, "the entries are invalid again");
    bed.nic.connect(poster.number(), poster.number()).unwrap();
    let (read, segments) = page(&bed, 9);
    assert!(bed.run(&mut poster, read, &segments).is_success());
    assert_page(&bed, 9);
}

#[test]
fn what_is_refused_without_a_mover_is_refused_with_one() {
    let mover = TestMover::default();
    let bed = mover.manual();
    let check = |operation, segments: &[Segment<'_>], syndrome, detail| {
        let mut poster = bed.poster(8);
        let done = bed.run(&mut poster, operation, segments);
        assert_eq!(error_of(&done), (syndrome, detail), "{done}");
    };
    let rkey = bed.home.key.rkey;
    let foreign = Segment::Data {
        bytes: 64,
        lkey: bed.home.key.lkey,
        address: bed.frames.address(),
    };
    let past = bed.local(BYTES - 63, 64);
    check(bed.read(0), &[foreign], Syndrome::LocalProtection, vendor::LOCAL_KEY);
    check(bed.read(0), &[past], Syndrome::LocalProtection, vendor::LOCAL_KEY);
    check(
        bed.read(BYTES - 63),
        &[bed.local(0, 64)],
        Syndrome::RemoteAccess,
        vendor::REMOTE_KEY,
    );
    check(
        bed.write(u64::MAX - bed.home.address()),
        &[bed.local(0, 64)],
        Syndrome::RemoteAccess,
        vendor::REMOTE_KEY,
    );
    // What the NIC does not do.
    let unsupported = (Syndrome::LocalQueuePairOperation, vendor::UNSUPPORTED);
    let add = Operation::FetchAdd {
        remote: bed.home.address(),
        rkey,
        add: 1,
    };
    check(add, &[bed.local(0, 8)], unsupported.0, unsupported.1);
    check(
        bed.write(0),
        &[Segment::Inline(&[1, 2, 3])],
        unsupported.0,
        unsupported.1,
    );
    // The first span is fine; none of it moves.
    check(
        bed.read(0),
        &[bed.local(0, 8), past],
        Syndrome::LocalProtection,
        vendor::LOCAL_KEY,
    );
    assert!(mover.with(|wires| wires.moves.is_empty()));
    let mut poster = bed.poster(8);
    poster.write_raw(&[0xff; 64]);
    poster.ring();
    assert_failed(&poster.wait(BOUND).unwrap(), Syndrome::LocalQueuePairOperation);
    // Nothing to move is no error.
    let mut poster = bed.poster(8);
    assert!(bed.run(&mut poster, Operation::Nop, &[]).is_success());
}

#[test]
fn faults_can_be_planted() {
    let mover = TestMover::default();
    let (bed, clock) = Bed::with_clock(SoftNic::builder().mover(Arc::new(mover.clone())).bound(SHORT));
    let mut poster = bed.poster(8);
    let (read, segments) = page(&bed, 1);
    let delayed = bed.nic.inject(FaultPlan::new(Fault::Delay { ns: 5000 }));
    poster.submit(read, &segments, Flags::SIGNALLED).unwrap();
    while bed.nic.step() {}
    assert!(poster.poll().is_none() && mover.with(|wires| wires.moves.is_empty()));
    clock.advance(5000);
    assert!(poster.wait(BOUND).unwrap().is_success());
    let lost = bed.nic.inject(FaultPlan::new(Fault::LoseCompletion));
    poster.submit(read, &segments, Flags::SIGNALLED).unwrap();
    assert!(matches!(poster.wait(SHORT), Err(PosterError::TimedOut { .. })));
    poster.restart(&bed);
    let failed = bed
        .nic
        .inject(FaultPlan::new(Fault::Fail(Syndrome::TransportRetryExceeded)));
    let done = bed.run(&mut poster, read, &segments);
    assert_eq!(error_of(&done), (Syndrome::TransportRetryExceeded, vendor::INJECTED));
    for fault in [delayed, lost, failed] {
        assert_eq!(bed.nic.bitten(fault), 1);
    }
}

#[test]
fn time_cannot_be_shaped_beside_a_mover() {
    let mover = || Arc::new(TestMover::default());
    let limited = SoftNic::builder().limits(gpuvm_nic::NicLimits::connectx7());
    for builder in [
        SoftNic::builder().latency_ns(1),
        SoftNic::builder().bandwidth(1),
        limited,
    ] {
        let refused = builder.mover(mover()).build();
        assert!(matches!(refused, Err(NicError::Unsupported { .. })));
    }
    let broken = TestMover::default();
    broken.with(|wires| wires.broken = true);
    match SoftNic::builder().mover(Arc::new(broken)).build() {
        Err(NicError::Mover { source, .. }) => assert!(source.to_string().contains("no lanes")),
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[test]
fn memory_stays_until_what_is_under_way_has_arrived() {
    let mover = TestMover::default();
    let bed = mover.manual();
    let mut poster = bed.poster(8);
    mover.hold(true);
    post_reads(&bed, &mut poster, 0..2);
    while bed.nic.step() {}
    let timed_out = |outcome| assert!(matches!(outcome, Err(NicError::TimedOut { .. })), "{outcome:?}");
    timed_out(bed.nic.deregister(bed.home.key));
    timed_out(bed.nic.reset(poster.number()));
    timed_out(bed.nic.destroy_queue_pair(poster.number()));
    mover.hold(false);
    bed.nic.destroy_queue_pair(poster.number()).unwrap();
    bed.nic.deregister(bed.home.key).unwrap();
    assert_page(&bed, 0);
    assert_page(&bed, 1);
}

#[test]
fn a_nic_that_goes_waits_for_its_mover() {
    let mover = TestMover::default();
    let bed = mover.bed(SoftNic::builder().engines(1));
    let mut poster = bed.poster(8);
    mover.hold(true);
    post_reads(&bed, &mut poster, 0..4);
    let begun = Instant::now();
    let taken = || mover.with(|wires| wires.moves.iter().map(|copy| copy.bytes).sum::<u64>());
    while taken() < 4 * 4096 {
        assert!(begun.elapsed() < BOUND, "the engine never looked");
        std::thread::yield_now();
    }
    let pages = poster.abandon();
    let Bed { nic, home, frames } = bed;
    // The lanes deliver when they are dropped, as the contract asks.
    drop(nic);
    assert_eq!(frames.bytes(0, 4 * 4096), home.bytes(0, 4 * 4096));
    drop(pages);
}

#[test]
fn a_batch_that_is_refused_fails_its_requests_and_says_why() {
    let mover = TestMover::default();
    let bed = mover.manual();
    let mut poster = bed.poster(8);
    let mut other = bed.poster(8);
    mover.with(|wires| wires.refuse_data = 1);
    post_reads(&bed, &mut poster, 0..2);
    let failed = poster.wait(BOUND).unwrap();
    assert_eq!(error_of(&failed), (Syndrome::LocalQueuePairOperation, vendor::MOVER));
    assert_eq!(error_of(&poster.wait(BOUND).unwrap()).0, Syndrome::Flushed);
    assert!(bed.nic.mover_failure().expect("it failed").contains("too thin"));
    assert_eq!(bed.nic.stats().reads, 0, "nothing was executed");
    // Who had nothing in that batch goes on.
    let (read, segments) = page(&bed, 3);
    assert!(bed.run(&mut other, read, &segments).is_success());
    poster.reset().unwrap();
    assert_eq!(bed.nic.mover_failure(), None);
    assert!(
        bed.nic
            .last_mover_failure()
            .expect("it failed once")
            .contains("too thin")
    );
    bed.nic.connect(poster.number(), poster.number()).unwrap();
    assert!(bed.run(&mut poster, read, &segments).is_success());
}

#[test]
fn a_broken_mover_hangs_nobody() {
    let mover = TestMover::default();
    let bed = mover.bed(SoftNic::builder().engines(1).bound(BOUND));
    let mut poster = bed.poster(8);
    mover.hold(true);
    post_reads(&bed, &mut poster, 0..2);
    let begun = Instant::now();
    while mover.with(|wires| wires.moves.is_empty()) {
        assert!(begun.elapsed() < BOUND, "the engine never looked");
        std::thread::yield_now();
    }
    mover.with(|wires| wires.broken = true);
    while bed.nic.state(poster.number()).unwrap() != QueuePairState::Error {
        assert!(begun.elapsed() < BOUND, "the engine never noticed");
        std::thread::yield_now();
    }
    post_reads(&bed, &mut poster, 2..4);
    // Nothing can bring the completion.
    assert!(matches!(poster.wait(SHORT), Err(PosterError::TimedOut { .. })));
    assert!(bed.nic.mover_failure().expect("it failed").contains("the wire is cut"));
    match bed.nic.reset(poster.number()) {
        Err(NicError::Mover { source, .. }) => assert!(source.to_string().contains("the wire is cut")),
        other => panic!("{other:?}"),
    }
    bed.nic.deregister(bed.home.key).unwrap();
    bed.nic.destroy_queue_pair(poster.number()).unwrap();
    assert!(begun.elapsed() < BOUND);
}
