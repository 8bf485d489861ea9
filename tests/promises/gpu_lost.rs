//! A GPU that is lost is an error that names what may be missing: no hang, no panic, no further launch, and what is at
//! home can be read.

use std::{sync::Arc, time::Duration};

use crate::common::{BASIC, Bench, PAGE_WORDS, compare, config, refused, says, simulated_soft, with_causes};
use crate::mock_gpu::MockGpu;
use gpuvm::{Error, GpuError, MemoryNodes, Mlx5, Rdma, Region, Rxe, Transport, TransportKind, VmBuilder};

fn on(gpu: &Arc<MockGpu>) -> VmBuilder {
    simulated_soft(8).gpu(gpu.clone())
}

fn region(bench: &Bench, name: &str) -> Region<u32> {
    bench.vm.region::<u32>().name(name).zeroed(20 * PAGE_WORDS).unwrap()
}

/// The regions that an error says may miss writes.
fn missing<T>(outcome: Result<T, Error>) -> Vec<String> {
    match outcome {
        Ok(_) => panic!("this had to fail: the GPU is lost"),
        Err(Error::GpuLost { regions, source }) => {
            assert!(source.to_string().contains("the test pulled it out"), "{source}");
            regions
        }
        Err(other) => panic!("{}", with_causes(&other)),
    }
}

#[test]
fn a_lost_gpu_names_the_regions_that_may_miss_writes_and_runs_nothing_more() {
    let gpu = MockGpu::new(None);
    let bench = Bench::new(on(&gpu), BASIC);
    let (written, flushed, untouched) = (
        region(&bench, "written"),
        region(&bench, "flushed"),
        region(&bench, "untouched"),
    );
    let fixed = bench.vm.region::<u32>().name("fixed").read_only().zeroed(PAGE_WORDS);
    let (fixed, words) = (fixed.unwrap(), bench.vm.buffer::<u64>(1).unwrap());
    bench.must("fill", config(), (&flushed, 5u32));
    flushed.flush().unwrap();
    bench.must("sum", config(), (&fixed, &words));
    bench.must("fill", config(), (&written, 7u32));

    let turns = bench.vm.buffer::<u32>(1).unwrap();
    let running = bench.launch("until_stopped", config(), (&written, &turns));
    let behind = bench.launch("fill", config(), (&written, 9u32));
    assert!(running.wait(Some(Duration::from_millis(50))).is_none());
    gpu.lose();

    assert_eq!(missing(running.sync()), ["written"]);
    refused(behind.sync());
    // It stays so, whatever is asked for.
    for regions in [
        missing(running.sync()),
        missing(bench.run("fill", config(), (&untouched, 1u32))),
        missing(bench.vm.region::<u32>().zeroed(5)),
        missing(bench.vm.buffer::<u32>(5)),
        missing(turns.to_vec()),
        missing(turns.write(&[1])),
        missing(bench.vm.stats()),
        missing(bench.vm.stream()),
        missing(bench.vm.compile("k.cu", "__global__ void k() {}", &["k"])),
        missing(written.flush()),
        missing(written.to_vec()),
        missing(written.write(0, &[1])),
        missing(written.salvage()),
    ] {
        assert_eq!(regions, ["written"]);
    }
    says(&refused(written.flush()), &["`written`", "read_home", "new process"]);
    // Every element is as it was or as a launch wrote it: what was evicted has reached the home.
    let home = written.read_home().unwrap();
    let sound = home.iter().zip(0..).all(|(&e, i)| [0, 7 + i, 9 + i].contains(&e));
    assert!(sound);
    assert!(home.iter().any(|&e| e != 0), "20 pages in 8 frames: some were evicted");
    // What was flushed, or never written, is whole.
    let expected: Vec<u32> = (5..5 + flushed.len() as u32).collect();
    compare(&flushed.to_vec().unwrap(), &expected).unwrap();
    compare(&untouched.to_vec().unwrap(), &vec![0; untouched.len() as usize]).unwrap();
    fixed.to_vec().unwrap();

    assert_eq!(missing(written.close()), ["written"]);
    flushed.close().unwrap();
    fixed.close().unwrap();
    drop((untouched, running, behind, turns, words, bench));
    assert_eq!(gpu.refused(), 0, "the runtime knows without trying");
    assert_eq!(Arc::strong_count(&gpu), 1, "the virtual memory is gone");
}

#[test]
fn lent_memory_comes_back_from_a_lost_gpu() {
    let gpu = MockGpu::new(None);
    let bench = Bench::new(on(&gpu), BASIC);
    let mut memory = vec![1u32; 20 * PAGE_WORDS as usize];
    let outcome = bench.vm.scope(|scope| {
        let lent = scope.region("lent", &mut memory)?;
        bench.run("fill", config(), (&lent, 3u32))?;
        gpu.lose();
        drop(lent);
        Ok(())
    });
    assert_eq!(missing(outcome), ["lent"]);
    assert!(memory.iter().zip(0..).all(|(&e, i)| e == 1 || e == 3 + i));
}

#[test]
fn a_gpu_that_is_lost_between_launches_is_noticed_by_the_next_caller() {
    let gpu = MockGpu::new(None);
    let bench = Bench::new(on(&gpu), BASIC);
    let a = region(&bench, "a");
    bench.must("fill", config(), (&a, 3u32));
    a.flush().unwrap();
    gpu.lose();
    let none: [&str; 0] = [];
    assert_eq!(
        missing(bench.run("fill", config(), (&a, 4u32))),
        none,
        "nothing ran since the flush"
    );
    let message = refused(bench.vm.stats().map(|_| ()));
    assert!(message.contains("every region's home holds all"), "{message}");
    compare(&a.to_vec().unwrap(), &(3..3 + a.len() as u32).collect::<Vec<_>>()).unwrap();
    a.close().unwrap();
}

#[test]
fn memory_that_a_kernel_may_reach_for_ever_is_not_given_back() {
    let gpu = MockGpu::new(Some((9, 0)));
    let bench = Bench::new(on(&gpu).transport(Transport::Direct), BASIC);
    let values = vec![5u32; 12 * PAGE_WORDS as usize];
    let region = bench.vm.region::<u32>().name("a");
    let a = region.from_slice(&values).unwrap();
    let (address, bytes, _) = *gpu.registered().last().unwrap();
    bench.must("sum", config(), (&a, &bench.vm.buffer::<u64>(1).unwrap()));
    gpu.lose_with(GpuError::Deadline {
        kernel: "endless".into(),
        limit: Duration::from_secs(1),
        report: "it does not look at failed()".into(),
    });
    let message = refused(a.close());
    assert!(message.contains("`a`") && message.contains("endless"), "{message}");
    drop(bench);
    // Memory that was given back would be another's by now.
    let others = (0..50).map(|_| memmap2::MmapOptions::new().len(bytes as usize).map_anon().unwrap());
    let others: Vec<_> = others.collect();
    assert!(others.iter().all(|other| other.as_ptr() as u64 != address));
    // SAFETY: the region has leaked its pages, which is what is tested: given back, they would be no memory at all.
    let left = unsafe { std::slice::from_raw_parts(address as *const u32, values.len()) };
    assert_eq!(left, values);
}

#[test]
fn a_gpu_that_is_lost_before_the_start_is_an_error() {
    let gpu = MockGpu::new(None);
    gpu.lose();
    let message = refused(on(&gpu).build().map(|_| ()));
    assert!(message.contains("the test pulled it out"), "{message}");
}

#[test]
fn hardware_copies_pages_itself_and_refuses_what_it_cannot_do() {
    let gpu = MockGpu::new(Some((9, 0)));
    let settings = || simulated_soft(8).transport(Transport::default()).gpu(gpu.clone());
    let vm = settings().build().unwrap();
    assert_eq!(vm.transport(), TransportKind::Direct);
    assert!(vm.soft_nic().is_none());
    drop(vm);
    for (builder, parts) in [
        (settings().transport(Rxe::new()), ["transport is rxe", "--gpu sim"]),
        // Nothing is there, and no NIC: what is missing is named.
        (
            settings().transport(Rdma::to(MemoryNodes::at(["127.0.0.1:1"]))),
            ["joining 127.0.0.1:1", "memory node"],
        ),
        (
            settings().transport(Mlx5::new()),
            ["transport mlx5 is not available", "mlx5"],
        ),
    ] {
        let message = refused(builder.build().map(|_| ()));
        assert!(
            parts.iter().all(|part| message.contains(part)),
            "{parts:?} in {message}"
        );
    }
    assert_eq!(Arc::strong_count(&gpu), 1);
}
