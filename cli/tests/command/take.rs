//! `gpuvm bench take` on the simulated GPU.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::finish;

fn take(arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.args(["bench", "take"]).args(arguments.split_ascii_whitespace());
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    finish(command)
}

#[test]
fn every_row_is_the_one_that_was_asked_for() {
    let (status, out, err) = take("--gpu sim --data 1MiB --rows 3000 --row 512 --repeat 2 --json");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let row = &report["rows"][0];
    assert!(row["figure"].as_f64().unwrap() > 0.0, "{row}");
    // The first run, which is not counted, is compared as well.
    assert_eq!(row["verified"], 9000, "{row}");
    assert_eq!(row["runs"].as_array().unwrap().len(), 2, "{row}");
    // Frames for an eighth of 256 pages: most rows fault.
    assert_eq!(row["parameters"]["frames"], "128 KiB", "{row}");
    assert!(row["more"]["pages fetched"].as_f64().unwrap() > 1000.0, "{row}");
}

#[test]
fn what_cannot_be_is_refused() {
    for arguments in ["--gpu sim --row 6", "--gpu sim --row 1MiB --data 4KiB"] {
        let (status, _, err) = take(arguments);
        assert!(status != 0 && err.contains("--row must be a multiple of 4"), "{err}");
    }
}
