//! A NIC, a home and frames, for the tests of the software NIC.

pub mod mover;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use gpuvm_nic::poster::{Flags, Poster, PosterConfig};
use gpuvm_nic::soft::{SoftNicBuilder, ViolationKind, VirtualClock};
use gpuvm_nic::wire::mlx5::{Completion, Doorbell, Operation, Segment, Syndrome};
use gpuvm_nic::{Access, MemoryKey, Nic, Pages, SoftNic};

/// No test waits longer than this for anything.
pub const BOUND: Duration = Duration::from_secs(20);
/// Bytes of the home and of the frames.
pub const BYTES: u64 = 1 << 20;

/// Registered memory that is accessed by atomics only.
pub struct Memory {
    pages: Pages,
    pub key: MemoryKey,
}

impl Memory {
    pub fn new(nic: &dyn Nic, access: Access) -> Self {
        let pages = Pages::new(BYTES as usize);
        // SAFETY: `Bed` drops the NIC, or a test destroys what uses it, before the pages go; access is atomic.
        let key = unsafe { nic.register(pages.address(), BYTES, access) }.expect("room for a key");
        Memory { pages, key }
    }

    pub fn address(&self) -> u64 {
        self.pages.address()
    }

    pub fn word(&self, index: u64) -> &AtomicU64 {
        assert!(index < BYTES / 8);
        // SAFETY: within the pages, aligned; all access is atomic.
        unsafe { &*self.pages.as_ptr().cast::<AtomicU64>().add(index as usize) }
    }

    pub fn byte(&self, offset: u64) -> u8 {
        assert!(offset < BYTES);
        // SAFETY: as in `word`.
        unsafe { &*self.pages.as_ptr().cast::<AtomicU8>().add(offset as usize) }.load(Ordering::Relaxed)
    }

    pub fn bytes(&self, offset: u64, count: u64) -> Vec<u8> {
        (offset..offset + count).map(|at| self.byte(at)).collect()
    }

    pub fn fill(&self, value: impl Fn(u64) -> u64) {
        (0..BYTES / 8).for_each(|i| self.word(i).store(value(i), Ordering::Relaxed));
    }
}

/// What the home holds at first.
pub fn pattern(word: u64) -> u64 {
    word.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0123_4567_89ab_cdef
}

/// A NIC with a home (remote side) and frames (local side). The NIC is dropped first.
pub struct Bed {
    pub nic: Arc<SoftNic>,
    pub home: Memory,
    pub frames: Memory,
}

impl Bed {
    pub fn new(builder: SoftNicBuilder) -> Self {
        let nic = Arc::new(builder.build().expect("a NIC"));
        let home = Memory::new(&*nic, Access::ALL);
        let frames = Memory::new(&*nic, Access::LOCAL_WRITE);
        home.fill(pattern);
        frames.fill(|_| 0xa5a5_a5a5_a5a5_a5a5);
        Bed { nic, home, frames }
    }

    /// Manual mode.
    pub fn manual() -> Self {
        Self::new(SoftNic::builder().engines(0))
    }

    /// Manual mode with a virtual clock that starts at 1,000 ns.
    pub fn with_clock(builder: SoftNicBuilder) -> (Self, Arc<VirtualClock>) {
        let clock = Arc::new(VirtualClock::new(1000));
        (Self::new(builder.engines(0).clock(clock.clone())), clock)
    }

    pub fn poster(&self, sq_entries: u32) -> Poster {
        self.poster_with(PosterConfig {
            sq_entries,
            cq_entries: sq_entries,
            collapsed: false,
        })
    }

    pub fn poster_with(&self, config: PosterConfig) -> Poster {
        Poster::loopback(self.nic.clone(), config).expect("a queue pair")
    }

    /// READ of the home at `from`, bytes.
    pub fn read(&self, from: u64) -> Operation {
        Operation::Read {
            remote: self.home.address() + from,
            rkey: self.home.key.rkey,
        }
    }

    /// WRITE to the home at `to`, bytes.
    pub fn write(&self, to: u64) -> Operation {
        Operation::Write {
            remote: self.home.address() + to,
            rkey: self.home.key.rkey,
        }
    }

    /// Local data: `bytes` bytes of the frames at `at`.
    pub fn local(&self, at: u64, bytes: u64) -> Segment<'static> {
        Segment::Data {
            bytes: bytes as u32,
            lkey: self.frames.key.lkey,
            address: self.frames.address() + at,
        }
    }

    /// Steps until there is nothing to do; returns the units done.
    pub fn settle(&self) -> usize {
        let units = (0..1_000_000).take_while(|_| self.nic.step()).count();
        assert!(units < 1_000_000, "the NIC never comes to rest");
        units
    }

    /// Posts one request and waits for its completion.
    pub fn run(&self, poster: &mut Poster, operation: Operation, segments: &[Segment<'_>]) -> Completion {
        poster.submit(operation, segments, Flags::SIGNALLED).expect("room");
        poster.wait(BOUND).expect("a completion")
    }

    /// The kinds of rules of the queues that were broken, and how often.
    pub fn broken(&self) -> Vec<(ViolationKind, u64)> {
        let violations = self.nic.violations();
        violations.iter().map(|broken| (broken.kind, broken.count)).collect()
    }

    /// Asserts that no rule of the queues was broken.
    pub fn assert_clean(&self) {
        assert_eq!(self.nic.violations(), []);
    }
}

/// What tests do with a poster, and cannot go wrong.
pub trait Sure {
    /// Writes a request that has a completion of its own, without ringing.
    fn put(&mut self, operation: Operation, segments: &[Segment<'_>]);
    /// Stores the doorbell alone, for the requests before that index.
    fn ring_for(&self, index: u16);
    /// Resets the queue pair and makes it ready again.
    fn restart(&mut self, bed: &Bed);
}

impl Sure for Poster {
    #[track_caller]
    fn put(&mut self, operation: Operation, segments: &[Segment<'_>]) {
        self.post(operation, segments, Flags::SIGNALLED).expect("room");
    }

    fn ring_for(&self, index: u16) {
        let queue_pair = self.number();
        self.store_doorbell(Doorbell { index, queue_pair });
    }

    #[track_caller]
    fn restart(&mut self, bed: &Bed) {
        self.reset().expect("it lives");
        bed.nic.connect(self.number(), self.number()).expect("it is in reset");
    }
}

/// Asserts that `completion` failed for this reason.
#[track_caller]
pub fn assert_failed(completion: &Completion, syndrome: Syndrome) {
    assert_eq!(completion.syndrome(), Some(syndrome), "{completion}");
}
