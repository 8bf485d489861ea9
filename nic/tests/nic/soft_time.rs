//! Modelled time, in manual mode on a virtual clock: latency, bandwidth, reads in flight, fences, delays.

use crate::common::{Bed, Sure as _, assert_failed};
use gpuvm_nic::poster::{Flags, Poster, PosterConfig};
use gpuvm_nic::soft::{Fault, FaultPlan, VirtualClock};
use gpuvm_nic::wire::mlx5::{CompletionDetail, Opcode, Operation, Segments, Syndrome, WorkRequest, control_flags};
use gpuvm_nic::{Limit, Nic, NicError, NicLimits, SoftNic};

/// Runs until nothing is in flight, moving the clock; returns each poster's completions as (time, index).
fn run(bed: &Bed, clock: &VirtualClock, posters: &mut [Poster]) -> Vec<Vec<(u64, u16)>> {
    use gpuvm_nic::soft::Clock;
    let mut done = vec![Vec::new(); posters.len()];
    for _ in 0..100_000 {
        while bed.nic.step() {}
        for (poster, done) in posters.iter_mut().zip(&mut done) {
            while let Some(completion) = poster.poll() {
                if let CompletionDetail::Success { timestamp, .. } = completion.detail {
                    assert_eq!(timestamp, clock.now_ns());
                }
                done.push((clock.now_ns(), completion.index));
            }
        }
        match bed.nic.next_due_ns() {
            Some(due) => {
                assert!(due > clock.now_ns(), "what is due was done");
                clock.advance_to(due);
            }
            None => return done,
        }
    }
    panic!("the NIC never comes to rest");
}

fn post_reads(bed: &Bed, poster: &mut Poster, count: u64, bytes: u64) {
    for i in 0..count {
        poster.put(bed.read(i * bytes), &[bed.local(i * bytes, bytes)]);
    }
    poster.ring();
}

#[test]
fn data_arrives_with_the_completion_after_the_latency() {
    let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(2_000));
    let mut poster = bed.poster(8);
    post_reads(&bed, &mut poster, 1, 64);
    bed.settle();
    clock.advance(1_999);
    assert!(!bed.nic.step());
    assert!(poster.poll().is_none());
    assert_eq!(bed.frames.bytes(0, 64), [0xa5; 64]);
    clock.advance(1);
    assert!(bed.nic.step());
    assert!(poster.poll().expect("a completion").is_success());
    assert_eq!(bed.frames.bytes(0, 64), bed.home.bytes(0, 64));
}

#[test]
fn reads_overlap_up_to_the_limit() {
    let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(1_000).max_rd_atomic(4));
    let mut poster = bed.poster(16);
    post_reads(&bed, &mut poster, 10, 64);
    let done = run(&bed, &clock, std::slice::from_mut(&mut poster));
    // Four at a time: 4 at 2,000 ns, 4 at 3,000, 2 at 4,000.
    let times: Vec<_> = done[0].iter().map(|(time, _)| *time).collect();
    assert_eq!(
        times,
        [2_000, 2_000, 2_000, 2_000, 3_000, 3_000, 3_000, 3_000, 4_000, 4_000]
    );
    assert_eq!(bed.nic.stats().read_depth_max, 4);
    assert_eq!(bed.nic.capabilities().max_rd_atomic, 4);
}

#[test]
fn the_limit_is_one_queue_pairs() {
    let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(1_000).max_rd_atomic(1));
    let mut posters = [bed.poster(8), bed.poster(8), bed.poster(8)];
    posters.iter_mut().for_each(|poster| post_reads(&bed, poster, 2, 64));
    let done = run(&bed, &clock, &mut posters);
    assert!(done.iter().all(|done| *done == [(2_000, 0), (3_000, 1)]), "{done:?}");
}

#[test]
fn writes_are_not_limited() {
    let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(1_000).max_rd_atomic(1));
    let mut poster = bed.poster(16);
    for i in 0..10 {
        poster.put(bed.write(i * 64), &[bed.local(i * 64, 64)]);
    }
    poster.ring();
    let done = run(&bed, &clock, std::slice::from_mut(&mut poster));
    assert!(done[0].iter().all(|(time, _)| *time == 2_000), "{done:?}");
}

#[test]
fn a_fence_waits_for_earlier_reads() {
    let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(1_000));
    let mut poster = bed.poster(16);
    let local = [bed.local(0, 64)];
    poster.put(bed.read(0), &local);
    poster.put(bed.write(64), &local);
    poster.post(bed.write(128), &local, Flags::FENCED).expect("room");
    // A fence waits for READs, not for WRITEs.
    poster.post(bed.write(192), &local, Flags::FENCED).expect("room");
    poster.ring();
    let done = run(&bed, &clock, std::slice::from_mut(&mut poster));
    assert_eq!(done[0], [(2_000, 0), (2_000, 1), (3_000, 2), (3_000, 3)]);
}

/// A DUMP behind another request: its completion comes in order, and a fence makes it start late as well.
#[test]
fn a_fenced_dump_waits_for_earlier_reads() {
    // The time of a DUMP's completion with these control flags; requests take 1,000 ns from 1,000 ns on.
    let dumped = |first: fn(&Bed) -> Operation, flags: u8| {
        let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(1_000));
        let mut poster = bed.poster(16);
        let local = [bed.local(0, 8)];
        poster.put(first(&bed), &local);
        let dump = WorkRequest {
            index: poster.written() as u16,
            queue_pair: poster.number(),
            fence: false,
            signalled: true,
            solicited: false,
            operation: Operation::Dump,
            segments: Segments::List(&local),
        };
        let mut block = [0; 64];
        dump.emit(&mut block).expect("a request with a wire form");
        block[11] |= flags;
        poster.write_raw(&block);
        poster.ring();
        let done = run(&bed, &clock, std::slice::from_mut(&mut poster));
        assert_eq!(bed.nic.stats().dumps, 1);
        bed.assert_clean();
        done[0].last().expect("a completion").0
    };
    let read = |bed: &Bed| bed.read(0);
    assert_eq!(dumped(read, 0), 2_000);
    assert_eq!(dumped(read, control_flags::FENCE), 3_000);
    // Orders after local operations only.
    assert_eq!(dumped(read, control_flags::INITIATOR_SMALL_FENCE), 2_000);
    assert_eq!(dumped(|bed| bed.write(0), control_flags::FENCE), 2_000);
}

#[test]
fn bandwidth_is_shared_and_each_way_has_its_own() {
    // 1 byte a ns: 1,024 bytes take 1,024 ns on the link.
    let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(500).bandwidth(1_000_000_000));
    let mut posters = [bed.poster(8), bed.poster(8), bed.poster(8)];
    posters[..2]
        .iter_mut()
        .for_each(|poster| post_reads(&bed, poster, 2, 1024));
    posters[2]
        .submit(bed.write(0), &[bed.local(0, 1024)], Flags::SIGNALLED)
        .expect("room");
    let done = run(&bed, &clock, &mut posters);
    let mut reads: Vec<_> = done[..2].iter().flatten().map(|(time, _)| *time).collect();
    reads.sort_unstable();
    assert_eq!(reads, [2_524, 3_548, 4_572, 5_596]);
    assert_eq!(done[2], [(2_524, 0)], "a WRITE does not wait for READs");
}

#[test]
fn completions_stay_in_order_behind_a_delay() {
    let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(1_000));
    let mut posters = [bed.poster(8), bed.poster(8)];
    let plan = FaultPlan::new(Fault::Delay { ns: 5_000 })
        .queue_pair(posters[0].number())
        .skip(1);
    let fault = bed.nic.inject(plan);
    posters.iter_mut().for_each(|poster| post_reads(&bed, poster, 3, 64));
    let done = run(&bed, &clock, &mut posters);
    assert_eq!(bed.nic.bitten(fault), 1);
    assert_eq!(done[0], [(2_000, 0), (7_000, 1), (7_000, 2)]);
    assert_eq!(done[1], [(2_000, 0), (2_000, 1), (2_000, 2)], "other queue pairs go on");
}

#[test]
fn a_delay_works_without_a_latency_too() {
    let (bed, clock) = Bed::with_clock(SoftNic::builder());
    let mut poster = bed.poster(8);
    let fault = bed.nic.inject(FaultPlan::new(Fault::Delay { ns: 300 }));
    post_reads(&bed, &mut poster, 2, 64);
    let done = run(&bed, &clock, std::slice::from_mut(&mut poster));
    assert_eq!(done[0], [(1_300, 0), (1_300, 1)]);
    assert_eq!(bed.nic.bitten(fault), 1);
}

#[test]
fn a_failure_keeps_its_place_among_requests_in_flight() {
    let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(1_000));
    let mut poster = bed.poster(8);
    let local = [bed.local(0, 64)];
    poster.put(bed.read(0), &local);
    poster.put(Operation::Read { remote: 0, rkey: 0 }, &local);
    poster.put(bed.write(0), &[bed.local(64, 64)]);
    let home = bed.home.bytes(0, 64);
    poster.ring();
    bed.settle();
    clock.advance(1_000);
    bed.settle();
    let done: Vec<_> = std::iter::from_fn(|| poster.poll()).collect();
    assert!(done[0].is_success());
    assert_failed(&done[1], Syndrome::RemoteAccess);
    assert_failed(&done[2], Syndrome::Flushed);
    assert_eq!(bed.home.bytes(0, 64), home, "it was in flight, and flushed");
}

#[test]
fn reset_and_destroy_drop_what_is_in_flight() {
    let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(1_000));
    let mut poster = bed.poster(8);
    post_reads(&bed, &mut poster, 3, 64);
    bed.settle();
    poster.restart(&bed);
    clock.advance(10_000);
    assert_eq!(bed.settle(), 0);
    assert!(poster.poll().is_none());
    post_reads(&bed, &mut poster, 3, 64);
    bed.settle();
    drop(poster);
    clock.advance(10_000);
    assert_eq!(bed.settle(), 0);
    assert_eq!(bed.frames.bytes(0, 192), [0xa5; 192]);
    assert_eq!(bed.nic.next_due_ns(), None);
}

#[test]
fn a_key_that_dies_in_flight_is_an_access_error() {
    let (bed, clock) = Bed::with_clock(SoftNic::builder().latency_ns(1_000));
    let mut poster = bed.poster(8);
    post_reads(&bed, &mut poster, 1, 64);
    bed.settle();
    bed.nic.deregister(bed.frames.key).expect("a live key");
    clock.advance(1_000);
    bed.settle();
    assert_failed(&poster.poll().expect("a completion"), Syndrome::LocalProtection);
    assert_eq!(bed.frames.bytes(0, 64), [0xa5; 64]);
}

/// Nanoseconds from the doorbells to the last completion: `count` READs of `bytes` bytes over each of `pairs` queue pairs, by a ConnectX-7's limits.
fn time_of(pairs: u64, count: u64, bytes: u64) -> u64 {
    let (bed, clock) = Bed::with_clock(SoftNic::builder().limits(NicLimits::connectx7()));
    let mut posters: Vec<_> = (0..pairs).map(|_| bed.poster(64)).collect();
    for poster in &mut posters {
        (0..count).for_each(|_| poster.put(bed.read(0), &[bed.local(0, bytes)]));
        poster.ring();
    }
    let done = run(&bed, &clock, &mut posters);
    assert!(done.iter().all(|done| done.len() as u64 == count));
    bed.assert_clean();
    let last = done.iter().filter_map(|done| done.last()).map(|(time, _)| *time).max();
    last.expect("a completion") - 1000
}

/// Of a ConnectX-7's limits each binds once, and the time is what its formula says.
#[test]
fn the_limit_that_binds_decides_the_time() {
    let nic = NicLimits::connectx7();
    let (latency, reads) = (nic.latency_ns, u64::from(nic.reads_per_queue_pair));
    // 20 ps a byte: 50 GB/s.
    let on_link_ps = |bytes: u64| (bytes + 86 * bytes.div_ceil(4096)) * 20;
    let binds = |limit, bytes, pairs| assert_eq!(nic.binding(bytes, pairs, 64).0, limit);

    for (bytes, pairs, count) in [(4096, 64, 32), (65_536, 8, 20)] {
        binds(Limit::Link, bytes, pairs);
        let all_ps = pairs * count * on_link_ps(bytes);
        assert_eq!(
            time_of(pairs, count, bytes),
            all_ps.div_ceil(1000) + latency,
            "{bytes} bytes"
        );
    }
    // A message is started every 1 s / 215,000,000, rounded down to 4,651 ps.
    let (bytes, pairs, count) = (64, 128, 32);
    binds(Limit::Messages, bytes, pairs);
    let all_ps = (pairs * count - 1) * 4651 + on_link_ps(bytes);
    assert_eq!(time_of(pairs, count, bytes), all_ps.div_ceil(1000) + latency);
    // Rounds of 16, each a latency and a READ's own time on the link. Their bytes take 82 ns, so that nothing is rounded.
    let (bytes, pairs, rounds) = (4014, 1, 4);
    binds(Limit::ReadsInFlight, bytes, pairs);
    let own = on_link_ps(bytes) / 1000;
    assert_eq!(
        time_of(pairs, rounds * reads, bytes),
        rounds * (latency + own) + (reads - 1) * own
    );
}

#[test]
fn what_nobody_answers_fails_after_its_repeats() {
    let limits = NicLimits {
        unanswered_ns: NicLimits::unanswered_ns(2, 1),
        ..NicLimits::unlimited()
    };
    let (bed, clock) = Bed::with_clock(SoftNic::builder().limits(limits));
    let silent = Poster::new(bed.nic.clone(), PosterConfig::default()).expect("a queue pair");
    let mut poster = Poster::new(bed.nic.clone(), PosterConfig::default()).expect("a queue pair");
    bed.nic.connect(poster.number(), silent.number()).expect("in reset");
    post_reads(&bed, &mut poster, 1, 64);
    bed.settle();
    clock.advance(2 * 4 * 4096 - 1);
    bed.settle();
    assert!(poster.poll().is_none());
    clock.advance(1);
    bed.settle();
    assert_failed(&poster.poll().expect("a completion"), Syndrome::TransportRetryExceeded);
}

#[test]
fn a_send_queue_has_its_limit() {
    let limits = NicLimits {
        send_queue_entries: 16,
        ..NicLimits::connectx7()
    };
    let bed = Bed::new(SoftNic::builder().engines(0).limits(limits));
    let able = bed.nic.capabilities();
    assert_eq!((able.sq_entries_max, able.max_rd_atomic), (16, 16));
    assert_eq!(able.link_bits_per_second, Some(400_000_000_000));
    let made = |entries| {
        let config = PosterConfig {
            sq_entries: entries,
            ..PosterConfig::default()
        };
        Poster::new(bed.nic.clone(), config).map(drop)
    };
    made(16).expect("a queue pair");
    let refused = made(32).expect_err("too deep");
    assert!(
        matches!(
            refused,
            NicError::BadArgument {
                what: "send queue entries",
                ..
            }
        ),
        "{refused}"
    );
}

/// One sequence of calls always gives one order, to the nanosecond.
#[test]
fn manual_mode_is_deterministic() {
    let once = || {
        let builder = SoftNic::builder().limits(NicLimits {
            reads_per_queue_pair: 3,
            link_bytes_per_second: Some(3_000_000_000),
            messages_per_second: Some(70_000_001),
            latency_ns: 700,
            ..NicLimits::connectx7()
        });
        let (bed, clock) = Bed::with_clock(builder);
        bed.nic.inject(
            FaultPlan::new(Fault::Delay { ns: 999 })
                .opcode(Opcode::Read)
                .skip(7)
                .times(5),
        );
        bed.nic.inject(
            FaultPlan::new(Fault::Fail(Syndrome::RemoteOperation))
                .opcode(Opcode::Write)
                .skip(20),
        );
        let mut posters: Vec<_> = (0..5).map(|_| bed.poster(32)).collect();
        for (p, poster) in posters.iter_mut().enumerate() {
            for i in 0..20u64 {
                let at = (i * 7 + p as u64 * 1000) % 9000 * 8;
                let bytes = 8 + (i * i * 31 + p as u64) % 4000;
                let operation = if (i + p as u64).is_multiple_of(3) {
                    bed.write(at)
                } else {
                    bed.read(at)
                };
                poster.put(operation, &[bed.local(at, bytes)]);
            }
            poster.ring();
        }
        let done = run(&bed, &clock, &mut posters);
        let stats = bed.nic.stats();
        assert!(stats.errors == 1 && stats.flushed > 0);
        (done, stats, bed.frames.bytes(0, 100_000), bed.home.bytes(0, 100_000))
    };
    assert!(once() == once());
}
