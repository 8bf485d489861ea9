//! Linearisability of one word: whether operations with begin and end have an order, within those times, that explains
//! what each of them returned. Wing and Gong's search, with Lowe's memory of what was tried.

use std::collections::HashSet;

/// Operations of one word that a history may have.
pub const OPERATIONS_MAX: usize = 64;
/// States that are tried before the search gives up.
const STATES_MAX: usize = 200_000;

/// What an operation did to its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Returned the word.
    Read,
    /// Stored this.
    Write(u64),
    /// Stored the second, returned what was there.
    Exchange(u64),
    /// Added this, returned what was there.
    Add(u64),
    /// Stored the second if the first was there, returned what was there.
    CompareExchange(u64, u64),
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// When it began, in virtual nanoseconds.
    pub begin: u64,
    /// When it had ended.
    pub end: u64,
    /// What it did.
    pub action: Action,
    /// What it returned; nothing for a write.
    pub returned: u64,
}

/// What the search came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Linearisable,
    /// There is none.
    Broken,
    /// Nothing knows: too many states.
    Undecided,
}

impl Operation {
    /// The word after this operation on `word`, or nothing when it cannot have returned what it did.
    fn apply(&self, word: u64) -> Option<u64> {
        let (next, returns) = match self.action {
            Action::Read => (word, Some(word)),
            Action::Write(value) => (value, None),
            Action::Exchange(value) => (value, Some(word)),
            Action::Add(value) => (word.wrapping_add(value), Some(word)),
            Action::CompareExchange(expected, value) => (if word == expected { value } else { word }, Some(word)),
        };
        returns.is_none_or(|value| value == self.returned).then_some(next)
    }
}

/// Whether the operations, on a word that held `initial`, have an order that explains them, and that ends with `last`. At most
/// [`OPERATIONS_MAX`].
pub fn check(initial: u64, operations: &[Operation], last: u64) -> Verdict {
    let count = operations.len();
    if count > OPERATIONS_MAX {
        return Verdict::Undecided;
    }
    let all = if count == 64 { u64::MAX } else { (1 << count) - 1 };
    let mut seen = HashSet::new();
    let mut stack = vec![(0u64, initial)];
    while let Some((done, word)) = stack.pop() {
        if done == all {
            if word == last {
                return Verdict::Linearisable;
            }
            continue;
        }
        if !seen.insert((done, word)) {
            continue;
        }
        if seen.len() > STATES_MAX {
            return Verdict::Undecided;
        }
        // Nothing goes before an operation that had ended when it began.
        let open = || operations.iter().enumerate().filter(|(n, _)| done >> n & 1 == 0);
        let first_end = open().map(|(_, operation)| operation.end).min().unwrap_or(u64::MAX);
        let may_go = |operation: &Operation| operation.begin <= first_end;
        // A read that fits changes nothing: taking it now is as good as any later time.
        let idle = open().find(|(_, o)| may_go(o) && o.action == Action::Read && o.returned == word);
        if let Some((n, _)) = idle {
            stack.push((done | 1 << n, word));
            continue;
        }
        for (n, operation) in open().filter(|(_, operation)| may_go(operation)) {
            if let Some(next) = operation.apply(word) {
                stack.push((done | 1 << n, next));
            }
        }
    }
    Verdict::Broken
}

/// A history, for messages.
pub(crate) fn in_words(history: &[Operation]) -> String {
    let mut history = history.to_vec();
    history.sort_unstable_by_key(|operation| operation.begin);
    let one = |o: &Operation| format!("[{}..{}] {:?} -> {}", o.begin, o.end, o.action, o.returned);
    history.iter().map(one).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(begin: u64, end: u64, action: Action, returned: u64) -> Operation {
        Operation {
            begin,
            end,
            action,
            returned,
        }
    }

    #[test]
    fn concurrent_operations_may_go_in_any_order() {
        let history = [
            op(0, 10, Action::Write(7), 0),
            op(1, 3, Action::Read, 0),
            op(4, 6, Action::Read, 7),
            op(5, 12, Action::Add(1), 7),
        ];
        assert_eq!(check(0, &history, 8), Verdict::Linearisable);
        assert_eq!(check(0, &history, 7), Verdict::Broken);
    }

    #[test]
    fn a_value_that_was_overwritten_is_not_read_again() {
        let history = [
            op(0, 1, Action::Write(7), 0),
            op(2, 3, Action::Write(8), 0),
            op(4, 5, Action::Read, 7),
        ];
        assert_eq!(check(0, &history, 8), Verdict::Broken);
    }

    #[test]
    fn a_lost_update_is_seen() {
        let history = [op(0, 9, Action::Add(1), 0), op(1, 8, Action::Add(1), 0)];
        assert_eq!(check(0, &history, 1), Verdict::Broken);
        let history = [op(0, 9, Action::Add(1), 0), op(1, 8, Action::Add(1), 1)];
        assert_eq!(check(0, &history, 2), Verdict::Linearisable);
    }

    #[test]
    fn a_comparison_fails_only_where_something_else_was() {
        let swap = op(5, 6, Action::CompareExchange(3, 4), 3);
        assert_eq!(check(3, &[swap], 4), Verdict::Linearisable);
        assert_eq!(check(2, &[swap], 2), Verdict::Broken);
        let swap = op(5, 6, Action::CompareExchange(3, 4), 2);
        assert_eq!(check(2, &[swap], 2), Verdict::Linearisable);
    }

    #[test]
    fn too_long_a_history_is_not_judged() {
        let history = vec![op(0, 1, Action::Read, 0); OPERATIONS_MAX + 1];
        assert_eq!(check(0, &history, 0), Verdict::Undecided);
    }
}
