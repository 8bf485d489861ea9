//! A memory node that dies while a kernel writes pages that live there: run where `GPUVM_TEST_NODE` names a node that
//! somebody ends, with its machine or without, once `RUNNING` was printed; `GPUVM_TEST_NODE_DIES=1` says so. With
//! `GPUVM_TEST_REPLICA_DIES=FILE` it names two nodes, on ports 7471 and 7472, which somebody ends and starts again as the
//! test asks for it by a line `WORD`, and says that it is done by the file `FILE.WORD`: see the scenario
//! `replica_node_killed`.

use std::time::{Duration, Instant};

use crate::common::{Adjust, PAGE_WORDS, compare, refused, small, with_causes};
use gpuvm::{Integrity, LaunchConfig, Region};

/// Each lane writes its elements lap by lap: element `i` holds `lap * size + i`. What was written for sure is in `ledger`,
/// which is not paged.
const SOURCE: &str = r"
#include <gpuvm/gpuvm.cuh>

__global__ void laps(gpuvm::array<unsigned> a, unsigned first, unsigned last, unsigned* ledger) {
    unsigned n = static_cast<unsigned>(a.size());
    for (unsigned lap = first; lap < last; ++lap) {
        for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            a[i] = lap * n + i;
            if (gpuvm::failed()) return;
            ledger[i] = lap * n + i;
        }
    }
}

template <typename T>
__device__ void gather_from(gpuvm::array<T> a, unsigned* out) {
    unsigned n = static_cast<unsigned>(a.size());
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n && !gpuvm::failed(); i += gridDim.x * blockDim.x)
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
    let a = vm.region::<u32>(16 * PAGE_WORDS).zeroed().unwrap();
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
fn laps_are_whole_at_two_homes() {
    let vm = small(8).host_homes(2).guarded_regions(true).build();
    let vm = vm.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    // The kernel that `replica_node_death` runs, where a slow machine does not have to compile it.
    let module = vm.compile("laps.cu", SOURCE, &KERNELS).unwrap();
    let a = vm.region::<u32>(16 * PAGE_WORDS).at_host().replicas(2);
    let a = a.integrity(Integrity::Crc32c).zeroed().unwrap();
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
    // Twice as many pages as frames, so that pages go home and come back all the time.
    let n = 64 * PAGE_WORDS;
    let size = n as u32;
    let far = vm.region::<u32>(n).name("far").zeroed().unwrap();
    let near = vm.region::<u32>(n).name("near").at_host().zeroed().unwrap();
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
            assert!(Instant::now() < deadline, "nobody does {what}");
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

#[test]
fn replica_node_death() {
    let Some(files) = std::env::var_os("GPUVM_TEST_REPLICA_DIES") else {
        eprintln!("skipped: GPUVM_TEST_REPLICA_DIES does not say that somebody ends one of two memory nodes");
        return;
    };
    let script = Script { files: files.into() };
    let vm = small(32).guarded_regions(true).wait_limit(WAIT_LIMIT).build();
    let vm = vm.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    let module = vm.compile("laps.cu", SOURCE, &KERNELS).unwrap();
    let (laps, gather) = (module.kernel("laps").unwrap(), module.kernel("gather").unwrap());
    let n = 64 * PAGE_WORDS;
    let size = n as u32;
    let must = |made: gpuvm::Result<Region<u32>>| made.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    let far = vm.region::<u32>(n).name("far").replicas(2).integrity(Integrity::Crc32c);
    let far = must(far.zeroed());
    // A region that kernels only read, and one without a second copy.
    let still_words: Vec<u32> = (0..24 * PAGE_WORDS as u32).map(|i| i ^ 0x5a5a_0000).collect();
    let still = vm.region::<u32>(24 * PAGE_WORDS).name("still").replicas(2).read_only();
    let still = must(still.from_slice(&still_words));
    let single = vm.region::<u32>(2 * PAGE_WORDS).name("single");
    let single = must(single.from_slice(&[7; 2 * PAGE_WORDS as usize]));
    let (ledger, words) = (vm.buffer::<u32>(n).unwrap(), vm.buffer::<u32>(n).unwrap());
    let config = LaunchConfig::new(4, 64);
    let run = |first: u32, last: u32| {
        let launch = laps.launch(config.clone(), (&far, first, last, &ledger)).unwrap();
        launch.sync().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    };
    let read_still = || {
        let launch = gather.launch(config.clone(), (&still, &words)).unwrap();
        launch.sync().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        compare(&words.to_vec().unwrap()[..still_words.len()], &still_words).unwrap();
        compare(&still.to_vec().unwrap(), &still_words).unwrap();
    };
    let must_fail = |when: &str| {
        let sink = vm.buffer::<u32>(n).unwrap();
        let gathers = module.kernel("gather_mutable").unwrap();
        let message = refused(gathers.launch(config.clone(), (&single, &sink)).unwrap().sync());
        assert!(
            message.contains("`single`") && message.contains(":7472"),
            "{when}: {message}"
        );
        assert!(!single.health().unwrap().is_whole(), "{when}");
        let message = refused(single.to_vec());
        assert!(
            message.contains("`single`") && message.contains(":7472"),
            "{when}: {message}"
        );
    };
    let since = Instant::now();
    run(1, 5);
    compare(&far.to_vec().unwrap(), &after(4, size)).unwrap();
    read_still();
    let health = far.health().unwrap();
    assert!(health.is_whole() && health.homes.len() == 2, "{health:?}");

    // A kernel of some seconds, whatever this machine is.
    let lap = since.elapsed().as_secs_f32() / 4.0;
    let mut next = 5 + (6.0 / lap).clamp(8.0, 5000.0) as u32;
    let launch = laps.launch(config.clone(), (&far, 5u32, next, &ledger)).unwrap();
    println!("\nRUNNING");
    let ended = launch.sync();
    drop(launch);
    println!("ENDED");
    ended.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    compare(&ledger.to_vec().unwrap(), &after(next - 1, size)).unwrap();
    compare(&far.to_vec().unwrap(), &after(next - 1, size)).unwrap();
    let health = far.health().unwrap();
    let lost: Vec<_> = health.homes.iter().filter(|home| home.is_lost).collect();
    assert_eq!((lost.len(), health.pages_without_copy), (1, 0), "{health:?}");
    println!("SURVIVED {next} laps without {}", lost[0].name);

    // Nobody answers.
    let since = Instant::now();
    let message = refused(vm.catch_up());
    assert!(
        message.contains(":7472") && message.contains("nobody listens"),
        "{message}"
    );
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    must_fail("without the node");

    // Somebody answers who has too little memory: then nothing of it is used.
    script.ask("REFUSE");
    let message = loop {
        let message = refused(vm.catch_up());
        // The old node's queue pairs may be known to its machine for a moment.
        if message.contains("does not grant") {
            break message;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "{message}");
    };
    println!("# {message}");
    assert!(message.contains("`far`") || message.contains("`still`"), "{message}");
    assert_eq!(
        far.health().unwrap().homes.iter().filter(|home| home.is_lost).count(),
        1
    );
    script.ask("GO");

    // The node serves again, with none of what it had, and is taken back in the background while a kernel writes.
    let last = next + (6.0 / lap).clamp(8.0, 5000.0) as u32;
    let launch = laps.launch(config.clone(), (&far, next, last, &ledger)).unwrap();
    script.ask("RETURN");
    let since = Instant::now();
    launch.sync().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    drop(launch);
    become_whole(&[&far, &still]);
    println!("WHOLE after {:.1} s", since.elapsed().as_secs_f32());
    compare(&far.to_vec().unwrap(), &after(last - 1, size)).unwrap();
    read_still();
    must_fail("with the node");
    let new = must(vm.region::<u32>(n).name("new").from_slice(&after(1, size)));
    compare(&new.to_vec().unwrap(), &after(1, size)).unwrap();
    drop(new);
    next = last;

    // Now the other one may go.
    script.ask("OTHER");
    run(next, next + 3);
    next += 3;
    compare(&ledger.to_vec().unwrap(), &after(next - 1, size)).unwrap();
    compare(&far.to_vec().unwrap(), &after(next - 1, size)).unwrap();
    read_still();
    println!("EXACT without the other");

    // That one is taken back when it is asked for.
    script.ask("BACK");
    let since = Instant::now();
    while let Err(error) = vm.catch_up() {
        assert!(since.elapsed() < Duration::from_secs(30), "{}", with_causes(&error));
    }
    let health = far.health().unwrap();
    assert!(health.is_whole() && still.health().unwrap().is_whole(), "{health:?}");
    run(next, next + 2);
    compare(&far.to_vec().unwrap(), &after(next + 1, size)).unwrap();

    // A virtual memory ends while nodes are called.
    script.ask("END");
    assert_eq!(
        far.health().unwrap().homes.iter().filter(|home| home.is_lost).count(),
        1
    );
    let since = Instant::now();
    drop((far, still, single, ledger, words, laps, gather, module));
    drop(vm);
    let called = since.elapsed().as_secs_f32();
    let ended = || {
        // What was under way ends by itself; the thread may have been the last to hold the virtual memory.
        let since = Instant::now();
        while callers() != 0 {
            assert!(since.elapsed() < Duration::from_secs(20), "the thread goes on");
            std::thread::sleep(Duration::from_millis(20));
        }
        since.elapsed().as_secs_f32()
    };
    println!("the thread ended {:.2} s later", ended());

    // One ends while a node is taken back.
    script.ask("BOTH");
    let vm = small(32).guarded_regions(true).build();
    let vm = vm.unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    let far = must(vm.region::<u32>(n).name("far").replicas(2).zeroed());
    script.ask("AGAIN");
    let since = Instant::now();
    drop((far, vm));
    let taken = since.elapsed().as_secs_f32();
    println!("the thread ended {:.2} s later", ended());
    assert!(called < 10.0 && taken < 10.0, "the ends took {called} s and {taken} s");
    println!("ALL WELL; the ends took {called:.1} s and {taken:.1} s");
}

/// Threads that call nodes and catch up.
fn callers() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "gpuvm-catch-up").count()
}
