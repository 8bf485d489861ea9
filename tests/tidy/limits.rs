//! How long files and functions are, and how documentation begins.

use std::path::Path;

use super::{files, is, report};

/// Longest file, in lines.
const FILE_LINES_MAX: usize = 1000;
/// Longest function, in lines, from its name to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Functions that may be longer, and why.
const LONG_FUNCTIONS: &[(&str, &str)] = &[
    (
        "bad_matrices_are_refused_with_their_line",
        "a list of files and the error of each",
    ),
    (
        "u32 bytes, u32 page_shift, u32 offset) {",
        "`read_quickly`: a call would cost the commonest miss registers",
    ),
    (
        "streams_with_their_own_states_run_beside_each_other",
        "one state of the GPU, which all its steps need",
    ),
    (
        "replica_killed",
        "one story, whose steps a program and its nodes take in turn",
    ),
];

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Rust functions: names and lines. The closing brace has the indentation of the name's line, as rustfmt writes it.
fn rust_functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let name = |line: &str| {
        let words = [
            "pub",
            "pub(crate)",
            "pub(super)",
            "const",
            "async",
            "unsafe",
            "extern",
            "\"C\"",
            "\"system\"",
            "default",
        ];
        let mut rest = line.trim_start();
        while let Some((word, after)) = rest
            .split_once(' ')
            .filter(|(word, _)| words.contains(word) || word.starts_with("pub(in"))
        {
            debug_assert!(!word.is_empty());
            rest = after.trim_start();
        }
        let name = rest.strip_prefix("fn ")?;
        Some(
            name.split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()?
                .to_owned(),
        )
    };
    let found = (0..lines.len()).filter_map(|at| {
        let name = name(lines[at])?;
        if lines[at].ends_with([';', '}']) {
            return Some((name, 1));
        }
        let depth = indent(lines[at]);
        let end = (at + 1..lines.len())
            .find(|&next| indent(lines[next]) == depth && (lines[next].trim() == "}" || lines[next].ends_with(';')))?;
        Some((name, end - at + 1))
    });
    found.collect()
}

/// Functions of device code: what their first lines end with, and lines. Braces are counted, and none is in a string there.
fn device_functions(text: &str) -> Vec<(String, usize)> {
    const OTHERS: [&str; 12] = [
        "}",
        "else",
        "if",
        "for",
        "while",
        "switch",
        "do",
        "namespace",
        "struct",
        "class",
        "enum",
        "union",
    ];
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default().trim_end())
        .collect();
    let braces = |line: &str, brace| line.matches(brace).count();
    let found = (0..lines.len()).filter_map(|at| {
        let line = lines[at];
        let first = line.trim_start().split([' ', '(']).next()?;
        if !line.ends_with('{') || !line.contains(')') || OTHERS.contains(&first) {
            return None;
        }
        let mut open = 0;
        let end = (at..lines.len()).find(|&next| {
            open += braces(lines[next], '{');
            open -= braces(lines[next], '}').min(open);
            open == 0
        })?;
        Some((line.trim_start().to_owned(), end - at + 1))
    });
    found.collect()
}

fn functions(path: &Path, text: &str) -> Vec<(String, usize)> {
    if is(path, &["rs"]) {
        rust_functions(text)
    } else if is(path, &["cu", "cuh", "h", "cpp"]) {
        device_functions(text)
    } else {
        Vec::new()
    }
}

#[test]
fn no_file_is_long() {
    let long = files().into_iter().filter_map(|(path, text)| {
        let lines = text.lines().count();
        let looked_at = is(&path, &["rs", "cu", "cuh", "h", "cpp", "md", "sh"]);
        (looked_at && lines > FILE_LINES_MAX).then(|| format!("{}: {lines} lines", path.display()))
    });
    report("a file is one room", long.collect());
}

#[test]
fn no_function_is_long() {
    let mut seen = 0;
    let mut long = Vec::new();
    for (path, text) in files() {
        for (name, lines) in functions(&path, &text) {
            seen += 1;
            let allowed = LONG_FUNCTIONS.iter().any(|(allowed, _)| name == *allowed);
            if lines > FUNCTION_LINES_MAX && !allowed {
                long.push(format!("{}: {name}: {lines} lines", path.display()));
            }
        }
    }
    report("a function fits on a screen", long);
    assert!(seen > 2000, "only {seen} functions were found");
}

#[test]
fn functions_are_measured() {
    let body = "        x();\n".repeat(80);
    let rust = format!(
        "impl T {{\n    pub(super) unsafe fn long(\n        a: u32,\n    ) -> u32 {{\n{body}    }}\n    fn short() {{}}\n    fn declared(\n        a: u32,\n    );\n}}\n"
    );
    let found: Vec<_> = rust_functions(&rust);
    assert_eq!(
        found,
        [
            ("long".to_owned(), 84),
            ("short".to_owned(), 1),
            ("declared".to_owned(), 3)
        ]
    );
    let device = format!(
        "namespace a {{\ntemplate <class T> __device__ void f(T a,\n                  u32 b) {{\n    if (a) {{\n{body}    }}\n}}\n}} // namespace\n"
    );
    assert_eq!(device_functions(&device), [("u32 b) {".to_owned(), 84)]);
}

/// The first line of a doc comment that says what its item is by what another is.
fn begins_with_the_same(text: &str) -> Option<usize> {
    const JOINED_BY: [&str; 14] = [
        "as", "at", "but", "by", "for", "from", "in", "of", "on", "over", "to", "under", "unless", "with",
    ];
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let begins = |line: &str| {
        let rest = line.strip_prefix("/// The same")?;
        let word = rest.trim_start().split(' ').next().unwrap_or_default();
        (rest.is_empty() || !rest.starts_with(' ') || JOINED_BY.contains(&word)).then_some(())
    };
    let at = (0..lines.len()).find(|&at| {
        let is_first = at == 0 || !lines[at - 1].starts_with("///");
        is_first && begins(lines[at]).is_some()
    })?;
    Some(at + 1)
}

#[test]
fn documentation_says_what_an_item_is() {
    let code = files()
        .into_iter()
        .filter(|(path, _)| is(path, &["rs", "cu", "cuh", "h"]));
    let found =
        code.filter_map(|(path, text)| begins_with_the_same(&text).map(|line| format!("{}:{line}", path.display())));
    report(
        "a doc comment does not begin with \"The same\": the same as what?",
        found.collect(),
    );
    let same = [
        "fn a();\n    /// The same with b.",
        "\n/// The same, later.",
        "\n/// The same\n/// as b.",
    ];
    assert_eq!(same.map(begins_with_the_same), [Some(2); 3]);
    let other = "/// A page of\n/// The same as b.\nfn a();\n/// The same calls give the same order.";
    assert_eq!(begins_with_the_same(other), None);
}
