//! A region that kernels of several GPUs use: readers side by side, a writer alone, and the next one finds what was written last.
//! `GPUVM_TEST_GPUS=cuda:0,cuda:1` takes those GPUs in turns, in place of simulated ones; `GPUVM_TEST_COUNTS=4,8,16` takes this many.

use std::{sync::Arc, time::Duration};

use rand::RngExt;

use crate::common::{
    PAGE, PAGE_WORDS, compare, config, counts, file_to_map, named_gpus, refused, says, scaled, simulated_gpu,
    with_causes, words,
};
use crate::mock_gpu::MockGpu;
use crate::program::{rng, seeds};
use gpuvm::{Advice, Error, Kernel, Placement, Queues, Region, Soft, Transport, Vm, VmBuilder, VmGpu};

const FRAMES: u64 = 8;
const COUNT: u64 = 20 * PAGE_WORDS + 7;

const SOURCE: &str = r"
#include <gpuvm/gpuvm.cuh>
typedef unsigned long long u64;
__device__ inline u64 first_index() { return blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x; }
__device__ inline u64 lanes() { return static_cast<u64>(gridDim.x) * blockDim.x; }

__global__ void add(gpuvm::array<unsigned> a, unsigned by) {
    for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) a[i] += by;
}
__global__ void fill(gpuvm::array<unsigned> a, unsigned base) {
    for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) a[i] = base + static_cast<unsigned>(i);
}
__global__ void copy(gpuvm::array<const unsigned> from, gpuvm::array<unsigned> to) {
    for (u64 i = first_index(); i < to.size() && !from.failed(); i += lanes()) to[i] = from[i];
}
__global__ void sum(gpuvm::array<const unsigned> a, u64* out) {
    u64 total = 0;
    for (u64 i = first_index(); i < a.size() && !a.failed(); i += lanes()) total += a[i];
    atomicAdd(out, total);
}
// Reads until it is told to end, with a page held that may be dirty.
__global__ void read_on(gpuvm::array<const unsigned> a) {
    auto held = a.pin(0);
    while (!a.failed()) __nanosleep(1000);
}
__global__ void write_on(gpuvm::array<unsigned> a) {
    while (!a.failed()) a[first_index() * 1024 % a.size()] += 1;
}";

/// GPUs with frames for a part of each region.
fn several(count: usize, transport: impl Into<Transport>) -> VmBuilder {
    let gpus = named_gpus().unwrap_or_else(|| vec![simulated_gpu(FRAMES).workers(1).into()]);
    Vm::builder()
        .placement(Placement::Fetch)
        .gpus((0..count).map(|place| gpus[place % gpus.len()].clone()))
        .transport(transport)
        .frame_memory(FRAMES * PAGE)
        .page_size(PAGE)
        .wait_limit(scaled(Duration::from_secs(10)))
        .launch_deadline(scaled(Duration::from_secs(60)))
}

/// How many GPUs: of named ones the usual number, in turns.
fn numbers(usual: usize) -> Vec<usize> {
    match named_gpus() {
        Some(_) => vec![usual],
        None => counts(&[usual]),
    }
}

/// Each transport with each number of GPUs, two at least.
fn forms(usual: usize) -> Vec<(Transport, usize)> {
    let of = |transport: Transport| {
        numbers(usual)
            .into_iter()
            .map(move |count| (transport.clone(), count.max(2)))
    };
    transports().into_iter().flat_map(of).collect()
}

fn transports() -> [Transport; 2] {
    [
        Soft::new().queues(Queues::new().pairs(2).depth(16)).into(),
        Transport::Direct,
    ]
}

fn good<T>(outcome: Result<T, Error>) -> T {
    outcome.unwrap_or_else(|error| panic!("{}", with_causes(&error)))
}

/// The kernels on one GPU.
struct Node {
    gpu: VmGpu,
    add: Kernel,
    fill: Kernel,
    copy: Kernel,
    sum: Kernel,
    read_on: Kernel,
    write_on: Kernel,
}

impl Node {
    fn of(gpu: &VmGpu) -> Self {
        let names = ["add", "fill", "copy", "sum", "read_on", "write_on"];
        let kernels = gpu.kernels("shared.cu", SOURCE, names, &gpuvm::CompileOptions::default());
        let [add, fill, copy, sum, read_on, write_on] = good(kernels);
        Self {
            gpu: gpu.clone(),
            add,
            fill,
            copy,
            sum,
            read_on,
            write_on,
        }
    }

    fn add(&self, region: &Region<u32>, by: u32) {
        good(self.add.launch(config(), (region, by)).and_then(|launch| launch.sync()));
    }

    fn sum(&self, region: &Region<u32>) -> u64 {
        let out = good(self.gpu.buffer::<u64>(1));
        good(
            self.sum
                .launch(config(), (region, &out))
                .and_then(|launch| launch.sync()),
        );
        good(out.to_vec())[0]
    }
}

fn nodes(vm: &Vm) -> Vec<Node> {
    vm.gpus().iter().map(Node::of).collect()
}

fn total(values: &[u32]) -> u64 {
    values.iter().map(|&value| u64::from(value)).sum()
}

fn added(values: &[u32], by: u32) -> Vec<u32> {
    values.iter().map(|value| value.wrapping_add(by)).collect()
}

#[test]
fn writers_take_turns_and_readers_find_what_was_written_last() {
    for (transport, count) in forms(4) {
        let page = if matches!(transport, Transport::Direct) {
            16 * PAGE
        } else {
            PAGE
        };
        let vm = good(
            several(count, transport)
                .page_size(page)
                .frame_memory(FRAMES * page)
                .build(),
        );
        let nodes = nodes(&vm);
        let data = words(1, COUNT);
        let kept = good(vm.region().name("kept").never_evicted().from_slice(&data));
        let plain = good(nodes[count - 1].gpu.region().name("plain").from_slice(&data));
        let in_place = vm.region().name("in place").placement(Placement::InPlace);
        let in_place = good(in_place.from_slice(&data));
        good(in_place.advise(Advice::WriteOnce));
        for region in [kept, plain, in_place] {
            let mut model = data.clone();
            for round in 0..10u32 {
                // Two that write alternate at first, then all do; in some rounds nothing reads between.
                let last = count - 1;
                let writer = [0, 1, 0, 1, 2, 0, last, 1, 0, last - 1][round as usize];
                nodes[writer % count].add(&region, round * 0x0101_0101 + 1);
                model = added(&model, round * 0x0101_0101 + 1);
                if round % 3 == 2 {
                    for node in &nodes {
                        assert_eq!(node.sum(&region), total(&model), "round {round} of {region:?}");
                    }
                }
                if round == 6 {
                    compare(&good(region.to_vec()), &model).unwrap();
                }
            }
            compare(&good(region.to_vec()), &model).unwrap();
            good(region.close());
        }
    }
}

#[test]
fn readers_run_side_by_side_also_with_the_gpu_that_wrote() {
    for (transport, count) in forms(3) {
        let count = count.max(3);
        let vm = good(several(count, transport).build());
        let mut nodes = nodes(&vm);
        // The first two and the last.
        nodes.drain(2..count - 1);
        for kept in [false, true] {
            let builder = vm.region().name("read");
            let builder = if kept { builder.never_evicted() } else { builder };
            let region = good(builder.from_slice(&words(2, COUNT)));
            nodes[0].add(&region, 1);
            let model = added(&words(2, COUNT), 1);
            // It holds a page that is dirty.
            let first = good(nodes[0].read_on.launch(config(), (&region,)));
            let second = good(nodes[1].read_on.launch(config(), (&region,)));
            assert_eq!(nodes[2].sum(&region), total(&model));
            assert!(
                !first.is_done() && !second.is_done(),
                "a reader waited for another one's end"
            );
            // A writer waits for both.
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| nodes[2].add(&region, 5));
                std::thread::sleep(Duration::from_millis(50));
                assert!(!writer.is_finished());
                assert!(!first.is_done() && !second.is_done());
                first.abort();
                second.abort();
            });
            let model = added(&model, 5);
            assert!(first.is_done() && second.is_done());
            compare(&good(region.to_vec()), &model).unwrap();
            // The page that was held has nothing of its own any more, which could be written back when others need its frame.
            let sweep = good(nodes[0].gpu.region().name("sweep").from_slice(&words(9, 4 * COUNT)));
            assert_eq!(nodes[0].sum(&sweep), total(&words(9, 4 * COUNT)));
            assert_eq!(nodes[1].sum(&region), total(&model));
            assert_eq!(nodes[0].sum(&region), total(&model));
            nodes[1].add(&region, 1);
            compare(&good(region.to_vec()), &added(&model, 1)).unwrap();
        }
    }
}

#[test]
fn a_writer_that_waits_is_bounded_by_the_others_deadline() {
    let vm = good(several(2, Transport::Direct).build());
    let nodes = nodes(&vm);
    let region = good(vm.region().from_slice(&words(3, COUNT)));
    let endless = nodes[0]
        .write_on
        .launch(config().deadline(Duration::from_millis(300)), (&region,));
    let endless = good(endless);
    good(
        nodes[1]
            .fill
            .launch(config(), (&region, 7u32))
            .and_then(|launch| launch.sync()),
    );
    assert!(endless.sync().is_err(), "it ended at its deadline");
    compare(&good(region.to_vec()), &(7..7 + COUNT as u32).collect::<Vec<_>>()).unwrap();
}

#[test]
fn all_gpus_read_one_read_only_region() {
    for (transport, count) in forms(8) {
        let vm = good(several(count, transport).build());
        let some = count * 5 / 8;
        let nodes = nodes(&vm);
        let data = words(4, 8 * COUNT);
        let untouched: Vec<u64> = vm.gpus().iter().map(VmGpu::bookkeeping_bytes).collect();
        let region = vm.region().name("graph").read_only().placement(Placement::Auto);
        let region = good(region.from_slice(&data));
        assert_eq!(
            vm.gpus()[some].bookkeeping_bytes(),
            untouched[some],
            "it is where it is used"
        );
        std::thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(|| assert_eq!(node.sum(&region), total(&data)));
            }
        });
        assert!(vm.gpus()[some].bookkeeping_bytes() > untouched[some]);
        assert!(vm.gpus().iter().all(|gpu| good(gpu.stats()).pages_written_back == 0));
        drop(region);
        let left: Vec<u64> = vm.gpus().iter().map(VmGpu::bookkeeping_bytes).collect();
        assert_eq!(left, untouched);
    }
}

#[test]
fn lent_memory_and_mapped_files_are_whole_afterwards() {
    for transport in transports() {
        let vm = good(several(2, transport).build());
        let nodes = nodes(&vm);
        let mut memory = words(5, COUNT);
        good(vm.scope(|scope| {
            let lent = scope.region("lent", &mut memory)?;
            nodes[0].add(&lent, 1);
            nodes[1].add(&lent, 2);
            Ok(())
        }));
        compare(&memory, &added(&words(5, COUNT), 3)).unwrap();
        let file = file_to_map();
        std::fs::write(file.path(), bytemuck::cast_slice::<u32, u8>(&words(6, COUNT))).unwrap();
        let mapped = good(vm.region::<u32>().map_file_mut(file.path()));
        nodes[1].add(&mapped, 1);
        nodes[0].add(&mapped, 1);
        good(mapped.flush());
        let expected = added(&words(6, COUNT), 2);
        assert_eq!(
            std::fs::read(file.path()).unwrap(),
            bytemuck::cast_slice::<u32, u8>(&expected)
        );
        nodes[1].add(&mapped, 1);
        good(mapped.close());
        let expected = added(&expected, 1);
        assert_eq!(
            std::fs::read(file.path()).unwrap(),
            bytemuck::cast_slice::<u32, u8>(&expected)
        );
    }
}

#[test]
fn host_threads_launch_on_all_gpus_at_once() {
    for (transport, count) in forms(4) {
        let vm = good(several(count, transport).build());
        let nodes = nodes(&vm);
        let regions = [0, 1].map(|seed| good(vm.region().from_slice(&words(seed, COUNT))));
        std::thread::scope(|scope| {
            for (place, node) in nodes.iter().enumerate() {
                let regions = &regions;
                scope.spawn(move || {
                    for round in 0..6 {
                        node.add(&regions[(place + round) % 2], 1);
                        // Two regions at once, in either order.
                        let [from, to] = [&regions[place % 2], &regions[1 - place % 2]];
                        if round == 3 {
                            good(node.sum.launch(config(), (from, &node.gpu.buffer::<u64>(1).unwrap())))
                                .sync()
                                .unwrap();
                            good(to.flush());
                        }
                    }
                });
            }
        });
        for (seed, region) in (0..).zip(&regions) {
            compare(&good(region.to_vec()), &added(&words(seed, COUNT), 3 * count as u32)).unwrap();
        }
    }
}

/// One random program over `gpus` GPUs, beside a model of it.
fn program(seed: u64, gpus: usize, transport: Transport) {
    let rng = &mut rng(seed);
    let vm = good(several(gpus, transport).build());
    let nodes = nodes(&vm);
    let mut regions = Vec::new();
    for kind in 0..4u32 {
        let data = words(seed + u64::from(kind), COUNT);
        let builder = nodes[rng.random_range(0..gpus)]
            .gpu
            .region()
            .name(format!("kind {kind}"));
        let builder = match kind {
            1 => builder.never_evicted(),
            2 => builder.placement(Placement::Auto),
            _ => builder,
        };
        regions.push((good(builder.from_slice(&data)), data));
    }
    for turn in 0..60 {
        let node = &nodes[rng.random_range(0..gpus)];
        let (at, other) = (rng.random_range(0..regions.len()), rng.random_range(0..regions.len()));
        let (region, _) = &regions[at];
        let by = rng.random::<u32>();
        match rng.random_range(0..20) {
            0..8 => {
                // Not waited for: what comes next orders itself behind it.
                let launch = good(node.add.launch(config(), (region, by)));
                drop(launch);
                regions[at].1 = added(&regions[at].1, by);
            }
            8..12 => assert_eq!(node.sum(region), total(&regions[at].1), "seed {seed}, turn {turn}"),
            12..14 if at != other => {
                let (from, to) = (&regions[other].0, region);
                drop(good(node.copy.launch(config(), (from, to))));
                regions[at].1 = regions[other].1.clone();
            }
            14 => {
                let first = rng.random_range(0..COUNT - 100);
                good(region.write(first, &[by; 100]));
                regions[at].1[first as usize..][..100].fill(by);
            }
            15 => compare(&good(region.to_vec()), &regions[at].1).unwrap(),
            16 => good(region.evict()),
            17 => good(region.flush_beside()),
            18 => {
                // What is home is what is dropped back to: pages that are never evicted go there by a flush alone.
                good(region.flush());
                if at == 1 {
                    drop(good(node.add.launch(config(), (region, by))));
                }
                good(region.discard(0..COUNT));
            }
            _ => {
                let all = [Advice::WriteOnce, Advice::Normal, Advice::InPlace, Advice::ReadOnce];
                good(region.advise(all[rng.random_range(0..4)]));
            }
        }
    }
    for (region, data) in &regions {
        compare(&good(region.to_vec()), data).unwrap_or_else(|wrong| panic!("seed {seed}, {region:?}: {wrong}"));
    }
    // In any order.
    let mut left: Vec<Box<dyn std::any::Any>> = vec![Box::new(vm), Box::new(nodes)];
    left.extend(regions.into_iter().map(|(region, _)| Box::new(region) as _));
    while !left.is_empty() {
        drop(left.swap_remove(rng.random_range(0..left.len())));
    }
}

#[test]
fn random_programs_over_2_to_8_gpus_come_to_what_a_plain_array_comes_to() {
    for seed in seeds(20_000, 8) {
        for count in numbers(2 + (seed % 7) as usize) {
            program(seed, count, transports()[seed as usize % 2].clone());
        }
    }
}

#[test]
fn a_kernel_that_is_killed_leaves_the_region_to_the_others() {
    for transport in transports() {
        let vm = good(
            several(2, transport)
                .gpus([simulated_gpu(FRAMES).workers(1), simulated_gpu(FRAMES).workers(1)])
                .build(),
        );
        let nodes = nodes(&vm);
        let region = good(vm.region().from_slice(&words(7, COUNT)));
        let killed = good(nodes[0].write_on.launch(config(), (&region,)));
        std::thread::sleep(Duration::from_millis(20));
        killed.kill();
        good(
            nodes[1]
                .fill
                .launch(config(), (&region, 3u32))
                .and_then(|launch| launch.sync()),
        );
        assert!(killed.sync().is_err());
        nodes[0].add(&region, 1);
        compare(&good(region.to_vec()), &(4..4 + COUNT as u32).collect::<Vec<_>>()).unwrap();
    }
}

#[test]
fn a_gpu_that_is_lost_costs_its_writes_is_told_once_and_the_others_go_on() {
    let lost = [MockGpu::new(None), MockGpu::new(None)];
    let vm = several(2, transports()[0].clone()).gpus([Arc::clone(&lost[0]), Arc::clone(&lost[1])]);
    let vm = good(vm.build());
    let nodes = nodes(&vm);
    let [a, b, read] = ["a", "b", "read"].map(|name| good(vm.region().name(name).from_slice(&words(8, COUNT))));
    for region in [&a, &b, &read] {
        nodes[1].add(region, 1);
    }
    // GPU 0 has written `a` and `b` since; `read` it has only read.
    nodes[0].add(&a, 1);
    nodes[0].add(&b, 1);
    nodes[0].sum(&read);
    lost[0].lose();
    let told = |outcome: Result<(), Error>, region: &str| {
        let Err(Error::WritesLost {
            region: named, gpu: 0, ..
        }) = &outcome
        else {
            panic!("{outcome:?}");
        };
        assert_eq!(named, region);
        says(&refused(outcome), &["GPU 0", "pulled it out"]);
    };
    // By a launch, by the host; then no more.
    told(nodes[1].add.launch(config(), (&a, 1u32)).map(drop), "a");
    told(b.to_vec().map(drop), "b");
    compare(&good(read.to_vec()), &added(&words(8, COUNT), 1)).unwrap();
    for region in [&a, &b] {
        // Each page as GPU 1 left it, or as GPU 0 did where it had gone home.
        let home = good(region.to_vec());
        let sound = |(&found, &was): (&u32, &u32)| [1, 2].contains(&found.wrapping_sub(was));
        assert!(home.iter().zip(&words(8, COUNT)).all(sound));
        good(region.write(0, &words(9, COUNT)));
        nodes[1].add(region, 3);
        assert_eq!(nodes[1].sum(region), total(&added(&words(9, COUNT), 3)));
        compare(&good(region.to_vec()), &added(&words(9, COUNT), 3)).unwrap();
        good(region.advise(Advice::ReadOnce));
    }
    assert!(matches!(
        nodes[0].add.launch(config(), (&a, 1u32)),
        Err(Error::GpuLost { .. })
    ));
    for region in [a, b, read] {
        good(region.close());
    }
}

#[test]
fn what_one_gpu_alone_reaches_is_refused_with_the_reason() {
    let gpu = || MockGpu::new(Some((9, 0)));
    let vm = good(several(2, Transport::Direct).gpus([gpu(), gpu()]).build());
    let nodes = nodes(&vm);
    let at_neighbour = good(vm.region::<u32>().home_on_gpu(crate::mock_gpu::NEIGHBOUR).zeroed(COUNT));
    let taken = nodes[1].add.launch(config(), (&at_neighbour, 1u32)).map(drop);
    assert!(matches!(taken, Err(Error::OtherGpu { gpu: 1, of: 0, .. })), "{taken:?}");
    let message = refused(taken);
    assert!(message.contains("neighbour GPU"), "{message}");
    let sum = good(vm.buffer::<u64>(1));
    let region = good(vm.region::<u32>().zeroed(COUNT));
    let message = refused(nodes[1].sum.launch(config(), (&region, &sum)));
    assert!(message.contains("plain memory belongs to one GPU"), "{message}");
    // Checksums and replicas are one GPU's.
    let soft = Soft::new().queues(Queues::new().pairs(2).depth(16).host_homes(2));
    let vm = good(
        several(2, soft)
            .gpus([simulated_gpu(FRAMES), simulated_gpu(FRAMES)])
            .build(),
    );
    let add = Node::of(vm.gpu(1).unwrap()).add;
    for builder in [
        vm.region::<u32>().replicas(2),
        vm.region::<u32>().integrity(gpuvm::Integrity::Crc32c),
    ] {
        let region = good(builder.zeroed(COUNT));
        let message = refused(add.launch(config(), (&region, 1u32)));
        assert!(message.contains("memory of one GPU"), "{message}");
    }
}
