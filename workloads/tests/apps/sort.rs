use gpuvm_workloads::apps::{AppError, Sort};

use crate::every_way;

/// Keys whose bits look random.
fn keys(count: u32) -> Vec<u32> {
    (0..count)
        .map(|k| k.wrapping_mul(2_654_435_761).rotate_left(9) ^ k)
        .collect()
}

#[test]
fn keys_are_sorted_in_parts() {
    // Parts of more than one tile, of which the last is shorter; buckets in groups.
    every_way(&Sort::new(keys(60_001), 20_000).unwrap());
}

#[test]
fn buckets_that_are_larger_than_parts_are_sorted() {
    let mut few = keys(30_000);
    // Most keys have one highest digit, and few values.
    few.iter_mut().step_by(3).for_each(|key| *key = *key % 5 + (7 << 24));
    few.iter_mut().skip(1).step_by(3).for_each(|key| *key >>= 8);
    every_way(&Sort::new(few, 4_000).unwrap());
    every_way(&Sort::new(vec![3; 9_000], 5_000).unwrap());
}

#[test]
fn sorts_of_nothing_are_refused() {
    for (keys, part) in [(Vec::new(), 10), (vec![1], 0), (vec![1], 1 << 31)] {
        assert!(matches!(Sort::new(keys, part), Err(AppError::Input { .. })));
    }
}
