//! Whole jobs: results that do not depend on the number of ranks, and errors.

use std::time::Instant;

use serde_json::Value;

use crate::mpirun::{Ended, LONG, start};

fn run(ranks: usize, arguments: &[&str]) -> Ended {
    start(ranks, &[], arguments).end(Instant::now(), LONG)
}

/// The report of a job that compared its result with one rank's.
fn report(ranks: usize, arguments: &[&str]) -> Value {
    let common = ["--check", "--json", "--workers", "1", "--memory", "128KiB"];
    let ended = run(ranks, &[arguments, &common].concat());
    assert_eq!(ended.status, Some(0), "{}{}", ended.output, ended.errors);
    let report: Value = serde_json::from_str(&ended.output).unwrap_or_else(|error| panic!("{error}: {}", ended.output));
    assert_eq!(report["ranks"], ranks);
    assert!(
        report["checked"].as_u64().unwrap() > 0 && report["faults"].as_u64().unwrap() > 0,
        "{report}"
    );
    report
}

#[test]
fn pagerank_is_the_same_on_any_number_of_ranks() {
    let arguments = ["pagerank", "kron:11", "--iterations", "4"];
    let results = [1, 2, 4].map(|ranks| report(ranks, &arguments)["result"].as_str().unwrap().to_owned());
    assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
}

#[test]
fn the_file_of_a_result_is_the_same_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let written = [1, 2, 4].map(|ranks| {
        let path = folder.path().join(format!("of-{ranks}.npy"));
        let output = ["--output", path.to_str().unwrap()];
        report(
            ranks,
            &[&["pagerank", "kron:9", "--iterations", "4"][..], &output].concat(),
        );
        std::fs::read(path).unwrap()
    });
    assert!(written[0].len() > 512 && written.iter().all(|bytes| *bytes == written[0]));
}

#[test]
fn more_ranks_than_vertices_are_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("three.el");
    std::fs::write(&path, "0 1\n1 2\n").unwrap();
    let path = path.to_str().unwrap();
    let two = report(2, &["pagerank", path]);
    assert_eq!(report(4, &["pagerank", path])["result"], two["result"]);
}

#[test]
fn an_error_of_a_rank_names_it_and_ends_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directed.el");
    std::fs::write(&path, "# Directed graph\n0 1\n1 2\n").unwrap();
    let ended = run(3, &["pagerank", path.to_str().unwrap()]);
    assert!(ended.status != Some(0), "{}", ended.output);
    assert!(
        ended.errors.contains("of 3: ") && ended.errors.contains("pagerank takes undirected graphs"),
        "{}",
        ended.errors
    );
    let ended = run(2, &["pagerank", "no/such/graph.gcsr"]);
    assert!(ended.status != Some(0), "{}", ended.output);
    assert!(ended.errors.contains("of 2: cannot get the graph"), "{}", ended.errors);
    // The first rank of the host alone reads it; the other waits for it.
    let ended = run(2, &["pagerank", "no/such/graph.el"]);
    assert!(
        ended.errors.contains("rank 0 of 2: cannot get the graph"),
        "{}",
        ended.errors
    );
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    for (arguments, text) in [
        (
            &["--workers", "2", "--gpu", "cuda"][..],
            "--workers is of the simulated GPU",
        ),
        (
            &["--memory-node", "127.0.0.1:7471", "--transport", "direct"],
            "--transport rxe, mlx5 or auto",
        ),
        (&["--page", "4097"], "starting the GPU of this rank failed"),
    ] {
        let ended = run(2, &[&["pagerank", "kron:6"], arguments].concat());
        assert!(ended.status != Some(0), "{}", ended.output);
        assert!(ended.errors.contains(text), "{}", ended.errors);
    }
}

#[test]
fn options_that_cannot_be_are_told_by_one_rank() {
    let ended = run(4, &["pagerank", "kron:6", "--iterations", "0"]);
    assert_eq!(ended.status, Some(2), "{}", ended.errors);
    assert_eq!(ended.errors.matches("--iterations <N>").count(), 1, "{}", ended.errors);
    let ended = run(4, &["--help"]);
    assert_eq!(
        (ended.status, ended.output.matches("Usage:").count()),
        (Some(0), 1),
        "{}",
        ended.output
    );
}
