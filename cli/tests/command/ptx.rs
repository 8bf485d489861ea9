//! Kernels that nobody ported, rewritten.

use std::path::Path;

use crate::common::{finish, gpuvm};

const KERNEL: &str = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 a) {\n.reg .b64 %a;\n.reg .b32 %r;\n\
                      ld.param.u64 %a, [a];\nld.global.u32 %r, [%a];\n@%p st.global.u32 [%a+4], %r;\n\
                      cp.async.bulk.prefetch.L2.global [%a], 1024;\nret;\n}\n";

/// The status, the output and the errors of `gpuvm ptx`.
fn ptx(folder: &Path, arguments: &str) -> (i32, String, String) {
    finish(gpuvm(folder, &format!("ptx {arguments}")))
}

#[test]
fn a_file_is_rewritten_and_the_report_printed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("in.ptx"), KERNEL).unwrap();
    let (status, out, err) = ptx(folder.path(), "in.ptx");
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    for part in [
        "kernel k: 2 accesses are looked up",
        "loads                                     1",
        "stores                                    1",
        "at home: cp.async.bulk.prefetch.L2.global (line 10, column 1)",
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
    for (arguments, code, message) in [
        ("missing.ptx", 1, "cannot read missing.ptx"),
        ("bad.ptx -o out.ptx", 1, "line 12, column 1: found `}`"),
        ("in.ptx -o in.ptx", 1, "in.ptx"),
        ("in.ptx --page-size 3000", 2, "give a power of two from 512"),
        ("in.ptx --page-size 4MiB", 2, "give a power of two from 512"),
        ("", 2, "<INPUT>"),
    ] {
        let (status, out, err) = ptx(folder.path(), arguments);
        assert_eq!((status, out.as_str()), (code, ""), "{arguments}: {err}");
        assert!(err.contains(message) && !err.contains("panicked"), "{arguments}: {err}");
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("in.ptx")).unwrap(), KERNEL);
    assert!(!folder.path().join("out.ptx").exists());
}
