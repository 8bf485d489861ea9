//! On which parameters accesses are based, for launches that may run a kernel as it was written.

use gpuvm_ptx::{AccessBases, rewrite};

use crate::{input, layout, rewritten};

fn bases(body: &str) -> Option<AccessBases> {
    rewritten(body, &layout()).1.bases
}

/// Of a kernel whose only parameter is an array: whether it may run as it is.
fn runs_as_it_is(body: &str) -> bool {
    bases(body).is_some_and(|bases| bases.allow(1, 0))
}

#[test]
fn an_address_in_a_given_array_is_known_however_it_is_made() {
    for body in [
        "ld.param.u64 %rd1, [given]; ld.global.u32 %r1, [%rd1];",
        "ld.param.u64 %rd1, [given]; cvta.to.global.u64 %rd2, %rd1; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd2, %rd3; st.global.u32 [%rd4+8], %r2;",
        // An index that comes from memory.
        "ld.param.u64 %rd1, [given]; ld.global.u64 %rd2, [%rd1]; shl.b64 %rd3, %rd2, 2; add.s64 %rd4, %rd3, %rd1; ld.global.u32 %r1, [%rd4];",
        "ld.param.u64 %rd1, [given]; mad.lo.s64 %rd2, %rd5, 4, %rd1; mov.b64 %rd5, 7; atom.global.add.u32 %r1, [%rd2], 1;",
        // A pointer that walks.
        "ld.param.u64 %rd1, [given];\n$again: ld.global.u32 %r1, [%rd1]; add.s64 %rd1, %rd1, 4; setp.lt.u32 %p1, %r1, 9; @%p1 bra $again;",
        "ld.param.u64 %rd1, [given]; add.s64 %rd2, %rd1, 64; selp.b64 %rd3, %rd1, %rd2, %p1; ld.global.u32 %r1, [%rd3];",
        // What stays in registers, or goes to memory and is no address.
        "ld.param.u64 %rd1, [given]; cvt.u32.u64 %r1, %rd1; and.b32 %r2, %r1, 15; st.global.u32 [%rd1], %r2;",
        "ld.param.u64 %rd1, [given]; mov.b64 %rd2, 5; st.global.u64 [%rd1], %rd2; st.shared.u32 [block], %r1;",
        "ld.param.u64 %rd1, [given]; cp.async.ca.shared.global [block], [%rd1], 16;",
    ] {
        assert!(runs_as_it_is(body), "{body}");
    }
}

#[test]
fn an_address_that_may_be_of_another_launch_has_to_be_looked_up() {
    for body in [
        // Pointers that lie in memory.
        "ld.param.u64 %rd1, [given]; ld.global.u64 %rd2, [%rd1]; ld.global.u32 %r1, [%rd2];",
        "ld.param.u64 %rd1, [given]; ld.global.v2.u64 {%rd2, %rd3}, [%rd1]; st.global.u32 [%rd3], %r1;",
        "ld.param.u64 %rd1, [given]; atom.global.exch.b64 %rd2, [%rd1], 0; ld.global.u32 %r1, [%rd2];",
        "ld.param.u64 %rd1, [given]; ld.global.u64 %rd2, [%rd1]; selp.b64 %rd3, %rd1, %rd2, %p1; ld.global.u32 %r1, [%rd3];",
        "ld.param.u64 %rd1, [given]; @%p1 ld.global.u64 %rd1, [%rd1]; ld.global.u32 %r1, [%rd1];",
        "mov.b64 %rd1, {%r1, %r2}; ld.global.u32 %r3, [%rd1];",
        "ld.param.u64 %rd1, [given]; ld.global.u64 %rd2, [%rd1]; min.u64 %rd3, %rd1, %rd2; ld.global.u32 %r1, [%rd3];",
        "ld.param.u64 %rd1, [given]; ld.global.u64 %rd2, [%rd1]; sub.s64 %rd3, %rd2, %rd1; add.s64 %rd4, %rd1, %rd3; ld.global.u32 %r1, [%rd4];",
        // Pointers that are put there.
        "ld.param.u64 %rd1, [given]; st.global.u64 [%rd1], %rd1;",
        "ld.param.u64 %rd1, [given]; add.s64 %rd2, %rd1, 8; st.global.v2.u64 [%rd1], {%rd3, %rd2}; mov.b64 %rd3, 1;",
        "ld.param.u64 %rd1, [given]; atom.global.cas.b64 %rd2, [%rd1], 0, %rd1;",
        "ld.param.u64 %rd1, [given]; st.shared.u64 [block], %rd1;",
        "ld.param.u64 %rd1, [given]; mov.b64 {%r1, %r2}, %rd1; st.global.v2.b32 [%rd1], {%r1, %r2};",
        // Who is called may do anything.
        "ld.param.u64 %rd1, [given]; { .param .b64 a; st.param.b64 [a], %rd1; call.uni outside, (a); }",
        // An address that nothing defines.
        "ld.global.u32 %r1, [%rd9];",
    ] {
        assert!(!runs_as_it_is(body), "{body}");
    }
}

fn of_file(file: &str, check: impl Fn(&str, Option<&AccessBases>)) {
    let text = std::fs::read_to_string(input(file)).unwrap();
    let report = rewrite(text.as_bytes(), &layout()).unwrap().report;
    let kernels = report.functions.iter().filter(|function| function.is_entry);
    kernels.for_each(|function| check(&function.name, function.bases.as_ref()));
}

#[test]
fn what_may_be_written_is_said_by_parameter() {
    of_file("plain.ptx", |name, bases| {
        if name == "axpy" {
            let bases = bases.unwrap();
            let writes: Vec<bool> = (0..3).map(|parameter| bases.writes(parameter)).collect();
            assert_eq!(writes, [false, true, false], "{bases:?}");
            // A number of the user's may be the address of anything.
            assert!(
                bases.allow(0b11, 0) && !bases.allow(0b01, 0) && bases.allow(0b01, 0b10),
                "{bases:?}"
            );
        }
    });
}

#[test]
fn kernels_that_compilers_made_of_plain_sources_run_as_they_are() {
    for file in [
        "plain.ptx",
        "triton_add.ptx",
        "triton_softmax.ptx",
        "triton_layer_norm.ptx",
        "triton_matmul.ptx",
        "numba_axpy.ptx",
        "cub.ptx",
    ] {
        of_file(file, |name, bases| {
            let bases = bases.unwrap_or_else(|| panic!("{file}: {name}"));
            assert!(
                bases.escapes == 0 && !bases.accesses.contains(&0),
                "{file}: {name}: {bases:?}"
            );
        });
    }
}
