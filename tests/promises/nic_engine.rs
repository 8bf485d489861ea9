//! The software NIC whose engine is a kernel: pages come and go over it, and it does with any requests what the engine does that threads of the
//! processor run.

mod requests;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use crate::common::{Adjust, BASIC, Bench, PAGE_WORDS, compare, refused, says, simulated, stepped, words};
use gpuvm::{LaunchConfig, NicEngine, SimulatedGpu, Soft, SoftNic, Vm, VmBuilder};
use gpuvm_nic::Nic;

const N: u64 = 40 * PAGE_WORDS;

/// Settings of a small virtual memory over it.
fn by_kernel(frames: u64, blocks: u32) -> VmBuilder {
    let builder = simulated(frames);
    let queues = builder.transport_asked().queues().unwrap_or_default();
    builder.transport(Soft::new().queues(queues).engine(NicEngine::Gpu(blocks)))
}

#[test]
fn pages_come_and_go() {
    for (blocks, collapsed, flush_reads, depth) in [
        (1, false, false, 16),
        (2, true, false, 4),
        (4, false, true, 1),
        (3, true, true, 16),
    ] {
        let builder = by_kernel(8, blocks)
            .collapsed_completions(collapsed)
            .flush_reads(flush_reads);
        let bench = Bench::new(builder.queue_depth(depth), BASIC);
        let first = words(7, N);
        let a = bench.vm.region::<u32>().from_vec(first.clone()).unwrap();
        for way in [1u32, 2] {
            bench.must("write_by", LaunchConfig::new(2, 64), (&a, way, crate::common::STEP));
        }
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
        let expected = stepped(&first, 2);
        assert_eq!(
            sink.to_vec().unwrap(),
            [expected.iter().map(|word| u64::from(*word)).sum::<u64>()]
        );
        compare(&a.to_vec().unwrap(), &expected).unwrap();
        let nic = bench.vm.kernel_nic().expect("its engine is a kernel").stats().unwrap();
        assert!(nic.reads >= 3 * 32 && nic.writes >= 2 * 32, "{nic:?}");
        assert_eq!((nic.errors, nic.flushed, nic.doorbells_broken), (0, 0, 0), "{nic:?}");
        assert_eq!(bench.vm.stats().unwrap().requests, nic.reads + nic.writes);
        assert!(bench.vm.soft_nic().is_none());
    }
}

/// Queue pairs fail again and again while a kernel pages: what was flushed is repeated, and the host recovers them.
#[test]
fn queue_pairs_that_fail_are_recovered_beside_kernels() {
    let bench = Bench::new(by_kernel(8, 2), BASIC);
    let nic = bench.vm.kernel_nic().expect("its engine is a kernel");
    let first = words(8, N);
    let a = bench.vm.region::<u32>().from_vec(first.clone()).unwrap();
    let over = AtomicBool::new(false);
    let mut times = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for pair in nic.queue_pairs() {
                    nic.fail(pair).expect("a queue pair");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        while bench.vm.stats().unwrap().queue_pairs_recovered < 4 && times < 200 {
            times += 1;
            bench.must("write_by", LaunchConfig::new(2, 64), (&a, 1u32, crate::common::STEP));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(
        bench.vm.stats().unwrap().queue_pairs_recovered >= 4,
        "after {times} launches"
    );
    compare(&a.to_vec().unwrap(), &stepped(&first, times)).unwrap();
}

/// Requests come late and queue pairs break by chance: the pages are right all the same.
#[test]
fn faults_that_the_host_draws_heal() {
    let bench = Bench::new(by_kernel(8, 2), BASIC);
    let nic = bench.vm.kernel_nic().expect("its engine is a kernel");
    let mix = "late:1/8@50us,qp-error:1/60".parse().unwrap();
    nic.mix_faults(&mix, 3).unwrap();
    let first = words(6, N);
    let a = bench.vm.region::<u32>().from_vec(first.clone()).unwrap();
    for _ in 0..6 {
        bench.must("write_by", LaunchConfig::new(2, 64), (&a, 1u32, crate::common::STEP));
    }
    nic.calm();
    compare(&a.to_vec().unwrap(), &stepped(&first, 6)).unwrap();
    assert_eq!(nic.fault_tally().check(), Ok(()), "{}", nic.fault_tally());
}

/// A home is taken away and returns: its queue pairs are failed, given up and opened again.
#[test]
fn a_home_that_is_lost_returns() {
    let bench = Bench::new(by_kernel(8, 1).host_homes(2), BASIC);
    let a = bench.vm.region::<u32>().replicas(2).from_vec(words(9, N)).unwrap();
    bench.vm.host_homes()[0].lose().unwrap();
    bench.must("write_by", LaunchConfig::new(2, 64), (&a, 1u32, crate::common::STEP));
    bench.vm.host_homes()[0].restore();
    bench.vm.catch_up().unwrap();
    bench.vm.host_homes()[1].lose().unwrap();
    bench.must("write_by", LaunchConfig::new(2, 64), (&a, 1u32, crate::common::STEP));
    compare(&a.to_vec().unwrap(), &stepped(&words(9, N), 2)).unwrap();
}

#[test]
fn where_it_cannot_be_a_reason_is_given() {
    let refuse = |builder: VmBuilder, parts: &[&str]| {
        says(&refused(builder.build()), &[&["NIC engine is gpu:2: "], parts].concat())
    };
    let two = || by_kernel(8, 2);
    let soft = |change: fn(Soft) -> Soft| two().soft(change);
    refuse(soft(|soft| soft.engines(3)), &["no CPU threads"]);
    refuse(
        soft(|soft| soft.nic(SoftNic::builder().build().unwrap().into())),
        &["NIC that you pass in"],
    );
    refuse(two().file_cache(1 << 20), &["cannot read files"]);
    refuse(two().frame_capacity(1 << 20), &["resizable frame pool"]);
    refuse(two().gpus([SimulatedGpu::new(), SimulatedGpu::new()]), &["one GPU"]);
    says(&refused(two().seed(1).build()), &["seed is 1", "engine cpu"]);
    for blocks in [0, 5] {
        says(&refused(by_kernel(8, blocks).build()), &["1 to 4 multiprocessors"]);
    }
    for text in ["gpu", "gpu:", "gpu:x", "tpu:1"] {
        says(&refused(text.parse::<NicEngine>()), &["expected cpu, or gpu:N"]);
    }
    // What transport it is for is known.
    let named = |engine| {
        Vm::builder()
            .named([("gpu", "sim"), ("nic-engine", engine)])
            .unwrap()
            .build()
    };
    assert_eq!(named("gpu:3").unwrap().transport_name(), "soft, engine gpu:3");
    assert_eq!(named("cpu").unwrap().transport_name(), "soft");
    says(&refused(named("gpu:9")), &["1 to 4 multiprocessors"]);
}
