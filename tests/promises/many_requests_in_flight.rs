//! A queue pair has many requests in flight, its rings wrap, and its number says nothing of its neighbours'.

use std::sync::Arc;

use crate::common::{Adjust, BASIC, Bench, PAGE_WORDS, compare, simulated_soft, small, small_soft};
use gpuvm::{LaunchConfig, SoftNic, TransportKind};

/// Slower than a slow machine's lanes, so that requests meet.
fn slow(max_rd_atomic: u32) -> Arc<SoftNic> {
    let nic = SoftNic::builder().latency_ns(30_000_000).max_rd_atomic(max_rd_atomic);
    Arc::new(nic.build().unwrap())
}

#[test]
fn the_faults_of_one_warp_are_in_flight_together_on_one_queue_pair() {
    for max_rd_atomic in [16, 64] {
        let builder = simulated_soft(64)
            .queue_pairs(1)
            .queue_depth(64)
            .soft_nic(slow(max_rd_atomic));
        let bench = Bench::new(builder, BASIC);
        let n = 32 * PAGE_WORDS;
        let a = bench.vm.region::<u32>().from_iter(0..n as u32).unwrap();
        let out = bench.vm.buffer::<u32>(32).unwrap();
        let before = bench.vm.stats().unwrap();
        bench.must("gather", LaunchConfig::new(1, 32), (&a, PAGE_WORDS, &out));
        let expected: Vec<u32> = (0..32).map(|p| p * PAGE_WORDS as u32).collect();
        assert_eq!(out.to_vec().unwrap(), expected);
        let stats = bench.vm.stats().unwrap().difference(&before);
        assert_eq!(stats.faults, 32);
        let depth = bench.soft_nic().stats().read_depth_max;
        // Not 1, and not a few: as many as the device allows, or nearly all of the warp.
        assert!(
            depth >= u64::from(max_rd_atomic.min(24)),
            "{depth} READs in flight of {max_rd_atomic}"
        );
        assert!(depth <= u64::from(max_rd_atomic));
        assert!(stats.doorbells <= 8, "{} doorbells for 32 requests", stats.doorbells);
    }
}

#[test]
fn the_reads_of_one_warp_take_one_reservation_and_one_doorbell() {
    let bench = Bench::new(simulated_soft(160).queue_pairs(4).queue_depth(64), BASIC);
    let n = 32 * PAGE_WORDS;
    let out = bench.vm.buffer::<u32>(32).unwrap();
    for round in 0..3 {
        // Pages that no frame holds yet, and more free frames than the warp needs.
        let a = bench.vm.region::<u32>().from_iter(round..round + n as u32).unwrap();
        let before = bench.vm.stats().unwrap();
        let rung = bench.soft_nic().stats().doorbells;
        bench.must("gather", LaunchConfig::new(1, 32), (&a, PAGE_WORDS, &out));
        let stats = bench.vm.stats().unwrap().difference(&before);
        // The slots of one reservation are neighbours of one queue pair, and one doorbell announces them.
        assert_eq!((stats.faults, stats.requests, stats.doorbells), (32, 32, 1));
        assert_eq!(bench.soft_nic().stats().doorbells - rung, 1);
        let expected: Vec<u32> = (0..32).map(|p| round + p * PAGE_WORDS as u32).collect();
        assert_eq!(out.to_vec().unwrap(), expected);
    }
    bench.no_violations();
}

/// Each warp misses as many pages as a queue pair has slots, and there are as many warps as queue pairs: no request waits
/// for another one's slot, and none completes before the last one is posted.
#[test]
fn all_slots_of_64_queue_pairs_are_in_flight_at_one_moment() {
    let (pairs, depth) = (64u32, 16u32);
    let pages = u64::from(pairs * depth);
    // A machine that is slow to run 1,024 lanes gets a slower NIC.
    for latency_ms in [300, 1_000, 3_000] {
        let nic = SoftNic::builder()
            .latency_ns(latency_ms * 1_000_000)
            .max_rd_atomic(depth);
        let nic = Arc::new(nic.build().unwrap());
        let builder = simulated_soft(pages + 64)
            .queue_pairs(pairs)
            .queue_depth(depth)
            .workers(2)
            .lanes_per_worker(pairs * 32)
            .soft_nic(Arc::clone(&nic));
        let bench = Bench::new(builder, BASIC);
        let n = pages * PAGE_WORDS;
        let a = bench.vm.region::<u32>().from_iter(0..n as u32).unwrap();
        let out = bench.vm.buffer::<u32>(pages).unwrap();
        bench.must("gather", LaunchConfig::new(pairs, depth), (&a, PAGE_WORDS, &out));
        let expected: Vec<u32> = (0..pages as u32).map(|p| p * PAGE_WORDS as u32).collect();
        compare(&out.to_vec().unwrap(), &expected).unwrap();
        bench.no_violations();
        let stats = nic.stats();
        assert!(stats.reads_in_flight_max <= pages && stats.read_depth_max <= u64::from(depth));
        if stats.reads_in_flight_max == pages {
            return;
        }
        println!("{} READs in flight at {latency_ms} ms", stats.reads_in_flight_max);
    }
    panic!("never {pages} READs in flight");
}

#[test]
fn the_faults_of_several_warps_are_in_flight_together_on_one_queue_pair() {
    let builder = simulated_soft(64)
        .queue_pairs(1)
        .queue_depth(64)
        .workers(2)
        .soft_nic(slow(16));
    let bench = Bench::new(builder, BASIC);
    let a = bench.vm.region::<u32>().zeroed(16 * PAGE_WORDS).unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    // One lane a warp has an element: 16 blocks, one page each.
    bench.must("touch", LaunchConfig::new(16, 1), (&a, PAGE_WORDS, &sink));
    let depth = bench.soft_nic().stats().read_depth_max;
    assert!(depth >= 8, "{depth} READs in flight");
}

#[test]
fn rings_of_every_depth_wrap_and_keep_every_request_apart() {
    for depth in [1, 2, 4, 64] {
        let bench = Bench::new(small(8).queue_depth(depth), BASIC);
        let n = 150 * PAGE_WORDS + 5;
        let a = bench.vm.region::<u32>().from_iter(0..n as u32).unwrap();
        for round in 1..=2u32 {
            bench.must("read_then_write", LaunchConfig::new(4, 64), (&a, 1u32));
            let expected: Vec<u32> = (0..n as u32).map(|i| i + round).collect();
            compare(&a.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("depth {depth}: {wrong}"));
        }
        let stats = bench.vm.stats().unwrap();
        // Lanes that copy pages themselves post none.
        let posted = stats.requests > 8 * u64::from(depth) || bench.vm.transport() == TransportKind::Direct;
        assert!(posted, "{} requests", stats.requests);
        bench.no_violations();
    }
}

#[test]
fn more_than_65536_requests_pass_through_one_queue_pair() {
    let bench = Bench::new(small_soft(32).queue_pairs(1).queue_depth(32), BASIC);
    let pages = 2048;
    let a = bench
        .vm
        .region::<u32>()
        .from_iter(0..(pages * PAGE_WORDS) as u32)
        .unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    let one_page_each: u64 = (0..pages).map(|p| p * PAGE_WORDS).sum();
    let mut rounds = 0;
    while bench.vm.stats().unwrap().requests < 70_000 {
        bench.must("touch", LaunchConfig::new(4, 64), (&a, PAGE_WORDS, &sink));
        rounds += 1;
        assert!(rounds < 100);
    }
    assert_eq!(sink.to_vec().unwrap(), [one_page_each * rounds]);
    assert_eq!(bench.soft_nic().stats().errors, 0);
    bench.no_violations();
}

#[test]
fn numbers_of_queue_pairs_need_not_follow_each_other() {
    // Two virtual memories make their queue pairs on one NIC by turns, so neither has a run of numbers of its own.
    let nic = Arc::new(SoftNic::builder().engines(2).build().unwrap());
    let benches: Vec<Bench> = (0..3)
        .map(|_| Bench::new(simulated_soft(8).queue_pairs(5).soft_nic(Arc::clone(&nic)), BASIC))
        .collect();
    let n = 100 * PAGE_WORDS;
    let launches: Vec<_> = benches
        .iter()
        .map(|bench| {
            let a = bench.vm.region::<u32>().from_iter(0..n as u32).unwrap();
            let launch = bench.launch("read_then_write", LaunchConfig::new(4, 64), (&a, 7u32));
            (a, launch)
        })
        .collect();
    let expected: Vec<u32> = (0..n as u32).map(|i| i + 7).collect();
    for (a, launch) in launches {
        launch.sync().unwrap();
        compare(&a.to_vec().unwrap(), &expected).unwrap();
    }
    assert!(nic.violations().is_empty(), "{:?}", nic.violations());
    assert_eq!(nic.stats().errors, 0);
}
