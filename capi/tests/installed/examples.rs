//! The example project, found by CMake and by pkg-config; the C++ face; versions.

use std::{path::Path, process::Command};

use crate::prefix::{Prefix, SANITIZED, bounded, has, output, ran, said, sanitized, source};

fn project() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cpp")
}

/// Configures a project of CMake for an installed gpuvm.
fn configure(prefix: &Prefix, project: &Path) -> Command {
    let mut cmake = Command::new("cmake");
    cmake
        .arg("-S")
        .arg(project)
        .arg("-B")
        .arg(prefix.scratch().join("build"));
    cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.path().display()));
    cmake
}

#[test]
fn the_example_project_is_built_by_cmake_and_runs() {
    if !has("cmake", "GPUVM_REQUIRE_CMAKE") {
        return;
    }
    let prefix = Prefix::new();
    let mut configured = configure(&prefix, &project());
    let warnings = "-Wall -Wextra -Wpedantic -Werror";
    configured.arg(format!("-DCMAKE_C_FLAGS={warnings}"));
    ran(configured.arg(format!("-DCMAKE_CXX_FLAGS={warnings}")));
    let build = prefix.scratch().join("build");
    ran(Command::new("cmake").arg("--build").arg(&build));
    for program in ["page_array", "page_array_c"] {
        let told = ran(&mut bounded(build.join(program)));
        let pages: u64 = told
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok())
            .expect("a number");
        assert!(pages >= 1024, "{told}");
    }
}

/// A kernel that nvcc compiles into a program; without a GPU the program says so. `./test` brings nvcc and asks for this.
#[test]
fn a_program_with_kernels_of_its_own_is_built_by_cmake() {
    let Some(nvcc) = std::env::var_os("GPUVM_NVCC") else {
        eprintln!("SKIPPED: GPUVM_NVCC does not name nvcc; `./test` brings it");
        return;
    };
    if !has("cmake", "GPUVM_REQUIRE_CMAKE") {
        return;
    }
    let prefix = Prefix::new();
    let mut configured = configure(&prefix, &project());
    configured.arg(format!("-DCMAKE_CUDA_COMPILER={}", Path::new(&nvcc).display()));
    configured.arg("-DCMAKE_CUDA_FLAGS=-Werror all-warnings -Xcompiler=-Wall,-Werror");
    ran(&mut configured);
    let build = prefix.scratch().join("build");
    ran(Command::new("cmake")
        .arg("--build")
        .arg(&build)
        .args(["--target", "scale", "unported"]));
    // The GPU that any machine has is the simulated one, which has no kernels of programs.
    let mut program = bounded(build.join("scale"));
    let ended = output(program.env("CUDA_VISIBLE_DEVICES", ""));
    let told = said(&ended);
    assert!(!ended.status.success() && told.contains("for an NVIDIA GPU"), "{told}");
    // It runs the PTX of plain kernels.
    let told = ran(bounded(build.join("unported")).env("CUDA_VISIBLE_DEVICES", ""));
    assert!(
        told.contains("simulated GPU") && told.contains("pages came to GPU memory"),
        "{told}"
    );
}

#[test]
fn cmake_refuses_another_version() {
    if !has("cmake", "GPUVM_REQUIRE_CMAKE") {
        return;
    }
    let prefix = Prefix::new();
    let text = std::fs::read_to_string(project().join("CMakeLists.txt")).unwrap();
    for (asked, found) in [
        ("0.1", true),
        ("0.1.0 EXACT", true),
        ("0.2", false),
        ("1.0", false),
        ("0.1.9", false),
    ] {
        let other = prefix.scratch().join("other");
        std::fs::create_dir_all(&other).unwrap();
        let text = text.replace("find_package(gpuvm 0.1 ", &format!("find_package(gpuvm {asked} "));
        let text: String = text
            .lines()
            .take_while(|line| !line.starts_with("add_executable"))
            .map(|line| format!("{line}\n"))
            .collect();
        std::fs::write(other.join("CMakeLists.txt"), text).unwrap();
        let _ = std::fs::remove_dir_all(prefix.scratch().join("build"));
        let output = output(&mut configure(&prefix, &other));
        assert_eq!(output.status.success(), found, "{asked}: {}", said(&output));
        assert!(found || said(&output).contains("version"), "{asked}: {}", said(&output));
    }
}

#[test]
fn pkg_config_finds_it() {
    if !has("pkg-config", "GPUVM_REQUIRE_PKG_CONFIG") {
        return;
    }
    let prefix = Prefix::new();
    let mut flags = Command::new("pkg-config");
    flags.env("PKG_CONFIG_PATH", prefix.path().join("lib/pkgconfig"));
    let flags = ran(flags.args(["--cflags", "--libs", "gpuvm = 0.1.0"]));
    let program = prefix.scratch().join("page_array_c");
    let mut cc = Command::new("cc");
    cc.arg(project().join("page_array.c"))
        .arg("-o")
        .arg(&program)
        .args(flags.split_whitespace());
    ran(&mut cc);
    ran(bounded(program).env("LD_LIBRARY_PATH", prefix.path().join("lib")));
}

#[test]
fn the_classes_of_cpp_do_what_the_functions_of_c_do() {
    let prefix = Prefix::new();
    let program = prefix.compile(&source("host.cpp"), &SANITIZED);
    let cases = ran(&mut sanitized(&program));
    assert!(cases.lines().count() >= 8, "{cases}");
    for case in cases.lines() {
        let told = ran(sanitized(&program).arg(case).current_dir(prefix.scratch()));
        assert!(told.ends_with("done\n"), "{case}: {told}");
    }
}

#[test]
fn a_program_of_another_version_is_told_so() {
    let prefix = Prefix::new();
    let header = prefix.path().join("include/gpuvm.h");
    let text = std::fs::read_to_string(&header).unwrap();
    let current = format!("#define GPUVM_VERSION {}u", 1 << 8);
    assert!(text.contains(&current), "the version is another one: say it here");
    for (version, fits) in [(0x0200, false), (0x0000, false), (0x01_0100, false), (0x0101, true)] {
        std::fs::write(
            &header,
            text.replace(&current, &format!("#define GPUVM_VERSION {version}u")),
        )
        .unwrap();
        let program = prefix.compile(&source("version.cpp"), &[]);
        let told = ran(&mut bounded(program));
        let refused = told.contains("libgpuvm is version 0.1.0, and the program was compiled for");
        assert_eq!(!refused, fits, "{version:#x}: {told}");
    }
}

#[test]
fn the_programs_of_the_guide_run() {
    let prefix = Prefix::new();
    let blocks = gpuvm_guide::blocks("cpp");
    assert!(!blocks.is_empty(), "the guide has no program in C++");
    for block in blocks {
        let source = prefix.scratch().join("guide.cpp");
        std::fs::write(&source, block.text).unwrap();
        println!("{}", block.place);
        ran(&mut bounded(prefix.compile(&source, &[])));
    }
}
