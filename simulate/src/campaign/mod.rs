//! Many seeds on all cores, in processes of their own: a seed that crashes or hangs is that seed's failure.
//!
//! A campaign starts workers, each a process that answers `WORKLOAD SEED` lines on its standard input with one line of JSON a
//! run. Workers live over many seeds, so kernels are compiled once.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use serde::{Serialize, Serializer};

use crate::run::Failure;
use worker::{Lost, Worker};

pub use plan::{Campaign, CampaignError, Ran};
pub use total::Total;
pub use worker::serve;

mod plan;
mod total;
mod worker;

/// What a campaign came to.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Seeds that were asked for.
    pub seeds: Range<u64>,
    /// Seeds from the first on that every workload has run with.
    pub whole: u64,
    /// Runs that were asked for.
    pub asked: u64,
    /// Runs that ended.
    pub ran: u64,
    /// It was ended before its end.
    pub stopped: bool,
    /// Why it ended before its end by itself; what had run until then counts.
    #[serde(serialize_with = "in_words")]
    pub error: Option<CampaignError>,
    /// Real time, seconds.
    pub seconds: f64,
    /// Runs a second and worker.
    pub rate: f64,
    /// Workers.
    pub jobs: usize,
    /// By workload.
    pub workloads: Vec<Total>,
    /// What never happened over this many seeds that it should have: checks that saw nothing, requests that never ran beside each other.
    pub unseen: Vec<String>,
    /// The failures, first seed first.
    pub failures: Vec<Ran>,
}

/// An error as its sentence.
fn in_words<S: Serializer>(error: &Option<CampaignError>, to: S) -> Result<S::Ok, S::Error> {
    error.as_ref().map(ToString::to_string).serialize(to)
}

/// How far a campaign is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Runs that were asked for.
    pub asked: u64,
    /// Runs that ended.
    pub ran: u64,
    /// Of them failed.
    pub failed: u64,
    /// Since the begin.
    pub elapsed: Duration,
}

struct Shared {
    next: u64,
    ran: u64,
    /// Runs that have not ended, by number; those from `next` on are not begun.
    under_way: BTreeSet<u64>,
    stop: bool,
    totals: Vec<Total>,
    failures: Vec<Ran>,
    error: Option<CampaignError>,
}

/// How far it is. Each change of it is whole, so that a thread that panicked has left nothing half done.
fn progress(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock()
}

/// Runs the campaign; `watch` is told from time to time how far it is. Ends at the first failing seed unless told otherwise,
/// and where a worker does not start, which [`Summary::error`] says.
///
/// # Errors
/// [`CampaignError::TooMany`].
pub fn run(campaign: &Campaign, every: Duration, mut watch: impl FnMut(Progress)) -> Result<Summary, CampaignError> {
    let begun = Instant::now();
    let kinds = campaign.workloads.len() as u64;
    let seeds = campaign.seeds.end.saturating_sub(campaign.seeds.start);
    let asked = seeds.checked_mul(kinds).ok_or(CampaignError::TooMany {
        seeds,
        workloads: kinds,
    })?;
    let shared = Mutex::new(Shared {
        next: 0,
        ran: 0,
        under_way: BTreeSet::new(),
        stop: false,
        totals: campaign
            .workloads
            .iter()
            .map(|&workload| Total::new(workload))
            .collect(),
        failures: Vec::new(),
        error: None,
    });
    let jobs = campaign
        .jobs
        .clamp(1, usize::try_from(asked.max(1)).unwrap_or(usize::MAX));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|_| scope.spawn(|| work(campaign, asked, &shared)))
            .collect();
        let mut told = Instant::now();
        while threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            if told.elapsed() >= every {
                told = Instant::now();
                let now = progress(&shared);
                let progress = Progress {
                    asked,
                    ran: now.ran,
                    failed: now.failures.len() as u64,
                    elapsed: begun.elapsed(),
                };
                drop(now);
                watch(progress);
            }
        }
    });
    let mut done = shared.into_inner();
    done.failures.sort_by_key(|ran| (ran.seed, ran.workload.name()));
    let seconds = begun.elapsed().as_secs_f64();
    let first_left = done.under_way.first().copied().unwrap_or(done.next);
    Ok(Summary {
        seeds: campaign.seeds.clone(),
        whole: first_left / kinds.max(1),
        asked,
        ran: done.ran,
        // Relaxed: as in `ask`.
        stopped: done.ran < asked && campaign.stop.load(Ordering::Relaxed),
        error: done.error,
        seconds,
        rate: done.ran as f64 / seconds.max(1e-9) / jobs as f64,
        jobs,
        unseen: done.totals.iter().filter_map(Total::unseen).collect(),
        workloads: done.totals,
        failures: done.failures,
    })
}

fn work(campaign: &Campaign, asked: u64, shared: &Mutex<Shared>) {
    let kinds = campaign.workloads.len() as u64;
    let mut worker = None;
    loop {
        let number = {
            let mut shared = progress(shared);
            // Relaxed: as in `ask`.
            if shared.stop || shared.next >= asked || campaign.stop.load(Ordering::Relaxed) {
                return;
            }
            let number = shared.next;
            shared.next += 1;
            shared.under_way.insert(number);
            number
        };
        let (seed, place) = (campaign.seeds.start + number / kinds, (number % kinds) as usize);
        let workload = campaign.workloads[place];
        let held = match worker.take().map_or_else(|| Worker::start(campaign), Ok) {
            Ok(started) => worker.insert(started),
            Err(error) => {
                let mut shared = progress(shared);
                shared.error.get_or_insert(error);
                shared.stop = true;
                return;
            }
        };
        let begun = Instant::now();
        let ran = match held.run(workload, seed, campaign) {
            Ok(ran) => ran,
            Err(Lost::Stopped) => return,
            // What ended this process's work has ended the worker's compiler too, or the worker. Relaxed: as in `ask`.
            Err(Lost::Failed(_)) if campaign.stop.load(Ordering::Relaxed) => return,
            Err(Lost::Failed(what)) => {
                worker = None;
                Ran {
                    workload,
                    seed,
                    outcome: Err(Failure {
                        what,
                        further: Vec::new(),
                        trace: Vec::new(),
                    }),
                }
            }
        };
        let mut shared = progress(shared);
        shared.ran += 1;
        shared.under_way.remove(&number);
        shared.totals[place].add(&ran, begun.elapsed());
        if ran.outcome.is_err() {
            // Whatever went wrong there must not meet the next seed.
            worker = None;
            shared.failures.push(ran);
            shared.stop |= !campaign.keep_going;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::workload::Workload;

    fn campaign(seeds: Range<u64>) -> Campaign {
        Campaign {
            program: "/dev/null/no-such-program".into(),
            name: "worker".to_owned(),
            arguments: Vec::new(),
            seeds,
            workloads: vec![Workload::Counters, Workload::Linear],
            jobs: 2,
            limit: Duration::from_secs(1),
            keep_going: false,
            stop: Arc::default(),
        }
    }

    #[test]
    fn a_worker_that_does_not_start_leaves_the_summary() {
        let summary = run(&campaign(0..3), Duration::from_secs(1), |_| {}).expect("a summary");
        assert_eq!((summary.asked, summary.ran, summary.stopped), (6, 0, false));
        assert!(matches!(summary.error, Some(CampaignError::Start { .. })));
        let told = serde_json::to_value(&summary).expect("JSON");
        let error = told["error"].as_str().expect("a sentence");
        assert!(error.starts_with("cannot start a worker"), "{error}");
    }

    #[test]
    fn runs_that_cannot_be_counted_are_refused() {
        let ended = run(&campaign(0..1 << 63), Duration::from_secs(1), |_| {});
        assert!(matches!(ended, Err(CampaignError::TooMany { workloads: 2, .. })));
    }
}
