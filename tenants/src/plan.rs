//! The rule of shares: who gives how much to a tenant that is short.

/// A tenant as the rule of shares sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stake {
    /// What it holds, in bytes.
    pub holding: u64,
    /// What it always keeps, in bytes.
    pub minimum: u64,
    /// What it may hold at most, in bytes; any amount where there is none.
    pub limit: Option<u64>,
    /// Higher goes first.
    pub priority: i8,
}

impl Stake {
    /// What is left to a tenant that is held to its limit.
    fn kept_at_limit(&self) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit.max(self.minimum))
    }
}

/// Who of `others` gives how much to an asker that wants `bytes`: indexes of `others`, in the order in which they are asked, and bytes above 0.
///
/// The rule, in this order, until there is enough:
///
/// 1. A tenant that holds more than its limit gives what is above it, whatever its priority.
/// 2. A tenant with a lower priority than the asker's gives all but its minimum.
/// 3. A tenant with the asker's priority gives what makes their holdings equal: no tenant who gives is left with less than the asker then has.
///    An asker that has less than its own minimum gets up to that from all but their minima.
///
/// In each step the lowest priority gives first. Of tenants with one priority, those that hold most give first, until they hold no more than
/// the next. No tenant goes below its own minimum, and a tenant with a higher priority than the asker's gives nothing but what is above its limit.
///
/// The result may come to less than `bytes`, never to more. Of more bytes each tenant gives as much or more.
pub fn plan(others: &[Stake], asker: &Stake, bytes: u64) -> Vec<(usize, u64)> {
    let mut round = Round {
        others,
        given: vec![0; others.len()],
        order: Vec::new(),
        wanted: bytes,
    };
    let mut priorities: Vec<i8> = others.iter().map(|stake| stake.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    for &priority in &priorities {
        round.take(priority, u64::MAX, Stake::kept_at_limit);
    }
    for &priority in priorities.iter().filter(|&&priority| priority < asker.priority) {
        round.take(priority, u64::MAX, |stake| stake.minimum);
    }
    let held = asker.holding.saturating_add(bytes - round.wanted);
    let equals = round.class(asker.priority, |stake| stake.minimum);
    let even = above(&equals, even_level(&equals, held));
    let below_minimum = u128::from(asker.minimum.saturating_sub(held));
    let most = u64::try_from(even.max(below_minimum)).unwrap_or(u64::MAX);
    round.take(asker.priority, most, |stake| stake.minimum);
    round.order.iter().map(|&index| (index, round.given[index])).collect()
}

/// A tenant that may give: its index, what it still holds, and what it keeps.
#[derive(Clone, Copy)]
struct Giver {
    index: usize,
    holding: u64,
    keeps: u64,
}

impl Giver {
    /// What it gives when everybody goes down to `level`.
    fn above(&self, level: u64) -> u64 {
        self.holding.saturating_sub(self.keeps.max(level))
    }
}

fn above(givers: &[Giver], level: u64) -> u128 {
    givers.iter().map(|giver| u128::from(giver.above(level))).sum()
}

/// The lowest level for which `holds` is true, where it stays true above; `u64::MAX` where it never is.
fn lowest(holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, u64::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        match holds(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low
}

/// The lowest level at which those who give keep as much as an asker then has that holds `held` now.
fn even_level(givers: &[Giver], held: u64) -> u64 {
    lowest(|level| u128::from(held) + above(givers, level) <= u128::from(level))
}

/// A request on its way through the steps of the rule.
struct Round<'a> {
    others: &'a [Stake],
    given: Vec<u64>,
    /// Those who give, in the order in which they came up.
    order: Vec<usize>,
    wanted: u64,
}

impl Round<'_> {
    fn class(&self, priority: i8, keeps: impl Fn(&Stake) -> u64) -> Vec<Giver> {
        let others = self.others.iter().enumerate();
        let class = others.filter(|(_, stake)| stake.priority == priority);
        let givers = class.map(|(index, stake)| Giver {
            index,
            holding: stake.holding - self.given[index],
            keeps: keeps(stake),
        });
        givers.collect()
    }

    /// Takes what is still wanted, up to `most`, from the tenants with this priority, the largest first.
    fn take(&mut self, priority: i8, most: u64, keeps: impl Fn(&Stake) -> u64) {
        let mut givers = self.class(priority, keeps);
        givers.sort_by_key(|giver| std::cmp::Reverse(giver.holding));
        let wanted = u128::from(self.wanted.min(most)).min(above(&givers, 0));
        // One level lower would be too much, or just enough.
        let level = lowest(|level| above(&givers, level) <= wanted);
        let mut rest = wanted - above(&givers, level);
        for giver in &givers {
            let mut bytes = giver.above(level);
            // Fewer bytes are left than there are tenants that could go one byte lower.
            if rest > 0 && level > 0 && giver.above(level - 1) > bytes {
                bytes += 1;
                rest -= 1;
            }
            if bytes > 0 {
                if self.given[giver.index] == 0 {
                    self.order.push(giver.index);
                }
                self.given[giver.index] += bytes;
                self.wanted -= bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stake(holding: u64, minimum: u64, priority: i8) -> Stake {
        Stake {
            holding,
            minimum,
            limit: None,
            priority,
        }
    }

    fn limited(holding: u64, limit: u64, priority: i8) -> Stake {
        Stake {
            limit: Some(limit),
            ..stake(holding, 0, priority)
        }
    }

    #[test]
    fn the_lowest_priority_gives_first_and_keeps_its_minimum() {
        let others = [stake(10, 0, 1), stake(10, 4, -5), stake(10, 2, 0)];
        let asker = stake(0, 0, 2);
        assert_eq!(plan(&others, &asker, 5), [(1, 5)]);
        assert_eq!(plan(&others, &asker, 6), [(1, 6)]);
        assert_eq!(plan(&others, &asker, 10), [(1, 6), (2, 4)]);
        assert_eq!(plan(&others, &asker, 100), [(1, 6), (2, 8), (0, 10)]);
    }

    #[test]
    fn the_largest_gives_first_until_it_is_no_larger_than_the_next() {
        let others = [stake(6, 0, 0), stake(10, 0, 0), stake(2, 0, 0)];
        let asker = stake(0, 0, 1);
        assert_eq!(plan(&others, &asker, 3), [(1, 3)]);
        assert_eq!(plan(&others, &asker, 6), [(1, 5), (0, 1)]);
        // The odd byte comes from the largest.
        assert_eq!(plan(&others, &asker, 13), [(1, 9), (0, 4)]);
    }

    #[test]
    fn equals_become_equal_and_then_leave_each_other_alone() {
        let asker = stake(0, 0, 0);
        assert_eq!(plan(&[stake(12, 0, 0)], &asker, 100), [(0, 6)]);
        assert_eq!(plan(&[stake(12, 0, 0), stake(12, 0, 0)], &asker, 100), [(0, 4), (1, 4)]);
        assert_eq!(plan(&[stake(6, 0, 0)], &stake(6, 0, 0), 100), []);
        assert_eq!(plan(&[stake(12, 9, 0)], &asker, 100), [(0, 3)]);
        // The odd byte stays where it is.
        assert_eq!(plan(&[stake(7, 0, 0)], &stake(6, 0, 0), 100), []);
    }

    #[test]
    fn an_asker_below_its_minimum_takes_more_than_an_equal_share() {
        let asker = stake(0, 9, 0);
        assert_eq!(plan(&[stake(12, 2, 0)], &asker, 100), [(0, 9)]);
        assert_eq!(plan(&[stake(12, 5, 0)], &asker, 100), [(0, 7)]);
        assert_eq!(plan(&[stake(12, 0, 1)], &asker, 100), []);
    }

    #[test]
    fn what_is_above_a_limit_goes_first_whatever_the_priority() {
        let others = [stake(10, 0, -1), limited(10, 7, 50)];
        let asker = stake(0, 0, 0);
        assert_eq!(plan(&others, &asker, 2), [(1, 2)]);
        assert_eq!(plan(&others, &asker, 5), [(1, 3), (0, 2)]);
        assert_eq!(plan(&[limited(10, 7, -1)], &asker, 100), [(0, 10)]);
        assert_eq!(plan(&others[1..], &asker, 100), [(0, 3)]);
    }

    #[test]
    fn nobody_and_nothing_are_fine() {
        let all = stake(u64::MAX, 0, 0);
        assert_eq!(plan(&[], &all, 5), []);
        assert_eq!(plan(&[all], &stake(0, 0, 1), 0), []);
        assert_eq!(plan(&[all, all], &stake(0, 0, 1), u64::MAX).len(), 2);
        assert_eq!(plan(&[all, all], &all, u64::MAX), []);
    }

    fn stakes() -> impl Strategy<Value = Stake> {
        // Small numbers meet each other; the largest overflow where sums are taken carelessly.
        let bytes = prop_oneof![8 => 0..40u64, 1 => any::<u64>(), 1 => Just(u64::MAX)];
        (bytes.clone(), bytes.clone(), proptest::option::of(bytes), -2..=2i8).prop_map(
            |(holding, minimum, limit, priority)| Stake {
                holding,
                minimum,
                limit,
                priority,
            },
        )
    }

    /// By index, with those who give nothing.
    fn amounts(others: &[Stake], asker: &Stake, bytes: u64) -> Vec<u64> {
        let mut amounts = vec![0; others.len()];
        for (index, bytes) in plan(others, asker, bytes) {
            assert_eq!(amounts[index], 0, "asked twice");
            assert_ne!(bytes, 0, "asked for nothing");
            amounts[index] = bytes;
        }
        amounts
    }

    proptest! {
        #[test]
        fn the_rule_holds(others in proptest::collection::vec(stakes(), 0..7), asker in stakes(), bytes in prop_oneof![0..100u64, any::<u64>()]) {
            let amounts = amounts(&others, &asker, bytes);
            let sum: u128 = amounts.iter().map(|&bytes| u128::from(bytes)).sum();
            prop_assert!(sum <= u128::from(bytes), "more than was asked for");
            let now = asker.holding as u128 + sum;
            for (stake, &given) in others.iter().zip(&amounts).filter(|(_, given)| **given > 0) {
                prop_assert!(given <= stake.holding);
                let left = stake.holding - given;
                prop_assert!(left >= stake.minimum, "{stake:?} gives {given}");
                let at_limit = stake.limit.is_some_and(|limit| left >= limit);
                prop_assert!(stake.priority <= asker.priority || at_limit, "{stake:?} gives {given}");
                if stake.priority == asker.priority && !at_limit {
                    prop_assert!(u128::from(left) >= now || now <= u128::from(asker.minimum), "{stake:?} gives {given}");
                }
            }
        }

        #[test]
        fn enough_is_found_where_it_may_be_taken(others in proptest::collection::vec(stakes(), 0..7), asker in stakes(), bytes in 0..100u64) {
            let sum: u64 = amounts(&others, &asker, bytes).iter().sum();
            let certain = others.iter().map(|stake| match stake.priority < asker.priority {
                true => stake.holding.saturating_sub(stake.minimum),
                false => stake.holding.saturating_sub(stake.kept_at_limit()),
            });
            let certain = certain.fold(0, u64::saturating_add);
            prop_assert!(sum >= bytes.min(certain), "{sum} of {bytes}, and {certain} are there");
        }

        #[test]
        fn of_more_bytes_everybody_gives_as_much_or_more(others in proptest::collection::vec(stakes(), 0..7), asker in stakes(), bytes in 0..100u64, more in 0..50u64) {
            let (less, more) = (amounts(&others, &asker, bytes), amounts(&others, &asker, bytes + more));
            prop_assert!(less.iter().zip(&more).all(|(less, more)| less <= more), "{less:?} {more:?}");
        }

        /// The giver checks by the same rule, and knows itself and the asker alone.
        #[test]
        fn one_tenant_alone_allows_what_the_plan_of_all_wants_of_it(others in proptest::collection::vec(stakes(), 0..7), asker in stakes(), bytes in 0..100u64) {
            for (index, bytes) in plan(&others, &asker, bytes) {
                prop_assert_eq!(plan(&[others[index]], &asker, bytes), [(0, bytes)]);
            }
        }
    }
}
