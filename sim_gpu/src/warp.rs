//! A warp's lanes and their rendezvous: pure bookkeeping, no switching of stacks.

use std::fmt::Write as _;

use super::collective::{self as kind, name};

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// Answers that gathering lanes behind get before those ahead get theirs.
const GATHER_ROUNDS_MAX: u32 = 64;

/// Basic blocks that a warp's lanes run before one yields, where kernels count them.
pub(crate) const BASIC_BLOCKS: i32 = 1 << 16;

/// Lanes that wait for each other in one collective.
#[derive(Clone, Copy, Default)]
pub(crate) struct Rendezvous {
    pub(crate) kind: u32,
    pub(crate) mask: u32,
    pub(crate) arrived: u32,
}

/// What a lane that arrives at a collective does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It was the last: results are there, it runs on, and the others are ready.
    Complete,
    /// It waits.
    Wait,
    /// The rules were broken.
    Broken(Rule),
}

/// A rule of collectives; [`Warp::explain`] says in words how it was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The mask must name its caller.
    NamesCaller,
    /// The mask must not name lanes that have returned.
    NoExited,
    /// Lanes that wait for each other must make the same call.
    SameCall,
}

/// The state of a warp's lanes, a bit a lane in each mask.
pub(crate) struct Warp {
    /// May run now; the running lane included.
    pub(crate) ready: u32,
    /// Waits for something outside its block: sleeps, polls, or was preempted. Made ready again each round.
    pub(crate) polling: u32,
    /// Those of `polling` that must not run before their `wake_ns`.
    pub(crate) sleeping: u32,
    /// Parked at `__activemask()` or `match_active`.
    pub(crate) gathering: u32,
    /// Parked at the block's barrier.
    pub(crate) at_barrier: u32,
    /// Has returned from the kernel.
    pub(crate) exited: u32,
    /// Belongs to the block at all: the last warp of a block may be partial.
    pub(crate) existing: u32,
    /// Collectives that may complete before the last arriver yields, so that a loop over collectives cannot hold the worker.
    pub(crate) fuel: i32,
    /// The lanes above the one that was preempted last.
    pub(crate) behind_preempted: u32,
    /// Basic blocks until a lane yields, where kernels count them.
    pub(crate) basic_blocks: i32,
    /// Collectives completed and lanes exited, for telling work from fruitless polling.
    pub(crate) progress: u64,
    /// Whether exited lanes in a mask are skipped instead of refused.
    pub(crate) skip_exited: bool,
    /// This warp's number in its block.
    pub(crate) index: u32,
    waiting: usize,
    rendezvous: [Rendezvous; LANES],
    a: [u64; LANES],
    b: [u64; LANES],
    pub(crate) results: [u64; LANES],
    /// Call sites of gathering lanes.
    sites: [usize; LANES],
    /// Answers given in a row while lanes at another call site waited.
    gather_rounds: u32,
}

/// Set bits of a mask, lowest first.
pub(crate) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
        (lane < LANES).then_some(lane)
    })
}

impl Warp {
    /// A warp with no lanes; `reset` gives it some.
    pub(crate) fn new() -> Self {
        Self {
            ready: 0,
            polling: 0,
            sleeping: 0,
            gathering: 0,
            at_barrier: 0,
            exited: 0,
            existing: 0,
            fuel: 0,
            behind_preempted: 0,
            basic_blocks: 0,
            progress: 0,
            skip_exited: false,
            index: 0,
            waiting: 0,
            rendezvous: [Rendezvous::default(); LANES],
            a: [0; LANES],
            b: [0; LANES],
            results: [0; LANES],
            sites: [0; LANES],
            gather_rounds: 0,
        }
    }

    /// Makes the lanes of `existing` ready to start.
    pub(crate) fn reset(&mut self, existing: u32, index: u32, skip_exited: bool) {
        (self.ready, self.existing, self.index) = (existing, existing, index);
        (
            self.polling,
            self.sleeping,
            self.gathering,
            self.at_barrier,
            self.exited,
        ) = (0, 0, 0, 0, 0);
        (self.waiting, self.progress, self.skip_exited, self.gather_rounds) = (0, 0, skip_exited, 0);
        self.basic_blocks = BASIC_BLOCKS;
    }

    /// Rendezvous that are incomplete.
    pub(crate) fn waiting(&self) -> &[Rendezvous] {
        &self.rendezvous[..self.waiting]
    }

    /// `lane` calls collective `kind` with `mask`. Lanes outside the block are never waited for.
    pub(crate) fn arrive(&mut self, lane: usize, kind: u32, mask: u32, a: u64, b: u64) -> Arrival {
        let bit = 1 << lane;
        if mask & bit == 0 {
            return Arrival::Broken(Rule::NamesCaller);
        }
        let mut mask = mask & self.existing;
        if mask & self.exited != 0 {
            if !self.skip_exited {
                return Arrival::Broken(Rule::NoExited);
            }
            mask &= !self.exited;
        }
        self.a[lane] = a;
        self.b[lane] = b;
        let found = self.rendezvous[..self.waiting]
            .iter()
            .position(|r| r.kind == kind && r.mask == mask);
        let slot = match found {
            Some(slot) => slot,
            None if mask == bit => {
                self.compute(kind, mask);
                self.progress += 1;
                return Arrival::Complete;
            }
            None => {
                if self.conflict(lane, mask).is_some() {
                    return Arrival::Broken(Rule::SameCall);
                }
                self.rendezvous[self.waiting] = Rendezvous { kind, mask, arrived: 0 };
                self.waiting += 1;
                self.waiting - 1
            }
        };
        self.rendezvous[slot].arrived |= bit;
        if self.rendezvous[slot].arrived != mask {
            self.ready &= !bit;
            return Arrival::Wait;
        }
        self.finish(slot);
        Arrival::Complete
    }

    /// Completes a rendezvous: results for all, all ready.
    fn finish(&mut self, slot: usize) {
        let Rendezvous { kind, mask, .. } = self.rendezvous[slot];
        self.waiting -= 1;
        self.rendezvous[slot] = self.rendezvous[self.waiting];
        self.compute(kind, mask);
        self.ready |= mask;
        self.progress += 1;
    }

    /// Marks `lane` as exited; an error when a waiting rendezvous names it.
    pub(crate) fn exit(&mut self, lane: usize) -> Result<(), String> {
        let bit = 1 << lane;
        self.exited |= bit;
        self.ready &= !bit;
        self.progress += 1;
        let mut slot = 0;
        while slot < self.waiting {
            let r = &mut self.rendezvous[slot];
            if r.mask & bit == 0 {
                slot += 1;
                continue;
            }
            if !self.skip_exited {
                let (kind, mask) = (r.kind, r.mask);
                return Err(self.exited_in(kind, mask));
            }
            r.mask &= !bit;
            if r.arrived == r.mask {
                self.finish(slot)
            } else {
                slot += 1
            }
        }
        Ok(())
    }

    fn exited_in(&self, kind: u32, mask: u32) -> String {
        format!(
            "{} with mask {mask:#010x} waits for lanes that have already returned from the kernel: {}",
            name(kind),
            list(mask & self.exited)
        )
    }

    /// A rendezvous that waits for `lane` while `mask` waits for its lanes: they can never meet.
    fn conflict(&self, lane: usize, mask: u32) -> Option<Rendezvous> {
        self.waiting()
            .iter()
            .find(|r| r.mask & (1 << lane) != 0 && r.arrived & mask != 0)
            .copied()
    }

    /// How `lane` broke `rule` by calling `kind` with `mask`.
    #[cold]
    pub(crate) fn explain(&self, rule: Rule, lane: usize, kind: u32, mask: u32) -> String {
        let call = format!("lane {lane} calls {} with mask {mask:#010x}", name(kind));
        let mask = mask & self.existing;
        match (rule, self.conflict(lane, mask)) {
            (Rule::NamesCaller, _) => format!("{call}, which does not name it"),
            (Rule::SameCall, Some(other)) => format!(
                "{call} while {} wait for it in {} with mask {:#010x}: the lanes of a mask must make the same call with the same mask",
                list(other.arrived),
                name(other.kind),
                other.mask
            ),
            _ => self.exited_in(kind, mask),
        }
    }

    /// Parks `lane` at a gathering call.
    pub(crate) fn gather(&mut self, lane: usize, site: usize, key: u64) {
        self.a[lane] = key;
        self.sites[lane] = site;
        self.gathering |= 1 << lane;
        self.ready &= !(1 << lane);
    }

    /// Answers gathering lanes of `among` that are at the call site of `leader`: (matching lanes | active lanes << 32) each.
    pub(crate) fn answer_gathering(&mut self, leader: usize, among: u32) {
        let site = self.sites[leader];
        let group = lanes_of(self.gathering & among)
            .filter(|&l| self.sites[l] == site)
            .fold(0, |m, l| m | 1u32 << l);
        self.match_any(group);
        for lane in lanes_of(group) {
            self.results[lane] |= u64::from(group) << 32;
        }
        self.gathering &= !group;
        self.ready |= group;
        self.progress += 1;
    }

    /// Answers gathering lanes when no other lane of the warp can run: those at the lowest address first, because they are usually behind and
    /// will join the others, but for a bounded number of rounds, because they may wait for the others.
    pub(crate) fn answer_some_gathering(&mut self) {
        let lowest = lanes_of(self.gathering)
            .min_by_key(|&lane| self.sites[lane])
            .unwrap_or(0);
        self.answer_gathering(lowest, u32::MAX);
        self.gather_rounds += 1;
        if self.gathering == 0 || self.gather_rounds > GATHER_ROUNDS_MAX {
            self.gather_rounds = 0;
            while self.gathering != 0 {
                self.answer_gathering(self.gathering.trailing_zeros() as usize, u32::MAX);
            }
        }
    }

    fn match_any(&mut self, mask: u32) {
        let mut rest = mask;
        while rest != 0 {
            let key = self.a[rest.trailing_zeros() as usize];
            let same = lanes_of(rest)
                .filter(|&l| self.a[l] == key)
                .fold(0, |m, l| m | 1u32 << l);
            for lane in lanes_of(same) {
                self.results[lane] = u64::from(same);
            }
            rest &= !same;
        }
    }

    fn compute(&mut self, kind: u32, mask: u32) {
        let votes = |bit: u64| {
            lanes_of(mask)
                .filter(|&l| self.a[l] & bit != 0)
                .fold(0, |m, l| m | 1u32 << l)
        };
        let all = match kind {
            kind::SYNCWARP => return,
            kind::SHFL | kind::SHFL_UP | kind::SHFL_DOWN | kind::SHFL_XOR => {
                for lane in lanes_of(mask) {
                    // A source outside the mask is undefined in CUDA; here it reads that lane's last value.
                    self.results[lane] = self.a[self.b[lane] as usize % LANES];
                }
                return;
            }
            kind::MATCH_ANY => return self.match_any(mask),
            kind::BALLOT => u64::from(votes(1)),
            kind::ANY => u64::from(votes(1) != 0),
            kind::ALL => u64::from(votes(1) == mask),
            kind::BALLOT2 => u64::from(votes(1)) | u64::from(votes(2)) << 32,
            kind::MATCH_ALL => {
                let first = self.a[mask.trailing_zeros() as usize % LANES];
                if lanes_of(mask).all(|l| self.a[l] == first) {
                    u64::from(mask)
                } else {
                    0
                }
            }
            _ => u64::from(reduce(kind, lanes_of(mask).map(|l| self.a[l] as u32))),
        };
        for lane in lanes_of(mask) {
            self.results[lane] = all;
        }
    }
}

fn reduce(kind: u32, values: impl Iterator<Item = u32>) -> u32 {
    let signed = |pick: fn(i32, i32) -> i32| move |x: u32, y: u32| pick(x as i32, y as i32) as u32;
    let folded = match kind {
        kind::REDUCE_ADD => values.reduce(u32::wrapping_add),
        kind::REDUCE_MIN_U => values.reduce(u32::min),
        kind::REDUCE_MAX_U => values.reduce(u32::max),
        kind::REDUCE_MIN_S => values.reduce(signed(i32::min)),
        kind::REDUCE_MAX_S => values.reduce(signed(i32::max)),
        kind::REDUCE_AND => values.reduce(|x, y| x & y),
        kind::REDUCE_OR => values.reduce(|x, y| x | y),
        kind::REDUCE_XOR => values.reduce(|x, y| x ^ y),
        // An unknown kind: the module is not of this version, which the cache's key rules out.
        _ => None,
    };
    folded.unwrap_or(0)
}

/// "lanes 0-3, 7" for a mask.
pub(crate) fn list(mask: u32) -> String {
    let mut text = String::from(if mask.count_ones() == 1 { "lane " } else { "lanes " });
    let mut first = true;
    let mut lane = 0;
    while lane < LANES {
        if mask >> lane & 1 == 0 {
            lane += 1;
            continue;
        }
        let run = (mask >> lane).trailing_ones() as usize;
        let comma = if first { "" } else { ", " };
        let _ = if run == 1 {
            write!(text, "{comma}{lane}")
        } else {
            write!(text, "{comma}{lane}-{}", lane + run - 1)
        };
        first = false;
        lane += run;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::collective::{BALLOT, SYNCWARP};
    use super::{Arrival, Rule, Warp, list};

    fn warp(existing: u32) -> Warp {
        let mut warp = Warp::new();
        warp.reset(existing, 0, false);
        warp
    }

    #[test]
    fn disjoint_masks_and_nested_waits_do_not_conflict() {
        let mut warp = warp(0xff);
        assert_eq!(warp.arrive(0, SYNCWARP, 0x0f, 0, 0), Arrival::Wait);
        assert_eq!(warp.arrive(4, BALLOT, 0xf0, 1, 0), Arrival::Wait);
        // Lane 1 is waited for by lane 0, but meets lane 2 first.
        assert_eq!(warp.arrive(1, BALLOT, 0x06, 1, 0), Arrival::Wait);
        assert_eq!(warp.arrive(2, BALLOT, 0x06, 0, 0), Arrival::Complete);
        assert_eq!((warp.results[1], warp.results[2]), (2, 2));
        for lane in 1..3 {
            assert_eq!(warp.arrive(lane, SYNCWARP, 0x0f, 0, 0), Arrival::Wait);
        }
        assert_eq!(warp.arrive(3, SYNCWARP, 0x0f, 0, 0), Arrival::Complete);
        assert_eq!(warp.waiting().len(), 1);
        assert_eq!(warp.ready & 0x1f, 0x0f);
    }

    #[test]
    fn broken_rules_are_told_apart() {
        let mut warp = warp(0xff);
        assert_eq!(warp.arrive(0, SYNCWARP, 0x02, 0, 0), Arrival::Broken(Rule::NamesCaller));
        assert_eq!(warp.arrive(0, SYNCWARP, 0x03, 0, 0), Arrival::Wait);
        assert_eq!(warp.arrive(1, BALLOT, 0x03, 0, 0), Arrival::Broken(Rule::SameCall));
        assert!(warp.explain(Rule::SameCall, 1, BALLOT, 0x03).contains("__syncwarp"));
        assert!(warp.exit(1).is_err());
        assert_eq!(warp.arrive(2, SYNCWARP, 0x06, 0, 0), Arrival::Broken(Rule::NoExited));
    }

    #[test]
    fn gathering_answers_by_place_and_lets_nobody_wait_for_ever() {
        let mut warp = warp(0xff);
        for lane in 0..8 {
            warp.gather(lane, if lane < 4 { 0x200 } else { 0x100 }, lane as u64 % 2);
        }
        warp.answer_some_gathering();
        assert_eq!((warp.gathering, warp.ready), (0x0f, 0xf0));
        assert_eq!(warp.results[5], 0xa0 | 0xf0 << 32);
        // The others come back to their place again and again; those who are ahead are answered all the same.
        let mut rounds = 0;
        while warp.gathering & 1 != 0 {
            for lane in 4..8 {
                warp.gather(lane, 0x100, 0);
            }
            warp.answer_some_gathering();
            rounds += 1;
            assert!(rounds < 100);
        }
        assert_eq!(warp.results[2], 0x05 | 0x0f << 32);
    }

    #[test]
    fn lists_of_lanes_are_short() {
        assert_eq!(list(1 << 7), "lane 7");
        assert_eq!(list(0b1011_0011), "lanes 0-1, 4-5, 7");
        assert_eq!(list(u32::MAX), "lanes 0-31");
    }
}
