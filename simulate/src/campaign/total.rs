//! What a workload came to over its seeds.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::plan::Ran;
use crate::watch::Looks;
use crate::workload::Workload;

/// Seeds of a workload from which on what they never showed is a finding.
const SEEDS_TELLING: u64 = 40;

/// What a workload came to over its seeds.
#[derive(Debug, Clone, Serialize)]
pub struct Total {
    /// The workload.
    pub workload: Workload,
    /// Seeds that passed.
    pub passed: u64,
    /// Seeds that failed.
    pub failed: u64,
    /// How often each check looked.
    pub looks: Looks,
    /// Virtual time, ns.
    pub virtual_ns: u64,
    /// Pages fetched.
    pub fetched: u64,
    /// Pages evicted.
    pub evicted: u64,
    /// Pages written back.
    pub written_back: u64,
    /// Histories of words found linearisable.
    pub linear: u64,
    /// Histories with too many states to tell.
    pub undecided: u64,
    /// Faults that bit, by name.
    pub faults: BTreeMap<String, u64>,
    /// Homes that were taken away on purpose.
    pub losses: u64,
    /// Of them while a kernel ran.
    pub within: u64,
    /// Homes that returned.
    pub returns: u64,
    /// Stale copies that were written again.
    pub repaired: u64,
    /// Pages that left their frames for a neighbour.
    pub kept: u64,
    /// Pages that came from there.
    pub came_back: u64,
    /// Pages that lost their place there to others.
    pub displaced: u64,
    /// Pages that were fetched from their homes, since the loan had ended.
    pub lost: u64,
    /// Bits that were flipped on purpose.
    pub flips: u64,
    /// Pages that did not have their checksum.
    pub corrupt: u64,
    /// Runs that faults ended with an error.
    pub errors: u64,
    /// Real time of its runs on one core, seconds.
    pub seconds: f64,
}

impl Total {
    pub(super) fn new(workload: Workload) -> Self {
        Self {
            workload,
            passed: 0,
            failed: 0,
            looks: Looks::default(),
            virtual_ns: 0,
            fetched: 0,
            evicted: 0,
            written_back: 0,
            linear: 0,
            undecided: 0,
            faults: BTreeMap::new(),
            losses: 0,
            within: 0,
            returns: 0,
            repaired: 0,
            kept: 0,
            came_back: 0,
            displaced: 0,
            lost: 0,
            flips: 0,
            corrupt: 0,
            errors: 0,
            seconds: 0.0,
        }
    }

    /// What these seeds should have shown and did not.
    pub(super) fn unseen(&self) -> Option<String> {
        if self.passed < SEEDS_TELLING {
            return None;
        }
        let queued = !self.workload.is_direct();
        let checked = self.workload == Workload::Checksums;
        let pages = self.workload.has_pages();
        let writes = pages && self.workload != Workload::Prefetch;
        let (lends, borrows) = (self.workload == Workload::Victims, self.workload.borrows());
        let (looks, loses) = (&self.looks, self.workload.loses_homes());
        let never = [
            (pages, looks.words, "no page's entry ever changed"),
            (
                pages,
                looks.published,
                "no frame was ever compared with its home when it was published",
            ),
            (
                pages,
                looks.evicted,
                "no frame was ever compared with its home when its page was evicted",
            ),
            (
                writes,
                looks.cleaned,
                "no frame was ever compared with its home after a write-back",
            ),
            (pages, looks.frames, "no frame ever went through the pool"),
            (queued, looks.requests, "no request was ever written"),
            (queued, looks.indexes, "no ring's index ever moved"),
            (
                queued,
                looks.in_flight_max / 2,
                "no queue pair ever had two READs under way",
            ),
            (
                self.workload == Workload::LargePages,
                looks.filled,
                "no page was ever filled by chunks",
            ),
            (loses || checked, looks.copies, "no second copy was ever compared"),
            (
                loses || checked,
                looks.agreed,
                "no page's copies were ever compared with each other at the end",
            ),
            (loses, self.within, "no home was taken away while a kernel ran"),
            (loses, self.returns.min(looks.returned), "no home returned"),
            (loses, self.repaired, "no stale copy was ever written again"),
            (checked, looks.checksums, "no frame was ever compared with its checksum"),
            (checked, self.flips, "no bit was flipped"),
            (checked, self.corrupt, "no flipped bit was found"),
            (checked, looks.damaged, "no copy differed by a flipped bit"),
            (borrows, self.came_back, "no page came from a neighbour's memory"),
            (borrows, self.lost, "no page was missed where a copy had ended"),
            (lends, self.displaced, "no page at a neighbour made room for another"),
            (lends, looks.victims, "no slot at a neighbour was compared with a home"),
            (lends, looks.taken_back, "no lender ever used what it was given back"),
            (
                matches!(self.workload, Workload::Linear | Workload::Broadcast),
                self.linear,
                "no word's history was looked at",
            ),
        ];
        let (_, _, what) = never.into_iter().find(|(due, count, _)| *due && *count == 0)?;
        Some(format!("{}: in {} seeds {what}", self.workload, self.passed))
    }

    pub(super) fn add(&mut self, ran: &Ran, took: Duration) {
        self.seconds += took.as_secs_f64();
        let Ok(passed) = &ran.outcome else {
            self.failed += 1;
            return;
        };
        self.passed += 1;
        self.looks.add(&passed.looks);
        self.virtual_ns += passed.virtual_ns;
        self.fetched += passed.fetched;
        self.evicted += passed.evicted;
        self.written_back += passed.written_back;
        self.linear += passed.linear.0;
        self.undecided += passed.linear.1;
        for (name, bitten) in &passed.faults {
            *self.faults.entry(name.clone()).or_insert(0) += bitten;
        }
        self.losses += passed.happened.losses;
        self.within += passed.happened.within;
        self.returns += passed.happened.returns;
        self.repaired += passed.repaired;
        let (kept, came_back, lost, displaced) = passed.victims;
        self.kept += kept;
        self.came_back += came_back;
        self.lost += lost;
        self.displaced += displaced;
        self.flips += passed.happened.flips;
        self.corrupt += passed.corrupt;
        self.errors += u64::from(passed.error.is_some());
    }
}
