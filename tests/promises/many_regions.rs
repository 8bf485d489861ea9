//! As many regions as are documented, 65,536, are made and freed in a time that grows as their number does, in each way in which regions come
//! and go. Each time a look at all others would take minutes, and is far beyond the limit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use gpuvm::{Arg, ElementType, LaunchConfig, Queues, Region, Soft, Vm};

use crate::common::{BASIC, Bench, PAGE, scaled, simulated, simulated_gpu, simulated_soft};

/// Regions at one time, as `VmBuilder::regions_max` documents.
const MOST: usize = 1 << 16;

/// Calls `act`, which takes a second or two, and says how long it took.
fn in_time<R>(what: &str, act: impl FnOnce() -> R) -> R {
    let began = Instant::now();
    let result = act();
    let took = began.elapsed();
    println!("{what}: {took:?}");
    assert!(took < scaled(Duration::from_secs(30)), "{what}: {took:?}");
    result
}

/// A virtual memory with room for all of them, over the software NIC.
fn roomy() -> Vm {
    let gpu = simulated_gpu(4).memory(512 << 20);
    let vm = simulated_soft(4).gpu(gpu).regions_max(MOST as u32).build();
    vm.expect("a virtual memory")
}

fn some(vm: &Vm, count: usize) -> Vec<Region<u32>> {
    let one = |n| {
        vm.region::<u32>()
            .name(format!("region {n}"))
            .zeroed(4)
            .expect("a region")
    };
    (0..count).map(one).collect()
}

#[test]
fn as_many_as_are_documented_come_and_go_in_any_order() {
    let vm = roomy();
    let module = vm.compile(BASIC.name, BASIC.text, &["fill"]).expect("a kernel");
    let fill = module.kernel("fill").expect("a kernel");
    let mut regions: Vec<_> = in_time("made", || some(&vm, MOST)).into_iter().map(Some).collect();
    let refused = vm.region::<u32>().zeroed(4).map(drop).expect_err("one too many");
    assert!(refused.to_string().contains("all 65536 region slots"), "{refused}");
    for n in [0, MOST / 2, MOST - 1] {
        let region = regions[n].as_ref().expect("a region");
        let launch = fill.launch(LaunchConfig::new(1, 32), (region, n as u32));
        launch.and_then(|launch| launch.sync()).expect("a launch");
        assert_eq!(region.to_vec().expect("its elements")[3], n as u32 + 3);
    }
    // The memory between those that stay is used again.
    in_time("every other one freed from behind", || {
        (0..MOST).rev().step_by(2).for_each(|n| regions[n] = None);
    });
    let again = in_time("as many made again", || some(&vm, MOST / 2));
    in_time("the first freed", || drop(regions));
    in_time("the others freed", || drop(again));
}

#[test]
fn regions_of_many_priorities_come_and_go() {
    let vm = roomy();
    let priority = |n: usize| (n * 48_271 % 65_537) as i32 - 30_000;
    let one = |n| vm.region::<u32>().priority(priority(n)).zeroed(4).expect("a region");
    let regions: Vec<_> = in_time("made", || (0..MOST / 2).map(one).collect());
    in_time("moved", || {
        let moved = |(n, region): (usize, &Region<u32>)| region.set_priority(priority(n + 7));
        regions.iter().enumerate().try_for_each(moved).expect("new priorities");
    });
    in_time("freed", || drop(regions));
}

#[test]
fn regions_over_one_memory_and_beside_each_other_come_and_go() {
    let vm = roomy();
    let (read, mut written) = (vec![1_u32; MOST], vec![0_u32; 4 * MOST]);
    let scope = vm.scope(|scope| {
        // All of the first lie over the last element, inside each other.
        in_time("lent for reading", || {
            let each = (0..MOST / 2).map(|n| scope.read_only("read", &read[n..]));
            each.collect::<Result<Vec<_>, _>>().map(drop)
        })?;
        in_time("lent for writing", || {
            let pieces = written.chunks_mut(8);
            let each = pieces.map(|piece| scope.region("written", piece));
            each.collect::<Result<Vec<_>, _>>()
        })
        .map(drop)
    });
    scope.expect("what was lent comes back");
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(MOST as u64 * PAGE).expect("room in it");
    let parts: Vec<_> = in_time("maps of one file", || {
        let part = |n| {
            vm.region::<u32>()
                .map_file_span_mut(file.path(), n * PAGE, PAGE / 4)
                .expect("a map")
        };
        (0..8192).map(part).collect()
    });
    in_time("maps freed", || drop(parts));
}

#[test]
fn regions_with_two_homes_and_frames_of_their_own_come_and_go() {
    let queues = Queues::new().pairs(2).depth(16).host_homes(2);
    let builder = simulated(4).gpu(simulated_gpu(4).memory(512 << 20));
    let vm = builder
        .transport(Soft::new().queues(queues))
        .reliable_regions(true)
        .regions_max(MOST as u32);
    let vm = vm.build().expect("a virtual memory");
    let one = |_| {
        vm.region::<u32>()
            .replicas(2)
            .never_evicted()
            .zeroed(4)
            .expect("a region")
    };
    let regions: Vec<_> = in_time("made", || (0..MOST / 4).map(one).collect());
    in_time("freed", || drop(regions));
}

#[test]
fn places_come_back_while_launches_never_pause() {
    let bench = Bench::new(simulated(4).regions_max(8), BASIC);
    let streams = [0; 2].map(|_| bench.vm.stream().expect("a stream"));
    let mut before = None;
    // There is always a launch in flight: the next one begins before the one before is waited for.
    for n in 0..200_u32 {
        let region = bench.vm.region::<u32>().zeroed(64).expect("a place for a region");
        let fill = bench.kernel("fill");
        let launch = fill.launch_on(&streams[n as usize % 2], LaunchConfig::new(1, 32), (&region, n));
        let launch = launch.expect("a launch");
        if let Some((launch, region)) = before.replace((launch, region)) {
            gpuvm::Launch::sync(&launch).expect("a fill");
            drop((launch, region));
        }
    }
}

#[test]
fn buffers_of_all_kinds_come_and_go() {
    let vm = roomy();
    let buffers: Vec<_> = in_time("buffers made", || {
        let one = |_| vm.buffer::<u32>(4).expect("a buffer");
        (0..MOST).map(one).collect()
    });
    in_time("buffers freed", || drop(buffers));
    let elastic: Vec<_> = in_time("elastic buffers made", || {
        let one = |_| vm.elastic_buffer::<u32>(64).expect("an elastic buffer");
        (0..MOST / 16).map(one).collect()
    });
    in_time("elastic buffers freed", || drop(elastic));
}

/// Memory that says when it is given back.
struct Owner(Vec<u32>, Arc<AtomicBool>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Release);
    }
}

#[test]
fn memory_goes_with_its_region_although_handles_of_launches_stay() {
    let bench = Bench::new(simulated(4), BASIC);
    let gone = Arc::new(AtomicBool::new(false));
    let mut owner = Owner(vec![0; 64], Arc::clone(&gone));
    let (base, bytes) = (owner.0.as_mut_ptr().cast(), 256);
    let lent = bench.vm.raw_region(ElementType::U32).name("lent");
    // SAFETY: the owner keeps the memory, to which nothing else has a reference.
    let lent = unsafe { lent.from_owner(owner, base, bytes) }.expect("a region");
    let seven = 7_u32.to_ne_bytes();
    let args = [Arg::from(&lent), Arg::value(ElementType::U32, &seven)];
    let launch = bench.kernel("fill").launch_raw(LaunchConfig::new(1, 32), &args);
    let launch = launch.expect("a launch");
    launch.sync().expect("a fill");
    assert!(!gone.load(Ordering::Acquire));
    drop(lent);
    assert!(gone.load(Ordering::Acquire), "the launch was waited for");
    launch.sync().expect("it is told again");
    // The name of what met a fault is told again as well, whatever became of it.
    let faulty = Bench::new(simulated(4), crate::common::FAULTY);
    let short = faulty.vm.region::<u32>().name("short").zeroed(8).expect("a region");
    let out = faulty.vm.buffer::<u32>(1).expect("a buffer");
    let launch = faulty.launch("read_at", LaunchConfig::new(1, 1), (&short, 8_u64, &out));
    let told = || launch.sync().map(drop).expect_err("past the end").to_string();
    let first = told();
    drop((short, out));
    assert!(first.contains("short") && first == told(), "{first}");
}
