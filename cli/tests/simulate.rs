//! `gpuvm simulate`: seeds, replays, timelines, refusals, and that every broken rule of the paging protocol is caught.

use std::process::{Command, Stdio};
use std::sync::Mutex;

use gpuvm_simulate::Workload;
use gpuvm_simulate::mutations::{self, Mutation, Origin};
use serde_json::Value;

mod common;

use common::finish;

fn simulate(arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.arg("simulate").args(arguments.split_ascii_whitespace());
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    finish(command)
}

fn json(arguments: &str) -> (i32, Value) {
    let (status, out, err) = simulate(&format!("{arguments} --json"));
    let value = serde_json::from_str(out.trim()).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    (status, value)
}

#[test]
fn seeds_of_every_workload_pass_and_every_check_looked() {
    let (status, summary) = json("--seeds 0..6 --workload all --jobs 2");
    assert_eq!(status, 0, "{summary}");
    assert_eq!(summary["ran"], 6 * Workload::ALL.len() as u64);
    assert_eq!(summary["failures"], Value::Array(Vec::new()));
    for total in summary["workloads"].as_array().unwrap() {
        for key in ["passed", "steps", "virtual_ns", "fetched", "evicted", "compared"] {
            assert!(total[key].as_u64().unwrap() > 0, "{key} of {total}");
        }
    }
    let linear = summary["workloads"]
        .as_array()
        .unwrap()
        .iter()
        .find(|total| total["workload"] == "linear");
    assert!(linear.unwrap()["linear"].as_u64().unwrap() >= 50, "{summary}");
}

#[test]
fn a_seed_is_one_run_and_its_timeline_has_what_happened() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let (status, first) = json(&format!("--seed 5 --workload counters --trace {}", file.display()));
    let (again, second) = json("--seed 5 --workload counters");
    assert_eq!((status, again), (0, 0));
    assert_eq!(first, second);
    let trace: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let has = |phase: &str, part: &str| {
        let named = |event: &&Value| event["ph"] == phase && event["name"].as_str().unwrap().contains(part);
        assert!(
            events.iter().any(|event| named(&event)),
            "no {phase} event named {part}"
        );
    };
    has("X", "fault of page");
    has("X", "write-back");
    has("X", "READ page");
    has("X", "WRITE (clean) page");
    has("X", "in frame");
    has("i", "doorbell");
    has("i", "eviction of page");
    has("M", "thread_name");
    for event in events.iter().filter(|event| event["ph"] == "X") {
        assert!(
            event["ts"].as_f64().unwrap() >= 0.0 && event["dur"].as_f64().unwrap() >= 0.0,
            "{event}"
        );
    }
}

#[test]
fn a_fault_that_never_happens_is_an_error() {
    let (status, _, err) = simulate("--seeds 0..1 --workload counters --faults late:1/1000000");
    assert_eq!(status, 1);
    assert!(err.contains("never happened: late"), "{err}");
}

#[test]
fn a_failing_seed_names_its_replay_and_shows_the_last_events() {
    let mutation = "clean-while-pinned";
    let known = mutations::find(mutation).unwrap();
    let (workload, seed) = (known.workload, known.seed);
    let (status, out, _) = simulate(&format!(
        "--seeds {seed}..{} --workload {workload} --jobs 1 --mutation {mutation}",
        seed + 1
    ));
    assert_eq!(status, 1, "{out}");
    let replay = format!("replay: gpuvm simulate --workload {workload} --seed {seed} --mutation {mutation}");
    assert!(out.contains(&format!("FAILED: {workload}, seed {seed}: ")), "{out}");
    assert!(out.contains(&replay) && out.contains(" ns  launch "), "{out}");
    let (again, replayed, _) = simulate(&format!("--workload {workload} --seed {seed} --mutation {mutation}"));
    assert_eq!(again, 1);
    let what = |text: &str| text.lines().find(|line| line.starts_with("FAILED")).map(str::to_owned);
    assert_eq!(what(&out), what(&replayed));
}

#[test]
fn wrong_options_are_refused() {
    for (arguments, said) in [
        ("", "--seeds"),
        ("--seeds 5..5", "has no seed"),
        ("--seeds five", "is no range of seeds"),
        ("--seeds 0..1 --workload nothing", "there is no workload `nothing`"),
        ("--seeds 0..1 --seed 1", "cannot be used with"),
        ("--seeds 0..1 --trace t.json", "--seed"),
        ("--seeds 0..1 --faults sometimes", "no fault is called `sometimes`"),
        ("--seeds 0..1 --jobs 0", "--jobs"),
    ] {
        let (status, out, err) = simulate(arguments);
        assert_eq!(status, 2, "{arguments}: {out}{err}");
        assert!(err.contains(said), "{arguments}: {err}");
    }
    for (arguments, said) in [
        ("--seed 1 --trace t.json", "name one workload"),
        ("--seeds 0..1 --mutation nothing", "there is no mutation `nothing`"),
    ] {
        let (status, out, err) = simulate(arguments);
        assert_eq!(status, 1, "{arguments}: {out}{err}");
        assert!(err.contains(said), "{arguments}: {err}");
    }
}

/// The seed that catches the mutation, and how, of those from `first` on.
fn caught(mutation: &Mutation, first: u64, most: u64) -> Option<(u64, String)> {
    let (name, workload) = (mutation.name, mutation.workload);
    let seeds = format!("--seeds {first}..{}", first + most);
    let (status, summary) = json(&format!(
        "{seeds} --workload {workload} --jobs 1 --limit 15 --mutation {name}"
    ));
    let failure = summary["failures"].get(0);
    if let Some(failure) = failure {
        assert_eq!(status, 1);
        let what = failure["outcome"]["Err"]["what"].as_str().unwrap();
        return Some((failure["seed"].as_u64().unwrap(), what.to_owned()));
    }
    let unseen = summary["unseen"].get(0)?;
    Some((first, unseen.as_str().unwrap().to_owned()))
}

/// Seeds within which each broken rule is caught.
const CAUGHT_WITHIN: u64 = 2000;
/// Seeds after which a campaign also says what it has never seen.
const FIRST: u64 = 60;

/// From the seeds at which they were found, which move with the compiler and with the library; `GPUVM_TEST_HUNT=2000` hunts
/// each from seed 0 on over so many.
#[test]
fn every_broken_rule_is_caught() {
    let hunt = std::env::var("GPUVM_TEST_HUNT")
        .ok()
        .map(|most| most.parse::<u64>().expect("a number of seeds"));
    let rest = Mutex::new(mutations::all().iter());
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(mutation) = rest.lock().unwrap().next() else {
                        break;
                    };
                    let found = match hunt {
                        Some(most) => caught(mutation, 0, most),
                        None => caught(mutation, mutation.seed, FIRST)
                            .or_else(|| caught(mutation, mutation.seed + FIRST, CAUGHT_WITHIN - FIRST)),
                    };
                    match found {
                        Some((seed, what)) => println!("{}: seed {seed}: {what}", mutation.name),
                        None => missed.lock().unwrap().push(mutation.name),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn every_rule_of_both_lists_has_its_mutation() {
    for rule in 1..=18 {
        assert!(
            mutations::all().iter().any(|m| m.origin == Origin::Protocol(rule)),
            "rule {rule}"
        );
    }
    for defect in 1..=12 {
        assert!(
            mutations::all().iter().any(|m| m.origin == Origin::Peers(defect)),
            "defect {defect}"
        );
    }
}
