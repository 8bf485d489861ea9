//! A memory node that dies while a kernel writes pages that live there: run where `GPUVM_TEST_NODE` names a node that
//! somebody ends, with its machine or without, once `RUNNING` was printed; `GPUVM_TEST_NODE_DIES=1` says so. With
//! `GPUVM_TEST_REPLICA_DIES=FILE` it names two nodes, of which one is ended then and serves again once `FILE` is there.

mod common;

use std::time::{Duration, Instant};

use common::{PAGE_WORDS, chain, compare, refused, small};
use gpuvm::{Integrity, LaunchConfig};

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
";

/// Longest time without an answer before a lane gives up.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// The elements after lap `lap`.
fn after(lap: u32, size: u32) -> Vec<u32> {
    (0..size).map(|i| lap * size + i).collect()
}

#[test]
fn laps_are_whole_where_nothing_dies() {
    let vm = small(8).build().unwrap_or_else(|error| panic!("{}", chain(&error)));
    let module = vm.compile("laps.cu", SOURCE, &["laps"]).unwrap();
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
    let vm = vm.unwrap_or_else(|error| panic!("{}", chain(&error)));
    // The kernel that `replica_node_death` runs, where a slow machine does not have to compile it.
    let module = vm.compile("laps.cu", SOURCE, &["laps"]).unwrap();
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
    let vm = vm.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let module = vm.compile("laps.cu", SOURCE, &["laps"]).unwrap();
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

    let salvaged = far.salvage().unwrap_or_else(|error| panic!("{}", chain(&error)));
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
        .unwrap_or_else(|error| panic!("a region at this host: {}", chain(&error)));
    compare(&near.to_vec().unwrap(), &after(7, size)).unwrap();
}

#[test]
fn replica_node_death() {
    let Some(returned) = std::env::var_os("GPUVM_TEST_REPLICA_DIES") else {
        eprintln!("skipped: GPUVM_TEST_REPLICA_DIES does not say that somebody ends one of two memory nodes");
        return;
    };
    let build = || {
        let vm = small(32).guarded_regions(true).build();
        vm.unwrap_or_else(|error| panic!("{}", chain(&error)))
    };
    let vm = build();
    let module = vm.compile("laps.cu", SOURCE, &["laps"]).unwrap();
    let laps = module.kernel("laps").unwrap();
    let n = 64 * PAGE_WORDS;
    let size = n as u32;
    let far = vm.region::<u32>(n).name("far").replicas(2).integrity(Integrity::Crc32c);
    let far = far.zeroed().unwrap_or_else(|error| panic!("{}", chain(&error)));
    let ledger = vm.buffer::<u32>(n).unwrap();
    let config = LaunchConfig::new(4, 64);
    let since = Instant::now();
    laps.launch(config.clone(), (&far, 1u32, 5u32, &ledger))
        .unwrap()
        .sync()
        .unwrap_or_else(|error| panic!("{}", chain(&error)));
    compare(&far.to_vec().unwrap(), &after(4, size)).unwrap();
    let health = far.health().unwrap();
    assert!(health.is_whole() && health.homes.len() == 2, "{health:?}");

    // A kernel of some seconds, whatever this machine is.
    let lap = since.elapsed().as_secs_f32() / 4.0;
    let last = 5 + (6.0 / lap).clamp(8.0, 5000.0) as u32;
    let launch = laps.launch(config.clone(), (&far, 5u32, last, &ledger)).unwrap();
    println!("\nRUNNING");
    let ended = launch.sync();
    println!("ENDED");
    ended.unwrap_or_else(|error| panic!("{}", chain(&error)));
    compare(&ledger.to_vec().unwrap(), &after(last - 1, size)).unwrap();
    compare(&far.to_vec().unwrap(), &after(last - 1, size)).unwrap();
    let health = far.health().unwrap();
    let lost: Vec<_> = health.homes.iter().filter(|home| home.is_lost).collect();
    assert_eq!((lost.len(), health.pages_without_copy), (1, 0), "{health:?}");
    println!("SURVIVED {last} laps without {}", lost[0].name);

    // The node serves again, with none of what it had. This virtual memory goes on without it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !std::path::Path::new(&returned).exists() {
        assert!(Instant::now() < deadline, "nobody starts the node again");
        std::thread::sleep(Duration::from_millis(20));
    }
    vm.catch_up().unwrap_or_else(|error| panic!("{}", chain(&error)));
    laps.launch(config.clone(), (&far, last, last + 3, &ledger))
        .unwrap()
        .sync()
        .unwrap_or_else(|error| panic!("{}", chain(&error)));
    let found = far.to_vec().unwrap();
    compare(&found, &after(last + 2, size)).unwrap();
    let health = far.health().unwrap();
    assert_eq!(health.homes.iter().filter(|home| home.is_lost).count(), 1, "{health:?}");
    drop((far, ledger, laps, module, vm));
    // A new one has both.
    let vm = build();
    let again = vm.region::<u32>(n).name("again").replicas(2);
    let again = again
        .from_slice(&found)
        .unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(again.health().unwrap().is_whole());
    let module = vm.compile("laps.cu", SOURCE, &["laps"]).unwrap();
    let ledger = vm.buffer::<u32>(n).unwrap();
    let laps = module.kernel("laps").unwrap();
    laps.launch(config, (&again, 7u32, 9u32, &ledger))
        .unwrap()
        .sync()
        .unwrap_or_else(|error| panic!("{}", chain(&error)));
    compare(&again.to_vec().unwrap(), &after(8, size)).unwrap();
    assert!(again.health().unwrap().is_whole());
    println!("WHOLE again in a new virtual memory");
}
