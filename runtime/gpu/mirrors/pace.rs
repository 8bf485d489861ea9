//! Whether a neighbour's link is busy with what its owner does: copies over it take longer then.

use std::time::{Duration, Instant};

/// Copies in a row whose time is compared.
const WINDOW: u32 = 16;
/// A window that takes so many times as long as the fastest one was met by other traffic.
const SLOWER: u32 = 2;
/// How long the link is left to its owner then.
const REST: Duration = Duration::from_millis(10);

/// The times of copies over one link.
#[derive(Default)]
pub(super) struct Pace {
    begun: Option<Instant>,
    copies: u32,
    fastest: Option<Duration>,
    rests_until: Option<Instant>,
}

impl Pace {
    /// A copy is on its way.
    pub fn begun(&mut self, now: Instant) {
        self.begun.get_or_insert(now);
    }

    /// A copy has arrived. `more`: others are on their way, so that the link had no pause.
    pub fn arrived(&mut self, now: Instant, more: bool) {
        let Some(begun) = self.begun else { return };
        self.copies += 1;
        if self.copies == WINDOW {
            let took = now.saturating_duration_since(begun);
            let fastest = self.fastest.map_or(took, |fastest| fastest.min(took));
            self.fastest = Some(fastest);
            if took > fastest * SLOWER {
                self.rests_until = Some(now + REST);
            }
            (self.begun, self.copies) = (Some(now), 0);
        }
        if !more {
            (self.begun, self.copies) = (None, 0);
        }
    }

    /// Whether the link is left to its owner now.
    pub fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: Duration = Duration::from_micros(40);

    /// A window of copies that take so long each; when it is over.
    fn window(pace: &mut Pace, mut now: Instant, each: Duration) -> Instant {
        pace.begun(now);
        for _ in 0..WINDOW {
            now += each;
            pace.arrived(now, true);
        }
        now
    }

    #[test]
    fn a_link_that_others_use_is_left_to_them_for_a_while() {
        let mut pace = Pace::default();
        let now = window(&mut pace, Instant::now(), COPY);
        let now = window(&mut pace, now, COPY * 3 / 2);
        assert!(!pace.rests(now), "a little slower");
        let now = window(&mut pace, now, COPY * 5 / 2);
        assert!(pace.rests(now));
        assert!(!pace.rests(now + REST));
    }

    #[test]
    fn a_pause_is_no_slowness() {
        let mut pace = Pace::default();
        let now = window(&mut pace, Instant::now(), COPY);
        pace.begun(now);
        pace.arrived(now + COPY, false);
        let now = window(&mut pace, now + COPY * 1000, COPY);
        assert!(!pace.rests(now));
    }
}
