//! Ways of hardware that a software NIC has when asked: doorbells without a call, completion queues that outlive a reset;
//! and failing on demand.

use std::time::Duration;

use crate::common::{Bed, Sure as _};
use gpuvm_nic::poster::{Flags, PosterConfig};
use gpuvm_nic::wire::mlx5::{CompletionDetail, Syndrome};
use gpuvm_nic::{Nic, QueuePairState, SoftNic};

const LONG: Duration = Duration::from_secs(30);

#[test]
fn watched_doorbells_need_no_call() {
    let bed = Bed::new(SoftNic::builder().engines(1).watch_doorbells(true));
    assert!(!bed.nic.capabilities().needs_doorbell_call);
    let mut poster = bed.poster(64);
    let mut quick = 0;
    for turn in 0..10u64 {
        // Long enough for the engine to nap.
        std::thread::sleep(Duration::from_millis(5));
        poster.put(bed.read(0), &[bed.local(0, 4096)]);
        let index = poster.written() as u16;
        poster.store_record(index);
        poster.ring_for(index);
        let start = std::time::Instant::now();
        while poster.poll().is_none() {
            assert!(start.elapsed() < LONG, "turn {turn}");
            std::thread::yield_now();
        }
        quick += u32::from(start.elapsed() < Duration::from_millis(500));
    }
    // With sleeps of a second every one would take longer; a busy machine delays some.
    assert!(quick >= 5, "{quick} of 10");
    assert_eq!(bed.nic.violations(), []);
}

#[test]
fn completions_go_on_over_a_reset_when_asked() {
    let bed = Bed::new(SoftNic::builder().engines(1).completions_go_on(true));
    let config = PosterConfig {
        sq_entries: 8,
        cq_entries: 8,
        collapsed: false,
    };
    for requests in [0u32, 3, 8, 11, 16, 21] {
        let nic = bed.nic.clone();
        let mut poster = gpuvm_nic::poster::Poster::loopback(nic, config).expect("a queue pair");
        for _ in 0..requests {
            assert!(bed.run(&mut poster, bed.read(0), &[bed.local(0, 64)]).is_success());
        }
        let number = poster.number();
        poster.reset().expect("a reset");
        let found = bed.nic.queue_pair(number).expect("it lives");
        assert_eq!((found.send.start, found.completion.start), (0, requests % 16));
        bed.nic.connect(number, number).expect("ready again");
        for _ in 0..20 {
            assert!(bed.run(&mut poster, bed.read(0), &[bed.local(0, 64)]).is_success());
        }
    }
}

#[test]
fn a_queue_pair_that_is_failed_flushes() {
    let bed = Bed::new(SoftNic::builder().engines(1));
    let mut poster = bed.poster(64);
    bed.nic.fail(poster.number()).expect("it lives");
    assert_eq!(bed.nic.state(poster.number()).expect("it lives"), QueuePairState::Error);
    poster
        .submit(bed.read(0), &[bed.local(0, 64)], Flags::SIGNALLED)
        .expect("room");
    let completion = poster.wait(LONG).expect("a completion");
    let CompletionDetail::Error { syndrome, .. } = completion.detail else {
        panic!("{completion}");
    };
    assert_eq!(syndrome, Syndrome::Flushed);
    assert!(bed.nic.fail(0xabcdef).is_err());
}
