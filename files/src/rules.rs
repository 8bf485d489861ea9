//! Rules of blocks that tests break, to see that they would notice.

/// A rule of [`slots`](crate::slots), in the order of its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    AcquiredStays,
    DirtyStays,
    DirtyWhileHeld,
    DirtiedAgain,
    BlankIsPrivate,
    ReadAgain,
}

#[cfg(test)]
thread_local! {
    /// The rule that does not hold on this thread.
    pub(crate) static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Whether a rule holds: always, but in tests.
#[inline]
pub(crate) fn holds(rule: Rule) -> bool {
    #[cfg(test)]
    return BROKEN.get() != Some(rule);
    #[cfg(not(test))]
    {
        let _ = rule;
        true
    }
}
