//! `gpuvm simulate`: seeds, replays, timelines, refusals, and that every broken rule of the paging protocol is caught.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gpuvm_simulate::Workload;
use gpuvm_simulate::mutations::{self, Mutation, Origin};
use serde_json::Value;

use crate::common::finish;

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
    let (status, summary) = json("--seeds 0..2 --workload counters,linear,flush --races");
    assert_eq!(status, 0, "{summary}");
    let named = |total: &Value| total["workload"].as_str().unwrap().to_owned();
    let ran: Vec<String> = summary["workloads"].as_array().unwrap().iter().map(named).collect();
    assert_eq!(ran, ["counters", "flush"]);
    let (status, _, err) = simulate("--seeds 0..2 --workload linear,bfs --races");
    assert_eq!(status, 2, "{err}");
    assert!(err.contains("linear, bfs race on purpose"), "{err}");
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

/// A campaign that would run for weeks, interrupted after so many seconds: its standard output. The signal reaches its process
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
        ("--seeds five", "is no range of seeds"),
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
    let seeds = format!("{}..{}", known.seed, known.seed + 3);
    command.args(["simulate", "--seeds", &seeds, "--workload", known.workload.name()]);
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

/// The library without the mutation passes the same seed, under the same faults: it was the mutation that failed.
fn holds_as_it_is(mutation: &Mutation, seed: u64) {
    let (name, workload) = (mutation.name, mutation.workload);
    let faults = match mutation.faults {
        "" => String::new(),
        mix => format!("--faults {mix}"),
    };
    let (_, summary) = json(&format!(
        "--seeds {seed}..{} --workload {workload} --jobs 1 {faults}",
        seed + 1
    ));
    assert_eq!(summary["failures"], Value::Array(Vec::new()), "{name}, seed {seed}");
    assert_eq!(summary["ran"], 1, "{name}, seed {seed}");
}

/// Whether a run says nothing but that its process was lost. Of some rules that is how they are seen.
fn is_lost(what: &str) -> bool {
    what.starts_with("its process ended") || what.starts_with("it did not end within")
}

/// Seeds at which a broken rule may take its process down, or keep it from its end, before one shows what is broken.
const LOST_MOST: u32 = 3;

/// The seed that catches the mutation, and how, of those from `first` on.
fn caught(mutation: &Mutation, first: u64, most: u64) -> Option<(u64, String)> {
    let (mut first, end) = (first, first + most);
    for _ in 0..=LOST_MOST {
        let (seed, what) = shown(mutation, first, end - first)?;
        if !is_lost(&what) || mutation.seen.iter().any(|seen| what.contains(seen)) {
            return Some((seed, what));
        }
        first = seed + 1;
    }
    panic!(
        "{}: no seed up to {first} shows more than that the process is lost",
        mutation.name
    );
}

/// The first seed that is not as it should be, and what is said of it.
fn shown(mutation: &Mutation, first: u64, most: u64) -> Option<(u64, String)> {
    let (name, workload) = (mutation.name, mutation.workload);
    let seeds = format!("--seeds {first}..{}", first + most);
    let (status, summary) = json(&format!(
        "{seeds} --workload {workload} --jobs 1 --limit 15 --mutation {name}"
    ));
    let failure = summary["failures"].get(0);
    if let Some(failure) = failure {
        assert_eq!(status, 1);
        let what = failure["outcome"]["Err"]["what"].as_str().unwrap();
        let seed = failure["seed"].as_u64().unwrap();
        let seen = mutation.seen.iter().any(|seen| what.contains(seen));
        // That it cannot be built, or shows as something else, would say nothing of the rule.
        assert!(seen || is_lost(what), "{name}: {what}");
        if seen {
            holds_as_it_is(mutation, seed);
        }
        return Some((seed, what.to_owned()));
    }
    let unseen = summary["unseen"].get(0)?.as_str().unwrap();
    assert!(
        mutation.seen.iter().any(|seen| unseen.contains(seen)),
        "{name}: {unseen}"
    );
    Some((first, unseen.to_owned()))
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
    let rest = Mutex::new(mutations::all());
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(mutation) = rest.lock().unwrap().next() else {
                        break;
                    };
                    // A mutation that shows as something else panics: the rest is run all the same.
                    let found = std::panic::catch_unwind(|| match hunt {
                        Some(most) => caught(mutation, 0, most),
                        None => caught(mutation, mutation.seed, FIRST).or_else(|| caught(mutation, 0, CAUGHT_WITHIN)),
                    });
                    match found {
                        Ok(Some((seed, what))) => println!("{}: seed {seed}: {what}", mutation.name),
                        Ok(None) | Err(_) => missed.lock().unwrap().push(mutation.name),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn every_rule_of_the_lists_has_its_mutation() {
    for rule in 1..=18 {
        assert!(
            mutations::all().any(|m| m.origin == Origin::Protocol(rule)),
            "rule {rule}"
        );
    }
    for defect in 1..=12 {
        assert!(
            mutations::all().any(|m| m.origin == Origin::Peers(defect)),
            "defect {defect}"
        );
    }
    for rule in 1..=6 {
        assert!(
            mutations::all().any(|m| m.origin == Origin::Guards(rule)),
            "rule {rule} of replicas and checksums"
        );
    }
    for rule in 1..=7 {
        assert!(
            mutations::all().any(|m| m.origin == Origin::Copies(rule)),
            "rule {rule} of copies"
        );
    }
    for rule in 1..=4 {
        assert!(
            mutations::all().any(|m| m.origin == Origin::Places(rule)),
            "rule {rule} of places"
        );
    }
    for rule in 1..=15 {
        assert!(
            mutations::all().any(|m| m.origin == Origin::Victims(rule)),
            "rule {rule} of victims"
        );
    }
    for rule in 1..=8 {
        assert!(
            mutations::all().any(|m| m.origin == Origin::Broadcast(rule)),
            "rule {rule} of broadcast arrays"
        );
    }
    // F8 has no planted bug: docs/PROTOCOL.md, section 18, says why.
    for rule in (1..=7).chain([9]) {
        assert!(
            mutations::all().any(|m| m.origin == Origin::Frames(rule)),
            "rule {rule} of frames that come and go"
        );
    }
}

#[test]
fn what_is_too_large_first_is_computed() {
    let (status, out, err) = simulate("scale");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(
        out.contains("page tables, GPU memory") && out.contains("too large from"),
        "{out}"
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
