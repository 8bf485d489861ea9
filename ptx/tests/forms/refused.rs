//! Text that is refused: each error says where and what to do.

use gpuvm_ptx::{Position, PtxError, TableLayout, rewrite};

use crate::{kernel, layout};

fn refusal(text: impl AsRef<[u8]>) -> PtxError {
    match rewrite(text.as_ref(), &layout()) {
        Ok(rewritten) => panic!("{}", rewritten.text),
        Err(error) => error,
    }
}

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// Texts, where they are wrong, and part of the message.
fn wrong() -> Vec<(String, Option<Position>, &'static str)> {
    let at = |line, column| Some(Position { line, column });
    vec![
        ("\x7fELF\x02".to_owned(), at(1, 1), "unexpected character"),
        (String::new(), at(1, 1), "no `.version`"),
        (
            ".version 8.0\n.target sm_80\n.entry k() { ret; }".to_owned(),
            at(3, 1),
            "no `.address_size`",
        ),
        (".version 5.0\n".to_owned(), at(1, 10), "PTX ISA 5.0"),
        (".version 10.0\n".to_owned(), at(1, 10), "PTX ISA 10.0"),
        (".version 8\n".to_owned(), at(1, 10), "PTX ISA 8 "),
        (
            ".version 8.0\n.target sm_80\n.address_size 32".to_owned(),
            at(3, 15),
            "32 bits",
        ),
        (format!("{HEAD}/* never"), at(4, 1), "a comment that begins here"),
        (format!("{HEAD}.file 1 \"a\n\""), at(4, 9), "a string that begins here"),
        (
            format!("{HEAD}.entry k() {{\n ret;\n"),
            at(4, 12),
            "a function's body that begins here",
        ),
        (format!("{HEAD}.entry k() {{\n ret\n}}"), at(6, 1), "found `}` where"),
        (
            format!("{HEAD}.entry k() {{\n ld.global.u32 %r1, [+4];\n}}"),
            at(5, 22),
            "found `+`",
        ),
        (
            format!("{HEAD}.entry k() {{\n ld.global.u32 %r1, [a+];\n}}"),
            at(5, 24),
            "found `]`",
        ),
        (
            format!("{HEAD}.entry k() {{\n ld.global.u32 %r1, [%rd1];\n}}"),
            at(5, 2),
            "`%rd1` is used",
        ),
        (
            format!("{HEAD}.global .b8 gpuvm_window[32];"),
            at(4, 13),
            "rewritten before",
        ),
        (kernel(".reg .b64 %gpuvm_a;"), at(17, 11), "rewritten before"),
        (kernel("ld.global.u32 %r1, [%r2];"), at(17, 1), "`%r2` has 32 bits"),
        (kernel("ld.u32 %r1, [%h2];"), at(17, 1), "`%h2` has 16 bits"),
        (kernel(&"{".repeat(64)), at(17, 64), "more than 64 levels of blocks"),
        (
            kernel(&format!("mov.b64 {}", "{".repeat(17))),
            at(17, 25),
            "more than 16 levels of brackets",
        ),
        (
            kernel(&format!("mov.b64 {}", "a|".repeat(17))),
            at(17, 41),
            "more than 16 levels of brackets",
        ),
        (kernel("} }"), at(17, 3), "found `}` where a directive"),
        (kernel(".reg .b32 %x<99999999999>;"), at(17, 25), "a count below"),
    ]
}

#[test]
fn errors_say_where_they_are() {
    for (text, place, message) in wrong() {
        let error = refusal(&text);
        assert_eq!(error.position(), place, "{error}: {text}");
        let shown = error.to_string();
        assert!(shown.contains(message), "{shown}");
        let place = place.expect("a place");
        assert!(
            shown.starts_with(&format!("line {}, column {}: ", place.line, place.column)),
            "{shown}"
        );
    }
    let error = refusal(b".version 8.0\n \xff\xfe");
    assert_eq!(error.position(), Some(Position { line: 2, column: 2 }));
    assert!(error.to_string().contains("not UTF-8"), "{error}");
}

#[test]
fn what_was_rewritten_is_not_rewritten_again() {
    let once = rewrite(kernel("ld.global.u32 %r1, [%rd1];").as_bytes(), &layout()).expect("it is right");
    assert!(matches!(refusal(once.text), PtxError::Reserved { .. }));
    // Such words in comments and strings are no one's names.
    let text = kernel("// gpuvm_window %gpuvm_a\nret;");
    assert!(rewrite(text.as_bytes(), &layout()).is_ok());
}

#[test]
fn page_sizes_that_the_table_cannot_have_are_refused() {
    for bytes in [0, 1, 256, 511, 4095, 4 << 20, u64::MAX] {
        let error = TableLayout::new(bytes).expect_err("a bad size");
        assert!(error.position().is_none() && error.to_string().contains(&bytes.to_string()));
    }
}
