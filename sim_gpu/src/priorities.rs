//! Probabilistic concurrency testing (Burckhardt and others, ASPLOS 2010): the lane of the highest priority runs, and at few random
//! points the running lane becomes the last. A bug that needs d switches is found with a chance of at least 1 / (lanes x steps^(d - 1)).

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Events that one lane runs at a time, so that a lane which polls without sleeping cannot starve others.
pub(crate) const EVENTS_MAX: u32 = 1024;
/// Change points lie among this many events, as a power of two.
const EVENTS_BITS: std::ops::Range<u32> = 9..18;

/// Priorities of lanes.
pub(crate) struct Priorities {
    lanes: Vec<u64>,
    /// The next lower priority; it only falls, so who was demoted last is the last of all.
    lowest: u64,
    events: u64,
    /// Events at which the running lane is demoted, the next one last.
    changes: Vec<u64>,
}

impl Priorities {
    /// Random ones, with `changes` change points.
    pub(crate) fn new(rng: &mut ChaCha8Rng, changes: u32) -> Self {
        let events = 1u64 << rng.random_range(EVENTS_BITS);
        let mut changes: Vec<u64> = (0..changes.min(64)).map(|_| rng.random_range(0..events)).collect();
        changes.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            lanes: Vec::new(),
            lowest: 1 << 62,
            events: 0,
            changes,
        }
    }

    /// A lane begins: it may run before or after any other that was not demoted.
    pub(crate) fn start(&mut self, lane: u32, rng: &mut ChaCha8Rng) {
        let lane = lane as usize;
        if lane >= self.lanes.len() {
            self.lanes.resize(lane + 1, 0);
        }
        self.lanes[lane] = (1 << 62) + 1 + u64::from(rng.random::<u32>());
    }

    /// The lane is behind all others from now on.
    pub(crate) fn demote(&mut self, lane: u32) {
        self.lowest -= 1;
        if let Some(priority) = self.lanes.get_mut(lane as usize) {
            *priority = self.lowest;
        }
    }

    /// One event of the running lane; whether a change point was reached.
    pub(crate) fn event(&mut self) -> bool {
        self.events += 1;
        let reached = self.changes.last().is_some_and(|&at| at <= self.events);
        if reached {
            self.changes.pop();
        }
        reached
    }

    /// A lane's priority; more runs first.
    pub(crate) fn of(&self, lane: u32) -> u64 {
        self.lanes.get(lane as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::Priorities;

    #[test]
    fn who_was_demoted_last_runs_last_and_changes_come_as_often_as_asked_for() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut priorities = Priorities::new(&mut rng, 3);
        for lane in 0..4 {
            priorities.start(lane, &mut rng);
        }
        priorities.demote(2);
        priorities.demote(0);
        assert!(priorities.of(0) < priorities.of(2));
        assert!(priorities.of(2) < priorities.of(1).min(priorities.of(3)));
        // A lane that begins later is ahead of those.
        priorities.start(4, &mut rng);
        assert!(priorities.of(4) > priorities.of(2));
        let changes = (0..1 << 18).filter(|_| priorities.event()).count();
        assert_eq!(changes, 3);
    }
}
