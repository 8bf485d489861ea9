//! A prefetch is finished by the thread that needs it, never waits, and never takes what others need.

use crate::common::{
    Adjust, Bench, HOLDING, PAGE_WORDS, planted, refused, says, scaled, simulated_soft, small, small_soft, with_causes,
};
use gpuvm::{CompileOptions, LaunchConfig, Region, SoftNic, soft};
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

fn pages(bench: &Bench, count: u64) -> Region<u32> {
    let n = count * PAGE_WORDS;
    bench.vm.region::<u32>().name("ahead").from_iter(0..n as u32).unwrap()
}

fn total(pages: u64) -> u64 {
    (0..pages * PAGE_WORDS).sum()
}

/// The kernel that asked is gone before the data comes; another one uses the pages.
fn prefetch_and_leave(options: &CompileOptions) -> Result<(), String> {
    let nic = SoftNic::builder().latency_ns(5_000_000).build().unwrap();
    let builder = simulated_soft(32)
        .wait_limit(scaled(std::time::Duration::from_secs(2)))
        .soft_nic(nic.into());
    let bench = Bench::with(builder, HOLDING, options);
    let a = pages(&bench, 10);
    bench.must("prefetch_only", LaunchConfig::new(1, 32), (&a, 0u64, 10 * PAGE_WORDS));
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench
        .run("sum", LaunchConfig::new(2, 64), (&a, &sink))
        .map_err(|error| with_causes(&error))?;
    assert_eq!(sink.to_vec().unwrap(), [total(10)]);
    let stats = bench.vm.stats().unwrap();
    assert_eq!((stats.prefetches, stats.pages_fetched, stats.faults), (10, 10, 0));
    assert_eq!(stats.helped, 10, "the asker had left");
    bench.no_violations();
    Ok(())
}

#[test]
fn a_prefetch_whose_warp_exits_at_once_is_published_by_others() {
    prefetch_and_leave(&CompileOptions::default()).unwrap();
}

#[test]
fn the_test_above_finds_a_library_without_helpers() {
    let arrived = "    if (!done.arrived) return false;\n    // One handler";
    let own_alone = arrived.replace("!done.arrived", "!done.arrived || !own");
    let selfish = planted("gpuvm/detail/completion.cuh", arrived, &own_alone);
    let message = prefetch_and_leave(&selfish).unwrap_err();
    assert!(message.contains("did not end within"), "{message}");
}

#[test]
fn a_region_can_be_read_closed_and_dropped_while_its_prefetches_are_on_their_way() {
    let nic = SoftNic::builder().latency_ns(5_000_000).build().unwrap();
    let bench = Bench::new(simulated_soft(32).soft_nic(nic.into()), HOLDING);
    for end in 0..4 {
        let a = pages(&bench, 10);
        let launch = bench.launch("prefetch_only", LaunchConfig::new(1, 32), (&a, 0u64, 10 * PAGE_WORDS));
        match end {
            0 => assert_eq!(a.to_vec().unwrap()[4711], 4711),
            1 => a.close().unwrap(),
            2 => drop(a),
            _ => {
                a.write(5, &[1, 2]).unwrap();
                let mut few = [0; 4];
                a.read(4, &mut few).unwrap();
                assert_eq!(few, [4, 1, 2, 7]);
            }
        }
        launch.sync().unwrap();
    }
    // All frames came back.
    let a = pages(&bench, 200);
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
    assert_eq!(sink.to_vec().unwrap(), [total(200)]);
    bench.no_violations();
}

#[test]
fn a_prefetch_larger_than_memory_takes_what_there_is_and_ends() {
    for frames in [1, 4, 16] {
        let bench = Bench::new(small(frames).queue_depth(4), HOLDING);
        let a = pages(&bench, 100);
        for _ in 0..3 {
            bench.must("prefetch_only", LaunchConfig::new(1, 32), (&a, 0u64, 100 * PAGE_WORDS));
        }
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
        assert_eq!(sink.to_vec().unwrap(), [total(100)], "{frames} frames");
    }
}

#[test]
fn many_warps_that_prefetch_and_leave_do_not_starve_each_other() {
    let bench = Bench::new(small(8), HOLDING);
    let a = pages(&bench, 64);
    for _ in 0..5 {
        bench.must("prefetch_each", LaunchConfig::new(8, 64), (&a, PAGE_WORDS));
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", LaunchConfig::new(4, 64), (&a, &sink));
        assert_eq!(sink.to_vec().unwrap(), [total(64)]);
    }
    bench.no_violations();
}

#[test]
fn a_prefetch_that_fails_is_heard_of_and_harms_no_later_launch() {
    let bench = Bench::new(small_soft(16), HOLDING);
    let other = pages(&bench, 40);
    let mut home: Vec<u32> = (0..4 * PAGE_WORDS as u32).collect();
    let homes = home.as_ptr() as u64..home.as_ptr_range().end as u64;
    // Bites one prefetch on each queue pair, so that both end in the error state.
    let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteAccess)).opcode(Opcode::Read);
    let fault = bench.soft_nic().inject(plan.remote(homes).times(2));
    let sum = |a: &Region<u32>| {
        let sink = bench.vm.buffer::<u64>(1)?;
        bench.run("sum", LaunchConfig::new(1, 64), (a, &sink))?;
        Ok::<_, gpuvm::Error>(sink.to_vec()?[0])
    };
    let outcome = bench.vm.scope(|scope| {
        let a = scope.region("lent", &mut home)?;
        for round in 0.. {
            let bitten = bench.soft_nic().bitten(fault);
            assert!(round < 100, "the fault bit {bitten} times: {:?}", bench.vm.stats()?);
            bench.must("prefetch_each", LaunchConfig::new(2, 64), (&a, PAGE_WORDS));
            bench.must("prefetch_only", LaunchConfig::new(1, 32), (&a, 0u64, 4 * PAGE_WORDS));
            // Launches that have nothing to do with it may help it to its end; they are not failed by it.
            assert_eq!(sum(&other)?, total(40));
            if bench.soft_nic().bitten(fault) == 2 {
                break;
            }
        }
        // Recovering the queue pairs after the first may drop the second's completion.
        assert!(bench.vm.stats()?.errors > 0, "nothing looked at a completion");
        // The page itself: an error that names it, or, recovered, its data.
        if let Err(error) = sum(&a) {
            says(&with_causes(&error), &["`lent`", "remote access"]);
        }
        sum(&a)
    });
    assert_eq!(outcome.unwrap(), total(4));
}

#[test]
fn a_prefetch_past_the_end_is_an_error() {
    let bench = Bench::new(small(16), HOLDING);
    let a = pages(&bench, 4);
    let n = 4 * PAGE_WORDS;
    for (first, count) in [
        (0, n + 1),
        (n, 1),
        (n - 1, 2),
        (1, u64::MAX),
        (u64::MAX, u64::MAX),
        (u64::MAX, 1),
    ] {
        let message = refused(bench.run("prefetch_only", LaunchConfig::new(1, 32), (&a, first, count)));
        assert!(
            message.contains("`ahead`") && message.contains(&n.to_string()),
            "{message}"
        );
    }
    for (first, count) in [(0, 0), (n, 0), (n - 1, 1), (0, n)] {
        bench.must("prefetch_only", LaunchConfig::new(1, 32), (&a, first, count));
    }
}
