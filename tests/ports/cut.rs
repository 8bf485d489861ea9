//! Cuts the device code out of a program's text: its host code is of no use to a compiler of kernels alone.

use gpuvm_gpu::back_end::{Token, TokenKind, tokens};

/// What is left of a program.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// `#include` lines of gpuvm's own headers, which stand above everything else.
    pub includes: String,
    /// Macros, plain typedefs, device functions, and the kernels that were asked for.
    pub code: String,
    /// Lines of functions and kernels among them, without empty lines and lines of comments.
    pub lines: usize,
}

/// The device code of `text`, with those of its kernels that are named.
pub fn device(text: &str, kernels: &[&str]) -> Device {
    let all = tokens(text);
    let word = |token: &Token| &text[token.start..token.end];
    let mut found = Device::default();
    let mut at = 0;
    while let Some(first) = all.get(at) {
        if blank(first) {
            at += 1;
            continue;
        }
        let directive = word(first) == "#";
        let past = match directive {
            true => end_of_line(&all[at..]),
            false => end_of_item(&all[at..], word),
        };
        let item = &all[at..at + past];
        at += past;
        let words: Vec<&str> = item.iter().filter(|token| !blank(token)).map(word).collect();
        let source = &text[item[0].start..item[past - 1].end];
        let line = format!("{source}\n");
        match words.get(1) {
            Some(&"include") if directive && source.contains("<gpuvm/") => found.includes.push_str(&line),
            Some(&"include" | &"pragma") if directive => {}
            _ if directive => found.code.push_str(&line),
            _ if is_wanted(&words, kernels) => {
                found.code.push_str(&line);
                found.lines += lines(item);
            }
            _ => {}
        }
    }
    found
}

fn blank(token: &Token) -> bool {
    matches!(token.kind, TokenKind::Blank | TokenKind::Newline)
}

/// A preprocessor line with its continuations.
fn end_of_line(rest: &[Token]) -> usize {
    let end = rest.iter().position(|token| token.kind == TokenKind::Newline);
    end.unwrap_or(rest.len())
}

/// A declaration to its semicolon, or a function to its closing brace.
fn end_of_item<'a>(rest: &[Token], word: impl Fn(&Token) -> &'a str) -> usize {
    let (mut depth, mut call) = (0, false);
    for (at, token) in rest.iter().enumerate() {
        match word(token) {
            "(" => call |= depth == 0,
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        let ends = match word(token) {
            ";" => depth == 0,
            "}" => depth <= 0 && call,
            _ => false,
        };
        if ends {
            return at + 1;
        }
    }
    rest.len()
}

fn is_wanted(words: &[&str], kernels: &[&str]) -> bool {
    let head = words.iter().position(|word| *word == "{").unwrap_or(words.len());
    let head = &words[..head];
    if head.contains(&"__global__") {
        // Its name, or an attribute's, which nothing asks for.
        return head.windows(2).any(|pair| pair[1] == "(" && kernels.contains(&pair[0]));
    }
    let plain_type = head[0] == "typedef" && head.len() == words.len();
    plain_type || head.contains(&"__device__") || head.contains(&"__constant__")
}

/// Lines with code.
fn lines(item: &[Token]) -> usize {
    let (mut count, mut code) = (0, false);
    for token in item {
        match token.kind {
            TokenKind::Newline => {
                count += usize::from(code);
                code = false;
            }
            TokenKind::Blank => {}
            _ => code = true,
        }
    }
    count + usize::from(code)
}

#[test]
fn device_code_is_cut_out_of_a_program() {
    let text = r#"
#include <stdio.h>
#include <gpuvm/gpuvm.cuh>
#pragma once
#define CHECK(call) \
    if (call) { abort(); }
typedef unsigned long Edge; /* a { in a comment */
typedef struct { int a; } pair;
enum kind { ONE, TWO };
static const char* text = "}";
struct host { void f() { g(); } };
__device__ int twice(int v) { return 2 * v; }
template <class T>
__global__ void __launch_bounds__(128, 4)
kernel(T* a) {
    // A comment.

    a[0] = twice(1);
}
__global__ void other(int* a) { for (;;) { a[0] = 1; } }
int main() { kernel<int><<<1, 1>>>(0); return 0; }
"#;
    let cut = device(text, &["kernel"]);
    assert_eq!(cut.includes, "#include <gpuvm/gpuvm.cuh>\n");
    for kept in [
        "#define CHECK",
        "abort()",
        "typedef unsigned",
        "int twice",
        "template <class T>",
        "a[0] = twice(1);",
    ] {
        assert!(cut.code.contains(kept), "{kept} is missing in\n{}", cut.code);
    }
    for dropped in ["stdio", "pragma", "struct", "enum", "text", "other", "main"] {
        assert!(!cut.code.contains(dropped), "{dropped} is left in\n{}", cut.code);
    }
    // The typedef, the function, and the kernel without its comment and its empty line.
    assert_eq!(cut.lines, 1 + 1 + 5);
}
