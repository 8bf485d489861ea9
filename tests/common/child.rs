//! Running a test in a process of its own, which finds other shared libraries.

use std::ffi::OsStr;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest life of a child.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs the test `name` of this program again, with these variables. Fails where it does; says what it says in lines behind `# `.
pub fn run_again(name: &str, variables: &[(&str, &OsStr)]) {
    let mut output = tempfile::tempfile().expect("a file");
    let mut child = Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(output.try_clone().expect("a descriptor"))
        .stderr(output.try_clone().expect("a descriptor"))
        .spawn()
        .expect("a process");
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().expect("its end can be waited for") {
            Some(status) => break Some(status),
            None if begun.elapsed() > LIMIT => {
                child.kill().expect("it runs");
                child.wait().expect("it ends");
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut said = String::new();
    output.rewind().expect("a file");
    output.read_to_string(&mut said).expect("text");
    // The child's harness says how many tests it ran: a wrong name would run none.
    let passed = status.is_some_and(|status| status.success()) && said.contains("running 1 test");
    let took = begun.elapsed();
    assert!(passed, "the child ended with {status:?} after {took:?}:\n{said}");
    // Straight to stderr: the test harness hides what a test that passes prints.
    for line in said.lines().filter_map(|line| line.find("# ").map(|at| &line[at..])) {
        let _ = writeln!(std::io::stderr(), "{name}: {line}");
    }
}

/// A shared library, which Cargo builds for the tests of a package.
pub fn built_library(file: &str) -> PathBuf {
    let program = std::env::current_exe().expect("a program");
    let mut places = program.ancestors().skip(1).take(3);
    let found = places.find_map(|place| {
        let names = [place.join(file), place.join("deps").join(file)];
        names.into_iter().find(|path| path.exists())
    });
    found.unwrap_or_else(|| panic!("no {file} near the test program: `cargo build` of its package makes it"))
}
