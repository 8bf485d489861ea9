//! Random numbers that clients must answer: each is good for one request from one address, for a short time.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::protocol::Nonce;

/// Open challenges. When there are too many the oldest goes, so a flood of requests can keep honest clients out while
/// it lasts, but cannot fill the node's memory.
#[derive(Debug, Default)]
pub struct Challenges {
    open: VecDeque<(Nonce, IpAddr, Instant)>,
}

impl Challenges {
    const OPEN_MAX: usize = 1024;
    const GOOD_FOR: Duration = Duration::from_secs(30);

    pub fn add(&mut self, nonce: Nonce, address: IpAddr, now: Instant) {
        if self.open.len() == Challenges::OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back((nonce, address, now));
    }

    /// Whether it is open for this address; it is not any more afterwards.
    pub fn take(&mut self, nonce: &Nonce, address: IpAddr, now: Instant) -> bool {
        let fresh = |made: Instant| now.saturating_duration_since(made) < Challenges::GOOD_FOR;
        while self.open.front().is_some_and(|&(_, _, made)| !fresh(made)) {
            self.open.pop_front();
        }
        let found = self
            .open
            .iter()
            .position(|(open, who, _)| open == nonce && *who == address);
        found.and_then(|at| self.open.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_good_once_for_one_address_and_not_for_long() {
        let (mut challenges, now) = (Challenges::default(), Instant::now());
        let here = IpAddr::from([10, 9, 0, 1]);
        for byte in 0..3 {
            challenges.add([byte; 16], here, now);
        }
        assert!(!challenges.take(&[9; 16], here, now));
        assert!(!challenges.take(&[1; 16], IpAddr::from([10, 9, 0, 3]), now));
        assert!(challenges.take(&[1; 16], here, now));
        assert!(!challenges.take(&[1; 16], here, now));
        assert!(challenges.take(&[0; 16], here, now + Duration::from_secs(29)));
        assert!(!challenges.take(&[2; 16], here, now + Duration::from_secs(30)));
    }

    #[test]
    fn a_flood_is_bounded() {
        let (mut challenges, now) = (Challenges::default(), Instant::now());
        let here = IpAddr::from([10, 9, 0, 1]);
        for number in 0..5000u128 {
            challenges.add(number.to_le_bytes(), here, now);
        }
        assert_eq!(challenges.open.len(), Challenges::OPEN_MAX);
        assert!(!challenges.take(&0u128.to_le_bytes(), here, now));
        assert!(challenges.take(&4999u128.to_le_bytes(), here, now));
    }
}
