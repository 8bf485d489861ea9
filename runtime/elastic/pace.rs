//! How fast a buffer grows, and how much of it is mapped ahead.

/// Steps that are remembered.
const STEPS: usize = 8;
/// The most handles that are mapped ahead.
const AHEAD_MAX: u64 = 64;

/// What is known of a buffer's growth. All sizes are in bytes.
#[derive(Debug, Default)]
pub(super) struct Pace {
    steps: [u64; STEPS],
    next: usize,
    /// By how much it grew since it was mapped ahead last.
    since: u64,
    ahead: u64,
    /// It grew over what was mapped ahead.
    outrun: bool,
    grows: bool,
}

impl Pace {
    /// It grew, in pre-mapped memory or not.
    pub fn grew(&mut self, bytes: u64, premapped: bool) {
        if bytes == 0 {
            return;
        }
        if !std::mem::replace(&mut self.grows, true) {
            // The first one gives it a length; it is no pace yet.
            return;
        }
        self.steps[self.next % STEPS] = bytes;
        self.next = (self.next + 1) % STEPS;
        self.since = self.since.saturating_add(bytes);
        self.outrun |= !premapped;
    }

    /// It shrank: how it grew before says nothing of what follows.
    pub fn shrank(&mut self) {
        *self = Self {
            grows: self.grows,
            ..Self::default()
        };
    }

    /// Whether it has grown since it was made: nothing is mapped ahead for those that do not.
    pub fn grows(&self) -> bool {
        self.grows
    }

    /// Whether more is to be mapped when this many bytes are mapped and not in use.
    pub fn is_short(&self, unused: u64, handle_bytes: u64) -> bool {
        self.grows && unused < self.ahead.max(handle_bytes)
    }

    /// Whether some of this many bytes, mapped and not in use, may go. More than what is mapped ahead, so that nothing goes to and fro.
    pub fn is_ample(&self, unused: u64, handle_bytes: u64) -> bool {
        match self.grows {
            true => unused > 2 * self.ahead + handle_bytes,
            false => unused >= super::book::UNIT,
        }
    }

    /// How much is kept mapped ahead.
    pub fn ahead(&self) -> u64 {
        self.ahead
    }

    /// How much is to be mapped ahead from now on: a handle at least, two of its largest steps lately, and what it grew by since this was
    /// asked last as far as that was predicted; twice as much as before when it grew over that.
    pub fn look_ahead(&mut self, handle_bytes: u64) -> u64 {
        if !self.grows {
            return 0;
        }
        let largest = self.steps.iter().copied().max().unwrap_or_default();
        let lately = self.since.min(self.ahead);
        let outrun = if self.outrun { 2 * self.ahead } else { 0 };
        let wanted = largest.saturating_mul(2).max(lately).max(outrun);
        self.ahead = wanted.clamp(handle_bytes, AHEAD_MAX * handle_bytes);
        (self.since, self.outrun) = (0, false);
        self.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLE: u64 = 1 << 16;

    #[test]
    fn nothing_is_mapped_ahead_of_what_does_not_grow() {
        let mut pace = Pace::default();
        assert_eq!((pace.look_ahead(HANDLE), pace.is_short(0, HANDLE)), (0, false));
        pace.grew(0, false);
        assert!(!pace.grows());
        pace.grew(16, false);
        assert!(pace.is_short(HANDLE - 1, HANDLE) && !pace.is_short(HANDLE, HANDLE));
        // However long it is at first.
        let mut pace = Pace::default();
        pace.grew(100 * HANDLE, false);
        assert_eq!(pace.look_ahead(HANDLE), HANDLE);
    }

    #[test]
    fn it_follows_large_steps_and_doubles_when_it_is_outrun() {
        let mut pace = Pace::default();
        pace.grew(HANDLE, false);
        pace.grew(3 * HANDLE, true);
        assert_eq!(pace.look_ahead(HANDLE), 6 * HANDLE);
        // Small steps push the large one out.
        for _ in 0..STEPS {
            pace.grew(HANDLE, true);
        }
        assert_eq!(pace.look_ahead(HANDLE), 6 * HANDLE);
        pace.grew(HANDLE, true);
        assert_eq!(pace.look_ahead(HANDLE), 2 * HANDLE);
        for times in [4, 8, 16, 32, 64, 64] {
            pace.grew(HANDLE, false);
            assert_eq!(pace.look_ahead(HANDLE), times * HANDLE);
        }
        pace.grew(u64::MAX, false);
        assert_eq!(pace.look_ahead(HANDLE), AHEAD_MAX * HANDLE);
        pace.shrank();
        assert_eq!((pace.ahead(), pace.look_ahead(HANDLE)), (0, HANDLE));
    }

    #[test]
    fn what_goes_is_not_wanted_back_at_once() {
        let mut pace = Pace::default();
        assert!(pace.is_ample(super::super::book::UNIT, HANDLE));
        pace.grew(1, false);
        let ahead = pace.look_ahead(HANDLE);
        assert!(!pace.is_ample(ahead + HANDLE, HANDLE) && pace.is_ample(4 * HANDLE, HANDLE));
    }
}
