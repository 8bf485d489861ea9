//! `gpuvm simulate`: seeds, replays, timelines, refusals, and that every broken rule of the paging protocol is caught.

use std::fs::File;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpuvm_simulate::Workload;
use gpuvm_simulate::campaign::{self, Campaign, Summary};
use gpuvm_simulate::mutations::{self, Mutation, Origin, Setting};
use serde_json::Value;

use crate::common::{finish, says};

fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.arg("simulate").args(arguments.split_ascii_whitespace());
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn simulate(arguments: &str) -> (i32, String, String) {
    finish(command(arguments))
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
    let totals = summary["workloads"].as_array().unwrap();
    for total in totals {
        let has_pages = total["workload"]
            .as_str()
            .unwrap()
            .parse::<Workload>()
            .unwrap()
            .has_pages();
        let some = |keys: &[&str], of: &Value| {
            for key in keys {
                assert!(of[*key].as_u64().unwrap() > 0, "{key} of {total}");
            }
        };
        some(&["passed", "virtual_ns"], total);
        some(&["steps"], &total["looks"]);
        if has_pages {
            some(&["fetched", "evicted"], total);
            some(&["words", "published", "evicted", "frames"], &total["looks"]);
        }
    }
    for (workload, least) in [("linear", 50), ("broadcast", 12)] {
        let total = totals.iter().find(|total| total["workload"] == workload);
        assert!(total.unwrap()["linear"].as_u64().unwrap() >= least, "{summary}");
    }
}

#[test]
fn races_are_looked_for_where_none_is_on_purpose() {
    let (status, summary) = json("--seeds 0..2 --workload counters,bfs,linear --races");
    assert_eq!(status, 0, "{summary}");
    let named = |total: &Value| total["workload"].as_str().unwrap().to_owned();
    let ran: Vec<String> = summary["workloads"].as_array().unwrap().iter().map(named).collect();
    assert_eq!(ran, ["counters", "linear"]);
    let (status, _, err) = simulate("--seeds 0..2 --workload never-evicted,bfs --races");
    assert_eq!(status, 2, "{err}");
    assert!(err.contains("never-evicted, bfs race on purpose"), "{err}");
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
    // Of one run as well.
    let (status, _, err) = simulate("--seed 0 --workload counters --faults late:1/1000000");
    assert_eq!(status, 1, "{err}");
    assert!(err.contains("never happened: late"), "{err}");
}

#[test]
fn a_failing_seed_names_its_replay_and_shows_the_last_events() {
    let mutation = "clean-while-pinned";
    let known = mutations::find(mutation).unwrap();
    let (workload, seed) = (known.workload, 0);
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

/// A campaign that would run for weeks, interrupted after this many seconds: its standard output. The signal reaches its process
/// alone, as `kill` sends it, or all of its group, as a terminal does.
fn interrupted(arguments: &str, seconds: u64, to_all: bool) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.args("simulate --seeds 100..100000000 --workload flush --jobs 2".split_ascii_whitespace());
    command.args(arguments.split_ascii_whitespace()).env_remove("RUST_LOG");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // A group of its own, so that the signal does not reach this test.
    let run = command.process_group(0).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(seconds));
    let target = if to_all {
        format!("-{}", run.id())
    } else {
        run.id().to_string()
    };
    let sent = Instant::now();
    // Twice, as `timeout` does, which tells the process and its group; by one program, since half a second later it would be another Ctrl-C.
    let mut kill = Command::new("sh");
    kill.args(["-c", &format!("kill -s INT -- {target}; kill -s INT -- {target}")]);
    assert!(kill.status().unwrap().success());
    let ended = run.wait_with_output().unwrap();
    let out = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{out}");
    assert!(sent.elapsed() < Duration::from_secs(20), "{:?}", sent.elapsed());
    out
}

#[test]
fn ctrl_c_tells_how_far_it_came() {
    // Until workers have compiled no seed has run, which is told as well; how long that is the machine decides.
    for seconds in [2, 4, 8, 16, 32, 64] {
        let summary: Value = serde_json::from_str(&interrupted("--json", seconds, true)).unwrap();
        assert_eq!(summary["stopped"], true);
        assert_eq!(summary["failures"], Value::Array(Vec::new()));
        assert_eq!(summary["seeds"]["start"], 100);
        let number = |key: &str| summary[key].as_u64().unwrap();
        let (whole, ran) = (number("whole"), number("ran"));
        assert!(whole <= ran && ran < number("asked"), "{summary}");
        if whole == 0 {
            continue;
        }
        let out = interrupted("", seconds, false);
        let told = out
            .lines()
            .find_map(|line| line.strip_prefix("interrupted: of seeds 100..100000000 the first "));
        let told = told.unwrap_or_else(|| panic!("{out}"));
        let whole: u64 = told.split(' ').next().unwrap().parse().unwrap();
        if whole == 0 {
            // The machine gave this one less of its time.
            continue;
        }
        let range = format!("{whole} (100..{}) had run with every workload, and ", 100 + whole);
        assert!(told.starts_with(&range), "{out}");
        assert!(told.ends_with("; 0 failed so far"), "{out}");
        return;
    }
    panic!("no seed has run in a minute");
}

#[test]
fn wrong_options_are_refused() {
    for (arguments, said) in [
        ("", "--seeds"),
        ("--seeds 5..5", "has no seed"),
        ("--seeds five", "invalid range of seeds"),
        ("--seeds 0..1 --workload nothing", "there is no workload `nothing`"),
        ("--seeds 0..1 --seed 1", "cannot be used with"),
        ("--seeds 0..1 --trace t.json", "--seed"),
        ("--seeds 0..1 --faults sometimes", "no fault is called `sometimes`"),
        ("--seeds 0..1 --jobs 0", "--jobs"),
        ("--seed 1 --trace t.json", "name one workload"),
        ("--seeds 0..1 --mutation nothing", "there is no mutation `nothing`"),
        ("--mutation clean-while-pinned", "give --seeds"),
        ("--seeds 0..9223372036854775808", "more runs than can be counted"),
        ("--seed 18446744073709551615", "is not in 0..18446744073709551615"),
    ] {
        let (status, out, err) = simulate(arguments);
        assert_eq!(status, 2, "{arguments}: {out}{err}");
        assert!(err.contains(said), "{arguments}: {err}");
    }
}

#[test]
fn the_list_of_mutations_needs_no_seeds() {
    let (status, out, err) = simulate("--mutation list");
    assert_eq!(status, 0, "{err}");
    assert_eq!(out.lines().count(), mutations::all().count());
}

#[test]
fn a_full_standard_output_is_an_error() {
    for arguments in [
        "--seeds 0..1 --workload counters --jobs 1",
        "--seeds 0..1 --workload counters --jobs 1 --json",
        "--seed 0 --workload counters",
        "--seed 0 --workload counters --json",
    ] {
        let mut command = command(arguments);
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        let (status, _, err) = finish(command);
        assert_eq!(status, 1, "{arguments}: {err}");
        assert!(
            err.starts_with("error: cannot print to the standard output") && err.contains("No space left on device"),
            "{arguments}: {err}"
        );
    }
}

#[test]
fn an_outcome_is_told_where_its_timeline_cannot_be_written() {
    let (status, out, err) = simulate("--seed 0 --workload counters --trace /dev/full");
    assert_eq!(status, 1, "{err}");
    assert!(out.starts_with("counters, seed 0: passed"), "{out}");
    assert!(err.starts_with("error: cannot write the timeline /dev/full"), "{err}");
    // Before the run where that can be known.
    let (status, out, err) = simulate("--seed 0 --workload counters --trace no/folder/t.json");
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
}

/// Every seed that fails starts another worker, of a program whose file is gone.
#[test]
fn a_campaign_outlives_its_programs_file() {
    // A link, not a copy: a process that another test starts meanwhile would hold the copy open to write, and it could not be run.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = folder.path().join("gpuvm");
    std::fs::hard_link(env!("CARGO_BIN_EXE_gpuvm"), &program).unwrap();
    let known = mutations::find("clean-while-pinned").unwrap();
    let mut command = Command::new(&program);
    command.args(["simulate", "--seeds", "0..3", "--workload", known.workload.name()]);
    command.args(["--jobs", "1", "--keep-going", "--json", "--mutation", known.name]);
    command
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let run = command.spawn().unwrap();
    std::fs::remove_file(&program).unwrap();
    let ended = run.wait_with_output().unwrap();
    let summary: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(
        (&summary["ran"], &summary["error"]),
        (&3.into(), &Value::Null),
        "{summary}"
    );
    let failure = &summary["failures"][0]["outcome"]["Err"]["what"];
    let what = failure.as_str().unwrap();
    assert!(known.seen.iter().any(|seen| what.contains(seen)), "{summary}");
}

/// What a campaign over these seeds comes to in the library that has all mutations, with this one chosen. It has one worker and ends at
/// the first failure.
fn hunted(mutation: &str, workloads: &[Workload], faults: &str, races: bool, seeds: Range<u64>) -> Summary {
    let mut arguments: Vec<&str> = vec!["simulate", "--worker", "--mutation", mutation];
    if !faults.is_empty() {
        arguments.extend(["--faults", faults]);
    }
    if races {
        arguments.push("--races");
    }
    let campaign = Campaign {
        program: env!("CARGO_BIN_EXE_gpuvm").into(),
        name: "gpuvm".to_owned(),
        arguments: arguments.into_iter().map(str::to_owned).collect(),
        seeds,
        workloads: workloads.to_vec(),
        jobs: 1,
        limit: Duration::from_secs(15),
        keep_going: false,
        stop: Arc::default(),
    };
    let summary = campaign::run(&campaign, Duration::MAX, |_| {}).expect("this many runs can be counted");
    assert!(summary.error.is_none(), "{:?}", summary.error);
    summary
}

/// Seeds at which a broken rule may show as something else, its process's end among that, before one shows what is broken.
const OTHERS_MOST: u32 = 40;
/// Seeds within which each broken rule is caught: many times as many as the rarest takes, so that none is missed by chance.
const CAUGHT_WITHIN: u64 = 20_000;
/// Seeds after which a campaign also says what it has never seen.
const FIRST: u64 = 60;

/// How many seeds from `first` on it takes to catch the mutation, and what is said then.
fn caught(mutation: &Mutation, first: u64) -> Result<(u64, String), String> {
    let workload = [mutation.workload];
    let is_seen = |what: &str| mutation.seen.iter().any(|seen| what.contains(seen));
    let (mut from, mut others) = (first, 0);
    while from < first + CAUGHT_WITHIN {
        let until = if from < first + FIRST { FIRST } else { CAUGHT_WITHIN };
        let summary = hunted(mutation.name, &workload, "", false, from..first + until);
        let Some(ran) = summary.failures.first() else {
            from = first + until;
            match summary.unseen.iter().find(|unseen| is_seen(unseen)) {
                Some(unseen) => return Ok((FIRST, unseen.clone())),
                None => continue,
            }
        };
        let failure = ran.outcome.as_ref().expect_err("it is among the failures");
        let what = failure.what.clone();
        from = ran.seed + 1;
        if is_seen(&what) || failure.further.iter().any(|what| is_seen(what)) {
            // With nothing broken the same seed passes, under the same faults: it was the mutation that failed.
            let races = mutation.setting == Setting::Races;
            let whole = hunted("none", &workload, mutation.faults, races, ran.seed..from);
            assert!(
                whole.failures.is_empty() && whole.ran == 1,
                "as it is: {:?}",
                whole.failures
            );
            return Ok((from - first, what));
        }
        // That it shows as something else would say nothing of the rule.
        others += 1;
        if others > OTHERS_MOST {
            return Err(format!("seed {}: {what}", ran.seed));
        }
    }
    Err("no seed shows it".to_owned())
}

/// Seeds come from `GPUVM_TEST_DRAW`, a number: another one has each hunt begin elsewhere.
#[test]
fn every_broken_rule_is_caught() {
    let draw =
        std::env::var("GPUVM_TEST_DRAW").map_or(0, |text| text.parse::<u64>().expect("GPUVM_TEST_DRAW is a number"));
    let first = draw * CAUGHT_WITHIN;
    // All kernels are compiled once, by two who have none in common, before anybody else wants them.
    std::thread::scope(|scope| {
        for direct in [false, true] {
            scope.spawn(move || {
                let workloads: Vec<Workload> = Workload::ALL
                    .into_iter()
                    .filter(|of| of.is_direct() == direct)
                    .collect();
                let compiled = hunted("none", &workloads, "", false, first..first + 1);
                assert!(compiled.failures.is_empty(), "{:?}", compiled.failures);
            });
        }
    });
    let rest = Mutex::new(mutations::all());
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(mutation) = rest.lock().unwrap().next() else {
                        break;
                    };
                    let begun = Instant::now();
                    // What panics is one mutation's: the rest is run all the same.
                    let found = std::panic::catch_unwind(|| caught(mutation, first));
                    let took = begun.elapsed().as_secs_f32();
                    match found.unwrap_or_else(|_| Err("it panicked".to_owned())) {
                        Ok((seeds, what)) => println!("{}: {seeds} seeds, {took:.1} s: {what}", mutation.name),
                        Err(what) => missed.lock().unwrap().push(format!("{}: {what}", mutation.name)),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(
        missed.is_empty(),
        "not caught from seed {first} on (GPUVM_TEST_DRAW={draw}):\n{}",
        missed.join("\n")
    );
}

#[test]
fn every_rule_of_the_lists_has_its_mutation() {
    type List = (fn(u32) -> Origin, u32);
    let lists: [List; 13] = [
        (Origin::Protocol, 18),
        (Origin::Peers, 12),
        (Origin::Guards, 6),
        (Origin::Copies, 10),
        (Origin::Places, 12),
        (Origin::Victims, 13),
        (Origin::Broadcast, 8),
        (Origin::Frames, 10),
        (Origin::LookUps, 7),
        (Origin::Slots, 6),
        (Origin::Words, 2),
        (Origin::Queues, 4),
        (Origin::Orders, 11),
    ];
    for (origin, most) in lists {
        // F8 has no planted bug: docs/PROTOCOL.md, section 18, says why. The one of the seventh order is in tests/promises/planted_bugs.rs.
        let elsewhere = [Origin::Frames(8), Origin::Orders(7)];
        for rule in (1..=most).map(origin).filter(|rule| !elsewhere.contains(rule)) {
            assert!(mutations::all().any(|mutation| mutation.origin == rule), "{rule:?}");
        }
    }
}

#[test]
fn what_is_too_large_first_is_computed() {
    let (status, out, err) = simulate("scale");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    says(
        &out,
        &[
            "page tables, GPU memory",
            "too large from",
            "binds first",
            "host link",
            "64.0 KiB",
        ],
    );
    let (status, report) = json("scale --nodes 100 --clients 50 --data 1TiB --page-size 4KiB");
    assert_eq!(status, 0);
    assert_eq!(
        (&report["site"]["nodes"], &report["site"]["clients"]),
        (&100.into(), &50.into())
    );
    let structures = report["structures"].as_array().unwrap();
    let shares: Vec<f64> = structures.iter().map(|row| row["share"].as_f64().unwrap()).collect();
    assert!(shares.len() > 10 && shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
    let tables = structures
        .iter()
        .find(|row| row["structure"] == "page tables, GPU memory");
    assert_eq!(tables.unwrap()["size"], ((1u64 << 40) / 4096 * 8) as f64);
    let ceilings = report["ceilings"].as_array().unwrap();
    let first = |nics, page| {
        let of = |row: &&serde_json::Value| row["nics"] == nics && row["page_bytes"] == page;
        let found = ceilings.iter().find(of).unwrap();
        found["limits"][0]["limit"].as_str().unwrap().to_owned()
    };
    assert_eq!((ceilings.len(), first(1, 4096)), (12, "link".to_owned()));
    assert!([2, 4, 8].into_iter().all(|nics| first(nics, 4096) == "host link"));
    for wrong in [
        "scale --nodes 0",
        "scale --replicas 3",
        "scale --page-size 5000",
        "scale --seed 1",
        "--seed 1 scale",
    ] {
        let (status, out, err) = simulate(wrong);
        assert!(
            status == 2 && out.is_empty() && !err.is_empty(),
            "{wrong}: {status}: {err}"
        );
    }
}
