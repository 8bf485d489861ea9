//! Random buffers against a plain model: no byte has two owners, no handle is lost, and what is wasted is counted.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Book, BufferId, UNIT};

/// A book whose handles are numbers.
struct Tried {
    book: Book<u64>,
    size: u64,
    made: u64,
    /// Handles that came back.
    back: Vec<u64>,
    /// Bytes that each buffer is to have at least.
    buffers: BTreeMap<BufferId, u64>,
}

impl Tried {
    fn new(size: u64) -> Self {
        Self {
            book: Book::new(size),
            size,
            made: 0,
            back: Vec::new(),
            buffers: BTreeMap::new(),
        }
    }

    fn fresh(&mut self, count: usize) -> Vec<u64> {
        let handle = |_| {
            self.back.pop().unwrap_or_else(|| {
                self.made += 1;
                self.made
            })
        };
        (0..count).map(handle).collect()
    }

    fn open(&mut self, bytes: u64) -> BufferId {
        let mut fresh = Vec::new();
        let id = match self.book.open(bytes, &mut fresh) {
            Ok(id) => id,
            Err(missing) => {
                fresh = self.fresh(missing);
                self.book.open(bytes, &mut fresh).expect("what it asked for")
            }
        };
        assert!(fresh.is_empty(), "more than it needs");
        self.buffers.insert(id, bytes);
        id
    }

    /// How often bytes were to be moved.
    fn grow(&mut self, id: BufferId, by: u64) -> bool {
        let wanted = self.buffers[&id] + by;
        self.buffers.insert(id, wanted);
        let mut moved = false;
        if self.book.bytes(id) < wanted && !self.book.take_rest(id) && self.book.bytes(id) < wanted {
            let own = self.fresh(1)[0];
            let before = self.book.handles(id);
            self.back.extend(self.book.replace_last(id, own));
            let after = self.book.handles(id);
            assert_eq!(before[..before.len() - 1], after[..after.len() - 1]);
            moved = true;
        }
        if self.book.bytes(id) < wanted {
            let missing = self.book.missing(id, wanted);
            let more = self.fresh(missing);
            self.book.add(id, more);
        }
        moved
    }

    fn cut(&mut self, id: BufferId, bytes: u64) {
        self.back.extend(self.book.cut(id, bytes));
        self.buffers.insert(id, bytes);
    }

    /// What holds at any time.
    fn holds(&self) {
        let mut owners: BTreeMap<(u64, u64), BufferId> = BTreeMap::new();
        let mut claimed = 0;
        for (id, bytes) in &self.buffers {
            assert!(self.book.bytes(*id) >= *bytes);
            let (head, handles) = (self.book.head(*id), self.book.handles(*id));
            assert!(head < self.size && head.is_multiple_of(UNIT));
            claimed += self.book.bytes(*id);
            for at in (head..head + self.book.bytes(*id)).step_by(UNIT as usize) {
                let place = (handles[(at / self.size) as usize], at % self.size);
                let other = owners.insert(place, *id);
                assert_eq!(other, None, "of buffer {id}: {place:?}");
            }
        }
        let used: BTreeSet<u64> = owners.keys().map(|(handle, _)| *handle).collect();
        let free: BTreeSet<u64> = self.back.iter().copied().collect();
        assert_eq!(free.len(), self.back.len(), "one came back twice");
        assert!(used.is_disjoint(&free));
        assert_eq!(used.len() + free.len(), self.made as usize, "one was lost");
        assert_eq!(self.book.totals(), (used.len() as u64 * self.size, claimed));
    }
}

/// Log-uniform from `least` to `most`.
fn log_uniform(rng: &mut impl Rng, least: f64, most: f64) -> u64 {
    (least.ln() + rng.random::<f64>() * (most / least).ln()).exp() as u64
}

#[test]
fn whatever_buffers_do_no_byte_has_two_owners_and_no_handle_is_lost() {
    let mut moves = 0;
    for seed in 0..40 {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut tried = Tried::new(UNIT * rng.random_range(1..12));
        for _ in 0..300 {
            let ids: Vec<BufferId> = tried.buffers.keys().copied().collect();
            let some = |rng: &mut ChaCha8Rng| ids[rng.random_range(0..ids.len())];
            match rng.random_range(0..10) {
                0..4 => {
                    tried.open(rng.random_range(0..UNIT * 40));
                }
                _ if ids.is_empty() => {}
                4..7 => {
                    let id = some(rng);
                    moves += usize::from(tried.grow(id, rng.random_range(1..UNIT * 9)));
                }
                7 => {
                    let id = some(rng);
                    let left = rng.random_range(0..=tried.buffers[&id]);
                    tried.cut(id, left);
                }
                8 => {
                    // Paused and resumed.
                    let (id, before) = {
                        let id = some(rng);
                        (id, tried.buffers[&id])
                    };
                    let head = tried.book.head(id);
                    tried.cut(id, 0);
                    tried.holds();
                    let missing = tried.book.reopen(id, before, &mut Vec::new()).err().unwrap_or_default();
                    if missing > 0 {
                        let mut fresh = tried.fresh(missing);
                        tried.book.reopen(id, before, &mut fresh).unwrap();
                        assert!(fresh.is_empty());
                    }
                    tried.buffers.insert(id, before);
                    assert_eq!(tried.book.head(id), head);
                }
                _ => {
                    let id = some(rng);
                    tried.back.extend(tried.book.close(id));
                    tried.buffers.remove(&id);
                }
            }
            tried.holds();
        }
        for id in std::mem::take(&mut tried.buffers).into_keys() {
            tried.back.extend(tried.book.close(id));
        }
        tried.holds();
        assert_eq!(tried.book.totals(), (0, 0));
    }
    assert!(moves > 50, "only {moves} growths over others' heads were tried");
}

#[test]
fn a_thousand_buffers_of_many_sizes_waste_little() {
    const MIB: f64 = 1048576.0;
    for seed in 0..5 {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut tried = Tried::new(2 << 20);
        let wasted = |tried: &Tried| {
            let asked: u64 = tried.buffers.values().sum();
            let held = tried.book.totals().0;
            (held - asked) as f64 / held as f64
        };
        for _ in 0..1000 {
            tried.open(log_uniform(rng, 0.1 * MIB, 64.0 * MIB));
        }
        assert!(wasted(&tried) <= 0.05, "{:.4} is wasted", wasted(&tried));
        // And when half of them have gone and others have come.
        let ids: Vec<BufferId> = tried.buffers.keys().copied().collect();
        for id in ids.into_iter().step_by(2) {
            tried.back.extend(tried.book.close(id));
            tried.buffers.remove(&id);
            tried.open(log_uniform(rng, 0.1 * MIB, 64.0 * MIB));
        }
        assert!(wasted(&tried) <= 0.05, "{:.4} is wasted later", wasted(&tried));
    }
}

#[test]
fn a_head_takes_the_end_of_a_rest_and_leaves_the_tail_room() {
    let mut tried = Tried::new(8 * UNIT);
    let first = tried.open(3 * UNIT);
    let second = tried.open(10 * UNIT);
    // Two units of the second lie at the end of the first one's handle.
    assert_eq!((tried.book.head(second), tried.made), (6 * UNIT, 2));
    assert!(!tried.grow(first, 3 * UNIT));
    assert_eq!(tried.book.bytes(first), 6 * UNIT);
    assert!(tried.grow(first, 1), "over the head");
    assert_eq!((tried.made, tried.book.bytes(first)), (3, 8 * UNIT));
    // What is left of the old handle is in use no more than by the head.
    let third = tried.open(6 * UNIT);
    assert_eq!((tried.book.head(third), tried.made), (0, 3));
    tried.holds();
}
