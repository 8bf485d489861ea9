//! What a compiler's log means to the user.

use super::tokens::{Token, TokenKind, tokens};
use crate::api::Source;
use crate::error::GpuError;

/// The error for a kernel that `source` does not have, when all errors of the log are in generated lines.
pub fn missing_kernel(
    source: &Source,
    kernels: &[&str],
    log: &str,
    generated: impl Fn(&str) -> bool,
) -> Option<GpuError> {
    let mut errors = log.lines().filter(|line| line.contains("error:")).peekable();
    errors.peek()?;
    if !errors.all(generated) {
        return None;
    }
    let known = kernel_names(&source.text);
    let base = |kernel: &str| {
        let plain = kernel.split('<').next().unwrap_or(kernel);
        plain.rsplit("::").next().unwrap_or(plain).trim().to_owned()
    };
    let name = kernels.iter().find(|kernel| !known.contains(&base(kernel)))?;
    Some(GpuError::KernelNotFound {
        name: (*name).to_owned(),
        module: source.name.clone(),
        known,
    })
}

/// Names of the functions that `text` declares `__global__`.
fn kernel_names(text: &str) -> Vec<String> {
    let all = tokens(text);
    let words: Vec<&Token> = all
        .iter()
        .filter(|t| matches!(t.kind, TokenKind::Word | TokenKind::Punctuation))
        .collect();
    let word = |t: &Token| &text[t.start..t.end];
    let mut names: Vec<String> = Vec::new();
    for (at, _) in words.iter().enumerate().filter(|(_, t)| word(t) == "__global__") {
        let mut i = at + 1;
        while i < words.len() && i < at + 32 {
            let is_call = words.get(i + 1).is_some_and(|t| word(t) == "(");
            if is_call && words[i].kind == TokenKind::Word {
                if !matches!(word(words[i]), "__launch_bounds__" | "__attribute__" | "__align__") {
                    let name = word(words[i]).to_owned();
                    if !names.contains(&name) {
                        names.push(name);
                    }
                    break;
                }
                while i < words.len() && word(words[i]) != ")" {
                    i += 1;
                }
            }
            i += 1;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::kernel_names;

    #[test]
    fn kernels_are_found_by_name() {
        let text = "template <class T>\n__global__ void __launch_bounds__(128) a(T*);\n__global__ static void b();\n// __global__ void c();\n\
                    __global__ void b() {}";
        assert_eq!(kernel_names(text), ["a", "b"]);
    }

    #[test]
    fn unfinished_text_has_no_kernels() {
        for text in [
            "__global__",
            "__global__ void k",
            "__global__ void __launch_bounds__(",
            "\"",
            "/*",
            "R\"",
            "'",
        ] {
            assert!(kernel_names(text).is_empty(), "{text}");
        }
    }
}
