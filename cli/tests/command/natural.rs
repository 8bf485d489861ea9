//! `gpuvm bench natural` on the simulated GPU.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::finish;

fn natural(arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.args(["bench", "natural", "--gpu", "sim"]);
    command.args(arguments.split_ascii_whitespace());
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    finish(command)
}

#[test]
fn every_loop_beside_its_peers() {
    for (transport, loops) in [("direct", 7), ("soft", 2)] {
        let common = "--data 256KiB --page-size 4KiB --frames-share 1,1/4 --repeat 1 --launches 2 --json";
        let some = if loops == 7 { "" } else { "--loops saxpy,rows" };
        let (status, out, err) = natural(&format!("{common} --transport {transport} {some}"));
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        let report: Value = serde_json::from_str(&out).unwrap();
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), loops * 4, "{out}");
        for (place, row) in rows.iter().enumerate() {
            // Rows of a loop follow each other, peers first.
            let by = ["raw pointer", "pinned host memory, in place", "a[i]", "a[i]"][place % 4];
            assert_eq!(row["parameters"]["by"], by, "{row}");
            assert_eq!(row["name"], rows[place / 4 * 4]["name"], "{row}");
            assert_eq!(row["runs"].as_array().unwrap().len(), 1, "{row}");
            assert!(
                row["figure"].as_f64() > Some(0.0) && row["verified"].as_u64() > Some(0),
                "{row}"
            );
            assert_eq!(row["ratio"].is_number(), by == "a[i]", "{row}");
            for name in ["launch 1", "times in place"] {
                assert_eq!(row["more"][name].as_f64() > Some(0.0), by == "a[i]", "{row}");
            }
        }
        assert_eq!(report["skipped"][0]["name"], "managed memory");
    }
}

#[test]
fn a_row_by_each_placement() {
    let placed = "--data 300KiB --loops stencil,rows --page-size 4KiB,64KiB --frames-share 1/2 --placement auto,in-place --repeat 1";
    let (status, out, err) = natural(&format!("{placed} --transport direct"));
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let cells = out.lines().filter(|line| line.contains("by a[i], data 256 KiB"));
    assert_eq!(cells.count(), 8, "{out}");
    assert!(out.contains("not measured: managed memory"), "{out}");
}

#[test]
fn what_cannot_be_is_refused() {
    for (arguments, status, reason) in [
        ("--loops spiral", 2, "possible values"),
        ("--launches 1", 2, "1 is not in 2..=10"),
        ("--data 64KiB", 1, "--data is less than 256 KiB"),
    ] {
        let (ended, out, err) = natural(arguments);
        assert_eq!((ended, out.as_str()), (status, ""), "{arguments}: {err}");
        assert!(err.contains(reason), "{arguments}: {err}");
    }
}
