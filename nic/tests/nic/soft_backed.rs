//! Addresses that are no memory: requests wait until what is behind them is in memory, and it is told of those that come.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::common::mover::TestMover;
use crate::common::{BOUND, BYTES, Bed, Memory, Sure as _, pattern};
use gpuvm_nic::poster::Poster;
use gpuvm_nic::soft::{Fault, FaultPlan, vendor};
use gpuvm_nic::wire::mlx5::{CompletionDetail, Operation, Segment, Syndrome};
use gpuvm_nic::{Access, Acquired, Backing, MemoryKey, Nic, Piece, SoftNic};

const PAGE: u64 = 4096;
/// Where the addresses are that are no memory: nothing is mapped at the last of them.
const BASE: u64 = 0x7000_0000_0000;

/// What is behind the addresses: pages that are in memory once they were polled for, in pieces of half a page.
struct Shelf {
    memory: Memory,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    expected: Vec<u64>,
    /// Pages that are in memory.
    there: Vec<u64>,
    asked: Vec<u64>,
    /// Nothing comes while set.
    held: bool,
    broken: Option<u64>,
    kept: i64,
    written: Vec<u64>,
    progress: u64,
}

impl Shelf {
    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut self.state.lock().unwrap())
    }
}

impl Backing for Shelf {
    fn expect(&self, address: u64, bytes: u64) -> bool {
        assert_eq!(bytes, PAGE);
        self.with(|state| state.expected.push((address - BASE) / PAGE));
        true
    }

    fn acquire(&self, address: u64, bytes: u64, writes: bool, pieces: &mut Vec<Piece>) -> Acquired {
        let (offset, page) = (address - BASE, (address - BASE) / PAGE);
        self.with(|state| {
            if state.broken == Some(page) {
                return Acquired::Failed;
            }
            if !state.there.contains(&page) {
                state.asked.push(page);
                return Acquired::Wait;
            }
            let half = bytes / 2;
            for (at, bytes) in [(0, half), (half, bytes - half)] {
                let address = self.memory.address() + offset + at;
                pieces.push(Piece {
                    address,
                    bytes,
                    token: page,
                });
            }
            state.kept += 2;
            state.written.extend(writes.then_some(page));
            Acquired::Ready
        })
    }

    fn release(&self, pieces: &[Piece], _writes: bool) {
        self.with(|state| state.kept -= pieces.len() as i64);
    }

    fn poll(&self) -> bool {
        self.with(|state| {
            if state.held {
                return false;
            }
            let asked = std::mem::take(&mut state.asked);
            let any = !asked.is_empty();
            state.there.extend(asked);
            state.progress += u64::from(any);
            any
        })
    }

    fn progress(&self) -> u64 {
        self.with(|state| state.progress)
    }
}

struct Shelved {
    bed: Bed,
    shelf: Arc<Shelf>,
    key: MemoryKey,
}

impl Shelved {
    fn on(bed: Bed) -> Self {
        let memory = Memory::new(&*bed.nic, Access::NONE);
        memory.fill(|word| !pattern(word));
        let shelf = Arc::new(Shelf {
            memory,
            state: Mutex::default(),
        });
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let key = bed.nic.register_backed(BASE, BYTES, access, shelf.clone()).unwrap();
        Self { bed, shelf, key }
    }

    fn read(&self, page: u64) -> Operation {
        Operation::Read {
            remote: BASE + page * PAGE,
            rkey: self.key.rkey,
        }
    }

    fn write(&self, page: u64) -> Operation {
        Operation::Write {
            remote: BASE + page * PAGE,
            rkey: self.key.rkey,
        }
    }

    fn local(&self, page: u64) -> [Segment<'static>; 1] {
        [self.bed.local(page * PAGE, PAGE)]
    }

    fn post_reads(&self, poster: &mut Poster, pages: impl Iterator<Item = u64>) {
        for page in pages {
            poster.put(self.read(page), &self.local(page));
        }
        poster.ring();
    }

    /// Steps so often, whether or not there is anything to do.
    fn step(&self) {
        for _ in 0..200 {
            self.bed.nic.step();
        }
    }

    #[track_caller]
    fn assert_read(&self, page: u64) {
        for word in page * 512..(page + 1) * 512 {
            assert_eq!(
                self.bed.frames.word(word).load(Ordering::Relaxed),
                !pattern(word),
                "word {word}"
            );
        }
    }

    #[track_caller]
    fn assert_let_go(&self) {
        assert_eq!(self.shelf.with(|state| state.kept), 0);
    }
}

/// By the processor, by a mover, and by requests that are executed when they are due.
fn each_way(test: impl Fn(Shelved)) {
    test(Shelved::on(Bed::manual()));
    test(Shelved::on(TestMover::default().manual()));
    let (bed, _clock) = Bed::with_clock(SoftNic::builder());
    // A fault that strikes nothing has every request queued.
    bed.nic.inject(FaultPlan::new(Fault::LoseCompletion).queue_pair(1));
    test(Shelved::on(bed));
}

#[test]
fn reads_wait_and_come_in_order() {
    each_way(|shelved| {
        let mut poster = shelved.bed.poster(64);
        shelved.shelf.with(|state| state.held = true);
        shelved.post_reads(&mut poster, 0..16);
        shelved.step();
        assert!(poster.poll().is_none());
        // It was told of all of them before the first one came.
        let mut expected = shelved.shelf.with(|state| state.expected.clone());
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(expected, (0..16).collect::<Vec<_>>());
        shelved.shelf.with(|state| state.held = false);
        shelved.step();
        for n in 0..16 {
            let done = poster.wait(BOUND).unwrap();
            assert_eq!((done.is_success(), u64::from(done.index)), (true, n));
            shelved.assert_read(n);
        }
        shelved.assert_let_go();
        shelved.bed.assert_clean();
    });
}

#[test]
fn writes_go_to_the_pieces_that_hold_them() {
    each_way(|shelved| {
        let mut poster = shelved.bed.poster(16);
        shelved.bed.frames.fill(|word| word * 3);
        poster.put(shelved.write(5), &shelved.local(2));
        poster.ring();
        shelved.step();
        assert!(poster.wait(BOUND).unwrap().is_success());
        for word in 0..512 {
            assert_eq!(
                shelved.shelf.memory.word(5 * 512 + word).load(Ordering::Relaxed),
                (2 * 512 + word) * 3
            );
        }
        assert_eq!(shelved.shelf.with(|state| state.written.clone()), [5]);
        // What is written whole is not asked for before.
        assert_eq!(shelved.shelf.with(|state| state.expected.clone()), []);
        shelved.assert_let_go();
    });
}

#[test]
fn others_go_on_while_one_waits() {
    each_way(|shelved| {
        let (mut waits, mut goes) = (shelved.bed.poster(16), shelved.bed.poster(16));
        shelved.shelf.with(|state| state.held = true);
        shelved.post_reads(&mut waits, 0..4);
        shelved.step();
        goes.put(shelved.bed.read(0), &shelved.local(9));
        goes.ring();
        shelved.step();
        assert!(goes.wait(BOUND).unwrap().is_success());
        assert!(waits.poll().is_none());
    });
}

#[test]
fn what_cannot_be_had_is_an_error_of_its_request() {
    each_way(|shelved| {
        let mut poster = shelved.bed.poster(16);
        shelved.shelf.with(|state| state.broken = Some(2));
        shelved.post_reads(&mut poster, 0..4);
        shelved.step();
        (0..2).for_each(|_| assert!(poster.wait(BOUND).unwrap().is_success()));
        let failed = poster.wait(BOUND).unwrap();
        let detail = CompletionDetail::Error {
            syndrome: Syndrome::RemoteOperation,
            vendor: vendor::BACKING,
        };
        assert_eq!((failed.index, failed.detail), (2, detail));
        assert_eq!(poster.wait(BOUND).unwrap().syndrome(), Some(Syndrome::Flushed));
        shelved.assert_let_go();
        // After a reset it is asked again.
        shelved.shelf.with(|state| state.broken = None);
        poster.restart(&shelved.bed);
        shelved.post_reads(&mut poster, 2..3);
        shelved.step();
        assert!(poster.wait(BOUND).unwrap().is_success());
        shelved.assert_read(2);
    });
}

#[test]
fn a_key_is_taken_back_while_requests_wait() {
    each_way(|shelved| {
        let mut poster = shelved.bed.poster(16);
        shelved.shelf.with(|state| state.held = true);
        shelved.post_reads(&mut poster, 0..4);
        shelved.step();
        shelved.bed.nic.deregister(shelved.key).unwrap();
        assert_eq!(Arc::strong_count(&shelved.shelf), 1, "the NIC keeps nothing of it");
        shelved.step();
        assert_eq!(poster.wait(BOUND).unwrap().syndrome(), Some(Syndrome::RemoteAccess));
    });
}

#[test]
fn bounds_and_rights_hold_as_for_memory() {
    each_way(|shelved| {
        let mut poster = shelved.bed.poster(16);
        poster.put(shelved.read(BYTES / PAGE), &shelved.local(0));
        poster.ring();
        shelved.step();
        assert_eq!(poster.wait(BOUND).unwrap().syndrome(), Some(Syndrome::RemoteAccess));
        assert_eq!(shelved.shelf.with(|state| (state.kept, state.asked.len())), (0, 0));
    });
}

#[test]
fn a_planted_bit_flips_in_the_pieces() {
    let (bed, _clock) = Bed::with_clock(SoftNic::builder());
    let shelved = Shelved::on(bed);
    shelved.bed.nic.inject(FaultPlan::new(Fault::Flip { bit: 8 * 3000 }));
    let mut poster = shelved.bed.poster(16);
    shelved.bed.frames.fill(|_| 0);
    poster.put(shelved.write(1), &shelved.local(0));
    poster.ring();
    shelved.step();
    assert!(poster.wait(BOUND).unwrap().is_success());
    let written: Vec<u8> = shelved.shelf.memory.bytes(PAGE, PAGE);
    let odd: Vec<_> = (0..PAGE as usize).filter(|at| written[*at] != 0).collect();
    assert_eq!(odd, [3000]);
}

#[test]
fn engines_of_their_own_wait_without_a_step() {
    let shelved = Shelved::on(Bed::new(SoftNic::builder().engines(2)));
    let mut poster = shelved.bed.poster(64);
    shelved.post_reads(&mut poster, (0..32).rev());
    for n in (0..32).rev() {
        assert!(poster.wait(BOUND).unwrap().is_success());
        shelved.assert_read(n);
    }
    shelved.assert_let_go();
}
