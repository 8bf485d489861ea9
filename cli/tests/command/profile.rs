//! `gpuvm profile` on the simulated GPU: what it writes, and what it refuses.

use std::path::Path;

use serde_json::Value;

use crate::common::{case_of, finish, gpuvm};

/// What a profile that must succeed has printed.
fn profiled(folder: &Path, arguments: &str) -> String {
    let (status, out, err) = finish(gpuvm(folder, &format!("profile bfs {arguments}")));
    assert_eq!((status, err.as_str()), (0, ""), "{arguments}: {out}");
    out
}

fn sum(all: &[Value], key: &str) -> u64 {
    let number = |value: &Value| value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"));
    all.iter().map(number).sum()
}

/// Groups of pages, and stretches of time, come to what is said of the whole region.
fn parts_add_up(region: &Value, samples: u64) {
    let buckets = region["buckets"].as_array().unwrap();
    assert!(!buckets.is_empty() && buckets.len() <= 1024);
    assert_eq!(sum(buckets, "pages"), region["pages"].as_u64().unwrap());
    for key in [
        "fetches",
        "evictions",
        "resident",
        "referenced",
        "dirty",
        "stays_seen",
        "stays_used",
        "stays_written",
        "bytes_in_place",
    ] {
        assert_eq!(sum(buckets, key), region["total"][key].as_u64().unwrap(), "{key}");
    }
    let columns = region["columns"].as_array().unwrap();
    let fetches = columns.iter().flat_map(|column| column["fetches"].as_array().unwrap());
    assert_eq!(
        fetches.map(|fetches| fetches.as_u64().unwrap()).sum::<u64>(),
        region["total"]["fetches"]
    );
    // The first sample begins, and ends nothing.
    assert_eq!(sum(columns, "samples") + 1, samples);
}

#[test]
fn the_object_accounts_for_every_page_that_was_fetched() {
    let folder = tempfile::tempdir().unwrap();
    for (options, placement) in [
        ("--transport direct --placement auto", "auto"),
        ("--transport soft", "fetch"),
        ("--transport direct --placement in-place", "in-place"),
    ] {
        let out = profiled(
            folder.path(),
            &format!("kron:13 --memory 25% --interval 200us --json - {options}"),
        );
        assert_eq!(out.lines().count(), 1, "{out}");
        let profile: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(profile["run"]["verified"], true);
        let regions = profile["regions"].as_array().unwrap();
        let names: Vec<_> = regions.iter().map(|region| region["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["row offsets", "neighbours", "distances"]);
        let totals: Vec<Value> = regions.iter().map(|region| region["total"].clone()).collect();
        assert_eq!(profile["fetches_unseen"], 0);
        assert_eq!(
            sum(&totals, "fetches"),
            profile["run"]["pages_fetched"].as_u64().unwrap(),
            "{options}"
        );
        assert_eq!(
            sum(&totals, "bytes_in_place"),
            profile["run"]["bytes_in_place"].as_u64().unwrap(),
            "{options}"
        );
        for region in regions {
            parts_add_up(region, profile["samples"].as_u64().unwrap());
        }
        assert_eq!(regions[1]["placement"], placement);
        assert_eq!(
            (&regions[1]["total"]["dirty"], &regions[2]["read_only"]),
            (&0.into(), &false.into())
        );
        let number = |key: &str| profile[key].as_f64().unwrap_or_else(|| panic!("{key}"));
        let without = profile["seconds_without"]
            .as_array()
            .unwrap()
            .iter()
            .map(|time| time.as_f64().unwrap());
        let faster = without.fold(f64::INFINITY, f64::min);
        assert!((number("overhead") - (number("seconds_with") / faster - 1.0)).abs() < 1e-6);
        assert!(number("interval_seconds") == 2e-4 && number("sampling_seconds") <= number("sampled_seconds"));
    }
}

#[test]
fn a_large_region_is_written_in_1024_groups() {
    let folder = tempfile::tempdir().unwrap();
    profiled(folder.path(), "urand:17:8 --no-check --transport direct --json p.json");
    let text = std::fs::read_to_string(folder.path().join("p.json")).unwrap();
    let profile: Value = serde_json::from_str(&text).unwrap();
    let region = &profile["regions"][1];
    let buckets = region["buckets"].as_array().unwrap();
    assert!(region["pages"].as_u64().unwrap() > 1024, "{}", region["pages"]);
    assert_eq!(buckets.len(), 1024);
    for pair in buckets.windows(2) {
        let end = pair[0]["first_page"].as_u64().unwrap() + pair[0]["pages"].as_u64().unwrap();
        assert_eq!(pair[1]["first_page"], end);
    }
}

#[test]
fn the_text_says_what_is_sampled_and_what_it_cost() {
    let folder = tempfile::tempdir().unwrap();
    let out = profiled(folder.path(), "kron:10 --interval 60s");
    for words in [
        "verified   the distances equal those of a search on the CPU",
        "before and after without it",
        "2 samples at rests of 60000 ms",
        "| neighbours",
        "counted: fetches, evictions. sampled: ",
        "advice     none: 2 samples are too few; a longer run or a shorter --interval gives more",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    // What fits is fetched once, and nothing speaks for any advice.
    let out = profiled(folder.path(), "kron:14 --memory 200% --interval 100us");
    assert!(out.ends_with("advice     none: no rule applies\n"), "{out}");
}

#[test]
fn what_cannot_be_profiled_is_refused_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("graph"), "1 2\n2 3\n").unwrap();
    for case in [
        "profile => 2: Usage: gpuvm profile",
        "profile dfs kron:8 => 2: unrecognized subcommand 'dfs'",
        "profile bfs => 2: <GRAPH>",
        "profile bfs kron:8 --interval 10 => 2: '10' is not a time from 100us to 60s; write 500us, 10ms, 1s",
        "profile bfs kron:8 --json => 2: a value is required for '--json <FILE|->'",
        // The graph does not exist either: the outputs are looked at first.
        "profile bfs not_here --json no/p.json => 1: cannot write no/p.json\n  caused by: No such file",
        "profile bfs not_here --json . => 1: cannot write .\n",
        "profile bfs graph --json graph => 1: graph is the input itself",
        "profile bfs graph --json ./graph => 1: graph is the input itself",
        "profile bfs not_here --json p.json => 1: cannot load the graph not_here",
        "profile bfs kron:8 --placement in-place --transport soft --json p.json => 1: is for the transport direct",
    ] {
        let (arguments, status, reason) = case_of(case);
        let (code, out, err) = finish(gpuvm(folder.path(), arguments));
        assert_eq!((code, out.as_str()), (status, ""), "{arguments}: {err}");
        assert!(err.contains(reason) && !err.contains("panicked"), "{arguments}: {err}");
    }
    // None of them has left a file.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(
        std::fs::read_to_string(folder.path().join("graph")).unwrap(),
        "1 2\n2 3\n"
    );
}

#[test]
fn the_command_and_its_outputs_stand_in_the_help() {
    let folder = tempfile::tempdir().unwrap();
    let (_, help, _) = finish(gpuvm(folder.path(), "--help"));
    assert!(help.contains("  profile "), "{help}");
    let (_, help, _) = finish(gpuvm(folder.path(), "profile bfs --help"));
    for option in ["--memory", "--placement", "--interval", "--json"] {
        assert!(help.contains(option), "{option}: {help}");
    }
}
