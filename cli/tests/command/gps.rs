//! `gpuvm bench gps` on simulated GPUs.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::finish;

fn gps(arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.args(["bench", "gps"]).args(arguments.split_ascii_whitespace());
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    finish(command)
}

#[test]
fn every_application_in_every_form_beside_one_gpu() {
    let (status, out, err) = gps("--gpu sim --count 2 --iterations 2 --repeat 1 --json");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let form = |row: &Value| row["parameters"]["form"].as_str().unwrap().to_owned();
    for app in ["jacobi", "pagerank", "sssp", "als", "diffusion", "wave"] {
        let of_app = rows.iter().filter(|row| row["name"] == app);
        let forms: Vec<String> = of_app.clone().map(form).collect();
        assert_eq!(forms, ["one-gpu", "broadcast", "peer-loads", "copies"], "{app}");
        for row in of_app {
            assert!(row["figure"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["verified"].as_u64().unwrap() > 0, "{row}");
            let alone = form(row) == "one-gpu";
            assert_eq!(row["parameters"]["gpus"], if alone { "1" } else { "2" }, "{row}");
            assert_eq!(row["more"]["speedup"].is_null(), alone, "{row}");
            if form(row) == "broadcast" {
                assert!(row["more"]["sent MB"].as_f64().unwrap() > 0.0, "{row}");
                assert!(row["more"]["sent of read"].as_f64().unwrap() <= 1.05, "{row}");
                assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
    let means = rows.iter().filter(|row| row["name"] == "geometric mean");
    assert_eq!(
        means.map(form).collect::<Vec<_>>(),
        ["broadcast", "peer-loads", "copies"]
    );
    assert!(report["broadcast_speedup_2"].as_f64().unwrap() > 0.0);
    assert!(report["broadcast_least_speedup_2"].as_f64().unwrap() > 0.0);
    let skipped = report["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), 6);
    assert!(
        skipped
            .iter()
            .all(|skipped| skipped["reason"].as_str().unwrap().contains("no managed memory")),
        "{skipped:?}"
    );
}

#[test]
fn sixteen_gpus_and_a_table() {
    let arguments = "--gpu sim --count 1,16 --app jacobi:70x64,wave:40x40 --form broadcast --iterations 1 --repeat 1";
    let (status, out, err) = gps(arguments);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("gpus 16") && out.contains("geometric mean"), "{out}");
    let (status, _, err) = gps("--gpus sim,sim,sim --app als:40x30x5 --iterations 1 --repeat 1");
    assert_eq!((status, err.as_str()), (0, ""));
}

#[test]
fn what_cannot_be_is_refused() {
    for (arguments, expected, reason) in [
        ("--count 0", 2, "a number of GPUs from 1 to 16"),
        ("--count 17", 2, "a number of GPUs from 1 to 16"),
        (
            "--form sideways",
            2,
            "none of one-gpu, broadcast, peer-loads, copies, managed",
        ),
        ("--iterations 0", 2, "0 is not in 1..="),
        ("--gpu sim --gpus sim,sim", 2, "cannot be used with"),
        ("--gpus sim,sim --count 3", 1, "--count 3; there are 2 GPUs"),
        (
            "--gpu sim --app life",
            1,
            "there is no application `life`; there are jacobi,",
        ),
        ("--gpu sim --app jacobi:2x9", 1, "`2x9` is no input of jacobi"),
        ("--gpu sim --app als:9", 1, "`9` is no input of als"),
        ("--gpu sim --app pagerank:urand:99", 1, "scale"),
        (
            "--gpu sim --app jacobi:9x9 --count 8",
            1,
            "has work for 7 GPUs, not for 8",
        ),
    ] {
        let (status, out, err) = gps(arguments);
        assert_eq!((status, out.as_str()), (expected, ""), "{arguments}: {err}");
        assert!(err.contains(reason), "{arguments}: {err}");
    }
}
