//! `gpuvm bench resize` on the simulated GPU.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::finish;

fn resize(arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command
        .args(["bench", "resize"])
        .args(arguments.split_ascii_whitespace());
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    finish(command)
}

#[test]
fn frames_go_and_come_back_beside_a_kernel() {
    let (status, out, err) = resize("--gpu sim --data 3MiB --frames 2MiB --shrink 1MiB --repeat 2 --json");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert!(row["figure"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["verified"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(row["more"]["not done MB"].as_f64(), Some(0.0), "{row}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (status, _, err) = resize("--gpu sim --frames 1MiB --shrink 1MiB");
    assert!(
        status != 0 && err.contains("--shrink must be less than --frames"),
        "{err}"
    );
    let (status, _, err) = resize("--gpu sim --shrink none");
    assert!(status != 0 && err.contains("--shrink"), "{err}");
}
