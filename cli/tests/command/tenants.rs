//! `gpuvm tenants`: this process is the tenant that is listed and changed.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use gpuvm_tenants::{FOLDER_VARIABLE, Folder, Holder, Holding, SharedGpu, Tenant, Terms};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::{finish, gpuvm, says};

const MIB: u64 = 1 << 20;

struct Frames(AtomicU64);

// Orders are relaxed: the number of bytes stands by itself.
impl Holder for Frames {
    fn holding(&self) -> Holding {
        Holding {
            frames: self.0.load(Ordering::Relaxed),
            buffers: 3 * MIB / 2,
            other: 0,
        }
    }

    fn give_up(&self, bytes: u64, _deadline: Instant) -> u64 {
        let before = self.0.load(Ordering::Relaxed);
        let gives = bytes.min(before);
        self.0.store(before - gives, Ordering::Relaxed);
        gives
    }
}

fn join(folder: &Path, gpu: &str) -> Tenant {
    let gpu = SharedGpu {
        key: gpu.parse().unwrap(),
        total_bytes: 100 * MIB,
    };
    let terms = Terms::new(MIB, None, -3).unwrap();
    Tenant::join(&Folder::at(folder), &gpu, terms, Arc::new(Frames((8 * MIB).into()))).unwrap()
}

fn tenants(folder: &Path, arguments: &str) -> Command {
    let mut command = gpuvm(folder, &format!("tenants {arguments}"));
    command.env(FOLDER_VARIABLE, folder.join("registry"));
    command
}

/// What a command prints that must succeed.
fn said(folder: &Path, arguments: &str) -> String {
    let (status, out, err) = finish(tenants(folder, arguments));
    assert_eq!((status, err.as_str()), (0, ""), "{arguments}: {out}");
    out
}

fn listed(folder: &Path, arguments: &str) -> Value {
    serde_json::from_str(&said(folder, &format!("{arguments} --json"))).unwrap()
}

#[test]
fn without_tenants_it_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let registry = folder.path().join("registry");
    let none = format!("there are no tenants in {}\n", registry.display());
    assert_eq!(said(folder.path(), ""), none);
    assert!(!registry.exists(), "who lists leaves nothing behind");
    assert_eq!(listed(folder.path(), ""), json!({ "folder": registry, "tenants": [] }));
    drop(join(&registry, "sim"));
    assert_eq!(said(folder.path(), ""), none);
    let of_one = said(folder.path(), "--gpu GPU-1");
    assert!(
        of_one.starts_with("there are no tenants of the GPU GPU-1 in "),
        "{of_one}"
    );
}

#[test]
fn tenants_of_all_gpus_or_of_one_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let registry = folder.path().join("registry");
    let _both = (join(&registry, "sim"), join(&registry, "GPU-1"));
    let pid = std::process::id();
    let table = said(folder.path(), "");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let program = std::env::current_exe().unwrap();
    let program = program.file_name().unwrap().to_str().unwrap();
    let row = |gpu: &str| {
        [
            gpu,
            &pid.to_string(),
            program,
            "9.5 MiB",
            "8 MiB",
            "1.5 MiB",
            "0 B",
            "1 MiB",
            "none",
            "-3",
        ]
        .join(" ")
    };
    assert_eq!(rows.len(), 4, "{table}");
    assert_eq!(rows[2][..10].join(" "), row("GPU-1"));
    assert_eq!(rows[3][..10].join(" "), row("sim"));
    let one = listed(folder.path(), "--gpu sim");
    let since = one["tenants"][0]["since_unix_seconds"].as_u64().unwrap();
    assert_eq!(
        one["tenants"],
        json!([{
            "gpu": "sim", "pid": pid, "answers": true, "program": program, "holding_bytes": 19 * MIB / 2,
            "frames_bytes": 8 * MIB, "buffers_bytes": 3 * MIB / 2, "other_bytes": 0, "gpu_bytes": 100 * MIB,
            "terms": { "minimum_bytes": MIB, "limit_bytes": null, "priority": -3 }, "since_unix_seconds": since,
        }])
    );
}

#[test]
fn terms_are_changed_while_a_tenant_runs() {
    let folder = tempfile::tempdir().unwrap();
    let registry = folder.path().join("registry");
    let (tenant, other) = (join(&registry, "sim"), join(&registry, "GPU-1"));
    let pid = std::process::id();
    // A share is of the memory of its GPU.
    let text = said(
        folder.path(),
        &format!("set {pid} --gpu sim --limit 5% --priority -100"),
    );
    assert_eq!(
        text,
        format!(
            "pid {pid} on the GPU sim: minimum 1 MiB, limit 5 MiB, priority -100; it gave up 4.5 MiB and holds 5 MiB\n"
        )
    );
    assert_eq!(tenant.terms(), Terms::new(MIB, Some(5 * MIB), -100).unwrap());
    assert_eq!(other.terms(), Terms::new(MIB, None, -3).unwrap());
    // Buffers stay.
    let text = said(folder.path(), &format!("set {pid} --gpu sim --limit 1MiB"));
    says(&text, &["gave up 3.5 MiB and holds 1.5 MiB, more than its limit"]);
    let changed = listed(folder.path(), &format!("set {pid} --min 0 --limit none"));
    assert_eq!(changed["changed"].as_array().unwrap().len(), 2);
    assert_eq!(changed["changed"][1]["terms"]["limit_bytes"], Value::Null);
    assert_eq!(tenant.terms(), Terms::new(0, None, -100).unwrap());
    assert_eq!(other.terms(), Terms::new(0, None, -3).unwrap());
}

#[test]
fn what_cannot_be_set_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let registry = folder.path().join("registry");
    let pid = std::process::id();
    let refused = |arguments: &str| {
        let (status, out, err) = finish(tenants(folder.path(), arguments));
        assert_eq!(out, "", "{arguments}");
        (status, err)
    };
    let (status, err) = refused("set 1 --limit 1GiB");
    assert_eq!(status, 1);
    assert_eq!(
        err,
        format!(
            "error: pid 1 is not a tenant; there are no tenants in {}\n",
            registry.display()
        )
    );
    let tenant = join(&registry, "sim");
    let (status, err) = refused("set 1 --limit 1GiB");
    assert_eq!(status, 1);
    assert!(
        err.starts_with(&format!("error: pid 1 is not a tenant; there are {pid} (")),
        "{err}"
    );
    let (status, err) = refused(&format!("set {pid} --limit 4KiB"));
    assert_eq!(status, 1);
    let cause = "caused by: it refuses: the memory limit of 4 KiB is below the minimum of 1 MiB";
    assert!(err.contains(cause), "{err}");
    assert_eq!(tenant.terms(), Terms::new(MIB, None, -3).unwrap());
    for (arguments, reason) in [
        ("set".to_owned(), "<PID>"),
        (format!("set {pid}"), "required arguments"),
        (format!("set {pid} --limit lots"), "invalid size 'lots'"),
        (format!("set {pid} --limit 101%"), "no more than 100%"),
        (format!("set {pid} --priority 101"), "-100 to 100"),
        ("set -1 --priority 1".to_owned(), "-1"),
        ("--gpu a/b".to_owned(), "invalid GPU key"),
        ("--watch 0".to_owned(), "not a number of seconds"),
    ] {
        let (status, err) = refused(&arguments);
        assert_eq!(status, 2, "{arguments}: {err}");
        assert!(err.contains(reason), "{arguments}: {err}");
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("registry"), "").unwrap();
    for arguments in ["", "--json", "--watch", "set 1 --priority 0"] {
        let (status, out, err) = finish(tenants(folder.path(), arguments));
        assert_eq!((status, out.as_str()), (1, ""), "{arguments}");
        assert!(
            err.starts_with("error: cannot find the tenants\n  caused by: "),
            "{err}"
        );
        says(
            &err,
            &["registry is not a folder; name another one in GPUVM_TENANTS_DIR"],
        );
    }
}

fn watching(folder: &Path, arguments: &str) -> (Child, impl BufRead) {
    let mut child = tenants(folder, arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

fn ended_well(mut child: Child) {
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    let status = child.wait().unwrap();
    assert_eq!((status.code(), err.as_str()), (Some(0), ""), "{status:?}");
}

#[test]
fn who_watches_sees_changes_until_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let (child, mut out) = watching(folder.path(), "--watch 0.1 --json");
    let mut count = || {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["tenants"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(count(), 0);
    let tenant = join(&folder.path().join("registry"), "sim");
    assert!((0..600).any(|_| count() == 1));
    drop(tenant);
    assert!((0..600).any(|_| count() == 0));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    ended_well(child);
}

#[test]
fn who_watches_ends_when_nobody_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (child, mut out) = watching(folder.path(), "--watch 0.1");
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.starts_with("there are no tenants"), "{line}");
    drop(out);
    ended_well(child);
}

#[test]
fn one_that_does_not_answer_is_listed_and_cannot_be_set() {
    let folder = tempfile::tempdir().unwrap();
    let registry = folder.path().join("registry");
    drop(join(&registry, "sim"));
    // A tenant that never says a word.
    let file = |end: &str| registry.join(format!("sim/77-0000000000000001.{end}"));
    let lock = std::fs::File::create(file("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let _silent = std::os::unix::net::UnixListener::bind(file("sock")).unwrap();
    let table = said(folder.path(), "");
    assert!(table.contains("(no answer: it did not answer in time)"), "{table}");
    let json = listed(folder.path(), "");
    let silent = json!({ "gpu": "sim", "pid": 77, "answers": false, "why": "it did not answer in time" });
    assert_eq!(json["tenants"], json!([silent]));
    let (status, _, err) = finish(tenants(folder.path(), "set 77 --limit 50%"));
    assert_eq!(status, 1);
    assert!(
        err.starts_with("error: pid 77 on the GPU sim does not answer: it did not answer in time; "),
        "{err}"
    );
}
