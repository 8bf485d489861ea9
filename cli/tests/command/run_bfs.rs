//! Searches from the command line to their report and their distances.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::{bfs, finish, report};

/// 1 - 2 - 3 - 4 and 1 - 4, 5 alone, then 7 - 9 apart; the second edge is written twice.
const MATRIX: &str = "%%MatrixMarket matrix coordinate pattern symmetric\n9 9 6\n2 1\n3 2\n2 3\n4 3\n4 1\n9 7\n";

/// From 1 on.
const DISTANCES: &str = "# vertex\tdistance\n1\t0\n2\t1\n3\t2\n4\t1\n5\t-1\n6\t-1\n7\t-1\n8\t-1\n9\t-1\n";

fn distances(path: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'));
    let rows = text.strip_prefix("# vertex\tdistance\n").unwrap().lines();
    rows.map(|line| line.split_once('\t').unwrap().1.parse().unwrap())
        .collect()
}

#[test]
fn the_report_has_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(folder.path(), "kron:10 --memory 25%");
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"));
    for key in [
        "seconds",
        "vertices_reached",
        "levels",
        "edges_per_second",
        "faults",
        "faults_per_second",
        "coalesced",
        "pages_fetched",
        "pages_written_back",
        "bytes_fetched",
        "hit_rate",
        "fault_ns_p50",
        "fault_ns_p99",
    ] {
        assert!(number(key) >= 0.0, "{key} in {report}");
    }
    assert_eq!(report["verified"], true);
    assert_eq!(number("vertices"), 1024.0);
    assert!(
        number("seconds") > 0.0 && number("vertices_reached") > 500.0 && number("levels") >= 3.0,
        "{report}"
    );
    assert!(
        number("hit_rate") <= 1.0 && number("fault_ns_p50") <= number("fault_ns_p99"),
        "{report}"
    );
    assert!(number("memory_bytes") < number("data_bytes"), "{report}");
    let rate = number("faults") / number("seconds");
    assert!((number("faults_per_second") - rate).abs() <= rate * 1e-6, "{report}");
}

#[test]
fn every_page_comes_through_a_fault() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(folder.path(), "kron:12 --memory 25%");
    let number = |key: &str| report[key].as_u64().unwrap();
    // All rows are read and most distances written, with frames for a quarter: no page is there to begin with.
    let pages = number("data_bytes") / 4096;
    assert!(number("pages_fetched") >= pages * 3 / 4, "{report}");
    assert!(
        number("faults") > 0 && number("faults") <= number("pages_fetched"),
        "{report}"
    );
    assert!(number("pages_written_back") > 0, "{report}");
    let bytes = number("bytes_fetched");
    assert!(
        bytes <= number("pages_fetched") * 4096 && bytes > number("pages_fetched") * 4096 / 2,
        "{report}"
    );
    let rate = report["hit_rate"].as_f64().unwrap();
    assert!(rate > 0.0 && rate < 1.0, "{report}");
}

#[test]
fn rows_that_are_read_in_place_are_not_fetched() {
    let folder = tempfile::tempdir().unwrap();
    let fetched = |placement: &str| {
        let flags = format!("kron:12 --memory 25% --transport direct --placement {placement}");
        let report = report(folder.path(), &flags);
        assert_eq!(report["verified"], true);
        report["pages_fetched"].as_u64().unwrap()
    };
    let (all, free, none) = (fetched("fetch"), fetched("while-free"), fetched("in-place"));
    // The distances are written, and fetched in each.
    assert!(none < free && free < all, "{none}, {free}, {all}");
}

#[test]
fn the_text_names_graph_and_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let (status, out, err) = finish(bfs(folder.path(), "urand:9:4"));
    // No bars: the standard error is no terminal.
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(
        out.starts_with("graph      urand:9:4 (undirected): 512 vertices"),
        "{out}"
    );
    assert!(
        out.ends_with("verified   the distances equal those of a search on the CPU\n"),
        "{out}"
    );
    let (status, out, _) = finish(bfs(folder.path(), "urand:9:4 --no-check"));
    assert_eq!(status, 0);
    assert!(
        out.ends_with("verified   not compared with a search on the CPU\n"),
        "{out}"
    );
    assert!(report(folder.path(), "urand:9:4 --no-check")["verified"].is_null());
}

#[test]
fn distances_are_written_in_vertex_order() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.txt");
    std::fs::write(folder.path().join("a.mtx"), MATRIX).unwrap();
    std::fs::write(&out, "old\n").unwrap();
    report(folder.path(), "a.mtx --output out.txt");
    assert_eq!(distances(&out), [0, 1, 2, 1, -1, -1, -1, -1, -1]);
    let seventh = report(folder.path(), "a.mtx --source 7 --output out.txt");
    assert_eq!(distances(&out), [-1, -1, -1, -1, -1, -1, 0, -1, 1]);
    assert_eq!(
        (&seventh["vertices_reached"], &seventh["levels"]),
        (&2.into(), &2.into())
    );
    let alone = report(folder.path(), "a.mtx --source 5 --output out.txt");
    assert_eq!(distances(&out), [-1, -1, -1, -1, 0, -1, -1, -1, -1]);
    assert_eq!((&alone["vertices_reached"], &alone["levels"]), (&1.into(), &1.into()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn edge_lists_keep_the_order_of_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.txt");
    std::fs::write(
        folder.path().join("a.txt"),
        "# Directed graph: a\n900 70\n70 800\n3 900\n",
    )
    .unwrap();
    report(folder.path(), "a.txt --source 900 --output out.txt");
    assert_eq!(distances(&out), [-1, 1, 2, 0]);
    report(folder.path(), "a.txt --source 900 --undirected --output out.txt");
    assert_eq!(distances(&out), [1, 1, 2, 0]);
}

#[test]
fn memory_pages_and_queues_can_be_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let wide = report(
        folder.path(),
        "kron:11 --memory 512KiB --page-size 64KiB --queue-pairs 1 --queue-depth 16",
    );
    assert_eq!(
        (&wide["memory_bytes"], &wide["page_bytes"]),
        (&(512 << 10).into(), &(64 << 10).into())
    );
    // A share gives no fewer pages than a search can work with, and the report says how many that is.
    let least = report(folder.path(), "kron:6 --memory 0.0001%");
    assert_eq!(least["memory_bytes"], 16 * 4096);
    let (_, text, _) = finish(bfs(folder.path(), "kron:6 --memory 0.0001%"));
    assert!(text.contains("the least that a share gives"), "{text}");
    let all = report(folder.path(), "kron:11 --memory 100%");
    assert_eq!(all["memory_bytes"], all["data_bytes"]);
    assert_eq!(all["vertices_reached"], wide["vertices_reached"]);
}

#[test]
fn a_seed_repeats_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let keys = [
        "vertices_reached",
        "levels",
        "faults",
        "coalesced",
        "pages_fetched",
        "pages_written_back",
        "edges",
    ];
    let run = |seed: u32| {
        let report = report(folder.path(), &format!("kron:7:4 --seed {seed}"));
        keys.map(|key| report[key].clone())
    };
    let first = run(1);
    assert_eq!(first, run(1));
    assert_ne!(first[6], run(2)[6], "the seed does not reach the generator");
}

#[test]
fn an_output_that_is_no_file_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    std::fs::write(folder.path().join("a.mtx"), MATRIX).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || {
            let mut text = String::new();
            File::open(pipe).unwrap().read_to_string(&mut text).map(|_| text)
        }
    });
    report(folder.path(), "a.mtx --output pipe");
    assert_eq!(reader.join().unwrap().unwrap(), DISTANCES);
    assert!(!std::fs::metadata(&pipe).unwrap().is_file());
}

#[test]
fn an_output_that_is_open_already_is_written_on() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.mtx"), MATRIX).unwrap();
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let all = folder.path().join("all.txt");
        let mut file = File::create(&all).unwrap();
        file.write_all(b"before\n").unwrap();
        let mut command = bfs(folder.path(), &format!("a.mtx --output {name}"));
        assert!(command.stdout(file).status().unwrap().success(), "{name}");
        let text = std::fs::read_to_string(all).unwrap();
        assert!(
            text.starts_with(&format!("before\n{DISTANCES}graph ")),
            "{name}: {text}"
        );
        assert!(text.contains("\nverified "), "{name}: {text}");
    }
}

#[test]
fn a_replaced_output_keeps_its_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.txt");
    std::fs::write(&out, "old\n").unwrap();
    for mode in [0o600, 0o664] {
        std::fs::set_permissions(&out, Permissions::from_mode(mode)).unwrap();
        report(folder.path(), "kron:4 --output out.txt");
        assert_eq!(std::fs::metadata(&out).unwrap().permissions().mode() & 0o777, mode);
        assert_eq!(distances(&out).len(), 16);
    }
}
