//! `gpuvm bench files` on the simulated GPU.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::finish;

fn files(arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command
        .args(["bench", "files"])
        .args(arguments.split_ascii_whitespace());
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    finish(command)
}

#[test]
fn faults_stand_beside_bare_reads_and_the_file_goes() {
    // Where O_DIRECT is: folders for temporary files may be memory.
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let folder_name = folder.path().display();
    let sizes = "--data 4MiB --file-memory 1MiB --depth 32 --repeat 2 --page-size 4KiB,16KiB --json";
    let (status, out, err) = files(&format!("--gpu sim --dir {folder_name} {sizes}"));
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert!(
            row["figure"].as_f64().unwrap() > 0.0 && row["ratio"].as_f64().unwrap() > 0.0,
            "{row}"
        );
        assert!(row["verified"].as_u64().unwrap() > 0, "{row}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_is_refused() {
    for (arguments, said) in [
        ("--dir /nonexistent/folder", "/nonexistent/folder"),
        ("--data 4KiB --page-size 64KiB", "0 pages of 64 KiB"),
        ("--data 4MiB --file-memory 4KiB", "at least 64 blocks"),
        ("--transport direct --data 1MiB", "software NIC"),
        ("--depth 0", "0"),
    ] {
        let (status, _, err) = files(&format!("--gpu sim {arguments}"));
        assert!(
            status != 0 && err.contains(said) && !err.contains("panicked"),
            "{arguments}: {err}"
        );
    }
}
