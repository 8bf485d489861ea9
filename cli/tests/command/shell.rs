//! What a shell can do to the command: outputs that are closed or full, limits of the process, signals, pipes for files.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{bfs, finish, report};

/// `gpuvm` with what stands after it in a line of a shell; `before` is put before it, such as a limit.
fn shell(before: &str, after: &str) -> Command {
    // Signals do what they do by default, also where these tests run under `nohup`.
    let mut command = Command::new("env");
    command.args(["--default-signal", "sh", "-c"]);
    command.arg(format!("{before} exec {} {after}", env!("CARGO_BIN_EXE_gpuvm")));
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Makes a named pipe.
fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn output_that_is_lost_is_an_error() {
    for arguments in [
        "--help",
        "--version",
        "run bfs --help",
        "run bfs kron:6",
        "run bfs kron:6 --json",
        "profile bfs kron:6",
        "profile bfs kron:6 --json -",
        "doctor",
        "doctor --json",
        "simulate --mutation list",
        "bench latency --gpu sim --faults 8 --repeat 1 --lanes 1",
    ] {
        for (target, cause) in [("/dev/full", "No space left"), ("&-", "Bad file descriptor")] {
            let (status, _, err) = finish(shell("", &format!("{arguments} >{target}")));
            assert_eq!(status, 1, "{arguments} >{target}: {err}");
            let expected = format!(
                "error: cannot print to the standard output; it is closed or full, or cannot be written\n  caused by: {cause}"
            );
            assert!(err.starts_with(&expected), "{arguments} >{target}: {err}");
        }
    }
}

#[test]
fn distances_are_not_written_to_an_output_that_is_closed() {
    let (status, _, err) = finish(shell("", "run bfs kron:6 --output /dev/stdout >&-"));
    assert_eq!(status, 1, "{err}");
    assert!(
        err.starts_with("error: cannot write to /dev/stdout\n  caused by: Bad file"),
        "{err}"
    );
}

#[test]
fn a_reader_who_has_gone_is_no_error() {
    for arguments in ["--help", "run bfs kron:6", "doctor --json", "simulate --mutation list"] {
        // The reader is gone before the first word.
        let line = format!("({} {arguments}; echo $? >&2) | true", env!("CARGO_BIN_EXE_gpuvm"));
        let mut command = Command::new("sh");
        command.args(["-c", &line]).env_remove("RUST_LOG").stdin(Stdio::null());
        let (_, out, err) = finish(command);
        assert_eq!(out, "");
        // `doctor` says by its status what there is.
        let status = if arguments.starts_with("doctor") { "034" } else { "0" };
        assert!(err.len() == 2 && status.contains(&err[..1]), "{arguments}: {err}");
    }
}

#[test]
fn a_small_stack_is_enough() {
    // Compilers take more: their work is done before.
    report(Path::new("."), "kron:6");
    let (status, out, err) = finish(shell("ulimit -s 64;", "run bfs kron:6 --json"));
    assert_eq!((status, err.as_str()), (0, ""));
    assert!(out.contains("\"verified\":true"), "{out}");
    // The environment is on the stack, too.
    let bare = |after| {
        let mut command = shell("ulimit -s 16;", after);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        finish(command)
    };
    assert_eq!(bare("--help").0, 0);
    // A compiler that cannot even say its version.
    let (status, _, err) = bare("run bfs kron:6 --gpu sim");
    let note = "  note: the compiler may have 16 KiB of stack (RLIMIT_STACK); raise that limit: ulimit -s 8192\n";
    assert!(status == 0 || status == 1 && err.ends_with(note), "{err}");
}

#[test]
fn a_limit_of_addresses_is_named() {
    let (status, out, err) = finish(shell("ulimit -v 300000;", "run bfs kron:6 --gpu sim"));
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    let note =
        "  note: this process may have 300000 KiB of addresses (RLIMIT_AS); raise that limit: ulimit -v unlimited\n";
    assert!(err.contains("caused by: ") && err.ends_with(note), "{err}");
    // Another cause is not blamed on it.
    let (_, _, err) = finish(shell("ulimit -v 300000000;", "run bfs not/here --gpu sim"));
    assert!(err.contains("No such file") && !err.contains("RLIMIT_AS"), "{err}");
}

#[test]
fn a_compiler_that_does_not_run_says_why() {
    for case in [
        "GPUVM_CXX=false => cannot run the C++ compiler false: `--version` ended with exit status: 1; set GPUVM_CXX to a compiler that runs\n",
        "GPUVM_CXX=/etc/passwd => cannot run the C++ compiler /etc/passwd: Permission denied",
        "ulimit -n 8; => RLIMIT_NOFILE",
    ] {
        let (before, says) = case.split_once(" => ").unwrap();
        let (status, out, err) = finish(shell(before, "run bfs kron:6 --gpu sim"));
        assert_eq!((status, out.as_str()), (1, ""), "{before}: {err}");
        assert!(err.contains(says) && !err.contains("install g++"), "{before}: {err}");
    }
}

#[test]
fn every_signal_that_ends_leaves_nothing() {
    for (signal, expected) in [("-HUP", 129), ("-INT", 130), ("-QUIT", 131), ("-TERM", 143)] {
        let folder = tempfile::tempdir().unwrap();
        let mut run = waiting(folder.path(), "", "run bfs graph --output out.txt", 1);
        let sent = Instant::now();
        kill(signal, run.id());
        let status = run.wait().unwrap();
        assert!(sent.elapsed() < Duration::from_secs(5), "{:?}", sent.elapsed());
        assert_eq!(status.code(), Some(expected), "{signal}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{signal}");
    }
}

#[test]
fn a_run_outlives_its_terminal_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = waiting(folder.path(), "trap '' HUP;", "run bfs graph --output out.txt", 1);
    kill("-HUP", run.id());
    // The graph comes after the signal, and the run goes on to its end.
    std::fs::write(folder.path().join("graph"), "1 2\n2 3\n").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(0));
    assert_eq!(
        std::fs::read_to_string(folder.path().join("out.txt")).unwrap(),
        "# vertex\tdistance\n1\t0\n2\t1\n3\t2\n"
    );
}

#[test]
fn a_profile_that_is_ended_leaves_none_of_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let after = "profile bfs graph --output out.txt --json p.json";
    let mut run = waiting(folder.path(), "", after, 2);
    kill("-INT", run.id());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["graph"]);
}

#[test]
fn a_conversion_that_is_ended_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("out.gcsr"), "as it was").unwrap();
    let mut run = waiting(folder.path(), "", "convert graph out.gcsr --force", 1);
    kill("-INT", run.id());
    assert_eq!(run.wait().unwrap().code(), Some(130));
    let mut left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["graph", "out.gcsr"]);
    assert_eq!(std::fs::read(folder.path().join("out.gcsr")).unwrap(), b"as it was");
}

#[test]
fn a_file_that_comes_during_a_conversion_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = waiting(folder.path(), "", "convert graph out.gcsr", 1);
    std::fs::write(folder.path().join("out.gcsr"), "of another").unwrap();
    std::fs::write(folder.path().join("graph"), "1 2\n2 3\n").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(1));
    assert_eq!(std::fs::read(folder.path().join("out.gcsr")).unwrap(), b"of another");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_conversion_that_the_disk_does_not_hold_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    // A limit of what a file may hold, which stands for a disk that is full.
    let mut command = shell("trap '' XFSZ; ulimit -f 64;", "convert kron:12 out.gcsr");
    command.current_dir(folder.path());
    let (status, out, err) = finish(command);
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(
        err.starts_with("error: cannot write the graph to out.gcsr\n  caused by: File too large"),
        "{err}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A command that waits for its graph, with this many unfinished outputs open, which have no name yet.
fn waiting(folder: &Path, before: &str, after: &str, outputs: usize) -> std::process::Child {
    make_pipe(&folder.join("graph"));
    let mut command = shell(before, after);
    command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    let run = command.spawn().unwrap();
    let started = Instant::now();
    let open = format!("/proc/{}/fd", run.id());
    let folder = folder.canonicalize().unwrap();
    let is_unfinished = |file: std::io::Result<std::fs::DirEntry>| {
        let name = file.and_then(|file| std::fs::read_link(file.path()));
        name.is_ok_and(|name| name.starts_with(&folder) && name.to_string_lossy().ends_with("(deleted)"))
    };
    // The shell becomes the command: files that are open are there under one number.
    while std::fs::read_dir(&open)
        .unwrap()
        .filter_map(|file| is_unfinished(file).then_some(()))
        .count()
        < outputs
    {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "no unfinished output appeared"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    run
}

fn kill(signal: &str, id: u32) {
    assert!(
        Command::new("kill")
            .args([signal, &id.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

/// What is said of a secret file, by both commands that take one.
fn secret_refusals(folder: &Path, secret: &str, expected: &str) {
    for after in [
        format!("serve --memory 1MiB --secret-file {secret}"),
        format!("run bfs kron:4 --memory-node 127.0.0.1:1 --secret-file {secret}"),
    ] {
        let mut command = shell("", &after);
        let (status, out, err) = finish({
            command.current_dir(folder);
            command
        });
        assert_eq!((status, out.as_str()), (1, ""), "{after}: {err}");
        assert!(err.starts_with("error: ") && err.contains(expected), "{after}: {err}");
    }
}

#[test]
fn a_secret_is_short_and_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let long = "holds more than 4096 bytes; name a file with the secret alone";
    file("long", &[b'x'; 4097]);
    file("empty", b"\n");
    file("binary", b"\xff\xfe");
    secret_refusals(folder.path(), "/dev/zero", long);
    secret_refusals(folder.path(), "long", long);
    secret_refusals(
        folder.path(),
        "empty",
        "secret file empty is empty; write the secret into it",
    );
    secret_refusals(folder.path(), "/dev/null", "/dev/null is empty");
    secret_refusals(
        folder.path(),
        ".",
        "cannot read the secret file .\n  caused by: Is a directory",
    );
    secret_refusals(folder.path(), "binary", "caused by: invalid utf-8");
    secret_refusals(folder.path(), "not/here", "caused by: No such file");
}

#[test]
fn a_secret_may_come_through_a_pipe_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    make_pipe(&folder.path().join("silent"));
    let started = Instant::now();
    secret_refusals(
        folder.path(),
        "silent",
        "caused by: nothing came, or no end of it, within 10 s",
    );
    assert!(started.elapsed() < Duration::from_secs(60));
    // A secret that came is no reason to refuse: what follows it is, and the device is not there.
    let mut command = shell(
        "echo sesame |",
        "serve --memory 1MiB --device no_such_device --secret-file /dev/stdin",
    );
    command.current_dir(folder.path());
    let (status, _, err) = finish(command);
    assert!(
        status == 1 && err.starts_with("error: the memory node cannot serve\n"),
        "{err}"
    );
    // Nor is it asked for twice.
    let after = "run bfs kron:4 --memory-node 127.0.0.1:1 --secret-file /dev/stdin";
    let (status, _, err) = finish(shell("echo sesame |", after));
    assert!(status == 1 && !err.contains("secret file"), "{err}");
}

#[test]
fn a_full_output_costs_no_distances() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = bfs(folder.path(), "kron:6 --output out.txt");
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    assert_eq!(finish(command).0, 1);
    let distances = std::fs::read_to_string(folder.path().join("out.txt")).unwrap();
    assert_eq!(distances.lines().count(), 65);
}
