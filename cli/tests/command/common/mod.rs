//! Running the real binary.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `gpuvm run bfs` with arguments separated by blanks, in `folder`.
pub fn bfs(folder: &Path, arguments: &str) -> Command {
    gpuvm(folder, &format!("run bfs {arguments}"))
}

/// `gpuvm` with arguments separated by blanks, in `folder`.
pub fn gpuvm(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuvm"));
    command.args(arguments.split_ascii_whitespace());
    command.current_dir(folder).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Status, standard output and standard error of a run that ended by itself.
pub fn finish(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("ended by itself"), text(stdout), text(stderr))
}

/// The report of a run that must succeed and must be silent on the standard error.
#[allow(dead_code)]
pub fn report(folder: &Path, arguments: &str) -> serde_json::Value {
    let (status, out, err) = finish(bfs(folder, &format!("{arguments} --json")));
    assert_eq!((status, err.as_str()), (0, ""), "{arguments}: {out}");
    assert_eq!(out.lines().count(), 1, "{out}");
    serde_json::from_str(&out).unwrap()
}

/// Asserts that a text has all of these in it.
#[track_caller]
pub fn says(text: &impl std::fmt::Display, parts: &[&str]) {
    let text = text.to_string();
    for part in parts {
        assert!(text.contains(part), "no `{part}` in: {text}");
    }
}

/// A case of a table, `arguments => status: words`: what it is called with, how it ends, and what it says.
pub fn case_of(case: &str) -> (&str, i32, &str) {
    let (arguments, end) = case.split_once(" => ").expect("arguments");
    let (status, words) = end.split_once(": ").expect("a status");
    (arguments, status.parse().expect("a number"), words)
}
