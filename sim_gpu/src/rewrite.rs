//! The small changes that CUDA source needs before a host compiler reads it. They keep every line where it is.

use gpuvm_gpu::back_end::{Token, TokenKind, tokens};

/// Rewrites `extern __shared__ T name[];` to a reference to the block's dynamic shared memory, and drops a `static` before
/// `__shared__`, which already says so.
pub(crate) fn shared_arrays(text: &str) -> String {
    let all = tokens(text);
    let meaningful: Vec<Token> = all
        .iter()
        .copied()
        .filter(|t| matches!(t.kind, TokenKind::Word | TokenKind::Punctuation | TokenKind::Literal))
        .collect();
    let word = |t: &Token| &text[t.start..t.end];
    let directives = directives(&all, text);
    let mut out = String::with_capacity(text.len() + 256);
    let mut copied = 0;
    let mut scopes = Scopes::default();
    let mut at = 0;
    while at < meaningful.len() {
        let token = meaningful[at];
        // A declaration in a macro ends with the macro.
        let line_end = directives
            .iter()
            .find(|(from, to)| (*from..*to).contains(&token.start))
            .map(|(_, to)| *to);
        let reach = line_end.map_or(meaningful.len(), |to| meaningful.partition_point(|t| t.start < to));
        let scope = &meaningful[..reach];
        if line_end.is_none() {
            scopes.see(word(&token));
        }
        if matches!(word(&token), "extern" | "static") && token.kind == TokenKind::Word {
            let end = scope[at..]
                .iter()
                .position(|t| matches!(word(t), ";" | "{" | "(" | "="))
                .map(|n| n + at);
            let end = end.or(line_end.map(|_| reach));
            let end = end.map(|e| past_attributes(scope, &word, at, e));
            let is_shared = end.is_some_and(|end| scope[at..end].iter().any(|t| word(t) == "__shared__"));
            if let (true, Some(end)) = (is_shared, end) {
                let replacement = if word(&token) == "static" {
                    Some((token.end, String::new()))
                } else {
                    dynamic_array(text, &scope[at + 1..end], scopes.in_function()).map(|new| (scope[end - 1].end, new))
                };
                if let Some((until, new)) = replacement {
                    out.push_str(&text[copied..token.start]);
                    out.push_str(&new);
                    let lines = text[token.start..until].matches('\n').count();
                    let continued = text[token.start..until].contains("\\\n");
                    out.push_str(&(if continued { "\\\n" } else { "\n" }).repeat(lines));
                    copied = until;
                    while at + 1 < meaningful.len() && meaningful[at + 1].start < until {
                        at += 1;
                    }
                }
            }
        }
        at += 1;
    }
    out.push_str(&text[copied..]);
    out
}

/// Where preprocessor lines lie, continued ones whole.
fn directives(all: &[Token], text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut begin = None;
    let mut at_line_start = true;
    for token in all {
        match token.kind {
            TokenKind::Newline => {
                if let Some(begin) = begin.take() {
                    found.push((begin, token.start));
                }
                at_line_start = true;
            }
            TokenKind::Blank => {}
            _ => {
                if at_line_start && &text[token.start..token.end] == "#" {
                    begin = Some(token.start);
                }
                at_line_start = false;
            }
        }
    }
    found.extend(begin.map(|begin| (begin, text.len())));
    found
}

/// The end of a declaration that starts at `at`, when its first bracket at `end` only belongs to an attribute.
fn past_attributes<'a>(all: &[Token], word: &impl Fn(&Token) -> &'a str, at: usize, end: usize) -> usize {
    let mut end = end;
    while end > at && end < all.len() && word(&all[end]) == "(" && is_attribute(word(&all[end - 1])) {
        let mut depth = 0;
        let mut i = end;
        while i < all.len() {
            match word(&all[i]) {
                "(" => depth += 1,
                ")" => depth -= 1,
                _ => {}
            }
            i += 1;
            if depth == 0 {
                break;
            }
        }
        let next = all[i..]
            .iter()
            .position(|t| matches!(word(t), ";" | "{" | "(" | "="))
            .map(|n| n + i);
        match next {
            Some(next) => end = next,
            None => return end,
        }
    }
    end
}

fn is_attribute(word: &str) -> bool {
    matches!(word, "__align__" | "alignas" | "__attribute__")
}

/// The declaration that replaces the tokens after `extern`; none when they are no array of unknown length.
fn dynamic_array(text: &str, declaration: &[Token], in_function: bool) -> Option<String> {
    let word = |t: &Token| &text[t.start..t.end];
    let bracket = declaration.iter().position(|t| word(t) == "[")?;
    if word(declaration.get(bracket + 1)?) != "]" {
        return None;
    }
    let name = word(declaration.get(bracket.checked_sub(1)?)?);
    let mut element = String::new();
    let mut skip_group = 0;
    let mut after_attribute = false;
    for token in &declaration[..bracket - 1] {
        let w = word(token);
        if skip_group > 0 || (after_attribute && w == "(") {
            skip_group += i32::from(w == "(") - i32::from(w == ")");
            after_attribute = false;
            continue;
        }
        after_attribute = is_attribute(w);
        if !(after_attribute || w == "__shared__") {
            element.push_str(w);
            element.push(' ');
        }
    }
    let suffix: String = declaration[bracket..].iter().map(word).collect();
    let element = element.trim_end();
    Some(if in_function {
        format!("{element} (&{name}){suffix} = *reinterpret_cast<{element} (*){suffix}>(gpuvm_sim::dynamic_shared())")
    } else {
        let inner = &suffix[2..];
        format!("static const gpuvm_sim::dynamic_array<{element}{inner}> {name}")
    })
}

/// Whether the current place is inside a function, told by the braces around it.
#[derive(Default)]
struct Scopes {
    /// One entry a brace: whether it is a namespace's.
    open: Vec<bool>,
    /// Whether the words since the last `;`, `{` or `}` begin a namespace or an extern "C" block.
    namespace: bool,
    first: bool,
    started: bool,
}

impl Scopes {
    fn see(&mut self, word: &str) {
        if !self.started {
            (self.started, self.first) = (true, true);
        }
        match word {
            "{" => {
                self.open.push(self.namespace);
                (self.namespace, self.first) = (false, true);
            }
            "}" => {
                self.open.pop();
                (self.namespace, self.first) = (false, true);
            }
            ";" => (self.namespace, self.first) = (false, true),
            _ => {
                if self.first {
                    self.namespace = matches!(word, "namespace" | "extern" | "inline");
                    self.first = false;
                } else if matches!(word, "(" | "class" | "struct") {
                    self.namespace = false;
                }
            }
        }
    }

    fn in_function(&self) -> bool {
        self.open.contains(&false)
    }
}

#[cfg(test)]
mod tests {
    use super::shared_arrays;

    #[test]
    fn only_declarations_of_dynamic_arrays_change() {
        for same in [
            "extern int a[];\nextern \"C\" int f(int);\n",
            "const char* s = \"extern __shared__ int a[];\"; // extern __shared__ int b[];\n/* extern __shared__ int c[]; */",
            "auto r = R\"x(extern __shared__ int a[];)x\"; char c = '\"'; int n = 1'000;",
            "__global__ void k() { __shared__ float a[4]; }",
            "#define S extern __shared__\nS int a[];",
            "extern __shared__ int a[4];",
        ] {
            assert_eq!(shared_arrays(same), same);
        }
        assert_eq!(shared_arrays("static __shared__ int a;"), " __shared__ int a;");
    }

    #[test]
    fn lines_stay_where_they_are() {
        let text = "namespace n {\nvoid k()\n{\n  extern\n  __shared__ __align__(8)\n  unsigned long s[]; s[0] = 1;\n}\n}\nint last;";
        let out = shared_arrays(text);
        assert_eq!(out.lines().count(), text.lines().count());
        assert_eq!(out.lines().last(), Some("int last;"));
        let wanted = "unsigned long (&s)[] = *reinterpret_cast<unsigned long (*)[]>(gpuvm_sim::dynamic_shared())";
        assert!(out.contains(wanted), "{out}");
    }

    #[test]
    fn scope_decides_the_form() {
        let in_macro = shared_arrays("#define D(T) extern __shared__ T s[]\nvoid f() { D(int); }");
        assert_eq!(
            in_macro,
            "#define D(T) static const gpuvm_sim::dynamic_array<T> s\nvoid f() { D(int); }"
        );
        let proxy = "static const gpuvm_sim::dynamic_array<float> s";
        assert!(shared_arrays("extern __shared__ float s[];").contains(proxy));
        assert!(shared_arrays("namespace a { namespace { extern __shared__ float s[]; } }").contains(proxy));
        assert!(shared_arrays("namespace a { void f() {} extern __shared__ float s[]; }").contains(proxy));
        assert!(
            shared_arrays("struct S {}; void f() { if (1) { extern __shared__ float s[][2]; } }").contains("(&s)[][2]")
        );
    }

    #[test]
    fn unfinished_text_is_left_to_the_compiler() {
        for text in [
            "extern __shared__ int a[",
            "extern __shared__",
            "\"",
            "/*",
            "R\"",
            "'",
            "extern __shared__ [];",
            "}}}}{",
        ] {
            let _ = shared_arrays(text);
        }
    }
}
