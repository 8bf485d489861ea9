//! Collapsed completion queues: one entry takes every completion of a queue pair, and each lane works out from it whether
//! its own request is done. Rings, laps, errors and interleavings are those of one entry a request.

use std::sync::Arc;

use crate::common::{Adjust, BASIC, Bench, PAGE_WORDS, compare, simulated_soft, with_causes};
use crate::program::{ProgramShape, give_up, rng, run_on, seeds, tiny};
use gpuvm::{CompileOptions, LaunchConfig, SoftNic, VmBuilder, soft};
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

const N: u64 = 40 * PAGE_WORDS;

fn counted(base: u32) -> Vec<u32> {
    (0..N as u32).map(|i| base + i).collect()
}

fn collapsed(frames: u64) -> VmBuilder {
    simulated_soft(frames).collapsed_completions(true)
}

#[test]
fn every_request_is_told_its_end() {
    for flush_reads in [false, true] {
        for depth in [1, 2, 4, 16, 64] {
            let bench = Bench::new(collapsed(8).queue_depth(depth).flush_reads(flush_reads), BASIC);
            let a = bench.vm.region::<u32>().zeroed(N).unwrap();
            for round in 0..4u32 {
                bench.must("fill", LaunchConfig::new(2, 64), (&a, round));
                compare(&a.to_vec().unwrap(), &counted(round)).unwrap();
            }
            let sink = bench.vm.buffer::<u64>(1).unwrap();
            bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
            assert_eq!(sink.to_vec().unwrap(), [(0..N).map(|i| i + 3).sum::<u64>()]);
            let nic = bench.soft_nic().stats();
            assert_eq!((nic.errors, nic.dumps), (0, if flush_reads { nic.reads } else { 0 }));
            assert!(nic.reads >= 4 * 32 && nic.writes >= 4 * 32, "{nic:?}");
            assert_eq!(bench.vm.stats().unwrap().requests, nic.reads + nic.writes);
            bench.no_violations();
        }
    }
}

/// The NIC counts blocks modulo 2^16: one queue pair goes past that twice.
#[test]
fn the_count_of_blocks_wraps() {
    let bench = Bench::new(collapsed(4).queue_pairs(1).queue_depth(4).flush_reads(true), BASIC);
    let a = bench.vm.region::<u32>().zeroed(N).unwrap();
    let mut rounds = 0u32;
    loop {
        rounds += 1;
        bench.must("fill", LaunchConfig::new(2, 64), (&a, rounds));
        let nic = bench.soft_nic().stats();
        if nic.reads + nic.writes > 70_000 {
            break;
        }
        assert!(rounds < 10_000, "{nic:?}");
    }
    compare(&a.to_vec().unwrap(), &counted(rounds)).unwrap();
    bench.no_violations();
}

/// With one request in flight nothing overwrites the failed one's entry.
#[test]
fn an_error_that_nothing_follows_is_the_page_s() {
    for (opcode, flush_reads) in [(Opcode::Read, false), (Opcode::Read, true), (Opcode::Dump, true)] {
        let builder = collapsed(8).queue_pairs(1).queue_depth(1).flush_reads(flush_reads);
        let bench = Bench::new(builder, BASIC);
        let numbers = bench.vm.region::<u32>().name("numbered");
        let a = numbers.from_iter(0..N as u32).unwrap();
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::LocalProtection));
        let fault = bench.soft_nic().inject(plan.opcode(opcode).skip(9));
        let outcome = bench.run("sum", LaunchConfig::new(1, 1), (&a, &sink));
        assert_eq!(bench.soft_nic().bitten(fault), 1, "{opcode}");
        // Where the failed block is the first of two, the flush of the second may come before the first look: then the
        // request is made again.
        let may_be_lost = opcode == Opcode::Read && flush_reads;
        match outcome {
            Err(error) => {
                let message = with_causes(&error).to_lowercase();
                let named = message.contains("`numbered`") && message.contains("local protection");
                assert!(named, "{opcode}, two blocks {flush_reads}: {message}");
            }
            Ok(_) => assert!(may_be_lost, "{opcode}, two blocks {flush_reads}: no error"),
        }
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
        assert_eq!(sink.to_vec().unwrap(), [(0..N).sum::<u64>()]);
        bench.no_violations();
    }
}

/// What is behind an error may hide it: then its request is repeated over another queue pair. Either way no data is lost.
#[test]
fn after_an_error_among_many_requests_all_data_is_right() {
    for flush_reads in [false, true] {
        for (opcode, skip) in [(Opcode::Read, 20), (Opcode::Write, 20), (Opcode::Write, 3)] {
            let bench = Bench::new(collapsed(16).queue_depth(16).flush_reads(flush_reads), BASIC);
            let a = bench.vm.region::<u32>().zeroed(N).unwrap();
            bench.must("fill", LaunchConfig::new(4, 64), (&a, 1u32));
            let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteAccess));
            let fault = bench.soft_nic().inject(plan.opcode(opcode).skip(skip));
            let outcome = bench.run("fill", LaunchConfig::new(4, 64), (&a, 2u32));
            assert_eq!(bench.soft_nic().bitten(fault), 1, "{opcode}");
            if outcome.is_ok() {
                compare(&a.to_vec().unwrap(), &counted(2)).unwrap();
            }
            bench.must("fill", LaunchConfig::new(4, 64), (&a, 3u32));
            compare(&a.to_vec().unwrap(), &counted(3)).unwrap();
            bench.no_violations();
        }
    }
}

#[test]
fn random_programs_come_to_what_a_plain_array_comes_to() {
    for seed in seeds(43_000, 8) {
        let mut rng = rng(seed);
        let shape = ProgramShape::random(&mut rng, 4096, 4);
        let builder = shape
            .builder()
            .over_soft()
            .collapsed_completions(true)
            .flush_reads(seed % 2 == 1);
        if let Err(wrong) = run_on::<u32>(builder, &mut rng, &shape, &CompileOptions::default()) {
            let name = "random_programs_come_to_what_a_plain_array_comes_to";
            give_up("collapsed", name, seed, &shape, &wrong);
        }
    }
}

#[test]
fn every_interleaving_comes_to_what_a_plain_array_comes_to() {
    for seed in seeds(44_000, 8) {
        let shape = tiny(seed, 3);
        let clock = Arc::new(soft::VirtualClock::new(0));
        let nic = SoftNic::builder().engines(0).clock(clock).build().unwrap();
        let builder = shape.builder().soft_nic(nic.into()).collapsed_completions(true);
        let builder = builder.flush_reads(seed % 2 == 1);
        if let Err(wrong) = run_on::<u32>(builder, &mut rng(seed), &shape, &CompileOptions::default()) {
            let name = "every_interleaving_comes_to_what_a_plain_array_comes_to";
            give_up("collapsed", name, seed, &shape, &wrong);
        }
    }
}
