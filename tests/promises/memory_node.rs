//! A memory node that dies while a kernel writes pages that live there: run where `GPUVM_TEST_NODE` names a node that
//! somebody ends, with its machine or without, once `RUNNING` was printed; `GPUVM_TEST_NODE_DIES=1` says so. With
//! `GPUVM_TEST_REPLICA_DIES=FILE` it names two nodes, on ports 7471 and 7472, which somebody ends and starts again as the
//! test asks for it by a line `WORD`, and says that it is done by the file `FILE.WORD`: see the scenario
//! `replica_node_killed`.

use std::time::{Duration, Instant};

use crate::common::{Adjust, PAGE_WORDS, compare, refused, says, simulated_gpu, small, with_causes};
use gpuvm::{Buffer, Integrity, Launch, LaunchConfig, Module, Region, SharedRegion, Vm};

/// Each lane writes its elements lap by lap: element `i` holds `lap * size + i`. What was written for sure is in `ledger`,
/// which is not paged.
const SOURCE: &str = r"
#include <gpuvm/gpuvm.cuh>

__global__ void laps(gpuvm::array<unsigned> a, unsigned first, unsigned last, unsigned* ledger) {
    unsigned n = static_cast<unsigned>(a.size());
    for (unsigned lap = first; lap < last; ++lap) {
        for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            a[i] = lap * n + i;
            if (a.failed()) return;
            ledger[i] = lap * n + i;
        }
    }
}

template <typename T>
__device__ void gather_from(gpuvm::array<T> a, unsigned* out) {
    unsigned n = static_cast<unsigned>(a.size());
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n && !a.failed(); i += gridDim.x * blockDim.x)
        out[i] = a[i];
}
__global__ void gather(gpuvm::array<const unsigned> a, unsigned* out) { gather_from(a, out); }
__global__ void gather_mutable(gpuvm::array<unsigned> a, unsigned* out) { gather_from(a, out); }
";

const KERNELS: [&str; 3] = ["laps", "gather", "gather_mutable"];

/// Longest time without an answer before a lane gives up.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// The elements after lap `lap`.
fn after(lap: u32, size: u32) -> Vec<u32> {
    (0..size).map(|i| lap * size + i).collect()
}

#[test]
fn laps_are_whole_where_nothing_dies() {
    let vm = small(8)
        .build()
        .unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    let module = vm.compile("laps.cu", SOURCE, &KERNELS).unwrap();
    let a = vm.region::<u32>().zeroed(16 * PAGE_WORDS).unwrap();
    let ledger = vm.buffer::<u32>(16 * PAGE_WORDS).unwrap();
    let launch = module
        .kernel("laps")
        .unwrap()
        .launch(LaunchConfig::new(4, 64), (&a, 1u32, 4u32, &ledger));
    launch.unwrap().sync().unwrap();
    let expected = after(3, 16 * PAGE_WORDS as u32);
    compare(&a.to_vec().unwrap(), &expected).unwrap();
    compare(&ledger.to_vec().unwrap(), &expected).unwrap();
    assert_eq!(
        a.salvage()
            .unwrap()
            .iter()
            .filter(|page| page.first % PAGE_WORDS != 0)
            .count(),
        0
    );
    a.flush().unwrap();
    assert!(a.salvage().unwrap().is_empty(), "everything is at its home");
}

#[test]
fn laps_of_two_gpus_are_whole_at_one_home() {
    // Each GPU has its own session with a node, and its own part of the node's memory.
    let vm = small(8).gpus([simulated_gpu(8), simulated_gpu(8)]).build();
    let vm = vm.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    let words = 16 * PAGE_WORDS - 7;
    let made = vm.gpus().iter().map(|gpu| {
        let region = must(
            gpu.region::<u32>()
                .name(format!("of GPU {}", gpu.index()))
                .zeroed(words),
        );
        let ledger = gpu.buffer::<u32>(words).unwrap();
        (gpu.compile("laps.cu", SOURCE, &KERNELS).unwrap(), region, ledger)
    });
    let made: Vec<_> = made.collect();
    // Laps of their own, at one time: a page of the other one would show. So many that no byte of an element is zero.
    let last = |gpu: usize| 20_000 + 3 * gpu as u32;
    let launches = made.iter().enumerate().map(|(gpu, (module, a, ledger))| {
        let laps = module.kernel("laps").unwrap();
        let launch = laps.launch(LaunchConfig::new(2, 64), (a, last(gpu) - 3, last(gpu), ledger));
        launch.unwrap_or_else(|error| panic!("GPU {gpu}: {}", with_causes(&error)))
    });
    let launches: Vec<_> = launches.collect();
    for (gpu, launch) in launches.iter().enumerate() {
        let ended = launch.sync();
        ended.unwrap_or_else(|error| panic!("GPU {gpu}: {}", with_causes(&error)));
    }
    drop(launches);
    for (gpu, (_, a, ledger)) in made.iter().enumerate() {
        let expected = after(last(gpu) - 1, words as u32);
        compare(&ledger.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("GPU {gpu}: {wrong}"));
        compare(&a.to_vec().unwrap(), &expected).unwrap_or_else(|wrong| panic!("GPU {gpu}: {wrong}"));
        compare(&a.read_home().unwrap(), &expected).unwrap_or_else(|wrong| panic!("home of GPU {gpu}: {wrong}"));
        let stats = vm.gpu(gpu).unwrap().stats().unwrap();
        assert!(stats.evictions >= 2 * 8, "GPU {gpu}: {stats:?}");
    }
    // One goes; the other one's pages stay reachable.
    let mut made = made.into_iter();
    let (_, first, _) = made.next().expect("two GPUs");
    first.close().unwrap();
    let (module, second, ledger) = made.next().expect("two GPUs");
    let laps = module.kernel("laps").unwrap();
    let launch = laps.launch(LaunchConfig::new(2, 64), (&second, last(2) - 1, last(2), &ledger));
    launch
        .unwrap()
        .sync()
        .unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    compare(&second.to_vec().unwrap(), &after(last(2) - 1, words as u32)).unwrap();
}

#[test]
fn a_region_is_read_by_all_that_attach() {
    let made = || {
        small(8)
            .build()
            .unwrap_or_else(|error| panic!("{}", with_causes(&error)))
    };
    let values: Vec<u32> = (0..16 * PAGE_WORDS as u32 - 5).map(|i| i * 3 + 1).collect();
    let first = made();
    let filled = first.region::<u32>().name("filled").read_only();
    let filled = filled.from_slice(&values).unwrap();
    if first.memory_nodes().is_empty() {
        says(&filled.share().unwrap_err(), &["it lies on this host"]);
        return;
    }
    let shared = filled.share().unwrap();
    let shared = SharedRegion::from_bytes(&shared.to_bytes()).unwrap();
    let (second, third) = (made(), made());
    let attached = [&second, &third].map(|vm| (vm, must(vm.region::<u32>().name("attached").attach(&shared))));
    // Who filled it leaves, and others have its queue pairs' place.
    filled.close().unwrap();
    drop(first);
    for (vm, region) in &attached {
        let module = vm.compile("laps.cu", SOURCE, &KERNELS).unwrap();
        let out = vm.buffer::<u32>(values.len() as u64).unwrap();
        let launch = module
            .kernel("gather")
            .unwrap()
            .launch(LaunchConfig::new(2, 64), (region, &out));
        launch.unwrap().sync().unwrap();
        compare(&out.to_vec().unwrap(), &values).unwrap();
        compare(&region.to_vec().unwrap(), &values).unwrap();
        assert!(region.is_read_only());
    }
    says(
        &second.region::<u64>().attach(&shared).err().unwrap(),
        &["elements of 4 bytes, and these have 8"],
    );
    drop(attached);
    let gone = second.region::<u32>().attach(&shared);
    let gone = refused(gone);
    assert!(gone.contains("nothing is shared by this key"), "{gone}");
}

#[test]
fn laps_are_whole_at_two_homes() {
    let vm = small(8).host_homes(2).reliable_regions(true).build();
    let vm = vm.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    // The kernel that `replica_node_death` runs, where a slow machine does not have to compile it.
    let module = vm.compile("laps.cu", SOURCE, &KERNELS).unwrap();
    let a = vm.region::<u32>().at_host().replicas(2);
    let a = a.integrity(Integrity::Crc32c).zeroed(16 * PAGE_WORDS).unwrap();
    let ledger = vm.buffer::<u32>(16 * PAGE_WORDS).unwrap();
    let laps = module.kernel("laps").unwrap();
    let launch = laps.launch(LaunchConfig::new(4, 64), (&a, 1u32, 4u32, &ledger));
    launch.unwrap().sync().unwrap();
    compare(&a.to_vec().unwrap(), &after(3, 16 * PAGE_WORDS as u32)).unwrap();
    assert!(a.health().unwrap().is_whole());
}

#[test]
fn node_death() {
    if std::env::var_os("GPUVM_TEST_NODE_DIES").is_none() {
        eprintln!("skipped: GPUVM_TEST_NODE_DIES does not say that somebody ends a memory node");
        return;
    }
    let node = std::env::var("GPUVM_TEST_NODE").expect("GPUVM_TEST_NODE names the node that will die");
    let vm = small(32).wait_limit(WAIT_LIMIT).build();
    let vm = vm.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    let module = vm.compile("laps.cu", SOURCE, &KERNELS).unwrap();
    let laps = module.kernel("laps").unwrap();
    // Twice as many pages as frames, so that pages are written back and fetched all the time.
    let n = 64 * PAGE_WORDS;
    let size = n as u32;
    let far = vm.region::<u32>().name("far").zeroed(n).unwrap();
    let near = vm.region::<u32>().name("near").at_host().zeroed(n).unwrap();
    let ledger = vm.buffer::<u32>(n).unwrap();
    let config = LaunchConfig::new(4, 64);

    laps.launch(config.clone(), (&far, 1u32, 3u32, &ledger))
        .unwrap()
        .sync()
        .unwrap();
    compare(&far.to_vec().unwrap(), &after(2, size)).unwrap();

    let launch = laps.launch(config.clone(), (&far, 3u32, 60_000u32, &ledger)).unwrap();
    println!("\nRUNNING");
    let since = Instant::now();
    let message = refused(launch.sync());
    println!("ENDED after {:.1} s: {message}", since.elapsed().as_secs_f32());
    for part in ["`far`", "page", &node] {
        assert!(message.contains(part), "{part} is not named: {message}");
    }

    let salvaged = far.salvage().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    let ledger = ledger.to_vec().unwrap();
    assert!(!salvaged.is_empty(), "no page was dirty");
    assert!(salvaged.len() <= 32, "{} pages in 32 frames", salvaged.len());
    let mut late = 0;
    for page in &salvaged {
        assert_eq!(page.elements.len() as u64, PAGE_WORDS);
        for (i, &found) in (page.first as u32..).zip(&page.elements) {
            let written = ledger[i as usize];
            // The lane may have stopped between the write and its entry.
            late += u32::from(found == written + size);
            assert!(
                found == written || found == written + size,
                "element {i} is {found}, and {written} was written"
            );
            assert!(found % size == i && found >= 2 * size, "element {i} is {found}");
        }
    }
    // A lane stops once: it has at most one write without its entry.
    assert!(late <= 4 * 64, "{late} elements are newer than their entries");
    println!("SALVAGED {} pages", salvaged.len());

    // What lives on this host is as good as before, once the frames are there that salvaged pages may have filled.
    compare(&near.to_vec().unwrap(), &vec![0; n as usize]).unwrap();
    let leaving = Instant::now();
    drop(far);
    println!("LEFT after {:.1} s", leaving.elapsed().as_secs_f32());
    let entries = vm.buffer::<u32>(n).unwrap();
    laps.launch(config, (&near, 5u32, 8u32, &entries))
        .unwrap()
        .sync()
        .unwrap_or_else(|error| panic!("a region at this host: {}", with_causes(&error)));
    compare(&near.to_vec().unwrap(), &after(7, size)).unwrap();
}

/// What somebody who ends nodes and starts them again is told, and says by files beside the one that is named.
struct Script {
    files: std::path::PathBuf,
}

impl Script {
    /// Asks for something, and waits until it is done.
    fn ask(&self, what: &str) {
        println!("\n{what}");
        let done = self.files.with_extension(what);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done.exists() {
            assert!(Instant::now() < deadline, "nothing does {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Waits until every home of the regions is there and holds everything.
fn become_whole(regions: &[&Region<u32>]) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let health: Vec<_> = regions.iter().map(|region| region.health().unwrap()).collect();
        if health.iter().all(gpuvm::RegionHealth::is_whole) {
            return;
        }
        assert!(Instant::now() < deadline, "not whole: {health:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A region whose making has to succeed.
fn must(made: gpuvm::Result<Region<u32>>) -> Region<u32> {
    made.unwrap_or_else(|error| panic!("{}", with_causes(&error)))
}

/// Frames, and pages of the region that a kernel writes: twice as many.
const FRAMES: u64 = 32;
const WORDS: u64 = 2 * FRAMES * PAGE_WORDS;

/// A virtual memory at two nodes: a region that kernels write, one that they only read, and one without a second copy.
struct AtTwoNodes {
    far: Region<u32>,
    still: Region<u32>,
    still_words: Vec<u32>,
    single: Region<u32>,
    ledger: Buffer<u32>,
    words: Buffer<u32>,
    module: Module,
    vm: Vm,
}

impl AtTwoNodes {
    fn new() -> Self {
        let vm = small(FRAMES).reliable_regions(true).wait_limit(WAIT_LIMIT).build();
        let vm = vm.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        let far = vm.region::<u32>().name("far").replicas(2);
        let far = must(far.integrity(Integrity::Crc32c).zeroed(WORDS));
        let still_words: Vec<u32> = (0..24 * PAGE_WORDS as u32).map(|i| i ^ 0x5a5a_0000).collect();
        let still = vm.region::<u32>().name("still").replicas(2).read_only();
        let still = must(still.from_slice(&still_words));
        let single = vm.region::<u32>().name("single");
        let single = must(single.from_slice(&[7; 2 * PAGE_WORDS as usize]));
        Self {
            far,
            still,
            still_words,
            single,
            ledger: vm.buffer(WORDS).unwrap(),
            words: vm.buffer(WORDS).unwrap(),
            module: vm.compile("laps.cu", SOURCE, &KERNELS).unwrap(),
            vm,
        }
    }

    fn config() -> LaunchConfig {
        LaunchConfig::new(4, 64)
    }

    /// Starts a kernel that writes the laps from `first` to before `last`.
    fn start(&self, first: u32, last: u32) -> Launch {
        let laps = self.module.kernel("laps").unwrap();
        laps.launch(Self::config(), (&self.far, first, last, &self.ledger))
            .unwrap()
    }

    fn run(&self, first: u32, last: u32) {
        let ended = self.start(first, last).sync();
        ended.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    }

    /// The region that is written, and what its writer wrote down, hold this lap.
    fn holds(&self, lap: u32) {
        compare(&self.ledger.to_vec().unwrap(), &after(lap, WORDS as u32)).unwrap();
        compare(&self.far.to_vec().unwrap(), &after(lap, WORDS as u32)).unwrap();
    }

    fn read_still(&self) {
        let gather = self.module.kernel("gather").unwrap();
        let launch = gather.launch(Self::config(), (&self.still, &self.words)).unwrap();
        launch.sync().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        compare(
            &self.words.to_vec().unwrap()[..self.still_words.len()],
            &self.still_words,
        )
        .unwrap();
        compare(&self.still.to_vec().unwrap(), &self.still_words).unwrap();
    }

    /// The pages without a second copy are gone with the second node, for kernels and for the host.
    fn single_is_lost(&self, when: &str) {
        let sink = self.vm.buffer::<u32>(WORDS).unwrap();
        let gathers = self.module.kernel("gather_mutable").unwrap();
        let launch = gathers.launch(Self::config(), (&self.single, &sink)).unwrap();
        for message in [refused(launch.sync()), refused(self.single.to_vec())] {
            let named = message.contains("`single`") && message.contains(":7472");
            assert!(named, "{when}: {message}");
        }
        assert!(!self.single.health().unwrap().is_whole(), "{when}");
    }

    fn homes_lost(&self) -> usize {
        let health = self.far.health().unwrap();
        health.homes.iter().filter(|home| home.is_lost).count()
    }

    /// The second node ends while a kernel writes: the laps until `last` come out whole.
    fn outlives_a_node(&self, last: u32) {
        let launch = self.start(5, last);
        println!("\nRUNNING");
        let ended = launch.sync();
        drop(launch);
        println!("ENDED");
        ended.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        self.holds(last - 1);
        let health = self.far.health().unwrap();
        assert_eq!((self.homes_lost(), health.pages_without_copy), (1, 0), "{health:?}");
        let lost = health.homes.iter().find(|home| home.is_lost).expect("one is");
        println!("SURVIVED {last} laps without {}", lost.name);
    }

    /// A node that nothing runs, and one that has too little memory, are refused by name, and nothing of them is used.
    fn refuses_what_cannot_serve(&self, script: &Script) {
        let since = Instant::now();
        let message = refused(self.vm.catch_up());
        let named = message.contains(":7472") && message.contains("nothing listens");
        assert!(named, "{message}");
        assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
        self.single_is_lost("without the node");

        script.ask("REFUSE");
        let message = loop {
            let message = refused(self.vm.catch_up());
            // The old node's queue pairs may be known to its machine for a moment.
            if message.contains("does not grant") {
                break message;
            }
            assert!(since.elapsed() < Duration::from_secs(30), "{message}");
        };
        println!("# {message}");
        assert!(message.contains("`far`") || message.contains("`still`"), "{message}");
        assert_eq!(self.homes_lost(), 1);
        script.ask("GO");
    }

    /// The node serves again, with none of what it had, and is taken back in the background while a kernel writes.
    fn takes_a_node_back(&self, script: &Script, next: u32, last: u32) {
        let launch = self.start(next, last);
        script.ask("RETURN");
        let since = Instant::now();
        launch.sync().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        drop(launch);
        become_whole(&[&self.far, &self.still]);
        println!("WHOLE after {:.1} s", since.elapsed().as_secs_f32());
        self.holds(last - 1);
        self.read_still();
        self.single_is_lost("with the node");
        let words = after(1, WORDS as u32);
        let new = must(self.vm.region::<u32>().name("new").from_slice(&words));
        compare(&new.to_vec().unwrap(), &words).unwrap();
    }

    /// The other node goes, and is taken back when that is asked for.
    fn lives_without_the_other(&self, script: &Script, next: u32) {
        script.ask("OTHER");
        self.run(next, next + 3);
        self.holds(next + 2);
        self.read_still();
        println!("EXACT without the other");

        script.ask("BACK");
        let since = Instant::now();
        while let Err(error) = self.vm.catch_up() {
            assert!(since.elapsed() < Duration::from_secs(30), "{}", with_causes(&error));
        }
        let health = self.far.health().unwrap();
        assert!(
            health.is_whole() && self.still.health().unwrap().is_whole(),
            "{health:?}"
        );
        self.run(next + 3, next + 5);
        self.holds(next + 4);
    }
}

/// Waits until the threads that call nodes have ended: what was under way ends by itself, and a thread may have been the last
/// to hold the virtual memory.
fn callers_end() {
    let since = Instant::now();
    while callers() != 0 {
        assert!(since.elapsed() < Duration::from_secs(20), "the thread goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("the thread ended {:.2} s later", since.elapsed().as_secs_f32());
}

#[test]
fn replica_node_death() {
    let Some(files) = std::env::var_os("GPUVM_TEST_REPLICA_DIES") else {
        eprintln!("skipped: GPUVM_TEST_REPLICA_DIES does not say that somebody ends one of two memory nodes");
        return;
    };
    let script = Script { files: files.into() };
    let memory = AtTwoNodes::new();
    let since = Instant::now();
    memory.run(1, 5);
    memory.holds(4);
    memory.read_still();
    let health = memory.far.health().unwrap();
    assert!(health.is_whole() && health.homes.len() == 2, "{health:?}");

    // Kernels of some seconds, whatever this machine is.
    let laps = (24.0 / since.elapsed().as_secs_f32()).clamp(8.0, 5000.0) as u32;
    memory.outlives_a_node(5 + laps);
    memory.refuses_what_cannot_serve(&script);
    memory.takes_a_node_back(&script, 5 + laps, 5 + 2 * laps);
    memory.lives_without_the_other(&script, 5 + 2 * laps);

    // A virtual memory ends while nodes are called.
    script.ask("END");
    assert_eq!(memory.homes_lost(), 1);
    let since = Instant::now();
    drop(memory);
    let called = since.elapsed().as_secs_f32();
    callers_end();

    // One ends while a node is taken back.
    script.ask("BOTH");
    let vm = small(FRAMES).reliable_regions(true).build();
    let vm = vm.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    let far = must(vm.region::<u32>().name("far").replicas(2).zeroed(WORDS));
    script.ask("AGAIN");
    let since = Instant::now();
    drop((far, vm));
    let taken = since.elapsed().as_secs_f32();
    callers_end();
    assert!(called < 10.0 && taken < 10.0, "the ends took {called} s and {taken} s");
    println!("ALL WELL; the ends took {called:.1} s and {taken:.1} s");
}

/// Threads that call nodes and catch up.
fn callers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "gpuvm-catch-up").count()
}
