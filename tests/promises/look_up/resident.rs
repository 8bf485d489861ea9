//! Arrays whose homes GPU threads do not reach are looked up while all of their pages have frames.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use super::{N, add, config, placed, values};
use crate::common::{Bench, Kernels, PAGE, PAGE_WORDS, compare, scaled, small_soft};
use gpuvm::{Advice, Buffer, Region, VmBuilder};

const PAGES: u64 = N.div_ceil(PAGE_WORDS);

/// The kernels tell their form: 0 where a page that is missing is a fault.
const SOURCE: Kernels = Kernels {
    name: "resident.cu",
    text: r#"
#include <gpuvm/gpuvm.cuh>
using u64 = unsigned long long;
#if defined(GPUVM_LOOKS_UP)
constexpr unsigned kForm = GPUVM_LOOKS_UP;
#else
constexpr unsigned kForm = 0;
#endif
__device__ u64 lane() { return blockIdx.x * 1ull * blockDim.x + threadIdx.x; }
__device__ u64 lanes() { return gridDim.x * 1ull * blockDim.x; }
__global__ void add(gpuvm::array<unsigned> a, gpuvm::array<const unsigned> b, unsigned factor, unsigned* form) {
    if (lane() == 0) *form = kForm;
    for (u64 i = lane(); i < a.size(); i += lanes()) a[i] += factor * b[i];
}
__global__ void count(gpuvm::array<unsigned> a, u64 first, u64 count, unsigned* form) {
    if (lane() == 0) *form = kForm;
    for (u64 i = lane(); i < count; i += lanes()) a.atomic_add(first + i, 1);
}
// What compiles where pages are faults alone.
__global__ void faults(gpuvm::array<unsigned> a, unsigned* form) {
    if (lane() == 0) *form = kForm;
    for (u64 i = lane(); i < a.size(); i += lanes()) a[i] += 1;
#if defined(GPUVM_LOOKS_UP) && defined(GPUVM_TEST_FAULTS)
    static_assert(kForm == 0, "a text that is not made for it");
#endif
}
"#,
};

const FAULTS: u32 = 0;
/// All pages have frames: nothing that is read is marked.
const COMPLETE: u32 = 3;

struct Arrays {
    bench: Bench,
    a: Region<u32>,
    b: Region<u32>,
    form: Buffer<u32>,
    /// What `a` is to hold, and what `b` does.
    wanted: Vec<u32>,
    added: Vec<u32>,
}

impl Arrays {
    fn new(builder: VmBuilder) -> Self {
        let (wanted, added) = (values(1), values(2));
        let bench = Bench::new(builder, SOURCE);
        let a = placed(&bench).name("a").from_slice(&wanted).unwrap();
        let b = placed(&bench).name("b").read_only().from_slice(&added).unwrap();
        let form = bench.vm.buffer::<u32>(1).unwrap();
        Self {
            bench,
            a,
            b,
            form,
            wanted,
            added,
        }
    }

    /// `a += factor * b`, in which form.
    fn add(&mut self, factor: u32) -> u32 {
        self.bench.must("add", config(), (&self.a, &self.b, factor, &self.form));
        add(&mut self.wanted, &self.added, factor);
        self.form.to_vec().unwrap()[0]
    }

    /// Adds `b` again and again until it is looked up. Pages are not counted before each launch.
    fn until_complete(&mut self) {
        let limit = Instant::now() + scaled(Duration::from_secs(30));
        loop {
            let form = self.add(1);
            if form == COMPLETE {
                return;
            }
            let (a, b) = (self.a.effective(), self.b.effective());
            assert!(
                Instant::now() < limit,
                "launches have form {form} still: {a}; {b}; {:?}",
                self.bench.vm.stats()
            );
        }
    }

    /// Adds 1 to elements of the pages, in which form.
    fn count(&mut self, pages: Range<u64>) -> u32 {
        let (first, end) = (pages.start * PAGE_WORDS, (pages.end * PAGE_WORDS).min(N));
        let args = (&self.a, first, end - first, &self.form);
        self.bench.must("count", config(), args);
        let counted = &mut self.wanted[first as usize..end as usize];
        counted.iter_mut().for_each(|value| *value = value.wrapping_add(1));
        self.form.to_vec().unwrap()[0]
    }

    fn compare(&self) {
        compare(&self.a.to_vec().unwrap(), &self.wanted).unwrap();
        self.bench.no_violations();
    }
}

#[test]
fn launches_look_pages_up_once_all_have_frames() {
    let mut arrays = Arrays::new(small_soft(2 * PAGES + 1));
    assert_eq!(arrays.add(3), FAULTS);
    arrays.until_complete();
    let before = arrays.bench.vm.stats().unwrap();
    assert_eq!(arrays.add(7), COMPLETE);
    let after = arrays.bench.vm.stats().unwrap();
    assert_eq!(after.pages_fetched, before.pages_fetched);
    // What it stored is written back, and is stored to again.
    arrays.compare();
    arrays.until_complete();
    arrays.compare();
    assert!(arrays.bench.vm.stats().unwrap().pages_written_back >= 2 * PAGES);
}

#[test]
fn nothing_changes_where_frames_are_too_few_or_faults_were_asked_for() {
    let mut short = Arrays::new(small_soft(2 * PAGES - 1));
    let mut asked = Arrays::new(small_soft(2 * PAGES + 1));
    assert!(asked.a.effective().while_resident);
    assert!(asked.a.advise(Advice::Fetch).unwrap() && !asked.a.effective().while_resident);
    for arrays in [&mut short, &mut asked] {
        assert_eq!([1, 2, 3, 4].map(|factor| arrays.add(factor)), [FAULTS; 4]);
        arrays.compare();
    }
}

#[test]
fn a_page_that_is_missing_is_fetched_first() {
    let mut arrays = Arrays::new(small_soft(3 * PAGES));
    arrays.count(0..PAGES - 1);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(arrays.count(0..PAGES - 1), FAULTS);
    }
    assert_eq!(arrays.count(PAGES - 1..PAGES), FAULTS);
    arrays.until_complete();
    // All leave, and some come again.
    arrays.a.evict().unwrap();
    assert_eq!(arrays.count(2..4), FAULTS);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(arrays.count(2..4), FAULTS);
    arrays.until_complete();
    arrays.compare();
}

#[test]
fn what_the_host_writes_is_read() {
    let mut arrays = Arrays::new(small_soft(2 * PAGES + 1));
    arrays.until_complete();
    for round in 0..3u32 {
        let at = (u64::from(round) * 3 + 1) * PAGE_WORDS + 5;
        arrays.a.write(at, &[round; 7]).unwrap();
        arrays.wanted[at as usize..][..7].fill(round);
        arrays.add(round + 10);
        arrays.add(round + 20);
        arrays.compare();
    }
}

#[test]
fn others_get_the_frames_that_they_need() {
    let mut arrays = Arrays::new(small_soft(2 * PAGES + 3));
    let other = values(9);
    let region = placed(&arrays.bench).name("c").from_slice(&other).unwrap();
    for round in 0..4u32 {
        // Together they have more pages than there are frames.
        assert_eq!(arrays.add(round), FAULTS);
        arrays.until_complete();
        let args = (&region, 0u64, N, &arrays.form);
        for _ in 0..2 {
            arrays.bench.must("count", config(), args);
        }
    }
    let counted: Vec<u32> = other.iter().map(|value| value.wrapping_add(8)).collect();
    compare(&region.to_vec().unwrap(), &counted).unwrap();
    arrays.compare();
}

#[test]
fn launches_that_nobody_waits_for_are_right_in_both_forms() {
    let mut arrays = Arrays::new(small_soft(2 * PAGES + 1));
    let limit = Instant::now() + scaled(Duration::from_secs(30));
    // Now and then one waits to see whether all pages have come.
    while arrays.form.to_vec().unwrap() != [COMPLETE] {
        assert!(Instant::now() < limit, "their pages are fetched still");
        let begin = |factor: u32| {
            let args = (&arrays.a, &arrays.b, factor, &arrays.form);
            arrays.bench.launch("add", config(), args)
        };
        let launches: Vec<_> = (1..60).map(begin).collect();
        (1..60).for_each(|factor| add(&mut arrays.wanted, &arrays.added, factor));
        launches.into_iter().for_each(|launch| _ = launch.sync().unwrap());
    }
    arrays.compare();
}

#[test]
fn frames_that_leave_take_pages_along() {
    let units = |count: u64| count * arrays_unit();
    let builder = small_soft(units(2) / PAGE).frame_capacity(units(4));
    let mut arrays = Arrays::new(builder);
    for round in 0..3u32 {
        arrays.bench.vm.resize_frames(units(2)).unwrap();
        assert_eq!(arrays.add(round), FAULTS);
        arrays.until_complete();
        let resized = arrays.bench.vm.resize_frames(units(1)).unwrap();
        assert_eq!((resized.bytes, resized.kept_bytes), (units(1), 0), "{resized:?}");
        assert_eq!(arrays.add(round), FAULTS);
        arrays.compare();
    }
}

/// Bytes of frames that come and go together on the simulated GPU: fewer than the arrays have, and half of them more.
fn arrays_unit() -> u64 {
    64 << 10
}

#[test]
fn a_text_that_compiles_for_faults_alone_goes_on_with_them() {
    let options = gpuvm::CompileOptions {
        defines: vec![("GPUVM_TEST_FAULTS".to_owned(), None)],
        ..Default::default()
    };
    let bench = Bench::with(small_soft(PAGES + 1), SOURCE, &options);
    let mut wanted = values(4);
    let a = placed(&bench).from_slice(&wanted).unwrap();
    let form = bench.vm.buffer::<u32>(1).unwrap();
    for _ in 0..4 {
        bench.must("faults", config(), (&a, &form));
        wanted.iter_mut().for_each(|value| *value = value.wrapping_add(1));
        assert_eq!(form.to_vec().unwrap(), [FAULTS]);
    }
    compare(&a.to_vec().unwrap(), &wanted).unwrap();
}
