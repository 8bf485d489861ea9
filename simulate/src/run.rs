//! One seed of one workload: set up, watched while it runs, compared with its model, and taken down.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpuvm::Vm;
use gpuvm_nic::with_causes;
use serde::{Deserialize, Serialize};

use crate::bench::Wrong;
use crate::room::{Borrowed, Happened, Needs, Options, RESIZED_FRAMES, Room};
use crate::trace;
use crate::watch::{Event, Finding, Looks, Watcher};
use crate::workload::{self, Workload};

/// What a seed came to that went well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passed {
    /// How often each check looked.
    pub looks: Looks,
    /// Virtual time of all launches, ns.
    pub virtual_ns: u64,
    /// Pages that were fetched.
    pub fetched: u64,
    /// Pages that left their frames.
    pub evicted: u64,
    /// Pages that were written back.
    pub written_back: u64,
    /// Histories of words that were found linearisable, and those that had too many states to tell.
    pub linear: (u64, u64),
    /// Faults that bit, by name.
    pub faults: BTreeMap<String, u64>,
    /// What happened to homes and data on purpose.
    pub happened: Happened,
    /// Pages that were fetched and did not have their checksum.
    pub corrupt: u64,
    /// Stale copies that were written again.
    pub repaired: u64,
    /// Pages that left their frames for a neighbour, came from there, or would have, but for a loan that had ended; and those that lost their
    /// place there.
    pub victims: (u64, u64, u64, u64),
    /// The error that faults ended it with, if one did.
    pub error: Option<String>,
    /// Hash of the interleaving.
    pub hash: u64,
}

/// What went wrong in a seed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What differed, or which rule was broken.
    pub what: String,
    /// Further findings.
    pub further: Vec<String>,
    /// The last events of the pages, frames and queue pairs concerned, one a line.
    pub trace: Vec<String>,
}

/// A seed's end, and its events if all were asked for.
pub struct Ended {
    /// How it went.
    pub outcome: Result<Passed, Failure>,
    /// The events.
    pub events: Vec<Event>,
}

/// Compiles what the workload needs, so that no run of it waits for a compiler.
///
/// # Errors
/// It does not compile, or no virtual memory can be built.
pub fn prepare(workload: Workload, options: &Options) -> Result<(), String> {
    let options = Options {
        unwatched: true,
        ..options.clone()
    };
    let mut room = Room::new(workload, 0, &options, Arc::default());
    let borrows = match workload {
        // Of its seeds a share.
        Workload::LookedUp => vec![0, 1],
        _ => vec![u64::from(workload.borrows())],
    };
    borrows.into_iter().try_for_each(|each| compile(&mut room, each))
}

fn compile(room: &mut Room<'_>, each: u64) -> Result<(), String> {
    let workload = room.workload();
    let needs = Needs {
        borrowed: Borrowed {
            chunk_pages: each,
            chunks: each,
        },
        ..match workload.resizes() {
            true => Needs {
                frame_capacity: 2 * RESIZED_FRAMES,
                ..Needs::few(0, RESIZED_FRAMES)
            },
            false => Needs::few(0, 1),
        }
    };
    let bench = room.open(needs)?;
    workload::compile(workload, &bench).map_err(|wrong| wrong.to_string())
}

/// Runs a seed of a workload to its end.
pub fn run(workload: Workload, seed: u64, options: &Options) -> Ended {
    run_watched(workload, seed, options, Arc::new(Watcher::new(options.all_events)))
}

/// What is known of a run that broke a rule and does not end: its findings so far. None while there are none.
pub(crate) fn broken_so_far(watcher: &Watcher) -> Option<Failure> {
    let first = watcher.first()?;
    if !watcher.is_sound() {
        return Some(failure(first.what.clone(), std::slice::from_ref(first), &[]));
    }
    let findings = watcher.findings();
    Some(failure(first.what.clone(), &findings, &watcher.events()))
}

/// [`run`] with a watcher that others look at meanwhile.
pub(crate) fn run_watched(workload: Workload, seed: u64, options: &Options, watcher: Arc<Watcher>) -> Ended {
    let mut room = Room::new(workload, seed, options, Arc::clone(&watcher));
    let ran = workload::run(workload, &mut room);
    let vm = room.vm.take();
    let mut findings = watcher.findings();
    // What is asked of a machine that fails may be refused; nothing may differ.
    let error = match &ran {
        Err(Wrong::Refused(error)) if options.may_refuse() => Some(error.clone()),
        _ => None,
    };
    let judged = match (&ran, &vm) {
        (Err(wrong), _) if error.is_none() => Err(wrong.to_string()),
        (_, Some(vm)) if findings.is_empty() => judge(&room, &watcher, vm, &mut findings, error),
        _ => Ok(None),
    };
    // What a NIC saw explains requests that were refused.
    let saw = match &ran {
        Err(_) => vm.as_ref().and_then(nic_saw),
        Ok(()) => None,
    };
    watcher.detach();
    let events = watcher.events();
    let mut outcome = match (findings.first(), judged) {
        (None, Ok(Some(passed))) => Ok(passed),
        (None, Ok(None)) => Err(failure(
            "the workload made no virtual memory".into(),
            &findings,
            &events,
        )),
        (None, Err(wrong)) => Err(failure(wrong, &findings, &events)),
        (Some(finding), judged) => {
            let mut failure = failure(finding.what.clone(), &findings, &events);
            failure.further.extend(judged.err());
            Err(failure)
        }
    };
    if let Err(failure) = &mut outcome {
        failure.further.extend(saw);
    }
    drop(vm);
    Ended {
        outcome,
        events: if options.all_events { events } else { Vec::new() },
    }
}

/// After the workload's own comparison: everything is at rest, and the NIC saw no rule broken.
fn judge(
    room: &Room<'_>,
    watcher: &Watcher,
    vm: &Vm,
    findings: &mut Vec<Finding>,
    error: Option<String>,
) -> Result<Option<Passed>, String> {
    if !room.options.unwatched && error.is_none() {
        findings.extend(watcher.when_idle().err());
    }
    if let Some(race) = room.gpu.as_ref().and_then(|gpu| gpu.races().0.into_iter().next()) {
        return Err(format!("a data race: {race}"));
    }
    let mut faults = BTreeMap::new();
    if let Some(saw) = nic_saw(vm) {
        return Err(saw);
    }
    for nic in vm.soft_nics() {
        for count in nic.fault_tally().counts() {
            *faults.entry(count.rate.kind.name().to_owned()).or_insert(0) += count.bitten;
        }
    }
    let stats = vm.stats().map_err(|error| with_causes(&error))?;
    let (virtual_ns, hash) = match &room.gpu {
        Some(gpu) => (gpu.virtual_ns(), gpu.trace_hash()),
        None => (0, 0),
    };
    Ok(Some(Passed {
        looks: watcher.looks(),
        virtual_ns,
        fetched: stats.pages_fetched,
        evicted: stats.evictions,
        written_back: stats.pages_written_back,
        linear: room.linear,
        faults,
        happened: room.happened,
        corrupt: stats.pages_corrupt,
        repaired: stats.replicas_repaired,
        victims: (
            stats.victims_copied,
            stats.victims_fetched,
            stats.victims_lost,
            stats.victims_displaced,
        ),
        error,
        hash,
    }))
}

/// The first rule of its queues that a NIC saw broken.
fn nic_saw(vm: &Vm) -> Option<String> {
    let mut all = vm.soft_nics().iter().flat_map(|nic| nic.violations());
    all.next()
        .map(|first| format!("the NIC saw a rule of its queues broken: {first}"))
}

fn failure(what: String, findings: &[Finding], events: &[Event]) -> Failure {
    Failure {
        what,
        further: findings.iter().skip(1).map(|finding| finding.what.clone()).collect(),
        trace: trace::last_events(findings.first(), events),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_race_is_a_failure_where_races_are_looked_for() {
        // Its lanes store equal values to the same words.
        let raced = |find_races| {
            let options = Options {
                find_races,
                ..Options::default()
            };
            run(Workload::Bfs, 0, &options).outcome
        };
        assert!(Workload::Bfs.races_on_purpose() && raced(false).is_ok());
        assert!(raced(true).is_err_and(|failure| failure.what.contains("race")));
    }
}
