//! Applications from the command line to their report.

use gpuvm_workloads::apps::{Way, catalogue};

use crate::common::{finish, gpuvm, says};

#[test]
fn each_application_runs_with_its_small_input() {
    let folder = tempfile::tempdir().unwrap();
    // `run bfs` has its own report, and tests.
    for entry in catalogue::ALL.iter().filter(|entry| entry.name != "bfs") {
        let (status, out, err) = finish(gpuvm(folder.path(), &format!("run {} --json", entry.name)));
        assert_eq!((status, err.as_str()), (0, ""), "{}: {out}", entry.name);
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["app"], entry.name);
        assert!(report["verified"].as_u64().unwrap() > 0, "{report}");
        // Memory is short, and pages come.
        assert!(
            report["memory_bytes"].as_u64() < report["data_bytes"].as_u64(),
            "{report}"
        );
        let moved = |key: &str| report[key].as_u64().unwrap();
        assert!(moved("bytes_fetched") + moved("bytes_in_place") > 0, "{report}");
    }
}

#[test]
fn inputs_that_are_none_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, expected) in [
        ("sort many", "invalid size `many`: give COUNT"),
        ("sort 0", "there must be at least one key"),
        ("sort 18446744073709551615", "give a smaller one"),
        ("embedding 1000x", "invalid size `1000x`: give ROWS or ROWSxCOLUMNS"),
        ("embedding 4294967296x1024", "give a smaller one"),
        ("mvt 1048576", "give a smaller one"),
        ("query2 trips:0", "from 1 to 4294967296"),
        ("query3 none.csv", "none.csv"),
        ("knn clusters:100", "the dimension is missing"),
        ("knn clusters:5:4", "ask for 1 to 5"),
        ("knn none.fvecs", "cannot open the vectors none.fvecs"),
    ] {
        let (status, out, err) = finish(gpuvm(folder.path(), &format!("run {arguments}")));
        assert_eq!((status, out.as_str()), (1, ""), "{arguments}: {err}");
        assert!(err.contains(expected), "{arguments}: {err}");
    }
}

#[test]
fn ways_that_cannot_be_are_refused_before_the_input_is_made() {
    let folder = tempfile::tempdir().unwrap();
    const NODE: &str = "--memory-node 192.0.2.9:7471";
    let refused = |arguments: &str, expected: &str| {
        // The graph does not exist either.
        let (status, out, err) = finish(gpuvm(folder.path(), &format!("run pagerank not_here {arguments}")));
        assert_eq!((status, out.as_str()), (1, ""), "{arguments}: {err}");
        assert!(err.contains(expected), "{arguments}: {err}");
        assert!(!err.contains("not_here"), "{arguments}: {err}");
    };
    for way in Way::PEERS {
        let expected =
            format!("it does not run {way}: its arrays lie on this machine, and the memory nodes (192.0.2.9:7471)");
        refused(&format!("--placement {way} {NODE}"), &expected);
    }
    refused("--placement in-place --transport soft", "is for the transport direct");
    refused("--placement managed --gpu sim", "has no managed memory");
    refused(
        &format!("--transport soft {NODE}"),
        "memory_node is `192.0.2.9:7471`: transport soft has none",
    );
    refused(
        "--transport soft --rdma-retries 1",
        "rdma_retries is `1`: transport soft has none",
    );
}

#[test]
fn arrays_that_fit_have_frames_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &str| finish(gpuvm(folder.path(), &format!("run mvt 128 --gpu sim {arguments}")));
    for arguments in ["--memory 100%", "--memory 16MiB", "--memory 100% --placement resident"] {
        let (status, out, err) = run(&format!("{arguments} --json"));
        assert_eq!((status, err.as_str()), (0, ""), "{arguments}: {out}");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["way"], "resident", "{arguments}");
        assert!(
            report["memory_bytes"].as_u64() >= report["data_bytes"].as_u64(),
            "{report}"
        );
        assert!(report["faults"].as_u64() > Some(0), "{report}");
    }
    let (status, out, err) = run("--memory 100% --placement fetch --json");
    assert!(status == 0 && out.contains(r#""way":"fetch""#), "{out}{err}");
    let (status, out, err) = run("--memory 50% --placement resident");
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("cannot hold them; give more --memory"), "{err}");
    // A row that cannot be is skipped with its reason, and a peer is no placement.
    let bench = "bench apps --gpu sim --apps mvt:64 --page-size 4KiB --frames-share 1/4 --peers raw --repeat 1";
    let (status, out, err) = finish(gpuvm(folder.path(), &format!("{bench} --placement resident")));
    assert!(status == 0 && out.contains("cannot hold them"), "{out}{err}");
    let (status, _, err) = finish(gpuvm(folder.path(), &format!("{bench} --placement raw")));
    assert!(status == 2 && err.contains("name it among --peers"), "{err}");
}

#[test]
fn applications_beside_their_peers_go_on_where_they_ended() {
    let folder = tempfile::tempdir().unwrap();
    let bench = |apps: &str| {
        let arguments = format!(
            "bench apps --gpu sim --apps {apps} --page-size 4KiB --frames-share 1/4 --peers host,managed --repeat 1 --out out.json"
        );
        finish(gpuvm(folder.path(), &arguments))
    };
    // Told before anything is measured.
    let (status, _, err) = bench("vector-add:64,nosuch");
    assert_eq!(status, 1, "{err}");
    says(&err, &["there is no application `nosuch`", "pagerank"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let report = || -> serde_json::Value {
        let text = std::fs::read_to_string(folder.path().join("out.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let (status, out, err) = bench("vector-add:64");
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("no managed memory"), "{out}");
    let first = report();
    let rows = first["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 2, "{first}");
    assert!(rows.iter().all(|row| row["verified"] == 64 * 64), "{first}");
    assert_eq!(rows[1]["ceiling_name"], "host");
    // What is there is not measured again.
    let (status, _, err) = bench("vector-add:64,mvt:64");
    assert_eq!(status, 0, "{err}");
    assert!(
        !err.contains("vector-add, input 64, way host") && err.contains("mvt, input 64, way host"),
        "{err}"
    );
    let second = report();
    assert_eq!(second["rows"].as_array().unwrap()[..2], rows[..]);
    assert_eq!(second["rows"].as_array().unwrap().len(), 4);
}

#[test]
fn bfs_and_pagerank_run_on_several_gpus_of_one_virtual_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, gpus) in [
        ("bfs kron:9 --gpu sim,sim", 2),
        (
            "bfs urand:8 --directed --gpu sim,sim,sim --transport soft --page-size 64KiB",
            3,
        ),
        ("pagerank kron:8 --gpu sim,sim", 2),
        (
            "pagerank kron:7 --gpu sim,sim,sim --placement fetch --transport soft",
            3,
        ),
    ] {
        let (status, out, err) = finish(gpuvm(folder.path(), &format!("run {arguments} --json")));
        assert_eq!((status, err.as_str()), (0, ""), "{arguments}: {out}");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["verified"], true, "{report}");
        // Kernels are compiled, which takes longer than nothing, and not in the algorithm's time.
        let seconds = |key: &str| report[key].as_f64().unwrap();
        assert!(seconds("set_up_seconds") > 0.0 && seconds("seconds") > 0.0, "{report}");
        let of_each = report["gpus"].as_array().unwrap();
        assert_eq!(of_each.len(), gpus, "{report}");
        // Each has read a part of the graph.
        let moved = |gpu: &serde_json::Value, key: &str| gpu[key].as_u64().unwrap();
        let worked = |gpu: &&serde_json::Value| moved(gpu, "bytes_fetched") + moved(gpu, "bytes_in_place") > 0;
        assert_eq!(of_each.iter().filter(worked).count(), gpus, "{report}");
    }
    for case in [
        "cc --gpu sim,sim => bfs and pagerank run on several",
        "bfs kron:6 --gpu sim,sim --seed 5 => several GPUs run without --seed",
        "pagerank kron:6 --gpu sim,sim --placement managed => that does not page",
        "bfs kron:6 --gpu sim,sim --workers 2 => several GPUs run without --workers",
    ] {
        let (arguments, expected) = case.split_once(" => ").unwrap();
        let (status, out, err) = finish(gpuvm(folder.path(), &format!("run {arguments}")));
        assert_eq!((status, out.as_str()), (1, ""), "{arguments}: {err}");
        assert!(err.contains(expected), "{arguments}: {err}");
    }
    for (arguments, status, expected) in [
        // As it was called once.
        ("run bfs kron:6 --gpus sim,sim", 2, "'--gpu'"),
        ("bench faults --gpu sim,sim", 1, "this runs on one"),
    ] {
        let (found, out, err) = finish(gpuvm(folder.path(), arguments));
        assert_eq!((found, out.as_str()), (status, ""), "{arguments}: {err}");
        assert!(err.contains(expected), "{arguments}: {err}");
    }
}

#[test]
fn a_run_tells_what_borrowed_memory_did_and_says_nothing_without() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &str| {
        let (status, out, err) = finish(gpuvm(folder.path(), arguments));
        assert_eq!((status, err.as_str()), (0, ""), "{arguments}: {out}");
        out
    };
    for (arguments, key) in [
        ("run bfs kron:13 --memory 10%", "/neighbour"),
        ("run pagerank kron:11 --memory 10%", "/neighbour"),
        ("profile bfs kron:13 --memory 10%", "/run/neighbour"),
    ] {
        // Without a GPU named, and a transport, too.
        let named = if arguments.starts_with("run pagerank") {
            ""
        } else {
            "--gpu sim --transport direct"
        };
        let with = format!("{arguments} {named} --placement fetch --borrow 1:16MiB");
        let json = if arguments.starts_with("profile") {
            "--json -"
        } else {
            "--json"
        };
        let report: serde_json::Value = serde_json::from_str(&run(&format!("{with} {json}"))).unwrap();
        let neighbour = report.pointer(key).unwrap_or_else(|| panic!("{report}"));
        let number = |key: &str| neighbour[key].as_f64().unwrap_or_else(|| panic!("{key}: {neighbour}"));
        assert!(
            number("bytes_fetched") > 0.0 && number("bytes_from_homes") > 0.0,
            "{neighbour}"
        );
        assert!(number("hit_rate") > 0.0 && number("hit_rate") < 1.0, "{neighbour}");
        assert!(number("pages_copied") > 0.0, "{neighbour}");
        assert_eq!(number("pages_read_there"), 0.0, "{neighbour}");
        assert_eq!(
            (number("bytes_lent"), number("bytes_given_back")),
            (16.0 * 1048576.0, 0.0)
        );
        let text = run(&with);
        let line = text.lines().find(|line| line.starts_with("neighbour  "));
        says(
            &line.unwrap_or_else(|| panic!("{text}")),
            &["hit rate", "16.0 MiB lent now"],
        );
        let without = run(&format!("{arguments} --gpu sim {json}"));
        let without: serde_json::Value = serde_json::from_str(&without).unwrap();
        assert!(without.pointer(key).is_none(), "{without}");
    }
    let text = run("run bfs kron:9 --gpu sim,sim");
    assert!(!text.contains("neighbour") && text.contains("of set-up"), "{text}");
}
