//! The software NIC beside a GPU whose memory the processor does not reach: the GPU's copies move its bytes, whole
//! programs come out right, and what breaks is an error that names it. The GPU here is the mock with a simulated one behind;
//! with `GPUVM_TEST_GPU=cuda:0 GPUVM_TEST_TRANSPORT=soft` the whole test suite takes this way on a real one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{
    Adjust, BASIC, Bench, PAGE, PAGE_WORDS, STEP, compare, config, refused, says, simulated_soft, stepped, with_causes,
    words,
};
use crate::mock_gpu::MockGpu;
use crate::program::{Element, ProgramShape, give_up, rng, run_on, seeds};
use gpuvm::{CompileOptions, Error, FaultKind, LaunchConfig, SoftNic, TransportKind, VmBuilder, soft};
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

fn hardware() -> Arc<MockGpu> {
    MockGpu::new(Some((9, 0)))
}

fn on(gpu: &Arc<MockGpu>, frames: u64) -> VmBuilder {
    simulated_soft(frames).gpu(gpu.clone())
}

#[test]
fn pages_come_and_go_by_copies_of_the_gpu() {
    let gpu = hardware();
    let bench = Bench::new(on(&gpu, 4), BASIC);
    assert_eq!(bench.vm.transport(), TransportKind::Soft);
    assert!(bench.soft_nic().has_mover());
    let doorbells = gpu.registered();
    let n = 40 * PAGE_WORDS + 3;
    let before = words(1, n);
    let a = bench.vm.region::<u32>().from_slice(&before).unwrap();
    assert_eq!(gpu.registered().len(), doorbells.len() + 1, "the home is pinned");
    for round in 1..=3 {
        bench.must("read_then_write", LaunchConfig::new(4, 64), (&a, STEP));
        compare(&a.to_vec().unwrap(), &stepped(&before, round)).unwrap();
    }
    let (stats, nic) = (bench.vm.stats().unwrap(), bench.soft_nic().stats());
    assert!(stats.evictions > 50 && stats.pages_fetched > 100, "{stats:?}");
    assert!(
        nic.reads >= stats.pages_fetched && nic.writes >= stats.pages_written_back,
        "{nic:?} {stats:?}"
    );
    assert!(gpu.submits() > 0);
    bench.no_violations();
}

#[test]
fn own_frames_and_large_pages_take_the_same_way() {
    let page = 64u64 << 10;
    let settings = on(&hardware(), 3).page_size(page).frame_memory(3 * page);
    let bench = Bench::new(settings, BASIC);
    let n = 7 * page / 4 - 5;
    let before = words(2, n);
    let kept = bench.vm.region::<u32>().never_evicted().from_slice(&before).unwrap();
    let a = bench.vm.region::<u32>().zeroed(n).unwrap();
    bench.must("copy", LaunchConfig::new(4, 64), (&kept, &a));
    bench.must("read_then_write", LaunchConfig::new(4, 64), (&kept, STEP));
    compare(&a.to_vec().unwrap(), &before).unwrap();
    compare(&kept.to_vec().unwrap(), &stepped(&before, 1)).unwrap();
}

fn programs<T: Element>(test: &str, first: u64, count: u64) {
    for seed in seeds(first, count) {
        let mut rng = rng(seed);
        let mut shape = ProgramShape::random(&mut rng, PAGE, size_of::<T>() as u64);
        // A flush beside a kernel runs on another stream; the mock's launches end all the same.
        shape.elements = shape
            .elements
            .min((4 << 20) / size_of::<T>() as u64)
            .max(4 * u64::from(shape.blocks * shape.threads));
        let builder = shape.builder().over_soft().gpu(hardware());
        let ran = run_on::<T>(builder, &mut rng, &shape, &CompileOptions::default());
        if let Err(wrong) = ran {
            give_up("posted_copies", test, seed, &shape, &wrong);
        }
    }
}

#[test]
fn random_programs_come_to_what_a_plain_array_comes_to() {
    let test = "random_programs_come_to_what_a_plain_array_comes_to";
    programs::<u32>(test, 0x50f7, 6);
    programs::<u64>(test, 0x150f7, 4);
}

#[test]
fn planted_faults_are_launch_errors_and_the_next_launch_works() {
    let bench = Bench::new(on(&hardware(), 4), BASIC);
    let a = bench
        .vm
        .region::<u32>()
        .name("elements")
        .zeroed(20 * PAGE_WORDS)
        .unwrap();
    let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteAccess));
    let fault = bench.soft_nic().inject(plan.opcode(Opcode::Read).skip(3));
    let Err(Error::Fault { fault: found, .. }) = bench.run("fill", config(), (&a, 1u32)) else {
        panic!("a READ failed");
    };
    assert_eq!(bench.soft_nic().bitten(fault), 1);
    assert_eq!(
        (found.syndrome, &found.mover_failure),
        (Syndrome::RemoteAccess.into(), &None),
        "{found}"
    );
    bench.must("fill", config(), (&a, 7u32));
    compare(&a.to_vec().unwrap(), &(7..7 + a.len() as u32).collect::<Vec<_>>()).unwrap();
}

#[test]
fn copies_that_fail_are_a_launch_error_that_names_them() {
    let gpu = hardware();
    let bench = Bench::new(on(&gpu, 4), BASIC);
    let a = bench
        .vm
        .region::<u32>()
        .name("elements")
        .zeroed(20 * PAGE_WORDS)
        .unwrap();
    bench.must("fill", config(), (&a, 1u32));
    // Clean pages: the copy that fails is a fetch then. A write-back that fails is no fault of the launch.
    a.flush().unwrap();
    // Each fetch is to be one that a lane asked for.
    a.advise(gpuvm::Advice::Random).unwrap();
    gpu.fail_copies_after(2);
    let begun = Instant::now();
    let total = bench.vm.buffer::<u64>(1).unwrap();
    let error = bench.run("sum", config(), (&a, &total)).expect_err("copies failed");
    assert!(begun.elapsed() < Duration::from_secs(8), "no wait ran out");
    let Error::Fault { fault, .. } = &error else {
        panic!("{}", with_causes(&error));
    };
    says(
        &with_causes(&error),
        &["`elements`", "the test cut the wire", "CUDA_ERROR_MOCK"],
    );
    assert!(
        matches!(
            fault.kind,
            FaultKind::Fetch | FaultKind::WriteBack | FaultKind::PageError | FaultKind::QueuesFailed
        ),
        "{fault:?}"
    );
    // The wire is whole again.
    bench.must("fill", config(), (&a, 9u32));
    compare(&a.to_vec().unwrap(), &(9..9 + a.len() as u32).collect::<Vec<_>>()).unwrap();
}

#[test]
fn a_gpu_that_is_lost_takes_nobody_along() {
    let gpu = hardware();
    let bench = Bench::new(on(&gpu, 4).wait_limit(Duration::from_secs(2)), BASIC);
    let a = bench
        .vm
        .region::<u32>()
        .name("written")
        .zeroed(20 * PAGE_WORDS)
        .unwrap();
    bench.must("fill", config(), (&a, 1u32));
    let turns = bench.vm.buffer::<u32>(1).unwrap();
    let running = bench.launch("until_stopped", config(), (&a, &turns));
    assert!(running.wait(Some(Duration::from_millis(30))).is_none());
    let begun = Instant::now();
    gpu.lose();
    assert!(matches!(running.sync(), Err(Error::GpuLost { .. })));
    let message = refused(a.close());
    assert!(message.contains("the test pulled it out"), "{message}");
    drop((running, turns, bench));
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(Arc::strong_count(&gpu), 1, "the virtual memory is gone");
}

#[test]
fn it_ends_with_launches_nobody_waited_for() {
    for _ in 0..5 {
        let gpu = hardware();
        let bench = Bench::new(on(&gpu, 4), BASIC);
        let a = bench.vm.region::<u32>().zeroed(30 * PAGE_WORDS).unwrap();
        drop(bench.launch("read_then_write", config(), (&a, 1u32)));
        drop((a, bench));
        assert_eq!(Arc::strong_count(&gpu), 1);
    }
}

#[test]
fn a_nic_without_a_mover_is_refused() {
    let nic = Arc::new(SoftNic::builder().build().unwrap());
    says(
        &refused(on(&hardware(), 4).soft_nic(nic).build()),
        &["without a mover", "--gpu sim"],
    );
}

#[test]
fn completions_of_copies_are_not_collapsed() {
    let message = refused(on(&hardware(), 4).collapsed_completions(true).build());
    says(&message, &["collapsed completions is true", "leave it out"]);
}
