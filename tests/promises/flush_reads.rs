//! Each READ followed by a read of the frame behind a fence: where a GPU sees a NIC's writes in no order, that one's
//! completion tells of the data. Rings, laps, errors and interleavings are those of one block a request.

use std::sync::Arc;

use crate::common::{Adjust, BASIC, Bench, PAGE_WORDS, compare, says, simulated_soft, with_causes};
use crate::program::{ProgramShape, give_up, rng, run_on, seeds, tiny};
use gpuvm::{CompileOptions, LaunchConfig, SoftNic, soft};
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

const N: u64 = 40 * PAGE_WORDS;

fn counted(base: u32) -> Vec<u32> {
    (0..N as u32).map(|i| base + i).collect()
}

#[test]
fn every_read_is_followed_by_its_flush_and_no_write_is() {
    for depth in [1, 2, 4, 64] {
        let bench = Bench::new(simulated_soft(8).queue_depth(depth).flush_reads(true), BASIC);
        let a = bench.vm.region::<u32>().zeroed(N).unwrap();
        for round in 0..4u32 {
            bench.must("fill", LaunchConfig::new(2, 64), (&a, round));
            compare(&a.to_vec().unwrap(), &counted(round)).unwrap();
        }
        let nic = bench.soft_nic().stats();
        assert_eq!((nic.dumps, nic.errors), (nic.reads, 0), "depth {depth}");
        assert!(nic.reads >= 4 * 32 && nic.writes >= 4 * 32, "{nic:?}");
        assert_eq!(bench.vm.stats().unwrap().requests, nic.reads + nic.writes);
        bench.no_violations();
    }
}

#[test]
fn without_it_nothing_is_flushed() {
    let bench = Bench::new(simulated_soft(8), BASIC);
    let a = bench.vm.region::<u32>().zeroed(N).unwrap();
    bench.must("fill", LaunchConfig::new(2, 64), (&a, 1u32));
    assert_eq!(bench.soft_nic().stats().dumps, 0);
}

#[test]
fn an_error_of_the_read_or_of_its_flush_is_the_page_s() {
    for opcode in [Opcode::Read, Opcode::Dump] {
        let bench = Bench::new(simulated_soft(8).flush_reads(true), BASIC);
        let a = bench
            .vm
            .region::<u32>()
            .name("numbered")
            .from_iter(0..N as u32)
            .unwrap();
        // Each READ is to be one that a lane asked for.
        a.advise(gpuvm::Advice::Random).unwrap();
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::LocalProtection));
        let fault = bench.soft_nic().inject(plan.opcode(opcode).skip(9));
        let error = bench.run("sum", LaunchConfig::new(2, 64), (&a, &sink)).unwrap_err();
        assert_eq!(bench.soft_nic().bitten(fault), 1, "{opcode}");
        says(&with_causes(&error).to_lowercase(), &["`numbered`", "local protection"]);
        // The queue pairs were reset, and with them their laps.
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
        assert_eq!(sink.to_vec().unwrap(), [(0..N).sum::<u64>()]);
        bench.no_violations();
    }
}

#[test]
fn random_programs_come_to_what_a_plain_array_comes_to() {
    for seed in seeds(41_000, 8) {
        let mut rng = rng(seed);
        let shape = ProgramShape::random(&mut rng, 4096, 4);
        let builder = shape.builder().over_soft();
        if let Err(wrong) = run_on::<u32>(builder.flush_reads(true), &mut rng, &shape, &CompileOptions::default()) {
            give_up(
                "flush_reads",
                "random_programs_come_to_what_a_plain_array_comes_to",
                seed,
                &shape,
                &wrong,
            );
        }
    }
}

#[test]
fn every_interleaving_comes_to_what_a_plain_array_comes_to() {
    for seed in seeds(42_000, 8) {
        let shape = tiny(seed, 3);
        let clock = Arc::new(soft::VirtualClock::new(0));
        let nic = SoftNic::builder().engines(0).clock(clock).build().unwrap();
        let builder = shape.builder().soft_nic(nic.into()).flush_reads(true);
        if let Err(wrong) = run_on::<u32>(builder, &mut rng(seed), &shape, &CompileOptions::default()) {
            give_up(
                "flush_reads",
                "every_interleaving_comes_to_what_a_plain_array_comes_to",
                seed,
                &shape,
                &wrong,
            );
        }
    }
}
