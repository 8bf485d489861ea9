//! Several NICs share the pages: each page is one NIC's for good, by a hash of its number, and what kernels see is what one
//! NIC would have brought.

use std::sync::Arc;

use crate::common::{Adjust, BASIC, Bench, PAGE, PAGE_WORDS, compare, simulated_soft, with_causes};
use crate::program::{ProgramShape, give_up, rng, run_on, seeds, tiny};
use gpuvm::{CompileOptions, LaunchConfig, SoftNic, Vm, VmBuilder, soft};
use gpuvm_layouts::NIC_HASH;
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

fn nics(count: usize) -> Vec<Arc<SoftNic>> {
    (0..count)
        .map(|_| Arc::new(SoftNic::builder().build().unwrap()))
        .collect()
}

/// On the simulated GPU, since these NICs have no mover.
fn settings(frames: u64) -> VmBuilder {
    simulated_soft(frames)
}

/// The NIC of a page, as the layout says.
fn nic_of(page: u64, count: u64) -> usize {
    (((page.wrapping_mul(NIC_HASH) >> 32) * count) >> 32) as usize
}

fn pages_of_each(pages: u64, count: usize) -> Vec<u64> {
    let mut sums = vec![0; count];
    (0..pages).for_each(|page| sums[nic_of(page, count as u64)] += 1);
    sums
}

/// What `fill` writes.
fn counted(base: u32, length: u64) -> Vec<u32> {
    (0..length as u32).map(|i| base + i).collect()
}

fn no_violations(vm: &Vm) {
    for nic in vm.soft_nics() {
        assert!(nic.violations().is_empty(), "{:?}", nic.violations());
    }
}

#[test]
fn each_page_is_fetched_and_written_back_by_its_nic_alone() {
    const PAGES: u64 = 240;
    for count in 1..=4 {
        let bench = Bench::new(settings(PAGES).soft_nics(nics(count)), BASIC);
        assert_eq!(bench.vm.nics().len(), count);
        let a = bench.vm.region::<u32>().zeroed(PAGES * PAGE_WORDS).unwrap();
        bench.must("fill", LaunchConfig::new(2, 64), (&a, 5u32));
        a.flush().unwrap();
        let expected = pages_of_each(PAGES, count);
        for (nic, pages) in bench.vm.soft_nics().iter().zip(&expected) {
            let stats = nic.stats();
            assert_eq!(
                (stats.reads, stats.writes),
                (*pages, *pages),
                "{count} NICs: {expected:?}"
            );
            // A fair share: none is left out, none does half of another's work besides its own.
            assert!(*pages > PAGES / count as u64 / 2, "{expected:?}");
        }
        compare(&a.to_vec().unwrap(), &counted(5, a.len())).unwrap();
        no_violations(&bench.vm);
    }
}

#[test]
fn pages_come_and_go_through_few_frames() {
    let bench = Bench::new(settings(8).soft_nics(nics(3)), BASIC);
    let a = bench.vm.region::<u32>().zeroed(96 * PAGE_WORDS - 5).unwrap();
    for round in 0..3u32 {
        bench.must("fill", LaunchConfig::new(2, 64), (&a, round));
        compare(&a.to_vec().unwrap(), &counted(round, a.len())).unwrap();
    }
    no_violations(&bench.vm);
}

#[test]
fn frames_of_a_region_s_own_have_keys_of_every_nic() {
    let bench = Bench::new(settings(4).soft_nics(nics(3)), BASIC);
    let n = 40 * PAGE_WORDS;
    let a = bench.vm.region::<u32>().never_evicted().from_iter(0..n as u32).unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
    assert_eq!(sink.to_vec().unwrap(), [(0..n).sum::<u64>()]);
    let served: Vec<u64> = bench.vm.soft_nics().iter().map(|nic| nic.stats().reads).collect();
    assert_eq!(served, pages_of_each(40, 3));
}

#[test]
fn an_error_of_one_nic_is_told_and_the_others_pages_are_right() {
    let bench = Bench::new(settings(64).soft_nics(nics(2)), BASIC);
    let a = bench
        .vm
        .region::<u32>()
        .name("shared")
        .from_iter(0..32 * PAGE_WORDS as u32);
    let a = a.unwrap();
    let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteAccess)).opcode(Opcode::Read);
    let fault = bench.vm.soft_nics()[1].inject(plan);
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    let error = bench.run("sum", LaunchConfig::new(2, 64), (&a, &sink)).unwrap_err();
    assert_eq!(bench.vm.soft_nics()[1].bitten(fault), 1);
    assert!(with_causes(&error).contains("`shared`"), "{}", with_causes(&error));
    assert_eq!(bench.vm.soft_nics()[0].stats().errors, 0);
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
    assert_eq!(sink.to_vec().unwrap(), [(0..a.len()).sum::<u64>()]);
}

#[test]
fn random_programs_come_to_what_a_plain_array_comes_to() {
    for seed in seeds(31_000, 8) {
        let mut rng = rng(seed);
        let shape = ProgramShape::random(&mut rng, PAGE, 4);
        let builder = shape.builder().over_soft();
        let builder = builder.soft_nics(nics(2 + seed as usize % 3));
        if let Err(wrong) = run_on::<u32>(builder, &mut rng, &shape, &CompileOptions::default()) {
            give_up(
                "several_nics",
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
    let stepped = || {
        let clock = Arc::new(soft::VirtualClock::new(0));
        Arc::new(SoftNic::builder().engines(0).clock(clock).build().unwrap())
    };
    for seed in seeds(32_000, 8) {
        let shape = tiny(seed, 3);
        let builder = shape.builder().soft_nics([stepped(), stepped()]);
        if let Err(wrong) = run_on::<u32>(builder, &mut rng(seed), &shape, &CompileOptions::default()) {
            give_up(
                "several_nics",
                "every_interleaving_comes_to_what_a_plain_array_comes_to",
                seed,
                &shape,
                &wrong,
            );
        }
    }
}
