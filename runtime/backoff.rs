//! When something that failed is tried again.

use std::time::{Duration, Instant};

/// After the first failure.
const FIRST: Duration = Duration::from_millis(200);
/// At most.
pub(crate) const LONGEST: Duration = Duration::from_secs(5);

/// Pauses between tries that fail: each is twice the one before it, up to some seconds.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    pause: Option<Duration>,
    next: Option<Instant>,
    /// What the last failure said.
    said: Option<String>,
}

impl Backoff {
    /// Whether it is time for a try.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    /// A try that ended at `now` failed. Whether it failed otherwise than the one before it, so that somebody is to be told.
    pub fn failed(&mut self, now: Instant, why: String) -> bool {
        self.failed_up_to(now, why, LONGEST)
    }

    /// [`failed`](Self::failed) with pauses of at most `longest`.
    pub fn failed_up_to(&mut self, now: Instant, why: String, longest: Duration) -> bool {
        let pause = self.pause.map_or(FIRST, |pause| (2 * pause).min(longest));
        (self.pause, self.next) = (Some(pause), now.checked_add(pause));
        let new = self.said.as_ref() != Some(&why);
        self.said = Some(why);
        new
    }

    /// Something has changed: the next try waits for nothing.
    pub fn hurry(&mut self) {
        (self.pause, self.next) = (None, None);
    }

    /// A try worked: the next failure is the first.
    pub fn worked(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        assert!(backoff.is_due(start), "the first try waits for nothing");
        let (mut now, mut pauses) = (start, Vec::new());
        for _ in 0..8 {
            backoff.failed(now, "nothing answers".into());
            let mut pause = Duration::ZERO;
            while !backoff.is_due(now + pause) {
                pause += Duration::from_millis(100);
            }
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        backoff.worked();
        assert!(backoff.is_due(start));
        backoff.failed(start, "nothing answers".into());
        assert!(!backoff.is_due(start + FIRST / 2) && backoff.is_due(start + FIRST));
    }

    #[test]
    fn a_failure_is_told_once_until_it_is_another() {
        let now = Instant::now();
        let mut backoff = Backoff::default();
        let told: Vec<bool> = ["a", "a", "b", "a", "a"]
            .map(|why| backoff.failed(now, why.into()))
            .into();
        assert_eq!(told, [true, false, true, true, false]);
        backoff.worked();
        assert!(backoff.failed(now, "a".into()));
        backoff.hurry();
        assert!(backoff.is_due(now) && !backoff.failed(now, "a".into()));
    }
}
