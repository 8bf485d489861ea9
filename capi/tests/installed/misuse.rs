//! Programs that use the library wrongly: under AddressSanitizer, and under valgrind, which also looks for leaks.

use crate::prefix::{Prefix, SANITIZED, bounded, has, output, ran, said, sanitized, source};

const PROGRAMS: [&str; 5] = ["misuse.c", "precompiled.c", "settings.c", "short_memory.c", "threads.c"];

#[test]
fn wrong_use_is_refused_and_nothing_is_lost() {
    let prefix = Prefix::new();
    let mut count = 0;
    for name in PROGRAMS {
        let program = prefix.compile(&source(name), &SANITIZED);
        for case in ran(&mut sanitized(&program)).lines() {
            let told = ran(sanitized(&program).arg(case));
            assert_eq!(told, "done\n", "{case}");
            count += 1;
        }
    }
    assert!(count >= 20, "{count} cases");
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
