//! When GPU memory is short: who stays and who gives way, as the program says, and no word is lost meanwhile.

use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    BASIC, Bench, HOLDING, PAGE, PAGE_WORDS, compare, refused, scaled, simulated, simulated_gpu, small, transports,
    words,
};
use gpuvm::{ElasticBuffer, LaunchConfig, Placement, Region, Vm};

fn region(bench: &Bench, name: &str, pages: u64, priority: i32) -> Region<u32> {
    let data = words(pages, pages * PAGE_WORDS);
    let region = bench.vm.region::<u32>().name(name).priority(priority);
    region.from_slice(&data).unwrap()
}

/// Reads all of it: how many pages had to come.
fn read(bench: &Bench, region: &Region<u32>) -> u64 {
    let before = bench.vm.stats().unwrap();
    let sink = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("sum", LaunchConfig::new(2, 64), (region, &sink));
    let pages = region.len() / PAGE_WORDS;
    let sum: u64 = words(pages, region.len()).iter().map(|&word| u64::from(word)).sum();
    assert_eq!(sink.to_vec().unwrap(), [sum]);
    bench.no_violations();
    bench.vm.stats().unwrap().difference(&before).pages_fetched
}

/// Pages of `of` that have left after two passes over `stream`.
fn lost(bench: &Bench, of: &Region<u32>, stream: &Region<u32>) -> u64 {
    read(bench, of);
    read(bench, stream);
    read(bench, stream);
    read(bench, of)
}

#[test]
fn pages_of_low_priority_leave_first() {
    for settings in transports(70).map(|builder| builder.placement(Placement::Fetch)) {
        let bench = Bench::new(settings, BASIC);
        let kept = region(&bench, "kept", 24, 0);
        let stream = region(&bench, "stream", 500, 0);
        let without = lost(&bench, &kept, &stream);
        assert!(
            without > 12,
            "{without} pages left without a priority: this test shows nothing"
        );
        // Whichever process is named, and whenever.
        stream.set_priority(-3).unwrap();
        assert_eq!(lost(&bench, &kept, &stream), 0);
        stream.set_priority(7).unwrap();
        kept.set_priority(i32::MAX).unwrap();
        assert_eq!((lost(&bench, &kept, &stream), kept.priority()), (0, i32::MAX));
        kept.set_priority(7).unwrap();
        assert!(lost(&bench, &kept, &stream) > 12);
    }
}

#[test]
fn priorities_are_told_apart_one_by_one() {
    for settings in transports(90).map(|builder| builder.placement(Placement::Fetch)) {
        let bench = Bench::new(settings, BASIC);
        let (low, middle, high) = (
            region(&bench, "low", 20, 0),
            region(&bench, "middle", 21, 1),
            region(&bench, "high", 22, 2),
        );
        let stream = region(&bench, "stream", 500, 1);
        for kept in [&low, &middle, &high] {
            read(&bench, kept);
        }
        read(&bench, &stream);
        read(&bench, &stream);
        // The stream has taken what was of low priority and, since that is not enough, of its own.
        assert_eq!(read(&bench, &high), 0);
        assert!(read(&bench, &low) > 10);
        assert!(lost(&bench, &middle, &stream) > 10);
        // The lowest one that is there counts, and regions come and go.
        drop((low, middle));
        let late = region(&bench, "late", 23, 2);
        // What was found when pages of rank 1 had to leave holds for a while.
        for _ in 0..6 {
            read(&bench, &stream);
        }
        assert_eq!((lost(&bench, &late, &stream), lost(&bench, &high, &stream)), (0, 0));
    }
}

#[test]
fn a_single_region_of_high_priority_uses_its_frames_as_any_other() {
    for settings in transports(16).map(|builder| builder.placement(Placement::Fetch)) {
        let bench = Bench::new(settings, BASIC);
        let other = region(&bench, "other", 1, 0);
        let only = region(&bench, "only", 150, 5);
        for _ in 0..3 {
            assert!(read(&bench, &only) >= 150 - 16);
        }
        read(&bench, &other);
    }
}

/// Waits until the frames are as `is` says.
fn until(vm: &Vm, what: &str, mut is: impl FnMut(u64) -> bool) {
    let limit = Instant::now() + scaled(Duration::from_secs(30));
    while !is(vm.frames() * PAGE) {
        assert!(Instant::now() < limit, "{what}: {} bytes of frames", vm.frames() * PAGE);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn frames_follow_what_is_free_of_the_memory() {
    let handle = 1u64 << 16;
    let gpu = simulated_gpu(4).memory(64 * handle).workers(2);
    let builder = simulated(4)
        .placement(Placement::Fetch)
        .gpu(gpu)
        .frame_memory(8 * handle)
        .frame_capacity(24 * handle)
        .frame_minimum(2 * handle);
    let bench = Bench::new(builder.frames_leave_free(16 * handle), HOLDING);
    let vm = &bench.vm;
    let data = words(2, 40 * handle / 4);
    let region = vm.region::<u32>().from_slice(&data).unwrap();
    let sum = vm.buffer::<u64>(1).unwrap();
    let free = || vm.device().own_memory().unwrap().free;
    let mut rounds = 0;
    let mut churn = || {
        bench.must("sum", LaunchConfig::new(1, 64), (&region, &sum));
        rounds += 1;
    };
    // Pages leave their frames, and memory is free.
    until(vm, "they do not grow", |bytes| {
        churn();
        bytes == 24 * handle
    });
    // Somebody else uses it, whom nothing asked.
    let others = vm.device().allocate(free() - 4 * handle, 256).unwrap();
    until(vm, "they do not give way", |_| free() >= 16 * handle);
    let left = vm.frames() * PAGE;
    assert!((2 * handle..=12 * handle).contains(&left), "{left}");
    let more = vm.device().allocate(free() - 2 * handle, 256).unwrap();
    until(vm, "they do not go down to their minimum", |bytes| bytes == 2 * handle);
    drop((others, more));
    until(vm, "they do not come back", |bytes| {
        churn();
        bytes == 24 * handle
    });
    compare(&region.to_vec().unwrap(), &data).unwrap();
    let fixed = small(8).placement(Placement::Fetch).frames_leave_free(1).build();
    assert!(refused(fixed).contains("frame_capacity"));
}

/// An element of a buffer.
fn element(buffer: usize, index: u64) -> u32 {
    (buffer as u32 + 1).wrapping_mul(0x9e37_79b9) ^ (index as u32).wrapping_mul(0x85eb_ca6b)
}

/// A buffer whose elements are known.
struct Known {
    number: usize,
    buffer: ElasticBuffer<u32>,
}

impl Known {
    fn check(&self, rng: &mut ChaCha8Rng) {
        let length = self.buffer.len();
        let count = length.min(64);
        let first = rng.random_range(0..=length - count);
        let mut found = vec![0; count as usize];
        self.buffer.read(first, &mut found).unwrap();
        for (index, found) in (first..).zip(found) {
            assert_eq!(found, element(self.number, index), "buffer {} at {index}", self.number);
        }
    }

    /// Has this many elements from now on; what it cannot have it does without. Returns whether it could.
    fn resize(&self, length: u64) -> bool {
        let before = self.buffer.len();
        if length <= before {
            self.buffer.shrink(before - length).unwrap();
            return true;
        }
        match self.buffer.ensure(length) {
            Ok(_) => {
                let values: Vec<u32> = (before..length).map(|index| element(self.number, index)).collect();
                self.buffer.write(before, &values).unwrap();
                true
            }
            Err(error) => {
                assert!(error.is_out_of_memory(), "{error}");
                assert_eq!(self.buffer.len(), before);
                false
            }
        }
    }
}

#[test]
fn ten_thousand_times_buffers_and_frames_grow_and_shrink() {
    let handle = 1u64 << 16;
    let gpu = simulated_gpu(4).memory(52 * handle).workers(2);
    let builder = simulated(4)
        .placement(Placement::Fetch)
        .gpu(gpu)
        .frame_memory(8 * handle);
    let bench = Bench::new(builder.frame_capacity(24 * handle).frame_minimum(2 * handle), HOLDING);
    let vm = &bench.vm;
    let mut rng = ChaCha8Rng::seed_from_u64(20);
    let data = words(6, 12 * handle / 4);
    let paged = vm.region::<u32>().from_slice(&data).unwrap();
    let sum = vm.buffer::<u64>(1).unwrap();
    let total: u64 = data.iter().map(|&word| u64::from(word)).sum();
    // Some larger than handles, some that share them.
    let most = [1000u64, 3000, 20_000, 100_000, 300_000, 500_000];
    let buffers = most.iter().enumerate().map(|(number, &most)| Known {
        number,
        buffer: vm
            .elastic::<u32>(most)
            .name(format!("buffer {number}"))
            .build()
            .unwrap(),
    });
    let buffers: Vec<Known> = buffers.collect();
    let (mut refused, mut resized) = (0, 0);
    for step in 0..10_000 {
        let known = &buffers[rng.random_range(0..buffers.len())];
        match rng.random_range(0..40u32) {
            0 => {
                let wanted = rng.random_range(1..=24) * handle;
                resized += u32::from(vm.resize_frames(wanted).unwrap().bytes == wanted);
            }
            1 => known.buffer.set_priority(rng.random_range(-2..=2)),
            2 => vm.set_frame_priority(rng.random_range(-2..=2)),
            3 => drop(vm.trim(rng.random_range(1..=8) * handle)),
            4..=8 => known.check(&mut rng),
            _ => refused += u32::from(!known.resize(rng.random_range(0..=most[known.number]))),
        }
        if step % 500 == 0 {
            bench.must("sum", LaunchConfig::new(2, 64), (&paged, &sum));
            assert_eq!(sum.to_vec().unwrap(), [total]);
            sum.write(&[0]).unwrap();
        }
    }
    // Both happened: memory was short, and was not.
    assert!(
        refused > 10 && refused < 9_000 && resized > 10,
        "{refused} refused, {resized} resized"
    );
    for known in &buffers {
        let expected: Vec<u32> = (0..known.buffer.len())
            .map(|index| element(known.number, index))
            .collect();
        compare(&known.buffer.to_vec().unwrap(), &expected).unwrap();
    }
    compare(&paged.to_vec().unwrap(), &data).unwrap();
    bench.no_violations();
}
