//! The form in which accesses call for their page: what of a text changes, and what does not.

use gpuvm_ptx::{Access, FunctionReport, LAUNCH, Left, Module, PtxError, rewrite, rewrite_to_calls, with_library};

use crate::look_up::FORMS;
use crate::{given, input, kernel, layout};

/// PTX that declares what it should have: enough for a text that is linked later.
pub const LIBRARY: &str = "//
.version 7.7
.target sm_75
.address_size 64
.extern .func (.param .b64 r) gpuvm_call_first(.param .b64 a, .param .b64 b, .param .b64 c, .param .b32 d);
.extern .func (.param .b64 r) gpuvm_call_next(.param .b64 a);
";

/// A text that calls, with the declarations of what it calls.
pub fn called(text: &str) -> String {
    let called = rewrite_to_calls(text.as_bytes(), &layout(), 96).unwrap_or_else(|error| panic!("{error}"));
    with_library(&called.text, LIBRARY).unwrap_or_else(|error| panic!("{error}"))
}

fn of_body(body: &str) -> (String, FunctionReport) {
    let called =
        rewrite_to_calls(kernel(body).as_bytes(), &layout(), 96).unwrap_or_else(|error| panic!("{body}: {error}"));
    let [report] = <[FunctionReport; 1]>::try_from(called.report.functions).expect("one kernel");
    (called.text, report)
}

/// The texts of the calls in a text.
fn calls(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.contains("call (")).collect()
}

#[test]
fn an_instruction_stays_as_it_was_twice_once_with_its_place() {
    for (form, access) in FORMS {
        let (text, report) = of_body(&format!("@%p1 {}", form.replace("ADDRESS", "[%rd1+-512]")));
        let plain = format!("@%p1 {}", form.replace("ADDRESS", "[%rd1+-512]"));
        if form.contains("async.mmio") {
            assert_eq!(report.left[0].why, Left::Asynchronous, "{form}");
            assert!(text.contains(&plain) && calls(&text).is_empty(), "{text}");
            continue;
        }
        assert_eq!(report.changed.len(), 1, "{form}");
        assert_eq!(report.changed[0].access, *access);
        assert!(text.contains(&plain), "{form}:\n{text}");
        if matches!(access, Access::Prefetch | Access::Discard) {
            assert!(
                calls(&text).is_empty() && text.contains("@%gpuvm_p bra $gpuvm_over_0;"),
                "{text}"
            );
            continue;
        }
        assert_eq!(calls(&text).len(), 2, "{form}:\n{text}");
        // No cache that knows nothing of another page in the frame.
        let placed = form
            .replace("ADDRESS", "[%gpuvm_e]")
            .replace(".nc", "")
            .replace("ldu.", "ld.");
        assert!(text.contains(&format!("@%gpuvm_p {placed}")), "{form}:\n{text}");
        assert_eq!(text.contains("cp.async.wait_all;"), *access == Access::Copy, "{form}");
    }
}

#[test]
fn a_call_is_told_how_many_bytes_and_whether_they_are_written() {
    for (form, how) in [
        ("ld.global.u8 %h1, [%rd1];", "1"),
        ("ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];", "16"),
        ("ld.v4.b64 {%rd11, %rd12, %rd13, %rd14}, [%rd1];", "32"),
        ("ld.global.b128 %q1, [%rd1];", "16"),
        ("st.global.v2.u64 [%rd1], {%rd11, %rd12};", "272"),
        ("atom.add.noftz.f16x2 %r1, [%rd1], %r2;", "260"),
        ("atom.global.v2.f32.add {%f1, %f2}, [%rd1], {%f3, %f4};", "264"),
        ("red.global.add.f64 [%rd1], %rd11;", "264"),
        ("cp.async.ca.shared.global [%r9], [%rd1], 8;", "8"),
        ("cp.async.ca.shared.global [%r9], [%rd1], 0x10;", "16"),
        ("cp.async.cg.shared.global [%r9], [%rd1], 16, %r2;", "%r2"),
        ("cp.async.cg.shared.global [%r9], [%rd1], 16, %p2;", "16"),
        (
            "cp.async.cg.shared.global.L2::cache_hint [%r9], [%rd1], 16, %rd9;",
            "16",
        ),
    ] {
        let (text, _) = of_body(form);
        assert!(text.contains(&format!("mov.b32 %gpuvm_n, {how};")), "{form}:\n{text}");
        assert_eq!(
            text.contains("@%p2 bra $gpuvm_plain_0;"),
            form.contains("%p2"),
            "{form}"
        );
        assert_eq!(
            text.contains("setp.ne.and.u32 %gpuvm_p, %gpuvm_n, 0"),
            how == "%r2",
            "{form}"
        );
    }
    // What is not known does not call.
    let (text, report) = of_body("ld.global.e5m2x4 %r1, [%rd1];");
    assert_eq!((calls(&text).len(), report.left[0].why), (0, Left::Unknown));
}

#[test]
fn other_memory_is_left_alone() {
    for body in [
        "ld.shared.u32 %r1, [%rd1];",
        "mov.u64 %rd2, stack; st.u32 [%rd2+4], %r1;",
        "cvta.shared.u64 %rd2, %rd1; ld.u32 %r1, [%rd2];",
        "st.global.u32 [own], %r1;",
        "ld.param.u64 %rd1, [given];",
    ] {
        let (text, report) = of_body(body);
        assert!(
            text.contains(body) && report.changed.is_empty() && calls(&text).is_empty(),
            "{text}"
        );
    }
}

#[test]
fn each_kernel_gets_one_parameter_more() {
    for (given, wanted) in [
        (
            "k(.param .u64 a)",
            format!("k(.param .u64 a, .param .align 16 .b8 {LAUNCH}[96])\n.maxntid 1024\n"),
        ),
        ("k()", format!("k(.param .align 16 .b8 {LAUNCH}[96])\n.maxntid 1024\n")),
        ("k", format!("k(.param .align 16 .b8 {LAUNCH}[96])\n.maxntid 1024\n")),
        (
            "k ( ) .reqntid 64",
            format!("k (.param .align 16 .b8 {LAUNCH}[96] ) .reqntid 64"),
        ),
    ] {
        let text = format!(
            ".version 8.0 .target sm_80 .address_size 64\n.entry {given} {{ .reg .b64 %a; .reg .b32 %r; ld.global.u32 %r, [%a]; ret; }}"
        );
        let called = rewrite_to_calls(text.as_bytes(), &layout(), 96).expect("it is PTX");
        assert!(called.text.contains(&wanted), "{}", called.text);
        // A parameter that is the form's own is not the kernel's.
        assert!(called.report.functions[0].params.len() < 2);
    }
}

#[test]
fn functions_find_the_launch_in_shared_memory() {
    let function = ".func f(.param .b64 f_0) { .reg .b64 %a; ld.param.u64 %a, [f_0]; st.u32 [%a], 0; ret; }";
    let entry = ".entry k(.param .u64 a) { ret; }";
    let text = |parts: &[&str]| format!(".version 8.0 .target sm_80 .address_size 64\n{}\n", parts.join("\n"));
    let called = |text: &str| {
        rewrite_to_calls(text.as_bytes(), &layout(), 96)
            .expect("it is PTX")
            .text
    };
    let both = called(&text(&[function, entry]));
    for part in [
        ".shared .align 8 .b64 gpuvm_launch_of_block;",
        "st.relaxed.cta.shared.b64 [",
        "ld.relaxed.cta.shared.b64 %gpuvm_v, [",
    ] {
        assert_eq!(both.matches(part).count(), 1, "{both}");
    }
    let alone = called(&text(&[entry]));
    assert!(!alone.contains(".shared") && !alone.contains("cvta"), "{alone}");
}

#[test]
fn what_comes_out_is_ptx_and_is_not_taken_again() {
    for name in given::FILES {
        let text = std::fs::read_to_string(input(name)).expect("a file of the repository");
        let called = rewrite_to_calls(text.as_bytes(), &layout(), 96).unwrap_or_else(|error| panic!("{name}: {error}"));
        let looked_up = rewrite(text.as_bytes(), &layout()).expect("it is PTX");
        assert_eq!(called.report.changed(), looked_up.report.changed(), "{name}");
        given::nothing_is_left_out(&called.text);
        given::nothing_is_left_out(&with_library(&called.text, LIBRARY).expect("both are PTX"));
        let again = rewrite_to_calls(called.text.as_bytes(), &layout(), 96);
        assert!(
            called.report.changed() == 0 || matches!(again, Err(PtxError::Reserved { .. })),
            "{name}"
        );
    }
}

#[test]
fn the_newer_header_holds_for_both() {
    let header = |version: &str, target: &str| format!(".version {version}\n.target {target}\n.address_size 64\n");
    for (own, library, wanted) in [
        (("7.0", "sm_80"), ("9.0", "sm_90"), ("9.0", "sm_90")),
        (("9.1", "sm_90a"), ("9.0", "sm_90"), ("9.1", "sm_90a")),
        (("8.0", "sm_75, debug"), ("9.0", "sm_100"), ("9.0", "sm_100, debug")),
    ] {
        let text = header(own.0, own.1) + ".entry k() { ret; }";
        let called = rewrite_to_calls(text.as_bytes(), &layout(), 96).expect("it is PTX");
        let whole =
            with_library(&called.text, &(header(library.0, library.1) + "// the library\n")).expect("both are PTX");
        assert!(whole.starts_with(&header(wanted.0, wanted.1)), "{whole}");
        assert!(
            whole.contains("// the library") && !whole.contains("gpuvm_call_first"),
            "{whole}"
        );
        assert_eq!(Module::parse(&whole).expect("it is PTX").functions().count(), 1);
    }
}
