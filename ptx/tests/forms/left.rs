//! What keeps its address, and why.

use gpuvm_ptx::Left;

use crate::{layout, rewritten};

/// The reasons, in order, for instructions that are all left alone.
fn reasons(body: &str) -> Vec<Left> {
    let (text, report) = rewritten(body, &layout());
    assert_eq!(report.changed, [], "{body}");
    assert!(text.contains(body), "{text}");
    report.left.iter().map(|left| left.why).collect()
}

fn changed(body: &str) -> usize {
    rewritten(body, &layout()).1.changed.len()
}

#[test]
fn other_spaces_are_left_alone() {
    for (instruction, why) in [
        ("ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];", Left::Shared),
        ("st.shared::cta.u32 [%r1+4], %r2;", Left::Shared),
        ("ld.shared::cluster.u32 %r1, [%r2];", Left::Shared),
        ("atom.shared.add.u32 %r1, [block], 1;", Left::Shared),
        ("red.shared.add.u32 [%rd1], 1;", Left::Shared),
        ("st.local.u32 [stack+4], %r1;", Left::Local),
        ("ld.const.u32 %r1, [fixed+8];", Left::Const),
        ("ld.param.u64 %rd1, [given];", Left::Param),
        ("ld.param::entry.u64 %rd1, [given];", Left::Param),
        ("ld.global.u32 %r1, [own+4];", Left::Variable),
        ("ld.u32 %r1, [own];", Left::Variable),
        ("ld.global.u32 %r1, own[2];", Left::Variable),
        (
            "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3];",
            Left::Shared,
        ),
        ("mbarrier.init.shared::cta.b64 [%rd1], 1;", Left::Shared),
        (
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];",
            Left::Shared,
        ),
        (
            "st.async.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];",
            Left::Shared,
        ),
        ("cp.async.mbarrier.arrive.shared.b64 [%r1];", Left::Shared),
        ("st.bulk.weak.shared::cta [%rd1], 1024, 0;", Left::Shared),
        (
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], 64, [%r3];",
            Left::Shared,
        ),
    ] {
        if instruction.contains("own[") {
            // An element of a variable is no address operand, and nothing is to be done.
            assert_eq!(reasons(instruction), [], "{instruction}");
            continue;
        }
        assert_eq!(reasons(instruction), [why], "{instruction}");
        assert!(!why.may_use_home());
    }
}

#[test]
fn what_cannot_be_looked_up_is_told() {
    for (instruction, why) in [
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 1024, [%r2];",
            Left::Bulk,
        ),
        (
            "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 1024;",
            Left::Bulk,
        ),
        ("cp.async.bulk.prefetch.L2.global [%rd1], 1024;", Left::Bulk),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];",
            Left::Bulk,
        ),
        (
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u64 [%rd1], [%r1], 64;",
            Left::Bulk,
        ),
        (
            "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd1], 16;",
            Left::Matrix,
        ),
        (
            "wmma.store.d.sync.aligned.row.m16n16k16.f16 [%rd1], {%r1, %r2, %r3, %r4}, %r9;",
            Left::Matrix,
        ),
        ("tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1}];", Left::Texture),
        ("suld.b.1d.b32.trap {%r1}, [%rd1, {%r2}];", Left::Surface),
        (
            "multimem.ld_reduce.relaxed.sys.global.add.u32 %r1, [%rd1];",
            Left::Multimem,
        ),
        ("prefetch.tensormap [%rd1];", Left::Descriptor),
        (
            "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;",
            Left::Descriptor,
        ),
        ("brand.new.global.u32 %r1, [%rd1];", Left::Unknown),
        ("call.uni outside, (%rd1);", Left::OutsideCall),
    ] {
        assert_eq!(reasons(instruction), [why], "{instruction}");
        assert!(why.may_use_home());
    }
    let policy = "createpolicy.range.global.L2::evict_last.b64 %rd2, [%rd1], 64, 128;";
    assert_eq!(reasons(policy), [Left::Policy]);
    assert_eq!(
        reasons("suq.width.b32 %r1, [%rd1];\nmov.u32 %r1, %tid.x;\nbar.sync 0;\ncp.async.wait_group 0;"),
        []
    );
}

#[test]
fn generic_addresses_from_other_spaces_are_left_alone() {
    for (body, why) in [
        (
            "mov.u64 %rd1, block;\ncvta.shared.u64 %rd2, %rd1;\nst.u32 [%rd2+4], 1;",
            Left::Shared,
        ),
        (
            "mov.u64 %rd1, stack;\ncvta.local.u64 %rd2, %rd1;\nadd.u64 %rd3, %rd2, 8;\nld.u32 %r1, [%rd3];",
            Left::Local,
        ),
        ("cvta.param.u64 %rd2, given;\nld.u32 %r1, [%rd2];", Left::Param),
        (
            "mov.u64 %rd1, fixed;\ncvta.const.u64 %rd2, %rd1;\nld.u32 %r1, [%rd2];",
            Left::Const,
        ),
        ("mov.u64 %rd1, own;\nld.global.u32 %r1, [%rd1];", Left::Variable),
        (
            "mov.u64 %rd1, own;\ncvta.global.u64 %rd2, %rd1;\nst.u32 [%rd2+4], 1;",
            Left::Variable,
        ),
        (
            "cvta.shared.u64 %rd1, %rd9;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd3, %rd1, %rd2;\natom.add.u32 %r1, [%rd3], 1;",
            Left::Shared,
        ),
        (
            "cvta.shared.u64 %rd1, %rd9;\nmad.wide.s32 %rd2, %r1, 4, %rd1;\nred.add.u32 [%rd2], 1;",
            Left::Shared,
        ),
        (
            "cvta.shared.u64 %rd1, %rd9;\ncvt.u64.u32 %rd2, %r1;\nshl.b64 %rd3, %rd2, 2;\nsub.s64 %rd4, %rd1, %rd3;\nld.u32 %r1, [%rd4];",
            Left::Shared,
        ),
        (
            "cvta.shared.u64 %rd1, %rd9;\ncvta.local.u64 %rd2, %rd8;\nselp.b64 %rd3, %rd1, %rd2, %p1;\nld.u32 %r1, [%rd3];",
            Left::NotGlobal,
        ),
        // Around a loop.
        (
            "cvta.shared.u64 %rd1, %rd9;\nmov.u64 %rd2, %rd1;\nL: ld.u32 %r1, [%rd2];\nadd.s64 %rd2, %rd2, 4;\n@%p1 bra L;",
            Left::Shared,
        ),
        (
            "cvta.shared.u64 %rd1, %rd9;\nwmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1, %r2}, [%rd1], 16;",
            Left::Shared,
        ),
        // Of two registers with one name each block has its own.
        (
            "cvta.shared.u64 %rd1, %rd9;\n{ .reg .b64 %rd1;\nld.param.u64 %rd1, [given]; }\nld.u32 %r1, [%rd1];",
            Left::Shared,
        ),
    ] {
        let found: Vec<_> = reasons(body)
            .into_iter()
            .filter(|found| *found != Left::Param || why == Left::Param)
            .collect();
        assert_eq!(found, [why], "{body}");
    }
}

#[test]
fn an_address_that_may_be_paged_is_looked_up() {
    for body in [
        "ld.u32 %r1, [%rd1];",
        "ld.param.u64 %rd1, [given];\nld.u32 %r1, [%rd1];",
        // Either of two.
        "cvta.shared.u64 %rd1, %rd9;\nselp.b64 %rd3, %rd1, %rd2, %p1;\nld.u32 %r1, [%rd3];",
        "ld.param.u64 %rd2, [given];\ncvta.shared.u64 %rd1, %rd9;\n@%p1 mov.u64 %rd1, %rd2;\nld.u32 %r1, [%rd1];",
        // The other one is defined behind the access, in a loop.
        "cvta.shared.u64 %rd1, %rd9;\nL: ld.u32 %r1, [%rd1];\nld.param.u64 %rd1, [given];\nbra L;",
        // A difference of two addresses makes one of the third.
        "ld.param.u64 %rd1, [given];\ncvta.shared.u64 %rd2, %rd9;\nsub.s64 %rd3, %rd1, %rd2;\nadd.s64 %rd4, %rd2, %rd3;\nld.u32 %r1, [%rd4];",
        "cvta.shared.u64 %rd1, %rd9;\n{ .reg .b64 %rd1;\nld.param.u64 %rd1, [given]; ld.u32 %r1, [%rd1]; }",
        "mov.b64 %rd1, {%r1, %r2};\nld.u32 %r1, [%rd1];",
        "ld.global.v2.u64 {%rd1, %rd2}, [own];\nld.u32 %r1, [%rd2];",
        "call (%rd1), outside, (%rd2);\nld.u32 %r1, [%rd1];",
        // Nothing defines the second one.
        "cvta.shared.u64 %rd1, %rd9;\nmov.u64 %rd1, %rd2;\nld.u32 %r1, [%rd1];",
        "cvta.shared.u64 %rd1, %rd9;\natom.global.exch.b64 %rd1, [own], 0;\nld.u32 %r1, [%rd1];",
    ] {
        assert_eq!(changed(body), 1, "{body}");
    }
}

#[test]
fn what_a_caller_gives_is_looked_up() {
    let text = ".version 8.0 .target sm_80 .address_size 64\n.func (.reg .b64 out) f(.reg .b64 %a) { .reg .b64 %b; .reg .b32 %r;\n\
                cvta.shared.u64 %b, %b; ld.u32 %r, [%a]; mov.u64 %a, %b; ld.u32 %r, [%a]; mov.u64 out, %b; ret; }";
    let report = gpuvm_ptx::rewrite(text.as_bytes(), &layout())
        .expect("it is right")
        .report;
    assert_eq!((report.changed(), report.functions[0].is_entry), (2, false));
}

#[test]
fn the_report_tells_places() {
    let body =
        "ld.global.u32 %r1, [%rd1];\ncp.async.bulk.prefetch.L2.global [%rd1], 1024;\n\tst.shared.u32 [%r1], %r2;";
    let (_, report) = rewritten(body, &layout());
    assert_eq!((report.changed[0].at.line, report.changed[0].at.column), (17, 1));
    assert_eq!((report.left[1].at.line, report.left[1].at.column), (19, 2));
    assert!(report.may_use_home());
    let shown = report.to_string();
    for part in [
        "kernel kernel: 1 accesses",
        "loads",
        "shared memory",
        "at home: cp.async.bulk.prefetch.L2.global (line 18, column 1)",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
}
