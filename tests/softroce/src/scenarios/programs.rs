//! Programs of this workspace: built on this machine, run on others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;

use super::start::SHORT;
use crate::error::Error;
use crate::job::{Job, Output};
use crate::machine::Machine;
use crate::{built, tools};

/// How many random programs a test tries, each of which takes seconds on emulated processors.
pub(super) const SEEDS: &str = "GPUVM_TEST_SEEDS=1 GPUVM_TEST_ORDERS=12";

/// How long the programs of one scenario may take on this machine, where they compile their kernels.
const WARM: Duration = Duration::from_secs(300);

/// What was built: once in a run, and with the packages that `./test` names, so that nothing is built twice.
fn once(place: &'static OnceLock<Vec<PathBuf>>, arguments: &[&str]) -> Result<&'static [PathBuf], Error> {
    if let Some(programs) = place.get() {
        return Ok(programs);
    }
    let programs = built(arguments)?;
    Ok(place.get_or_init(|| programs))
}

/// The program of the tests that are named by it and by what their names begin with, such as "promises::prefetch::".
pub(super) fn test(tests: &str) -> Result<&'static Path, Error> {
    let name = split(tests).0;
    static TESTS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let programs = once(&TESTS, &["test", "--no-run", "--release", "--workspace"])?;
    named(programs, name, |program| {
        // Cargo adds a dash and a hash.
        program.rsplit_once('-').map_or(program, |(name, _)| name)
    })
}

/// The program and the filter of "promises::prefetch::"; all tests of a program have no filter.
fn split(tests: &str) -> (&str, &str) {
    tests.split_once("::").unwrap_or((tests, ""))
}

/// The command `gpuvm`, with all optimizations.
pub(super) fn gpuvm() -> Result<&'static Path, Error> {
    binary("gpuvm")
}

/// A program of this workspace, with all optimizations.
pub(super) fn binary(name: &str) -> Result<&'static Path, Error> {
    static BINARIES: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let programs = once(&BINARIES, &["build", "--release", "--workspace", "--all-targets"])?;
    named(programs, name, |program| program)
}

/// Begins to build what takes a minute and nothing else needs, while the first machines start. A thread that needs it gets the error, too.
pub fn build_ahead() {
    std::thread::spawn(verbs_client);
}

/// A client by a library that gpuvm does not use; a workspace of its own.
pub(super) fn verbs_client() -> Result<&'static Path, Error> {
    static CLIENT: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let manifest = "tests/softroce/verbs_client/Cargo.toml";
    // Below the folder of everything else that is built; a relative one is the workspace's.
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let target = format!("{target}/verbs_client");
    let programs = once(
        &CLIENT,
        &["build", "--manifest-path", manifest, "--target-dir", &target],
    )?;
    named(programs, "verbs-client", |program| program)
}

pub(super) fn named<'a>(programs: &'a [PathBuf], name: &str, stem: impl Fn(&str) -> &str) -> Result<&'a Path, Error> {
    let found = programs.iter().find(|program| {
        program
            .file_name()
            .is_some_and(|file| stem(&file.to_string_lossy()) == name)
    });
    found
        .map(PathBuf::as_path)
        .ok_or_else(|| Error::Check(format!("cargo has built no program {name}")))
}

/// Where programs keep compiled kernels, the same on every machine.
pub(super) fn cache() -> Option<PathBuf> {
    let variable = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    variable("GPUVM_CACHE_DIR")
        .or_else(|| variable("XDG_CACHE_HOME").map(|folder| folder.join("gpuvm")))
        .or_else(|| variable("HOME").map(|folder| folder.join(".cache/gpuvm")))
}

/// Runs a program over the software NIC on this machine, once in a run, so that the kernels it compiles are in the cache
/// that machines see: compilers are slow on emulated processors.
pub(super) fn warm(program: &Path, arguments: &str) -> Result<(), Error> {
    static DONE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = format!("{SEEDS} exec {} {arguments}", program.display());
    if !DONE.lock().insert(line.clone()) {
        return Ok(());
    }
    let mut command = Command::new("bash");
    command.args(["-c", &line]).stdin(Stdio::null());
    for name in ["GPUVM_TEST_RDMA", "GPUVM_TEST_NODE"] {
        command.env_remove(name);
    }
    // Whether its tests hold here is asked elsewhere; that they hold on the machine is asked there.
    match tools::run(command, WARM, false) {
        Ok(_) | Err(Error::ProgramFailed { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Compiles the kernels of `gpuvm run bfs`.
pub(super) fn warm_search() -> Result<(), Error> {
    warm(gpuvm()?, "run bfs kron:8 --memory 25%")
}

/// Compiles the kernels of tests, named as in [`test`].
pub(super) fn warm_tests(names: &[&str]) -> Result<(), Error> {
    names.iter().try_for_each(|tests| warm(test(tests)?, split(tests).1))
}

/// Runs tests, named as in [`test`]; `before` is put before the program, such as variables of its
/// environment, `options` after it. Its kernels come from the cache: see [`warm_tests`].
pub(super) fn run_test(
    machine: &Machine,
    tests: &str,
    before: &str,
    options: &str,
    limit: Duration,
) -> Result<Output, Error> {
    let (program, filter) = (test(tests)?, split(tests).1);
    let compiled = || -> Result<BTreeSet<String>, Error> {
        let Some(cache) = cache() else {
            return Ok(BTreeSet::new());
        };
        let listing = machine.run(&format!("ls {} | grep -E '^[0-9a-f]{{64}}$'", cache.display()), SHORT)?;
        Ok(listing.text().lines().map(str::to_owned).collect())
    };
    let known = compiled()?;
    let command = format!("{SEEDS} {before} {} {options} {filter}", program.display());
    let output = machine.run(&command, limit)?.success()?;
    let ran = output
        .lines
        .iter()
        .any(|line| line.text.starts_with("test ") && line.text.ends_with(" ok"));
    if !ran {
        return Err(Error::Check(format!("`{command}` has run no test:\n{}", output.text())));
    }
    // In native mode the cache is this machine's own, and others may use it.
    let fresh = compiled()?.difference(&known).count();
    if fresh > 0 && machine.is_virtual() {
        return Err(Error::Check(format!(
            "{tests} compiled {fresh} kernels on {}; they ought to come from the cache",
            machine.name()
        )));
    }
    Ok(output)
}

/// Starts a memory node with 256 MiB on port 7471 and waits until it serves; `flags` may say otherwise.
pub(super) fn serve(machine: &Machine, flags: &str) -> Result<Job, Error> {
    let (program, device) = (gpuvm()?.display(), machine.device());
    let memory = if flags.contains("--memory") {
        ""
    } else {
        "--memory 256MiB"
    };
    let mut node = machine.spawn(&format!("exec {program} serve --device {device} {memory} {flags}"))?;
    node.wait_for("serving ", SHORT)?;
    Ok(node)
}

/// The object that a command printed on its last line of standard output.
pub(super) fn json(output: &Output) -> Result<Value, Error> {
    let text = output.text();
    let found = text
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str::<Value>(line).ok());
    found
        .filter(Value::is_object)
        .ok_or_else(|| Error::Check(format!("no JSON object was printed:\n{text}")))
}

/// A number of such an object.
pub(super) fn number(object: &Value, name: &str) -> Result<f64, Error> {
    object
        .get(name)
        .and_then(Value::as_f64)
        .ok_or_else(|| Error::Check(format!("no number {name:?} in {object}")))
}
