//! A write is never lost: not on a clean page, not at eviction, not when a write-back fails, not when a kernel is killed.

use std::time::Duration;

use crate::common::{
    BASIC, Bench, HOLDING, PAGE_WORDS, STEP, compare, planted, refused, says, scaled, simulated, small, small_soft,
    stepped, words,
};
use gpuvm::{CompileOptions, LaunchConfig, Placement, soft};
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

/// Writes a resident, clean region in one of six ways, drives it out of its frames and compares it with what it must hold.
fn write_hits(options: &CompileOptions, way: u32) -> Result<(), String> {
    // Pins of lanes need a frame a lane; 64 lanes hold one each.
    let bench = Bench::with(small(80).placement(Placement::Fetch), BASIC, options);
    let pages = 8;
    let a = bench
        .vm
        .region::<u32>()
        .name("a")
        .from_iter((0..(pages * PAGE_WORDS) as u32).map(|i| i * 3))
        .unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    let config = LaunchConfig::new(1, 64);
    bench.must("sum", config.clone(), (&a, &sink));
    let before = bench.vm.stats().unwrap();
    bench.must("write_by", config, (&a, way, 1000u32));
    let faults = bench.vm.stats().unwrap().difference(&before).faults;
    assert_eq!(faults, 0, "way {way}: the writes were meant to hit resident pages");
    bench.sweep(200);
    let updates = way == 1 || way == 2;
    let expected: Vec<u32> = (0..(pages * PAGE_WORDS) as u32)
        .map(|i| if updates { i * 3 + 1000 } else { i + 1000 })
        .collect();
    compare(&a.to_vec().unwrap(), &expected).map_err(|wrong| format!("way {way}: {wrong}"))
}

#[test]
fn a_write_to_a_resident_clean_page_is_not_lost() {
    for way in 0..5 {
        write_hits(&CompileOptions::default(), way).unwrap();
    }
}

#[test]
fn the_test_above_finds_a_library_that_forgets_to_mark_pages_dirty() {
    let forgetful = planted(
        "gpuvm/detail/page_word.cuh",
        "if (!(seen & layout::DIRTY_BIT)) atom_or_relaxed_gpu(word, layout::DIRTY_BIT);",
        "(void)word, (void)seen;",
    );
    for way in 0..5 {
        write_hits(&forgetful, way).unwrap_err();
    }
}

#[test]
fn a_write_after_a_read_of_the_same_page_is_not_lost_under_eviction() {
    let bench = Bench::new(small(4).placement(Placement::Fetch), BASIC);
    let n = 64 * PAGE_WORDS + 17;
    let before = words(1, n);
    let a = bench.vm.region::<u32>().from_slice(&before).unwrap();
    for round in 1..=3 {
        bench.must("read_then_write", LaunchConfig::new(4, 64), (&a, STEP));
        compare(&a.to_vec().unwrap(), &stepped(&before, round)).unwrap();
    }
    assert!(bench.vm.stats().unwrap().evictions > 100);
    bench.no_violations();
}

#[test]
fn a_reader_of_a_dirty_held_page_and_a_writer_of_a_clean_held_page_do_not_wait() {
    let bench = Bench::new(small(4).placement(Placement::Fetch), HOLDING);
    let a = bench.vm.region::<u32>().from_iter(0..8 * PAGE_WORDS as u32).unwrap();
    let flags = bench.vm.buffer::<u32>(2).unwrap();
    let out = bench.vm.buffer::<u32>(1).unwrap();
    // Were one to wait for the other, the deadline would end it.
    let config = LaunchConfig::new(2, 32).deadline(scaled(Duration::from_secs(10)));
    bench.must("read_while_dirty", config.clone(), (&a, &flags, &out));
    assert_eq!(out.to_vec().unwrap(), [4711]);

    flags.write(&[0, 0]).unwrap();
    bench.must("write_while_clean", config, (&a, &a, &flags, &out));
    assert_eq!(out.to_vec().unwrap(), [815], "the holder sees the write");
    let mut few = [0; 5];
    a.read(5, &mut few).unwrap();
    assert_eq!(few, [4711, 6, 815, 9, 12]);
}

#[test]
fn dirty_pages_reach_the_home_when_a_region_is_closed_or_dropped() {
    let bench = Bench::new(small(64).placement(Placement::Fetch), BASIC);
    for close in [true, false] {
        let mut home = vec![7u32; 5 * PAGE_WORDS as usize + 3];
        bench
            .vm
            .scope(|scope| {
                let a = scope.region("lent", &mut home)?;
                let launch = bench.launch("fill", LaunchConfig::new(2, 64), (&a, STEP));
                if close {
                    launch.sync()?;
                }
                // Else the scope ends while the kernel runs.
                Ok(())
            })
            .unwrap();
        let expected: Vec<u32> = (0..home.len() as u32).map(|i| i + STEP).collect();
        compare(&home, &expected).unwrap();
    }
}

#[test]
fn a_failed_write_back_leaves_the_page_dirty_and_a_later_flush_brings_it_home() {
    let bench = Bench::new(small_soft(64), BASIC);
    let n = 6 * PAGE_WORDS;
    let a = bench.vm.region::<u32>().name("precious").zeroed(n).unwrap();
    bench.must("fill", LaunchConfig::new(1, 64), (&a, 5u32));
    let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteOperation));
    let fault = bench.soft_nic().inject(plan.opcode(Opcode::Write).times(3));
    let message = refused(a.flush());
    assert!(bench.soft_nic().bitten(fault) > 0);
    says(&message, &["`precious`", "could not be written back"]);
    // The fault may bite the first tries still; each is an error, and then it works.
    let mut tries = 0;
    while a.flush().is_err() {
        tries += 1;
        assert!(tries < 5, "the flush never worked again");
    }
    assert_eq!(bench.soft_nic().bitten(fault), 3);
    let expected: Vec<u32> = (0..n as u32).map(|i| i + 5).collect();
    compare(&a.to_vec().unwrap(), &expected).unwrap();
}

#[test]
fn pages_that_cannot_go_home_can_be_salvaged() {
    let bench = Bench::new(small_soft(64), BASIC);
    // The last page is not whole.
    let n = 5 * PAGE_WORDS + 100;
    let a = bench.vm.region::<u32>().name("precious").zeroed(n).unwrap();
    assert_eq!(a.salvage().unwrap(), []);
    bench.must("fill", LaunchConfig::new(1, 64), (&a, 5u32));
    let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteOperation));
    bench.soft_nic().inject(plan.opcode(Opcode::Write).times(u64::MAX));
    refused(a.flush());
    let saved = a.salvage().unwrap();
    let mut found = vec![0; n as usize];
    for page in &saved {
        let first = page.first as usize;
        found[first..first + page.elements.len()].copy_from_slice(&page.elements);
    }
    assert_eq!(saved.len(), 6);
    let expected: Vec<u32> = (0..n as u32).map(|i| i + 5).collect();
    compare(&found, &expected).unwrap();
    // They are dirty still.
    assert_eq!(a.salvage().unwrap(), saved);
}

/// One write-back of an evictor fails; what the region holds in the end.
fn failing_eviction(options: &CompileOptions) -> Result<(), String> {
    let bench = Bench::with(small_soft(8), BASIC, options);
    let n = 64 * PAGE_WORDS;
    let a = bench.vm.region::<u32>().zeroed(n).unwrap();
    let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteAccess));
    let fault = bench.soft_nic().inject(plan.opcode(Opcode::Write).skip(10));
    // The other queue pair carries on, or the launch says what happened; then it is done again.
    let ran = bench.run("fill", LaunchConfig::new(2, 64), (&a, 1u32));
    assert_eq!(bench.soft_nic().bitten(fault), 1);
    if ran.is_err() {
        bench.must("fill", LaunchConfig::new(2, 64), (&a, 1u32));
    }
    let found = a.to_vec().or_else(|_| a.to_vec()).unwrap();
    compare(&found, &(1..=n as u32).collect::<Vec<_>>())
}

#[test]
fn a_write_back_that_fails_at_eviction_loses_nothing() {
    failing_eviction(&CompileOptions::default()).unwrap();
}

#[test]
fn the_test_above_finds_a_library_that_leaves_the_page_clean() {
    let careless = planted(
        "gpuvm/detail/page_word.cuh",
        "    atom_or_relaxed_gpu(word, layout::DIRTY_BIT);\n    atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT);",
        "    atom_and_release_gpu(word, ~layout::WRITE_BACK_BIT);",
    );
    // A lane that writes to the page after the failure makes it dirty again and hides the bug; a launch that ends is done again.
    // Which of these happens is a matter of timing, the more so on a slow machine.
    assert!((0..50).any(|_| failing_eviction(&careless).is_err()));
}

#[test]
fn the_error_of_a_scoped_region_that_was_dropped_early_comes_out_of_the_scope() {
    let bench = Bench::new(small_soft(64), BASIC);
    let mut home = vec![0u32; 2 * PAGE_WORDS as usize];
    let nic = bench.soft_nic();
    let outcome = bench.vm.scope(|scope| {
        let a = scope.region("lent", &mut home)?;
        bench.launch("fill", LaunchConfig::new(1, 64), (&a, 1u32)).sync()?;
        let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteOperation));
        nic.inject(plan.opcode(Opcode::Write).times(u64::MAX));
        drop(a);
        Ok(())
    });
    let message = refused(outcome);
    assert!(message.contains("`lent`"), "{message}");
}

#[test]
fn a_killed_launch_loses_no_dirty_page() {
    // A kernel that runs on an NVIDIA GPU cannot be stopped where it stands.
    let bench = Bench::new(simulated(16).placement(Placement::Fetch), BASIC);
    let n = 24 * PAGE_WORDS;
    let a = bench.vm.region::<u32>().from_iter(0..n as u32).unwrap();
    let b = bench.vm.region::<u32>().zeroed(8 * PAGE_WORDS).unwrap();
    let turns = bench.vm.buffer::<u32>(1).unwrap();
    for round in 1..=4u32 {
        bench.must("read_then_write", LaunchConfig::new(2, 64), (&a, 1u32));
        let endless = bench.launch("until_stopped", LaunchConfig::new(2, 64), (&b, &turns));
        std::thread::sleep(Duration::from_millis(20 * u64::from(round)));
        endless.kill();
        says(&refused(endless.sync()), &["until_stopped", "abandoned"]);
        let expected: Vec<u32> = (0..n as u32).map(|i| i + round).collect();
        compare(&a.to_vec().unwrap(), &expected).unwrap();
    }
    // And the killed kernel's own region works on.
    bench.must("fill", LaunchConfig::new(2, 64), (&b, 1u32));
    compare(&b.to_vec().unwrap(), &(1..=b.len() as u32).collect::<Vec<_>>()).unwrap();
}
