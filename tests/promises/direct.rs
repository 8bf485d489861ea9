//! Lanes copy pages themselves: from host memory where it is, of any alignment and to its exact end, and from a
//! neighbour GPU's memory.

use std::time::Duration;

use crate::common::{
    Adjust, BASIC, Bench, PAGE, PAGE_WORDS, STEP, compare, config, direct, pattern, refused, says, simulated,
    simulated_soft, stepped, words,
};
use crate::mock_gpu::{MockGpu, NEIGHBOUR};
use crate::program::{Element, ProgramShape, give_up, rng, run, seeds, tiny};
use gpuvm::{CompileOptions, Error, GpuError, LaunchConfig, Placement, Transport, TransportKind};

#[test]
fn pages_come_and_go_without_a_nic() {
    let bench = Bench::new(direct(4).placement(Placement::Fetch), BASIC);
    assert_eq!(bench.vm.transport(), TransportKind::Direct);
    assert!(bench.vm.soft_nic().is_none());
    let n = 40 * PAGE_WORDS + 3;
    let before = words(1, n);
    let a = bench.vm.region::<u32>().from_slice(&before).unwrap();
    for round in 1..=3 {
        bench.must("read_then_write", LaunchConfig::new(4, 64), (&a, STEP));
        compare(&a.to_vec().unwrap(), &stepped(&before, round)).unwrap();
    }
    let stats = bench.vm.stats().unwrap();
    assert!(stats.evictions > 50 && stats.pages_fetched > 100, "{stats:?}");
    assert_eq!((stats.requests, stats.doorbells), (0, 0), "nothing posts anything");
    assert_eq!(stats.bytes_fetched % 4, 0);
    assert!(stats.fault_ns(0.5) > 0);
}

/// Kernels write to a lent slice at `offset` bytes from an aligned place, whose neighbours belong to somebody else: `last` is the last
/// byte that they write. What they do not write comes and goes with its page.
fn ragged(bench: &Bench, offset: usize, bytes: usize, last: usize) {
    let before = (0..(offset + bytes + 2 * PAGE as usize) as u64).map(|i| pattern(7, i) as u8);
    let mut memory: Vec<u8> = before.collect();
    let first = memory.as_ptr().align_offset(PAGE as usize) + offset;
    let (start, end) = (first, first + bytes);
    let memory = &mut memory[..];
    if end > memory.len() {
        panic!("the slice fits");
    }
    let places: Vec<u64> = [0, 1, bytes / 2, last].map(|place| place.min(last) as u64).to_vec();
    let mut expected = memory.to_vec();
    for (order, place) in (1u8..).zip(&places) {
        let byte = &mut expected[start + *place as usize];
        *byte = order;
    }
    let given = bench.vm.buffer::<u64>(4).unwrap();
    given.write(&places).unwrap();
    bench
        .vm
        .scope(|scope| {
            let lent = scope.region("ragged", &mut memory[start..end])?;
            bench.run("store", LaunchConfig::new(1, 1), (&lent, &given, 4u32, 1u8))?;
            Ok(())
        })
        .unwrap();
    compare(memory, &expected).unwrap_or_else(|wrong| panic!("{bytes} bytes at {offset}, {last} written: {wrong}"));
}

#[test]
fn memory_of_every_alignment_is_copied_to_its_exact_end() {
    let bench = Bench::new(direct(2).placement(Placement::Fetch), BASIC);
    for offset in [0, 1, 2, 4, 7, 8, 15, 16, 24] {
        for bytes in [2, 15, 16, 17, 4095, 4096, 4097, 4096 + 31, 8192] {
            // Its last byte is written back; then it is fetched and written back unchanged.
            ragged(&bench, offset, bytes, bytes - 1);
            ragged(&bench, offset, bytes, bytes - 2);
        }
    }
}

/// An element whose vectors are aligned.
#[repr(C, align(128))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Line([u32; 32]);

#[test]
fn memory_is_registered_where_it_is_and_read_only_as_such() {
    let gpu = MockGpu::new(Some((9, 0)));
    let bench = Bench::new(
        simulated_soft(4).transport(Transport::default()).gpu(gpu.clone()),
        BASIC,
    );
    let mut lent = vec![1u32; 100];
    let fixed = vec![2u32; 200];
    // Large and aligned.
    let owned = vec![Line([3; 32]); 16 << 10];
    let expected = [
        (lent.as_ptr() as u64, 400, false),
        (fixed.as_ptr() as u64, 800, true),
        (owned.as_ptr() as u64, 2 << 20, false),
    ];
    bench
        .vm
        .scope(|scope| {
            let _lent = scope.region("lent", &mut lent)?;
            let fixed = scope.read_only("fixed", &fixed)?;
            let owned = bench.vm.region::<Line>().from_vec(owned)?;
            assert_eq!(gpu.registered(), expected);
            // A small one shares its system pages with other memory, and is copied into pages of its own.
            let small = vec![4u32; 300];
            let at = small.as_ptr() as u64;
            let small = bench.vm.region::<u32>().from_vec(small)?;
            let (copied, bytes, _) = gpu.registered()[3];
            assert!(copied != at && copied.is_multiple_of(4096) && bytes == 4096);
            small.close()?;
            let sink = bench.vm.buffer::<u64>(1)?;
            bench.run("sum", config(), (&fixed, &sink))?;
            assert_eq!(sink.to_vec()?, [400]);
            // An empty region needs nothing.
            let registered = gpu.registered().len();
            bench.vm.region::<u32>().zeroed(0)?;
            assert_eq!(gpu.registered().len(), registered);
            owned.close()
        })
        .unwrap();
}

/// On hardware: `GPUVM_TEST_PEER=1` says that the GPU of the tests has GPU 1 for a neighbour.
#[test]
fn a_real_neighbours_memory_is_a_home() {
    let Ok(peer) = std::env::var("GPUVM_TEST_PEER") else {
        eprintln!("skipped: GPUVM_TEST_PEER names no neighbour GPU");
        return;
    };
    let peer: u32 = peer.parse().expect("GPUVM_TEST_PEER is an ordinal");
    let bench = Bench::new(direct(4).placement(Placement::Fetch), BASIC);
    let n = 40 * PAGE_WORDS + 7;
    let region = || bench.vm.region::<u32>().name("next door").home_on_gpu(peer);
    let zeros = region().zeroed(n).unwrap();
    compare(&zeros.to_vec().unwrap(), &vec![0; n as usize]).unwrap();
    let before = words(2, n);
    let a = region().from_slice(&before).unwrap();
    bench.must("read_then_write", config(), (&a, STEP));
    a.write(1, &[77]).unwrap();
    bench.must("read_then_write", config(), (&a, STEP));
    bench.must("copy", config(), (&a, &zeros));
    let mut expected = stepped(&before, 2);
    expected[1] = STEP + 77;
    compare(&a.to_vec().unwrap(), &expected).unwrap();
    compare(&zeros.to_vec().unwrap(), &expected).unwrap();
    assert!(bench.vm.stats().unwrap().evictions > 50, "pages went back next door");
    zeros.close().unwrap();
    a.close().unwrap();
}

#[test]
fn a_neighbours_memory_is_a_home() {
    let gpu = MockGpu::new(Some((9, 0)));
    let bench = Bench::new(
        simulated_soft(4).transport(Transport::default()).gpu(gpu.clone()),
        BASIC,
    );
    let n = 20 * PAGE_WORDS + 7;
    let region = || bench.vm.region::<u32>().name("next door").home_on_gpu(NEIGHBOUR);
    let zeros = region().zeroed(n).unwrap();
    compare(&zeros.to_vec().unwrap(), &vec![0; n as usize]).unwrap();
    let before = words(3, n);
    let a = region().from_slice(&before).unwrap();
    bench.must("read_then_write", config(), (&a, STEP));
    a.write(1, &[77]).unwrap();
    bench.must("read_then_write", config(), (&a, STEP));
    let mut expected = stepped(&before, 2);
    expected[1] = STEP + 77;
    compare(&a.to_vec().unwrap(), &expected).unwrap();
    bench.must("copy", config(), (&a, &zeros));
    compare(&zeros.to_vec().unwrap(), &expected).unwrap();
    assert!(gpu.registered().is_empty(), "no host memory has a part in it");
    let fixed = region().read_only().from_vec(expected.clone()).unwrap();
    compare(&fixed.to_vec().unwrap(), &expected).unwrap();

    let error = bench
        .vm
        .region::<u32>()
        .name("nowhere")
        .home_on_gpu(7)
        .zeroed(5)
        .unwrap_err();
    let no_peer = matches!(
        &error,
        Error::Gpu {
            source: GpuError::NoPeer { ordinal: 7, .. },
            ..
        }
    );
    assert!(no_peer && error.to_string().contains("`nowhere`"), "{error}");
    let file = tempfile::NamedTempFile::new().unwrap();
    refused(bench.vm.region::<u32>().home_on_gpu(NEIGHBOUR).map_file(file.path()));
    bench
        .vm
        .region::<u32>()
        .home_on_gpu(NEIGHBOUR)
        .zeroed(0)
        .unwrap()
        .close()
        .unwrap();
    zeros.close().unwrap();
    a.close().unwrap();

    // When both GPUs are gone, so is the home.
    gpu.lose();
    assert!(matches!(fixed.read_home(), Err(Error::GpuLost { .. })));
    fixed.close().unwrap();
}

#[test]
fn only_the_direct_transport_reaches_a_neighbour() {
    let vm = simulated_soft(4).build().unwrap();
    says(
        &refused(vm.region::<u32>().name("far").home_on_gpu(1).zeroed(5)),
        &["`far`", "direct transport"],
    );
}

#[test]
fn large_pages_are_filled_by_many_warps() {
    for page in [32u64 << 10, 64 << 10, 2 << 20] {
        let settings = direct(1)
            .placement(Placement::Fetch)
            .page_size(page)
            .frame_memory(3 * page)
            .device_memory(3 * page + (64 << 20));
        let bench = Bench::new(settings, BASIC);
        let n = 7 * page / 4 - 5;
        let before = words(page, n);
        let a = bench.vm.region::<u32>().from_slice(&before).unwrap();
        // Everybody waits for the first page at once, then for the others.
        bench.must("read_then_write", LaunchConfig::new(8, 256), (&a, STEP));
        compare(&a.to_vec().unwrap(), &stepped(&before, 1))
            .unwrap_or_else(|wrong| panic!("pages of {page} bytes: {wrong}"));
        assert!(bench.vm.stats().unwrap().evictions > 0);
    }
}

#[test]
fn kernels_killed_while_they_fill_large_pages_leave_a_sound_memory() {
    // A kernel that runs on an NVIDIA GPU cannot be stopped where it stands.
    let page = 64u64 << 10;
    let settings = simulated(1)
        .placement(Placement::Fetch)
        .transport(Transport::Direct)
        .page_size(page);
    let bench = Bench::new(settings.frame_memory(4 * page), BASIC);
    let n = 40 * page / 4;
    let a = bench.vm.region::<u32>().zeroed(n).unwrap();
    let (mut low, mut high) = (0, 0);
    for round in 0..120u64 {
        let launch = bench.launch("write_by", LaunchConfig::new(4, 64), (&a, 2u32, 1u32));
        std::thread::sleep(Duration::from_micros(round % 40 * 50));
        launch.kill();
        high += 1;
        if launch.sync().is_ok() {
            low += 1;
        }
        if round % 20 == 19 {
            let found = a.to_vec().unwrap();
            let wrong = found.iter().position(|v| !(low..=high).contains(v));
            assert_eq!(wrong, None, "round {round}: not between {low} and {high}");
        }
    }
    assert!(low < high, "no launch was killed before its end");
}

fn programs<T: Element>(test: &str, page: u64, first: u64, count: u64) {
    for seed in seeds(first, count) {
        let mut rng = rng(seed);
        let shape = ProgramShape {
            direct: true,
            ..ProgramShape::random(&mut rng, page, size_of::<T>() as u64)
        };
        if let Err(wrong) = run::<T>(&mut rng, &shape, &CompileOptions::default()) {
            give_up("direct", test, seed, &shape, &wrong);
        }
    }
}

#[test]
fn random_programs_come_to_what_a_plain_array_comes_to() {
    let test = "random_programs_come_to_what_a_plain_array_comes_to";
    programs::<u8>(test, 4 << 10, 20_000, 5);
    programs::<u32>(test, 4 << 10, 21_000, 8);
    programs::<[u64; 4]>(test, 4 << 10, 22_000, 5);
    programs::<u64>(test, 64 << 10, 23_000, 4);
    programs::<u32>(test, 2 << 20, 24_000, 3);
}

#[test]
fn many_interleavings_come_to_what_a_plain_array_comes_to() {
    for seed in seeds(500, 30) {
        let shape = ProgramShape {
            direct: true,
            ..tiny(seed, 1 + seed % 3)
        };
        if let Err(wrong) = run::<u32>(&mut rng(seed), &shape, &CompileOptions::default()) {
            let test = "many_interleavings_come_to_what_a_plain_array_comes_to";
            give_up("direct", test, seed, &shape, &wrong);
        }
    }
}
