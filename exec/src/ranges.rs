//! Sets of addresses, as ranges that neither overlap nor touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges, by where they begin, with where they end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Those that share addresses with a range, or end or begin where it does the other.
    fn near(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.0.range(..range.start).next_back();
        let before = before.filter(|(_, end)| **end >= range.start);
        let rest = self.0.range(range.start..=range.end);
        before
            .into_iter()
            .chain(rest)
            .map(|(&start, &end)| start..end)
            .collect()
    }

    /// What of a range is in the set.
    pub fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let parts = self.near(range).into_iter();
        let parts = parts.map(|near| near.start.max(range.start)..near.end.min(range.end));
        parts.filter(|part| !part.is_empty()).collect()
    }

    /// What of a range is not in the set.
    pub fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for part in self.within(range) {
            gaps.push(at..part.start);
            at = part.end;
        }
        gaps.push(at..range.end);
        gaps.retain(|gap| !gap.is_empty());
        gaps
    }

    pub fn insert(&mut self, mut range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        for near in self.near(&range) {
            self.0.remove(&near.start);
            range = range.start.min(near.start)..range.end.max(near.end);
        }
        self.0.insert(range.start, range.end);
    }

    pub fn remove(&mut self, range: &Range<u64>) {
        for near in self.near(range) {
            self.0.remove(&near.start);
            for rest in [
                near.start..range.start.min(near.end),
                range.end.max(near.start)..near.end,
            ] {
                if !rest.is_empty() {
                    self.0.insert(rest.start, rest.end);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(range).collect()
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let mut set = Ranges::default();
        assert_eq!(set.gaps(&(0..10)), one(0..10));
        set.insert(2..4);
        set.insert(6..8);
        set.insert(9..9);
        assert_eq!(
            (set.within(&(3..7)), set.gaps(&(0..10))),
            (vec![3..4, 6..7], vec![0..2, 4..6, 8..10])
        );
        set.insert(4..6);
        assert_eq!(set.within(&(0..10)), one(2..8));
        set.insert(1..9);
        assert_eq!(set, Ranges(BTreeMap::from([(1, 9)])));
        set.remove(&(3..5));
        set.remove(&(9..20));
        assert_eq!(set.within(&(0..10)), [1..3, 5..9]);
        set.remove(&(0..6));
        assert_eq!(set.within(&(0..10)), one(6..9));
        set.remove(&(6..9));
        assert_eq!(set, Ranges::default());
    }

    /// Against a set of numbers.
    #[test]
    fn sets_are_what_was_put_in_less_what_was_taken_out() {
        let (mut set, mut numbers) = (Ranges::default(), [false; 64]);
        let mut seed = 1_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..2000 {
            let start = draw(64);
            let range = start..start + draw(65 - start);
            let is_in = draw(2) == 0;
            match is_in {
                true => set.insert(range.clone()),
                false => set.remove(&range),
            }
            numbers[range.start as usize..range.end as usize].fill(is_in);
            let start = draw(64);
            let asked = start..start + draw(65 - start);
            for (parts, wanted) in [(set.within(&asked), true), (set.gaps(&asked), false)] {
                let found: Vec<u64> = parts.into_iter().flatten().collect();
                let there: Vec<u64> = asked.clone().filter(|n| numbers[*n as usize] == wanted).collect();
                assert_eq!(found, there);
            }
        }
    }
}
