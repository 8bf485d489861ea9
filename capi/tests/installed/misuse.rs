//! Programs that use the library wrongly: under AddressSanitizer, and under valgrind, which also looks for leaks.

use std::path::{Path, PathBuf};

use crate::prefix::{Prefix, SANITIZED, bounded, has, output, ran, said, sanitized, source};

/// The programs in a language, each with cases of its own.
const IN_C: [&str; 5] = ["misuse.c", "precompiled.c", "settings.c", "short_memory.c", "threads.c"];
const IN_CPP: [&str; 1] = ["misuse.cpp"];

/// Runs each case of the programs under AddressSanitizer: how many there are.
fn tried(programs: &[&str]) -> usize {
    let prefix = Prefix::new();
    let mut count = 0;
    for name in programs {
        let program = prefix.compile(&source(name), &SANITIZED);
        for case in ran(&mut sanitized(&program)).lines() {
            let told = ran(sanitized(&program).current_dir(prefix.scratch()).arg(case));
            assert_eq!(told, "done\n", "{case}");
            count += 1;
        }
    }
    count
}

#[test]
fn wrong_use_from_c_is_refused_and_nothing_is_lost() {
    // Three of them are of memory that is short, which is no wrong use.
    assert_eq!(tried(&IN_C), 40, "docs/C.md counts the cases");
}

#[test]
fn wrong_use_from_cpp_is_refused_and_nothing_is_lost() {
    assert_eq!(tried(&IN_CPP), 26, "docs/C.md counts the cases");
}

/// The words in backticks of the table of wrong uses.
fn table() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/C.md")).unwrap();
    let (_, section) = text.split_once("## Wrong uses").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("a next section");
    let rows = section.lines().filter(|line| line.starts_with('|'));
    rows.flat_map(|row| row.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All sources in a folder, one after the other.
fn sources(folder: &str, ending: &str) -> String {
    let files = std::fs::read_dir(root().join(folder)).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let texts = paths.filter(|path| path.to_string_lossy().ends_with(ending));
    texts.map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn the_table_of_wrong_uses_names_every_case_and_no_other() {
    let named = table();
    let (c, python) = (sources("capi/tests/c", ""), sources("python/tests", ".py"));
    for name in &named {
        let there = match name.split_once("::") {
            Some((module, "")) => root().join(format!("tests/promises/{module}.rs")).exists(),
            Some((module, name)) => ["tests/promises", "docs/guide/tests"]
                .iter()
                .any(|folder| sources(folder, &format!("/{module}.rs")).contains(&format!("fn {name}()"))),
            None if name.starts_with("test_") => python.contains(&format!("def {name}(")),
            None if name.contains('_') && !name.starts_with("gpuvm_") && !name.ends_with(".c") => {
                c.contains(&format!("CASE({name})"))
            }
            None => true,
        };
        assert!(there, "docs/C.md names `{name}`, which is not there");
    }
    let cases = c.split("CASE(").skip(1).filter_map(|rest| rest.split(')').next());
    let short_of_memory = sources("capi/tests/c", "short_memory.c");
    for case in cases.filter(|case| *case != "name") {
        let told = named.iter().any(|name| name == case) || short_of_memory.contains(&format!("CASE({case})"));
        assert!(told, "docs/C.md does not name `{case}`");
    }
    let misuse = std::fs::read_to_string(root().join("python/tests/test_misuse.py")).unwrap();
    assert!(misuse.matches("\ndef test_").count() >= 30);
}

/// The sanitizer sees what a program does to memory that it lent: a case that is wrong ends with its report.
#[test]
fn the_sanitizer_sees_memory_that_was_freed_too_early() {
    let prefix = Prefix::new();
    let program = prefix.compile(&source("too_early.c"), &SANITIZED);
    ran(sanitized(&program).arg("well"));
    let output = output(sanitized(&program).arg("too early"));
    let told = said(&output);
    assert!(
        !output.status.success() && told.contains("heap-use-after-free"),
        "{told}"
    );
}

#[test]
fn valgrind_finds_nothing() {
    if !has("valgrind", "GPUVM_REQUIRE_VALGRIND") {
        return;
    }
    let prefix = Prefix::new();
    let mut count = 0;
    for (name, cases) in [
        (
            "misuse.c",
            &["freed_handle", "region_freed_while_a_launch_runs", "vm_freed_first"][..],
        ),
        ("settings.c", &["sizes_of_structures", "texts_that_are_none"]),
        ("threads.c", &["a_handle_is_freed_while_others_use_it"]),
        ("host.cpp", &["an_exception", "moves"]),
    ] {
        let program = prefix.compile(&source(name), &[]);
        let suppressions = format!("--suppressions={}", source("valgrind.supp").display());
        for case in cases {
            let mut valgrind = bounded("valgrind");
            valgrind.args([
                "--quiet",
                "--error-exitcode=9",
                "--leak-check=full",
                "--errors-for-leak-kinds=definite",
            ]);
            let told = ran(valgrind.arg(&suppressions).arg(&program).arg(case));
            assert_eq!(told, "done\n", "{case}");
            count += 1;
        }
    }
    assert_eq!(count, 8);
}
