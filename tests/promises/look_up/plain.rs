//! Arrays whose frames follow each other as their pages do: launches use them as plain memory.

use super::{N, PLAIN_ADD, add, config, direct, values};
use crate::common::{Bench, Kernels, PAGE_WORDS, compare, simulated};
use gpuvm::{Error, FaultKind, Kernel, Region, Transport};
use gpuvm_simulate::adjust::Adjust;

const SOURCE: Kernels = Kernels {
    name: "plain.cu",
    text: r"
#include <gpuvm/gpuvm.cuh>
using u64 = unsigned long long;
__device__ u64 lane() { return blockIdx.x * 1ull * blockDim.x + threadIdx.x; }
__device__ u64 lanes() { return gridDim.x * 1ull * blockDim.x; }
__global__ void add(gpuvm::array<unsigned> a, gpuvm::array<const unsigned> b, unsigned factor) {
    for (u64 i = lane(); i < a.size(); i += lanes()) a[i] += factor * b[i];
}
// Which form of the kernel it is, and how many elements are not where plain memory has them.
__global__ void form(gpuvm::array<unsigned> a, unsigned* out) {
#if defined(GPUVM_LOOKS_UP)
    if (lane() == 0) out[0] = GPUVM_LOOKS_UP;
    for (u64 i = lane(); i < a.size(); i += lanes())
        if (&a[i] != &a[0] + i) atomicAdd(&out[1], 1u);
#endif
}
// One element of each of this many pages.
__global__ void touch(gpuvm::array<const unsigned> a, u64 pages, unsigned* out) {
    for (u64 page = lane(); page < pages; page += lanes()) atomicAdd(out, a[page * 1024] & 1);
}
// Reads each page, and stores to one.
__global__ void one(gpuvm::array<unsigned> a) {
    const auto& read = a;
    unsigned sum = 0;
    for (u64 i = lane() * 256; i < a.size(); i += lanes() * 256) sum += read[i];
    if (lane() == 0) a[5000] = sum | 1;
}
__global__ void past_the_end(gpuvm::array<unsigned> a, unsigned* out) {
    if (lane() == 0) *out = a[a.size() + 5] + 1;
    if (lane() == 1) a[a.size() + 6] = 7;
}
",
};

/// The form in which a launch over `a` ran.
fn form(bench: &Bench, a: &Region<u32>) -> u32 {
    let out = bench.vm.buffer::<u32>(2).unwrap();
    out.write(&[0, 0]).unwrap();
    bench.must("form", config(), (a, &out));
    let out = out.to_vec().unwrap();
    assert!(out[0] != PLAIN || out[1] == 0, "{out:?}");
    out[0]
}

const PLAIN: u32 = 4;
/// Of two arrays of `N` elements.
const PAGES: u64 = 2 * N.div_ceil(PAGE_WORDS);

#[test]
fn arrays_that_frames_hold_become_plain_memory_and_what_is_stored_there_comes_home() {
    for frames in [PAGES, PAGES + 9] {
        let bench = Bench::new(direct(frames), SOURCE);
        let (mut wanted, b) = (values(1), values(2));
        let a = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
        let of_b = bench.vm.region::<u32>().read_only().from_slice(&b).unwrap();
        let step = |wanted: &mut Vec<u32>, factor: u32| {
            bench.must("add", config(), (&a, &of_b, factor));
            add(wanted, &b, factor);
        };
        for factor in 1..=4 {
            step(&mut wanted, factor);
        }
        assert_eq!(form(&bench, &a), PLAIN);
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
        // The host has looked: the frames are as before.
        step(&mut wanted, 5);
        assert_eq!(form(&bench, &a), PLAIN);
        // It is salvaged, flushed beside launches, and leaves its frames.
        step(&mut wanted, 6);
        let saved = a.salvage().unwrap();
        let saved: Vec<u32> = saved.into_iter().flat_map(|page| page.elements).collect();
        compare(&saved, &wanted).unwrap();
        step(&mut wanted, 7);
        step(&mut wanted, 7);
        a.flush_beside().unwrap();
        step(&mut wanted, 8);
        a.evict().unwrap();
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
        // What the host writes is there for plain launches that come later.
        a.write(5, &[9; 3000]).unwrap();
        wanted[5..3005].fill(9);
        step(&mut wanted, 1);
        // The first launch used its pages at home.
        let home = wanted.clone();
        for factor in 2..=3 {
            step(&mut wanted, factor);
        }
        assert_eq!(form(&bench, &a), PLAIN);
        a.discard(0..N).unwrap();
        compare(&a.to_vec().unwrap(), &home).unwrap();
    }
}

#[test]
fn what_plain_launches_only_read_is_not_written_home() {
    let bench = Bench::new(direct(PAGES), SOURCE);
    let b = values(2);
    let of_b = bench.vm.region::<u32>().from_slice(&b).unwrap();
    let out = bench.vm.buffer::<u32>(1).unwrap();
    for _ in 0..4 {
        bench.must("touch", config(), (&of_b, PAGES / 2, &out));
    }
    compare(&of_b.to_vec().unwrap(), &b).unwrap();
    assert_eq!(bench.vm.stats().unwrap().pages_written_back, 0);
}

#[test]
fn frames_that_do_not_follow_each_other_serve_as_before() {
    let bench = Bench::new(direct(PAGES + 2), SOURCE);
    let (mut wanted, b) = (values(3), values(4));
    // Its few pages lie where the frames of no other region can follow each other.
    let few = bench
        .vm
        .region::<u32>()
        .from_slice(&[1; 3 * PAGE_WORDS as usize])
        .unwrap();
    let out = bench.vm.buffer::<u32>(1).unwrap();
    for _ in 0..3 {
        bench.must("touch", config(), (&few, 3u64, &out));
    }
    let a = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
    let of_b = bench.vm.region::<u32>().read_only().from_slice(&b).unwrap();
    for factor in 1..=4u32 {
        bench.must("add", config(), (&a, &of_b, factor));
        add(&mut wanted, &b, factor);
    }
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
    assert_eq!(few.to_vec().unwrap(), vec![1; 3 * PAGE_WORDS as usize]);
}

/// Touches this many pages of each region until this many have come, and no more: other GPUs than those that follow a seed look at marks now and then.
fn touch_until(bench: &Bench, regions: &[&Region<u32>], (used, out): (u64, &gpuvm::Buffer<u32>), come: u64) {
    let fetched = || bench.vm.stats().unwrap().pages_fetched;
    for turn in 0.. {
        for region in regions {
            bench.must("touch", config(), (*region, used, out));
        }
        if turn > 3 && fetched() >= come {
            break;
        }
        assert!(turn < 2000, "{} of {come} pages have come", fetched());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(fetched(), come);
}

/// Two arrays for which frames suffice are used more and more, in turns: each page has its frame from the first look on.
#[test]
fn arrays_that_come_bit_by_bit_become_plain_memory() {
    let (bench, pages) = (Bench::new(direct(PAGES).seed(1), SOURCE), PAGES / 2);
    let mut wanted = values(1);
    let a = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
    let b = bench.vm.region::<u32>().from_slice(&values(2)).unwrap();
    let out = bench.vm.buffer::<u32>(1).unwrap();
    for (used, come) in [(1, 2), (3, 6), (5, 10), (pages - 2, PAGES)] {
        // Of the last ones most were used, and in the end no more: the others come, too.
        touch_until(&bench, &[&a, &b], (used, &out), come);
    }
    for factor in 1..=3 {
        bench.must("add", config(), (&a, &b, factor));
        add(&mut wanted, &values(2), factor);
    }
    assert_eq!([form(&bench, &a), form(&bench, &b)], [PLAIN, PLAIN]);
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
    compare(&b.to_vec().unwrap(), &values(2)).unwrap();
}

/// What is used of an array is no more than before, and more than half: the rest comes.
#[test]
fn an_array_of_which_most_is_used_again_and_again_becomes_plain_memory() {
    let (bench, pages) = (Bench::new(direct(PAGES).seed(2), SOURCE), PAGES / 2);
    let a = bench.vm.region::<u32>().from_slice(&values(1)).unwrap();
    let out = bench.vm.buffer::<u32>(1).unwrap();
    for (used, come) in [(pages / 3, pages / 3), (pages * 2 / 3, pages)] {
        touch_until(&bench, &[&a], (used, &out), come);
    }
    assert_eq!(form(&bench, &a), PLAIN);
    compare(&a.to_vec().unwrap(), &values(1)).unwrap();
}

/// Pages that were not used stay at home, and their frames serve others.
#[test]
fn an_array_that_is_used_in_part_takes_no_more_frames_than_that() {
    let pages = PAGES / 2;
    let bench = Bench::new(direct(pages + 2), SOURCE);
    let a = bench.vm.region::<u32>().from_slice(&values(5)).unwrap();
    let mut other = values(6);
    let out = bench.vm.buffer::<u32>(1).unwrap();
    for _ in 0..3 {
        bench.must("touch", config(), (&a, 2u64, &out));
    }
    assert_eq!(bench.vm.stats().unwrap().pages_fetched, 2);
    let of_other = bench.vm.region::<u32>().from_slice(&other).unwrap();
    for factor in 1..=4u32 {
        bench.must("add", config(), (&of_other, &a, factor));
        add(&mut other, &values(5), factor);
    }
    compare(&of_other.to_vec().unwrap(), &other).unwrap();
}

#[test]
fn an_index_past_the_end_of_plain_memory_is_told_and_harms_nobody() {
    let bench = Bench::new(direct(PAGES), SOURCE);
    let wanted = values(6);
    let a = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
    let other = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
    for _ in 0..3 {
        assert_ne!(form(&bench, &other), 0);
        bench.must("add", config(), (&a, &other, 0u32));
    }
    assert_eq!(form(&bench, &a), PLAIN);
    let out = bench.vm.buffer::<u32>(1).unwrap();
    let Err(Error::Fault { fault, .. }) = bench.run("past_the_end", config(), (&a, &out)) else {
        panic!("no fault");
    };
    let past =
        |kind: &FaultKind| matches!(kind, FaultKind::OutOfRange { index, length: N } if (N + 5..N + 7).contains(index));
    assert!(past(&fault.kind), "{fault}");
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
    compare(&other.to_vec().unwrap(), &wanted).unwrap();
}

/// As compilers write it: adds to `a`, and tells the low half of its address.
fn told_add() -> String {
    let told = PLAIN_ADD
        .replace("plain_add_param_3\n)", "plain_add_param_3,\n\t.param .u64 told\n)")
        .replace("mov.u32 \t%r2, %ctaid.x;", "{ .reg .b32 %t; .reg .b64 %at; ld.param.u64 %at, [told]; cvt.u32.u64 %t, %rd1; st.relaxed.gpu.global.u32 [%at], %t; }\n\tmov.u32 \t%r2, %ctaid.x;");
    assert_eq!(told.matches("told").count(), 2);
    told
}

#[test]
fn kernels_that_came_as_ptx_run_as_they_are_over_plain_memory() {
    for (frames, fits) in [(PAGES, true), (7, false)] {
        let bench = Bench::new(direct(frames), SOURCE);
        let (mut wanted, b) = (values(7), values(8));
        let a = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
        let of_b = bench.vm.region::<u32>().read_only().from_slice(&b).unwrap();
        let kernel: Kernel = bench
            .vm
            .load_ptx("told.ptx", told_add().as_bytes())
            .unwrap()
            .kernel("plain_add")
            .unwrap();
        let told = bench.vm.buffer::<u32>(1).unwrap();
        let mut step = |factor: u32| {
            kernel
                .launch(config(), (&a, &of_b, factor, N, &told))
                .unwrap()
                .sync()
                .unwrap();
            add(&mut wanted, &b, factor);
            (told.to_vec().unwrap()[0], wanted.clone())
        };
        let (in_window, _) = step(1);
        let mut last = (in_window, Vec::new());
        for factor in 2..=5 {
            last = step(factor);
        }
        assert_eq!(last.0 != in_window, fits, "{frames} frames: {:#x}", last.0);
        compare(&a.to_vec().unwrap(), &last.1).unwrap();
        // The host has written, and pages were given back.
        a.write(0, &[3; 2 * PAGE_WORDS as usize]).unwrap();
        let mut wanted = last.1;
        wanted[..2 * PAGE_WORDS as usize].fill(3);
        for factor in 1..=3u32 {
            kernel
                .launch(config(), (&a, &of_b, factor, N, &told))
                .unwrap()
                .sync()
                .unwrap();
            add(&mut wanted, &b, factor);
        }
        a.evict().unwrap();
        compare(&a.to_vec().unwrap(), &wanted).unwrap();
        compare(&of_b.to_vec().unwrap(), &b).unwrap();
    }
}

/// What is flushed again and again behind one launch is written back as far as it was written, and no further.
#[test]
fn arrays_that_the_host_looks_at_after_each_launch_are_not_written_home_as_a_whole_for_ever() {
    let bench = Bench::new(direct(PAGES), SOURCE);
    let a = bench.vm.region::<u32>().from_slice(&values(1)).unwrap();
    let (mut before, mut written) = (0, Vec::new());
    for _ in 0..8 {
        bench.must("one", config(), (&a,));
        a.flush().unwrap();
        let now = bench.vm.stats().unwrap().pages_written_back;
        written.push(now - before);
        before = now;
    }
    assert_eq!(written[6..], [1, 1], "{written:?}");
}

/// Who writes the home page by page, past the library, loses nothing to pages that a launch only might have written.
#[test]
fn arrays_whose_homes_others_write_are_written_home_as_far_as_they_were_stored_to() {
    let bench = Bench::new(simulated(PAGES).transport(Transport::Direct), SOURCE);
    let mut wanted = values(1);
    let a = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
    for _ in 0..3 {
        form(&bench, &a);
    }
    assert_eq!(form(&bench, &a), PLAIN);
    let home = a.home_memory().unwrap();
    assert_ne!(form(&bench, &a), PLAIN);
    // One launch stores to page 4, and somebody else to page 1.
    a.flush().unwrap();
    bench.must("one", config(), (&a,));
    let word = (home.addr as *mut u32).wrapping_add(1500);
    // SAFETY: the home is the region's memory, which has this many words; no launch runs, and no reference to it is held.
    unsafe { word.write(77) };
    a.wrote().unwrap();
    let found = a.to_vec().unwrap();
    assert_eq!(found[1500], 77);
    wanted[1500] = 77;
    wanted[5000] = found[5000];
    compare(&found, &wanted).unwrap();
}
