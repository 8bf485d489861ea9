//! Text that compilers wrote: it is read and written again without a change, in pieces that leave nothing out.

use std::time::{Duration, Instant};

use gpuvm_ptx::{Access, Item, Left, Module, Position, Report, rewrite};

use crate::{input, layout};

/// The files of `tests/inputs`.
pub const FILES: [&str; 11] = [
    "plain.ptx",
    "spaces.ptx",
    "left.ptx",
    "triton_add.ptx",
    "triton_softmax.ptx",
    "triton_layer_norm.ptx",
    "triton_matmul.ptx",
    "triton_attention.ptx",
    "numba_axpy.ptx",
    "numba_five_points.ptx",
    "cub.ptx",
];

fn text(name: &str) -> String {
    std::fs::read_to_string(input(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn report(name: &str) -> Report {
    let rewritten = rewrite(text(name).as_bytes(), &layout()).unwrap_or_else(|error| panic!("{name}: {error}"));
    rewritten.report
}

/// Whether there is nothing but white space and comments.
fn is_gap(text: &str) -> bool {
    text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with("//")
    })
}

pub fn nothing_is_left_out(text: &str) {
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(module.write(), text);
    let mut at = 0;
    let mut next = |span: std::ops::Range<usize>| {
        assert!(is_gap(&text[at..span.start]), "{:?}", &text[at..span.start]);
        at = span.end;
    };
    for item in &module.items {
        match item {
            Item::Function(function) if function.body.is_some() => {
                next(function.header.clone());
                let body = function.body.as_deref().unwrap_or_default();
                body.iter().for_each(|statement| next(statement.span.clone()));
            }
            item => next(item.span()),
        }
    }
    assert!(is_gap(&text[at..]));
}

#[test]
fn files_are_read_and_written_without_a_change() {
    for name in FILES {
        nothing_is_left_out(&text(name));
        // What comes out is PTX again.
        let rewritten = rewrite(text(name).as_bytes(), &layout()).expect("it was read");
        nothing_is_left_out(&rewritten.text);
    }
}

#[test]
fn rare_text_is_read() {
    let text = r#"// a comment
/* another
   one */ .version 6.0 .target sm_75, texmode_independent, debug .address_size 64
# 1 "a.cu"
.file 1 "a b.cu", 1234, 5678
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.weak .global .align 8 .u64 names[3] = {a, generic(b)+8, {0, 1}}, other = 5;
.global .attribute(.managed) .b32 managed;
.visible .const .align 4 .b8 bytes[4] = {1, 2, 0xFF(names), 4};
.global .texref picture;
.alias f, g;
.func .attribute(.unified(0xAB, 1)) (.reg .u64 result) helper (.reg .b64 %a, .param .align 16 .b8 s[32]) .noreturn
{ ret.uni; }
.entry k(.param .u64 .ptr .global .align 16 k_0) .maxntid 128, 1, 1 .minnctapersm 2 .pragma "nounroll"; .explicitcluster
{
    .reg .pred %p<2>, q; .reg .v4 .f32 %v; .reg .b64 %rd<9>;
    .shared .align 4 .b8 s[16]; ;
    .loc 1 2 3, function_name $info+4, inlined_at 1 2 3
    $L_1: { L2: .pragma "used_bytes_mask 0xf"; }
    @!%p1 bra.uni $L_1;
    setp.lt.and.u32 %p0|q, 1, (2+3)*4, !%p1;
    shfl.sync.idx.b32 %r1|%p1, %r2, -1, 0x1f, 0xffffffff;
    mov.f64 %fd1, 0d3FF0000000000000; mov.f32 %f, 1.5e-3; mov.f32 %v.x, %v.y;
    mov.u64 %rd1, names+8; mov.b32 %r1, WARP_SZ; mov.u32 %r1, %envreg3;
    proto: .callprototype (.param .b32 _) _ (.param .b64 _);
    call (%r1), %rd1, (%rd2, s), proto;
    targets: .branchtargets $L_1, L2;
    brx.idx %r1, targets;
    ld.global.u32 %r1, names[1];
    trap; exit;
}
.section .debug_info { .b32 $a-$b .b8 1, 2 .b64 .debug_line+4 { } }
"#;
    nothing_is_left_out_but_comments(text);
    rewrite(text.as_bytes(), &layout()).expect("it is right");
    let with_nul = format!("{text}\0");
    assert!(
        rewrite(with_nul.as_bytes(), &layout())
            .expect("NVRTC writes it")
            .text
            .ends_with('\0')
    );
}

fn nothing_is_left_out_but_comments(text: &str) {
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(module.write(), text);
    let bodies = module.functions().filter_map(|function| function.body.as_ref()).count();
    assert_eq!((bodies, module.functions().count(), module.version), (2, 3, (6, 0)));
}

#[test]
fn the_files_accesses_are_counted() {
    let plain = report("plain.ptx");
    let counts = |name: &str| {
        let function = plain
            .functions
            .iter()
            .find(|function| function.name == name)
            .expect("a kernel");
        Access::ALL.map(|access| function.count(access))
    };
    assert_eq!(counts("total"), [1, 0, 1, 0, 0, 0, 0]);
    assert_eq!(counts("axpy"), [2, 1, 0, 0, 0, 0, 0]);
    assert_eq!(counts("five_points"), [5, 1, 0, 0, 0, 0, 0]);
    assert_eq!(counts("pieces"), [32, 0, 1, 0, 0, 0, 0]);
    assert!(!plain.may_use_home() && plain.changed() == 52);
    let matmul = &report("triton_matmul.ptx").functions[0];
    assert_eq!((matmul.count(Access::Copy), matmul.count(Access::Store)), (12, 8));
    let left = |name: &str, why: Left| {
        let report = report(name);
        let all = report.functions.iter().flat_map(|function| &function.left);
        all.filter(|left| left.why == why).count()
    };
    assert_eq!(left("left.ptx", Left::Matrix), 3);
    assert_eq!(left("left.ptx", Left::Bulk), 2);
    assert_eq!(left("left.ptx", Left::Texture) + left("left.ptx", Left::Surface), 2);
    assert_eq!(left("spaces.ptx", Left::Variable), 2);
    assert_eq!(left("spaces.ptx", Left::OutsideCall), 1);
}

#[test]
fn every_beginning_and_every_missing_byte_has_an_answer() {
    let text = text("left.ptx");
    for end in 0..text.len() {
        if let Err(error) = rewrite(&text.as_bytes()[..end], &layout()) {
            let at = error.position().expect("it is in the text");
            assert!(
                at.line >= 1
                    && at.column >= 1
                    && at
                        <= Position {
                            line: 1000,
                            column: 1000
                        },
                "{error}"
            );
        }
        let mut bytes = text.clone().into_bytes();
        bytes.remove(end);
        let _ = rewrite(&bytes, &layout());
        bytes[end.min(text.len() - 2)] ^= 0x80;
        assert!(rewrite(&bytes, &layout()).is_err());
    }
}

/// A kernel of this many lines, of accesses and of what lies between them.
fn long(lines: usize) -> String {
    let part = "\tadd.s64 \t%rd3, %rd1, %rd2;\n\tld.global.f32 \t%f1, [%rd3+16];\n\tfma.rn.f32 \t%f2, %f1, %f1, %f2;\n\t@%p1 st.global.f32 \t[%rd3], %f2;\n";
    crate::kernel(&part.repeat(lines / 4))
}

#[test]
fn time_grows_with_the_text_and_no_faster() {
    let best = |text: &str| {
        let times = (0..5).map(|_| {
            let start = Instant::now();
            rewrite(text.as_bytes(), &layout()).expect("it is right");
            start.elapsed()
        });
        times.min().expect("five times")
    };
    let (short, longer) = (best(&long(10_000)), best(&long(160_000)));
    println!("10,000 lines in {short:?}, 160,000 in {longer:?}");
    assert!(short < Duration::from_millis(500), "{short:?}");
    assert!(longer < short * 64, "{short:?}, {longer:?}");
    // Definitions that wait for each other, in the order that helps least.
    let chain: String = (1..60_000).map(|n| format!("mov.u64 %c{}, %c{n};\n", n - 1)).collect();
    let text = crate::kernel(&format!(
        ".reg .b64 %c<60001>;\n{chain}cvta.shared.u64 %c59999, %rd1;\nld.u32 %r1, [%c0];"
    ));
    assert!(best(&text) < short * 200);
}
