//! Memory of several neighbours at once, and GPUs that all borrow of each other. `GPUVM_TEST_GPUS=cuda:0,cuda:1` takes those in place of
//! simulated ones, `GPUVM_TEST_COUNTS=4,8,16` this many simulated ones.

use std::time::Duration;

use crate::common::{
    BASIC, Bench, PAGE, PAGE_WORDS, STEP, compare, config, counts, named_gpus, scaled, simulated_gpu, stepped, words,
};
use crate::victims::{COUNT, FRAMES, LITTLE};
use gpuvm::{Placement, Transport, Vm, VmBuilder};

/// GPUs of one virtual memory, each with few frames, and the neighbours of each.
fn among(count: usize) -> (VmBuilder, Vec<u32>) {
    let simulated = |_| {
        simulated_gpu(FRAMES + 600)
            .workers(1)
            .neighbours(count as u32 - 1)
            .into()
    };
    let (gpus, neighbours) = match named_gpus() {
        Some(gpus) => (gpus, 0..count as u32),
        None => ((0..count).map(simulated).collect(), 1..count as u32),
    };
    let builder = Vm::builder()
        .placement(Placement::Fetch)
        .gpus(gpus)
        .page_size(PAGE)
        .transport(Transport::Direct)
        .frame_memory(FRAMES * PAGE)
        .borrowed_chunk(LITTLE)
        .wait_limit(scaled(Duration::from_secs(10)))
        .launch_deadline(scaled(Duration::from_secs(60)));
    (builder, neighbours.collect())
}

#[test]
fn several_neighbours_lend_and_each_takes_its_own_back() {
    for count in counts(&[3]) {
        // What is absent has room with all of them together.
        let others = (count as u64 - 1).max(2);
        let each = COUNT.div_ceil(PAGE_WORDS).div_ceil(others) * LITTLE;
        let simulated = simulated_gpu(FRAMES + 600).neighbours(others as u32);
        let builder = Vm::builder()
            .placement(Placement::Fetch)
            .gpu(simulated)
            .transport(Transport::Direct)
            .frame_memory(FRAMES * PAGE)
            .borrowed_chunk(LITTLE)
            .launch_deadline(scaled(Duration::from_secs(60)));
        let lend = |builder: VmBuilder, gpu| builder.borrow_from(gpu, each);
        let bench = Bench::new((1..=others as u32).fold(builder, lend), BASIC);
        let expected = words(8, COUNT);
        let region = bench.vm.region::<u32>().from_slice(&expected).unwrap();
        bench.must("read_then_write", config(), (&region, STEP));
        for (round, lender) in (2..).zip(1..others as u32) {
            assert_eq!(bench.vm.give_back_to(lender, u64::MAX / 2).unwrap(), each);
            assert_eq!(bench.vm.borrowed_bytes(), (others - u64::from(lender)) * each);
            assert_eq!(
                bench.vm.give_back_to(others as u32 + 1, LITTLE).unwrap(),
                0,
                "it lends nothing"
            );
            bench.must("read_then_write", config(), (&region, STEP));
            compare(&region.to_vec().unwrap(), &stepped(&expected, round)).unwrap();
        }
        let before = bench.vm.stats().unwrap();
        bench.must("read_then_write", config(), (&region, STEP));
        let stats = bench.vm.stats().unwrap().difference(&before);
        assert!(stats.victims_fetched > 0 && stats.victims_lost == 0, "{stats:?}");
        compare(&region.to_vec().unwrap(), &stepped(&expected, others as u32 + 1)).unwrap();
    }
}

#[test]
fn every_gpu_borrows_of_every_other_at_once() {
    for count in counts(&[2, 3]) {
        let (builder, neighbours) = among(count);
        let each = (60 / (count as u64 - 1).max(1)) * LITTLE;
        let lend = |builder: VmBuilder, gpu: &u32| builder.borrow_from(*gpu, each);
        let vm = neighbours.iter().fold(builder, lend).build().unwrap();
        let kernels = vm.gpus().iter().map(|gpu| {
            let kernels = gpu.kernels(BASIC.name, BASIC.text, ["read_then_write", "sum"], &Default::default());
            kernels.unwrap()
        });
        let kernels: Vec<[gpuvm::Kernel; 2]> = kernels.collect();
        let (read, written) = (words(41, COUNT), words(42, COUNT));
        let shared = vm.region::<u32>().read_only().from_slice(&read).unwrap();
        let forwarded = vm.region::<u32>().from_slice(&written).unwrap();
        let total: u64 = read.iter().map(|word| u64::from(*word)).sum();
        let mut round = 0;
        let mut all_do = |at: Option<usize>| {
            // All GPUs read side by side, then each writes what the one before has written.
            std::thread::scope(|scope| {
                for (place, [_, sum]) in kernels.iter().enumerate() {
                    let (gpu, shared) = (&vm.gpus()[place], &shared);
                    scope.spawn(move || {
                        let out = gpu.buffer::<u64>(1).unwrap();
                        sum.launch(config(), (shared, &out)).unwrap().sync().unwrap();
                        assert_eq!(out.to_vec().unwrap(), [total], "GPU {place}");
                    });
                }
                if let Some(lender) = at {
                    let lent = vm.gpus()[lender].give_back_borrowed(u64::MAX / 2).unwrap();
                    vm.gpus()[lender].scribble_given_back(0xdd).unwrap();
                    assert!(lent > 0);
                }
            });
            for [add, _] in &kernels {
                drop(add.launch(config(), (&forwarded, STEP)).unwrap());
                round += 1;
            }
            compare(&forwarded.to_vec().unwrap(), &stepped(&written, round)).unwrap();
        };
        (0..3).for_each(|_| all_do(None));
        for gpu in vm.gpus() {
            let stats = gpu.stats().unwrap();
            assert!(stats.victims_fetched > 50 && stats.victims_lost == 0, "{stats:?}");
            assert_eq!(gpu.borrowed_bytes(), each * (count as u64 - 1));
        }
        // One has its memory taken away while all read on.
        all_do(Some(count - 1));
        all_do(None);
        assert_eq!(vm.gpus()[count - 1].borrowed_bytes(), 0);
    }
}
