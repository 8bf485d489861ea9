//! Tiered buffers: one pointer, whose chunks lie on the GPU or in host memory. Wherever they lie and whenever they move, are evicted or cannot
//! move, kernels and the host find in each what was written there.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{Adjust, Bench, Kernels, config, refused, says, simulated, simulated_gpu, small, with_causes};
use crate::elastic::{hog, until};
use crate::mock_gpu::MockGpu;
use crate::program::seeds;
use gpuvm::{
    Arg, Buffer, ElasticBuffer, ElementType, Error, ErrorKind, Launch, LaunchConfig, TierPlace, TieredBuffer, Vm,
};

const KERNELS: Kernels = Kernels {
    name: "elastic.cu",
    text: include_str!("../kernels/elastic.cu"),
};

fn bench() -> Bench {
    // Two launches can run at a time.
    Bench::new(small(4).workers(2), KERNELS)
}

/// One whose GPU has this many handles left, and who has the others.
fn bench_of(handles: u64) -> (Bench, ElasticBuffer<u32>) {
    let gpu = simulated_gpu(4).memory((handles << 16) + (4 << 20)).workers(2);
    let bench = Bench::new(simulated(4).gpu(gpu), KERNELS);
    let all = hog(&bench.vm).len();
    // It never grows: nothing is mapped ahead of it.
    let (length, mut kept) = (all - handles * chunk(&bench.vm), None);
    until("the memory", || {
        bench.vm.trim(u64::MAX);
        kept = bench.vm.elastic::<u32>(length).length(length).build().ok();
        kept.is_some()
    });
    (bench, kept.unwrap())
}

/// One over a GPU that fails when it is told to.
fn failing() -> (Arc<MockGpu>, Bench) {
    let gpu = MockGpu::new(None);
    let builder = crate::common::direct(4).gpu(Arc::clone(&gpu) as Arc<dyn gpuvm_gpu::Gpu>);
    (gpu, Bench::new(builder, KERNELS))
}

/// Elements of a chunk.
fn chunk(vm: &Vm) -> u64 {
    vm.elastic_stats().handles.handle_bytes / 4
}

/// Which chunks are on the GPU: `G` where one is, `h` in host memory.
fn places(buffer: &TieredBuffer<u32>) -> String {
    let chunks = (0..buffer.len()).step_by(buffer.chunk_bytes() as usize / 4);
    let letter = |first| match buffer.place_of(first).unwrap() {
        TierPlace::Gpu => 'G',
        _ => 'h',
    };
    chunks.map(letter).collect()
}

/// Whether kernel and host find `base` and its index in each element.
fn check(bench: &Bench, buffer: &TieredBuffer<u32>, base: u32) {
    let wrong = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("count_wrong", config(), (buffer, 0u64, buffer.len(), base, &wrong));
    assert_eq!(wrong.to_vec().unwrap()[0], 0);
    let found = buffer.to_vec().unwrap();
    assert!((0..).zip(&found).all(|(i, word)| *word == base + i));
}

fn filled(bench: &Bench, buffer: &TieredBuffer<u32>, base: u32) {
    bench.must("fill", config(), (buffer, 0u64, buffer.len(), base));
}

/// A kernel that adds to a buffer's first elements until it is told to stop.
struct Churning {
    launch: Launch,
    words: Buffer<u32>,
    vm: Vm,
}

impl Churning {
    fn begin(bench: &Bench, over: &TieredBuffer<u32>) -> Self {
        let (vm, words) = (bench.vm.clone(), bench.vm.buffer::<u32>(2).unwrap());
        // SAFETY: the words live as long as this, which waits for the launch.
        let word = |i: u64| unsafe { Arg::address(ElementType::U32, words.addr() + 4 * i) };
        let (stream, shape) = (vm.stream().unwrap(), LaunchConfig::new(1, 64));
        let churn = bench.kernel("churn");
        let launch = churn.launch_on(&stream, shape, (over, 100u64, word(0), word(1)));
        let launch = launch.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        Self { launch, words, vm }
    }

    fn end(self) {
        self.vm.device().write(self.words.addr(), &[1, 0, 0, 0]).unwrap();
        self.launch.sync().unwrap();
    }
}

#[test]
fn it_is_zero_at_first_and_keeps_its_address_and_values_when_chunks_move() {
    let bench = bench();
    let size = chunk(&bench.vm);
    // Memory that was used before is not zero.
    let used = bench.vm.elastic::<u32>(8 * size).length(8 * size).build().unwrap();
    used.write(0, &vec![7; 8 * size as usize]).unwrap();
    drop(used);
    let tiered = bench.vm.tiered::<u32>(4 * size + 1).budget(3 * 4 * size);
    let buffer = tiered.name("weights").build().unwrap();
    assert_eq!(
        (buffer.name(), buffer.chunk_bytes(), buffer.resident_bytes()),
        ("weights", 4 * size, 12 * size)
    );
    assert_eq!(places(&buffer), "GGGhh");
    assert!(buffer.to_vec().unwrap().iter().all(|word| *word == 0));
    filled(&bench, &buffer, 5);
    let at = buffer.addr();
    // A range moves with all chunks that hold some of it.
    let moved = buffer.move_to(size - 1..size + 1, TierPlace::Host).unwrap();
    assert_eq!((moved.came, moved.left, places(&buffer).as_str()), (0, 2, "hhGhh"));
    check(&bench, &buffer, 5);
    let moved = buffer.move_to(4 * size..4 * size + 1, TierPlace::Gpu).unwrap();
    assert_eq!((moved.came, moved.left, places(&buffer).as_str()), (1, 0, "hhGhG"));
    assert_eq!(buffer.move_to(3..3, TierPlace::Gpu).unwrap().came, 0);
    check(&bench, &buffer, 5);
    buffer.write_from(2 * size - 2, &[1, 2, 3]).unwrap();
    let mut some = [0; 4];
    buffer.read_from(2 * size - 2, &mut some).unwrap();
    assert_eq!((some, buffer.addr()), ([1, 2, 3, 6 + 2 * size as u32], at));
}

#[test]
fn a_budget_is_kept_and_what_came_longest_ago_leaves() {
    let bench = bench();
    let size = chunk(&bench.vm);
    let bytes = 4 * size;
    let buffer = bench.vm.tiered_buffer::<u32>(6 * size).unwrap();
    assert_eq!((places(&buffer).as_str(), buffer.budget()), ("GGGGGG", u64::MAX));
    filled(&bench, &buffer, 9);
    // Of those that came together the last ones leave.
    let moved = buffer.set_budget(3 * bytes + 5).unwrap();
    assert_eq!((moved.left, places(&buffer).as_str()), (3, "GGGhhh"));
    let moved = buffer.move_to(4 * size..5 * size, TierPlace::Gpu).unwrap();
    assert_eq!((moved.came, moved.left, places(&buffer).as_str()), (1, 1, "GGhhGh"));
    // To want what is there is to keep it.
    buffer.move_to(0..size, TierPlace::Gpu).unwrap();
    buffer.move_to(2 * size..4 * size, TierPlace::Gpu).unwrap();
    assert_eq!(places(&buffer), "GhGGhh");
    check(&bench, &buffer, 9);
    let error = buffer.move_to(0..4 * size, TierPlace::Gpu).unwrap_err();
    assert!(matches!(error, Error::Setting { .. }), "{error}");
    says(&error, &["4", "budget of `u32` is 3 chunks"]);
    let moved = buffer.set_budget(5 * bytes).unwrap();
    assert_eq!((moved.came, places(&buffer).as_str()), (2, "GGGGGh"));
    assert_eq!(buffer.set_budget(0).unwrap().left, 5);
    assert_eq!((buffer.resident_bytes(), buffer.budget()), (0, 0));
    check(&bench, &buffer, 9);
    // The handles are there for others.
    assert!(bench.vm.elastic_stats().handles.free >= 6);
}

#[test]
fn who_is_short_of_memory_has_chunks_of_low_priority_leave() {
    let (bench, _all) = bench_of(16);
    let (vm, size) = (&bench.vm, chunk(&bench.vm));
    let make = |name: &str, priority| {
        vm.tiered::<u32>(6 * size)
            .name(name)
            .priority(priority)
            .build()
            .unwrap()
    };
    let (dear, cheap) = (make("dear", 2), make("cheap", 1));
    for buffer in [&dear, &cheap] {
        assert_eq!(places(buffer), "GGGGGG");
        filled(&bench, buffer, 3);
    }
    let hog = vm.elastic::<u32>(64 * size).name("needs").tag("needs").build().unwrap();
    let cheap_left = || places(&cheap) == "hhhhhh";
    while !cheap_left() {
        hog.grow(size).unwrap();
        assert!(cheap_left() || places(&dear) == "GGGGGG");
    }
    // What a launch uses stays, and the error says who has it.
    let churning = Churning::begin(&bench, &dear);
    let error = loop {
        if let Err(error) = hog.grow(size) {
            break error;
        }
    };
    says(&error, &["tiered buffers named `dear` hold 384"]);
    churning.end();
    hog.grow(size).unwrap();
    assert_ne!(places(&dear), "GGGGGG");
    // A new one finds no memory on the GPU, and takes none from others.
    while hog.grow(size).is_ok() {}
    let late = vm.tiered_buffer::<u32>(2 * size).unwrap();
    assert_eq!(places(&late), "hh");
    let error = late.move_to(0..size, TierPlace::Gpu).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NotMoved {
                place: TierPlace::Gpu,
                ..
            }
        ) && error.is_out_of_memory()
    );
    says(
        &with_causes(&error),
        &[
            "cannot move 1 chunks of tiered buffer `u32`",
            "to the GPU, and none was moved",
            "tagged `needs` hold",
        ],
    );
    hog.shrink(hog.len()).unwrap();
    drop(hog);
    // They come back when they are moved.
    assert_eq!(cheap.set_budget(u64::MAX).unwrap().came, 6);
    late.move_to(0..size, TierPlace::Gpu).unwrap();
    assert_eq!((places(&cheap).as_str(), places(&late).as_str()), ("GGGGGG", "Gh"));
    check(&bench, &cheap, 3);
    // The kernel that churned added to the first ones.
    let found = dear.to_vec().unwrap();
    assert!((0..).zip(&found).skip(100).all(|(i, word)| *word == 3 + i));
}

#[test]
fn one_whose_address_was_told_is_not_evicted_by_others() {
    let (bench, _all) = bench_of(8);
    let size = chunk(&bench.vm);
    let buffer = bench.vm.tiered_buffer::<u32>(5 * size).unwrap();
    let at = buffer.addr();
    let hog = bench.vm.elastic_buffer::<u32>(64 * size).unwrap();
    while hog.grow(size).is_ok() {}
    assert_eq!(places(&buffer), "GGGGG");
    // SAFETY: the buffer lives until the kernel has ended.
    let address = unsafe { Arg::address(ElementType::U32, at) };
    bench.must("fill", config(), (address, 0u64, buffer.len(), 8u32));
    buffer.move_to(0..buffer.len(), TierPlace::Host).unwrap();
    hog.grow(size).unwrap();
    check(&bench, &buffer, 8);
}

/// Nothing else has memory to give: chunks come in the place of others of the same buffer.
#[test]
fn a_buffer_larger_than_the_gpu_swaps_its_own_chunks() {
    let (bench, _all) = bench_of(8);
    let (size, chunks) = (chunk(&bench.vm), 12);
    let buffer = bench.vm.tiered_buffer::<u32>(chunks * size).unwrap();
    filled(&bench, &buffer, 4);
    let first = places(&buffer).find('h').unwrap() as u64;
    assert!((4..chunks).contains(&first), "{}", places(&buffer));
    let moved = buffer.move_to(first * size..chunks * size, TierPlace::Gpu).unwrap();
    assert_eq!((moved.came, moved.left), (chunks - first, chunks - first));
    assert!(places(&buffer).ends_with(&"G".repeat((chunks - first) as usize)));
    check(&bench, &buffer, 4);
    // All of it has no room at once.
    let before = places(&buffer);
    let error = buffer.move_to(0..chunks * size, TierPlace::Gpu).unwrap_err();
    assert!(matches!(error, Error::NotMoved { .. }), "{error}");
    assert_eq!(places(&buffer), before);
    check(&bench, &buffer, 4);
}

#[test]
fn memory_that_cannot_be_had_in_the_middle_loses_nothing() {
    let (gpu, bench) = failing();
    let size = chunk(&bench.vm);
    let buffer = bench.vm.tiered_buffer::<u32>(40 * size).unwrap();
    filled(&bench, &buffer, 1);
    let all = "G".repeat(40);
    gpu.limit_host_pieces(17);
    let error = buffer.move_to(0..20 * size, TierPlace::Host).unwrap_err();
    assert!(matches!(
        error,
        Error::NotMoved {
            place: TierPlace::Host,
            chunks: 20,
            resident: 40,
            away: 0,
            ..
        }
    ));
    assert_eq!((error.kind(), places(&buffer)), (ErrorKind::OutOfMemory, all.clone()));
    says(
        &with_causes(&error),
        &["`u32`", "out of host memory: asked for 65536 bytes"],
    );
    assert!(matches!(buffer.set_budget(4 * 4 * size), Err(Error::NotMoved { .. })));
    assert_eq!((buffer.budget(), places(&buffer)), (u64::MAX, all));
    // What was had is there for a smaller move.
    buffer.move_to(3 * size..20 * size, TierPlace::Host).unwrap();
    check(&bench, &buffer, 1);
    gpu.limit_host_pieces(u64::MAX);
    // A buffer that cannot be made leaves nothing behind.
    let held = bench.vm.elastic_stats().handles.held;
    gpu.limit_host_pieces(2);
    assert!(bench.vm.tiered::<u32>(9 * size).budget(16 * size).build().is_err());
    gpu.limit_host_pieces(u64::MAX);
    assert_eq!(bench.vm.elastic_stats().handles.held, held);
    drop(buffer);
    assert_eq!(bench.vm.elastic_stats().handles.held, held - 23);
}

#[test]
fn a_driver_that_refuses_in_the_middle_loses_nothing() {
    let (gpu, bench) = failing();
    let size = chunk(&bench.vm);
    let buffer = bench.vm.tiered_buffer::<u32>(40 * size).unwrap();
    filled(&bench, &buffer, 2);
    let move_all = |place| buffer.move_to(0..40 * size, place);
    // The second of three copies.
    gpu.fail_copies_after(1);
    says(
        &with_causes(&move_all(TierPlace::Host).unwrap_err()),
        &["moving chunks of tiered buffer `u32`", "cut the wire"],
    );
    assert_eq!(places(&buffer), "h".repeat(16) + &"G".repeat(24));
    check(&bench, &buffer, 2);
    // New memory beside, then in place of the old; and that again where even the old one cannot have its place back.
    for (more, count) in [(0, 1), (1, 1), (1, 2), (3, 2)] {
        let to = if more == 3 { TierPlace::Gpu } else { TierPlace::Host };
        if more == 3 {
            move_all(TierPlace::Host).unwrap();
        }
        gpu.fail_placings_after(more, count);
        says(&with_causes(&move_all(to).unwrap_err()), &["the test takes them away"]);
        check(&bench, &buffer, 2);
        move_all(TierPlace::Gpu).unwrap();
        check(&bench, &buffer, 2);
    }
    // While chunks have no addresses no launch begins, and the host is refused.
    gpu.fail_placings_after(1, 4);
    move_all(TierPlace::Host).unwrap_err();
    let why = refused(bench.run("fill", config(), (&buffer, 0u64, 1u64, 0u32)));
    assert!(why.contains("takes them away"), "{why}");
    says(
        &with_causes(&buffer.read(&mut [0]).unwrap_err()),
        &["mapping chunks of tiered buffer `u32`"],
    );
    check(&bench, &buffer, 2);
}

#[test]
fn what_cannot_be_is_refused() {
    let (bench, other) = (bench(), bench());
    let vm = &bench.vm;
    let refused_setting = |error: Error| {
        assert!(matches!(error, Error::Setting { .. }), "{error}");
        error.to_string()
    };
    let none = refused_setting(vm.tiered_buffer::<u32>(0).unwrap_err());
    says(&none, &["elements of a tiered buffer is 0", "greater than zero"]);
    let huge = refused_setting(vm.tiered_buffer::<u64>(1 << 62).unwrap_err());
    says(&huge, &["at most 16 TiB"]);
    let buffer = vm.tiered_buffer::<u32>(100).unwrap();
    for range in [0..101, 100..u64::MAX, std::ops::Range { start: 5, end: 4 }] {
        let error = buffer.move_to(range, TierPlace::Host).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    }
    for element in [100, u64::MAX] {
        assert!(matches!(buffer.place_of(element), Err(Error::OutOfRange { .. })));
    }
    assert!(matches!(buffer.write_from(99, &[1, 2]), Err(Error::OutOfRange { .. })));
    let launched = other.run("fill", config(), (&buffer, 0u64, 1u64, 0u32));
    let plain = other.run("fill", config(), (&vm.buffer::<u32>(1).unwrap(), 0u64, 1u64, 0u32));
    assert_eq!(refused(launched), refused(plain));
}

#[test]
fn dropped_under_a_launch_it_stays_until_that_ends() {
    let bench = bench();
    let held = || bench.vm.elastic_stats().handles.held;
    let before = held();
    let buffer = bench.vm.tiered_buffer::<u32>(3 * chunk(&bench.vm)).unwrap();
    buffer.move_to(0..1, TierPlace::Host).unwrap();
    let churning = Churning::begin(&bench, &buffer);
    drop(buffer);
    assert_eq!(held(), before + 2);
    churning.end();
    // Its memory goes with the launch's last handle.
    until("the memory", || held() == before);
}

/// Chunks of the buffer of a random run.
const CHUNKS: u64 = 12;

/// Random moves, budgets and evictions beside launches on two streams, against a plain vector.
fn random_run(seed: u64) -> (u64, u64) {
    let (bench, _all) = bench_of(16);
    let (vm, size) = (&bench.vm, chunk(&bench.vm));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let length = CHUNKS * size - rng.random_range(0..size);
    let buffer = vm.tiered_buffer::<u32>(length).unwrap();
    let streams = [vm.stream().unwrap(), vm.stream().unwrap()];
    let elastic = vm.elastic_buffer::<u32>(64 * size).unwrap();
    let (mut model, mut running) = (vec![0u32; length as usize], Vec::new());
    let (mut moved, mut evicted) = (0, 0);
    for step in 0..120u32 {
        let first = rng.random_range(0..length);
        let end = (first + rng.random_range(1..4 * size)).min(length);
        let those = first as usize..end as usize;
        match rng.random_range(0..8) {
            0..3 => {
                let stream = &streams[rng.random_range(0..2)];
                let launched = bench
                    .kernel("add")
                    .launch_on(stream, config(), (&buffer, first, end, step));
                running.push(launched.unwrap());
                model[those].iter_mut().for_each(|word| *word += step);
            }
            3 => {
                let place = [TierPlace::Gpu, TierPlace::Host][rng.random_range(0..2)];
                match buffer.move_to(first..end, place) {
                    Ok(done) => moved += done.came + done.left,
                    Err(Error::NotMoved { .. } | Error::Setting { .. }) => {}
                    Err(error) => panic!("{}", with_causes(&error)),
                }
            }
            4 => {
                let done = buffer.set_budget(rng.random_range(0..CHUNKS + 2) * 4 * size).unwrap();
                moved += done.came + done.left;
            }
            5 => {
                let before = buffer.resident_bytes();
                let _ = elastic.grow(rng.random_range(1..6) * size);
                evicted += before - buffer.resident_bytes();
            }
            6 => elastic.shrink(elastic.len()).unwrap(),
            _ => {
                buffer.write_from(first, &vec![step; those.len()]).unwrap();
                model[those].fill(step);
            }
        }
        let on_gpu = places(&buffer).matches('G').count() as u64;
        assert_eq!(on_gpu * 4 * size, buffer.resident_bytes());
        assert!(buffer.resident_bytes() <= buffer.budget());
    }
    assert!(buffer.to_vec().unwrap() == model, "seed {seed}");
    running
        .into_iter()
        .for_each(|launch: Launch| drop(launch.sync().unwrap()));
    (moved, evicted)
}

#[test]
fn values_survive_random_moves_between_launches_on_two_streams() {
    let (mut moved, mut evicted) = (0, 0);
    for seed in seeds(1, 24) {
        let (more, gone) = random_run(seed);
        (moved, evicted) = (moved + more, evicted + gone);
    }
    assert!(
        moved > 50 && evicted > 0,
        "{moved} chunks were moved, {evicted} bytes evicted"
    );
}
