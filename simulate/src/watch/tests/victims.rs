//! Slots at a neighbour, who takes their memory back.

use gpuvm_layouts::{self as layout, PoolDesc, PoolState, VictimsDesc};
use gpuvm_sim_gpu::{Observer, Step};

use super::{Fake, PAGE};

const SLOTS: usize = 2;
const MARK: u64 = 0xdddd;

/// A virtual memory that borrows two chunks of one slot each.
struct Borrower {
    fake: Fake,
    memory: Vec<u64>,
    ring: Vec<u64>,
    turns: Vec<u64>,
    lent: Vec<u32>,
    /// Pairs of frames.
    slots_kept: Vec<u64>,
    /// What the description names besides.
    _kept: (Box<PoolState>, Vec<u64>, Vec<u32>, Box<VictimsDesc>),
}

impl Borrower {
    fn new() -> Self {
        let memory = vec![0; SLOTS * PAGE / 8];
        let chunks: Vec<u64> = (0..SLOTS)
            .map(|slot| &raw const memory[slot * PAGE / 8] as u64)
            .collect();
        let ring: Vec<u64> = (0..SLOTS as u64).map(|slot| 1 << 32 | slot).collect();
        let mut pool: Box<PoolState> = bytemuck::zeroed_box();
        pool.available = SLOTS as u64;
        let (lent, writers, turns) = (vec![1; SLOTS], vec![0; SLOTS], vec![0; SLOTS]);
        let slots_kept = vec![0; 2];
        let desc = Box::new(VictimsDesc {
            free: PoolDesc::new(&raw const *pool as u64, ring.as_ptr() as u64, SLOTS as u32),
            chunks: chunks.as_ptr() as u64,
            lent: lent.as_ptr() as u64,
            writers: writers.as_ptr() as u64,
            slots_kept: slots_kept.as_ptr() as u64,
            ..bytemuck::Zeroable::zeroed()
        });
        let mut fake = Fake::new();
        fake.regions[0].home = fake.home.as_ptr() as u64;
        fake.regions[0].victims = &raw const *desc as u64;
        fake.watcher.step(0, Step::Host);
        fake.watcher.lender_begins(turns.as_ptr() as u64, MARK, 8);
        Self {
            fake,
            memory,
            ring,
            turns,
            lent,
            slots_kept,
            _kept: (pool, chunks, writers, desc),
        }
    }

    fn step(&mut self) {
        self.fake.step();
    }

    fn take(&mut self, slot: usize) {
        self.ring[slot] = 2 << 32;
        self.step();
    }

    fn give(&mut self, slot: usize) {
        self.ring[slot] = 3 << 32 | slot as u64;
        self.step();
    }

    /// Copies page `page` from its home into the slot.
    fn copy(&mut self, page: usize, slot: usize) {
        let bytes = &self.fake.home[page * PAGE..(page + 1) * PAGE];
        let words = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        for (to, word) in self.memory[slot * PAGE / 8..].iter_mut().zip(words) {
            *to = word;
        }
        self.step();
    }

    /// The page's entry in frame 0 becomes one that names the slot.
    fn keep(&mut self, page: usize, slot: usize) {
        self.fake.word(page, self.fake.words[page] | layout::WRITE_BACK_BIT);
        let version = (self.fake.words[page] & layout::VERSION_MASK) + (1 << layout::VERSION_SHIFT);
        self.fake.word(page, version | (slot as u64 + 1) << layout::FRAME_SHIFT);
    }

    /// What a frame keeps becomes that, a slot plus one or 0.
    fn beside(&mut self, frame: usize, kept: u64) {
        let shift = frame % 2 * 32;
        let pair = &mut self.slots_kept[frame / 2];
        *pair = *pair & !(0xffff_ffff << shift) | kept << shift;
        self.step();
    }

    /// Page 1, which is claimed, comes to a frame.
    fn publish(&mut self, frame: usize) {
        self.fake.take(frame);
        self.fake.fill(1, frame);
        self.fake.frame_pages[frame] = layout::page_id(0, 1);
        let version = self.fake.words[1] & layout::VERSION_MASK;
        let resident = layout::STATE_RESIDENT << layout::STATE_SHIFT;
        self.fake
            .word(1, version | resident | (frame as u64) << layout::FRAME_SHIFT);
    }

    /// Page 1 came from slot 0 to frame 1, and has the slot still.
    fn beside_frame() -> Self {
        let mut it = Self::kept();
        it.claim(1);
        it.beside(1, 1);
        it.publish(1);
        it
    }

    fn claim(&mut self, page: usize) {
        let version = self.fake.words[page] & layout::VERSION_MASK;
        self.fake
            .word(page, version | layout::STATE_FETCHING << layout::STATE_SHIFT);
    }

    fn revert(&mut self, page: usize, slot: Option<u64>) {
        let version = self.fake.words[page] & layout::VERSION_MASK;
        let named = slot.map_or(0, |slot| slot + 1);
        self.fake.word(page, version | named << layout::FRAME_SHIFT);
    }

    /// Page 1 lies in slot 0.
    fn kept() -> Self {
        let mut it = Self::new();
        it.fake.fetch(1, 0);
        it.take(0);
        it.copy(1, 0);
        it.keep(1, 0);
        it
    }

    /// The lender has the chunk back.
    fn take_back(&mut self, chunk: usize) {
        self.lent[chunk] = 0;
        for turn in [1, 2] {
            self.turns[chunk] = turn;
            self.step();
        }
    }

    /// Looks at every slot.
    fn look(&mut self) {
        (0..SLOTS).for_each(|_| self.step());
    }
}

#[test]
fn a_page_that_is_kept_and_comes_back_breaks_no_rule() {
    let mut it = Borrower::kept();
    it.claim(1);
    it.revert(1, Some(0));
    it.claim(1);
    it.give(0);
    assert_eq!(it.fake.found(), []);
    assert_eq!(it.fake.watcher.looks().victims, 4);
    assert_eq!(it.fake.watcher.looks().slots, 2);
}

#[test]
fn a_page_that_keeps_its_slot_breaks_no_rule() {
    let mut it = Borrower::beside_frame();
    it.keep(1, 0);
    it.beside(1, 0);
    it.claim(1);
    it.beside(2, 1);
    it.publish(2);
    it.beside(2, 0);
    it.give(0);
    assert_eq!(it.fake.found(), []);
    assert_eq!(it.fake.watcher.looks().victims, 4);
}

#[test]
fn a_slot_that_a_frame_keeps() {
    let mut it = Borrower::beside_frame();
    it.give(0);
    it.fake.finds("slot 0 became free while frame 1 keeps it");
    let mut it = Borrower::beside_frame();
    it.fake.evict(1, 1);
    it.fake.finds("frame 1 went to the pool and keeps slot 0");
    let mut it = Borrower::kept();
    it.claim(1);
    it.beside(1, 1);
    it.publish(2);
    it.fake.finds("the slot 0 of page 1 of region 0 was not given back");
    let mut it = Borrower::kept();
    it.beside(1, 1);
    it.fake.finds("frame 1 keeps slot 0, which is Some(Of(");
    let mut it = Borrower::beside_frame();
    it.beside(1, 2);
    it.fake.finds("frame 1 keeps slot 1, which is Some(Free)");
    // The next page of a frame.
    let mut it = Borrower::beside_frame();
    it.keep(1, 0);
    it.claim(1);
    it.give(0);
    it.publish(1);
    it.fake.finds("page 1 of region 0 came to frame 1, which keeps slot 0");
    // A page that was written, whose slot has what it was before.
    let mut it = Borrower::beside_frame();
    it.fake.home[PAGE] ^= 1;
    it.keep(1, 0);
    it.fake
        .finds("page 1 of region 0 was kept, but its slot 0 and its home differ from byte 0 on");
}

#[test]
fn a_slot_that_holds_something_else_than_the_home() {
    let mut it = Borrower::new();
    it.fake.fetch(1, 0);
    it.take(0);
    it.keep(1, 0);
    it.fake
        .finds("page 1 of region 0 was kept, but its slot 0 and its home differ from byte");
    let mut it = Borrower::kept();
    it.memory[3] ^= 1;
    it.claim(1);
    it.fake
        .finds("left its slot, but its slot 0 and its home differ from byte 24 on");
}

#[test]
fn a_slot_in_two_places() {
    let mut it = Borrower::kept();
    it.give(0);
    it.fake.finds("slot 0 became free while page 1 of region 0 is in it");
    let mut it = Borrower::kept();
    it.fake.fetch(2, 1);
    it.keep(2, 0);
    it.fake
        .finds("page 2 of region 0 was kept in slot 0, where page 1 of region 0 is");
    let mut it = Borrower::new();
    it.fake.fetch(2, 1);
    it.keep(2, 0);
    it.fake.finds("page 2 of region 0 was kept in slot 0, which is free");
    let mut it = Borrower::new();
    it.take(0);
    it.ring[0] = 3 << 32 | 1;
    it.step();
    it.fake.finds("slot 1 became free twice");
}

#[test]
fn a_slot_that_nobody_has_any_more() {
    let mut it = Borrower::kept();
    it.claim(1);
    it.revert(1, None);
    it.fake.finds("the slot 0 of page 1 of region 0 was not given back");
    // Nothing misses it where its memory was taken back.
    let mut it = Borrower::kept();
    it.take_back(0);
    it.claim(1);
    it.revert(1, None);
    assert_eq!(it.fake.found(), []);
    let mut it = Borrower::new();
    it.take(1);
    let found = it.fake.watcher.when_idle().unwrap_err();
    assert!(found.what.contains("slot 1 is not free at the end"), "{}", found.what);
}

#[test]
fn memory_of_a_lender_who_has_it_back() {
    let mut it = Borrower::kept();
    it.take_back(0);
    it.memory[..8].fill(MARK);
    it.look();
    assert_eq!(it.fake.found(), []);
    assert_eq!(it.fake.watcher.lender_ends(), Ok(1));
    let mut it = Borrower::kept();
    it.take_back(0);
    it.memory[100] ^= 1;
    it.look();
    it.fake
        .finds("word 100 of slot 0 was written after its lender had it back");
    // What was there before is as wrong, once the lender has stored something.
    let mut it = Borrower::kept();
    let before = it.memory[5];
    it.take_back(0);
    it.memory[..8].fill(MARK);
    it.look();
    it.memory[5] = before;
    it.look();
    it.fake
        .finds("word 5 of slot 0 was written after its lender had it back");
    let mut it = Borrower::kept();
    it.take_back(0);
    let what = it.fake.watcher.lender_ends().unwrap_err();
    assert!(
        what.contains("word 0 of slot 0 is not what its lender stored there"),
        "{what}"
    );
    let mut it = Borrower::kept();
    it.turns[1] = 3;
    it.step();
    it.fake.finds("chunk 1 has writers long after its loan has ended");
}
