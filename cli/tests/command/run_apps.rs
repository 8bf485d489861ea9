//! Applications from the command line to their report.

use gpuvm_workloads::apps::{Way, catalogue};

use crate::common::{finish, gpuvm};

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
        ("sort many", "`many` is no size; give COUNT"),
        ("sort 0", "there is one key at least"),
        ("sort 18446744073709551615", "give a smaller one"),
        ("embedding 1000x", "`1000x` is no size; give ROWS or ROWSxCOLUMNS"),
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
        "memory nodes is 192.0.2.9:7471: transport soft has none",
    );
    refused(
        "--transport soft --rdma-retries 1",
        "RDMA retries is 1: transport soft has none",
    );
}
