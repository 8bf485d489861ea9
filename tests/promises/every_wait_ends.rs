//! Nothing waits for ever: evictors pass over what is held, small memories suffice, and what cannot be served is an
//! error that says what was waited for.

use std::time::{Duration, Instant};

use crate::common::{
    Adjust, Bench, HOLDING, PAGE_WORDS, refused, says, scaled, simulated, simulated_soft, small, small_soft,
    with_causes,
};
use gpuvm::{Error, FaultKind, GpuError, LaunchConfig, Placement, Region, VmBuilder, soft};
use gpuvm_nic::wire::mlx5::Opcode;

fn pages(bench: &Bench, count: u64) -> Region<u32> {
    let n = count * PAGE_WORDS;
    bench.vm.region::<u32>().name("pages").from_iter(0..n as u32).unwrap()
}

fn total(range: std::ops::Range<u64>) -> u64 {
    range
        .map(|i| i * PAGE_WORDS)
        .map(|first| (first..first + PAGE_WORDS).sum::<u64>())
        .sum()
}

#[test]
fn the_evictor_passes_over_a_pinned_page() {
    for frames in [2, 4] {
        let bench = Bench::new(
            small(frames)
                .placement(Placement::Fetch)
                .wait_limit(scaled(Duration::from_secs(5))),
            HOLDING,
        );
        let a = pages(&bench, 64);
        let flags = bench.vm.buffer::<u32>(2).unwrap();
        let out = bench.vm.buffer::<u64>(2).unwrap();
        bench.must(
            "walk_beside_a_pin",
            LaunchConfig::new(2, 32),
            (&a, PAGE_WORDS, &flags, &out),
        );
        assert_eq!(out.to_vec().unwrap(), [total(1..64), 3], "{frames} frames");
    }
}

#[test]
fn the_evictor_does_not_wait_for_a_busy_page() {
    if std::env::var_os("GPUVM_TEST_GPU").is_some() {
        return walk_beside_a_fetch(small_soft(4), Duration::from_millis(1500));
    }
    // A GPU that follows a seed has a time of its own: it does not pass while the machine is busy with others.
    for seed in 0..2 {
        walk_beside_a_fetch(simulated_soft(4).seed(seed), Duration::from_millis(250));
    }
}

/// One fetch takes long; the other warp turns over all other frames meanwhile, on the other queue pair.
fn walk_beside_a_fetch(settings: VmBuilder, late: Duration) {
    let bench = Bench::new(settings, HOLDING);
    let mut home: Vec<u32> = (0..64 * PAGE_WORDS as u32).collect();
    let page = home.as_ptr() as u64;
    let delay = soft::Fault::Delay {
        ns: late.as_nanos() as u64,
    };
    let slow = soft::FaultPlan::new(delay).opcode(Opcode::Read).remote(page..page + 1);
    let fault = bench.soft_nic().inject(slow);
    let done_at = bench.vm.buffer::<u64>(2).unwrap();
    let outcome = bench.vm.scope(|scope| {
        let a = scope.region("pages", &mut home)?;
        bench.run(
            "walk_beside_a_fetch",
            LaunchConfig::new(1, 64),
            (&a, PAGE_WORDS, &done_at),
        )
    });
    outcome.unwrap();
    assert_eq!(bench.soft_nic().bitten(fault), 1);
    let done_at = done_at.to_vec().unwrap();
    assert!(
        done_at[1] < done_at[0],
        "the walk waited for the slow fetch: {done_at:?}"
    );
}

#[test]
fn all_frames_pinned_is_an_error_with_counts_and_not_a_hang() {
    let bench = Bench::new(
        small(8)
            .placement(Placement::Fetch)
            .wait_limit(scaled(Duration::from_millis(250))),
        HOLDING,
    );
    let a = pages(&bench, 16);
    let arrived = bench.vm.buffer::<u32>(1).unwrap();
    let out = bench.vm.buffer::<u64>(1).unwrap();
    let started = Instant::now();
    // Sixteen lanes hold one span each, and nothing said so.
    let error = bench
        .run(
            "pin_and_touch",
            LaunchConfig::new(1, 16),
            (&a, PAGE_WORDS, &arrived, &out),
        )
        .unwrap_err();
    assert!(started.elapsed() < scaled(Duration::from_secs(10)));
    let message = with_causes(&error);
    assert!(message.contains("of 8 frames 8 are pinned"), "{message}");
    says(&message, &["`pages`", "hold fewer spans"]);
    let Error::Fault { fault, .. } = error else {
        panic!("{message}")
    };
    assert!(
        matches!(
            fault.kind,
            FaultKind::FramesPinned {
                frames: 8,
                pinned: 8,
                free: 0,
                ..
            }
        ),
        "{fault:?}"
    );
    // The pins of stopped lanes are gone, and everything works again.
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(2, 64), (&a, &sink));
    assert_eq!(sink.to_vec().unwrap(), [total(0..16)]);
}

#[test]
fn spans_as_many_as_frames_are_refused_and_one_frame_more_works() {
    for (frames, fits) in [(16, false), (17, true)] {
        let bench = Bench::new(small(frames).placement(Placement::Fetch), HOLDING);
        let a = pages(&bench, 20);
        let arrived = bench.vm.buffer::<u32>(1).unwrap();
        let out = bench.vm.buffer::<u64>(1).unwrap();
        let config = LaunchConfig::new(1, 16).thread_spans(1);
        let outcome = bench.run("pin_and_touch", config, (&a, PAGE_WORDS, &arrived, &out));
        if fits {
            outcome.unwrap();
            let touched: u64 = (0..20).map(|p| p * PAGE_WORDS + 1).sum();
            let held: u64 = (0..16).map(|p| p * PAGE_WORDS + 1).sum();
            assert_eq!(out.to_vec().unwrap(), [16 * touched + held]);
        } else {
            let error = outcome.unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::Spans {
                        spans: 1,
                        holders: 16,
                        needed: 17,
                        frames: 16,
                        ..
                    }
                ),
                "{error}"
            );
            assert!(error.to_string().contains("more frame memory"), "{error}");
        }
    }
}

#[test]
fn spans_of_warps_count_by_warp() {
    for (frames, fits) in [(8, false), (9, true)] {
        let bench = Bench::new(small(frames).placement(Placement::Fetch), HOLDING);
        let a = pages(&bench, 40);
        let b = bench.vm.region::<u32>().zeroed(40 * PAGE_WORDS).unwrap();
        // Four warps hold two spans each.
        let config = LaunchConfig::new(2, 64).warp_spans(2);
        let outcome = bench.run("two_spans", config, (&a, &b, PAGE_WORDS));
        if fits {
            outcome.unwrap();
            let expected: Vec<u32> = (1..=40 * PAGE_WORDS as u32).collect();
            crate::common::compare(&b.to_vec().unwrap(), &expected).unwrap();
        } else {
            let error = outcome.unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::Spans {
                        holder: "warp",
                        holders: 4,
                        needed: 9,
                        ..
                    }
                ),
                "{error}"
            );
        }
    }
}

#[test]
fn spans_of_launches_in_flight_count_together() {
    // A kernel that runs on an NVIDIA GPU cannot be stopped where it stands.
    let bench = Bench::new(simulated(20).placement(Placement::Fetch), HOLDING);
    let a = pages(&bench, 20);
    let (flag, arrived) = (bench.vm.buffer::<u32>(1).unwrap(), bench.vm.buffer::<u32>(1).unwrap());
    let out = bench.vm.buffer::<u64>(1).unwrap();
    let config = || LaunchConfig::new(1, 16).thread_spans(1);
    // It holds nothing, but says that it may, and runs until it is stopped.
    let first = bench.launch(
        "wait_for_ever",
        config().deadline(scaled(Duration::from_secs(20))),
        (&flag,),
    );
    let other = bench.vm.stream().unwrap();
    let arguments = (&a, PAGE_WORDS, &arrived, &out);
    let kernel = bench.kernel("pin_and_touch");
    let error = kernel.launch_on(&other, config(), arguments).err();
    assert!(
        matches!(
            error,
            Some(Error::Spans {
                needed: 33,
                frames: 20,
                ..
            })
        ),
        "{error:?}"
    );
    first.kill();
    refused(first.sync());
    let second = kernel.launch_on(&other, config(), arguments).unwrap();
    second.sync().unwrap();
}

#[test]
fn a_declaration_that_overflows_is_refused() {
    let bench = Bench::new(small(8).placement(Placement::Fetch), HOLDING);
    let a = pages(&bench, 2);
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    let huge = LaunchConfig::new(1, 32).thread_spans(u64::MAX).warp_spans(u64::MAX);
    refused(bench.run("sum", huge, (&a, &sink)));
    let shape = LaunchConfig::grid([u32::MAX; 3], [u32::MAX; 3]);
    refused(bench.run("sum", shape.clone().thread_spans(1), (&a, &sink)));
    refused(bench.run("sum", shape, (&a, &sink)));
}

#[test]
fn one_frame_is_enough_for_many_warps() {
    for (frames, blocks) in [(1, 1), (1, 8), (2, 8), (8, 8)] {
        let bench = Bench::new(small(frames).placement(Placement::Fetch), HOLDING);
        let a = pages(&bench, 12);
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", LaunchConfig::new(blocks, 64), (&a, &sink));
        assert_eq!(
            sink.to_vec().unwrap(),
            [total(0..12)],
            "{frames} frames, {blocks} blocks"
        );
    }
}

const LAUNCHES: u32 = 20;

#[test]
fn two_pages_a_warp_with_two_frames_and_many_warps_come_to_an_end() {
    for frames in [1, 2, 3] {
        let bench = Bench::new(small(frames).placement(Placement::Fetch), HOLDING);
        let a = pages(&bench, 9);
        let out = bench.vm.buffer::<u64>(1).unwrap();
        let (blocks, threads, rounds) = (6u64, 64u64, 10u64);
        let lane = |block: u64, thread: u64| -> u64 {
            (0..rounds)
                .map(|n| {
                    let p = ((block * threads + thread) / 32 * 7 + n * 3) % 9;
                    let mine = if thread % 2 == 1 { p } else { (p + 1) % 9 };
                    mine * PAGE_WORDS + thread
                })
                .sum()
        };
        let expected: u64 = (0..blocks).flat_map(|b| (0..threads).map(move |t| lane(b, t))).sum();
        // Often: groups of lanes that met at the wrong moment on a real GPU read wrong data in one launch of many.
        for launch in 0..LAUNCHES {
            out.write(&[0]).unwrap();
            let config = LaunchConfig::new(blocks as u32, threads as u32);
            bench.must("two_pages", config, (&a, PAGE_WORDS, rounds as u32, &out));
            assert_eq!(out.to_vec().unwrap(), [expected], "{frames} frames, launch {launch}");
        }
    }
}

#[test]
fn more_than_5000_holders_of_one_page() {
    let bench = Bench::new(small(2).placement(Placement::Fetch), HOLDING);
    let a = bench.vm.region::<u32>().name("held").zeroed(PAGE_WORDS).unwrap();
    let counts = bench.vm.buffer::<u32>(3).unwrap();
    bench.must("hold_many", LaunchConfig::new(1, 256), (&a, &counts));
    assert_eq!(counts.to_vec().unwrap(), [8192, 256, 0]);
    // All pins are gone: the page leaves its frame, and comes back.
    bench.sweep(20);
    let swept = bench.vm.stats().unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(1, 32), (&a, &sink));
    let again = bench.vm.stats().unwrap().difference(&swept);
    assert_eq!(again.pages_fetched, 1, "the page had left its frame");
}

#[test]
fn more_holders_than_a_page_can_count_is_an_error_that_heals() {
    let bench = Bench::new(
        small(4)
            .placement(Placement::Fetch)
            .wait_limit(scaled(Duration::from_secs(2))),
        HOLDING,
    );
    let a = bench.vm.region::<u32>().name("crowded").zeroed(PAGE_WORDS).unwrap();
    let message = refused(bench.run("leak_pins", LaunchConfig::new(8, 256), (&a, 300u32)));
    assert!(message.contains("`crowded`") && message.contains("524288"), "{message}");
    bench.sweep(10);
    a.write(3, &[5]).unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(1, 32), (&a, &sink));
    assert_eq!(sink.to_vec().unwrap(), [5]);
    a.close().unwrap();
}

#[test]
fn a_loop_that_waits_for_an_element_or_a_word_sees_it() {
    let bench = Bench::new(small(2).placement(Placement::Fetch), HOLDING);
    let a = bench.vm.region::<u32>().zeroed(4 * PAGE_WORDS).unwrap();
    let out = bench.vm.buffer::<u32>(1).unwrap();
    let config = LaunchConfig::new(2, 32).deadline(scaled(Duration::from_secs(20)));
    bench.must("spin_on_element", config.clone(), (&a, &out));
    assert_eq!(out.to_vec().unwrap(), [99]);

    let flag = bench.vm.buffer::<u32>(1).unwrap();
    let b = pages(&bench, 4);
    bench.must(
        "spin_on_word",
        LaunchConfig::new(1, 32).deadline(scaled(Duration::from_secs(20))),
        (&flag, &b, &out),
    );
    assert_eq!(out.to_vec().unwrap(), [4]);
}

#[test]
fn launches_of_different_streams_run_beside_each_other() {
    let bench = Bench::new(small(4).placement(Placement::Fetch), HOLDING);
    let flags = bench.vm.buffer::<u32>(2).unwrap();
    let other = bench.vm.stream().unwrap();
    // Each waits for the other.
    let config = || LaunchConfig::new(1, 32).deadline(scaled(Duration::from_secs(20)));
    let first = bench.launch("meet", config(), (&flags, 0u32));
    let second = bench
        .kernel("meet")
        .launch_on(&other, config(), (&flags, 1u32))
        .unwrap();
    first.sync().unwrap();
    second.sync().unwrap();
}

#[test]
fn a_kernel_that_hangs_is_stopped_with_a_diagnosis() {
    // On an NVIDIA GPU a kernel that hangs takes the GPU from its process.
    let bench = Bench::new(simulated_soft(4), HOLDING);
    let flag = bench.vm.buffer::<u32>(1).unwrap();
    let config = |threads| LaunchConfig::new(1, threads).deadline(scaled(Duration::from_millis(300)));
    let error = bench.run("wait_for_ever", config(32), (&flag,)).unwrap_err();
    let message = with_causes(&error);
    assert!(
        matches!(
            error,
            Error::Gpu {
                source: GpuError::Deadline { .. },
                ..
            }
        ),
        "{message}"
    );
    says(&message, &["wait_for_ever", "0.300 s"]);

    let message = refused(bench.run("half_a_barrier", config(64), (&flag,)));
    assert!(
        message.contains("__syncthreads") || message.contains("barrier"),
        "{message}"
    );

    // A lane that waits inside the library is reported with what it waits for.
    let late = Duration::from_secs(3);
    let slow = soft::Fault::Delay {
        ns: late.as_nanos() as u64,
    };
    bench.soft_nic().inject(soft::FaultPlan::new(slow).opcode(Opcode::Read));
    let a = pages(&bench, 2);
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    let started = Instant::now();
    let message = refused(bench.run("sum", config(32), (&a, &sink)));
    assert!(message.contains("completion of request 0 on queue pair"), "{message}");
    assert!(started.elapsed() < late, "it waited for the page");
    bench.must("sum", LaunchConfig::new(1, 32), (&a, &sink));
}
