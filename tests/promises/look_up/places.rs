//! Memory that neighbours lend holds pages that launches look up and that have no frame: they are read there, in place.

use std::time::{Duration, Instant};

use super::{
    N, SOURCE, add, config, placed,
    series::{STEPS, begin, put, told},
    values,
};
use crate::common::{Bench, Kernels, PAGE, PAGE_WORDS, compare, scaled, simulated_gpu};
use crate::mock_gpu::MockGpu;
use gpuvm::{Buffer, Placement, Region, Series, Transport, Vm, VmBuilder};

const AGAIN: Kernels = Kernels {
    name: "places.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>
using u64 = unsigned long long;
__device__ u64 lane() { return blockIdx.x * 1ull * blockDim.x + threadIdx.x; }
__device__ u64 lanes() { return gridDim.x * 1ull * blockDim.x; }
// Adds up some of the elements until it is told to end; how often it has, and what it makes in the end.
__global__ void until_told(gpuvm::array<const unsigned> a, const unsigned* end, unsigned* begun, unsigned* wrong,
                           unsigned wanted) {
    bool last;
    do {
        last = *reinterpret_cast<const volatile unsigned*>(end) != 0;
        unsigned sum = 0;
        for (u64 i = 0; i < a.size(); i += 32) sum += a[i];
        if (sum != wanted) atomicAdd(wrong, 1u);
        if (lane() == 0) atomicAdd(begun, 1u);
        __nanosleep(2000);
    } while (!last && !a.failed());
}
__global__ void add(gpuvm::array<unsigned> a, gpuvm::array<const unsigned> b, unsigned factor) {
    for (u64 i = lane(); i < a.size(); i += lanes()) a[i] += factor * b[i];
}
__global__ void read(gpuvm::array<const unsigned> a, unsigned* out, u64 first, u64 count) {
    for (u64 i = lane(); i < count; i += lanes()) out[i] = a[first + i];
}
",
};

/// Pages of the regions here, a quarter of them that have frames, and a half that have slots.
const PAGES: u64 = N.div_ceil(PAGE_WORDS);
const FRAMES: u64 = PAGES / 4;
const SLOTS: u64 = PAGES / 2;

/// A GPU with few frames that borrows this many pages each of this many neighbours.
fn borrowing(neighbours: u32, each: u64) -> VmBuilder {
    let builder = Vm::builder()
        .gpu(simulated_gpu(FRAMES + 64).neighbours(neighbours).seed(1))
        .page_size(PAGE)
        .transport(Transport::Direct)
        .frame_memory(FRAMES * PAGE)
        .borrowed_chunk(PAGE)
        .wait_limit(scaled(Duration::from_secs(10)))
        .launch_deadline(scaled(Duration::from_secs(60)));
    (1..=neighbours).fold(builder, |builder, gpu| builder.borrow_from(gpu, each * PAGE))
}

/// What kernels read of a region.
fn read(bench: &Bench, a: &Region<u32>) -> Vec<u32> {
    let out = bench.vm.buffer::<u32>(N).unwrap();
    bench.must("read", config(), (a, &out, 0u64, N));
    out.to_vec().unwrap()
}

fn reads(bench: &Bench, a: &Region<u32>, wanted: &[u32], times: u32) {
    for _ in 0..times {
        compare(&read(bench, a), wanted).unwrap();
    }
}

fn filled(bench: &Bench) -> u64 {
    bench.vm.stats().unwrap().pages_to_neighbours
}

#[test]
fn pages_without_a_frame_are_read_where_a_neighbour_has_them() {
    let bench = Bench::new(borrowing(1, SLOTS), SOURCE);
    let old = values(1);
    // Nothing more has to be said than what is borrowed.
    let a = bench.vm.region::<u32>().read_only().from_slice(&old).unwrap();
    assert_eq!(a.effective().placement, Placement::LookUp);
    reads(&bench, &a, &old, 2);
    assert_eq!(filled(&bench), SLOTS);
    let stats = bench.vm.stats().unwrap();
    assert_eq!((stats.pages_fetched, stats.victims_copied), (FRAMES, 0), "{stats:?}");
    // Behind the region's back its home changes: what is read of the home alone is new.
    let home = a.home_memory().unwrap().addr as *mut u32;
    for page in 0..PAGES {
        let at = (page * PAGE_WORDS + 5) as usize;
        // SAFETY: the home is there as long as the region, no launch runs, and no reference to it is there.
        unsafe { home.add(at).write(!old[at]) };
    }
    let found = read(&bench, &a);
    let is_old = |page: &u64| {
        let at = (page * PAGE_WORDS + 5) as usize;
        found[at] == old[at]
    };
    let still = (0..PAGES).filter(is_old).count() as u64;
    // One page may have left its frame, and one its slot, for pages that are used as much.
    assert!(
        still + 2 >= FRAMES + SLOTS && still <= FRAMES + SLOTS,
        "{still} pages were not read at home"
    );
}

#[test]
fn launches_that_write_find_no_page_at_a_neighbour_and_those_that_read_find_them_again() {
    let bench = Bench::new(borrowing(1, SLOTS), SOURCE);
    let (mut wanted, of_b) = (values(1), values(2));
    let a = placed(&bench).from_slice(&wanted).unwrap();
    let b = placed(&bench).from_slice(&of_b).unwrap();
    for factor in 1..=3u32 {
        let before = filled(&bench);
        reads(&bench, &a, &wanted, 8);
        assert!(filled(&bench) > before, "in round {factor}");
        bench.must("add", config(), (&a, &b, factor));
        add(&mut wanted, &of_b, factor);
        // Not at once: what is written again and again would be copied for nothing.
        let before = filled(&bench);
        b.evict().unwrap();
        reads(&bench, &a, &wanted, 2);
        assert_eq!(filled(&bench), before, "in round {factor}");
    }
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
    compare(&b.to_vec().unwrap(), &of_b).unwrap();
}

#[test]
fn what_the_host_stores_and_what_launches_fetch_is_not_hidden_by_old_copies() {
    let bench = Bench::new(borrowing(1, SLOTS), SOURCE);
    let (mut wanted, of_b) = (values(3), values(4));
    let a = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
    let fetched = bench.vm.region::<u32>().placement(Placement::Fetch);
    let b = fetched.read_only().from_slice(&of_b).unwrap();
    for round in 0..6u32 {
        let before = filled(&bench);
        reads(&bench, &a, &wanted, 8);
        assert!(filled(&bench) > before, "in round {round}");
        match round % 3 {
            0 => {
                let new = values(50 + round);
                let first = (PAGE_WORDS * u64::from(round) + 9) as usize;
                a.write(first as u64, &new[..3000]).unwrap();
                wanted[first..][..3000].copy_from_slice(&new[..3000]);
            }
            // With a region that is fetched all are: the pages of that one go to the neighbour as they leave their frames.
            1 => {
                bench.must("add", config(), (&a, &b, round));
                add(&mut wanted, &of_b, round);
                // What it has at the neighbour stays there otherwise.
                b.evict().unwrap();
            }
            _ => {
                a.flush().unwrap();
                a.discard(0..N).unwrap();
            }
        }
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
    }
    assert!(bench.vm.stats().unwrap().victims_copied > 0);
}

#[test]
fn a_region_that_ends_or_leaves_gives_all_its_slots_back() {
    let bench = Bench::new(borrowing(1, SLOTS), SOURCE);
    for round in 0..4 {
        let wanted = values(round);
        let a = placed(&bench).read_only().from_slice(&wanted).unwrap();
        let before = filled(&bench);
        reads(&bench, &a, &wanted, 2);
        assert_eq!(filled(&bench) - before, SLOTS, "in round {round}");
        if round % 2 == 0 {
            a.evict().unwrap();
            let other = placed(&bench).read_only().from_slice(&wanted).unwrap();
            reads(&bench, &other, &wanted, 2);
            assert_eq!(filled(&bench) - before, 2 * SLOTS, "in round {round}");
        }
    }
}

#[test]
fn pages_come_from_the_neighbour_when_frames_are_free() {
    let bench = Bench::new(borrowing(1, PAGES), SOURCE);
    let (of_a, of_b) = (values(1), values(2));
    let a = placed(&bench).read_only().from_slice(&of_a).unwrap();
    let b = placed(&bench).read_only().from_slice(&of_b).unwrap();
    reads(&bench, &a, &of_a, 2);
    // All frames are the other one's, so all of these come to the neighbour, as far as there is room.
    reads(&bench, &b, &of_b, 2);
    let before = bench.vm.stats().unwrap();
    a.evict().unwrap();
    reads(&bench, &b, &of_b, 70);
    let after = bench.vm.stats().unwrap().difference(&before);
    assert!(after.victims_fetched >= FRAMES - 1, "{after:?}");
    assert!(after.bytes_from_neighbours() > 0, "{after:?}");
}

#[test]
fn a_neighbour_has_its_memory_back_between_launches() {
    for neighbours in [1, 2, 3] {
        let each = SLOTS / u64::from(neighbours);
        let bench = Bench::new(borrowing(neighbours, each), SOURCE);
        let wanted = values(7);
        let a = placed(&bench).read_only().from_slice(&wanted).unwrap();
        reads(&bench, &a, &wanted, 2);
        assert_eq!(filled(&bench), SLOTS);
        for gpu in 1..=neighbours {
            assert_eq!(bench.vm.give_back_to(gpu, u64::MAX / 2).unwrap(), each * PAGE);
            assert_eq!(bench.vm.borrowed_bytes(), (SLOTS - each * u64::from(gpu)) * PAGE);
            reads(&bench, &a, &wanted, 3);
        }
        assert!(bench.vm.stats().unwrap().loans_awaited_ns > 0);
        // It was freed: there is none of it to be written.
        let borrowed = bench.vm.borrow_again(u64::MAX / 2).unwrap();
        assert_eq!(borrowed, SLOTS * PAGE);
        let before = filled(&bench);
        reads(&bench, &a, &wanted, 3);
        assert!(filled(&bench) > before);
        // A part of each loan, which stays allocated: what is not lent is written where nothing reads it.
        assert_eq!(bench.vm.give_back_borrowed(PAGE).unwrap(), PAGE);
        assert_eq!(bench.vm.scribble_given_back(0xdd).unwrap(), PAGE);
        reads(&bench, &a, &wanted, 3);
    }
}

#[test]
fn memory_that_a_launch_reads_is_free_when_that_has_ended() {
    let bench = Bench::new(borrowing(1, SLOTS).gpu(simulated_gpu(FRAMES + 64).neighbours(1)), AGAIN);
    let wanted = values(8);
    let a = placed(&bench).read_only().from_slice(&wanted).unwrap();
    let other = placed(&bench).read_only().from_slice(&values(9)).unwrap();
    reads(&bench, &a, &wanted, 3);
    let [end, begun, wrong] = [0; 3].map(|_| bench.vm.buffer::<u32>(1).unwrap());
    [&end, &begun, &wrong]
        .iter()
        .for_each(|buffer| buffer.write(&[0]).unwrap());
    let sum = wanted
        .iter()
        .step_by(32)
        .fold(0, |sum: u32, value| sum.wrapping_add(*value));
    let launch = bench.launch("until_told", config(), (&a, &end, &begun, &wrong, sum));
    let wait_for_more = || {
        let now = || {
            let mut now = [0; 4];
            bench.vm.device().read(begun.addr(), &mut now).unwrap();
            u32::from_ne_bytes(now)
        };
        let (before, begun) = (now(), Instant::now());
        while now() < before + 2 {
            assert!(
                !launch.is_done() && begun.elapsed() < scaled(Duration::from_secs(30)),
                "it does not go on"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for_more();
    assert_eq!(bench.vm.give_back_borrowed(u64::MAX / 2).unwrap(), SLOTS * PAGE);
    assert_eq!(bench.vm.borrowed_bytes(), 0);
    // Another region's launch goes on meanwhile, and finds no slot of those.
    let before = filled(&bench);
    let (beside, out) = (bench.vm.stream().unwrap(), bench.vm.buffer::<u32>(N).unwrap());
    for _ in 0..3 {
        let kernel = bench.kernel("read");
        kernel
            .launch_on(&beside, config(), (&other, &out, 0u64, N))
            .unwrap()
            .sync()
            .unwrap();
        compare(&out.to_vec().unwrap(), &values(9)).unwrap();
    }
    assert_eq!(filled(&bench), before);
    wait_for_more();
    assert_eq!(bench.vm.stats().unwrap().loans_awaited_ns, 0, "it is read still");
    bench.vm.device().write(end.addr(), &1u32.to_ne_bytes()).unwrap();
    launch.sync().unwrap();
    assert_eq!(wrong.to_vec().unwrap(), [0]);
    reads(&bench, &a, &wanted, 1);
    assert!(bench.vm.stats().unwrap().loans_awaited_ns > 0);
    reads(&bench, &a, &wanted, 2);
}

/// Kernels that came as PTX find pages by entries in a window.
#[test]
fn rewritten_kernels_read_at_a_neighbour() {
    let bench = Bench::new(borrowing(1, SLOTS), SOURCE);
    let wanted = values(5);
    let a = placed(&bench).read_only().from_slice(&wanted).unwrap();
    let module = bench
        .vm
        .load_ptx("again.ptx", include_str!("again.ptx").as_bytes())
        .unwrap();
    let kernel = module.kernel("again").unwrap();
    let out = bench.vm.buffer::<u32>(1).unwrap();
    let sum = wanted
        .iter()
        .step_by(32)
        .fold(0u32, |sum, value| sum.wrapping_add(*value));
    for turn in 0..8 {
        out.write(&[0]).unwrap();
        let launch = kernel.launch(config(), (&a, N, 2u32, 100u32, &out)).unwrap();
        launch.sync().unwrap();
        assert_eq!(out.to_vec().unwrap(), [sum.wrapping_mul(2)]);
        if turn == 5 {
            // One may have left its slot for another since.
            assert!(filled(&bench) >= SLOTS);
            bench.vm.give_back_borrowed(u64::MAX / 2).unwrap();
        }
    }
}

/// A launch that stores while others read: it waits for those, since they may find pages at the neighbour where it stores to their homes.
#[test]
fn a_launch_that_writes_waits_for_readers_of_a_neighbours_memory() {
    let bench = Bench::new(borrowing(1, SLOTS), SOURCE);
    let (mut wanted, of_b) = (values(1), values(2));
    let a = placed(&bench).from_slice(&wanted).unwrap();
    let b = placed(&bench).read_only().from_slice(&of_b).unwrap();
    let [before, out] = [0; 2].map(|_| bench.vm.buffer::<u32>(N).unwrap());
    for factor in 1..=6u32 {
        reads(&bench, &a, &wanted, 6);
        let reading = bench.launch("read", config(), (&a, &before, 0u64, N));
        let writing = bench.launch("add", config(), (&a, &b, factor));
        let again = bench.launch("read", config(), (&a, &out, 0u64, N));
        reading.sync().unwrap();
        writing.sync().unwrap();
        again.sync().unwrap();
        compare(&before.to_vec().unwrap(), &wanted).unwrap();
        add(&mut wanted, &of_b, factor);
        compare(&out.to_vec().unwrap(), &wanted).unwrap();
    }
}

#[test]
fn a_region_that_two_gpus_use_is_right_on_both() {
    let gpus = [0, 1].map(|_| gpuvm::Gpu::from(simulated_gpu(FRAMES + 64).neighbours(1).seed(3)));
    let bench = Bench::new(borrowing(1, SLOTS).gpus(gpus), SOURCE);
    let (mut wanted, of_b) = (values(1), values(2));
    let a = placed(&bench).from_slice(&wanted).unwrap();
    let b = placed(&bench).read_only().from_slice(&of_b).unwrap();
    let other = &bench.vm.gpus()[1];
    let [add_there] = other
        .kernels(SOURCE.name, SOURCE.text, ["add"], &Default::default())
        .unwrap();
    for factor in 1..=4u32 {
        reads(&bench, &a, &wanted, 6);
        add_there.launch(config(), (&a, &b, factor)).unwrap().sync().unwrap();
        add(&mut wanted, &of_b, factor);
        // Not at once, as behind launches here that write.
        let before = filled(&bench);
        reads(&bench, &a, &wanted, 2);
        assert_eq!(filled(&bench), before, "in round {factor}");
    }
    reads(&bench, &a, &wanted, 3);
    assert!(filled(&bench) >= 2 * SLOTS);
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
}

#[test]
fn a_launch_that_is_stopped_leaves_pages_where_they_are_read_right() {
    let bench = Bench::new(borrowing(1, SLOTS).gpu(simulated_gpu(FRAMES + 64).neighbours(1)), AGAIN);
    let (wanted, of_b) = (values(8), values(9));
    let a = placed(&bench).read_only().from_slice(&wanted).unwrap();
    let b = placed(&bench).read_only().from_slice(&of_b).unwrap();
    let [end, begun, wrong] = [0; 3].map(|_| bench.vm.buffer::<u32>(1).unwrap());
    for _ in 0..3 {
        reads(&bench, &a, &wanted, 3);
        [&end, &begun, &wrong]
            .iter()
            .for_each(|buffer| buffer.write(&[0]).unwrap());
        let launch = bench.launch("until_told", config(), (&a, &end, &begun, &wrong, 0u32));
        launch.kill();
        launch.sync().unwrap_err();
        // The other one's pages must not come to slots that the first one's are in.
        reads(&bench, &b, &of_b, 3);
        reads(&bench, &a, &wanted, 3);
    }
}

/// Launches that overlap do not keep memory from its owner: those of a region that reads there wait for each other, and all do once the owner has waited for long.
#[test]
fn launches_that_overlap_let_an_owner_have_its_memory() {
    let gpu = simulated_gpu(FRAMES + 64).neighbours(1);
    let limit = Duration::from_millis(300);
    let bench = Bench::new(borrowing(1, SLOTS).gpu(gpu).wait_limit(limit), AGAIN);
    let [of_a, of_other] = [8, 9].map(values);
    let a = placed(&bench).read_only().from_slice(&of_a).unwrap();
    let other = placed(&bench).read_only().from_slice(&of_other).unwrap();
    let [end, begun, wrong] = [0; 3].map(|_| bench.vm.buffer::<u32>(1).unwrap());
    let (beside, out) = (bench.vm.stream().unwrap(), bench.vm.buffer::<u32>(N).unwrap());
    let sum = of_a
        .iter()
        .step_by(32)
        .fold(0, |sum: u32, value| sum.wrapping_add(*value));
    for (next, wanted) in [(&a, &of_a), (&other, &of_other)] {
        reads(&bench, &a, &of_a, 3);
        for buffer in [&end, &begun, &wrong] {
            buffer.write(&[0]).unwrap();
        }
        let launch = bench.launch("until_told", config(), (&a, &end, &begun, &wrong, sum));
        let before = bench.vm.stats().unwrap().loans_awaited_ns;
        assert!(bench.vm.give_back_borrowed(u64::MAX / 2).unwrap() > 0);
        if std::ptr::eq(next, &other) {
            std::thread::sleep(2 * limit);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(limit);
                bench.vm.device().write(end.addr(), &1u32.to_ne_bytes()).unwrap();
            });
            let reading = bench.kernel("read").launch_on(&beside, config(), (next, &out, 0u64, N));
            assert!(launch.is_done(), "it reads what an owner waits for");
            reading.unwrap().sync().unwrap();
        });
        launch.sync().unwrap();
        assert!(bench.vm.stats().unwrap().loans_awaited_ns > before);
        assert_eq!(wrong.to_vec().unwrap(), [0]);
        compare(&out.to_vec().unwrap(), wanted).unwrap();
        bench.vm.borrow_again(u64::MAX / 2).unwrap();
    }
}

/// A series over `a` whose launch a graph has captured, once pages have come to the neighbour: it copies all of it to `out`.
fn captured(gpu: &MockGpu, bench: &Bench, a: &Region<u32>, out: &Buffer<u32>) -> Series {
    let copy = bench.kernel("copy");
    let mut begun = begin(a, false);
    for _ in 0..3 {
        assert!(put(&begun, &copy, 4, out.addr()));
        begun.end().unwrap();
        begun = begin(a, false);
    }
    gpu.capture(true);
    assert!(put(&begun, &copy, 4, out.addr()));
    gpu.capture(false);
    // The graph goes on.
    begun.end().unwrap();
    begun
}

/// What the graph reads.
fn replayed(gpu: &MockGpu, bench: &Bench, out: &Buffer<u32>) -> Vec<u32> {
    gpu.launch_captured();
    told(bench, out)
}

#[test]
fn memory_that_a_graph_reads_is_not_free_until_something_else_looks_its_pages_up() {
    let gpu = MockGpu::new(None);
    let bench = Bench::new(borrowing(1, SLOTS).gpu(gpu.clone()), STEPS);
    let (wanted, of_other) = (values(1), values(2));
    let a = placed(&bench).read_only().from_slice(&wanted).unwrap();
    let other = placed(&bench).from_slice(&of_other).unwrap();
    let out = bench.vm.buffer::<u32>(N).unwrap();
    let _series = captured(&gpu, &bench, &a, &out);
    // One may have left its slot for another since.
    assert!(filled(&bench) >= SLOTS);
    // Within what was borrowed together: all stays backed.
    assert_eq!(bench.vm.give_back_borrowed(4 * PAGE).unwrap(), 4 * PAGE);
    for _ in 0..3 {
        compare(&replayed(&gpu, &bench, &out), &wanted).unwrap();
        bench.must("step", config(), (&other, 0u64));
    }
    assert_eq!(
        bench.vm.stats().unwrap().loans_awaited_ns,
        0,
        "the graph reads it still"
    );
    let again = begin(&a, false);
    assert!(put(&again, &bench.kernel("copy"), 4, out.addr()));
    again.end().unwrap();
    compare(&told(&bench, &out), &wanted).unwrap();
    assert!(bench.vm.stats().unwrap().loans_awaited_ns > 0);
    assert_eq!(bench.vm.scribble_given_back(0xdd).unwrap(), 4 * PAGE);
    compare(&replayed(&gpu, &bench, &out), &wanted).unwrap();
    compare(&other.to_vec().unwrap(), &of_other).unwrap();
    a.forget_graphs().unwrap();
    a.evict().unwrap();
}

/// Rewritten kernels look up entries, and the graph goes on with places.
#[test]
fn a_graph_follows_pages_that_left_the_neighbour_for_a_rewritten_kernel() {
    let gpu = MockGpu::new(None);
    let bench = Bench::new(borrowing(1, SLOTS).gpu(gpu.clone()), STEPS);
    let wanted = values(3);
    let a = placed(&bench).read_only().from_slice(&wanted).unwrap();
    let out = bench.vm.buffer::<u32>(N).unwrap();
    let _series = captured(&gpu, &bench, &a, &out);
    assert_eq!(bench.vm.give_back_borrowed(4 * PAGE).unwrap(), 4 * PAGE);
    let module = bench
        .vm
        .load_ptx("again.ptx", include_str!("again.ptx").as_bytes())
        .unwrap();
    let sums = bench.vm.buffer::<u32>(1).unwrap();
    let again = module.kernel("again").unwrap();
    for _ in 0..3 {
        let launch = again.launch(config(), (&a, N, 1u32, 0u32, &sums)).unwrap();
        launch.sync().unwrap();
        assert_eq!(bench.vm.scribble_given_back(0xdd).unwrap(), 4 * PAGE);
        compare(&replayed(&gpu, &bench, &out), &wanted).unwrap();
    }
    assert!(bench.vm.stats().unwrap().loans_awaited_ns > 0);
}

#[test]
fn regions_keep_what_is_lent_while_an_owner_waits_for_another() {
    let gpu = MockGpu::new(None);
    let bench = Bench::new(borrowing(1, 4 * PAGES).gpu(gpu.clone()), STEPS);
    let (of_a, of_b) = (values(1), values(2));
    let a = placed(&bench).read_only().from_slice(&of_a).unwrap();
    let b = placed(&bench).read_only().from_slice(&of_b).unwrap();
    let [of_graph, out] = [0; 2].map(|_| bench.vm.buffer::<u32>(N).unwrap());
    let copied = |times: u64| {
        for _ in 0..times {
            bench.must("copy", config(), (&b, out.addr()));
            compare(&out.to_vec().unwrap(), &of_b).unwrap();
        }
    };
    copied(3);
    let _series = captured(&gpu, &bench, &a, &of_graph);
    bench.vm.give_back_borrowed(PAGE).unwrap();
    copied(1);
    let (before, rounds) = (filled(&bench), 8);
    copied(rounds);
    assert_eq!(bench.vm.stats().unwrap().loans_awaited_ns, 0);
    // Only pages that give way to each other move.
    let came = filled(&bench) - before;
    assert!(came < 3 * rounds, "{came} pages came in {rounds} launches");
    compare(&replayed(&gpu, &bench, &of_graph), &of_a).unwrap();
}
