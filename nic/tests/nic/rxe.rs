//! SoftRoCE queue pairs driven by hand, in the machine looped back. They need a device: `GPUVM_TEST_RDMA=rxe0` names it;
//! without it each test says that it is skipped. `tests/softroce/run` runs them in a virtual machine.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use gpuvm_nic::rxe::RxeOptions;
use gpuvm_nic::wire::rxe::{Completion, Operation, Status, WorkRequest};
use gpuvm_nic::{Access, MemoryKey, Nic, QueuePair, QueuePairState, QueueRings, RxeNic};

use crate::common::{BYTES, Memory, pattern};

/// No test waits longer than this for anything.
const BOUND: Duration = Duration::from_secs(30);
const PAGE: u64 = 4096;
const PAGES: u64 = BYTES / PAGE;

/// The device that the environment names, opened; or nothing, said on the standard error.
fn open(test: &str) -> Option<Arc<RxeNic>> {
    let Ok(device) = std::env::var("GPUVM_TEST_RDMA") else {
        // Straight to the descriptor: the test harness hides what `eprintln!` prints when a test passes.
        let text = format!("\n*** SKIPPED: {test}: GPUVM_TEST_RDMA names no SoftRoCE device\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
        return None;
    };
    let options = RxeOptions {
        device: Some(device),
        ..Default::default()
    };
    Some(Arc::new(
        RxeNic::open(options).unwrap_or_else(|error| panic!("{error}")),
    ))
}

/// Where a page is of memory that has [`PAGES`] of them.
fn page(memory: &Memory, number: u64) -> u64 {
    memory.address() + number % PAGES * PAGE
}

/// The GPU's side of one queue pair in plain Rust.
struct Poster {
    nic: Arc<RxeNic>,
    pair: QueuePair,
    depth: u32,
    posted: u64,
    polled: u64,
}

impl Poster {
    fn new(nic: &Arc<RxeNic>, depth: u32) -> Self {
        // SAFETY: the rings are reached by the volatile and atomic accesses below, while the queue pair lives.
        let pair = unsafe { nic.create_queue_pair(QueueRings::Own { depth }) }.expect("a queue pair");
        let mut poster = Self {
            nic: Arc::clone(nic),
            pair,
            depth,
            posted: 0,
            polled: 0,
        };
        poster.connect();
        poster
    }

    fn connect(&mut self) {
        let number = self.pair.number;
        self.pair = self.nic.queue_pair(number).expect("it lives");
        self.nic.connect(number, number).expect("from reset to ready");
        (self.posted, self.polled) = (0, 0);
    }

    fn word(address: u64) -> &'static AtomicU32 {
        // SAFETY: an index word of a ring that is mapped while the queue pair lives; no test uses it longer.
        unsafe { &*(address as *const AtomicU32) }
    }

    /// Writes a request without telling anybody.
    fn write(&mut self, request: WorkRequest) {
        assert!(self.posted - self.polled < u64::from(self.depth), "the queue is full");
        let send = self.pair.send;
        let slot = (u64::from(send.start) + self.posted) & u64::from(send.slots - 1);
        let mut bytes = [0; 224];
        WorkRequest {
            id: self.posted,
            ..request
        }
        .emit(&mut bytes)
        .expect("room");
        for (at, byte) in bytes.iter().enumerate() {
            let target = (send.address + (slot << send.shift)) as usize + at;
            // SAFETY: within the slot, which nothing reads before the index below.
            unsafe { (target as *mut u8).write_volatile(*byte) };
        }
        self.posted += 1;
    }

    /// Shows the driver what was written, without a ring.
    fn publish(&self) {
        let send = self.pair.send;
        let produced = send.start.wrapping_add(self.posted as u32) & (send.slots - 1);
        // Release: the requests before the index.
        Self::word(self.pair.doorbell_record).store(produced, Ordering::Release);
    }

    fn ring(&self) {
        let completion = self.pair.completion;
        let consumed = completion.start.wrapping_add(self.polled as u32) & (completion.slots - 1);
        Self::word(self.pair.completion_consumed).store(consumed, Ordering::Release);
        self.publish();
        fence(Ordering::SeqCst);
        // SAFETY: the proxy's word, aligned; all sides access it atomically.
        unsafe { &*(self.pair.doorbell as *const AtomicU64) }.store(self.posted, Ordering::Release);
        self.nic.doorbell_written(self.pair.doorbell);
    }

    /// The next completion.
    fn poll(&mut self) -> Completion {
        let ring = self.pair.completion;
        let next = (ring.start.wrapping_add(self.polled as u32)) & (ring.slots - 1);
        let deadline = Instant::now() + BOUND;
        // Acquire: the entry and the data after the index.
        while Self::word(self.pair.completion_produced).load(Ordering::Acquire) == next {
            assert!(Instant::now() < deadline, "no completion of request {}", self.polled);
            std::thread::yield_now();
        }
        let mut bytes = [0; 48];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let source = (ring.address + (u64::from(next) << ring.shift)) as usize + at;
            // SAFETY: within the entry, which the driver has published.
            *byte = unsafe { (source as *const u8).read_volatile() };
        }
        let completion = Completion::parse(&bytes).expect("an entry");
        assert_eq!(completion.id, self.polled, "completions come in posting order");
        self.polled += 1;
        completion
    }

    fn run(&mut self, request: WorkRequest) -> Status {
        self.write(request);
        self.ring();
        self.poll().status
    }
}

impl Drop for Poster {
    fn drop(&mut self) {
        self.nic.destroy_queue_pair(self.pair.number).expect("it lives");
    }
}

struct Bed {
    nic: Arc<RxeNic>,
    home: Memory,
    frames: Memory,
}

impl Bed {
    fn new(test: &str) -> Option<Self> {
        let nic = open(test)?;
        let home = Memory::new(&*nic, Access::ALL);
        let frames = Memory::new(&*nic, Access::LOCAL_WRITE);
        home.fill(pattern);
        Some(Self { nic, home, frames })
    }

    fn request(&self, operation: Operation, home_page: u64, frame: u64) -> WorkRequest {
        WorkRequest {
            id: 0,
            operation,
            signalled: true,
            fence: false,
            remote: page(&self.home, home_page),
            rkey: self.home.key.rkey,
            local: page(&self.frames, frame),
            lkey: self.frames.key.lkey,
            bytes: PAGE as u32,
        }
    }

    fn read(&self, home_page: u64, frame: u64) -> WorkRequest {
        self.request(Operation::Read, home_page, frame)
    }

    fn frame_holds(&self, frame: u64, home_page: u64) {
        let (at, from) = (frame % PAGES * PAGE / 8, home_page % PAGES * PAGE / 8);
        for word in 0..PAGE / 8 {
            let found = self.frames.word(at + word).load(Ordering::Relaxed);
            assert_eq!(found, pattern(from + word), "word {word} of frame {frame}");
        }
    }
}

#[test]
fn requests_wrap_around_the_ring_many_times() {
    let Some(bed) = Bed::new("requests_wrap_around_the_ring_many_times") else {
        return;
    };
    for depth in [1, 2, 16] {
        let mut poster = Poster::new(&bed.nic, depth);
        let (mut next, total) = (0, 200 + 3 * u64::from(depth));
        while poster.polled < total {
            while poster.posted < total && poster.posted - poster.polled < u64::from(depth) {
                poster.write(bed.read(next * 7, next));
                next += 1;
            }
            poster.ring();
            let done = poster.polled;
            assert_eq!(poster.poll().status, Status::Success);
            bed.frame_holds(done, done * 7);
        }
    }
}

#[test]
fn as_many_reads_as_the_device_allows_are_in_flight() {
    let Some(bed) = Bed::new("as_many_reads_as_the_device_allows_are_in_flight") else {
        return;
    };
    let reads = bed.nic.capabilities().max_rd_atomic;
    assert_eq!(reads, 128);
    let mut poster = Poster::new(&bed.nic, 128);
    for round in 0..4 {
        (0..128).for_each(|n| poster.write(bed.read(n + round, n)));
        poster.ring();
        // Each waits for its own slot; nothing was consumed meanwhile.
        (0..128).for_each(|_| assert_eq!(poster.poll().status, Status::Success));
        (64..128).for_each(|n| bed.frame_holds(n, n + round));
    }
}

#[test]
fn several_queue_pairs_do_not_disturb_each_other() {
    let Some(bed) = Bed::new("several_queue_pairs_do_not_disturb_each_other") else {
        return;
    };
    let mut posters: Vec<_> = (0..6).map(|_| Poster::new(&bed.nic, 4)).collect();
    let before = bed.nic.doorbell_calls();
    for round in 0..40 {
        for (n, poster) in (0..).zip(&mut posters) {
            (0..4).for_each(|k| poster.write(bed.read(round + n + k, n * 4 + k)));
            poster.ring();
        }
        for (n, poster) in (0..).zip(&mut posters) {
            for k in 0..4 {
                assert_eq!(poster.poll().status, Status::Success);
                bed.frame_holds(n * 4 + k, round + n + k);
            }
        }
    }
    let calls = bed.nic.doorbell_calls() - before;
    assert!((1..=240).contains(&calls), "{calls} calls for 240 doorbells");
}

#[test]
fn writes_and_atomics_reach_the_home() {
    let Some(bed) = Bed::new("writes_and_atomics_reach_the_home") else {
        return;
    };
    let mut poster = Poster::new(&bed.nic, 8);
    for word in 0..PAGE / 8 {
        bed.frames.word(word).store(!word, Ordering::Relaxed);
    }
    assert_eq!(poster.run(bed.request(Operation::Write, 3, 0)), Status::Success);
    for word in 0..PAGE / 8 {
        assert_eq!(bed.home.word(3 * PAGE / 8 + word).load(Ordering::Relaxed), !word);
    }
    let atomic = |operation| WorkRequest {
        bytes: 8,
        ..bed.request(operation, 5, 1)
    };
    let (target, old) = (bed.home.word(5 * PAGE / 8), bed.frames.word(PAGE / 8));
    target.store(40, Ordering::Relaxed);
    assert_eq!(poster.run(atomic(Operation::FetchAdd { add: 2 })), Status::Success);
    assert_eq!((old.load(Ordering::Relaxed), target.load(Ordering::Relaxed)), (40, 42));
    for (compare, found, after) in [(41, 42, 42), (42, 42, 7)] {
        let swap = Operation::CompareSwap { compare, swap: 7 };
        assert_eq!(poster.run(atomic(swap)), Status::Success);
        assert_eq!(
            (old.load(Ordering::Relaxed), target.load(Ordering::Relaxed)),
            (found, after)
        );
    }
}

#[test]
fn an_error_flushes_what_follows_and_reset_makes_the_pair_good_again() {
    let Some(bed) = Bed::new("an_error_flushes_what_follows_and_reset_makes_the_pair_good_again") else {
        return;
    };
    let mut poster = Poster::new(&bed.nic, 8);
    for round in 0..5 {
        assert_eq!(poster.run(bed.read(round, 0)), Status::Success);
        let foreign = WorkRequest {
            rkey: bed.home.key.rkey ^ 0xff00,
            ..bed.read(1, 1)
        };
        poster.write(foreign);
        poster.write(bed.read(2, 2));
        poster.write(WorkRequest {
            signalled: false,
            ..bed.read(3, 3)
        });
        poster.ring();
        assert_eq!(poster.poll().status, Status::RemoteAccess);
        assert_eq!(poster.poll().status, Status::Flushed);
        // A failure is signalled always.
        assert_eq!(poster.poll().status, Status::Flushed);
        assert_eq!(
            bed.nic.state(poster.pair.number).expect("it lives"),
            QueuePairState::Error
        );
        // Posted to a pair in error.
        assert_eq!(poster.run(bed.read(4, 4)), Status::Flushed);
        // Requests that nothing rang for are gone with the reset.
        poster.write(bed.read(5, 5));
        bed.nic.reset(poster.pair.number).expect("from any state");
        assert_eq!(
            bed.nic.state(poster.pair.number).expect("it lives"),
            QueuePairState::Reset
        );
        poster.connect();
        for n in 0..20 {
            assert_eq!(poster.run(bed.read(n + round, 6)), Status::Success);
            bed.frame_holds(6, n + round);
        }
    }
}

/// A lane that is late rings while its queue pair is reset. The doorbell proxy must not take the same index, which is the first
/// request's afterwards, for one that it has served: that request would never be sent. The moment is short, and met in one
/// round of ten.
#[test]
fn a_ring_during_a_reset_leaves_no_request_unsent() {
    const DEPTH: u64 = 256;
    let Some(bed) = Bed::new("a_ring_during_a_reset_leaves_no_request_unsent") else {
        return;
    };
    let mut poster = Poster::new(&bed.nic, DEPTH as u32);
    let mut rang = 0;
    for round in 0..100 {
        // Requests that nothing rang for keep the reset busy in the error state.
        (0..DEPTH - 1).for_each(|n| poster.write(bed.read(n % 32, n % 32)));
        poster.publish();
        let (nic, number, doorbell) = (&bed.nic, poster.pair.number, poster.pair.doorbell);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = &over;
            let late = scope.spawn(move || {
                while nic.state(number).expect("it lives") != QueuePairState::Error {
                    // Relaxed: the flag alone is read.
                    if over.load(Ordering::Relaxed) {
                        return None;
                    }
                }
                // SAFETY: the proxy's word, aligned; all sides access it atomically.
                unsafe { &*(doorbell as *const AtomicU64) }.store(1, Ordering::Release);
                nic.doorbell_written(doorbell);
                // Only then was it before the reset's last step for certain.
                Some(nic.state(number).expect("it lives") == QueuePairState::Error)
            });
            // The thread is to be at its look before the reset begins.
            std::thread::sleep(Duration::from_millis(20));
            nic.reset(number).expect("from any state");
            over.store(true, Ordering::Relaxed);
            match late.join().expect("no panic") {
                Some(true) => rang += 1,
                // Perhaps too late, which nothing may be.
                Some(false) => nic.reset(number).expect("from any state"),
                None => {}
            }
        });
        poster.connect();
        for n in 0..3 {
            assert_eq!(poster.run(bed.read(n + round, n)), Status::Success, "round {round}");
            bed.frame_holds(n, n + round);
        }
    }
    assert!(rang > 0, "no ring came during a reset");
}

/// Each round resets at another moment of what the driver sends.
#[test]
fn a_pair_that_is_reset_while_it_reads_works_again() {
    const DEPTH: u64 = 256;
    let Some(bed) = Bed::new("a_pair_that_is_reset_while_it_reads_works_again") else {
        return;
    };
    let mut poster = Poster::new(&bed.nic, DEPTH as u32);
    for round in 0..40 {
        (0..DEPTH - 1).for_each(|n| poster.write(bed.read(n + round, n)));
        poster.ring();
        for _ in 0..round * 37 % (DEPTH - 130) {
            assert_eq!(poster.poll().status, Status::Success);
        }
        bed.nic.reset(poster.pair.number).expect("from any state");
        poster.connect();
        for n in 0..3 {
            assert_eq!(poster.run(bed.read(n + round, n)), Status::Success, "round {round}");
            bed.frame_holds(n, n + round);
        }
    }
}

#[test]
fn remote_memory_is_reached_with_its_key_within_its_bounds_and_rights_only() {
    let Some(bed) = Bed::new("remote_memory_is_reached_with_its_key_within_its_bounds_and_rights_only") else {
        return;
    };
    let read_only = Memory::new(&*bed.nic, Access::REMOTE_READ);
    let gone = Memory::new(&*bed.nic, Access::ALL);
    bed.nic.deregister(gone.key).expect("it was registered");
    let end = page(&bed.home, PAGES - 1) + PAGE;
    let cases = [
        (
            "stale key",
            WorkRequest {
                remote: page(&gone, 0),
                rkey: gone.key.rkey,
                ..bed.read(0, 0)
            },
        ),
        (
            "past the end",
            WorkRequest {
                remote: end - PAGE + 8,
                ..bed.read(0, 0)
            },
        ),
        (
            "before the start",
            WorkRequest {
                remote: page(&bed.home, 0) - 8,
                ..bed.read(0, 0)
            },
        ),
        (
            "read-only",
            WorkRequest {
                remote: page(&read_only, 0),
                rkey: read_only.key.rkey,
                ..bed.request(Operation::Write, 0, 0)
            },
        ),
    ];
    for (name, request) in cases {
        let mut poster = Poster::new(&bed.nic, 2);
        assert_eq!(poster.run(request), Status::RemoteAccess, "{name}");
    }
    let reading = WorkRequest {
        remote: page(&read_only, 0),
        rkey: read_only.key.rkey,
        ..bed.read(0, 0)
    };
    assert_eq!(Poster::new(&bed.nic, 2).run(reading), Status::Success);
    // Local keys are checked as well.
    let unknown = WorkRequest {
        lkey: bed.frames.key.lkey ^ 0xff00,
        ..bed.read(0, 0)
    };
    assert_eq!(Poster::new(&bed.nic, 2).run(unknown), Status::LocalProtection);
}

#[test]
fn bad_arguments_are_refused() {
    let Some(bed) = Bed::new("bad_arguments_are_refused") else {
        return;
    };
    for depth in [0, 3, 1 << 15] {
        // SAFETY: nothing is made.
        let made = unsafe { bed.nic.create_queue_pair(QueueRings::Own { depth }) };
        assert!(made.is_err(), "{depth}");
    }
    // SAFETY: nothing is registered.
    let made = unsafe { bed.nic.register(page(&bed.home, 0), 0, Access::NONE) };
    assert!(made.is_err());
    // SAFETY: the kernel refuses memory that is not mapped.
    let made = unsafe { bed.nic.register(1 << 46, PAGE, Access::LOCAL_WRITE) };
    let error = made.expect_err("it is not mapped").to_string();
    assert!(
        error.contains("registering 4096 bytes") && error.contains("not mapped"),
        "{error}"
    );
    assert!(bed.nic.queue_pair(0xdead).is_err());
    assert!(bed.nic.deregister(MemoryKey { lkey: 1, rkey: 2 }).is_err());
}
