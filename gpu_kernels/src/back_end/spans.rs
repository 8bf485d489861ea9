//! Spans of addresses that may lie over each other, by what they cover.

use std::ops::Range;

/// Spans, each under a number that tells those at one address apart, with what they stand for. Whether one meets given addresses is found
/// in a time that grows as the logarithm of how many there are. It is a search tree by first address that is balanced by chance, each node of which knows the
/// largest end below it.
#[derive(Debug)]
pub struct Spans<V> {
    root: Link<V>,
    /// State of the chance, the same in each run.
    chance: u64,
}

type Link<V> = Option<Box<Node<V>>>;

#[derive(Debug)]
struct Node<V> {
    /// First address and number, the order of the tree.
    key: (u64, u64),
    end: u64,
    value: V,
    /// No node below has a larger one.
    weight: u64,
    /// The largest end of this node and those below.
    end_max: u64,
    /// Those before, and those behind.
    below: [Link<V>; 2],
}

impl<V> Default for Spans<V> {
    fn default() -> Self {
        Self { root: None, chance: 0 }
    }
}

impl<V> Spans<V> {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// One more. An empty span meets nothing, and is not kept.
    pub fn insert(&mut self, span: Range<u64>, number: u64, value: V) {
        if span.is_empty() {
            return;
        }
        // The golden ratio's multiples, mixed: splitmix64.
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.chance ^ self.chance >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let key = (span.start, number);
        let node = Box::new(Node {
            key,
            end: span.end,
            value,
            weight: mixed ^ mixed >> 27,
            end_max: span.end,
            below: [None, None],
        });
        let (before, behind) = split(self.root.take(), key);
        self.root = join(join(before, Some(node)), behind);
    }

    /// Takes the span out that begins there under that number.
    pub fn remove(&mut self, start: u64, number: u64) -> Option<V> {
        let (before, rest) = split(self.root.take(), (start, number));
        let (found, behind) = match number.checked_add(1) {
            Some(next) => split(rest, (start, next)),
            None => split(rest, (start.saturating_add(1), 0)),
        };
        self.root = join(before, behind);
        found.map(|node| node.value)
    }

    /// One that shares an address with `span`, if any does.
    pub fn meeting(&self, span: &Range<u64>) -> Option<(Range<u64>, &V)> {
        if span.is_empty() {
            return None;
        }
        let mut at = self.root.as_deref();
        while let Some(node) = at {
            if node.key.0 < span.end && span.start < node.end {
                return Some((node.key.0..node.end, &node.value));
            }
            // Where one of those before ends behind the span's start, it meets the span or none does: all others begin later.
            let before = node.below[0].as_deref().filter(|before| before.end_max > span.start);
            at = before.or(node.below[1].as_deref());
        }
        None
    }
}

impl<V> Node<V> {
    fn renew(mut self: Box<Self>) -> Box<Self> {
        let ends = self.below.iter().flatten().map(|below| below.end_max);
        self.end_max = ends.fold(self.end, u64::max);
        self
    }
}

/// Those before `key`, and those from it on.
fn split<V>(tree: Link<V>, key: (u64, u64)) -> (Link<V>, Link<V>) {
    let Some(mut node) = tree else { return (None, None) };
    if node.key < key {
        let (before, behind) = split(node.below[1].take(), key);
        node.below[1] = before;
        (Some(node.renew()), behind)
    } else {
        let (before, behind) = split(node.below[0].take(), key);
        node.below[0] = behind;
        (before, Some(node.renew()))
    }
}

/// Both, where all of one come before all of the other.
fn join<V>(before: Link<V>, behind: Link<V>) -> Link<V> {
    match (before, behind) {
        (None, tree) | (tree, None) => tree,
        (Some(mut first), Some(mut last)) => Some(if first.weight > last.weight {
            first.below[1] = join(first.below[1].take(), Some(last));
            first.renew()
        } else {
            last.below[0] = join(Some(first), last.below[0].take());
            last.renew()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{Range, Spans};

    /// A sequence that is the same in each run.
    fn draw(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*state >> 33) % below
    }

    #[test]
    fn it_finds_what_a_look_at_all_finds() {
        let (mut spans, mut state) = (Spans::default(), 7);
        let mut all: Vec<(Range<u64>, u64)> = Vec::new();
        for number in 0..4000_u64 {
            let start = draw(&mut state, 500);
            let span = start..start + draw(&mut state, 30);
            if draw(&mut state, 3) == 0 && !all.is_empty() {
                let (span, number) = all.swap_remove(draw(&mut state, all.len() as u64) as usize);
                let found: Option<u64> = spans.remove(span.start, number);
                assert_eq!(found, (!span.is_empty()).then_some(number), "{span:?}");
                assert_eq!(spans.remove(span.start, number), None);
            } else {
                spans.insert(span.clone(), number, number);
                all.push((span, number));
            }
            let asked = draw(&mut state, 530);
            let asked = asked..asked + draw(&mut state, 8);
            let meets = |(span, _): &&(Range<u64>, u64)| {
                span.start.max(asked.start) < span.end.min(asked.end) && !span.is_empty()
            };
            let expected = all.iter().any(|one| meets(&one));
            let found = spans.meeting(&asked);
            assert_eq!(found.is_some(), expected, "{asked:?}");
            if let Some((span, number)) = found {
                assert!(
                    all.iter()
                        .any(|known| *known == (span.clone(), *number) && meets(&known))
                );
            }
        }
        for (span, number) in all {
            spans.remove(span.start, number);
        }
        assert!(spans.is_empty());
    }

    #[test]
    fn spans_inside_each_other_are_found_and_leave_in_any_order() {
        let count = 50_000;
        let mut spans = Spans::default();
        (0..count).for_each(|n| spans.insert(n..2 * count - n, n, ()));
        assert_eq!(spans.meeting(&(0..1)).map(|(span, ())| span), Some(0..2 * count));
        (0..count).for_each(|n| assert!(spans.remove(n, n).is_some() && spans.meeting(&(n..n + 1)).is_none()));
        spans.insert(3..4, u64::MAX, ());
        assert!(spans.remove(3, u64::MAX).is_some());
    }
}
