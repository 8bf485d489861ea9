//! Arrays of which each subscribed GPU holds a copy: whatever the kernels of several GPUs store, all copies are equal when their launches
//! have ended, however pages are subscribed. `GPUVM_TEST_GPUS=cuda:0,cuda:1` takes those in place of simulated ones,
//! `GPUVM_TEST_COUNTS=4,8,16` this many simulated ones.

use std::{collections::BTreeSet, ops::Range, sync::Arc, time::Duration};

use crate::common::{
    compare, config, counts, named_gpus, planted, refused, says, scaled, simulated_gpu, with_causes, words,
};
use crate::mock_gpu::MockGpu;
use crate::program::{rng, seeds};
use gpuvm::{
    Broadcast, Buffer, CompileOptions, Error, Kernel, LaunchConfig, SimulatedGpu, Subscribers, Transport, Vm, VmBuilder,
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

const SOURCE: &str = include_str!("../kernels/broadcast.cu");
const KERNELS: [&str; 10] = [
    "operate",
    "operate_until",
    "store_late",
    "add",
    "increment",
    "increment_merged",
    "copy_out",
    "add_anywhere",
    "at_owner",
    "sum",
];

/// A virtual memory of several GPUs, and the kernels of each.
struct Several {
    vm: Vm,
    kernels: Vec<[Kernel; 10]>,
}

impl Several {
    fn new(count: usize) -> Self {
        Self::over(match named_gpus() {
            Some(gpus) => Self::builder().gpus(gpus),
            // Memory for some pages of 64 KiB.
            None => Self::builder().gpus((0..count).map(|_| simulated_gpu(1024).workers(1))),
        })
    }

    fn builder() -> VmBuilder {
        Vm::builder()
            .transport(Transport::Direct)
            .frame_memory(16 * 4096)
            .launch_deadline(scaled(Duration::from_secs(60)))
    }

    fn over(vm: VmBuilder) -> Self {
        Self::with(vm, &CompileOptions::default())
    }

    fn with(vm: VmBuilder, options: &CompileOptions) -> Self {
        let vm = vm.build().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        let compile = |gpu: &gpuvm::VmGpu| gpu.kernels("broadcast.cu", SOURCE, KERNELS, options);
        let kernels = vm.gpus().iter().map(compile).collect::<Result<_, _>>();
        Self {
            kernels: kernels.unwrap_or_else(|error| panic!("{}", with_causes(&error))),
            vm,
        }
    }

    fn kernel(&self, gpu: usize, name: &str) -> &Kernel {
        &self.kernels[gpu][KERNELS.iter().position(|known| *known == name).unwrap()]
    }

    fn gpus(&self) -> usize {
        self.vm.gpus().len()
    }

    /// A word of each GPU's own.
    fn words(&self) -> Vec<gpuvm::Buffer<u32>> {
        let gpus = self.vm.gpus().iter();
        gpus.map(|gpu| gpu.buffer::<u32>(1).unwrap()).collect()
    }

    /// Each GPU's part of this many elements.
    fn part(&self, gpu: usize, of: u64) -> (u64, u64) {
        let gpus = self.gpus() as u64;
        (of * gpu as u64 / gpus, of * (gpu as u64 + 1) / gpus)
    }

    /// What a GPU's lanes read.
    fn seen_by(&self, gpu: usize, array: &Broadcast<u32>) -> Vec<u32> {
        let out = self.vm.gpu(gpu).unwrap().buffer::<u32>(array.len()).unwrap();
        let launch = self
            .kernel(gpu, "copy_out")
            .launch(config(), (array, 0u64, array.len(), &out));
        launch
            .and_then(|launch| launch.sync())
            .unwrap_or_else(|error| panic!("{}", with_causes(&error)));
        out.to_vec().unwrap()
    }

    /// All copies, what lanes read, and what the host reads are this.
    fn all_have(&self, array: &Broadcast<u32>, expected: &[u32]) {
        compare(&array.to_vec().unwrap(), expected).unwrap();
        for copy in array.copies().unwrap() {
            compare(&copy, expected).unwrap();
        }
        for gpu in 0..self.gpus() {
            compare(&self.seen_by(gpu, array), expected).unwrap();
        }
    }
}

/// Elements of this many pages and a bit.
fn elements(vm: &Vm, pages: u64) -> u64 {
    let page = vm.broadcast::<u32>().zeroed(1).unwrap().page_elements();
    pages * page + 77
}

fn plus(values: &[u32], by: u32) -> Vec<u32> {
    values.iter().map(|value| value.wrapping_add(by)).collect()
}

#[test]
fn stores_reach_every_copy_round_after_round() {
    for count in counts(&[1, 2, 3, 8]) {
        let several = Several::new(count);
        let n = elements(&several.vm, 3);
        let before = words(5, n);
        let (mut from, mut to) = (
            several.vm.broadcast::<u32>().count_all().from_slice(&before).unwrap(),
            several.vm.broadcast::<u32>().count_all().zeroed(n).unwrap(),
        );
        for _ in 0..4 {
            // Nothing is waited for in between: launches on each GPU in turn are rounds.
            for gpu in 0..several.gpus() {
                let (first, end) = several.part(gpu, n);
                let launch = several
                    .kernel(gpu, "add")
                    .launch(config(), (&from, &to, first, end, 3u32));
                drop(launch.unwrap());
            }
            std::mem::swap(&mut from, &mut to);
        }
        several.all_have(&from, &plus(&before, 12));
        let (traffic, others) = (from.traffic().unwrap(), several.gpus() as u64 - 1);
        for (gpu, sent) in traffic.iter().enumerate() {
            let (first, end) = several.part(gpu, n);
            // Two rounds each went to this array; every lane's store to the others counts once.
            let stores = if others == 0 { 0 } else { 2 * (end - first) };
            assert_eq!(sent.stores, stores, "{traffic:?}");
            assert_eq!(sent.bytes.iter().sum::<u64>(), stores * 4 * others);
            assert_eq!(sent.bytes[gpu], 0);
            let whole = sent.bytes_a_line().unwrap_or(4.0);
            assert!((4.0..=128.0).contains(&whole), "{whole} bytes a line");
            assert!(
                sent.lines <= sent.stores && (others == 0 || sent.lines >= stores / 32),
                "{traffic:?}"
            );
        }
        from.flush().unwrap();
        compare(&from.read_home(), &plus(&before, 12)).unwrap();
        compare(&to.read_home(), &vec![0; n as usize]).unwrap();
    }
}

#[test]
fn a_round_begins_when_the_slowest_gpu_has_ended_the_one_before() {
    for count in counts(&[2]) {
        rounds_wait_of(count);
    }
}

fn rounds_wait_of(count: usize) {
    let several = Several::new(count);
    let array = several.vm.broadcast::<u32>().zeroed(100).unwrap();
    let out = several.vm.buffer::<u32>(1).unwrap();
    let slow = several.gpus() - 1;
    for round in 1..=4u32 {
        // The first GPU's part ends at once. It stores, or only reads.
        let fast = match round % 2 {
            0 => several
                .kernel(0, "copy_out")
                .launch(config(), (&array, 99u64, 100u64, &out)),
            _ => several
                .kernel(0, "increment")
                .launch(config(), (&array, 0u64, 1u64, 1u32)),
        };
        if slow > 0 {
            let late = several.kernel(slow, "store_late");
            drop(late.launch(config(), (&array, 99u64, round, 20u32)).unwrap());
        }
        fast.unwrap().sync().unwrap();
        let read = several
            .kernel(0, "copy_out")
            .launch(config(), (&array, 99u64, 100u64, &out));
        read.unwrap().sync().unwrap();
        assert_eq!(out.to_vec().unwrap(), [if slow > 0 { round } else { 0 }]);
    }
    assert_eq!(array.to_vec().unwrap()[0], 2);
}

#[test]
fn merged_stores_are_the_same_stores_in_fewer_lines() {
    for count in counts(&[2]) {
        merged_stores_of(count);
    }
}

fn merged_stores_of(count: usize) {
    let several = Several::new(count);
    let n = elements(&several.vm, 1);
    let before = words(6, n);
    let lines = |kernel: &str| {
        let array = several.vm.broadcast::<u32>().count_all().from_slice(&before).unwrap();
        for round in 1..=2 {
            for gpu in 0..several.gpus() {
                let (first, end) = several.part(gpu, n);
                drop(
                    several
                        .kernel(gpu, kernel)
                        .launch(config(), (&array, first, end, 5u32))
                        .unwrap(),
                );
            }
            several.all_have(&array, &plus(&before, 5 * round));
        }
        array.traffic().unwrap().iter().map(|sent| sent.lines).sum::<u64>()
    };
    let (plain, merged) = (lines("increment"), lines("increment_merged"));
    // The lanes of the second kernel do not lie side by side: each line of it would have left 32 times.
    let whole = 2 * n / 32;
    assert!(merged < 2 * whole, "{merged} lines, {whole} at best");
    // Of the first they do. On the simulated GPU they do not come together all the same.
    assert!(
        plain < if named_gpus().is_some() { 2 * whole } else { 2 * n + 1 },
        "{plain} lines, {whole} at best"
    );
}

#[test]
fn atomics_are_done_at_the_owner_and_passed_on() {
    for count in counts(&[1, 2, 3]) {
        let several = Several::new(count);
        let n = elements(&several.vm, 2);
        let array = several.vm.broadcast::<u32>().zeroed(n).unwrap();
        let mut expected = vec![0u32; n as usize];
        let times = 4000u64;
        for round in 0..3u64 {
            let wrong = several.words();
            for (gpu, wrong) in wrong.iter().enumerate() {
                let seed = round * 1000 + gpu as u64;
                let launch = several
                    .kernel(gpu, "add_anywhere")
                    .launch(config(), (&array, times, seed, wrong));
                drop(launch.unwrap());
                for k in 0..times {
                    let i = k.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed) % n;
                    expected[i as usize] += 1;
                }
            }
            several.all_have(&array, &expected);
            for wrong in wrong {
                assert_eq!(wrong.to_vec().unwrap(), [0]);
            }
        }
        let passed: u64 = array.traffic().unwrap().iter().map(|sent| sent.lines_forwarded).sum();
        assert_eq!(passed > 0, several.gpus() > 1);
        let few = several.vm.broadcast::<u32>().from_slice(&[20; 8]).unwrap();
        few.write(2, &[0, 0, 0, 0, 0]).unwrap();
        for gpu in 0..several.gpus() {
            drop(
                several
                    .kernel(gpu, "at_owner")
                    .launch(config(), (&few, gpu as u32))
                    .unwrap(),
            );
        }
        let last = several.gpus() as u32 - 1;
        let seen = few.to_vec().unwrap();
        assert_eq!(
            seen[..4],
            [19 - last, (10 + last).max(20), (1 << several.gpus()) - 1, 7]
        );
        assert_eq!((seen[4], seen[6]), (if last > 0 { 9 } else { 0 }, last));
        assert!((100..=100 + last).contains(&seen[5]) && seen[7] == 20, "{seen:?}");
        several.all_have(&few, &seen);
    }
}

#[test]
fn an_unsubscribed_gpu_reads_and_stores_all_the_same() {
    for count in counts(&[3]) {
        unsubscribed_of(count);
    }
}

fn unsubscribed_of(count: usize) {
    let several = Several::new(count);
    let n = elements(&several.vm, 4);
    let page = several.vm.broadcast::<u32>().zeroed(1).unwrap().page_elements();
    let before = words(7, n);
    let array = several.vm.broadcast::<u32>().from_slice(&before).unwrap();
    let mut expected = before.clone();
    let mut held = array.bytes_held_by(0);
    assert_eq!(held, n.div_ceil(page) * page * 4);
    let all = several.gpus();
    let mut draw = 17u64;
    for step in 0..12u32 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (gpu, first) = ((draw >> 33) as usize % all, (draw >> 40) % n);
        let range = first..(first + (draw >> 50) % (2 * page)).min(n);
        // Launches run meanwhile: both wait for them.
        for gpu in 0..all {
            let (first, end) = several.part((gpu + step as usize) % all, n);
            drop(
                several
                    .kernel(gpu, "increment")
                    .launch(config(), (&array, first, end, step))
                    .unwrap(),
            );
        }
        expected = plus(&expected, step);
        let outcome = match step % 3 {
            0 => array.subscribe(gpu, range.clone()),
            _ => array.unsubscribe(gpu, range.clone()),
        };
        match outcome {
            Ok(()) | Err(Error::LastSubscriber { .. }) => {}
            Err(error) => panic!("{}", with_causes(&error)),
        }
        for element in (0..n).step_by(page as usize) {
            let subscribers = array.subscribers_of(element).unwrap();
            assert!(
                subscribers.contains(&array.owner_of(element).unwrap()),
                "{subscribers:?}"
            );
        }
        several.all_have(&array, &expected);
    }
    // All but one, and that one not.
    for gpu in 1..all {
        array.subscribe(0, 0..n).unwrap();
        array.unsubscribe(gpu, 0..n).unwrap();
    }
    assert_eq!(array.subscribers_of(0).unwrap(), [0]);
    let message = refused(array.unsubscribe(0, 0..n));
    assert!(
        all == 1 || message.contains("GPU 0 has the last copy of page 0"),
        "{message}"
    );
    several.all_have(&array, &expected);
    held = (1..all).map(|gpu| array.bytes_held_by(gpu)).sum();
    assert_eq!(held, 0);
}

#[test]
fn one_tracked_iteration_leaves_what_each_gpu_reads() {
    for count in counts(&[2]) {
        tracked_iteration_of(count);
    }
}

fn tracked_iteration_of(count: usize) {
    let several = Several::new(count);
    let page = several.vm.broadcast::<u32>().zeroed(1).unwrap().page_elements();
    // Each GPU reads its own part and, beyond it, one element of the next one's, the last GPU of the one before.
    let gpus = several.gpus();
    let n = 4 * gpus as u64 * page;
    let before = words(8, n);
    let mut arrays = [
        several.vm.broadcast::<u32>().count_all().from_slice(&before).unwrap(),
        several.vm.broadcast::<u32>().count_all().zeroed(n).unwrap(),
    ];
    let out = several.words();
    let iterate = |arrays: &mut [Broadcast<u32>; 2]| {
        for (gpu, out) in out.iter().enumerate() {
            let (first, end) = several.part(gpu, n);
            let beyond = if gpu + 1 < gpus { end } else { first - 1 };
            let [from, to] = &*arrays;
            several
                .kernel(gpu, "copy_out")
                .launch(config(), (from, beyond, beyond + 1, out))?
                .sync()?;
            drop(
                several
                    .kernel(gpu, "add")
                    .launch(config(), (from, to, first, end, 1u32))?,
            );
        }
        arrays.swap(0, 1);
        Ok::<_, Error>(())
    };
    if gpus == 1 {
        return;
    }
    several
        .vm
        .track(|| iterate(&mut arrays).and_then(|()| iterate(&mut arrays)))
        .unwrap();
    let expected = |page: usize| match (page / 4, page % 4) {
        // Read by the GPU before.
        (owner @ 1.., 0) => vec![owner - 1, owner],
        (owner, 3) if owner + 2 == gpus => vec![owner, owner + 1],
        (owner, _) => vec![owner],
    };
    for array in &arrays {
        for p in 0..4 * gpus {
            let subscribers = array.subscribers_of(p as u64 * page).unwrap();
            assert_eq!(subscribers, expected(p), "page {p}");
        }
    }
    let sent = |array: &Broadcast<u32>| -> u64 { array.traffic().unwrap().iter().flat_map(|sent| &sent.bytes).sum() };
    let sent_before: Vec<u64> = arrays.iter().map(sent).collect();
    iterate(&mut arrays).and_then(|()| iterate(&mut arrays)).unwrap();
    arrays.iter().for_each(|array| array.flush().unwrap());
    for (array, before) in arrays.iter().zip(sent_before) {
        // One page of four is read by another, and the last GPU's reader is one more.
        assert_eq!(sent(array) - before, gpus as u64 * page * 4);
    }
    let [newest, older] = &arrays;
    several.all_have(newest, &plus(&before, 4));
    several.all_have(older, &plus(&before, 3));
}

#[test]
fn a_gpu_subscribes_to_what_it_reads_first() {
    for count in counts(&[2]) {
        first_reads_of(count);
    }
}

fn first_reads_of(count: usize) {
    let several = Several::new(count);
    let page = several.vm.broadcast::<u32>().zeroed(1).unwrap().page_elements();
    let n = 4 * page;
    let before = words(9, n);
    let array = several.vm.broadcast::<u32>().subscribers(Subscribers::Readers);
    let array = array.from_slice(&before).unwrap();
    let subscribers = |array: &Broadcast<u32>| -> Vec<usize> {
        (0..4).map(|p| array.subscribers_of(p * page).unwrap().len()).collect()
    };
    assert_eq!(subscribers(&array), [1; 4]);
    let out = several.vm.buffer::<u32>(1).unwrap();
    let last = several.vm.gpus().len() - 1;
    for (element, expected) in [(n - 1, 4), (0, 4), (n - 1, 5), (n - page - 1, 5), (0, 6)] {
        let launch = several
            .kernel(0, "copy_out")
            .launch(config(), (&array, element, element + 1, &out));
        launch.unwrap().sync().unwrap();
        // From the next launch on.
        drop(
            several
                .kernel(0, "increment")
                .launch(config(), (&array, 0u64, 0u64, 0u32))
                .unwrap(),
        );
        let now: usize = subscribers(&array).iter().sum();
        if last > 0 {
            assert!(
                now >= expected,
                "{now} subscriptions, {expected} expected after element {element}"
            );
        }
        assert_eq!(out.to_vec().unwrap(), [before[element as usize]]);
    }
    several.all_have(&array, &before);
}

#[test]
fn an_array_may_be_larger_than_one_gpus_memory() {
    if named_gpus().is_some() {
        return;
    }
    let several = Several::new(4);
    let page = several.vm.broadcast::<u32>().zeroed(1).unwrap().page_elements();
    let memory = several.vm.device().capabilities().memory_bytes;
    // Three quarters of all memory, so three times that of each.
    let n = (memory / 4 * 3 / (page * 4)) * 4 * page;
    let whole = several.vm.broadcast::<u32>().zeroed(n);
    let message = refused(whole);
    assert!(message.contains("out of GPU memory"), "{message}");
    let before = words(10, n);
    let array = several
        .vm
        .broadcast::<u32>()
        .subscribers(Subscribers::Owners)
        .from_slice(&before)
        .unwrap();
    for gpu in 0..4 {
        // Each its neighbour's part.
        let (first, end) = several.part((gpu + 1) % 4, n);
        drop(
            several
                .kernel(gpu, "increment")
                .launch(config(), (&array, first, end, 2u32))
                .unwrap(),
        );
    }
    compare(&array.to_vec().unwrap(), &plus(&before, 2)).unwrap();
    // What is refused changes nothing.
    let message = refused(array.subscribe(0, 0..n));
    assert!(message.contains("out of GPU memory"), "{message}");
    assert_eq!(array.subscribers_of(n - 1).unwrap(), [3]);
    compare(&array.to_vec().unwrap(), &plus(&before, 2)).unwrap();
}

#[test]
fn once_a_gpu_is_lost_the_home_has_what_was_flushed() {
    let lost = [MockGpu::new(None), MockGpu::new(None)];
    let several = Several::over(Several::builder().gpus([
        Arc::clone(&lost[0]) as Arc<dyn gpuvm_gpu::Gpu>,
        Arc::clone(&lost[1]) as _,
    ]));
    let n = elements(&several.vm, 1);
    let before = words(11, n);
    let array = several.vm.broadcast::<u32>().name("ranks").from_slice(&before).unwrap();
    let increment = |gpu| {
        several
            .kernel(gpu, "increment")
            .launch(config(), (&array, 0u64, n, 1u32))
    };
    increment(0).unwrap().sync().unwrap();
    array.flush().unwrap();
    increment(1).unwrap().sync().unwrap();
    lost[1].lose();
    for message in [
        refused(increment(0).and_then(|launch| launch.sync())),
        refused(array.to_vec()),
        refused(array.flush()),
        refused(array.subscribe(0, 0..n)),
        refused(array.write(0, &[1])),
    ] {
        assert!(message.contains("lost") && message.contains("`ranks`"), "{message}");
    }
    assert!(increment(1).is_err());
    compare(&array.read_home(), &plus(&before, 1)).unwrap();
}

#[test]
fn misuse_is_refused_by_name() {
    let several = Several::new(2);
    let array = several.vm.broadcast::<u32>().name("ranks").zeroed(100).unwrap();
    says(&refused(array.read(99, &mut [0; 2])), &["99..101 of `ranks`", "100"]);
    let message = refused(array.write(u64::MAX, &[1]));
    assert!(message.contains("`ranks`"), "{message}");
    let message = refused(array.subscribe(9, 0..1));
    assert!(message.contains("GPU 9") && message.contains("views"), "{message}");
    let message = refused(array.subscribe(0, 5..101));
    assert!(message.contains("5..101 of `ranks`"), "{message}");
    let floats = several.vm.broadcast::<f32>().name("floats").zeroed(4).unwrap();
    let message = refused(
        several
            .kernel(0, "increment")
            .launch(config(), (&floats, 0u64, 4u64, 1u32)),
    );
    says(&message, &["broadcast array `floats` of f32", "broadcast<unsigned"]);
    let region = several.vm.region::<u32>().zeroed(4).unwrap();
    let message = refused(
        several
            .kernel(0, "increment")
            .launch(config(), (&region, 0u64, 4u64, 1u32)),
    );
    says(&message, &["region", "broadcast<unsigned"]);
    let message = refused(several.vm.broadcast::<[u32; 3]>().zeroed(4));
    assert!(message.contains("element size of a broadcast array is 12"), "{message}");
    let other = Several::new(2);
    let message = refused(
        other
            .kernel(0, "increment")
            .launch(config(), (&array, 0u64, 4u64, 1u32)),
    );
    assert!(message.contains("another Vm"), "{message}");
    // Dropped beside a launch that uses it.
    let doomed = several.vm.broadcast::<u32>().zeroed(1 << 12).unwrap();
    drop(
        several
            .kernel(0, "increment")
            .launch(config(), (&doomed, 0u64, 1u64 << 12, 1u32))
            .unwrap(),
    );
    drop(doomed);
    let empty = several.vm.broadcast::<u32>().zeroed(0).unwrap();
    assert!(empty.is_empty() && empty.to_vec().unwrap().is_empty());
    empty.flush().unwrap();
}

/// What `operate` makes of element `i`.
fn operated(way: u32, old: u32, i: u64, by: u32) -> u32 {
    let n = by.wrapping_add(i as u32);
    match way {
        0 => n,
        1 => old.wrapping_add(n) ^ 1,
        2 => old.wrapping_sub(n) ^ 2,
        3 => old.wrapping_mul(n) ^ 3,
        4 => old.wrapping_add(n),
        5 => old.wrapping_mul(n),
        6 => old ^ 4,
        7 if old <= n => !n,
        7 => n,
        _ => old | n,
    }
}

/// An array beside a plain one. Launches are not waited for, so what one of them has read is looked at later.
struct Modelled {
    array: Broadcast<u32>,
    model: Vec<u32>,
    /// GPUs with a launch in this round, whether one stores, and the bounds between what each of them may store to.
    launched: BTreeSet<usize>,
    stores: bool,
    bounds: Vec<u64>,
    /// As it was when the round began, and which elements have been stored to since: what the round's readers see of those is open.
    before: Vec<u32>,
    stored: Vec<Range<u64>>,
    /// What readers of the round copied out, from which element on.
    read: Vec<(u64, Buffer<u32>)>,
}

impl Modelled {
    fn ends_round(&mut self) {
        for (first, out) in self.read.drain(..) {
            for (i, found) in (first..).zip(out.to_vec().unwrap()) {
                let open = self.stored.iter().any(|stored| stored.contains(&i));
                let expected = self.before[i as usize];
                assert!(
                    open || found == expected,
                    "element {i} of {first}..: {found:#x}, not {expected:#x}"
                );
            }
        }
        self.launched.clear();
        self.stores = false;
        self.stored.clear();
        self.before.clone_from(&self.model);
    }

    /// A launch on a GPU comes after those on others, and what they have stored, if it had one there in this round.
    fn launches(&mut self, gpu: usize, stores: bool, gpus: usize, rng: &mut ChaCha8Rng) {
        if self.launched.contains(&gpu) && (stores || self.stores) {
            self.ends_round();
        }
        if self.launched.is_empty() {
            let mut bounds: Vec<u64> = (1..gpus).map(|_| rng.random_range(0..=self.array.len())).collect();
            bounds.sort_unstable();
            self.bounds = [vec![0], bounds, vec![self.array.len()]].concat();
        }
        self.launched.insert(gpu);
        self.stores |= stores;
    }

    fn operate(&mut self, several: &Several, gpu: usize, rng: &mut ChaCha8Rng) {
        self.launches(gpu, true, several.gpus(), rng);
        let (way, by) = (rng.random_range(0..9), rng.random());
        let (from, to) = (self.bounds[gpu], self.bounds[gpu + 1]);
        let first = rng.random_range(from..=to);
        let end = rng.random_range(first..=to);
        let launch = several.kernel(gpu, "operate");
        drop(launch.launch(config(), (&self.array, first, end, way, by)).unwrap());
        for i in first..end {
            self.model[i as usize] = operated(way, self.model[i as usize], i, by);
        }
        self.stored.push(first..end);
    }

    fn read(&mut self, several: &Several, gpu: usize, rng: &mut ChaCha8Rng) -> Range<u64> {
        self.launches(gpu, false, several.gpus(), rng);
        let first = rng.random_range(0..self.array.len());
        let end = rng.random_range(first + 1..=self.array.len());
        let out = several.vm.gpu(gpu).unwrap().buffer::<u32>(end - first).unwrap();
        let launch = several.kernel(gpu, "copy_out");
        drop(launch.launch(config(), (&self.array, first, end, &out)).unwrap());
        self.read.push((first, out));
        first..end
    }

    /// Some reads are tracked: their pages are held by who has read them, all others by one GPU.
    fn track(&mut self, several: &Several, rng: &mut ChaCha8Rng) {
        // What was read before is nothing to it.
        for _ in 0..rng.random_range(0..3) {
            self.read(several, rng.random_range(0..several.gpus()), rng);
        }
        self.ends_round();
        let page = self.array.page_elements();
        let mut readers = vec![BTreeSet::new(); self.array.len().div_ceil(page) as usize];
        let (times, gpus) = (rng.random_range(0..4), several.gpus());
        let tracked = several.vm.track(|| {
            for _ in 0..times {
                let gpu = rng.random_range(0..gpus);
                let read = self.read(several, gpu, rng);
                for page in read.start / page..read.end.div_ceil(page) {
                    readers[page as usize].insert(gpu);
                }
            }
            Ok(())
        });
        tracked.unwrap();
        self.ends_round();
        for (n, readers) in (0..).zip(readers) {
            let held = self.array.subscribers_of(n * page).unwrap();
            let right = match readers.len() {
                0 => held == [self.array.owner_of(n * page).unwrap()],
                _ => held == Vec::from_iter(readers.clone()),
            };
            assert!(right, "page {n} was read by {readers:?}, and {held:?} hold it");
        }
    }

    /// A GPU subscribes to a range, or unsubscribes: the first to all that it touches, the second from all that it covers.
    fn subscribe(&mut self, gpu: usize, rng: &mut ChaCha8Rng) {
        let n = self.array.len();
        let first = rng.random_range(0..n);
        let (end, subscribes) = (rng.random_range(first + 1..=n), rng.random());
        let page = self.array.page_elements();
        let holds = |p: u64| self.array.subscribers_of(p * page).unwrap().contains(&gpu);
        let held: Vec<bool> = (0..n.div_ceil(page)).map(holds).collect();
        let changed = match subscribes {
            true => self.array.subscribe(gpu, first..end),
            false => self.array.unsubscribe(gpu, first..end),
        };
        for (p, held) in (0..).zip(held).filter(|_| changed.is_ok()) {
            let (touched, whole) = (p * page..((p + 1) * page).min(n), first..end);
            let covered = whole.start <= touched.start && touched.end <= whole.end;
            let meets = whole.start.max(touched.start) < whole.end.min(touched.end);
            let expected = (held && (subscribes || !covered)) || (subscribes && meets);
            assert_eq!(holds(p), expected, "page {p} of GPU {gpu} after {first}..{end}");
        }
        assert!(
            matches!(changed, Ok(()) | Err(Error::LastSubscriber { .. })),
            "{changed:?}"
        );
        self.ends_round();
    }
}

/// One random program, beside a model of it.
fn program(seed: u64, gpus: usize) {
    let rng = &mut rng(seed);
    let several = Several::new(gpus);
    let gpus = several.gpus();
    let pages = rng.random_range(0..4);
    let n = elements(&several.vm, pages) + rng.random_range(0..9);
    let model = words(seed, n);
    let kinds = [Subscribers::All, Subscribers::Owners, Subscribers::Readers];
    let array = several.vm.broadcast::<u32>().subscribers(kinds[(seed % 3) as usize]);
    let mut one = Modelled {
        array: array.from_slice(&model).unwrap(),
        before: model.clone(),
        model,
        launched: BTreeSet::new(),
        stores: false,
        bounds: Vec::new(),
        stored: Vec::new(),
        read: Vec::new(),
    };
    for _ in 0..50 {
        let gpu = rng.random_range(0..gpus);
        match rng.random_range(0..20) {
            0..8 => one.operate(&several, gpu, rng),
            8..14 => drop(one.read(&several, gpu, rng)),
            14 => one.track(&several, rng),
            15 => {
                one.ends_round();
                let first = rng.random_range(0..n);
                let new = words(rng.random(), rng.random_range(1..=(n - first).min(3000)));
                one.array.write(first, &new).unwrap();
                one.model[first as usize..][..new.len()].copy_from_slice(&new);
                one.before.clone_from(&one.model);
            }
            16 => {
                one.array.flush().unwrap();
                compare(&one.array.read_home(), &one.model).unwrap();
                one.ends_round();
            }
            17 => {
                // Without a look by lanes, which would end the round.
                for copy in one.array.copies().unwrap() {
                    compare(&copy, &one.model).unwrap();
                }
                one.ends_round();
            }
            _ => one.subscribe(gpu, rng),
        }
    }
    one.ends_round();
    several.all_have(&one.array, &one.model);
}

#[test]
fn random_programs_come_to_what_a_plain_array_comes_to() {
    for seed in seeds(30_000, 12) {
        for count in counts(&[2 + (seed % 3) as usize]) {
            program(seed, count);
        }
    }
}

/// A launch that a lane's fault ends this many steps after it began: whether the others had done something, and not all.
fn ended_after(steps: u32, way: u32, options: &CompileOptions) -> Result<bool, String> {
    let vm = Several::builder().gpu(SimulatedGpu::new().memory(8 << 20).seed(steps.into()));
    let several = Several::with(vm, options);
    let before = words(3, 3700);
    let array = several.vm.broadcast::<u32>().views_on_one_gpu(3);
    let array = array.from_slice(&before).unwrap();
    let args = (array.view(1), way, 3u32, steps);
    let launch = several.kernel(0, "operate_until").launch(LaunchConfig::new(1, 5), args);
    assert!(launch.unwrap().sync().is_err());
    let found = array.to_vec().unwrap();
    for copy in array.copies().unwrap() {
        compare(&copy, &found).map_err(|wrong| format!("{steps} steps of way {way}: {wrong}"))?;
    }
    let changed = (1..100).filter(|n| found[37 * n] != before[37 * n]).count();
    Ok(changed > 0 && changed < 90)
}

#[test]
fn a_launch_that_is_killed_at_any_step_leaves_equal_copies() {
    let all = (0..60).flat_map(|steps| [4, 5, 6, 8].map(|way| (steps, way)));
    let amid = all.filter(|(steps, way)| ended_after(*steps, *way, &CompileOptions::default()).unwrap());
    assert!(amid.count() > 20);
    let (marked, stored) = (
        "        detail::mark_line(this->desc_, byte);\n",
        "        detail::st_relaxed_sys(reinterpret_cast<B*>(detail::at_owner(this->desc_, byte)), detail::bit_cast<B>(value));\n",
    );
    let late = planted(
        "gpuvm/broadcast.cuh",
        &format!("{marked}{stored}"),
        &format!("{stored}{marked}"),
    );
    let found = (0..100).find(|steps| ended_after(*steps, 5, &late).is_err());
    println!("found after {found:?} steps");
    assert!(found.is_some(), "a line that is marked behind its change");
}

#[test]
fn marks_that_could_not_be_passed_on_are_passed_on_later() {
    let gpus = [MockGpu::new(None), MockGpu::new(None), MockGpu::new(None)];
    let of = gpus.iter().map(|gpu| Arc::clone(gpu) as Arc<dyn gpuvm_gpu::Gpu>);
    let several = Several::over(Several::builder().gpus(of));
    let n = elements(&several.vm, 2);
    let mut model = words(12, n);
    let array = several.vm.broadcast::<u32>().from_slice(&model).unwrap();
    for round in 0..6usize {
        for gpu in 0..3 {
            let (first, end) = several.part((gpu + round) % 3, n);
            let launch = several.kernel(gpu, "operate");
            drop(launch.launch(config(), (&array, first, end, 4u32, 1u32)).unwrap());
        }
        for (i, value) in (0..).zip(&mut model) {
            *value = operated(4, *value, i, 1);
        }
        // The last one has marks that nothing has passed on yet.
        let failing = &gpus[3 - round % 4..];
        failing.iter().for_each(|gpu| gpu.fail_launches(1));
        let failed = match round {
            // The launch of a next round, or the host.
            0..4 => several
                .kernel(0, "operate")
                .launch(config(), (&array, 0u64, 0u64, 0u32, 0u32))
                .map(drop),
            _ => array.flush(),
        };
        assert_eq!(failed.is_err(), round % 4 != 0, "{failed:?}");
        failing.iter().for_each(|gpu| gpu.fail_launches(0));
        several.all_have(&array, &model);
    }
}
