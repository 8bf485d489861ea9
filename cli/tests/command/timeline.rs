//! Timelines that the command writes, and ranges for NVIDIA's tools, which libraries of this test stand for.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{finish, gpuvm};

fn events(path: &Path) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn count(events: &[Value], name: &str) -> u64 {
    events.iter().filter(|event| event["name"] == name).count() as u64
}

#[test]
fn a_run_writes_the_timeline_that_was_asked_for_by_option_or_environment() {
    let folder = tempfile::tempdir().unwrap();
    let search = "run bfs kron:10 --memory 25% --json";
    let asked = format!("{search} --timeline option.json --timeline-one-in 1");
    let by_variable = || {
        let mut command = gpuvm(folder.path(), search);
        command
            .env("GPUVM_TRACE", "variable.json")
            .env("GPUVM_TRACE_ONE_IN", "1");
        command
    };
    for (command, file) in [
        (gpuvm(folder.path(), &asked), "option.json"),
        (by_variable(), "variable.json"),
        // An earlier timeline is replaced.
        (by_variable(), "variable.json"),
    ] {
        let (status, out, err) = finish(command);
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        let report: Value = serde_json::from_str(&out).unwrap();
        let events = events(&folder.path().join(file));
        // Pages that come after the report's counts were taken.
        assert!(count(&events, "fault") >= report["faults"].as_u64().unwrap(), "{out}");
        assert!(
            count(&events, "kernel `bfs_level`") >= report["levels"].as_u64().unwrap() - 1,
            "{out}"
        );
        // The machine was probed before, and did nothing.
        assert_eq!(count(&events, "process_name"), 1);
    }
}

#[test]
fn a_timeline_that_cannot_be_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("graph.mtx"),
        "%%MatrixMarket matrix coordinate pattern general\n2 2 1\n1 2\n",
    )
    .unwrap();
    for (arguments, variables, says) in [
        ("--timeline no/such/folder.json", &[][..], "no/such/folder.json"),
        ("--timeline graph.mtx", &[], "not a timeline"),
        ("--timeline-one-in 2", &[], "--timeline"),
        ("", &[("GPUVM_TRACE", "/")], "cannot write the timeline /"),
        (
            "",
            &[("GPUVM_TRACE", "a.json"), ("GPUVM_TRACE_ONE_IN", "few")],
            "GPUVM_TRACE_ONE_IN",
        ),
    ] {
        let mut command = gpuvm(folder.path(), &format!("run bfs graph.mtx {arguments}"));
        command.envs(variables.iter().copied());
        let (status, out, err) = finish(command);
        assert!(
            status != 0 && out.is_empty() && err.contains(says),
            "{arguments}: {status} {out} {err}"
        );
    }
    let graph = std::fs::read_to_string(folder.path().join("graph.mtx")).unwrap();
    assert!(graph.starts_with("%%MatrixMarket"));
}

/// What a tool's library does with ranges, by itself or by the functions of the older one: it writes each to a file.
const TOOL: &str = r#"
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static void note(const char* what, const char* name) {
    FILE* log = fopen(getenv("NVTX_TEST_LOG"), "a");
    if (!log) abort();
    fprintf(log, "%s %s\n", what, name);
    fclose(log);
}
int nvtxRangePushA(const char* name) { note("push", name); return 0; }
int nvtxRangePop(void) { note("pop", ""); return 0; }
uint64_t nvtxRangeStartA(const char* name) { note("start", name); return 42; }
void nvtxRangeEnd(uint64_t id) { note("end", id == 42 ? "" : "of another"); }

#ifdef INJECTED
typedef void (*function)(void);
struct callbacks {
    size_t bytes;
    int (*table_of)(int module, function*** table, unsigned* size);
};
struct versions {
    size_t bytes;
    uint32_t version, reserved;
    void (*set)(uint32_t);
};
int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
    const struct versions* versions = export_table(3);
    const struct callbacks* callbacks = export_table(1);
    if (export_table(2) || !versions || versions->bytes < sizeof *versions || versions->version < 2) return 0;
    versions->set(3);
    function** table;
    unsigned size;
    for (int module = 2; module < 7; ++module) {
        if (!callbacks->table_of(module, &table, &size) || size < 2) return 0;
        // All places can be written, the first of a table is none.
        if (table[0]) return 0;
        for (unsigned n = 1; n < size; ++n) *table[n] = (function)abort;
    }
    if (callbacks->table_of(0, &table, &size) || callbacks->table_of(7, &table, &size)) return 0;
    if (!callbacks->table_of(1, &table, &size) || size != 16) return 0;
    *table[5] = (function)nvtxRangeStartA;
    *table[7] = (function)nvtxRangeEnd;
    *table[9] = (function)nvtxRangePushA;
    *table[11] = (function)nvtxRangePop;
    return 1;
}
#endif
"#;

/// A library of [`TOOL`] in the folder.
fn tool(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let (source, library) = (folder.join("tool.c"), folder.join(name));
    std::fs::write(&source, TOOL).unwrap();
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .args(options)
        .arg(&source);
    assert!(compiler.status().unwrap().success());
    library
}

#[test]
fn a_tool_is_told_of_launches_and_of_what_the_host_does() {
    let folder = tempfile::tempdir().unwrap();
    let injected = tool(folder.path(), "injected.so", &["-DINJECTED"]);
    tool(folder.path(), "libnvToolsExt.so.1", &[]);
    let run = |variable: &str, value: &Path| {
        let log = folder.path().join("log");
        std::fs::write(&log, "").unwrap();
        let mut command = gpuvm(folder.path(), "run bfs kron:8 --json");
        let (status, out, err) = finish({
            command.env("NVTX_TEST_LOG", &log).env(variable, value);
            command
        });
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        std::fs::read_to_string(&log).unwrap()
    };
    for said in [
        run("NVTX_INJECTION64_PATH", &injected),
        run("LD_LIBRARY_PATH", folder.path()),
    ] {
        let lines: Vec<&str> = said.lines().collect();
        let count = |begins: &str| lines.iter().filter(|line| line.starts_with(begins)).count();
        assert!(count("start kernel `bfs_level`") >= 2, "{said}");
        assert!(count("push launch of kernel `bfs_level`") >= 2, "{said}");
        assert!(count("push wait for kernel `bfs_level`") >= 1, "{said}");
        assert_eq!(count("push"), count("pop"));
        assert_eq!(count("start"), count("end"));
        assert!(!said.contains("of another"));
    }
    assert_eq!(run("NVTX_INJECTION64_PATH", Path::new("/no/such/library.so")), "");
}
