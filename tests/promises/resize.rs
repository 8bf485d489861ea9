//! Frames that come and go: whatever kernels do meanwhile, no word is lost, no held page loses its frame, and memory that left the frames
//! is for others.

use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{
    Adjust, Bench, HOLDING, PAGE, PAGE_WORDS, check_frames, compare, config, refused, scaled, simulated, simulated_gpu,
    small, with_causes, words,
};
use gpuvm::{
    ElasticBuffer, Error, Launch, LaunchConfig, Placement, Region, Resized, SimulatedGpu, Transport, Vm, VmBuilder,
};

/// Pages of the region that tests use.
const PAGES: u64 = 100;

/// Bytes of a unit: a handle of the GPU that the environment names, or a page.
fn unit(vm: &Vm) -> u64 {
    vm.elastic_stats().handles.handle_bytes.max(PAGE)
}

/// Leaves a worker of the simulated GPU to others.
fn beside_others() -> LaunchConfig {
    LaunchConfig::new(1, 64)
}

/// With this many units of frames and room for as many again, and more.
fn changing(units: u64) -> VmBuilder {
    let probe = small(4).placement(Placement::Fetch).workers(1).build().unwrap();
    let unit = unit(&probe);
    small(units * unit / PAGE)
        .placement(Placement::Fetch)
        .workers(2)
        .frame_memory(units * unit)
        .frame_capacity(2 * units * unit)
}

fn bench(units: u64) -> Bench {
    Bench::new(changing(units), HOLDING)
}

/// Elements of a region that has pages for four units, and some that have none.
fn length(vm: &Vm) -> u64 {
    4 * unit(vm) / 4 + PAGES * PAGE_WORDS + 7
}

fn resize(vm: &Vm, units: u64) -> Resized {
    let resized = vm.resize_frames_within(units * unit(vm), scaled(Duration::from_secs(60)));
    resized.unwrap_or_else(|error| panic!("{}", with_causes(&error)))
}

/// All units that were asked for are there, and no others.
fn must(vm: &Vm, units: u64) {
    let resized = resize(vm, units);
    assert_eq!(
        (resized.bytes, resized.kept_bytes, resized.missing_bytes),
        (units * unit(vm), 0, 0)
    );
    assert_eq!(vm.frames() * PAGE, resized.bytes);
}

/// What a kernel is told, and where it tells how far it is.
fn told(vm: &Vm, stop: u32) -> ElasticBuffer<u32> {
    let words = vm.elastic::<u32>(8).length(8).build().unwrap();
    words.write(0, &[stop, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    words
}

/// Reads and writes all elements: each has 1 more then.
fn add_one(bench: &Bench, region: &Region<u32>) {
    bench.must("churn", config(), (region, &told(&bench.vm, 1)));
}

/// `words` after this many times of it.
fn added(words: &[u32], times: u32) -> Vec<u32> {
    words.iter().map(|word| word.wrapping_add(times)).collect()
}

/// A kernel that runs until it is told to stop.
struct Running {
    vm: Vm,
    launch: Launch,
    words: ElasticBuffer<u32>,
}

impl Running {
    fn begin(bench: &Bench, launch: impl FnOnce(&ElasticBuffer<u32>) -> Result<Launch, Error>, blocks: u32) -> Self {
        let words = told(&bench.vm, 0);
        let launch = launch(&words).unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        let running = Self {
            vm: bench.vm.clone(),
            launch,
            words,
        };
        let limit = Instant::now() + scaled(Duration::from_secs(20));
        while running.word(1) < blocks {
            assert!(Instant::now() < limit, "the kernel does not begin");
            std::thread::sleep(Duration::from_millis(1));
        }
        running
    }

    /// Beside the kernel: the buffer's own `read` would wait for its end.
    fn word(&self, n: u64) -> u32 {
        let mut word = [0; 4];
        self.vm.device().read(self.words.pointer() + 4 * n, &mut word).unwrap();
        u32::from_ne_bytes(word)
    }

    fn end(self) -> Vec<u32> {
        let one = 1u32.to_ne_bytes();
        self.vm.device().write(self.words.pointer(), &one).unwrap();
        self.launch
            .sync()
            .unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        self.words.to_vec().unwrap()
    }
}

#[test]
fn frames_come_and_go_and_every_word_stays() {
    let bench = bench(4);
    let vm = &bench.vm;
    assert_eq!(
        (vm.frames() * PAGE, vm.frame_capacity()),
        (4 * unit(vm), 2 * vm.frames())
    );
    let before = words(3, length(vm));
    let region = vm.region::<u32>().from_slice(&before).unwrap();
    for (round, units) in (1..).zip([4, 2, 1, 5, 8, 3, 8]) {
        must(vm, units);
        add_one(&bench, &region);
        compare(&region.to_vec().unwrap(), &added(&before, round)).unwrap();
    }
    // All of them are used: a region that fits is fetched once.
    must(vm, 8);
    drop(region);
    let fits = vm.region::<u32>().from_slice(&words(4, 7 * unit(vm) / 4)).unwrap();
    let sum = vm.buffer::<u64>(1).unwrap();
    bench.must("sum", config(), (&fits, &sum));
    let start = vm.stats().unwrap();
    bench.must("sum", config(), (&fits, &sum));
    let again = vm.stats().unwrap().difference(&start);
    assert_eq!((again.pages_fetched, again.evictions), (0, 0), "{again:?}");
}

#[test]
fn a_kernel_that_writes_goes_on_while_frames_come_and_go() {
    let bench = bench(4);
    let vm = &bench.vm;
    let region = vm.region::<u32>().zeroed(length(vm)).unwrap();
    let churn = bench.kernel("churn");
    let running = Running::begin(&bench, |words| churn.launch(beside_others(), (&region, words)), 1);
    let mut gone = 0;
    for units in [1, 8, 2, 6, 1, 4, 3, 8, 1] {
        let resized = resize(vm, units);
        // What lingers at its addresses until the kernel has ended cannot come back before.
        assert!(resized.bytes + resized.missing_bytes >= units * unit(vm), "{resized:?}");
        assert!(resized.bytes - resized.kept_bytes <= units * unit(vm), "{resized:?}");
        gone += u64::from(resized.kept_bytes == 0);
    }
    assert!(gone > 0 && !running.launch.is_done());
    let ended = running.end();
    let rounds = ended[2];
    assert!(rounds > 0);
    compare(&region.to_vec().unwrap(), &added(&vec![0; length(vm) as usize], rounds)).unwrap();
    // Nothing uses the addresses any more.
    must(vm, 8);
    must(vm, 1);
}

/// As many blocks as there can be at a time.
fn on_all_places(vm: &Vm) -> LaunchConfig {
    let able = vm.device().capabilities();
    match able.compute_capability {
        Some(_) => LaunchConfig::new(able.max_resident_lanes / 256, 256),
        None => LaunchConfig::new(2, 64),
    }
}

#[test]
fn a_kernel_that_leaves_no_place_on_the_gpu_empties_frames_itself() {
    let full = |gpu: SimulatedGpu| gpu.lanes_per_worker(64).room_for_all(false);
    let builder = changing(4).transport(Transport::Direct).simulated_gpu(full);
    let bench = Bench::new(builder, HOLDING);
    let vm = &bench.vm;
    // Larger than all frames: only lanes that look for a frame can help.
    let region = vm.region::<u32>().zeroed(length(vm) + 5 * unit(vm) / 4).unwrap();
    let churn = bench.kernel("churn_on");
    let running = Running::begin(&bench, |words| churn.launch(on_all_places(vm), (&region, words)), 1);
    let mut gone = 0;
    for units in [3, 1, 8, 2, 6, 1] {
        let before = vm.frames() * PAGE;
        let resized = resize(vm, units);
        assert!(resized.bytes + resized.missing_bytes >= units * unit(vm), "{resized:?}");
        gone += before.saturating_sub(resized.bytes) / unit(vm);
    }
    // Nearly all that were to go: a page may have been in use.
    assert!(gone >= 4, "{gone} units");
    assert!(!running.launch.is_done());
    let counted = running.end()[2];
    let found = region.to_vec().unwrap().into_iter().fold(0, u32::wrapping_add);
    assert_eq!(found, counted);
    must(vm, 8);
    must(vm, 1);
}

#[test]
fn pages_that_are_held_keep_their_frames() {
    let bench = bench(2);
    let vm = &bench.vm;
    let region = vm.region::<u32>().from_slice(&words(9, length(vm))).unwrap();
    let sum = vm.buffer::<u64>(1).unwrap();
    // Frames of all units have pages, in an order that is unknown.
    bench.must("sum", config(), (&region, &sum));
    let hold = bench.kernel("hold_pages");
    let launch = |words: &ElasticBuffer<u32>| {
        let config = LaunchConfig::new(4, 1).thread_spans(1);
        hold.launch(config, (&region, PAGE_WORDS, words))
    };
    let running = Running::begin(&bench, launch, 4);
    let bytes = unit(vm);
    let resized = vm.resize_frames_within(bytes, Duration::from_millis(50)).unwrap();
    assert!(resized.bytes == bytes || resized.kept_bytes == bytes, "{resized:?}");
    running.end();
    must(vm, 1);
    let mut expected = words(9, length(vm));
    for page in 0..4 {
        let word = &mut expected[(page * PAGE_WORDS) as usize + 1];
        *word = word.wrapping_add(1);
    }
    compare(&region.to_vec().unwrap(), &expected).unwrap();
}

#[test]
fn spans_of_launches_in_flight_keep_enough_frames() {
    let bench = bench(4);
    let vm = &bench.vm;
    let region = vm.region::<u32>().zeroed(length(vm)).unwrap();
    let hold = bench.kernel("hold_pages");
    // More spans than two units have frames.
    let spans = 2 * unit(vm) / PAGE / 4 + 1;
    let config = LaunchConfig::new(4, 1).thread_spans(spans);
    let launch = |words: &ElasticBuffer<u32>| hold.launch(config.clone(), (&region, PAGE_WORDS, words));
    let running = Running::begin(&bench, launch, 4);
    let resized = resize(vm, 1);
    assert_eq!(
        (resized.bytes, resized.kept_bytes),
        (3 * unit(vm), 2 * unit(vm)),
        "{resized:?}"
    );
    running.end();
    must(vm, 1);
    // And none can begin that needs more than there are.
    let error = refused(hold.launch(config, (&region, PAGE_WORDS, &told(vm, 1))));
    assert!(error.contains("spans"), "{error}");
}

#[test]
fn who_finds_no_memory_has_that_of_frames() {
    let handle = 1u64 << 16;
    let gpu = simulated_gpu(4).memory(24 * handle + (4 << 20)).workers(2);
    let builder = simulated(4)
        .placement(Placement::Fetch)
        .gpu(gpu)
        .frame_memory(16 * handle)
        .frame_capacity(16 * handle);
    let bench = Bench::new(builder.frame_minimum(4 * handle), HOLDING);
    let vm = &bench.vm;
    let before = words(5, 12 * handle / 4);
    let region = vm.region::<u32>().name("data").from_slice(&before).unwrap();
    add_one(&bench, &region);
    let churn = bench.kernel("churn");
    let other = vm.region::<u32>().zeroed(PAGES * PAGE_WORDS).unwrap();
    let running = Running::begin(&bench, |words| churn.launch(beside_others(), (&other, words)), 1);
    // More than is free: a plain buffer has that of frames at once, though the kernel may read there still.
    let free = vm.device().own_memory().unwrap().free;
    let plain = vm.buffer::<u32>((free + 3 * handle) / 4).unwrap();
    assert!(vm.frames() * PAGE <= 14 * handle, "{} frames", vm.frames());
    assert!(plain.to_vec().unwrap().iter().all(|word| *word == 0));
    plain.write(&vec![3; plain.len() as usize]).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(plain.to_vec().unwrap().iter().all(|word| *word == 3));
    drop(plain);
    // Far more than is free: frames give theirs beside the kernel, down to their minimum.
    let hog = vm.elastic::<u32>(1 << 32).name("hog").build().unwrap();
    let error = loop {
        match hog.grow(handle / 4) {
            Ok(grown) => hog.write(grown.first, &vec![7; (handle / 4) as usize]).unwrap(),
            Err(error) => break error,
        }
    };
    assert_eq!(vm.frames() * PAGE, 4 * handle);
    assert!(!running.launch.is_done());
    let message = with_causes(&error);
    assert!(message.contains("frames hold 256.0 KiB"), "{message}");
    let ended = running.end();
    assert!(ended[2] > 0);
    compare(&region.to_vec().unwrap(), &added(&before, 1)).unwrap();
    add_one(&bench, &region);
    compare(&region.to_vec().unwrap(), &added(&before, 2)).unwrap();
    assert!(hog.to_vec().unwrap().iter().all(|word| *word == 7));
    // They can reclaim it once it is free.
    drop(hog);
    must(vm, 16);
}

#[test]
fn a_launch_that_was_stopped_leaves_frames_as_they_were_told() {
    let bench = Bench::new(changing(4), HOLDING);
    let vm = &bench.vm;
    if vm.device().capabilities().compute_capability.is_some() {
        // Stopping a kernel where it stands costs an NVIDIA GPU its context.
        return;
    }
    let before = words(8, length(vm));
    let region = vm.region::<u32>().from_slice(&before).unwrap();
    add_one(&bench, &region);
    must(vm, 2);
    let flag = told(vm, 0);
    let launch = bench.kernel("wait_for_ever").launch(config(), (&flag,)).unwrap();
    launch.kill();
    assert!(launch.sync().is_err());
    // The host builds table and pool anew before this.
    add_one(&bench, &region);
    compare(&region.to_vec().unwrap(), &added(&before, 2)).unwrap();
    for units in [3, 1, 8] {
        must(vm, units);
    }
    add_one(&bench, &region);
    compare(&region.to_vec().unwrap(), &added(&before, 3)).unwrap();
}

/// As [`must`], once no kernel is there any more at whose addresses memory lingers, such as one that came too late for its change.
fn must_soon(vm: &Vm, units: u64) {
    let limit = Instant::now() + scaled(Duration::from_secs(20));
    while resize(vm, units).missing_bytes != 0 {
        assert!(Instant::now() < limit, "memory lingers");
        std::thread::sleep(Duration::from_millis(1));
    }
    must(vm, units);
}

/// Some changes that are not waited for: each begins where the one before it has left off.
fn resize_soon(vm: &Vm, rng: &mut ChaCha8Rng) {
    for _ in 0..rng.random_range(1..=4) {
        let (units, within) = (rng.random_range(1..=6), Duration::from_micros(rng.random_range(0..300)));
        let resized = vm.resize_frames_within(units * unit(vm), within).unwrap();
        let settled = resized.bytes + resized.missing_bytes - resized.kept_bytes;
        assert_eq!(settled, units * unit(vm), "{resized:?}");
        assert_eq!(resized.bytes, vm.frames() * PAGE);
    }
}

/// Spans that are held by a launch in flight take as many frames as there are in some units, or one more or fewer: one frame more than that
/// stays.
fn resize_beside_spans(bench: &Bench, region: &Region<u32>, rng: &mut ChaCha8Rng) {
    let (vm, each) = (&bench.vm, unit(&bench.vm) / PAGE);
    must_soon(vm, 6);
    let spans = (rng.random_range(1..=4) * each + rng.random_range(0..3) - 1).min(6 * each - 1);
    let (hold, told) = (bench.kernel("hold_pages"), told(vm, 0));
    let launch = hold.launch(LaunchConfig::new(1, 1).thread_spans(spans), (region, PAGE_WORDS, &told));
    let launch = launch.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    vm.resize_frames_within(unit(vm), Duration::from_millis(10)).unwrap();
    let frames = vm.frames();
    vm.device().write(told.pointer(), &1u32.to_ne_bytes()).unwrap();
    launch.sync().unwrap();
    assert!(frames > spans, "{spans} spans, {frames} frames");
}

/// A kernel that looks for no frame leaves no place to those that change their number: each change finds the one before under way.
fn resize_without_a_place(bench: &Bench, region: &Region<u32>, rng: &mut ChaCha8Rng) {
    let hold = bench.kernel("hold_pages");
    let launch = |words: &ElasticBuffer<u32>| {
        let config = LaunchConfig::new(2, 64).warp_spans(1);
        hold.launch(config, (region, PAGE_WORDS, words))
    };
    let running = Running::begin(bench, launch, 2);
    resize_soon(&bench.vm, rng);
    running.end();
}

/// Launches and changes of frames, drawn, beside each other; at the end each word is what was written, and no frame is lost.
#[test]
fn whatever_comes_and_goes_each_word_is_what_was_written() {
    for seed in 0..6 {
        // A GPU with room for two blocks.
        let crowded = seed == 5;
        let full = |gpu: SimulatedGpu| gpu.lanes_per_worker(64).room_for_all(false);
        let bench = match crowded {
            true => Bench::new(
                changing(3)
                    .wait_limit(scaled(Duration::from_secs(1)))
                    .simulated_gpu(full),
                HOLDING,
            ),
            false => bench(3),
        };
        let (vm, mut rng) = (&bench.vm, ChaCha8Rng::seed_from_u64(seed));
        let mut model = words(seed, length(vm));
        let region = vm.region::<u32>().from_slice(&model).unwrap();
        for _ in 0..50 {
            match rng.random_range(0..6u32) {
                0 if crowded => {
                    resize_without_a_place(&bench, &region, &mut rng);
                    for block in 0..2 {
                        let word = &mut model[block * PAGE_WORDS as usize + 1];
                        *word = word.wrapping_add(1);
                    }
                }
                0 => {
                    add_one(&bench, &region);
                    model = added(&model, 1);
                }
                1 | 2 => {
                    let (churn, told) = (bench.kernel("churn"), told(vm, 1));
                    let launch = churn.launch(config(), (&region, &told)).unwrap();
                    match rng.random() {
                        true => drop(resize(vm, rng.random_range(1..=6))),
                        false => resize_soon(vm, &mut rng),
                    }
                    launch.sync().unwrap();
                    model = added(&model, 1);
                }
                3 => {
                    resize_beside_spans(&bench, &region, &mut rng);
                    model[1] = model[1].wrapping_add(1);
                }
                4 => resize_soon(vm, &mut rng),
                _ => drop(resize(vm, rng.random_range(1..=6))),
            }
        }
        must_soon(vm, 6);
        check_frames(vm).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        compare(&region.to_vec().unwrap(), &model).unwrap();
    }
}

#[test]
fn frames_without_a_minimum_give_all_but_one_unit() {
    let (handle, gpu) = (1u64 << 16, simulated_gpu(4).memory((24 << 16) + (4 << 20)));
    for minimum in [None, Some(0), Some(1), Some(handle + 1)] {
        let builder = simulated(4)
            .placement(Placement::Fetch)
            .gpu(gpu.clone())
            .frame_memory(16 * handle)
            .frame_capacity(16 * handle);
        let bench = Bench::new(
            match minimum {
                None => builder,
                Some(minimum) => builder.frame_minimum(minimum),
            },
            HOLDING,
        );
        let hog = bench.vm.elastic::<u32>(1 << 32).name("hog").build().unwrap();
        while hog.grow(handle / 4).is_ok() {}
        // An eighth stays where nothing is said.
        let least = minimum.unwrap_or(2 * handle).div_ceil(handle).max(1);
        assert_eq!(bench.vm.frames() * PAGE, least * handle, "{minimum:?}");
        drop(hog);
        must(&bench.vm, 16);
        check_frames(&bench.vm).unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let fixed = Bench::new(small(16).placement(Placement::Fetch).workers(1), HOLDING);
    assert_eq!(fixed.vm.frame_capacity(), fixed.vm.frames());
    let error = refused(fixed.vm.resize_frames(PAGE));
    assert!(error.contains("set frame_capacity"), "{error}");
    let bench = bench(2);
    let unit = unit(&bench.vm);
    for bytes in [0, unit - 1, 4 * unit + 1, u64::MAX] {
        let error = refused(bench.vm.resize_frames(bytes));
        assert!(error.contains(&format!("from {unit} bytes")), "{error}");
    }
    let settings: [(VmBuilder, &str); 4] = [
        (changing(2).frame_capacity(unit), "frame capacity"),
        (changing(2).frame_minimum(4 * unit), "frame minimum"),
        (
            small(16).placement(Placement::Fetch).frame_minimum(PAGE),
            "frame_capacity",
        ),
        (
            small(16)
                .placement(Placement::Fetch)
                .frame_memory(100)
                .frame_capacity(1 << 20),
            "frame memory",
        ),
    ];
    for (builder, named) in settings {
        let error = refused(builder.build());
        assert!(error.contains(named), "{error}");
    }
    must(&bench.vm, 2);
}
