//! Things that others end, kept in a list: those that are gone are let go of now and then.

/// A list. A look at each whenever one is added would cost as much as all of them are many.
pub(crate) struct Crowd<T> {
    all: Vec<T>,
    /// This many of them are looked through for those that are gone.
    full: usize,
}

impl<T> Default for Crowd<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            full: 0,
        }
    }
}

impl<T> Crowd<T> {
    /// One more; `is_there` says of each whether it is not gone.
    pub fn push(&mut self, one: T, is_there: impl Fn(&T) -> bool) {
        if self.all.len() >= self.full {
            self.all.retain(is_there);
            self.full = 2 * self.all.len() + 16;
        }
        self.all.push(one);
    }

    /// All of them, in the order in which they came, and perhaps some that are gone.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.all.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::{Rc, Weak};

    use super::*;

    #[test]
    fn those_that_are_gone_do_not_pile_up_and_others_stay() {
        let mut crowd = Crowd::default();
        let kept: Vec<Rc<usize>> = (0..10_000)
            .filter_map(|n| {
                let one = Rc::new(n);
                crowd.push(Rc::downgrade(&one), |one: &Weak<usize>| one.strong_count() > 0);
                (n % 100 == 0).then_some(one)
            })
            .collect();
        let there: Vec<usize> = crowd.iter().filter_map(Weak::upgrade).map(|one| *one).collect();
        assert!(there.iter().eq(kept.iter().map(|one| &**one)));
        assert!(crowd.iter().len() < 3 * kept.len(), "{}", crowd.iter().len());
    }
}
