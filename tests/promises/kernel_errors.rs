//! What goes wrong in a kernel, in its arguments, or in its compilation is an error that names it; the virtual memory
//! works on afterwards.

use std::time::Duration;

use crate::common::{Adjust, BASIC, Bench, FAULTY, PAGE_WORDS, refused, says, scaled, simulated, small, with_causes};
use gpuvm::{Error, FaultKind, GpuError, LaunchConfig, Placement, Region, Value};

fn bench() -> Bench {
    Bench::new(small(16), FAULTY)
}

/// For kernels that trap: on an NVIDIA GPU each of them costs its process the GPU.
fn bench_of_traps() -> Bench {
    Bench::new(simulated(16), FAULTY)
}

fn region(bench: &Bench) -> Region<u32> {
    let n = 10 * PAGE_WORDS + 3;
    bench.vm.region::<u32>().name("data").from_iter(0..n as u32).unwrap()
}

/// The region is whole, and kernels run.
fn works(bench: &Bench, a: &Region<u32>) {
    let out = bench.vm.buffer::<u32>(1).unwrap();
    bench.must("read_at", LaunchConfig::new(1, 1), (a, a.len() - 1, &out));
    assert_eq!(out.to_vec().unwrap(), [a.len() as u32]);
}

#[test]
fn an_index_past_the_end_is_an_error_with_index_and_size() {
    let bench = bench();
    // Where pages are looked up, what is read past the end has any value.
    let a = bench.vm.region::<u32>().name("data").placement(Placement::Fetch);
    let a = a.from_iter(0..10 * PAGE_WORDS as u32 + 3).unwrap();
    let (n, out) = (a.len(), bench.vm.buffer::<u32>(1).unwrap());
    let one = || LaunchConfig::new(1, 1);
    for index in [n, n + 1, 1 << 40, u64::MAX] {
        let mut errors = vec![bench.run("read_at", one(), (&a, index, &out)).unwrap_err()];
        errors.extend(
            (0..7u32)
                .map(|way| bench.run("write_at", one(), (&a, index, way)).err())
                .enumerate()
                .filter_map(|(way, error)| {
                    // Way 4 prefetches `index` elements: all of them is no mistake.
                    assert!(
                        error.is_some() || (way == 4 && index == n),
                        "way {way} of index {index} was allowed"
                    );
                    error
                }),
        );
        for error in errors {
            let message = with_causes(&error);
            says(&message, &["`data`", &format!("it has {n}")]);
            let Error::Fault { fault, .. } = error else {
                panic!("{message}")
            };
            match fault.kind {
                FaultKind::OutOfRange { index: found, length } => assert_eq!((found, length), (index, n)),
                FaultKind::SpanOutOfRange { length, .. } => assert_eq!(length, n),
                other => panic!("{other:?}"),
            }
        }
    }
    let message = refused(bench.run("read_negative", one(), (&a, -1i32, &out)));
    assert!(message.contains("index 18446744073709551615"), "{message}");
    assert_eq!(
        a.to_vec().unwrap(),
        (0..n as u32).collect::<Vec<_>>(),
        "no memory was touched"
    );
    works(&bench, &a);
}

#[test]
fn what_the_processor_refuses_is_an_error_with_block_and_thread() {
    let bench = bench_of_traps();
    let a = region(&bench);
    let out = bench.vm.buffer::<u32>(1).unwrap();
    let shape = || LaunchConfig::new(1, 1).deadline(scaled(Duration::from_secs(10)));
    // Far outside of everything that is mapped.
    let wild = bench.run("wild_store", shape(), (&out, 1u64 << 44)).unwrap_err();
    let null = bench.run("null_load", shape(), (&out,)).unwrap_err();
    let zero = bench.run("divide", shape(), (&out, 0u32)).unwrap_err();
    for (error, kernel) in [(wild, "wild_store"), (null, "null_load"), (zero, "divide")] {
        let message = with_causes(&error);
        says(&message, &[kernel, "block [0, 0, 0]"]);
        let fault = matches!(
            error,
            Error::Gpu {
                source: GpuError::KernelFault { .. },
                ..
            }
        );
        assert!(fault, "{message}");
        works(&bench, &a);
    }
}

#[test]
fn a_failed_assert_names_expression_file_and_line_and_loses_nothing() {
    let bench = bench_of_traps();
    let a = region(&bench);
    let line = include_str!("../kernels/faulty.cu")
        .lines()
        .position(|l| l.contains("assert(i != 33)"))
        .unwrap()
        + 1;
    let message = refused(bench.run("asserts", LaunchConfig::new(2, 32), (&a,)));
    for part in [
        "i != 33",
        &format!("faulty.cu:{line}"),
        "block [1, 0, 0]",
        "thread [1, 0, 0]",
    ] {
        assert!(message.contains(part), "{part} in {message}");
    }
    let mut few = [0; 64];
    a.read(0, &mut few).unwrap();
    assert_eq!(few[33], 5, "the write before the assertion");
    works(&bench, &a);
}

#[test]
fn a_trap_is_an_error_and_loses_nothing() {
    let bench = bench_of_traps();
    let a = region(&bench);
    let message = refused(bench.run("traps", LaunchConfig::new(1, 3), (&a,)));
    says(&message, &["`traps` called __trap()", "thread [2, 0, 0]"]);
    let mut few = [0; 3];
    a.read(0, &mut few).unwrap();
    assert_eq!(few[2], 6);
    works(&bench, &a);
}

#[test]
fn a_kernel_that_fails_at_once_reports_its_own_cause() {
    let bench = bench_of_traps();
    let a = region(&bench);
    for round in 0..200 {
        // The launch may have ended before the host has seen it begin.
        let message = refused(bench.run("traps", LaunchConfig::new(1, 3), (&a,)));
        assert!(message.contains("called __trap()"), "round {round}: {message}");
    }
    works(&bench, &a);
}

#[test]
fn a_compile_error_shows_the_users_file_and_line() {
    let vm = small(4).build().unwrap();
    let source =
        "#include <gpuvm/gpuvm.cuh>\n\n__global__ void broken(gpuvm::array<float> a) {\n    a[0] = undeclared;\n}\n";
    let error = vm.compile("my/kernels/broken.cu", source, &["broken"]).err().unwrap();
    let message = with_causes(&error);
    assert!(
        // The host's compilers and NVRTC write a line in their own ways.
        ["broken.cu:4:", "broken.cu(4)"]
            .iter()
            .any(|place| message.contains(place))
            && message.contains("undeclared"),
        "{message}"
    );
    assert!(matches!(
        error,
        Error::Gpu {
            source: GpuError::Compile { .. },
            ..
        }
    ));

    let message = refused(
        vm.compile("k.cu", "__global__ void there() {}", &["missing"])
            .map(|_| ()),
    );
    assert!(message.contains("missing"), "{message}");
    let module = vm.compile("k.cu", "__global__ void there() {}", &["there"]).unwrap();
    let message = refused(module.kernel("elsewhere").map(|_| ()));
    assert!(message.contains("elsewhere") && message.contains("there"), "{message}");
    says(
        &refused(vm.compile_file("/nonexistent/k.cu", &["k"]).map(|_| ())),
        &["/nonexistent/k.cu", "No such file"],
    );
}

#[test]
fn a_missing_compiler_is_an_error_that_says_what_to_install() {
    // The child is this test again, with a compiler that is not there.
    const CHILD: &str = "GPUVM_TEST_WITHOUT_COMPILER";
    if std::env::var_os(CHILD).is_some() {
        println!("error: {}", refused(simulated(4).build().map(|_| ())));
        return;
    }
    let name = "a_missing_compiler_is_an_error_that_says_what_to_install";
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("kernel_errors::{name}"), "--nocapture"])
        .env("GPUVM_CXX", "/nonexistent/c++")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    says(&text, &["no C++ compiler", "/nonexistent/c++"]);
    assert!(text.contains("install g++"), "{text}");
}

#[test]
fn arguments_that_do_not_fit_are_refused_by_number_and_type() {
    let bench = bench();
    let a = region(&bench);
    let floats = bench.vm.region::<f32>().name("floats").from_slice(&[3.0; 5]).unwrap();
    let out = bench.vm.buffer::<u64>(1).unwrap();
    let one = || LaunchConfig::new(1, 1);
    let run = |args: Result<_, Error>| refused::<gpuvm::LaunchReport>(args);

    bench.must("numbers", one(), (-1i32, 2u32, 3f32, 4f64, 5i64, 6u8, &out));
    assert_eq!(out.to_vec().unwrap(), [19]);
    for message in [
        run(bench.run("numbers", one(), (-1i32, 2u32, 3f32, 4f64, 5i64, 6u8))),
        run(bench.run("numbers", one(), ())),
        run(bench.run("numbers", one(), (-1i32, 2i32, 3f32, 4f64, 5i64, 6u8, &out))),
        run(bench.run("numbers", one(), (-1i32, 2u64, 3f32, 4f64, 5i64, 6u8, &out))),
        run(bench.run("numbers", one(), (-1i32, 2u32, 3f64, 4f64, 5i64, 6u8, &out))),
        run(bench.run("numbers", one(), (-1i32, 2u32, 3f32, 4f64, 5i64, 6u8, &a))),
        run(bench.run("numbers", one(), (-1i32, 2u32, 3f32, 4f64, 5i64, 6u8, 7u64))),
    ] {
        says(&message, &["`numbers`", "argument"]);
    }
    bench.must("takes_arrays", one(), (&floats, &a));
    // Another element class, another size, a buffer for an array, a read-only region to write.
    let fixed = bench.vm.region::<u32>().name("fixed").read_only().zeroed(5).unwrap();
    let doubles = bench.vm.region::<f64>().zeroed(5).unwrap();
    let words = bench.vm.buffer::<u32>(5).unwrap();
    for (message, parts) in [
        (
            run(bench.run("takes_arrays", one(), (&a, &a))),
            ["argument 1", "`data` of u32"],
        ),
        (
            run(bench.run("takes_arrays", one(), (&doubles, &a))),
            ["argument 1", "f64"],
        ),
        (
            run(bench.run("takes_arrays", one(), (&floats, &words))),
            ["argument 2", "a buffer of u32"],
        ),
        (
            run(bench.run("takes_arrays", one(), (&floats, &fixed))),
            ["argument 2", "gpuvm::array<const T>"],
        ),
        (
            run(bench.run("takes_arrays", one(), (&floats, &floats))),
            ["argument 2", "f32"],
        ),
    ] {
        assert!(
            parts.iter().all(|part| message.contains(part)),
            "{parts:?} in {message}"
        );
    }
    let pairs = bench.vm.region::<[u32; 2]>().zeroed(5).unwrap();
    bench.must("takes_struct", one(), (Value([7u32, 8]), &pairs));
    assert_eq!(pairs.to_vec().unwrap()[0], [7, 8]);
    refused(bench.run("takes_struct", one(), (Value([7u32; 3]), &pairs)));
}

#[test]
fn regions_and_buffers_of_another_vm_are_refused() {
    let (bench, stranger) = (bench(), Bench::new(small(4), BASIC));
    let (a, theirs) = (region(&bench), region(&stranger));
    let out = stranger.vm.buffer::<u32>(1).unwrap();
    says(
        &refused(bench.run("read_at", LaunchConfig::new(1, 1), (&a, 1u64, &out))),
        &["argument 3", "another Vm"],
    );
    let message = refused(bench.run("write_at", LaunchConfig::new(1, 1), (&theirs, 1u64, 0u32)));
    says(&message, &["argument 1", "another Vm"]);
}

#[test]
fn shapes_that_the_gpu_cannot_launch_are_refused() {
    let bench = bench();
    for config in [
        LaunchConfig::new(0, 32),
        LaunchConfig::new(1, 0),
        LaunchConfig::new(1, 1025),
        LaunchConfig::grid([1, 0, 1], [32, 1, 1]),
        LaunchConfig::grid([1; 3], [32, 32, 2]),
        LaunchConfig::new(1, 32).dynamic_shared(u32::MAX),
    ] {
        let words = format!("{config:?}");
        let error = bench.run("nothing", config, ()).expect_err(&words);
        let shape = matches!(
            error,
            Error::Gpu {
                source: GpuError::LaunchConfig { .. },
                ..
            }
        );
        assert!(
            shape && with_causes(&error).contains("`nothing`"),
            "{words}: {}",
            with_causes(&error)
        );
    }
}

#[test]
fn a_launch_that_reports_success_has_run_every_block() {
    let bench = bench();
    let ran = bench.vm.buffer::<u32>(1).unwrap();
    let mut all = 0;
    for blocks in [1, 7, 1000] {
        let report = bench.must("count_blocks", LaunchConfig::new(blocks, 64), (&ran,));
        all += blocks;
        assert_eq!(report.blocks, u64::from(blocks));
        assert_eq!(ran.to_vec().unwrap(), [all]);
    }
    let report = bench.must("count_blocks", LaunchConfig::grid([3, 4, 5], [4, 4, 4]), (&ran,));
    assert_eq!((report.blocks, ran.to_vec().unwrap()[0]), (60, all + 60));
}

#[test]
fn a_kernel_behind_one_that_failed_on_the_same_stream_runs_or_says_that_it_did_not() {
    let bench = bench_of_traps();
    let ran = bench.vm.buffer::<u32>(1).unwrap();
    let a = region(&bench);
    let bad = bench.launch("traps", LaunchConfig::new(1, 3), (&a,));
    let good = bench.launch("count_blocks", LaunchConfig::new(5, 32), (&ran,));
    refused(bad.sync());
    let outcome = good.sync();
    assert_eq!(ran.to_vec().unwrap()[0] == 5, outcome.is_ok());
}

#[test]
fn overlapping_regions_are_refused_unless_both_only_read() {
    let vm = small(8).build().unwrap();
    let mut memory = vec![1u32; 4 * PAGE_WORDS as usize];
    let all = std::ptr::from_mut(memory.as_mut_slice());
    vm.scope(|scope| {
        // SAFETY: both slices point into `memory`, which lives to the end of the test and is reached by nothing else;
        // the runtime is to refuse the second, so that no kernel writes through both.
        let (first, second) = unsafe { (&mut (&mut *all)[..3000], &mut (&mut *all)[2999..]) };
        let one = scope.region("one", first)?;
        let message = refused(scope.region("two", second).map(|_| ()));
        assert!(message.contains("`two`") && message.contains("`one`"), "{message}");
        drop(one);
        Ok(())
    })
    .unwrap();
    vm.scope(|scope| {
        let whole = scope.read_only("whole", &memory)?;
        let part = scope.read_only("part", &memory[10..20])?;
        assert_eq!((whole.len(), part.len()), (memory.len() as u64, 10));
        Ok(())
    })
    .unwrap();
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    // Queues are a setting of a transport that has some, whichever the environment chooses for other tests.
    let queues = |queues: gpuvm::Queues| small(4).transport(gpuvm::Soft::new().queues(queues));
    let some = gpuvm::Queues::new();
    for (builder, name) in [
        (small(4).page_size(1000), "page size"),
        (small(4).page_size(2048), "page size"),
        (small(4).page_size(4 << 20), "page size"),
        (small(4).page_size(0), "page size"),
        (small(4).frame_memory(0), "frame memory"),
        (small(4).frame_memory(4095), "frame memory"),
        (small(4).frame_memory(u64::MAX), "frame memory"),
        (queues(some.pairs(0)), "queue pairs"),
        (queues(some.pairs(5000)), "queue pairs"),
        (queues(some.depth(0)), "queue depth"),
        (queues(some.depth(12)), "queue depth"),
        (queues(some.depth(1 << 16)), "queue depth"),
        (small(4).regions_max(0), "regions"),
        (small(4).wait_limit(Duration::ZERO), "wait limit"),
    ] {
        let message = refused(builder.build().map(|_| ()));
        assert!(message.contains(name), "{name}: {message}");
    }
    // Its size is the simulated GPU's setting.
    let message = refused(simulated(1000).device_memory(100 * 4096).build().map(|_| ()));
    assert!(message.contains("out of GPU memory"), "{message}");
    let message = refused(small(4).gpu(gpuvm::CudaGpu::ordinal(7)).build().map(|_| ()));
    assert!(message.contains("cuda:7"), "{message}");
    let message = refused(small(4).transport(gpuvm::Mlx5::new()).build().map(|_| ()));
    assert!(message.contains("mlx5"), "{message}");
}

#[test]
fn the_longest_limits_do_not_overflow() {
    let builder = small(4).wait_limit(Duration::MAX).launch_deadline(Duration::MAX);
    let bench = Bench::new(builder, FAULTY);
    let a = region(&bench);
    works(&bench, &a);
    let out = bench.vm.buffer::<u32>(1).unwrap();
    bench.must(
        "read_at",
        LaunchConfig::new(1, 1).deadline(Duration::MAX),
        (&a, 4u64, &out),
    );
}

#[test]
fn places_for_regions_run_out_with_an_error_and_come_back() {
    let vm = small(4).regions_max(2).build().unwrap();
    let region = || vm.region::<u32>().name("one more").zeroed(5);
    let (first, _second) = (region().unwrap(), region().unwrap());
    let message = refused(region().map(|_| ()));
    says(&message, &["`one more`", "all 2 region slots"]);
    assert!(message.contains("or raise the setting regions_max"), "{message}");
    drop(first);
    region().unwrap();
}

#[test]
fn places_for_regions_are_made_as_regions_come() {
    let bench = Bench::new(small(16), BASIC);
    let region = |n: u32| bench.vm.region::<u32>().from_iter([n, 1]).unwrap();
    let mut regions: Vec<_> = (0..1100).map(region).collect();
    let sum_of = |region: &Region<u32>| {
        let out = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", LaunchConfig::new(1, 32), (region, &out));
        out.to_vec().unwrap()[0]
    };
    for n in [0, 255, 256, 511, 512, 1023, 1024, 1099] {
        assert_eq!(sum_of(&regions[n]), n as u64 + 1, "{n}");
    }
    // A place in the middle serves again.
    regions.swap_remove(700);
    assert_eq!(sum_of(&region(5)), 6);
}
