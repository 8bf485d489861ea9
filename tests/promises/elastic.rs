//! Elastic buffers: a pointer that stays, with memory that comes and goes. Whatever grows, shrinks, shares handles, is paused or refused,
//! kernels and the host find in each buffer what was written there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    Adjust, Bench, Kernels, compare, config, refused, says, scaled, simulated, simulated_gpu, small, with_causes, words,
};
use gpuvm::{Arg, ElasticBuffer, ElementType, Error, Launch, LaunchConfig, Vm};

mod dropped;
mod random;

const ELASTIC: Kernels = Kernels {
    name: "elastic.cu",
    text: include_str!("../kernels/elastic.cu"),
};

fn bench() -> Bench {
    // Two launches can run at a time.
    Bench::new(small(4).workers(2), ELASTIC)
}

/// One whose GPU has memory for this many handles, and some more for itself.
fn bench_of(handles: u64) -> Bench {
    let gpu = simulated_gpu(4).memory((handles << 16) + (4 << 20)).workers(2);
    Bench::new(simulated(4).gpu(gpu), ELASTIC)
}

/// Elements of a handle.
fn handle(vm: &Vm) -> u64 {
    vm.elastic_stats().handles.handle_bytes / 4
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut so: impl FnMut() -> bool) {
    let limit = Instant::now() + scaled(Duration::from_secs(20));
    while !so() {
        assert!(Instant::now() < limit, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes all memory that there is.
pub(crate) fn hog(vm: &Vm) -> ElasticBuffer<u32> {
    let hog = vm.elastic::<u32>(1 << 32).name("hog").tag("hog").build().unwrap();
    while hog.grow(handle(vm)).is_ok() {}
    hog
}

/// A kernel that adds 1 to the first elements of a buffer until it is told to stop.
struct Churning {
    vm: Vm,
    launch: Launch,
    words: ElasticBuffer<u32>,
}

impl Churning {
    fn begin(bench: &Bench, over: &ElasticBuffer<u32>, end: u64) -> Self {
        let words = bench.vm.elastic::<u32>(2).length(2).build().unwrap();
        words.write(0, &[0, 0]).unwrap();
        // SAFETY: the words live as long as this, which waits for the launch.
        let word = |i: u64| unsafe { Arg::address(ElementType::U32, words.pointer() + 4 * i) };
        let vm = bench.vm.clone();
        // Launches that follow run beside it.
        let (stream, shape) = (vm.stream().unwrap(), LaunchConfig::new(1, 64));
        let churn = bench.kernel("churn");
        let launch = churn.launch_on(&stream, shape, (over, end, word(0), word(1)));
        let launch = launch.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        let churning = Self { vm, launch, words };
        until("the launch", || churning.has_begun());
        churning
    }

    fn has_begun(&self) -> bool {
        let mut word = [0; 4];
        // Beside the kernel: `ElasticBuffer::read` would wait for its end if it were told of the buffer.
        self.vm.device().read(self.words.pointer() + 4, &mut word).unwrap();
        word != [0; 4]
    }

    fn tell(&self) {
        self.vm.device().write(self.words.pointer(), &[1, 0, 0, 0]).unwrap();
    }

    fn end(self) {
        self.tell();
        self.launch
            .sync()
            .unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    }
}

/// How many of a buffer's elements from `first` on are not `base` and their index.
fn wrong(bench: &Bench, buffer: &ElasticBuffer<u32>, first: u64, base: u32) -> u64 {
    let wrong = bench.vm.buffer::<u64>(1).unwrap();
    bench.must("count_wrong", config(), (buffer, first, buffer.len(), base, &wrong));
    wrong.to_vec().unwrap()[0]
}

#[test]
fn a_kernel_runs_over_it_while_it_grows_at_one_address() {
    let bench = bench();
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    let buffer = vm.elastic_buffer::<u32>(100 * size).unwrap();
    let at = buffer.pointer();
    assert_eq!((buffer.len(), buffer.capacity(), buffer.max_len()), (0, 0, 100 * size));
    assert!(buffer.is_empty() && at.is_multiple_of(512));
    let grown = buffer.grow(1000).unwrap();
    assert_eq!((grown.first, grown.premapped, grown.moved_bytes), (0, false, 0));
    buffer.write(0, &vec![0; 1000]).unwrap();
    let churning = Churning::begin(&bench, &buffer, 1000);
    let stream = vm.stream().unwrap();
    for round in 0..20u32 {
        let first = buffer.grow(size / 3).unwrap().first;
        assert_eq!((buffer.pointer(), buffer.len()), (at, first + size / 3));
        // What is new is there for launches to come, beside the one that runs.
        let fill = bench.kernel("fill");
        let args = (&buffer, first, buffer.len(), round);
        fill.launch_on(&stream, config(), args).unwrap().sync().unwrap();
    }
    assert!(!churning.launch.is_done());
    churning.end();
    let found = buffer.to_vec().unwrap();
    assert!(found[0] > 0 && found[..1000].iter().all(|times| *times == found[0]));
    for round in 0..20u64 {
        let first = 1000 + round * (size / 3);
        for i in [first, first + size / 3 - 1] {
            assert_eq!(u64::from(found[i as usize]), i + round);
        }
    }
    assert!(buffer.capacity() >= buffer.len());
}

#[test]
fn growth_in_premapped_memory_only_moves_the_length() {
    let bench = bench();
    let size = handle(&bench.vm);
    let buffer = bench.vm.elastic_buffer::<u32>(64 * size).unwrap();
    assert!(!buffer.grow(1).unwrap().premapped);
    let mut premapped = 0;
    for _ in 0..30 {
        until("memory ahead", || buffer.capacity() >= buffer.len() + size);
        let grown = buffer.grow(size).unwrap();
        assert!(grown.premapped);
        premapped += 1;
        assert_eq!(buffer.grow(0).unwrap().first, buffer.len());
    }
    let stats = bench.vm.elastic_stats();
    assert_eq!((stats.on_demand, stats.premapped), (1, premapped + 30));
    until("memory ahead", || bench.vm.elastic_stats().ahead_bytes >= 4 * size);
    // Nothing is mapped beyond the most that it can have.
    let end = buffer.ensure(64 * size).unwrap();
    assert!(end.first < buffer.len() && buffer.len() == 64 * size);
    assert_eq!(buffer.capacity(), 64 * size);
    assert!(buffer.ensure(5).unwrap().premapped && buffer.len() == 64 * size);
}

#[test]
fn what_it_shrinks_by_goes_when_launches_have_ended_and_is_used_again() {
    let bench = bench();
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    let buffer = vm.elastic_buffer::<u32>(64 * size).unwrap();
    buffer.grow(40 * size).unwrap();
    bench.must("fill", config(), (&buffer, 0u64, buffer.len(), 3u32));
    let churning = Churning::begin(&bench, &buffer, 10);
    let held = vm.elastic_stats().handles.held;
    buffer.shrink(38 * size).unwrap();
    assert_eq!(buffer.len(), 2 * size);
    // Nothing goes while the launch may use it, also where somebody asks for it.
    vm.trim(u64::MAX);
    std::thread::sleep(Duration::from_millis(120));
    assert!(buffer.capacity() >= 40 * size && vm.elastic_stats().handles.held >= held);
    churning.end();
    // Some handles stay mapped ahead of a buffer that grows.
    until("memory to go back", || buffer.capacity() < 10 * size);
    let reused = vm.elastic_stats().handles.reused;
    let other = vm.elastic_buffer::<u32>(64 * size).unwrap();
    until("memory in the pool", || vm.elastic_stats().handles.free >= 4);
    other.grow(4 * size).unwrap();
    assert!(vm.elastic_stats().handles.reused >= reused + 4);
    assert_eq!(wrong(&bench, &buffer, 10, 3), 0);
    buffer.ensure(5 * size).unwrap();
    bench.must("fill", config(), (&buffer, 2 * size, 5 * size, 3u32));
    assert_eq!(wrong(&bench, &buffer, 10, 3), 0);
}

#[test]
fn buffers_share_handles_and_no_kernel_finds_another_ones_bytes() {
    let bench = bench();
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    let lengths = [
        size * 3 / 2,
        size * 9 / 4,
        size / 5,
        size / 7,
        size * 5 / 3,
        size / 5,
        1,
        size - 1,
    ];
    let make = |(i, length): (usize, &u64)| {
        let buffer = vm.elastic::<u32>(8 * size).length(*length).name(format!("b{i}"));
        buffer.build().unwrap()
    };
    let buffers: Vec<ElasticBuffer<u32>> = lengths.iter().enumerate().map(make).collect();
    let stats = vm.elastic_stats();
    let handles: u64 = lengths.iter().map(|length| length.div_ceil(size)).sum();
    assert!(stats.handles.held < handles, "{stats:?}");
    assert!(buffers.iter().any(|buffer| !buffer.pointer().is_multiple_of(4 * size)));
    let base = |i: usize| 1_000_000 * i as u32;
    let filled = buffers.iter().enumerate();
    let launches: Vec<Launch> = filled
        .map(|(i, buffer)| bench.launch("fill", config(), (buffer, 0u64, buffer.len(), base(i))))
        .collect();
    for launch in launches {
        launch.sync().unwrap();
    }
    let right = |buffers: &[ElasticBuffer<u32>]| {
        for (i, buffer) in buffers.iter().enumerate() {
            assert_eq!(wrong(&bench, buffer, 0, base(i)), 0, "{buffer:?}");
        }
    };
    right(&buffers);
    // Each grows over the other's beginning: its last bytes move, and its address does not.
    let mut moved = 0;
    for (i, buffer) in buffers.iter().enumerate() {
        let (at, first) = (buffer.pointer(), buffer.len());
        moved += buffer.grow(size).unwrap().moved_bytes;
        assert_eq!(buffer.pointer(), at);
        bench.must("fill", config(), (buffer, first, buffer.len(), base(i)));
    }
    right(&buffers);
    assert!(moved > 0 && vm.elastic_stats().moved_bytes == moved);
    drop(buffers);
    until("the end of all buffers", || vm.elastic_stats().buffers == 0);
    until("the end of all handles", || vm.elastic_stats().handles.held == 0);
    assert_eq!(vm.elastic_stats().rest_bytes, 0);
}

#[test]
fn bytes_that_move_wait_for_the_launches_that_name_them() {
    let bench = bench();
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    let first = vm.elastic::<u32>(8 * size).length(size / 2).build().unwrap();
    let second = vm.elastic::<u32>(8 * size).length(size + size / 2).build().unwrap();
    assert_eq!(vm.elastic_stats().handles.held, 2, "they share one");
    first.write(0, &vec![0; size as usize / 2]).unwrap();
    bench.must("fill", config(), (&second, 0u64, second.len(), 7u32));
    let churning = Churning::begin(&bench, &first, size / 2);
    std::thread::scope(|scope| {
        let growing = scope.spawn(|| first.grow(size).unwrap());
        // The other one is launched with meanwhile, and grows.
        assert_eq!(wrong(&bench, &second, 0, 7), 0);
        let end = second.grow(5).unwrap().first;
        bench.must("fill", config(), (&second, end, second.len(), 7u32));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!growing.is_finished(), "it moved under a launch");
        churning.tell();
        let grown = growing.join().unwrap();
        assert_eq!((grown.premapped, grown.moved_bytes), (false, size / 2 * 4));
    });
    churning.end();
    let found = first.to_vec().unwrap();
    assert!(found[0] > 0 && found[..size as usize / 2].iter().all(|times| *times == found[0]));
    assert_eq!(wrong(&bench, &second, 0, 7), 0);
}

#[test]
fn a_paused_buffer_gives_its_memory_and_comes_back_where_it_was() {
    let bench = bench_of(40);
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    let make = |length: u64, tag: &str| {
        vm.elastic::<u32>(20 * size)
            .length(length)
            .tag(tag)
            .name(tag)
            .build()
            .unwrap()
    };
    let (one, two) = (make(size * 7 / 2, "kv"), make(size / 3, "kv"));
    let (empty, other) = (make(0, "kv"), make(size * 5 / 2, "weights"));
    for buffer in [&one, &two, &other] {
        bench.must("fill", config(), (buffer, 0u64, buffer.len(), 9u32));
    }
    let (at, before) = ([one.pointer(), two.pointer(), empty.pointer()], vm.elastic_stats());
    let bytes = vm.pause("kv").unwrap();
    assert_eq!(bytes, 4 * (one.len() + two.len()));
    let stats = vm.elastic_stats();
    assert_eq!(
        (stats.paused, stats.paused_bytes, stats.used_bytes),
        (3, bytes, 4 * other.len())
    );
    assert!(stats.handles.held < before.handles.held && one.capacity() == 0 && one.len() == size * 7 / 2);
    assert_eq!(wrong(&bench, &other, 0, 9), 0);
    // A thread that uses it is told so.
    let args = (&one, 0u64, 1u64, 1u32);
    let launched = bench.kernel("fill").launch(config(), args);
    assert!(matches!(&launched, Err(Error::Paused { tag, .. }) if tag == "kv"));
    assert!(refused(launched).contains("resume tag `kv`"));
    for outcome in [
        one.grow(1).map(drop),
        one.shrink(1),
        one.write(0, &[1]),
        one.read(0, &mut [0]),
    ] {
        assert!(matches!(outcome, Err(Error::Paused { .. })));
    }
    assert_eq!(
        (
            vm.pause("kv").unwrap(),
            vm.pause("nobody").unwrap(),
            vm.resume("weights").unwrap()
        ),
        (0, 0, 0)
    );
    // Others have the memory meanwhile, and too much of it.
    let hog = hog(vm);
    let resumed = vm.resume("kv");
    assert!(matches!(&resumed, Err(Error::OutOfHandles { .. })));
    says(&refused(resumed), &["tagged `hog` hold", "tagged `weights` hold"]);
    let stats = vm.elastic_stats();
    assert_eq!((stats.paused, stats.paused_bytes), (3, bytes), "still paused");
    drop(hog);
    assert_eq!(vm.resume("kv").unwrap(), bytes);
    assert_eq!([one.pointer(), two.pointer(), empty.pointer()], at);
    for buffer in [&one, &two, &other] {
        assert_eq!(wrong(&bench, buffer, 0, 9), 0);
    }
    one.grow(size).unwrap();
    empty.grow(1).unwrap();
    bench.must("fill", config(), (&one, 0u64, one.len(), 9u32));
    assert_eq!(wrong(&bench, &one, 0, 9), 0);
}

#[test]
fn a_pause_waits_for_launches_and_takes_all_gpus() {
    let gpus = (0..2).map(|_| simulated_gpu(64).workers(1));
    let vm = Vm::builder()
        .gpus(gpus)
        .transport(gpuvm::Transport::Direct)
        .frame_memory(16 * 4096)
        .build()
        .unwrap();
    let source = "__global__ void slow(unsigned* at, unsigned n) { for (unsigned i = 0; i < n; ++i) { __nanosleep(100000); at[i] += i; } }";
    let buffers: Vec<ElasticBuffer<u32>> = vm
        .gpus()
        .iter()
        .map(|gpu| {
            let buffer = gpu.elastic::<u32>(1000).length(200).tag("both").build().unwrap();
            buffer.write(0, &[0; 200]).unwrap();
            let slow = gpu.kernel("slow.cu", source, "slow").unwrap();
            drop(slow.launch(LaunchConfig::new(1, 1), (&buffer, 200u32)).unwrap());
            buffer
        })
        .collect();
    assert_eq!(vm.pause("both").unwrap(), 1600);
    assert_eq!(vm.resume("both").unwrap(), 1600);
    for buffer in &buffers {
        compare(&buffer.to_vec().unwrap(), &(0..200).collect::<Vec<u32>>()).unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let bench = bench_of(16);
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    for (max, reason) in [
        (0, "it must be greater than zero"),
        (u64::MAX, "at most 16 TiB"),
        (1 << 43, "at most 16 TiB"),
    ] {
        let message = refused(vm.elastic_buffer::<u32>(max));
        assert!(message.contains(reason), "{message}");
    }
    assert!(refused(vm.elastic_buffer::<[u8; 0]>(5)).contains("a size above zero"));
    assert!(matches!(
        vm.elastic::<u32>(5).length(6).build(),
        Err(Error::BeyondMax { wanted: 6, max: 5, .. })
    ));
    let buffer = vm.elastic::<u32>(1000 * size).name("long").build().unwrap();
    buffer.grow(2 * size).unwrap();
    let before = words(1, 2 * size);
    buffer.write(0, &before).unwrap();
    for by in [998 * size + 1, u64::MAX - 1, u64::MAX] {
        says(
            &refused(buffer.grow(by)),
            &["`long`", &format!("for at most {}", 1000 * size)],
        );
    }
    assert!(refused(buffer.shrink(2 * size + 1)).contains("out of range"));
    assert!(refused(buffer.read(2 * size - 1, &mut [0; 2])).contains("out of range"));
    assert!(refused(buffer.write(u64::MAX, &[1])).contains("out of range"));
    // The driver's memory ends in the middle of a growth.
    let message = refused(buffer.grow(500 * size));
    says(
        &message,
        &["allocations of 64.0 KiB failed", "elastic buffers without a tag hold"],
    );
    assert!(message.contains("out of GPU memory"), "{message}");
    assert_eq!(buffer.len(), 2 * size);
    assert!(buffer.capacity() >= 2 * size && buffer.capacity() < 20 * size);
    compare(&buffer.to_vec().unwrap(), &before).unwrap();
    buffer.grow(8 * size).unwrap();
    let raw = vm.raw_elastic(ElementType::F64, 10).length(3).build().unwrap();
    assert!(refused(raw.write_bytes(0, &[0; 7])).contains("not a multiple"));
    raw.write_bytes(1, &2.5f64.to_ne_bytes()).unwrap();
    let mut out = [0; 8];
    raw.read_bytes(1, &mut out).unwrap();
    assert_eq!(f64::from_ne_bytes(out), 2.5);
    let message = refused(
        bench
            .kernel("fill")
            .launch(config(), (Arg::from(&raw), 0u64, 1u64, 1u32)),
    );
    assert!(message.contains("argument 1") && message.contains("f64"), "{message}");
}

#[test]
fn who_has_more_than_it_uses_gives_it_to_who_needs_it() {
    let bench = bench_of(32);
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    let make = |priority: i32| vm.elastic::<u32>(1000 * size).priority(priority).build().unwrap();
    let (dear, cheap) = (make(1), make(-1));
    for buffer in [&dear, &cheap] {
        buffer.grow(size).unwrap();
        bench.must("fill", config(), (buffer, 0u64, buffer.len(), 5u32));
    }
    let hog = hog(vm);
    assert!(
        cheap.capacity() <= 2 * size && dear.capacity() <= 2 * size,
        "nothing is left ahead of them"
    );
    // What the hog no longer needs is found, whichever buffer has mapped it.
    hog.shrink(8 * size).unwrap();
    dear.grow(4 * size).unwrap();
    bench.must("fill", config(), (&dear, size, dear.len(), 5u32));
    for buffer in [&dear, &cheap] {
        assert_eq!(wrong(&bench, buffer, 0, 5), 0);
    }
    // Other allocators find what is given back to the driver.
    let bytes = vm.elastic_stats().handles.handle_bytes;
    until("memory for another allocator", || {
        vm.trim(2 * bytes);
        vm.device().allocate(2 * bytes, 256).is_ok()
    });
    // So does a plain buffer, by itself.
    let plain = vm.buffer::<u32>(2 * size).unwrap();
    assert!(refused(vm.buffer::<u32>(40 * size)).contains("out of GPU memory"));
    drop((hog, plain));
    assert!(vm.trim(u64::MAX) >= 8 * bytes);
    assert_eq!(vm.elastic_stats().handles.free, 0);
}

#[test]
fn everything_can_be_dropped_while_launches_run_in_every_order() {
    for order in 0..24 {
        let bench = bench();
        let size = handle(&bench.vm);
        let (one, other) = (
            bench.vm.elastic::<u32>(4 * size).length(size / 2).build().unwrap(),
            bench.vm.elastic::<u32>(4 * size).length(size / 3).build().unwrap(),
        );
        let launches: Vec<Launch> = [&one, &other]
            .into_iter()
            .map(|buffer| bench.launch("fill", config(), (buffer, 0u64, buffer.len(), 1u32)))
            .collect();
        one.grow(2 * size).unwrap();
        one.shrink(size).unwrap();
        let mut things: Vec<Option<Box<dyn std::any::Any>>> = vec![
            Some(Box::new(bench)),
            Some(Box::new(one)),
            Some(Box::new(other)),
            Some(Box::new(launches)),
        ];
        let (mut left, mut n) = (vec![0, 1, 2, 3], order);
        for choices in (1..=4).rev() {
            drop(things[left.remove(n % choices)].take());
            n /= choices;
        }
    }
    // A launch keeps what it uses.
    let bench = bench();
    let buffer = bench.vm.elastic::<u32>(1000).length(1000).build().unwrap();
    let churning = Churning::begin(&bench, &buffer, 1000);
    drop(buffer);
    assert_eq!(bench.vm.elastic_stats().buffers, 2, "it and the words of the kernel");
    churning.end();
    until("their end", || bench.vm.elastic_stats().buffers == 0);
}

#[test]
fn a_gpu_that_follows_a_seed_maps_ahead_while_launches_are_waited_for_and_forgets_nothing() {
    let gpu = simulated_gpu(4).seed(7);
    let bench = Bench::new(simulated(4).gpu(gpu), ELASTIC);
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    let buffer = vm.elastic::<u32>(20 * size).tag("kv").build().unwrap();
    let other = vm.elastic::<u32>(size).build().unwrap();
    other.grow(size).unwrap();
    // Nothing waits for a launch.
    for step in 1..=6 {
        assert!(!buffer.grow(size).unwrap().premapped);
        assert_eq!(buffer.capacity(), step * size);
    }
    bench.must("fill", config(), (&buffer, 0u64, 2 * size, 4u32));
    until("memory that is mapped ahead", || {
        bench.must("fill", config(), (&other, 0u64, size, 4u32));
        buffer.capacity() > 6 * size
    });
    assert!(buffer.grow(size).unwrap().premapped);
    buffer.shrink(5 * size).unwrap();
    until("memory that goes", || {
        bench.must("fill", config(), (&other, 0u64, size, 4u32));
        // A handle may stay mapped ahead.
        buffer.capacity() <= 3 * size
    });
    assert!(vm.elastic_stats().handles.free >= 4);
    vm.pause("kv").unwrap();
    vm.resume("kv").unwrap();
    assert_eq!(wrong(&bench, &buffer, 0, 4), 0);
    buffer.grow(size).unwrap();
    bench.must("fill", config(), (&buffer, 2 * size, 3 * size, 4u32));
    assert_eq!(wrong(&bench, &buffer, 0, 4), 0);
}

#[test]
fn memory_that_is_taken_back_is_never_that_of_a_length_that_grows_again() {
    let bench = bench();
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    let buffer = vm.elastic_buffer::<u32>(40 * size).unwrap();
    buffer.grow(20 * size).unwrap();
    // Of the thread that takes. Relaxed: it orders nothing.
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let growing = scope.spawn(|| {
            let mut round = 0;
            until("memory that is taken back", || {
                round += 1;
                buffer.shrink(16 * size).unwrap();
                buffer.grow(16 * size).unwrap();
                for i in [4 * size, buffer.len() - 1] {
                    buffer.write(i, &[round]).unwrap();
                    let mut found = [0];
                    buffer.read(i, &mut found).unwrap();
                    assert_eq!(found, [round]);
                }
                taken.load(Ordering::Relaxed) > (1000 * size) * 4
            });
        });
        while !growing.is_finished() {
            taken.fetch_add(vm.trim(u64::MAX), Ordering::Relaxed);
        }
        growing.join().unwrap();
    });
}

#[test]
fn threads_grow_one_buffer_and_have_parts_of_it_each() {
    let bench = bench();
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    let shared = vm.elastic_buffer::<u32>(300 * size).unwrap();
    let parts: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6u64)
            .map(|thread| {
                let shared = &shared;
                scope.spawn(move || {
                    let (mut parts, tag) = (Vec::new(), format!("own{thread}"));
                    for step in 0..40 {
                        let by = 1 + (thread * 977 + step * 331) % (size / 2);
                        parts.push((shared.grow(by).unwrap().first, by));
                        // And one of its own.
                        let own = vm.elastic::<u32>(4 * size).length(by).tag(&*tag).build().unwrap();
                        own.write(0, &[thread as u32]).unwrap();
                        own.grow(size).unwrap();
                        let mut first = [0];
                        own.read(0, &mut first).unwrap();
                        assert_eq!(first, [thread as u32]);
                        if step % 8 == thread {
                            vm.pause(&tag).unwrap();
                            vm.resume(&tag).unwrap();
                        }
                    }
                    parts
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut parts = parts;
    parts.sort_unstable();
    let mut end = 0;
    for (first, by) in parts {
        assert_eq!(first, end);
        end = first + by;
    }
    assert_eq!(shared.len(), end);
    bench.must("fill", config(), (&shared, 0u64, end, 1u32));
    assert_eq!(wrong(&bench, &shared, 0, 1), 0);
}
