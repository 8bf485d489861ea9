//! A region with frames of its own: its pages are fetched once and never leave, they take nothing from the others'
//! frames, and what kernels write reaches the home all the same.

use std::time::Duration;

use crate::common::{
    Adjust, BASIC, Bench, Kernels, PAGE, PAGE_WORDS, compare, config, refused, says, simulated, small, with_causes,
};
use crate::program::{ProgramShape, give_up, rng, run, seeds, tiny};
use gpuvm::{CompileOptions, Error, GpuError, LaunchConfig, Region, Transport, VmBuilder};

/// Over the queues and without.
fn transports() -> [VmBuilder; 2] {
    [small(4), small(4).transport(Transport::Direct)]
}

fn kept(bench: &Bench, pages: u64) -> Region<u32> {
    let n = pages * PAGE_WORDS - 7;
    let region = bench.vm.region::<u32>().name("kept").never_evicted();
    region.from_iter(0..n as u32).unwrap()
}

#[test]
fn every_page_is_fetched_once_and_stays() {
    for settings in transports() {
        let bench = Bench::new(settings, BASIC);
        let a = kept(&bench, 40);
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        for round in 1..=3u64 {
            let before = bench.vm.stats().unwrap();
            bench.must("sum", config(), (&a, &sink));
            assert_eq!(sink.to_vec().unwrap(), [round * (0..a.len()).sum::<u64>()]);
            let fetched = bench.vm.stats().unwrap().difference(&before).pages_fetched;
            assert_eq!(fetched, if round == 1 { 40 } else { 0 }, "round {round}");
            // Others use all the frames there are.
            bench.sweep(20);
        }
        a.close().unwrap();
        bench.no_violations();
    }
}

const RESIDENT: Kernels = Kernels {
    name: "resident.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>

// Sums by the pointer where there is one: `ways` counts lanes with and without.
__global__ void sum_resident(gpuvm::array<const unsigned> a, unsigned long long* sum, unsigned* ways) {
    const unsigned* all = a.resident();
    atomicAdd(&ways[all ? 1 : 0], 1u);
    unsigned long long own = 0, lanes = gridDim.x * 1ull * blockDim.x;
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size(); i += lanes) own += all ? all[i] : a[i];
    atomicAdd(sum, own);
}
__global__ void add_to_all(gpuvm::array<unsigned> a, unsigned more) {
    for (auto i = blockIdx.x * 1ull * blockDim.x + threadIdx.x; i < a.size(); i += gridDim.x * 1ull * blockDim.x) a[i] += more;
}
",
};

#[test]
fn what_is_resident_is_read_by_a_pointer() {
    for settings in transports() {
        let bench = Bench::new(settings, RESIDENT);
        let lanes = 2 * 64;
        let read = |a: &Region<u32>| {
            let (sum, ways) = (bench.vm.buffer::<u64>(1).unwrap(), bench.vm.buffer::<u32>(2).unwrap());
            bench.must("sum_resident", config(), (a, &sum, &ways));
            (sum.to_vec().unwrap()[0], ways.to_vec().unwrap())
        };
        let a = kept(&bench, 12);
        let sum: u64 = (0..a.len()).sum();
        // A lane that begins late may find all of it there.
        let (found, ways) = read(&a);
        assert_eq!((found, ways[0] + ways[1]), (sum, lanes));
        assert!(ways[0] > 0, "{ways:?}");
        assert_eq!(read(&a), (sum, vec![0, lanes]));
        // What other kernels and the host wrote is seen.
        bench.must("add_to_all", config(), (&a, 3u32));
        assert_eq!(read(&a), (sum + 3 * a.len(), vec![0, lanes]));
        a.write(5, &[1005]).unwrap();
        let (found, ways) = read(&a);
        assert_eq!((found, ways[0] + ways[1]), (sum + 3 * a.len() + 997, lanes));
        // Pages that may leave have no pointer.
        let b = bench.vm.region::<u32>().from_iter(0..2 * PAGE_WORDS as u32).unwrap();
        for _ in 0..2 {
            assert_eq!(read(&b), ((0..b.len()).sum(), vec![lanes, 0]));
        }
    }
}

#[test]
fn all_ways_to_write_reach_the_home() {
    for settings in transports() {
        let bench = Bench::new(settings.frame_memory(80 * PAGE), BASIC);
        let a = kept(&bench, 10);
        let mut expected: Vec<u32> = (0..a.len() as u32).collect();
        for way in 0..5 {
            bench.must("write_by", LaunchConfig::new(1, 64), (&a, way, 1000u32));
            for (element, i) in expected.iter_mut().zip(0..) {
                *element = if way == 1 || way == 2 {
                    *element + 1000
                } else {
                    i + 1000
                };
            }
            bench.sweep(100);
            match way % 3 {
                0 => a.flush().unwrap(),
                1 => a.flush_beside().unwrap(),
                _ => {}
            }
            compare(&a.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("way {way}: {wrong}"));
            // The host's writes are seen as well.
            a.write(5, &[way]).unwrap();
            expected[5] = way;
            let wrong = bench.vm.buffer::<u64>(1).unwrap();
            bench.must("check", LaunchConfig::new(1, 64), (&a, 1000u32, way % 3, &wrong));
            if !matches!(way, 1 | 2) {
                assert_eq!(wrong.to_vec().unwrap(), [1], "the host's element, and no other");
            }
        }
        assert!(bench.vm.stats().unwrap().pages_written_back >= 10);
        bench.no_violations();
    }
}

#[test]
fn dropped_or_lent_it_is_written_home() {
    for settings in transports() {
        let bench = Bench::new(settings, BASIC);
        let file = crate::common::file_to_map();
        std::fs::write(file.path(), vec![0; 3 * PAGE as usize]).unwrap();
        let region = bench.vm.region::<u32>().never_evicted();
        let a = region.map_file_mut(file.path()).unwrap();
        bench.must("fill", config(), (&a, 9u32));
        drop(a);
        let found = std::fs::read(file.path()).unwrap();
        let expected: Vec<u8> = (9..9 + 3 * PAGE_WORDS as u32).flat_map(u32::to_ne_bytes).collect();
        compare(&found, &expected).unwrap();
    }
}

#[test]
fn a_killed_launch_loses_none_of_its_writes() {
    // A kernel that runs on an NVIDIA GPU cannot be stopped where it stands.
    for settings in [simulated(4), simulated(4).transport(Transport::Direct)] {
        let bench = Bench::new(settings, BASIC);
        let a = kept(&bench, 20);
        let b = bench.vm.region::<u32>().zeroed(20 * PAGE_WORDS).unwrap();
        let turns = bench.vm.buffer::<u32>(1).unwrap();
        for round in 1..=4u32 {
            bench.must("read_then_write", config(), (&a, 1u32));
            let endless = bench.launch("until_stopped", config(), (&b, &turns));
            std::thread::sleep(Duration::from_millis(5));
            endless.kill();
            refused(endless.sync());
            bench.sweep(20);
            let expected: Vec<u32> = (0..a.len() as u32).map(|i| i + round).collect();
            compare(&a.to_vec().unwrap(), &expected).unwrap();
        }
    }
}

#[test]
fn its_frames_are_taken_from_the_gpu_and_come_back() {
    for settings in [simulated(4), simulated(4).transport(Transport::Direct)] {
        let bench = Bench::new(settings.device_memory(40 << 20), BASIC);
        let free = || match bench.vm.buffer::<u8>(1 << 40) {
            Err(Error::Gpu {
                source: GpuError::OutOfMemory { free, .. },
                ..
            }) => free,
            other => panic!("{:?}", other.map(|_| ())),
        };
        let before = free();
        let a = kept(&bench, 1000);
        let took = before - free();
        assert!((1000 * PAGE..1000 * PAGE + (16 << 10)).contains(&took), "{took} bytes");
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", config(), (&a, &sink));
        a.close().unwrap();
        drop(sink);
        assert_eq!(free(), before);
        let error = bench.vm.region::<u32>().name("much").never_evicted().zeroed(16 << 20);
        says(
            &with_causes(&error.expect_err("64 MiB of frames in 40")),
            &["out of GPU memory", "frames"],
        );
        assert_eq!(free(), before);
        // Of no page.
        let empty = bench.vm.region::<u32>().never_evicted().zeroed(0).unwrap();
        let sink = bench.vm.buffer::<u64>(1).unwrap();
        bench.must("sum", config(), (&empty, &sink));
        empty.close().unwrap();
    }
}

#[test]
fn many_interleavings_come_to_what_a_plain_array_comes_to() {
    for seed in seeds(700, 30) {
        let shape = ProgramShape {
            direct: seed % 2 == 0,
            never_evicted: true,
            ..tiny(seed, 1 + seed % 3)
        };
        if let Err(wrong) = run::<u32>(&mut rng(seed), &shape, &CompileOptions::default()) {
            let test = "many_interleavings_come_to_what_a_plain_array_comes_to";
            give_up("never_evicted", test, seed, &shape, &wrong);
        }
    }
}
