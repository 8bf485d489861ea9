//! Engine threads: many queue pairs at once, waking, tearing down under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{BOUND, BYTES, Bed, Memory, Sure as _, assert_failed, pattern};
use gpuvm_nic::poster::{Poster, PosterConfig};
use gpuvm_nic::soft::ViolationKind;
use gpuvm_nic::wire::mlx5::{Operation, Segment, Syndrome};
use gpuvm_nic::{Access, Nic, QueuePairState, SoftNic};

/// Posts `count` READs of 8 words, keeps the ring full, checks each result right after its completion.
fn read_and_check(bed: &Bed, poster: &mut Poster, count: u64, lane: u64) {
    let frame = |i: u64| lane * 4096 + i % 64 * 64;
    let from = |i: u64| (i * 37 + lane * 11) % (BYTES / 8 - 8) * 8;
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < 64 {
            poster.put(bed.read(from(posted)), &[bed.local(frame(posted), 64)]);
            posted += 1;
            if posted % 5 == 0 {
                poster.ring();
            }
        }
        poster.ring();
        let completion = poster.wait(BOUND).expect("a completion");
        assert!(completion.is_success(), "{completion}");
        assert_eq!(completion.index, done as u16);
        for word in 0..8 {
            let found = bed.frames.word(frame(done) / 8 + word).load(Ordering::Relaxed);
            assert_eq!(found, pattern(from(done) / 8 + word), "request {done} of lane {lane}");
        }
        done += 1;
    }
}

#[test]
fn many_posters_on_several_engines_past_the_index_wrap() {
    let bed = Bed::new(SoftNic::builder().engines(2));
    thread::scope(|scope| {
        for lane in 0..4 {
            let bed = &bed;
            scope.spawn(move || {
                let collapsed = false;
                let config = PosterConfig {
                    sq_entries: 64 << (lane % 2),
                    cq_entries: 128,
                    collapsed,
                };
                read_and_check(bed, &mut bed.poster_with(config), 70_000, lane);
            });
        }
    });
    assert_eq!(bed.nic.stats().reads, 280_000);
    bed.assert_clean();
}

/// An engine that sleeps whenever it may: a lost ring would cost a second.
#[test]
fn no_ring_is_lost() {
    let bed = Bed::new(SoftNic::builder().engines(2).idle(Duration::ZERO, 0));
    let start = Instant::now();
    thread::scope(|scope| {
        for lane in 0..2u64 {
            let bed = &bed;
            scope.spawn(move || {
                let mut poster = bed.poster(8);
                for i in 0..20_000u64 {
                    assert!(bed.run(&mut poster, Operation::Nop, &[]).is_success());
                    // Pauses of up to a microsecond or two, to meet the engine at each step on its way to sleep.
                    (0..(i * 7 + lane * 3) % 3_000).for_each(|turn| {
                        std::hint::black_box(turn);
                    });
                    if bed.nic.stats().late_wakes != 0 {
                        return;
                    }
                }
            });
        }
    });
    let stats = bed.nic.stats();
    assert!(stats.sleeps > 100, "it did sleep: {stats:?}");
    assert_eq!(stats.late_wakes, 0, "after {:?}", start.elapsed());
    bed.assert_clean();
}

/// Posts a request and stores its doorbell, of which the engine is not told.
fn ring_without_call(poster: &mut Poster, operation: Operation, segments: &[Segment<'_>]) {
    poster.put(operation, segments);
    let index = poster.written() as u16;
    poster.store_record(index);
    poster.ring_for(index);
}

#[test]
fn a_ring_without_its_call_is_found_late_and_told() {
    let bed = Bed::new(SoftNic::builder());
    let mut poster = bed.poster(8);
    let start = Instant::now();
    // Once is enough where the engine sleeps by then; a busy machine may not have let it come to that.
    while bed.nic.violations().is_empty() {
        assert!(start.elapsed() < BOUND, "no call is missed");
        thread::sleep(Duration::from_millis(50));
        ring_without_call(&mut poster, Operation::Nop, &[]);
        assert!(poster.wait(BOUND).expect("found within a second or so").is_success());
        // Longer than the engine waits for the call.
        thread::sleep(Duration::from_millis(1_500));
    }
    assert_eq!(bed.nic.violations()[0].kind, ViolationKind::DoorbellWithoutCall);
    assert_eq!(bed.nic.stats().late_wakes, 1);
}

/// As by a thread that is stopped between the store of a doorbell and its call, while the engine looks by itself.
#[test]
fn a_call_that_comes_after_its_ring_was_found_is_not_missed() {
    let bed = Bed::new(SoftNic::builder());
    let mut poster = bed.poster(8);
    thread::sleep(Duration::from_millis(50));
    ring_without_call(&mut poster, Operation::Nop, &[]);
    assert!(poster.wait(BOUND).expect("found within a second or so").is_success());
    poster.ring();
    // Longer than the engine would have waited for the call.
    thread::sleep(Duration::from_millis(1_500));
    bed.assert_clean();
    assert_eq!(bed.nic.stats().late_wakes, 0);
}

#[test]
fn a_caller_may_lend_its_time() {
    let bed = Bed::new(SoftNic::builder());
    let mut poster = bed.poster(8);
    let start = Instant::now();
    // The engine sleeps and is not told; where it did not sleep yet, it has done the request by itself.
    let mut lent = false;
    while !lent {
        assert!(start.elapsed() < BOUND, "the engine never sleeps");
        thread::sleep(Duration::from_millis(50));
        ring_without_call(&mut poster, bed.read(0), &[bed.local(0, 64)]);
        lent = bed.nic.step();
        let done = match lent {
            true => poster.poll().expect("done by this thread"),
            false => poster.wait(BOUND).expect("done by the engine"),
        };
        assert!(done.is_success());
    }
    assert!(!bed.nic.step());
}

#[test]
fn aligned_words_never_tear() {
    for shift in [0, 8] {
        let bed = Bed::new(SoftNic::builder());
        bed.home.fill(|i| if i < 1024 { 0 } else { u64::MAX });
        bed.frames.fill(|_| 0);
        let stop = AtomicBool::new(false);
        let seen = [AtomicBool::new(false), AtomicBool::new(false)];
        let saw_both = || seen.iter().all(|one| one.load(Ordering::Relaxed));
        thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut i = 0;
                while !stop.load(Ordering::Relaxed) {
                    i = (i + 97) % 512;
                    let word = bed.frames.word(i).load(Ordering::Relaxed);
                    assert!(word == 0 || word == u64::MAX, "torn: {word:#x}");
                    seen[usize::from(word != 0)].store(true, Ordering::Relaxed);
                }
            });
            let mut poster = bed.poster(8);
            // On a busy machine the watcher may have to wait for its turn.
            for i in (0..1_000_000).take_while(|i| *i < 4_000 || !saw_both()) {
                let from = if i % 2 == 0 { 8192 + shift } else { shift };
                assert!(bed.run(&mut poster, bed.read(from), &[bed.local(0, 4096)]).is_success());
            }
            stop.store(true, Ordering::Relaxed);
            watcher.join().expect("no torn word");
        });
        assert!(saw_both(), "the watcher saw both: {seen:?}");
    }
}

/// Posts READs of the whole memory, some 100 us each, for as long as they succeed.
fn flood(bed: &Bed, memory: &Memory, stop: &AtomicBool) -> Option<Syndrome> {
    let mut poster = bed.poster(8);
    let segment = gpuvm_nic::wire::mlx5::Segment::Data {
        bytes: BYTES as u32,
        lkey: memory.key.lkey,
        address: memory.address(),
    };
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..4 {
            poster.put(bed.read(0), &[segment]);
        }
        poster.ring();
        for _ in 0..4 {
            let completion = poster.wait(BOUND).expect("a completion");
            if !completion.is_success() {
                return completion.syndrome();
            }
        }
    }
    None
}

#[test]
fn memory_is_not_touched_once_its_key_is_gone() {
    let bed = Bed::new(SoftNic::builder().engines(2));
    for _ in 0..10 {
        let memory = Memory::new(&*bed.nic, Access::LOCAL_WRITE);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let floods: Vec<_> = (0..2).map(|_| scope.spawn(|| flood(&bed, &memory, &stop))).collect();
            // Until copies are well under way.
            let reads = bed.nic.stats().reads;
            let start = Instant::now();
            while bed.nic.stats().reads < reads + 10 {
                assert!(start.elapsed() < BOUND, "the floods do not start");
                std::hint::spin_loop();
            }
            bed.nic.deregister(memory.key).expect("a live key");
            // Back to front, so that a copy that still ran, front to back, would leave its words behind.
            (0..BYTES / 8)
                .rev()
                .for_each(|i| memory.word(i).store(i, Ordering::Relaxed));
            for flood in floods {
                let syndrome = flood.join().expect("no panic");
                assert_eq!(syndrome, Some(Syndrome::LocalProtection));
            }
            (0..BYTES / 8).for_each(|i| assert_eq!(memory.word(i).load(Ordering::Relaxed), i));
        });
    }
}

#[test]
fn queues_are_not_touched_once_destroyed() {
    let bed = Bed::new(SoftNic::builder());
    for _ in 0..20 {
        let mut poster = bed.poster(64);
        for _ in 0..64 {
            poster.put(bed.read(0), &[bed.local(0, 65_536)]);
        }
        poster.ring();
        assert!(poster.wait(BOUND).expect("a completion").is_success());
        bed.nic.destroy_queue_pair(poster.number()).expect("it lives");
        let entries: Vec<_> = (0..64).map(|slot| poster.entry(slot)).collect();
        thread::sleep(Duration::from_millis(3));
        (0..64).for_each(|slot| assert_eq!(poster.entry(slot), entries[slot as usize]));
        assert!(bed.nic.state(poster.number()).is_err());
    }
}

#[test]
fn reset_under_load_gives_a_clean_start() {
    let bed = Bed::new(SoftNic::builder());
    let mut poster = bed.poster(64);
    for _ in 0..50 {
        for _ in 0..60 {
            poster.put(bed.read(0), &[bed.local(0, 16_384)]);
        }
        poster.ring();
        thread::yield_now();
        poster.reset().expect("it lives");
        (0..64).for_each(|slot| assert_eq!(poster.entry(slot)[63], 0xf0));
        bed.nic
            .connect(poster.number(), poster.number())
            .expect("it is in reset");
        let done = bed.run(&mut poster, bed.read(8), &[bed.local(0, 64)]);
        assert!(done.is_success() && done.index == 0, "{done}");
    }
    bed.assert_clean();
}

#[test]
fn dropping_the_nic_stops_it_at_once() {
    for _ in 0..10 {
        let Bed { nic, home, frames } = Bed::new(SoftNic::builder().engines(2));
        let bed = Bed { nic, home, frames };
        let mut kept = Vec::new();
        for _ in 0..4 {
            let mut poster = bed.poster(256);
            for _ in 0..256 {
                poster.put(bed.read(0), &[bed.local(0, 65_536)]);
            }
            poster.ring();
            kept.push(poster.abandon());
        }
        let Bed { nic, home, frames } = bed;
        let start = Instant::now();
        let nic = Arc::into_inner(nic).expect("the posters gave theirs up");
        drop(nic);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        frames.fill(|i| i);
        thread::sleep(Duration::from_millis(5));
        (0..BYTES / 8).for_each(|i| assert_eq!(frames.word(i).load(Ordering::Relaxed), i));
        drop((home, kept));
    }
}

#[test]
fn an_error_of_one_queue_pair_leaves_the_others_alone() {
    let bed = Bed::new(SoftNic::builder().engines(1));
    let (mut good, mut bad) = (bed.poster(64), bed.poster(64));
    let done = bed.run(&mut bad, Operation::Read { remote: 8, rkey: 0 }, &[bed.local(0, 8)]);
    assert_failed(&done, Syndrome::RemoteAccess);
    read_and_check(&bed, &mut good, 1_000, 0);
    assert_eq!(
        bed.nic.state(good.number()).expect("it lives"),
        QueuePairState::ReadyToSend
    );
    assert_eq!(bed.nic.state(bad.number()).expect("it lives"), QueuePairState::Error);
}

#[test]
fn modelled_latency_holds_on_the_real_clock() {
    let bed = Bed::new(SoftNic::builder().latency_ns(3_000_000));
    let mut poster = bed.poster(8);
    for _ in 0..3 {
        let start = Instant::now();
        assert!(bed.run(&mut poster, bed.read(0), &[bed.local(0, 64)]).is_success());
        assert!(start.elapsed() >= Duration::from_millis(3));
    }
    assert_eq!(bed.nic.stats().late_wakes, 0);
}
