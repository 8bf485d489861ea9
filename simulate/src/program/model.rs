//! What a random program must come to: the same as on a plain array.

use std::collections::HashMap;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::shape::{Element, ProgramShape};
use crate::bench::fold;

/// What an array without paging would hold.
pub(super) struct Model<T> {
    seed: u64,
    written: HashMap<u64, u64>,
    /// The counters that all lanes change.
    pub(super) shared: Vec<u64>,
    _elements: std::marker::PhantomData<T>,
}

/// What element `i` begins as. Every byte of it is as good as drawn, so that one that is not copied shows.
fn mix(seed: u64, i: u64) -> u64 {
    let mut x = seed ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The number of `number` cut to what fits the element.
fn cut<T: Element>(number: u64) -> u64 {
    T::make(number).get()
}

impl<T: Element> Model<T> {
    pub(super) fn new(seed: u64, shape: &ProgramShape) -> Self {
        Self {
            seed,
            written: HashMap::new(),
            shared: (0..shape.shared)
                .map(|i| if i % 4 == 3 { u64::MAX } else { i })
                .collect(),
            _elements: std::marker::PhantomData,
        }
    }

    /// The element that is at `i`.
    pub(super) fn element(&self, i: u64) -> T {
        T::make(self.number(i))
    }

    pub(super) fn number(&self, i: u64) -> u64 {
        self.written
            .get(&i)
            .copied()
            .unwrap_or_else(|| cut::<T>(mix(self.seed, i)))
    }

    pub(super) fn write(&mut self, i: u64, number: u64) -> u64 {
        let before = self.number(i);
        self.written.insert(i, cut::<T>(number));
        before
    }

    /// Makes one lane's operation on element `i` and returns the lane's hash.
    pub(super) fn apply(&mut self, shape: &ProgramShape, kind: u64, value: u64, i: u64, hash: u64) -> u64 {
        let atomics = size_of::<T>() == 4 || size_of::<T>() == 8;
        match kind {
            0 => return fold(hash, self.number(i)),
            1 => {
                self.write(i, value);
            }
            2 => {
                self.write(i, self.number(i).wrapping_add(value));
            }
            3 if T::WRAPS => {
                self.write(i, self.number(i).wrapping_add(value));
            }
            4 => {
                let cell = &mut self.shared[i as usize];
                match i % 4 {
                    0 => *cell = cell.wrapping_add(value),
                    1 => *cell = (*cell).max(value << 20),
                    2 => *cell |= 1 << (value % 64),
                    _ => *cell = (*cell).min(u64::MAX - value),
                }
            }
            5 | 6 => {
                let bytes = size_of::<T>() as u64;
                let in_page = (shape.page - i * bytes % shape.page) / bytes;
                let hash = fold(hash, in_page.min(shape.elements - i));
                return fold(hash, self.write(i, value));
            }
            7 => {
                let fixed = (i..(i + value).min(shape.elements)).filter(|k| k % 4 == 0);
                return fixed.fold(hash, |hash, k| fold(hash, self.number(k)));
            }
            9 if atomics => return fold(hash, self.write(i, value)),
            10 if atomics => {
                let before = fold(hash, self.write(i, value));
                return fold(before, self.number(i));
            }
            _ => {}
        }
        hash
    }
}

/// One random operation of `lane`: its kind, value and index.
pub(super) fn operation<T: Element>(
    rng: &mut ChaCha8Rng,
    shape: &ProgramShape,
    lane: u64,
    warp_turn: u64,
) -> (u64, u64, u64) {
    let lanes = shape.lanes();
    // Elements 4k + 1 to 4k + 3 belong to lane k mod `lanes`; nothing writes those at 4k. Every lane has some in each whole turn.
    let turns = shape.elements / (4 * lanes);
    let place = |turn: u64| 4 * (lane + lanes * turn);
    // One in eight is of the last turn, as far as there is one: a region's end is a case of its own.
    let own = |turn: u64, rng: &mut ChaCha8Rng| {
        let ends = turn % 8 == 7 && place(turns) + 1 < shape.elements;
        let first = place(if ends { turns } else { turn });
        (first + rng.random_range(1..4)).min(shape.elements - 1)
    };
    // Lanes of a warp hold one page: they stay together.
    let held = |turn: u64, rng: &mut ChaCha8Rng| place(turn) + rng.random_range(1..4);
    let value = rng.random_range(0..0x1_0000);
    let far = rng.random_range(0..turns);
    // Half of the accesses stay together as a warp's do, the others go anywhere.
    let turn = if rng.random() { warp_turn % turns } else { far };
    match rng.random_range(0..16u64) {
        0..=2 => (0, value, own(turn, rng)),
        3 | 4 => (0, value, rng.random_range(0..shape.elements.div_ceil(4)) * 4),
        5 | 6 => (1, value, own(turn, rng)),
        7 => (2, value, own(turn, rng)),
        8 if T::WRAPS => (3, value, own(turn, rng)),
        9 | 10 => (4, value, rng.random_range(0..shape.shared)),
        11 if shape.thread_spans => (5, value, held(far, rng)),
        12 if shape.warp_spans => (6, value, held(warp_turn % turns, rng)),
        13 => (7, value % 60, rng.random_range(0..shape.elements)),
        14 => (8, value % 5000, rng.random_range(0..shape.elements)),
        15 => (9 + value % 2, value, own(turn, rng)),
        _ => (1, value, own(turn, rng)),
    }
}
