//! `gpuvm bench elastic` on the simulated GPU.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::finish;

fn elastic(arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command
        .args(["bench", "elastic"])
        .args(arguments.split_ascii_whitespace());
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    finish(command)
}

#[test]
fn growths_of_all_kinds_and_the_waste_of_many_buffers() {
    let (status, out, err) = elastic("--gpu sim --growths 40 --repeat 2 --json");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 7);
    for row in rows {
        assert!(row["figure"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["verified"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(row["runs"].as_array().unwrap().len(), 2, "{row}");
    }
    // Beside the bare handle.
    assert_eq!(rows.iter().filter(|row| !row["ratio"].is_null()).count(), 4);
    for key in [
        "bare_us_p50",
        "unforeseen_us_p50",
        "unforeseen_reused_us_p50",
        "foreseen_us_p50",
        "foreseen_handle_us_p50",
    ] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{key}");
    }
    let wasted = report["wasted_percent"].as_f64().unwrap();
    assert!((0.0..=5.0).contains(&wasted), "{wasted} % is wasted");
    let (status, out, _) = elastic("--gpu sim --growths 1 --buffers 1 --repeat 1");
    assert!(status == 0 && out.contains("foreseen"), "{out}");
}

#[test]
fn what_cannot_be_is_refused() {
    for (arguments, reason) in [("--growths 0", "0 is not in 1..="), ("--buffers 0", "0 is not in 1..=")] {
        let (status, out, err) = elastic(arguments);
        assert_eq!((status, out.as_str()), (2, ""), "{arguments}: {err}");
        assert!(err.contains(reason), "{arguments}: {err}");
    }
}
