//! Kernels that came as PTX over arrays whose pages come by faults: their accesses are calls.

use std::fmt::Write as _;

use gpuvm::{Error, FaultKind, LaunchConfig, Region, soft};
use gpuvm_nic::wire::mlx5::{Opcode, Syndrome};

use crate::common::{
    Adjust, Bench, Kernels, PAGE_WORDS, compare, direct, file_to_map, refused, says, simulated_soft, small, small_soft,
    with_causes,
};
use crate::look_up::ptx::{kernels_of_triton, loops_of_nvcc};

const PLAIN_ADD: &str = include_str!("plain_add.ptx");
const LANES: &str = include_str!("../../ptx/tests/inputs/lanes.ptx");
const SPACES: &str = include_str!("../../ptx/tests/inputs/spaces.ptx");
/// Regions of other kernels are not wanted.
const NOTHING: Kernels = Kernels {
    name: "nothing.cu",
    text: "#include <gpuvm/gpuvm.cuh>\n",
};

/// Sizes that are no multiple of anything.
const N: u64 = 11 * PAGE_WORDS + 77;

fn values(seed: u32) -> Vec<u32> {
    (0..N as u32)
        .map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed))
        .collect()
}

/// What `plain_add` makes of `a`.
fn add(a: &mut [u32], b: &[u32], factor: u32) {
    a.iter_mut()
        .zip(b)
        .for_each(|(a, b)| *a = a.wrapping_add(b.wrapping_mul(factor)));
}

#[test]
fn a_loop_runs_over_more_pages_than_there_are_frames() {
    let seeded = (0..4).map(|seed| simulated_soft(3).seed(seed));
    // The first one's transport is what the environment asks for, such as RDMA to a memory node.
    for builder in [small(5), small_soft(40), small_soft(5)].into_iter().chain(seeded) {
        let bench = Bench::new(builder, NOTHING);
        let module = bench.vm.load_ptx("plain_add.ptx", PLAIN_ADD.as_bytes()).unwrap();
        let kernel = module.kernel("plain_add").unwrap();
        let (mut wanted, b) = (values(1), values(2));
        let a = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
        let of_b = bench.vm.region::<u32>().read_only().from_slice(&b).unwrap();
        for factor in 1..3 {
            let launch = kernel.launch(LaunchConfig::new(3, 64), (&a, &of_b, factor, N));
            launch.unwrap().sync().unwrap();
            add(&mut wanted, &b, factor);
        }
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
        // The same array twice.
        kernel
            .launch(LaunchConfig::new(2, 96), (&a, &a, 2u32, N))
            .unwrap()
            .sync()
            .unwrap();
        wanted.iter_mut().for_each(|a| *a = a.wrapping_mul(3));
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
        bench.no_violations();
    }
}

#[test]
fn loops_of_nvcc_and_kernels_of_triton_run_over_a_software_nic() {
    for frames in [40, 6] {
        let bench = Bench::new(small_soft(frames), NOTHING);
        loops_of_nvcc(&bench);
        kernels_of_triton(&bench);
        assert!(bench.vm.stats().unwrap().pages_fetched >= 12);
        bench.no_violations();
    }
}

#[test]
fn a_file_behind_a_nic_is_written_to_its_end() {
    let file = file_to_map();
    let bytes = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    std::fs::write(file.path(), bytes(&values(1))).unwrap();
    let bench = Bench::new(small_soft(3), NOTHING);
    let module = bench.vm.load_ptx("plain_add.ptx", PLAIN_ADD.as_bytes()).unwrap();
    let a = bench.vm.region::<u32>().map_file_mut(file.path()).unwrap();
    let b = bench.vm.region::<u32>().from_slice(&values(2)).unwrap();
    let kernel = module.kernel("plain_add").unwrap();
    kernel
        .launch(LaunchConfig::new(3, 64), (&a, &b, 7u32, N))
        .unwrap()
        .sync()
        .unwrap();
    a.close().unwrap();
    let mut wanted = values(1);
    add(&mut wanted, &values(2), 7);
    assert!(std::fs::read(file.path()).unwrap() == bytes(&wanted));
}

/// Where lanes reach homes, some arrays are not looked up all the same, and others beside them would be.
#[test]
fn arrays_that_could_be_looked_up_are_taken_beside_others() {
    for frames in [40, 5] {
        let bench = Bench::new(direct(frames), NOTHING);
        let module = bench.vm.load_ptx("plain_add.ptx", PLAIN_ADD.as_bytes()).unwrap();
        let kernel = module.kernel("plain_add").unwrap();
        let (mut wanted, mut b) = (values(1), values(2));
        let a = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
        let of_b = bench.vm.region::<u32>().never_evicted().from_slice(&b).unwrap();
        for factor in 1..4 {
            // Both forms in turn.
            let run = |a: &Region<u32>, b: &Region<u32>| {
                let launch = kernel.launch(LaunchConfig::new(3, 64), (a, b, factor, N));
                launch.unwrap().sync().unwrap();
            };
            run(&a, &of_b);
            run(&a, &a);
            run(&of_b, &a);
            add(&mut wanted, &b, factor);
            let before = wanted.clone();
            add(&mut wanted, &before, factor);
            add(&mut b, &wanted, factor);
            compare(&a.to_vec().unwrap(), &wanted).unwrap();
            compare(&of_b.to_vec().unwrap(), &b).unwrap();
        }
    }
}

/// Accesses of `BYTES` bytes to a place that is a thread's own, in `r1`, `f1` and so on.
const FORMS: &[&str] = &[
    "ld.global.f32 %f1, ADDRESS;",
    "ld.u8 %h1, ADDRESS;",
    "ld.global.v2.f32 {%f1, %f2}, ADDRESS;",
    "ld.global.nc.v4.u32 {%r1, %r2, %r3, %r4}, ADDRESS;",
    "ld.global.ca.s8 %r1, ADDRESS;",
    "ld.global.cs.b16 %h1, ADDRESS;",
    "ld.cv.u32 %r1, ADDRESS;",
    "ld.volatile.global.u32 %r1, ADDRESS;",
    "ld.relaxed.gpu.global.u32 %r1, ADDRESS;",
    "ld.acquire.sys.u32 %r1, ADDRESS;",
    "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32 {%f1, %f2, %f3, %f4}, ADDRESS, %rd9;",
    "ldu.global.u32 %r1, ADDRESS;",
    "st.global.f32 ADDRESS, %f1;",
    "st.u16 ADDRESS, %h1;",
    "st.global.v2.u64 ADDRESS, {%rd11, %rd12};",
    "st.global.v4.b32 ADDRESS, {%r1, %r2, %r3, 0};",
    "st.wt.u32 ADDRESS, %r1;",
    "st.volatile.u32 ADDRESS, %r2;",
    "st.release.gpu.global.u32 ADDRESS, %r3;",
    "atom.global.add.u32 %r1, ADDRESS, %r2;",
    "atom.add.noftz.f16x2 %r1, ADDRESS, %r2;",
    "atom.acq_rel.gpu.global.cas.b64 %rd11, ADDRESS, %rd12, %rd13;",
    "atom.relaxed.sys.global.inc.u32 %r1, ADDRESS, 7;",
    "atom.global.add.v2.f32 {%f1, %f2}, ADDRESS, {%f3, %f4};",
    "red.global.add.f64 ADDRESS, %rd11;",
    "red.relaxed.gpu.max.s32 ADDRESS, %r1;",
    "red.global.add.v4.f32 ADDRESS, {%f1, %f2, %f3, %f4};",
    "cp.async.ca.shared.global [%r9], ADDRESS, 4;",
    "cp.async.cg.shared::cta.global.L2::128B [%r9+16], ADDRESS, 16, %r10;",
    "prefetch.global.L1 ADDRESS;",
    // Its address is what it loads over, and a label around it is used twice.
    "mov.b64 %rd20, %rd1; ld.global.u64 %rd20, [%rd20+-64]; xor.b64 %rd11, %rd20, %rd11;",
];

/// Those of 32 bytes, which came after the H200.
const WIDE: &[&str] = &[
    "ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, _, %r8}, ADDRESS;",
    "ld.global.v4.b64 {%rd11, %rd12, %rd13, %rd14}, ADDRESS;",
    "st.global.v8.f32 ADDRESS, {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8};",
];

/// A kernel in which each thread makes each access to a place of its own of 32 bytes: guarded, and not.
fn all_forms(forms: &[&str]) -> String {
    let mut body = String::new();
    for guard in ["", "@%p1 ", "@!%p1 "] {
        for form in forms {
            // The last form has several instructions.
            let form = match form.contains("; ") {
                true => (*form).to_owned(),
                false => format!("{guard}{}", form.replace("ADDRESS", "[%rd1+-64]")),
            };
            let _ = writeln!(body, "{form}\nadd.s64 %rd1, %rd1, %rd8;");
        }
    }
    let mut stores = String::new();
    for n in 1..9 {
        let _ = writeln!(stores, "st.global.u32 [%rd3+{}], %r{n};", 4 * n);
        let _ = writeln!(stores, "st.global.f32 [%rd3+{}], %f{n};", 32 + 4 * n);
    }
    for n in 11..15 {
        let _ = writeln!(stores, "st.global.u64 [%rd3+{}], %rd{n};", 80 + 8 * (n - 11));
    }
    let mut given = String::new();
    for n in 1..9 {
        let _ = writeln!(given, "mad.lo.u32 %r{n}, %r30, {n}, {n}; mov.b32 %f{n}, %r{n};");
    }
    for n in 11..15 {
        let _ = writeln!(given, "cvt.u64.u32 %rd{n}, %r{}; shl.b64 %rd{n}, %rd{n}, {n};", n - 10);
    }
    format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry forms(.param .u64 given, .param .u64 out) {{\n\
         .reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<40>;\n.reg .b64 %rd<40>;\n.reg .f32 %f<9>;\n\
         .shared .align 16 .b8 block[4096];\n\
         ld.param.u64 %rd1, [given]; ld.param.u64 %rd3, [out]; cvta.to.global.u64 %rd3, %rd3;\n\
         mov.u32 %r30, %tid.x; mov.u32 %r31, %ctaid.x; mov.u32 %r32, %ntid.x; mov.u32 %r33, %nctaid.x;\n\
         mov.u32 %r9, block; mad.lo.u32 %r9, %r30, 32, %r9; and.b32 %r10, %r30, 12;\n\
         mad.lo.u32 %r30, %r31, %r32, %r30; mul.lo.u32 %r32, %r32, %r33; mul.wide.u32 %rd8, %r32, 32;\n\
         mad.wide.u32 %rd1, %r30, 32, %rd1; add.s64 %rd1, %rd1, 64; mad.wide.u32 %rd3, %r30, 128, %rd3;\n\
         and.b32 %r34, %r30, 3; setp.eq.u32 %p1, %r34, 1; mov.b16 %h1, 7; createpolicy.fractional.L2::evict_last.b64 %rd9, 1.0;\n\
         {given}{body}\ncvt.u32.u16 %r5, %h1; ld.shared.u32 %r6, [%r9]; ld.shared.u32 %r7, [%r9+16];\n{stores}ret;\n}}\n"
    )
}

/// Vectors at pages' ends, guards, atomics, copies and orders: over an array as over plain memory.
#[test]
fn each_form_of_access_is_what_it_was() {
    // A simulated GPU has no architecture.
    let wide = if std::env::var_os("GPUVM_TEST_GPU").is_none() {
        WIDE
    } else {
        &[]
    };
    let forms = [FORMS, wide].concat();
    let text = all_forms(&forms);
    for builder in [small_soft(64), small_soft(4), simulated_soft(6).seed(5)] {
        let bench = Bench::new(builder, NOTHING);
        let module = bench.vm.load_ptx("forms.ptx", text.as_bytes()).unwrap();
        let kernel = module.kernel("forms").unwrap();
        let config = LaunchConfig::new(2, 64);
        // What the last accesses reach.
        let words = forms.len() as u64 * 3 * 128 * 8;
        let given: Vec<u32> = (0..words as u32).map(|i| i.wrapping_mul(2_654_435_761) >> 3).collect();
        let (plain, paged) = (
            bench.vm.buffer::<u32>(words).unwrap(),
            bench.vm.region::<u32>().from_slice(&given).unwrap(),
        );
        plain.write(&given).unwrap();
        let [of_plain, of_paged] = [(); 2].map(|()| bench.vm.buffer::<u32>(128 * 32).unwrap());
        kernel
            .launch(config.clone(), (&plain, &of_plain))
            .unwrap()
            .sync()
            .unwrap();
        kernel
            .launch(config.clone(), (&paged, &of_paged))
            .unwrap()
            .sync()
            .unwrap();
        let wanted = plain.to_vec().unwrap();
        assert_ne!(wanted, given);
        compare(&paged.to_vec().unwrap(), &wanted).unwrap();
        compare(&of_paged.to_vec().unwrap(), &of_plain.to_vec().unwrap()).unwrap();
        bench.no_violations();
    }
}

/// Loops that wait for what other threads store, in words of one page.
#[test]
fn atomics_of_all_threads_meet() {
    for builder in [small_soft(40), small_soft(2), simulated_soft(3).seed(1)] {
        let bench = Bench::new(builder, NOTHING);
        let module = bench.vm.load_ptx("lanes.ptx", LANES.as_bytes()).unwrap();
        let kernel = module.kernel("atomics_of_all_kinds").unwrap();
        let region = |words: u64| bench.vm.region::<u32>().zeroed(words).unwrap();
        let (s, u, l, f, d, h) = (region(4), region(2000), region(10), region(1), region(2), region(1));
        kernel
            .launch(LaunchConfig::new(2, 48), (&s, &u, &l, &f, &d, &h))
            .unwrap()
            .sync()
            .unwrap();
        let s: Vec<i32> = s.to_vec().unwrap().iter().map(|word| *word as i32).collect();
        let sum = 96 * 95 / 2;
        assert_eq!(s, [sum - 96 * 50, -sum, -75, 75]);
        let u = u.to_vec().unwrap();
        let wanted = [sum as u32, 0, !0, 0x8000_0000 ^ 0x8000_0000, 0, 285, 0, 0, 77, 96, 96];
        for at in [0, 2, 4, 5, 8, 9, 10] {
            assert_eq!(u[at], wanted[at], "{at}");
        }
        assert_eq!(&l.to_vec().unwrap()[8..], [96, 0]);
        assert_eq!(f.to_vec().unwrap(), [144f32.to_bits()]);
        assert_eq!(h.to_vec().unwrap(), [96]);
        bench.no_violations();
    }
}

/// A function that is not inlined is given addresses of shared, local, constant and paged memory.
#[test]
fn generic_addresses_of_other_memory_are_left_alone() {
    let bench = Bench::new(small_soft(2), NOTHING);
    let module = bench.vm.load_ptx("spaces.ptx", SPACES.as_bytes()).unwrap();
    let data = bench.vm.region::<u32>().from_slice(&[100; 64]).unwrap();
    let launch = module
        .kernel("spaces")
        .unwrap()
        .launch(LaunchConfig::new(1, 64), (&data, 5u32));
    launch.unwrap().sync().unwrap();
    let mut wanted = vec![130; 64];
    wanted[2] = 34;
    compare(&data.to_vec().unwrap(), &wanted).unwrap();
    // Copies to shared memory, of which the second is of 8 threads.
    let from: Vec<f32> = (0..64 * 4).map(|i| i as f32).collect();
    let (from, out) = (
        bench.vm.region::<f32>().from_slice(&from).unwrap(),
        bench.vm.region::<f32>().zeroed(64).unwrap(),
    );
    let launch = module
        .kernel("copies")
        .unwrap()
        .launch(LaunchConfig::new(1, 64), (&from, &out));
    launch.unwrap().sync().unwrap();
    let out = out.to_vec().unwrap();
    assert_eq!(&out[..48], (0..48).map(|i| (63 - i) as f32 * 4.0).collect::<Vec<_>>());
}

/// `plain_add` of more elements than the array has: the launch ends with a fault, and the next one runs.
#[test]
fn an_index_past_the_end_is_a_fault_of_its_region() {
    let bench = Bench::new(small_soft(5), NOTHING);
    let module = bench.vm.load_ptx("plain_add.ptx", PLAIN_ADD.as_bytes()).unwrap();
    let kernel = module.kernel("plain_add").unwrap();
    let a = bench
        .vm
        .region::<u32>()
        .name("short")
        .from_slice(&values(1)[..1000])
        .unwrap();
    let b = bench.vm.region::<u32>().name("long").from_slice(&values(2)).unwrap();
    // Behind the last page another region may begin, as behind any pointer's memory.
    let launch = kernel
        .launch(LaunchConfig::new(3, 64), (&a, &b, 1u32, PAGE_WORDS))
        .unwrap();
    let Err(Error::Fault { fault, .. }) = launch.sync() else {
        panic!("no fault");
    };
    assert!(
        matches!(
            fault.kind,
            FaultKind::OutOfRange {
                index: 1000..PAGE_WORDS,
                length: 1000
            }
        ),
        "{fault}"
    );
    assert!(fault.to_string().contains("`short`"), "{fault}");
    let mut wanted = a.to_vec().unwrap();
    kernel
        .launch(LaunchConfig::new(3, 64), (&a, &b, 3u32, 1000u64))
        .unwrap()
        .sync()
        .unwrap();
    add(&mut wanted, &values(2), 3);
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
}

/// Collectives of a block of which some threads have met a fault.
#[test]
fn threads_that_met_a_fault_are_not_waited_for() {
    let bench = Bench::new(small_soft(5), NOTHING);
    let module = bench
        .vm
        .load_ptx(
            "softmax.ptx",
            include_bytes!("../../ptx/tests/inputs/triton_softmax.ptx"),
        )
        .unwrap();
    let x = bench.vm.region::<f32>().name("short").zeroed(1500).unwrap();
    let out = bench.vm.region::<f32>().zeroed(2000).unwrap();
    let config = LaunchConfig::new(2, 128).dynamic_shared(8 << 10);
    let launch = module
        .kernel("softmax")
        .unwrap()
        .launch(config, (&x, &out, 1000u32, 0u64, 0u64))
        .unwrap();
    let said = refused(launch.sync());
    assert!(said.contains("`short`"), "{said}");
}

#[test]
fn a_home_that_fails_is_a_fault_of_its_region() {
    let bench = Bench::new(small_soft(5), NOTHING);
    let module = bench.vm.load_ptx("plain_add.ptx", PLAIN_ADD.as_bytes()).unwrap();
    let a = bench.vm.region::<u32>().name("failing").from_slice(&values(1)).unwrap();
    let b = bench.vm.region::<u32>().name("other").from_slice(&values(2)).unwrap();
    let plan = soft::FaultPlan::new(soft::Fault::Fail(Syndrome::RemoteAccess)).opcode(Opcode::Read);
    bench.soft_nic().inject(plan.skip(6));
    let launch = module
        .kernel("plain_add")
        .unwrap()
        .launch(LaunchConfig::new(3, 64), (&a, &b, 1u32, N))
        .unwrap();
    let said = with_causes(&launch.sync().unwrap_err());
    assert!(
        said.contains("remote access") && (said.contains("`failing`") || said.contains("`other`")),
        "{said}"
    );
}

/// What cannot call, in what words; and variables, which the two forms do not share.
#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let bench = Bench::new(direct(8), NOTHING);
    let a = bench.vm.region::<u32>().from_slice(&values(1)).unwrap();
    let stays = bench
        .vm
        .region::<u32>()
        .name("stays")
        .never_evicted()
        .from_slice(&values(2))
        .unwrap();
    let text = |variable: &str, body: &str| {
        format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n{variable}.visible .entry k(.param .u64 a) {{\n.reg .b64 %a; .reg .b32 %v;\n\
             .shared .align 16 .b8 to[16]; .shared .align 8 .b64 bar;\nld.param.u64 %a, [a];\n{body}\nret; }}\n"
        )
    };
    let run = |module: &gpuvm::Module, region: &Region<u32>| {
        module.kernel("k")?.launch(LaunchConfig::new(1, 1), (region,))?.sync()
    };
    let of_variable = text(
        ".global .u32 count;\n",
        "atom.global.add.u32 %v, [count], 1; st.global.u32 [%a], %v;",
    );
    let load = || bench.vm.load_ptx("variable.ptx", of_variable.as_bytes()).unwrap();
    let module = load();
    run(&module, &a).unwrap();
    says(
        &with_causes(&run(&module, &stays).unwrap_err()),
        &["`stays`", "load it a second time"],
    );
    let module = load();
    for count in 0..3 {
        run(&module, if count == 1 { &a } else { &stays }).unwrap();
        assert_eq!(if count == 1 { &a } else { &stays }.to_vec().unwrap()[0], count);
    }
}
