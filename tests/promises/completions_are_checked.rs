//! Data is used only after a completion that says it is there; errors, losses and delays end in errors that say so.

use std::time::{Duration, Instant};

use crate::common::{Adjust, BASIC, Bench, PAGE_WORDS, compare, planted, says, scaled, simulated_soft, small_soft};
use gpuvm::{CompileOptions, Error, FaultKind, LaunchConfig, SoftNic, soft};
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

const N: u64 = 40 * PAGE_WORDS;

fn first_fault(error: Error) -> gpuvm::Fault {
    match error {
        Error::Fault { fault, .. } => *fault,
        other => panic!("not a fault: {}", crate::common::with_causes(&other)),
    }
}

/// Copies a region through few frames; what comes out must be what went in.
fn copies_right(bench: &Bench, a: &gpuvm::Region<u32>) -> Result<(), String> {
    let b = bench.vm.region::<u32>().zeroed(a.len()).unwrap();
    bench
        .run("copy", LaunchConfig::new(2, 64), (a, &b))
        .map_err(|error| crate::common::with_causes(&error))?;
    let copied = b.to_vec().map_err(|error| crate::common::with_causes(&error))?;
    compare(
        &copied,
        &a.to_vec().map_err(|error| crate::common::with_causes(&error))?,
    )
}

fn numbered(bench: &Bench) -> gpuvm::Region<u32> {
    let region = bench.vm.region::<u32>().name("numbered");
    let region = region.from_iter((0..N as u32).map(|i| i ^ 0x5a5a_0000)).unwrap();
    // A READ that nothing waits for may fail without harm: each is to be one that a lane asked for.
    region.advise(gpuvm::Advice::Random).unwrap();
    region
}

#[test]
fn an_error_completion_of_a_read_is_an_error_and_the_next_launch_works() {
    let bench = Bench::new(small_soft(8), BASIC);
    let a = numbered(&bench);
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    for (syndrome, words) in [
        (Syndrome::RemoteAccess, "remote access"),
        (Syndrome::LocalProtection, "local protection"),
        (Syndrome::RemoteOperation, "remote operation"),
    ] {
        let plan = soft::FaultPlan::new(soft::Fault::Fail(syndrome));
        let fault = bench.soft_nic().inject(plan.opcode(Opcode::Read).skip(7));
        let error = bench.run("sum", LaunchConfig::new(2, 64), (&a, &sink)).unwrap_err();
        assert_eq!(bench.soft_nic().bitten(fault), 1);
        let message = crate::common::with_causes(&error);
        says(&message, &["kernel `sum`", "page"]);
        assert!(message.contains("`numbered`") && message.contains("soft"), "{message}");
        assert!(message.to_lowercase().contains(words), "{message}");
        let found = first_fault(error);
        assert!(
            matches!(found.kind, FaultKind::Fetch | FaultKind::PageError),
            "{found:?}"
        );
        assert_eq!(found.syndrome, u8::from(syndrome));
        copies_right(&bench, &a).unwrap();
    }
    assert_eq!(bench.soft_nic().stats().errors, 3);
}

#[test]
fn a_launch_after_an_error_waits_for_no_other_kernel() {
    let bench = Bench::new(small_soft(8), BASIC);
    let a = numbered(&bench);
    // All memory beforehand: CUDA gives none back beside a kernel that runs.
    let copies: Vec<_> = (0..3).map(|_| bench.vm.region::<u32>().zeroed(N).unwrap()).collect();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    // A kernel that needs no page.
    let nothing = bench.vm.region::<u32>().zeroed(0).unwrap();
    let turns = bench.vm.buffer::<u32>(1).unwrap();
    let stream = bench.vm.stream().unwrap();
    let endless = bench.kernel("until_stopped");
    let running = endless
        .launch_on(&stream, LaunchConfig::new(1, 32), (&nothing, &turns))
        .unwrap();
    for (round, copy) in (0..).zip(&copies) {
        let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteOperation));
        let fault = bench.soft_nic().inject(plan.opcode(Opcode::Read).skip(7 + round));
        let found = first_fault(bench.run("sum", LaunchConfig::new(2, 64), (&a, &sink)).unwrap_err());
        assert_eq!(bench.soft_nic().bitten(fault), 1);
        assert_eq!(found.region, "numbered");
        bench.must("copy", LaunchConfig::new(2, 64), (&a, copy));
        assert!(!running.is_done(), "round {round}");
    }
    running.abort();
    assert!(matches!(running.sync(), Err(Error::Stopped { .. })));
    let expected = a.to_vec().unwrap();
    for copy in &copies {
        compare(&copy.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
    bench.no_violations();
}

#[test]
fn a_read_that_nobody_answers_is_made_again() {
    for syndrome in [
        Syndrome::TransportRetryExceeded,
        Syndrome::ReceiverNotReady,
        Syndrome::RemoteAborted,
    ] {
        let bench = Bench::new(small_soft(8), BASIC);
        let a = numbered(&bench);
        let plan = soft::FaultPlan::new(soft::Fault::Fail(syndrome));
        let fault = bench.soft_nic().inject(plan.opcode(Opcode::Read).skip(7).times(3));
        copies_right(&bench, &a).unwrap();
        assert_eq!(bench.soft_nic().bitten(fault), 3);
        assert!(bench.vm.stats().unwrap().queue_pairs_recovered >= 1);
        bench.no_violations();
    }
}

#[test]
fn a_lost_completion_is_noticed_and_its_request_made_again() {
    for opcode in [Opcode::Read, Opcode::Write] {
        let bench = Bench::new(small_soft(8).wait_limit(scaled(Duration::from_secs(2))), BASIC);
        let a = numbered(&bench);
        let plan = soft::FaultPlan::new(soft::Fault::LoseCompletion);
        let fault = bench.soft_nic().inject(plan.opcode(opcode).skip(5));
        bench.must("read_then_write", LaunchConfig::new(2, 64), (&a, 1u32));
        assert_eq!(bench.soft_nic().bitten(fault), 1, "{opcode}");
        let expected: Vec<u32> = (0..N as u32).map(|i| (i ^ 0x5a5a_0000) + 1).collect();
        compare(&a.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("{opcode}: {wrong}"));
        bench.no_violations();
    }
}

#[test]
fn completions_that_never_come_end_in_a_bounded_error_that_says_what_was_waited_for() {
    let bench = Bench::new(small_soft(8).wait_limit(scaled(Duration::from_millis(300))), BASIC);
    let a = numbered(&bench);
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    for opcode in [Opcode::Read, Opcode::Write] {
        let plan = soft::FaultPlan::new(soft::Fault::LoseCompletion).times(u64::MAX);
        let fault = bench.soft_nic().inject(plan.opcode(opcode).skip(5));
        let started = Instant::now();
        let outcome = match opcode {
            Opcode::Read => bench.run("sum", LaunchConfig::new(2, 64), (&a, &sink)).map(|_| ()),
            _ => bench
                .run("read_then_write", LaunchConfig::new(2, 64), (&a, 0u32))
                .and_then(|_| a.flush()),
        };
        assert!(bench.soft_nic().bitten(fault) > 1, "{opcode}: it was made once only");
        let took = started.elapsed();
        assert!(took < scaled(Duration::from_secs(20)), "{opcode}: {took:?}");
        let error = outcome.expect_err("completions that never come cannot go unnoticed");
        let message = crate::common::with_causes(&error);
        let kind = first_fault(error).kind;
        let waited = matches!(
            kind,
            FaultKind::CompletionTimeout
                | FaultKind::PageTimeout
                | FaultKind::QueueTimeout
                | FaultKind::FramesPinned { .. }
        );
        assert!(waited && message.contains("within"), "{opcode}: {message}");
        bench.soft_nic().calm();
        copies_right(&bench, &a).unwrap();
    }
}

#[test]
fn a_completion_that_is_late_beyond_the_timeout_corrupts_nothing() {
    for opcode in [Opcode::Read, Opcode::Write] {
        let bench = Bench::new(small_soft(8).wait_limit(scaled(Duration::from_millis(800))), BASIC);
        let a = numbered(&bench);
        let delay = scaled(Duration::from_millis(1500));
        let plan = soft::FaultPlan::new(soft::Fault::Delay {
            ns: delay.as_nanos() as u64,
        });
        let fault = bench.soft_nic().inject(plan.opcode(opcode).skip(3));
        let started = Instant::now();
        bench.must("read_then_write", LaunchConfig::new(2, 64), (&a, 0u32));
        a.flush().unwrap();
        assert_eq!(bench.soft_nic().bitten(fault), 1, "{opcode}");
        let recovered = bench.vm.stats().unwrap().queue_pairs_recovered;
        assert!(recovered > 0, "{opcode}: it was waited for");
        // While the late requests would be on their way still, and after they would have had their time.
        copies_right(&bench, &a).unwrap_or_else(|wrong| panic!("{opcode}, early: {wrong}"));
        std::thread::sleep(delay.saturating_sub(started.elapsed()) + Duration::from_millis(50));
        copies_right(&bench, &a).unwrap_or_else(|wrong| panic!("{opcode}, late: {wrong}"));
        let expected: Vec<u32> = (0..N as u32).map(|i| i ^ 0x5a5a_0000).collect();
        compare(&a.to_vec().unwrap(), &expected).unwrap();
        bench.no_violations();
    }
}

/// Requests take half a millisecond: who looks at the frame before the completion sees what was there before.
fn slow_requests(options: &CompileOptions) -> Result<(), String> {
    let nic = SoftNic::builder().latency_ns(500_000).build().unwrap();
    // A NIC of its own making reaches the simulated GPU's memory alone.
    let builder = simulated_soft(8)
        .wait_limit(scaled(Duration::from_secs(2)))
        .soft_nic(nic.into());
    let bench = Bench::with(builder, BASIC, options);
    let a = numbered(&bench);
    copies_right(&bench, &a)?;
    bench.no_violations();
    Ok(())
}

#[test]
fn data_is_used_only_after_its_completion() {
    slow_requests(&CompileOptions::default()).unwrap();
}

#[test]
fn the_test_above_finds_a_library_that_does_not_wait_for_the_completion() {
    let hasty = planted(
        "gpuvm/detail/mlx5.cuh",
        "if (opcode == kCompletionInvalid || (opcode_and_owner & 1) != lap) return out;",
        "if (opcode == kCompletionInvalid) opcode = kCompletionRequest; (void)lap;",
    );
    slow_requests(&hasty).unwrap_err();
}

#[test]
fn an_error_completion_that_counts_as_success_would_be_found() {
    let trusting = planted(
        "gpuvm/detail/mlx5.cuh",
        "    out.ok = opcode == kCompletionRequest;\n    if (!out.ok)",
        "    out.ok = true;\n    if (!out.ok)",
    );
    let bench = Bench::with(small_soft(8), BASIC, &trusting);
    let a = numbered(&bench);
    let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteAccess));
    bench.soft_nic().inject(plan.opcode(Opcode::Read).skip(7));
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    // Without the check the launch ends well, or hangs until its bound; it does not report the syndrome.
    let outcome = bench.run(
        "sum",
        LaunchConfig::new(2, 64).deadline(scaled(Duration::from_secs(3))),
        (&a, &sink),
    );
    let reported =
        matches!(outcome, Err(Error::Fault { ref fault, .. }) if fault.syndrome == u8::from(Syndrome::RemoteAccess));
    assert!(!reported);
}
