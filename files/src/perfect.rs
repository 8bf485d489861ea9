//! What a perfect cache would have read: one that knows what will be asked for (L. A. Belady, "A study of replacement algorithms for a
//! virtual-storage computer", IBM Systems Journal 5, 1966).

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

/// Blocks that such a cache of `slots` blocks reads where these are asked for, one after the other.
pub(crate) fn reads<K: Copy + Eq + Hash + Ord>(asked: &[K], slots: usize) -> u64 {
    // By request: when the block is asked for next; never, after all requests, apart from each other.
    let mut next = vec![0; asked.len()];
    let mut later = HashMap::new();
    for (at, key) in asked.iter().enumerate().rev() {
        next[at] = later.insert(*key, at).unwrap_or(asked.len() + at);
    }
    let mut held: HashMap<K, usize> = HashMap::new();
    let mut by_next = BTreeSet::new();
    let mut reads = 0;
    for (at, key) in asked.iter().enumerate() {
        match held.insert(*key, next[at]) {
            Some(expected) => {
                by_next.remove(&(expected, *key));
            }
            None => reads += 1,
        }
        by_next.insert((next[at], *key));
        if held.len() > slots
            && let Some((_, leaves)) = by_next.pop_last()
        {
            held.remove(&leaves);
        }
    }
    reads
}

#[cfg(test)]
mod tests {
    use super::reads;

    /// Over all choices of who leaves.
    fn least(asked: &[u8], slots: usize, held: &[u8]) -> u64 {
        let Some((key, rest)) = asked.split_first() else {
            return 0;
        };
        if held.contains(key) {
            return least(rest, slots, held);
        }
        let mut with = held.to_vec();
        with.push(*key);
        if with.len() <= slots {
            return 1 + least(rest, slots, &with);
        }
        let without = |leaves: usize| {
            let mut others = with.clone();
            others.remove(leaves);
            least(rest, slots, &others)
        };
        1 + (0..with.len()).map(without).min().unwrap_or_default()
    }

    #[test]
    fn no_choice_reads_less() {
        let mut state = 1u32;
        for slots in 1..4 {
            for _ in 0..40 {
                let asked: Vec<u8> = (0..12)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (state >> 28) as u8 % 6
                    })
                    .collect();
                assert_eq!(
                    reads(&asked, slots),
                    least(&asked, slots, &[]),
                    "{asked:?} with {slots}"
                );
            }
        }
    }
}
