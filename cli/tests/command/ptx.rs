//! Kernels that nobody ported, rewritten.

use std::path::{Path, PathBuf};

use crate::common::{finish, gpuvm, says};

const KERNEL: &str = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a) {\n.reg .b64 %a;\n.reg .b32 %r;\n\
                      ld.param.u64 %a, [a];\nld.global.u32 %r, [%a];\n@%p st.global.u32 [%a+4], %r;\n\
                      cp.async.bulk.prefetch.L2.global [%a], 1024;\nret;\n}\n";

/// The status, the output and the errors of `gpuvm ptx` on a machine without ptxas.
fn ptx(folder: &Path, arguments: &str) -> (i32, String, String) {
    let mut command = gpuvm(folder, &format!("ptx {arguments}"));
    command.env_remove("CUDA_HOME").env("PATH", folder);
    finish(command)
}

/// A file of ptx/tests/inputs.
fn input(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../ptx/tests/inputs")
        .join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_is_rewritten_and_the_report_printed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("in.ptx"), KERNEL).unwrap();
    let (status, out, err) = ptx(folder.path(), "in.ptx");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    for part in [
        "kernel k: 2 accesses are looked up (look-ups: 2)",
        "loads                                     1",
        "stores                                    1",
        "at home: cp.async.bulk.prefetch.L2.global (line 10, column 1)",
        "registers are not known: no ptxas in $CUDA_HOME/bin or in $PATH",
        "2 accesses look their page up",
    ] {
        assert!(out.contains(part), "{out}");
    }
    let shifts = [
        ("", "12;"),
        ("--page-size 64KiB", "16;"),
        ("--page-size 512 --touches", "9;"),
    ];
    for (options, shift) in shifts {
        let (status, written, err) = ptx(folder.path(), &format!("in.ptx -o out.ptx --force {options}"));
        assert_eq!((status, err.as_str()), (0, ""), "{written}");
        assert_eq!(written, out);
        let text = std::fs::read_to_string(folder.path().join("out.ptx")).unwrap();
        assert!(text.contains(&format!("%gpuvm_h, {shift}")), "{text}");
        assert_eq!(
            text.matches("st.global.u8").count(),
            1 + usize::from(options.contains("touches"))
        );
    }
}

#[test]
fn what_cannot_be_rewritten_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("in.ptx"), KERNEL).unwrap();
    std::fs::write(folder.path().join("bad.ptx"), KERNEL.replace("ret;", "ret")).unwrap();
    let whole = std::fs::read(input("plain.fatbin")).unwrap();
    std::fs::write(folder.path().join("cut.fatbin"), &whole[..whole.len() / 2]).unwrap();
    std::fs::write(folder.path().join("empty.o"), b"\x7fELF and no kernel").unwrap();
    for (arguments, code, message) in [
        ("missing.ptx", 1, "cannot read missing.ptx"),
        ("bad.ptx -o out.ptx", 1, "line 12, column 1: found `}`"),
        ("in.ptx -o in.ptx", 1, "in.ptx"),
        ("in.ptx --page-size 3000", 2, "give a power of two from 512"),
        ("in.ptx --page-size 4MiB", 2, "give a power of two from 512"),
        ("in.ptx --ptxas nowhere", 1, "nowhere cannot be run"),
        ("cut.fatbin", 1, "byte 0: the fat binary is cut off"),
        ("empty.o", 1, "empty.o has no PTX; compile it with"),
        ("", 2, "<INPUT>"),
    ] {
        let (status, out, err) = ptx(folder.path(), arguments);
        assert_eq!((status, out.as_str()), (code, ""), "{arguments}: {err}");
        assert!(err.contains(message) && !err.contains("panicked"), "{arguments}: {err}");
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("in.ptx")).unwrap(), KERNEL);
    assert!(!folder.path().join("out.ptx").exists());
}

#[test]
fn programs_and_fat_binaries_have_their_ptx_taken_out() {
    let folder = tempfile::tempdir().unwrap();
    let (status, of_text, err) = ptx(folder.path(), &input("plain.ptx"));
    assert_eq!((status, err.as_str()), (0, ""));
    let (status, out, err) = ptx(folder.path(), &format!("{} -o out.ptx", input("plain.fatbin")));
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let (first, rest) = out.split_once('\n').unwrap();
    assert!(first.starts_with("PTX for compute_"), "{out}");
    assert!(rest.contains("accesses are looked up") && of_text.contains("kernel axpy: "));
    let text = std::fs::read_to_string(folder.path().join("out.ptx")).unwrap();
    assert!(text.contains("gpuvm_window") && text.contains(".entry"), "{text}");
    // In a program of two source files; for an architecture that is too old.
    let one = std::fs::read(input("plain.fatbin")).unwrap();
    std::fs::write(
        folder.path().join("program"),
        [b"\x7fELFcode", &one[..], b"more", &one].concat(),
    )
    .unwrap();
    let (status, out, err) = ptx(folder.path(), "program");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert_eq!(out.matches("PTX for compute_").count(), 2, "{out}");
    let (status, _, err) = ptx(folder.path(), "program -o two.ptx");
    assert!(
        status == 1 && err.contains("program has PTX of 2 source files"),
        "{err}"
    );
    let (status, _, err) = ptx(folder.path(), "program --architecture 10");
    assert!(
        status == 1 && err.contains("has no PTX that this architecture runs; it has some for "),
        "{err}"
    );
    assert!(!folder.path().join("two.ptx").exists());
}

/// A program in the place of ptxas.
fn fake_ptxas(folder: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("ptxas");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn registers_are_those_that_the_assembler_counts() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("in.ptx"), KERNEL).unwrap();
    // It has the text as its last argument, and is told the architecture.
    let counts = "for last; do :; done\ncase \"$*\" in *-arch=sm_90*) ;; *) exit 9;; esac\nregisters=16\n\
                  while read -r line; do case $line in *gpuvm_window*) registers=24;; esac; done < \"$last\"\n\
                  echo \"ptxas info    : Compiling entry function 'k' for 'sm_90'\"\n\
                  echo \"ptxas info    : Used $registers registers, used 0 barriers\"";
    fake_ptxas(folder.path(), counts);
    for arguments in ["in.ptx", "in.ptx --ptxas ./ptxas"] {
        let (status, out, err) = ptx(folder.path(), arguments);
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        says(&out, &["  registers                            16 before, 24 after\n"]);
        assert!(!out.contains("not known"), "{out}");
    }
    // One that does not know the text says so; asked for by its name, the command fails.
    fake_ptxas(
        folder.path(),
        "echo 'ptxas fatal   : Unsupported .version 9.4' >&2\nexit 255",
    );
    let (status, out, err) = ptx(folder.path(), "in.ptx");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    says(&out, &["registers are not known: ", "as it was given: ptxas fatal"]);
    let (status, _, err) = ptx(folder.path(), "in.ptx --ptxas ./ptxas");
    assert!(status == 1 && err.contains("Unsupported .version 9.4"), "{err}");
}

/// `./test` brings nvcc, which ptxas comes with, and names it in `GPUVM_NVCC`.
#[test]
fn cuda_s_assembler_counts_registers() {
    let Some(nvcc) = std::env::var_os("GPUVM_NVCC").map(PathBuf::from) else {
        eprintln!("SKIPPED: GPUVM_NVCC does not name nvcc; `./test` brings it");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let ptxas = nvcc.with_file_name("ptxas");
    let (status, out, err) = ptx(
        folder.path(),
        &format!("{} --ptxas {}", input("plain.ptx"), ptxas.display()),
    );
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let kernels = out.matches("\nkernel ").count() + usize::from(out.starts_with("kernel "));
    assert_eq!(out.matches(" before, ").count(), kernels, "{out}");
}

/// What the command says of a kernel that it runs.
fn run(arguments: &str) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let text = |body: &str| {
        format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n.reg .b64 %rd<3>;\n.reg .b32 %r<3>;\n\
             ld.param.u64 %rd1, [out];\nmov.u32 %r1, %ctaid.x;\nadd.u32 %r1, %r1, 5;\n{body}\nret;\n}}\n"
        )
    };
    for (name, body) in [
        ("all.ptx", "st.global.u32 [%rd1+8], %r1;"),
        ("outside.ptx", "st.global.u32 [%rd1+1048576], %r1;"),
        ("barrier.ptx", "bar.sync 3;"),
    ] {
        std::fs::write(folder.path().join(name), text(body)).unwrap();
    }
    // It needs a C++ compiler, which is found by PATH.
    finish(gpuvm(folder.path(), &format!("ptx {arguments}")))
}

#[test]
fn a_kernel_is_run_over_arrays_in_frames_and_at_home() {
    let plain = input("plain.ptx");
    let axpy = "--run axpy --grid 4 --block 64 --arg f32:10000=index --arg f32:10000 --arg 2.5 --arg 10000";
    for (pages, frames) in [("none", 0), ("half", 10), ("all", 20)] {
        let (status, out, err) = run(&format!("{plain} {axpy} --pages {pages}"));
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        let wanted = format!(
            "`axpy` ran; {frames} of 20 pages were in frames\narray 1, f32[10000]: 0, 1, 2, 3, 4, 5, 6, 7, ..\n\
             array 2, f32[10000]: 0, 2.5, 5, 7.5, 10, 12.5, 15, 17.5, ..\nno data races\n"
        );
        assert_eq!(out, wanted);
    }
    // Out of a fat binary, over numbers that the seed draws.
    let random = "--run axpy --arg f32:3=random --arg f32:3=random --arg 0 --arg 3 --block 1";
    let of = |seed: u32| run(&format!("{} {random} --seed {seed}", input("plain.fatbin")));
    let (one, other) = (of(1), of(2));
    assert!(one.0 == 0 && one == of(1) && one.1 != other.1, "{one:?} {other:?}");
}

#[test]
fn what_a_kernel_does_wrong_is_told() {
    let (status, out, err) = run("all.ptx --run k --grid 3 --arg u32:10");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    says(&out, &[" data races:\n  element 2 of array 1: a weak store of 4 bytes"]);
    let (_, out, _) = run("all.ptx --run k --block 1 --arg u32:4");
    says(&out, &["array 1, u32[4]: 0, 0, 5, 0\n", "no data races"]);
    let (_, out, _) = run("all.ptx --run k --grid 70000 --block 1 --arg u32:4");
    assert!(out.contains("races were not looked for"), "{out}");
    let plain = input("plain.ptx");
    for (arguments, code, message) in [
        ("outside.ptx --run k --arg u32:10", 1, "invalid memory access"),
        (
            "barrier.ptx --run k --arg u32:10",
            1,
            "barriers with a number other than 0 (line ",
        ),
        ("all.ptx --run other --arg u32:10", 1, "no kernel named `other`"),
        ("all.ptx --run k", 1, "`k` takes 1 arguments (.u64), and --arg gives 0"),
        (
            "all.ptx --run k --arg 2.5",
            1,
            "`2.5` is given where the kernel takes .u64 of 8 bytes",
        ),
        ("all.ptx --run k --arg f16:10", 2, "`f16` is not a type"),
        ("all.ptx --run k --arg u32:0", 2, "an array has 1 to"),
        ("all.ptx --run k --arg u32:10 --grid 1,2,3,4", 2, "one to three numbers"),
        ("all.ptx --run k --arg u32:10 --pages some", 2, "none, half, all"),
        ("all.ptx --arg u32:10", 2, "--run <KERNEL>"),
        (
            &*format!("{plain} --run axpy --arg null --arg null --arg 1 --arg 5"),
            1,
            "invalid memory access",
        ),
    ] {
        let (status, _, err) = run(arguments);
        assert_eq!(status, code, "{arguments}: {err}");
        assert!(err.contains(message) && !err.contains("panicked"), "{arguments}: {err}");
    }
}
